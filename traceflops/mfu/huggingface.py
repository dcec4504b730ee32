"""Hugging Face config.json -> model card.

Each family says which keys it uses, what holds where a key is left out, and what its code fixes:
biases, norms, tied embeddings. Read from the configuration and modelling files of transformers
(4.x and 5.x); the parameter counts of published checkpoints are the test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from traceflops.errors import InputError, UsageError
from traceflops.mfu.card import ModelCard
from traceflops.mfu.cardtable import build
from traceflops.mfu.table import Table

Values = dict[str, Any]
Rule = Callable[[Table, Values], None]
"""Reads a config and adds to the values of a card."""

HINT = "describe the model in a TOML card instead, see docs/mfu.md"


def parse_json(text: str, where: str) -> Mapping[str, object]:
    """Return the object of a JSON text. Raises InputError."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{where}: bad JSON: {reason}", "give the model's config.json") from None
    if not isinstance(found, dict):
        raise InputError(f"{where}: it is not a JSON object", "give the model's config.json")
    return found


def card_of_config(config: Mapping[str, object], where: str) -> ModelCard:
    """Return the card of a parsed config.json. Raises UsageError for families that are unknown."""
    kind = config.get("model_type")
    text = config.get("text_config")
    if kind not in FAMILIES and isinstance(text, Mapping):
        inner = {**text, "model_type": text.get("model_type", f"{kind}_text")}
        card = card_of_config(inner, f"{where}, text_config")
        note = f"only the text part of {str(kind)[:40]!r} is described, not its other towers"
        return replace(card, notes=(*card.notes, note))
    if not isinstance(kind, str) or kind not in FAMILIES:
        said = f"model_type {str(kind)[:40]!r} is not known" if kind else "it has no model_type"
        known = ", ".join(FAMILIES)
        raise UsageError(f"{where}: {said}", f"{HINT}; known: {known}")
    return _card(FAMILIES[kind], config, kind, where)


def _card(family: Family, config: Mapping[str, object], kind: str, where: str) -> ModelCard:
    given = {key: value for key, value in config.items() if value is not None}
    table = Table({**family.defaults, **given}, where, (*family.defaults, *given))
    values: Values = {"name": _name(config, kind), "source": f"config.json ({kind})"}
    for key, names in family.keys.items():
        found = next((table.values[name] for name in names.split() if name in table), None)
        if found is not None:
            values[key] = found
    values |= family.fixed
    for rule in family.rules:
        rule(table, values)
    notes = tuple(values.pop("notes", ()))
    return replace(build(values, where), notes=notes)


def _name(config: Mapping[str, object], kind: str) -> str:
    name = config.get("_name_or_path")
    plain = isinstance(name, str) and name.isprintable() and 0 < len(name) < 100
    return str(name).rstrip("/").rpartition("/")[2] if plain else kind


# Rules: what of a config takes more than copying


def _biases(table: Table, values: Values) -> None:
    """Add the biases that `attention_bias` and `mlp_bias` switch on."""
    attention, mlp = table.flag("attention_bias", False), table.flag("mlp_bias", False)
    values["bias"] = [*["qkv", "out"] * attention, *["ffn"] * mlp]


LAYER_TYPES = {
    "full_attention": "causal",
    "sliding_attention": "window",
    "chunked_attention": "chunk",
}


def _listed(table: Table, values: Values) -> bool:
    """Take the masks from `layer_types`, where the config lists them."""
    kinds = table.words("layer_types", LAYER_TYPES)
    if kinds:
        values["pattern"] = [LAYER_TYPES[kind] for kind in kinds]
    return bool(kinds)


def _window(table: Table, values: Values, narrow: Callable[[int], bool]) -> None:
    """Give the layers that `narrow` names a window; all others see everything before them."""
    window = table.maybe("sliding_window")
    if window is None:
        return
    values["window"] = window
    if not _listed(table, values):
        layers = range(table.count(_LAYERS_KEY))
        values["pattern"] = ["window" if narrow(layer) else "causal" for layer in layers]


_LAYERS_KEY = "num_hidden_layers"


def _window_everywhere(table: Table, values: Values) -> None:
    _window(table, values, lambda layer: True)


