"""Finds the captured launch of each kernel of a replayed graph in a recording of the capture.

A replay has one launch call for all of its kernels; only the capture shows what launched each of
them. The kernels of a replay and the captured launches of its graph are paired one to one: both
contain each kernel equally often, and on one stream in the same order. Captured launches do not
name streams, so in a graph of several streams only kernels whose instances all run on one stream
can be paired.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from traceflops.categories.kernel_names import same_kernels
from traceflops.devices.device_facts import shown
from traceflops.facts import Fact, fact
from traceflops.table.arrays import ABSENT, IntArray
from traceflops.table.builder import TableBuilder, with_numbers
from traceflops.table.columns import appended, codes, is_one_of, matching, names, numbers, take_rows
from traceflops.table.grouping import distinct, groups, without
from traceflops.table.links import Links, first_match, link
from traceflops.table.nesting import taken
from traceflops.table.patterns import GRAPH_LAUNCH, started
from traceflops.table.trace import note_of
from traceflops.timeline.account import LinkedTrace
from traceflops.windows.prepared import Replays

_MOST_FILES, _MOST_COUNTS = 3, 3
"""A note names at most so many files, and so many numbers of kernels of captured graphs."""
_BEGIN: Final = re.compile(r"(?:cuda|cu|hip)StreamBeginCapture")
_END: Final = re.compile(r"(?:cuda|cu|hip)StreamEndCapture")


class _Kernels(Struct, frozen=True):
    """Kernels of one graph in order: rows of activities, codes of their names, grid and block.

    Codes are equal for both recordings. `rank` is that of their process, None for several.
    `by_name` are the indices that sort the kernels by name; equal names stay in order.
    """

    row: IntArray
    name: IntArray
    sizes: pa.Table
    rank: int | None
    by_name: IntArray


def replays(timed: LinkedTrace, capture: LinkedTrace) -> Replays | None:
    """Pair kernels replayed in `timed` with launches in `capture`; None without either."""
    activities, call = timed.trace.activities, timed.links.call_of_activity
    timed_names, capture_names = same_kernels(  # a common code by code of each recording
        *(names(linked.trace.activities["name"]) for linked in (timed, capture))
    )
    # The kernels of each replay, in order of start.
    is_replay = started(timed.trace.calls, GRAPH_LAUNCH).astype(np.int64)
    is_kernel = is_one_of(activities["kind"], "kernel")
    rows = np.flatnonzero(is_kernel & (taken(is_replay, call, 0) > 0))
    rows = rows[np.argsort(numbers(activities["start_ns"])[rows], kind="stable")]
    replayed = [_kernels(timed, rows[of_call], timed_names) for _, of_call in groups(call[rows])]
    graphs = [graph for graph in _graphs(capture, capture_names) if len(graph.row)]
    if not replayed or not graphs:
        return None
    captured = np.full(activities.num_rows, -1, dtype=np.int64)  # per activity, its launch
    refused, paired = Counter[Fact](), 0
    for replay in replayed:
        stream = numbers(activities["stream"], ABSENT)[replay.row]
        graph = _fitting(replay, stream, graphs)
        if isinstance(graph, Fact):
            refused[graph] += len(replay.row)
            continue
        paired += 1
        # Kernels of one name have a known order only if all of them run on one stream.
        is_ordered = np.zeros(len(stream), dtype=np.bool_)
        for _, of_name in groups(replay.name):
            is_ordered[of_name] = len(distinct(stream[of_name])) == 1
        # Sorted by name, the kernels of both correspond. Replay [b a b] and graph [a b b]: kernels
        # 0, 1 and 2 of the replay have the launches 1, 0 and 2.
        launch = np.where(is_ordered[replay.by_name], graph.row[graph.by_name], -1)
        captured[replay.row[replay.by_name]] = launch
    # A note on the kernels that were paired, and one per reason for the others.
    notes, launches = [], captured[captured >= 0]
    if count := len(launches):
        process = distinct(numbers(capture.trace.activities["process"])[launches])
        file = capture.trace.processes["file"].to_pylist()
        files = tuple(shown(file[number]) for number in process)[:_MOST_FILES]
        notes.append(note_of("assumed", "replays-paired", count=count, replays=paired, files=files))
    for why, kernels in refused.items():
        notes.append(note_of("missing", "replays-not-paired", count=kernels, why=why))
    return Replays(_with_host(timed, capture, captured), captured, tuple(notes))


def _with_host(timed: LinkedTrace, capture: LinkedTrace, captured: IntArray) -> LinkedTrace:
    """Return `timed` with the host of the capture, linked to the kernels that it launched.

    The processes of the capture become further processes. `captured` is, per activity of `timed`,
    its launch as a row of activities of `capture`, or -1. Times of the two cannot be compared.
    """
    tables = dict(timed.trace.tables)
    for name in ("calls", "ops", "marks"):
        theirs = capture.trace.table(name)
        process = numbers(theirs["process"]) + timed.trace.processes.num_rows
        tables[name] = appended(timed.trace.table(name), with_numbers(theirs, "process", process))
    # The appended rows of calls and ops follow those of `timed`.
    calls, ops = timed.trace.calls.num_rows, timed.trace.ops.num_rows
    old, new = timed.links, capture.links
    call, op = taken(new.call_of_activity, captured), taken(new.op_of_activity, captured)
    op_of_new_call = np.where(new.op_of_call < 0, -1, new.op_of_call + ops)
    links = Links(
        call_of_activity=np.where(call >= 0, call + calls, old.call_of_activity),
        op_of_call=np.append(old.op_of_call, op_of_new_call),
        op_of_activity=np.where(op >= 0, op + ops, old.op_of_activity),
    )
    return replace(timed, trace=replace(timed.trace, tables=tables), links=links)


def created_nodes(linked: LinkedTrace) -> Replays | None:
    """Link the work of graph nodes to the creation of each node, as if this were its launch call.

    Then the operators and annotations around the creation own the work. None if no work is of a
    node whose creation was recorded. The result has no captured launches, only new links and a
    note.
    """
    trace, marks, activities = linked.trace, linked.trace.marks, linked.trace.activities
    creations = np.flatnonzero(is_one_of(marks["kind"], "graph_node"))
    process, node, start, thread, dur = (
        numbers(marks[column], ABSENT)[creations]
        for column in ("process", "correlation", "start_ns", "thread", "dur_ns")
    )
    of_work = (numbers(activities[column], ABSENT) for column in ("process", "graph_node"))
    creation = first_match(process, node, start, *of_work)
    is_of_node = creation >= 0
    if not is_of_node.any():
        return None
    # Append the creations to the calls, so that they can be launch calls.
    table = TableBuilder("calls")
    columns = {"process": process, "start_ns": start, "thread": thread, "dur_ns": dur}
    name, api = table.names["name"]["graph node"], table.names["api"]["runtime"]
    table.add(len(creations), name=name, api=api, **columns)
    calls = appended(trace.calls, table.finish())
    host = replace(trace, tables={**trace.tables, "calls": calls})
    # Link the new calls to the ops around them, and the work to the new calls.
    links, call = link(host), creation + trace.calls.num_rows
    op = taken(links.op_of_call, call)
    links = replace(
        links,
        call_of_activity=np.where(is_of_node, call, links.call_of_activity),
        op_of_activity=np.where(is_of_node, op, links.op_of_activity),
    )
    note = note_of("assumed", "graph-nodes", count=int(is_of_node.sum()))
    captured = np.full(len(creation), -1, dtype=np.int64)
    return Replays(replace(linked, trace=host, links=links), captured, (note,))


def _graphs(capture: LinkedTrace, name_of: IntArray) -> Iterator[_Kernels]:
    """Yield the captured kernel launches of each graph, in the order of the host.

    `name_of` is the common code of each name. If no call of a process begins a capture, all its
    launches are taken for one graph.
    """
    calls, activities = capture.trace.calls, capture.trace.activities
    call = capture.links.call_of_activity
    start, process = (numbers(calls[column]) for column in ("start_ns", "process"))
    dur, began = (numbers(activities[column]) for column in ("dur_ns", "start_ns"))
    # Kineto writes a captured launch as a kernel of length 0 at the start of its call.
    kernel = is_one_of(activities["kind"], "kernel")
    rows = np.flatnonzero(kernel & (dur == 0) & (call >= 0) & (began == taken(start, call, ABSENT)))
    rows = rows[np.argsort(began[rows], kind="stable")]
    begins, ends = (
        np.flatnonzero(matching(calls["name"], pattern.fullmatch)) for pattern in (_BEGIN, _END)
    )
    for number in without(process[call[rows]], process[begins]).tolist():
        yield _kernels(capture, rows[process[call[rows]] == number], name_of)
    for begin in begins.tolist():
        after = ends[(process[ends] == process[begin]) & (start[ends] > start[begin])]
        stop = start[after].min(initial=np.iinfo(np.int64).max)
        is_inside = (began[rows] > start[begin]) & (began[rows] < stop)
        is_inside &= process[call[rows]] == process[begin]
        yield _kernels(capture, rows[is_inside], name_of)


def _kernels(linked: LinkedTrace, rows: IntArray, name_of: IntArray) -> _Kernels:
    """Return the kernels in some rows of activities; `name_of` is as in `_graphs`."""
    activities = linked.trace.activities
    sizes = take_rows(activities.select(["grid", "block"]), rows)
    processes = distinct(numbers(activities["process"])[rows])
    ranks = {linked.trace.ranks[process] for process in processes}
    rank = ranks.pop() if len(ranks) == 1 else None
    name = name_of[codes(activities["name"])[rows]]
    return _Kernels(rows, name, sizes, rank, np.argsort(name, kind="stable"))


def _fitting(replay: _Kernels, stream: IntArray, graphs: Sequence[_Kernels]) -> _Kernels | Fact:
    """Return the captured graph that a replay runs, or the reason why it is unknown.

    Graphs are told apart by number and names of their kernels, by their order (on one stream), then
    by sizes, then by rank. `stream` is per kernel of the replay.
    """
    sized = [graph for graph in graphs if len(graph.row) == len(replay.row)]
    if not sized:
        counts = tuple(f"{len(graph.row):,}" for graph in graphs[:_MOST_COUNTS])
        return fact("not-paired.kernels", count=len(replay.row), captured=counts)
    replay_names = replay.name[replay.by_name]
    alike = [graph for graph in sized if np.array_equal(graph.name[graph.by_name], replay_names)]
    if not alike:
        first_other = int(np.flatnonzero(sized[0].name != replay.name)[0])
        return fact("not-paired.name", number=first_other + 1)
    if len(distinct(stream)) == 1:  # else the order of kernels is not known
        alike = [graph for graph in alike if np.array_equal(graph.name, replay.name)]
    if len(alike) > 1:  # e.g. graphs of several batch sizes
        alike = [graph for graph in alike if graph.sizes.equals(replay.sizes)]
    if len(alike) > 1:
        # If no rank agrees, all of them remain: the graph is unknown.
        alike = [graph for graph in alike if graph.rank == replay.rank] or alike
    if len(alike) != 1:
        return fact("not-paired.order")
    return alike[0]
