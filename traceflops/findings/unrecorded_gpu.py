"""Signs of a GPU whose work was not recorded, in what its CPU did: launches, waits, reads."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from traceflops.attribution.host_events import host_span
from traceflops.attribution.idle_classes import waiting_calls
from traceflops.attribution.op_kernels import Attribution
from traceflops.devices.peaks import PER_TERA
from traceflops.facts import Fact, fact
from traceflops.findings.finding import WORTH_SAYING
from traceflops.mfu.traced.executed import allocates_on_gpu, too_fast
from traceflops.remedies import GPUS_LISTED, is_cut_off
from traceflops.table.columns import ABSENT, codes, matching, names, numbers
from traceflops.table.grouping import (
    differ_from_before,
    distinct,
    in_order,
    joint_codes,
    used_names,
)
from traceflops.table.patterns import (
    WAITS_FOR_DEVICE,
    operator_of_cpus,
    operator_of_gpus,
    operator_of_mps,
    started,
)
from traceflops.table.trace import Trace
from traceflops.timeline.intervals import Intervals
from traceflops.timeline.records import Account

_LITTLE: Final = 0.1
_READS: Final = "aten::_local_scalar_dense"
_BACKWARD: Final = re.compile(r"autograd::engine::evaluate_function: ")
_OF_LISTS: Final = re.compile(r"aten::_foreach_")
GPU_FREES: Final = re.compile(r"(cuda|hip)Free$|cuMemFree(_v2)?$")
"""Calls that give memory back once the GPU has done all its work."""
LACKS_GPU: Final = frozenset(
    f"verdict.on-cpu-{why}"
    for why in ("of-mps", "of-gpu", "allocates", "backward", "too-fast", "listed")
)
"""Codes of the statements that operators launched work of a GPU that is not recorded."""


class OfGpu(NamedTuple):
    """What the CPU tells about a GPU without records: `lacks`, the sign that there is one, `waits`.

    With `is_queue`, operators wait in the same calls in which they launch. `recorded_ns` is the
    time that the shares in `waits` are of; None if they are of steps, or if there are none.
    """

    lacks: Fact | None = None
    waits: tuple[Fact, ...] = ()
    is_queue: bool = False
    recorded_ns: int | None = None


def of_gpu(trace: Trace, attribution: Attribution, steps: Intervals | None = None) -> OfGpu:
    """Return what a trace without GPU work still tells about a GPU; `attribution` has its FLOPs.

    `steps` is the time of the steps that shares are of; None without steps.
    """
    operators = used_names(trace.ops["name"])
    if (operator := operator_of_mps(operators)) is not None:
        return OfGpu(fact("verdict.on-cpu-of-mps", operator=operator), is_queue=True)
    operator = operator_of_gpus(operators)
    lacks = fact("verdict.on-cpu-of-gpu", operator=operator) if operator else None
    if lacks is None and allocates_on_gpu(trace):
        lacks = fact("verdict.on-cpu-allocates")
    if lacks is None and _has_device_thread(trace):
        lacks = fact("verdict.on-cpu-backward")
    if lacks is None and (found := too_fast(trace, attribution)) is not None:
        lacks = fact(
            "verdict.on-cpu-too-fast",
            operator=found.operator,
            tera=found.flops_per_ns / PER_TERA,
            times=found.times,
        )
    # Records of GPUs come last, so a file that is cut off may have lost them.
    is_listed = trace.source.facts.get(GPUS_LISTED, "0") != "0"
    if lacks is None and is_listed and is_cut_off(trace) and operator_of_cpus(operators) is None:
        lacks = fact("verdict.on-cpu-listed")
    waits, recorded_ns = _waits(trace, steps)
    return OfGpu(lacks, waits, recorded_ns=recorded_ns)


def _has_device_thread(trace: Trace) -> bool:
    """Return whether the backward pass has threads of its own, and an optimizer takes lists.

    Both happen for tensors on a GPU: on a CPU, autograd runs on the thread that calls it, and
    optimizers by default take tensors one by one.
    """
    ops = trace.ops
    backward, lists = (matching(ops["name"], name.match) for name in (_BACKWARD, _OF_LISTS))
    owner, thread, start = (
        numbers(ops[name], ABSENT) for name in ("process", "thread", "start_ns")
    )
    threads = joint_codes(owner, thread)
    if not (backward.any() and lists.any()):
        return False
    order = in_order(threads, start)
    first = order[differ_from_before(threads[order])]  # the first operator of each thread
    is_own = backward[first]
    of_backward = np.isin(threads[backward], threads[first[is_own]])
    return bool(of_backward.all() and not is_own.all())


def _waits(trace: Trace, steps: Intervals | None) -> tuple[tuple[Fact, ...], int | None]:
    """Return a statement on the share of time in calls that may wait for a GPU, and its basis.

    The share is of the steps; without steps it is of all recorded time, which is returned as well.
    No statement is returned if no call after the last launch waits for the GPU, which may have
    worked on, or if there are several processes, whose times overlap.
    """
    calls, ops = trace.calls, trace.ops
    (process, start, end), (_, op_start, op_end) = host_span(calls), host_span(ops)
    launches = np.flatnonzero(started(calls))
    finishes = np.flatnonzero(matching(calls["name"], WAITS_FOR_DEVICE.match))
    is_told = len(launches) > 0 and len(finishes) > 0 and len(distinct(process)) == 1
    if not is_told or start[finishes].max() < start[launches].max():
        return (), None
    rows = np.flatnonzero(waiting_calls(calls) | matching(calls["name"], GPU_FREES.match))
    low, high = np.append(start, op_start).min(), np.append(end, op_end).max()
    recorded, waits = Intervals.one(low, high), Intervals.of(start[rows], end[rows])
    told = recorded if steps is None else steps
    if not (recorded.length_ns and told.length_ns):
        return (), None
    # Who leads is told by all recorded time: a wait after the last step is for that step, too.
    code = "cpu-leads-gpu" if waits.length_ns < _LITTLE * recorded.length_ns else "cpu-waits"
    of = fact("basis.recording" if steps is None else "basis.step")
    name, waits_ns = codes(calls["name"])[rows], told.length_within(start[rows], end[rows])
    most = names(calls["name"])[np.bincount(name, waits_ns).argmax()] if waits_ns.any() else None
    share = waits.intersect(told).length_ns / told.length_ns
    said = fact(f"verdict.{code}", share=share, of=of, name=most)
    return (said,), told.length_ns if steps is None else None


def reading(kernels: pa.Table, total: Account, of: Fact) -> tuple[Fact, ...]:
    """Return the share of time in which operators read values of an unrecorded GPU, if large."""
    for row in kernels.to_pylist():
        share = row["sum_ns"] / max(total.components.window_ns, 1)
        if row["name"] == _READS and share >= WORTH_SAYING:
            return (fact("verdict.cpu-reads", name=row["name"], share=share, of=of),)
    return ()
