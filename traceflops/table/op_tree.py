"""The ops of a trace as a forest: what is below what on each thread.

An op's parent is the innermost op of its thread in which it starts. In the order of starts the ops
below one are then one run of places, so every question here is a search or a running sum, whatever
the depth: O(n log n) for all ops together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceflops.table.columns import BoolArray, IntArray, numbers
from traceflops.table.grouping import joint_codes, slices
from traceflops.table.nesting import LastAbove, by_start, parents
from traceflops.table.rows import ABSENT

T = TypeVar("T", bound=np.signedinteger)


@dataclass(frozen=True, slots=True)
class OpTree:
    """The forest of a table of ops; all arrays are int64.

    `parent` is the row of each op's parent, -1 for none. `place` is where a row stands in the
    order of starts and `order` the row at each place; `stop` is, per place, the place behind the
    last op below it.
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
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return cls(parent, order, place, _stops(taken(place, parent[order])))

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
        """Return how many of the marked ops are below each op, itself not among them."""
        sums = np.zeros(len(marked) + 1, dtype=np.int64)
        np.cumsum(marked[self.order], out=sums[1:])
        found = np.empty(len(marked), dtype=np.int64)
        for some in slices(len(marked)):
            found[self.order[some]] = sums[self.stop[some]] - sums[1:][some]
        return found

    def nearest(self, marked: BoolArray) -> IntArray:
        """Return the row of the nearest marked op around each op, itself included, or -1."""
        is_known = marked[self.order]
        known = np.flatnonzero(is_known)
        found = np.full(len(marked), -1, dtype=np.int64)
        if not len(known):
            return found
        ends, before = LastAbove(self.stop[known]), 0
        for some in slices(len(self.order)):
            upto = np.cumsum(is_known[some]) + (before - 1)
            before = int(upto[-1]) + 1
            at = ends.find(upto, np.arange(some.start, some.stop))
            found[self.order[some]] = np.where(at >= 0, self.order[known[np.maximum(at, 0)]], -1)
        return found

    def around(self, marked: BoolArray) -> IntArray:
        """Return the row of the nearest marked op around each op, itself not included, or -1."""
        return taken(self.nearest(marked), self.parent)


def taken(values: npt.NDArray[T], rows: IntArray, missing: int = -1) -> npt.NDArray[T]:
    """Return the value of each row, `missing` where the row is negative."""
    if not len(values):
        return np.full(len(rows), missing, dtype=values.dtype)
    found = np.empty(len(rows), dtype=values.dtype)
    for some in slices(len(rows)):
        row = rows[some]
        found[some] = np.where(row >= 0, values[np.maximum(row, 0)], missing)
    return found


def _stops(above: IntArray) -> IntArray:
    """Return, per place, the first later place whose parent lies before it; the end if none does.

    Read from behind, that is the last place so far whose negated parent is above the negated place.
    """
    count = len(above)
    stops = np.empty(count, dtype=np.int64)
    if not count:
        return stops
    later = LastAbove(-above[::-1])
    for some in slices(count):
        places = np.arange(some.start, some.stop)
        found = later.find(count - 2 - places, -places)
        stops[some] = np.where(found >= 0, count - 1 - found, count)
    return stops
