"""Dispatches, copies and graph launches of a rocpd database as activities."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from traceflops.parsers.io import Batch, Lookup, TextsById, Wanted, by_distinct
from traceflops.parsers.rocprof.copies import direction_of
from traceflops.parsers.rocprof.rocpd.reading import RunReading
from traceflops.parsers.rocprof.tables.work import UNNAMED, blocks_of
from traceflops.parsers.shared import timed
from traceflops.table import ABSENT, Array, IntArray, distinct

_UNNAMED_COPY: Final = "(unnamed copy)"
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
_BY_AGENTS: Final = {(True, True): "DtoD", (True, False): "DtoH", (False, True): "HtoD"}


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
    activities = reading.gathered["activities"]
    name = kernels.names.coder(activities.names["name"], UNNAMED)
    columns = _OF_DISPATCH if kept is None else (*_OF_DISPATCH, "dispatch_id")
    for batch in reading.run.batches("kernel_dispatch", Wanted(integers=columns)):
        reading.counts["kernel_dispatch"] += batch.count
        rows, start, dur = timed(batch, reading.odd)
        common = _common(reading, rows, rows["agent_id"])
        grid, block = _axes(rows, _GRID), _axes(rows, _BLOCK)
        activities.add(
            rows.count,
            **common,
            stream=rows["queue_id"],
            kind=activities.names["kind"]["kernel"],
            name=name(rows["kernel_id"]),
            start_ns=start,
            dur_ns=dur,
            grid=blocks_of(grid, block),
            block=np.where((block > 0).all(axis=1, keepdims=True), block, ABSENT),
            registers_per_thread=kernels.registers(rows["kernel_id"]),
            shared_memory_bytes=_sizes(rows["group_segment_size"]),
        )
        if kept is not None:
            kept.add(
                process=common["process"],
                device=common["device"],
                correlation=common["correlation"],
                kernel=rows["kernel_id"],
                dispatch=rows["dispatch_id"],
                event=rows["event_id"],
                threads=_product(grid),
                block_threads=_product(block),
            )


def read_copies(reading: RunReading) -> None:
    """Add the copies; one between two places of the host is no work of a device."""
    activities = reading.gathered["activities"]
    name = reading.facts.strings.coder(activities.names["name"], _UNNAMED_COPY)
    for batch in reading.run.batches("memory_copy", Wanted(integers=_OF_COPY)):
        reading.counts["memory_copy"] += batch.count
        rows, start, dur = timed(batch, reading.odd)
        source, target = rows["src_agent_id"], rows["dst_agent_id"]
        agent = np.where(reading.facts.are_gpus(target), target, source)
        on_device = reading.facts.are_gpus(agent)
        reading.odd["host-copies"] += int(np.count_nonzero(~on_device))
        rows, start, dur, agent = (
            rows.only(on_device),
            start[on_device],
            dur[on_device],
            agent[on_device],
        )
        activities.add(
            rows.count,
            # An engine for copies works it off: neither a queue nor a stream is its place.
            **_common(reading, rows, agent),
            kind=activities.names["kind"]["memcpy"],
            name=name(rows["name_id"]),
            start_ns=start,
            dur_ns=dur,
            bytes=_sizes(rows["size"]),
            direction=_directions(reading, rows),
        )


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
        rows, start, dur = timed(batch.only(opaque & (batch["agent_id"] != ABSENT)), reading.odd)
        activities.add(
            rows.count,
            **_common(reading, rows, rows["agent_id"]),
            stream=rows["queue_id"],
            kind=activities.names["kind"]["graph"],
            name=by_distinct(rows["graph_exec_id"], lambda graph, _: labels[f"graph {graph}"]),
            start_ns=start,
            dur_ns=dur,
        )


def _common(reading: RunReading, rows: Batch, agents: IntArray) -> dict[str, IntArray]:
    """Return what all activities have: where they ran and what launched them."""
    process = reading.facts.processes(rows["pid"])
    return {
        "process": process,
        "device": reading.facts.devices(agents, process),
        "correlation": reading.events.correlations(rows["event_id"]),
        "graph": _above_zero(rows["graph_exec_id"]),
        "graph_node": _above_zero(rows["graph_node_id"]),
    }


def _above_zero(values: IntArray) -> IntArray:
    """Return values of which 0 stands for none; where all are none, in no memory."""
    known = values > 0
    return np.where(known, values, ABSENT) if known.any() else _nothing(len(values))


def _nothing(count: int) -> IntArray:
    return np.broadcast_to(np.int64(ABSENT), count)


def _axes(rows: Batch, columns: tuple[str, ...]) -> IntArray:
    return np.stack([rows[column] for column in columns], axis=1)


def _product(axes: IntArray) -> IntArray:
    """Return the product of the axes, where it is known and an int64 holds it."""
    fits = (axes > 0).all(axis=1) & (axes.prod(axis=1, dtype=np.float64) < 2**62)
    return np.where(fits, axes.prod(axis=1), ABSENT)


def _sizes(values: IntArray) -> IntArray:
    return np.where(values >= 0, values, ABSENT)


def _directions(reading: RunReading, rows: Batch) -> Array:
    """Return the codes of the directions of copies: by their names, else by their ends."""
    facts, codes = reading.facts, reading.gathered["activities"].names["direction"]
    source, target = facts.are_gpus(rows["src_agent_id"]), facts.are_gpus(rows["dst_agent_id"])
    between = source & target & (rows["src_agent_id"] != rows["dst_agent_id"])
    found = np.full(rows.count, -1, dtype=np.int64)
    for peers in (False, True):

        def code(name: int, _: int, peers: bool = peers) -> int:
            way = direction_of(facts.strings[name] or "", between_gpus=peers)
            return -1 if way is None else codes[way]

        chosen = between == peers
        found[chosen] = by_distinct(rows["name_id"][chosen], code)
    for ends, way in _BY_AGENTS.items():
        unsaid = (found == -1) & (source == ends[0]) & (target == ends[1])
        if unsaid.any():
            found[unsaid] = np.where(between[unsaid], codes["PtoP"], codes[way])
    return found
