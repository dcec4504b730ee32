"""The numbers in exports of Nsight Systems and what they mean.

Older exports do not have the tables that say so, so the meanings stand here. An id has 64 bits:
hardware, virtual machine, process and thread in one number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from traceflops.table.columns import ABSENT, IntArray

_KINDS: Final = ("HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
COPIES: Final[Mapping[int, tuple[str, str]]] = {
    **{kind: (name, f"Memcpy {name}") for kind, name in enumerate(_KINDS, 1)},
    11: ("migration HtoD", "Unified memory HtoD"),
    12: ("migration DtoH", "Unified memory DtoH"),
    13: ("migration DtoD", "Unified memory DtoD"),
    21: ("migration HtoD", "Unified memory prefetch HtoD"),
    22: ("migration DtoH", "Unified memory prefetch DtoH"),
    23: ("migration DtoD", "Unified memory prefetch DtoD"),
    31: ("migration HtoD", "Unified memory eviction HtoD"),
    32: ("migration DtoH", "Unified memory eviction DtoH"),
    33: ("migration DtoD", "Unified memory eviction DtoD"),
}
"""By kind of copy: its direction, and its name as PyTorch's profiler writes it.

From 11 on the driver makes them, to bring a page of unified memory to its user; from 21 on a call
asked for them, from 31 on they make room: of kind 11 and on in a report, with a cause of `CAUSES`.
"""
CAUSES: Final[Mapping[int, int]] = {1: 10, 4: 20}
"""By the cause of a migration, a call such as cudaMemPrefetchAsync or eviction, what is added."""
BETWEEN_DEVICES: Final = 10

_MEMORY: Final = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static")
MEMORY: Final[Mapping[int, str]] = dict(enumerate((*_MEMORY, "Managed Static")))

WAITS: Final[Mapping[int, str]] = {
    1: "Event Synchronize",
    2: "Stream Wait Event",
    3: "Stream Synchronize",
    4: "Context Synchronize",
}
WAIT: Final = "Synchronize"
"""A wait of unknown kind."""

OF_THE_PROFILER: Final = (3, 4, 5)
"""Overheads that the program would not have without the profiler: flushing its buffers,
instrumenting kernels, making and ending its resources. What compiles and loads code (2, 6, 7) or
waits for room in a command buffer (8) is the program's; types 0 and 1 are unknown."""

MARK: Final = 34
RANGES: Final = (59, 60, 70, 71)
STACKED: Final = (59, 70)
"""Ranges of a thread that nest, as calls do."""

DRIVER: Final = 1

WARNING, ERROR = 2, 3

ALLOCATED, FREED = 0, 1

THREAD_BITS: Final = 24
_MASK: Final = (1 << THREAD_BITS) - 1
NO_STREAM: Final = (1 << 32) - 1
"""How an unsigned number of 32 bits says that there is none."""


def processes_of(ids: IntArray) -> IntArray:
    """Return the keys of processes: the whole id above the thread.

    An id with 0 for the operating system's number names none: no process has that number.
    """
    keys = ids >> THREAD_BITS
    return np.where((ids == ABSENT) | (keys & _MASK == 0), ABSENT, keys)


def threads_of(ids: IntArray) -> IntArray:
    """Return the operating system's numbers of threads."""
    return np.where(ids == ABSENT, ABSENT, ids & _MASK)


def pid_of(process: int) -> int | None:
    """Return the operating system's number of a process; None where it is not known."""
    return None if process == ABSENT else process & _MASK


def present(values: IntArray) -> IntArray:
    """Return numbers; ABSENT for 0 and below and the largest of 32 bits, which stand for none."""
    is_id = (values > 0) & (values != NO_STREAM)
    return values if is_id.all() else np.where(is_id, values, ABSENT)


def streams_of(values: IntArray) -> IntArray:
    """Return the numbers of streams; ABSENT where there is no stream."""
    is_stream = (values >= 0) & (values < NO_STREAM)
    return values if is_stream.all() else np.where(is_stream, values, ABSENT)
