"""The moments of host threads that a replay needs: launches, ends of waits, hand-overs.

A thread rests where no call or operator of it runs. Where another thread began to work in a rest
and was done within it, the one waited for the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.attribution import places_in_groups
from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    Trace,
    groups,
    in_order,
    joint_codes,
    numbers,
    taken,
)
from traceflops.timeline import NEVER, latest_end_before

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
        np.concatenate([numbers(one[name], ABSENT) for one in tables.values()])
        for name in ("process", "thread")
    )
    ends = np.cumsum([one.num_rows for one in tables.values()])
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
    tie = np.append(np.full(len(call), _CALLS), np.tile([[_ENDS], [_BEGINS]], given.shape).ravel())
    inner = np.append(2 * start[call] + is_end, none)
    order = np.lexsort((inner, tie, times, thread))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    process = np.append(numbers(trace.calls["process"])[call], given.process.ravel())
    points = np.full((2, trace.calls.num_rows), -1, dtype=np.int64)
    points[is_end * 1, call] = place[: len(call)]
    gave, took = place[len(call) :].reshape(2, -1)
    columns = thread[order], process[order], times[order], calls[order]
    return HostPoints(*columns, points[0], points[1], gave, took, given.is_sure)


@dataclass(frozen=True, slots=True)
class _HandOvers:
    """Hand-overs: in the first row who gave, in the second who took."""

    thread: IntArray
    process: IntArray
    time_ns: IntArray

    @property
    def shape(self) -> tuple[int, int]:
        return 1, self.time_ns.shape[1]

    @property
    def is_sure(self) -> BoolArray:
        return np.asarray(self.time_ns[1] - self.time_ns[0] <= _SURE_NS)


@dataclass(frozen=True, slots=True)
class _Rests:
    """Rests by thread and time, also those before the first and after the last work."""

    thread: IntArray
    process: IntArray
    start_ns: IntArray
    end_ns: IntArray


def _rests(trace: Trace, of_call: IntArray, of_op: IntArray) -> _Rests:
    process, start, dur = (
        np.concatenate([numbers(one[name]) for one in (trace.calls, trace.ops)])
        for name in ("process", "start_ns", "dur_ns")
    )
    thread = np.append(of_call, of_op)
    free = latest_end_before(thread, start, start + dur)
    rested = start - np.where(free == NEVER, start - _REST_NS, free)
    rests = np.flatnonzero(rested >= _REST_NS)
    last = [mine[np.argmax((start + dur)[mine])] for _, mine in groups(thread)]
    row = np.append(rests, np.array(last, dtype=np.int64))
    begun = np.append(free[rests], (start + dur)[last])
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
    of_thread = np.zeros(int(max(of_call.max(), of_op.max(initial=0))) + 1, dtype=np.int64)
    of_thread[of_call] = process
    order = in_order(of_thread[thread], time)
    own, when = of_thread[thread][order], time[order]
    inner = (rests.start_ns != NEVER) & (rests.end_ns != _ENDLESS)
    inner &= np.isin(rests.thread, thread)
    mine = np.flatnonzero(inner)
    first, stop = (
        places_in_groups(own, when, rests.process[mine], edge)
        for edge in (rests.start_ns[mine], rests.end_ns[mine] - 1)
    )
    mine, first, stop = (column[stop > first] for column in (mine, first, stop))
    begins, ends = order[first], order[stop - 1]
    begun = _neighbour(rests, thread[begins], time[begins], rests.end_ns, after=False)
    done = _neighbour(rests, thread[ends], time[ends] - 1, rests.start_ns, after=True)
    fits = (begun >= rests.start_ns[mine]) & (done <= rests.end_ns[mine]) & (done != NEVER)
    mine, begins, ends, begun, done = (one[fits] for one in (mine, begins, ends, begun, done))
    own_thread, own_process = rests.thread[mine], rests.process[mine]
    return _HandOvers(
        np.stack([np.append(own_thread, thread[ends]), np.append(thread[begins], own_thread)]),
        np.stack([np.append(own_process, own_process)] * 2),
        np.stack([np.append(rests.start_ns[mine], done), np.append(begun, rests.end_ns[mine])]),
    )


def _neighbour(
    rests: _Rests, thread: IntArray, at_ns: IntArray, edge: IntArray, *, after: bool
) -> IntArray:
    """Return the last edge of a rest of each thread up to a time, or the first after it."""
    place = places_in_groups(rests.thread, edge, thread, at_ns) - (not after)
    inside = (place >= 0) & (place < len(edge))
    known = taken(rests.thread, np.where(inside, place, -1)) == thread
    return np.where(known, taken(edge, np.where(inside, place, -1)), NEVER)
