"""Rows of time on lanes, so that on each lane every two of them are apart or one holds the other.

Viewers of timelines draw a lane as a stack: what overlaps without nesting would be lost there.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from traceflops.table.columns import IntArray
from traceflops.table.grouping import groups

MOST_LANES: Final = 64
"""What finds no room on so many lanes is on the last one."""


def lanes(track: IntArray, start_ns: IntArray, end_ns: IntArray, *, nests: bool) -> IntArray:
    """Return the lane of each row within its track; the first that has room.

    With `nests` rows may lie inside others on a lane, else all of a lane follow one another.
    """
    found = np.zeros(len(track), dtype=np.int64)
    for _, rows in groups(track):
        order = rows[np.lexsort((-end_ns[rows], start_ns[rows]))]
        low, high = start_ns[order], end_ns[order]
        if not nests and (low[1:] >= np.maximum.accumulate(high)[:-1]).all():
            continue
        found[order] = _stacked(low.tolist(), high.tolist(), nests=nests)
    return found


def _stacked(start: list[int], end: list[int], *, nests: bool) -> IntArray:
    """Return the lanes of rows in the order of their starts, of equal starts the longest first."""
    open_ends: list[list[int]] = []
    found = np.zeros(len(start), dtype=np.int64)
    for row, (low, high) in enumerate(zip(start, end, strict=True)):
        place = _with_room(open_ends, low, high, nests=nests)
        if place == len(open_ends):
            open_ends.append([])
        open_ends[place].append(high)
        found[row] = place
    return found


def _with_room(open_ends: list[list[int]], low: int, high: int, *, nests: bool) -> int:
    """Return the first lane with room; each is the ends of what is open there, the last first."""
    for place, stack in enumerate(open_ends):
        while stack and stack[-1] <= low:
            stack.pop()
        if not stack or (nests and high <= stack[-1]):
            return place
    return min(len(open_ends), MOST_LANES - 1)
