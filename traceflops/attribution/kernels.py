"""Tables of kernels and categories over the chosen windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.categories import Categorised
from traceflops.table import (
    IntArray,
    Names,
    Trace,
    codes,
    first_rows,
    group_rows,
    names,
    number_column,
    string_column,
)
from traceflops.timeline import Whole
from traceflops.units import kernel_name
from traceflops.windows import InWindows

COPIES: Final = "copies"
KERNELS: Final = "kernels"
_MOVES: Final = {"copy": COPIES, "migration": COPIES, "memset": "fills"}
"""Kinds of memory work that move or set bytes; all others are kernels."""
_WAYS: Final = {
    "HtoD": f"host-to-device {COPIES}",
    "DtoH": f"device-to-host {COPIES}",
    "DtoD": f"device-to-device {COPIES}",
}


def kernel_table(
    trace: Trace,
    categorised: Categorised,
    whole: Whole,
    chosen: InWindows,
    device_time_ns: int,
) -> pa.Table:
    """Return a row per distinct activity of the windows, the longest first.

    Columns: name, kind, top, sub, rule (texts); count (activities that start in the windows);
    sum_ns (time inside the windows, overlaps counted twice); mean_ns, min_ns and max_ns (of whole
    activities that touch the windows); share (sum_ns of all device time in the windows, null
    without any).
    """
    activities = trace.activities
    labels, kinds = names(activities["name"]), names(activities["kind"])
    duration = whole.whole_ns[chosen.row]
    begins = whole.first[chosen.row]
    columns = (
        codes(activities["name"])[chosen.row],
        codes(activities["kind"])[chosen.row],
        categorised.category[chosen.row],
        categorised.rule[chosen.row],
    )
    group, first = group_rows((_one_per_kernel(labels)[columns[0]], *columns[1:]))
    sums = _sums(group, chosen.inside_ns, len(first))
    order = _longest_first(sums, [labels[c] for c in columns[0][first].tolist()])
    name, kind, category, rule = (column[first][order] for column in columns)
    categories = [categorised.categories[c] for c in category.tolist()]
    texts = {
        "name": [kernel_name(labels[c]) for c in name.tolist()],
        "kind": [kinds[c] for c in kind.tolist()],
        "top": [c.top for c in categories],
        "sub": [c.sub for c in categories],
        "rule": [categorised.rules[c] for c in rule.tolist()],
    }
    figures = {
        "count": _sums(group, chosen.starts_inside * begins, len(first))[order],
        "sum_ns": sums[order],
        "mean_ns": _means(group, duration, begins, len(first))[order],
        "min_ns": _extreme(np.minimum, group, duration, len(first))[order],
        "max_ns": _extreme(np.maximum, group, duration, len(first))[order],
    }
    return _table(texts, figures, device_time_ns)


def _one_per_kernel(labels: Sequence[str]) -> IntArray:
    """Return one number per kernel: some records have its descriptor's name, with an ending."""
    numbers = Names()
    return np.append(numbers.codes(map(kernel_name, labels)), -1)


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
    texts = {"top": [key[0] for key, _ in rows], "sub": [key[1] for key, _ in rows]}
    figures = {
        "count": np.array([total[0] for _, total in rows], dtype=np.int64),
        "sum_ns": np.array([total[1] for _, total in rows], dtype=np.int64),
    }
    return _table(texts, figures, device_time_ns)


def memory_times(trace: Trace, categorised: Categorised, chosen: InWindows) -> dict[str, int]:
    """Return the time of memory work by what it is; copies by direction, where that is known."""
    is_memory = np.array([top == "memory" for top in categorised.top()], dtype=np.bool_)
    mine = np.flatnonzero(is_memory[categorised.category[chosen.row]])
    rows, direction = chosen.row[mine], trace.activities["direction"]
    columns = (categorised.category[rows], codes(direction)[rows])
    group, first = group_rows(columns)
    sums = _sums(group, chosen.inside_ns[mine], len(first))
    ways = [*names(direction), ""]  # the last is that of no direction, -1
    found: dict[str, int] = {}
    for place, sum_ns in zip(first.tolist(), sums.tolist(), strict=True):
        what = _MOVES.get(categorised.categories[columns[0][place]].sub, KERNELS)
        way = ways[columns[1][place]].removeprefix("migration ")
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
    return pa.Table.from_arrays(list(arrays.values()), names=list(arrays))


def _longest_first(sums: IntArray, labels: list[str]) -> IntArray:
    """Return the order by time, ties by name: the same however the file lists its names."""
    return np.array(sorted(range(len(labels)), key=lambda i: (-int(sums[i]), labels[i])), np.int64)


def _sums(group: IntArray, values: IntArray, groups: int) -> IntArray:
    out = np.zeros(groups, dtype=np.int64)
    np.add.at(out, group, values)
    return out


def _means(group: IntArray, values: IntArray, counted: IntArray, groups: int) -> IntArray:
    """Return the mean of the counted values of each group; of all where none is counted."""
    count = _sums(group, counted, groups)
    weight = np.where(count[group] > 0, counted, 1)
    total, count = _sums(group, values * weight, groups), _sums(group, weight, groups)
    means: IntArray = (total + count // 2) // count
    return means


def _extreme(function: np.ufunc, group: IntArray, values: IntArray, groups: int) -> IntArray:
    out = np.zeros(groups, dtype=np.int64)
    out[:] = values[first_rows(group, groups)] if len(values) else 0
    function.at(out, group, values)
    return out
