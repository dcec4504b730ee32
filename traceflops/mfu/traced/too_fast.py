"""Operators that take too little time to compute on the CPU: they only launch their work."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from traceflops.attribution.op_kernels import Attribution
from traceflops.table.columns import codes, names, numbers
from traceflops.table.grouping import groups
from traceflops.table.trace import Trace

_NO_CPU: Final = 100_000
"""FLOP per ns (100 TFLOP/s). Vector units of the largest CPUs reach a quarter of it. Their matrix
units reach it, but only in large products, which then take far longer than smaller ones."""
_LESS: Final = 8  # a CPU takes less than half as long for so many times less work


class TooFast(NamedTuple):
    """An operator whose largest call takes hardly longer than calls of `times` times less work."""

    operator: str
    flops_per_ns: float
    times: int


def too_fast(trace: Trace, attribution: Attribution) -> TooFast | None:
    """Return the operator of the highest rate that cannot have computed on the CPU; else None.

    Per operator, the call with the most FLOPs is compared with calls of far fewer: if a CPU
    computes, these take less than half as long. Calls of 0 ns have lost their time.
    """
    work, op = attribution.work, attribution.executed
    flops = work.of_ops(work.at_least)[op]
    name, dur_ns = codes(trace.ops["name"])[op], numbers(trace.ops["dur_ns"])[op]
    too_fast_ops, timed = [], np.flatnonzero(dur_ns > 0)
    for code, members in groups(name[timed]):
        rows = timed[members]
        largest = rows[np.argmax(flops[rows])]
        rate = float(flops[largest]) / int(dur_ns[largest])
        small = rows[flops[rows] <= flops[largest] // _LESS]
        if rate >= _NO_CPU and len(small) and 2 * np.median(dur_ns[small]) >= dur_ns[largest]:
            times = int(flops[largest] // flops[small].max())
            too_fast_ops.append(TooFast(names(trace.ops["name"])[code], rate, times))
    return max(too_fast_ops, key=lambda operator: operator.flops_per_ns, default=None)
