"""Lanes of a timeline: the streams of devices and the threads of hosts, each with its events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from traceflops.coarsening import Events
from traceflops.columns import IntArray, codes, names, numbers
from traceflops.components import WORK
from traceflops.groups import groups, in_order
from traceflops.rows import ABSENT
from traceflops.stacking import stacked

if TYPE_CHECKING:
    from traceflops.prepare import Prepared
    from traceflops.trace import Trace

Kind = Literal["stream", "range", "op", "call"]

TABLE_OF: Final[Mapping[Kind, str]] = {
    "stream": "activities",
    "range": "marks",
    "op": "ops",
    "call": "calls",
}
"""The table that the events of a lane are rows of."""

RANGES: Final = ("annotation", "module")
"""The marks that are drawn."""

_HOST_KINDS: Final[tuple[Kind, ...]] = ("range", "op", "call")
_MOST_HOST_ROWS: Final[Mapping[Kind, int]] = {"range": 5, "op": 6, "call": 2}
_MOST_STREAMS: Final = 32
_LEAST_STREAMS: Final = 2
_LEAST_ROWS: Final = 3
"""Streams of all devices together, and the least of each; rows of a stream, if all are taken."""

_MOST_THREADS: Final = 3


@dataclass(frozen=True, slots=True)
class Lane:
    """One row of boxes: of a stream of a device, or of a thread of a process.

    `device` is None for a thread, `track` the number of the stream or thread, None where the
    trace has none. `depth` counts the rows of one track and kind from 0.
    """

    kind: Kind
    process: int
    device: int | None
    track: int | None
    depth: int


@dataclass(frozen=True, slots=True)
class LaneGroup:
    """The lanes of a device, or of the host of a process, and what found no room on them.

    `events` have the places in `lanes` as their lanes. `tracks_left_out` are whole streams or
    threads, `too_deep` counts events by the kind of their lane.
    """

    lanes: tuple[Lane, ...]
    events: Events
    tracks_left_out: int
    events_left_out: int
    too_deep: Mapping[Kind, int]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of one table with their tracks and times."""

    kind: Kind
    row: IntArray
    track: IntArray
    start_ns: IntArray
    end_ns: IntArray
    part: IntArray

    def of(self, which: IntArray) -> _Rows:
        columns = (self.row, self.track, self.start_ns, self.end_ns, self.part)
        return _Rows(self.kind, *(column[which] for column in columns))


