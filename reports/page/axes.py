"""Axes of the page's drawings: ticks at round values, and times in the same unit along an axis."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from traceflops.reports.view.figures import TIME_UNITS

_MOST_TICKS: Final = 7
_NEAR_END: Final = 6  # percent of an axis


class Tick(Struct, frozen=True):
    """A tick of an axis: its position in units of the drawing, and its text."""

    at: float
    text: str


class AxisTick(Struct, frozen=True):
    """A tick of an axis: `x` in percent of the axis, its text, and the SVG `text-anchor`."""

    x: float
    text: str
    anchor: str


def axis_ticks(low_ns: int, high_ns: int) -> list[AxisTick]:
    """Return the ticks of an axis; texts near its ends are anchored to stay inside."""
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
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= least)


def time_ticks(low_ns: int, high_ns: int, most: int) -> list[tuple[int, str]]:
    """Return at most `most` ticks from `low_ns` to `high_ns`, as ns and text, at round times."""
    step_ns = round_above(-(-(high_ns - low_ns) // max(most - 1, 1)))  # -(-a // b) rounds up
    unit, unit_ns = _unit(low_ns, high_ns)
    decimals = 0
    while step_ns * 10**decimals % unit_ns:  # until every tick is exact in this unit
        decimals += 1
    first_ns = -(-low_ns // step_ns) * step_ns
    ticks = range(first_ns, high_ns + 1, step_ns)
    return [(ns, f"{_number(ns, unit_ns, decimals)} {unit}") for ns in ticks]


def stretch(low_ns: int, high_ns: int) -> str:
    """Return an interval as "1.2 to 3.4 ms", both ends rounded to about 1/10,000 of its length."""
    unit, unit_ns = _unit(low_ns, high_ns)
    # Round to this power of ten, and print as many decimals as it needs.
    rounding_ns = 10 ** max(len(str(max(high_ns - low_ns, 1) - 1)) - 5, 0)
    decimals = max(len(str(unit_ns)) - len(str(rounding_ns)), 0)
    rounding_ns = min(rounding_ns, unit_ns)
    texts = []
    for ns in (low_ns, high_ns):
        rounded_ns = (abs(ns) + rounding_ns // 2) // rounding_ns * rounding_ns
        texts.append(_number(-rounded_ns if ns < 0 else rounded_ns, unit_ns, decimals))
    return f"{' to '.join(texts)} {unit}"


def _unit(low_ns: int, high_ns: int) -> tuple[str, int]:
    """Return the largest unit that is not larger than both times, and its ns; at least 1 ns."""
    largest_ns = max(abs(low_ns), abs(high_ns))
    units_down = reversed(TIME_UNITS.items())
    return next((unit, ns) for unit, ns in units_down if largest_ns >= ns or ns == 1)


def _number(ns: int, unit_ns: int, decimals: int) -> str:
    """Return a time in units of `unit_ns`, rounded down to so many decimals."""
    sign = "\N{MINUS SIGN}" if ns < 0 else ""
    whole, rest_ns = divmod(abs(ns), unit_ns)
    fraction = f".{rest_ns * 10**decimals // unit_ns:0{decimals}d}" if decimals else ""
    return f"{sign}{whole:,}{fraction}"
