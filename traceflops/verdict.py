"""The one sentence at the top: how much of the devices was used, and the largest loss."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from traceflops.results import Account, StepChoice, Verdict

if TYPE_CHECKING:
    from traceflops.mfu.measurement import Measurement

_LOSSES = {
    "communication": "exposed communication",
    "idle": "idle time",
    "memory": "memory-bound work",
    "other": "kernels of unknown category",
    "graph": "graph launches that show no kernels",
}


def verdict(
    total: Account, steps: StepChoice, devices: int, measured: Measurement | None = None
) -> Verdict:
    """Return the largest loss of the chosen windows: whatever takes most and is not compute."""
    found = _loss(total, steps, devices)
    figure = measured.figure if measured is not None else None
    return found if figure is None else replace(found, sentence=f"{figure}. {found.sentence}")


def _loss(total: Account, steps: StepChoice, devices: int) -> Verdict:
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
    of = "each step" if steps.used else "the device time"
    return Verdict(
        f"The largest loss is {_LOSSES[loss]}: {_percent(share)} of {of}; compute is "
        f"{_percent(components.compute_ns / components.window_ns)}.",
        loss,
        share,
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.001 or share == 0 else "<0.1 %"
