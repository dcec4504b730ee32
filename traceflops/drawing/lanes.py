"""Lanes of a timeline: streams of devices and threads of hosts with their events, and counters.

A track is a stream or a thread; it has a lane per kind of event and depth of nesting.
"""

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
from traceflops.drawing.coarsening import Counter, LaneEvents, Times, stacked
from traceflops.memory.usage import memory_use
from traceflops.table.columns import (
    ABSENT,
    IntArray,
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
"""The table of the events, by kind of lane."""
_RANGE: Final = "annotation"
_FRAMES: Final = ("python", "module")
_MOST_FRAMES: Final = 200_000
"""If there are more frames, only modules and those near the longest gaps are drawn."""
_HOST_KINDS: Final[tuple[Kind, ...]] = ("range", "frame", "op", "call")
_MOST_HOST_ROWS: Final[Mapping[Kind, int]] = {"range": 5, "frame": 10, "op": 6, "call": 2}
_MOST_STREAMS: Final = 32
_LEAST_STREAMS: Final = 2
_LEAST_ROWS: Final = 3
"""Streams of all devices together; the least streams of a device, and rows of a stream."""
_MOST_THREADS: Final = 3
CounterKey = tuple[int, str]
"""A device and what is counted: "outstanding" launches, "memory" allocated in bytes, or the name of
a value that the profiler sampled."""
_MOST_SAMPLED: Final = 6
_FIRST_SAMPLED: Final = ("clock", "power", "temperature", "dram", "sm active")
_LARGEST: Final = 2**53  # what a script counts exactly


class Lane(Struct, frozen=True):
    """A row of boxes: of a stream of a device, or of a thread of a process.

    `device` is None for a thread. `track` is the number of the stream or thread, None if the trace
    has none. `depth` numbers the lanes of the same track and kind from 0.
    """

    kind: Kind
    process: int
    device: int | None
    track: int | None
    depth: int


class LaneGroup(Struct, frozen=True):
    """The lanes of a device, or of the host of a process, and what is not on them.

    `events` are those of each lane. `tracks_left_out` is the number of streams or threads without
    lanes, with `events_left_out`; `too_deep` is the number of events nested too deeply, by kind.
    """

    lanes: tuple[Lane, ...]
    events: tuple[LaneEvents, ...]
    tracks_left_out: int
    events_left_out: int
    too_deep: Mapping[Kind, int]


class _LaneRows(Struct, frozen=True, eq=False):
    """Rows of a table, all of one kind, with the track of each."""

    kind: Kind
    times: Times
    row: WholeArray
    track: IntArray

    def of(self, which: IntArray | slice) -> _LaneRows:
        """Return the rows with these indices."""
        return _LaneRows(self.kind, self.times, self.row[which], self.track[which])

    def by_track(self) -> dict[int, _LaneRows]:
        """Return the rows of each track; they are not copied if tracks are in order."""
        return {track: self.of(_run(places)) for track, places in groups(self.track)}


def device_lanes(
    prepared: Prepared, device: int, origin_ns: int, devices: int, times: Times
) -> LaneGroup:
    """Return the lanes of a device's streams with most time; `devices` share the room."""
    rows = prepared.accounts[device].rows
    process = int(prepared.trace.devices["process"][device].as_py())
    streams = _LaneRows("stream", times, rows.row, rows.columns.stream[rows.row]).by_track()
    time_ns = {track: int(times.lasting_ns[own.row].sum()) for track, own in streams.items()}
    busiest = sorted(time_ns, key=lambda track: (-time_ns[track], track))
    tracks = busiest[: max(_MOST_STREAMS // devices, _LEAST_STREAMS)]
    most_lanes = max(_MOST_STREAMS // (devices * max(len(tracks), 1)), _LEAST_ROWS)
    return _group([streams], process, device, tracks, {"stream": most_lanes}, origin_ns)


def activity_times(prepared: Prepared) -> Times:
    """Return the times of all activities."""
    tops = [WORK.index(name) for name in prepared.linked.categorised.top()]
    part = np.array(tops, dtype=np.int8)[prepared.linked.categorised.category]
    activities = prepared.trace.activities
    return Times(numbers(activities["start_ns"]), numbers(activities["dur_ns"], ABSENT), part)


def host_lanes(
    prepared: Prepared, origins_ns: Mapping[int, int], near: Intervals
) -> list[LaneGroup]:
    """Return the lanes of the hosts of processes, whose time 0 is in `origins_ns`.

    Only the threads with most events are drawn. Of very many Python frames, only modules and those
    in the intervals `near` are drawn.
    """
    tables = [_host_rows(prepared.linked, kind, near) for kind in _HOST_KINDS]
    hosts = []
    for process, origin_ns in origins_ns.items():
        by_thread = [  # per kind: the rows of each thread of this process
            rows.of(_run(np.flatnonzero(process_of_row == process))).by_track()
            for process_of_row, rows in tables
        ]
        # Threads by their events. Frames do not count: a thread that only waits has them, too.
        counts = Counts[int]()
        for rows_of in by_thread:
            for thread, rows in rows_of.items():
                if rows.kind != "frame":
                    counts[thread] += len(rows.row)
        busiest = sorted(counts, key=lambda thread: (-counts[thread], thread))[:_MOST_THREADS]
        active = [{t: rows_of[t] for t in counts if t in rows_of} for rows_of in by_thread]
        hosts.append(_group(active, process, None, busiest, _MOST_HOST_ROWS, origin_ns))
    return hosts


def counters(
    prepared: Prepared, origins_ns: Mapping[int, int]
) -> Iterator[tuple[CounterKey, Counter]]:
    """Yield the counters of devices that ever change; times count from the devices' origins."""
    uses = [use for use in memory_use(prepared) if use.device is not None]  # not of the CPU
    curves = {use.device: use.allocated.curve for use in uses}
    # A curve below 0 counts from an unknown start: it is not the memory that is allocated.
    memory = {device: curve for device, curve in curves.items() if curve.value.min() >= 0}
    for device, origin_ns in origins_ns.items():
        counted = {"outstanding": outstanding_launches(prepared.accounts[device])}
        if device in memory:
            counted["memory"] = memory[device].time_ns, memory[device].value
        counted |= _sampled(prepared.trace, device)
        for name, (changed_ns, count) in counted.items():
            if len(changed_ns) > 1:
                yield (device, name), Counter.of(changed_ns - origin_ns, count)


def _sampled(trace: Trace, device: int) -> dict[str, tuple[IntArray, IntArray]]:
    """Return the times and values that a profiler sampled on a device, by name, clocks first.

    Values are rounded. Left out are memory events (in bytes), which have a curve of their own,
    values that never change, and values below 0 or too large for a script.
    """
    table = trace.counters
    own = np.flatnonzero(numbers(table["device"]) == device)
    code, labels = codes(table["name"])[own], names(table["name"])
    time_ns, value = numbers(table["time_ns"])[own], floats(table["value"])[own]

    def order(code: int) -> tuple[int, str]:
        first = (n for n, word in enumerate(_FIRST_SAMPLED) if word in labels[code].lower())
        return next(first, len(_FIRST_SAMPLED)), labels[code]

    sampled = {}
    for name_code in sorted(distinct(code).tolist(), key=order):
        rows = np.flatnonzero(code == name_code)
        rows = rows[np.argsort(time_ns[rows], kind="stable")]
        least, most = value[rows].min(), value[rows].max()
        name = labels[name_code]
        if 0 <= least < most < _LARGEST and not name.endswith("_bytes"):
            sampled[name] = time_ns[rows], np.rint(value[rows]).astype(np.int64)
    return dict(islice(sampled.items(), _MOST_SAMPLED))


def marks_left_out(trace: Trace, drawn: Sequence[LaneGroup]) -> dict[str, int]:
    """Return the number of marks that are not drawn, by kind, without annotations."""
    kinds, kind = names(trace.marks["kind"]), codes(trace.marks["kind"])
    counts = np.bincount(kind[kind >= 0], minlength=len(kinds))
    for group in drawn:
        for lane, events in zip(group.lanes, group.events, strict=True):
            if lane.kind == "frame":  # the only other marks that are drawn
                counts -= np.bincount(kind[events.row], minlength=len(kinds))
    named = zip(kinds, counts.tolist(), strict=True)
    return {name: count for name, count in named if count and name != _RANGE}


def _run(rows: IntArray) -> IntArray | slice:
    """Return ascending rows as a slice if they are contiguous, as a slice copies nothing."""
    is_run = len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1
    return slice(int(rows[0]), int(rows[-1]) + 1) if is_run else rows


def _host_rows(linked: LinkedTrace, kind: Kind, near: Intervals) -> tuple[WholeArray, _LaneRows]:
    """Return the rows of a kind that are drawn, after the process of each."""
    table = linked.trace.table(TABLE_OF[kind])
    process: WholeArray = numbers(table["process"]).astype(np.int32)  # narrow: all are held at once
    thread = numbers(table["thread"], ABSENT)
    times = Times(numbers(table["start_ns"]), numbers(table["dur_ns"], ABSENT), None)
    is_drawn = times.lasting_ns >= 0  # -1: of unknown length
    if kind == "range":
        is_drawn &= is_one_of(table["kind"], _RANGE)
    if kind == "frame":
        is_drawn &= is_one_of(table["kind"], *_FRAMES)
    row = np.flatnonzero(is_drawn).astype(np.int32)
    if kind == "frame":
        row = _frames(table, times, row, near)
    if len(row) < len(thread):
        process, thread = process[row], thread[row]
    return process, _LaneRows(kind, times, row, thread)


def _frames(table: pa.Table, times: Times, rows: WholeArray, near: Intervals) -> WholeArray:
    """Return the frames that are drawn, of those in `rows`: modules, and functions of the user.

    1. Functions of libraries are left out.
    2. Of very many frames, only modules and those in the intervals `near` are drawn.
    3. Functions that spend more than nine tenths of their time in a single call are left out.
    """
    code, index = np.unique(codes(table["name"])[rows], return_inverse=True)
    texts = [*names(table["name"]), ""]  # the last one is for code -1, no name
    is_users = np.array([not is_of_library(texts[name]) for name in code.tolist()], dtype=np.bool_)
    is_module = is_one_of(table["kind"], "module")
    rows = rows[is_users[index] | is_module[rows]]
    if len(rows) > _MOST_FRAMES:
        # near [0, 2) and [5, 9): before the frame [3, 6) starts 1 ended, before it ends 2 began.
        start = times.start_ns[rows]
        ended = np.searchsorted(near.end_ns, start, side="right")
        begun = np.searchsorted(near.start_ns, start + times.lasting_ns[rows], side="left")
        is_near = ended < begun
        rows = rows[is_near | is_module[rows]]
    thread = joint_codes(numbers(table["process"])[rows], numbers(table["thread"], ABSENT)[rows])
    start, lasting = times.start_ns[rows], times.lasting_ns[rows]
    parent = OpTree.nested(thread, start, start + lasting).parent
    has_parent = parent >= 0
    # parent [-1 0 0], lasting [10 2 7] -> longest call [7 -1 -1]
    longest_call = np.full(len(rows), -1, dtype=np.int64)  # in ns, -1 for none
    np.maximum.at(longest_call, parent[has_parent], lasting[has_parent])
    is_wrapper = (longest_call >= 0) & (10 * longest_call > 9 * lasting)
    return rows[~is_wrapper | is_module[rows]]


def _group(
    tables: Sequence[Mapping[int, _LaneRows]],
    process: int,
    device: int | None,
    tracks: Collection[int],
    most_rows: Mapping[Kind, int],
    origin_ns: int,
) -> LaneGroup:
    """Return the lanes of some tracks, in order of their numbers.

    `tables` have the rows of each kind by track: a track has the lanes of all kinds in this order.
    At most `most_rows` lanes of a kind are made per track; deeper rows are counted as too deep.
    """
    lanes: list[Lane] = []
    events: list[LaneEvents] = []
    too_deep: dict[Kind, int] = {}
    for track in sorted(tracks):
        for rows in (by_track[track] for by_track in tables if track in by_track):
            number = None if track == ABSENT else track
            kind, row = rows.kind, rows.row
            # `stacked` needs rows by start; of equal starts, instants first, then the longest.
            start, lasting = rows.times.start_ns[row], rows.times.lasting_ns[row]
            order = in_order(start, (lasting > 0).astype(np.int64), -(start + lasting))
            if (order[1:] < order[:-1]).any():
                row, start, lasting = row[order], start[order], lasting[order]
            depth = stacked(start, start + lasting)
            deeper = len(row)
            for lane_depth in range(min(most_rows[kind], int(depth.max()) + 1)):
                of_lane = row[_run(np.flatnonzero(depth == lane_depth))]
                lanes.append(Lane(kind, process, device, number, lane_depth))
                events.append(LaneEvents(of_lane, rows.times, origin_ns))
                deeper -= len(of_lane)
            # Frames nearly always nest deeper than they are drawn: that is not reported.
            if deeper and kind != "frame":
                too_deep[kind] = too_deep.get(kind, 0) + deeper
    other_tracks = {track for by_track in tables for track in by_track} - set(tracks)
    others = [by_track[t] for by_track in tables for t in other_tracks if t in by_track]
    events_left_out = sum(len(rows.row) for rows in others)
    return LaneGroup(tuple(lanes), tuple(events), len(other_tracks), events_left_out, too_deep)
