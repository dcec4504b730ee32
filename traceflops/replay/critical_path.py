"""What decided how long the chosen windows took: the path back from their end, piece by piece.

Each node is followed back to what it waited for last. The pieces on the way, of work, of a thread,
of a lag, add up exactly to the time of the windows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from traceflops.attribution import GapParts, named_times
from traceflops.characters import kernel_name
from traceflops.replay.recorded_graph import EDGE_NAMES, HOST, RecordedGraph, World
from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    codes,
    groups,
    is_one_of,
    joint_codes,
    names,
    numbers,
)
from traceflops.timeline import Intervals, Window
from traceflops.windows import Prepared, paced

WORK: Final = len(EDGE_NAMES)
DELAY: Final = WORK + 1
"""Kinds of pieces besides those of edges: work itself, and a delay that is kept."""
UNEXPLAINED: Final = "unexplained"


@dataclass(frozen=True, slots=True)
class PathPart:
    """One part of a critical path: a component, a kernel, call or function in it, and its time."""

    component: str
    name: str
    ns: int


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of a path: kind (of an edge, WORK or DELAY), the node that they end at, their time."""

    kind: IntArray
    node: IntArray
    source: IntArray
    ns: IntArray

    @classmethod
    def of(cls, *columns: IntArray | list[int]) -> Pieces:
        """Return the pieces that have a length."""
        found = cls(*(np.asarray(column, dtype=np.int64) for column in columns))
        return found.only(found.ns > 0)

    def only(self, some: BoolArray) -> Pieces:
        """Return some of the pieces."""
        return Pieces(*(getattr(self, name)[some] for name in _PIECES))


