"""Rule `uneven-steps`: what steps take beyond the median, if that is much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING, Final

from traceflops.findings.finding import Finding, severity_of
from traceflops.units import PART_NAMES, duration, percent
from traceflops.windows import late_after

if TYPE_CHECKING:
    from traceflops.windows import DeviceReport, StepSpread

UNEVEN_STEPS: Final = "uneven-steps"
_LEAST_STEPS: Final = 3
"""Of two steps the median is their mean, and one is always longer."""


def uneven_findings(
    spread: StepSpread | None, devices: Sequence[DeviceReport]
) -> Iterator[Finding]:
    """Give a finding where the steps used take much more together than if each were the median.

    What mending it would gain is not told: longer steps may have had more to do.
    """
    if spread is None or len(spread.used) < _LEAST_STEPS:
        return
    whole_ns = sum(one.ns for one in spread.used)
    share = spread.beyond_median_ns / whole_ns if whole_ns else 0.0
    severity = severity_of(share)
    if severity is None:
        return
    yield Finding(
        rule=UNEVEN_STEPS,
        severity=severity,
        sentence=(
            f"Steps slower than the median cost {percent(share)} of the step time. "
            f"{_of_longest(spread, devices)}"
        ),
        share=share,
        mfu_without=None,
        evidence=("steps",),
    )


def _of_longest(spread: StepSpread, devices: Sequence[DeviceReport]) -> str:
    """Return by how much the longest step is longer than the median, and what most of it is.

    Idle time at the end of its window is named after the next step, which came late.
    """
    longest = spread.longest
    more_ns = longest.ns - spread.median_ns
    text = f"Step {longest.step} took {duration(more_ns)} longer than the median"
    name, part_ns = _largest_part(spread)
    if 2 * part_ns <= more_ns:
        return f"{text}."
    late = late_after(devices, longest.step, more_ns) if name == "idle" else None
    where = f" before step {late[0]}" if late is not None else ""
    return f"{text}, mostly {PART_NAMES[name]}{where}."


def _largest_part(spread: StepSpread) -> tuple[str, int]:
    """Return the component of which the longest step has most more than the median of it."""
    steps = [one.components.parts() for one in spread.used]
    own = spread.longest.components.parts()
    more = {name: ns - round(median(step[name] for step in steps)) for name, ns in own.items()}
    name = max(more, key=lambda item: more[item])
    return name, more[name]
