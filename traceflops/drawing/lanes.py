"""Lanes of a timeline: streams of devices and threads of hosts with their events, and counters."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, Literal

import numpy as np
import pyarrow as pa
from msgspec import Struct

from traceflops.attribution.host_events import is_of_library
from traceflops.attribution.launch_lead import outstanding_launches
from traceflops.drawing.coarsening import Counter, LaneEvents, Times
from traceflops.drawing.lane_stacking import stacked
from traceflops.memory.usage import memory_use
from traceflops.table.columns import (
    ABSENT,
    IntArray,
    SmallArray,
    WholeArray,
    codes,
    floats,
    is_one_of,
    names,
    numbers,
)
from traceflops.table.grouping import distinct, groups, in_order, joint_codes
from traceflops.table.nesting import OpTree
from traceflops.table.trace import Trace
from traceflops.timeline.account import LinkedTrace
from traceflops.timeline.intervals import Intervals
from traceflops.timeline.records import WORK
from traceflops.windows.prepared import Prepared

Kind = Literal["stream", "range", "frame", "op", "call"]
TABLE_OF: Final[Mapping[Kind, str]] = {
    "stream": "activities",
    "range": "marks",
    "frame": "marks",
    "op": "ops",
    "call": "calls",
}
"""The table that the events of a lane are rows of."""
_RANGE: Final = "annotation"
_FRAMES: Final = ("python", "module")
_MOST_FRAMES: Final = 200_000
"""Of more frames only modules and those near the longest gaps are drawn."""
_HOST_KINDS: Final[tuple[Kind, ...]] = ("range", "frame", "op", "call")
_MOST_HOST_ROWS: Final[Mapping[Kind, int]] = {"range": 5, "frame": 10, "op": 6, "call": 2}
_MOST_STREAMS: Final = 32
_LEAST_STREAMS: Final = 2
_LEAST_ROWS: Final = 3
"""Streams of all devices together, and the least of each; rows of a stream, if all are taken."""
_MOST_THREADS: Final = 3
CounterKey = tuple[int, str]
"""A device and what is counted of it: "outstanding" launches, "memory" allocated in bytes, or what
the profiler sampled, by its name there."""
_MOST_SAMPLED: Final = 6
_FIRST_SAMPLED: Final = ("clock", "power", "temperature", "dram", "sm active")
_LARGEST: Final = 2**53  # what a script counts exactly


class Lane(Struct, frozen=True):
    """One row of boxes: of a stream of a device, or of a thread of a process.

    `device` is None for a thread. `track` is the number of the stream or thread, None if the trace
    has none. `depth` numbers the rows of one track and kind from 0.
    """

    kind: Kind
    process: int
    device: int | None
    track: int | None
    depth: int


class LaneGroup(Struct, frozen=True):
    """The lanes of a device, or of the host of a process, and what does not fit on them.

    `events` are those of each lane. `tracks_left_out` is the number of streams or threads left out,
    with `events_left_out`; `too_deep` the number of events below the last row, by kind of lane.
    """

    lanes: tuple[Lane, ...]
    events: tuple[LaneEvents, ...]
    tracks_left_out: int
    events_left_out: int
    too_deep: Mapping[Kind, int]


class _LaneRows(Struct, frozen=True, eq=False):
    """Rows of one table with their tracks."""

    kind: Kind
    times: Times
    row: WholeArray
    track: IntArray

    def of(self, which: IntArray | slice) -> _LaneRows:
        """Return some of the rows."""
        return _LaneRows(self.kind, self.times, self.row[which], self.track[which])

    def by_track(self) -> dict[int, _LaneRows]:
        """Return the rows of each track; they are not copied if tracks are in order."""
        return {track: self.of(_run(places)) for track, places in groups(self.track)}


def device_lanes(
    prepared: Prepared, device: int, origin_ns: int, devices: int, times: Times
) -> LaneGroup:
    """Return the lanes of a device's longest streams, of `devices` that share the room."""
    rows = prepared.accounts[device].rows
    process = int(prepared.trace.devices["process"][device].as_py())
    streams = _LaneRows("stream", times, rows.row, rows.columns.stream[rows.row]).by_track()
    time = {track: int(times.lasting_ns[of.row].sum()) for track, of in streams.items()}
    longest = sorted(time, key=lambda track: (-time[track], track))
    tracks = longest[: max(_MOST_STREAMS // devices, _LEAST_STREAMS)]
    most_rows = max(_MOST_STREAMS // (devices * max(len(tracks), 1)), _LEAST_ROWS)
    return _group([streams], process, device, tracks, {"stream": most_rows}, origin_ns)


def activity_times(prepared: Prepared) -> Times:
    """Return the times of all activities."""
    tops = [WORK.index(name) for name in prepared.linked.categorised.top()]
    part = np.array(tops, dtype=np.int8)[prepared.linked.categorised.category]
    return _times(prepared.trace.activities, part)


def host_lanes(
    prepared: Prepared, origins_ns: Mapping[int, int], near: Intervals
) -> list[LaneGroup]:
    """Return the lanes of the hosts of processes, whose time 0 is in `origins_ns`.

    Only the threads with most events are drawn. Of many Python frames, only modules and those in
    the time `near` are drawn.
    """
    tables = [_host_rows(prepared.linked, kind, near) for kind in _HOST_KINDS]
    hosts = []
    for process, origin_ns in origins_ns.items():
        tracks = [rows.of(_run(np.flatnonzero(of == process))).by_track() for of, rows in tables]
        counts = Counts[int]()
        for by_thread in tracks:
            for thread, rows in by_thread.items():
                # A thread that only waits has frames, too.
                if rows.kind != "frame":
                    counts[thread] += len(rows.row)
        busiest = sorted(counts, key=lambda thread: (-counts[thread], thread))[:_MOST_THREADS]
        tracks = [{thread: rows[thread] for thread in counts if thread in rows} for rows in tracks]
        hosts.append(_group(tracks, process, None, busiest, _MOST_HOST_ROWS, origin_ns))
    return hosts


def counters(
    prepared: Prepared, origins_ns: Mapping[int, int]
) -> Iterator[tuple[CounterKey, Counter]]:
    """Yield the counters of devices that ever change; times count from the devices' origins."""
    used = [use for use in memory_use(prepared) if use.device is not None]  # not the CPU's
    curves = {use.device: use.allocated.curve for use in used}
    # A curve below 0 has only changes: nothing tells where it began.
    memory = {device: curve for device, curve in curves.items() if curve.value.min() >= 0}
    for device, origin_ns in origins_ns.items():
        counted = {"outstanding": outstanding_launches(prepared.accounts[device])}
        if device in memory:
            counted["memory"] = memory[device].time_ns, memory[device].value
        counted |= _sampled(prepared.trace, device)
        for what, (at_ns, count) in counted.items():
            if len(at_ns) > 1:
                yield (device, what), Counter.of(at_ns - origin_ns, count)


def _sampled(trace: Trace, device: int) -> dict[str, tuple[IntArray, IntArray]]:
    """Return (times, values) of what a profiler sampled of a device, clocks first.

    Values are rounded. Left out are memory events (in bytes), which have a curve of their own, what
    never changes, and what has values below 0 or too large for a script.
    """
    table = trace.counters
    own = np.flatnonzero(numbers(table["device"]) == device)
    code, labels = codes(table["name"])[own], names(table["name"])
    at_ns, value = numbers(table["time_ns"])[own], floats(table["value"])[own]

    def order(code: int) -> tuple[int, str]:
        first = (n for n, word in enumerate(_FIRST_SAMPLED) if word in labels[code].lower())
        return next(first, len(_FIRST_SAMPLED)), labels[code]

    sampled = {}
    for number in sorted(distinct(code).tolist(), key=order):
        rows = np.flatnonzero(code == number)
        rows = rows[np.argsort(at_ns[rows], kind="stable")]
        least, most = value[rows].min(), value[rows].max()
        if 0 <= least < most < _LARGEST and not labels[number].endswith("_bytes"):
            sampled[labels[number]] = at_ns[rows], np.rint(value[rows]).astype(np.int64)
    return dict(islice(sampled.items(), _MOST_SAMPLED))


def marks_left_out(trace: Trace, drawn: Sequence[LaneGroup]) -> dict[str, int]:
    """Return how many marks are not drawn, by kind; annotations are not counted here."""
    kinds, kind = names(trace.marks["kind"]), codes(trace.marks["kind"])
    counts = np.bincount(kind[kind >= 0], minlength=len(kinds))
    for group in drawn:
        for lane, events in zip(group.lanes, group.events, strict=True):
            if lane.kind == "frame":  # the only other marks that are drawn
                counts -= np.bincount(kind[events.row], minlength=len(kinds))
    named = zip(kinds, counts.tolist(), strict=True)
    return {name: count for name, count in named if count and name != _RANGE}


def _run(rows: IntArray) -> IntArray | slice:
    """Return ascending rows as a slice if they are contiguous: a slice copies nothing."""
    is_run = len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1
    return slice(int(rows[0]), int(rows[-1]) + 1) if is_run else rows


def _times(table: pa.Table, part: SmallArray | None = None) -> Times:
    return Times(numbers(table["start_ns"]), numbers(table["dur_ns"], ABSENT), part)


def _host_rows(linked: LinkedTrace, kind: Kind, near: Intervals) -> tuple[WholeArray, _LaneRows]:
    """Return the process of each row of a table that is drawn, and these rows."""
    table = linked.trace.table(TABLE_OF[kind])
    process: WholeArray = numbers(table["process"]).astype(np.int32)  # narrow: all are held at once
    thread = numbers(table["thread"], ABSENT)
    times = _times(table)
    wanted = times.lasting_ns >= 0  # of unknown length nothing can be drawn
    if kind == "range":
        wanted &= is_one_of(table["kind"], _RANGE)
    if kind == "frame":
        wanted &= is_one_of(table["kind"], *_FRAMES)
    row = np.flatnonzero(wanted).astype(np.int32)
    if kind == "frame":
        row = _frames(table, times, row, near)
    if len(row) < len(thread):
        process, thread = process[row], thread[row]
    return process, _LaneRows(kind, times, row, thread)


def _frames(table: pa.Table, times: Times, rows: WholeArray, near: Intervals) -> WholeArray:
    """Return those of some frames that are drawn: modules, and functions of users.

    Of very many frames only modules and those in the time `near` are. Functions that do little but
    call another one (more than nine tenths of their time) are left out.
    """
    code, own = np.unique(codes(table["name"])[rows], return_inverse=True)
    texts = [*names(table["name"]), ""]  # the last one is for code -1, no name
    of_user = np.array([not is_of_library(texts[index]) for index in code.tolist()], dtype=np.bool_)
    is_module = is_one_of(table["kind"], "module")
    rows = rows[of_user[own] | is_module[rows]]
    if len(rows) > _MOST_FRAMES:  # only those that touch one of the intervals `near`
        start = times.start_ns[rows]
        ended = np.searchsorted(near.end_ns, start, side="right")
        begun = np.searchsorted(near.start_ns, start + times.lasting_ns[rows], side="left")
        rows = rows[(ended < begun) | is_module[rows]]
    thread = joint_codes(numbers(table["process"])[rows], numbers(table["thread"], ABSENT)[rows])
    start, lasting = times.start_ns[rows], times.lasting_ns[rows]
    parent = OpTree.nested(thread, start, start + lasting).parent
    longest = np.full(len(rows), -1, dtype=np.int64)  # of the frames called, -1 for none
    np.maximum.at(longest, parent[parent >= 0], lasting[parent >= 0])
    is_wrapper = (longest >= 0) & (10 * longest > 9 * lasting)
    return rows[~is_wrapper | is_module[rows]]


def _group(
    tables: Sequence[Mapping[int, _LaneRows]],
    process: int,
    device: int | None,
    tracks: Collection[int],
    most_rows: Mapping[Kind, int],
    origin_ns: int,
) -> LaneGroup:
    """Return the lanes of some tracks in order; each has lanes of all tables, in their order.

    `tables` have the rows by track. At most `most_rows` lanes of a kind are made per track; rows
    below are counted as too deep.
    """
    lanes: list[Lane] = []
    events: list[LaneEvents] = []
    too_deep: dict[Kind, int] = {}
    for track in sorted(tracks):
        for rows in (by_track[track] for by_track in tables if track in by_track):
            kind, number = rows.kind, None if track == ABSENT else track
            row = rows.row
            # Sort by start, rows without length first, then the longest, as `stacked` wants.
            start, lasting = rows.times.start_ns[row], rows.times.lasting_ns[row]
            order = in_order(start, (lasting > 0).astype(np.int64), -(start + lasting))
            if (order[1:] < order[:-1]).any():
                row, start, lasting = row[order], start[order], lasting[order]
            depth = stacked(start, start + lasting)
            deeper = len(row)
            for lane in range(min(most_rows[kind], int(depth.max()) + 1)):
                of_lane = row[_run(np.flatnonzero(depth == lane))]
                lanes.append(Lane(kind, process, device, number, lane))
                events.append(LaneEvents(of_lane, rows.times, origin_ns))
                deeper -= len(of_lane)
            # Frames nearly always nest deeper than they are drawn, so that is not reported.
            if deeper and kind != "frame":
                too_deep[kind] = too_deep.get(kind, 0) + deeper
    left_out = [
        (t, len(rows.row)) for table in tables for t, rows in table.items() if t not in tracks
    ]
    tracks_left_out = len({track for track, _ in left_out})
    events_left_out = sum(count for _, count in left_out)
    return LaneGroup(tuple(lanes), tuple(events), tracks_left_out, events_left_out, too_deep)
