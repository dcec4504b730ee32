"""Times of steps over all devices, their deviation from the median, and differences of devices.

Also the thread whose marks are the steps of a process, if several threads have marks: a data loader
may count its own steps. The thread of the steps launches the main part of the device work; if no
thread with marks launches any, it is the thread during whose marks most work is launched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from math import ceil
from statistics import median
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple

from traceflops.devices.processes import called, whose
from traceflops.table.columns import ABSENT, BoolArray, FloatArray, IntArray, numbers
from traceflops.table.grouping import group_sums, groups, ranked
from traceflops.table.links import first_of_same
from traceflops.table.nesting import taken
from traceflops.table.trace import Note, Trace, note_of
from traceflops.timeline.records import Components, Window
from traceflops.units import listed, percent
from traceflops.windows.records import DeviceReport

_MOST: Final = 64
"""Threads with step markers that are compared at most, those with most work and markers."""


class Steps(Struct, frozen=True):
    """The steps of one process by start; `number` is that of the marker, or counts from 0."""

    number: IntArray
    start_ns: IntArray
    end_ns: IntArray

    @classmethod
    def none(cls) -> Steps:
        """Return no steps."""
        return cls(*[np.empty(0, dtype=np.int64)] * 3)

    def __len__(self) -> int:
        return len(self.number)

    def at(self, time_ns: IntArray) -> IntArray:
        """Return, per time, the index of the step that contains it, -1 if none does."""
        if not len(self):
            return np.full(len(time_ns), -1)
        # Steps [0, 8) and [10, 20), times [5 9 12]  ->  index [0 0 1], inside [1 0 1]
        index = np.searchsorted(self.start_ns, time_ns, side="right") - 1
        inside = (index >= 0) & (time_ns < self.end_ns[np.maximum(index, 0)])
        return np.where(inside, index, -1)


class Launched:
    """The launches of each process of a trace; activities are linked once, on demand."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    @cached_property
    def _rows_and_calls(self) -> tuple[dict[int, IntArray], IntArray]:
        work, calls = self._trace.activities, self._trace.calls
        call = first_of_same(calls, "correlation", work)
        return dict(groups(numbers(work["process"]))), call

    def of(self, process: int) -> tuple[IntArray, IntArray, IntArray]:
        """Return, per activity of a process, its launching thread, launch time and duration in ns.

        Activities without a launch call are left out. If no activity has one, all are returned with
        thread ABSENT, and with their own start as the launch time.
        """
        activities, calls = self._trace.activities, self._trace.calls
        rows_of, call_of = self._rows_and_calls
        rows = rows_of.get(process, np.empty(0, dtype=np.int64))
        has_call = call_of[rows] >= 0
        rows = rows[has_call] if has_call.any() else rows
        call = call_of[rows]
        start_ns = numbers(activities["start_ns"])[rows]
        launched_ns = np.where(call >= 0, taken(numbers(calls["start_ns"]), call), start_ns)
        thread = taken(numbers(calls["thread"]), call, ABSENT)
        return thread, launched_ns, numbers(activities["dur_ns"])[rows]


