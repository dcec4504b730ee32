"""Operators of the host by the device time of what they launched: a table over the chosen windows.

An activity counts once, with the innermost operator that launched it, so that `sum_ns` adds up to
the time of all kernels. `total_ns` counts it again with every operator around that one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.attribution.launching_ops import launching_ops
from traceflops.table import (
    BoolArray,
    IntArray,
    OpTree,
    WholeArray,
    by_code,
    codes,
    names,
    number_column,
    numbers,
    slices,
    string_column,
    taken,
)
from traceflops.windows import Prepared

MOST: Final = 1_000


@dataclass(frozen=True, slots=True)
class Operators:
    """The operators with the most device time, and the time of which no operator is known.

    `table` has per name of operator: name; activities (those that start in the windows) and sum_ns
    of what it launched itself; share (sum_ns of all device time in the windows, null without any);
    total_ns (with what the operators below it launched); calls (how often it launched something,
    itself or below) and host_ns (how long these calls took, null where that was not recorded).
    `left` counts the names beyond the table and `left_ns` is their sum_ns.
    """

    table: pa.Table
    left: int
    left_ns: int
    unknown_activities: int
    unknown_ns: int


@dataclass(frozen=True, slots=True)
class _ByName:
    """Figures per code of a name."""

    activities: IntArray
    sum_ns: IntArray
    total_ns: IntArray
    calls: IntArray
    host_ns: IntArray


def operators(prepared: Prepared, most: int = MOST) -> Operators:
    """Return the operators that launched what the chosen windows hold, the most time first."""
    chosen = prepared.chosen
    op = launching_ops(prepared, chosen.row)
    begins = chosen.starts_inside * prepared.linked.whole.first[chosen.row]
    known = op >= 0
    labels = names(prepared.trace.ops["name"])
    figures = _by_name(prepared, op, chosen.inside_ns, begins, len(labels))
    order = _longest_first(figures, labels)
    kept, beyond = order[:most], order[most:]
    return Operators(
        _table(figures, kept, labels, _device_time(prepared)),
        len(beyond),
        int(figures.sum_ns[beyond].sum()),
        int(begins[~known].sum()),
        int(chosen.inside_ns[~known].sum()),
    )


def _device_time(prepared: Prepared) -> int:
    windows = (window for mine in prepared.windows.values() for window in mine if window.used)
    return sum(window.dur_ns for window in windows)


def _by_name(
    prepared: Prepared, op: IntArray, inside_ns: IntArray, begins: IntArray, names_known: int
) -> _ByName:
    """Return the figures of ops that launched activities with this time and these counts."""
    ops, tree = prepared.trace.ops, prepared.linked.op_tree
    name, lasting = codes(ops["name"]), numbers(ops["dur_ns"])
    own = taken(name, op)
    total_ns, calls, host_ns = (np.zeros(names_known, dtype=np.int64) for _ in range(3))
    launched_ns = _until(tree, op, inside_ns)
    place, reach = _busy(tree, op, name), -1
    for some in slices(len(place)):
        at = place[some]
        row, stop = tree.order[at], tree.stop[at]
        code = name[row]
        outer, reach = _outermost(code, at, stop, len(name), reach)
        np.add.at(calls, code, 1)
        np.add.at(total_ns, code[outer], (launched_ns[stop] - launched_ns[at])[outer])
        np.add.at(host_ns, code[outer], lasting[row[outer]])
    return _ByName(
        _sums(own, begins, names_known),
        _sums(own, inside_ns, names_known),
        total_ns,
        calls,
        host_ns,
    )


def _until(tree: OpTree, op: IntArray, values: IntArray | int) -> IntArray:
    """Return, per place, the sum of what the ops before it launched; and at last that of all."""
    sums = np.zeros(len(tree.order) + 1, dtype=np.int64)
    known = op >= 0
    np.add.at(sums, tree.place[op[known]] + 1, values if isinstance(values, int) else values[known])
    return np.cumsum(sums, out=sums)


def _busy(tree: OpTree, op: IntArray, name: IntArray) -> WholeArray:
    """Return the places of the ops that launched anything, by the codes of their names."""
    launched, busy = _until(tree, op, 1), np.zeros(len(tree.order), dtype=np.bool_)
    for some in slices(len(busy)):
        busy[some] = launched[tree.stop[some]] > launched[some]
    place = np.flatnonzero(busy).astype(np.int32)
    return place[by_code(name[tree.order[place]])]


def _outermost(
    code: IntArray, place: WholeArray, stop: IntArray, ops: int, reached: int
) -> tuple[BoolArray, int]:
    """Return which ops are not below one of their own name: their times must not count twice.

    They are in the order of their names, by code, and places, and come after others that reach
    as far as `reached`; how far these reach is returned with them.
    """
    # What the ops of another name reach is below all places of this one.
    apart = np.multiply(code, ops + 1, dtype=np.int64)
    reach = np.maximum.accumulate(np.append(reached, stop + apart))
    return place + apart >= reach[:-1], int(reach[-1])


def _longest_first(figures: _ByName, labels: list[str]) -> IntArray:
    """Return the names that launched anything, by their own time and then by that in all."""
    found = np.flatnonzero((figures.calls > 0) | (figures.activities > 0))
    own, total = figures.sum_ns.tolist(), figures.total_ns.tolist()
    return np.array(sorted(found.tolist(), key=lambda c: (-own[c], -total[c], labels[c])), np.int64)


def _table(figures: _ByName, kept: IntArray, labels: list[str], device_time_ns: int) -> pa.Table:
    sum_ns = figures.sum_ns[kept]
    known = np.full(len(kept), device_time_ns > 0)
    columns = {
        "name": string_column([labels[code] for code in kept.tolist()]),
        "activities": number_column(figures.activities[kept], pa.int64()),
        "sum_ns": number_column(sum_ns, pa.int64()),
        "share": number_column(sum_ns / max(device_time_ns, 1), pa.float64(), known),
        "total_ns": number_column(figures.total_ns[kept], pa.int64()),
        "calls": number_column(figures.calls[kept], pa.int64()),
        "host_ns": number_column(figures.host_ns[kept], pa.int64(), figures.host_ns[kept] > 0),
    }
    return pa.Table.from_arrays(list(columns.values()), names=list(columns))


def _sums(group: IntArray, values: IntArray, groups: int) -> IntArray:
    """Return the sum of the values of each group; what has a negative one is in none."""
    out = np.zeros(groups + 1, dtype=np.int64)
    np.add.at(out, group, values)  # -1 is the place behind the last group
    return out[:groups]
