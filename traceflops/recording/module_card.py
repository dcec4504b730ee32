"""What a PyTorch module says of itself, in the words of a trace's description.

Only what is certain: a Hugging Face config of a known family that fits the parameters, otherwise
their number. What cannot be known on one rank, or would need an assumption, is left out. Nothing
of torch is imported; a module is asked for its parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, Final

from traceflops.errors import TraceflopsError, UsageError
from traceflops.flops.model.models import bare_model, card_of_config

_WRAPPED: Final = ("module", "_fsdp_wrapped_module", "_orig_mod")
"""What DDP, FSDP and torch.compile call the module inside, their only one."""
_TEXTS: Final = frozenset(("model_type", "architectures", "layer_types", "feed_forward_proj"))
"""The keys of a config whose words the reader needs; all else that it reads is numbers."""
_TRAINING: Final = frozenset(
    ("frozen", "frozen_layers", "lora", "lora_rank", "lora_params", "forward_only")
)
_ADAPTER: Final = "lora_"
_FARTHEST: Final = 2
"""A config that is farther from the parameters, as a factor, describes something else."""
_UNQUOTED: Final = re.compile(r"[^ !#-\[\]-~]")


def words_of(model: Any, world: int, given: Mapping[str, object]) -> dict[str, object]:
    """Return the description of a job of `world` ranks by its module, preset or card.

    `given` is what its user says. Raises UsageError where that is too little.
    """
    if model is None or isinstance(model, str | Mapping):
        return {"gpus": world} | ({} if model is None else {"model": model})
    # A process works on one device unless the module is spread or copied (torch.nn.DataParallel).
    copied = len(getattr(model, "device_ids", None) or ()) > 1
    on_one = not copied and len({parameter.device for parameter in model.parameters()}) < 2
    words: dict[str, object] = {"gpus": world} if on_one else {}
    if {"model", "params"} & given.keys():
        return words
    params, config = _count(model, model.parameters()), _config(model)
    if config is not None and _fits(config, params):
        words["model"] = config
    elif params is not None and _is_a_size(params):
        words["params"] = params
    else:
        return words
    words |= {} if _TRAINING & given.keys() else _adapters(model)
    recomputes = getattr(model, "is_gradient_checkpointing", False) is True
    if recomputes and not given.get("forward_only"):
        words["checkpointing"] = "full"
    return words


def plain(value: object) -> object:
    """Return a value as JSON, with all its text as PyTorch writes it, which has no escapes."""
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if value is None or isinstance(value, int) or (isinstance(value, float) and isfinite(value)):
        return value
    return _UNQUOTED.sub("?", str(value))


def _count(module: Any, parameters: Iterator[Any]) -> int | None:
    """Return how many parameters the whole model has, None where this rank cannot know.

    FSDP2 and DeepSpeed tell the size of the whole; FSDP1 and Megatron hold a part of it.
    """
    if any("_fsdp_wrapped_module" in part._modules for part in module.modules()):
        return None
    total = 0
    for one in parameters:
        if getattr(one, "tensor_model_parallel", False) or not one.is_floating_point():
            return None
        total += int(getattr(one, "ds_numel", None) or one.numel())
    return total


def _is_a_size(params: int) -> bool:
    try:
        return bare_model(params).params == params
    except TraceflopsError:
        return False


def _config(module: Any) -> dict[str, object] | None:
    """Return what a reader needs of the Hugging Face config of a module, None without any."""
    while True:
        config = getattr(module, "config", None)
        if config is not None and callable(getattr(config, "to_dict", None)):
            return _readable(config.to_dict())
        inner = next((module._modules[one] for one in _WRAPPED if one in module._modules), None)
        if inner is None or len(module._modules) > 1:
            return None
        module = inner


def _readable(config: Mapping[str, Any]) -> dict[str, object]:
    """Return the numbers of a config and the known words; no paths, no labels."""
    kept: dict[str, object] = {}
    for key, value in config.items():
        items = value if isinstance(value, list | tuple) else [value]
        texts = int if key not in _TEXTS else int | str
        if all(item is None or isinstance(item, texts) for item in items):
            kept[key] = value
    if isinstance(text := config.get("text_config"), Mapping):
        kept["text_config"] = _readable(text)
    if isinstance(labels := config.get("id2label"), Mapping):
        kept["num_labels"] = len(labels)
    if isinstance(name := config.get("_name_or_path"), str) and name:
        kept["_name_or_path"] = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return kept


def _fits(config: Mapping[str, object], params: int | None) -> bool:
    try:
        counted = card_of_config(config, "config").counted
    except TraceflopsError:  # a family that is not known
        return False
    return params is None or counted < params * _FARTHEST < counted * _FARTHEST**2


def _adapters(module: Any) -> dict[str, object]:
    """Return that only adapters are trained. Raises UsageError where other parts are frozen."""
    named = list(module.named_parameters())
    trained = [(name, one) for name, one in named if one.requires_grad]
    if len(trained) == len(named):
        return {}
    size = _count(module, (one for _, one in trained))
    if trained and size and all(_ADAPTER in name for name, _ in trained):
        return {"lora": {"params": size}}
    raise UsageError(
        "parameters are frozen",
        'say what is trained: describe={"frozen": ["ffn"]}, {"forward_only": True}, or False',
    )