def _window_every_other(table: Table, values: Values) -> None:
    _window(table, values, lambda layer: layer % 2 == 0)


def _window_but_every_nth(table: Table, values: Values) -> None:
    every = table.count("sliding_window_pattern", 6)
    _window(table, values, lambda layer: (layer + 1) % every != 0)


def _window_late(table: Table, values: Values) -> None:
    """Windows from layer `max_window_layers` on, if they are switched on at all."""
    if table.flag("use_sliding_window", False):
        first = table.count("max_window_layers", 28, least=0)
        _window(table, values, lambda layer: layer >= first)


def _chunks(table: Table, values: Values) -> None:
    """Chunks in all layers with rotary positions: `no_rope_layers` has 1 there."""
    chunk = table.maybe("attention_chunk_size")
    if chunk is None:
        return
    values["chunk"] = chunk
    if not _listed(table, values):
        every = table.count("no_rope_layer_interval", 4)
        layers = range(table.count(_LAYERS_KEY))
        rotary = table.numbers("no_rope_layers") or [(layer + 1) % every for layer in layers]
        values["pattern"] = ["chunk" if one else "causal" for one in rotary]


def _mixtral_experts(table: Table, values: Values) -> None:
    values["experts"] = {
        "count": table.count("num_local_experts"),
        "topk": table.count("num_experts_per_tok"),
        "width": table.count("intermediate_size"),
    }


def _qwen_experts(table: Table, values: Values) -> None:
    step = table.count("decoder_sparse_step", 1)
    dense = table.numbers("mlp_only_layers") or ()
    layers = range(table.count(_LAYERS_KEY))
    shared = table.count("shared_expert_intermediate_size", 0, least=0)
    values["experts"] = {
        "count": table.count("num_experts"),
        "topk": table.count("num_experts_per_tok"),
        "width": table.count("moe_intermediate_size"),
        "shared": shared,
        "shared_gate": bool(shared),
        "layers": [one for one in layers if one not in dense and (one + 1) % step == 0],
    }


def _deepseek_experts(table: Table, values: Values) -> None:
    if "n_routed_experts" not in table:
        return
    width = table.count("moe_intermediate_size")
    every, first = (
        table.count("moe_layer_freq", 1),
        table.count("first_k_dense_replace", 0, least=0),
    )
    layers = range(first, table.count(_LAYERS_KEY))
    values["experts"] = {
        "count": table.count("n_routed_experts"),
        "topk": table.count("num_experts_per_tok"),
        "width": width,
        "shared": width * table.count("n_shared_experts", 0, least=0),
        "layers": [layer for layer in layers if layer % every == 0],
    }


def _llama4_experts(table: Table, values: Values) -> None:
    step, layers = table.count("interleave_moe_layer_step", 1), table.count(_LAYERS_KEY)
    width = table.count("intermediate_size")
    listed = table.numbers("moe_layers")
    values["ffn"] = table.count("intermediate_size_mlp", 16384)
    values["experts"] = {
        "count": table.count("num_local_experts"),
        "topk": table.count("num_experts_per_tok", 1),
        "width": width,
        "shared": width,
        "layers": list(range(step - 1, layers, step)) if listed is None else list(listed),
    }


def _mla(table: Table, values: Values) -> None:
    values["mla"] = {
        "q_rank": table.maybe("q_lora_rank"),
        "kv_rank": table.count("kv_lora_rank"),
        "nope_dim": table.count("qk_nope_head_dim"),
        "rope_dim": table.count("qk_rope_head_dim"),
        "value_dim": table.count("v_head_dim"),
    }


def _routing_bias(table: Table, values: Values) -> None:
    """Add the correction bias of the router: one number per expert."""
    values["bias"] = [*values.get("bias", ()), "router"]


def _routing_and_expert_bias(table: Table, values: Values) -> None:
    values["bias"] = [*values.get("bias", ()), "router", "ffn"]


def _neox_bias(table: Table, values: Values) -> None:
    values["bias"] = [*["qkv", "out"] * table.flag("attention_bias", True), "ffn"]


def _vit_bias(table: Table, values: Values) -> None:
    values["bias"] = [*["qkv"] * table.flag("qkv_bias", True), "out", "ffn"]


