"""How long steps are, over several devices too, how far from the median, and how devices differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.table import FloatArray
from traceflops.timeline import Components

if TYPE_CHECKING:
    from traceflops.timeline import Window
    from traceflops.windows.records import DeviceReport

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
