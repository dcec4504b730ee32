"""The critical path of the chosen windows: from their end back to what each node waited for last.

The pieces of the path (GPU work, time of a thread, lags) add up exactly to the time of the windows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.attribution.culprits import UNRECORDED, named_times
from traceflops.attribution.idle_classes import LONGEST_HANDOVER_NS, on_demand
from traceflops.attribution.idle_slices import GapParts
from traceflops.characters import kernel_name
from traceflops.replay.recorded_graph import (
    EDGE_NAMES,
    HANDOVER,
    HOST,
    LAUNCH,
    VIRTUAL,
    RecordedGraph,
    World,
)
from traceflops.table.columns import ABSENT, Columns, IntArray, codes, is_one_of, names, numbers
from traceflops.table.grouping import groups, joint_codes
from traceflops.timeline.intervals import Intervals
from traceflops.timeline.start_up import GAPS
from traceflops.windows.prepared import Prepared
from traceflops.windows.tiling import paced

WORK: Final = len(EDGE_NAMES)
DELAY: Final = WORK + 1
"""Kinds of pieces besides those of edges: GPU work, and a delay that replays keep."""
UNEXPLAINED: Final = "unexplained"
_START_UP: Final = "start_up"


class PathPart(Struct, frozen=True):
    """Time of a critical path by component and by the name of a kernel, call or function."""

    component: str
    name: str
    ns: int


class Pieces(Columns, frozen=True):
    """Pieces of a path: kind (of an edge, WORK or DELAY), node at their end, source, and time."""

    kind: IntArray
    node: IntArray
    source: IntArray
    ns: IntArray


class Edge(Struct, frozen=True):
    """The begin or end of a window, in a form that replays can move.

    It is the begin of the first of `nodes`, less `ahead_ns`; without nodes, the end of the device's
    last work. If the step begins at a moment of the host (node `mark`, else -1), and that comes
    earlier, the edge is that moment, but not before the step before has ended. `role` and
    `ahead_ns` are per node: _LAST nodes end the step before; a _COPY counts only if it begins after
    them.
    """

    device: int
    nodes: IntArray
    role: IntArray
    ahead_ns: IntArray
    mark: int = -1

    def earlier(self, by_node: IntArray) -> Edge:
        """Return the edge for a world in which nodes begin later by some ns per node."""
        return replace(self, ahead_ns=self.ahead_ns + by_node[self.nodes])

    def at(self, graph: RecordedGraph, world: World, time_ns: IntArray) -> tuple[int, int]:
        """Return the time of the edge in a replay in which nodes end at `time_ns`, and its node."""
        if not len(self.nodes):  # the end of the device's last work
            rows = np.flatnonzero(graph.nodes.device == self.device)
            last = int(rows[np.argmax(time_ns[rows])])
            return int(time_ns[last]), last
        begin = time_ns[self.nodes] - world.dur_ns[self.nodes] - self.ahead_ns
        ends_before = time_ns[self.nodes[self.role == _LAST]]
        before = ends_before.max(initial=begin.min())
        # Queues of copies alone may run ahead: they count only after the end of the step before.
        counts = (self.role == PACED) | (self.role == _COPY) & (begin >= before)
        first = np.flatnonzero(counts)[np.argmin(begin[counts])]
        if self.mark >= 0:  # the moment of the host at which the step begins
            marked = int(ends_before.max(initial=time_ns[self.mark]))
            if marked < begin[first]:
                return marked, self.mark
        return int(begin[first]), int(self.nodes[first])


_LAST, _COPY, PACED = range(3)
"""Roles of nodes: the last of a queue in the step before; the first of a queue of copies alone; the
first of a queue with kernels."""


class Span(Struct, frozen=True):
    """A window of a device, or windows that follow each other: where it begins and ends."""

    device: int
    first: Edge
    last: Edge

    def earlier(self, by_node: IntArray) -> Span:
        """Return the span for a world in which nodes begin later by some ns per node."""
        return Span(self.device, self.first.earlier(by_node), self.last.earlier(by_node))

    def at(
        self, graph: RecordedGraph, world: World, time_ns: IntArray
    ) -> tuple[tuple[int, int], int]:
        """Return (its begin and end in a replay), and the node that ends it."""
        end, node = self.last.at(graph, world, time_ns)
        return (self.first.at(graph, world, time_ns)[0], end), node


def spans_of(prepared: Prepared, graph: RecordedGraph, *, joined: bool = True) -> tuple[Span, ...]:
    """Return the chosen windows of all devices; with `joined`, adjacent ones as one span."""
    spans: list[Span] = []
    recorded = graph.as_recorded()
    process = numbers(prepared.trace.activities["process"], ABSENT)
    for device, windows in prepared.windows.items():
        rows, heads = prepared.accounts[device].rows, _heads(prepared, device)
        used = [(window.start_ns, window.end_ns) for window in windows if window.used]
        if joined:
            union = Intervals.of(*np.array(used, dtype=np.int64).reshape(-1, 2).T)
            used = [*zip(union.start_ns.tolist(), union.end_ns.tolist(), strict=True)]
        for begin_and_end in used:
            edges = []
            for time in begin_and_end:
                index = int(np.searchsorted(rows.start_ns, time))
                next_work = np.arange(index, min(index + 1, len(rows.row)))  # none at the end
                owner = process[rows.row[min(index, len(rows.row) - 1)]]
                mark = -1 if time in heads else graph.moments.get((int(owner), time), -1)
                # A step that begins at a moment of the host begins here with its next work.
                work_ns = int(rows.start_ns[index]) if mark >= 0 and len(next_work) else time
                by_default = next_work, np.full_like(next_work, PACED)
                indices, role = heads.get(work_ns, by_default)
                nodes = graph.first_of_row[rows.row[indices]]
                nodes, role = nodes[nodes >= 0], role[nodes >= 0]
                # With this `ahead_ns` the edge is at its recorded time in the recorded world.
                edge = Edge(device, nodes, role, 0 * nodes, mark)
                ahead_ns = edge.at(graph, recorded, graph.nodes.time_ns)[0] - time
                edges.append(replace(edge, ahead_ns=edge.ahead_ns + ahead_ns))
            spans.append(Span(device, *edges))
    return tuple(spans)


def _heads(prepared: Prepared, device: int) -> dict[int, tuple[IntArray, IntArray]]:
    """Return the work that decides when a step begins on a device, by each queue's begin in it.

    The work is given as indices into the rows of the device's account, and their roles. A step
    begins with the first work that was launched in it. Empty if steps are not told by launches.
    """
    launched_in, activities = prepared.plan.layout.launched_in, prepared.trace.activities
    if launched_in is None:
        return {}
    rows = prepared.accounts[device].rows
    step, stream = launched_in[rows.row], numbers(activities["stream"], ABSENT)[rows.row]
    is_paced = paced(step, stream, is_one_of(activities["kind"], "kernel")[rows.row])
    # The first and the last work of each queue in each step; rows are in the order of start.
    queue = joint_codes(step, stream)
    first = np.unique(queue, return_index=True)[1]
    latest_first = np.argsort(-rows.end_ns)
    last = latest_first[np.unique(queue[latest_first], return_index=True)[1]]
    heads: dict[int, tuple[IntArray, IntArray]] = {}
    last_before = first[:0]  # in the step before
    for number, queues in groups(step[first]):
        begins = np.sort(first[queues])
        role = np.where(is_paced[begins], PACED, _COPY)
        indices = np.append(begins, last_before)
        roles = np.append(role, np.full_like(last_before, _LAST))
        if number >= 0:  # work launched in no step (-1) begins none; queues with kernels end steps
            heads |= dict.fromkeys(rows.start_ns[begins].tolist(), (indices, roles))
            last_before = last[queues[is_paced[first[queues]]]]
    return heads


def lengths(
    graph: RecordedGraph, spans: Sequence[Span], world: World, time_ns: IntArray
) -> list[int]:
    """Return the length of each span in a replay, in ns."""
    ends = (span.at(graph, world, time_ns)[0] for span in spans)
    return [end - begin for begin, end in ends]


def path(graph: RecordedGraph, spans: Sequence[Span], world: World, time_ns: IntArray) -> Pieces:
    """Return the pieces of the critical paths of all spans; nodes end at `time_ns` in `world`."""
    edge = graph.decisive(world, time_ns)
    source = np.append(graph.edges.source, -1)[edge]  # -1, no edge, takes the last entry
    kind = np.append(graph.edges.kind, DELAY)[edge]
    source_of, times = source.tolist(), time_ns.tolist()
    pieces = [Pieces(*np.empty((4, 0), dtype=np.int64))]
    for span in spans:
        (begin, end), node = span.at(graph, world, time_ns)
        nodes = [node]
        while (node := source_of[node]) >= 0 and times[node] > begin:
            nodes.append(node)
        back = np.array(nodes)
        # Three pieces per node, backwards: its work, its delay, the lag of its decisive edge.
        work_begin = time_ns[back] - world.dur_ns[back]
        lag_begin = np.where(source[back] >= 0, time_ns[source[back]], begin)
        begins = np.stack([work_begin, work_begin - world.delay_ns[back], lag_begin], axis=1)
        # Cut at the span: each piece ends where the one before it begins.
        edges = np.append(end, np.maximum(begins.ravel(), begin))
        edges = np.minimum.accumulate(edges)
        kinds = np.stack([np.full_like(back, WORK), np.full_like(back, DELAY), kind[back]], axis=1)
        node_of, ns = np.repeat(back, 3), edges[:-1] - edges[1:]
        pieces.append(Pieces(kinds.ravel(), node_of, source[node_of], ns).only(ns > 0))
    return Pieces.joined(pieces)


def parts_of(
    prepared: Prepared,
    graph: RecordedGraph,
    pieces: Pieces,
    without: Mapping[int, Intervals] | None = None,
) -> tuple[PathPart, ...]:
    """Return a path by component and name, the largest part first.

    `without` is, by thread, the time that edits removed.
    """
    sums: Counter[tuple[str, str]] = Counter()
    is_work, is_host = pieces.kind == WORK, pieces.kind == HOST
    # Work: by component and name of the kernel.
    work, activities = pieces.only(is_work), prepared.trace.activities
    categorised, labels = prepared.linked.categorised, names(activities["name"])
    row, top = graph.nodes.row[work.node], categorised.top()
    category = categorised.category[row]
    for code, rows in groups(codes(activities["name"])[row]):
        for number, same in groups(category[rows]):
            label = kernel_name(labels[code]) if code >= 0 else ""
            component = top[number] if number >= 0 else "other"
            sums[component, label] += int(work.ns[rows[same]].sum())
    for key, ns in _of_host(prepared, graph, pieces.only(is_host), without or {}):
        sums[key] += ns
    # The rest are lags and delays. First, pages that the host brings back by touching them: no call
    # starts these.
    rest = pieces.only(~is_work & ~is_host)
    is_fault = np.append(on_demand(activities, "migration DtoH"), False)[graph.nodes.row[rest.node]]
    is_fault &= np.isin(rest.kind, (VIRTUAL, DELAY))
    sums["host_page_faults", ""] += int(rest.ns[is_fault].sum())
    rest = rest.only(~is_fault)
    # Then lags by kind, without start-up in launches; and delays, explained or not.
    start_up_ns = _start_up_in_launches(prepared, graph, rest)
    sums[_START_UP, ""] += int(start_up_ns.sum())
    # After a long silence nothing connects two threads: the host's time is not recorded.
    is_long = (rest.kind == HANDOVER) & (rest.ns > LONGEST_HANDOVER_NS)
    sums[UNRECORDED, ""] += int((rest.ns - start_up_ns)[is_long].sum())
    for kind, rows in groups(np.where(is_long, DELAY, rest.kind)):
        if kind != DELAY:
            sums[EDGE_NAMES[kind], ""] += int((rest.ns - start_up_ns)[rows].sum())
    # Work that follows from nothing recorded has no source.
    is_unexplained = graph.is_unexplained[rest.node] | (rest.source < 0)
    for name, chosen in ((UNEXPLAINED, is_unexplained), ("late_start", ~is_unexplained)):
        sums[name, ""] += int(rest.ns[(rest.kind == DELAY) & chosen].sum())
    ordered = sorted(sums.items(), key=lambda part: (-part[1], part[0]))
    return tuple(PathPart(*key, ns) for key, ns in ordered if ns)


def _starts_up(prepared: Prepared, call: int) -> Intervals:
    """Return when the thread of a call starts up, or its devices sit idle for that."""
    calls, devices = prepared.trace.calls, prepared.trace.devices
    process, thread = (int(numbers(calls[name], ABSENT)[call]) for name in ("process", "thread"))
    own = prepared.linked.comparable_start_up.get(process)
    if own is None:  # it has no start-up, or its clock is not that of its devices
        return Intervals.empty()
    owner = numbers(devices["process"])
    idle = (
        account.start_up_by_kind.get(kind, Intervals.empty())
        for device, account in prepared.accounts.items()
        for kind in GAPS
        if owner[device] == process
    )
    return own.by_thread.get(thread, Intervals.empty()).union(*idle)


def _start_up_in_launches(prepared: Prepared, graph: RecordedGraph, pieces: Pieces) -> IntArray:
    """Return how many ns of each launch its call starts up; 0 for other pieces."""
    nodes, start_up_ns = graph.nodes, np.zeros_like(pieces.ns)
    launches = np.flatnonzero(pieces.kind == LAUNCH)
    launches = launches[nodes.call[pieces.source[launches]] >= 0]
    source = pieces.source[launches]
    for _, rows in groups(nodes.thread[source]):  # any call of a thread tells its start-up
        start_up = _starts_up(prepared, int(nodes.call[source[rows[0]]]))
        begin, of_thread = nodes.at_ns[source[rows]], launches[rows]
        start_up_ns[of_thread] = start_up.length_within(begin, begin + pieces.ns[of_thread])
    return start_up_ns


def _of_host(
    prepared: Prepared, graph: RecordedGraph, pieces: Pieces, without: Mapping[int, Intervals]
) -> Iterator[tuple[tuple[str, str], int]]:
    """Yield ((class, name), ns) of host time on a path, with the classes of idle time.

    All items sum to the time of `pieces`: the recorded time is scaled to it, and the last item is
    the rest. `without` is, by thread, the time that edits removed.
    """
    # Cut the recorded time of each thread at its points (launches and waits), like idle time: a
    # long piece is then one without any of these.
    at_ns = np.unique(graph.nodes.at_ns[pieces.node])
    empty = np.empty(0, dtype=np.int64)
    starts, ends, calls, start_up_ns = [empty], [empty], [empty], 0
    for thread, last_call, spans in _of_threads(graph, pieces):
        left = spans.subtract(without.get(thread, Intervals.empty()))
        start_up = left.intersect(_starts_up(prepared, last_call))
        start_up_ns += start_up.length_ns
        left = left.subtract(start_up)
        inside = np.setdiff1d(at_ns[left.contains(at_ns)], left.start_ns)
        starts.append(np.union1d(left.start_ns, inside))
        ends.append(np.union1d(left.end_ns, inside))
        calls.append(np.full_like(starts[-1], last_call))
    start, end, call = (np.concatenate(columns) for columns in (starts, ends, calls))
    # Name the pieces as if they were gaps of a device, each due to its thread's last call.
    none = np.full(len(start), -1, dtype=np.int64)
    parts = GapParts(
        start_ns=start,
        end_ns=end,
        gap_start_ns=start,
        gap_end_ns=end,
        activity=none,
        call=call,
        call_start_ns=end,  # all of a piece is before its launch
        call_end_ns=end,
        cap_ns=np.zeros_like(end),
        op=none,
    )
    times = Counter({(_START_UP, ""): start_up_ns})
    times += named_times(parts, prepared.trace, _busy(prepared))
    total_ns, named_ns = int(pieces.ns.sum()), 0
    recorded_ns = int((end - start).sum()) + start_up_ns
    for key, part_ns in times.items() if recorded_ns else ():
        ns = part_ns * total_ns // recorded_ns
        named_ns += ns
        yield key, ns
    yield (UNRECORDED, "(others)"), total_ns - named_ns


def _busy(prepared: Prepared) -> dict[int, Intervals]:
    """Return when any GPU of a process works, by process."""
    owner, busy = (
        numbers(prepared.trace.devices["process"]),
        defaultdict[int, list[Intervals]](list),
    )
    for device, account in prepared.accounts.items():
        busy[int(owner[device])].append(account.timeline.busy)
    return {process: one.union(*more) for process, (one, *more) in busy.items()}


def _of_threads(graph: RecordedGraph, pieces: Pieces) -> Iterator[tuple[int, int, Intervals]]:
    """Yield each thread that calls the GPU, its last call, and its recorded time on the path."""
    nodes = graph.nodes
    points = np.flatnonzero(nodes.call >= 0)
    call_of = dict(zip(nodes.thread[points].tolist(), nodes.call[points].tolist(), strict=True))
    for thread, rows in groups(nodes.thread[pieces.node]):
        end = nodes.at_ns[pieces.node[rows]]
        start = np.maximum(nodes.at_ns[pieces.source[rows]], end - pieces.ns[rows])
        if thread in call_of:
            yield thread, call_of[thread], Intervals.of(start, end)


def places_of(
    prepared: Prepared, graph: RecordedGraph, pieces: Pieces
) -> tuple[IntArray, dict[tuple[int, int], Intervals]]:
    """Return the rows of activities on a path, and when each (process, thread) is on it."""
    calls, host = prepared.trace.calls, pieces.only(pieces.kind == HOST)
    process, thread = (numbers(calls[name], ABSENT) for name in ("process", "thread"))
    threads = {
        (int(process[call]), int(thread[call])): spans
        for _, call, spans in _of_threads(graph, host)
    }
    return np.unique(graph.nodes.row[pieces.only(pieces.kind == WORK).node]), threads
