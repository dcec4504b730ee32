"""Device work in rocprof's CSV: dispatches, copies, launches of graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from traceflops.parsers.rocprof.copies import (
    GPU,
    HOST,
    UNKNOWN,
    ends_of,
    ways_between,
    ways_named,
)
from traceflops.parsers.rocprof.tables.agents import Agent
from traceflops.parsers.shared import (
    UNNAMED_COPY,
    UNNAMED_KERNEL,
    WAYS,
    Copies,
    Cut,
    Graphs,
    Kernels,
    ProcessPart,
    Tally,
    add_queueing,
    blocks_of,
    chosen,
    compact,
)
from traceflops.table import ABSENT, Array, IntArray, Names

_AXES: Final = ("x", "y", "z")


def add_kernels(cut: Cut, part: ProcessPart, tally: Tally) -> None:
    """Add dispatches, and the moments at which they were queued where the file has these."""
    cut = timed_rows(cut, part, tally)
    grid, block = _axes(cut, "grid"), _axes(cut, "block")
    is_queued = cut.has("dispatched")
    correlation = cut["dispatch"] if is_queued else ids(cut, "correlation")
    Kernels(
        rows=cut,
        device=compact(cut.codes("agent", part.agents, "")),
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


def add_copies(cut: Cut, part: ProcessPart, tally: Tally, named: str = "direction") -> None:
    """Add copies by the texts of their ends: which of them is a GPU is not known yet."""
    cut = timed_rows(cut, part, tally)
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


def add_graphs(cut: Cut, part: ProcessPart, tally: Tally) -> None:
    """Add launches of graphs; those whose kernels were recorded are left out later."""
    cut = timed_rows(cut, part, tally)
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


def add_operations(cut: Cut, part: ProcessPart, tally: Tally) -> None:
    """Add what rocprofv2 calls operations: dispatches and copies; barriers are no work."""
    names = Names()
    operation = cut.codes("operation", names, "")
    kinds = np.array([_operation(name) for name in names], dtype=np.int8)[operation]
    add_kernels(cut.only(kinds == 0), part, tally)
    add_copies(cut.only(kinds == 1), part, tally, named="operation")
    tally.events["barriers"] += int((kinds == 2).sum())


def _operation(name: str) -> int:
    words = name.lower()
    if "copy" in words or "fill" in words:
        return 1
    return 2 if "barrier" in words or "marker" in words else 0


def timed_rows(cut: Cut, part: ProcessPart, tally: Tally) -> Cut:
    """Return the rows that have a time; their stretch counts as that of the process."""
    cut = cut.timed(tally.odd)
    part.cover(cut["start_ns"])
    return cut


def ids(cut: Cut, role: str) -> IntArray:
    """Return ids, ABSENT where they are 0, which stands for none."""
    return np.where(cut[role] == 0, ABSENT, cut[role])


def _axes(cut: Cut, what: str) -> IntArray | None:
    """Return the three sizes of each launch; None where the file has only their product."""
    if not all(cut.has(f"{what}_{axis}") for axis in _AXES):
        return None
    return np.stack([cut[f"{what}_{axis}"] for axis in _AXES], axis=1)


# Which device a copy belongs to, and which way it went, by what its ends are.


_KINDS: Final = {None: UNKNOWN, False: HOST, True: GPU}


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