def device_lanes(prepared: Prepared, device: int, origin_ns: int, devices: int) -> LaneGroup:
    """Return the lanes of one of so many devices that are drawn."""
    rows = prepared.accounts[device].rows
    stream = rows.columns.stream[rows.row]
    tops = [WORK.index(name) for name in prepared.linked.categorised.top()]
    part = np.array(tops, dtype=np.int64)[prepared.linked.categorised.category[rows.row]]
    start, end = rows.start_ns - origin_ns, rows.end_ns - origin_ns
    process = int(prepared.trace.devices["process"][device].as_py())
    mine = _Rows("stream", rows.row, stream, start, end, part)
    tracks = _longest_tracks(mine, max(_MOST_STREAMS // devices, _LEAST_STREAMS))
    most_rows = max(_MOST_STREAMS // (devices * max(len(tracks), 1)), _LEAST_ROWS)
    return _group([mine], process, device, tracks, {"stream": most_rows})


def host_lanes(trace: Trace, process: int, origin_ns: int) -> LaneGroup:
    """Return the lanes of the host of a process."""
    found = [_host_rows(trace, kind, process, origin_ns) for kind in _HOST_KINDS]
    counts: dict[int, int] = {}
    for rows in found:
        for thread, places in groups(rows.track):
            counts[thread] = counts.get(thread, 0) + len(places)
    most = sorted(counts, key=lambda thread: (-counts[thread], thread))[:_MOST_THREADS]
    return _group(found, process, None, most, _MOST_HOST_ROWS)


def marks_left_out(trace: Trace) -> dict[str, int]:
    """Return how many marks there are of the kinds that are not drawn."""
    kind = codes(trace.marks["kind"])
    counts = np.bincount(kind[kind >= 0], minlength=1).tolist()
    named = dict(zip(names(trace.marks["kind"]), counts, strict=False))
    return {name: count for name, count in named.items() if count and name not in RANGES}


def _longest_tracks(rows: _Rows, most: int) -> list[int]:
    """Return the tracks on which most time was spent."""
    time = {
        track: int((rows.end_ns[places] - rows.start_ns[places]).sum())
        for track, places in groups(rows.track)
    }
    return sorted(time, key=lambda track: (-time[track], track))[:most]


def _host_rows(trace: Trace, kind: Kind, process: int, origin_ns: int) -> _Rows:
    """Return the rows of a process in the order of their starts, those that are drawn."""
    table = trace.table(TABLE_OF[kind])
    start, lasting = numbers(table["start_ns"]), numbers(table["dur_ns"], ABSENT)
    mine = (numbers(table["process"]) == process) & (lasting >= 0)
    if kind == "range":
        wanted = [k for k, name in enumerate(names(table["kind"])) if name in RANGES]
        mine &= np.isin(codes(table["kind"]), wanted)
    row = np.flatnonzero(mine)
    start = start[row] - origin_ns
    track = numbers(table["thread"], ABSENT)[row]
    return _Rows(kind, row, track, start, start + lasting[row], np.zeros(len(row), dtype=np.int64))


def _group(
    tables: Sequence[_Rows],
    process: int,
    device: int | None,
    tracks: Iterable[int],
    most_rows: Mapping[Kind, int],
) -> LaneGroup:
    """Return the lanes of some tracks: by number, and of each its tables one below the other."""
    drawn = sorted(tracks)
    lanes: list[Lane] = []
    parts: list[Events] = []
    too_deep: dict[Kind, int] = {}
    by_track = [dict(groups(rows.track)) for rows in tables]
    for track in drawn:
        for rows, places in zip(tables, by_track, strict=True):
            if track not in places:
                continue
            events, deep = _stack(rows.of(places[track]), len(lanes), most_rows[rows.kind])
            kind, number = rows.kind, None if track == ABSENT else track
            depths = int(events.lane.max()) + 1 - len(lanes)
            lanes += [Lane(kind, process, device, number, depth) for depth in range(depths)]
            parts.append(events)
            if deep:
                too_deep[kind] = too_deep.get(kind, 0) + deep
    there = {track for found in by_track for track in found}
    left_out = sum(len(found[t]) for found in by_track for t in found if t not in drawn)
    return LaneGroup(tuple(lanes), joined(parts), len(there - set(drawn)), left_out, too_deep)


def _stack(rows: _Rows, first_lane: int, most: int) -> tuple[Events, int]:
    """Return the events of a track on lanes from a number on, and how many lie too deep."""
    lasts = (rows.end_ns > rows.start_ns).astype(np.int64)
    order = in_order(rows.start_ns, lasts, -rows.end_ns)
    rows = rows.of(order)
    depth = stacked(rows.start_ns, rows.end_ns)
    lies = np.flatnonzero(depth < most)
    # The sort is stable, so the starts of a lane stay in order.
    lies = lies[np.argsort(depth[lies].astype(np.int16), kind="stable")]
    lane = first_lane + depth[lies]
    mine = rows.of(lies)
    events = Events(lane, mine.start_ns, mine.end_ns, mine.row, mine.part)
    return events, len(depth) - len(lies)


def joined(parts: Sequence[Events]) -> Events:
    """Return events of lanes that follow one another as one."""
    if not parts:
        empty = np.empty(0, dtype=np.int64)
        return Events(empty, empty, empty, empty, empty)
    columns = (
        np.concatenate([getattr(one, name) for one in parts])
        for name in ("lane", "start_ns", "end_ns", "row", "part")
    )
    return Events(*columns)
