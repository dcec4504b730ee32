"""SQLite databases: whose they are is told by the tables in them.

Adding a kind of database means a reader for it and a row in SCHEMAS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io import ByteSource, read_each, with_notes
from traceflops.parsers.shared import Format, Reading
from traceflops.table import Note, Trace

if TYPE_CHECKING:
    from traceflops.parsers.io import Database

MAGIC: Final = b"SQLite format 3\x00"
_MOST_NAMED: Final = 5

Tables = frozenset[str]


def _read_rocpd(database: Database) -> Sequence[Trace]:
    from traceflops.parsers.rocprof import read_rocpd

    return read_rocpd(database)


def _read_rpd(database: Database) -> Sequence[Trace]:
    from traceflops.parsers.rocprof import read_rpd

    return read_rpd(database)


def _read_v1(database: Database) -> Sequence[Trace]:
    from traceflops.parsers.rocprof import read_v1_database

    return read_v1_database(database)


def _is_nsys(tables: Tables) -> bool:
    """Return whether there is a table of work, or else one of texts and one of the recording."""
    if _any_begins(tables, "CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "OSRT_API"):
        return True
    about = ("TARGET_INFO_", "META_DATA_", "EXPORT_META_DATA", "ANALYSIS_", "PROFILER_OVERHEAD")
    return "StringIds" in tables and _any_begins(tables, *about)


def _read_nsys(database: Database) -> Sequence[Trace]:
    from traceflops.parsers.nsight import read_nsys

    return read_nsys(database)


def _refuse_metrics(database: Database) -> Sequence[Trace]:
    raise NotATrace(
        f"{_place(database)} is a rocprof-compute analysis database: it holds metrics, not "
        "measurements",
        "give the workload folder (pmc_perf.csv and sysinfo.csv), or record a timeline with "
        "rocprofv3 --kernel-trace --output-format rocpd",
    )


def _any_begins(tables: Tables, *words: str) -> bool:
    return any(table.startswith(words) for table in tables)


_V1: Final = frozenset({"KERN", "OPS", "COPY", "HIP", "HSA", "rocTX"})
SCHEMAS: Final[
    tuple[tuple[Callable[[Tables], bool], Callable[[Database], Sequence[Trace]]], ...]
] = (
    (lambda tables: tables >= {"rocpd_op", "rocpd_string"}, _read_rpd),
    (lambda tables: _any_begins(tables, "rocpd_"), _read_rocpd),
    (lambda tables: tables >= {"compute_workload", "compute_metric_definition"}, _refuse_metrics),
    (lambda tables: not tables.isdisjoint(_V1), _read_v1),
    (_is_nsys, _read_nsys),
)
"""How databases are known by their tables, in the order in which it is asked; what reads them."""


def _read_databases(sources: Sequence[ByteSource], _: Reading) -> list[Trace]:
    """Return the traces in some databases. Raises InputError where none can be read.

    One that cannot be read is a note as long as another can.
    """

    def traced(source: ByteSource) -> list[tuple[ByteSource, Trace]]:
        return [(source, trace) for trace in read_database(source)]

    found, failed = read_each(sources, traced, close=True)
    read = [one for several in found for one in several]
    from traceflops.parsers.nsight import without_clashes
    from traceflops.parsers.rocprof import without_repeated_passes

    traces = without_clashes(without_repeated_passes(read))
    notes = [_failure(source, error) for source, error in failed]
    return with_notes(traces, notes)


def _failure(source: ByteSource, error: InputError) -> Note:
    code = "not-a-trace" if isinstance(error, NotATrace) else "file-not-read"
    reason = error.message.replace(str(source.path), source.label)
    return Note("dropped", code, f"A database could not be read: {reason}.", 1, source.label)


def read_database(source: ByteSource) -> Sequence[Trace]:
    """Return the traces in a database. Raises InputError where it holds none that is known."""
    from traceflops.parsers.io import Database, placed

    with placed(source) as place, Database(source, place) as database:
        read = next((read for knows, read in SCHEMAS if knows(database.tables)), None)
        if read is None:
            raise _foreign(database)
        source.text_bytes = place.bytes
        traces = read(database)
        if source.stored_bytes is not None:
            source.progress(source.stored_bytes)
        return traces


def _foreign(database: Database) -> NotATrace:
    names = sorted(database.tables)
    if not names:
        return _empty(database)
    named = ", ".join(_printable(name) for name in names[:_MOST_NAMED])
    more = f", … {len(names)} total" if len(names) > _MOST_NAMED else ""
    return NotATrace(
        f"{_place(database)} is an unknown SQLite database (tables: {named}{more})",
        "give a database from nsys export --type sqlite, rocprof (rocpd, results.db) or RPD",
    )


def _empty(database: Database) -> NotATrace:
    """Return what to say of a database without tables: they may be in the log beside it."""
    from traceflops.parsers.io import how_to_copy, in_wal_mode

    if not in_wal_mode(database.place.path) and not in_wal_mode(database.source.path):
        return NotATrace(f"{_place(database)} is an SQLite database without tables", "record again")
    log = f"{database.source.label}-wal"
    return NotATrace(
        f"{_place(database)} is an SQLite database without tables: its content is in the "
        f"write-ahead log beside it ({log}), which is missing or unreadable",
        how_to_copy(database.source.label),
    )


def _place(database: Database) -> str:
    return str(database.source.path or database.source.label)


def _printable(name: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in name[:24])


SQLITE: Final = Format(
    "SQLite database", lambda head: head.startswith(MAGIC), _read_databases, gathers=True
)
"""Given all databases at once, since some are repetitions of one run."""
