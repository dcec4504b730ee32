"""When a device may have run graphs of whose replays there is no record.

How long a replay took and on which stream it ran is unknown. It was over when the host had waited
for the whole device, or when work began that was launched later: on the stream where that is last.
A device without recorded work of the process is not one of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from traceflops.table import IntArray, Trace, groups, names, numbers, taken
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
    found = [Intervals.empty()]
    for owner, mine in groups(numbers(trace.activities["process"])[rows.row]):
        if owner not in lost:
            continue
        since = np.sort(begin[lost[owner]])
        over = _following(since, *waits[owner])
        over = np.minimum(over, _later_work(rows, launched, mine, since))
        own = rows.start_ns[mine[nameless[mine]]]
        found.append(Intervals.of(since, np.where(_following(since, own, own) < over, since, over)))
    return found[0].union(*found[1:])


def _later_work(rows: DeviceRows, launched: IntArray, mine: IntArray, since: IntArray) -> IntArray:
    """Return when work had begun on all streams that have some which was launched later.

    That is the end of all work where no stream has any, or there are too many to look at. `mine`
    are the places of the work of one process.
    """
    place = mine[launched[mine] != NEVER]
    last = np.full(len(since), NEVER)
    streams = [*groups(rows.columns.stream[rows.row[place]])]
    for _, at in streams if len(streams) <= _MOST_STREAMS else ():
        next_ns = _following(since, launched[place[at]], rows.start_ns[place[at]])
        last = np.where(next_ns == _ENDLESS, last, np.maximum(last, next_ns))
    return np.where(last == NEVER, int(rows.end_ns.max()), last)


def _following(since: IntArray, asked_ns: IntArray, time_ns: IntArray) -> IntArray:
    """Return the time of the first that was asked for after each moment, _ENDLESS without one."""
    order = np.argsort(asked_ns, kind="stable")
    place = np.searchsorted(asked_ns[order], since, side="right")
    return np.append(time_ns[order], _ENDLESS)[place]
