"""What decided how long the chosen windows took: the path back from their end, piece by piece.

Each node is followed back to what it waited for last. The pieces on the way, of work, of a thread,
of a lag, add up exactly to the time of the windows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.attribution import GapParts, culprits_of
from traceflops.replay.recorded_graph import EDGE_NAMES, HOST, RecordedGraph, World
from traceflops.table import BoolArray, IntArray, codes, groups, names
from traceflops.timeline import Intervals, Window
from traceflops.units import kernel_name
from traceflops.windows import Prepared

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
class Spans:
    """The stretches of chosen windows: from where to where, as nodes and times before these begin.

    `last` is -1 where a stretch ends with the last work of its device.
    """

    device: IntArray
    first: IntArray
    before_ns: IntArray
    last: IntArray
    after_ns: IntArray


def spans_of(
    prepared: Prepared, graph: RecordedGraph, windows: Mapping[int, tuple[Window, ...]]
) -> Spans:
    """Return the stretches of windows that follow each other."""
    rows = []
    for device, several in windows.items():
        account = prepared.accounts[device]
        for start, end in _stretches(several):
            first, last = np.searchsorted(account.rows.start_ns, [start, end]).tolist()
            count = len(account.rows.row)
            at, to = (
                int(graph.first_of_row[account.rows.row[place]]) if place < count else -1
                for place in (first, last)
            )
            ahead, behind = (
                int(account.rows.start_ns[place]) - time if place < count else 0
                for place, time in ((first, start), (last, end))
            )
            rows.append((device, at, ahead, to, behind))
    return Spans(*np.array(rows, dtype=np.int64).reshape(-1, 5).T)


def _stretches(windows: tuple[Window, ...]) -> Iterator[tuple[int, int]]:
    used = Intervals.of(
        np.array([one.start_ns for one in windows if one.used], dtype=np.int64),
        np.array([one.end_ns for one in windows if one.used], dtype=np.int64),
    )
    yield from zip(used.start_ns.tolist(), used.end_ns.tolist(), strict=True)


def bounds(
    graph: RecordedGraph, spans: Spans, world: World, time_ns: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Return when each stretch begins and ends in a replay, and the node that it ends before."""
    begun = time_ns - world.dur_ns
    start = begun[spans.first] - spans.before_ns
    last = spans.last.copy()
    ends = np.empty(len(last), dtype=np.int64)
    for place in range(len(last)):
        if last[place] >= 0:
            ends[place] = begun[last[place]] - spans.after_ns[place]
        else:
            mine = np.flatnonzero(graph.nodes.device == spans.device[place])
            last[place] = mine[np.argmax(time_ns[mine])]
            ends[place] = time_ns[last[place]]
    return start, ends, last


def path(graph: RecordedGraph, spans: Spans, world: World, time_ns: IntArray) -> Pieces:
    """Return the pieces of the critical paths of all stretches, the last first."""
    edge = graph.decisive(world, time_ns)
    source = np.append(graph.edges.source, -1)[edge]
    kind = np.append(graph.edges.kind, DELAY)[edge]
    before, times = source.tolist(), time_ns.tolist()
    start, end, last = bounds(graph, spans, world, time_ns)
    found = [Pieces.of([], [], [], [])]
    for begin, over, node in zip(start.tolist(), end.tolist(), last.tolist(), strict=True):
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
    found = culprits_of(parts, prepared.trace) if len(parts.start_ns) else None
    culprits = found.culprits if found is not None else ()
    known = sum(one.idle_ns for one in culprits) + (found.unexplained_ns if found else 0)
    given = 0
    for one in culprits:
        ns = one.idle_ns * total // known
        given += ns
        yield (one.kind, one.label), ns
    yield ("host_unrecorded", "(others)"), total - given


def _thread_parts(
    graph: RecordedGraph, pieces: Pieces, without: Mapping[int, Intervals]
) -> GapParts:
    """Return the recorded stretches of threads, of which the last node of each tells the call."""
    nodes = graph.nodes
    thread = nodes.thread[pieces.node]
    known = np.flatnonzero(nodes.call >= 0)
    of_thread = dict(zip(nodes.thread[known].tolist(), nodes.call[known].tolist(), strict=True))
    columns: list[tuple[IntArray, IntArray, int]] = []
    for one, mine in groups(thread):
        end = nodes.at_ns[pieces.node[mine]]
        start = np.maximum(nodes.at_ns[pieces.source[mine]], end - pieces.ns[mine])
        spans = Intervals.of(start, end).subtract(without.get(one, Intervals.empty()))
        if one in of_thread:
            columns.append((spans.start_ns, spans.end_ns, of_thread[one]))
    empty = np.empty(0, dtype=np.int64)
    start = np.concatenate([empty, *(one[0] for one in columns)])
    end = np.concatenate([empty, *(one[1] for one in columns)])
    call = np.repeat([one[2] for one in columns] or [0], [len(one[0]) for one in columns] or [0])
    none = np.full(len(start), -1, dtype=np.int64)
    return GapParts(start, end, start, end, none, call, end, end, 0 * end)
