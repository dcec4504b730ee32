"""A recording as a graph: moments of the host and GPU work are nodes, dependencies are edges.

Times are integer ns. A node begins once each of its predecessors has ended and the lag of that edge
has passed; its time is its end. If it was recorded to begin later than that, the difference is its
delay. Replays keep delays, so that a replay without changes reproduces every recorded time exactly.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.table.columns import BoolArray, Columns, IntArray, SmallArray
from traceflops.table.grouping import groups
from traceflops.table.nesting import taken

HOST, LAUNCH, STREAM, EVENT, SYNC, HANDOVER, MEETING, VIRTUAL = range(8)
"""Kinds of edges, in this order: the next moment of a thread; a call that launches work; the order
of a queue; a queue that waits for another; a call that waits for the device; a thread that waits
for another; ranks that meet in a collective; a launch that is not recorded."""
EDGE_NAMES: Final = (
    *("host", "launch_latency", "stream_order", "stream_wait", "return_from_wait"),
    *("thread_handover", "other_ranks", "unrecorded_launch"),
)
LONG_AGO: Final = -(1 << 61)
"""Before all times, with room for lags."""


class Nodes(Struct, frozen=True):
    """Nodes in topological order; all columns have one value per node.

    Moments of the host have `row` -1, the number of their `thread`, their recorded time `at_ns` on
    the clock of their process, and the row of their `call` or -1. GPU work has the `row` of its
    activity, its duration `dur_ns`, and `cap_ns`, the longest delay that is ordinary. `time_ns` is
    on one clock for all. `process` is -1 where ranks meet.
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


class Edges(Columns, frozen=True):
    """Dependencies, sorted by `target`: it waits for `source`. No record tells of `inferred` ones.

    `source` and `target` are indices of nodes, `lag_ns` passes between the two.
    """

    source: IntArray
    target: IntArray
    lag_ns: IntArray
    kind: SmallArray
    inferred: BoolArray


class World(Struct, frozen=True):
    """Inputs of a replay: `lag_ns` is per edge, the others are per node.

    A node begins `delay_ns` after its predecessors allow it to, but not before `floor_ns`.
    """

    dur_ns: IntArray
    lag_ns: IntArray
    delay_ns: IntArray
    floor_ns: IntArray

    def is_within(self, other: World) -> bool:
        """Return whether no value is larger than in another world."""
        names = World.__struct_fields__
        return all((getattr(self, name) <= getattr(other, name)).all() for name in names)


class RecordedGraph(Struct, frozen=True, dict=True):
    """Nodes and edges; `first_of_row` is, per activity, the node at which it starts, or -1."""

    nodes: Nodes
    edges: Edges
    first_of_row: IntArray

    @cached_property
    def ready_ns(self) -> IntArray:
        """Return, per node, when its predecessors allowed it to begin, LONG_AGO without any."""
        ready, edges = np.full(len(self.nodes.time_ns), LONG_AGO, dtype=np.int64), self.edges
        np.maximum.at(ready, edges.target, self.nodes.time_ns[edges.source] + edges.lag_ns)
        return ready

    @cached_property
    def delay_ns(self) -> IntArray:
        """Return, per node, how long after `ready_ns` it began, 0 without predecessors."""
        begun = self.nodes.time_ns - self.nodes.dur_ns
        return np.where(self.ready_ns == LONG_AGO, 0, begun - self.ready_ns)

    @cached_property
    def is_unexplained(self) -> BoolArray:
        """Return which nodes began later than an ordinary delay explains."""
        return np.asarray(self.delay_ns > self.nodes.cap_ns)

    def as_recorded(self, *, pinned: bool = False) -> World:
        """Return the world of the recording.

        Unexplained delays are kept; with `pinned`, such nodes begin at their recorded time instead.
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
        """Return moments of threads that belong to no call: (process, recorded ns) -> node."""
        nodes = self.nodes
        points = np.flatnonzero((nodes.thread >= 0) & (nodes.call < 0))
        keys = zip(nodes.process[points].tolist(), nodes.at_ns[points].tolist(), strict=True)
        return dict(zip(keys, points.tolist(), strict=True))

    @cached_property
    def recorded_only(self) -> RecordedGraph:
        """Return the graph without inferred edges."""
        return replace(self, edges=self.edges.only(~self.edges.inferred))

    @cached_property
    def of_threads(self) -> dict[int, IntArray]:
        """Return, by thread, its edges to its next moments and to the work that it launches."""
        edges = np.flatnonzero(np.isin(self.edges.kind, (HOST, LAUNCH)))
        thread = self.nodes.thread[self.edges.source[edges]]
        return {number: edges[rows] for number, rows in groups(thread)}

    @cached_property
    def _edges_of(self) -> tuple[IntArray, IntArray]:
        """Return, per node, the index of its first incoming edge, and how many it has."""
        count = np.bincount(self.edges.target, minlength=len(self.nodes.time_ns))
        return np.cumsum(count) - count, count

    @cached_property
    def _follows(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return chains of moments: each waits for nothing but the one before it in its thread.

        Three columns with a row per moment of a thread, in the order of threads: its node; the edge
        from the moment before, -1 where a chain begins; the row at which its chain begins.
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
        """Return the nodes that a replay visits, and per node the number of the one it follows.

        Of a chain only the first moment is visited. Numbers count visited nodes from 1 on.
        """
        points, _, since = self._follows
        own = np.arange(len(self.nodes.time_ns))
        own[points] = points[since]
        visited = np.flatnonzero(own == np.arange(len(own)))
        number = np.empty_like(own)
        number[visited] = np.arange(1, len(visited) + 1)
        return visited, number[own]

    @cached_property
    def _first_two(self) -> tuple[list[IntArray], list[list[int]]]:
        """Return the first and second incoming edge of visited nodes, or -1, and their sources.

        Sources are numbers of visited nodes, as in `_visited`, 0 for none.
        """
        visited, number = self._visited
        first, count = (column[visited] for column in self._edges_of)
        edges = [np.where(count > turn, first + turn, -1) for turn in range(2)]
        source = number[self.edges.source]
        return edges, [taken(source, edge, 0).tolist() for edge in edges]

    def times(self, world: World) -> IntArray:
        """Return, per node, when it ends in a world: one pass in topological order.

        Chains of moments that only follow each other are summed, not visited one by one.
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
        """Return, per node, the incoming edge that decided when it began, -1 for none."""
        edges = self.edges
        begun = time_ns - world.dur_ns - world.delay_ns
        binds = np.flatnonzero(time_ns[edges.source] + world.lag_ns == begun[edges.target])
        binding = np.full(len(time_ns), -1, dtype=np.int64)
        binding[edges.target[binds[::-1]]] = binds[::-1]
        return binding
