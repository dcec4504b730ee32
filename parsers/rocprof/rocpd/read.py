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
from traceflops.parsers.rocprof.rocpd.counters import Measurements, only_counted
from traceflops.parsers.rocprof.rocpd.host import HostReader, read_allocations
from traceflops.parsers.rocprof.rocpd.reading import RunReading, reading_of
from traceflops.parsers.rocprof.rocpd.schema import RocpdRun, label, runs_of, version_of
from traceflops.parsers.rocprof.rocpd.trace import Origin, trace_of, with_losses
from traceflops.parsers.rocprof.rocpd.work import (
    Dispatches,
    KernelNames,
    read_copies,
    read_dispatches,
    read_graphs,
)
from traceflops.parsers.shared import fill_collectives, rccl
from traceflops.table import ABSENT, IntArray, Note, TableBuilder, Trace

_OF_SYSTEMS_PROFILER: Final = ("rocm_kernel_dispatch", "rocm_hip_api", "rocm_memory_copy")
"""Categories as rocprof-sys spells them."""

_OF_FILES: Final = ("rank-unknown",)
"""Codes of notes that are said of files only."""


def read_rocpd(database: Database) -> Sequence[Trace]:
    """Return the trace in a rocpd database. Raises InputError where there is none to be read."""
    versions = [(run, *version_of(run)) for run in runs_of(database)]
    traces = [_read_run(run, version, notes) for run, version, notes in versions]
    return [with_losses(database, _merged(traces), label)]


def _merged(traces: Sequence[Trace]) -> Trace:
    """Return the runs of one database as one trace: processes of one file, not several files."""
    one = join(traces, "process")
    if len(traces) == 1:
        return one
    notes = [_of_one_file(note) for note in one.notes if note.code not in _OF_FILES]
    source = replace(one.source, files=traces[0].source.files)
    return replace(one, source=source, notes=tuple(notes))


def _of_one_file(note: Note) -> Note:
    return SEVERAL_MACHINES if note.code == SEVERAL_MACHINES.code else note


def _read_run(run: RocpdRun, version: str | None, notes: tuple[Note, ...]) -> Trace:
    reading = reading_of(run)
    _read_records(reading)
    facts = {"generation": "v3", **({"schema_version": version[:20]} if version else {})}
    people = reading.facts
    about = people.clock, people.hosts, people.lifetimes, people.clocks
    origin = Origin("rocpd", _tool(run), facts, *about)
    trace = trace_of(run.database, reading.gathered, reading.tallies, origin)
    if people.is_of_several_machines:
        notes = (*notes, replace(SEVERAL_MACHINES, file=run.database.source.label))
    return replace(trace, notes=(*notes, *trace.notes))


def _read_records(reading: RunReading) -> None:
    run = reading.run
    counted = Dispatches() if run.has_rows("pmc_event") else None
    kernels = KernelNames(reading)
    read_dispatches(reading, kernels, counted)
    read_copies(reading)
    read_graphs(reading)
    measurements = Measurements(reading, kernels, counted or Dispatches())
    host = HostReader(reading, measurements.other_events)
    host.read_regions()
    host.read_samples()
    measurements.add_values_over_time(host.measured)
    if only_counted(reading, counted):
        reading.gathered.tables["activities"] = TableBuilder("activities")
    fill_copies(reading)
    fill_collectives(reading.gathered, rccl_arguments(reading, host.rccl))
    read_allocations(reading)


def _tool(run: RocpdRun) -> str:
    spelled = Among("string", _OF_SYSTEMS_PROFILER)
    found = run.whole("string", Wanted(integers=("id",)), spelled)
    return "rocprof-sys" if found.count else "rocprofv3"


# Arguments of calls in a rocpd database, of which only those are read that say something here.


_OF_RCCL: Final = tuple(
    sorted(
        {
            "datatype",
            *rccl.MADE,
            *(name for name in rccl.SIZES.values() if name),
        }
        | {one.count for one in rccl.COLLECTIVES.values() if one.count}
    )
)


_LONGEST: Final = 200


_SIZE: Final = "sizeBytes"


def rccl_arguments(
    reading: RunReading, calls: list[tuple[IntArray, IntArray]]
) -> dict[int, dict[str, str]]:
    """Return by row of the calls the arguments of RCCL's calls, given their events and rows."""
    found: dict[int, dict[str, str]] = {}
    if not calls:
        return found
    events, rows = (np.concatenate(columns) for columns in zip(*calls, strict=True))
    row_of = Lookup(events, rows)
    conditions = (
        Between("event_id", int(events.min()), int(events.max())),
        Among("name", _OF_RCCL),
    )
    wanted = Wanted(integers=("event_id",), texts=("name", "value"))
    for batch in reading.run.batches("arg", wanted, *conditions):
        places = row_of(batch["event_id"])
        for at in np.flatnonzero(places != ABSENT).tolist():
            name, value = batch.texts["name"][at], batch.texts["value"][at]
            if name is not None and value is not None:
                found.setdefault(int(places[at]), {})[name] = value[:_LONGEST]
    return found


def fill_copies(reading: RunReading) -> None:
    """Give kernels that copy or fill memory the size that the call states that launched them."""
    activities = reading.gathered["activities"]
    if copies_in(activities) and reading.run.has_rows("arg"):
        fill_sizes(activities, 0, *_sizes(reading))


def _sizes(reading: RunReading) -> tuple[IntArray, IntArray]:
    """Return the correlations of calls that state a size, and the sizes."""
    wanted = Wanted(integers=("event_id", "value"))
    rows = reading.run.whole("arg", wanted, Among("name", (_SIZE,)))
    return reading.events.correlations(rows["event_id"]), rows["value"]
