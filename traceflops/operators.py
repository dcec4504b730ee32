"""Operators of the host by the device time of what they launched: a table over the chosen windows.

An activity counts once, with the innermost operator that launched it, so that `sum_ns` adds up to
the time of all kernels. `total_ns` counts it again with every operator around that one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.chosen import chosen_activities
from traceflops.columns import (
    BoolArray,
    IntArray,
    codes,
    names,
    number_column,
    numbers,
    string_column,
)
from traceflops.groups import in_order, ranked
from traceflops.launchers import launching_ops
from traceflops.mfu.optree import OpTree
from traceflops.prepare import Prepared

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
    chosen = chosen_activities(prepared.accounts, prepared.windows)
    op = launching_ops(prepared, chosen.row)
    begins = chosen.starts_inside * prepared.linked.whole.first[chosen.row]
    count = prepared.trace.ops.num_rows
    known = op >= 0
    own_ns, own = _sums(op, chosen.inside_ns, count), _sums(op, begins, count)
    labels = names(prepared.trace.ops["name"])
    figures = _by_name(prepared, own_ns, own, _sums(op, known.astype(np.int64), count), len(labels))
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
    prepared: Prepared, own_ns: IntArray, own: IntArray, launched: IntArray, names_known: int
) -> _ByName:
    ops = prepared.trace.ops
    if not ops.num_rows:
        none = np.zeros(names_known, dtype=np.int64)
        return _ByName(none, none, none, none, none)
    name, tree = codes(ops["name"]), OpTree.of(ops)
    outer = _outermost(name, tree)
    busy = _below(tree, launched) > 0
    host_ns = numbers(ops["dur_ns"])
    return _ByName(
        _sums(name, own, names_known),
        _sums(name, own_ns, names_known),
        _sums(np.where(outer, name, -1), _below(tree, own_ns), names_known),
        _sums(np.where(busy, name, -1), np.ones(len(name), dtype=np.int64), names_known),
        _sums(np.where(outer & busy, name, -1), host_ns, names_known),
    )


def _below(tree: OpTree, values: IntArray) -> IntArray:
    """Return the sum of the values of each op and all ops below it."""
    sums = np.append(0, np.cumsum(values[tree.order]))
    found = np.empty(len(values), dtype=np.int64)
    found[tree.order] = sums[tree.stop] - sums[:-1]
    return found


def _outermost(name: IntArray, tree: OpTree) -> BoolArray:
    """Return which ops are not below one of their own name: their times must not count twice."""
    code = name[tree.order]
    place = in_order(code)  # stable: by name, then by start
    stop, group = tree.stop[place], ranked(code[place])[1]
    apart = len(stop) + 1
    reach = np.maximum.accumulate(stop + group * apart) - group * apart
    outer = np.ones(len(stop), dtype=np.bool_)
    same = group[1:] == group[:-1]
    outer[1:] = ~same | (place[1:] >= reach[:-1])
    found = np.empty(len(stop), dtype=np.bool_)
    found[tree.order[place]] = outer
    return found


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
