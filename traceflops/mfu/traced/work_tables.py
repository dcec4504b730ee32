"""Kernels and ops of the chosen windows by name: FLOPs, time, least bytes.

The FLOPs and bytes of an op are counted once, at its main kernel; kernels that help that one
(split-K reductions, conversions) only have time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.attribution.datatypes import types_of_ops
from traceflops.attribution.op_kernels import Attribution
from traceflops.categories.rules import Category
from traceflops.flops.ops.count import UNKNOWN
from traceflops.mfu.counted.joins import MeasuredWork
from traceflops.mfu.roof_times import Measured, MovedBytes, Path, WorkBasis, common_paths
from traceflops.mfu.traced.coverage import chosen_activities
from traceflops.mfu.traced.executed import Executed
from traceflops.table.columns import IntArray, codes, names, numbers, texts_of
from traceflops.table.grouping import exact_sum, exact_sums, group_rows, groups, ranked
from traceflops.table.nesting import taken
from traceflops.windows.prepared import Prepared


class KernelRow(Struct, frozen=True):
    """All kernels of one name in the chosen windows.

    `sum_ns` is the time of all `count` kernels, `category` that of the first. `measured` is of the
    `counted` ones: those whose op has known FLOPs; without any of these, those of known bytes
    (copies, fills, and the only kernel of an op). `basis` is the source of these figures, None
    without any. `dtypes` are the data types of the products that it was the main kernel of.
    `vector_flops` are of vector units, by counters. `path` is what the bytes move over, None for
    several. `is_kernel` is whether none is recorded as a copy or a fill.
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
    path: Path | None = "memory"
    is_kernel: bool = True


class OpRow(Struct, frozen=True):
    """All executed ops of one name in the chosen windows, and the time of all their kernels.

    `launches` counts the activities. Ops without matrix work have 0 FLOPs and no data types. `path`
    is what their bytes move over, None for several.
    """

    name: str
    count: int
    launches: int
    measured: Measured
    dtypes: tuple[str, ...] = ()
    path: Path | None = "memory"


def kernel_rows(
    prepared: Prepared, moved: MovedBytes, work: MeasuredWork | None = None
) -> tuple[KernelRow, ...]:
    """Return a row per name of kernel, most time first; `work` is by counters or a paired run."""
    rows = np.flatnonzero(chosen_activities(prepared))
    table = list(_by_shapes(prepared, moved, rows))
    if work is not None:
        activities = prepared.trace.activities
        labels, dur_ns = names(activities["name"]), numbers(activities["dur_ns"])
        measured = rows[work.origin[rows] >= 0]
        by_code = groups(codes(activities["name"])[measured])
        rows_of_name = {labels[code]: measured[places] for code, places in by_code}
        for place, row in enumerate(table):
            if (launches := rows_of_name.get(row.name)) is not None:
                table[place] = _added(row, work, launches, dur_ns[launches])
    return tuple(sorted(table, key=lambda row: (-row.sum_ns, row.name)))


def _added(row: KernelRow, work: MeasuredWork, rows: IntArray, dur_ns: IntArray) -> KernelRow:
    """Return a kernel's row with the work of launches by counters or a paired run added.

    `rows` are these launches, as activities. If no FLOPs of them are known, only bytes are added.
    """
    kind, size, vector = work.kind[rows], work.size[rows], work.vector[rows]
    # kind [2 -1 0 2] -> kinds [0 2], times [1 2]
    kinds, times = (column.tolist() for column in np.unique(kind[kind >= 0], return_counts=True))
    if row.counted and not kinds:  # the row's FLOPs would be without those of these launches
        return row
    parts = [(part, n) for index, n in zip(kinds, times, strict=True) for part in work.kinds[index]]
    is_counted = kind >= 0 if kinds else size >= 0
    # If the bytes of one launch are unknown, the sum is, too.
    has_bytes = (kinds or is_counted.any()) and (size[is_counted] >= 0).all()
    measured = Measured(
        flops=sum(part.flops * n for part, n in parts) if kinds else None,
        min_bytes=exact_sum(size[is_counted]) if has_bytes else None,
        time_ns=exact_sum(dur_ns[is_counted]),
        least_flops=sum(part.at_least * n for part, n in parts) if kinds else None,
    )
    dtypes = {part.dtype for part, _ in parts if part.flops}
    if row.counted:
        measured = row.measured + measured
        dtypes |= {*row.dtypes}
    else:
        vector_flops = exact_sum(vector) if (vector >= 0).all() else None
        row = replace(row, dtypes=(), basis=work.basis(rows), vector_flops=vector_flops)
    counted = row.counted + sum(times)
    return replace(row, counted=counted, measured=measured, dtypes=tuple(sorted(dtypes)))


