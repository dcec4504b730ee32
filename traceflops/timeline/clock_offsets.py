"""How far the clock of a GPU is from that of its host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from traceflops.table.columns import IntArray, numbers
from traceflops.table.grouping import distinct, groups
from traceflops.table.nesting import Links
from traceflops.table.trace import Trace
from traceflops.timeline.idle import LONGEST_START_NS

_LONGEST_QUEUE_NS: Final = 10**9
"""A queue of 1,024 launches is empty before; a launch may wait longer only for other work."""
_NO_JITTER_NS: Final = 10**7
"""Clocks that agree do not differ by so much."""
_SHORT_GAP_NS: Final = 20_000
"""Queued work starts sooner after the work before it."""
_ENOUGH: Final = 8
_STEADY: Final = 10


def clock_offsets(trace: Trace, links: Links, waits: Mapping[int, IntArray]) -> IntArray:
    """Return, per process, how far its GPU's clock is ahead at least, below 0 behind; 0 if unknown.

    Behind: all work starts before its launch. Ahead: all work starts long after its launch, and no
    queue explains it. It starts after more than a second, after the last call or later than all
    work takes; or always as late although the GPU is idle; or calls that wait for it return before.
    `waits` are starts and ends of these, by process: [2, calls]. Where clocks disagree, what
    compares times of both (launch latency, causes of idle time) is unknown.
    """
    activities, calls = trace.activities, trace.calls
    row = np.flatnonzero(links.call_of_activity >= 0)
    row = row[np.argsort(numbers(activities["start_ns"])[row], kind="stable")]
    process, device = (numbers(activities[name])[row] for name in ("process", "device"))
    start, call = numbers(activities["start_ns"])[row], links.call_of_activity[row]
    end, called = start + numbers(activities["dur_ns"])[row], numbers(calls["start_ns"])
    returned = called + numbers(calls["dur_ns"])
    offset = np.zeros(trace.processes.num_rows, dtype=np.int64)
    calls_of = dict(groups(numbers(calls["process"])))
    for number, mine in groups(process):
        offset[number] = _offset(
            start[mine],
            end[mine],
            called[call[mine]],
            int(returned[calls_of[number]].max()),
            waits[number],
            is_single_gpu=len(distinct(device[mine])) == 1,
        )
    return offset


def _offset(
    start: IntArray,
    end: IntArray,
    called: IntArray,
    stopped: int,
    waits: IntArray,
    *,
    is_single_gpu: bool,
) -> int:
    """Return the offset of one process, of its launched work in order of start.

    `called` is when each was launched, `stopped` when the last call returned. Times in ns.
    """
    lead = start - called
    least, most = int(lead.min()), int(lead.max())
    if most < -LONGEST_START_NS:
        return most
    if least <= _NO_JITTER_NS:
        return 0
    begun, length = int(start[0]), int(end.max() - start[0])
    if least > _LONGEST_QUEUE_NS and (begun >= stopped or least > length):
        return least
    if not is_single_gpu:
        return 0
    # No queue held it back where the GPU was idle before most of the work.
    gap = start[1:] - np.maximum.accumulate(end)[:-1]
    is_idle = len(gap) >= _ENOUGH and 2 * (gap > _SHORT_GAP_NS).sum() > len(gap)
    if is_idle and _STEADY * (most - least) <= least:
        return least
    # Work that was launched before a call waits for it cannot end long after the call returns.
    wait_begun, wait_returned = waits
    order = np.argsort(called, kind="stable")
    place = np.searchsorted(called[order], wait_begun, side="left")
    latest = np.maximum.accumulate(end[order])
    ended, returned = latest[place[place > 0] - 1], wait_returned[place > 0]
    outlasts = len(returned) > 0 and bool((ended > returned + _NO_JITTER_NS).all())
    return least if outlasts else 0
