"""Dispatches, copies and graph launches of a rocpd database as activities."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from traceflops.parsers.io import Batch, Lookup, TextsById, Wanted, by_distinct
from traceflops.parsers.rocprof.copies import ways_between, ways_named
from traceflops.parsers.rocprof.rocpd.reading import RunReading
from traceflops.parsers.shared import (
    UNNAMED_COPY,
    UNNAMED_KERNEL,
    Copies,
    Graphs,
    Kernels,
    blocks_of,
    product_of,
    timed,
)
from traceflops.table import ABSENT, IntArray, distinct

_AXES: Final = ("x", "y", "z")
_GRID: Final = tuple(f"grid_size_{axis}" for axis in _AXES)
_BLOCK: Final = tuple(f"workgroup_size_{axis}" for axis in _AXES)
_GRAPH: Final = ("graph_exec_id", "graph_node_id")
_OF_DISPATCH: Final = (
    *("pid", "agent_id", "kernel_id", "queue_id", "start", "end", "group_segment_size"),
    *(*_GRID, *_BLOCK, *_GRAPH, "event_id"),
)
_OF_COPY: Final = (
    *("pid", "start", "end", "name_id", "src_agent_id", "dst_agent_id", "size"),
    *(*_GRAPH, "event_id"),
)
_OF_GRAPH: Final = (*("pid", "agent_id", "queue_id", "start", "end", *_GRAPH, "event_id"),)


@dataclass(slots=True)
class Dispatches:
    """What counters are joined to: the columns of all dispatches, piece by piece."""

    pieces: dict[str, list[IntArray]] = field(default_factory=dict)

    def add(self, **columns: IntArray) -> None:
        """Append a piece of each column."""
        for name, values in columns.items():
            self.pieces.setdefault(name, []).append(values)

    @property
    def count(self) -> int:
        """Return how many dispatches there are."""
        return len(self.column("event"))

    def column(self, name: str) -> IntArray:
        """Return a column."""
        return np.concatenate(self.pieces[name]) if name in self.pieces else np.empty(0, np.int64)


class KernelNames:
    """The kernels of a run by their ids: names and registers."""

    def __init__(self, reading: RunReading) -> None:
        wanted = Wanted(integers=("id", "arch_vgpr_count"), texts=("display_name", "kernel_name"))
        rows = reading.run.whole("info_kernel_symbol", wanted)
        pairs = zip(rows.texts["display_name"], rows.texts["kernel_name"], strict=True)
        self.names = TextsById(rows["id"], [shown or name for shown, name in pairs])
        registers = rows["arch_vgpr_count"]
        self.registers = Lookup(rows["id"], np.where(registers > 0, registers, ABSENT))


def read_dispatches(reading: RunReading, kernels: KernelNames, kept: Dispatches | None) -> None:
    """Add the dispatches; what counters need of them goes to `kept`."""
    name = kernels.names.coder(reading.gathered["activities"].names["name"], UNNAMED_KERNEL)
    columns = _OF_DISPATCH if kept is None else (*_OF_DISPATCH, "dispatch_id")
    for batch in reading.run.batches("kernel_dispatch", Wanted(integers=columns)):
        reading.counts["kernel_dispatch"] += batch.count
        rows = timed(batch, reading.odd)
        common = _common(reading, rows, rows["agent_id"])
        grid, block = _axes(rows, _GRID), _axes(rows, _BLOCK)
        Kernels(
            rows=rows,
            **common,
            stream=rows["queue_id"],
            name=name(rows["kernel_id"]),
            grid=blocks_of(grid, block),
            block=block,
            registers_per_thread=kernels.registers(rows["kernel_id"]),
            shared_memory_bytes=rows["group_segment_size"],
        ).add_to(reading.gathered)
        if kept is not None:
            kept.add(
                process=common["process"],
                device=common["device"],
                correlation=common["correlation"],
                kernel=rows["kernel_id"],
                dispatch=rows["dispatch_id"],
                event=rows["event_id"],
                threads=product_of(grid),
                block_threads=product_of(block),
            )


def read_copies(reading: RunReading) -> None:
    """Add the copies; one between two places of the host is no work of a device."""
    facts, names = reading.facts, reading.gathered["activities"].names["name"]
    name = facts.strings.coder(names, UNNAMED_COPY)
    for batch in reading.run.batches("memory_copy", Wanted(integers=_OF_COPY)):
        reading.counts["memory_copy"] += batch.count
        rows = timed(batch, reading.odd)
        on_device = facts.are_gpus(rows["src_agent_id"]) | facts.are_gpus(rows["dst_agent_id"])
        reading.odd["host-copies"] += int(np.count_nonzero(~on_device))
        rows = rows.only(on_device)
        source, target = rows["src_agent_id"], rows["dst_agent_id"]
        Copies(
            rows=rows,
            # An engine for copies works it off: neither a queue nor a stream is its place.
            **_common(reading, rows, np.where(facts.are_gpus(target), target, source)),
            name=name(rows["name_id"]),
            bytes=rows["size"],
            way=_ways(reading, rows),
        ).add_to(reading.gathered)


def read_graphs(reading: RunReading) -> None:
    """Add the launches of graphs whose kernels were not recorded one by one."""
    activities = reading.gathered["activities"]
    recorded, labels = distinct(activities.column("correlation")), activities.names["name"]
    for batch in reading.run.batches("graph_launch", Wanted(integers=_OF_GRAPH)):
        reading.counts["graph_launch"] += batch.count
        launch = reading.events.correlations(batch["event_id"])
        opaque = (launch == ABSENT) | ~np.isin(launch, recorded)
        reading.odd["graph-without-device"] += int(
            np.count_nonzero(opaque & (batch["agent_id"] == ABSENT))
        )
        rows = timed(batch.only(opaque & (batch["agent_id"] != ABSENT)), reading.odd)
        Graphs(
            rows=rows,
            **_common(reading, rows, rows["agent_id"]),
            stream=rows["queue_id"],
            name=by_distinct(rows["graph_exec_id"], lambda graph, _: labels[f"graph {graph}"]),
        ).add_to(reading.gathered)


def _common(reading: RunReading, rows: Batch, agents: IntArray) -> dict[str, IntArray]:
    """Return what all activities have: where they ran and what launched them."""
    process = reading.facts.processes(rows["pid"])
    graph, node = (np.where(rows[ids] > 0, rows[ids], ABSENT) for ids in _GRAPH)
    return {
        "process": process,
        "device": reading.facts.devices(agents, process),
        "correlation": reading.events.correlations(rows["event_id"]),
        "graph": graph,
        "graph_node": node,
    }


def _axes(rows: Batch, columns: tuple[str, ...]) -> IntArray:
    return np.stack([rows[column] for column in columns], axis=1)


def _ways(reading: RunReading, rows: Batch) -> IntArray:
    """Return the ways of copies: by their names, else by their ends."""
    facts = reading.facts
    ids, place = np.unique(rows["name_id"], return_inverse=True)
    named = ways_named(facts.strings[name] or "" for name in ids.tolist())[place]
    agents = rows["src_agent_id"], rows["dst_agent_id"]
    source, target = (facts.are_gpus(agent).astype(np.int64) for agent in agents)
    return ways_between(named, source, target, agents[0] != agents[1])
