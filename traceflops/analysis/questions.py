"""`what_if`: questions to the recording that an Analysis is of."""

from __future__ import annotations

from traceflops.analysis.result import Analysis
from traceflops.errors import UsageError
from traceflops.replay import Replay, WhatIf


def what_if(analysis: Analysis, *edits: str) -> WhatIf:
    """Return how long the steps would take with edits such as `data_input=0`, and what decides it.

    docs/replay.md lists what can be asked. Raises UsageError where an edit is none, or the
    recording does not hold what it takes to answer.
    """
    if analysis.of_no_job or analysis.prepared is None:
        raise UsageError("what-if needs one recording", "choose one with --job, not a summary")
    measured = analysis.measured
    mfu = float(measured.mfu) if measured.mfu is not None else None
    phases = measured.executed.phases
    return Replay(analysis.prepared, analysis.ranks, phases, mfu).what_if(edits)