def op_rows(prepared: Prepared, moved: MovedBytes) -> tuple[OpRow, ...]:
    """Return a row per name of op that did matrix work or moved known bytes, most time first."""
    rows = np.flatnonzero(chosen_activities(prepared) & (moved.unit >= 0))
    name, attribution, work = prepared.trace.ops["name"], moved.attribution, moved.attribution.work
    # The ops that worked, grouped by name; then the group of each activity in `rows`. Activities of
    # ops [7 3 7] -> op [3 7], place [1 0 1]; codes of names [5 2] -> group [1 0] -> rows [0 1 0]
    op, place = ranked(moved.unit[rows])
    group, first = group_rows([codes(name)[op]])
    group_of_row, count = group[place], len(first)
    sums_ns = exact_sums(group_of_row, numbers(prepared.trace.activities["dur_ns"])[rows], count)
    has_main = np.isin(attribution.main[op], rows)  # FLOPs count where the main kernel does
    flops = np.where(has_main, work.of_ops(work.flops)[op], 0)
    least = np.where(has_main, work.of_ops(work.at_least)[op], 0)
    is_product = attribution.has("executed")[op]
    dtype, types = types_of_ops(prepared, attribution)
    columns = zip(
        texts_of(name, op[first]),
        np.bincount(group, minlength=count).tolist(),
        np.bincount(group_of_row, minlength=count).tolist(),
        _measured(group, sums_ns, flops, least, moved.op_size[op]),
        _types_seen(group[is_product], dtype[op[is_product]], types, count),
        common_paths(group, moved.op_path[op], count),
        strict=True,
    )
    table = [OpRow(*row) for row in columns]  # the columns are in the order of its fields
    return tuple(sorted(table, key=lambda row: (-row.measured.time_ns, row.name)))


def main_ops(attribution: Attribution, count: int) -> IntArray:
    """Return the op whose main kernel each of `count` activities is, -1 for none."""
    main_of = np.full(count, -1, dtype=np.int64)
    ops = attribution.executed[attribution.main[attribution.executed] >= 0]
    main_of[attribution.main[ops]] = ops
    return main_of


def activity_flops(executed: Executed) -> IntArray:
    """Return the FLOPs of each activity (an op's at its main kernel), UNKNOWN if not known."""
    attribution, work = executed.attribution, executed.work
    owned = attribution.owner >= 0
    main_op = main_ops(attribution, len(owned))
    flops = taken(attribution.work.of_ops(attribution.work.flops), main_op, missing=0)
    flops[~owned] = UNKNOWN
    return flops if work is None else np.where(work.kind >= 0, work.flops, flops)


