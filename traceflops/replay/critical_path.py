"""The critical path of the chosen windows: from their end back to what each node waited for last.

The pieces of the path (GPU work, time of a thread, lags) add up exactly to the time of the windows.
"""

from __future__ import annotations

from collections import Counter
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
from traceflops.windows.periodicity import paced
from traceflops.windows.prepared import Prepared

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
    """The beginning or end of a window, so that replays can move it.

    It is `ahead_ns` before the first of `nodes` begins, or, without nodes, the end of the last work
    of the device. `role` and `ahead_ns` are per node: as in `windows`, a copy counts only if it
    begins after the step before has ended. A step that begins at a moment of the host (`mark`, else
    -1) begins there, or when the step before has ended if that is later.
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
        if len(self.nodes):
            begun = time_ns[self.nodes] - world.dur_ns[self.nodes] - self.ahead_ns
            over = time_ns[self.nodes[self.role == _LAST]].max(initial=begun.min())
            counts = (self.role == PACED) | (self.role == _COPY) & (begun >= over)
            first = np.flatnonzero(counts)[np.argmin(begun[counts])]
            if self.mark >= 0:
                ended = time_ns[self.nodes[self.role == _LAST]]
                marked = int(ended.max(initial=time_ns[self.mark]))
                if marked < begun[first]:
                    return marked, self.mark
            return int(begun[first]), int(self.nodes[first])
        rows = np.flatnonzero(graph.nodes.device == self.device)
        last = int(rows[np.argmax(time_ns[rows])])
        return int(time_ns[last]), last


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
        """Return its begin and end in a replay, and the node that ends it."""
        end, node = self.last.at(graph, world, time_ns)
        return (self.first.at(graph, world, time_ns)[0], end), node


def spans_of(prepared: Prepared, graph: RecordedGraph, *, joined: bool = True) -> tuple[Span, ...]:
    """Return the chosen windows of all devices; with `joined` adjacent ones as one span."""
    spans: list[Span] = []
    recorded = graph.as_recorded()
    process = numbers(prepared.trace.activities["process"], ABSENT)
    for device, windows in prepared.windows.items():
        rows, heads = prepared.accounts[device].rows, _heads(prepared, device)
        used = [(window.start_ns, window.end_ns) for window in windows if window.used]
        if joined:
            whole = Intervals.of(*np.array(used, dtype=np.int64).reshape(-1, 2).T)
            used = [*zip(whole.start_ns.tolist(), whole.end_ns.tolist(), strict=True)]
        for stretch in used:
            edges = []
            for time in stretch:
                index = int(np.searchsorted(rows.start_ns, time))
                first = np.arange(index, min(index + 1, len(rows.row)))
                owner = process[rows.row[min(index, len(rows.row) - 1)]]
                mark = -1 if time in heads else graph.moments.get((int(owner), time), -1)
                work = int(rows.start_ns[index]) if mark >= 0 and len(first) else time
                indices, role = heads.get(work, (first, np.full_like(first, PACED)))
                nodes = graph.first_of_row[rows.row[indices]]
                nodes, role = nodes[nodes >= 0], role[nodes >= 0]
                edge = Edge(device, nodes, role, 0 * nodes, mark)
                more_ns = edge.at(graph, recorded, graph.nodes.time_ns)[0] - time
                edges.append(replace(edge, ahead_ns=edge.ahead_ns + more_ns))
            spans.append(Span(device, *edges))
    return tuple(spans)


def _heads(prepared: Prepared, device: int) -> dict[int, tuple[IntArray, IntArray]]:
    """Return, by the time at which a queue begins a step, the work that decides when it begins.

    Per time: indices into the rows of the device's account, and their roles. A step begins on a
    device with the first work that was launched in it.
    """
    launched_in, activities = prepared.plan.layout.launched_in, prepared.trace.activities
    if launched_in is None:
        return {}
    rows = prepared.accounts[device].rows
    step, stream = launched_in[rows.row], numbers(activities["stream"], ABSENT)[rows.row]
    is_paced = paced(step, stream, is_one_of(activities["kind"], "kernel")[rows.row])
    queue = joint_codes(step, stream)
    first = np.unique(queue, return_index=True)[1]
    back = np.argsort(-rows.end_ns)
    last, over = back[np.unique(queue[back], return_index=True)[1]], first[:0]
    heads: dict[int, tuple[IntArray, IntArray]] = {}
    for number, queues in groups(step[first]):
        begins = np.sort(first[queues])
        role = np.where(is_paced[begins], PACED, _COPY)
        both = np.append(begins, over), np.append(role, np.full_like(over, _LAST))
        if number >= 0:
            heads |= dict.fromkeys(rows.start_ns[begins].tolist(), both)
            over = last[queues[is_paced[first[queues]]]]
    return heads


def lengths(
    graph: RecordedGraph, spans: Sequence[Span], world: World, time_ns: IntArray
) -> list[int]:
    """Return the length of each span in a replay, in ns."""
    ends = (span.at(graph, world, time_ns)[0] for span in spans)
    return [end - begin for begin, end in ends]


def path(graph: RecordedGraph, spans: Sequence[Span], world: World, time_ns: IntArray) -> Pieces:
    """Return the pieces of the critical paths of all spans, each from its end backwards."""
    edge = graph.decisive(world, time_ns)
    source = np.append(graph.edges.source, -1)[edge]
    kind = np.append(graph.edges.kind, DELAY)[edge]
    before, times = source.tolist(), time_ns.tolist()
    pieces = [Pieces(*np.empty((4, 0), dtype=np.int64))]
    for span in spans:
        (begin, over), node = span.at(graph, world, time_ns)
        nodes = [node]
        while (node := before[node]) >= 0 and times[node] > begin:
            nodes.append(node)
        back = np.array(nodes)
        worked = time_ns[back] - world.dur_ns[back]
        until = np.where(source[back] >= 0, time_ns[source[back]], begin)
        edges = np.stack([worked, worked - world.delay_ns[back], until], axis=1).ravel()
        edges = np.minimum.accumulate(np.append(over, np.maximum(edges, begin)))
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
    # The rest are lags by kind; of delays only those that nothing explains are named so.
    rest = pieces.only(~is_work & ~is_host)
    # Pages that the host brings back by touching them: no call starts these.
    touched = np.append(on_demand(activities, "migration DtoH"), False)[graph.nodes.row[rest.node]]
    touched &= np.isin(rest.kind, (VIRTUAL, DELAY))
    sums["host_page_faults", ""] += int(rest.ns[touched].sum())
    rest = rest.only(~touched)
    unexplained = graph.is_unexplained[rest.node] | (rest.source < 0)
    once_ns = _once_in_launches(prepared, graph, rest)
    sums[_START_UP, ""] += int(once_ns.sum())
    is_long = (rest.kind == HANDOVER) & (rest.ns > LONGEST_HANDOVER_NS)
    sums[UNRECORDED, ""] += int((rest.ns - once_ns)[is_long].sum())
    for kind, rows in groups(np.where(is_long, DELAY, rest.kind)):
        if kind != DELAY:
            sums[EDGE_NAMES[kind], ""] += int((rest.ns - once_ns)[rows].sum())
    for name, some in ((UNEXPLAINED, unexplained), ("late_start", ~unexplained)):
        sums[name, ""] += int(rest.ns[(rest.kind == DELAY) & some].sum())
    ordered = sorted(sums.items(), key=lambda part: (-part[1], part[0]))
    return tuple(PathPart(*key, ns) for key, ns in ordered if ns)


def _starts_up(prepared: Prepared, call: int) -> Intervals:
    """Return the time in which the thread of a call starts up, or its devices sit idle for that."""
    calls, devices = prepared.trace.calls, prepared.trace.devices
    process, thread = (int(numbers(calls[name], ABSENT)[call]) for name in ("process", "thread"))
    own = prepared.linked.comparable_start_up.get(process)
    if own is None:
        return Intervals.empty()
    owner = numbers(devices["process"])
    silent = (
        account.start_up_by_kind.get(kind, Intervals.empty())
        for device, account in prepared.accounts.items()
        for kind in GAPS
        if owner[device] == process
    )
    return own.by_thread.get(thread, Intervals.empty()).union(*silent)


def _once_in_launches(prepared: Prepared, graph: RecordedGraph, pieces: Pieces) -> IntArray:
    """Return, per piece, the ns of a launch in which its call starts up; 0 of other pieces."""
    nodes, once_ns = graph.nodes, np.zeros_like(pieces.ns)
    launches = np.flatnonzero(pieces.kind == LAUNCH)
    launches = launches[nodes.call[pieces.source[launches]] >= 0]
    source = pieces.source[launches]
    for _, rows in groups(nodes.thread[source]):
        times = _starts_up(prepared, int(nodes.call[source[rows[0]]]))
        begins, mine = nodes.at_ns[source[rows]], launches[rows]
        once_ns[mine] = times.length_within(begins, begins + pieces.ns[mine])
    return once_ns


def _of_host(
    prepared: Prepared, graph: RecordedGraph, pieces: Pieces, without: Mapping[int, Intervals]
) -> Iterator[tuple[tuple[str, str], int]]:
    """Yield ((class, name), ns) of host time on a path, with the classes of idle time.

    The last item has no name; all items sum to the time of `pieces`. `without` is, by thread, the
    time that edits removed.
    """
    # The recorded stretches of each thread are cut at its calls: as in idle time, what is long is
    # long between two of these. The last node of a thread tells its call.
    at_ns = np.unique(graph.nodes.at_ns[pieces.node])
    empty = np.empty(0, dtype=np.int64)
    starts, ends, calls, once_ns = [empty], [empty], [empty], 0
    for thread, last_call, spans in _of_threads(graph, pieces):
        left = spans.subtract(without.get(thread, Intervals.empty()))
        once = left.intersect(_starts_up(prepared, last_call))
        once_ns, left = once_ns + once.length_ns, left.subtract(once)
        inside = np.setdiff1d(at_ns[left.contains(at_ns)], left.start_ns)
        starts.append(np.union1d(left.start_ns, inside))
        ends.append(np.union1d(left.end_ns, inside))
        calls.append(np.full_like(starts[-1], last_call))
    start, end, call = (np.concatenate(columns) for columns in (starts, ends, calls))
    none = np.full(len(start), -1, dtype=np.int64)
    parts = GapParts(start, end, start, end, none, call, end, end, 0 * end, none)
    total = int(pieces.ns.sum())
    recorded_ns, named_ns = int((end - start).sum()) + once_ns, 0
    times = Counter({(_START_UP, ""): once_ns})
    times += named_times(parts, prepared.trace, _busy(prepared))
    for key, part_ns in times.items() if recorded_ns else ():
        ns = part_ns * total // recorded_ns
        named_ns += ns
        yield key, ns
    yield (UNRECORDED, "(others)"), total - named_ns


def _busy(prepared: Prepared) -> dict[int, Intervals]:
    """Return when any GPU of a process works, by process."""
    owner, busy = numbers(prepared.trace.devices["process"]), dict[int, Intervals]()
    for device, account in prepared.accounts.items():
        process = int(owner[device])
        busy[process] = busy.get(process, Intervals.empty()).union(account.timeline.busy)
    return busy


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
    """Return the rows of activities on a path, and its time by process and thread."""
    calls, host = prepared.trace.calls, pieces.only(pieces.kind == HOST)
    process, thread = (numbers(calls[name], ABSENT) for name in ("process", "thread"))
    threads = {
        (int(process[call]), int(thread[call])): spans
        for _, call, spans in _of_threads(graph, host)
    }
    return np.unique(graph.nodes.row[pieces.only(pieces.kind == WORK).node]), threads
