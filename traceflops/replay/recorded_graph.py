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

from traceflops.table.columns import BoolArray, Columns, IntArray, SmallArray
from traceflops.table.grouping import slices
from traceflops.table.nesting import taken

HOST, LAUNCH, STREAM, EVENT, SYNC, HANDOVER, MEETING, VIRTUAL = range(8)
"""Kinds of edges, in this order: the next moment of a thread; a call that launches work; the order
of a queue; a queue that waits for another; a call that waits for the device; a thread that waits
for another; ranks that meet in a collective; a launch that is not recorded."""
EDGE_NAMES: Final = (
    *("host", "launch_latency", "stream_order", "stream_wait", "return_from_wait"),
    *("thread_handover", "other_ranks", "unrecorded_launch"),
)
LONG_AGO: Final = -(1 << 61)  # before all times, with room for lags


class Nodes(Struct, frozen=True):
    """Nodes in topological order; all columns have one value per node.

    GPU work has the `row` of its activity, its `device`, its duration `dur_ns`, and `cap_ns`, the
    longest ordinary delay. Moments of the host have `row` -1, the number of their `thread`, their
    recorded time `at_ns` on the clock of their process, and the row of their `call` or -1.
    `time_ns` is when a node ends, on one clock for all. `process` is -1 where ranks meet.
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
    """Dependencies, sorted by `target`: it begins `lag_ns` after `source` has ended, or later.

    `source` and `target` are indices of nodes. No record tells of `inferred` edges.
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
        """Return when the predecessors of each node allow it to begin, LONG_AGO without any."""
        ready, edges = np.full(len(self.nodes.time_ns), LONG_AGO, dtype=np.int64), self.edges
        np.maximum.at(ready, edges.target, self.nodes.time_ns[edges.source] + edges.lag_ns)
        return ready

    @cached_property
    def delay_ns(self) -> IntArray:
        """Return, per node, the ns from `ready_ns` to its begin, 0 without predecessors."""
        begun = self.nodes.time_ns - self.nodes.dur_ns
        return np.where(self.ready_ns == LONG_AGO, 0, begun - self.ready_ns)

    @cached_property
    def is_unexplained(self) -> BoolArray:
        """Return which nodes began later than the longest ordinary delay explains."""
        return np.asarray(self.delay_ns > self.nodes.cap_ns)

    def as_recorded(self, *, pinned: bool = False) -> World:
        """Return the world of the recording: a replay of it gives every recorded time.

        With `pinned`, nodes with an unexplained delay begin at their recorded time, instead of with
        that delay after their predecessors.
        """
        begun = self.nodes.time_ns - self.nodes.dur_ns
        has_no_source = self.ready_ns == LONG_AGO
        is_pinned = has_no_source | (self.is_unexplained if pinned else False)
        return World(
            self.nodes.dur_ns,
            self.edges.lag_ns,
            np.where(is_pinned, 0, self.delay_ns),
            np.where(is_pinned, begun, LONG_AGO),
        )

    @cached_property
    def moments(self) -> dict[tuple[int, int], int]:
        """Return moments of threads that belong to no call: (process, recorded ns) -> node."""
        nodes = self.nodes
        points = np.flatnonzero((nodes.thread >= 0) & (nodes.call < 0))
        keys = zip(nodes.process[points].tolist(), nodes.at_ns[points].tolist(), strict=True)
        return dict(zip(keys, points.tolist(), strict=True))

    @cached_property
    def of_threads(self) -> IntArray:
        """Return the edges of threads to their next moments and to the work that they launch."""
        return np.flatnonzero(np.isin(self.edges.kind, (HOST, LAUNCH)))

    @cached_property
    def _edges_of(self) -> tuple[IntArray, IntArray]:
        """Return, per node, the index of its first incoming edge, and how many it has."""
        count = np.bincount(self.edges.target, minlength=len(self.nodes.time_ns))
        return np.cumsum(count) - count, count

    @cached_property
    def _follows(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return chains of moments, in which each waits only for the one before in its thread.

        There are three columns with a row per moment, sorted by thread: its node; the edge from the
        moment before, -1 where a chain begins; the row at which its chain begins.
        """
        edges, (first, count) = self.edges, self._edges_of
        points = np.flatnonzero(self.nodes.thread >= 0)
        points = points[np.argsort(self.nodes.thread[points], kind="stable")]
        # A moment continues a chain if its only edge comes from the moment in the row before.
        only_edge = np.where(count == 1, first, -1)[points]
        follows = taken(edges.kind, only_edge) == HOST
        follows[1:] &= taken(edges.source, only_edge[1:]) == points[:-1]
        follows[:1] = False
        chain_begin = np.maximum.accumulate(np.where(follows, 0, np.arange(len(points))))
        return points, np.where(follows, only_edge, -1), chain_begin

    @cached_property
    def _visited(self) -> tuple[IntArray, IntArray]:
        """Return the nodes that a replay visits and, per node, the number of its visited one.

        Of a chain of moments only the first is visited. Visited nodes are numbered from 1 on.
        """
        points, _, chain_begin = self._follows
        head = np.arange(len(self.nodes.time_ns))  # the first of its chain, else the node itself
        head[points] = points[chain_begin]
        visited = np.flatnonzero(head == np.arange(len(head)))
        number = np.empty_like(head)
        number[visited] = np.arange(1, len(visited) + 1)
        return visited, number[head]

    @cached_property
    def _first_two(self) -> list[tuple[IntArray, IntArray]]:
        """Return the first and the second incoming edge of each visited node, and their sources.

        Sources are numbers of visited nodes, as in `_visited`; without an edge it is -1, its source
        0.
        """
        visited, number = self._visited
        first, count = (column[visited] for column in self._edges_of)
        edges = [np.where(count > turn, first + turn, -1) for turn in range(2)]
        source = number[self.edges.source]
        return [(edge, taken(source, edge, 0)) for edge in edges]

    def times(self, world: World) -> IntArray:
        """Return when each node ends in a world; chains of moments are summed, not visited."""
        visited, number = self._visited
        # How long after the head of its chain each moment ends; 0 for other nodes.
        points, edge, chain_begin = self._follows
        after_head = np.zeros_like(world.dur_ns)
        step_ns = taken(world.lag_ns, edge, 0) + (world.dur_ns + world.delay_ns)[points]
        passed = np.cumsum(np.where(edge >= 0, step_ns, 0))
        after_head[points] = passed - passed[chain_begin]
        # So an edge from a moment is one from the head of its chain, with a longer lag.
        lag = world.lag_ns + after_head[self.edges.source]
        limits = self._limits(world, lag)
        is_limited = np.zeros(len(visited), dtype=np.bool_)
        is_limited[[*limits]] = True
        work = (world.dur_ns + world.delay_ns)[visited]
        sources = [(source, taken(lag, edge, 0)) for edge, source in self._first_two]
        columns = (*sources[0], *sources[1], work, is_limited)
        # Most nodes have at most two edges: these are handled fast, without a call.
        ends = [LONG_AGO]  # number 0: no source
        add = ends.append
        for part in slices(len(visited)):  # as Python's numbers they take five times the memory
            rows = zip(*(column[part].tolist() for column in columns), strict=True)
            for source, lag_ns, other, other_lag_ns, work_ns, limited in rows:
                begin = ends[source] + lag_ns
                later = ends[other] + other_lag_ns
                if later > begin:
                    begin = later
                if limited:
                    begin = max(begin, *(ends[node] + ns for node, ns in limits[len(ends) - 1]))
                add(begin + work_ns)
        return np.array(ends, dtype=np.int64)[number] + after_head

    def _limits(self, world: World, lag_ns: IntArray) -> dict[int, list[tuple[int, int]]]:
        """Return what some visited nodes wait for besides their first two edges.

        The result has pairs by index among the visited nodes: an index into `ends` of `times`, and
        a lag in ns. Index 0 is LONG_AGO, and its lag leads to the earliest begin (`floor_ns`). The
        other pairs are the third and later edges of the node. `lag_ns` is per edge.
        """
        number, target = self._visited[1], self.edges.target
        floored = np.flatnonzero(world.floor_ns > LONG_AGO)
        floor_lag = (world.floor_ns[floored] - LONG_AGO).tolist()
        index = (number[floored] - 1).tolist()
        limits = {node: [(0, ns)] for node, ns in zip(index, floor_lag, strict=True)}
        # Edges are sorted by target: the third and later ones have that of the edge two before.
        further = np.flatnonzero(target[2:] == target[:-2]) + 2
        columns = (number[target[further]] - 1, number[self.edges.source[further]], lag_ns[further])
        for node, source, lag in zip(*(column.tolist() for column in columns), strict=True):
            limits.setdefault(node, []).append((source, lag))
        return limits

    def decisive(self, world: World, time_ns: IntArray) -> IntArray:
        """Return, per node, the first incoming edge that decided when it began, -1 for none."""
        edges = self.edges
        begun = time_ns - world.dur_ns - world.delay_ns
        binds = np.flatnonzero(time_ns[edges.source] + world.lag_ns == begun[edges.target])
        # Write the last ones first: of several edges of a node, the first one stays.
        binding = np.full(len(time_ns), -1, dtype=np.int64)
        binding[edges.target[binds[::-1]]] = binds[::-1]
        return binding
