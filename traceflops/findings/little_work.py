"""A recording of hardly any GPU work: what it takes to start, and nothing of how a program runs.

    |<--------------- recorded --------------->|
    |-------- start-up --------|GPU|---------- |      # milliseconds, and busy for less

Copies, idle time and launches in such a window are those of a beginning. Fills before the first
kernel are of memory that was just allocated: they are start-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from traceflops.attribution.host_events import host_span
from traceflops.attribution.outside_work import outside_gpu_work
from traceflops.facts import Fact, Value, fact
from traceflops.table.columns import IntArray, codes, is_one_of, numbers
from traceflops.table.grouping import distinct, group_rows
from traceflops.table.trace import Trace
from traceflops.timeline.account import DeviceAccount
from traceflops.timeline.intervals import NEVER, Intervals
from traceflops.windows.prepared import Prepared
from traceflops.windows.selection import Selection

LITTLE_WORK: Final = "little-work"
RECORD: Final = "little-work.record"
"""The code of what to record instead."""
_FEWEST: Final = 2
"""Of a single kernel, or launch, nothing can repeat."""


def _cold_call(prepared: Prepared, limits: Mapping[str, float]) -> Fact | None:
    """Return that each kernel runs once, as at first: its launch loads it, and the GPU waits.

    None where a kernel runs again, where most launches are not that slow, or where the GPU works
    for much of the time.
    """
    trace = prepared.trace
    rows = np.flatnonzero(is_one_of(trace.activities["kind"], "kernel"))
    process, name = (
        numbers(trace.activities["process"])[rows],
        codes(trace.activities["name"])[rows],
    )
    call = prepared.linked.links.call_of_activity[rows]
    is_new = len(rows) >= _FEWEST and len(group_rows((process, name))[1]) == len(rows)
    # Of several GPUs, one may be idle because others work.
    if not is_new or len(prepared.accounts) != 1 or (call < 0).any():
        return None
    took_ns = numbers(trace.calls["dur_ns"])[distinct(call)]  # a graph is one launch of many
    [account] = prepared.accounts.values()
    first_ns, end_ns = account.rows.span
    busy_ns = Intervals.of(account.rows.start_ns, account.rows.end_ns).length_ns
    is_idle = busy_ns <= limits["cold_share"] * (end_ns - first_ns)
    if not is_idle or len(took_ns) < _FEWEST or np.median(took_ns) < limits["cold_launch_ns"]:
        return None
    values = {"busy_ns": busy_ns, "window_ns": end_ns - first_ns, "launch_ns": int(took_ns.sum())}
    return fact(f"{LITTLE_WORK}.cold", kernels=len(rows), **values)


def little_work(prepared: Prepared, limits: Mapping[str, float]) -> tuple[Fact, ...]:
    """Return that a recording holds too little GPU work to judge, and what to record instead.

    Nothing where it has steps, where a part of it is chosen, or where there is more than `limits`,
    the thresholds of LITTLE_WORK.
    """
    if prepared.selection != Selection() or prepared.plan.choice.used or prepared.on_host:
        return ()
    if (cold := _cold_call(prepared, limits)) is not None:
        return cold, fact(RECORD)
    spans_ns, busy_ns, fills_ns, begun = [0], [0], 0, []
    for account in prepared.accounts.values():
        start_ns, end_ns = _work(prepared, account)
        begun.append(account.rows.span[0])
        fills_ns += int((account.rows.end_ns - account.rows.start_ns).sum())
        fills_ns -= int((end_ns - start_ns).sum())
        spans_ns.append(int(end_ns.max() - start_ns.min()) if len(start_ns) else 0)
        busy_ns.append(Intervals.of(start_ns, end_ns).length_ns)
    if max(spans_ns) > limits["most_window_ns"] or max(busy_ns) > limits["most_busy_ns"]:
        return ()
    rest = outside_gpu_work(prepared)
    if rest is None or max(busy_ns) > limits["most_share"] * rest.recorded_ns:
        return ()
    outside_ns = rest.before_ns + rest.after_ns
    if outside_ns < max(limits["least_outside"] * rest.recorded_ns, 1):
        return ()
    is_before = 2 * rest.before_ns >= rest.recorded_ns
    code = "after-start-up" if is_before else "of-recording"
    if is_before and 2 * _recorded_before(prepared.trace, int(min(begun))) < rest.before_ns:
        code = "after-nothing"
    values: dict[str, Value] = {"busy_ns": max(busy_ns), "window_ns": max(spans_ns)}
    values["fills_ns"] = fills_ns or None
    times = {"before_ns": rest.before_ns, "recorded_ns": rest.recorded_ns}
    return fact(f"{LITTLE_WORK}.{code}", **values, **times), fact(RECORD)


def _recorded_before(trace: Trace, time_ns: int) -> int:
    """Return how many ns before a time something of the host is recorded.

    Ranges that go on after it are left out: they are about more than that time.
    """
    spans = [host_span(table)[1:] for table in (trace.calls, trace.ops)]
    _, start_ns, end_ns = host_span(trace.marks)
    is_before = end_ns <= time_ns
    spans.append((start_ns[is_before], end_ns[is_before]))
    starts, ends = (np.concatenate(column) for column in zip(*spans, strict=True))
    return Intervals.of(starts, ends).within(NEVER, time_ns).length_ns


def _work(prepared: Prepared, account: DeviceAccount) -> tuple[IntArray, IntArray]:
    """Return start and end in ns of what a device does, without fills before its first kernel."""
    kind, rows = prepared.trace.activities["kind"], account.rows
    is_kernel, is_fill = (is_one_of(kind, name)[rows.row] for name in ("kernel", "memset"))
    counts = ~is_fill | (np.cumsum(is_kernel) > 0) | (not is_kernel.any())
    return rows.start_ns[counts], rows.end_ns[counts]
