"""How the devices of a job differ: the own time of each step on each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceflops.timeline import Components
from traceflops.windows import DeviceReport

FloatArray = npt.NDArray[np.float64]


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
