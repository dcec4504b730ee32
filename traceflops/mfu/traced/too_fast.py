"""Operators that a CPU cannot compute in the time that they take: they only launch their work."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from traceflops.attribution.op_kernels import Attribution
from traceflops.table.columns import codes, names, numbers
from traceflops.table.grouping import groups
from traceflops.table.trace import Trace

_NO_CPU: Final = 100_000
"""FLOP per ns (100 TFLOP/s): vector units of the largest CPUs reach a quarter, their matrix units
all of it, but only in products that take far longer than smaller ones."""
_LESS: Final = 8  # for so many times less work a CPU at its fastest takes less than half as long


class TooFast(NamedTuple):
    """An operator whose largest call takes hardly longer than calls of `times` less work."""

    operator: str
    flops_per_ns: float
    times: int


def too_fast(trace: Trace, attribution: Attribution) -> TooFast | None:
    """Return the operator whose times most clearly are not those of computing; None if all may be.

    Calls of no length have lost it. Of each operator, the call with the most FLOPs is compared with
    calls of far fewer: where a CPU computes, these take less than half its time. Of the operators
    found, that of the highest rate counts.
    """
    work, op = attribution.work, attribution.executed
    flops = work.of_ops(work.at_least)[op]
    name, dur_ns = codes(trace.ops["name"])[op], numbers(trace.ops["dur_ns"])[op]
    found, timed = [], np.flatnonzero(dur_ns > 0)
    for code, places in groups(name[timed]):
        rows = timed[places]
        most = rows[np.argmax(flops[rows])]
        rate = float(flops[most]) / int(dur_ns[most])
        less = rows[flops[rows] <= flops[most] // _LESS]
        if rate >= _NO_CPU and len(less) and 2 * np.median(dur_ns[less]) >= dur_ns[most]:
            times = int(flops[most] // flops[less].max())
            found.append(TooFast(names(trace.ops["name"])[code], rate, times))
    return max(found, key=lambda one: one.flops_per_ns, default=None)
