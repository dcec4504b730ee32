"""When a device may have run graphs of whose replays there is no record.

How long a replay took and on which stream it ran is unknown. It was over when the host had waited
for the whole device, or when work began that was launched later: on the stream where that is last.
A device without recorded work of the process is not one of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from traceflops.table.columns import IntArray, names, numbers
from traceflops.table.grouping import groups
from traceflops.table.nesting import taken
from traceflops.table.trace import Trace
from traceflops.timeline.device_span import DeviceRows
from traceflops.timeline.intervals import NEVER, Intervals

_ENDLESS: Final = int(np.iinfo(np.int64).max)
_MOST_STREAMS: Final = 1_000
"""Each is searched for all lost replays; no program has so many."""


def replay_time(
    trace: Trace,
    lost: Mapping[int, IntArray],
    waits: Mapping[int, IntArray],
    rows: DeviceRows,
    call: IntArray,
) -> Intervals:
    """Return when a device may have run what the `lost` calls of its processes launched.

    `waits` are starts and ends of the calls of each process that wait for a device. `rows` is the
    work of the device and `call` the launch call of each, -1 where it is unknown. Kernels without a
    known call may be those of the graph.
    """
    if not lost:
        return Intervals.empty()
    begin, kinds = numbers(trace.calls["start_ns"]), names(trace.activities["kind"])
    launched = taken(begin, call, NEVER)
    kernel = kinds.index("kernel") if "kernel" in kinds else -1
    nameless = (call < 0) & (rows.columns.kind[rows.row] == kernel)
    replays = Intervals.empty()
    for process, mine in groups(numbers(trace.activities["process"])[rows.row]):
        if process not in lost:
            continue
        since = np.sort(begin[lost[process]])
        # Replays have ended once work has begun that was launched later, on all streams with some;
        # at the end of all work where no stream has any, or there are too many streams.
        place = mine[launched[mine] != NEVER]
        begun = np.full(len(since), NEVER)
        streams = [*groups(rows.columns.stream[rows.row[place]])]
        for _, queued in streams if len(streams) <= _MOST_STREAMS else ():
            next_ns = _following(since, launched[place[queued]], rows.start_ns[place[queued]])
            begun = np.where(next_ns == _ENDLESS, begun, np.maximum(begun, next_ns))
        begun = np.where(begun == NEVER, int(rows.end_ns.max()), begun)
        over = np.minimum(_following(since, *waits[process]), begun)
        own = rows.start_ns[mine[nameless[mine]]]
        is_seen = _following(since, own, own) < over
        replays = replays.union(Intervals.of(since, np.where(is_seen, since, over)))
    return replays


def _following(since: IntArray, launched_ns: IntArray, time_ns: IntArray) -> IntArray:
    """Return, per moment, `time_ns` of the first that was launched later, or _ENDLESS."""
    order = np.argsort(launched_ns, kind="stable")
    place = np.searchsorted(launched_ns[order], since, side="right")
    return np.append(time_ns[order], _ENDLESS)[place]
