"""The critical path of the chosen windows: from their end back along what each node waited for.

The pieces of the path (GPU work, time of a thread, lags) add up exactly to the time of the windows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct

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
from traceflops.replay.spans import Spans
from traceflops.replay.stretches import NOWHERE, Stretches, same_of_all
from traceflops.table.columns import (
    ABSENT,
    Columns,
    IntArray,
    WholeArray,
    codes,
    names,
    narrow,
    numbers,
)
from traceflops.table.grouping import distinct, groups, runs, slices
from traceflops.table.nesting import taken
from traceflops.timeline.intervals import Intervals
from traceflops.timeline.start_up import GAPS
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
    """Pieces of a path: their time, their kind (of an edge, or WORK or DELAY), and their ends.

    `node` is the node at the end of a piece, `source` that which it waited for last, -1 for none.
    """

    kind: WholeArray
    node: WholeArray
    source: WholeArray
    ns: IntArray


class _Chains(Struct, frozen=True):
    """Nodes in rows, of which neighbours often wait for each other: a walk skips such chains.

    Per row, `node` is its node and `first_row` the first row of its chain, in which each node
    decides when the next one begins. Per node, `row` is its row and `source` what it waited for.
    """

    node: WholeArray
    first_row: WholeArray
    row: WholeArray
    source: WholeArray

    @classmethod
    def of(cls, in_order: WholeArray, source: WholeArray) -> _Chains:
        """Return the chains of a graph; `in_order` has nodes that may be neighbours."""
        has_row = np.zeros(len(source), dtype=np.bool_)
        has_row[in_order] = True
        node = np.append(in_order, np.flatnonzero(~has_row).astype(in_order.dtype))
        number = narrow(np.arange(len(node)))
        row = np.empty_like(number)
        row[node] = number
        goes_on = np.append(False, source[node[1:]] == node[:-1])[: len(node)]
        return cls(node, np.maximum.accumulate(np.where(goes_on, 0, number)), row, source)

    def back(self, node: int, begin_ns: int, time_ns: IntArray) -> WholeArray:
        """Return a node and what it waited for, backwards, as long as that ends after `begin_ns`.

        rows of nodes [2 3 5 | 4 7 8] with 8 after 7 after 3: from 8 back [8 7 3 2]
        """
        # Views of memory give Python's numbers one by one; lists would take five times the memory.
        node_of, first_row, row_of, source = (
            column.data for column in (self.node, self.first_row, self.row, self.source)
        )
        times, first, last = time_ns.data, list[int](), list[int]()
        while True:
            last.append(row := row_of[node])
            first.append(row := first_row[row])
            node = source[node_of[row]]
            if node < 0 or times[node] <= begin_ns:
                break
        # From the last row of each chain down to its first one: negated, these are runs upwards.
        rows = -runs(-np.array(last), 1 - np.array(first))[0]
        nodes: WholeArray = self.node[rows]
        early = np.flatnonzero(time_ns[nodes[1:]] <= begin_ns)
        return np.asarray(nodes[: early[0] + 1] if len(early) else nodes)


def path(graph: RecordedGraph, spans: Spans, world: World, time_ns: IntArray) -> Pieces:
    """Return the pieces of the critical paths of all spans; nodes end at `time_ns` in `world`."""
    edge = graph.decisive(world, time_ns)
    source = taken(graph.edges.source, edge)
    chains, pieces = _Chains.of(graph.in_order, source), list[Pieces]()
    for _, begin, end, node in spans.rows(graph, world, time_ns):
        until = end
        nodes = chains.back(node, begin, time_ns)
        for part in slices(len(nodes)):  # in slices, to save memory
            back = nodes[part]
            # Three pieces per node, backwards: its work, its delay, the lag of its decisive edge.
            work_begin = time_ns[back] - world.dur_ns[back]
            lag_begin = np.where(source[back] >= 0, time_ns[source[back]], begin)
            begins = np.stack([work_begin, work_begin - world.delay_ns[back], lag_begin], axis=1)
            # Cut at the span: each piece ends where the one before it begins.
            # end 9, begins [7 8 4]  ->  edges [9 7 7 4]: pieces of 2, 0 and 3 ns
            edges = np.append(until, np.maximum(begins.ravel(), begin))
            edges = np.minimum.accumulate(edges)
            until = int(edges[-1])
            kinds = np.empty((len(back), 3), dtype=np.int8)
            kinds[:, 0], kinds[:, 1] = WORK, DELAY
            kinds[:, 2] = taken(graph.edges.kind, edge[back], DELAY)
            node_of, ns = np.repeat(back, 3), edges[:-1] - edges[1:]
            columns = kinds.ravel(), narrow(node_of), source[node_of], ns
            pieces.append(Pieces(*columns).only(ns > 0))
    return Pieces.joined(pieces)


def parts_of(
    prepared: Prepared, graph: RecordedGraph, pieces: Pieces, without: Stretches = NOWHERE
) -> tuple[PathPart, ...]:
    """Return the parts of a path by component and name, the largest first.

    `without` is the time of each thread that edits removed.
    """
    is_work, is_host = pieces.kind == WORK, pieces.kind == HOST
    sums: Counter[tuple[str, str]] = Counter()
    for (component, name), ns in (
        *_of_work(prepared, graph, pieces.only(is_work)),
        *_of_host(prepared, graph, pieces.only(is_host), without),
        *_of_lags(prepared, graph, pieces.only(~is_work & ~is_host)),
    ):
        sums[component, name] += ns
    ordered = sorted(sums.items(), key=lambda part: (-part[1], part[0]))
    return tuple(PathPart(*key, ns) for key, ns in ordered if ns)


def _of_work(
    prepared: Prepared, graph: RecordedGraph, work: Pieces
) -> Iterator[tuple[tuple[str, str], int]]:
    """Yield ((component, name of the kernel), ns) of GPU work on a path."""
    activities, categorised = prepared.trace.activities, prepared.linked.categorised
    labels, top, row = names(activities["name"]), categorised.top(), graph.nodes.row[work.node]
    category = categorised.category[row]
    for code, rows in groups(codes(activities["name"])[row]):
        for number, same in groups(category[rows]):
            label = kernel_name(labels[code]) if code >= 0 else ""
            component = top[number] if number >= 0 else "other"
            yield (component, label), int(work.ns[rows[same]].sum())


def _of_lags(
    prepared: Prepared, graph: RecordedGraph, lags: Pieces
) -> Iterator[tuple[tuple[str, str], int]]:
    """Yield ((component, ""), ns) of lags and delays on a path."""
    # Pages that the host brings back by touching them: no call starts these.
    nodes, activities = graph.nodes, prepared.trace.activities
    # Nodes without an activity (row -1) take the False at the end.
    is_fault = np.append(on_demand(activities, "migration DtoH"), False)[nodes.row[lags.node]]
    is_fault &= np.isin(lags.kind, (VIRTUAL, DELAY))
    yield ("host_page_faults", ""), int(lags.ns[is_fault].sum())
    lags = lags.only(~is_fault)
    # After a long silence nothing recorded connects two threads.
    is_long = (lags.kind == HANDOVER) & (lags.ns > LONGEST_HANDOVER_NS)
    # Per lag, how long its thread starts up meanwhile: the thread that launches, or to which a long
    # silence leads. Lags of other kinds have 0.
    start_up_ns, begin = np.zeros_like(lags.ns), nodes.at_ns[lags.source]
    thread = nodes.thread[np.where(is_long, lags.node, lags.source)]
    called = np.flatnonzero(nodes.call >= 0)
    threads, first = np.unique(nodes.thread[called], return_index=True)
    start_up = _starts_up(prepared, threads, nodes.call[called[first]])
    row = np.flatnonzero((is_long | (lags.kind == LAUNCH)) & np.isin(thread, threads))
    start_up_ns[row] = start_up.length_within(thread[row], begin[row], begin[row] + lags.ns[row])
    yield (_START_UP, ""), int(start_up_ns.sum())
    yield (UNRECORDED, ""), int((lags.ns - start_up_ns)[is_long].sum())
    for kind, rows in groups(np.where(is_long, DELAY, lags.kind)):
        if kind != DELAY:
            yield (EDGE_NAMES[kind], ""), int((lags.ns - start_up_ns)[rows].sum())
    # Delays; work that follows from nothing recorded has no source.
    is_delay = lags.kind == DELAY
    is_unexplained = graph.is_unexplained[lags.node] | (lags.source < 0)
    yield (UNEXPLAINED, ""), int(lags.ns[is_delay & is_unexplained].sum())
    yield ("late_start", ""), int(lags.ns[is_delay & ~is_unexplained].sum())


def _starts_up(prepared: Prepared, thread: IntArray, call: IntArray) -> Stretches:
    """Return when threads start up, or when devices of their process are idle for start-up.

    Threads are distinct and in ascending order; `call` is any call of each.
    """
    calls, owner = prepared.trace.calls, numbers(prepared.trace.devices["process"])
    process, tid = (numbers(calls[name], ABSENT)[call] for name in ("process", "thread"))
    gaps = defaultdict[int, list[Intervals]](list)
    for device, account in prepared.accounts.items():
        by_kind = account.start_up_by_kind
        gaps[int(owner[device])] += [by_kind[kind] for kind in GAPS if kind in by_kind]
    # Left out are processes without start-up, and those whose clock differs from their devices'.
    start_up, stretches = prepared.linked.comparable_start_up, []
    for number, rows in groups(process):
        if number not in start_up:
            continue
        idle, by_thread = Intervals.empty().union(*gaps[number]), start_up[number].by_thread
        stretches.append(same_of_all(thread[rows], idle))
        stretches += [
            same_of_all(thread[row : row + 1], by_thread[name])
            for row, name in zip(rows.tolist(), tid[rows].tolist(), strict=True)
            if name in by_thread
        ]
    return NOWHERE.union(*stretches)


def _of_host(
    prepared: Prepared, graph: RecordedGraph, pieces: Pieces, without: Stretches
) -> Iterator[tuple[tuple[str, str], int]]:
    """Yield ((class, name), ns) of host time on a path, with the classes of idle time.

    All items add up to the time of `pieces`: recorded times are scaled to it, and the last item is
    the remainder. `without` is the time of each thread that edits removed.
    """
    # Cut the recorded time of each thread at its points (launches and waits), as idle time is: so a
    # long piece has none of these inside.
    at_ns = distinct(graph.nodes.at_ns[pieces.node])
    thread, last_call, spans = _of_threads(graph, pieces)
    left = spans.subtract(without)
    start_up = left.intersect(_starts_up(prepared, thread, last_call))
    left = left.subtract(start_up).cut(at_ns)
    start, end = left.start_ns, left.end_ns
    call = last_call[np.searchsorted(thread, left.thread)]
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
    times = Counter({(_START_UP, ""): start_up.length_ns})
    owner = numbers(prepared.trace.devices["process"])
    busy = defaultdict[int, Intervals](Intervals.empty)  # when any GPU works, by process
    for device, account in prepared.accounts.items():
        busy[int(owner[device])] = busy[int(owner[device])].union(account.timeline.busy)
    times += named_times(parts, prepared.trace, busy)
    total_ns, named_ns = int(pieces.ns.sum()), 0
    recorded_ns = left.length_ns + start_up.length_ns
    for key, part_ns in times.items() if recorded_ns else ():
        ns = part_ns * total_ns // recorded_ns
        named_ns += ns
        yield key, ns
    yield (UNRECORDED, "(others)"), total_ns - named_ns


def _of_threads(graph: RecordedGraph, pieces: Pieces) -> tuple[IntArray, IntArray, Stretches]:
    """Return the threads on a path that call the GPU, the last call of each, and their stretches.

    The stretches are the recorded times of their pieces on the path.
    """
    nodes = graph.nodes
    points = np.flatnonzero(nodes.call >= 0)[::-1]  # backwards: the first of a thread is its last
    threads, last = np.unique(nodes.thread[points], return_index=True)
    thread, end = nodes.thread[pieces.node], nodes.at_ns[pieces.node]
    start = np.maximum(nodes.at_ns[pieces.source], end - pieces.ns)
    rows = np.flatnonzero(np.isin(thread, threads))
    return threads, nodes.call[points[last]], Stretches.of(thread[rows], start[rows], end[rows])


def places_of(
    prepared: Prepared, graph: RecordedGraph, pieces: Pieces
) -> tuple[IntArray, dict[tuple[int, int], Intervals]]:
    """Return the rows of activities on a path, and when each (process, thread) is on it."""
    calls, host = prepared.trace.calls, pieces.only(pieces.kind == HOST)
    process, thread = (numbers(calls[name], ABSENT) for name in ("process", "thread"))
    threads, last_call, spans = _of_threads(graph, host)
    call_of = dict(zip(threads.tolist(), last_call.tolist(), strict=True))
    times = {
        (int(process[call_of[number]]), int(thread[call_of[number]])): own
        for number, own in spans.by_thread()
    }
    return distinct(graph.nodes.row[pieces.only(pieces.kind == WORK).node]), times
