"""Tables of kernels, categories and operators of the host over the chosen windows.

An activity counts once, for the innermost operator that launched it, so `sum_ns` adds up to the
time of all kernels. `total_ns` of an operator also includes what operators inside it launched.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from traceflops.attribution.launching_ops import ops_that_launched
from traceflops.characters import kernel_name
from traceflops.table.arrays import IntArray
from traceflops.table.columns import (
    Names,
    codes,
    is_one_of,
    names,
    number_column,
    numbers,
    span_columns,
    string_column,
    texts_of,
)
from traceflops.table.grouping import (
    by_code,
    group_least,
    group_most,
    group_rows,
    group_sums,
    groups,
    slices,
)
from traceflops.table.nesting import OpTree, taken
from traceflops.timeline.device_span import is_top
from traceflops.timeline.intervals import Intervals
from traceflops.windows.prepared import Prepared

COPIES: Final = "copies"
KERNELS: Final = "kernels"
MIGRATIONS: Final = "page migrations"
MOST: Final = 1_000
"""At most so many operators are in a table."""
MOVES: Final = {"copy": COPIES, "migration": MIGRATIONS, "memset": "fills"}
"""Kinds of memory work that move or set bytes; all others are kernels."""
_PRODUCTS: Final = {"gemm": "GEMMs", "convolution": "convolutions"}
_HIDDEN: Final = ("copy", "memset")
"""Kinds of memory work that may run beside kernels which do not wait for it."""
_KERNEL_KINDS: Final = {
    "embedding_index": "indexing",
    "fft": "FFT",
    "fused_norm": "norm",
    "moe_routing": "routing",
    "rng_dropout": "random number",
    "sort_scan": "sorting",
}
"""How kinds of memory kernels are called, if not as their category."""
_DIRECTIONS: Final = {
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
    "share": "sum_ns / device time used (one by one: time of GPU work), or null; overlaps: over 1",
}
_EXTREMES: Final = {"min_ns": group_least, "max_ns": group_most}


def kernel_table(totals: Sequence[pa.Table], device_time_ns: int | None) -> pa.Table:
    """Return a row per distinct kernel or copy of the windows, the most time first.

    `totals` are the `kernel_totals` of one or more recordings. _MEANINGS has the columns.
    """
    joined = joined_totals(totals)
    columns = {name: joined[name].to_pylist() for name in _TEXTS}
    sums = joined["sum_ns"].to_pylist()
    # Equal times are ordered by name, not by the order of names in the file.
    rows = sorted(range(len(sums)), key=lambda row: (-sums[row], columns["name"][row]))
    texts = {name: [column[row] for row in rows] for name, column in columns.items()}
    figures = {name: numbers(joined[name])[rows] for name in _FIGURES}
    whole, whole_ns = figures["whole"], figures["whole_ns"]
    figures["mean_ns"] = (whole_ns + whole // 2) // np.maximum(whole, 1)  # rounded
    shown = ("count", "sum_ns", "mean_ns", "min_ns", "max_ns")
    return _table(texts, {name: figures[name] for name in shown}, device_time_ns)


def joined_totals(totals: Sequence[pa.Table]) -> pa.Table:
    """Return the `kernel_totals` of several recordings as those of one."""
    joined, group_of = pa.concat_tables(totals), dict[tuple[str, ...], int]()
    rows = zip(*(joined[name].to_pylist() for name in _TEXTS), strict=True)
    group = np.array([group_of.setdefault(row, len(group_of)) for row in rows], dtype=np.int64)
    if not len(group):
        return joined
    arrays = [string_column(values) for values in zip(*group_of, strict=True)]
    for name in _FIGURES:
        combine = _EXTREMES.get(name, group_sums)
        figures = combine(group, numbers(joined[name]), len(group_of))
        arrays.append(number_column(figures))
    return pa.Table.from_arrays(arrays, schema=KERNEL_TOTALS)


_FIGURES: Final = ("count", "sum_ns", "whole", "whole_ns", "min_ns", "max_ns")
KERNEL_TOTALS: Final = pa.schema(
    [
        *(pa.field(name, pa.string(), False) for name in _TEXTS),
        *(pa.field(name, pa.int64(), False) for name in _FIGURES),
    ]
)
"""The columns of `kernel_totals`."""


def kernel_totals(prepared: Prepared) -> pa.Table:
    """Return a row per distinct kernel name, kind, category and rule, as KERNEL_TOTALS.

    An operator of a CPU may have several activities. `whole_ns` adds up whole durations, one per
    first activity of an operator, or one per activity if a row has no first one; `whole` counts
    them.
    """
    activities, chosen = prepared.trace.activities, prepared.chosen
    categorised, split, row = prepared.linked.categorised, prepared.linked.split, chosen.row
    labels, kinds = names(activities["name"]), names(activities["kind"])
    duration, begins = split.whole_ns[row], split.first[row]
    name, kind = codes(activities["name"])[row], codes(activities["kind"])[row]
    category, rule = categorised.category[row], categorised.rule[row]
    # Some records name a kernel with the ending of its descriptor: both names are one kernel. The
    # last element, -1, is for names of code -1.
    kernel_of_name = np.append(Names().codes(map(kernel_name, labels)), -1)
    group, first = group_rows((kernel_of_name[name], kind, category, rule))
    categories = [categorised.categories[c] for c in category[first].tolist()]
    texts = {
        "name": [kernel_name(labels[c]) for c in name[first].tolist()],
        "kind": [kinds[c] for c in kind[first].tolist()],
        "top": [c.top for c in categories],
        "sub": [c.sub for c in categories],
        "rule": [categorised.rules[c] for c in rule[first].tolist()],
    }
    count = group_sums(group, begins, len(first))
    weight = np.where(count[group] > 0, begins, 1)
    figures = {
        "count": group_sums(group, chosen.starts_inside * begins, len(first)),
        "sum_ns": group_sums(group, chosen.inside_ns, len(first)),
        "whole": group_sums(group, weight, len(first)),
        "whole_ns": group_sums(group, duration * weight, len(first)),
        "min_ns": group_least(group, duration, len(first)),
        "max_ns": group_most(group, duration, len(first)),
    }
    arrays = [string_column(values) for values in texts.values()]
    arrays += [number_column(values) for values in figures.values()]
    return pa.Table.from_arrays(arrays, schema=KERNEL_TOTALS)


def category_table(kernels: pa.Table, device_time_ns: int | None) -> pa.Table:
    """Add up a kernel table by category: top, sub, count, sum_ns, share; most time first."""
    counts, sums_ns = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    columns = (kernels[name].to_pylist() for name in ("top", "sub", "count", "sum_ns"))
    for top, sub, count, sum_ns in zip(*columns, strict=True):
        counts[top, sub] += count
        sums_ns[top, sub] += sum_ns
    order = sorted(sums_ns, key=lambda category: (-sums_ns[category], category))
    texts = {"top": [top for top, _ in order], "sub": [sub for _, sub in order]}
    figures = {
        name: np.array([sums[category] for category in order], dtype=np.int64)
        for name, sums in (("count", counts), ("sum_ns", sums_ns))
    }
    return _table(texts, figures, device_time_ns)


def memory_times(prepared: Prepared) -> dict[str, int]:
    """Return the ns of memory work in the chosen windows by kind, e.g. "fills", "norm kernels".

    Copies are split by direction if it is known; kernels that copy are a kind of their own. Of
    copies and fills only the time counts in which no kernel runs on their device. Migrations count
    in full, as kernels wait for them.
    """
    activities, chosen = prepared.trace.activities, prepared.chosen
    categorised = prepared.linked.categorised
    moving = np.flatnonzero(is_top(categorised, "memory", chosen.row))
    rows = chosen.row[moving]
    category, direction = categorised.category[rows], codes(activities["direction"])[rows]
    is_kernel_of_all = is_one_of(activities["kind"], "kernel")
    is_kernel = is_kernel_of_all[rows].astype(np.int64)
    group, first = group_rows((category, direction, is_kernel))
    hides_sub = np.array([*(kind.sub in _HIDDEN for kind in categorised.categories), False])
    may_hide = hides_sub[category] & (is_kernel == 0)  # code -1 takes the False at the end
    # Per chosen activity, the time in which no kernel runs on its device.
    start, end = span_columns(activities, chosen.row)
    is_chosen_kernel = is_kernel_of_all[chosen.row]
    alone_ns = chosen.inside_ns.copy()
    for _, own in groups(numbers(activities["device"])[chosen.row]):
        kernels = own[is_chosen_kernel[own]]
        busy = Intervals.of(start[kernels], end[kernels])
        alone_ns[own] -= busy.length_within(start[own], end[own])
    counted_ns = np.where(may_hide, np.maximum(alone_ns, 0)[moving], chosen.inside_ns[moving])
    sums = group_sums(group, counted_ns, len(first)).tolist()
    directions = texts_of(activities["direction"], rows[first])
    times = Counter[str]()
    for row, towards, sum_ns in zip(first.tolist(), directions, sums, strict=True):
        work = kind_of(categorised.categories[category[row]].sub)
        if work == COPIES:
            work = f"copy {KERNELS}" if is_kernel[row] else _DIRECTIONS.get(towards, COPIES)
        times[work] += sum_ns
    return dict(times)


def kind_of(sub: str) -> str:
    """Return what work of a subcategory of compute or memory is called, in the plural."""
    name = MOVES.get(sub) or _PRODUCTS.get(sub)
    return name or f"{_KERNEL_KINDS.get(sub, sub)} {KERNELS}"


def _table(
    texts: dict[str, list[str]], figures: dict[str, IntArray], device_time_ns: int | None
) -> pa.Table:
    """Return a table of texts and figures with their meanings, and shares of `device_time_ns`.

    Without it shares are of the sum of the kernels' own times: if a profiler ran kernels one by
    one, no other times hold.
    """
    if device_time_ns is None:
        device_time_ns = int(figures["sum_ns"].sum())
    arrays = {name: string_column(values) for name, values in texts.items()}
    arrays |= {name: number_column(values) for name, values in figures.items()}
    has_time = np.full(len(figures["sum_ns"]), device_time_ns > 0)
    shares = figures["sum_ns"] / max(device_time_ns, 1)
    arrays["share"] = number_column(shares, pa.float64(), has_time)
    fields = []
    for name, array in arrays.items():
        unit = {"unit": "ns"} if name.endswith("_ns") else {}
        metadata = {"meaning": _MEANINGS[name], **unit}
        fields.append(pa.field(name, array.type, metadata=metadata))
    return pa.Table.from_arrays(list(arrays.values()), schema=pa.schema(fields))


class Operators(Struct, frozen=True):
    """The operators with the most device time, and the device time without a known operator.

    `table` has a row per operator name: `activities` and `sum_ns`, the number (starting in the
    windows) and time of the activities that it launched itself; `share` of sum_ns in all device
    time of the windows, null without any; `total_ns`, sum_ns with what the operators inside it
    launched; `calls`, how often it launched something, itself or inside; `host_ns`, the duration of
    these calls, null if not recorded. `left` counts the names beyond the table, `left_ns` their
    sum_ns.
    """

    table: pa.Table
    left: int
    left_ns: int
    unknown_activities: int
    unknown_ns: int


def operators(prepared: Prepared, most: int = MOST) -> Operators:
    """Sum the device work of the chosen windows by launching operator, at most `most` rows."""
    chosen, begins, ops = prepared.chosen, prepared.begins, prepared.trace.ops
    op, labels = ops_that_launched(prepared, chosen.row), names(ops["name"])
    name = taken(codes(ops["name"]), op)
    activities = group_sums(name, begins, len(labels))
    sum_ns = group_sums(name, chosen.inside_ns, len(labels))
    total_ns, calls, host_ns = _sums_with_inside(prepared, op)
    used = np.flatnonzero((calls > 0) | (activities > 0)).tolist()
    order = sorted(used, key=lambda code: (-int(sum_ns[code]), -int(total_ns[code]), labels[code]))
    kept, beyond = order[:most], order[most:]
    windows = itertools.chain(*prepared.windows.values())
    time_ns = sum(window.dur_ns for window in windows if window.used)
    has_time = np.full(len(kept), time_ns > 0)
    columns = {
        "name": string_column([labels[code] for code in kept]),
        "activities": number_column(activities[kept]),
        "sum_ns": number_column(sum_ns[kept]),
        "share": number_column(sum_ns[kept] / max(time_ns, 1), pa.float64(), has_time),
        "total_ns": number_column(total_ns[kept]),
        "calls": number_column(calls[kept]),
        "host_ns": number_column(host_ns[kept], valid=host_ns[kept] > 0),
    }
    table = pa.table(columns)
    unknown, left_ns = op < 0, int(sum_ns[beyond].sum())
    unknown_ns = int(chosen.inside_ns[unknown].sum())
    return Operators(table, len(beyond), left_ns, int(begins[unknown].sum()), unknown_ns)


def _sums_with_inside(prepared: Prepared, op: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return `total_ns`, `calls` and `host_ns` (see Operators) per operator name.

    `op` is, per chosen activity, the op that launched it. The ops inside an op follow it in the
    order of the tree, from its index up to its `stop`.
    """
    ops, tree = prepared.trace.ops, prepared.linked.op_tree
    name, duration = codes(ops["name"]), numbers(ops["dur_ns"])
    total_ns, calls, host_ns = np.zeros((3, len(names(ops["name"]))), dtype=np.int64)
    launched_ns = _sums_before(tree, op, prepared.chosen.inside_ns)
    launched = _sums_before(tree, op, 1)
    # `busy` ops launched anything, themselves or inside; sorted by name, then place in the tree.
    is_busy = np.zeros(len(tree.order), dtype=np.bool_)
    for part in slices(len(is_busy)):
        is_busy[part] = launched[tree.stop[part]] > launched[part]
    busy = np.flatnonzero(is_busy).astype(np.int32)
    busy = busy[by_code(name[tree.order[busy]])]
    reached = -1
    for part in slices(len(busy)):
        index = busy[part]
        row, stop = tree.order[index], tree.stop[index]
        code = name[row]
        # An op inside another of its name must not count twice: only ops that begin after the
        # last end of their name are outer ones. Each name is shifted beyond the ends of the names
        # before it, so that one running maximum of the ends serves all names. Of 6 ops, busy ones:
        # name [0 0 1], index [2 3 1], stop [5 4 6]  ->  shift [0 0 7], reach [-1 5 5 13],
        # index + shift [2 3 8] >= [-1 5 5]  ->  outer [1 0 1]
        shift = np.multiply(code, len(name) + 1, dtype=np.int64)
        reach = np.maximum.accumulate(np.append(reached, stop + shift))
        outer = index + shift >= reach[:-1]
        reached = int(reach[-1])
        np.add.at(calls, code, 1)
        np.add.at(total_ns, code[outer], (launched_ns[stop] - launched_ns[index])[outer])
        np.add.at(host_ns, code[outer], duration[row[outer]])
    return total_ns, calls, host_ns


def _sums_before(tree: OpTree, op: IntArray, values: IntArray | int) -> IntArray:
    """Return, per index of the tree (and last for all), the sum that ops before it launched."""
    # values [5 1 2] of the ops at [0 2 2] of a tree of three  ->  [0 5 5 8]
    sums = np.zeros(len(tree.order) + 1, dtype=np.int64)
    linked = op >= 0
    np.add.at(sums, tree.place[op[linked]] + 1, np.broadcast_to(values, len(op))[linked])
    return np.cumsum(sums, out=sums)
