"""Reads reports of Nsight Systems: SQLite exports of all versions, folders of tables, .nsys-rep."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io.arrow_files import ArrowTable, open_arrow, open_parquet
from traceflops.parsers.io.database_file import nothing_left
from traceflops.parsers.io.database_rows import Database
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.notes import printable, read_each, with_set_aside
from traceflops.parsers.io.places import rank_in_name
from traceflops.parsers.nsight.nsys import facts as report_facts
from traceflops.parsers.nsight.nsys import timeline
from traceflops.parsers.nsight.nsys.nccl import fill_nccl
from traceflops.parsers.nsight.nsys.notes import content_notes
from traceflops.parsers.nsight.nsys.nvtx import read_nvtx
from traceflops.parsers.nsight.nsys.process_registry import ProcessRegistry, without_clashes
from traceflops.parsers.nsight.nsys.raw_report import report_of
from traceflops.parsers.nsight.nsys.reading import ReportReading
from traceflops.parsers.nsight.nsys.samples import read_samples, read_switches
from traceflops.parsers.nsight.nsys.streams import streams_of
from traceflops.parsers.nsight.nsys.tables import Folder, Tables
from traceflops.parsers.nsight.recipe import is_of_recipe, read_recipes
from traceflops.parsers.shared.trace_builder import overflow_notes
from traceflops.remedies import BEFORE_PASCAL, GENERATION
from traceflops.table.trace import CUDA_END, Source, SourceFile, Trace

_RECORDS: Final = ("activities", "calls", "ops", "marks", "counters")
_PASCAL: Final = 6
"""The major compute capability from which Nsight Systems records GPUs."""
_MOST_NAMED, _LONGEST_NAME = 5, 30
_NAMES: Final = re.compile(
    r"(?:CUPTI_ACTIVITY_KIND|TARGET_INFO|META_DATA|ENUM|NVTX|OSRT|CUDA|GPU|MPI|UCP|NET|CUBLAS|CUDNN"
    r"|ANALYSIS|SCHED|COMPOSITE|SAMPLING|DIAGNOSTIC|EXPORT_META)_[A-Z0-9_]+"
    r"|StringIds|PROFILER_OVERHEAD|PROCESSES|ThreadNames|ProcessStreams|GENERIC_EVENTS"
)
"""Names of tables of reports; their files have the same names."""
_BY_COLUMNS: Final[tuple[tuple[str, frozenset[str]], ...]] = (
    ("CUPTI_ACTIVITY_KIND_KERNEL", frozenset({"start", "end", "gridX", "demangledName"})),
    ("CUPTI_ACTIVITY_KIND_MEMCPY", frozenset({"start", "end", "bytes", "copyKind"})),
    ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", frozenset({"start", "end", "streamId", "graphExecId"})),
    ("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", frozenset({"start", "end", "syncType"})),
    ("CUPTI_ACTIVITY_KIND_RUNTIME", frozenset({"start", "end", "correlationId", "returnValue"})),
    ("NVTX_EVENTS", frozenset({"start", "eventType", "globalTid", "textId"})),
)
"""Columns by which a table is recognised if its file was renamed."""
_WORK: Final = ("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "OSRT_API")
"""Beginnings of the names of tables with records; a folder without any of these is not a report."""
_OPENERS: Final = {"Parquet": open_parquet, "Arrow": open_arrow}
_INSTEAD: Final = {
    "Parquet": (
        "give the SQLite export of the report (nsys export --type sqlite), or trace.parquet of "
        "the recipe nvtx_gpu_proj_trace"
    ),
    "Arrow": (
        "give the folder written by nsys export --type arrowdir, or the SQLite export of the report"
    ),
}
"""The hint for an unknown file of each format."""


def read_nsys(database: Database) -> Sequence[Trace]:
    """Return the trace in an SQLite export. Raises InputError if none can be read."""
    return [trace_of_file(database, "nsys-sqlite")]


def read_raw(source: ByteSource) -> Trace:
    """Return the trace in a .nsys-rep file. Raises InputError if none can be read."""
    report = report_of(source)
    trace = trace_of_file(report, "nsys-rep")
    return replace(trace, notes=(*trace.notes, report.origin))


def trace_of_file(tables: Tables, format_: str) -> Trace:
    """Return the trace in the tables of one file. Raises InputError if all rows are lost."""
    source = tables.source
    file = SourceFile(source.label, source.stored_bytes, source.text_bytes)
    return trace_of(tables, format_, (file,), source.label, rank_in_name(source.label))


def trace_of(
    tables: Tables, format_: str, files: tuple[SourceFile, ...], name: str, own_rank: int | None
) -> Trace:
    """Return the trace in the tables of a report. Raises InputError if all rows are lost.

    `name` is the name of the report, `own_rank` the rank in the names of its files.
    """
    # Read all records; `reading` counts the odd ones.
    host = report_facts.host_of(tables)
    registry = ProcessRegistry(
        report_facts.devices_of(tables, host), name, host, report_facts.ranks_of(tables), own_rank
    )
    reading = ReportReading(tables, registry)
    timeline.read_records(reading)
    nccl = read_nvtx(reading)
    timeline.read_graph_nodes(reading)
    timeline.read_overheads(reading)
    timeline.read_page_faults(reading)
    timeline.read_system_calls(reading)
    is_cuda_sampled = read_samples(reading)
    read_switches(reading)
    timeline.read_memory(reading)
    timeline.read_metrics(reading)
    # Only now it is known which texts are needed.
    streams = streams_of(tables)
    texts = reading.resolve_names(streams.ids)
    fill_nccl(reading, nccl)
    registry.settle(reading.builder)
    finished = timeline.with_kinds_of_calls(reading.builder.finish())
    # Facts about the recording, and notes.
    diagnostics = report_facts.diagnostics_of(tables)
    facts = {**report_facts.facts_of(tables, diagnostics), **streams.facts(texts)}
    if facts.get(CUDA_END) == "unused" and is_cuda_sampled:
        facts[CUDA_END] = "untraced-process"
    majors = finished["devices"]["compute_major"].drop_null().to_pylist()
    if min(majors, default=_PASCAL) < _PASCAL:
        facts[GENERATION] = BEFORE_PASCAL
    if tables.damaged and not any(finished[name].num_rows for name in _RECORDS):
        raise nothing_left(tables.source.label, tables.notes(), "export or copy the report again")
    notes = (
        *content_notes(finished, reading, facts),
        *registry.ranks.notes,
        *overflow_notes(reading.builder.tables.values(), name),
        *report_facts.warnings_of(diagnostics, has_work=finished["activities"].num_rows > 0),
    )
    return Trace(
        Source(
            format=format_,
            files=files,
            tool="Nsight Systems",
            origin_unix_ns=report_facts.origin_of(tables),
            facts=facts,
            event_counts=dict(sorted(reading.counts.items())),
            identities=report_facts.identities_of(tables, host),
            kinds_apart=format_ in ("nsys-parquet", "nsys-arrow"),
        ),
        finished,
        (*tables.notes(), *(replace(note, file=name) for note in notes)),
        reading.builder.places,
    )


def _table_of(name: str, columns: Sequence[str]) -> str | None:
    """Return the name of the report's table in a file, by the file's name or columns, or None."""
    stem = name.partition(".")[0]
    if _NAMES.fullmatch(stem):
        return stem
    return next((table for table, needed in _BY_COLUMNS if needed <= {*columns}), None)


def read_tables(sources: Sequence[ByteSource], format_: str) -> list[Trace]:
    """Return the traces in Parquet or Arrow files: one per folder, and those of recipes.

    Files that cannot be read become notes. Raises InputError if no file can be read.
    """

    def opened(source: ByteSource) -> ArrowTable:
        """Return the table in a file. Raises NotATrace if it is not of a report or recipe."""
        file = _OPENERS[format_](source)
        if not is_of_recipe(file) and _table_of(source.name, file.columns) is None:
            names = [printable(name, _LONGEST_NAME) for name in file.columns[:_MOST_NAMED]]
            raise NotATrace(
                f"{source.path or source.label} is an unknown {format_} file (columns: "
                f"{', '.join(names)})",
                _INSTEAD[format_],
            )
        return file

    files, failed = read_each(sources, opened)
    # The files of a folder are one report; None: files of recipes, which are read all at once.
    groups: defaultdict[str | None, list[ArrowTable]] = defaultdict(list)
    for file in files:
        groups[None if is_of_recipe(file) else file.source.folder].append(file)
    traces: list[Trace] = []
    for folder, group in groups.items():
        try:
            if folder is None:
                traces += read_recipes(group)
            else:
                traces.append(_read_folder(group, f"nsys-{format_.lower()}"))
        except InputError as error:
            failed += [(file.source, error) for file in group]
    return with_set_aside(without_clashes(traces), failed)


def _read_folder(files: Sequence[ArrowTable], format_: str) -> Trace:
    """Return the trace in the tables of a folder. Raises NotATrace if none of them has records."""
    # Of two files with the same table the first counts.
    tables = {_table_of(file.source.name, file.columns) or "": file for file in reversed(files)}
    first = files[0].source
    if not any(table.startswith(_WORK) for table in tables):
        hint = "give the whole folder written by nsys export --type parquetdir or arrowdir"
        raise NotATrace(f"no table of GPU operations among the files: {first.label}", hint)
    sources = [file.source for file in tables.values()]
    source_files = tuple(SourceFile(s.label, s.stored_bytes, s.stored_bytes) for s in sources)
    rank = rank_in_name(re.split(r"[/\\]", first.folder.rstrip("/\\"))[-1])
    # All reports have files of the same names, so name the report after its folder, if the user
    # gave that. If the user gave files, the name of their folder stays private.
    name = first.label.rpartition("/")[0] or first.inside or first.label
    return trace_of(Folder(first, tables), format_, source_files, name, rank)
