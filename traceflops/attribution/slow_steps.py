"""What steps that are left out take longer than those used: a component or a class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from traceflops.attribution.culprits import culprits_of_devices
from traceflops.timeline.intervals import Intervals
from traceflops.timeline.records import Window
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import DeviceReport

WARM_UP: Final = "left-out.warm-up"
"""Why a step is left out that takes longer than the others."""
_IDLE: Final = "idle"


def slow_steps(windows: Iterable[Window]) -> list[Window]:
    """Return the windows that are left out as far longer."""
    return [one for one in windows if one.left_out is not None and one.left_out.code == WARM_UP]


def longer_by(prepared: Prepared, devices: Sequence[DeviceReport]) -> str | None:
    """Return the component, or class of idle time, that is most of the extra time of slow steps.

    Slow steps are those left out as far longer; they are compared with the steps used. None without
    steps of both kinds, or if nothing is half of the extra time.
    """
    slow = {device.device: slow_steps(device.windows) for device in devices}
    used = {device.device: [one for one in device.windows if one.used] for device in devices}
    counts = [sum(map(len, windows.values())) for windows in (slow, used)]
    if not all(counts):
        return None
    times = [
        {device: _time(some) for device, some in windows.items() if some}
        for windows in (slow, used)
    ]
    longer_ns, whole_ns = Counter[str](), 0  # times the number of steps used
    culprits = culprits_of_devices(prepared, times)
    sides = zip((slow, used), culprits, (counts[1], -counts[0]), strict=True)
    for windows, idle, factor in sides:  # the factors scale both sides to equally many steps
        parts = [one.account.components for some in windows.values() for one in some]
        for name, ns in sum(parts[1:], parts[0]).parts().items():
            whole_ns += factor * ns
            longer_ns[name] += factor * ns
        for one in idle.by_class():  # a class takes its time from idle time without a class
            longer_ns[one.kind] += factor * one.idle_ns
            longer_ns[_IDLE] -= factor * one.idle_ns
    [(name, most_ns)] = longer_ns.most_common(1)
    return name if 2 * most_ns >= whole_ns > 0 else None


def _time(windows: Sequence[Window]) -> Intervals:
    edges = np.array([(one.start_ns, one.end_ns) for one in windows], dtype=np.int64)
    return Intervals.of(*edges.T)
