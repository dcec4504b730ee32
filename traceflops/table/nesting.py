"""The intervals that enclose instants, and the forest of nested ops.

Intervals may nest and overlap in any way. The parent of an op is the innermost op of its thread in
which it starts. Sorted by start, the ops below an op are one contiguous run, so every question
about the forest is a search or a running sum, whatever the depth: O(n log n) for all ops together.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from traceflops.table import grouping
from traceflops.table.columns import ABSENT, BoolArray, IntArray, numbers

T = TypeVar("T", bound=np.signedinteger)
_MANY = 4  # with more instants per interval only the edges of the intervals are searched


class LastAbove:
    """Finds the last position up to p whose value is above t, for many pairs (p, t) at once.

    It is a tree of maxima over the values: level 0 are the values, each level above has the maxima
    of pairs of the one below. O(n) to build, O(log n) per pair.
    """

    def __init__(self, values: IntArray) -> None:
        """Build the tree; `_reach` has, by position, the largest value there or before."""
        self._reach = np.maximum.accumulate(values)
        self._levels = [values]
        while len(self._levels[-1]) > 1:
            below = self._levels[-1]
            even = np.maximum(below[:-1:2], below[1::2])
            rest = below[len(below) // 2 * 2 :]  # the last one, if it has no partner
            self._levels.append(np.concatenate([even, rest]))

    def find(self, upto: IntArray, threshold: IntArray) -> IntArray:
        """Return, per pair, the last position <= upto with a value > threshold, or -1."""
        result = np.full(len(upto), -1, dtype=np.int64)
        for part in grouping.slices(len(upto) if len(self._reach) else 0):
            # For most pairs it is the position itself, or no value before it is large enough.
            position, least = upto[part], threshold[part]
            index = np.maximum(position, 0)
            last = np.where(self._levels[0][index] > least, position, -1)
            unanswered = (last < 0) & (position >= 0) & (self._reach[index] > least)
            rows = np.flatnonzero(unanswered)
            last[rows] = self._search(position[rows], least[rows])
            result[part] = last
        return result

    def _search(self, upto: IntArray, threshold: IntArray) -> IntArray:
        """Return the position of `find`, for pairs that are known to have one before `upto`."""
        # Up: the last subtree that ends at or before `upto` and has a value above the threshold.
        # `searching` are the pairs without such a subtree so far, `edge` the node after the range.
        node, height = np.zeros((2, len(upto)), dtype=np.int64)
        searching, edge = np.arange(len(upto)), upto + 1
        for level, maxima in enumerate(self._levels):
            # If the edge is odd, the node to its left is not a whole subtree of a higher level.
            asks = np.flatnonzero(edge % 2)
            hit = asks[maxima[edge[asks] - 1] > threshold[searching[asks]]]
            node[searching[hit]], height[searching[hit]] = edge[hit] - 1, level
            edge[hit] = 0
            searching, edge = searching[edge > 1], edge[edge > 1] // 2
        # Down: to the right half of each node if it has such a value, else to the left half.
        order = np.argsort(-height, kind="stable")
        above = np.searchsorted(-height[order], -np.arange(len(self._levels)), side="right")
        for level in range(len(self._levels) - 1, 0, -1):
            down = order[: above[level]]
            below = self._levels[level - 1]
            right = node[down] * 2 + 1
            exists = right < len(below)
            takes_right = exists & (below[np.where(exists, right, 0)] > threshold[down])
            node[down] = np.where(takes_right, right, right - 1)
        return node


def innermost(
    group: IntArray, start_ns: IntArray, end_ns: IntArray, at_group: IntArray, at_ns: IntArray
) -> IntArray:
    """Return the row of the interval around each instant that started last, or -1.

    Intervals are [start, end), one per row of the first three arrays. They enclose only instants of
    their group (a thread). If several start together, the shortest is the innermost.
    """
    # With many instants it is quicker to find the innermost interval at every edge once.
    if len(at_ns) > _MANY * len(start_ns):
        return StackTops.of(group, start_ns, end_ns).at(at_group, at_ns)
    order = by_start(group, start_ns, end_ns)
    upto = _last_started(group, start_ns, order, at_group, at_ns)
    return _innermost(group, order, end_ns, upto, at_group, at_ns)


def _innermost(
    group: IntArray,
    order: IntArray,
    end_ns: IntArray,
    upto: IntArray,
    at_group: IntArray,
    at_ns: IntArray,
) -> IntArray:
    """Return `innermost` of intervals in an `order` by group and start, in slices to save memory.

    `upto` is, per instant, the last position in the order that has started.
    """
    enclosing = _Enclosing(order, group, end_ns)
    inner = np.empty(len(upto), dtype=np.int64)
    for part in grouping.slices(len(upto)):
        inner[part] = enclosing.last(upto[part], at_group[part], at_ns[part])
    return inner


def by_start(group: IntArray, start_ns: IntArray, end_ns: IntArray) -> IntArray:
    """Return the order of intervals by group and start; of equal starts the longer comes first."""
    return grouping.in_order(group, start_ns, -end_ns)


class StackTops(Struct, frozen=True):
    """The innermost interval of each group (a thread) at all times: it changes only at edges.

    Rows are the edges (starts and ends) of the intervals, sorted by `group` and `at_ns`. `row` is
    the interval that is the innermost from there to the next edge of the group, or -1; of equal
    edges that of the last one counts.
    """

    group: IntArray
    at_ns: IntArray
    row: IntArray

    @classmethod
    def of(cls, group: IntArray, start_ns: IntArray, end_ns: IntArray) -> StackTops:
        """Return the stack tops of intervals [start, end), one per row."""
        groups, edges = np.tile(group, 2), np.append(start_ns, end_ns)
        order = grouping.in_order(groups, edges)
        groups, edges = groups[order], edges[order]
        # Up to an edge as many intervals of the order of starts have begun as there are starts.
        upto = np.cumsum(order < len(group)) - 1
        starts = by_start(group, start_ns, end_ns)
        return cls(groups, edges, _innermost(group, starts, end_ns, upto, groups, edges))

    def at(self, group: IntArray, at_ns: IntArray) -> IntArray:
        """Return the innermost interval of a group at each instant, or -1."""
        edge = grouping.places_in_groups(self.group, self.at_ns, group, at_ns) - 1
        return np.where(taken(self.group, edge) == group, taken(self.row, edge), -1)

    def cut(
        self, group: IntArray, start_ns: IntArray, end_ns: IntArray
    ) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Cut spans of time, each of one group, at the edges of the intervals.

        Returns, per piece in the order of spans and times, the number of its span, its start, its
        end and the innermost interval, or -1.
        """
        # The edges inside each span, and one before them for the piece that begins with the span.
        first = grouping.places_in_groups(self.group, self.at_ns, group, start_ns)
        stop = grouping.places_in_groups(self.group, self.at_ns, group, end_ns)
        edge, span = grouping.runs(first - 1, stop)
        opens = grouping.differ_from_before(span)
        closes = np.append(opens[1:], True)[: len(span)]
        start = np.where(opens, start_ns[span], taken(self.at_ns, edge))
        end = np.where(closes, end_ns[span], np.roll(start, -1))  # the next piece's start
        has_length = end > start
        span, edge = span[has_length], edge[has_length]
        is_of_group = taken(self.group, edge) == group[span]
        return (
            span,
            start[has_length],
            end[has_length],
            np.where(is_of_group, taken(self.row, edge), -1),
        )


