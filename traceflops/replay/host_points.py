"""The moments of host threads that a replay needs: launches, ends of waits, hand-overs.

A thread rests where no call or operator of it runs. Where another thread began to work in a rest
and was done within it, the one waited for the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.attribution.idle_slices import places_in_groups
from traceflops.table.columns import ABSENT, BoolArray, IntArray, numbers
from traceflops.table.grouping import groups, in_order, joint_codes
from traceflops.table.nesting import taken
from traceflops.table.trace import Trace
from traceflops.timeline.intervals import NEVER, latest_end_before

_REST_NS: Final = 20_000
_SURE_NS: Final = 1_000_000
"""A hand-over takes less than that, both ways."""
_ENDLESS: Final = int(np.iinfo(np.int64).max)
_BEGINS, _CALLS, _ENDS = range(3)


@dataclass(frozen=True, slots=True)
class HostPoints:
    """Points by thread and time. `call` is a row of calls or -1; `is_end` where one has ended.

    `start_of_call` and `end_of_call` are points by row of calls, -1 for none. `gave` are points at
    which a thread handed over to those in `took`, `is_sure` where that took little time.
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
    """Return a number of the thread of each call, op and mark, by table."""
    tables = {name: trace.table(name) for name in ("calls", "ops", "marks")}
    process, thread = (
        np.concatenate([numbers(table[name], ABSENT) for table in tables.values()])
        for name in ("process", "thread")
    )
    ends = np.cumsum([table.num_rows for table in tables.values()])
    return dict(zip(tables, np.split(joint_codes(process, thread), ends[:-1]), strict=True))


def host_points(trace: Trace, begins: BoolArray, waits: BoolArray) -> HostPoints:
    """Return the points of some calls: of those that `begin` the start, that `wait` the end."""
    numbered = threads_of(trace)
    of_call, of_op = numbered["calls"], numbered["ops"]
    start = numbers(trace.calls["start_ns"])
    end = start + numbers(trace.calls["dur_ns"])
    first, last = np.flatnonzero(begins | waits), np.flatnonzero(waits)
    call = np.concatenate([first, last])
    time = np.concatenate([start[first], end[last]])
    is_end = np.arange(len(call)) >= len(first)
    given = _hand_overs(trace, of_call, of_op, of_call[call], time)
    none = np.full(given.thread.size, -1, dtype=np.int64)
    calls, thread = np.append(call, none), np.append(of_call[call], given.thread.ravel())
    times = np.append(time, given.time_ns.ravel())
    tie = np.append(np.full(len(call), _CALLS), np.repeat([_ENDS, _BEGINS], given.time_ns.shape[1]))
    inner = np.append(2 * start[call] + is_end, none)
    order = np.lexsort((inner, tie, times, thread))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    process = np.append(numbers(trace.calls["process"])[call], given.process.ravel())
    points = np.full((2, trace.calls.num_rows), -1, dtype=np.int64)
    points[is_end * 1, call] = place[: len(call)]
    gave, took = place[len(call) :].reshape(2, -1)
    columns = thread[order], process[order], times[order], calls[order]
    is_sure = np.asarray(given.time_ns[1] - given.time_ns[0] <= _SURE_NS)
    return HostPoints(*columns, points[0], points[1], gave, took, is_sure)


@dataclass(frozen=True, slots=True)
class _HandOvers:
    """Hand-overs: in the first row who gave, in the second who took."""

    thread: IntArray
    process: IntArray
    time_ns: IntArray


@dataclass(frozen=True, slots=True)
class _Rests:
    """Rests by thread and time, also those before the first and after the last work."""

    thread: IntArray
    process: IntArray
    start_ns: IntArray
    end_ns: IntArray


def _rests(trace: Trace, of_call: IntArray, of_op: IntArray) -> _Rests:
    """Return the rests of all threads; `of_call` and `of_op` are their numbers by row."""
    process, start, dur = (
        np.concatenate([numbers(table[name]) for table in (trace.calls, trace.ops)])
        for name in ("process", "start_ns", "dur_ns")
    )
    thread, end = np.append(of_call, of_op), start + dur
    free = latest_end_before(thread, start, end)
    rested = start - np.where(free == NEVER, start - _REST_NS, free)
    rests = np.flatnonzero(rested >= _REST_NS)
    last = np.array([rows[np.argmax(end[rows])] for _, rows in groups(thread)], dtype=np.int64)
    row = np.append(rests, last)
    begun = np.append(free[rests], end[last])
    over = np.append(start[rests], np.full(len(last), _ENDLESS))
    order = in_order(thread[row], begun)
    return _Rests(thread[row][order], process[row][order], begun[order], over[order])


def _hand_overs(
    trace: Trace, of_call: IntArray, of_op: IntArray, thread: IntArray, time: IntArray
) -> _HandOvers:
    """Return where threads that have points handed over to others, and back."""
    none = np.empty((2, 0), dtype=np.int64)
    if len(np.unique(thread)) < 2:
        return _HandOvers(none, none, none)
    rests = _rests(trace, of_call, of_op)
    process = numbers(trace.calls["process"])
    process_of = np.zeros(int(max(of_call.max(), of_op.max(initial=0))) + 1, dtype=np.int64)
    process_of[of_call] = process
    order = in_order(process_of[thread], time)
    own, when = process_of[thread][order], time[order]
    inner = (rests.start_ns != NEVER) & (rests.end_ns != _ENDLESS)
    inner &= np.isin(rests.thread, thread)
    mine = np.flatnonzero(inner)
    first, stop = (
        places_in_groups(own, when, rests.process[mine], edge)
        for edge in (rests.start_ns[mine], rests.end_ns[mine] - 1)
    )
    mine, first, stop = (column[stop > first] for column in (mine, first, stop))
    begins, ends = order[first], order[stop - 1]

    def edge_of_rest(edge: IntArray, threads: IntArray, at_ns: IntArray, back: int) -> IntArray:
        """Return an edge of the rest of each thread next to a time, NEVER for none."""
        place = places_in_groups(rests.thread, edge, threads, at_ns) - back
        place = np.where((place >= 0) & (place < len(edge)), place, -1)
        return np.where(taken(rests.thread, place) == threads, taken(edge, place), NEVER)

    # The other thread ended a rest right before its first point, and rests again after its last.
    begun = edge_of_rest(rests.end_ns, thread[begins], time[begins], 1)
    done = edge_of_rest(rests.start_ns, thread[ends], time[ends] - 1, 0)
    fits = (begun >= rests.start_ns[mine]) & (done <= rests.end_ns[mine]) & (done != NEVER)
    mine, begins, ends, begun, done = (one[fits] for one in (mine, begins, ends, begun, done))
    own_thread, own_process = rests.thread[mine], rests.process[mine]
    return _HandOvers(
        np.stack([np.append(own_thread, thread[ends]), np.append(thread[begins], own_thread)]),
        np.stack([np.append(own_process, own_process)] * 2),
        np.stack([np.append(rests.start_ns[mine], done), np.append(begun, rests.end_ns[mine])]),
    )
