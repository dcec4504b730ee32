"""A recording as a graph: moments of the host and work of devices, and what each waits for.

Times are integer ns. A node's time is its end; it begins once everything it waits for has ended and
the lag of that edge has passed. What it began later than that is its delay: kept in a replay, so
that with nothing changed each node ends exactly when it was recorded to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from traceflops.table.columns import BoolArray, Columns, IntArray, SmallArray
from traceflops.table.grouping import groups
from traceflops.table.nesting import taken

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
class Edges(Columns):
    """What waits for what, in the order of `target`; `inferred` where no record says so."""

    source: IntArray
    target: IntArray
    lag_ns: IntArray
    kind: SmallArray
    inferred: BoolArray


@dataclass(frozen=True, slots=True)
class World:
    """What may differ in a replay: work by node, lags by edge, and what nothing explains.

    `delay_ns` is added once all is ready, `floor_ns` is a time before which a node never begins.
    """

    dur_ns: IntArray
    lag_ns: IntArray
    delay_ns: IntArray
    floor_ns: IntArray

    def is_within(self, other: World) -> bool:
        """Return whether nothing takes longer than in another world."""
        names = World.__dataclass_fields__
        return all((getattr(self, name) <= getattr(other, name)).all() for name in names)


@dataclass(frozen=True)  # without slots, so that there is a place for what is found on demand
class RecordedGraph:
    """Nodes and edges; `first_of_row` is the node at which each activity starts, -1 for none."""

    nodes: Nodes
    edges: Edges
    first_of_row: IntArray

    @cached_property
    def ready_ns(self) -> IntArray:
        """Return when all that each node waits for was over, LONG_AGO where it is nothing."""
        ready, edges = np.full(len(self.nodes.time_ns), LONG_AGO, dtype=np.int64), self.edges
        np.maximum.at(ready, edges.target, self.nodes.time_ns[edges.source] + edges.lag_ns)
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
    def moments(self) -> dict[tuple[int, int], int]:
        """Return, by process and time, the points of threads that are not those of a call."""
        nodes = self.nodes
        points = np.flatnonzero((nodes.thread >= 0) & (nodes.call < 0))
        keys = zip(nodes.process[points].tolist(), nodes.at_ns[points].tolist(), strict=True)
        return dict(zip(keys, points.tolist(), strict=True))

    @cached_property
    def recorded_only(self) -> RecordedGraph:
        """Return the same without edges that no record tells of."""
        return replace(self, edges=self.edges.only(~self.edges.inferred))

    @cached_property
    def of_threads(self) -> dict[int, IntArray]:
        """Return the edges on which each thread goes on, or launches."""
        edges = np.flatnonzero(np.isin(self.edges.kind, (HOST, LAUNCH)))
        thread = self.nodes.thread[self.edges.source[edges]]
        return {number: edges[rows] for number, rows in groups(thread)}

    @cached_property
    def _edges_of(self) -> tuple[IntArray, IntArray]:
        """Return the place of the first edge of each node, and how many it has."""
        count = np.bincount(self.edges.target, minlength=len(self.nodes.time_ns))
        return np.cumsum(count) - count, count

    @cached_property
    def _follows(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return points that wait for nothing but the one before in their thread, and its edge.

        With them are those from which threads go on; the third is the place of that of each.
        """
        edges, (first, count) = self.edges, self._edges_of
        points = np.flatnonzero(self.nodes.thread >= 0)
        points = points[np.argsort(self.nodes.thread[points], kind="stable")]
        edge = np.where(count == 1, first, -1)[points]
        follows = taken(edges.kind, edge) == HOST
        follows[1:] &= taken(edges.source, edge[1:]) == points[:-1]
        follows[:1] = False
        since = np.maximum.accumulate(np.where(follows, 0, np.arange(len(points))))
        return points, np.where(follows, edge, -1), since

    @cached_property
    def _visited(self) -> tuple[IntArray, IntArray]:
        """Return the nodes that a replay visits, and per node the number of its own, from 1 on."""
        points, _, since = self._follows
        own = np.arange(len(self.nodes.time_ns))
        own[points] = points[since]
        visited = np.flatnonzero(own == np.arange(len(own)))
        number = np.empty_like(own)
        number[visited] = np.arange(1, len(visited) + 1)
        return visited, number[own]

    @cached_property
    def _first_two(self) -> tuple[list[IntArray], list[list[int]]]:
        """Return the first and second edge of each visited node, -1 for none, and their sources."""
        visited, number = self._visited
        first, count = (column[visited] for column in self._edges_of)
        edges = [np.where(count > turn, first + turn, -1) for turn in range(2)]
        source = number[self.edges.source]
        return edges, [taken(source, edge, 0).tolist() for edge in edges]

    def times(self, world: World) -> IntArray:
        """Return when each node ends: one pass, each node after what it waits for.

        What only follows in its thread is not visited but as late as the node before it.
        """
        visited, number = self._visited
        # How long after the visited node that it follows each node ends.
        (points, edge, since), ahead = self._follows, np.zeros_like(world.dur_ns)
        follows_ns = taken(world.lag_ns, edge, 0) + (world.dur_ns + world.delay_ns)[points]
        passed = np.cumsum(np.where(edge >= 0, follows_ns, 0))
        ahead[points] = passed - passed[since]
        lag = world.lag_ns + ahead[self.edges.source]
        edges, (first, second) = self._first_two
        first_lag, second_lag = (taken(lag, edge, 0).tolist() for edge in edges)
        limits = self._limits(world, lag)
        is_limited = np.zeros(len(visited), dtype=np.bool_)
        is_limited[[*limits]] = True
        work = (world.dur_ns + world.delay_ns)[visited].tolist()
        ends = [LONG_AGO]  # of what waits for nothing
        add = ends.append
        columns = (first, first_lag, second, second_lag, work, is_limited.tolist())
        for source, lag_ns, other, other_lag_ns, takes, limited in zip(*columns, strict=True):
            begin = ends[source] + lag_ns
            later = ends[other] + other_lag_ns
            if later > begin:
                begin = later
            if limited:
                begin = max(begin, *(ends[node] + ns for node, ns in limits[len(ends) - 1]))
            add(begin + takes)
        return np.array(ends, dtype=np.int64)[number] + ahead

    def _limits(self, world: World, lag_ns: IntArray) -> dict[int, list[tuple[int, int]]]:
        """Return what some visited nodes wait for besides their first two edges.

        Keys are indices of visited nodes. Values are pairs: an index of `ends` in `times` and a lag
        in ns. Index 0 is LONG_AGO: its lag is the earliest time to begin (`world.floor_ns`). The
        other pairs are the third edge of the node and later ones. `lag_ns` is per edge.
        """
        number, target = self._visited[1], self.edges.target
        floor = np.flatnonzero(world.floor_ns > LONG_AGO)
        times = (world.floor_ns[floor] - LONG_AGO).tolist()
        limited = (number[floor] - 1).tolist()
        limits = {node: [(0, ns)] for node, ns in zip(limited, times, strict=True)}
        # Edges are in the order of their targets: this is the third or a later one.
        further = np.flatnonzero(target[2:] == target[:-2]) + 2
        columns = (number[target[further]] - 1, number[self.edges.source[further]], lag_ns[further])
        for node, source, lag in zip(*(column.tolist() for column in columns), strict=True):
            limits.setdefault(node, []).append((source, lag))
        return limits

    def decisive(self, world: World, time_ns: IntArray) -> IntArray:
        """Return the edge that each node waited for last, -1 where that is none."""
        edges = self.edges
        begun = time_ns - world.dur_ns - world.delay_ns
        binds = np.flatnonzero(time_ns[edges.source] + world.lag_ns == begun[edges.target])
        binding = np.full(len(time_ns), -1, dtype=np.int64)
        binding[edges.target[binds[::-1]]] = binds[::-1]
        return binding
