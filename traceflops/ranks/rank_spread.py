"""How the devices of a job differ: the own time of each step on each, and who is waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traceflops.timeline import Components
from traceflops.windows import DeviceReport

FloatArray = npt.NDArray[np.float64]

LEAST_EXCESS: Final = 0.02
"""A straggler takes at least so much of a step longer than the median of the others."""

LEAST_STEPS: Final = 2 / 3
"""In at least so many of the steps it is the slowest one."""


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


@dataclass(frozen=True, slots=True)
class Straggler:
    """The device that takes longest outside exposed communication, means per step of all.

    `more_ns` is how much longer than the median of the others, `waited_ns` how much more exposed
    communication these have; `slowest_in` of `steps` steps it was the slowest.
    """

    device: DeviceReport
    own_ns: int
    more_ns: int
    waited_ns: int
    step_ns: int
    slowest_in: int
    steps: int

    @property
    def others_wait(self) -> bool:
        """Return whether the others' communication is longer by at least half of the excess."""
        return 2 * self.waited_ns >= self.more_ns


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


def straggler(devices: Sequence[DeviceReport]) -> Straggler | None:
    """Return the device that is slower than the others in most steps used, None if there is none.

    Where ranks wait for each other all steps take equally long: the one that others wait for has
    more time outside communication, and less in it.
    """
    used = [
        {w.step: w for w in device.steps if w.used and w.step is not None} for device in devices
    ]
    common = sorted(set.intersection(*(set(one) for one in used))) if used else []
    if len(devices) < 2 or not common:
        return None
    parts = [[one[step].account.components for step in common] for one in used]
    waiting = np.array([[c.communication_ns for c in row] for row in parts], dtype=np.float64)
    whole = np.array([[c.window_ns for c in row] for row in parts], dtype=np.float64)
    own = whole - waiting
    mean = own.mean(axis=1)
    worst = int(mean.argmax())
    others = np.delete(np.arange(len(devices)), worst)
    more = float(mean[worst] - np.median(mean[others]))
    waited = float(np.median(waiting[others].mean(axis=1)) - waiting[worst].mean())
    slowest_in = int((own[worst] > own[others].max(axis=0)).sum())
    if more < LEAST_EXCESS * whole[worst].mean() or slowest_in < LEAST_STEPS * len(common):
        return None
    return Straggler(
        device=devices[worst],
        own_ns=round(mean[worst]),
        more_ns=round(more),
        waited_ns=round(waited),
        step_ns=round(whole[worst].mean()),
        slowest_in=slowest_in,
        steps=len(common),
    )
