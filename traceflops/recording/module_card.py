"""What a PyTorch module says of itself, in the words of a trace's description.

Only what is certain is said: a Hugging Face config of a known family that fits the number of
parameters, otherwise that number. What one rank cannot know, or what would need an assumption, is
left out. torch is not imported: only the module's attributes are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import isfinite
from typing import Any, Final

from traceflops.errors import TraceflopsError, UsageError
from traceflops.flops.model.models import bare_model, card_of_config

_WRAPPED: Final = ("module", "_fsdp_wrapped_module", "_orig_mod")
"""The names under which DDP, FSDP and torch.compile hold the wrapped module, their only child."""
_TEXTS: Final = frozenset(("model_type", "architectures", "layer_types", "feed_forward_proj"))
"""The keys of a config with text that its reader needs; under other keys it reads numbers."""
_TRAINING: Final = frozenset(
    ("frozen", "frozen_layers", "lora", "lora_rank", "lora_params", "forward_only")
)
"""Words that say what is trained."""
_ADAPTER: Final = "lora_"
_FARTHEST: Final = 2
"""If a config's count of parameters is off by more than this factor, it is of something else."""
_UNQUOTED: Final = re.compile(r"[^ !#-\[\]-~]")


def words_of(model: Any, world: int, given: Mapping[str, object]) -> dict[str, object]:
    """Return the description of a job of `world` ranks, from a module, or the name or card given.

    `given` has the words by the user, which take precedence. Raises UsageError if they do not say
    what is trained although parameters are frozen.
    """
    if model is None or isinstance(model, str | Mapping):
        return {"gpus": world} | ({} if model is None else {"model": model})
    # One device per rank, unless the module is spread over several or copied (DataParallel).
    is_copied = len(getattr(model, "device_ids", None) or ()) > 1
    is_on_one = not is_copied and len({parameter.device for parameter in model.parameters()}) < 2
    words: dict[str, object] = {"gpus": world} if is_on_one else {}
    if {"model", "params"} & given.keys():  # the user knows better
        return words
    # A config tells most; without one that fits, the number of parameters is what is certain.
    params, config = _count(model, model.parameters()), _config(model)
    if config is not None:
        with suppress(TraceflopsError):  # a family that is not known
            of_config = card_of_config(config, "config").counted
            if params is None or of_config / _FARTHEST < params < of_config * _FARTHEST:
                words["model"] = config
    if "model" not in words and params is not None:
        with suppress(TraceflopsError):  # a number that no description may have
            if bare_model(params).params == params:
                words["params"] = params
    if words.keys().isdisjoint(("model", "params")):
        return words
    if not _TRAINING & given.keys():
        words |= _adapters(model)  # refuses frozen parameters without adapters
    # Without a backward pass nothing is recomputed, whatever the module is set to.
    recomputes = getattr(model, "is_gradient_checkpointing", False) is True
    if recomputes and not given.get("forward_only"):
        words["checkpointing"] = "full"
    return words


def plain(value: object) -> object:
    """Return a value as JSON for PyTorch, which escapes no text: `?` replaces what needs it."""
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if value is None or isinstance(value, int) or (isinstance(value, float) and isfinite(value)):
        return value
    return _UNQUOTED.sub("?", str(value))


def _count(module: Any, parameters: Iterator[Any]) -> int | None:
    """Return how many parameters the whole model has, or None if this rank cannot know.

    With FSDP2 and DeepSpeed a parameter knows its whole size; with FSDP1 and tensor parallelism of
    Megatron a rank holds a part. Parameters that are no floats (quantized) cannot be counted.
    """
    if any("_fsdp_wrapped_module" in part._modules for part in module.modules()):
        return None
    total = 0
    for parameter in parameters:
        is_part = getattr(parameter, "tensor_model_parallel", False)
        if is_part or not parameter.is_floating_point():
            return None
        total += int(getattr(parameter, "ds_numel", None) or parameter.numel())
    return total


def _config(module: Any) -> dict[str, object] | None:
    """Return the readable part of a module's Hugging Face config, or None without a config."""
    while True:
        config = getattr(module, "config", None)
        if config is not None and callable(getattr(config, "to_dict", None)):
            return _readable(config.to_dict())
        # A wrapper has no config and one child under a known name.
        inner = next((module._modules[name] for name in _WRAPPED if name in module._modules), None)
        if inner is None or len(module._modules) > 1:
            return None
        module = inner


def _readable(config: Mapping[str, Any]) -> dict[str, object]:
    """Return the numbers of a config and texts under known keys; paths and labels are dropped.

    Of the labels their number stays, of the path of the model its last part: its name.
    """
    kept: dict[str, object] = {}
    for key, value in config.items():
        items = value if isinstance(value, list | tuple) else [value]
        types = int if key not in _TEXTS else int | str
        if all(item is None or isinstance(item, types) for item in items):
            kept[key] = value
    if isinstance(text := config.get("text_config"), Mapping):
        kept["text_config"] = _readable(text)
    if isinstance(labels := config.get("id2label"), Mapping):
        kept["num_labels"] = len(labels)
    if isinstance(name := config.get("_name_or_path"), str) and name:
        kept["_name_or_path"] = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return kept


def _adapters(module: Any) -> dict[str, object]:
    """Return that only adapters are trained, if so. Raises UsageError if other parts are frozen."""
    named = list(module.named_parameters())
    trained = [(name, parameter) for name, parameter in named if parameter.requires_grad]
    if len(trained) == len(named):
        return {}
    size = _count(module, (parameter for _, parameter in trained))
    if trained and size and all(_ADAPTER in name for name, _ in trained):
        return {"lora": {"params": size}}
    raise UsageError(
        "parameters are frozen",
        'say what is trained: describe={"frozen": ["ffn"]}, {"forward_only": True}, or False',
    )
