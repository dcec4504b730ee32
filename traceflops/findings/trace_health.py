"""Rule `trace-health`: what a recording is not fit for, and how to record better."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from traceflops.findings.case import limit, share_of_window
from traceflops.findings.finding import Finding
from traceflops.remedies import PYTORCH, family, remedy
from traceflops.units import does, percent, several

if TYPE_CHECKING:
    from traceflops.findings.case import Case

RULE: Final = "trace-health"
_STEPS: Final = "Record five steps after two of warm-up"
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
    """Give what makes the recording unfit for a statement: a finding per note, and low coverage."""
    yield from _of_notes(case)
    if case.windows_used and not case.on_host:
        yield from _coverage(case)


def _coverage(case: Case) -> Iterator[Finding]:
    """Give a finding where much of the window has no record, and one where steps are few."""
    source, steps, calls = case.source.format, len(case.steps.used), case.total.launches
    nameless = (one for one in case.idle.culprits if one.kind == "host_unrecorded")
    share = share_of_window(case, sum(one.idle_ns for one in nameless if not one.label))
    if share >= limit(RULE, "unrecorded"):
        how = remedy(source, "stacks") or remedy(source, "annotations" if calls else "calls")
        told = f"For {percent(share)} of the time neither GPU nor CPU has a record of work."
        yield _finding("Much of the window has no record", told, f"Record with {how}.")
    if 0 < steps < limit(RULE, "few_steps"):
        told = f"Only {several(steps, 'step')} {does(steps, 'are')} used: variation is not known."
        how = " (torch.profiler.schedule(wait=1, warmup=2, active=5))"
        is_torch = family(source) == PYTORCH
        yield _finding("Few steps are recorded", told, f"{_STEPS}{how * is_torch}.")


def _of_notes(case: Case) -> Iterator[Finding]:
    for code, (unfit, how) in _UNFIT.items():
        note = next((note for note in case.notes if note.code == code), None)
        if note is not None:
            yield _finding("The recording is incomplete", f"{note.text} {unfit}", how)


def _finding(title: str, sentence: str, how: str) -> Finding:
    return Finding(
        rule=RULE,
        severity="low",
        sentence=sentence,
        share=0.0,
        mfu_without=None,
        evidence=("notes",),
        title=title,
        owner="yours",
        remedy=how,
    )
