"""Calls that start work on a GPU: which ones launch, and why their work may have no record."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from traceflops.remedies import FULL_BUFFER
from traceflops.table.columns import ABSENT, BoolArray, IntArray, is_one_of, matching, numbers
from traceflops.table.grouping import group_least, group_most, is_among, joint_codes
from traceflops.table.patterns import STARTS, started
from traceflops.table.trace import Trace
from traceflops.timeline.idle import LONGEST_START_NS

_CAPTURE: Final = {1: re.compile(r"\w*StreamBeginCapture"), -1: re.compile(r"\w*StreamEndCapture")}

_FEW: Final = 0.1  # of the recorded calls


def launching(trace: Trace, *, failed: bool = False) -> BoolArray:
    """Return, per call, whether it launched kernels or graphs, or with `failed` did so in vain.

    A call of the driver with the correlation of a launch of the runtime is the same launch again.
    """
    calls = trace.calls
    is_launch = started(calls, failed=failed)
    correlation = numbers(calls["correlation"], ABSENT)
    key = joint_codes(numbers(calls["process"]), correlation)
    is_driver = is_one_of(calls["api"], "driver")
    is_of_runtime = (correlation != ABSENT) & is_among(key, key[is_launch & ~is_driver])
    return np.asarray(is_launch & ~(is_driver & is_of_runtime))


def linkable(trace: Trace) -> BoolArray:
    """Return, per call, whether a record of its work would be linked to it by a correlation.

    process of the call has work with a correlation                     yes
    process of the call has work, all without correlation               no
    it has no work, and a process without calls has some: maybe its     no
    it has no work, and no process without calls has any                yes
    """
    work_process = numbers(trace.activities["process"])
    process = numbers(trace.calls["process"])
    has_correlation = numbers(trace.activities["correlation"], ABSENT) != ABSENT
    is_linkable = is_among(process, work_process[has_correlation])
    if is_among(work_process, process).all():
        is_linkable |= ~is_among(process, work_process)
    return is_linkable


def capturing(trace: Trace) -> BoolArray:
    """Return, per call, whether its process captures a stream at that time, on any thread."""
    process = numbers(trace.calls["process"])
    change = np.zeros(trace.calls.num_rows, np.int64)
    for begin_or_end, pattern in _CAPTURE.items():  # 1 or -1
        change += begin_or_end * matching(trace.calls["name"], pattern.match)
    # The number of open captures after each call, counted on from process to process.
    # calls: begin, launch, end, launch  ->  change [1 0 -1 0], depth [1 1 0 0]
    order = np.lexsort((numbers(trace.calls["start_ns"]), process))
    depth = np.cumsum(change[order])
    # A process has no open capture at the depth before its first call. If the recording began
    # inside a capture, the depth falls below that when it ends: then none is open at the lowest.
    # calls: launch, end, launch  ->  depth [0 -1 -1], lowest -1: the first launch is inside
    _, first, count = np.unique(process[order], return_index=True, return_counts=True)
    depth_before = np.append(0, depth)[first]
    outside = np.minimum(np.minimum.reduceat(depth, first), depth_before)
    is_inside = np.zeros(len(order), dtype=np.bool_)
    is_inside[order] = depth > np.repeat(outside, count)
    return is_inside


def still_queued(trace: Trace, recorded: BoolArray) -> BoolArray:
    """Return, per call, whether its work was still queued when the recording stopped.

    That holds after the last `recorded` call of a process, if its GPU work lasts to its last call.
    Calls 1 to 100, the last at 9.0 s; calls 1 to 60 are recorded, their work lasts until 9.1 s:
    then the work of calls 61 to 100 was still queued.
    It also holds for a few calls after all recorded work: the profiler did not wait for their end.
    And it holds if the GPU lags: all calls without a record, fewer than those with one, are the
    last to start work, and were made before the recorded work ended.
    """
    calls, activities = trace.calls, trace.activities
    process, start_ns = numbers(calls["process"]), numbers(calls["start_ns"])
    work_end_ns = numbers(activities["start_ns"]) + numbers(activities["dur_ns"])
    count = trace.processes.num_rows
    last_recorded_ns = group_most(process[recorded], start_ns[recorded], count)
    calls_end_ns = group_most(process, start_ns + numbers(calls["dur_ns"]), count)
    busy_until_ns = group_most(numbers(activities["process"]), work_end_ns, count)
    is_busy_to_the_end = calls_end_ns <= busy_until_ns + LONGEST_START_NS
    is_after = start_ns > last_recorded_ns[process]
    lacks = is_after & started(calls, STARTS)
    is_behind = lacks & (start_ns > busy_until_ns[process])
    is_before = ~is_after & ~recorded & started(calls, STARTS)
    behind, late, before, known = (
        np.bincount(process[which], minlength=count)
        for which in (is_behind, lacks, is_before, recorded)
    )
    lags = (behind + before == 0) & (late < known)
    are_few = (behind == late) & (late <= _FEW * known) & (known < FULL_BUFFER)
    return np.asarray(is_after & (is_busy_to_the_end | are_few | lags)[process])


def early(trace: Trace, recorded: BoolArray, lost: BoolArray, begins_ns: IntArray) -> BoolArray:
    """Return, per call, whether the record of its work is lost as the profiler was still starting.

        calls    a b c d e f g      work of a and b has no record
        GPU          |c d e f g|    window

    It is so for all lost calls of a process, or for none. Each must precede the first `recorded`
    call and the windows of the process (`begins_ns`). They must be fewer than the recorded calls.
    And calls must be too few to have filled a buffer of the profiler.
    """
    process, start_ns = numbers(trace.calls["process"]), numbers(trace.calls["start_ns"])
    count = trace.processes.num_rows
    first_ns = group_least(process[recorded], start_ns[recorded], count)
    is_late = lost & (start_ns >= np.minimum(first_ns, begins_ns)[process])
    lost_count, recorded_count, late_count = (
        np.bincount(process[calls], minlength=count) for calls in (lost, recorded, is_late)
    )
    is_small = lost_count + recorded_count < FULL_BUFFER
    is_start = (late_count == 0) & (lost_count < recorded_count) & is_small
    return np.asarray(lost & is_start[process])
