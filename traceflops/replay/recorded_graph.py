"""A recording as a graph: moments of the host and work of devices, and what each waits for.

Times are integer ns. A node's time is its end; it begins once everything it waits for has ended and
the lag of that edge has passed. What it began later than that is its delay: kept in a replay, so
that with nothing changed each node ends exactly when it was recorded to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from traceflops.table import BoolArray, IntArray, SmallArray, taken

HOST, LAUNCH, STREAM, EVENT, SYNC, HANDOVER, MEETING, VIRTUAL = range(8)
"""Kinds of edges: a thread goes on, a call starts work, a queue is in order, a queue waits for
another, a call waits for the device, a thread for another, ranks for each other; a launch that is
not recorded."""
EDGE_NAMES: Final = (
    *("host", "launch_latency", "stream_order", "stream_wait", "return_from_wait"),
    *("thread_handover", "other_ranks", "unrecorded_launch"),
)
LONG_AGO: Final = -(1 << 61)
"""Before all times, with room for lags."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """Nodes in an order in which each comes after all that it waits for.

    Of the host (`row` is -1): `thread` is its number, `at_ns` its recorded time there, `call` the
    row of a call, -1 for none. Of work: `row` is its activity, `dur_ns` how long it takes once it
    has begun, `cap_ns` up to when a delay is an ordinary one. `time_ns` is on one clock, `process`
    is -1 where ranks meet.
    """

    time_ns: IntArray
    dur_ns: IntArray
    process: IntArray
    row: IntArray
    device: IntArray
    thread: IntArray
    at_ns: IntArray
    call: IntArray
    cap_ns: IntArray


@dataclass(frozen=True, slots=True)
class Edges:
    """What waits for what, in the order of `target`; `inferred` where no record says so."""

    source: IntArray
    target: IntArray
    lag_ns: IntArray
    kind: SmallArray
    inferred: BoolArray

    @classmethod
    def joined(cls, several: Sequence[Edges]) -> Edges:
        """Return edges together."""
        return cls(*(np.concatenate([getattr(one, name) for one in several]) for name in _EDGES))

    def only(self, some: IntArray | BoolArray) -> Edges:
        """Return some of the edges."""
        return Edges(*(getattr(self, name)[some] for name in _EDGES))


_EDGES: Final = tuple(Edges.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class World:
    """What may differ in a replay: work by node, lags by edge, and what nothing explains.

    `delay_ns` is added once all is ready, `floor_ns` is a time before which a node never begins.
    """

    dur_ns: IntArray
    lag_ns: IntArray
    delay_ns: IntArray
    floor_ns: IntArray

    def equals(self, other: World) -> bool:
        """Return whether nothing differs."""
        names = World.__dataclass_fields__
        return all(np.array_equal(getattr(self, one), getattr(other, one)) for one in names)


@dataclass(frozen=True)  # without slots, so that there is a place for what is found on demand
class RecordedGraph:
    """Nodes and edges; `first_of_row` is the node at which each activity starts, -1 for none."""

    nodes: Nodes
    edges: Edges
    first_of_row: IntArray

    @cached_property
    def ready_ns(self) -> IntArray:
        """Return when all that each node waits for was over, LONG_AGO where it is nothing."""
        return self.readiness(self.nodes.time_ns, self.edges.lag_ns)

    def readiness(self, time_ns: IntArray, lag_ns: IntArray) -> IntArray:
        """Return when each node is ready, given the times of all and the lags."""
        ready = np.full(len(time_ns), LONG_AGO, dtype=np.int64)
        np.maximum.at(ready, self.edges.target, time_ns[self.edges.source] + lag_ns)
        return ready

    @cached_property
    def delay_ns(self) -> IntArray:
        """Return how much later than ready each node began, 0 where it waits for nothing."""
        begun = self.nodes.time_ns - self.nodes.dur_ns
        return np.where(self.ready_ns == LONG_AGO, 0, begun - self.ready_ns)

    @cached_property
    def is_unexplained(self) -> BoolArray:
        """Return which nodes began much later than anything explains."""
        return np.asarray(self.delay_ns > self.nodes.cap_ns)

    def as_recorded(self, *, pinned: bool = False) -> World:
        """Return the world of the recording.

        With `pinned`, what is not explained happens at its time, else as late after the rest.
        """
        begun = self.nodes.time_ns - self.nodes.dur_ns
        fixed = self.ready_ns == LONG_AGO
        held = fixed | (self.is_unexplained if pinned else False)
        return World(
            self.nodes.dur_ns,
            self.edges.lag_ns,
            np.where(held, 0, self.delay_ns),
            np.where(held, begun, LONG_AGO),
        )

    @cached_property
    def recorded_only(self) -> RecordedGraph:
        """Return the same without edges that no record tells of."""
        return replace(self, edges=self.edges.only(~self.edges.inferred))

    @cached_property
    def _first_two(self) -> tuple[IntArray, IntArray]:
        """Return the first and second edge of each node, -1 for none."""
        count = np.bincount(self.edges.target, minlength=len(self.nodes.time_ns))
        first = np.cumsum(count) - count
        return np.where(count > 0, first, -1), np.where(count > 1, first + 1, -1)

    @cached_property
    def _sources(self) -> list[list[int]]:
        """Return what each node waits for by these edges, one place later; 0 for nothing."""
        return [(taken(self.edges.source, edge) + 1).tolist() for edge in self._first_two]

    def times(self, world: World) -> IntArray:
        """Return when each node ends: one pass, each node after what it waits for."""
        one, two = (taken(world.lag_ns, edge, 0).tolist() for edge in self._first_two)
        limits = self._limits(world)
        is_limited = np.zeros(len(one), dtype=np.bool_)
        is_limited[[*limits]] = True
        work = (world.dur_ns + world.delay_ns).tolist()
        ends = [LONG_AGO]  # of what waits for nothing
        add = ends.append
        first, second = self._sources
        columns = (first, one, second, two, work, is_limited.tolist())
        for source, lag, other, its_lag, takes, limited in zip(*columns, strict=True):
            begin = ends[source] + lag
            later = ends[other] + its_lag
            if later > begin:
                begin = later
            if limited:
                begin = max(begin, *(ends[at] + ns for at, ns in limits[len(ends) - 1]))
            add(begin + takes)
        return np.array(ends[1:], dtype=np.int64)

    def _limits(self, world: World) -> dict[int, list[tuple[int, int]]]:
        """Return what else some nodes wait for: more edges, or a time."""
        floor = np.flatnonzero(world.floor_ns > LONG_AGO)
        times = (world.floor_ns[floor] - LONG_AGO).tolist()
        limits = {node: [(0, ns)] for node, ns in zip(floor.tolist(), times, strict=True)}
        target = self.edges.target
        third = np.flatnonzero(target[2:] == target[:-2]) + 2
        columns = (target[third], self.edges.source[third] + 1, world.lag_ns[third])
        for node, source, lag in zip(*(column.tolist() for column in columns), strict=True):
            limits.setdefault(node, []).append((source, lag))
        return limits

    def decisive(self, world: World, time_ns: IntArray) -> IntArray:
        """Return the edge that each node waited for last, -1 where that is none."""
        edges = self.edges
        begun = time_ns - world.dur_ns - world.delay_ns
        binds = np.flatnonzero(time_ns[edges.source] + world.lag_ns == begun[edges.target])
        found = np.full(len(time_ns), -1, dtype=np.int64)
        found[edges.target[binds[::-1]]] = binds[::-1]
        return found
