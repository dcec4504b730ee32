"""Builds the graph of a recording: which work and which calls wait for what.

The lag of an edge is the usual one of its kind (a launch onto an idle queue, the next work of a
busy queue), or the recorded one if that is less. Dependencies without a record are inferred from
times, and marked `inferred`.

Before nodes are sorted, they are numbered by kind: work, arrivals, collectives, host moments.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.ranks.who_waits import RankReport
from traceflops.replay.host_waits import HostWaits
from traceflops.replay.recorded_graph import (
    EVENT,
    HANDOVER,
    HOST,
    LAUNCH,
    LONG_AGO,
    MEETING,
    STREAM,
    SYNC,
    VIRTUAL,
    Edges,
    Nodes,
    RecordedGraph,
)
from traceflops.replay.recorded_work import (
    CLOSE_NS,
    USUAL_LAUNCH_NS,
    RecordedWork,
    before_in,
    last_up_to,
)
from traceflops.table.columns import ABSENT, BoolArray, IntArray, WholeArray, narrow
from traceflops.table.grouping import in_order
from traceflops.table.nesting import taken
from traceflops.windows.prepared import Prepared

_CAP_TIMES, _LEAST_CAP_NS = 3, 20_000
"""The longest ordinary delay of work: so many usual launch lags, but at least so many ns."""
_JITTER_NS: Final = 2_000
_AT_ONCE: Final = 3  # work that starts within this many usual gaps of a queue follows at once


def recorded_graph(prepared: Prepared, ranks: RankReport) -> RecordedGraph:
    """Return the graph of all work of the devices, and of the calls and threads behind it."""
    # What it was made from is freed by now: it takes more memory than the graph.
    graph = _unsorted_graph(prepared, ranks)
    order = np.argsort(graph.edges.target, kind="stable")
    return replace(graph, edges=graph.edges.only(order))


def _unsorted_graph(prepared: Prepared, ranks: RankReport) -> RecordedGraph:
    """Return the graph with edges in no order."""
    work = RecordedWork.of(prepared, ranks)
    host, meetings = HostWaits(work), _Meetings.of(work)
    counts = [len(work.row), len(meetings.member), len(meetings.all_here_ns), len(host.time_ns)]
    ends = np.cumsum(counts)
    begin, arrival, meeting, point = np.split(np.arange(ends[-1]), ends[:-1])
    begin[meetings.member] = arrival
    return _GraphBuilder(work, host, meetings, begin, arrival, meeting, point).graph()


class _Meetings(Struct, frozen=True):
    """Collectives of ranks: work and collective of each member, and when all have arrived."""

    member: IntArray
    number: IntArray
    all_here_ns: IntArray

    @classmethod
    def of(cls, work: RecordedWork) -> _Meetings:
        """Return the collectives that no member left before all had arrived."""
        ranks, none = work.ranks, np.empty(0, dtype=np.int64)
        if not ranks.comparable or not len(ranks.waits.row):
            return cls(none, none, none)
        collective = ranks.waits.collective
        member = work.work_of_row[ranks.records.row[ranks.waits.row]]
        last_arrival = np.full(int(collective.max()) + 1, LONG_AGO, dtype=np.int64)
        np.maximum.at(last_arrival, collective, work.start[member])
        is_met = np.ones(len(last_arrival), dtype=np.bool_)
        np.logical_and.at(is_met, collective, work.end[member] >= last_arrival[collective])
        kept = is_met[collective]
        kept_collectives, number = np.unique(collective[kept], return_inverse=True)
        return cls(member[kept], number, last_arrival[kept_collectives])


class _GraphBuilder(Struct, frozen=True):
    """What edges and nodes are made of.

    `begin` is, per work, the node at which it begins: its arrival for members of collectives. The
    other nodes are those at which members arrive, at which all have arrived (`meeting`), and the
    moments of the host (`point`).
    """

    work: RecordedWork
    host: HostWaits
    meetings: _Meetings
    begin: IntArray
    arrival: IntArray
    meeting: IntArray
    point: IntArray

    def graph(self) -> RecordedGraph:
        """Return the nodes in topological order, and the edges between them in no order."""
        work, meetings = self.work, self.meetings
        # When each node begins: members of collectives begin once all have come.
        start = work.start.copy()
        start[meetings.member] = meetings.all_here_ns[meetings.number]
        arrived = work.start[meetings.member]
        begun = np.concatenate([start, arrived, meetings.all_here_ns, self.host.time_ns])
        # At one time: moments of the host, arrivals, then meetings and other work, then members.
        count = len(begun)
        rank = np.full(count, 2, dtype=np.int8)
        rank[self.arrival], rank[self.point], rank[meetings.member] = 1, 0, 3
        # `node` is the new number of each node: order [2 0 1]  ->  node [1 2 0]
        order = np.lexsort((rank, begun))
        node = np.empty(count, dtype=order.dtype)
        node[order] = np.arange(count)
        node = narrow(node)
        first = np.full(len(work.work_of_row), -1, dtype=np.int64)
        first[work.row] = node[self.begin]
        member, meeting = meetings.member, self.meeting[meetings.number]
        at_once = np.zeros(len(member), dtype=np.int64)
        arrivals = (
            _edges(self.arrival, meeting, at_once, MEETING),
            _edges(meeting, member, at_once, MEETING),
            _edges(self.arrival, member, at_once, STREAM),
        )

        def numbered(edges: Edges) -> Edges:
            """Return edges between sorted nodes, without those that lead back in cycles."""
            source, target = node[edges.source], node[edges.target]
            return replace(edges, source=source, target=target).only(source < target)

        edges = Edges.joined(map(numbered, chain(self._of_work(), self._of_host(), arrivals)))
        in_order = node[np.append(np.arange(len(work.row)), self.point)]
        return RecordedGraph(self._nodes(begun, order), edges, first, in_order)

    def _nodes(self, begun: IntArray, order: IntArray) -> Nodes:
        """Return the nodes in the given order; `begun` is when each begins, before ordering."""
        work, points, count = self.work, self.host.points, len(begun)
        rows = np.arange(len(work.row))
        time = begun.copy()
        time[rows] = work.end
        launch, in_call = work.launch
        cap = np.maximum(_CAP_TIMES * (launch - in_call), _LEAST_CAP_NS)
        of_members = work.process[self.meetings.member]

        def column(nodes: IntArray, values: IntArray, otherwise: int = -1) -> WholeArray:
            """Return a value per node, in order: of `nodes` the given one, else `otherwise`.

            The type is the smallest that holds all values: one byte for few threads or devices.
            """
            ends = int(values.min(initial=otherwise)), int(values.max(initial=otherwise))
            kinds = (np.iinfo(kind) for kind in (np.int8, np.int16, np.int32, np.int64))
            kind = next(kind for kind in kinds if kind.min <= ends[0] and ends[1] <= kind.max)
            filled = np.full(count, otherwise, dtype=kind.dtype)
            filled[nodes] = values
            return filled[order]

        return Nodes(
            time_ns=time[order],
            dur_ns=(time - begun)[order],
            process=column(
                np.concatenate([rows, self.arrival, self.point]),
                np.concatenate([work.process, of_members, points.process]),
            ),
            row=column(rows, work.row),
            device=column(rows, work.device),
            thread=column(self.point, points.thread),
            at_ns=column(self.point, points.time_ns),
            call=column(self.point, points.call),
            cap_ns=column(self.begin, cap),
        )

    def _of_work(self) -> Iterator[Edges]:
        """Yield edges into work: from its launch, its queue, another queue."""
        work, (launch, in_queue, wait) = self.work, self.work.lags
        held, is_guess = work.held
        held_until = taken(work.end, held, LONG_AGO)
        # Recorded dependencies, with the usual lag, or the recorded one if that is less. `ready` is
        # when these allow each work to begin.
        ready = np.full(len(work.row), LONG_AGO, dtype=np.int64)
        for source, since, usual, kind, guess in (
            (*self._launches(), LAUNCH, False),
            (work.before, work.free, in_queue, STREAM, work.stream == ABSENT),
            (held, held_until, wait, EVENT, is_guess),
        ):
            lag = np.minimum(usual, work.start - since)
            ready = np.maximum(ready, np.where(source >= 0, since + lag, LONG_AGO))
            yield _edges(source, self.begin, lag, kind, guess)
        is_late = work.start - ready > np.maximum(launch, _JITTER_NS)
        # Late work waited for another queue without a record: for the work that ended right before.
        # If its own queue is unknown and it follows at once, that work is of its queue: no guess.
        asked = np.flatnonzero(is_late & (held < 0))
        other = work.ended_before[asked]
        gap = work.start[asked] - taken(work.end, other, LONG_AGO)
        fits = (gap <= CLOSE_NS) & (taken(work.queue, other) != work.queue[asked])
        at_once = (work.stream[asked] == ABSENT) & (gap <= _AT_ONCE * in_queue[asked])
        lag = np.minimum(wait[asked], gap)
        yield _edges(np.where(fits, other, -1), self.begin[asked], lag, EVENT, ~at_once)
        # Late work without a launch counts as launched by the last point of its process before it.
        # The first work of a queue may be launched before the recording; migrations never are.
        is_unlaunched = (work.call < 0) & ((work.before >= 0) | work.migrates)
        asked = np.flatnonzero(is_late & is_unlaunched)
        process, time = self.host.points.process, self.host.time_ns
        order, until = in_order(process, time), work.start[asked] - USUAL_LAUNCH_NS
        last = last_up_to(process[order], time[order], work.process[asked], until)
        source = taken(order, last)
        lag = work.start[asked] - taken(time, source, 0)
        yield _edges(taken(self.point, source), self.begin[asked], lag, VIRTUAL, True)

    def _launches(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return, per work, the node that launches it or -1, its time, and the usual lag from it.

        The node is the start of the call. It is the end if the call took long because it waited for
        a full queue, provided that usual lags run from the end, and the work began after it.
        """
        work, points = self.work, self.host.points
        usual_ns, ns_in_call = work.launch  # the lag from the start of the call; its part inside
        returned = taken(work.calls_ns[1], work.call)
        from_end = np.zeros(len(usual_ns), dtype=np.bool_)
        from_end[work.full[0]] = True
        from_end &= (ns_in_call > 0) & (work.start >= returned)
        call_start, call_end = (
            taken(point, work.call) for point in (points.start_of_call, points.end_of_call)
        )
        point = np.where(from_end, call_end, call_start)
        # The call explains only the first work that it starts in a queue: the rest follows that.
        # Nor does it explain work that seems to start before it, or behind unrecorded work.
        is_launched = work.opens & (work.start >= work.called) & ~work.is_behind_unseen
        since = np.where(from_end, returned, work.called)
        source = np.where(is_launched, taken(self.point, point), -1)
        return source, since, usual_ns - np.where(from_end, ns_in_call, 0)

    def _of_host(self) -> Iterator[Edges]:
        """Yield edges into points: from the point before, from awaited work, of hand-overs."""
        host, points, time = self.host, self.host.points, self.host.time_ns
        awaited, before = host.awaited, before_in(points.thread)
        lag = time - taken(time, before, 0)
        # Waits and hand-overs have edges of their own. So the edge of the thread has the usual time
        # of a call that waits, and no time up to the point at which the thread takes over (`took`).
        wait_ends = awaited.point[awaited.binds]
        lag[wait_ends] = np.minimum(lag, host.own_ns)[wait_ends]
        lag[points.took] = 0
        yield _edges(taken(self.point, before), self.point, lag, HOST)
        yield _edges(awaited.work, self.point[awaited.point], host.lag_ns, SYNC, awaited.is_guess)
        hand_over_ns = time[points.took] - time[points.gave]
        gave, took = self.point[points.gave], self.point[points.took]
        yield _edges(gave, took, hand_over_ns, HANDOVER, ~points.is_sure)


def _edges(
    source: IntArray, target: IntArray, lag: IntArray, kind: int, inferred: BoolArray | bool = False
) -> Edges:
    """Return edges of one kind, without those whose source or target is -1."""
    kinds = np.full(len(source), kind, dtype=np.int8)
    guesses = np.broadcast_to(np.asarray(inferred), source.shape)
    edges = Edges(narrow(source), narrow(target), lag, kinds, guesses)
    return edges.only((source >= 0) & (target >= 0))