def _by_shapes(prepared: Prepared, moved: MovedBytes, rows: IntArray) -> Iterator[KernelRow]:
    """Yield a row per name of the activities `rows`, without counters of the hardware.

    1. If activities of the name worked for ops with FLOPs, the row has their FLOPs and bytes.
    2. Else it has the bytes of the activities: those of their records, or those of an op that has
       no other activity.
    3. If these are unknown, too, it has only times.
    """
    activities, categorised = prepared.trace.activities, prepared.linked.categorised
    group, first = group_rows([codes(activities["name"])[rows]])
    labels = texts_of(activities["name"], rows[first])
    count, dur_ns = len(first), numbers(activities["dur_ns"])[rows]
    attribution, work = moved.attribution, moved.attribution.work
    is_copy = moved.is_copy[rows]
    # Kernels of an op with FLOPs: the figures of the op are at its main kernel.
    has_flops = (attribution.owner[rows] >= 0) & ~is_copy
    op = main_ops(attribution, activities.num_rows)[rows]
    flops, least, op_bytes = (
        taken(work.of_ops(column), op, 0) for column in (work.flops, work.at_least, work.min_bytes)
    )
    flops_ns = exact_sums(group, np.where(has_flops, dur_ns, 0), count)
    measured = _measured(group, flops_ns, flops, least, op_bytes)
    # Bytes by activity: recorded ones of copies and fills, and an op's if it has one activity.
    launched = np.bincount(moved.unit[moved.unit >= 0], minlength=len(moved.op_size))
    unit = np.where(attribution.owner >= 0, UNKNOWN, moved.unit)[rows]
    is_only = taken(launched, unit) == 1
    by_op = np.where(is_only, taken(moved.op_size, unit), UNKNOWN)
    recorded = moved.size[rows]
    bytes_alone = np.where(recorded != UNKNOWN, recorded, by_op)
    is_sized = bytes_alone != UNKNOWN
    sized_count = np.bincount(group[is_sized], minlength=count).tolist()
    sized_bytes = exact_sums(group, np.where(is_sized, bytes_alone, 0), count)
    sized_ns = exact_sums(group, np.where(is_sized, dur_ns, 0), count)
    copies = np.bincount(group[is_copy], minlength=count).tolist()
    paths = common_paths(group, moved.path[rows], count)
    dtype, types = types_of_ops(prepared, attribution)
    dtypes = _types_seen(group[op >= 0], dtype[op[op >= 0]], types, count)
    sum_ns = exact_sums(group, dur_ns, count)
    launches = np.bincount(group, minlength=count).tolist()
    with_flops = np.bincount(group[has_flops], minlength=count).tolist()
    for number, category in enumerate(categorised.category[rows[first]].tolist()):
        if with_flops[number]:
            counted, figures = with_flops[number], measured[number]
        elif sized_count[number]:
            counted = sized_count[number]
            figures = Measured(0, sized_bytes[number], sized_ns[number])
        else:
            counted, figures = 0, Measured(None, None, 0)
        yield KernelRow(
            name=labels[number],
            category=categorised.categories[category],
            count=launches[number],
            sum_ns=sum_ns[number],
            counted=counted,
            measured=figures,
            dtypes=dtypes[number],
            basis=("record" if copies[number] else "shapes") if counted else None,
            path=paths[number],
            is_kernel=not copies[number],
        )


def _measured(
    group: IntArray, time_ns: list[int], flops: IntArray, least: IntArray, size: IntArray
) -> list[Measured]:
    """Return the work of each group; bytes are None if those of one member are UNKNOWN."""
    count = len(time_ns)
    sums = (exact_sums(group, np.maximum(column, 0), count) for column in (flops, least, size))
    unsized_count = np.bincount(group[size == UNKNOWN], minlength=count).tolist()
    return [
        Measured(most, None if unsized else moved, ns, at_least)
        for most, at_least, moved, ns, unsized in zip(*sums, time_ns, unsized_count, strict=True)
    ]


def _types_seen(
    group: IntArray, dtype: IntArray, labels: list[str], count: int
) -> list[tuple[str, ...]]:
    """Return the data types (of `labels`) that occur in each of `count` groups of rows."""
    types_of_group: list[list[str]] = [[] for _ in range(count)]
    _, first = group_rows([group, dtype])
    for number, code in zip(group[first].tolist(), dtype[first].tolist(), strict=True):
        types_of_group[number].append(labels[code])
    return [tuple(sorted(types)) for types in types_of_group]
