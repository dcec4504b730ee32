"""The offset between the clock of a GPU and that of its host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from traceflops.table.columns import IntArray, numbers
from traceflops.table.grouping import distinct, groups
from traceflops.table.links import Links
from traceflops.table.trace import Trace
from traceflops.timeline.idle import LONGEST_START_NS

_LONGEST_QUEUE_NS: Final = 10**9
"""The longest that a queue of 1,024 launches delays one, unless other work holds it."""
_NO_JITTER_NS: Final = 10**7  # the least offset: clocks that agree differ by less
_SHORT_GAP_NS: Final = 20_000  # queued work follows the work before it within less than this
_ENOUGH: Final = 8  # fewer gaps do not tell
_STEADY: Final = 10  # the lead is the same for all work if it varies by less than 1/10


def clock_offsets(trace: Trace, links: Links, waits: Mapping[int, IntArray]) -> IntArray:
    """Return, per process, how many ns its GPU's clock is at least ahead; negative if it is behind.

    0 if the clocks agree or nothing tells. It is behind if all work starts before its launch. It is
    ahead if all work starts long after its launch and no queue explains that:

    * all starts more than a second later, and after the last call or later than all work takes;
    * or it is always equally late although the GPU is idle;
    * or calls that wait for it return before it ends. `waits` is as `LinkedTrace.device_waits`.

    If clocks disagree, whatever compares times of both (launch latency, causes of idle time) is
    unknown.
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
    for number, of_process in groups(process):
        offset[number] = _offset(
            start[of_process],
            end[of_process],
            called[call[of_process]],
            int(returned[calls_of[number]].max()),
            waits[number],
            is_single_gpu=len(distinct(device[of_process])) == 1,
        )
    return offset


def _offset(
    start: IntArray,
    end: IntArray,
    called: IntArray,
    last_return: int,
    waits: IntArray,
    *,
    is_single_gpu: bool,
) -> int:
    """Return the offset in ns of one process from its launched work, in order of start.

    `start`, `end` and `called` (the start of the launch call) are per activity. `last_return` is
    when the last call returned; `waits` are begins and returns of calls that wait for all work of
    the GPU. All times are in ns.
    """
    lead = start - called
    least, most = int(lead.min()), int(lead.max())
    if most < -LONGEST_START_NS:  # all work starts before its launch: the clock is behind
        return most
    if least <= _NO_JITTER_NS:  # some work starts right after its launch: the clocks agree
        return 0
    # No queue delays all work so long, nor beyond the last call or by more than all work takes.
    first_start, length = int(start[0]), int(end.max() - start[0])
    if least > _LONGEST_QUEUE_NS and (first_start >= last_return or least > length):
        return least
    if not is_single_gpu:  # work of one GPU may have waited for another
        return 0
    # No queue held it back where the GPU was idle before most of the work.
    gap = start[1:] - np.maximum.accumulate(end)[:-1]
    is_idle = len(gap) >= _ENOUGH and 2 * (gap > _SHORT_GAP_NS).sum() > len(gap)
    if is_idle and _STEADY * (most - least) <= least:
        return least
    # Work that was launched before a call waits for it cannot end long after the call returns.
    wait_begun, wait_returned = waits
    order = np.argsort(called, kind="stable")
    launched_before = np.searchsorted(called[order], wait_begun, side="left")
    latest_end = np.maximum.accumulate(end[order])
    has_work = launched_before > 0
    ended, returned = latest_end[launched_before[has_work] - 1], wait_returned[has_work]
    outlasts = len(returned) > 0 and bool((ended > returned + _NO_JITTER_NS).all())
    return least if outlasts else 0
