"""When a device may have run graphs of whose replays there is no record.

How long a replay took and on which stream it ran is unknown. It was over when the host had waited
for the whole device, or when work began that was launched later: on the stream where that is last.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from traceflops.table import ABSENT, IntArray, Trace, matching, numbers, taken
from traceflops.table import groups as by_group
from traceflops.timeline.device_span import DeviceRows
from traceflops.timeline.intervals import NEVER, Intervals

_WAITS_FOR_ALL: Final = re.compile(r"(cuda|hip)DeviceSynchronize|(cu|hip)CtxSynchronize")


def replay_time(trace: Trace, lost: IntArray, rows: DeviceRows, call: IntArray) -> Intervals:
    """Return when a device may have run what the calls in the rows `lost` launched.

    `rows` is the work of the device and `call` the launch call of each, -1 where it is unknown.
    """
    calls, process = trace.calls, numbers(trace.calls["process"])
    worker = numbers(trace.activities["process"])[rows.row]
    stream = numbers(trace.activities["stream"], ABSENT)[rows.row]
    begin, duration = numbers(calls["start_ns"]), numbers(calls["dur_ns"])
    launched = taken(begin, call, NEVER)
    waits = np.flatnonzero(matching(calls["name"], _WAITS_FOR_ALL.fullmatch))
    found = [Intervals.empty()]
    for owner, at in by_group(process[lost]):
        mine = np.flatnonzero((worker == owner) & (call >= 0))
        if not len(mine):
            continue
        since = np.sort(begin[lost[at]])
        wait = waits[process[waits] == owner]
        over = _following(since, begin[wait], begin[wait] + duration[wait])
        later = [
            _following(since, launched[mine[one]], rows.start_ns[mine[one]])
            for _, one in by_group(stream[mine])
        ]
        # A stream without later work says nothing; where none has any, the work may run to the end.
        last = np.max([np.where(one == _ENDLESS, NEVER, one) for one in later], axis=0)
        last = np.where(last == NEVER, int(rows.end_ns.max()), last)
        found.append(Intervals.of(since, np.minimum(last, over)))
    return found[0].union(*found[1:])


_ENDLESS: Final = int(np.iinfo(np.int64).max)


def _following(since: IntArray, asked_ns: IntArray, time_ns: IntArray) -> IntArray:
    """Return the time of the first that was asked for after each moment, _ENDLESS without one."""
    order = np.argsort(asked_ns, kind="stable")
    place = np.searchsorted(asked_ns[order], since, side="right")
    return np.append(time_ns[order], _ENDLESS)[place]
