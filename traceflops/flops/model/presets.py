"""Models by name: the cards that come with traceflops, from `presets.toml`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from traceflops.errors import UsageError
from traceflops.flops.model.card import ModelCard
from traceflops.flops.model.card_table import build, parse_toml


def preset(name: str) -> ModelCard:
    """Return the card of a model by id, name or alias; case and punctuation do not matter.

    Raises UsageError with the nearest names.
    """
    wanted = _plain(name)
    found = _ids().get(wanted)
    if found is None:
        near = difflib.get_close_matches(wanted, _ids(), 3)
        meant = ", ".join(dict.fromkeys(_ids()[one] for one in near))
        raise UsageError(
            f"unknown model {name[:60]!r}",
            f"{f'did you mean {meant}? Or ' if meant else ''}use a config.json or a TOML card",
        )
    return _card(found)


def preset_names() -> tuple[str, ...]:
    """Return the ids of all presets, in the order of the table."""
    return tuple(_tables())


@cache
def _tables() -> Mapping[str, Mapping[str, object]]:
    text = Path(__file__).with_name("presets.toml").read_text(encoding="utf-8")
    return parse_toml(text, "presets")  # type: ignore[return-value]


@cache
def _ids() -> dict[str, str]:
    """Return every way to write a model, without punctuation, and its id."""
    found: dict[str, str] = {}
    for key, table in _tables().items():
        aliases = table.get("aliases", [])
        names = (key, str(table["name"]), *(aliases if isinstance(aliases, list) else []))
        for name in names:
            found.setdefault(_plain(name), key)
    return found


@cache
def _card(key: str) -> ModelCard:
    return build(_tables()[key], f"preset {key}")


def _plain(name: str) -> str:
    """Return the letters and digits of a name; of `meta-llama/X` those of X."""
    return "".join(sign for sign in name.rpartition("/")[2].casefold() if sign.isalnum())
