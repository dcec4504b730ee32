"""The timeline in rocprof's CSV: dispatches, copies, launches of graphs, API calls, ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from traceflops.parsers.io.csv_cells import Cells
from traceflops.parsers.rocprof import copies
from traceflops.parsers.rocprof.agents import Agent
from traceflops.parsers.rocprof.tables.parts import ProcessPart
from traceflops.parsers.shared import sinks
from traceflops.parsers.shared.sanity_checks import spans
from traceflops.parsers.shared.trace_builder import chosen
from traceflops.table.columns import ABSENT, Array, IntArray, Names, count_true

_KINDS: Final = {None: copies.UNKNOWN, False: copies.HOST, True: copies.GPU}
"""The kind of a copy's source or target, by `is_gpu` of the agent."""


def add_kernels(rows: Cells, part: ProcessPart) -> None:
    """Add dispatches, and the times at which they were queued if the file has them."""
    if rows.has("dispatch"):
        part.dispatches.append(rows["dispatch"])
    rows = timed_rows(rows, part)
    grid, block = _axes(rows, "grid"), _axes(rows, "block")
    is_queued = rows.has("dispatched")
    # Only rocprof v1 has times of queueing; it links work by the number of the dispatch.
    correlation = rows["dispatch"] if is_queued else ids(rows, "correlation")
    sinks.add_work(
        part,
        rows,
        "kernel",
        device=rows.codes("agent", part.agents, ""),
        stream=rows["queue"],
        name=rows.codes("kernel", part["activities"].names["name"], sinks.UNNAMED_KERNEL),
        correlation=correlation,
        graph=ids(rows, "graph"),
        graph_node=ids(rows, "graph_node"),
        grid=ABSENT if grid is None or block is None else sinks.blocks_of(grid, block),
        block=ABSENT if block is None else block,
        registers_per_thread=rows["registers"],
        shared_memory_bytes=rows["shared"],
        scratch_bytes=rows["private"],
    )
    if is_queued:
        queued = rows["dispatched"]
        has_time = queued >= 0
        if rows.has("completed"):
            is_early = (rows["completed"] >= 0) & (rows["completed"] < rows["end"])
            # Where most work completes before it ends, a tool merged runs: both are of another run.
            has_time &= 2 * is_early.sum() <= len(is_early)
        thread, launch = rows["thread"][has_time], correlation[has_time]
        sinks.add_queueing(part, queued[has_time], thread, launch, ABSENT)


def add_copies(rows: Cells, part: ProcessPart, named: str = "direction") -> None:
    """Add copies and fills, named by column `named`; `resolve_copies` sets their devices later."""
    rows = timed_rows(rows, part)
    if not rows.count:
        return
    names, texts = part["copies"].names, Names()
    text_code = rows.codes(named, texts, "")
    kinds = ["memset" if "fill" in text.lower() else "memcpy" for text in texts]
    sinks.add_work(
        part,
        rows,
        names["kind"].codes(kinds)[text_code],
        name=rows.codes(named, names["name"], sinks.UNNAMED_COPY),
        correlation=ids(rows, "correlation"),
        graph=ids(rows, "graph"),
        graph_node=ids(rows, "graph_node"),
        direction=copies.directions_named(texts)[text_code],
        into="copies",
    )
    part.ends.append((rows.codes("source", part.agents, ""), rows.codes("target", part.agents, "")))


def add_graphs(rows: Cells, part: ProcessPart) -> None:
    """Add launches of graphs; `Assembly` later leaves out those whose kernels were recorded."""
    rows = timed_rows(rows, part)
    graphs, inverse = np.unique(rows["graph"], return_inverse=True)
    labels = [f"graph {'?' if graph == ABSENT else graph}" for graph in graphs.tolist()]
    sinks.add_work(
        part,
        rows,
        "graph",
        device=rows.codes("agent", part.agents, ""),
        stream=rows["queue"],
        name=part["graphs"].names["name"].codes(labels)[inverse],
        correlation=ids(rows, "correlation"),
        graph=rows["graph"],
        into="graphs",
    )


