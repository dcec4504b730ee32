"""GPU work whose recorded end cannot be true: other records show that it had ended before."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.table import (
    ABSENT,
    WAITS_FOR_DEVICE,
    BoolArray,
    IntArray,
    Trace,
    distinct,
    first_of_same,
    groups,
    joint_codes,
    matching,
    numbers,
)

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
    found = _after_later_work(trace) | _after_waits(trace)
    is_slip = int(found.sum()) <= max(1, _SLIP * len(found))
    return found if is_slip else np.zeros_like(found)


def _after_later_work(trace: Trace) -> BoolArray:
    """Return the activities during which much later work of their stream begins and ends."""
    activities = trace.activities
    found = np.zeros(activities.num_rows, dtype=np.bool_)
    if not _has_streams(trace):
        return found
    start, stream = (numbers(activities[name], ABSENT) for name in ("start_ns", "stream"))
    end = start + numbers(activities["dur_ns"])
    rows = np.flatnonzero((stream != ABSENT) & _is_single(activities))
    process, device = (numbers(activities[name])[rows] for name in ("process", "device"))
    queue = joint_codes(joint_codes(process, device), stream[rows])
    order = np.lexsort((end[rows], start[rows], queue))
    rows, queue = rows[order], queue[order]
    overlaps = (queue[1:] == queue[:-1]) & (start[rows[1:]] < end[rows[:-1]] - _CLOCKS_NS)
    if np.count_nonzero(overlaps) > max(1, _SLIP * len(found)):
        return found
    for _, mine in groups(queue):
        ended = end[rows[mine]]
        found[rows[mine]] = _end_of_later(ended) < ended - _CLOCKS_NS
    return found


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


def _has_streams(trace: Trace) -> bool:
    """Return whether streams are those of the program: elsewhere they may be shared queues."""
    if trace.source.format == "pytorch":
        return bool(matching(trace.calls["name"], _CUDA.match).any())
    return trace.source.format.startswith("nsys")


def _is_single(activities: pa.Table) -> BoolArray:
    """Return which activities have a launch of their own: nodes of a graph run side by side."""
    correlation = numbers(activities["correlation"], ABSENT)
    key = joint_codes(numbers(activities["process"]), correlation)
    _, code, count = np.unique(key, return_inverse=True, return_counts=True)
    single = (correlation != ABSENT) & (count[code] == 1)
    for name in ("graph", "graph_node"):
        single &= numbers(activities[name], ABSENT) == ABSENT
    return np.asarray(single)


def _after_waits(trace: Trace) -> BoolArray:
    """Return the activities that end long after a call returned that waited for them."""
    activities, calls = trace.activities, trace.calls
    found = np.zeros(activities.num_rows, dtype=np.bool_)
    waits = np.flatnonzero(matching(calls["name"], WAITS_FOR_DEVICE.match))
    if not len(waits) or not len(found):
        return found
    begun, process = numbers(calls["start_ns"]), numbers(activities["process"])
    returned, owner = begun + numbers(calls["dur_ns"]), numbers(calls["process"])
    call, device = first_of_same(calls, "correlation", activities), numbers(activities["device"])
    end = numbers(activities["start_ns"]) + numbers(activities["dur_ns"])
    launched = np.flatnonzero(call >= 0)
    of_process = {one: launched[mine] for one, mine in groups(process[launched])}
    for one, mine in groups(owner[waits]):
        rows = of_process.get(one, launched[:0])
        if len(distinct(device[rows])) == 1:
            found[rows] = _outlasts(begun[call[rows]], end[rows], begun, returned, waits[mine])
    return found


def _outlasts(
    called: IntArray, end: IntArray, begun: IntArray, returned: IntArray, waits: IntArray
) -> BoolArray:
    """Return which work ends long after the first wait that began after it was called."""
    waits = waits[np.argsort(begun[waits], kind="stable")]
    place = np.searchsorted(begun[waits], called, side="right")
    until = np.append(np.minimum.accumulate(returned[waits][::-1])[::-1], np.iinfo(np.int64).max)
    limit = until[place]
    return np.asarray(limit < end - _HOST_NS)
