"""Why a device did nothing: each gap split by what the activity that ended it was waiting for.

Let the gap be [g0, g1), A the activity that starts at g1 and c the start of A's launch call.

* no launch in the trace: unknown
* before c: host_late, nothing had been launched yet
* from c on, if A had been launched before the gap began and its own stream was free before the
  gap began: queued, another stream held it back
* from c on otherwise: launch_latency, launched and not yet started

Time in which nothing runs and nothing starts any more (after the last activity) is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceflops.columns import IntArray
from traceflops.groups import distinct, in_order
from traceflops.intervals import Intervals, latest_end_before
from traceflops.results import IdleCauses
from traceflops.rows import ABSENT


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """The activities of one device, sorted by start: times, streams and launch times.

    `call_start_ns` is ABSENT where no launch is known.
    """

    start_ns: IntArray
    end_ns: IntArray
    stream: IntArray
    call_start_ns: IntArray


@dataclass(frozen=True, slots=True)
class IdleTime:
    """The gaps of one device and their split by cause.

    `gap_start_ns` and `gap_end_ns` are the gaps in order; an activity without length ends one gap
    and begins the next. `next_row` is the activity that ends each (a row of the device's work),
    `by_cause` the instants of each cause: disjoint, together exactly the gaps.
    """

    gap_start_ns: IntArray
    gap_end_ns: IntArray
    next_row: IntArray
    by_cause: dict[str, Intervals]

    def causes(self, start_ns: IntArray, end_ns: IntArray, idle_ns: IntArray) -> list[IdleCauses]:
        """Return the causes of the idle time of windows; what lies outside all work is unknown."""
        known = [
            self.by_cause[cause].length_within(start_ns, end_ns)
            for cause in ("host_late", "queued", "launch_latency")
        ]
        rows = np.stack([*known, idle_ns - sum(known)], axis=1)
        return [IdleCauses(*row) for row in rows.tolist()]


def idle_time(work: DeviceWork, busy: Intervals) -> IdleTime:
    """Return the gaps between the activities of a device and their causes."""
    start, end = _gaps(work, busy)
    row = _first_starting(work, end)
    call = work.call_start_ns[row]
    has_call = call != ABSENT
    launched = np.clip(call, start, end)
    free_since = latest_end_before(work.stream, work.start_ns, work.end_ns, strictly=True)[row]
    held = has_call & (call < start) & (free_since < start)
    direct = has_call & ~held
    return IdleTime(
        start,
        end,
        row,
        {
            "host_late": Intervals.of(start[has_call], launched[has_call]),
            "queued": Intervals.of(launched[held], end[held]),
            "launch_latency": Intervals.of(launched[direct], end[direct]),
        },
    )


def _gaps(work: DeviceWork, busy: Intervals) -> tuple[IntArray, IntArray]:
    """Return the stretches between two activities in which none ran."""
    instants = distinct(work.start_ns[work.start_ns == work.end_ns])
    if len(busy) == 0:
        return instants[:-1], instants[1:]
    low, high = int(work.start_ns.min()), int(work.end_ns.max())
    free = busy.complement(low, high)
    # Those that begin a free stretch part nothing: what is free touches no other stretch.
    inside = instants[free.contains(instants) & free.contains(instants - 1)]
    return (
        np.sort(np.concatenate([free.start_ns, inside])),
        np.sort(np.concatenate([inside, free.end_ns])),
    )


def _first_starting(work: DeviceWork, at_ns: IntArray) -> IntArray:
    """Return the activity that starts at each time; of several the one launched first."""
    launch = np.where(work.call_start_ns == ABSENT, np.iinfo(np.int64).max, work.call_start_ns)
    order = in_order(work.start_ns, launch)
    return order[np.searchsorted(work.start_ns[order], at_ns, side="left")]
