"""Which thread of a process marks the steps of its loop, where several mark some.

A loader or a watcher may count steps of its own. The steps are those of a thread that launches the
main part of the device work; where no thread with markers launches any, of the one in the time of
whose markers most is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from traceflops.devices import called, whose
from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    Note,
    Trace,
    first_match,
    group_sums,
    groups,
    numbers,
    ranked,
    taken,
)
from traceflops.units import listed, percent, several

_MOST: Final = 64
"""So many threads with markers of steps are looked at, those with most work and markers first."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one process, by start.

    `number` is the marker's own number, or counts from 0 where the marker has none.
    """

    number: IntArray
    start_ns: IntArray
    end_ns: IntArray

    def __len__(self) -> int:
        return len(self.number)

    def at(self, time_ns: IntArray) -> IntArray:
        """Return the place of the step around each time, -1 where there is none."""
        if not len(self):
            return np.full(len(time_ns), -1, dtype=np.int64)
        place = np.searchsorted(self.start_ns, time_ns, side="right") - 1
        inside = (place >= 0) & (time_ns < self.end_ns[np.maximum(place, 0)])
        return np.where(inside, place, -1)


class Launched:
    """What the processes of a trace launched; work is linked once, and only if it is asked for."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    @cached_property
    def _rows_and_calls(self) -> tuple[dict[int, IntArray], IntArray]:
        work, calls = self._trace.activities, self._trace.calls
        process, ids = (
            [numbers(table[column], ABSENT) for table in (calls, work)]
            for column in ("process", "correlation")
        )
        call = first_match(process[0], ids[0], numbers(calls["start_ns"]), process[1], ids[1])
        return dict(groups(process[1])), call

    def of(self, process: int) -> tuple[IntArray, IntArray, IntArray]:
        """Return thread and start of the launch of each piece of work of a process, and its time.

        Work without a call is left out; where no work has any, it was launched when it started, by
        no thread.
        """
        activities, calls = self._trace.activities, self._trace.calls
        rows_of, call_of = self._rows_and_calls
        rows = rows_of.get(process, np.empty(0, dtype=np.int64))
        linked = call_of[rows] >= 0
        rows = rows[linked] if linked.any() else rows
        call, started = call_of[rows], numbers(activities["start_ns"])[rows]
        start = np.where(call >= 0, taken(numbers(calls["start_ns"]), call), started)
        thread = taken(numbers(calls["thread"]), call, ABSENT)
        return thread, start, numbers(activities["dur_ns"])[rows]


def thread_of_steps(
    launched: Launched, process: int, markers: Mapping[int, int], steps_of: Callable[[int], Steps]
) -> tuple[int, bool]:
    """Return which of the threads with so many markers each has the steps; whether it is in doubt.

    Threads that launch at least half of what the busiest launches may have them; of these it is
    the one in whose steps most is launched.
    """
    if len(markers) == 1:
        return next(iter(markers)), False
    thread, start_ns, work_ns = launched.of(process)
    threads, place = ranked(thread)
    sums = group_sums(place, work_ns, len(threads))
    work = dict(zip(threads.tolist(), sums.tolist(), strict=True))
    busiest = sorted(markers, key=lambda one: (work.get(one, 0), markers[one]))[-_MOST:]
    main = {one: ns for one in busiest if 2 * (ns := work.get(one, 0)) >= work.get(busiest[-1], 0)}
    held = {one: int(work_ns[steps_of(one).at(start_ns) >= 0].sum()) for one in main}
    chosen = max(main, key=lambda one: (held[one], main[one], markers[one], -one))
    others = [held[one] for one in main if one != chosen]
    return chosen, any(0 < held[chosen] <= 2 * ns for ns in others)


@dataclass(frozen=True, slots=True)
class Owners:
    """The process whose steps a device has, and the device time of it and of the `others`.

    `others` are how many other processes worked there. Times of work that overlaps count each.
    """

    owner: int
    own_ns: int
    total_ns: int
    others: int


def owners_of(
    process: IntArray, dur_ns: IntArray, in_step: BoolArray, first: int, marking: Collection[int]
) -> Owners:
    """Return whose steps a device has: those that hold most of its device time.

    `process` did each of its activities, which are `in_step` where it launched them in one of its
    own; `first` is the process that the device is listed for, `marking` are those with steps.
    """
    users, place = ranked(process)
    total, held = (group_sums(place, ns, len(users)) for ns in (dur_ns, dur_ns * in_step))
    known = [at for at, user in enumerate(users.tolist()) if user in marking]
    if not known:
        return Owners(first, 0, int(total.sum()), 0)
    best = max(known, key=lambda at: (held[at], users[at] == first, -at))
    return Owners(int(users[best]), int(total[best]), int(total.sum()), len(users) - 1)


def shared_steps_note(trace: Trace, shared: Mapping[int, Owners]) -> Note:
    """Return whose steps the devices have on which several processes worked."""

    def text_of(device: int) -> str:
        one = shared[device]
        others = (one.total_ns - one.own_ns) / one.total_ns if one.total_ns else 0.0
        return f"{called(trace, device)} {whose(trace, one.owner)} (others {percent(others)})"

    text = (
        f"{several(len(shared), 'GPU')} ran work of several processes. Steps are those of the "
        f"process whose steps hold the most GPU time: {listed(shared, text_of, '; ')}. Work of "
        "other processes counts in the step during which it ran."
    )
    return Note("assumed", "steps-of-one-process", text, len(shared))
