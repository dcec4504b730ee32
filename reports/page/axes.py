"""Axes of the page's drawings: ticks at round places, and times in one unit along an axis."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from traceflops.reports.view.figures import TIME_UNITS

_NEAR_END: Final = 6
"""Percent of an axis."""


class Tick(Struct, frozen=True):
    """A place on an axis, in units of the drawing, and what it says."""

    at: float
    text: str


class AxisTick(Struct, frozen=True):
    """A place on an axis, in percent, and its text, which stands to one side of it at an end."""

    x: float
    text: str
    anchor: str


def axis_ticks(low_ns: int, high_ns: int, most: int = 7) -> list[AxisTick]:
    """Return at most so many ticks of an axis that is as wide as its drawing."""
    length, ticks = max(high_ns - low_ns, 1), []
    for at, text in time_ticks(low_ns, high_ns, most):
        x = round(100 * (at - low_ns) / length, 2)
        anchor = "start" if x < _NEAR_END else "end" if x > 100 - _NEAR_END else "middle"
        ticks.append(AxisTick(x, text, anchor))
    return ticks


def round_above(least: float) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, ... that is not below a number."""
    power = 1
    while power * 10 < least:
        power *= 10
    return next(each * power for each in (1, 2, 5, 10) if each * power >= least)


def time_ticks(low_ns: int, high_ns: int, most: int) -> list[tuple[int, str]]:
    """Return at most so many ticks from `low_ns` to `high_ns`, and their texts."""
    apart = round_above(-(-(high_ns - low_ns) // max(most - 1, 1)))
    unit, scale = _unit(low_ns, high_ns)
    digits = 0
    while apart * 10**digits % scale:
        digits += 1
    first = -(-low_ns // apart) * apart
    return [(at, f"{_number(at, scale, digits)} {unit}") for at in range(first, high_ns + 1, apart)]


def stretch(low_ns: int, high_ns: int) -> str:
    """Return a stretch of time in one unit, both ends to about a ten-thousandth of it."""
    unit, scale = _unit(low_ns, high_ns)
    finest = 10 ** max(len(str(max(high_ns - low_ns, 1) - 1)) - 5, 0)
    digits = max(len(str(scale)) - len(str(finest)), 0)
    finest = min(finest, scale)
    texts = []
    for ns in (low_ns, high_ns):
        rounded = (abs(ns) + finest // 2) // finest * finest
        texts.append(_number(-rounded if ns < 0 else rounded, scale, digits))
    return f"{' to '.join(texts)} {unit}"


def _unit(low_ns: int, high_ns: int) -> tuple[str, int]:
    largest = max(abs(low_ns), abs(high_ns))
    return next(unit for unit in reversed(TIME_UNITS.items()) if largest >= unit[1] or unit[1] == 1)


def _number(ns: int, scale: int, digits: int) -> str:
    sign = "\N{MINUS SIGN}" if ns < 0 else ""
    whole, rest = divmod(abs(ns), scale)
    fraction = f".{rest * 10**digits // scale:0{digits}d}" if digits else ""
    return f"{sign}{whole:,}{fraction}"
