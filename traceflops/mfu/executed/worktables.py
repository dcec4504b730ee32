"""Kernels and ops of the chosen windows by name: FLOPs, time, least bytes.

The FLOPs and bytes of an op belong to its main kernel, so that they are there once; kernels that
help it (split-K reductions, conversions) have their time alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from traceflops.categories.model import Category
from traceflops.columns import IntArray, codes, names, numbers
from traceflops.groups import distinct, group_rows
from traceflops.mfu.exact import exact_sums
from traceflops.mfu.executed.attribution import Attribution
from traceflops.mfu.executed.datatypes import types_of_ops
from traceflops.mfu.executed.optree import taken
from traceflops.mfu.executed.outside import vector_ops
from traceflops.mfu.executed.whichwindow import in_chosen_window, window_of_activity
from traceflops.mfu.ops import UNKNOWN
from traceflops.mfu.roofline import Measured, WorkBasis
from traceflops.prepare import Prepared

if TYPE_CHECKING:
    from traceflops.mfu.pairing.measuredwork import MeasuredWork
    from traceflops.mfu.pairing.namedwork import NamedWork


@dataclass(frozen=True, slots=True)
class KernelRow:
    """All kernels of one name in the chosen windows.

    `measured` is of the `counted` ones, whose op's FLOPs are known, or without any of those that
    alone moved the bytes of an op that has none; its FLOPs are None where there are neither.
    `sum_ns` is the time of all `count` of them. `category` is that of the first. `dtypes` are the
    data types of the products it was the main kernel of. `basis` is what tells its FLOPs and bytes,
    None where nothing does. `vector_flops` are of vector units, where counters tell.
    """

    name: str
    category: Category
    count: int
    sum_ns: int
    counted: int
    measured: Measured
    dtypes: tuple[str, ...] = ()
    basis: WorkBasis | None = None
    vector_flops: int | None = None


@dataclass(frozen=True, slots=True)
class OpRow:
    """All executed ops of one name in the chosen windows, and the time of all their kernels.

    `launches` counts the activities. Ops without matrix work have 0 FLOPs and no data types.
    """

    name: str
    count: int
    launches: int
    measured: Measured
    dtypes: tuple[str, ...] = ()


def kernel_rows(
    prepared: Prepared, attribution: Attribution, work: MeasuredWork | None = None
) -> tuple[KernelRow, ...]:
    """Return a row per name of kernel, those with most time first.

    `work` is what counters or a paired run tell of kernels, beside what shapes do.
    """
    rows = np.flatnonzero(in_chosen_window(prepared, window_of_activity(prepared)))
    found = _kernel_rows(prepared, attribution, rows)
    if work is not None:
        others = work.by_name(prepared, rows)
        found = (_joined(row, others.get(row.name)) for row in found)
    return tuple(sorted(found, key=_by_time))


def _joined(row: KernelRow, other: NamedWork | None) -> KernelRow:
    """Return a row with the launches whose work shapes do not tell and something else does."""
    if other is None:
        return row
    if not row.counted:
        return replace(
            row,
            counted=other.counted,
            measured=other.measured,
            dtypes=other.dtypes,
            basis=other.basis,
            vector_flops=other.vector_flops,
        )
    if not other.counted:
        return row
    return replace(
        row,
        counted=row.counted + other.counted,
        measured=row.measured + other.measured,
        dtypes=tuple(sorted({*row.dtypes, *other.dtypes})),
    )


def op_rows(prepared: Prepared, attribution: Attribution) -> tuple[OpRow, ...]:
    """Return a row per name of op that did matrix work or moved known bytes, most time first."""
    rows = np.flatnonzero(in_chosen_window(prepared, window_of_activity(prepared)))
    unit = units_of_work(prepared, attribution)[rows]
    found = _op_rows(prepared, attribution, rows[unit >= 0], unit[unit >= 0])
    return tuple(sorted(found, key=lambda row: (-row.measured.time_ns, row.name)))


def _by_time(row: KernelRow) -> tuple[int, str]:
    return -row.sum_ns, row.name


def units_of_work(prepared: Prepared, attribution: Attribution) -> IntArray:
    """Return, per activity, the executed op it worked for; else one that moves known bytes."""
    moving = vector_ops(prepared, attribution)
    moving &= attribution.work.of_ops(attribution.work.min_bytes) > 0
    around = taken(attribution.tree.nearest(moving), attribution.op)
    return np.where(attribution.owner >= 0, attribution.owner, around)


def _of_main(attribution: Attribution, column: IntArray, count: int) -> IntArray:
    """Return, per activity, the count of the op whose main kernel it is, 0 for others."""
    found = np.zeros(count, dtype=np.int64)
    ops = attribution.executed[attribution.main[attribution.executed] >= 0]
    found[attribution.main[ops]] = attribution.work.of_ops(column)[ops]
    return found


def _kernel_rows(
    prepared: Prepared, attribution: Attribution, rows: IntArray
) -> Iterator[KernelRow]:
    activities, categorised = prepared.trace.activities, prepared.linked.categorised
    name, labels = codes(activities["name"]), names(activities["name"])
    group, first = group_rows([name[rows]])
    count, dur = len(first), numbers(activities["dur_ns"])[rows]
    counted = attribution.owner[rows] >= 0
    work = attribution.work
    flops, least, size = (
        _of_main(attribution, column, activities.num_rows)[rows]
        for column in (work.flops, work.at_least, work.min_bytes)
    )
    sums = [
        exact_sums(group, values, count)
        for values in (dur, np.where(counted, dur, 0), flops, least, np.maximum(size, 0))
    ]
    moved = _moved_alone(prepared, attribution, rows, group, count)
    dtypes = _types_by_group(prepared, attribution, group, rows, count)
    times = np.bincount(group, minlength=count).tolist()
    known = np.bincount(group[counted], minlength=count).tolist()
    sizeless = np.bincount(group[size == UNKNOWN], minlength=count).tolist()
    for at, row in enumerate(rows[first].tolist()):
        all_ns, counted_ns, done, at_least, bytes_ = (values[at] for values in sums)
        measured = Measured(done, None if sizeless[at] else bytes_, counted_ns, at_least)
        launches = known[at]
        if not launches:
            launches, measured = moved[at]
        yield KernelRow(
            labels[int(name[row])],
            categorised.categories[int(categorised.category[row])],
            times[at],
            all_ns,
            launches,
            measured,
            dtypes[at],
            "shapes" if launches else None,
        )


def _moved_alone(
    prepared: Prepared, attribution: Attribution, rows: IntArray, group: IntArray, count: int
) -> list[tuple[int, Measured]]:
    """Return, per name, the launches that alone did the work of an op without FLOPs, and it.

    Of an op that launched several kernels it is not known which of them moved its bytes.
    """
    unit = units_of_work(prepared, attribution)
    of_op = np.bincount(unit[unit >= 0], minlength=prepared.trace.ops.num_rows)
    alone = (unit >= 0) & (attribution.owner < 0) & (taken(of_op, unit) == 1)
    mine = alone[rows]
    size = np.where(mine, taken(attribution.work.of_ops(attribution.work.min_bytes), unit[rows]), 0)
    dur = np.where(mine, numbers(prepared.trace.activities["dur_ns"])[rows], 0)
    launches = np.bincount(group[mine], minlength=count).tolist()
    return [
        (number, Measured(0, bytes_, time_ns) if number else Measured(None, None, 0))
        for number, bytes_, time_ns in zip(
            launches, exact_sums(group, size, count), exact_sums(group, dur, count), strict=True
        )
    ]


def _op_rows(
    prepared: Prepared, attribution: Attribution, rows: IntArray, unit: IntArray
) -> Iterator[OpRow]:
    ops, work = prepared.trace.ops, attribution.work
    name, labels = codes(ops["name"]), names(ops["name"])
    dur = numbers(prepared.trace.activities["dur_ns"])[rows]
    done = distinct(unit)
    group, first = group_rows([name[done]])
    count = len(first)
    group_of = group[np.searchsorted(done, unit)]
    columns = (work.flops, work.at_least, work.min_bytes)
    flops, least, size = (work.of_ops(column)[done] for column in columns)
    sums = [
        exact_sums(group_of, dur, count),
        *(exact_sums(group, np.maximum(one, 0), count) for one in (flops, least, size)),
    ]
    product = attribution.has("executed")[done]
    dtype, types = types_of_ops(prepared, attribution)
    dtypes = _types_seen(group[product], dtype[done[product]], types, count)
    launches = np.bincount(group_of, minlength=count).tolist()
    times = np.bincount(group, minlength=count).tolist()
    sizeless = np.bincount(group[size == UNKNOWN], minlength=count).tolist()
    for at, row in enumerate(done[first].tolist()):
        time_ns, counted, at_least, moved = (values[at] for values in sums)
        measured = Measured(counted, None if sizeless[at] else moved, time_ns, at_least)
        yield OpRow(labels[int(name[row])], times[at], launches[at], measured, dtypes[at])


def _types_by_group(
    prepared: Prepared, attribution: Attribution, group: IntArray, rows: IntArray, count: int
) -> list[tuple[str, ...]]:
    """Return the data types of the products whose main kernels are in each group of activities."""
    dtype, labels = types_of_ops(prepared, attribution)
    owner = attribution.owner[rows]
    main = (owner >= 0) & (taken(attribution.main, owner) == rows)
    return _types_seen(group[main], dtype[owner[main]], labels, count)


def _types_seen(
    group: IntArray, dtype: IntArray, labels: list[str], count: int
) -> list[tuple[str, ...]]:
    found: list[list[str]] = [[] for _ in range(count)]
    _, first = group_rows([group, dtype])
    for place, code in zip(group[first].tolist(), dtype[first].tolist(), strict=True):
        found[place].append(labels[code])
    return [tuple(sorted(types)) for types in found]
