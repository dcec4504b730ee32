"""Which interval encloses an instant, for intervals that may nest and overlap in any way."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceflops.columns import IntArray


class LastAbove:
    """Finds the last position up to p whose value is above t.

    A tree of maxima over the values: O(n) to build, O(log n) a question, all questions of a call
    answered together, whatever the shape of the data.
    """

    def __init__(self, values: IntArray) -> None:
        self._levels = [values]
        while len(self._levels[-1]) > 1:
            below = self._levels[-1]
            even = below[: len(below) // 2 * 2].reshape(-1, 2).max(axis=1)
            rest = below[len(below) // 2 * 2 :]
            self._levels.append(np.concatenate([even, rest]))

    def find(self, upto: IntArray, threshold: IntArray) -> IntArray:
        """Return, for each question, the last position <= upto with value > threshold, or -1."""
        node = np.full(len(upto), -1, dtype=np.int64)
        height = np.zeros(len(upto), dtype=np.int64)
        edge = upto + 1
        for level, maxima in enumerate(self._levels):
            # An odd edge leaves one node on its left that no later, higher level looks at alone.
            asks = np.flatnonzero((node < 0) & (edge % 2 == 1))
            last = edge[asks] - 1
            hit = maxima[last] > threshold[asks]
            node[asks[hit]] = last[hit]
            height[asks[hit]] = level
            edge = edge // 2
        return self._descend(node, height, threshold)

    def _descend(self, node: IntArray, height: IntArray, threshold: IntArray) -> IntArray:
        for level in range(len(self._levels) - 1, 0, -1):
            down = np.flatnonzero((height == level) & (node >= 0))
            if len(down) == 0:
                continue
            below = self._levels[level - 1]
            right = node[down] * 2 + 1
            exists = right < len(below)
            takes_right = exists & (below[np.where(exists, right, 0)] > threshold[down])
            node[down] = np.where(takes_right, right, right - 1)
            height[down] = level - 1
        return node


def innermost(
    group: IntArray, start_ns: IntArray, end_ns: IntArray, at_group: IntArray, at_ns: IntArray
) -> IntArray:
    """Return, for each instant, the row of the latest-started interval around it, or -1.

    Intervals are [start, end) and count only for instants of their own group (a thread). Of
    intervals that start together the shorter one is the inner one.
    """
    found = np.full(len(at_ns), -1, dtype=np.int64)
    for rows, asks in _by_group(group, at_group):
        order = rows[np.lexsort((-end_ns[rows], start_ns[rows]))]
        upto = np.searchsorted(start_ns[order], at_ns[asks], side="right") - 1
        place = LastAbove(end_ns[order]).find(upto, at_ns[asks])
        found[asks] = np.where(place >= 0, order[np.maximum(place, 0)], -1)
    return found


def parents(group: IntArray, start_ns: IntArray, end_ns: IntArray) -> IntArray:
    """Return, for each interval, the row of the innermost one in which it starts, or -1.

    A child may end a little after its parent, as profilers write it.
    """
    found = np.full(len(start_ns), -1, dtype=np.int64)
    for rows, _ in _by_group(group, group):
        order = rows[np.lexsort((-end_ns[rows], start_ns[rows]))]
        before = np.arange(len(order), dtype=np.int64) - 1
        place = LastAbove(end_ns[order]).find(before, start_ns[order])
        found[order] = np.where(place >= 0, order[np.maximum(place, 0)], -1)
    return found


def _by_group(group: IntArray, at_group: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield, for each group that has both, the rows of its intervals and of its questions."""
    order = np.argsort(group, kind="stable")
    asks = np.argsort(at_group, kind="stable")
    keys, starts = np.unique(group[order], return_index=True)
    ends = np.append(starts, len(order))[1:]
    first = np.searchsorted(at_group[asks], keys, side="left")
    last = np.searchsorted(at_group[asks], keys, side="right")
    for low, high, ask_low, ask_high in zip(starts, ends, first, last, strict=True):
        if ask_high > ask_low:
            yield order[low:high], asks[ask_low:ask_high]
