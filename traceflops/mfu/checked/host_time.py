"""The time of steps by the host's own markers, beside that of the devices' windows."""

from __future__ import annotations

from traceflops.table.columns import numbers
from traceflops.windows.prepared import Prepared
from traceflops.windows.steps import find_marked_steps


def host_time(prepared: Prepared) -> int | None:
    """Return the host's time in the markers of the chosen step windows, in ns.

    A step counts once per device, as its windows do. None where the host marked no steps, or not
    all of those that were chosen.
    """
    found = find_marked_steps(prepared.trace, prepared.selection.step_mark)
    if found is None or prepared.plan.choice.source != found.source:
        return None
    process = numbers(prepared.trace.devices["process"])
    total = 0
    for device, windows in prepared.windows.items():
        steps = found.by_process.get(int(process[device]))
        chosen = [window.step for window in windows if window.used and window.role == "step"]
        if steps is None and chosen:
            return None
        if steps is None:
            continue
        named = prepared.plan.layout.numbers[device].tolist()
        times = dict(zip(named, (steps.end_ns - steps.start_ns).tolist(), strict=True))
        if any(step not in times for step in chosen):
            return None
        total += sum(times[step] for step in chosen if step is not None)
    return total or None
