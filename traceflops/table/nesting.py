"""Which interval encloses an instant, for intervals that may nest and overlap in any way.

The parent of an op is the innermost op of its thread in which it starts. Sorted by start, the ops
below an op are one contiguous run of places, so every question about the forest of ops is a search
or a running sum, whatever the depth: O(n log n) for all ops together.

These questions link device work to its cause: activity -> call -> innermost op.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceflops.table.columns import ABSENT, BoolArray, IntArray, numbers
from traceflops.table.grouping import distinct, first_rows, in_order, joint_codes, ranked, slices
from traceflops.table.trace import Trace

T = TypeVar("T", bound=np.signedinteger)


_MANY = 4
"""From so many instants per interval on, only the edges of the intervals are looked at."""


class LastAbove:
    """Finds the last position up to p whose value is above t.

    A tree of maxima over the values: O(n) to build, O(log n) a question, all questions of a call
    answered together, whatever the shape of the data.
    """

    def __init__(self, values: IntArray) -> None:
        self._reach = np.maximum.accumulate(values)
        self._levels = [values]
        while len(self._levels[-1]) > 1:
            below = self._levels[-1]
            even = np.maximum(below[:-1:2], below[1::2])
            rest = below[len(below) // 2 * 2 :]
            self._levels.append(np.concatenate([even, rest]))

    def find(self, upto: IntArray, threshold: IntArray) -> IntArray:
        """Return, per question, the last position <= upto with value > threshold, or -1."""
        found = np.full(len(upto), -1, dtype=np.int64)
        for some in slices(len(upto) if len(self._reach) else 0):
            # Most questions are answered by the position itself, or by no value before it at all.
            position, least = upto[some], threshold[some]
            index = np.maximum(position, 0)
            last = np.where(self._levels[0][index] > least, position, -1)
            unanswered = (last < 0) & (position >= 0) & (self._reach[index] > least)
            rows = np.flatnonzero(unanswered)
            last[rows] = self._search(position[rows], least[rows])
            found[some] = last
        return found

    def _search(self, upto: IntArray, threshold: IntArray) -> IntArray:
        """Return the last such position, for questions that have one before `upto`."""
        # Up: the highest node that ends at `upto` or before and has a value above the threshold.
        node, height = np.zeros((2, len(upto)), dtype=np.int64)
        left, edge = np.arange(len(upto)), upto + 1
        for level, maxima in enumerate(self._levels):
            # An odd edge leaves one node on its left that no later, higher level looks at alone.
            asks = np.flatnonzero(edge % 2)
            hit = asks[maxima[edge[asks] - 1] > threshold[left[asks]]]
            node[left[hit]], height[left[hit]] = edge[hit] - 1, level
            edge[hit] = 0
            left, edge = left[edge > 1], edge[edge > 1] // 2
        # Down: in each node the right half, if that has such a value.
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
    """Return, per instant, the row of the latest-started interval around it, or -1.

    Intervals are [start, end), one per row of the first three arrays, and count only for instants
    of their own group (a thread). Of intervals that start together the shorter one is inner.
    """
    if len(at_ns) > _MANY * len(start_ns):
        # The answer changes only where an interval of the group begins or ends.
        groups, edges = np.tile(group, 2), np.append(start_ns, end_ns)
        order = in_order(groups, edges)
        inner = innermost(group, start_ns, end_ns, groups, edges)
        last = taken(order, _last_started(groups, edges, order, at_group, at_ns))
        return np.where(taken(groups, last) == at_group, taken(inner, last), -1)
    order = by_start(group, start_ns, end_ns)
    upto = _last_started(group, start_ns, order, at_group, at_ns)
    enclosing = _Enclosing(order, group, end_ns)
    inner = np.empty(len(upto), dtype=np.int64)
    for some in slices(len(upto)):
        inner[some] = enclosing.last(upto[some], at_group[some], at_ns[some])
    return inner


def by_start(group: IntArray, start_ns: IntArray, end_ns: IntArray) -> IntArray:
    """Return the order of intervals by group and start, the longer first of equal starts."""
    return in_order(group, start_ns, -end_ns)


def innermost_pieces(
    group: IntArray, start: IntArray, end: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Return the stretches in which one interval is the innermost of its group.

    Three arrays per stretch: row of the interval, start and end. An interval without length has a
    stretch of its own.
    """
    edge_group, edge = np.concatenate([group, group]), np.concatenate([start, end])
    order = np.lexsort((edge, edge_group))
    edge_group, edge = edge_group[order], edge[order]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (edge_group[1:] != edge_group[:-1]) | (edge[1:] != edge[:-1])
    edge_group, edge = edge_group[new], edge[new]  # between two of these nothing begins or ends
    inner = innermost(group, start, end, edge_group, edge)
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
    """Return, per interval, the row of the innermost one in which it starts, or -1.

    A child may end a little after its parent, as profilers write it. `order` is `by_start`.
    """
    order = by_start(group, start_ns, end_ns) if order is None else order
    enclosing = _Enclosing(order, group, end_ns)
    parent = np.empty(len(order), dtype=np.int64)
    for some in slices(len(order)):
        row = order[some]
        before = np.arange(some.start, some.stop) - 1
        parent[row] = enclosing.last(before, group[row], start_ns[row])
    return parent