def _next_tokens(table: Table, values: Values) -> None:
    modules = table.count("num_nextn_predict_layers", 0, least=0)
    if modules:
        note = f"{modules} multi-token-prediction module(s) are not counted; set mtp where they run"
        values["notes"] = [note]


def _gpt2_width(table: Table, values: Values) -> None:
    values["ffn"] = table.count("n_inner", 4 * table.count("n_embd"))


def _falcon(table: Table, values: Values) -> None:
    """Multi-query in the old form, grouped in the new one; one norm per block or two."""
    heads, hidden = _one_of(table, "num_attention_heads", "n_head"), table.count("hidden_size")
    new, parallel = table.flag("new_decoder_architecture"), table.flag("parallel_attn")
    grouped = _one_of(table, "num_kv_heads", "n_head_kv", default=heads)
    values["kv_heads"] = grouped if new else 1 if table.flag("multi_query") else heads
    values["ffn"] = table.count("ffn_hidden_size", 4 * hidden)
    norms = table.count("num_ln_in_parallel_attn", 2 if new else 1)
    values["norms_per_block"] = norms if parallel else 2
    values["bias"] = ["qkv", "out", "ffn"] * table.flag("bias", False)


def _one_of(table: Table, *names: str, default: int | None = None) -> int:
    """Return the count under the first of the names that is there."""
    found = next((name for name in names if name in table), names[0])
    return table.count(found, default)


def _bert(table: Table, values: Values) -> None:
    """Learned positions and token types; heads by architecture."""
    architecture = _architecture(table, "BertModel")
    types = table.count("type_vocab_size", 2, least=0)
    values["positions"] = table.count("max_position_embeddings") + types
    language = architecture.endswith(("ForMaskedLM", "ForPreTraining", "LMHeadModel"))
    values["head"] = values["transform"] = language
    without = ("ForMaskedLM", "LMHeadModel", "TokenClassification", "QuestionAnswering")
    values["pooler"] = not architecture.endswith(without)
    if language:
        values |= {"norms": 2, "loose": table.count("vocab_size")}
    if architecture.endswith("ForPreTraining"):
        values["classes"] = 2


def _architecture(table: Table, default: str) -> str:
    found = table.values.get("architectures")
    return str(found[0]) if isinstance(found, list) and found else default


def _vit(table: Table, values: Values) -> None:
    """Square images in patches; a classifier where the architecture has one."""
    patch, size = table.count("patch_size"), table.count("image_size")
    values["image"] = {"size": size, "patch": patch, "channels": table.count("num_channels", 3)}
    values["positions"] = (size // patch) ** 2 + 1
    values["loose"] = table.count("hidden_size")
    if _architecture(table, "ViTModel").endswith("Classification"):
        labels = table.values.get("id2label")
        values["classes"] = (
            len(labels) if isinstance(labels, dict) else table.count("num_labels", 2)
        )
    else:
        values["pooler"] = True


def _t5(table: Table, values: Values) -> None:
    """Encoder and decoder alike; relative positions once per stack."""
    gated = str(table.values.get("feed_forward_proj", "relu")).startswith("gated")
    buckets = table.count("relative_attention_num_buckets", 32)
    alike = {key: values[key] for key in ("hidden", "heads", "head_dim", "ffn") if key in values}
    loose = buckets * table.count("num_heads")
    values |= {"glu": gated, "loose": loose}
    values["encoder"] = {**alike, "layers": table.count("num_layers"), "glu": gated, "loose": loose}


@dataclass(frozen=True, slots=True)
class Family:
    """How one model type is read: card key -> names in the config, defaults, fixed values."""

    keys: Mapping[str, str]
    fixed: Mapping[str, object]
    rules: tuple[Rule, ...] = ()
    defaults: Mapping[str, object] = field(default_factory=dict)


_USUAL = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
    "tied": "tie_word_embeddings",
}
_SHORT = {"hidden": "n_embd", "layers": "n_layer", "heads": "n_head", "vocab": "vocab_size"}
_UNTIED = {"tie_word_embeddings": False}
_TIED = {"tie_word_embeddings": True}
_PLAIN = {"glu": False, "norm": "layernorm"}
_GATED = {"glu": True, "norm": "rms"}
_QWEN_BIAS = {**_GATED, "bias": ["qkv"]}
_WITH_POSITIONS = {**_SHORT, "positions": "n_positions n_ctx", "tied": "tie_word_embeddings"}
_DEEPSEEK = (_biases, _mla, _deepseek_experts)
_QWEN3 = {**_GATED, "qk_norm": True}
_GEMMA = {**_GATED, "norms_per_block": 4}
_GEMMA_DEFAULTS = {**_TIED, "head_dim": 256}
_GEMMA3_DEFAULTS = {
    **_GEMMA_DEFAULTS,
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "sliding_window": 4096,
}
_T5_KEYS = {
    "hidden": "d_model",
    "layers": "num_decoder_layers num_layers",
    "heads": "num_heads",
    "head_dim": "d_kv",
    "ffn": "d_ff",
    "vocab": "vocab_size",
    "tied": "tie_word_embeddings",
}
_V3 = Family(_USUAL, _GATED, (*_DEEPSEEK, _routing_bias, _next_tokens), _UNTIED)
_GPT_OSS = (_biases, _routing_and_expert_bias, _window_every_other, _mixtral_experts)

