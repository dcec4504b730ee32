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
"""The kind of copies from one GPU to another (PtoP)."""

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
"""Types of overhead that the profiler causes: flushing its buffers, instrumenting kernels, making
and ending its resources. The program causes others, too: compiling and loading code (2, 6, 7), or
waiting for room in a command buffer (8). Types 0 and 1 are unknown."""

MARK: Final = 34
RANGES: Final = (59, 60, 70, 71)
STACKED: Final = (59, 70)
"""Types of NVTX events: marks, ranges, and those ranges of a thread that nest as calls do."""

DRIVER: Final = 1
"""The event class of calls of the CUDA driver API."""
WARNING, ERROR = 2, 3
ALLOCATED, FREED = 0, 1
THREAD_BITS: Final = 24
_MASK: Final = (1 << THREAD_BITS) - 1
NO_STREAM: Final = (1 << 32) - 1
"""The largest unsigned number of 32 bits, which means: no stream."""


def processes_of(ids: IntArray) -> IntArray:
    """Return the process keys of global ids: the bits above the thread's. Process 0 is ABSENT."""
    keys = ids >> THREAD_BITS
    return np.where((ids == ABSENT) | (keys & _MASK == 0), ABSENT, keys)


def threads_of(ids: IntArray) -> IntArray:
    """Return the operating system's thread numbers of global ids."""
    return np.where(ids == ABSENT, ABSENT, ids & _MASK)


def pid_of(process: int) -> int | None:
    """Return the pid of a process with this key; None if it is unknown."""
    return None if process == ABSENT else process & _MASK


def present(values: IntArray) -> IntArray:
    """Return ids, with ABSENT for numbers that mean "no id": <= 0, or the largest of 32 bits."""
    is_id = (values > 0) & (values != NO_STREAM)
    return values if is_id.all() else np.where(is_id, values, ABSENT)


def streams_of(values: IntArray) -> IntArray:
    """Return stream numbers, with ABSENT for numbers that mean "no stream"."""
    is_stream = (values >= 0) & (values < NO_STREAM)
    return values if is_stream.all() else np.where(is_stream, values, ABSENT)