def thread_of_steps(
    launched: Launched,
    process: int,
    by_thread: Mapping[int, IntArray],
    steps_of: Callable[[IntArray], Steps],
) -> tuple[int, bool]:
    """Return the thread whose marks are the steps of a process, and whether that is in doubt.

    `by_thread` has the marks of each thread; `steps_of` turns them into steps. Candidates launch at
    least half as much work as the busiest of these threads. The candidate in whose steps most work
    is launched is chosen; that is in doubt if the steps of another have at least half as much.
    Threads 1, 2, 3 launch 90, 60 and 5 ms: 1 and 2 are candidates. In steps of 1, any threads
    launch 150 ms, in those of 2, 80 ms: 1 is chosen, but in doubt.
    """
    if len(by_thread) == 1:
        return next(iter(by_thread)), False
    launcher, launched_ns, dur_ns = launched.of(process)
    threads, index = ranked(launcher)
    sums_ns = group_sums(index, dur_ns, len(threads))
    work_ns = dict(zip(threads.tolist(), sums_ns.tolist(), strict=True))
    # Per thread, the ns of the work that it launches and, for equal work, the number of its marks.
    weight = {thread: (work_ns.get(thread, 0), len(marks)) for thread, marks in by_thread.items()}
    busiest = sorted(weight, key=lambda thread: weight[thread])[-_MOST:]
    most_ns, _ = weight[busiest[-1]]
    # Per candidate, the ns of the work that any thread launches during its steps.
    in_steps_ns = {}
    for thread in busiest:
        own_ns, _ = weight[thread]
        if 2 * own_ns >= most_ns:
            is_in_step = steps_of(by_thread[thread]).at(launched_ns) >= 0
            in_steps_ns[thread] = int(dur_ns[is_in_step].sum())
    chosen = max(in_steps_ns, key=lambda thread: (in_steps_ns[thread], weight[thread], -thread))
    others_ns = [ns for thread, ns in in_steps_ns.items() if thread != chosen]
    return chosen, 0 < in_steps_ns[chosen] <= 2 * max(others_ns, default=0)


class Owners(Struct, frozen=True):
    """The process whose steps divide a device, its device time in ns and that of all processes.

    `others` is the number of other processes with work on it. Overlapping times count twice.
    """

    owner: int
    own_ns: int
    total_ns: int
    others: int


def owners_of(
    process: IntArray, dur_ns: IntArray, in_step: BoolArray, first: int, marking: Collection[int]
) -> Owners:
    """Return the owner of a device: the process whose steps have most of its time.

    The arrays are per activity: its process, its duration, and whether a step of that process
    launched it. `first` is the process that the device is listed for, `marking` are the processes
    with steps. If none of these uses the device, it has no steps, and `first` is the owner.
    """
    users, user = ranked(process)  # process [3 3 8]  ->  users [3 8], user [0 0 1]
    total_ns = group_sums(user, dur_ns, len(users))
    in_steps_ns = group_sums(user, dur_ns * in_step, len(users))
    candidates = [index for index, process in enumerate(users.tolist()) if process in marking]
    if not candidates:
        return Owners(first, 0, int(total_ns.sum()), 0)
    best = max(candidates, key=lambda index: (in_steps_ns[index], users[index] == first, -index))
    return Owners(int(users[best]), int(total_ns[best]), int(total_ns.sum()), len(users) - 1)


def shared_note(trace: Trace, shared: Mapping[int, Owners]) -> Note:
    """Return the note on devices that several processes used; `shared` is by device."""

    def text_of(device: int) -> str:
        owners = shared[device]
        others_ns = owners.total_ns - owners.own_ns
        others = percent(others_ns / owners.total_ns if owners.total_ns else 0.0)
        return f"{called(trace, device)} {whose(trace, owners.owner)} (others {others})"

    processes = listed(shared, text_of, "; ")
    return note_of("assumed", "steps-of-one-process", count=len(shared), processes=processes)


LEAST_FOR_P95: Final = 20
"""The least number of steps for a 95th percentile other than the longest."""
STANDS_OUT: Final = Fraction(5, 4)
"""Steps longer than this many medians stand out, as warm-up does."""
_P95: Final = Fraction(95, 100)


class StepTime(Struct, frozen=True):
    """The mean of a step's windows over `devices`, those that use it, by component."""

    step: int
    components: Components
    devices: frozenset[int] = frozenset()

    @property
    def ns(self) -> int:
        """Return the length in ns."""
        return self.components.window_ns


_LEAST_GROWING, _STEADILY, _LARGELY = 5, 0.9, 1.25
"""Steps grow or shrink from so many on, with such a correlation, and by such a factor."""


class Growth(NamedTuple):
    """The first and last of steps that grow or shrink; median ns of their first and last third."""

    first: int
    last: int
    first_ns: int
    last_ns: int


