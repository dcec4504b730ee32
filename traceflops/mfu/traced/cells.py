"""FLOPs by device, window, component, data type and line: what every sum of a trace is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceflops.attribution import Attribution, types_of_ops
from traceflops.mfu.traced.lines import RULES_USED, PartTable
from traceflops.mfu.traced.window_of import NO_WINDOW, in_chosen_window
from traceflops.table import BoolArray, IntArray, exact_sum, exact_sums, group_rows, numbers, taken
from traceflops.windows import Prepared

if TYPE_CHECKING:
    from traceflops.mfu.counted.measured_work import MeasuredWork


@dataclass(frozen=True, slots=True)
class Cell:
    """FLOPs of one line on one device in one window, of one component and data type.

    `window` is a place in the device's windows, None outside the range that was chosen. `ops`
    counts the parts of ops added up here. Where the count is not exact, `flops` is the most and
    `at_least` the least. `rule` is the rule of docs/executed.md that decided the line, "" where
    the op itself tells. `open_flops` is the share of `flops` that may belong to another line.
    `was` is the line that padding was taken from, "" for what is none.
    """

    device: int
    window: int | None
    used: bool
    component: str
    dtype: str
    line: str
    rule: str
    flops: int
    at_least: int
    open_flops: int
    ops: int
    was: str = ""


@dataclass(frozen=True, slots=True)
class OpenLine:
    """A line that shapes leave open, and the FLOPs of all parts that may belong to it."""

    line: str
    flops: int


def cells_of(
    prepared: Prepared, attribution: Attribution, parts: PartTable, window: IntArray
) -> tuple[Cell, ...]:
    """Return the cells of all parts on chosen devices; `window` is per activity."""
    keys, names = _keys(prepared, attribution, parts, window)
    mine = _mine(prepared, attribution, parts)
    kept = [column[mine] for column in keys]
    group, first = group_rows(kept)
    sums = [
        exact_sums(group, values[mine], len(first))
        for values in (parts.flops, parts.at_least, np.where(_is_open(parts), parts.flops, 0))
    ]
    times = np.bincount(group, minlength=len(first)).tolist()
    rows = zip(*(column[first].tolist() for column in kept), *sums, times, strict=True)
    return tuple(_cell(prepared, names, *row) for row in rows)


def cells_of_kinds(prepared: Prepared, work: MeasuredWork, window: IntArray) -> tuple[Cell, ...]:
    """Return the cells of activities whose work is known otherwise than by an op."""
    device = numbers(prepared.trace.activities["device"])
    rows = np.flatnonzero((work.kind >= 0) & np.isin(device, list(prepared.accounts)))
    tops = list(dict.fromkeys(prepared.linked.categorised.top()))
    columns = [device[rows], window[rows], _component(prepared, tops)[rows]]
    found: list[Cell] = []
    for line, dtype, flops, at_least in work.columns():
        most, least = flops[work.kind[rows]], at_least[work.kind[rows]]
        done = most > 0
        kept = [column[done] for column in columns]
        group, first = group_rows(kept)
        sums = [exact_sums(group, values[done], len(first)) for values in (most, least)]
        times = np.bincount(group, minlength=len(first)).tolist()
        each = zip(*(column[first].tolist() for column in kept), *sums, times, strict=True)
        for one, place, top, total, low, count in each:
            names = (tops, [dtype], (line,))
            found.append(_cell(prepared, names, one, place, top, 0, 0, 0, total, low, 0, count))
    return tuple(found)


def open_lines(
    prepared: Prepared, attribution: Attribution, parts: PartTable, window: IntArray
) -> tuple[OpenLine, ...]:
    """Return the lines that shapes leave open in the chosen windows."""
    activity = attribution.main[parts.op]
    chosen = np.append(in_chosen_window(prepared, window), False)[activity]
    mine = chosen & _mine(prepared, attribution, parts)
    found = (
        OpenLine(line, exact_sum(parts.flops[rows & mine])) for line, rows in parts.open.items()
    )
    return tuple(one for one in found if one.flops)


Names = tuple[list[str], list[str], tuple[str, ...]]
"""What the codes of component, data type and line stand for."""


def _keys(
    prepared: Prepared, attribution: Attribution, parts: PartTable, window: IntArray
) -> tuple[list[IntArray], Names]:
    """Return what cells differ in, per part, and the names behind the codes."""
    activity = attribution.main[parts.op]
    device = numbers(prepared.trace.activities["device"])
    dtype, dtypes = types_of_ops(prepared, attribution)
    tops = list(dict.fromkeys(prepared.linked.categorised.top()))
    columns = [
        taken(device, activity),
        taken(window, activity, NO_WINDOW),
        taken(_component(prepared, tops), activity),
        dtype[parts.op],
        parts.line,
        parts.rule,
    ]
    return columns, (tops, dtypes, parts.lines)


def _cell(
    prepared: Prepared,
    names: Names,
    device: int,
    window: int,
    top: int,
    dtype: int,
    line: int,
    rule: int,
    flops: int,
    at_least: int,
    open_flops: int,
    ops: int,
) -> Cell:
    tops, dtypes, lines = names
    return Cell(
        device=device,
        window=None if window == NO_WINDOW else window,
        used=window != NO_WINDOW and prepared.windows[device][window].used,
        component=tops[top],
        dtype=dtypes[dtype],
        line=lines[line],
        rule=RULES_USED[rule],
        flops=flops,
        at_least=at_least,
        open_flops=open_flops,
        ops=ops,
    )


def _mine(prepared: Prepared, attribution: Attribution, parts: PartTable) -> BoolArray:
    """Return which parts are of ops that ran on a chosen device."""
    device = numbers(prepared.trace.activities["device"])
    return np.isin(taken(device, attribution.main[parts.op]), list(prepared.accounts))


def _component(prepared: Prepared, tops: list[str]) -> IntArray:
    """Return, per activity, the place of its component among these."""
    categorised = prepared.linked.categorised
    place = np.array([tops.index(top) for top in categorised.top()], dtype=np.int64)
    found: IntArray = place[categorised.category]
    return found


def _is_open(parts: PartTable) -> BoolArray:
    found = np.zeros(len(parts.op), dtype=np.bool_)
    for rows in parts.open.values():
        found |= rows
    return found
