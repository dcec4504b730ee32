"""The one sentence at the top: the largest loss."""

from __future__ import annotations

from traceflops.results import Account, StepChoice, Verdict

_LOSSES = {
    "communication": "exposed communication",
    "idle": "idle time",
    "memory": "memory-bound work (element-wise kernels, copies and the like)",
    "other": "kernels of unknown category",
    "graph": "graph launches that show no kernels",
}


def verdict(total: Account, steps: StepChoice, devices: int) -> Verdict:
    """Return the largest loss of the chosen windows: whatever takes most and is not compute."""
    components = total.components
    if not devices:
        return Verdict("There is no device work in this trace.", None, None)
    if components.window_ns == 0:
        return Verdict("The chosen window has no length.", None, None)
    parts = components.parts()
    loss = max(_LOSSES, key=lambda name: parts[name])
    share = parts[loss] / components.window_ns
    if parts[loss] == 0:
        return Verdict("All of the device time is compute.", None, None)
    compute = f"{components.compute_ns / components.window_ns:.0%}"
    of = "each step" if steps.used else "the device time"
    return Verdict(
        f"{compute} of device time is compute. The largest loss is {_LOSSES[loss]}: "
        f"{share:.0%} of {of}.",
        loss,
        share,
    )
