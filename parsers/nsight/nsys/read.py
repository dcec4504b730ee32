"""Reads reports of Nsight Systems: its SQLite exports of every version, and folders of its tables.

Tables and columns are looked for by name and never expected by version; docs/parsers/nsight.md
says what goes where.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from traceflops.parsers.io import Database, nothing_left, rank_in_name
from traceflops.parsers.nsight.nsys.facts import (
    devices_of,
    facts_of,
    host_of,
    identities_of,
    origin_of,
    ranks_of,
    warnings_of,
)
from traceflops.parsers.nsight.nsys.nccl import fill_nccl
from traceflops.parsers.nsight.nsys.notes import content_notes
from traceflops.parsers.nsight.nsys.nvtx import read_nvtx
from traceflops.parsers.nsight.nsys.process_registry import People
from traceflops.parsers.nsight.nsys.reading import ReportReading
from traceflops.parsers.nsight.nsys.tables import Tables
from traceflops.parsers.nsight.nsys.timeline import (
    read_graph_nodes,
    read_memory,
    read_metrics,
    read_overheads,
    read_records,
    read_system_calls,
)
from traceflops.parsers.shared import overflow_notes
from traceflops.table import Source, SourceFile, Trace

SQLITE: Final = "nsys-sqlite"
_TOOL: Final = "Nsight Systems"
_RECORDS: Final = ("activities", "calls", "ops", "marks", "counters")


def read_nsys(database: Database) -> Sequence[Trace]:
    """Return the trace in an SQLite export. Raises InputError where none can be read."""
    source = database.source
    file = SourceFile(source.label, source.stored_bytes, source.text_bytes)
    return [trace_of(database, SQLITE, (file,), source.label)]


def trace_of(tables: Tables, format_: str, files: tuple[SourceFile, ...], name: str) -> Trace:
    """Return the trace in the tables of a report. Raises InputError where all of it is lost.

    `name` is the report's own.
    """
    host = host_of(tables)
    own_rank = rank_in_name(name)
    people = People(devices_of(tables, host), name, host, ranks_of(tables), own_rank)
    reading = ReportReading(tables, people)
    _read(reading)
    facts = facts_of(tables)
    overflowed = reading.gathered.overflowed
    finished = reading.gathered.finish()
    if tables.damaged and not any(finished[name].num_rows for name in _RECORDS):
        raise nothing_left(tables.source.label, tables.notes(), "export or copy the report again")
    notes = (
        *content_notes(finished, reading, facts),
        *people.ranks.notes,
        *overflow_notes(overflowed, name),
        *warnings_of(tables),
    )
    return Trace(
        Source(
            format=format_,
            files=files,
            tool=_TOOL,
            origin_unix_ns=origin_of(tables),
            facts=facts,
            event_counts=dict(sorted(reading.counts.items())),
            identities=identities_of(tables, host),
            kinds_apart=format_ != SQLITE,
        ),
        finished,
        (*tables.notes(), *(replace(note, file=name) for note in notes)),
        reading.gathered.places,
    )


def _read(reading: ReportReading) -> None:
    """Read all tables; names are looked up when it is known which are needed."""
    read_records(reading)
    nccl = read_nvtx(reading)
    read_graph_nodes(reading)
    read_overheads(reading)
    read_system_calls(reading)
    read_memory(reading)
    read_metrics(reading)
    reading.resolve_names()
    fill_nccl(reading, nccl)
    reading.people.settle(reading.gathered)
