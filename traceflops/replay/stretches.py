"""Sets of instants of many threads at once: every operation is one pass over all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple, replace

from traceflops.table.columns import IntArray
from traceflops.table.grouping import (
    differ_from_before,
    distinct,
    groups,
    in_order,
    places_in_groups,
    runs,
)
from traceflops.table.nesting import taken
from traceflops.timeline.intervals import Intervals, latest_end_before


class Stretches(Struct, frozen=True):
    """When each of some threads does something: [start_ns, end_ns), sorted by thread and start.

    The stretches of a thread neither overlap nor touch. `known` are all threads that the set is
    about, also those without a stretch, in ascending order.
    """

    known: IntArray
    thread: IntArray
    start_ns: IntArray
    end_ns: IntArray

    @classmethod
    def of(cls, thread: IntArray, start_ns: IntArray, end_ns: IntArray) -> Stretches:
        """Return the union of arbitrary ranges of threads; those with end <= start are empty."""
        threads, rows = distinct(thread), np.flatnonzero(end_ns > start_ns)
        rows = rows[in_order(thread[rows], start_ns[rows])]
        thread, start_ns, end_ns = thread[rows], start_ns[rows], end_ns[rows]
        # A range of the union begins where a start lies beyond all ends before it.
        first = np.flatnonzero(start_ns > latest_end_before(thread, start_ns, end_ns))
        end_ns = np.maximum.reduceat(end_ns, first) if len(first) else end_ns
        return cls(threads, thread[first], start_ns[first], end_ns)

    @property
    def length_ns(self) -> int:
        """How many nanoseconds the stretches of all threads have together."""
        return int((self.end_ns - self.start_ns).sum())

    def by_thread(self) -> Iterator[tuple[int, Intervals]]:
        """Yield each thread that has stretches, and these."""
        for thread, rows in groups(self.thread):
            yield thread, Intervals(self.start_ns[rows], self.end_ns[rows])

    def union(self, *others: Stretches) -> Stretches:
        """Return the instants that are in any of the sets."""
        threads, *columns = map(np.concatenate, zip(*map(astuple, (self, *others)), strict=True))
        return replace(Stretches.of(*columns), known=distinct(threads))

    def intersect(self, other: Stretches) -> Stretches:
        """Return the instants that are in both."""
        others, own = runs(*self._met(other))
        return Stretches(
            self.known,
            self.thread[own],
            np.maximum(self.start_ns[own], other.start_ns[others]),
            np.minimum(self.end_ns[own], other.end_ns[others]),
        )

    def subtract(self, other: Stretches) -> Stretches:
        """Return the instants that are not in the other."""
        if not len(other.thread):
            return self
        # Pieces that remain begin at the start of a stretch or behind one of the other that it
        # meets (`behind`), and end before the next one of the other. [0, 10) without [2, 4) and
        # [6, 7)  ->  first 0, stop 2, behind [-1 0 1]: starts [0 4 7], ends [2 6 10]
        first, stop = self._met(other)
        behind, own = runs(first - 1, stop)
        next_ns = np.append(other.start_ns, 0)[behind + 1]
        return self._pieces(own, taken(other.end_ns, behind), next_ns)

    def cut(self, at_ns: IntArray) -> Stretches:
        """Return the same, cut into pieces at each of some sorted instants."""
        first = np.searchsorted(at_ns, self.start_ns, side="right")
        stop = np.searchsorted(at_ns, self.end_ns, side="left")
        behind, own = runs(first - 1, stop)
        return self._pieces(own, taken(at_ns, behind), np.append(at_ns, 0)[behind + 1])

    def up_to(self, ns: IntArray, thread: IntArray, time_ns: IntArray) -> IntArray:
        """Return the sum of `ns`, a number per stretch, over the stretches up to times of threads.

        Inside a stretch the sum grows evenly. It includes all threads before, so only differences
        between sums of one thread have a meaning. Stretches [0, 10) and [20, 30) with `ns` [5 8]
        give 2 at 4, 5 at 15, and 9 at 25.
        """
        if not len(self.thread):
            return np.zeros_like(time_ns)
        last = places_in_groups(self.thread, self.start_ns, thread, time_ns) - 1
        index, length = np.maximum(last, 0), self.end_ns - self.start_ns
        inside = np.clip(time_ns - self.start_ns[index], 0, length[index])
        share = (inside.astype(np.float64) * ns[index] / length[index]).astype(np.int64)
        part = np.where(ns[index] == length[index], inside, share)  # floats are not exact
        part = np.where(self.thread[index] == thread, part, ns[index])
        return np.where(last < 0, 0, (np.cumsum(ns) - ns)[index] + part)

    def length_within(self, thread: IntArray, start_ns: IntArray, end_ns: IntArray) -> IntArray:
        """Return, per [start, end) of a thread, how many ns of its stretches lie in it."""
        ns = self.end_ns - self.start_ns
        return self.up_to(ns, thread, end_ns) - self.up_to(ns, thread, start_ns)

    def _met(self, other: Stretches) -> tuple[IntArray, IntArray]:
        """Return, per stretch, the range of those of the other that it meets: first, last + 1."""
        first = places_in_groups(other.thread, other.end_ns, self.thread, self.start_ns)
        stop = places_in_groups(other.thread, other.start_ns, self.thread, self.end_ns - 1)
        return first, np.maximum(first, stop)

    def _pieces(self, own: IntArray, start_ns: IntArray, end_ns: IntArray) -> Stretches:
        """Return pieces of the stretches `own`; empty ones are left out.

        The first piece of a stretch begins, and its last ends, as the stretch does. `start_ns` and
        `end_ns` are the other edges, per piece.
        """
        opens = differ_from_before(own)
        closes = np.append(opens[1:], True)[: len(own)]
        start = np.where(opens, self.start_ns[own], start_ns)
        end = np.where(closes, self.end_ns[own], end_ns)
        rows = np.flatnonzero(end > start)
        return Stretches(self.known, self.thread[own[rows]], start[rows], end[rows])


_NONE: Final = np.empty(0, dtype=np.int64)
NOWHERE: Final = Stretches(_NONE, _NONE, _NONE, _NONE)


def same_of_all(threads: IntArray, times: Intervals) -> Stretches:
    """Return the same set for each of some distinct threads, in ascending order."""
    count = len(threads)
    start, end = np.tile(times.start_ns, count), np.tile(times.end_ns, count)
    return Stretches(threads, np.repeat(threads, len(times)), start, end)
