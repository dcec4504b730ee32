"""Rule `trace-health`: what a recording is not fit for, and how to record better."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from traceflops.findings.finding import Finding

if TYPE_CHECKING:
    from traceflops.findings.case import Case

RULE: Final = "trace-health"
_UNFIT: Final = {
    "earlier-work-missing": ("Idle time at its start is not judged.", "Start recording earlier."),
    "no-calls": (
        "Idle time cannot be explained and gains not predicted.",
        "Record the calls of the CPU, too.",
    ),
    "ranks-missing": (
        "Waiting for other ranks is a range.",
        "Record all ranks of the job for the same steps.",
    ),
    "profiler-overhead": (
        "Host times include the profiler's own.",
        "Record without stacks, shapes and memory, and compare the step time.",
    ),
    "rows-lost": ("Sums are too small.", "Record fewer steps with larger buffers."),
    "times-too-coarse": (
        "Short gaps and kernels are not exact.",
        "Record with the current version of the profiler.",
    ),
    "unlinked": (
        "Some GPU work has no known launch.",
        "Record calls of the CPU and the GPU together.",
    ),
    "device-before-launch": (
        "Launch latency and how far the host is ahead are not exact.",
        "Record with the current version of driver and profiler.",
    ),
    "clocks-not-aligned": (
        "Times of different ranks cannot be compared.",
        "Record all ranks at the same time.",
    ),
}
"""By code of a note: what the recording is unfit for, and how to record better."""


def trace_health(case: Case) -> Iterator[Finding]:
    """Give a finding per note that makes the recording unfit for a statement."""
    for code, (unfit, remedy) in _UNFIT.items():
        note = next((note for note in case.notes if note.code == code), None)
        if note is not None:
            yield Finding(
                rule=RULE,
                severity="low",
                sentence=f"{note.text} {unfit}",
                share=0.0,
                mfu_without=None,
                evidence=("notes",),
                title="The recording is incomplete",
                owner="yours",
                remedy=remedy,
            )
