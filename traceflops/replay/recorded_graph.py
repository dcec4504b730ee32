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
from msgspec.structs import astuple, replace

from traceflops.replay.visits import Incoming, Runs, Visits
from traceflops.table.columns import BoolArray, Columns, IntArray, SmallArray, WholeArray, narrow
from traceflops.table.grouping import differ_from_before, in_order, places_in_groups, slices
from traceflops.table.nesting import taken

HOST, LAUNCH, STREAM, EVENT, SYNC, HANDOVER, MEETING, VIRTUAL = range(8)
"""Kinds of edges, in this order: the next moment of a thread; a call that launches work; the order
of a queue; a queue that waits for another; a call that waits for the device; a thread that waits
for another; ranks that meet in a collective; a launch that is not recorded."""
NO_EDGE: Final = -1  # the kind of an edge that a reading takes as not there
EDGE_NAMES: Final = (
    *("host", "launch_latency", "stream_order", "stream_wait", "return_from_wait"),
    *("thread_handover", "other_ranks", "unrecorded_launch"),
)
LONG_AGO: Final = -(1 << 61)  # before all times, with room for lags


class Nodes(Struct, frozen=True):
    """Nodes in topological order; all columns have one value per node.

    GPU work has the `row` of its activity, its `device`, its duration `dur_ns`, and `cap_ns`, the
    longest ordinary delay. Moments of the host have -1 there, the number of their `thread`, their
    recorded time `at_ns` on the clock of their process, and the row of their `call` or -1.
    `time_ns` is when a node ends, on one clock for all. `process` is -1 where ranks meet.
    """

    time_ns: IntArray
    dur_ns: IntArray
    process: WholeArray
    row: WholeArray
    device: WholeArray
    thread: WholeArray
    at_ns: IntArray
    call: WholeArray
    cap_ns: WholeArray


class Edges(Columns, frozen=True):
    """Dependencies, sorted by `target`: it begins `lag_ns` after `source` has ended, or later.

    `source` and `target` are indices of nodes. No record tells of `inferred` edges.
    """

    source: WholeArray
    target: WholeArray
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

    @property
    def is_pinned(self) -> BoolArray:
        """Which nodes begin at a given time or later."""
        return self.floor_ns > LONG_AGO

    def is_within(self, other: World) -> bool:
        """Return whether no value is larger than in another world."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return all(own is others or (own <= others).all() for own, others in pairs)


class RecordedGraph(Struct, frozen=True, dict=True):
    """Nodes and edges; `first_of_row` is, per activity, the node at which it starts, or -1.

    `in_order` has the nodes of works, queue after queue, then those of moments, thread after
    thread, each in the order of time: neighbors may wait for each other alone (see `visits`).
    """

    nodes: Nodes
    edges: Edges
    first_of_row: IntArray
    in_order: WholeArray

    @property
    def ready_ns(self) -> IntArray:
        """Return when the predecessors of each node allow it to begin, LONG_AGO without any."""
        ready, edges = np.full(len(self.nodes.time_ns), LONG_AGO, dtype=np.int64), self.edges
        if len(edges.target):
            first = np.flatnonzero(differ_from_before(edges.target))
            ends = self.nodes.time_ns[edges.source] + edges.lag_ns
            ready[edges.target[first]] = np.maximum.reduceat(ends, first)
        return ready

    @cached_property
    def delay_ns(self) -> IntArray:
        """Return, per node, the ns from `ready_ns` to its begin, 0 without predecessors."""
        delay = self.nodes.time_ns - self.nodes.dur_ns
        delay -= self.ready_ns
        delay[self._waits_for_none] = 0
        return delay

    @cached_property
    def is_unexplained(self) -> BoolArray:
        """Return which nodes began later than the longest ordinary delay explains."""
        return np.asarray((self.delay_ns > self.nodes.cap_ns) & (self.nodes.cap_ns >= 0))

    def as_recorded(self, *, pinned: bool = False) -> World:
        """Return the world of the recording: a replay of it gives every recorded time.

        With `pinned`, nodes with an unexplained delay begin at their recorded time, instead of with
        that delay after their predecessors.
        """
        begun = self.nodes.time_ns - self.nodes.dur_ns
        is_pinned = self._waits_for_none
        delay = self.delay_ns
        if pinned:
            is_pinned = is_pinned | self.is_unexplained
            delay = np.where(is_pinned, 0, delay)
        floor = np.where(is_pinned, begun, LONG_AGO)
        return World(self.nodes.dur_ns, self.edges.lag_ns, delay, floor)

    def without_inferred(self) -> RecordedGraph:
        """Return the graph in which inferred edges bind nothing, with the same nodes and edges."""
        edges = self.edges
        kind = np.where(edges.inferred, np.int8(NO_EDGE), edges.kind)
        lag_ns = np.where(edges.inferred, LONG_AGO // 2, edges.lag_ns)
        return replace(self, edges=replace(edges, kind=kind, lag_ns=lag_ns))

    def moments(self, process: IntArray, at_ns: IntArray) -> IntArray:
        """Return the moments of threads, of no call, at these recorded times, -1 for none."""
        nodes = self.nodes
        points = np.flatnonzero((nodes.thread >= 0) & (nodes.call < 0))
        points = points[in_order(nodes.process[points], nodes.at_ns[points])]
        own, own_ns = nodes.process[points], nodes.at_ns[points]
        last = places_in_groups(own, own_ns, process, at_ns) - 1
        is_found = (taken(own, last) == process) & (taken(own_ns, last) == at_ns)
        return np.where((last >= 0) & is_found, taken(points, last), -1)

    @cached_property
    def _waits_for_none(self) -> BoolArray:
        """Return which nodes have no predecessor."""
        is_first = np.ones(len(self.nodes.time_ns), dtype=np.bool_)
        is_first[self.edges.target[self.edges.kind != NO_EDGE]] = False
        return is_first

    def times(self, world: World, visits: Visits | None = None) -> IntArray:
        """Return when each node ends in a world; `visits` are those of several worlds."""
        visits = visits or self.visits(world.is_pinned)
        work_ns = world.dur_ns + world.delay_ns
        return visits.times(world.lag_ns, work_ns, world.floor_ns, LONG_AGO)

    def visits(self, is_pinned: BoolArray) -> Visits:
        """Return what replays visit of all worlds that pin no others than these nodes (a mask).

        They are right with and without inferred edges.
        """
        source, target, kind = self.edges.source, self.edges.target, self.edges.kind
        count = np.bincount(target, minlength=len(self.nodes.time_ns))
        is_next = ((kind == HOST) | (kind == STREAM)) & ~self.edges.inferred
        first, is_launch = narrow(np.cumsum(count) - count), kind == LAUNCH
        edges = Incoming(first, narrow(count), source, target, is_next, is_launch)
        return Visits.of(Runs.of(self.in_order, edges, is_pinned), edges)

    def decisive(self, world: World, time_ns: IntArray) -> WholeArray:
        """Return, per node, the first incoming edge that decided when it began, -1 for none."""
        edges, begun = self.edges, time_ns - world.dur_ns - world.delay_ns
        highest = np.array([len(edges.target)])
        binding = np.full(len(time_ns), -1, dtype=narrow(highest).dtype)
        # Write the last ones first: of several edges of a node, the first one stays.
        for part in reversed([*slices(len(edges.target))]):  # in slices, to save memory
            target = edges.target[part]
            binds = time_ns[edges.source[part]] + world.lag_ns[part] == begun[target]
            row = np.flatnonzero(binds)[::-1]
            binding[target[row]] = row + part.start
        return binding
