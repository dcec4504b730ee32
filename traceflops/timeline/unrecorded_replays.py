"""When a device may have run graphs of whose replays there is no record.

How long a replay took and on which stream it ran is unknown. It was over when the host had waited
for the whole device, or when work began that was launched later: on the stream where that is last.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from traceflops.table import (
    ABSENT,
    WAITS_FOR_DEVICE,
    BoolArray,
    IntArray,
    Trace,
    is_one_of,
    matching,
    numbers,
    taken,
)
from traceflops.table import groups as by_group
from traceflops.timeline.device_span import DeviceRows
from traceflops.timeline.intervals import NEVER, Intervals

_ENDLESS: Final = int(np.iinfo(np.int64).max)
_MOST_STREAMS: Final = 1_000
"""Each is searched for all lost replays; no program has so many."""


def replay_time(trace: Trace, lost: IntArray, rows: DeviceRows, call: IntArray) -> Intervals:
    """Return when a device may have run what the calls in the rows `lost` launched.

    `rows` is the work of the device and `call` the launch call of each, -1 where it is unknown.
    Kernels without a known call may be those of the graph.
    """
    if not len(lost):
        return Intervals.empty()
    process, begin, duration = (
        numbers(trace.calls[name]) for name in ("process", "start_ns", "dur_ns")
    )
    worker = numbers(trace.activities["process"])[rows.row]
    nameless = (call < 0) & is_one_of(trace.activities["kind"], "kernel")[rows.row]
    waits = np.flatnonzero(matching(trace.calls["name"], WAITS_FOR_DEVICE.match))
    found = [Intervals.empty()]
    for owner, at in by_group(process[lost]):
        since, mine = np.sort(begin[lost[at]]), worker == owner
        wait = waits[process[waits] == owner]
        over = _following(since, begin[wait], begin[wait] + duration[wait])
        over = np.minimum(over, _later_work(trace, rows, taken(begin, call, NEVER), mine, since))
        own = rows.start_ns[mine & nameless]
        found.append(Intervals.of(since, np.where(_following(since, own, own) < over, since, over)))
    return found[0].union(*found[1:])


def _later_work(
    trace: Trace, rows: DeviceRows, launched: IntArray, mine: BoolArray, since: IntArray
) -> IntArray:
    """Return when work had begun on all streams that have some which was launched later.

    That is the end of all work where no stream has any, or there are too many to look at. `mine` is
    the work of one process.
    """
    stream = numbers(trace.activities["stream"], ABSENT)[rows.row]
    place = np.flatnonzero(mine & (launched != NEVER))
    last = np.full(len(since), NEVER)
    streams = [*by_group(stream[place])]
    for _, at in streams if len(streams) <= _MOST_STREAMS else ():
        next_ns = _following(since, launched[place[at]], rows.start_ns[place[at]])
        last = np.where(next_ns == _ENDLESS, last, np.maximum(last, next_ns))
    return np.where(last == NEVER, int(rows.end_ns.max()), last)


def _following(since: IntArray, asked_ns: IntArray, time_ns: IntArray) -> IntArray:
    """Return the time of the first that was asked for after each moment, _ENDLESS without one."""
    order = np.argsort(asked_ns, kind="stable")
    place = np.searchsorted(asked_ns[order], since, side="right")
    return np.append(time_ns[order], _ENDLESS)[place]