_PIECES: Final = tuple(Pieces.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class Edge:
    """Where a stretch of time begins or ends: `ahead_ns` before the first of some nodes begins.

    Without nodes that is the end of the last work of the device. `role` is of each node: copies
    count unless they begin before the last step has ended, as in `windows`.
    """

    device: int
    nodes: IntArray
    role: IntArray
    ahead_ns: IntArray

    def earlier(self, by_node: IntArray) -> Edge:
        """Return it where nodes seem to begin so much later than they do."""
        return replace(self, ahead_ns=self.ahead_ns + by_node[self.nodes])

    def at(self, graph: RecordedGraph, world: World, time_ns: IntArray) -> tuple[int, int]:
        """Return when it is in a replay, and the node that decides that."""
        if len(self.nodes):
            begun = time_ns[self.nodes] - world.dur_ns[self.nodes] - self.ahead_ns
            over = time_ns[self.nodes[self.role == _LAST]].max(initial=begun.min())
            counts = (self.role == PACED) | (self.role == _COPY) & (begun >= over)
            first = np.flatnonzero(counts)[np.argmin(begun[counts])]
            return int(begun[first]), int(self.nodes[first])
        mine = np.flatnonzero(graph.nodes.device == self.device)
        last = int(mine[np.argmax(time_ns[mine])])
        return int(time_ns[last]), last


_LAST, _COPY, PACED = range(3)
"""Roles of nodes: last to end in the step before; first in a queue of copies, or with kernels."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time of a device: where it begins and ends."""

    device: int
    first: Edge
    last: Edge

    def earlier(self, by_node: IntArray) -> Span:
        """Return it where nodes seem to begin so much later than they do."""
        return Span(self.device, self.first.earlier(by_node), self.last.earlier(by_node))

    def at(
        self, graph: RecordedGraph, world: World, time_ns: IntArray
    ) -> tuple[tuple[int, int], int]:
        """Return from when to when it is in a replay, and what node ends it."""
        end, node = self.last.at(graph, world, time_ns)
        return (self.first.at(graph, world, time_ns)[0], end), node


def spans_of(prepared: Prepared, graph: RecordedGraph, *, joined: bool = True) -> tuple[Span, ...]:
    """Return the chosen windows of all devices, or with `joined` those that follow each other."""
    found: list[Span] = []
    recorded = graph.as_recorded()
    for device, windows in prepared.windows.items():
        rows, heads = prepared.accounts[device].rows, _heads(prepared, device)
        for stretch in _stretches(windows) if joined else _each(windows):
            edges = []
            for time in stretch:
                place = int(np.searchsorted(rows.start_ns, time))
                first = np.arange(place, min(place + 1, len(rows.row)))
                places, role = heads.get(time, (first, np.full_like(first, PACED)))
                nodes = graph.first_of_row[rows.row[places]]
                edge = Edge(device, nodes, role, 0 * nodes)
                more_ns = edge.at(graph, recorded, graph.nodes.time_ns)[0] - time
                edges.append(replace(edge, ahead_ns=edge.ahead_ns + more_ns))
            found.append(Span(device, *edges))
    return tuple(found)


def _heads(prepared: Prepared, device: int) -> dict[int, tuple[IntArray, IntArray]]:
    """Return, by when each queue begins with a step, the places and roles that tell when it begins.

    A step begins on a device with the first work that was launched in it.
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
    found: dict[int, tuple[IntArray, IntArray]] = {}
    for one, at in groups(step[first]):
        every = np.sort(first[at])
        role = np.where(is_paced[every], PACED, _COPY)
        both = np.append(every, over), np.append(role, np.full_like(over, _LAST))
        if one >= 0:
            found |= dict.fromkeys(rows.start_ns[every].tolist(), both)
            over = last[at[is_paced[first[at]]]]
    return found


def _stretches(windows: tuple[Window, ...]) -> Iterator[tuple[int, int]]:
    used = Intervals.of(
        np.array([one.start_ns for one in windows if one.used], dtype=np.int64),
        np.array([one.end_ns for one in windows if one.used], dtype=np.int64),
    )
    yield from zip(used.start_ns.tolist(), used.end_ns.tolist(), strict=True)


def _each(windows: tuple[Window, ...]) -> Iterator[tuple[int, int]]:
    return ((one.start_ns, one.end_ns) for one in windows if one.used)


def lengths(
    graph: RecordedGraph, spans: Sequence[Span], world: World, time_ns: IntArray
) -> list[int]:
    """Return how long each stretch is in a replay."""
    ends = (span.at(graph, world, time_ns)[0] for span in spans)
    return [end - begin for begin, end in ends]


def path(graph: RecordedGraph, spans: Sequence[Span], world: World, time_ns: IntArray) -> Pieces:
    """Return the pieces of the critical paths of all stretches, the last first."""
    edge = graph.decisive(world, time_ns)
    source = np.append(graph.edges.source, -1)[edge]
    kind = np.append(graph.edges.kind, DELAY)[edge]
    before, times = source.tolist(), time_ns.tolist()
    found = [Pieces.of([], [], [], [])]
    for span in spans:
        (begin, over), node = span.at(graph, world, time_ns)
        back = _nodes_back(begin, node, before, times)
        worked = time_ns[back] - world.dur_ns[back]
        until = np.where(source[back] >= 0, time_ns[source[back]], begin)
        edges = np.stack([worked, worked - world.delay_ns[back], until], axis=1).ravel()
        edges = np.minimum.accumulate(np.append(over, np.maximum(edges, begin)))
        kinds = np.stack([np.full_like(back, WORK), np.full_like(back, DELAY), kind[back]], axis=1)
        twice = np.repeat(back, 3)
        found.append(Pieces.of(kinds.ravel(), twice, source[twice], edges[:-1] - edges[1:]))
    return Pieces(*(np.concatenate([getattr(one, name) for one in found]) for name in _PIECES))


def _nodes_back(begin: int, node: int, before: list[int], times: list[int]) -> IntArray:
    """Return a node, what it waited for, and so on, back to a time."""
    found = [node]
    while (node := before[node]) >= 0 and times[node] > begin:
        found.append(node)
    return np.array(found)


def parts_of(
    prepared: Prepared,
    graph: RecordedGraph,
    pieces: Pieces,
    without: Mapping[int, Intervals] | None = None,
) -> tuple[PathPart, ...]:
    """Return a path by component and name, the largest part first.

    `without` are stretches of threads that are no longer there.
    """
    sums: Counter[tuple[str, str]] = Counter()
    work, host = pieces.kind == WORK, pieces.kind == HOST
    for found in (
        _of_work(prepared, graph, pieces.only(work)),
        _of_host(prepared, graph, pieces.only(host), without or {}),
        _of_rest(graph, pieces.only(~work & ~host)),
    ):
        for key, ns in found:
            sums[key] += ns
    ordered = sorted(sums.items(), key=lambda one: (-one[1], one[0]))
    return tuple(PathPart(*key, ns) for key, ns in ordered if ns)


def ranks_of(prepared: Prepared, graph: RecordedGraph, pieces: Pieces) -> dict[int, int]:
    """Return the time of a path by rank, that with most time first; of known ranks only."""
    sums: Counter[int] = Counter()
    for process, mine in groups(graph.nodes.process[pieces.node]):
        rank = prepared.trace.ranks[process] if process >= 0 else None
        if rank is not None:
            sums[rank] += int(pieces.ns[mine].sum())
    return dict(sums.most_common())


_Named = Iterator[tuple[tuple[str, str], int]]


def _of_work(prepared: Prepared, graph: RecordedGraph, pieces: Pieces) -> _Named:
    activities, categorised = prepared.trace.activities, prepared.linked.categorised
    row = graph.nodes.row[pieces.node]
    labels, top = names(activities["name"]), categorised.top()
    name, category = codes(activities["name"])[row], categorised.category[row]
    sums: Counter[tuple[str, str]] = Counter()
    for code, mine in groups(name):
        for one, places in groups(category[mine]):
            label = kernel_name(labels[code]) if code >= 0 else ""
            sums[top[one] if one >= 0 else "other", label] += int(pieces.ns[mine[places]].sum())
    yield from sums.items()


def _of_rest(graph: RecordedGraph, pieces: Pieces) -> _Named:
    """Yield lags by kind; of delays only those that nothing explains are named so."""
    unexplained = graph.is_unexplained[pieces.node] | (pieces.source < 0)
    for kind, mine in groups(pieces.kind):
        if kind != DELAY:
            yield (EDGE_NAMES[kind], ""), int(pieces.ns[mine].sum())
    delays = pieces.kind == DELAY
    for name, some in ((UNEXPLAINED, unexplained), ("late_start", ~unexplained)):
        yield (name, ""), int(pieces.ns[delays & some].sum())


def _of_host(
    prepared: Prepared, graph: RecordedGraph, pieces: Pieces, without: Mapping[int, Intervals]
) -> _Named:
    """Yield the time of threads by what they did, as idle time is named."""
    total = int(pieces.ns.sum())
    parts = _thread_parts(graph, pieces, without)
    known, given = int((parts.end_ns - parts.start_ns).sum()), 0
    for key, its_ns in named_times(parts, prepared.trace).items() if known else ():
        ns = its_ns * total // known
        given += ns
        yield key, ns
    yield ("host_unrecorded", "(others)"), total - given


def _thread_parts(
    graph: RecordedGraph, pieces: Pieces, without: Mapping[int, Intervals]
) -> GapParts:
    """Return the recorded stretches of threads, of which the last node of each tells the call.

    They are cut at calls: as in idle time, what is long is long between two of these.
    """
    at_ns = np.unique(graph.nodes.at_ns[pieces.node])
    columns = [
        (*_cut(every.subtract(without.get(one, Intervals.empty())), at_ns), call)
        for one, call, every in _of_threads(graph, pieces)
    ]
    empty = np.empty(0, dtype=np.int64)
    start = np.concatenate([empty, *(one[0] for one in columns)])
    end = np.concatenate([empty, *(one[1] for one in columns)])
    call = np.repeat([one[2] for one in columns] or [0], [len(one[0]) for one in columns] or [0])
    none = np.full(len(start), -1, dtype=np.int64)
    return GapParts(start, end, start, end, none, call, end, end, 0 * end)


def _cut(spans: Intervals, at_ns: IntArray) -> tuple[IntArray, IntArray]:
    """Return the starts and ends of stretches that are cut at some moments."""
    inside = np.setdiff1d(at_ns[spans.contains(at_ns)], spans.start_ns)
    return np.union1d(spans.start_ns, inside), np.union1d(spans.end_ns, inside)


def _of_threads(graph: RecordedGraph, pieces: Pieces) -> Iterator[tuple[int, int, Intervals]]:
    """Yield each thread of known calls, its last call, and its recorded stretches."""
    nodes = graph.nodes
    known = np.flatnonzero(nodes.call >= 0)
    of_thread = dict(zip(nodes.thread[known].tolist(), nodes.call[known].tolist(), strict=True))
    for one, mine in groups(nodes.thread[pieces.node]):
        end = nodes.at_ns[pieces.node[mine]]
        start = np.maximum(nodes.at_ns[pieces.source[mine]], end - pieces.ns[mine])
        if one in of_thread:
            yield one, of_thread[one], Intervals.of(start, end)


def places_of(
    prepared: Prepared, graph: RecordedGraph, pieces: Pieces
) -> tuple[IntArray, dict[tuple[int, int], Intervals]]:
    """Return the activities on a path, and by process and thread when it was there."""
    calls, host = prepared.trace.calls, pieces.only(pieces.kind == HOST)
    columns = [numbers(calls[name], ABSENT) for name in ("process", "thread")]
    threads = {
        (int(columns[0][call]), int(columns[1][call])): spans
        for _, call, spans in _of_threads(graph, host)
    }
    return np.unique(graph.nodes.row[pieces.only(pieces.kind == WORK).node]), threads
