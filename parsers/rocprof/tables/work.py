"""The timeline in rocprof's CSV: dispatches, copies, launches of graphs, API calls, ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from traceflops.parsers.io import Cut
from traceflops.parsers.rocprof.agents import Agent
from traceflops.parsers.rocprof.copies import (
    GPU,
    HOST,
    UNKNOWN,
    ends_of,
    ways_between,
    ways_named,
)
from traceflops.parsers.rocprof.tables.parts import ProcessPart
from traceflops.parsers.shared import (
    UNNAMED,
    UNNAMED_COPY,
    UNNAMED_KERNEL,
    WAYS,
    Calls,
    Copies,
    Graphs,
    Kernels,
    Marks,
    Overheads,
    add_queueing,
    blocks_of,
    chosen,
    spans,
)
from traceflops.table import ABSENT, Array, BoolArray, IntArray, Names

_AXES: Final = ("x", "y", "z")
_MARK_DOMAINS: Final = ("MARKER", "ROCTX")
_KINDS: Final = {None: UNKNOWN, False: HOST, True: GPU}
"""What an end of a copy is, by whether its agent is a GPU."""


def add_kernels(cut: Cut, part: ProcessPart) -> None:
    """Add dispatches, and the moments at which they were queued where the file has these."""
    cut = timed_rows(cut, part)
    grid, block = _axes(cut, "grid"), _axes(cut, "block")
    is_queued = cut.has("dispatched")
    correlation = cut["dispatch"] if is_queued else ids(cut, "correlation")
    Kernels(
        rows=cut,
        device=cut.codes("agent", part.agents, ""),
        stream=cut["queue"],
        name=cut.codes("kernel", part["activities"].names["name"], UNNAMED_KERNEL),
        correlation=correlation,
        graph=ids(cut, "graph"),
        graph_node=ids(cut, "graph_node"),
        grid=ABSENT if grid is None or block is None else blocks_of(grid, block),
        block=ABSENT if block is None else block,
        registers_per_thread=cut["registers"],
        shared_memory_bytes=cut["shared"],
    ).add_to(part)
    if is_queued:
        queued = cut["dispatched"]
        known = queued >= 0
        add_queueing(part, queued[known], cut["thread"][known], correlation[known], ABSENT)


def add_copies(cut: Cut, part: ProcessPart, named: str = "direction") -> None:
    """Add copies by the texts of their ends: which of them is a GPU is not known yet."""
    cut = timed_rows(cut, part)
    if not cut.count:
        return
    names, texts = part["copies"].names, Names()
    code = cut.codes(named, texts, "")
    kinds = ["memset" if "fill" in text.lower() else "memcpy" for text in texts]
    Copies(
        rows=cut,
        kind=names["kind"].codes(kinds)[code],
        name=cut.codes(named, names["name"], UNNAMED_COPY),
        correlation=ids(cut, "correlation"),
        graph=ids(cut, "graph"),
        graph_node=ids(cut, "graph_node"),
        way=ways_named(texts)[code],
    ).add_to(part, "copies")
    part.ends.append((cut.codes("source", part.agents, ""), cut.codes("target", part.agents, "")))


def add_graphs(cut: Cut, part: ProcessPart) -> None:
    """Add launches of graphs; those whose kernels were recorded are left out later."""
    cut = timed_rows(cut, part)
    graphs, place = np.unique(cut["graph"], return_inverse=True)
    labels = [f"graph {'?' if graph == ABSENT else graph}" for graph in graphs.tolist()]
    Graphs(
        rows=cut,
        device=cut.codes("agent", part.agents, ""),
        stream=cut["queue"],
        name=part["graphs"].names["name"].codes(labels)[place],
        correlation=ids(cut, "correlation"),
        graph=cut["graph"],
    ).add_to(part, "graphs")


def add_operations(cut: Cut, part: ProcessPart) -> None:
    """Add what rocprofv2 calls operations: dispatches and copies; barriers are no work."""
    names = Names()
    operation = cut.codes("operation", names, "")
    kinds = np.array([_operation(name) for name in names], dtype=np.int8)[operation]
    add_kernels(cut.only(kinds == 0), part)
    add_copies(cut.only(kinds == 1), part, named="operation")
    part.file.events["barriers"] += int((kinds == 2).sum())


def _operation(name: str) -> int:
    words = name.lower()
    if "copy" in words or "fill" in words:
        return 1
    return 2 if "barrier" in words or "marker" in words else 0


def timed_rows(cut: Cut, part: ProcessPart) -> Cut:
    """Return the rows that have a time; their stretch counts as that of the process."""
    is_time, start, dur = spans(cut["start"], cut["end"], part.file.odd)
    part.stretch.cover(start)
    kept = cut.only(is_time)
    return Cut(kept.count, {**kept.columns, "start_ns": start, "dur_ns": dur})


def ids(cut: Cut, role: str) -> IntArray:
    """Return ids, ABSENT where they are 0, which stands for none."""
    return np.where(cut[role] == 0, ABSENT, cut[role])


def _axes(cut: Cut, what: str) -> IntArray | None:
    """Return the three sizes of each launch; None where the file has only their product."""
    if not all(cut.has(f"{what}_{axis}") for axis in _AXES):
        return None
    return np.stack([cut[f"{what}_{axis}"] for axis in _AXES], axis=1)


def resolve_copies(part: ProcessPart, agents: Sequence[Agent], devices: Array) -> int:
    """Give the copies of a part their device and way; return how many were left out.

    A copy belongs to its GPU, the target's if both ends are GPUs; one within the host is no work of
    a device. `agents` and `devices` are by the texts of agents, the last device for none.
    """
    table = part["copies"]
    if not table.count:
        return 0
    kinds = np.array([*(_KINDS[agent.is_gpu] for agent in agents), UNKNOWN])
    for (count, columns), (source, target) in zip(table.pieces, part.ends, strict=True):
        # No copy of these has a direction but that of its name: codes are places in WAYS.
        named = np.broadcast_to(columns["direction"], count).astype(np.int64)
        ends = (
            np.where(kinds[end] == UNKNOWN, by_way, kinds[end])
            for end, by_way in zip((source, target), ends_of(named), strict=True)
        )
        first, last = ends
        way = ways_between(named, first, last, devices[source] != devices[target])
        from_gpu = (last != GPU) & (first == GPU)
        columns["device"] = np.where(from_gpu, devices[source], devices[target])
        columns["direction"] = way.astype(np.int32)
    on_host = table.column("direction") == WAYS.index("HtoH")
    part.tables["copies"] = chosen(table, ~on_host)
    return int(on_host.sum())


def add_calls(cut: Cut, part: ProcessPart) -> None:
    """Add API calls, and the ranges and marks that stand among them."""
    domains = Names()
    domain = cut.codes("domain", domains, "API")
    counts = np.bincount(domain, minlength=len(domains)).tolist()
    part.file.domains.update(dict(zip(domains, counts, strict=True)))
    cut = timed_rows(Cut(cut.count, {**cut.columns, "domain code": domain}), part)
    is_mark = np.array([name.upper().startswith(_MARK_DOMAINS) for name in domains])
    is_mark = is_mark[cut["domain code"]]
    if not is_mark.all():
        some, names = cut.only(~is_mark), part["calls"].names
        Calls(
            rows=some,
            thread=some["thread"],
            name=some.codes("function", names["name"], UNNAMED),
            correlation=ids(some, "correlation"),
            api=names["api"].codes(map(api_of, domains))[some["domain code"]],
        ).add_to(part)
    _add_marks(cut.only(is_mark), part)


def api_of(domain: str) -> str:
    """Return hip of HIP_RUNTIME_API_EXT."""
    return domain.lower().split("_")[0] or "unknown"


def _add_marks(cut: Cut, part: ProcessPart) -> None:
    """Add ranges and instants. Thread 0 stands for no thread."""
    if cut.count:
        role = "function" if cut.has("function") else "message"
        name = cut.codes(role, part["marks"].names["name"], UNNAMED)
        Marks(rows=cut, thread=ids(cut, "thread"), name=name).add_to(part)


def add_scratch(cut: Cut, part: ProcessPart) -> None:
    """Add the making of scratch memory, for which a queue waits, as overhead of the device."""
    cut = timed_rows(cut, part)
    Overheads(
        rows=cut,
        thread=ids(cut, "thread"),
        device=cut.codes("agent", part.agents, ""),
        stream=cut["queue"],
        name=cut.codes("operation", part["marks"].names["name"], UNNAMED),
    ).add_to(part)


def add_pushes(cut: Cut, part: ProcessPart) -> None:
    """Put aside the beginnings and ends of ranges, as rocprofv2 writes them, a row each."""
    known = cut["start"] >= 0
    part.file.odd["no-time"] += int((~known).sum())
    part.pushes.append(cut.only(known))


def pair_pushes(part: ProcessPart) -> None:
    """Add the ranges and marks of the rows put aside, when all are known.

    Rows of one id belong together: one with a message begins a range, the next without one or with
    the same ends it. A message that nothing ends is a mark.
    """
    if not part.pushes:
        return
    names = part["marks"].names["name"]
    message = np.concatenate([cut.codes("message", names) for cut in part.pushes])
    time, marker, thread = (
        np.concatenate([cut[role] for cut in part.pushes]) for role in ("start", "marker", "thread")
    )
    order = np.lexsort((time, marker))
    message, time = message[order], time[order]
    begins, ends = _ranges(marker[order], message)
    part.file.odd["unpaired"] += int(((message < 0) & ~ends).sum())
    first = np.flatnonzero((message >= 0) & ~ends)
    dur = np.where(begins, np.append(time[1:], 0) - time, 0)[first]
    part.stretch.cover(time[first])
    columns = {"start_ns": time[first], "dur_ns": dur, "thread": thread[order][first]}
    rows = Cut(len(first), columns)
    Marks(rows=rows, thread=ids(rows, "thread"), name=message[first]).add_to(part)
    part.pushes.clear()


def _ranges(marker: IntArray, message: Array) -> tuple[BoolArray, BoolArray]:
    """Return which rows, in the order of ids and times, begin a range that the next row ends."""
    count = len(marker)
    follows = np.zeros(count, dtype=np.bool_)
    if count < 2:
        return follows, follows.copy()
    same_id = marker[1:] == marker[:-1]
    closes = same_id & (message[:-1] >= 0) & (message[1:] < 0)
    again = same_id & (message[:-1] >= 0) & (message[1:] == message[:-1])
    # In a row of equal messages every other one begins a range, unless the last is ended by a
    # row without message.
    place = np.arange(count)
    run_start = np.maximum.accumulate(np.where(np.append(True, ~again), place, 0))
    follows[:-1] = again & ((place - run_start)[:-1] % 2 == 0)
    free = ~np.append(False, follows[:-1])
    follows[:-1] |= closes & free[:-1]
    return follows, np.append(False, follows[:-1])
