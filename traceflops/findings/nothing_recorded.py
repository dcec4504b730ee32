"""Why a trace has no work of a program, where it tells: the profiler failed, or ran alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from traceflops.facts import Fact, fact
from traceflops.table.columns import is_one_of, matching, numbers
from traceflops.table.trace import NO_CUPTI
from traceflops.timeline.intervals import Intervals

if TYPE_CHECKING:
    from traceflops.table.trace import Trace

_OF_PROFILER: Final = re.compile(r"(^|/)torch/profiler/")
_NEARLY_ALL: Final = 0.9
"""Of the time of Python functions: the others call the profiler."""


def nothing_recorded(trace: Trace) -> Fact | None:
    """Return why a trace has no work of the program, None where it has some or nothing tells."""
    if trace.activities.num_rows:
        return None
    if any(note.code == NO_CUPTI for note in trace.notes):
        return fact("verdict.no-cupti")
    marks = trace.marks
    python = is_one_of(marks["kind"], "python")
    own = python & matching(marks["name"], _OF_PROFILER.search)
    if trace.ops.num_rows or not own.any():
        return None
    start, dur = (numbers(marks[name]) for name in ("start_ns", "dur_ns"))
    all_ns, own_ns = (
        Intervals.of(start[some], (start + dur)[some]).length_ns for some in (python, own)
    )
    return fact("verdict.only-profiler") if own_ns >= _NEARLY_ALL * all_ns else None