def add_operations(rows: Cells, part: ProcessPart) -> None:
    """Add rocprofv2's operations: dispatches and copies. Barriers are no work: only counted."""
    names = Names()
    operation = rows.codes("operation", names, "")
    kinds = []
    for name in map(str.lower, names):
        is_barrier = "barrier" in name or "marker" in name
        is_copy = "copy" in name or "fill" in name
        kinds.append("copy" if is_copy else "barrier" if is_barrier else "kernel")
    kind = np.array(kinds, np.str_)[operation]
    add_kernels(rows.only(kind == "kernel"), part)
    add_copies(rows.only(kind == "copy"), part, named="operation")
    part.file.events["barriers"] += count_true(kind == "barrier")


def timed_rows(rows: Cells, part: ProcessPart) -> Cells:
    """Return the rows with a valid time, with `start_ns` and `dur_ns`; widen the part's stretch."""
    is_time, start, dur = spans(rows["start"], rows["end"], part.file.odd)
    part.stretch.cover(start)
    kept = rows.only(is_time)
    return Cells(kept.count, {**kept.columns, "start_ns": start, "dur_ns": dur})


def ids(rows: Cells, role: str) -> IntArray:
    """Return a column of ids with ABSENT in place of 0, which stands for no id."""
    return np.where(rows[role] == 0, ABSENT, rows[role])


def _axes(rows: Cells, what: str) -> IntArray | None:
    """Return the sizes of "grid" or "block" by axis, (rows, 3); None if columns are missing."""
    columns = [f"{what}_{axis}" for axis in "xyz"]
    has_all = all(map(rows.has, columns))
    return np.stack([rows[column] for column in columns], axis=1) if has_all else None


def resolve_copies(part: ProcessPart, agents: Sequence[Agent], devices: Array) -> int:
    """Set device and direction of the copies of a part, in place; drop copies within the host.

    Return how many were dropped. The device is the GPU among source and target, the target if both
    are GPUs. The source and target of a copy are indices in `agents` and `devices`, or -1 if the
    file does not name them; the last item of `devices`, ABSENT, is for -1.
    """
    table = part["copies"]
    if not table.count:
        return 0
    kind_of_agent = np.array([*(_KINDS[agent.is_gpu] for agent in agents), copies.UNKNOWN])
    # The name of each copy has told its direction, as an index in DIRECTIONS. It implies the kinds
    # of source and target that agents do not tell.
    named = table.column("direction").astype(np.int64)
    implied_source, implied_target = copies.ends_of(named)
    source, target = (np.concatenate(texts) for texts in zip(*part.ends, strict=True))
    source_kind, target_kind = kind_of_agent[source], kind_of_agent[target]
    source_kind = np.where(source_kind == copies.UNKNOWN, implied_source, source_kind)
    target_kind = np.where(target_kind == copies.UNKNOWN, implied_target, target_kind)
    ends_differ = devices[source] != devices[target]
    direction = copies.directions_between(named, source_kind, target_kind, ends_differ)
    only_source_is_gpu = (source_kind == copies.GPU) & (target_kind != copies.GPU)
    table.replace("device", np.where(only_source_is_gpu, devices[source], devices[target]))
    table.replace("direction", direction.astype(np.int32))
    on_host = table.column("direction") == sinks.DIRECTIONS.index("HtoH")
    part.tables["copies"] = chosen(table, ~on_host)
    return count_true(on_host)


