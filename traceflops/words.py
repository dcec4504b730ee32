"""Numbers in the sentences of notes and errors."""

from __future__ import annotations

from typing import Final

_UNITS: Final = (("s", 10**9), ("ms", 10**6), ("µs", 10**3), ("ns", 1))


def several(number: int, noun: str) -> str:
    """Return a number with its noun, which takes an s where it is not one: "1 event"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def time_amount(ns: int) -> str:
    """Return a time in the largest unit of which it holds one."""
    unit, size = next((unit for unit in _UNITS if ns >= unit[1]), _UNITS[-1])
    return f"{ns:,} ns" if size == 1 else f"{ns / size:,.3f} {unit}"
