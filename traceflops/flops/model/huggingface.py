"""Hugging Face config.json -> model card.

Each family says which keys it uses, what holds where a key is left out, and what its code fixes:
biases, norms, tied embeddings. Read from the configuration and modelling files of transformers
(4.x and 5.x); the parameter counts of published checkpoints are the test.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from traceflops.errors import InputError, UsageError
from traceflops.flops.model.card import ModelCard
from traceflops.flops.model.card_table import build
from traceflops.flops.model.config_rules import (
    Rule,
    Values,
    bert,
    biases,
    chunks,
    deepseek_experts,
    falcon,
    gpt2_width,
    llama4_experts,
    mixtral_experts,
    mla,
    next_tokens,
    qwen_experts,
    switched,
    t5,
    vit,
    window_but_every_nth,
    window_every_other,
    window_everywhere,
    window_late,
)
from traceflops.flops.model.table import TomlTable

HINT = "describe the model in a TOML card, see docs/mfu.md"


def parse_json(text: str, where: str) -> Mapping[str, object]:
    """Return the object of a JSON text. Raises InputError."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{where}: invalid JSON: {reason}", "use the model's config.json"
        ) from None
    if not isinstance(found, dict):
        raise InputError(f"{where}: not a JSON object", "use the model's config.json")
    return found


def card_of_config(config: Mapping[str, object], where: str) -> ModelCard:
    """Return the card of a parsed config.json. Raises UsageError for families that are unknown."""
    kind, text = _kind(config, where), config.get("text_config")
    if kind in FAMILIES:
        return _card(FAMILIES[kind], config, kind, where)
    if isinstance(text, Mapping) and "text_config" not in text:
        usual = {"model_type": f"{kind}_text"} if f"{kind}_text" in FAMILIES else {}
        card = card_of_config({**usual, **text}, f"{where}, text_config")
        whole = f"{kind[:40]!r}" if kind else "the model"
        note = f"only the text part of {whole} is described, not its other towers"
        return replace(card, notes=(*card.notes, note))
    said = f"unknown model_type {kind[:40]!r}" if kind else "model_type is missing"
    raise UsageError(f"{where}: {said}", f"{HINT}; known: {', '.join(FAMILIES)}")


def _kind(config: Mapping[str, object], where: str) -> str:
    """Return the model type, "" where there is none. Raises UsageError for what is no text."""
    kind = config.get("model_type")
    if kind is None or isinstance(kind, str):
        return kind or ""
    problem = f"'model_type' is not text: {str(kind)[:40]!r}"
    raise UsageError(f"{where}: {problem}", f"{HINT}; known: {', '.join(FAMILIES)}")


def _card(family: Family, config: Mapping[str, object], kind: str, where: str) -> ModelCard:
    given = {key: value for key, value in config.items() if value is not None}
    # A size that is null is none: only what the config does not mention has the class's default.
    assumed = {key: size for key, size in family.assumed.items() if key not in config}
    known = {_TIED: family.tied, **family.defaults, **assumed, **given}
    table = TomlTable(known, where, known, {})
    values: Values = {"name": _name(config, kind), "source": f"config.json ({kind})"}
    names: dict[str, str] = {}
    for key, options in family.keys.items():
        names[key] = next((one for one in options.split() if one in table), options.split()[0])
        if names[key] in table:
            values[key] = table.values[names[key]]
    values |= family.fixed
    for rule in family.rules:
        rule(table, values)
    taken = {key: size for key, size in assumed.items() if MASKED.get(key, "name") in values}
    notes = (*values.pop("notes", ()), *_assumptions(taken, kind))
    try:
        return replace(build(values, where, names), notes=notes)
    except UsageError as error:
        hint = _renamed(error.hint, names | NOT_COPIED)
        raise UsageError(error.message, "; ".join((hint, *_assumptions(taken, kind)))) from None


def _assumptions(taken: Mapping[str, int], kind: str) -> tuple[str, ...]:
    """Return a note on the sizes that the config leaves to the defaults of its class."""
    if not taken:
        return ()
    sizes = ", ".join(f"{key} {size}" for key, size in taken.items())
    return (f"not in the config, so defaults of {kind} apply: {sizes}",)


def _renamed(hint: str, names: Mapping[str, str]) -> str:
    return re.sub(r"\b[a-z_]+\b", lambda word: names.get(word[0], word[0]), hint)


def _name(config: Mapping[str, object], kind: str) -> str:
    name = config.get("_name_or_path")
    plain = isinstance(name, str) and name.isprintable() and 0 < len(name) < 100
    return str(name).rstrip("/").rpartition("/")[2] if plain else kind


@dataclass(frozen=True, slots=True)
class Family:
    """How one model type is read: rules, fixed values, card key -> names in the config.

    `tied` and `defaults` hold where the config lacks a key or has null. `assumed` are sizes that
    transformers supplies where the config does not mention them, so that is told.
    """

    rules: tuple[Rule, ...] = ()
    fixed: Mapping[str, object] = field(default_factory=lambda: _GATED)
    tied: bool = False
    keys: Mapping[str, str] = field(default_factory=lambda: _USUAL)
    defaults: Mapping[str, object] = field(default_factory=dict)
    assumed: Mapping[str, int] = field(default_factory=dict)


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

MASKED = {"sliding_window": "window", "attention_chunk_size": "chunk"}
"""Sizes that matter only where a layer has such a mask, and the card's keys for these."""

NOT_COPIED = {"topk": "num_experts_per_tok"}
"""What a config calls further keys of a card."""

_TIED = "tie_word_embeddings"
_PLAIN = {"glu": False, "norm": "layernorm"}
_GATED = {"glu": True, "norm": "rms"}
_QWEN2 = {**_GATED, "bias": ["qkv"]}
_QWEN3 = {**_GATED, "qk_norm": True}
_GEMMA = {**_GATED, "norms_per_block": 4}
_GPT_OSS = {**_GATED, "bias": ["router", "ffn"], "sinks": True}
_DEEPSEEK = (*biases, mla, deepseek_experts)
_V3 = Family((*_DEEPSEEK, next_tokens), {**_GATED, "bias": ["router"]})
_GPT2_KEYS = {
    "hidden": "n_embd",
    "layers": "n_layer",
    "heads": "n_head",
    "vocab": "vocab_size",
    "positions": "n_positions n_ctx",
    "tied": _TIED,
}
_T5_KEYS = {
    "hidden": "d_model",
    "layers": "num_decoder_layers num_layers",
    "heads": "num_heads",
    "head_dim": "d_kv",
    "ffn": "d_ff",
    "vocab": "vocab_size",
    "tied": _TIED,
}
_FALCON_KEYS = {"layers": "num_hidden_layers n_layer", "heads": "num_attention_heads n_head"}
_FALCON = {"new_decoder_architecture": False, "parallel_attn": True, "multi_query": True}
_WINDOW = {"sliding_window": 4096}
_GEMMA3_SIZES = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    **_WINDOW,
}


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
        *((*biases, window_every_other), _GEMMA, True),
        assumed=_grouped(4, head_dim=256, **_WINDOW),
    ),
    "gemma3_text": Family(
        *((*biases, window_but_every_nth), {**_GEMMA, "qk_norm": True}, True),
        assumed=_GEMMA3_SIZES,
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
