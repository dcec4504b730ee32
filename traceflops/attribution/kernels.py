"""Tables of kernels, categories and operators of the host over the chosen windows.

An activity counts once, with the innermost operator that launched it, so that `sum_ns` adds up to
the time of all kernels. `total_ns` counts it again with every operator around that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.attribution.launching_ops import ops_that_launched
from traceflops.categories import Categorised
from traceflops.characters import kernel_name
from traceflops.table import (
    BoolArray,
    IntArray,
    Names,
    OpTree,
    Trace,
    WholeArray,
    by_code,
    codes,
    first_rows,
    group_rows,
    group_sums,
    names,
    number_column,
    numbers,
    slices,
    string_column,
    taken,
)
from traceflops.timeline import SplitWork, is_top
from traceflops.windows import InWindows, Prepared

COPIES: Final = "copies"
KERNELS: Final = "kernels"
MIGRATIONS: Final = "page migrations"
MOST: Final = 1_000
"""Operators in a table."""
_MOVES: Final = {"copy": COPIES, "migration": MIGRATIONS, "memset": "fills"}
"""Kinds of memory work that move or set bytes; all others are kernels."""
_WAYS: Final = {
    "HtoD": f"host-to-device {COPIES}",
    "DtoH": f"device-to-host {COPIES}",
    "DtoD": f"device-to-device {COPIES}",
}


_TEXTS: Final = ("name", "kind", "top", "sub", "rule")
_MEANINGS: Final = {
    "name": "name of the kernel or copy, without the ending of its descriptor",
    "kind": "as in activities",
    "top": "category",
    "sub": "category within `top`",
    "rule": "rule that put it there",
    "count": "activities that start in the windows used; on a CPU, calls of the operator",
    "sum_ns": "time inside the windows used; overlaps count twice",
    "mean_ns": "mean duration of whole activities",
    "min_ns": "shortest whole activity",
    "max_ns": "longest whole activity",
    "share": "sum_ns / device time used, or null; where work overlaps they sum to over 1",
}
_EXTREMES: Final = {"min_ns": np.minimum, "max_ns": np.maximum}


def kernel_table(totals: Sequence[pa.Table], device_time_ns: int) -> pa.Table:
    """Return a row per distinct activity of the windows, the longest first.

    `totals` are those of one or more recordings. Columns: name, kind, top, sub, rule (texts); count
    (activities that start in the windows); sum_ns (time inside the windows, overlaps counted
    twice); mean_ns, min_ns and max_ns (of whole activities that touch the windows); share (sum_ns
    of all device time in the windows, null without any).
    """
    found = pa.concat_tables(totals)
    place: dict[tuple[str, ...], int] = {}
    every = zip(*(found[name].to_pylist() for name in _TEXTS), strict=True)
    group = np.array([place.setdefault(row, len(place)) for row in every], dtype=np.int64)
    added = {name: numbers(found[name]) for name in found.column_names[len(_TEXTS) :]}
    figures = {
        name: _extreme(_EXTREMES[name], group, values, len(place))
        if name in _EXTREMES
        else group_sums(group, values, len(place))
        for name, values in added.items()
    }
    texts = {name: [row[at] for row in place] for at, name in enumerate(_TEXTS)}
    order = _longest_first(figures["sum_ns"], texts["name"])
    figures = {name: values[order] for name, values in figures.items()}
    whole, whole_ns = figures.pop("whole"), figures.pop("whole_ns")
    means = {"mean_ns": (whole_ns + whole // 2) // np.maximum(whole, 1)}
    ordered = {name: [values[at] for at in order.tolist()] for name, values in texts.items()}
    shown = ("count", "sum_ns", "mean_ns", "min_ns", "max_ns")
    figures |= means
    return _table(ordered, {name: figures[name] for name in shown}, device_time_ns)


_FIGURES: Final = ("count", "sum_ns", "whole", "whole_ns", "min_ns", "max_ns")
KERNEL_TOTALS: Final = pa.schema(
    [
        *(pa.field(name, pa.string(), False) for name in _TEXTS),
        *(pa.field(name, pa.int64(), False) for name in _FIGURES),
    ]
)
"""The columns of `kernel_totals`."""


def kernel_totals(
    trace: Trace, categorised: Categorised, split: SplitWork, chosen: InWindows
) -> pa.Table:
    """Return what `kernel_table` takes of one recording.

    `whole_ns` is the time of `whole` activities: of those that begin, or of all where none does.
    """
    activities = trace.activities
    labels, kinds = names(activities["name"]), names(activities["kind"])
    duration = split.whole_ns[chosen.row]
    begins = split.first[chosen.row]
    columns = (
        codes(activities["name"])[chosen.row],
        codes(activities["kind"])[chosen.row],
        categorised.category[chosen.row],
        categorised.rule[chosen.row],
    )
    # Some records have the name of a kernel's descriptor, with an ending.
    one_per_kernel = np.append(Names().codes(map(kernel_name, labels)), -1)
    group, first = group_rows((one_per_kernel[columns[0]], *columns[1:]))
    name, kind, category, rule = (column[first] for column in columns)
    categories = [categorised.categories[c] for c in category.tolist()]
    texts = {
        "name": [kernel_name(labels[c]) for c in name.tolist()],
        "kind": [kinds[c] for c in kind.tolist()],
        "top": [c.top for c in categories],
        "sub": [c.sub for c in categories],
        "rule": [categorised.rules[c] for c in rule.tolist()],
    }
    count = group_sums(group, begins, len(first))
    weight = np.where(count[group] > 0, begins, 1)
    figures = {
        "count": group_sums(group, chosen.starts_inside * begins, len(first)),
        "sum_ns": group_sums(group, chosen.inside_ns, len(first)),
        "whole": group_sums(group, weight, len(first)),
        "whole_ns": group_sums(group, duration * weight, len(first)),
        "min_ns": _extreme(np.minimum, group, duration, len(first)),
        "max_ns": _extreme(np.maximum, group, duration, len(first)),
    }
    arrays = [string_column(values) for values in texts.values()]
    arrays += [number_column(values, pa.int64()) for values in figures.values()]
    return pa.Table.from_arrays(arrays, schema=KERNEL_TOTALS)


def category_table(kernels: pa.Table, device_time_ns: int) -> pa.Table:
    """Return a row per (top, sub) of a kernel table: count, sum_ns, share; the longest first."""
    pairs: dict[tuple[str, str], list[int]] = {}
    for top, sub, count, sum_ns in zip(
        *(kernels[name].to_pylist() for name in ("top", "sub", "count", "sum_ns")), strict=True
    ):
        total = pairs.setdefault((top, sub), [0, 0])
        total[0] += count
        total[1] += sum_ns
    rows = sorted(pairs.items(), key=lambda item: (-item[1][1], item[0]))
    texts = {name: [key[at] for key, _ in rows] for at, name in enumerate(("top", "sub"))}
    figures = {
        name: np.array([total[at] for _, total in rows], dtype=np.int64)
        for at, name in enumerate(("count", "sum_ns"))
    }
    return _table(texts, figures, device_time_ns)


def memory_times(trace: Trace, categorised: Categorised, chosen: InWindows) -> dict[str, int]:
    """Return the time of memory work by what it is; copies by direction, where that is known."""
    mine = np.flatnonzero(is_top(categorised, "memory", chosen.row))
    rows, direction = chosen.row[mine], trace.activities["direction"]
    columns = (categorised.category[rows], codes(direction)[rows])
    group, first = group_rows(columns)
    sums = group_sums(group, chosen.inside_ns[mine], len(first))
    ways = [*names(direction), ""]  # the last is that of no direction, -1
    found: dict[str, int] = {}
    for place, sum_ns in zip(first.tolist(), sums.tolist(), strict=True):
        what = _MOVES.get(categorised.categories[columns[0][place]].sub, KERNELS)
        way = ways[columns[1][place]]
        what = _WAYS.get(way, COPIES) if what == COPIES else what
        found[what] = found.get(what, 0) + sum_ns
    return found


def _table(
    texts: dict[str, list[str]], figures: dict[str, IntArray], device_time_ns: int
) -> pa.Table:
    arrays = {name: string_column(values) for name, values in texts.items()}
    arrays |= {name: number_column(values, pa.int64()) for name, values in figures.items()}
    total = max(device_time_ns, 1)
    known = np.full(len(figures["sum_ns"]), device_time_ns > 0)
    arrays["share"] = number_column(figures["sum_ns"] / total, pa.float64(), known)
    fields = [
        pa.field(name, array.type, metadata={"meaning": _MEANINGS[name], **_unit(name)})
        for name, array in arrays.items()
    ]
    return pa.Table.from_arrays(list(arrays.values()), schema=pa.schema(fields))


def _unit(name: str) -> dict[str, str]:
    return {"unit": "ns"} if name.endswith("_ns") else {}


def _longest_first(sums: IntArray, labels: list[str]) -> IntArray:
    """Return the order by time, ties by name: the same however the file lists its names."""
    return np.array(sorted(range(len(labels)), key=lambda i: (-int(sums[i]), labels[i])), np.int64)


def _extreme(function: np.ufunc, group: IntArray, values: IntArray, groups: int) -> IntArray:
    out = np.zeros(groups, dtype=np.int64)
    out[:] = values[first_rows(group, groups)] if len(values) else 0
    function.at(out, group, values)
    return out


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
    activities: IntArray
    sum_ns: IntArray
    total_ns: IntArray
    calls: IntArray
    host_ns: IntArray


def operators(prepared: Prepared, most: int = MOST) -> Operators:
    """Return the operators that launched what the chosen windows hold, the most time first."""
    chosen = prepared.chosen
    op = ops_that_launched(prepared, chosen.row)
    begins = prepared.begins
    known = op >= 0
    labels = names(prepared.trace.ops["name"])
    figures = _by_name(prepared, op, chosen.inside_ns, begins, len(labels))
    order = _by_own_time(figures, labels)
    kept, beyond = order[:most], order[most:]
    windows = (window for mine in prepared.windows.values() for window in mine if window.used)
    return Operators(
        _operators(figures, kept, labels, sum(window.dur_ns for window in windows)),
        len(beyond),
        int(figures.sum_ns[beyond].sum()),
        int(begins[~known].sum()),
        int(chosen.inside_ns[~known].sum()),
    )


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
        group_sums(own, begins, names_known),
        group_sums(own, inside_ns, names_known),
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


def _by_own_time(figures: _ByName, labels: list[str]) -> IntArray:
    """Return the names that launched anything, by their own time and then by that in all."""
    found = np.flatnonzero((figures.calls > 0) | (figures.activities > 0))
    own, total = figures.sum_ns.tolist(), figures.total_ns.tolist()
    return np.array(sorted(found.tolist(), key=lambda c: (-own[c], -total[c], labels[c])), np.int64)


def _operators(
    figures: _ByName, kept: IntArray, labels: list[str], device_time_ns: int
) -> pa.Table:
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
