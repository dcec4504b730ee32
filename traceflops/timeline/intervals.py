"""Interval algebra on int64 nanoseconds.

An `Intervals` is a set of instants: half-open ranges [start, end), sorted, disjoint, not touching
and never empty. Every operation is vectorised and costs O(n log n) at most.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.table.columns import BoolArray, IntArray
from traceflops.table.grouping import differ_from_before, in_order, runs, slices


class Intervals(Struct, frozen=True, eq=False):
    """A set of instants as sorted, disjoint, non-touching [start_ns, end_ns) ranges."""

    start_ns: IntArray
    end_ns: IntArray

    @classmethod
    def empty(cls) -> Intervals:
        """Return the set without any instant."""
        return cls(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))

    @classmethod
    def of(cls, start_ns: IntArray, end_ns: IntArray) -> Intervals:
        """Return the union of arbitrary ranges; those with end <= start are empty."""
        start, end = start_ns, end_ns
        has_length = end > start
        if not has_length.all():
            start, end = start[has_length], end[has_length]
        if len(start) < 2:  # a frequent case if there are many devices
            return cls(start, end)
        if (start[1:] < start[:-1]).any():
            order = np.argsort(start, kind="stable")
            start, end = start[order], end[order]
        if (start[1:] > end[:-1]).all():
            return cls(start, end)  # they neither overlap nor touch
        # A range of the union begins where a start lies beyond all ends before it.
        # [0, 9) [2, 4) [12, 15): reach [9 9 15], opens [1 0 1], first [0 2], last [1 2].
        reach = np.maximum.accumulate(end)
        opens = np.ones(len(start), dtype=np.bool_)
        opens[1:] = start[1:] > reach[:-1]
        first = np.flatnonzero(opens)
        last = np.append(first[1:] - 1, len(start) - 1)
        return cls(start[first], reach[last])

    @classmethod
    def one(cls, start_ns: int, end_ns: int) -> Intervals:
        """Return the single range [start_ns, end_ns)."""
        return cls.of(np.array([start_ns], dtype=np.int64), np.array([end_ns], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.start_ns)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Intervals):
            return NotImplemented
        starts_agree = np.array_equal(self.start_ns, other.start_ns)
        return starts_agree and np.array_equal(self.end_ns, other.end_ns)

    __hash__ = None  # type: ignore[assignment]

    @property
    def length_ns(self) -> int:
        """Return how many nanoseconds the set holds."""
        return int((self.end_ns - self.start_ns).sum())

    def union(self, *others: Intervals) -> Intervals:
        """Return the instants that are in any of the sets."""
        sets = (self, *others)
        return Intervals.of(
            np.concatenate([s.start_ns for s in sets]), np.concatenate([s.end_ns for s in sets])
        )

    def moved(self, by_ns: int) -> Intervals:
        """Return the set shifted by `by_ns`."""
        return Intervals(self.start_ns + by_ns, self.end_ns + by_ns)

    def within(self, start_ns: int, end_ns: int) -> Intervals:
        """Return the instants that lie in [start_ns, end_ns)."""
        return Intervals.of(
            np.clip(self.start_ns, start_ns, end_ns), np.clip(self.end_ns, start_ns, end_ns)
        )

    def complement(self, start_ns: int, end_ns: int) -> Intervals:
        """Return the instants of [start_ns, end_ns) that are not in the set."""
        inside = self.within(start_ns, end_ns)
        starts = np.concatenate([[np.int64(start_ns)], inside.end_ns])
        ends = np.concatenate([inside.start_ns, [np.int64(end_ns)]])
        return Intervals.of(starts, ends)

    def intersect(self, other: Intervals) -> Intervals:
        """Return the instants that are in both sets."""
        if len(self) == 0 or len(other) == 0:
            return Intervals.empty()
        # Both are disjoint and sorted, so range i of self meets a run of ranges of other.
        # [0, 5) and [8, 20) meet of [4, 9) [10, 11): first [0 0], stop [1 2], own [0 1 1].
        first = np.searchsorted(other.end_ns, self.start_ns, side="right")
        stop = np.searchsorted(other.start_ns, self.end_ns, side="left")
        others, own = runs(first, stop)
        return Intervals(
            np.maximum(self.start_ns[own], other.start_ns[others]),
            np.minimum(self.end_ns[own], other.end_ns[others]),
        )

    def subtract(self, other: Intervals) -> Intervals:
        """Return the instants that are in this set and not in the other."""
        if len(self) == 0 or len(other) == 0:
            return self
        low = int(min(self.start_ns[0], other.start_ns[0]))
        high = int(max(self.end_ns[-1], other.end_ns[-1]))
        return self.intersect(other.complement(low, high))

    def covered_before(self, time_ns: IntArray) -> IntArray:
        """Return, per time, how many nanoseconds of the set lie before it."""
        if len(self) == 0:
            return np.zeros(len(time_ns), dtype=np.int64)
        lengths = self.end_ns - self.start_ns
        before = np.cumsum(lengths) - lengths  # ns of the ranges before each range
        covered = np.empty(len(time_ns), dtype=np.int64)
        for part in slices(len(time_ns)):
            # The last range that begins by the time. Before the first range the clip returns 0.
            times = time_ns[part]
            last = np.maximum(np.searchsorted(self.start_ns, times, side="right") - 1, 0)
            inside = np.clip(times - self.start_ns[last], 0, lengths[last])
            covered[part] = before[last] + inside
        return covered

    def contains(self, time_ns: IntArray) -> BoolArray:
        """Return, per time, whether it lies in the set."""
        if len(self) == 0:
            return np.zeros(len(time_ns), dtype=np.bool_)
        index = np.searchsorted(self.start_ns, time_ns, side="right") - 1
        return (index >= 0) & (time_ns < self.end_ns[np.maximum(index, 0)])

    def length_within(self, start_ns: IntArray, end_ns: IntArray) -> IntArray:
        """Return, per window [start, end), how many nanoseconds of the set lie in it."""
        return self.covered_before(end_ns) - self.covered_before(start_ns)


NEVER: Final = int(np.iinfo(np.int64).min)
ENDLESS: Final = int(np.iinfo(np.int64).max)
"""The times before and after all others, in ns; they stand for a time that is missing."""


def latest_end_before(
    group: IntArray, start_ns: IntArray, end_ns: IntArray, *, strictly: bool = False
) -> IntArray:
    """Return, per interval, the latest end of all that start before it in its group, or NEVER.

    Intervals that start together: without `strictly`, those with a lower index count as before it,
    with it none does. [3, 9) [3, 5): NEVER and 9, or `strictly` NEVER and NEVER.
    """
    order = in_order(group, start_ns)
    groups = group[order]
    latest = _latest_so_far(groups, end_ns[order])
    same_group = groups[1:] == groups[:-1]
    before = np.full(len(order), NEVER, dtype=np.int64)
    np.copyto(before[1:], latest[:-1], where=same_group)
    if strictly:  # intervals that start together all get the value of the first of them
        starts = start_ns[order]
        # Starts [3 5 5 7]: tied [0 0 1 0] to the one before, first_of_tie [0 1 1 3].
        tied = np.append(False, same_group & (starts[1:] == starts[:-1]))[: len(order)]
        first_of_tie = np.maximum.accumulate(np.where(tied, 0, np.arange(len(order))))
        before = before[first_of_tie]
    result = np.empty(len(order), dtype=np.int64)
    result[order] = before
    return result


def _latest_so_far(groups: IntArray, end_ns: IntArray) -> IntArray:
    """Return, per interval, the latest end of its group up to it; rows are sorted by group."""
    shift = np.cumsum(differ_from_before(groups)) - 1  # the number of the group
    if not shift.any():
        return np.maximum.accumulate(end_ns)
    # Groups are shifted apart by more than any end, so that one running maximum serves all of them.
    # Groups [0 0 1 1], ends [9 5 2 4]: [7 3 8 10] with shift [-2 -2 6 6], maximum [7 7 8 10], less
    # the shift [9 9 2 4].
    low_ns, high_ns = int(end_ns.min()), int(end_ns.max())
    if (int(shift[-1]) + 1) * (high_ns - low_ns + 1) <= ENDLESS:
        shift *= high_ns - low_ns + 1
        shift -= low_ns
        latest = end_ns + shift
        np.maximum.accumulate(latest, out=latest)
        latest -= shift
        return latest
    ends, rank = np.unique(end_ns, return_inverse=True)  # ranks stand for the ends
    shift *= len(ends)
    return np.asarray(ends[np.maximum.accumulate(rank + shift) - shift])
