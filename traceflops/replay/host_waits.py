"""What the calls of the host waited for: the last work launched before them.

Where a call does not say of which queue, times tell. A call that returns long after the work waited
for something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.attribution.host_events import has_fact
from traceflops.replay.host_points import HostPoints, host_points
from traceflops.replay.recorded_graph import LONG_AGO
from traceflops.replay.recorded_work import RecordedWork, typical
from traceflops.table.columns import (
    ABSENT,
    BoolArray,
    IntArray,
    codes,
    is_one_of,
    matching,
    numbers,
)
from traceflops.table.nesting import first_match, taken

_USUAL_RETURN_NS: Final = 6_000
_USUAL_CALL_NS: Final = 2_500
"""A call that need not wait."""
_LATE_NS, _LATE_SHARE = 200_000, 50
"""A call that returns later than that, and than one in so many of its time, waited for other. So
did one that takes so long with nothing to wait for."""
_SKEW_NS: Final = 20_000
"""A call may seem to return so long before what it waited for ended: clocks differ."""
_ALL: Final = ("Device", "Ctx", "Context", "Thread")


@dataclass(frozen=True, slots=True)
class Awaited:
    """Work that calls waited for until a point; `binds` where it was still running, or a guess."""

    work: IntArray
    point: IntArray
    binds: BoolArray
    is_guess: BoolArray


@dataclass(frozen=True)  # without slots, so that there is a place for what is found on demand
class HostWaits:
    """The points of the host, and what those that end a call waited for."""

    work: RecordedWork

    @property
    def _calls(self) -> pa.Table:
        return self.work.prepared.trace.calls

    @cached_property
    def _synchronises(self) -> BoolArray:
        """Return which calls do nothing but wait."""
        return has_fact(self._calls["name"], "waits_for_device")

    @cached_property
    def points(self) -> HostPoints:
        """Return the points of the calls that launch or wait."""
        work = self.work
        begins, waits = np.zeros((2, self._calls.num_rows), dtype=np.bool_)
        begins[work.call[work.call >= 0]] = True
        waits[work.call[work.is_blocking]] = True
        waits[work.call[work.full[0]]] = True
        mine = np.isin(numbers(self._calls["process"]), np.unique(work.process))
        return host_points(work.prepared.trace, begins & mine, (waits | self._synchronises) & mine)

    @cached_property
    def time_ns(self) -> IntArray:
        """Return the times of the points on one clock."""
        return self.points.time_ns - self.work.offset_ns[self.points.process]

    @cached_property
    def own_ns(self) -> IntArray:
        """Return how long the call of each point would take if it need not wait."""
        begun = self.work.calls_ns[0]
        order = np.argsort(self.work.called, kind="stable")
        reach = np.append(LONG_AGO, np.maximum.accumulate(self.work.end[order]))
        latest = reach[np.searchsorted(self.work.called[order], begun)]
        duration = numbers(self._calls["dur_ns"])
        free = (latest <= begun) & self._synchronises & (duration <= _LATE_NS)
        asked, left = self.work.full
        free[self.work.call[asked[self.work.end[left] <= self.work.called[asked]]]] = True
        usual = typical(codes(self._calls["name"]), duration, free, _USUAL_CALL_NS)
        return taken(usual, self.points.call, 0)

    @cached_property
    def awaited(self) -> Awaited:
        """Return all that was waited for: copies in their calls, and what calls synchronise."""
        work, end_of_call = self.work, self.points.end_of_call
        copies = np.flatnonzero(work.is_blocking)
        asked, left = work.full
        yes, no = np.ones(len(copies), np.bool_), np.zeros(len(left), np.bool_)
        call = np.flatnonzero(self._synchronises & (end_of_call >= 0))
        parts = [
            (copies, end_of_call[work.call[copies]], yes, ~yes),
            (left, end_of_call[work.call[asked]], work.end[left] > work.called[asked], no),
            *self._of_calls(call),
        ]
        return Awaited(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    @cached_property
    def lag_ns(self) -> IntArray:
        """Return how long after the work each wait was over, at least."""
        awaited = self.awaited
        late = self.time_ns[awaited.point] - self.work.end[awaited.work]
        usual = typical(0 * late, late, awaited.binds, _USUAL_RETURN_NS)
        return np.where(awaited.binds, late, np.minimum(late, usual))

    def _of_calls(
        self, call: IntArray
    ) -> Iterator[tuple[IntArray, IntArray, BoolArray, BoolArray]]:
        """Yield, queue by queue, the last work launched before each call that it waited for."""
        stream, is_all = self._asked_stream(call)
        by_time = (stream == ABSENT) & ~is_all
        latest, waits = np.full(len(call), LONG_AGO, dtype=np.int64), []
        for rows, mine in self.work.queues_of(numbers(self._calls["process"])[call]):
            own = is_all | by_time | (stream == self.work.stream[rows[0]])
            asked = mine[own[mine]]
            work = self._last(rows, call[asked], by_time[asked])
            asked, work = asked[work >= 0], work[work >= 0]
            latest[asked] = np.maximum(latest[asked], self.work.end[work])
            waits.append((asked, work))
        for asked, work in waits:
            new = np.append(True, np.diff(work) != 0)[: len(work)]
            kept = new & (~by_time[asked] | (self.work.end[work] == latest[asked]))
            asked, work = asked[kept], work[kept]
            binds = self.work.end[work] > self.work.calls_ns[0][call[asked]]
            guess = by_time[asked] & ~binds & ~self.work.is_only[work]
            yield work, self.points.end_of_call[call[asked]], binds, guess

    def _last(self, queue: IntArray, call: IntArray, by_time: BoolArray) -> IntArray:
        """Return the last work of a queue that each call waited for, -1 where it did not."""
        start, end = self.work.start, self.work.end
        begun, over = (one[call] for one in self.work.calls_ns)
        done = np.where(by_time, over + _SKEW_NS, np.iinfo(np.int64).max)
        work = self.work.last_launched(queue, begun, done)
        # Of what had not begun when the call returned, the last that had.
        has_begun = taken(queue, np.searchsorted(start[queue], over) - 1)
        begun_before = np.where(taken(start, work) < over, work, has_begun)
        work = np.where(taken(end, work, LONG_AGO) <= over + _SKEW_NS, begun_before, -1)
        late = over - taken(end, work, LONG_AGO)
        waited = late < over - begun
        patience = np.maximum(_LATE_NS, (over - begun) // _LATE_SHARE)
        fits = (late >= -_SKEW_NS) & (~waited | (late <= patience))
        return np.where(fits, work, -1)

    def _asked_stream(self, call: IntArray) -> tuple[IntArray, BoolArray]:
        """Return the stream that calls wait for, as marks say, and which wait for all."""
        marks, calls = self.work.prepared.trace.marks, self._calls
        is_all = matching(calls["name"], lambda name: any(word in name for word in _ALL))[call]
        row = np.flatnonzero(is_one_of(marks["kind"], "sync"))
        mark = first_match(
            numbers(marks["process"])[row],
            numbers(marks["correlation"], ABSENT)[row],
            numbers(marks["start_ns"])[row],
            numbers(calls["process"])[call],
            numbers(calls["correlation"], ABSENT)[call],
        )
        stream = taken(numbers(marks["stream"], ABSENT)[row], mark, ABSENT)
        is_stream = matching(calls["name"], lambda name: "Stream" in name)[call]
        return np.where((stream >= 0) & is_stream, stream, ABSENT), is_all
