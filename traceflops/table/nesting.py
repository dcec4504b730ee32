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
from traceflops.table.arrays import BoolArray, IntArray, WholeArray
from traceflops.table.columns import narrow, span_columns, thread_columns

T = TypeVar("T", bound=np.signedinteger)


class LastAbove:
    """Finds the last position up to p whose value is above t, for many pairs (p, t) at once.

    It is a tree of maxima over the values: level 0 are the values, each level above has the maxima
    of pairs of the one below. O(n) to build, O(log n) per pair.

        level 2     9       3
        level 1     9   4   3         The last value above 5 up to position 4 is that at 0: from 4,
        level 0     9 1 4 2 3         go up and left to a maximum above 5, then down to its value.
    """

    def __init__(self, values: IntArray) -> None:
        """Build the tree; `_reach` has, by position, the largest value up to there."""
        self._reach = np.maximum.accumulate(values)
        self._levels = [values]
        while len(self._levels[-1]) > 1:
            below = self._levels[-1]
            of_pairs = np.maximum(below[:-1:2], below[1::2])
            unpaired = below[len(below) // 2 * 2 :]  # the last one of an odd number
            self._levels.append(np.concatenate([of_pairs, unpaired]))

    def find(self, upto: IntArray, threshold: IntArray) -> IntArray:
        """Return, per pair, the last position <= upto with a value > threshold, or -1."""
        result = np.full(len(upto), -1, dtype=np.int64)
        for part in grouping.slices(len(upto) if len(self._reach) else 0):
            # For most pairs `upto` itself is the answer, or no value up to it is large enough.
            position, above = upto[part], threshold[part]
            index = np.maximum(position, 0)
            last = np.where(self._levels[0][index] > above, position, -1)
            is_before = (last < 0) & (position >= 0) & (self._reach[index] > above)
            rows = np.flatnonzero(is_before)
            last[rows] = self._search(position[rows], above[rows])
            result[part] = last
        return result

    def _search(self, upto: IntArray, threshold: IntArray) -> IntArray:
        """Return the position of `find`, for pairs that are known to have one before `upto`."""
        # Go up the levels to the last subtree that ends by `upto` and has a value above the
        # threshold; per pair, `node` is its index in level `height`. `searching` are the pairs
        # without one so far, and `stop` is, for each, the first node on this level to leave out.
        # Position 4, threshold 5 above: stop is 5 (node 4 has 3), 2 (even), 1 (node 0 has 9: found)
        node = np.zeros(len(upto), dtype=np.int64)
        height = np.zeros(len(upto), dtype=np.int64)
        searching = np.arange(len(upto))
        stop = upto + 1
        for level, maxima in enumerate(self._levels):
            # Node stop - 1 is looked at here if `stop` is odd, else as a half of a node above.
            odd = np.flatnonzero(stop % 2)
            hit = odd[maxima[stop[odd] - 1] > threshold[searching[odd]]]
            node[searching[hit]] = stop[hit] - 1
            height[searching[hit]] = level
            stop[hit] = 0  # found: no longer searching
            goes_on = stop > 1
            searching, stop = searching[goes_on], stop[goes_on] // 2
        # Go down to level 0: to the right half of a node if it has such a value, else to the left.
        # height [0 2 1]  ->  highest_first [1 2 0], count_from [3 2 1] (of level 0, 1, 2 or above)
        highest_first = np.argsort(-height, kind="stable")
        levels = -np.arange(len(self._levels))
        count_from = np.searchsorted(-height[highest_first], levels, side="right")
        for level in range(len(self._levels) - 1, 0, -1):
            pairs = highest_first[: count_from[level]]  # whose node is now on this level
            below = self._levels[level - 1]
            right = node[pairs] * 2 + 1
            exists = right < len(below)
            takes_right = exists & (below[np.where(exists, right, 0)] > threshold[pairs])
            node[pairs] = np.where(takes_right, right, right - 1)
        return node


def innermost(
    group: IntArray, start_ns: IntArray, end_ns: IntArray, at_group: IntArray, at_ns: IntArray
) -> IntArray:
    """Return the row of the interval around each instant that started last, or -1.

    Intervals are [start, end), one per row of the first three arrays. They enclose only instants of
    their group (a thread). If several start together, the shortest is the innermost.
    """
    return StackTops.of(group, start_ns, end_ns).at(at_group, at_ns)


def by_start(group: IntArray, start_ns: IntArray, end_ns: IntArray) -> IntArray:
    """Return the order of intervals by group and start; of equal starts the longer comes first."""
    return grouping.in_order(group, start_ns, -end_ns)


class StackTops(Struct, frozen=True):
    """The innermost interval of each group (a thread) at all times: it changes only at edges.

        intervals 0: [0, 10), 1: [2, 5)  ->  at_ns [0 2 5 10], row [0 1 0 -1]

    Rows are the edges (starts and ends) of the intervals, sorted by `group` and `at_ns`. `row` is
    the interval that is the innermost from this edge to the next one of the group, or -1. Of edges
    at one time only the last one counts.
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
        # Up to an edge, as many intervals have begun as there are starts (the first half of rows).
        # edges [0 2 10 5] (starts, ends)  ->  order [0 1 3 2], is a start [1 1 0 0], upto [0 1 1 1]
        upto = np.cumsum(order < len(group)) - 1
        by_begin = by_start(group, start_ns, end_ns)
        return cls(groups, edges, _last_around(by_begin, group, end_ns, upto, groups, edges))

    def at(self, group: IntArray, at_ns: IntArray) -> IntArray:
        """Return the innermost interval of a group at each instant, or -1."""
        edge = grouping.places_in_groups(self.group, self.at_ns, group, at_ns) - 1
        return np.where(taken(self.group, edge) == group, taken(self.row, edge), -1)

    def cut(
        self, group: IntArray, start_ns: IntArray, end_ns: IntArray
    ) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Cut spans of time, each of one group, at the edges of the intervals.

            edges 2, 5, 10; spans 0: [1, 4), 1: [6, 9)  ->  pieces 0: [1, 2), [2, 4), 1: [6, 9)

        Returns, per piece in the order of spans and times, the number of its span, its start, its
        end and the innermost interval, or -1.
        """
        # A piece begins at each edge inside a span, and one at the start of the span: for this the
        # edge before stands.
        first = grouping.places_in_groups(self.group, self.at_ns, group, start_ns)
        stop = grouping.places_in_groups(self.group, self.at_ns, group, end_ns)
        edge, span = grouping.runs(first - 1, stop)
        is_first = grouping.differ_from_before(span)
        is_last = np.append(is_first[1:], True)[: len(span)]
        start = np.where(is_first, start_ns[span], taken(self.at_ns, edge))
        end = np.where(is_last, end_ns[span], np.roll(start, -1))  # the next piece's start
        has_length = end > start
        span, edge = span[has_length], edge[has_length]
        is_of_group = taken(self.group, edge) == group[span]
        inner = np.where(is_of_group, taken(self.row, edge), -1)
        return span, start[has_length], end[has_length], inner


def innermost_pieces(
    group: IntArray, start: IntArray, end: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Return the pieces of time in which one interval is the innermost of its group.

    Three arrays, a value per piece: the row of the interval, start and end. Intervals without
    length are pieces, too.
    """
    tops = StackTops.of(group, start, end)
    # Of edges at one time only the last one says what is the innermost from there on.
    # at_ns [0 2 2 5] of one group  ->  is_last [1 0 1 1]
    is_same_edge = (tops.group[1:] == tops.group[:-1]) & (tops.at_ns[1:] == tops.at_ns[:-1])
    is_last = np.append(~is_same_edge, True)[: len(tops.row)]
    inner, edge_group, edge_ns = tops.row[is_last], tops.group[is_last], tops.at_ns[is_last]
    # Between an edge and the next one of its group lies a stretch, if any interval is around it.
    stretch = np.flatnonzero((inner[:-1] >= 0) & (edge_group[:-1] == edge_group[1:]))
    # Neighbouring stretches with the same innermost interval are one piece.
    # stretch [0 1 2 4] with inner [7 7 9 9]  ->  is_new [0 1 1], begins [1 0 1 1], ends [0 1 1 1]
    is_new = (np.diff(inner[stretch]) != 0) | (np.diff(stretch) != 1)
    begins = np.append(True, is_new)[: len(stretch)]
    ends = np.append(is_new, True)[: len(stretch)]
    first, last = stretch[begins], stretch[ends]
    instants = np.flatnonzero(start == end)
    return (
        np.concatenate([inner[first], instants]),
        np.concatenate([edge_ns[first], start[instants]]),
        np.concatenate([edge_ns[last + 1], end[instants]]),
    )


def parents(
    group: IntArray, start_ns: IntArray, end_ns: IntArray, order: IntArray | None = None
) -> IntArray:
    """Return, per interval, the row of the innermost other one in which it starts, or -1.

    An interval may end after its parent: profilers record such. `order` is that of `by_start`, if
    it is known.
    """
    order = by_start(group, start_ns, end_ns) if order is None else order
    before = np.arange(len(order)) - 1  # the position before that of each interval
    parent = np.empty(len(order), dtype=np.int64)
    at_group, at_ns = group[order], start_ns[order]
    parent[order] = _last_around(order, group, end_ns, before, at_group, at_ns)
    return parent


def _last_around(
    order: IntArray,
    group: IntArray,
    end_ns: IntArray,
    upto: IntArray,
    at_group: IntArray,
    at_ns: IntArray,
) -> IntArray:
    """Return, per instant, the row of the last interval up to `upto` that ends after it, or -1.

    `order` is that of `by_start`, `upto` the position in it of the last interval to look at. The
    intervals of a group are contiguous there, so a hit in another group means that there is none.
    """
    ends, result = LastAbove(end_ns[order]), np.full(len(upto), -1, dtype=np.int64)
    for part in grouping.slices(len(upto) if len(order) else 0):
        index = ends.find(upto[part], at_ns[part])
        row = order[np.maximum(index, 0)]
        is_found = (index >= 0) & (group[row] == at_group[part])
        result[part] = np.where(is_found, row, -1)
    return result


class OpTree(Struct, frozen=True):
    """The forest of a table of ops, each below the innermost op of its thread in which it starts.

        op 0   |------------------|     parent [-1 0 1 0]     What is said of this example below:
        op 1   . |------| |----| op 3   order  [0 1 2 3]      all rows are in order, and
        op 2   .   |--|                 stop   [4 3 3 4]      ops 0, 2 and 3 are marked.

    Per row, `parent` is the row of its parent or -1, and `place` its position in the order of
    thread and start. Per position in that order, `order` is the row of the op there, and `stop` the
    position after the last op below it. Columns are int32 if they fit: they stay for long.
    """

    parent: IntArray
    order: IntArray
    place: IntArray
    stop: IntArray

    @classmethod
    def of(cls, ops: pa.Table) -> OpTree:
        """Return the forest of a table of ops."""
        return cls.nested(grouping.joint_codes(*thread_columns(ops)), *span_columns(ops))

    @classmethod
    def nested(cls, thread: IntArray, start: IntArray, end: IntArray) -> OpTree:
        """Return the forest of intervals [start, end), thread by thread."""
        order = narrow(by_start(thread, start, end))
        parent = narrow(parents(thread, start, end, order))
        if np.array_equal(order, np.arange(len(order))):  # as in most recordings
            return cls(parent, order, order, narrow(_stops(parent)))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return cls(parent, order, place, narrow(_stops(taken(place, parent[order]))))

    def depth(self) -> IntArray:
        """Return, per position, the number of ops around the op there."""
        # The ops before a position are around it, but those with a stop up to there.
        # stop [4 3 3 4]  ->  ended up to each position [0 0 0 2], depth [0 1 2 1]
        count = len(self.stop)
        ended = np.cumsum(np.bincount(self.stop, minlength=count + 1)[:count])
        return np.arange(count) - ended

    def own(self, dur_ns: IntArray) -> IntArray:
        """Return, per row, its time without that of the ops right below it."""
        is_called = self.parent >= 0
        below_ns = grouping.group_sums(self.parent[is_called], dur_ns[is_called], len(dur_ns))
        return dur_ns - below_ns

    def below(self, marked: BoolArray) -> IntArray:
        """Return, per row, the number of marked ops below it, without itself."""
        # The ops below an op follow it, up to its stop: their number is a difference of sums.
        # sums [0 1 1 2 3]: up to the stops [3 2 2 3], up to the ops themselves [1 1 2 3]
        sums = np.append(0, np.cumsum(marked[self.order]))
        count = np.empty(len(marked), dtype=np.int64)
        count[self.order] = sums[self.stop] - sums[1:]
        return count

    def repeated_below(self, group: IntArray) -> BoolArray:
        """Return, per row, whether an op of its `group` is below it; False for groups below 0."""
        rows = np.flatnonzero(group >= 0)
        place, first_key = self.place[rows], group[rows] * (len(group) + 1)
        # Sorted by group and place, the ops of its group below an op follow it, up to its stop.
        # Groups [5 -1 5 5]: keys 25 + [0 2 3]; op 0 has the keys 27 and 28 below its stop, 29.
        keys = np.sort(first_key + place)
        next_index = np.searchsorted(keys, first_key + place, side="right")
        stop_index = np.searchsorted(keys, first_key + self.stop[place], side="left")
        repeated = np.zeros(len(group), dtype=np.bool_)
        repeated[rows] = stop_index > next_index
        return repeated

    def nearest(self, marked: BoolArray) -> IntArray:
        """Return, per row, the row of the nearest marked op around it, itself included, or -1."""
        is_marked = marked[self.order]
        # The marked ops are 0, 2 and 3, with the stops [4 3 4]. The number of the last one up to
        # each position is [0 0 1 2]. The last one with a stop behind the position is around it.
        last_marked = np.cumsum(is_marked) - 1
        around = LastAbove(self.stop[is_marked]).find(last_marked, np.arange(len(marked)))
        nearest = np.empty(len(marked), dtype=np.int64)
        nearest[self.order] = taken(self.order[is_marked], around)
        return nearest

    def around(self, marked: BoolArray) -> IntArray:
        """Return, per row, the row of the nearest marked op around it, without itself, or -1."""
        return taken(self.nearest(marked), self.parent)


def taken(values: npt.NDArray[T], rows: WholeArray, missing: int = -1) -> npt.NDArray[T]:
    """Return the value at each row, `missing` where the row is negative."""
    if not len(values):
        return np.full(len(rows), missing, dtype=values.dtype)
    result = np.empty(len(rows), dtype=values.dtype)
    for part in grouping.slices(len(rows)):
        own, row = result[part], rows[part]
        np.take(values, row, mode="clip", out=own)
        own[row < 0] = missing
    return result


def _stops(above: IntArray) -> IntArray:
    """Return, per position, the one after the last op below; `above` is its parent's, or -1."""
    # The stop of p is the first position after p with a parent before p. In reverse order and with
    # parents negated, this is the last position before p with a value above -p.
    # above [-1 0 1 0], reversed and negated [0 -1 0 1]: p = 1 finds index 0 above -1, its stop is 3
    count, place = len(above), np.arange(len(above))
    index = LastAbove(-above[::-1]).find(count - 2 - place, -place)
    return np.where(index >= 0, count - 1 - index, count)
