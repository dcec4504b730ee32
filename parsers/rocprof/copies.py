"""The direction of memory copies, in the words of all generations, and their bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from traceflops.parsers.io.database_query import Batch, Lookup
from traceflops.parsers.shared.sinks import DIRECTIONS, direction_named
from traceflops.table.builder import TableBuilder
from traceflops.table.columns import ABSENT, Array, BoolArray, IntArray

_KERNELS: Final = ("__amd_rocclr_copyBuffer", "__amd_rocclr_fillBuffer")
UNKNOWN, HOST, GPU = -1, 0, 1
"""What an end of a copy is."""
_BY_ENDS: Final = {"HtoD": (HOST, GPU), "DtoH": (GPU, HOST), "HtoH": (HOST, HOST)}
WITHIN: Final = DIRECTIONS.index("DtoD")
BETWEEN: Final = DIRECTIONS.index("PtoP")


def directions_named(names: Iterable[str]) -> IntArray:
    """Return for each name the index in DIRECTIONS of the direction it states, -1 if none."""
    directions = map(direction_named, names)
    indices = [UNKNOWN if text is None else DIRECTIONS.index(text) for text in directions]
    return np.array(indices, np.int64)


def directions_between(
    named: IntArray, source: Array, target: Array, ends_differ: Array
) -> IntArray:
    """Return the direction of each copy, an index in DIRECTIONS, -1 if unknown.

    `named` is the direction that the copy's name states, -1 if none; then the ends decide:
    `source` and `target` are HOST, GPU or UNKNOWN (or whether they are GPUs). Names confuse DtoD
    and PtoP, so a copy from GPU to GPU is PtoP where `ends_differ`, else DtoD.
    """
    direction = named
    for text, (source_kind, target_kind) in _BY_ENDS.items():
        fits_ends = (named == UNKNOWN) & (source == source_kind) & (target == target_kind)
        direction = np.where(fits_ends, DIRECTIONS.index(text), direction)
    names_no_host = np.isin(named, [UNKNOWN, WITHIN, BETWEEN])
    in_gpus = names_no_host & (source == GPU) & (target == GPU)
    return np.where(in_gpus, np.where(ends_differ, BETWEEN, WITHIN), direction)


def on_devices(
    rows: Batch, named: IntArray, ends: tuple[str, str], are_gpus: Callable[[Array], BoolArray]
) -> tuple[Batch, IntArray, IntArray]:
    """Return the copies that involve a GPU, the agent that made each, and its direction.

    `named` are the directions that names state, `ends` the columns of source and target agents. A
    copy counts for its target if that is a GPU, else for its source.
    """
    from_gpu, to_gpu = (are_gpus(rows[end]) for end in ends)
    direction = directions_between(named, from_gpu, to_gpu, rows[ends[0]] != rows[ends[1]])
    agent = np.where(to_gpu, rows[ends[1]], rows[ends[0]])
    on_device = from_gpu | to_gpu
    return rows.only(on_device), agent[on_device], direction[on_device]


def ends_of(direction: IntArray) -> tuple[IntArray, IntArray]:
    """Return the source and the target (HOST, GPU or UNKNOWN) that each direction implies."""
    ends = [_BY_ENDS.get(text, (GPU, GPU)) for text in DIRECTIONS]
    sources, targets = np.array([*ends, (UNKNOWN, UNKNOWN)]).T  # the last is for direction -1
    return sources[direction], targets[direction]


def copies_in(activities: TableBuilder) -> list[int]:
    """Return the codes of the names of kernels that copy or fill."""
    return [code for name, code in activities.names["name"].items() if name.startswith(_KERNELS)]


def fill_sizes(activities: TableBuilder, since: int, calls: IntArray, sizes: IntArray) -> None:
    """Set, in place, the bytes of kernels that copy or fill to the size that their call requested.

    `calls` are the correlations of API calls, `sizes` the bytes each was to copy. The rows of their
    process begin at row `since`. If a call launched several kernels, the bytes of each are unknown.
    """
    copying = copies_in(activities)
    if not copying or not len(calls):
        return
    correlation = activities.column("correlation")
    is_copying = np.isin(activities.column("name"), copying) & (correlation != ABSENT)
    is_copying[:since] = False
    rows = np.flatnonzero(is_copying)
    launches, index, kernels = np.unique(correlation[rows], return_index=True, return_counts=True)
    single = kernels == 1
    column = activities.column("bytes")
    column[rows[index[single]]] = Lookup(calls, sizes)(launches[single])
    activities.replace("bytes", column)
