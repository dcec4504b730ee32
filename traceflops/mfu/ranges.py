"""Shares of a budget as ranges, where the counts behind them lie between two bounds.

A waterfall has the upper counts. Lengths and masks that no profiler records make the lower ones
smaller; compute time of unknown FLOPs may have been spent at the peak, which makes a share larger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from traceflops.flops.mfu_waterfall import Peaks, Waterfall
from traceflops.flops.ops.types import TF32_OR_FP32
from traceflops.mfu.traced.cells import Cell
from traceflops.units.exact import exact_percent


@dataclass(frozen=True, slots=True)
class ShareRange:
    """The least and the most that a share can be."""

    least: Fraction
    most: Fraction

    @property
    def text(self) -> str:
        """Return "38.2 %", or "34.7 % to 61.7 %" where the two print differently."""
        least, most = exact_percent(self.least), exact_percent(self.most)
        return least if least == most else f"{least} to {most}"

    def times(self, factor: Fraction) -> ShareRange:
        """Return both so many times."""
        return ShareRange(self.least * factor, self.most * factor)


def certain_part(cells: Iterable[Cell], fall: Waterfall, peaks: Mapping[int, Peaks]) -> Fraction:
    """Return which part of what some cells have in a waterfall is certain: 1 if all of it is.

    `peaks` are by row of the devices table.
    """
    weighted = [(cell, _weight(cell, fall, peaks)) for cell in cells]
    least = sum((weight * cell.at_least for cell, weight in weighted), Fraction(0))
    most = sum((weight * cell.flops for cell, weight in weighted), Fraction(0))
    return least / most if most else Fraction(1)


def slower_part(cells: Iterable[Cell], fall: Waterfall, peaks: Mapping[int, Peaks]) -> Fraction:
    """Return how many times as much some cells have where what may be FP32 is, 1 if nothing may.

    A waterfall has it as TF32, whose higher peak makes it less.
    """
    fast = slow = Fraction(0)
    for cell in cells:
        share = _weight(cell, fall, peaks) * cell.flops
        fast += share
        rates = peaks[cell.device]
        is_open = cell.dtype == TF32_OR_FP32 and rates.get("fp32")
        slow += share * Fraction(rates[TF32_OR_FP32], rates["fp32"]) if is_open else share
    return slow / fast if fast else Fraction(1)


def _weight(cell: Cell, fall: Waterfall, peaks: Mapping[int, Peaks]) -> Fraction:
    """Return what a FLOP is in a waterfall: of one type they add up, else by time at the peak."""
    return Fraction(1) if len(fall.dtypes) == 1 else Fraction(1, peaks[cell.device][cell.dtype])
