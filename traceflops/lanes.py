"""Lanes of a timeline: the streams of devices and the threads of hosts, each with its events."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from traceflops.coarsening import Events
from traceflops.columns import IntArray, WholeArray, codes, names, numbers
from traceflops.components import WORK
from traceflops.groups import groups, in_order, slices
from traceflops.rows import ABSENT
from traceflops.stacking import stacked

if TYPE_CHECKING:
    from traceflops.account import LinkedTrace
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


@dataclass(frozen=True, slots=True, eq=False)
class LaneEvents:
    """The events of one lane in the order of their starts, as `Events` have them."""

    start_ns: IntArray
    end_ns: IntArray
    row: IntArray
    part: IntArray


@dataclass(frozen=True, slots=True)
class LaneGroup:
    """The lanes of a device, or of the host of a process, and what found no room on them.

    `events` are those of each lane. `tracks_left_out` are whole streams or threads, `too_deep`
    counts events by the kind of their lane.
    """

    lanes: tuple[Lane, ...]
    events: tuple[LaneEvents, ...]
    tracks_left_out: int
    events_left_out: int
    too_deep: Mapping[Kind, int]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of one table with their tracks and times; `depth` is theirs where it is known.

    Then they are in the order of their tracks and starts, of those that start together the
    longer ones first.
    """

    kind: Kind
    row: IntArray
    track: IntArray
    start_ns: IntArray
    lasting_ns: IntArray
    part: WholeArray
    depth: IntArray | None = None

    def of(self, which: IntArray | slice) -> _Rows:
        return _Rows(
            self.kind,
            self.row[which],
            self.track[which],
            self.start_ns[which],
            self.lasting_ns[which],
            self.part[which],
            None if self.depth is None else self.depth[which],
        )

    def by_track(self) -> dict[int, _Rows]:
        """Return the rows of each track; those of tracks in order are not copied."""
        edges = np.flatnonzero(self.track[1:] != self.track[:-1]) + 1
        first = self.track[np.append(0, edges)] if len(self.track) else self.track
        if not (first[1:] > first[:-1]).all():
            return {track: self.of(_run(places)) for track, places in groups(self.track)}
        bounds = [0, *edges.tolist(), len(self.track)]
        return {
            track: self.of(slice(bounds[place], bounds[place + 1]))
            for place, track in enumerate(first.tolist())
        }


