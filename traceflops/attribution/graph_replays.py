"""Which captured launch each kernel of a replayed graph is, by a recording of the capture.

A replay has one launch call for all of its kernels; what launched each of them only the capture
shows. The kernels of a replay and the captured launches of one graph are paired one to one: both
have each kernel equally often, and on one stream in the same order. On several streams, which
captured launches do not name, a kernel that runs on one of them has its own order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.categories import same_kernels
from traceflops.devices import shown
from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    Links,
    Note,
    TableBuilder,
    Trace,
    codes,
    distinct,
    first_match,
    groups,
    is_one_of,
    link,
    matching,
    names,
    numbers,
    taken,
    with_numbers,
)
from traceflops.timeline import LinkedTrace
from traceflops.units import several
from traceflops.windows import Replays, graph_launches

_MOST_FILES: Final = 3
_BEGIN: Final = re.compile(r"(?:cuda|cu|hip)StreamBeginCapture")
_END: Final = re.compile(r"(?:cuda|cu|hip)StreamEndCapture")


@dataclass(frozen=True, slots=True)
class _Kernels:
    """Kernels of one graph in order: rows of activities, names that both runs share, sizes."""

    row: IntArray
    name: IntArray
    sizes: pa.Table
    rank: int | None

    @property
    def sorted(self) -> IntArray:
        """Return the places by name, those of one name in order."""
        return np.argsort(self.name, kind="stable")


def has_replays(trace: Trace) -> bool:
    """Return whether a call of the trace replays a graph."""
    return bool(graph_launches(trace).any())


def replays(timed: LinkedTrace, capture: LinkedTrace) -> Replays | None:
    """Return which kernels of graph replays are which captured launches, None without either."""
    ours, theirs = same_kernels(
        *(names(linked.trace.activities["name"]) for linked in (timed, capture))
    )
    replayed = list(_replayed(timed, ours))
    graphs = [graph for graph in _graphs(capture, theirs) if len(graph.row)]
    if not replayed or not graphs:
        return None
    captured = np.full(timed.trace.activities.num_rows, -1, dtype=np.int64)
    refused: dict[str, int] = {}
    paired = 0
    for one in replayed:
        stream = numbers(timed.trace.activities["stream"], ABSENT)[one.row]
        fitting, why = _fitting(one, stream, graphs)
        if fitting is None:
            refused[why] = refused.get(why, 0) + len(one.row)
        else:
            paired, own = paired + 1, one.sorted
            captured[one.row[own]] = np.where(
                _on_one_stream(one.name, stream)[own], fitting.row[fitting.sorted], -1
            )
    host = _with_captured_host(timed, capture, captured)
    return Replays(host, captured, tuple(_notes(captured, paired, refused, capture.trace)))


def created_nodes(linked: LinkedTrace) -> Replays | None:
    """Return where nodes of graphs were made as what launched their work, None where none is known.

    The operators and annotations around its creation tell whose the work of a node is.
    """
    trace, marks, activities = linked.trace, linked.trace.marks, linked.trace.activities
    made = np.flatnonzero(is_one_of(marks["kind"], "graph_node"))
    process, node, start = (
        numbers(marks[column], ABSENT)[made] for column in ("process", "correlation", "start_ns")
    )
    asked = (numbers(activities[column], ABSENT) for column in ("process", "graph_node"))
    place = first_match(process, node, start, *asked)
    found = place >= 0
    if not found.any():
        return None
    calls = pa.concat_tables([trace.calls, _as_calls(marks.take(made))]).unify_dictionaries()
    host = replace(trace, tables={**trace.tables, "calls": calls.combine_chunks()})
    links, call = link(host), place + trace.calls.num_rows
    links = replace(
        links,
        call_of_activity=np.where(found, call, links.call_of_activity),
        op_of_activity=np.where(found, taken(links.op_of_call, call), links.op_of_activity),
    )
    text = (
        f"{several(int(found.sum()), 'operation')} of replayed graphs: operator and annotation are "
        "those around the creation of the graph node."
    )
    note = Note("assumed", "graph-nodes", text, int(found.sum()))
    none = np.full(len(place), -1, dtype=np.int64)
    return Replays(replace(linked, trace=host, links=links), none, (note,))


def _as_calls(marks: pa.Table) -> pa.Table:
    table = TableBuilder("calls")
    columns = ("process", "thread", "start_ns", "dur_ns")
    names_of = {"name": table.names["name"]["graph node"], "api": table.names["api"]["runtime"]}
    table.add(marks.num_rows, **{c: numbers(marks[c], ABSENT) for c in columns}, **names_of)
    return table.finish()


def _replayed(timed: LinkedTrace, name_of: IntArray) -> Iterator[_Kernels]:
    """Yield the kernels of each replay, in the order in which they began."""
    call = timed.links.call_of_activity
    is_replay = graph_launches(timed.trace)
    kernel = is_one_of(timed.trace.activities["kind"], "kernel")
    rows = np.flatnonzero(kernel & (taken(is_replay.astype(np.int64), call, 0) > 0))
    rows = rows[np.argsort(numbers(timed.trace.activities["start_ns"])[rows], kind="stable")]
    for _, at in groups(call[rows]):
        yield _kernels(timed, rows[at], name_of)


def _graphs(capture: LinkedTrace, name_of: IntArray) -> Iterator[_Kernels]:
    """Yield the launches of each graph, in order of the host.

    They are all of a process in which no call begins one.
    """
    calls, activities = capture.trace.calls, capture.trace.activities
    call = capture.links.call_of_activity
    start, process = (numbers(calls[column]) for column in ("start_ns", "process"))
    dur, began = (numbers(activities[column]) for column in ("dur_ns", "start_ns"))
    kernel = is_one_of(activities["kind"], "kernel")
    rows = np.flatnonzero(kernel & (dur == 0) & (call >= 0) & (began == taken(start, call, ABSENT)))
    rows = rows[np.argsort(began[rows], kind="stable")]
    begins, ends = (
        np.flatnonzero(matching(calls["name"], one.fullmatch)) for one in (_BEGIN, _END)
    )
    for whole in np.setdiff1d(process[call[rows]], process[begins]).tolist():
        yield _kernels(capture, rows[process[call[rows]] == whole], name_of)
    for begin in begins.tolist():
        after = ends[(process[ends] == process[begin]) & (start[ends] > start[begin])]
        stop = start[after].min(initial=np.iinfo(np.int64).max)
        mine = (process[call[rows]] == process[begin]) & (began[rows] > start[begin])
        yield _kernels(capture, rows[mine & (began[rows] < stop)], name_of)


def _kernels(linked: LinkedTrace, rows: IntArray, name_of: IntArray) -> _Kernels:
    activities = linked.trace.activities
    sizes = activities.select(["grid", "block"]).take(rows)
    ranks = {linked.trace.ranks[one] for one in distinct(numbers(activities["process"])[rows])}
    rank = ranks.pop() if len(ranks) == 1 else None
    return _Kernels(rows, name_of[codes(activities["name"])[rows]], sizes, rank)


def _on_one_stream(name: IntArray, stream: IntArray) -> BoolArray:
    """Return, per kernel, whether all of its name run on one stream."""
    found = np.zeros(len(name), dtype=np.bool_)
    for _, at in groups(name):
        found[at] = len(np.unique(stream[at])) == 1
    return found


def _fitting(
    one: _Kernels, stream: IntArray, graphs: Sequence[_Kernels]
) -> tuple[_Kernels | None, str]:
    """Return the graph that a replay is of, or else why there is none."""
    sized = [graph for graph in graphs if len(graph.row) == len(one.row)]
    if not sized:
        counts = ", ".join(f"{len(graph.row):,}" for graph in graphs[:3])
        return None, f"a replay has {len(one.row):,} kernels, the capture {counts}"
    alike = [g for g in sized if np.array_equal(g.name[g.sorted], one.name[one.sorted])]
    if not alike:
        at = int(np.flatnonzero(sized[0].name != one.name)[0])
        return None, f"kernel {at + 1:,} of a replay has another name in the capture"
    if len(np.unique(stream)) == 1:
        alike = [graph for graph in alike if np.array_equal(graph.name, one.name)]
    if len(alike) > 1:  # as those of several batch sizes
        alike = [graph for graph in alike if graph.sizes.equals(one.sizes)]
    if len(alike) > 1:
        alike = [graph for graph in alike if graph.rank == one.rank] or alike
    if len(alike) != 1:
        return None, "its kernels are in another order, or several captured graphs have them"
    return alike[0], ""


def _notes(
    captured: IntArray, count: int, refused: Mapping[str, int], capture: Trace
) -> Iterator[Note]:
    paired = int(np.count_nonzero(captured >= 0))
    if paired:
        process = numbers(capture.activities["process"])[captured[captured >= 0]]
        file = capture.processes["file"].to_pylist()
        taken_from = ", ".join([shown(file[one]) for one in distinct(process)][:_MOST_FILES])
        text = (
            f"{several(paired, 'kernel')} of {several(count, 'graph replay')} are paired one to "
            f"one with captured launches, which tell operator and module: {taken_from}."
        )
        yield Note("assumed", "replays-paired", text, paired)
    for why, kernels in refused.items():
        text = f"{several(kernels, 'kernel')} of graph replays match no capture: {why}."
        yield Note("missing", "replays-not-paired", text, kernels)


def _with_captured_host(
    timed: LinkedTrace, capture: LinkedTrace, captured: IntArray
) -> LinkedTrace:
    """Return the trace with the host of the capture, which launched the kernels of replays.

    It says what launched work, and nothing about time: the host of the capture ran earlier.
    """
    before = timed.trace.processes.num_rows
    tables = {
        name: _appended(timed.trace.table(name), capture.trace.table(name), before)
        for name in ("calls", "ops", "marks")
    }
    calls, ops = timed.trace.calls.num_rows, timed.trace.ops.num_rows
    ours, theirs = timed.links, capture.links
    links = Links(
        _shifted(ours.call_of_activity, taken(theirs.call_of_activity, captured), calls),
        np.append(ours.op_of_call, np.where(theirs.op_of_call < 0, -1, theirs.op_of_call + ops)),
        _shifted(ours.op_of_activity, taken(theirs.op_of_activity, captured), ops),
    )
    trace = replace(timed.trace, tables={**timed.trace.tables, **tables})
    return replace(timed, trace=trace, links=links)


def _appended(ours: pa.Table, theirs: pa.Table, before: int) -> pa.Table:
    moved = with_numbers(theirs, "process", numbers(theirs["process"]) + before)
    return pa.concat_tables([ours, moved]).unify_dictionaries().combine_chunks()


def _shifted(ours: IntArray, theirs: IntArray, by: int) -> IntArray:
    return np.where(theirs >= 0, theirs + by, ours)
