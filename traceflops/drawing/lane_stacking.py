"""Distributes overlapping intervals over rows, so that intervals in the same row do not overlap."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from traceflops.table.columns import IntArray, WholeArray
from traceflops.table.grouping import distinct, groups

_AT_ONCE: Final = 1 << 17
MOST_LANES: Final = 64
"""Intervals that find no room on so many lanes are on the last one."""
_END, _INSTANT, _START = range(3)
"""Kinds of edges, in their order at the same time; an instant is an interval without length."""


def stacked(start_ns: IntArray, end_ns: IntArray) -> WholeArray:
    """Return the row (from 0) of each interval, so that intervals in a row do not overlap.

    Intervals are [start, end), sorted by start; of those that start together, instants (without
    length) come first, then the longest. There are no more rows than intervals are open at once. If
    all intervals nest, the row is the depth.
    """
    row = np.zeros(len(start_ns), dtype=np.int32)
    # Work on chunks, to limit temporary memory. A chunk begins where no earlier interval is open.
    latest_end = np.maximum.accumulate(end_ns)
    can_begin = np.append(True, start_ns[1:] >= latest_end[:-1])
    del latest_end
    begins = np.flatnonzero(can_begin)
    chosen = np.searchsorted(begins, np.arange(0, len(start_ns), _AT_ONCE))
    edges = distinct(np.append(begins[chosen[chosen < len(begins)]], len(start_ns)))
    for low, high in pairwise(edges.tolist()):
        if not can_begin[low:high].all():  # else no intervals overlap: all are in row 0
            row[low:high] = _stacked(start_ns[low:high], end_ns[low:high])
    return row


def _stacked(start_ns: IntArray, end_ns: IntArray) -> IntArray:
    """Return the row of each interval of a chunk."""
    # List all edges: starts (sign 1) and ends (-1), with the interval of each. Of intervals that
    # end together, the last one to start ends first, as if nested. An instant has both edges.
    is_instant = start_ns == end_ns
    lasting, instants = np.flatnonzero(~is_instant), np.flatnonzero(is_instant)
    interval = np.concatenate([lasting[::-1], np.repeat(instants, 2), lasting])
    times = [end_ns[lasting[::-1]], np.repeat(start_ns[instants], 2), start_ns[lasting]]
    kind = np.repeat([_END, _INSTANT, _START], [len(time) for time in times])
    sign = np.concatenate(
        [np.full(len(lasting), -1), np.tile([1, -1], len(instants)), np.full(len(lasting), 1)]
    )
    since = np.concatenate(times) - int(start_ns[0])
    order = np.argsort(since * 3 + kind, kind="stable")  # by time, then by kind (0 to 2)
    interval, sign = interval[order], sign[order]

    # The level of an edge is the number of open intervals after a start, or before an end.
    level = np.cumsum(sign) + (sign < 0)
    is_start = sign > 0
    start_level, end_level = (np.empty(len(start_ns), dtype=np.int64) for _ in range(2))
    start_level[interval[is_start]] = level[is_start]
    end_level[interval[~is_start]] = level[~is_start]
    if (start_level == end_level).all():  # all intervals nest
        return start_level - 1

    # Otherwise, an interval that starts at level k takes over the row of the one that last ended at
    # level k, its predecessor. If there is none since nothing was open (in its bundle), its row is
    # k - 1.
    bundle = np.cumsum(is_start & (level == 1))
    by_level = np.argsort(level, kind="stable")
    edge, edge_before = by_level[1:], by_level[:-1]
    is_same_level = level[edge] == level[edge_before]
    is_same_bundle = bundle[edge] == bundle[edge_before]
    takes_over = is_start[edge] & is_same_level & is_same_bundle
    predecessor = np.arange(len(start_level))
    predecessor[interval[edge[takes_over]]] = interval[edge_before[takes_over]]
    while True:  # follow the chain of predecessors to its first interval
        further = predecessor[predecessor]
        if np.array_equal(further, predecessor):
            return start_level[predecessor] - 1
        predecessor = further


def lanes_of(track: IntArray, start_ns: IntArray, end_ns: IntArray, *, nests: bool) -> IntArray:
    """Return the lane of each row within its track: the first lane with room.

    Rows on the same lane do not overlap, or with `nests`, one contains the other: viewers draw a
    lane as a stack of calls and lose other overlaps.
    """
    lanes = np.zeros(len(track), dtype=np.int64)
    for _, rows in groups(track):
        # By start, and of equal starts the longest first.
        order = rows[np.lexsort((-end_ns[rows], start_ns[rows]))]
        starts, ends = start_ns[order], end_ns[order]
        if not nests and (starts[1:] >= np.maximum.accumulate(ends)[:-1]).all():
            continue  # no rows overlap: all are on lane 0
        open_ends: list[list[int]] = []  # per lane: the ends of open rows, the innermost last
        chosen = []
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            # Without room on any lane, open a new one; if there are too many, take the last.
            lane = min(len(open_ends), MOST_LANES - 1)
            for number, stack in enumerate(open_ends):
                while stack and stack[-1] <= start:
                    stack.pop()
                if not stack or (nests and end <= stack[-1]):
                    lane = number
                    break
            if lane == len(open_ends):
                open_ends.append([])
            open_ends[lane].append(end)
            chosen.append(lane)
        lanes[order] = chosen
    return lanes
