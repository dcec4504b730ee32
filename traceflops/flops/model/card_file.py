"""Model cards in files: a TOML card or a Hugging Face config.json, by what is in it."""

from __future__ import annotations

from pathlib import Path

from traceflops.errors import InputError
from traceflops.flops.model.card import ModelCard
from traceflops.flops.model.card_table import build, parse_toml
from traceflops.flops.model.huggingface import card_of_config, parse_json

LARGEST_FILE = 1024 * 1024


def read_card(path: Path) -> ModelCard:
    """Return the card in a file: JSON is a config.json, anything else TOML.

    Raises InputError where it cannot be read, UsageError for what is wrong in it.
    """
    is_json = path.suffix.lower() == ".json"
    where = f"{'config' if is_json else 'card'} {path.name!r}"
    text = _text(path, where)
    if is_json or text.lstrip().startswith("{"):
        return card_of_config(parse_json(text, where), where)
    return build(parse_toml(text, where), where)


def _text(path: Path, where: str) -> str:
    """Return the text of a small file."""
    hint = f"use a text file of at most {LARGEST_FILE // 1024} KiB"
    if not path.is_file():
        problem = "not a regular file" if path.exists() else "file not found"
        problem = "it is a folder" if path.is_dir() else problem
        raise InputError(f"{where}: {problem}", "use a config.json or a TOML card")
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{where}: cannot be read: {reason}", hint) from None
    if len(content) > LARGEST_FILE:
        raise InputError(f"{where}: larger than {LARGEST_FILE // 1024} KiB", hint)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 text (byte {error.start})", hint) from None
