"""The direction of memory copies, in the words of all generations, and their bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from traceflops.parsers.io.database_query import Lookup
from traceflops.parsers.shared.sinks import DIRECTIONS, direction_named
from traceflops.table.builder import TableBuilder
from traceflops.table.columns import ABSENT, Array, IntArray

_KERNELS: Final = ("__amd_rocclr_copyBuffer", "__amd_rocclr_fillBuffer")
UNKNOWN, HOST, GPU = -1, 0, 1
"""What an end of a copy is."""
_BY_ENDS: Final = {"HtoD": (HOST, GPU), "DtoH": (GPU, HOST), "HtoH": (HOST, HOST)}
WITHIN: Final = DIRECTIONS.index("DtoD")
BETWEEN: Final = DIRECTIONS.index("PtoP")


def directions_named(names: Iterable[str]) -> IntArray:
    """Return the indices in DIRECTIONS of the directions in names, -1 for none."""
    directions = map(direction_named, names)
    return np.array(
        [-1 if direction is None else DIRECTIONS.index(direction) for direction in directions],
        np.int64,
    )


def directions_between(
    named: IntArray, source: IntArray, target: IntArray, apart: Array
) -> IntArray:
    """Return the direction of each copy, an index in DIRECTIONS.

    It is the direction that its name says (`named`, -1 for none), else that of its ends: `source`
    and `target` are HOST, GPU or UNKNOWN. Between GPUs, whatever the name says of these, it is PtoP
    where they differ (`apart`), else DtoD.
    """
    direction = named
    for text, (first, last) in _BY_ENDS.items():
        fits_ends = (named == UNKNOWN) & (source == first) & (target == last)
        direction = np.where(fits_ends, DIRECTIONS.index(text), direction)
    in_gpus = np.isin(named, [UNKNOWN, WITHIN, BETWEEN]) & (source == GPU) & (target == GPU)
    return np.where(in_gpus, np.where(apart, BETWEEN, WITHIN), direction)


def ends_of(direction: IntArray) -> tuple[IntArray, IntArray]:
    """Return the kinds of sources and of targets (HOST, GPU, UNKNOWN) that directions imply."""
    ends = [_BY_ENDS.get(text, (GPU, GPU)) for text in DIRECTIONS]
    sources, targets = np.array([*ends, (UNKNOWN, UNKNOWN)]).T  # the last is for direction -1
    return sources[direction], targets[direction]


def copies_in(activities: TableBuilder) -> list[int]:
    """Return the codes of the names of kernels that copy or fill."""
    return [code for name, code in activities.names["name"].items() if name.startswith(_KERNELS)]


def fill_sizes(activities: TableBuilder, since: int, calls: IntArray, sizes: IntArray) -> None:
    """Fill in, in place, the bytes of kernels that copy or fill.

    `sizes` are the bytes that the calls with the correlations `calls` were to copy. Only rows from
    `since` on are of their process. If a call launched several kernels, each size is unknown.
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
