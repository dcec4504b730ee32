"""Calls, operators and marks that take much longer than others of their name."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from traceflops.table import grouping
from traceflops.table.arrays import BoolArray, IntArray
from traceflops.table.grouping import distinct, group_rows

TIMES_USUAL: Final = 10
"""A long call takes so many times the usual."""
LEAST_NS: Final = 100_000
"""Calls that take less are not worth counting as start-up."""


class LongCalls(NamedTuple):
    """Calls (`row`) that take much longer than others of their name and process.

    Of all calls of this name and process, `usual_ns` is the median duration (0 for a single call),
    `calls` the number, and `first` the row of the first; `number` is the place of this one in time.
    """

    row: IntArray
    usual_ns: IntArray
    number: IntArray
    calls: IntArray
    first: IntArray


def longer(
    process: IntArray,
    name: IntArray,
    start_ns: IntArray,
    dur_ns: IntArray,
    fits: BoolArray,
    is_new: BoolArray | None = None,
) -> LongCalls:
    """Return the rows (calls, ops, marks) with `fits` that take much longer than usual.

    Usual is the median of rows of its name and process, without those with `is_new`.
    """
    long_names = distinct(name[fits & (dur_ns >= LEAST_NS)])
    selected = np.flatnonzero(np.isin(name, long_names))
    group, first = group_rows((process[selected], name[selected]))
    took_ns = dur_ns[selected]
    count = np.bincount(group, minlength=len(first))
    # The usual duration of each group: 0 for a single row, so that all of its time is beyond usual.
    tells = (count > 1)[group]
    if is_new is not None:
        tells &= ~is_new[selected]
    # Telling groups [0 0 3]: compact [0 0 1], without empty ones; examples are the rows 0 and 2.
    compact_group, example = group_rows((group[tells],))
    usual_of_group = np.zeros(len(first), dtype=np.int64)
    usual_of_group[group[tells][example]] = grouping.lower_medians(compact_group, took_ns[tells])
    usual_ns = usual_of_group[group]
    # Groups [1 0 1] that start at [5 2 3]: by_start [1 2 0], begins [0 1], number [1 0 0].
    by_start = np.lexsort((start_ns[selected], group))
    begins = np.cumsum(count) - count
    number = np.empty(len(selected), dtype=np.int64)
    number[by_start] = np.arange(len(selected)) - begins[group[by_start]]
    first_row = selected[by_start[begins]][group]
    is_long = (took_ns > TIMES_USUAL * usual_ns) & (took_ns - usual_ns >= LEAST_NS)
    rows = np.flatnonzero(fits[selected] & is_long)
    columns = selected, usual_ns, number, count[group], first_row
    return LongCalls(*(column[rows] for column in columns))
