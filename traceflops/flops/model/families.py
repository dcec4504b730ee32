"""Families of Hugging Face models: how the config.json of each becomes the table of a card.

A family has the names of its keys, defaults, and the values that its code fixes: biases, norms,
tied embeddings. Rules add values that are not just copied. Source: configuration and modelling
files of transformers (4.x and 5.x); the tests are parameter counts of published checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

from traceflops.facts import fact
from traceflops.flops.model.card_table import layers_of
from traceflops.flops.model.table import HINT, TomlTable

Values = dict[str, Any]
Rule = Callable[[TomlTable, Values], None]
_USUAL: Mapping[str, str] = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
    "tied": "tie_word_embeddings",
}
_GATED: Mapping[str, object] = {"glu": True, "norm": "rms"}
_LAYERS_KEY = "num_hidden_layers"
LAYER_TYPES = {
    "full_attention": "causal",
    "sliding_attention": "window",
    "chunked_attention": "chunk",
}


def _layers(table: TomlTable) -> int:
    return layers_of(table, _LAYERS_KEY)


def _known(table: TomlTable, key: str) -> tuple[int, ...] | None:
    """Return a list of layers, counted from 0. Raises UsageError if the model lacks one."""
    listed, layers = table.numbers(key), _layers(table)
    if listed and max(listed) >= layers:
        table.refuse(f"{key!r} has layer {max(listed)}, but {_LAYERS_KEY} is {layers}", HINT)
    return listed


def _each(table: TomlTable, key: str, listed: tuple[Any, ...]) -> None:
    """Raise UsageError for a list that is not empty and does not have one entry per layer."""
    if listed and len(listed) != _layers(table):
        problem = f"{key!r} has {len(listed)} entries, but {_LAYERS_KEY} is {_layers(table)}"
        table.refuse(problem, "give one entry per layer")


def switched(key: str, *parts: str, default: bool = False) -> Rule:
    """Return a rule that gives some matrices biases if the flag `key` is set."""

    def add(table: TomlTable, values: Values) -> None:
        if table.flag(key, default):
            values["bias"] = [*values.get("bias", ()), *parts]

    return add


biases = (switched("attention_bias", "qkv", "out"), switched("mlp_bias", "ffn"))


def _narrowed(
    table: TomlTable, values: Values, word: str, key: str, by_family: list[str], *, needed: bool
) -> None:
    """Set the masks of layers, and the size under `key` of those with the mask `word`.

    `word` is "window" or "chunk". The masks are those in `layer_types` of the config, else in
    `by_family`. Without a size none is set; raises UsageError if the size is `needed` or the config
    lists such layers.
    """
    listed, size = table.words("layer_types", LAYER_TYPES), table.maybe(key)
    _each(table, "layer_types", listed)
    pattern = [LAYER_TYPES[kind] for kind in listed] or by_family
    if word not in pattern or (size is None and not listed and not needed):
        return
    if size is None:
        kind = next(name for name, mask in LAYER_TYPES.items() if mask == word)
        table.refuse(f"{key!r} is missing, but some layers have {kind}", f"add {key}")
    values |= {word: size, "pattern": pattern}


def windows(narrow: Callable[[TomlTable, int], bool], *, needed: bool = False) -> Rule:
    """Return a rule that sets a window in layers where `narrow` is true, else a causal mask."""

    def add(table: TomlTable, values: Values) -> None:
        pattern = ["window" if narrow(table, n) else "causal" for n in range(_layers(table))]
        _narrowed(table, values, "window", "sliding_window", pattern, needed=needed)

    return add


window_everywhere = windows(lambda table, layer: True)
"""Windows in all layers, if the config has a size."""
window_every_other = windows(lambda table, layer: layer % 2 == 0, needed=True)
"""Windows in every other layer, starting with the first."""
window_but_every_nth = windows(
    lambda table, layer: (layer + 1) % table.count("sliding_window_pattern", 6) != 0, needed=True
)


def window_late(table: TomlTable, values: Values) -> None:
    """Give a window to layers from `max_window_layers` on, if windows are switched on."""
    if table.flag("use_sliding_window", False):
        first = table.count("max_window_layers", 28, least=0)
        windows(lambda _, layer: layer >= first)(table, values)


def chunks(table: TomlTable, values: Values) -> None:
    """Give chunks to all layers with rotary positions: 1 in `no_rope_layers`, despite its name."""
    interval, layers = table.count("no_rope_layer_interval", 4), range(_layers(table))
    given = table.numbers("no_rope_layers") or ()
    _each(table, "no_rope_layers", given)
    rotary = given or tuple((layer + 1) % interval for layer in layers)
    pattern = ["chunk" if is_rotary else "causal" for is_rotary in rotary]
    _narrowed(table, values, "chunk", "attention_chunk_size", pattern, needed=False)


def mixtral_experts(table: TomlTable, values: Values) -> None:
    """Set experts in every layer, in place of the feed-forward network."""
    values["experts"] = _counts(
        table, count="num_local_experts", topk="num_experts_per_tok", width="intermediate_size"
    )


def _counts(table: TomlTable, **keys: str) -> Values:
    return {name: table.count(key) for name, key in keys.items()}


def qwen_experts(table: TomlTable, values: Values) -> None:
    """Set experts in every `decoder_sparse_step`-th layer, except in those listed as dense."""
    step = table.count("decoder_sparse_step", 1)
    dense = frozenset(_known(table, "mlp_only_layers") or ())
    layers = range(_layers(table))
    shared = table.count("shared_expert_intermediate_size", 0, least=0)
    values["experts"] = {
        "count": _one_of(table, "num_experts", "num_local_experts"),
        "topk": table.count("num_experts_per_tok"),
        "width": table.count("moe_intermediate_size"),
        "shared": shared,
        "shared_gate": bool(shared),
        "layers": [layer for layer in layers if layer not in dense and (layer + 1) % step == 0],
    }


def deepseek_experts(table: TomlTable, values: Values) -> None:
    """Set experts from layer `first_k_dense_replace` on, and shared experts of their width."""
    if "n_routed_experts" not in table:
        return
    width = table.count("moe_intermediate_size")
    interval, layers = table.count("moe_layer_freq", 1), _layers(table)
    first = table.count("first_k_dense_replace", 0, least=0)
    if first > layers:
        table.refuse(f"'first_k_dense_replace' is {first}, but {_LAYERS_KEY} is {layers}", HINT)
    values["experts"] = {
        **_counts(table, count="n_routed_experts", topk="num_experts_per_tok"),
        "width": width,
        "shared": width * table.count("n_shared_experts", 0, least=0),
        "layers": [layer for layer in range(first, layers) if layer % interval == 0],
    }


def llama4_experts(table: TomlTable, values: Values) -> None:
    """Set experts in the listed layers, else in every n-th, and one shared expert."""
    step, layers = table.count("interleave_moe_layer_step", 1), _layers(table)
    width = table.count("intermediate_size")
    listed = _known(table, "moe_layers")
    values["ffn"] = table.count("intermediate_size_mlp", 16384)  # the default of transformers
    values["experts"] = {
        "count": table.count("num_local_experts"),
        "topk": table.count("num_experts_per_tok", 1),
        "width": width,
        "shared": width,
        "layers": list(range(step - 1, layers, step)) if listed is None else list(listed),
    }


def mla(table: TomlTable, values: Values) -> None:
    """Set multi-head latent attention."""
    sizes = {"kv_rank": "kv_lora_rank", "nope_dim": "qk_nope_head_dim"}
    sizes |= {"rope_dim": "qk_rope_head_dim", "value_dim": "v_head_dim"}
    values["mla"] = {"q_rank": table.maybe("q_lora_rank"), **_counts(table, **sizes)}


def next_tokens(table: TomlTable, values: Values) -> None:
    """Add a note on prediction modules: they only run in training, and count on request."""
    modules = table.count("num_nextn_predict_layers", 0, least=0)
    if modules:
        values["notes"] = [fact(MTP_NOT_COUNTED, modules=modules)]


def gpt2_width(table: TomlTable, values: Values) -> None:
    """Set the feed-forward width: four times the hidden width, unless the config has another."""
    values["ffn"] = table.count("n_inner", 4 * table.count("n_embd"))


def falcon(table: TomlTable, values: Values) -> None:
    """Set heads, norms and biases: multi-query in the old form, grouped in the new one."""
    heads, hidden = _one_of(table, "num_attention_heads", "n_head"), table.count("hidden_size")
    new, parallel = table.flag("new_decoder_architecture"), table.flag("parallel_attn")
    grouped = _one_of(table, "num_kv_heads", "n_head_kv", default=heads)
    values["kv_heads"] = grouped if new else 1 if table.flag("multi_query") else heads
    values["ffn"] = table.count("ffn_hidden_size", 4 * hidden)
    norms = table.count("num_ln_in_parallel_attn", 2 if new else 1)
    values["norms_per_block"] = norms if parallel else 2
    values["bias"] = ["qkv", "out", "ffn"] * table.flag("bias", False)


def _one_of(table: TomlTable, *names: str, default: int | None = None) -> int:
    key = next((name for name in names if name in table), names[0])
    return table.count(key, default)


def bert(table: TomlTable, values: Values) -> None:
    """Set learned positions and token types, and the heads that the architecture has."""
    architecture = _architecture(table, "BertModel")
    types = table.count("type_vocab_size", 2, least=0)
    values["positions"] = table.count("max_position_embeddings") + types
    language = architecture.endswith(("ForMaskedLM", "ForPreTraining", "LMHeadModel"))
    values["head"] = values["transform"] = language
    without = ("ForMaskedLM", "LMHeadModel", "TokenClassification", "QuestionAnswering")
    values["pooler"] = not architecture.endswith(without)
    if language:  # norms of embeddings and transform; the head's bias
        values |= {"norms": 2, "loose": table.count("vocab_size")}
    if architecture.endswith("ForPreTraining"):
        values["classes"] = 2  # does one sentence follow the other?


def _architecture(table: TomlTable, default: str) -> str:
    names = table.values.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else default


def vit(table: TomlTable, values: Values) -> None:
    """Set the patches of a square image, and a classifier if the architecture has one."""
    patch, size = table.count("patch_size"), table.count("image_size")
    values["image"] = {"size": size, "patch": patch, "channels": table.count("num_channels", 3)}
    values["positions"] = (size // patch) ** 2 + 1  # the patches and the class token
    values["loose"] = table.count("hidden_size")  # the embedding of the class token
    if _architecture(table, "ViTModel").endswith("Classification"):
        labels = table.values.get("id2label")
        counted = len(labels) if isinstance(labels, dict) else None
        values["classes"] = table.count("num_labels", 2) if counted is None else counted
    else:
        values["pooler"] = True


def t5(table: TomlTable, values: Values) -> None:
    """Set encoder and decoder alike, each with relative positions once per stack."""
    gated = str(table.values.get("feed_forward_proj", "relu")).startswith("gated")
    buckets = table.count("relative_attention_num_buckets", 32)
    alike = {key: values[key] for key in ("hidden", "heads", "head_dim", "ffn") if key in values}
    loose = buckets * table.count("num_heads")
    values |= {"glu": gated, "loose": loose}
    values["encoder"] = {**alike, "layers": table.count("num_layers"), "glu": gated, "loose": loose}


class Family(Struct, frozen=True):
    """How the config of one model type is read.

    `keys` are the names in the config by card key. `tied` and `defaults` are used if the config
    lacks a key or has null, `assumed` (with a note) for sizes that it does not mention at all.
    """

    rules: tuple[Rule, ...] = ()
    fixed: Mapping[str, object] = field(default_factory=lambda: _GATED)
    tied: bool = False
    keys: Mapping[str, str] = field(default_factory=lambda: _USUAL)
    defaults: Mapping[str, object] = field(default_factory=dict)
    assumed: Mapping[str, int] = field(default_factory=dict)


TIED = "tie_word_embeddings"
MTP_NOT_COUNTED = "described.prediction-modules"
_PLAIN = {"glu": False, "norm": "layernorm"}
_QWEN2 = {**_GATED, "bias": ["qkv"]}
_QWEN3 = {**_GATED, "qk_norm": True}
_GEMMA = {**_GATED, "norms_per_block": 4}
_GPT_OSS = {**_GATED, "bias": ["router", "ffn"], "sinks": True}
_DEEPSEEK = (*biases, mla, deepseek_experts)
_V3 = Family((*_DEEPSEEK, next_tokens), {**_GATED, "bias": ["router"]})
_GPT2_KEYS = {"hidden": "n_embd", "layers": "n_layer", "heads": "n_head", "vocab": "vocab_size"}
_GPT2_KEYS |= {"positions": "n_positions n_ctx", "tied": TIED}
_T5_KEYS = {"hidden": "d_model", "layers": "num_decoder_layers num_layers", "heads": "num_heads"}
_T5_KEYS |= {"head_dim": "d_kv", "ffn": "d_ff", "vocab": "vocab_size", "tied": TIED}
_FALCON_KEYS = {"layers": "num_hidden_layers n_layer", "heads": "num_attention_heads n_head"}
_FALCON = {"new_decoder_architecture": False, "parallel_attn": True, "multi_query": True}
_WINDOW = {"sliding_window": 4096}
_GEMMA3_SIZES = {"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216}
_GEMMA3_SIZES |= {"num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4}
_GEMMA3_SIZES |= {"head_dim": 256, **_WINDOW}


def _grouped(kv_heads: int, **more: int) -> dict[str, int]:
    """Return the sizes assumed for a family whose class has a number of key and value heads."""
    return {"num_key_value_heads": kv_heads, **more}


FAMILIES: Mapping[str, Family] = {
    "llama": Family(biases),
    "mistral": Family((window_everywhere,), assumed=_grouped(8, **_WINDOW)),
    "mixtral": Family((window_everywhere, mixtral_experts), assumed=_grouped(8)),
    "qwen2": Family((window_late,), _QWEN2, assumed=_grouped(32, **_WINDOW)),
    "qwen2_moe": Family((window_late, qwen_experts), _QWEN2, assumed=_grouped(16, **_WINDOW)),
    "qwen3": Family((*biases, window_late), _QWEN3, assumed=_grouped(32, head_dim=128, **_WINDOW)),
    "qwen3_moe": Family(
        (*biases, window_late, qwen_experts), _QWEN3, assumed=_grouped(4, **_WINDOW)
    ),
    "gemma": Family(biases, tied=True, assumed=_grouped(16, head_dim=256)),
    "gemma2": Family(
        *((*biases, window_every_other), _GEMMA, True), assumed=_grouped(4, head_dim=256, **_WINDOW)
    ),
    "gemma3_text": Family(
        *((*biases, window_but_every_nth), {**_GEMMA, "qk_norm": True}, True), assumed=_GEMMA3_SIZES
    ),
    "gpt2": Family((gpt2_width,), {**_PLAIN, "bias": True}, True, _GPT2_KEYS),
    "gpt_neox": Family(
        (switched("attention_bias", "qkv", "out", default=True),), {**_PLAIN, "bias": ["ffn"]}
    ),
    "falcon": Family((falcon,), _PLAIN, True, {**_USUAL, **_FALCON_KEYS}, _FALCON),
    "phi": Family((), {**_PLAIN, "bias": ["qkv", "out", "ffn", "head"], "norms_per_block": 1}),
    "phi3": Family((window_everywhere,)),
    "deepseek_v2": Family(_DEEPSEEK),
    "deepseek_v3": _V3,
    "kimi_k2": _V3,
    "gpt_oss": Family(
        *((*biases, window_every_other, mixtral_experts), _GPT_OSS),
        defaults={"attention_bias": True},
        assumed=_grouped(8, head_dim=64, sliding_window=128),
    ),
    "llama4_text": Family(
        (*biases, chunks, llama4_experts),
        assumed=_grouped(8, head_dim=128, intermediate_size_mlp=16384, attention_chunk_size=8192),
    ),
    "bert": Family((bert,), {**_PLAIN, "bias": True, "mask": "full", "norms": 1}, True),
    "vit": Family(
        (switched("qkv_bias", "qkv", default=True), vit),
        {**_PLAIN, "mask": "full", "bias": ["out", "ffn"]},
    ),
    "t5": Family((t5,), {"norm": "rms"}, True, _T5_KEYS),
}
"""Model types that are understood."""
