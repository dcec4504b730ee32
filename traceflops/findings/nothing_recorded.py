"""Why a trace has no work of a program, where it tells: the profiler failed, or ran alone."""

from __future__ import annotations

import re
from typing import Final

from msgspec.structs import replace

from traceflops.devices.missing_input import skipped
from traceflops.facts import Fact, fact
from traceflops.findings.finding import Verdict
from traceflops.remedies import CPU_SAMPLES
from traceflops.table.columns import ABSENT, is_one_of, matching, numbers
from traceflops.table.trace import NO_CUPTI, Trace
from traceflops.timeline.intervals import Intervals

_OF_PROFILER: Final = re.compile(r"(^|/)torch/profiler/")
_UNNAMED: Final = "(unnamed range)"
NO_PROGRAM: Final = "verdict.no-program"
"""The code of what is said where nothing is of the program."""
_NO_WORK, _ON_CPU = "verdict.no-gpu-operations", "verdict.on-cpu"
_ONLY, _MISSING = "verdict.only-cpu-records", "verdict.records-missing"
_NEARLY_ALL: Final = 0.9
"""Of the time of Python functions: the others call the profiler."""


def nothing_recorded(trace: Trace) -> Fact | None:
    """Return why a trace has no work of the program, None where it has some or nothing tells."""
    if trace.activities.num_rows:
        return None
    if any(note.code == NO_CUPTI for note in trace.notes):
        return fact("verdict.no-cupti")
    if skipped(trace.notes, trace.ops.num_rows) is not None:
        return None
    if (own := _only_starts(trace)) is not None:
        return own
    marks = trace.marks
    python = is_one_of(marks["kind"], "python")
    of_profiler = python & matching(marks["name"], _OF_PROFILER.search)
    if trace.ops.num_rows or not of_profiler.any():
        return None
    start, dur = (numbers(marks[name]) for name in ("start_ns", "dur_ns"))
    all_ns, own_ns = (
        Intervals.of(start[some], (start + dur)[some]).length_ns for some in (python, of_profiler)
    )
    return fact("verdict.only-profiler") if own_ns >= _NEARLY_ALL * all_ns else None


def of_what_was_read(verdict: Verdict, trace: Trace, lost: int) -> Verdict:
    """Return a verdict that denies no work of a GPU that may have been skipped.

    `lost` is the number of calls without a record. CPU samples are told where nothing else is.
    """
    why, samples = (
        skipped(trace.notes, trace.ops.num_rows),
        trace.source.event_counts.get(CPU_SAMPLES, 0),
    )
    count = why.values.get("count") if why is not None else None
    may_be_lost = why is not None and not (isinstance(count, int) and count < lost)
    parts, headline = list[Fact](), verdict.headline
    for part in verdict.parts:
        kinds = part.values.get("kinds") or ()
        if part.code == _ON_CPU:
            kinds = (fact("verdict.cpu-operators"),)
        elif part.code == _NO_WORK and samples:
            kinds = (fact("verdict.cpu-samples", count=samples),)
        if part.code in (_NO_WORK, _ON_CPU, _ONLY) and why is not None:
            part, headline = fact("verdict.none-read", why=why, kinds=kinds), "records-missing"
        elif part.code == _NO_WORK and kinds:
            part = fact(_ONLY, kinds=kinds)
        elif part.code == _MISSING and may_be_lost:
            part = fact(_MISSING, calls=part.values["calls"], how=None, why=why)
        parts.append(part)
    return replace(verdict, parts=tuple(parts), headline=headline)


def _only_starts(trace: Trace) -> Fact | None:
    """Return that all records are of the profiler at its start, None where some are not.

    Overhead in a queue, such as an allocation for which it waits, is due to the program.
    """
    marks = trace.marks
    # Ranges without a name tell nothing of a program either.
    is_own = is_one_of(marks["kind"], "overhead") | is_one_of(marks["name"], _UNNAMED)
    is_own &= numbers(marks["stream"], ABSENT) == ABSENT
    if trace.ops.num_rows or trace.calls.num_rows or trace.totals.num_rows:
        return None
    if not is_one_of(marks["kind"], "overhead").any() or not is_own.all():
        return None
    start, dur = (numbers(marks[name], 0) for name in ("start_ns", "dur_ns"))
    return fact(NO_PROGRAM, span_ns=int((start + dur).max() - start.min()))
