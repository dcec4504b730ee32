"""What a trace says of its own run: the top-level key `traceflops` (docs/selfdescribing.md).

Anybody may have written it, so it is bounded in size and depth, and only the words that describe a
run are kept. What the values mean, and whether they can be, is for traceflops.mfu to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import msgspec

from traceflops.parsers.io.jsonfiles.text import UNDECODABLE
from traceflops.units.words import DESCRIPTION_WORDS, several

KEY: Final = "traceflops"
LARGEST_BYTES: Final = 256 * 1024
DEEPEST: Final = 12
"""A card with an encoder of experts in some layers is 5 deep."""
_MOST_NAMED: Final = 6
_DECODER: Final[Any] = msgspec.json.Decoder(float_hook=Decimal)
"""Decimals, so that 1.1 stays what was written."""


@dataclass(frozen=True, slots=True)
class Described:
    """The words that a trace says of its run, None without any; and what was left out, or ""."""

    words: Mapping[str, object] | None = None
    problem: str = ""


def read_description(header: Mapping[str, msgspec.Raw]) -> Described:
    """Return what the top-level keys of a trace say of its run."""
    raw = header.get(KEY)
    if raw is None:
        return Described()
    size = len(bytes(raw))
    if size > LARGEST_BYTES:
        return _unread(f"larger than {LARGEST_BYTES:,} bytes ({size:,})")
    try:
        found = _DECODER.decode(raw)
    except (*UNDECODABLE, ArithmeticError):
        return _unread("not readable as JSON")
    if not isinstance(found, dict):
        return _unread("not a JSON object")
    if _is_deeper(found, DEEPEST):
        return _unread(f"nested more than {DEEPEST} levels deep")
    return _known(found)


def _known(found: Mapping[str, object]) -> Described:
    words, others = {}, []
    for key, value in found.items():
        word = key.replace("-", "_")
        if word in DESCRIPTION_WORDS:
            words[word] = value
        else:
            others.append(key)
    if not others:
        return Described(words or None)
    named = ", ".join(map(_shown, others[:_MOST_NAMED]))
    more = ", …" if len(others) > _MOST_NAMED else ""
    text = f"{several(len(others), 'unknown key')} ignored: {named}{more}"
    return Described(words or None, text)


def _unread(problem: str) -> Described:
    return Described(None, f"ignored, {problem}")


def _is_deeper(value: object, levels: int) -> bool:
    """Return whether lists and objects are nested deeper than so many levels."""
    level = [value]
    for _ in range(levels):
        inner = [one for one in level if isinstance(one, dict | list)]
        level = [v for one in inner for v in (one.values() if isinstance(one, dict) else one)]
    return any(isinstance(one, dict | list) for one in level)


def _shown(key: str) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in key[:40])
