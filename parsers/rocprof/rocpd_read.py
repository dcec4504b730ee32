"""Reads rocpd databases (schema 3): what rocprofv3 and rocprof-sys write since ROCm 7.0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from traceflops.devices.merging import join
from traceflops.parsers.io.database_query import (
    Among,
    Batch,
    Lookup,
    TextsById,
    Wanted,
    by_distinct,
)
from traceflops.parsers.io.database_rows import Database
from traceflops.parsers.rocprof import copies
from traceflops.parsers.rocprof.agents import GAUGES
from traceflops.parsers.rocprof.rocpd_host import HostReader, read_allocations
from traceflops.parsers.rocprof.rocpd_run import RocpdRun, RunReading, label, runs_of, version_of
from traceflops.parsers.rocprof.tables.counters import summed_instances
from traceflops.parsers.rocprof.trace import NOTES, trace_of, with_losses
from traceflops.parsers.shared import sinks
from traceflops.parsers.shared.collectives import COLLECTIVES, MADE, SIZES, fill_collectives
from traceflops.parsers.shared.sanity_checks import timed
from traceflops.table.builder import TableBuilder
from traceflops.table.columns import ABSENT, IntArray, count_true
from traceflops.table.grouping import distinct
from traceflops.table.trace import Note, Source, Trace

_GRID: Final = tuple(f"grid_size_{axis}" for axis in "xyz")
_BLOCK: Final = tuple(f"workgroup_size_{axis}" for axis in "xyz")
_GRAPH: Final = ("graph_exec_id", "graph_node_id")
_COMMON: Final = ("pid", "start", "end", *_GRAPH, "event_id")
_OF_DISPATCH: Final = (
    *(*_COMMON, "agent_id", "kernel_id", "queue_id", "group_segment_size"),
    "private_segment_size",
    *(*_GRID, *_BLOCK),
)
_OF_COPY: Final = (*_COMMON, "name_id", "src_agent_id", "dst_agent_id", "size")
_OF_GRAPH: Final = (*_COMMON, "agent_id", "queue_id")
_KERNEL: Final = Wanted(integers=("id", "arch_vgpr_count"), texts=("display_name", "kernel_name"))
_UNNAMED: Final = "(unnamed counter)"
_COUNTER: Final = Wanted(integers=("id", "agent_id"), texts=("name",))
_VALUE: Final = Wanted(integers=("event_id", "pmc_id", "sample_id"), reals=("value",))
_TABLE: Final = "kernel_counters"
_OF_COUNTED: Final = ("process", "device", "correlation", "dispatch", "threads", "block_threads")
"""The columns of a dispatch that its counters get."""
_TRACED: Final = ("region", "sample", "memory_copy", "graph_launch", "memory_allocate")
"""Tables that have rows only if a run recorded more than counters."""
_OF_SYSTEMS_PROFILER: Final = ("rocm_kernel_dispatch", "rocm_hip_api", "rocm_memory_copy")
"""Categories as rocprof-sys spells them."""
_COUNTS: Final = {kind.count for kind in COLLECTIVES.values()}
_OF_RCCL: Final = tuple(sorted(filter(None, {"datatype", *MADE, *SIZES.values(), *_COUNTS})))
"""The arguments of RCCL's calls that are used; others are not read."""
_LONGEST: Final = 200  # characters of an argument that are kept


def read_rocpd(database: Database) -> Sequence[Trace]:
    """Return one trace, of all runs in a rocpd database. Raises InputError if none can be read."""
    versions = [(run, *version_of(run)) for run in runs_of(database)]
    traces = [_read_run(run, version, notes) for run, version, notes in versions]
    trace = join(traces, "process")
    if len(traces) > 1:  # `join` words its notes for several files, but the runs are of one file
        notes = tuple(
            NOTES.note("clocks-not-aligned") if note.code == "clocks-not-aligned" else note
            for note in trace.notes
            if note.code != "rank-unknown"  # a note on files
        )
        source = replace(trace.source, files=traces[0].source.files)
        trace = replace(trace, source=source, notes=notes)
    return [with_losses(database, trace, label)]


def _read_run(run: RocpdRun, version: str | None, notes: Sequence[Note]) -> Trace:
    """Return the trace of one run, with `notes` first; `version` is the version of the schema."""
    # Device work, then the host; both have values of counters.
    reading = RunReading(run)
    dispatches = DispatchReader(reading)
    dispatches.read()
    read_copies(reading)
    read_graphs(reading)
    was_only_counted = dispatches.read_counters()
    event_ids = [np.empty(0, np.int64), *(batch["event_id"] for batch in dispatches.others)]
    host = HostReader(reading, distinct(np.concatenate(event_ids)))
    host.read()
    dispatches.add_values_over_time(host.counter_samples)

    # What calls state about the work that they launched.
    activities = reading["activities"]
    if was_only_counted:  # the times of its dispatches are not those of a normal run
        activities = reading.tables["activities"] = TableBuilder("activities")
    if copies.copies_in(activities) and run.has_rows("arg"):
        wanted = Wanted(integers=("event_id", "value"))
        sizes = run.whole("arg", wanted, Among("name", ("sizeBytes",)))
        copies.fill_sizes(activities, 0, reading.correlations(sizes["event_id"]), sizes["value"])
    fill_collectives(reading, _rccl_arguments(run, host) if host.rccl else {})
    read_allocations(reading)

    is_sys = Among("string", _OF_SYSTEMS_PROFILER)
    sys_categories = run.whole("string", Wanted(integers=("id",)), is_sys)
    about = Source(
        format="rocpd",
        files=(),
        tool="rocprof-sys" if sys_categories.count else "rocprofv3",
        clock=reading.clock,
        facts={"generation": "v3", **({"schema_version": version[:20]} if version else {})},
        identities=reading.hosts,
        lifetimes=reading.lifetimes,
    )
    several = [NOTES.note("clocks-not-aligned")] if reading.is_of_several_machines else []
    file, clocks = run.database.source, reading.clocks
    trace = trace_of(reading, file, about, "database", notes=several, clocks=clocks)
    return replace(trace, notes=(*notes, *trace.notes))


