"""Operators timed by events on the GPU, as PyTorch's old profiler does: who waits for whom.

An event after an operator comes when its work is done, so times between events include gaps: when
kernels run is unknown.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec.structs import replace

from traceflops.facts import Fact, fact
from traceflops.findings.finding import Verdict
from traceflops.findings.rules import thresholds
from traceflops.remedies import LEGACY
from traceflops.table.columns import numbers
from traceflops.table.trace import Trace
from traceflops.timeline.records import Components

_RULE: Final = "event-times"


def waits_for_host(trace: Trace) -> Fact | None:
    """Return how many operators start on the GPU as soon as on the CPU, None if too few do.

    If most do, and the GPU is done as soon as the CPU, then the GPU waits for the host.
    """
    works, ops = trace.activities, trace.ops
    # In LEGACY traces a correlation is -1 - (row of its operator).
    row = -1 - numbers(works["correlation"], 0)
    if trace.source.tool != LEGACY or not len(row) or not (is_op := row >= 0).any():
        return None
    # When the first work of each operator begins on the GPU
    begins = np.full(ops.num_rows, np.iinfo(np.int64).max)
    start = numbers(works["start_ns"])
    np.minimum.at(begins, row[is_op], start[is_op])
    called = numbers(ops["start_ns"])
    timed = np.unique(row[is_op])
    limits = thresholds()[_RULE]
    most_ns = limits["most_lead_ns"]
    at_once = float((begins[timed] - called[timed] <= most_ns).mean())
    end_ns = int((start + numbers(works["dur_ns"])).max())
    left_ns = end_ns - int((called + numbers(ops["dur_ns"])).max())
    if at_once < limits["least_at_once"] or left_ns > most_ns:
        return None
    return fact("verdict.waits-for-host", share=at_once, within_ns=most_ns)


def of_events(verdict: Verdict, trace: Trace, components: Components) -> Verdict:
    """Return a verdict that does not say how busy the GPU is, if events are all that timed it."""
    covered_ns = components.window_ns - components.idle_ns - components.start_up_ns
    if trace.source.tool != LEGACY or not covered_ns:
        return verdict
    unknown = fact("verdict.event-times", share=covered_ns / components.window_ns)
    if waits := waits_for_host(trace):
        return Verdict((waits, unknown), "launch-bound")
    parts = [unknown if part.code.startswith("verdict.busy") else part for part in verdict.parts]
    return replace(verdict, parts=tuple(parts))
