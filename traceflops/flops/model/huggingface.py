"""Hugging Face config.json -> model card, by its family."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from traceflops.errors import InputError, UsageError
from traceflops.flops.model.card import ModelCard
from traceflops.flops.model.card_table import build
from traceflops.flops.model.families import FAMILIES, TIED, Family, Values
from traceflops.flops.model.table import TomlTable

HINT = "describe the model in a TOML card, see docs/mfu.md"
MASKED = {"sliding_window": "window", "attention_chunk_size": "chunk"}
"""Sizes that matter only where a layer has such a mask, and the card's keys for these."""

NOT_COPIED = {"topk": "num_experts_per_tok"}
"""What a config calls further keys of a card."""


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
    known = {TIED: family.tied, **family.defaults, **assumed, **given}
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
