"""GPU work whose recorded end cannot be true: other records show that it had ended before."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from traceflops.table.columns import BoolArray, IntArray, matching, numbers
from traceflops.table.grouping import distinct, groups, joint_codes
from traceflops.table.nesting import first_of_same
from traceflops.table.rows import ABSENT
from traceflops.table.trace import Trace
from traceflops.table.work_calls import WAITS_FOR_DEVICE

_CLOCKS_NS: Final = 50_000
"""Clocks of one GPU do not differ by so much."""
_HOST_NS: Final = 10_000_000
"""Nor do those of GPU and host, where they agree at all."""
_LATER: Final = 3
"""Work that is launched early may begin and even end before the one before it has ended, so much of
it may not."""
_SLIP: Final = 0.05
_CUDA: Final = re.compile(r"cu(da)?[A-Z]")


def overrunning(trace: Trace) -> BoolArray:
    """Return the activities that run on after later work of their stream, or a wait for them.

    A stream works in order: no work ends after three later ones. And a call that waits for the
    whole GPU returns after all that was launched before it. Where more than 5 % of the work is so,
    the streams or clocks are not what they seem, and nothing is said.
    """
    late = _after_later_work(trace) | _after_waits(trace)
    is_slip = int(late.sum()) <= max(1, _SLIP * len(late))
    return late if is_slip else np.zeros_like(late)


def _after_later_work(trace: Trace) -> BoolArray:
    """Return the activities during which much later work of their stream begins and ends."""
    activities = trace.activities
    late = np.zeros(activities.num_rows, dtype=np.bool_)
    # Elsewhere streams may be queues of the hardware, which several streams share.
    if trace.source.format == "pytorch":
        has_streams = bool(matching(trace.calls["name"], _CUDA.match).any())
    else:
        has_streams = trace.source.format.startswith("nsys")
    if not has_streams:
        return late
    start, stream = (numbers(activities[name], ABSENT) for name in ("start_ns", "stream"))
    end = start + numbers(activities["dur_ns"])
    process, device = (numbers(activities[name]) for name in ("process", "device"))
    # Work with a launch of its own: nodes of a graph run side by side.
    correlation = numbers(activities["correlation"], ABSENT)
    key = joint_codes(process, correlation)
    _, code, count = np.unique(key, return_inverse=True, return_counts=True)
    single = (stream != ABSENT) & (correlation != ABSENT) & (count[code] == 1)
    for name in ("graph", "graph_node"):
        single &= numbers(activities[name], ABSENT) == ABSENT
    rows = np.flatnonzero(single)
    queue = joint_codes(joint_codes(process[rows], device[rows]), stream[rows])
    order = np.lexsort((end[rows], start[rows], queue))
    rows, queue = rows[order], queue[order]
    overlaps = (queue[1:] == queue[:-1]) & (start[rows[1:]] < end[rows[:-1]] - _CLOCKS_NS)
    if np.count_nonzero(overlaps) > max(1, _SLIP * len(late)):
        return late
    for _, members in groups(queue):
        ended = end[rows[members]]
        late[rows[members]] = _end_of_later(ended) < ended - _CLOCKS_NS
    return late


def _end_of_later(end: IntArray) -> IntArray:
    """Return, per row, the `_LATER`th earliest end of the rows behind it; the largest int for none.

    One pass per rank: a row hands on to the next rank the later of its own end and the earliest so
    far.
    """
    never = np.iinfo(np.int64).max
    own = end
    for _ in range(_LATER):
        least = np.append(np.minimum.accumulate(own[::-1])[::-1], never)[1:]
        own = np.maximum(own, least)
    return least


def _after_waits(trace: Trace) -> BoolArray:
    """Return the activities that end long after a call returned that waited for them."""
    activities, calls = trace.activities, trace.calls
    late = np.zeros(activities.num_rows, dtype=np.bool_)
    waits = np.flatnonzero(matching(calls["name"], WAITS_FOR_DEVICE.match))
    if not len(waits) or not len(late):
        return late
    begun, process = numbers(calls["start_ns"]), numbers(activities["process"])
    returned, owner = begun + numbers(calls["dur_ns"]), numbers(calls["process"])
    call, device = first_of_same(calls, "correlation", activities), numbers(activities["device"])
    end = numbers(activities["start_ns"]) + numbers(activities["dur_ns"])
    launched = np.flatnonzero(call >= 0)
    of_process = {pid: launched[members] for pid, members in groups(process[launched])}
    for pid, members in groups(owner[waits]):
        rows = of_process.get(pid, launched[:0])
        if len(distinct(device[rows])) != 1:
            continue
        # Work is over when the first wait returns that began after its call.
        wait = waits[members][np.argsort(begun[waits[members]], kind="stable")]
        next_wait = np.searchsorted(begun[wait], begun[call[rows]], side="right")
        first_return = np.minimum.accumulate(returned[wait][::-1])[::-1]
        until = np.append(first_return, np.iinfo(np.int64).max)[next_wait]
        late[rows] = until < end[rows] - _HOST_NS
    return late
