"""Copies and fills that a kernel does: how many bytes, by the call that asked for it."""

from __future__ import annotations

from typing import Final

import numpy as np

from traceflops.parsers.io.databases.lookup import Lookup
from traceflops.table.builder import TableBuilder
from traceflops.table.columns import IntArray
from traceflops.table.rows import ABSENT

_KERNELS: Final = ("__amd_rocclr_copyBuffer", "__amd_rocclr_fillBuffer")


def copies_in(activities: TableBuilder) -> list[int]:
    """Return the codes of the names of such kernels."""
    return [code for name, code in activities.names["name"].items() if name.startswith(_KERNELS)]


def fill_sizes(activities: TableBuilder, since: int, calls: IntArray, sizes: IntArray) -> None:
    """Give such kernels of one process, whose activities begin at a row, the sizes of their calls.

    A call that launched several of them does not say how much each did.
    """
    copying = copies_in(activities)
    if not copying or not len(calls):
        return
    correlation = activities.column("correlation")
    chosen = np.isin(activities.column("name"), copying) & (correlation != ABSENT)
    chosen[:since] = False
    rows = np.flatnonzero(chosen)
    launches, first, times = np.unique(correlation[rows], return_index=True, return_counts=True)
    column = activities.column("bytes")
    column[rows[first[times == 1]]] = Lookup(calls, sizes)(launches[times == 1])
    activities.replace("bytes", column)
