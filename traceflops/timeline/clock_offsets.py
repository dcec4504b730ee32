"""The offset between the clock of a GPU and that of its host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np

from traceflops.table.columns import IntArray, matching, numbers, span_columns
from traceflops.table.grouping import distinct, groups
from traceflops.table.links import Links
from traceflops.table.trace import Trace
from traceflops.timeline.idle import LONGEST_START_NS

_BLOCKS: Final = re.compile(r"Memcpy DtoH \(Device -> Pageable\)")
_LONGEST_QUEUE_NS: Final = 10**9
"""The longest that a full queue (1,024 launches) delays a launch, unless other work holds it."""
_NO_JITTER_NS: Final = 10**7  # the least offset: clocks that agree differ by less
_SHORT_GAP_NS: Final = 20_000  # queued work follows the work before it within less than this
_ENOUGH: Final = 8  # fewer gaps do not tell
_STEADY: Final = 10  # the lead is the same for all work if it varies by less than 1/10


def clock_offsets(trace: Trace, links: Links, waits: Mapping[int, IntArray]) -> IntArray:
    """Return, per process, by how many ns at least its GPU's clock is ahead of the CPU's.

    Negative if the GPU's clock is behind: all work starts before its launch. 0 if the clocks agree
    or nothing tells. The clock is ahead if all work starts long after its launch, and no queue
    explains that. One of these is enough:

    * all work starts more than a second after its launch, and after the last call returned;
    * all work starts more than a second after its launch, and by more than all work takes;
    * all work is equally late although the GPU is idle before most of it;
    * calls that wait for the work, or that copy to pageable memory, return before it ends.

    `waits` is as `LinkedTrace.device_waits`. If clocks disagree, whatever compares times of both
    (launch latency, causes of idle time) is unknown.
    """
    activities, calls = trace.activities, trace.calls
    row = np.flatnonzero(links.call_of_activity >= 0)
    row = row[np.argsort(numbers(activities["start_ns"])[row], kind="stable")]
    process, device = (numbers(activities[name])[row] for name in ("process", "device"))
    start, end = span_columns(activities, row)
    call_start, returned = span_columns(calls)
    call = links.call_of_activity[row]
    called, left = call_start[call], returned[call]
    # A copy to pageable memory is done when its call returns.
    blocks = matching(activities["name"], _BLOCKS.search)[row]
    offset = np.zeros(trace.processes.num_rows, dtype=np.int64)
    calls_of = dict(groups(numbers(calls["process"])))
    for number, of_process in groups(process):
        offset[number] = _offset(
            start[of_process],
            end[of_process],
            called[of_process],
            (end - left)[of_process][blocks[of_process]],
            int(returned[calls_of[number]].max()),
            waits[number],
            is_single_gpu=len(distinct(device[of_process])) == 1,
        )
    return offset


def _offset(
    start: IntArray,
    end: IntArray,
    called: IntArray,
    late: IntArray,
    last_return: int,
    waits: IntArray,
    *,
    is_single_gpu: bool,
) -> int:
    """Return the offset in ns of one process from its launched work, in order of start.

    `start`, `end` and `called` (the start of the launch call) are per activity; `late` is how long
    after the return of its call each copy to pageable memory ends. `last_return` is when the last
    call returned; `waits` are begins and returns of calls that wait for all work of the GPU. All
    times are in ns.
    """
    lead = start - called
    least, most = int(lead.min()), int(lead.max())
    if most < -LONGEST_START_NS:  # all work starts before its launch: the clock is behind
        return most
    if least <= _NO_JITTER_NS:  # some work starts right after its launch: the clocks agree
        return 0
    # A queue does not delay all work by more than a second and, in addition, until after the last
    # call or by more than all work takes.
    starts_after_calls = int(start[0]) >= last_return
    length = int(end.max() - start[0])
    if least > _LONGEST_QUEUE_NS and (starts_after_calls or least > length):
        return least
    if len(late) >= _ENOUGH and late.min() > _NO_JITTER_NS:
        return least
    if not is_single_gpu:  # work of one GPU may have waited for another
        return 0
    # Where the GPU was idle before most of the work, no queue held the work back.
    gap = start[1:] - np.maximum.accumulate(end)[:-1]
    is_idle = len(gap) >= _ENOUGH and 2 * (gap > _SHORT_GAP_NS).sum() > len(gap)
    if is_idle and _STEADY * (most - least) <= least:
        return least
    # Work that was launched before a call waits for it cannot end long after the call returns.
    # Launches at [1 4 8], ends [9 6 12], waits begin at [0 5]: launched_before [0 2], latest_end
    # [9 9 12]: what the second wait waits for ends at 9.
    wait_begun, wait_returned = waits
    order = np.argsort(called, kind="stable")
    launched_before = np.searchsorted(called[order], wait_begun, side="left")
    latest_end = np.maximum.accumulate(end[order])
    has_work = launched_before > 0
    ended, returned = latest_end[launched_before[has_work] - 1], wait_returned[has_work]
    ends_later = len(returned) > 0 and bool((ended > returned + _NO_JITTER_NS).all())
    return least if ends_later else 0
