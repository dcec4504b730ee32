"""What calls of the host waited for, and the moments (points) of its threads that a replay needs.

A call waits for the last work launched before it. If no record names its queue, times decide. A
call that returns long after that work waited for something else.

Points are launches, ends of waits and hand-overs. A thread rests while none of its calls or
operators runs. If another thread begins and ends its work within such a rest, the first thread
waited for it: a hand-over there and back.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from traceflops.attribution.host_events import has_fact
from traceflops.replay.recorded_graph import LONG_AGO
from traceflops.replay.recorded_work import RecordedWork, typical
from traceflops.table.arrays import ABSENT, BoolArray, IntArray
from traceflops.table.columns import Columns, codes, is_one_of, matching, numbers
from traceflops.table.grouping import distinct, groups, in_order, joint_codes, places_in_groups
from traceflops.table.links import first_match
from traceflops.table.nesting import taken
from traceflops.table.patterns import FREES
from traceflops.table.trace import Trace
from traceflops.timeline.intervals import NEVER, latest_end_before

_USUAL_RETURN_NS: Final = 6_000
_USUAL_CALL_NS: Final = 2_500  # a call that need not wait
_LATE_NS, _LATE_SHARE = 200_000, 50
"""A call waited for something else if it returns more than _LATE_NS, and 1/_LATE_SHARE of its own
duration, after the work; also if it takes more than _LATE_NS with nothing to wait for."""
_SKEW_NS: Final = 20_000
"""A call may seem to return this long before the work that it waited for ended: clocks differ."""
_ALL: Final = ("Device", "Ctx", "Context", "Thread")
_NEARLY_ALL: Final = 0.95


class Awaited(Struct, frozen=True):
    """Work that calls waited for, and the point at which each wait ends; a row per wait.

    `binds` tells whether the work still ran when the call began, `is_guess` that it is inferred.
    """

    work: IntArray
    point: IntArray
    binds: BoolArray
    is_guess: BoolArray


class HostWaits(Struct, frozen=True, dict=True):
    """The points of the host, and the work that each wait among them waited for."""

    work: RecordedWork

    @property
    def _calls(self) -> pa.Table:
        return self.work.prepared.trace.calls

    @cached_property
    def _synchronises(self) -> BoolArray:
        """Return which calls do nothing but wait, or free memory and wait for all work."""
        return has_fact(self._calls["name"], "waits_for_device") | self._frees

    @cached_property
    def _frees(self) -> BoolArray:
        """Return which calls free memory once all work is done; calls that free to a pool do not.

        Calls of a name and process wait if nearly all return after all work launched before.
        """
        calls, work = self._calls, self.work
        frees = np.flatnonzero(matching(calls["name"], FREES.fullmatch))
        waits = np.zeros(calls.num_rows, dtype=np.bool_)
        begin, end = (ns[frees] for ns in work.calls_ns)
        process, name = numbers(calls["process"])[frees], codes(calls["name"])[frees]
        for _, alike in groups(joint_codes(process, name)):
            launched = np.flatnonzero(work.process == process[alike[0]])
            launched = launched[np.argsort(work.called[launched], kind="stable")]
            # The latest end of the work launched before each call: of works that end at [8 5 12],
            # latest_end is [LONG_AGO 8 8 12] if none, one, two or all were launched before.
            latest_end = np.append(LONG_AGO, np.maximum.accumulate(work.end[launched]))
            awaited = latest_end[np.searchsorted(work.called[launched], begin[alike])]
            waits[frees[alike]] = (awaited <= end[alike] + _SKEW_NS).mean() >= _NEARLY_ALL
        return waits

    @cached_property
    def points(self) -> HostPoints:
        """Return the points of the calls that launch or wait."""
        work = self.work
        launches, waits = np.zeros((2, self._calls.num_rows), dtype=np.bool_)
        launches[work.call[work.call >= 0]] = True
        waits[work.call[work.is_blocking]] = True
        waits[work.call[work.full[0]]] = True
        of_process = np.isin(numbers(self._calls["process"]), distinct(work.process))
        # A step that begins before its first work begins at a point of the thread that launches
        # this work: collect the call of the work, and the begin of the step.
        calls, begins = [self.work.row[:0]], [self.work.start[:0]]
        for device, windows in self.work.prepared.windows.items():
            account = self.work.prepared.accounts[device]
            begin = np.array([w.start_ns for w in windows if w.role == "step"], dtype=np.int64)
            first = np.searchsorted(account.rows.start_ns, begin)
            first = np.where(first < len(account.call), first, -1)
            call = taken(account.timed_call, first)
            kept = (call >= 0) & (taken(account.rows.start_ns, first) != begin)
            calls.append(call[kept])
            begins.append(begin[kept])
        return host_points(
            work.prepared.trace,
            launches & of_process,
            (waits | self._synchronises) & of_process,
            np.concatenate(calls),
            np.concatenate(begins),
        )

    @cached_property
    def time_ns(self) -> IntArray:
        """Return the times of the points on one clock."""
        return self.points.time_ns - self.work.offset_ns[self.points.process]

    @cached_property
    def own_ns(self) -> IntArray:
        """Return how long calls of the same name usually take without a wait, per point, in ns."""
        begin = self.work.calls_ns[0]
        order = np.argsort(self.work.called, kind="stable")
        latest_end = np.append(LONG_AGO, np.maximum.accumulate(self.work.end[order]))
        awaited = latest_end[np.searchsorted(self.work.called[order], begin)]
        duration = numbers(self._calls["dur_ns"])
        # Calls without a wait: all work launched before had ended, or their queue had room again.
        # A longer call waited for something else.
        is_free = (awaited <= begin) & self._synchronises & (duration <= _LATE_NS)
        held_up, slot = self.work.full
        is_free[self.work.call[held_up[self.work.end[slot] <= self.work.called[held_up]]]] = True
        usual = typical(codes(self._calls["name"]), duration, is_free, _USUAL_CALL_NS)
        return taken(usual, self.points.call, 0)

    @cached_property
    def awaited(self) -> Awaited:
        """Return all waits: for blocking copies, full queues, and by calls that synchronise."""
        work, end_of_call = self.work, self.points.end_of_call
        copies = np.flatnonzero(work.is_blocking)
        held_up, slot = work.full
        still_runs = work.end[slot] > work.called[held_up]
        all_true, none_true = np.ones(len(copies), np.bool_), np.zeros(len(slot), np.bool_)
        # The two kinds are apart, since a call that frees memory behind another wait still waits if
        # that one is removed. The columns of `parts` are the fields of Awaited.
        is_point = end_of_call >= 0
        waits = np.flatnonzero(self._synchronises & ~self._frees & is_point)
        frees = np.flatnonzero(self._frees & is_point)
        parts = [
            (copies, end_of_call[work.call[copies]], all_true, ~all_true),
            (slot, end_of_call[work.call[held_up]], still_runs, none_true),
            *self._of_calls(waits),
            *self._of_calls(frees),
        ]
        return Awaited(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    @cached_property
    def lag_ns(self) -> IntArray:
        """Return, per wait, the least time from the end of the work to the end of the wait."""
        awaited = self.awaited
        late = self.time_ns[awaited.point] - self.work.end[awaited.work]
        usual = typical(0 * late, late, awaited.binds, _USUAL_RETURN_NS)
        return np.where(awaited.binds, late, np.minimum(late, usual))

    def _of_calls(
        self, call: IntArray
    ) -> Iterator[tuple[IntArray, IntArray, BoolArray, BoolArray]]:
        """Yield the columns of `Awaited` for some calls, queue by queue."""
        stream, is_all = self._asked_stream(call)
        by_time = (stream == ABSENT) & ~is_all  # no record tells the stream
        latest, waits = np.full(len(call), LONG_AGO, dtype=np.int64), []
        for queue, index in self.work.queues_of(numbers(self._calls["process"])[call]):
            may_wait = is_all | by_time | (stream == self.work.stream[queue[0]])
            asked = index[may_wait[index]]  # indices into `call`
            work = self._last(queue, call[asked], by_time[asked])
            asked, work = asked[work >= 0], work[work >= 0]
            latest[asked] = np.maximum(latest[asked], self.work.end[work])
            waits.append((asked, work))
        for asked, work in waits:
            # Only the first of several calls in a row waits for the same work. Without a record,
            # only the work that ends last of all queues was waited for.
            is_first = np.append(True, np.diff(work) != 0)[: len(work)]
            kept = is_first & (~by_time[asked] | (self.work.end[work] == latest[asked]))
            asked, work = asked[kept], work[kept]
            binds = self.work.end[work] > self.work.calls_ns[0][call[asked]]
            # No doubt if the call returned as the work ended, or if there is no other queue.
            is_guess = by_time[asked] & ~binds & ~self.work.is_only[work]
            yield work, self.points.end_of_call[call[asked]], binds, is_guess

    def _last(self, queue: IntArray, call: IntArray, by_time: BoolArray) -> IntArray:
        """Return the last work of a queue that each call waited for, or -1.

        1. It was launched before the call; where `by_time`, it also ended before the call returned.
        2. If it ended after the call returned, the call did not wait for it: -1.
        3. If it had not begun when the call returned, the last work that had begun counts instead.
        4. If the call returned long after the work, it waited for something else: -1. But work that
           had ended before the call stays: there was nothing to wait for.
        """
        start, end = self.work.start, self.work.end
        call_begin, call_end = (ns[call] for ns in self.work.calls_ns)
        done = np.where(by_time, call_end + _SKEW_NS, np.iinfo(np.int64).max)
        work = self.work.last_launched(queue, call_begin, done)
        last_begun = taken(queue, np.searchsorted(start[queue], call_end) - 1)
        begun_before = np.where(taken(start, work) < call_end, work, last_begun)
        work = np.where(taken(end, work, LONG_AGO) <= call_end + _SKEW_NS, begun_before, -1)
        late = call_end - taken(end, work, LONG_AGO)
        had_to_wait = late < call_end - call_begin
        patience = np.maximum(_LATE_NS, (call_end - call_begin) // _LATE_SHARE)
        fits = (late >= -_SKEW_NS) & (~had_to_wait | (late <= patience))
        return np.where(fits, work, -1)

    def _asked_stream(self, call: IntArray) -> tuple[IntArray, BoolArray]:
        """Return the stream that each call waits for, or ABSENT, and which calls wait for all."""
        marks, calls = self.work.prepared.trace.marks, self._calls
        is_all = matching(calls["name"], lambda name: any(word in name for word in _ALL))[call]
        is_all |= self._frees[call]
        # The recorded synchronisation of each call, by its correlation, tells the stream.
        row = np.flatnonzero(is_one_of(marks["kind"], "sync"))
        mark = first_match(
            numbers(marks["process"])[row],
            numbers(marks["correlation"], ABSENT)[row],
            numbers(marks["start_ns"])[row],
            numbers(calls["process"])[call],
            numbers(calls["correlation"], ABSENT)[call],
        )
        stream = taken(numbers(marks["stream"], ABSENT)[row], mark, ABSENT)
        # A wait for an event names a stream, too, but need not wait for all of its work.
        is_stream = matching(calls["name"], lambda name: "Stream" in name)[call]
        return np.where((stream >= 0) & is_stream, stream, ABSENT), is_all


_REST_NS: Final = 20_000
_SURE_NS: Final = 1_000_000  # a hand-over is sure if it takes at most this
_ENDLESS: Final = int(np.iinfo(np.int64).max)
_BEGINS, _CALLS, _ENDS = range(3)


class HostPoints(Struct, frozen=True):
    """Moments of the host (points), sorted by thread and time; `call` is a row of calls or -1.

    `start_of_call` and `end_of_call` are the points of each row of calls, -1 for none. Of each
    hand-over, `gave` is the point of the thread that waits, `took` that of the thread that it waits
    for, and `is_sure` tells whether it took little time.
    """

    thread: IntArray
    process: IntArray
    time_ns: IntArray
    call: IntArray
    start_of_call: IntArray
    end_of_call: IntArray
    gave: IntArray
    took: IntArray
    is_sure: BoolArray


def threads_of(trace: Trace) -> dict[str, IntArray]:
    """Return, by table, the number of the thread of each call, op and mark."""
    tables = {name: trace.table(name) for name in ("calls", "ops", "marks")}
    process, thread = (
        np.concatenate([numbers(table[name], ABSENT) for table in tables.values()])
        for name in ("process", "thread")
    )
    ends = np.cumsum([table.num_rows for table in tables.values()])
    return dict(zip(tables, np.split(joint_codes(process, thread), ends[:-1]), strict=True))


def host_points(
    trace: Trace, begins: BoolArray, waits: BoolArray, marked: IntArray, marked_ns: IntArray
) -> HostPoints:
    """Return the points of the host, four kinds in one.

    These are starts of calls in the masks `begins` or `waits`, ends of those in `waits`, both sides
    of hand-overs between threads, and times `marked_ns` in the threads of the calls `marked`.
    """
    numbered = threads_of(trace)
    of_call, of_op = numbered["calls"], numbered["ops"]
    start = numbers(trace.calls["start_ns"])
    end = start + numbers(trace.calls["dur_ns"])
    first, last = np.flatnonzero(begins | waits), np.flatnonzero(waits)
    call = np.concatenate([first, last])
    time = np.concatenate([start[first], end[last]])
    is_end = np.arange(len(call)) >= len(first)
    # Hand-overs: the first row is of the threads that gave, the second of those that took.
    threads, processes, times_ns = _hand_overs(trace, of_call, of_op, of_call[call], time)
    # All points: of calls, of threads that gave, of threads that took, of marks
    none = np.full(threads.size + len(marked), -1, dtype=np.int64)
    calls = np.append(call, none)
    thread = np.concatenate([of_call[call], threads.ravel(), of_call[marked]])
    times = np.concatenate([time, times_ns.ravel(), marked_ns])
    owner = numbers(trace.calls["process"])
    process = np.concatenate([owner[call], processes.ravel(), owner[marked]])
    # Points at one time: first those that begin (took, mark), then calls in their order, then gave.
    counts = (len(call), threads.shape[1], threads.shape[1], len(marked))
    tie = np.repeat([_CALLS, _ENDS, _BEGINS, _BEGINS], counts)
    inner = np.append(2 * start[call] + is_end, none)
    order = np.lexsort((inner, tie, times, thread))
    # The place of each in that order: order [2 0 1]  ->  point [1 2 0]
    point = np.empty_like(order)
    point[order] = np.arange(len(order))
    of_calls = np.full((2, trace.calls.num_rows), -1, dtype=np.int64)  # starts, ends
    of_calls[is_end * 1, call] = point[: len(call)]
    gave, took = point[len(call) : len(call) + threads.size].reshape(2, -1)
    gave_ns, took_ns = times_ns
    columns = thread[order], process[order], times[order], calls[order]
    is_sure = np.asarray(took_ns - gave_ns <= _SURE_NS)
    return HostPoints(*columns, of_calls[0], of_calls[1], gave, took, is_sure)


class _Rests(Columns, frozen=True):
    """Rests of threads, sorted by thread and time; a first one has no begin, a last one no end."""

    thread: IntArray
    process: IntArray
    start_ns: IntArray
    end_ns: IntArray


def _rests(trace: Trace, of_call: IntArray, of_op: IntArray) -> _Rests:
    """Return the long times of all threads without calls and ops.

    `of_call` and `of_op` are the threads of the rows of both tables.
    """
    process, start, dur = (
        np.concatenate([numbers(table[name]) for table in (trace.calls, trace.ops)])
        for name in ("process", "start_ns", "dur_ns")
    )
    thread, end = np.append(of_call, of_op), start + dur
    free = latest_end_before(thread, start, end)
    rest_ns = start - np.where(free == NEVER, start - _REST_NS, free)  # NEVER before the first row
    before_row = np.flatnonzero(rest_ns >= _REST_NS)
    last = np.array([rows[np.argmax(end[rows])] for _, rows in groups(thread)], dtype=np.int64)
    row = np.append(before_row, last)
    rest_begin = np.append(free[before_row], end[last])
    rest_end = np.append(start[before_row], np.full(len(last), _ENDLESS))
    rests = _Rests(thread[row], process[row], rest_begin, rest_end)
    return rests.only(in_order(thread[row], rest_begin))


def _hand_overs(
    trace: Trace, of_call: IntArray, of_op: IntArray, thread: IntArray, time: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Return the hand-overs from threads that have points to others, and back.

    `thread` and `time` are those of the points, `of_call` and `of_op` the threads of rows. Returned
    are thread, process and time (ns), each of shape (2, hand-overs): the waiting thread first.
    """
    none = np.empty((2, 0), dtype=np.int64)
    if len(distinct(thread)) < 2:
        return none, none, none
    rests = _rests(trace, of_call, of_op)
    process_of = np.zeros(int(max(of_call.max(), of_op.max(initial=0))) + 1, dtype=np.int64)
    process_of[of_call] = numbers(trace.calls["process"])
    # Which points of the process lie inside each rest of a thread?
    order = in_order(process_of[thread], time)
    point_process, point_time = process_of[thread][order], time[order]
    is_inner = (rests.start_ns != NEVER) & (rests.end_ns != _ENDLESS)
    rested = rests.only(is_inner & np.isin(rests.thread, thread))
    first, stop = (
        places_in_groups(point_process, point_time, rested.process, edge)
        for edge in (rested.start_ns, rested.end_ns - 1)
    )
    rested, first, stop = rested.only(stop > first), first[stop > first], stop[stop > first]
    first_point, last_point = order[first], order[stop - 1]

    def edge_of_rest(edge: IntArray, threads: IntArray, at_ns: IntArray, back: int) -> IntArray:
        """Return an edge of each thread's rests: the last up to a time; with `back` 0 the next."""
        row = places_in_groups(rests.thread, edge, threads, at_ns) - back
        row = np.where((row >= 0) & (row < len(edge)), row, -1)
        return np.where(taken(rests.thread, row) == threads, taken(edge, row), NEVER)

    # It is a hand-over if the other thread ended a rest right before its first point, and rests
    # again after its last, both within the rest of the waiting thread.
    begin = edge_of_rest(rests.end_ns, thread[first_point], time[first_point], 1)
    end = edge_of_rest(rests.start_ns, thread[last_point], time[last_point] - 1, 0)
    fits = (begin >= rested.start_ns) & (end <= rested.end_ns) & (end != NEVER)
    rested = rested.only(fits)
    first_point, last_point, begin, end = (
        column[fits] for column in (first_point, last_point, begin, end)
    )
    # There (the waiting thread gives), then back (the other one gives).
    gave = np.append(rested.thread, thread[last_point]), np.append(rested.start_ns, end)
    took = np.append(thread[first_point], rested.thread), np.append(begin, rested.end_ns)
    return (
        np.stack([gave[0], took[0]]),
        np.tile(rested.process, (2, 2)),
        np.stack([gave[1], took[1]]),
    )
