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
_BETWEEN: Final = 64  # more operations between two checks are of the program, not of trials


def trials(prepared: Prepared) -> Fact | None:
    """Return the statement that most GPU work of a recording without steps is trials of kernels.

    Work between two checks is trials, or the first use of what was chosen, unless it is much: a
    function that is compiled late has its own trials.
    """
    is_check = matching(prepared.trace.activities["name"], _CHECKS.match)
    if prepared.plan.choice.used or not is_check.any():
        return None
    for account in prepared.accounts.values():
        rows = account.rows
        checks = np.flatnonzero(is_check[rows.row])
        if not len(checks):
            continue
        near = np.diff(checks) <= _BETWEEN
        first, last = checks[:-1][near], checks[1:][near]
        trying = Intervals.of(rows.start_ns[first], rows.end_ns[last])
        busy = Intervals.of(rows.start_ns, rows.end_ns)
        if busy.intersect(trying).length_ns > _MOST * busy.length_ns:
            rest_ns = rows.span[1] - int(rows.end_ns[last].max())
            return fact("start-up.trials", count=len(checks), rest_ns=rest_ns or None)
    return None
