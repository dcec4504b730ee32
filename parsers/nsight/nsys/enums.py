"""The numbers in exports of Nsight Systems and what they mean; older exports do not say so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from traceflops.table.columns import ABSENT, IntArray

_KINDS: Final = ("HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
COPIES: Final[Mapping[int, tuple[str, str]]] = {
    **{kind: (name, f"Memcpy {name}") for kind, name in enumerate(_KINDS, 1)},
    **{
        first + kind: (f"migration {name}", f"Unified memory {cause}{name}")
        for first, cause in ((11, ""), (21, "prefetch "), (31, "eviction "))
        for kind, name in enumerate(("HtoD", "DtoH", "DtoD"))
    },
}
"""By kind of copy: its direction, and its name as PyTorch's profiler writes it.

Kinds from 11 on are migrations of pages of unified memory. Reports have only 11 to 13, and a cause:
we make 21 to 23 of those that a call requested, and 31 to 33 of evictions.
"""
CAUSES: Final[Mapping[int, int]] = {1: 10, 4: 20}
"""What is added to the kind of a migration, by its cause: 1 a call (prefetch), 4 eviction."""
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
"""The unsigned number of 32 bits that stands for no stream."""


def processes_of(ids: IntArray) -> IntArray:
    """Return the keys of processes, the bits above those of the thread; ABSENT for process 0."""
    keys = ids >> THREAD_BITS
    return np.where((ids == ABSENT) | (keys & _MASK == 0), ABSENT, keys)


def threads_of(ids: IntArray) -> IntArray:
    """Return the operating system's numbers of threads."""
    return np.where(ids == ABSENT, ABSENT, ids & _MASK)


def pid_of(process: int) -> int | None:
    """Return the pid of a process by its key; None if it is unknown."""
    return None if process == ABSENT else process & _MASK


def present(values: IntArray) -> IntArray:
    """Return numbers with ABSENT for those that stand for none: <= 0, or the largest of 32 bits."""
    is_id = (values > 0) & (values != NO_STREAM)
    return values if is_id.all() else np.where(is_id, values, ABSENT)


def streams_of(values: IntArray) -> IntArray:
    """Return the numbers of streams, ABSENT for those that stand for no stream."""
    is_stream = (values >= 0) & (values < NO_STREAM)
    return values if is_stream.all() else np.where(is_stream, values, ABSENT)
