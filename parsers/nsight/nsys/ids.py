"""The 64-bit ids of Nsight Systems: hardware, virtual machine, process and thread in one number."""

from __future__ import annotations

from typing import Final

import numpy as np

from traceflops.table import ABSENT, IntArray

_THREAD_BITS: Final = 24
_MASK: Final = (1 << 24) - 1
NO_STREAM: Final = (1 << 32) - 1
"""How an unsigned number of 32 bits says that there is none."""


def processes_of(ids: IntArray) -> IntArray:
    """Return what processes are told apart by: all of the id above the thread.

    An id with 0 for the operating system's number names none: no process has that number.
    """
    keys = ids >> _THREAD_BITS
    return np.where((ids == ABSENT) | (keys & _MASK == 0), ABSENT, keys)


def threads_of(ids: IntArray) -> IntArray:
    """Return the operating system's numbers of threads."""
    return np.where(ids == ABSENT, ABSENT, ids & _MASK)


def pid_of(process: int) -> int:
    """Return the operating system's number of a process."""
    return process & _MASK


def present(values: IntArray) -> IntArray:
    """Return numbers of which 0 and below and the largest of 32 bits stand for none."""
    known = (values > 0) & (values != NO_STREAM)
    return values if known.all() else np.where(known, values, ABSENT)


def streams_of(values: IntArray) -> IntArray:
    """Return the numbers of streams; what is none, or of no stream, is absent."""
    known = (values >= 0) & (values < NO_STREAM)
    return values if known.all() else np.where(known, values, ABSENT)
