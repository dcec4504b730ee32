"""Trials of kernels: a framework runs each that it could use, to choose the fastest."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from traceflops.facts import Fact, fact
from traceflops.table.columns import matching
from traceflops.timeline.intervals import Intervals
from traceflops.windows.prepared import Prepared

_CHECKS: Final = re.compile(r"redzone_checker\b")
"""The kernel with which XLA and TensorFlow check that a trial wrote only to its own memory."""
_MOST: Final = 0.5  # of the time of GPU work


def trials(prepared: Prepared) -> Fact | None:
    """Return the statement that most GPU work of a recording without steps is trials of kernels.

    Work between the first and the last check is trials, or the first use of what was chosen.
    """
    is_check = matching(prepared.trace.activities["name"], _CHECKS.match)
    if prepared.plan.choice.used or not is_check.any():
        return None
    for account in prepared.accounts.values():
        rows = account.rows
        checks = np.flatnonzero(is_check[rows.row])
        if not len(checks):
            continue
        start_ns, end_ns = int(rows.start_ns[checks].min()), int(rows.end_ns[checks].max())
        busy = Intervals.of(rows.start_ns, rows.end_ns)
        if busy.within(start_ns, end_ns).length_ns > _MOST * busy.length_ns:
            rest_ns = rows.span[1] - end_ns
            return fact("start-up.trials", count=len(checks), rest_ns=rest_ns or None)
    return None
