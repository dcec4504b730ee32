"""`what_if`: questions to the recording that an Analysis is of."""

from __future__ import annotations

from traceflops.analysis.result import Analysis
from traceflops.errors import UsageError
from traceflops.replay import WhatIf


def what_if(analysis: Analysis, *edits: str) -> WhatIf:
    """Return how long the steps would take with edits such as `data_input=0`, and what decides it.

    docs/replay.md lists what can be asked. Raises UsageError where an edit is none, or the
    recording does not hold what it takes to answer.
    """
    if analysis.of_no_job:
        raise UsageError("what-if needs one job", "choose one with --job")
    if analysis.replay is None:
        hint = "ask it of the traces that the summaries are of"
        raise UsageError("what-if needs single kernels and calls, and summaries hold sums", hint)
    return analysis.replay.what_if(edits)