def _growth(steps: Sequence[StepTime], times_ns: Sequence[int]) -> Growth | None:
    """Return how steps of the same devices grow or shrink; None unless steadily and largely."""
    count = len(steps)
    if count < _LEAST_GROWING or len({step.devices for step in steps}) > 1:
        return None
    first_ns, last_ns = median_of(times_ns[: count // 3]), median_of(times_ns[-(count // 3) :])
    less_ns, more_ns = sorted((first_ns, last_ns))
    if less_ns == more_ns or more_ns < _LARGELY * less_ns:
        return None
    # Spearman's correlation of time and order. Equal times share the mean of their ranks.
    # times [10 20 20 40]  ->  equal [1 2 1], rank [1 2.5 2.5 4]
    _, index, equal = np.unique(times_ns, return_inverse=True, return_counts=True)
    rank = (np.cumsum(equal) - (equal - 1) / 2)[index]
    if abs(np.corrcoef(rank, np.arange(count))[0, 1]) < _STEADILY:
        return None
    return Growth(steps[0].step, steps[-1].step, first_ns, last_ns)


class StepSpread(Struct, frozen=True, dict=True):
    """The times of the steps used, in order of number; `mean_ns` is the mean over their windows."""

    used: tuple[StepTime, ...]
    mean_ns: int

    @cached_property
    def times_ns(self) -> list[int]:
        """Return the time of each step in ns."""
        return [step.ns for step in self.used]

    @cached_property
    def median_ns(self) -> int:
        """Return the median time in whole ns."""
        return median_of(self.times_ns)

    @cached_property
    def p95_ns(self) -> int | None:
        """Return the 95th percentile of the times, None for fewer than LEAST_FOR_P95 steps."""
        ordered = sorted(self.times_ns)
        if len(ordered) < LEAST_FOR_P95:
            return None
        return ordered[ceil(_P95 * len(ordered)) - 1]

    @cached_property
    def longest(self) -> StepTime:
        """Return the longest step, of equal ones the first."""
        return self.used[self.times_ns.index(max(self.times_ns))]

    @cached_property
    def slow(self) -> tuple[StepTime, ...]:
        """Return the steps that are longer than STANDS_OUT medians."""
        most_ns = STANDS_OUT * self.median_ns // 1  # whole numbers compare faster
        timed = zip(self.used, self.times_ns, strict=True)
        return tuple(step for step, time_ns in timed if time_ns > most_ns)

    @property
    def outstanding(self) -> int:
        """Return the number of steps that stand out; 0 for one or two steps or a median of 0."""
        return len(self.slow) if len(self.used) > 2 and self.median_ns else 0

    @cached_property
    def growth(self) -> Growth | None:
        """Return the steps that grow or shrink steadily and much: all, or all but a quarter."""
        count, times_ns = len(self.used), self.times_ns
        tried = (slice(count), slice(count - count // 4), slice(count // 4, count))
        grown = (_growth(self.used[part], times_ns[part]) for part in tried)
        return next(filter(None, grown), None)

    @cached_property
    def beyond_median_ns(self) -> int:
        """Return the total ns by which steps exceed the median."""
        return sum(max(time_ns - self.median_ns, 0) for time_ns in self.times_ns)

    @cached_property
    def largest_part(self) -> tuple[str, int]:
        """Return the component of which the longest step exceeds the median most, by how much."""
        own = self.longest.components.parts()
        columns = zip(*(astuple(step.components) for step in self.used), strict=True)
        usual_ns = [round(median(column)) for column in columns]
        more = {name: own[name] - ns for name, ns in zip(own, usual_ns, strict=True)}
        name = max(more, key=lambda item: more[item])
        return name, more[name]


def counting(windows: Sequence[Window]) -> list[Window]:
    """Return the windows of a step that count for its time: those used, or all if none is."""
    return [window for window in windows if window.used] or list(windows)


def mean_components(components: Sequence[Components]) -> Components:
    """Return the mean of several components, rounded to whole nanoseconds."""
    if len(components) == 1:
        return components[0]
    columns = zip(*(parts.parts().values() for parts in components), strict=True)
    return Components(*(round(Fraction(sum(column), len(components))) for column in columns))


def step_spread(windows: Mapping[int, Iterable[Window]]) -> StepSpread | None:
    """Return the times of the used steps among the windows of all devices, None without any."""
    lengths_ns: list[int] = []
    of_step: defaultdict[int, dict[int, Components]] = defaultdict(dict)
    for device, of_device in windows.items():
        for window in of_device:
            if window.step is not None and window.used:
                lengths_ns.append(window.dur_ns)
                of_step[window.step][device] = window.account.components
    steps = tuple(
        StepTime(step, mean_components([*by_device.values()]), frozenset(by_device))
        for step, by_device in sorted(of_step.items())
    )
    if not steps:
        return None
    return StepSpread(steps, round(Fraction(sum(lengths_ns), len(lengths_ns))))


def spread_of(devices: Iterable[DeviceReport]) -> StepSpread | None:
    """Return the times of the steps used on some devices, None without any."""
    return step_spread({device.device: device.windows for device in devices})


def late_after(devices: Sequence[DeviceReport], step: int, time_ns: int) -> tuple[int, int] | None:
    """Return the number of the step that came late after `step`, and the idle ns before it.

    The idle time is the mean of the devices that have the step, as far as their longest gaps show
    it. None if it is no more than half of `time_ns`.
    """
    with_step = [device for device in devices if any(w.step == step for w in device.windows)]
    gaps = [gap for device in with_step for gap in device.gaps if gap.step == step]
    late = [(gap.before_step, gap.dur_ns) for gap in gaps if gap.before_step is not None]
    idle_ns = sum(ns for _, ns in late) // max(len(with_step), 1)
    if not late or 2 * idle_ns <= time_ns:
        return None
    return min(number for number, _ in late), idle_ns


def median_of(times: Sequence[int]) -> int:
    """Return the median in whole ns; faster than numpy for a few values."""
    ordered = sorted(times)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) // 2


class OwnTimes(Struct, frozen=True):
    """Own times of steps in ns, [devices, steps]; NaN where a device lacks the step.

    The own time is that of a step less its exposed communication. Ranks that wait for each other
    have equally long steps, but different own times.
    """

    steps: tuple[int, ...]
    ns: FloatArray

    @property
    def medians(self) -> FloatArray:
        """Return, per step, the median over the devices that have it."""
        return np.nanmedian(self.ns, axis=0) if self.ns.size else np.empty(0)

    def relative(self) -> FloatArray:
        """Return each time as a multiple of the median of its step, NaN if that is 0."""
        medians = self.medians
        return self.ns / np.where(medians > 0, medians, np.nan)


def own_times(devices: Sequence[DeviceReport]) -> OwnTimes:
    """Return the own time of every step on every device."""
    own = [{w.step: own_ns(w.account.components) for w in device.steps} for device in devices]
    steps = sorted({step for times in own for step in times if step is not None})
    ns = [[times.get(step, np.nan) for step in steps] for times in own]
    shape = len(devices), len(steps)
    return OwnTimes(tuple(steps), np.array(ns, dtype=np.float64).reshape(shape))


def own_ns(components: Components) -> int:
    """Return the ns of windows without exposed communication."""
    return components.window_ns - components.communication_ns


def most_and_least(devices: Sequence[DeviceReport], most: int) -> list[int]:
    """Return the indices of at most `most` devices: all in their order if there are no more.

    Else those with most and with least own time per step, half each, the slowest first.
    """
    indices = range(len(devices))
    if len(devices) <= most:
        return list(indices)
    mean_own_ns = [
        own_ns(device.chosen.components) / max(sum(w.used for w in device.windows), 1)
        for device in devices
    ]
    slowest_first = sorted(indices, key=lambda index: (-mean_own_ns[index], index))
    fast = most // 2
    return [*slowest_first[: most - fast], *slowest_first[len(devices) - fast :]]
