"""Values of Nsight Compute in base units: bytes, ns, Hz, and whatever is counted.

Units are scaled row by row to print short numbers (Mbyte, us, Ghz); old releases spell them out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Final, Literal

What = Literal["number", "none", "instances", "text"]

_PREFIXES: Final = {"": 0, "k": 3, "m": 6, "g": 9, "t": 12, "p": 15}
_SCALED: Final = re.compile(r"([KMGTP]?)(byte|bit|hz|inst|cycle|sector|request|op|flop)s?", re.I)
_TIMES: Final = {
    **dict.fromkeys(("ns", "nsecond", "nsec"), 0),
    **dict.fromkeys(("us", "usecond", "usec", "µs", "μs"), 3),
    **dict.fromkeys(("ms", "msecond", "msec"), 6),
    **dict.fromkeys(("s", "second", "sec"), 9),
}
"""Spellings of times, as powers of ten of 1 ns."""
LONGEST: Final = 60
"""Characters of a unit or a number."""
_NUMBER: Final = re.compile(r"[-+]?[\d.,]+(?:[eE][-+]?\d{1,3})?|[-+]?inf|nan", re.I)
_LIST: Final = re.compile(r"^([^(]*)\(.*\)?$", re.S)


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit: its base unit, and of how many of those one is, as a power of ten."""

    base: str
    power: int


@cache
def unit_of(text: str) -> Unit:
    """Return a unit, such as Gbyte/s: 10^9 byte/s. One that is not known is a base unit itself."""
    top, _, bottom = text.strip()[:LONGEST].partition("/")
    base, power = _part(top)
    if not bottom:
        return Unit(base, power)
    if bottom.lower() in _TIMES:
        # Per ns is 10^9 times per second.
        power += 9 - _TIMES[bottom.lower()]
        return Unit("Hz" if base == "cycle" else f"{base}/s", power)
    return Unit(f"{base}/{bottom}", power)


def _part(text: str) -> tuple[str, int]:
    if text.lower() in _TIMES:
        return "ns", _TIMES[text.lower()]
    found = _SCALED.fullmatch(text)
    if found is None:
        return text, 0
    word = found[2].lower()
    return "Hz" if word == "hz" else word, _PREFIXES[found[1].lower()]


def value_of(text: str, *, comma: bool) -> tuple[What, Decimal | None]:
    """Return what a cell is and its number; that before a list in brackets is of all instances.

    `comma` says that the comma is the decimal mark, and not the mark of thousands.
    """
    text = text.strip()
    if not text or text.lower() in ("n/a", "nan", "-", "none"):
        return "none", None
    listed = _LIST.match(text)
    if listed is not None:
        value = _number(listed[1].strip(), comma=comma)
        return ("instances", None) if value is None else ("number", value)
    value = _number(text, comma=comma)
    return ("text", None) if value is None else ("number", value)


def _number(text: str, *, comma: bool) -> Decimal | None:
    if len(text) > LONGEST or not _NUMBER.fullmatch(text):
        return None
    plain = text.replace(".", "").replace(",", ".") if comma else text.replace(",", "")
    try:
        value = Decimal(plain)
    except InvalidOperation:
        return None
    return value if value.is_finite() and abs(value.adjusted()) < 250 else None


_COUNTS: Final = re.compile(r"__\w*?(?:inst_|ops_)")
_COUNTED: Final = ("", "inst", "op", "flop", "thread", "warp")


def fits(counter: str, unit: Unit) -> bool:
    """Return whether a unit may be that of a counter, by what the counter's name says it counts.

    Bytes and times have a unit, which is scaled from page to page: without it, or with one that is
    not known, their values are of any size.
    """
    name, _, rollup = counter.partition(".")
    if "__" not in name or ".pct" in counter or rollup.endswith((".pct", ".ratio")):
        return True
    top, _, bottom = unit.base.partition("/")
    if rollup.endswith("per_second"):
        return unit.base == "Hz" or (bottom == "s" and top != "") or bottom in _TIMES
    if "__time_duration" in name:
        return unit.base == "ns"
    if "__bytes" in name or "_t_bytes" in name:
        return top == "byte"
    return _COUNTS.search(name) is None or top in _COUNTED
