"""Which steps and devices stand for all: the usual one and the worst."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceflops.timeline.records import Gap
from traceflops.windows.step_times import step_spread

if TYPE_CHECKING:
    from traceflops.windows.prepared import Prepared


@dataclass(frozen=True, slots=True)
class RepresentativeSteps:
    """Numbers of used steps: the one of median length, and the longest; and their lengths."""

    median: int
    worst: int
    median_ns: int
    worst_ns: int


@dataclass(frozen=True, slots=True)
class ChosenDevices:
    """Devices in the order of their numbers, and those that stand for all `of` them.

    `busiest` has most work of its own in the chosen windows, so others wait for it; `median` has
    the median of it.
    """

    devices: tuple[int, ...]
    busiest: int
    median: int
    of: int


def representative_steps(prepared: Prepared) -> RepresentativeSteps | None:
    """Return the steps that stand for those used, None where no step is used.

    A step is as long as the mean of its windows over the devices. Of two in the middle the shorter
    one is the median; of equal ones the first counts.
    """
    spread = step_spread(one for windows in prepared.windows.values() for one in windows)
    if spread is None:
        return None
    middle, worst = spread.middle, spread.longest
    return RepresentativeSteps(middle.step, worst.step, middle.ns, worst.ns)


def chosen_devices(prepared: Prepared, gaps: Sequence[Gap], most: int) -> ChosenDevices:
    """Return all devices if they are no more than `most`, else the representative ones.

    Those are the one with most work of its own, the median one, the one with least, and those of
    the longest gaps.
    """
    work = {device: _own_work_ns(prepared, device) for device in prepared.accounts}
    ordered = sorted(work, key=lambda device: (-work[device], device))
    busiest, median = ordered[0], ordered[len(ordered) // 2]
    wanted = dict.fromkeys([busiest, median, ordered[-1], *(gap.device for gap in gaps)])
    some = [device for device in wanted if device in work][:most]
    chosen = tuple(sorted(work if len(work) <= most else some))
    return ChosenDevices(chosen, busiest, median, len(work))


def _own_work_ns(prepared: Prepared, device: int) -> int:
    """Return the time of the chosen windows in which a device did more than wait for others."""
    used = [window.account.components for window in prepared.windows[device] if window.used]
    return sum(one.compute_ns + one.memory_ns + one.other_ns + one.graph_ns for one in used)