def _rccl_arguments(run: RocpdRun, host: HostReader) -> dict[int, dict[str, str]]:
    """Return, by the row of each RCCL call, its arguments by name."""
    events, rows = (np.concatenate(columns) for columns in zip(*host.rccl, strict=True))
    row_of = Lookup(events, rows)
    wanted = Wanted(integers=("event_id",), texts=("name", "value"))
    arguments: dict[int, dict[str, str]] = {}
    for batch in run.batches("arg", wanted, Among("name", _OF_RCCL)):
        call = row_of(batch["event_id"])
        for row in np.flatnonzero(call != ABSENT).tolist():
            name, value = batch.texts["name"][row], batch.texts["value"][row]
            if name is not None and value is not None:
                arguments.setdefault(int(call[row]), {})[name] = value[:_LONGEST]
    return arguments


class DispatchReader:
    """Adds the kernel dispatches, and the values of counters.

    `others` are the values of counters of events that are no dispatches. The samples of these
    events, which are read later, have their times.
    """

    def __init__(self, reading: RunReading) -> None:
        """Read the tables of kernels and counters."""
        self._reading = reading
        kernels = reading.run.whole("info_kernel_symbol", _KERNEL)
        pairs = zip(kernels.texts["display_name"], kernels.texts["kernel_name"], strict=True)
        self._kernels = TextsById(kernels["id"], [shown or name for shown, name in pairs])
        registers = kernels["arch_vgpr_count"]
        self._registers = Lookup(kernels["id"], np.where(registers > 0, registers, ABSENT))
        counters = reading.run.whole("info_pmc", _COUNTER)
        gauges = [GAUGES.get(name or "", (name, 1)) for name in counters.texts["name"]]
        self._counters = TextsById(counters["id"], [name for name, _ in gauges])
        self._factor = Lookup(counters["id"], np.array([factor for _, factor in gauges], np.int64))
        self._agent = Lookup(counters["id"], counters["agent_id"])
        self._dispatches: list[dict[str, IntArray]] = []  # the columns that counters need
        self.others: list[Batch] = []

    def read(self) -> None:
        """Add the dispatches; keep the columns that their counters need."""
        reading = self._reading
        name = self._kernels.coder(reading["activities"].names["name"], sinks.UNNAMED_KERNEL)
        is_counted = reading.run.has_rows("pmc_event")
        columns = (*_OF_DISPATCH, "dispatch_id") if is_counted else _OF_DISPATCH
        for batch in reading.run.batches("kernel_dispatch", Wanted(integers=columns)):
            reading.counts["kernel_dispatch"] += batch.count
            rows = timed(batch, reading.odd)
            common = _common(reading, rows, rows["agent_id"])
            grid, block = (np.stack([rows[c] for c in axes], axis=1) for axes in (_GRID, _BLOCK))
            sinks.add_work(
                reading,
                rows,
                "kernel",
                **common,
                stream=rows["queue_id"],
                name=name(rows["kernel_id"]),
                grid=sinks.blocks_of(grid, block),
                block=block,
                registers_per_thread=self._registers(rows["kernel_id"]),
                shared_memory_bytes=rows["group_segment_size"],
                scratch_bytes=rows["private_segment_size"],
            )
            if is_counted:
                self._dispatches.append(
                    {column: common[column] for column in ("process", "device", "correlation")}
                    | {column: rows[f"{column}_id"] for column in ("kernel", "dispatch", "event")}
                    | {"threads": sinks.product_of(grid), "block_threads": sinks.product_of(block)}
                )

    def read_counters(self) -> bool:
        """Add the counters of dispatches; return whether the run recorded only counted dispatches.

        Kernels of such a run ran one by one. Values of a counter's instances are merged into one.
        """
        reading, odd = self._reading, self._reading.odd
        none = np.empty(0, np.int64)
        dispatches = {
            name: np.concatenate([none, *(piece[name] for piece in self._dispatches)])
            for name in (*_OF_COUNTED, "kernel", "event")
        }
        row_of = Lookup(dispatches["event"], np.arange(len(dispatches["event"])))
        table = reading[_TABLE]
        name = self._kernels.coder(table.names["name"], sinks.UNNAMED_KERNEL)
        counter = self._counters.coder(table.names["counter"], _UNNAMED)
        for batch in reading.run.batches("pmc_event", _VALUE):
            reading.counts["pmc_event"] += batch.count
            streamed = batch["sample_id"] != ABSENT  # sampled while kernels ran, of no single one
            no_value = np.isnan(batch["value"])
            odd["streamed-counter"] += count_true(streamed)
            odd["no-value database"] += count_true(no_value & ~streamed)
            rows = batch.only(~streamed & ~no_value)
            dispatch = row_of(rows["event_id"])
            is_of_dispatch = dispatch != ABSENT
            values, dispatch = rows.only(is_of_dispatch), dispatch[is_of_dispatch]
            if values.count:
                table.add(
                    values.count,
                    **{name: dispatches[name][dispatch] for name in _OF_COUNTED},
                    name=name(dispatches["kernel"][dispatch]),
                    counter=counter(values["pmc_id"]),
                    value=values["value"],
                )
            if not is_of_dispatch.all():
                self.others.append(rows.only(~is_of_dispatch))
        reading.tables[_TABLE], odd["instances-summed"] = summed_instances(table)
        if not len(dispatches["event"]) or any(map(reading.run.has_rows, _TRACED)):
            return False
        counted = np.setdiff1d(reading[_TABLE].column("dispatch"), [ABSENT])
        return bool(np.isin(dispatches["dispatch"], counted).all())

    def add_values_over_time(self, samples: Sequence[Batch]) -> None:
        """Add the values in `others` to the counters, with the times of their `samples`."""
        if not samples:
            return
        reading, table = self._reading, self._reading["counters"]
        names = ("event_id", "timestamp", "pid")
        event, time_ns, pid = (np.concatenate([b[name] for b in samples]) for name in names)
        time_of, process_of = Lookup(event, time_ns), Lookup(event, reading.processes(pid))
        for batch in self.others:
            rows = batch.only(time_of(batch["event_id"]) != ABSENT)
            agent, process = self._agent(rows["pmc_id"]), process_of(rows["event_id"])
            device = reading.devices(agent, process)
            table.add(
                rows.count,
                process=process,
                device=np.where(reading.are_gpus(agent), device, ABSENT),
                name=self._counters.coder(table.names["name"], _UNNAMED)(rows["pmc_id"]),
                time_ns=time_of(rows["event_id"]),
                # Counters that are not described have no factor (ABSENT): it is 1.
                value=rows["value"] * np.maximum(self._factor(rows["pmc_id"]), 1),
            )