def _last_started(
    group: IntArray, start_ns: IntArray, order: IntArray, at_group: IntArray, at_ns: IntArray
) -> IntArray:
    """Return, per instant, the last place in `order` that is before it: by group, then by start.

    It is of an earlier group where none of its own has started. Times are replaced by their ranks,
    so that one number holds a group and a time.
    """
    known, starts = distinct(group), np.sort(start_ns)
    if len(known) == 1:  # instants of another group find none of their own anyway
        return np.searchsorted(starts, at_ns, side="right") - 1
    apart = len(starts) + 1
    key = np.searchsorted(known, group) * apart + np.searchsorted(starts, start_ns, side="left")
    begun = np.searchsorted(starts, at_ns, side="right") - 1
    wanted = np.searchsorted(known, at_group) * apart + begun
    return np.searchsorted(key[order], wanted, side="right") - 1


class _Enclosing:
    def __init__(self, order: IntArray, group: IntArray, end_ns: IntArray) -> None:
        self._order, self._group = order, group
        self._ends = LastAbove(end_ns[order])

    def last(self, upto: IntArray, at_group: IntArray, at_ns: IntArray) -> IntArray:
        """Return, per instant, the row of the last place up to `upto` that ends after it, or -1.

        The places of a group are contiguous and the last ones up to `upto`, so a hit in another
        group means that there is none in the own one.
        """
        index = self._ends.find(upto, at_ns)
        if not len(self._order):
            return index
        row = self._order[np.maximum(index, 0)]
        return np.where((index >= 0) & (self._group[row] == at_group), row, -1)


@dataclass(frozen=True, slots=True)
class OpTree:
    """The forest of a table of ops; all arrays are int64.

    `parent` is, per row, the row of its parent or -1; `place` its place in the order of starts.
    `order` is, per place, its row; `stop` the place behind the last op below it.
    """

    parent: IntArray
    order: IntArray
    place: IntArray
    stop: IntArray

    @classmethod
    def of(cls, ops: pa.Table) -> OpTree:
        """Return the forest of a table of ops."""
        start = numbers(ops["start_ns"])
        thread = joint_codes(numbers(ops["process"]), numbers(ops["thread"], ABSENT))
        return cls.nested(thread, start, start + numbers(ops["dur_ns"]))

    @classmethod
    def nested(cls, thread: IntArray, start: IntArray, end: IntArray) -> OpTree:
        """Return the forest of intervals [start, end), thread by thread."""
        order = by_start(thread, start, end)
        parent = parents(thread, start, end, order)
        if np.array_equal(order, np.arange(len(order))):  # as most recordings have their ops
            return cls(parent, order, order, _stops(parent))
        index = np.empty_like(order)
        index[order] = np.arange(len(order))
        return cls(parent, order, index, _stops(taken(index, parent[order])))

    @property
    def in_order(self) -> bool:
        """Return whether the rows are in the order of starts, thread by thread."""
        return self.place is self.order

    def depth(self) -> IntArray:
        """Return, per place, how many ops are around the one there."""
        count = len(self.stop)
        ended = np.cumsum(np.bincount(self.stop, minlength=count + 1)[:count])
        return np.arange(count) - ended

    def below(self, marked: BoolArray) -> IntArray:
        """Return, per row, how many of the marked ops are below it, itself not included."""
        sums = np.zeros(len(marked) + 1, dtype=np.int64)
        np.cumsum(marked[self.order], out=sums[1:])
        count = np.empty(len(marked), dtype=np.int64)
        for some in slices(len(marked)):
            count[self.order[some]] = sums[self.stop[some]] - sums[1:][some]
        return count

    def nearest(self, marked: BoolArray) -> IntArray:
        """Return, per row, the row of the nearest marked op around it, itself included, or -1."""
        is_marked = marked[self.order]
        places = np.flatnonzero(is_marked)
        nearest = np.full(len(marked), -1, dtype=np.int64)
        if not len(places):
            return nearest
        ends, before = LastAbove(self.stop[places]), 0
        for some in slices(len(self.order)):
            upto = np.cumsum(is_marked[some]) + (before - 1)
            before = int(upto[-1]) + 1
            last = ends.find(upto, np.arange(some.start, some.stop))
            row = self.order[places[np.maximum(last, 0)]]
            nearest[self.order[some]] = np.where(last >= 0, row, -1)
        return nearest

    def around(self, marked: BoolArray) -> IntArray:
        """Return, per row, the row of the nearest marked op around it, without itself, or -1."""
        return taken(self.nearest(marked), self.parent)


