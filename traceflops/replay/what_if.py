"""How long steps would take under edits, and their critical path then.

Gains compare a replay with a replay. They span all readings of what is uncertain in a recording:
whether inferred dependencies exist, and whether unexplained delays move with earlier work or stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from operator import attrgetter
from typing import Final

import numpy as np
from msgspec import Struct, field

from traceflops.attribution.scopes import Phases
from traceflops.errors import UsageError
from traceflops.facts import Fact, fact
from traceflops.mfu.budget import ShareRange
from traceflops.ranks.who_waits import RankReport
from traceflops.replay.changes import Changed, Recorded
from traceflops.replay.critical_path import UNEXPLAINED, PathPart, Pieces, parts_of, path, places_of
from traceflops.replay.edits import Edit, apply, parse_edits
from traceflops.replay.recorded_edges import recorded_graph
from traceflops.replay.recorded_graph import MEETING, RecordedGraph, World
from traceflops.replay.refusals import refusals, refused
from traceflops.replay.spans import Spans, spans_of
from traceflops.replay.visits import Visits
from traceflops.table.columns import BoolArray, IntArray, numbers
from traceflops.table.grouping import groups
from traceflops.table.nesting import taken
from traceflops.timeline.intervals import Intervals
from traceflops.windows.prepared import Prepared

_TOTAL_NS: Final = attrgetter("total_ns")
_MOST_UNEXPLAINED: Final = 0.05
_LEAST: Final = "(more than there is to hide it under)"
_INFERRED: Final = "doubt.inferred"
_PINNED: Final = "doubt.pinned"
"""Codes of how a reading differs from the likely one."""


class Outcome(Struct, frozen=True):
    """What some edits do together; times in ns, summed over all chosen windows of all devices.

    `after_ns` lies between `least_ns` and `most_ns`, over all readings. It is None if these are too
    far apart or too much time is unexplained: `doubts` say why. `mfu` is before the edits, None if
    unknown. `critical` is the critical path after them, the largest part first.
    """

    edits: tuple[str, ...]
    before_ns: int
    after_ns: int | None
    least_ns: int
    most_ns: int
    windows: int
    mfu: ShareRange | None
    critical: tuple[PathPart, ...]
    doubts: tuple[Fact, ...]

    def step_ns(self, total_ns: int | None) -> float | None:
        """Return the mean of a total per window: usually per step and device."""
        return None if total_ns is None else total_ns / max(self.windows, 1)

    def mfu_after(self, least_ns: int, most_ns: int) -> ShareRange | None:
        """Return the MFU if the windows take such times, None if unknown or beyond the peak."""
        return self.mfu.after(self.before_ns, least_ns, most_ns) if self.mfu else None


class WhatIf(Struct, frozen=True):
    """Outcomes of each edit alone, in the given order, and of all edits `together`.

    `critical` is the critical path as recorded: its parts add up to `before_ns` of every outcome.
    So does `ranks`, the path's time by rank, if all ranks are known. `refused` says, by edit, why
    the recording cannot answer it.
    """

    alone: tuple[Outcome, ...]
    together: Outcome
    critical: tuple[PathPart, ...]
    ranks: Mapping[int, int]
    refused: Mapping[str, str] = field(default_factory=dict)


class Reading(Struct, frozen=True):
    """One reading of what is uncertain: a graph, the world of the recording, its windows.

    `unlike` has the codes of its differences from the likely reading.
    """

    graph: RecordedGraph
    base: World
    windows: Spans
    unlike: frozenset[str]

    @classmethod
    def of(cls, graph: RecordedGraph, base: World, windows: Spans, *unlike: str) -> Reading:
        """Return a reading whose windows begin as recorded although `base` shortens work."""
        shortened_ns = graph.nodes.dur_ns - base.dur_ns
        first, last = windows.first.earlier(shortened_ns), windows.last.earlier(shortened_ns)
        return cls(graph, base, Spans(first, last), frozenset(filter(None, unlike)))


class Replayed(Struct, frozen=True):
    """A replay of a changed world, and how long each chosen window takes in it."""

    reading: Reading
    changed: Changed
    time_ns: IntArray
    windows_ns: tuple[int, ...]

    @property
    def total_ns(self) -> int:
        """Return the time of all chosen windows."""
        return sum(self.windows_ns)

    def no_longer_than(self, *others: Replayed) -> Replayed:
        """Return the shortest of this replay and those `others` in whose world nothing is shorter.

        If only the first work of a window begins earlier, the window becomes longer.
        """
        slower = [other for other in others if self.changed.world.is_within(other.changed.world)]
        return min((self, *slower), key=lambda replay: replay.total_ns)


class Replay(Struct, frozen=True, dict=True):
    """A recording ready for questions. Raises UsageError if it does not hold what they need."""

    prepared: Prepared
    ranks: RankReport
    phases: Phases | None
    mfu: ShareRange | None

    def __post_init__(self) -> None:
        """Refuse recordings of which no replay would be true."""
        for error in refusals(self.prepared):
            raise error

    @cached_property
    def graph(self) -> RecordedGraph:
        """Return the graph of the recording."""
        return recorded_graph(self.prepared, self.ranks)

    @cached_property
    def recorded(self) -> Recorded:
        """Return what edits look up."""
        return Recorded(self.prepared, self.phases, self.ranks)

    @cached_property
    def readings(self) -> tuple[Reading, ...]:
        """Return all readings of what is uncertain; the first is the likely one.

        They differ in whether inferred edges exist, and whether unexplained delays move with the
        work before them or stay in place (pinned).
        """
        graphs = {"": self.graph}
        if self.graph.edges.inferred.any():
            graphs[_INFERRED] = self.graph.without_inferred()
        likely = [
            Reading.of(graph, graph.as_recorded(), self.window_spans, unlike)
            for unlike, graph in graphs.items()
        ]
        pinned = []
        for unlike, graph in graphs.items():
            if graph.is_unexplained.any() or self.awaits_others:
                # Communication that waits for something unrecorded ends when it did, too.
                world, waiting = graph.as_recorded(pinned=True), self._waiting(graph)
                world = World(
                    np.where(waiting, 0, world.dur_ns),
                    world.lag_ns,
                    np.where(waiting, 0, world.delay_ns),
                    np.where(waiting, graph.nodes.time_ns, world.floor_ns),
                )
                pinned.append(Reading.of(graph, world, self.window_spans, unlike, _PINNED))
        return (*likely, *pinned)

    @cached_property
    def visits(self) -> Visits:
        """Return what replays visit, in all readings."""
        pinned = [reading.base.is_pinned for reading in self.readings]
        return self.graph.visits(np.logical_or.reduce(pinned))

    @cached_property
    def awaits_others(self) -> bool:
        """Return whether collectives wait for something unrecorded, such as other ranks."""
        return bool(self._waiting(self.graph).any())

    def _waiting(self, graph: RecordedGraph) -> BoolArray:
        """Return which nodes are communication that waits for something that is not recorded."""
        has_meeting = np.zeros(len(graph.nodes.time_ns), dtype=np.bool_)
        has_meeting[graph.edges.target[graph.edges.kind == MEETING]] = True
        communicates = taken(self.recorded.communicates.astype(np.int8), graph.nodes.row, 0) > 0
        return np.asarray(communicates & (~has_meeting | self.ranks.partial))

    @cached_property
    def critical(self) -> tuple[PathPart, ...]:
        """Return the critical path of the chosen windows as recorded, the largest part first."""
        return parts_of(self.prepared, self.graph, self._path)

    @cached_property
    def by_rank(self) -> Mapping[int, int]:
        """Return the time of the critical path by known rank, the largest first."""
        sums: Counter[int] = Counter()
        for process, rows in groups(self.graph.nodes.process[self._path.node]):
            rank = self.prepared.trace.ranks[process] if process >= 0 else None
            if rank is not None:
                sums[rank] += int(self._path.ns[rows].sum())
        return dict(sums.most_common())

    @cached_property
    def places(self) -> tuple[IntArray, Mapping[tuple[int, int], Intervals]]:
        """Return the activities on the critical path, and its time by process and thread."""
        return places_of(self.prepared, self.graph, self._path)

    @cached_property
    def _path(self) -> Pieces:
        return path(self.graph, self.spans, self.readings[0].base, self.graph.nodes.time_ns)

    @cached_property
    def spans(self) -> Spans:
        """Return the chosen windows, adjacent ones joined."""
        return spans_of(self.prepared, self.graph)

    @cached_property
    def window_spans(self) -> Spans:
        """Return the chosen windows, each by itself."""
        return spans_of(self.prepared, self.graph, joined=False)

    @property
    def windows(self) -> int:
        """Return the number of chosen windows."""
        return len(self.window_spans.device)

    def outcome(self, edits: Sequence[Edit]) -> Outcome:
        """Return what edits do together, without the critical path after them."""
        return self._outcome(edits, map(_TOTAL_NS, self._replays(edits)))

    def _replays(self, edits: Sequence[Edit]) -> Iterator[Replayed]:
        """Yield the replays of edits in all readings, none longer than without them."""
        for base in self._bases:
            yield self.replayed(base.reading, edits).no_longer_than(base)

    @cached_property
    def _bases(self) -> tuple[Replayed, ...]:
        """Return the replays of the recording without edits in all readings."""
        return tuple(self.replayed(reading, ()) for reading in self.readings)

    def _outcome(
        self, edits: Sequence[Edit], after_ns: Iterable[int], likely: Replayed | None = None
    ) -> Outcome:
        """Return the outcome of edits from the times in all readings, with the path of `likely`."""
        after = [*after_ns]
        doubts = tuple(self._doubts(self.before_ns, after))
        critical: tuple[PathPart, ...] = ()
        if likely is not None:
            graph, changed = likely.reading.graph, likely.changed
            pieces = path(graph, self.spans, changed.world, likely.time_ns)
            critical = parts_of(self.prepared, graph, pieces, changed.without)
            # Hidden communication that is longer than the rest is on no path.
            if more := likely.total_ns - sum(part.ns for part in critical):
                critical = (PathPart("communication", _LEAST, more), *critical)
        return Outcome(
            edits=tuple(edit.text for edit in edits),
            before_ns=self.before_ns,
            after_ns=None if doubts else after[0],
            least_ns=min(after),
            most_ns=max(after),
            windows=self.windows,
            mfu=self.mfu,
            critical=critical,
            doubts=doubts,
        )

    @cached_property
    def before_ns(self) -> int:
        """Return the recorded time of the chosen windows."""
        likely = self.readings[0]
        times = likely.graph.nodes.time_ns
        return sum(self.spans.lengths(likely.graph, likely.base, times))

    def replayed(self, reading: Reading, edits: Sequence[Edit]) -> Replayed:
        """Return a replay of one reading with edits."""
        graph = reading.graph
        changed = Changed(graph, self.recorded, reading.base)
        for edit in edits:
            changed = apply(edit, changed)
        with_communication = changed
        if changed.is_hidden:  # nothing waits for it, but a window is no shorter than it
            changed = changed.with_work(changed.work_of(self.recorded.communicates), 0)
        world, base = changed.world, reading.base
        is_same = world.is_within(base) and base.is_within(world)
        time = graph.nodes.time_ns if is_same else graph.times(world, self.visits)
        lengths = reading.windows.lengths(graph, world, time)
        if changed.is_hidden:
            least_ns = with_communication.communication_ns(self.window_spans)
            lengths = [*map(max, lengths, least_ns)]
        return Replayed(reading, changed, time, tuple(lengths))

    def _doubts(self, before: int, after: Sequence[int]) -> Iterator[Fact]:
        """Yield why the time after edits cannot be told; `after` are the times by reading."""
        gain = abs(before - after[0])
        if self.awaits_others:
            # Are ranks of the job missing, as far as the recording tells?
            sizes = numbers(self.prepared.trace.processes["world_size"], 0).tolist()
            is_one = max(sizes, default=0) == 1
            is_partial = self.ranks.partial if self.ranks.are_several else not is_one
            yield fact("doubt.ranks-missing" if is_partial else "doubt.collectives-apart")
        elif 2 * (max(after) - min(after)) > gain:
            # The readings are too far apart. How far apart are those that differ in one thing only?
            changes = dict.fromkeys((_INFERRED, _PINNED), 0)
            timed = zip(self.readings, after, strict=True)
            for (reading, ns), (other, other_ns) in combinations(timed, 2):
                for unlike in changes:
                    if reading.unlike ^ other.unlike == {unlike}:
                        changes[unlike] = max(changes[unlike], abs(ns - other_ns))
            most = max(changes.values())
            yield from (fact(unlike) for unlike, ns in changes.items() if 2 * ns >= most)
        unexplained_ns = sum(part.ns for part in self.critical if part.component == UNEXPLAINED)
        if unexplained_ns > _MOST_UNEXPLAINED * before:
            yield fact("doubt.unexplained", share=unexplained_ns / before)

    def check(self) -> None:
        """Raise UsageError if most of the time follows from nothing that is recorded."""
        graph, base = self.graph, self.readings[0].base
        nodes, late = graph.nodes, np.flatnonzero(graph.is_unexplained)
        begin = (nodes.time_ns - nodes.dur_ns)[late]
        late_ns = 0
        late_of = dict(groups(nodes.device[late]))
        for device, low, high, _ in self.spans.rows(graph, base, nodes.time_ns):
            # How long work of the device had not yet begun, although nothing explains why.
            own = late_of.get(device, late[:0])
            delays = Intervals.of((begin - graph.delay_ns[late])[own], begin[own])
            late_ns += delays.within(low, high).length_ns
        unexplained_ns = sum(part.ns for part in self.critical if part.component == UNEXPLAINED)
        if 2 * max(late_ns, unexplained_ns) > self.before_ns:
            raise refused(
                "most of the time follows from nothing recorded",
                "record all GPU work and the calls of the CPU",
            )

    def what_if(self, edits: Sequence[str]) -> WhatIf:
        """Return what edits do, each alone and all together.

        Edits that the recording cannot answer are refused; if it can answer none, UsageError is
        raised.
        """
        self.check()
        answered, failed, alone = [], {}, []
        for edit in parse_edits(edits):
            try:
                alone.append([*self._replays([edit])])
                answered.append(edit)
            except UsageError as error:
                failed[edit.text] = error
        if not alone and failed:
            raise next(iter(failed.values()))
        outcomes = tuple(
            self._outcome([edit], map(_TOTAL_NS, replays), replays[0])
            for edit, replays in zip(answered, alone, strict=True)
        )
        # Add edits one by one: an edit that only shortens must not make the others' result longer.
        added: Sequence[Replayed] = self._bases
        for count, replays in enumerate(alone, 1):
            with_edit = replays
            if count > 1:
                with_edit = [self.replayed(reading, answered[:count]) for reading in self.readings]
            by_reading = zip(with_edit, self._bases, added, replays, strict=True)
            added = [replay.no_longer_than(*others) for replay, *others in by_reading]
        is_one = len(outcomes) == 1
        totals = map(_TOTAL_NS, added)
        together = outcomes[0] if is_one else self._outcome(answered, totals, added[0])
        reasons = {text: error.message for text, error in failed.items()}
        return WhatIf(outcomes, together, self.critical, self.by_rank, reasons)