def add_calls(rows: Cells, part: ProcessPart) -> None:
    """Add API calls, and ranges and marks (by domain), which are in the same table."""
    domains = Names()
    domain = rows.codes("domain", domains, "API")
    counts = np.bincount(domain, minlength=len(domains)).tolist()
    part.file.domains.update(dict(zip(domains, counts, strict=True)))
    # `timed_rows` drops rows without a time: as a column, the domain code is dropped with its row.
    rows = timed_rows(Cells(rows.count, {**rows.columns, "domain code": domain}), part)
    has_marks = np.array([name.upper().startswith(("MARKER", "ROCTX")) for name in domains])
    is_mark = has_marks[rows["domain code"]]
    if not is_mark.all():
        calls, names = rows.only(~is_mark), part["calls"].names
        sinks.add_calls(
            part,
            calls,
            thread=calls["thread"],
            name=calls.codes("function", names["name"], sinks.UNNAMED),
            correlation=ids(calls, "correlation"),
            api=names["api"].codes(map(api_of, domains))[calls["domain code"]],
        )
    marks = rows.only(is_mark)
    if marks.count:
        role = "function" if marks.has("function") else "message"  # the column with their text
        name = marks.codes(role, part["marks"].names["name"], sinks.UNNAMED)
        sinks.add_marks(part, marks, thread=ids(marks, "thread"), name=name)


def api_of(domain: str) -> str:
    """Return the API of a domain: "hip" for HIP_RUNTIME_API_EXT."""
    return domain.lower().split("_")[0] or "unknown"


def add_scratch(rows: Cells, part: ProcessPart) -> None:
    """Add allocations of scratch memory, for which a queue waits, as overhead of the device."""
    rows = timed_rows(rows, part)
    sinks.add_overheads(
        part,
        rows,
        thread=ids(rows, "thread"),
        device=rows.codes("agent", part.agents, ""),
        stream=rows["queue"],
        name=rows.codes("operation", part["marks"].names["name"], sinks.UNNAMED),
    )


def add_pushes(rows: Cells, part: ProcessPart) -> None:
    """Keep the rows of beginnings and ends of ranges (rocprofv2) until the whole file is read."""
    has_time = rows["start"] >= 0
    part.file.odd["no-time"] += count_true(~has_time)
    part.pushes.append(rows.only(has_time))


def pair_pushes(part: ProcessPart) -> None:
    """Add ranges and marks from the rows kept by `add_pushes`, and drop these rows.

    Two successive rows with the same marker id are a range if the first has a message, and the
    second has none or the same message. Other rows with a message are marks.
    """
    if not part.pushes:
        return
    names = part["marks"].names["name"]
    message = np.concatenate([rows.codes("message", names) for rows in part.pushes])
    time, marker, thread = (
        np.concatenate([rows[role] for rows in part.pushes])
        for role in ("start", "marker", "thread")
    )
    order = np.lexsort((time, marker))
    message, time, marker = message[order], time[order], marker[order]
    begins = np.zeros(len(order), np.bool_)  # which rows begin a range; the next row ends it
    if len(order) > 1:
        # Each row but the last can begin a range, if the next row has its marker id and either no
        # message or the same message.
        can_begin = (marker[1:] == marker[:-1]) & (message[:-1] >= 0)
        no_message_next = can_begin & (message[1:] < 0)
        same_message_next = can_begin & (message[1:] == message[:-1])
        # Of successive equal messages the first, third, ... begin a range.
        row = np.arange(len(order))
        is_first = np.append(True, ~same_message_next)
        first_row = np.maximum.accumulate(np.where(is_first, row, 0))
        begins[:-1] = same_message_next & ((row - first_row)[:-1] % 2 == 0)
        # A row before one without a message begins a range, too, unless it ends one itself.
        ends_range = np.append(False, begins[:-1])
        begins[:-1] |= no_message_next & ~ends_range[:-1]
    ends = np.append(False, begins[:-1])
    part.file.odd["unpaired"] += count_true((message < 0) & ~ends)
    rows = np.flatnonzero((message >= 0) & ~ends)
    dur_ns = np.where(begins, np.append(time[1:], 0) - time, 0)[rows]
    part.stretch.cover(time[rows])
    columns = {"start_ns": time[rows], "dur_ns": dur_ns, "thread": thread[order][rows]}
    marks = Cells(len(rows), columns)
    sinks.add_marks(part, marks, thread=ids(marks, "thread"), name=message[rows])
    part.pushes.clear()
