"""How long steps are, over several devices too, how far from the median, and how devices differ.

Which thread of a process marks the steps of its loop, where several mark some.

A loader or a watcher may count steps of its own. The steps are those of a thread that launches the
main part of the device work; where no thread with markers launches any, of the one in the time of
whose markers most is launched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.devices import called, whose
from traceflops.table import (
    ABSENT,
    BoolArray,
    FloatArray,
    IntArray,
    Note,
    Trace,
    first_of_same,
    group_sums,
    groups,
    numbers,
    ranked,
    taken,
)
from traceflops.timeline import Components
from traceflops.units import listed, percent, several

if TYPE_CHECKING:
    from traceflops.timeline import Window
    from traceflops.windows.records import DeviceReport


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
        call = first_of_same(calls, "correlation", work)
        return dict(groups(numbers(work["process"]))), call

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


LEAST_FOR_P95: Final = 20
"""From so many steps on, the longest one in twenty can be told from the longest."""

STANDS_OUT: Final = Fraction(5, 4)
"""A step stands out where it is longer than so many medians, as one that warms up."""

_P95: Final = Fraction(95, 100)


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step: the mean of its windows over the devices that use it, part by part."""

    step: int
    components: Components

    @property
    def ns(self) -> int:
        """Return how long it is."""
        return self.components.window_ns


@dataclass(frozen=True, slots=True)
class StepSpread:
    """The times of the steps used, in order of number; `mean_ns` is that of their windows."""

    used: tuple[StepTime, ...]
    mean_ns: int

    @property
    def median_ns(self) -> int:
        """Return the median, between two in the middle their mean in whole ns."""
        return median_of([one.ns for one in self.used])

    @property
    def p95_ns(self) -> int | None:
        """Return the time within which 95 % of the steps are; None for few steps."""
        ordered = sorted(one.ns for one in self.used)
        if len(ordered) < LEAST_FOR_P95:
            return None
        return ordered[-int(-_P95 * len(ordered) // 1) - 1]

    @property
    def longest(self) -> StepTime:
        """Return the longest step used, of equal ones the first."""
        return min(self.used, key=lambda one: (-one.ns, one.step))

    @property
    def middle(self) -> StepTime:
        """Return the step used of median time; of two in the middle the shorter one."""
        ordered = sorted(self.used, key=lambda one: (one.ns, one.step))
        return ordered[(len(ordered) - 1) // 2]

    @property
    def outstanding(self) -> int:
        """Return how many steps stand out; of two steps none does, nor where the median is 0."""
        usual = self.median_ns
        if len(self.used) < 3 or not usual:
            return 0
        return sum(one.ns > STANDS_OUT * usual for one in self.used)

    @property
    def beyond_median_ns(self) -> int:
        """Return what the steps that are longer than the median take beyond it, together."""
        usual = self.median_ns
        return sum(max(one.ns - usual, 0) for one in self.used)


def counting(windows: Sequence[Window]) -> list[Window]:
    """Return the windows of one step that its time is of: those used, or all where none is."""
    return [window for window in windows if window.used] or list(windows)


def mean_components(components: Sequence[Components]) -> Components:
    """Return the mean of several components, rounded to whole nanoseconds."""
    if len(components) == 1:
        return components[0]
    columns = zip(*(one.parts().values() for one in components), strict=True)
    return Components(*(round(Fraction(sum(column), len(components))) for column in columns))


def step_spread(windows: Iterable[Window]) -> StepSpread | None:
    """Return how the steps used in the windows of all devices differ, None where none is used."""
    used = [window for window in windows if window.role == "step" and window.used]
    of_step: defaultdict[int, list[Components]] = defaultdict(list)
    for window in used:
        if window.step is not None:
            of_step[window.step].append(window.account.components)
    steps = tuple(StepTime(step, mean_components(mine)) for step, mine in sorted(of_step.items()))
    if not steps:
        return None
    return StepSpread(steps, round(Fraction(sum(one.dur_ns for one in used), len(used))))


def spread_of(devices: Iterable[DeviceReport]) -> StepSpread | None:
    """Return how the steps used of some devices differ, None where none is used."""
    return step_spread(window for device in devices for window in device.windows)


def late_after(devices: Sequence[DeviceReport], step: int, time_ns: int) -> tuple[int, int] | None:
    """Return the step after a step, and how long devices idled before it on average.

    None where the longest gaps there are not more than half of some time.
    """
    having = [device for device in devices if any(w.step == step for w in device.windows)]
    gaps = [gap for device in having for gap in device.gaps if gap.step == step]
    late = [(gap.before_step, gap.dur_ns) for gap in gaps if gap.before_step is not None]
    idle_ns = sum(ns for _, ns in late) // max(len(having), 1)
    return (min(number for number, _ in late), idle_ns) if late and 2 * idle_ns > time_ns else None


def median_of(times: Sequence[int]) -> int:
    """Return the median in whole ns; of a few values numpy takes longer than this."""
    ordered = sorted(times)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) // 2


@dataclass(frozen=True, slots=True)
class OwnTimes:
    """Own times of steps in ns: a row per device, a column per step number; NaN for none.

    Own is what a device does itself: a step less its exposed communication. Where ranks wait for
    each other their steps take equally long, and only this tells them apart.
    """

    steps: tuple[int, ...]
    ns: FloatArray

    @property
    def medians(self) -> FloatArray:
        """Return the median of each step over the devices that have it."""
        return np.nanmedian(self.ns, axis=0) if self.ns.size else np.empty(0)

    def relative(self) -> FloatArray:
        """Return each time as a multiple of the median of its step, NaN where that is nothing."""
        medians = self.medians
        return self.ns / np.where(medians > 0, medians, np.nan)


def own_times(devices: Sequence[DeviceReport]) -> OwnTimes:
    """Return the own time of every step on every device."""
    found = [{w.step: own_ns(w.account.components) for w in device.steps} for device in devices]
    steps = sorted({step for times in found for step in times if step is not None})
    ns = np.array(
        [[times.get(step, np.nan) for step in steps] for times in found], dtype=np.float64
    )
    return OwnTimes(tuple(steps), ns.reshape(len(devices), len(steps)))


def own_ns(components: Components) -> int:
    """Return the time of windows less exposed communication."""
    return components.window_ns - components.communication_ns


def most_and_least(devices: Sequence[DeviceReport], most: int) -> list[int]:
    """Return the places of all devices, or of many those with most and with least own time.

    Half of them are those with most, the first of these first. A device is as slow as its window
    is on average.
    """
    places = range(len(devices))
    if len(devices) <= most:
        return list(places)
    used = [max(sum(w.used for w in device.windows), 1) for device in devices]
    own = [own_ns(device.chosen.components) / n for device, n in zip(devices, used, strict=True)]
    order = sorted(places, key=lambda at: (-own[at], at))
    least = most // 2
    return [*order[: most - least], *order[len(order) - least :]]