def read_copies(reading: RunReading) -> None:
    """Add the copies, except those within host memory, which are only counted."""
    name = reading.strings.coder(reading["activities"].names["name"], sinks.UNNAMED_COPY)
    for batch in reading.run.batches("memory_copy", Wanted(integers=_OF_COPY)):
        reading.counts["memory_copy"] += batch.count
        rows = timed(batch, reading.odd)
        ids, inverse = np.unique(rows["name_id"], return_inverse=True)
        named = copies.directions_named(reading.strings[key] or "" for key in ids.tolist())[inverse]
        ends = ("src_agent_id", "dst_agent_id")
        work, agent, direction = copies.on_devices(rows, named, ends, reading.are_gpus)
        reading.odd["host-copies database"] += rows.count - work.count
        sinks.add_work(
            reading,
            work,
            "memcpy",
            # A copy engine executes it: it belongs to no queue or stream.
            **_common(reading, work, agent),
            name=name(work["name_id"]),
            bytes=work["size"],
            direction=direction,
        )


def read_graphs(reading: RunReading) -> None:
    """Add launches of graphs without recorded kernels; those without a device are only counted."""
    recorded = distinct(reading["activities"].column("correlation"))
    labels = reading["activities"].names["name"]
    for batch in reading.run.batches("graph_launch", Wanted(integers=_OF_GRAPH)):
        reading.counts["graph_launch"] += batch.count
        launch = reading.correlations(batch["event_id"])
        without_kernels = (launch == ABSENT) | ~np.isin(launch, recorded)
        has_device = batch["agent_id"] != ABSENT
        reading.odd["graph-without-device"] += count_true(without_kernels & ~has_device)
        rows = timed(batch.only(without_kernels & has_device), reading.odd)
        sinks.add_work(
            reading,
            rows,
            "graph",
            **_common(reading, rows, rows["agent_id"]),
            stream=rows["queue_id"],
            name=by_distinct(rows["graph_exec_id"], lambda graph, _: labels[f"graph {graph}"]),
        )


def _common(reading: RunReading, rows: Batch, agents: IntArray) -> dict[str, Any]:
    """Return columns of activities: process, device (of `agents`), correlation, graph, its node."""
    process = reading.processes(rows["pid"])
    graph, node = (np.where(rows[ids] > 0, rows[ids], ABSENT) for ids in _GRAPH)  # 0: none
    return {
        "process": process,
        "device": reading.devices(agents, process),
        "correlation": reading.correlations(rows["event_id"]),
        "graph": graph,
        "graph_node": node,
    }
