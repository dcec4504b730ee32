"""Which thread of the host a line of XPlane is."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from traceflops.parsers.xla.planes import Plane
from traceflops.table import IntArray, groups, innermost

_LAUNCHES: Final = re.compile(r"Host Threads/")
"""Lines of the tracer for ROCm, which counts threads otherwise than the lines of the program do."""
_ENDLESS: Final = np.iinfo(np.int64).max
_MOST_LINES: Final = 1_024
"""Every line is compared with every call; a process has fewer threads than that."""


def threads_of(plane: Plane) -> IntArray:
    """Return the thread of each line: its number, or for launches on ROCm that of another line.

    That is the line whose innermost events are most closely around most of the calls.
    """
    thread = np.array([line.id for line in plane.lines], np.int64)
    is_call = np.array([_LAUNCHES.match(line.name) is not None for line in plane.lines], np.bool_)
    if is_call.all() or not is_call.any() or len(thread) > _MOST_LINES:
        return thread
    lost = plane.lost
    pieces = [(rows["line"], rows["start"], rows["end"]) for rows, _ in plane.events()]
    plane.lost = lost  # all is read again, and counted then
    line, start, end = map(np.concatenate, zip(*pieces, strict=True))
    calls = np.flatnonzero(is_call[line] & (start >= 0))
    others = np.flatnonzero(~is_call[line] & (start >= 0) & (end > start))
    shortest, around = np.full(len(calls), _ENDLESS), np.full(len(calls), -1, np.int64)
    for other, rows in groups(line[others]):
        mine = others[rows]
        length = _around(start[mine], end[mine], start[calls], end[calls])
        nearer = length < shortest
        shortest[nearer], around[nearer] = length[nearer], other
    for one, rows in groups(line[calls]):
        votes = around[rows]
        count = np.bincount(votes[votes >= 0], minlength=1)
        if 2 * count.max() > len(votes):
            thread[one] = thread[count.argmax()]
    return thread


def _around(start: IntArray, end: IntArray, call: IntArray, call_end: IntArray) -> IntArray:
    """Return how long the innermost event around each call is, endless where none is."""
    row = innermost(np.zeros_like(start), start, end, np.zeros_like(call), call)
    holds = (row >= 0) & (end[row] >= call_end)
    return np.where(holds, end[row] - start[row], _ENDLESS)
