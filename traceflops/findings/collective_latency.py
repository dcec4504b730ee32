"""Collectives that are many and short: how long they take is latency, not bytes."""

from __future__ import annotations

import numpy as np

from traceflops.facts import Fact, fact
from traceflops.findings.case import Case, limit
from traceflops.table.columns import IntArray


def latency_of(case: Case, dur_ns: IntArray) -> Fact | None:
    """Return that collectives are many and hardly longer than their latency, None if not.

    `dur_ns` is how long each collective of the chosen windows takes.
    """
    rule, count = "exposed-communication", len(dur_ns) // max(case.windows_used, 1)
    median_ns = int(np.median(dur_ns)) if count else 0
    if count < limit(case, rule, "many") or median_ns > limit(case, rule, "latency_ns"):
        return None
    per = "step" if case.steps.used else "window"
    return fact(f"{rule}.latency", count=count, median_ns=median_ns, per=per)
