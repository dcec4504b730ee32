"""Rows for intervals that overlap, so that those of a row do not: how deep each one is drawn."""

from __future__ import annotations

import numpy as np

from traceflops.columns import IntArray

_END, _INSTANT, _START = range(3)
"""What comes first at an instant: ends, then what begins and ends there, then starts."""


def stacked(start_ns: IntArray, end_ns: IntArray) -> IntArray:
    """Return the row of each interval; they are in the order of their starts.

    Of those that start together the ones without length come first, then the longest. Intervals
    are [start, end). Those of a row do not overlap, and there are no more rows than intervals open
    at once. Where intervals nest, the row is the depth.
    """
    if len(start_ns) == 0 or (start_ns[1:] >= np.maximum.accumulate(end_ns)[:-1]).all():
        return np.zeros(len(start_ns), dtype=np.int64)
    interval, sign = _edges(start_ns, end_ns)
    # How many are open on the upper side of each edge: after a start, before an end.
    level = np.cumsum(sign) + (sign < 0)
    starts = sign > 0
    begun, ended = (np.empty(len(start_ns), dtype=np.int64) for _ in range(2))
    begun[interval[starts]], ended[interval[~starts]] = level[starts], level[~starts]
    if (begun == ended).all():
        return begun - 1
    return _inherited(interval, sign, level, begun)


def _edges(start_ns: IntArray, end_ns: IntArray) -> tuple[IntArray, IntArray]:
    """Return the starts (1) and ends (-1) in order of time, and the interval of each.

    Of several that end together the last one to start ends first, as nested ones do.
    """
    rows = np.arange(len(start_ns))
    instant = start_ns == end_ns
    lasting, instants = rows[~instant], rows[instant]
    interval = np.concatenate([lasting[::-1], np.repeat(instants, 2), lasting])
    times = [end_ns[lasting[::-1]], np.repeat(start_ns[instants], 2), start_ns[lasting]]
    kind = np.repeat([_END, _INSTANT, _START], [len(one) for one in times])
    sign = np.concatenate(
        [
            np.full(len(lasting), -1),
            np.tile([1, -1], len(instants)),
            np.full(len(lasting), 1),
        ]
    )
    since = np.concatenate(times) - int(start_ns[0])
    order = np.argsort(since * 3 + kind, kind="stable")
    return interval[order], sign[order]


def _inherited(interval: IntArray, sign: IntArray, level: IntArray, begun: IntArray) -> IntArray:
    """Return rows where some interval outlives the one it began in.

    What raises the number of open intervals to k takes over the row of what lowered it from k
    before: the two follow one another. The first to reach k since nothing was open gets row k - 1.
    """
    bundle = np.cumsum((sign > 0) & (level == 1))
    order = np.argsort(level, kind="stable")
    after, before = order[1:], order[:-1]
    takes = (sign[after] > 0) & (level[after] == level[before]) & (bundle[after] == bundle[before])
    heir = np.arange(len(begun))
    heir[interval[after[takes]]] = interval[before[takes]]
    while True:
        further = heir[heir]
        if np.array_equal(further, heir):
            return begun[heir] - 1
        heir = further
