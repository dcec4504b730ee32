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
    group_sums,
    groups,
    numbers,
    ranked,
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

    @classmethod
    def none(cls) -> Steps:
        """Return no steps."""
        empty = np.empty(0, dtype=np.int64)
        return cls(empty, empty, empty)

    def __len__(self) -> int:
        return len(self.number)

    def at(self, time_ns: IntArray) -> IntArray:
        """Return the place of the step around each time, -1 where there is none."""
        if not len(self):
            return np.full(len(time_ns), -1, dtype=np.int64)
        place = np.searchsorted(self.start_ns, time_ns, side="right") - 1
        inside = (place >= 0) & (time_ns < self.end_ns[np.maximum(place, 0)])
        return np.where(inside, place, -1)


@dataclass(frozen=True, slots=True)
class _Launches:
    """When and on which thread work was launched, and how long that took on the devices."""

    thread: IntArray
    start_ns: IntArray
    work_ns: IntArray

    def of_thread(self, thread: int) -> int:
        """Return the device time that a thread launched."""
        return int(self.work_ns[self.thread == thread].sum())

    def within(self, steps: Steps) -> int:
        """Return the device time that was launched in the time of steps, by whatever thread."""
        return int(self.work_ns[steps.at(self.start_ns) >= 0].sum())


class Launched:
    """What the processes of a trace launched; its rows are sorted by process once, if at all."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    @cached_property
    def _rows(self) -> list[dict[int, IntArray]]:
        tables = self._trace.activities, self._trace.calls
        return [dict(groups(numbers(table["process"]))) for table in tables]

    def of(self, process: int) -> _Launches:
        """Return the launches of a process."""
        nothing = np.empty(0, dtype=np.int64)
        return _launches(self._trace, *(rows.get(process, nothing) for rows in self._rows))


def thread_of_steps(
    launched: Launched, process: int, markers: Mapping[int, int], steps_of: Callable[[int], Steps]
) -> tuple[int, bool]:
    """Return which of the threads with so many markers each has the steps; whether it is in doubt.

    Threads that launch at least half of what the busiest launches may have them; of these it is
    the one in whose steps most is launched.
    """
    if len(markers) == 1:
        return next(iter(markers)), False
    launches = launched.of(process)
    own = {thread: launches.of_thread(thread) for thread in _busiest(launches, markers)}
    most = max(own.values())
    main = {thread: ns for thread, ns in own.items() if 2 * ns >= most}
    held = {thread: launches.within(steps_of(thread)) for thread in main}
    chosen = max(main, key=lambda thread: (held[thread], main[thread], markers[thread], -thread))
    others = [thread for thread in main if thread != chosen and held[thread]]
    return chosen, any(2 * held[thread] >= held[chosen] for thread in others)


def _busiest(launches: _Launches, markers: Mapping[int, int]) -> list[int]:
    if len(markers) <= _MOST:
        return list(markers)
    threads, place = ranked(launches.thread)
    work = group_sums(place, launches.work_ns, len(threads))
    known = dict(zip(threads.tolist(), work.tolist(), strict=True))
    order = sorted(markers, key=lambda thread: (known.get(thread, 0), markers[thread]))
    return order[-_MOST:]


def _launches(trace: Trace, work: IntArray, mine: IntArray) -> _Launches:
    """Return the launches of the work and calls of a process; work without any is of no thread.

    A piece of work belongs to the earliest call of its number.
    """
    activities, calls = trace.activities, trace.calls
    work_ns = numbers(activities["dur_ns"])[work]
    ids = numbers(activities["correlation"], ABSENT)[work]
    of_call = numbers(calls["correlation"], ABSENT)[mine]
    known = of_call != ABSENT
    mine, of_call = mine[known], of_call[known]
    start = numbers(calls["start_ns"])[mine]
    order = np.lexsort((start, of_call))
    call_ids, first = np.unique(of_call[order], return_index=True)
    rows = mine[order[first]]
    place = np.minimum(np.searchsorted(call_ids, ids), max(0, len(call_ids) - 1))
    linked = call_ids[place] == ids if len(call_ids) else np.zeros(len(ids), dtype=np.bool_)
    if not linked.any():
        nobody = np.full(len(work), ABSENT)
        return _Launches(nobody, numbers(activities["start_ns"])[work], work_ns)
    launched = group_sums(place[linked], work_ns[linked], len(rows))
    return _Launches(numbers(calls["thread"])[rows], numbers(calls["start_ns"])[rows], launched)


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