def device_lanes(prepared: Prepared, device: int, origin_ns: int, devices: int) -> LaneGroup:
    """Return the lanes of one of so many devices that are drawn."""
    rows = prepared.accounts[device].rows
    stream = rows.columns.stream[rows.row]
    tops = [WORK.index(name) for name in prepared.linked.categorised.top()]
    part = np.array(tops, dtype=np.int8)[prepared.linked.categorised.category[rows.row]]
    process = int(prepared.trace.devices["process"][device].as_py())
    lasting = rows.end_ns - rows.start_ns
    mine = _Rows("stream", rows.row, stream, rows.start_ns, lasting, part).by_track()
    tracks = _longest_tracks(mine, max(_MOST_STREAMS // devices, _LEAST_STREAMS))
    most_rows = max(_MOST_STREAMS // (devices * max(len(tracks), 1)), _LEAST_ROWS)
    return _group([mine], process, device, tracks, {"stream": most_rows}, origin_ns)


def host_lanes(prepared: Prepared, origins_ns: Mapping[int, int]) -> list[LaneGroup]:
    """Return the lanes of the hosts of some processes, whose time 0 these are."""
    tables = [_host_rows(prepared.linked, kind) for kind in _HOST_KINDS]
    found = []
    for process, origin_ns in origins_ns.items():
        mine = [rows.of(_run(np.flatnonzero(of == process))) for of, rows in tables]
        tracks = [rows.by_track() for rows in mine]
        counts: dict[int, int] = {}
        for one in tracks:
            for thread, rows in one.items():
                counts[thread] = counts.get(thread, 0) + len(rows.row)
        most = sorted(counts, key=lambda thread: (-counts[thread], thread))[:_MOST_THREADS]
        found.append(_group(tracks, process, None, most, _MOST_HOST_ROWS, origin_ns))
    return found


def marks_left_out(trace: Trace) -> dict[str, int]:
    """Return how many marks there are of the kinds that are not drawn."""
    kind = codes(trace.marks["kind"])
    counts = np.bincount(kind[kind >= 0], minlength=1).tolist()
    named = dict(zip(names(trace.marks["kind"]), counts, strict=False))
    return {name: count for name, count in named.items() if count and name not in RANGES}


def joined(lanes: Sequence[LaneEvents]) -> Events:
    """Return the events of lanes that follow one another, numbered through."""
    number = np.arange(len(lanes), dtype=np.int16)
    lane = np.repeat(number, np.array([len(one.row) for one in lanes], dtype=np.int64))
    columns = (
        np.concatenate([getattr(one, name) for one in lanes]) if lanes else np.empty(0, np.int64)
        for name in ("start_ns", "end_ns", "row", "part")
    )
    return Events(lane, *columns)


def _run(rows: IntArray) -> IntArray | slice:
    """Return rows in order as a range where they are one: such a part of a column is no copy."""
    is_run = len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1
    return slice(int(rows[0]), int(rows[-1]) + 1) if is_run else rows


def _longest_tracks(rows: Mapping[int, _Rows], most: int) -> list[int]:
    """Return the tracks on which most time was spent."""
    time = {track: int(mine.lasting_ns.sum()) for track, mine in rows.items()}
    return sorted(time, key=lambda track: (-time[track], track))[:most]


def _host_rows(linked: LinkedTrace, kind: Kind) -> tuple[IntArray, _Rows]:
    """Return the rows of a table that are drawn, and their processes."""
    table = linked.trace.table(TABLE_OF[kind])
    process, thread = numbers(table["process"]), numbers(table["thread"], ABSENT)
    start, lasting = numbers(table["start_ns"]), numbers(table["dur_ns"], ABSENT)
    part = np.broadcast_to(np.int8(0), len(start))
    wanted = lasting >= 0
    if kind == "range":
        drawn = [k for k, name in enumerate(names(table["kind"])) if name in RANGES]
        wanted &= np.isin(codes(table["kind"]), drawn)
    row = np.arange(len(start))
    found = _Rows(kind, row, thread, start, lasting, part)
    if kind == "op" and _nests(linked, lasting):
        tree = linked.op_tree
        ordered = found if tree.in_order else found.of(tree.order)
        process = process if tree.in_order else process[tree.order]
        columns = (ordered.row, ordered.track, ordered.start_ns, ordered.lasting_ns)
        return process, _Rows(kind, *columns, part, tree.depth())
    if not wanted.all():
        row = np.flatnonzero(wanted)
        return process[row], found.of(row)
    return process, found


def _nests(linked: LinkedTrace, lasting_ns: IntArray) -> bool:
    """Return whether all ops have a length and none ends after the one it starts in."""
    if not len(lasting_ns) or int(lasting_ns.min()) <= 0:
        return False
    start, parent = numbers(linked.trace.ops["start_ns"]), linked.op_tree.parent
    for some in slices(len(start)):
        above = np.where(parent[some] >= 0, parent[some], np.arange(some.start, some.stop))
        if (start[above] + lasting_ns[above] < start[some] + lasting_ns[some]).any():
            return False
    return True


def _group(
    tables: Sequence[Mapping[int, _Rows]],
    process: int,
    device: int | None,
    tracks: Collection[int],
    most_rows: Mapping[Kind, int],
    origin_ns: int,
) -> LaneGroup:
    """Return the lanes of some tracks: by number, and of each its tables one below the other."""
    lanes: list[Lane] = []
    events: list[LaneEvents] = []
    too_deep: dict[Kind, int] = {}
    for track in sorted(tracks):
        for rows in (found[track] for found in tables if track in found):
            kind, number = rows.kind, None if track == ABSENT else track
            stacks = list(_stacks(rows, most_rows[kind], origin_ns))
            lanes += [Lane(kind, process, device, number, depth) for depth in range(len(stacks))]
            events += stacks
            deep = len(rows.row) - sum(len(one.row) for one in stacks)
            if deep:
                too_deep[kind] = too_deep.get(kind, 0) + deep
    there = {track for found in tables for track in found}
    left_out = sum(len(found[t].row) for found in tables for t in found if t not in tracks)
    left = len(there - set(tracks))
    return LaneGroup(tuple(lanes), tuple(events), left, left_out, too_deep)


def _stacks(rows: _Rows, most: int, origin_ns: int) -> Iterator[LaneEvents]:
    """Give the events of a track, lane by lane, of no more than so many lanes."""
    depth = rows.depth
    if depth is None:
        end = rows.start_ns + rows.lasting_ns
        order = in_order(rows.start_ns, (rows.lasting_ns > 0).astype(np.int64), -end)
        if (order[1:] < order[:-1]).any():
            rows = rows.of(order)
        depth = stacked(rows.start_ns, rows.start_ns + rows.lasting_ns)
    for lane in range(min(most, int(depth.max()) + 1)):
        mine = rows.of(_run(np.flatnonzero(depth == lane)))
        start = mine.start_ns - origin_ns
        yield LaneEvents(start, start + mine.lasting_ns, mine.row, mine.part)