def taken(values: npt.NDArray[T], rows: IntArray, missing: int = -1) -> npt.NDArray[T]:
    """Return the value at each row, `missing` where the row is negative."""
    if not len(values):
        return np.full(len(rows), missing, dtype=values.dtype)
    result = np.empty(len(rows), dtype=values.dtype)
    for some in slices(len(rows)):
        row = rows[some]
        result[some] = np.where(row >= 0, values[np.maximum(row, 0)], missing)
    return result


def _stops(above: IntArray) -> IntArray:
    """Return, per place, the first later place whose parent lies before it, else their count.

    `above` is the place of each parent, -1 for none. Read backwards, that is the last place so far
    whose negated parent is above the negated place.
    """
    count = len(above)
    stops = np.empty(count, dtype=np.int64)
    if not count:
        return stops
    later = LastAbove(-above[::-1])
    for some in slices(count):
        places = np.arange(some.start, some.stop)
        index = later.find(count - 2 - places, -places)
        stops[some] = np.where(index >= 0, count - 1 - index, count)
    return stops


def recorded_calls(trace: Trace) -> BoolArray:
    """Return, per call, whether an activity of its process has its correlation."""
    process, correlation = (
        np.concatenate([numbers(table[name], ABSENT) for table in (trace.calls, trace.activities)])
        for name in ("process", "correlation")
    )
    launch, count = joint_codes(process, correlation), trace.calls.num_rows
    return np.asarray(np.isin(launch[:count], launch[count:]) & (correlation[:count] != ABSENT))


@dataclass(frozen=True, slots=True)
class Links:
    """Rows of the causing call or op, -1 for none: per activity, per call, per activity."""

    call_of_activity: IntArray
    op_of_call: IntArray
    op_of_activity: IntArray


def link(trace: Trace) -> Links:
    """Return the links of a trace.

    An activity belongs to the earliest call of its process with the same correlation. A call
    belongs to the innermost op of its thread around its start; where there is none, to the op
    whose external id it carries, and so does an activity without a call. That op began before it.
    """
    calls, ops = trace.calls, trace.ops
    op_of_call = np.full(calls.num_rows, -1, dtype=np.int64)
    if calls.num_rows and ops.num_rows:
        start, count = numbers(ops["start_ns"]), ops.num_rows
        thread = joint_codes(
            np.concatenate([numbers(ops["process"]), numbers(calls["process"])]),
            np.concatenate([numbers(ops["thread"], ABSENT), numbers(calls["thread"], ABSENT)]),
        )
        end, called = start + numbers(ops["dur_ns"]), numbers(calls["start_ns"])
        op_of_call = innermost(thread[:count], start, end, thread[count:], called)
        _fill_by_external_id(trace, "calls", op_of_call, op_of_call < 0)
    call_of_activity = first_of_same(calls, "correlation", trace.activities)
    op_of_activity = taken(op_of_call, call_of_activity)
    # Where no op is known, Kineto writes the correlation as external id of activities.
    external = numbers(trace.activities["external_id"], ABSENT)
    no_op = external == numbers(trace.activities["correlation"], ABSENT)
    is_open = (op_of_activity < 0) & ~((call_of_activity < 0) & no_op)
    _fill_by_external_id(trace, "activities", op_of_activity, is_open)
    return Links(call_of_activity, op_of_call, op_of_activity)


def first_of_same(
    owners: pa.Table, column: str, rows: pa.Table, some: IntArray | slice = slice(None)
) -> IntArray:
    """Return, per row, the first owner of the same process with the same number, or -1.

    Both tables have the column `column` of numbers; `some` are the rows that are looked at.
    """
    return first_match(
        numbers(owners["process"]),
        numbers(owners[column], ABSENT),
        numbers(owners["start_ns"]),
        numbers(rows["process"])[some],
        numbers(rows[column], ABSENT)[some],
    )


def _fill_by_external_id(trace: Trace, table: str, op: IntArray, is_open: BoolArray) -> None:
    """Write into `op`, in the open rows of a table, the op that carries their external id."""
    rows = np.flatnonzero(is_open)
    owner = first_of_same(trace.ops, "external_id", trace.table(table), rows)
    began, start = (numbers(side["start_ns"]) for side in (trace.ops, trace.table(table)))
    op[rows] = np.where(taken(began, owner) <= start[rows], owner, -1)


def first_match(
    process: IntArray, ids: IntArray, start: IntArray, at_process: IntArray, at_ids: IntArray
) -> IntArray:
    """Return, per question, the first-started row of the same process and id, or -1."""
    count = len(ids)
    if count == 0 or bool((at_ids == ABSENT).all()):
        return np.full(len(at_ids), -1, dtype=np.int64)
    joint = joint_codes(np.concatenate([process, at_process]), np.concatenate([ids, at_ids]))
    known, key = ranked(joint)
    order = in_order(start)
    earliest = first_rows(key[:count][order], len(known))[key[count:]]
    return np.where((at_ids != ABSENT) & (earliest >= 0), order[earliest], -1)
