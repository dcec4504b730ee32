"""Finding a model by name or file, TOML or config.json, and adjusting its card to what was run."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec
from msgspec.structs import replace

from traceflops.errors import InputError, UsageError
from traceflops.facts import fact, in_words
from traceflops.flops.model.card import ModelCard
from traceflops.flops.model.card_table import build, parse_toml
from traceflops.flops.model.families import FAMILIES, TIED, Values
from traceflops.flops.model.table import TomlTable

LARGEST_FILE = 1024 * 1024
HINT = "describe the model in a TOML card, see docs/mfu.md"


def find_model(text: str) -> ModelCard:
    """Return the card of a preset, of a file, or of a folder with a config.json.

    Presets win over files, unless the text looks like a path. Raises InputError if the model is
    unknown, or the file cannot be read or is wrong.
    """
    path = Path(text)
    looks_like_path = text.startswith((".", "~")) or path.is_absolute()
    looks_like_path |= path.suffix.lower() in (".json", ".toml")
    try:
        if not looks_like_path:
            is_name = len(path.parts) <= 1 and _plain(text) in _ids()
            if not text or is_name or not _exists(path):
                return preset(text)
        config = path / "config.json"
        return read_card(config if _exists(config) else path)
    except UsageError as error:
        raise InputError(error.message, error.hint) from None


def bare_model(params: int) -> ModelCard:
    """Return the card of a model with only a known number of parameters."""
    return ModelCard(name=f"model of {params:,} parameters", params=params)


def is_public(card: ModelCard) -> bool:
    """Return whether a model's name reveals nothing: it is a preset's, or only a size."""
    is_only_size = card.params is not None and card.name == bare_model(card.params).name
    return is_only_size or any(card.name == other.name for _, other in listed_models())


def _exists(path: Path) -> bool:
    """Return whether there is such a file or folder."""
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file can have
        return False


def listed_models() -> tuple[tuple[str, ModelCard], ...]:
    """Return all presets as (id, card), in the order of the table."""
    return tuple((name, preset(name)) for name in preset_names())


@cache
def preset(name: str) -> ModelCard:
    """Return the card of a model by id, name or alias, in any case. Raises UsageError."""
    wanted, ids = _plain(name), _ids()
    if wanted in ids:
        return build(_tables()[ids[wanted]], f"preset {ids[wanted]}")
    near = difflib.get_close_matches(wanted, ids, 3)
    meant = ", ".join(dict.fromkeys(ids[spelling] for spelling in near))
    raise UsageError(
        f"unknown model {name[:60]!r}",
        f"{f'did you mean {meant}? Or ' if meant else ''}use a config.json or a TOML card; "
        "traceflops mfu --list-models prints the presets",
    )


def preset_names() -> tuple[str, ...]:
    """Return the ids of all presets, in the order of the table."""
    return tuple(_tables())


@cache
def _tables() -> Mapping[str, Mapping[str, object]]:
    text = Path(__file__).with_name("presets.toml").read_text(encoding="utf-8")
    return parse_toml(text, "presets")  # type: ignore[return-value]


@cache
def _ids() -> dict[str, str]:
    """Return the ids of presets, by every plain spelling of their names."""
    ids: dict[str, str] = {}
    for key, table in _tables().items():
        aliases = table.get("aliases", [])
        names = (key, str(table["name"]), *(aliases if isinstance(aliases, list) else []))
        for name in names:
            ids.setdefault(_plain(name), key)
    return ids


def _plain(name: str) -> str:
    """Return the letters and digits of a name in lower case; for `meta-llama/X`, those of X."""
    return "".join(sign for sign in name.rpartition("/")[2].casefold() if sign.isalnum())


def read_card(path: Path) -> ModelCard:
    """Return the card in a file, config.json or TOML. Raises InputError or UsageError."""
    is_json = path.suffix.lower() == ".json"
    where = f"{'config' if is_json else 'card'} {path.name!r}"
    hint = f"use a text file of at most {LARGEST_FILE // 1024} KiB"
    if not path.is_file():
        problem = "not a regular file" if path.exists() else "file not found"
        problem = "it is a folder" if path.is_dir() else problem
        raise InputError(
            f"{where}: {problem}",
            "give the path of a config.json (Hugging Face) or of a TOML card, or the name of a "
            "preset: traceflops mfu --list-models",
        )
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{where}: cannot be read: {reason}", hint) from None
    if len(content) > LARGEST_FILE:
        raise InputError(f"{where}: larger than {LARGEST_FILE // 1024} KiB", hint)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 text (byte {error.start})", hint) from None
    if not is_json and not text.lstrip().startswith("{"):
        return build(parse_toml(text, where), where)
    hint = "use the model's config.json"
    try:
        config = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{where}: invalid JSON: {reason}", hint) from None
    if not isinstance(config, dict):
        raise InputError(f"{where}: not a JSON object", hint)
    return card_of_config(config, where)


def card_of_config(config: Mapping[str, object], where: str) -> ModelCard:
    """Return the card of a parsed config.json, or of its text part. Raises UsageError."""
    hint = f"{HINT}; known: {', '.join(FAMILIES)}"
    kind, text = config.get("model_type"), config.get("text_config")
    kind = "" if kind is None else kind
    if not isinstance(kind, str):
        raise UsageError(f"{where}: 'model_type' is not text: {str(kind)[:40]!r}", hint)
    if kind in FAMILIES:
        return _card_of_family(config, kind, where)
    if isinstance(text, Mapping) and "text_config" not in text:  # at most one level down
        # If the text part has no type, it is by convention the type of the whole with "_text".
        usual = {"model_type": f"{kind}_text"} if f"{kind}_text" in FAMILIES else {}
        card = card_of_config({**usual, **text}, f"{where}, text_config")
        note = fact("described.text-part", model=repr(kind[:40]) if kind else "the model")
        return replace(card, notes=(*card.notes, note))
    problem = f"unknown model_type {kind[:40]!r}" if kind else "model_type is missing"
    raise UsageError(f"{where}: {problem}", hint)


def _card_of_family(config: Mapping[str, object], kind: str, where: str) -> ModelCard:
    """Return the card of a config of model_type `kind`, with notes on assumed sizes."""
    family = FAMILIES[kind]
    given = {key: value for key, value in config.items() if value is not None}
    # The class's default holds for sizes that the config does not mention; null means no size.
    assumed = {key: size for key, size in family.assumed.items() if key not in config}
    values_of = {TIED: family.tied, **family.defaults, **assumed, **given}
    table = TomlTable(values_of, where, values_of, {})
    name = config.get("_name_or_path")
    # Reports show the name, which anybody may have written: only use short plain text.
    is_plain = isinstance(name, str) and name.isprintable() and 0 < len(name) < 100
    title = str(name).rstrip("/").rpartition("/")[2] if is_plain else kind
    # The table of a card has copied values (under the first name of a key that the config has),
    # then fixed ones, then those that rules add.
    values: Values = {"name": title, "source": f"config.json ({kind})"}
    names: dict[str, str] = {}
    for key, options in family.keys.items():
        given_names = [option for option in options.split() if option in table]
        names[key] = (given_names or options.split())[0]
        if given_names:
            values[key] = table.values[names[key]]
    values |= family.fixed
    for rule in family.rules:
        rule(table, values)
    # Record the assumed sizes that are used: that of a mask only if a layer has such a mask.
    masks = {"sliding_window": "window", "attention_chunk_size": "chunk"}
    unused = {key for key, mask in masks.items() if mask not in values}
    sizes = tuple(f"{key} {size}" for key, size in assumed.items() if key not in unused)
    defaults = (fact("described.defaults", kind=kind, sizes=sizes),) if sizes else ()
    notes = (*values.pop("notes", ()), *defaults)
    try:
        return replace(build(values, where, names), notes=notes)
    except UsageError as error:
        # Translate the hint into the words of the config.
        config_names = names | {"topk": "num_experts_per_tok"}
        hint = re.sub(r"\b[a-z_]+\b", lambda word: config_names.get(word[0], word[0]), error.hint)
        hints = (hint, *map(in_words, defaults))
        raise UsageError(error.message, "; ".join(hints)) from None
