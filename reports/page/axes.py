"""Axes of the page's drawings: ticks at round places, and times in one unit along an axis."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from traceflops.reports.view.figures import TIME_UNITS

_MOST_TICKS: Final = 7
_NEAR_END: Final = 6  # percent of an axis


class Tick(Struct, frozen=True):
    """A place on an axis, in units of the drawing, and what it says."""

    at: float
    text: str


class AxisTick(Struct, frozen=True):
    """A tick of an axis: `x` in percent of the axis, its text, and the SVG `text-anchor` of it."""

    x: float
    text: str
    anchor: str


def axis_ticks(low_ns: int, high_ns: int) -> list[AxisTick]:
    """Return the ticks of an axis; texts near its ends are anchored so that they stay inside."""
    length_ns, ticks = max(high_ns - low_ns, 1), []
    for ns, text in time_ticks(low_ns, high_ns, _MOST_TICKS):
        x = round(100 * (ns - low_ns) / length_ns, 2)
        anchor = "start" if x < _NEAR_END else "end" if x > 100 - _NEAR_END else "middle"
        ticks.append(AxisTick(x, text, anchor))
    return ticks


def round_above(least: float) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, 50, ... that is at least `least`."""
    power = 1
    while power * 10 < least:
        power *= 10
    return next(each * power for each in (1, 2, 5, 10) if each * power >= least)


def time_ticks(low_ns: int, high_ns: int, most: int) -> list[tuple[int, str]]:
    """Return at most `most` ticks from `low_ns` to `high_ns`, as ns and text, at round times."""
    step_ns = round_above(-(-(high_ns - low_ns) // max(most - 1, 1)))  # -(-a // b) rounds up
    unit, scale = _unit(low_ns, high_ns)
    digits = 0
    while step_ns * 10**digits % scale:  # until every tick is exact in this unit
        digits += 1
    first = -(-low_ns // step_ns) * step_ns
    ticks = range(first, high_ns + 1, step_ns)
    return [(ns, f"{_number(ns, scale, digits)} {unit}") for ns in ticks]


def stretch(low_ns: int, high_ns: int) -> str:
    """Return an interval as "1.2 to 3.4 ms", both ends rounded to about 1/10,000 of its length."""
    unit, scale = _unit(low_ns, high_ns)
    finest_ns = 10 ** max(len(str(max(high_ns - low_ns, 1) - 1)) - 5, 0)  # a power of ten
    # As many decimals of the unit as show it.
    digits = max(len(str(scale)) - len(str(finest_ns)), 0)
    finest_ns = min(finest_ns, scale)
    texts = []
    for ns in (low_ns, high_ns):
        rounded = (abs(ns) + finest_ns // 2) // finest_ns * finest_ns
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
