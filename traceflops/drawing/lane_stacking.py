"""Rows for intervals that overlap, so that those of a row do not: how deep each one is drawn."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from traceflops.table.columns import IntArray, WholeArray
from traceflops.table.grouping import distinct, groups

_AT_ONCE: Final = 1 << 17
MOST_LANES: Final = 64
"""What finds no room on so many lanes is on the last one."""
_END, _INSTANT, _START = range(3)
"""What comes first at an instant: ends, then what begins and ends there, then starts."""


def stacked(start_ns: IntArray, end_ns: IntArray) -> WholeArray:
    """Return the row (from 0) of each interval, so that those in one row do not overlap.

    Intervals are [start, end), sorted by start; of those that start together, the ones without
    length come first, then the longest. There are no more rows than intervals open at once. Where
    intervals nest, the row is the depth.
    """
    row = np.zeros(len(start_ns), dtype=np.int32)
    # Work on parts, to limit temporary memory: a part may begin when no earlier interval is open.
    reach = np.maximum.accumulate(end_ns)
    free = np.append(True, start_ns[1:] >= reach[:-1])
    del reach
    begins = np.flatnonzero(free)
    wanted = np.searchsorted(begins, np.arange(0, len(start_ns), _AT_ONCE))
    edges = distinct(np.append(begins[wanted[wanted < len(begins)]], len(start_ns)))
    for low, high in pairwise(edges.tolist()):
        if not free[low:high].all():  # else none overlap: all are in row 0
            row[low:high] = _stacked(start_ns[low:high], end_ns[low:high])
    return row


def _stacked(start_ns: IntArray, end_ns: IntArray) -> IntArray:
    """Return the row of each interval of a part."""
    # The starts (1) and ends (-1) in order of time, and the interval of each. Of several that end
    # together, the last one to start ends first, as nested ones do. Intervals without length
    # (instants) have both at once.
    is_instant = start_ns == end_ns
    lasting, instants = np.flatnonzero(~is_instant), np.flatnonzero(is_instant)
    interval = np.concatenate([lasting[::-1], np.repeat(instants, 2), lasting])
    times = [end_ns[lasting[::-1]], np.repeat(start_ns[instants], 2), start_ns[lasting]]
    kind = np.repeat([_END, _INSTANT, _START], [len(time) for time in times])
    sign = np.repeat([-1, 0, 1], [len(time) for time in times])
    sign[sign == 0] = np.tile([1, -1], len(instants))
    since = np.concatenate(times) - int(start_ns[0])
    # At one time, ends (kind 0) come before instants (1), and these before starts (2).
    order = np.argsort(since * 3 + kind, kind="stable")
    interval, sign = interval[order], sign[order]
    # How many are open on the upper side of each edge: after a start, before an end.
    level = np.cumsum(sign) + (sign < 0)
    starts = sign > 0
    begun, ended = (np.empty(len(start_ns), dtype=np.int64) for _ in range(2))
    begun[interval[starts]], ended[interval[~starts]] = level[starts], level[~starts]
    if (begun == ended).all():
        return begun - 1
    # Some interval outlives the one it began in. An interval that raises the number of open ones to
    # k takes over the row of the one that last lowered it from k, its `heir`: that has just ended.
    # The first to reach k since nothing was open (in its bundle) gets row k - 1.
    bundle = np.cumsum(starts & (level == 1))
    order = np.argsort(level, kind="stable")
    after, before = order[1:], order[:-1]
    takes = starts[after] & (level[after] == level[before]) & (bundle[after] == bundle[before])
    heir = np.arange(len(begun))
    heir[interval[after[takes]]] = interval[before[takes]]
    while True:  # follow the chain of rows taken over to its first interval
        further = heir[heir]
        if np.array_equal(further, heir):
            return begun[heir] - 1
        heir = further


def lanes_of(track: IntArray, start_ns: IntArray, end_ns: IntArray, *, nests: bool) -> IntArray:
    """Return the lane of each row within its track: the first one that has room.

    On a lane, every two rows are apart or one holds the other: viewers draw a lane as a stack, and
    would lose overlaps without nesting. Only with `nests` may rows lie inside others.
    """
    lanes = np.zeros(len(track), dtype=np.int64)
    for _, rows in groups(track):
        # Of equal starts the longest first.
        order = rows[np.lexsort((-end_ns[rows], start_ns[rows]))]
        low, high = start_ns[order], end_ns[order]
        if not nests and (low[1:] >= np.maximum.accumulate(high)[:-1]).all():
            continue  # none overlap: all are on lane 0
        open_ends: list[list[int]] = []  # per lane, the ends of what is open there, the last first
        chosen = []
        for start, end in zip(low.tolist(), high.tolist(), strict=True):
            # A new lane where no open one has room; of too many, the last one takes the rest.
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
