"""The graph of a recording: which work and which calls wait for what, by what was recorded.

A lag is what is usual for its kind (a launch onto an idle queue, a queue that never runs dry), or
less where less was recorded. What is not recorded is inferred from times, and marked so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from traceflops.attribution import told
from traceflops.ranks import RankReport
from traceflops.replay.host_points import HostPoints, host_points
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
from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    codes,
    first_match,
    groups,
    in_order,
    is_one_of,
    joint_codes,
    matching,
    numbers,
    taken,
)
from traceflops.timeline import ENDLESS
from traceflops.windows import Prepared

_ENOUGH: Final = 8
_USUAL_LAUNCH_NS: Final = 6_000
_USUAL_RETURN_NS: Final = 6_000
_USUAL_CALL_NS: Final = 2_500
"""A call that need not wait."""
_USUAL_GAP_NS: Final = 1_000
_LEAST_CAP_NS: Final = 20_000
_CLOSE_NS: Final = 25_000
"""What a queue waited for ended at most so long before."""
_JITTER_NS: Final = 2_000
_LATE_NS, _LATE_SHARE = 200_000, 50
"""A call that returns later than that, and than one in so many of its time, waited for other."""
_SKEW_NS: Final = 20_000
"""A call may seem to return so long before what it waited for ended: clocks differ."""
_ALL: Final = ("Device", "Ctx", "Context", "Thread")


def recorded_graph(prepared: Prepared, ranks: RankReport | None) -> RecordedGraph:
    """Return the graph of all work of the devices, and of the calls and threads behind it."""
    return _Recording(prepared, ranks).graph()


def _edges(
    source: IntArray, target: IntArray, lag: IntArray, kind: int, inferred: BoolArray | bool = False
) -> Edges:
    """Return edges of one kind, without those that miss an end."""
    found = Edges(
        source,
        target,
        lag,
        np.full(len(source), kind, dtype=np.int8),
        np.broadcast_to(np.asarray(inferred), source.shape),
    )
    return found.only((source >= 0) & (target >= 0))


def _typical(group: IntArray, values: IntArray, known: BoolArray, otherwise: int) -> IntArray:
    """Return, per row, the median of the known values of its group; of all where they are few."""
    overall = int(np.median(values[known])) if known.sum() >= _ENOUGH else otherwise
    found = np.full(len(values), overall, dtype=np.int64)
    for one, rows in groups(group[known]):
        if len(rows) >= _ENOUGH:
            found[group == one] = int(np.median(values[known][rows]))
    return found


def _before(group: IntArray) -> IntArray:
    """Return, per place, the place before it if that is of the same group, else -1."""
    place = np.arange(len(group)) - 1
    place[1:][group[1:] != group[:-1]] = -1
    return place


@dataclass(frozen=True)  # without slots, so that there is a place for what is found on demand
class _Recording:
    """All work by device, queue and start; numbered so until the graph is in order."""

    prepared: Prepared
    ranks: RankReport | None

    @cached_property
    def row(self) -> IntArray:
        accounts = self.prepared.accounts.values()
        rows = np.concatenate([account.rows.row for account in accounts])
        activities = self.prepared.trace.activities
        queue = [
            numbers(activities[name], ABSENT)[rows] for name in ("device", "process", "stream")
        ]
        order = in_order(*queue, numbers(activities["start_ns"])[rows])
        return rows[order]

    def _column(self, name: str) -> IntArray:
        return numbers(self.prepared.trace.activities[name], ABSENT)[self.row]

    @cached_property
    def process(self) -> IntArray:
        return self._column("process")

    @cached_property
    def offset_ns(self) -> IntArray:
        """Return by how much the clock of each process is ahead."""
        trace = self.prepared.trace
        offset = np.zeros(trace.processes.num_rows, dtype=np.int64)
        if self.ranks is not None and self.ranks.comparable:
            owner = numbers(trace.devices["process"])
            offset[owner[[*self.ranks.records.devices]]] = self.ranks.alignment.offset_ns
        return offset

    @cached_property
    def start(self) -> IntArray:
        return self._column("start_ns") - self.offset_ns[self.process]

    @cached_property
    def end(self) -> IntArray:
        return self.start + self._column("dur_ns")

    @cached_property
    def queue(self) -> IntArray:
        """Return a number of the queue of each."""
        device, stream = self._column("device"), self._column("stream")
        return joint_codes(joint_codes(device, self.process), stream)

    @cached_property
    def call(self) -> IntArray:
        return self.prepared.linked.links.call_of_activity[self.row]

    @cached_property
    def calls_ns(self) -> tuple[IntArray, IntArray]:
        """Return the start and end of each call."""
        calls = self.prepared.trace.calls
        start = numbers(calls["start_ns"]) - self.offset_ns[numbers(calls["process"])]
        return start, start + numbers(calls["dur_ns"])

    @cached_property
    def called(self) -> IntArray:
        return taken(self.calls_ns[0], self.call, LONG_AGO)

    @cached_property
    def is_blocking(self) -> BoolArray:
        """Return which copies ended inside the call that made them."""
        copies = is_one_of(self.prepared.trace.activities["kind"], "memcpy")[self.row]
        returned = taken(self.calls_ns[1], self.call, LONG_AGO)
        return copies & (self.start >= self.called) & (self.end <= returned)

    @cached_property
    def points(self) -> HostPoints:
        trace = self.prepared.trace
        count = trace.calls.num_rows
        begins, waits = np.zeros((2, count), dtype=np.bool_)
        begins[self.call[self.call >= 0]] = True
        waits[self.call[self.is_blocking]] = True
        waits |= told(trace.calls["name"], "waits_for_device")
        mine = np.isin(numbers(trace.calls["process"]), np.unique(self.process))
        return host_points(trace, begins & mine, waits & mine)

    @cached_property
    def before(self) -> IntArray:
        """Return what was before each in its queue, -1 for nothing."""
        return _before(self.queue)

    @cached_property
    def free(self) -> IntArray:
        return taken(self.end, self.before, LONG_AGO)

    @cached_property
    def _held(self) -> tuple[IntArray, BoolArray]:
        """Return what a wait of its queue held each work back for, -1 for none; and if a guess.

        Where the wait does not say, that is the last work of another queue launched before it.
        """
        waits = self.prepared.linked.stream_waits
        place = np.full(self.prepared.trace.activities.num_rows, -1, dtype=np.int64)
        place[self.row] = np.arange(len(self.row))
        call = np.where(self.opens, self.call, -1)
        found = taken(place, taken(waits.work, call))
        found = np.where(taken(self.end, found) <= self.start, found, -1)
        asked = np.flatnonzero((taken(waits.until_ns, call) == ENDLESS) & (found < 0))
        several = np.zeros(len(asked), dtype=np.int64)
        latest = np.full(len(asked), LONG_AGO, dtype=np.int64)
        for rows, mine in self._queues_of(self.process[asked]):
            mine = mine[self.queue[asked[mine]] != self.queue[rows[0]]]
            here = asked[mine]
            work = self._last_launched(rows, self.called[here], self.start[here])
            end = taken(self.end, work, LONG_AGO)
            several[mine] += work >= 0
            later = end > latest[mine]
            found[here[later]], latest[mine[later]] = work[later], end[later]
        is_close = self.start[asked] - latest < _CLOSE_NS
        is_guess = np.zeros(len(found), dtype=np.bool_)
        is_guess[asked] = (several > 1) & ~is_close
        return found, is_guess

    @property
    def awaited(self) -> IntArray:
        """Return the work that each was held back for, -1 for none."""
        return self._held[0]

    @cached_property
    def opens(self) -> BoolArray:
        """Return which are the first of their call in their queue."""
        return (self.call >= 0) & (taken(self.call, self.before) != self.call)

    @cached_property
    def lags(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return the usual lags of a launch, of the next in a queue, and of a wait for another."""
        lead, gap = self.start - self.called, self.start - self.free
        until = taken(self.end, self.awaited, LONG_AGO)
        known = self.opens & (lead >= 0)
        name = taken(codes(self.prepared.trace.calls["name"]), self.call)
        idle = known & (np.maximum(self.free, until) <= self.called)
        launch = _typical(name, lead, idle, _USUAL_LAUNCH_NS)
        follows = (self.before >= 0) & (until < self.free) & (gap < _CLOSE_NS)
        follows &= ~self.opens | (self.free >= self.called + launch)
        kind = codes(self.prepared.trace.activities["kind"])[self.row]
        next_ = _typical(kind, gap, follows, _USUAL_GAP_NS)
        held = (until > self.free + next_) & (until > self.called + launch)
        held &= self.start - until < _CLOSE_NS
        wait = _typical(0 * kind, self.start - until, held, _USUAL_GAP_NS)
        return launch, next_, wait

    def _device_edges(self, work: IntArray, point: IntArray) -> tuple[Edges, IntArray]:
        """Return what work waits for, and up to when its delay is ordinary; nodes are numbered."""
        launch, next_, wait = self.lags
        until = taken(self.end, self.awaited, LONG_AGO)
        limits = [
            (
                taken(point, taken(self.points.start_of_call, self.call)),
                self.called,
                launch,
                LAUNCH,
            ),
            (taken(work, self.before), self.free, next_, STREAM),
            (taken(work, self.awaited), until, wait, EVENT),
        ]
        guess = self._held[1]
        known, ready = [], np.full(len(work), LONG_AGO, dtype=np.int64)
        for source, since, usual, kind in limits:
            mine = self.opens & (self.start >= since) if kind == LAUNCH else since > LONG_AGO
            lag = np.minimum(usual, self.start - since)
            ready = np.maximum(ready, np.where(mine, since + lag, LONG_AGO))
            is_guess = guess & (kind == EVENT)
            known.append(_edges(np.where(mine, source, -1), self.begin(work), lag, kind, is_guess))
        cap = np.maximum(3 * launch, _LEAST_CAP_NS)
        return Edges.joined([*known, *self._inferred(work, point, ready)]), cap

    def begin(self, work: IntArray) -> IntArray:
        """Return the nodes at which work begins: of a collective that of its arrival."""
        begin = work.copy()
        begin[self.met] = work[-1] + 1 + np.arange(len(self.met))
        return begin

    def _inferred(self, work: IntArray, point: IntArray, ready: IntArray) -> list[Edges]:
        """Return what times tell of waits for other queues, and of launches, without a record."""
        late = self.start - ready > _JITTER_NS
        by_end = np.lexsort((self.end, self._column("device")))
        asked = np.flatnonzero(late & (self.awaited < 0))
        device = self._column("device")
        last = _last_up_to(device[by_end], self.end[by_end], device[asked], self.start[asked])
        other = taken(by_end, last)
        close = taken(self.end, other, LONG_AGO) >= self.start[asked] - _CLOSE_NS
        close &= taken(self.queue, other) != self.queue[asked]
        close &= taken(self.start, other) <= self.start[asked]
        asked, other = asked[close], other[close]
        gap = self.start[asked] - self.end[other]
        lag = np.minimum(self.lags[2][asked], gap)
        begin = self.begin(work)
        waits = _edges(work[other], begin[asked], lag, EVENT, inferred=True)
        return [waits, self._virtual(begin, point, late)]

    def _virtual(self, begin: IntArray, point: IntArray, late: BoolArray) -> Edges:
        """Return launches of work that has none, by the last point of its process before it."""
        asked = np.flatnonzero(late & (self.call < 0) & (self.before >= 0))
        points, time = self.points, self.point_ns
        order = in_order(points.process, time)
        upto = self.start[asked] - _USUAL_LAUNCH_NS
        last = _last_up_to(points.process[order], time[order], self.process[asked], upto)
        source = taken(order, last)
        lag = self.start[asked] - taken(time, source, 0)
        return _edges(taken(point, source), begin[asked], lag, VIRTUAL, inferred=True)

    @cached_property
    def point_ns(self) -> IntArray:
        return self.points.time_ns - self.offset_ns[self.points.process]

    def _host_edges(self, work: IntArray, point: IntArray) -> Edges:
        """Return the order of threads, what calls waited for, and hand-overs."""
        points, time = self.points, self.point_ns
        before = _before(points.thread)
        lag = time - taken(time, before, 0)
        waits, binds = self._waits(work, point)
        own = taken(self.usual_call_ns, points.call, 0)
        lag = np.where(binds, np.minimum(lag, own), lag)
        lag[points.took] = 0
        took = time[points.took] - time[points.gave]
        gave, given = point[points.gave], point[points.took]
        sure = np.broadcast_to(points.is_sure, gave.shape)
        hands = _edges(gave, given, took, HANDOVER, inferred=~sure)
        return Edges.joined([_edges(taken(point, before), point, lag, HOST), waits, hands])

    @cached_property
    def usual_call_ns(self) -> IntArray:
        """Return how long each call takes where it need not wait."""
        calls = self.prepared.trace.calls
        latest = self._latest_before(self.calls_ns[0])
        free = (latest <= self.calls_ns[0]) & told(calls["name"], "waits_for_device")
        duration = numbers(calls["dur_ns"])
        return _typical(codes(calls["name"]), duration, free, _USUAL_CALL_NS)

    def _latest_before(self, at_ns: IntArray) -> IntArray:
        """Return when, of what was launched before each call, the last ended."""
        order = np.argsort(self.called, kind="stable")
        ends = np.append(LONG_AGO, np.maximum.accumulate(self.end[order]))
        return ends[np.searchsorted(self.called[order], at_ns)]

    def _waits(self, work: IntArray, point: IntArray) -> tuple[Edges, BoolArray]:
        """Return what the ends of calls waited for, and the points of which that is certain."""
        blocking = np.flatnonzero(self.is_blocking)
        ended = self.points.end_of_call[self.call[blocking]]
        found = [(blocking, ended, np.ones(len(blocking), dtype=np.bool_), 0 * blocking == 1)]
        calls = self.prepared.trace.calls
        names = told(calls["name"], "waits_for_device") & (self.points.end_of_call >= 0)
        asked = np.flatnonzero(names)
        found += self._awaited_by(asked) if len(asked) else []
        awaited, ended, binds, inferred = map(np.concatenate, zip(*found, strict=True))
        late = self.point_ns[ended] - self.end[awaited]
        usual = _typical(0 * late, late, binds, _USUAL_RETURN_NS)
        lag = np.where(binds, late, np.minimum(late, usual))
        is_bound = np.zeros(len(point), dtype=np.bool_)
        is_bound[ended[binds]] = True
        return _edges(work[awaited], point[ended], lag, SYNC, inferred), is_bound

    def _awaited_by(self, call: IntArray) -> list[tuple[IntArray, IntArray, BoolArray, BoolArray]]:
        """Return, queue by queue, the last work launched before each call that it waited for."""
        begun, over = (one[call] for one in self.calls_ns)
        stream, every = self._asked_stream(call)
        by_time = (stream == ABSENT) & ~every
        latest = np.full(len(call), LONG_AGO, dtype=np.int64)
        found = []
        for rows, mine in self._queues_of(numbers(self.prepared.trace.calls["process"])[call]):
            own = every | by_time | (stream == self._column("stream")[rows[0]])
            asked = mine[own[mine]]
            done = np.where(by_time[asked], over[asked] + _SKEW_NS, np.iinfo(np.int64).max)
            work = self._last_launched(rows, begun[asked], done)
            seems_done = taken(self.end, work, LONG_AGO) <= over[asked] + _SKEW_NS
            work = np.where(seems_done, self._begun_before(rows, work, over[asked]), -1)
            end = taken(self.end, work, LONG_AGO)
            late, binds = over[asked] - end, end > begun[asked]
            patience = np.maximum(_LATE_NS, (over - begun)[asked] // _LATE_SHARE)
            fits = (work >= 0) & (late >= -_SKEW_NS) & (~binds | (late <= patience))
            asked, work, binds, end = (one[fits] for one in (asked, work, binds, end))
            latest[asked] = np.maximum(latest[asked], end)
            found.append((asked, work, binds, end))
        kept = []
        for asked, work, binds, end in found:
            new = np.append(True, np.diff(work) != 0)[: len(work)]
            mine = np.flatnonzero(new & (~by_time[asked] | (end == latest[asked])))
            guess = (by_time[asked] & ~binds & ~self.is_only[work])[mine]
            kept.append(
                (work[mine], self.points.end_of_call[call[asked[mine]]], binds[mine], guess)
            )
        return kept

    @cached_property
    def is_only(self) -> BoolArray:
        """Return which work is in the only queue of its process."""
        queues = np.unique(self.queue, return_index=True)[1]
        count = np.bincount(self.process[queues], minlength=int(self.process.max()) + 1)
        return np.asarray(count[self.process] == 1)

    def _queues_of(self, process: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
        """Yield the work of each queue, and which of the rows are of its process."""
        rows = dict(groups(process))
        for _, work in groups(self.queue):
            mine = rows.get(int(self.process[work[0]]))
            if mine is not None:
                yield work, mine

    def _begun_before(self, queue: IntArray, work: IntArray, at_ns: IntArray) -> IntArray:
        """Return the work, or what of its queue was the last to begin before a time."""
        last = taken(queue, np.searchsorted(self.start[queue], at_ns) - 1)
        return np.where(taken(self.start, work) < at_ns, work, last)

    def _last_launched(self, queue: IntArray, before_ns: IntArray, done_ns: IntArray) -> IntArray:
        """Return the last work of a queue launched before and done by some times, or -1."""
        rows = queue[np.argsort(self.called[queue], kind="stable")]
        last = np.searchsorted(self.called[rows], before_ns) - 1
        reach = np.maximum.accumulate(self.end[rows])
        return taken(rows, np.minimum(last, np.searchsorted(reach, done_ns, side="right") - 1))

    def _asked_stream(self, call: IntArray) -> tuple[IntArray, BoolArray]:
        """Return the stream that calls wait for, as marks say, and which wait for all."""
        marks, calls = self.prepared.trace.marks, self.prepared.trace.calls
        every = matching(calls["name"], lambda name: any(word in name for word in _ALL))[call]
        row = np.flatnonzero(is_one_of(marks["kind"], "sync"))
        mark = first_match(
            numbers(marks["process"])[row],
            numbers(marks["correlation"], ABSENT)[row],
            numbers(marks["start_ns"])[row],
            numbers(calls["process"])[call],
            numbers(calls["correlation"], ABSENT)[call],
        )
        stream = taken(numbers(marks["stream"], ABSENT)[row], mark, ABSENT)
        is_stream = matching(calls["name"], lambda name: "Stream" in name)[call]
        return np.where((stream >= 0) & is_stream, stream, ABSENT), every

    @cached_property
    def _meetings(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return the members of collectives, the number of each, and when all had come."""
        none = np.empty(0, dtype=np.int64)
        if self.ranks is None or not self.ranks.comparable:
            return none, none, none
        found, records = self.ranks.waits, self.ranks.records
        place = np.full(self.prepared.trace.activities.num_rows, -1, dtype=np.int64)
        place[self.row] = np.arange(len(self.row))
        member, number = place[records.row[found.row]], found.collective
        latest = np.full(int(number.max(initial=-1)) + 1, LONG_AGO, dtype=np.int64)
        np.maximum.at(latest, number, self.start[member])
        good = np.ones(len(latest), dtype=np.bool_)
        np.logical_and.at(good, number, self.end[member] >= latest[number])
        kept = good[number]
        return member[kept], number[kept], latest[number[kept]]

    @property
    def met(self) -> IntArray:
        """Return the work that is part of a collective of ranks."""
        return self._meetings[0]

    def graph(self) -> RecordedGraph:
        """Return the nodes in order, and the edges between them."""
        work, points, met = len(self.row), len(self.point_ns), self.met
        _, number, all_here = self._meetings
        known, meeting = np.unique(number, return_inverse=True)
        came = np.full(len(known), LONG_AGO, dtype=np.int64)
        came[meeting] = all_here
        nodes = np.arange(work + len(met) + len(known) + points)
        of_work, of_meeting = nodes[:work], nodes[work + len(met) :][: len(known)]
        of_point = nodes[work + len(met) + len(known) :]
        device, cap = self._device_edges(of_work, of_point)
        arrival = self.begin(of_work)[met]
        none = np.zeros(len(met), dtype=np.int64)
        edges = Edges.joined(
            [
                device,
                self._host_edges(of_work, of_point),
                _edges(arrival, of_meeting[meeting], none, MEETING),
                _edges(of_meeting[meeting], of_work[met], none, MEETING),
                _edges(arrival, of_work[met], none, STREAM),
            ]
        )
        time = np.concatenate([self.end, self.start[met], came, self.point_ns])
        begun = self.start.copy()
        begun[met] = all_here
        key = np.concatenate([begun, self.start[met], came, self.point_ns])
        rank = np.repeat([2, 1, 1, 0], [work, len(met), len(known), points])
        rank[met] = 3
        rank[of_meeting] = 2
        order = np.lexsort((nodes, rank, key))
        place = np.empty_like(order)
        place[order] = nodes
        missing = np.full(len(nodes), -1, dtype=np.int64)
        row, owner, thread, at_ns, call = (missing.copy() for _ in range(5))
        row[of_work], owner[of_work] = self.row, self._column("device")
        thread[of_point], at_ns[of_point] = self.points.thread, self.points.time_ns
        call[of_point] = self.points.call
        caps = np.full(len(nodes), np.iinfo(np.int64).max)
        caps[of_work] = cap
        caps[arrival] = cap[met]
        columns = (time, time - key, row, owner, thread, at_ns, call, caps)
        first = np.full(self.prepared.trace.activities.num_rows, -1, dtype=np.int64)
        first[self.row] = place[self.begin(of_work)]
        return RecordedGraph(Nodes(*(one[order] for one in columns)), _sorted(edges, place), first)


def _sorted(edges: Edges, place: IntArray) -> Edges:
    """Return edges between renumbered nodes by target, without those that lead back."""
    source, target = place[edges.source], place[edges.target]
    kept = np.flatnonzero(source < target)
    kept = kept[np.argsort(target[kept], kind="stable")]
    return Edges(
        source[kept],
        target[kept],
        *(one[kept] for one in (edges.lag_ns, edges.kind, edges.inferred)),
    )


def _last_up_to(group: IntArray, time: IntArray, at_group: IntArray, at_ns: IntArray) -> IntArray:
    """Return the last of rows by group and time that is of a group and not after a time, or -1."""
    found = np.full(len(at_ns), -1, dtype=np.int64)
    for one, asked in groups(at_group):
        first, stop = np.searchsorted(group, [one, one + 1])
        place = first + np.searchsorted(time[first:stop], at_ns[asked], side="right") - 1
        found[asked] = np.where(place >= first, place, -1)
    return found
