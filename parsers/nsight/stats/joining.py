"""What one report says of the records of another: calls of kernels, sizes of copies."""

from __future__ import annotations

import numpy as np

from traceflops.parsers.shared.csv_parts import chosen
from traceflops.table.builder import TableBuilder
from traceflops.table.columns import IntArray
from traceflops.table.grouping import group_rows
from traceflops.table.rows import ABSENT


def give_ids(calls: TableBuilder, kernels: TableBuilder, activities: TableBuilder) -> None:
    """Give calls the ids of the kernels they launched, as another report has these.

    `kernels` are those of the report with the calls, which numbers them itself. A kernel is known
    again by its times, where only one of each report has them; other calls get no id.
    """
    group, first = group_rows(
        [
            np.concatenate([table.column(name) for table in (activities, kernels)])
            for name in ("start_ns", "dur_ns")
        ]
    )
    there, here = group[: activities.count], group[activities.count :]
    alone = [np.bincount(side, minlength=len(first)) == 1 for side in (there, here)]
    id_of = np.full(len(first), ABSENT, np.int64)
    id_of[there] = activities.column("correlation")
    known = (alone[0] & alone[1])[here] & (id_of[here] != ABSENT)
    launch, one = np.unique(kernels.column("correlation")[known], return_index=True)
    calls.replace(
        "correlation", _looked_up(calls.column("correlation"), launch, id_of[here][known][one])
    )


def _looked_up(values: IntArray, keys: IntArray, found: IntArray) -> IntArray:
    """Return what stands for each value by sorted keys; ABSENT for others."""
    if not len(keys):
        return np.full(len(values), ABSENT, np.int64)
    at = np.minimum(np.searchsorted(keys, values), len(keys) - 1)
    return np.where(keys[at] == values, found[at], ABSENT)


def with_sizes(totals: TableBuilder, sizes: TableBuilder) -> TableBuilder:
    """Put sizes of copies to the sums of their times; return those of other copies."""
    kinds, names = ([*totals.names[c]] for c in ("kind", "name"))
    own = zip(totals.column("kind").tolist(), totals.column("name").tolist(), strict=True)
    place = {(kinds[kind], names[name]): row for row, (kind, name) in enumerate(own)}
    kinds, names = ([*sizes.names[c]] for c in ("kind", "name"))
    theirs = zip(sizes.column("kind").tolist(), sizes.column("name").tolist(), strict=True)
    rows = np.array([place.get((kinds[k], names[n]), -1) for k, n in theirs], np.int64)
    values = totals.column("bytes").copy()
    values[rows[rows >= 0]] = sizes.column("bytes")[rows >= 0]
    totals.replace("bytes", values)
    return chosen(sizes, rows < 0)
