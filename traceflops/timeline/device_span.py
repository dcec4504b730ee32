"""The activities of one device, its time by component, and when replays without a record may run.

Each ns goes to the first component that applies: compute, memory, other, graph, communication,
start-up, idle. So the component communication is the exposed part of all communication; while other
work runs, communication is hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.categories.activities import Categorised
from traceflops.table.columns import ABSENT, BoolArray, IntArray, names, numbers
from traceflops.table.grouping import groups
from traceflops.table.nesting import taken
from traceflops.table.trace import Trace
from traceflops.timeline.intervals import ENDLESS, NEVER, Intervals
from traceflops.timeline.records import WORK, Components, Sums


class Timeline(Struct, frozen=True):
    """The components of one device as disjoint sets of instants.

    `parts` has, by component of WORK, the time that no earlier component covers; `communication` is
    all communication, exposed or not; `busy` is the union of all work.
    """

    parts: dict[str, Intervals]
    communication: Intervals
    busy: Intervals

    def components(
        self, start_ns: IntArray, end_ns: IntArray, start_up: Intervals
    ) -> list[Components]:
        """Return components per window, which sum to its length; nothing ran in `start_up`."""
        parts = (*(self.parts[name] for name in WORK), start_up)
        lengths = [part.length_within(start_ns, end_ns) for part in parts]
        idle = end_ns - start_ns - sum(lengths)
        return [Components(*row) for row in np.stack([*lengths, idle], axis=1).tolist()]

    def hidden_communication_ns(self, start_ns: IntArray, end_ns: IntArray) -> IntArray:
        """Return, per window [start, end), the ns of communication while something else ran."""
        exposed = self.parts["communication"].length_within(start_ns, end_ns)
        return self.communication.length_within(start_ns, end_ns) - exposed


def timeline(start_ns: IntArray, end_ns: IntArray, is_part: dict[str, BoolArray]) -> Timeline:
    """Return the timeline of one device; `is_part` marks, by name of WORK, its activities."""
    busy = communication = Intervals.empty()
    parts: dict[str, Intervals] = {}
    for name in WORK:
        component = Intervals.of(start_ns[is_part[name]], end_ns[is_part[name]])
        communication = component if name == "communication" else communication
        parts[name] = component.subtract(busy)
        if len(component):
            busy = busy.union(component) if len(busy) else component
    return Timeline(parts, communication, busy)


class ActivityColumns(Struct, frozen=True):
    """Columns of all activities, converted once for all devices."""

    name: IntArray
    stream: IntArray
    kind: IntArray
    direction: IntArray
    bytes: IntArray


class DeviceRows(Struct, frozen=True):
    """The activities of one device, sorted by start: their rows and times.

    `begins` is 0 for later parts of an operator, else 1; `columns` are of all devices.
    """

    row: IntArray
    start_ns: IntArray
    end_ns: IntArray
    begins: IntArray
    columns: ActivityColumns

    @property
    def span(self) -> tuple[int, int]:
        """The first start and the last end."""
        return int(self.start_ns.min()), int(self.end_ns.max())

    def sums(self, which: BoolArray) -> Sums:
        """Return count, sum of durations and union of the marked activities."""
        start, end = self.start_ns[which], self.end_ns[which]
        count = int(self.begins[which].sum())
        return Sums(count, int((end - start).sum()), Intervals.of(start, end).length_ns)


def is_top(categorised: Categorised, top: str, rows: IntArray | slice = slice(None)) -> BoolArray:
    """Return, per row of activities, whether it is of this top category."""
    # By code of a category; code -1 takes the False at the end.
    is_wanted = np.array([*(name == top for name in categorised.top()), False], dtype=np.bool_)
    return is_wanted[categorised.category[rows]]


_MOST_STREAMS: Final = 1_000
"""With more streams than this they are not searched for lost replays; no program has as many."""


def replay_time(
    trace: Trace,
    lost: Mapping[int, IntArray],
    waits: Mapping[int, IntArray],
    rows: DeviceRows,
    call: IntArray,
) -> Intervals:
    """Return the time in which a device may have run replays of graphs that have no record.

    `lost` are, by process, the calls that launched them; `waits` is as `LinkedTrace.device_waits`.
    `rows` is the work of the device, and `call` the launch call of each activity, -1 if unknown.

    Neither duration nor stream of a replay is known. It is over when the host has waited for the
    whole device, or when work launched later has begun on all streams. A replay is launched at 10,
    work launched later begins at 30 on stream 7 and at 50 on stream 9, the host has waited at 40:
    it may have run from 10 to 40. If a kernel without a launch starts before that, it is the
    replay, which so has a record. A device without recorded work of the process is taken not to
    belong to it.
    """
    if not lost:
        return Intervals.empty()
    call_start_ns = numbers(trace.calls["start_ns"])
    kinds = names(trace.activities["kind"])
    launched = taken(call_start_ns, call, NEVER)
    kernel = kinds.index("kernel") if "kernel" in kinds else ABSENT
    is_unlinked = (call < 0) & (rows.columns.kind[rows.row] == kernel)
    replays = Intervals.empty()
    for process, work in groups(numbers(trace.activities["process"])[rows.row]):
        if process not in lost:
            continue
        launch_ns = np.sort(call_start_ns[lost[process]])
        # Per replay, when work launched later has begun on all streams that have such work. Without
        # any, or with too many streams to search, the replay lasts to the end of all work.
        linked = work[launched[work] != NEVER]
        begun_ns = np.full(len(launch_ns), NEVER)
        streams = [*groups(rows.columns.stream[rows.row[linked]])]
        for _, on_stream in streams if len(streams) <= _MOST_STREAMS else ():
            queued = linked[on_stream]
            next_ns = _following(launch_ns, launched[queued], rows.start_ns[queued])
            begun_ns = np.where(next_ns == ENDLESS, begun_ns, np.maximum(begun_ns, next_ns))
        begun_ns = np.where(begun_ns == NEVER, int(rows.end_ns.max()), begun_ns)
        over_ns = np.minimum(_following(launch_ns, *waits[process]), begun_ns)
        unlinked_ns = rows.start_ns[work[is_unlinked[work]]]
        has_record = _following(launch_ns, unlinked_ns, unlinked_ns) < over_ns
        replays = replays.union(Intervals.of(launch_ns, np.where(has_record, launch_ns, over_ns)))
    return replays


def _following(since: IntArray, launched_ns: IntArray, time_ns: IntArray) -> IntArray:
    """Return, per time in `since`, `time_ns` of the next launch after it, or ENDLESS."""
    order = np.argsort(launched_ns, kind="stable")
    next_launch = np.searchsorted(launched_ns[order], since, side="right")
    return np.append(time_ns[order], ENDLESS)[next_launch]