FAMILIES: Mapping[str, Family] = {
    "llama": Family(_USUAL, _GATED, (_biases,), _UNTIED),
    "mistral": Family(_USUAL, _GATED, (_window_everywhere,), _UNTIED),
    "mixtral": Family(_USUAL, _GATED, (_window_everywhere, _mixtral_experts), _UNTIED),
    "qwen2": Family(_USUAL, _QWEN_BIAS, (_window_late,), _UNTIED),
    "qwen2_moe": Family(_USUAL, _QWEN_BIAS, (_window_late, _qwen_experts), _UNTIED),
    "qwen3": Family(_USUAL, _QWEN3, (_biases, _window_late), {**_UNTIED, "head_dim": 128}),
    "qwen3_moe": Family(_USUAL, _QWEN3, (_biases, _window_late, _qwen_experts), _UNTIED),
    "gemma": Family(_USUAL, _GATED, (_biases,), _GEMMA_DEFAULTS),
    "gemma2": Family(_USUAL, _GEMMA, (_biases, _window_every_other), _GEMMA_DEFAULTS),
    "gemma3_text": Family(
        _USUAL, {**_GEMMA, "qk_norm": True}, (_biases, _window_but_every_nth), _GEMMA3_DEFAULTS
    ),
    "gpt2": Family(_WITH_POSITIONS, {**_PLAIN, "bias": True}, (_gpt2_width,), _TIED),
    "gpt_neox": Family(_USUAL, {**_PLAIN, "bias": ["ffn"]}, (_neox_bias,), _UNTIED),
    "falcon": Family(
        {**_USUAL, "layers": "num_hidden_layers n_layer", "heads": "num_attention_heads n_head"},
        _PLAIN,
        (_falcon,),
        {**_TIED, "new_decoder_architecture": False, "parallel_attn": True, "multi_query": True},
    ),
    "phi": Family(
        _USUAL,
        {**_PLAIN, "bias": ["qkv", "out", "ffn", "head"], "norms_per_block": 1},
        (),
        _UNTIED,
    ),
    "phi3": Family(_USUAL, _GATED, (_window_everywhere,), _UNTIED),
    "deepseek_v2": Family(_USUAL, _GATED, _DEEPSEEK, _UNTIED),
    "deepseek_v3": _V3,
    "kimi_k2": _V3,
    "gpt_oss": Family(
        _USUAL, {**_GATED, "sinks": True}, _GPT_OSS, {**_UNTIED, "attention_bias": True}
    ),
    "llama4_text": Family(_USUAL, _GATED, (_biases, _chunks, _llama4_experts), _UNTIED),
    "bert": Family(_USUAL, {**_PLAIN, "bias": True, "mask": "full", "norms": 1}, (_bert,), _TIED),
    "vit": Family(_USUAL, {**_PLAIN, "mask": "full"}, (_vit_bias, _vit), {"qkv_bias": True}),
    "t5": Family(_T5_KEYS, {"norm": "rms"}, (_t5,), _TIED),
}
"""Model types that are understood."""
