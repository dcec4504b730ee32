"""Reads rocpd databases: what rocprofv3 and rocprof-sys write by default since ROCm 7.0.

Schema 3 in all its minor versions; docs/parsers/rocprof.md says what goes where.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from traceflops.devices import join
from traceflops.parsers.io import Among, Between, Database, Lookup, Wanted
from traceflops.parsers.rocprof.copies import copies_in, fill_sizes
from traceflops.parsers.rocprof.notes import SEVERAL_MACHINES
from traceflops.parsers.rocprof.rocpd.host import HostReader, read_allocations
from traceflops.parsers.rocprof.rocpd.run import RocpdRun, RunReading, label, runs_of, version_of
from traceflops.parsers.rocprof.rocpd.work import DispatchReader, read_copies, read_graphs
from traceflops.parsers.rocprof.trace import trace_of, with_losses
from traceflops.parsers.shared import fill_collectives, rccl
from traceflops.table import ABSENT, IntArray, Note, Source, TableBuilder, Trace

_OF_SYSTEMS_PROFILER: Final = ("rocm_kernel_dispatch", "rocm_hip_api", "rocm_memory_copy")
"""Categories as rocprof-sys spells them."""
_OF_FILES: Final = ("rank-unknown",)
"""Codes of notes that are said of files only."""
_COUNTS: Final = {kind.count for kind in rccl.COLLECTIVES.values()}
_OF_RCCL: Final = tuple(
    sorted(filter(None, {"datatype", *rccl.MADE, *rccl.SIZES.values(), *_COUNTS}))
)
"""The arguments of RCCL's calls that say something here; others are not read."""
_LONGEST: Final = 200
_SIZE: Final = "sizeBytes"


def read_rocpd(database: Database) -> Sequence[Trace]:
    """Return the trace in a rocpd database. Raises InputError where there is none to be read."""
    versions = [(run, *version_of(run)) for run in runs_of(database)]
    traces = [_read_run(run, version, notes) for run, version, notes in versions]
    return [with_losses(database, _merged(traces), label)]


def _merged(traces: Sequence[Trace]) -> Trace:
    """Return the runs of one database as one trace: processes of one file, not several files."""
    trace = join(traces, "process")
    if len(traces) == 1:
        return trace
    notes = tuple(
        SEVERAL_MACHINES if note.code == SEVERAL_MACHINES.code else note
        for note in trace.notes
        if note.code not in _OF_FILES
    )
    source = replace(trace.source, files=traces[0].source.files)
    return replace(trace, source=source, notes=notes)


def _read_run(run: RocpdRun, version: str | None, notes: Sequence[Note]) -> Trace:
    reading = RunReading(run)
    _read_records(reading)
    about = Source(
        format="rocpd",
        files=(),
        tool=_tool(run),
        clock=reading.clock,
        facts={"generation": "v3", **({"schema_version": version[:20]} if version else {})},
        identities=reading.hosts,
        lifetimes=reading.lifetimes,
    )
    several = [SEVERAL_MACHINES] if reading.is_of_several_machines else []
    file, clocks = run.database.source, reading.clocks
    trace = trace_of(reading, file, about, "database", notes=several, clocks=clocks)
    return replace(trace, notes=(*notes, *trace.notes))


def _read_records(reading: RunReading) -> None:
    dispatches = DispatchReader(reading)
    dispatches.read()
    read_copies(reading)
    read_graphs(reading)
    was_only_counted = dispatches.read_counters()
    events = [np.empty(0, np.int64), *(batch["event_id"] for batch in dispatches.others)]
    host = HostReader(reading, np.unique(np.concatenate(events)))
    host.read()
    dispatches.add_values_over_time(host.measured)
    activities = reading["activities"]
    if was_only_counted:
        activities = reading.tables["activities"] = TableBuilder("activities")
    if copies_in(activities) and reading.run.has_rows("arg"):
        fill_sizes(activities, 0, *_sizes(reading))
    fill_collectives(reading, _rccl_arguments(reading, host.rccl))
    read_allocations(reading)


def _tool(run: RocpdRun) -> str:
    spelled = Among("string", _OF_SYSTEMS_PROFILER)
    rows = run.whole("string", Wanted(integers=("id",)), spelled)
    return "rocprof-sys" if rows.count else "rocprofv3"


def _rccl_arguments(
    reading: RunReading, calls: Sequence[tuple[IntArray, IntArray]]
) -> dict[int, dict[str, str]]:
    """Return by row of the calls the arguments of RCCL's calls, given their events and rows."""
    arguments: dict[int, dict[str, str]] = {}
    if not calls:
        return arguments
    events, rows = (np.concatenate(columns) for columns in zip(*calls, strict=True))
    row_of = Lookup(events, rows)
    of_calls = Between("event_id", int(events.min()), int(events.max()))
    wanted = Wanted(integers=("event_id",), texts=("name", "value"))
    for batch in reading.run.batches("arg", wanted, of_calls, Among("name", _OF_RCCL)):
        places = row_of(batch["event_id"])
        for at in np.flatnonzero(places != ABSENT).tolist():
            name, value = batch.texts["name"][at], batch.texts["value"][at]
            if name is not None and value is not None:
                arguments.setdefault(int(places[at]), {})[name] = value[:_LONGEST]
    return arguments


def _sizes(reading: RunReading) -> tuple[IntArray, IntArray]:
    """Return the correlations of calls that state a size, and the sizes."""
    wanted = Wanted(integers=("event_id", "value"))
    rows = reading.run.whole("arg", wanted, Among("name", (_SIZE,)))
    return reading.correlations(rows["event_id"]), rows["value"]
