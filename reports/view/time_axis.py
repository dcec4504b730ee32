"""Ticks of an axis of time: round places, all in one unit and with as many digits as differ."""

from __future__ import annotations

from typing import Final

_UNITS: Final[tuple[tuple[str, int], ...]] = (
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("µs", 1_000),
    ("ns", 1),
)
_ROUND: Final = (1, 2, 5, 10)


def time_ticks(low_ns: int, high_ns: int, most: int) -> list[tuple[int, str]]:
    """Return at most so many ticks from `low_ns` to `high_ns`, and their texts."""
    apart = _apart(max(-(-(high_ns - low_ns) // max(most - 1, 1)), 1))
    largest = max(abs(low_ns), abs(high_ns))
    unit, scale = next(one for one in _UNITS if largest >= one[1] or one[1] == 1)
    digits = 0
    while apart * 10**digits % scale:
        digits += 1
    first = -(-low_ns // apart) * apart
    return [(at, f"{_number(at, scale, digits)} {unit}") for at in range(first, high_ns + 1, apart)]


def stretch(low_ns: int, high_ns: int) -> str:
    """Return a stretch of time in one unit, both ends to about a ten-thousandth of it."""
    largest = max(abs(low_ns), abs(high_ns))
    unit, scale = next(one for one in _UNITS if largest >= one[1] or one[1] == 1)
    finest = 10 ** max(len(str(max(high_ns - low_ns, 1) - 1)) - 5, 0)
    digits = max(len(str(scale)) - len(str(finest)), 0)
    low, high = (
        _number(_rounded(ns, min(finest, scale)), scale, digits) for ns in (low_ns, high_ns)
    )
    return f"{low} to {high} {unit}"


def _rounded(ns: int, finest: int) -> int:
    sign = -1 if ns < 0 else 1
    return sign * ((abs(ns) + finest // 2) // finest * finest)


def _apart(least: int) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, ... that is not below a number."""
    power: int = 10 ** (len(str(least)) - 1)
    return next(each * power for each in _ROUND if each * power >= least)


def _number(ns: int, scale: int, digits: int) -> str:
    sign = "\N{MINUS SIGN}" if ns < 0 else ""
    whole, rest = divmod(abs(ns), scale)
    fraction = f".{rest * 10**digits // scale:0{digits}d}" if digits else ""
    return f"{sign}{whole:,}{fraction}"