def innermost_pieces(
    group: IntArray, start: IntArray, end: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Return the pieces of time in which one interval is the innermost of its group.

    Three arrays, a value per piece: the row of the interval, start and end. Intervals without
    length are pieces, too.
    """
    tops = StackTops.of(group, start, end)
    # Of equal edges only the last one says what is the innermost from there on.
    equal = np.zeros(len(tops.row), dtype=np.bool_)
    equal[1:] = (tops.group[1:] == tops.group[:-1]) & (tops.at_ns[1:] == tops.at_ns[:-1])
    is_last = np.append(~equal[1:], True)[: len(tops.row)]
    inner, edge_group, edge = tops.row[is_last], tops.group[is_last], tops.at_ns[is_last]
    # Join neighbouring stretches with the same innermost interval.
    follows = np.flatnonzero((inner[:-1] >= 0) & (edge_group[:-1] == edge_group[1:]))
    begins = np.append(True, (np.diff(inner[follows]) != 0) | (np.diff(follows) != 1))
    first = follows[begins[: len(follows)]]
    last = follows[np.append(begins[1 : len(follows)], True)] if len(follows) else follows
    instants = np.flatnonzero(start == end)
    return (
        np.concatenate([inner[first], instants]),
        np.concatenate([edge[first], start[instants]]),
        np.concatenate([edge[last + 1], end[instants]]),
    )


def parents(
    group: IntArray, start_ns: IntArray, end_ns: IntArray, order: IntArray | None = None
) -> IntArray:
    """Return the row of the innermost interval in which each one starts, or -1.

    A child may end a little after its parent, as profilers record it. `order` is that of
    `by_start`, if it is known.
    """
    order = by_start(group, start_ns, end_ns) if order is None else order
    enclosing = _Enclosing(order, group, end_ns)
    parent = np.empty(len(order), dtype=np.int64)
    for part in grouping.slices(len(order)):
        row = order[part]
        before = np.arange(part.start, part.stop) - 1
        parent[row] = enclosing.last(before, group[row], start_ns[row])
    return parent


def _last_started(
    group: IntArray, start_ns: IntArray, order: IntArray, at_group: IntArray, at_ns: IntArray
) -> IntArray:
    """Return the last position in `order` at or before each instant, by group, then by start.

    If no interval of the instant's group has started, the one there is of an earlier group. Times
    are replaced by their ranks, so that one number holds both group and time.
    """
    groups, starts = grouping.distinct(group), np.sort(start_ns)
    if len(groups) == 1:  # callers check the group of the interval
        return np.searchsorted(starts, at_ns, side="right") - 1
    shift = len(starts) + 1
    key = np.searchsorted(groups, group) * shift + np.searchsorted(starts, start_ns, side="left")
    last_start = np.searchsorted(starts, at_ns, side="right") - 1
    key_of_instant = np.searchsorted(groups, at_group) * shift + last_start
    return np.searchsorted(key[order], key_of_instant, side="right") - 1


class _Enclosing:
    """Finds enclosing intervals, given their order by group and start."""

    def __init__(self, order: IntArray, group: IntArray, end_ns: IntArray) -> None:
        self._order, self._group = order, group
        self._ends = LastAbove(end_ns[order])

    def last(self, upto: IntArray, at_group: IntArray, at_ns: IntArray) -> IntArray:
        """Return, per instant, the row of the last interval up to `upto` that ends after it, or -1.

        `upto` is a position in the order, among the intervals of the group of the instant. These
        are contiguous, so a hit in another group means that there is none.
        """
        index = self._ends.find(upto, at_ns)
        if not len(self._order):
            return index
        row = self._order[np.maximum(index, 0)]
        return np.where((index >= 0) & (self._group[row] == at_group), row, -1)


class OpTree(Struct, frozen=True):
    """The forest of a table of ops.

    By row: `parent` is the row of its parent or -1, `place` its position in the order of starts. By
    position: `order` is the row there, `stop` the position after the last op below it.
    """

    parent: IntArray
    order: IntArray
    place: IntArray
    stop: IntArray

    @classmethod
    def of(cls, ops: pa.Table) -> OpTree:
        """Return the forest of a table of ops."""
        start = numbers(ops["start_ns"])
        thread = grouping.joint_codes(numbers(ops["process"]), numbers(ops["thread"], ABSENT))
        return cls.nested(thread, start, start + numbers(ops["dur_ns"]))

    @classmethod
    def nested(cls, thread: IntArray, start: IntArray, end: IntArray) -> OpTree:
        """Return the forest of intervals [start, end), thread by thread."""
        order = by_start(thread, start, end)
        parent = parents(thread, start, end, order)
        if np.array_equal(order, np.arange(len(order))):  # as in most recordings
            return cls(parent, order, order, _stops(parent))
        index = np.empty_like(order)
        index[order] = np.arange(len(order))
        return cls(parent, order, index, _stops(taken(index, parent[order])))

    @property
    def in_order(self) -> bool:
        """Return whether the rows are sorted by thread and start."""
        return self.place is self.order

    def depth(self) -> IntArray:
        """Return, per position, the number of ops around the op there."""
        # At a position, all ops before it have begun; those whose stop is up to there have ended.
        count = len(self.stop)
        ended = np.cumsum(np.bincount(self.stop, minlength=count + 1)[:count])
        return np.arange(count) - ended

    def below(self, marked: BoolArray) -> IntArray:
        """Return, per row, the number of marked ops below it, without itself."""
        # Ops below an op stand behind it, up to its stop: their number is a difference of sums.
        sums = np.zeros(len(marked) + 1, dtype=np.int64)
        np.cumsum(marked[self.order], out=sums[1:])
        count = np.empty(len(marked), dtype=np.int64)
        for part in grouping.slices(len(marked)):
            count[self.order[part]] = sums[self.stop[part]] - sums[1:][part]
        return count

    def repeated_below(self, group: IntArray) -> BoolArray:
        """Return, per row, whether an op of its own group is below it; not for groups below 0."""
        repeated, rows = np.zeros(len(group), dtype=np.bool_), np.flatnonzero(group >= 0)
        position, shift = self.place[rows], len(group) + 1
        # Ordered by group and place, those of its group below an op are one run behind it.
        key = group[rows] * shift + position
        ordered, stop = np.sort(key), group[rows] * shift + self.stop[position]
        behind = np.searchsorted(ordered, key, side="right")
        repeated[rows] = np.searchsorted(ordered, stop, side="left") > behind
        return repeated

    def nearest(self, marked: BoolArray) -> IntArray:
        """Return, per row, the row of the nearest marked op around it, itself included, or -1."""
        is_marked = marked[self.order]
        places = np.flatnonzero(is_marked)
        nearest = np.full(len(marked), -1, dtype=np.int64)
        if not len(places):
            return nearest
        # A marked op is around a position if it is there or before, and its `stop` is after it.
        ends, before = LastAbove(self.stop[places]), 0
        for part in grouping.slices(len(self.order)):
            upto = np.cumsum(is_marked[part]) + (before - 1)
            before = int(upto[-1]) + 1
            last = ends.find(upto, np.arange(part.start, part.stop))
            row = self.order[places[np.maximum(last, 0)]]
            nearest[self.order[part]] = np.where(last >= 0, row, -1)
        return nearest

    def around(self, marked: BoolArray) -> IntArray:
        """Return, per row, the row of the nearest marked op around it, without itself, or -1."""
        return taken(self.nearest(marked), self.parent)


def taken(values: npt.NDArray[T], rows: IntArray, missing: int = -1) -> npt.NDArray[T]:
    """Return the value at each row, `missing` where the row is negative."""
    if not len(values):
        return np.full(len(rows), missing, dtype=values.dtype)
    result = np.empty(len(rows), dtype=values.dtype)
    for part in grouping.slices(len(rows)):
        row = rows[part]
        result[part] = np.where(row >= 0, values[np.maximum(row, 0)], missing)
    return result


def _stops(above: IntArray) -> IntArray:
    """Return the position after the last op below each position, given its parent's position.

    `above` is -1 without a parent. It is the first later position whose parent lies before the own
    one: read backwards, the last position so far whose negated parent is above the negated
    position.
    """
    count = len(above)
    stops = np.empty(count, dtype=np.int64)
    if not count:
        return stops
    last_above = LastAbove(-above[::-1])
    for part in grouping.slices(count):
        places = np.arange(part.start, part.stop)
        index = last_above.find(count - 2 - places, -places)
        stops[part] = np.where(index >= 0, count - 1 - index, count)
    return stops
