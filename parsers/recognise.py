"""What a file is, told by its first bytes, a database by its tables; or what to do instead.

A new format has its place in FORMATS; a new kind of database needs a reader, named in `_reader`.
Formats of installed packages are asked first: they are what somebody chose to add.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.gpu_samples import GPU_SAMPLES_TEXT
from traceflops.parsers.installed import installed_formats
from traceflops.parsers.io.arrow_files import open_arrow, open_parquet
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.notes import read_each, with_notes
from traceflops.parsers.nsight.formats import NCU, NSYS_ARROW, NSYS_PARQUET, NSYS_REPORT, NSYS_STATS
from traceflops.parsers.other_files import UNKNOWN_FILES, other_database, other_file
from traceflops.parsers.pack import TRACEFLOPS_PACK, TRACEFLOPS_PAGE, or_exported
from traceflops.parsers.pytorch.reader import PYTORCH
from traceflops.parsers.pytorch.snapshot import SNAPSHOT
from traceflops.parsers.rocprof.formats import (
    ROCPROF_JSON,
    ROCPROF_PERFETTO,
    ROCPROF_TABLES,
    ROCPROF_V1_JSON,
)
from traceflops.parsers.shared.formats import Format, Reading
from traceflops.parsers.xla.read import XPLANE
from traceflops.table.trace import Note, Trace

if TYPE_CHECKING:
    from traceflops.parsers.io.database_rows import Database


MAGIC: Final = b"SQLite format 3\x00"
_MOST_NAMED: Final = 5

Tables = frozenset[str]


def _is_nsys(tables: Tables) -> bool:
    """Return whether there is a table of work, or else one of texts and one of the recording."""
    if _any_begins(tables, "CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "OSRT_API"):
        return True
    about = ("TARGET_INFO_", "META_DATA_", "EXPORT_META_DATA", "ANALYSIS_", "PROFILER_OVERHEAD")
    return "StringIds" in tables and _any_begins(tables, *about)


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


def _reader(tables: Tables) -> Callable[[Database], Sequence[Trace]] | None:
    """Return what reads a database with these tables: the first row that fits, None if none does.

    Readers are imported here, since most inputs are no databases.
    """
    if tables >= {"rocpd_op", "rocpd_string"}:
        from traceflops.parsers.rocprof.rpd import read_rpd as read
    elif _any_begins(tables, "rocpd_"):
        from traceflops.parsers.rocprof.rocpd_read import read_rocpd as read
    elif tables >= {"compute_workload", "compute_metric_definition"}:
        return _refuse_metrics
    elif not tables.isdisjoint(_V1):
        from traceflops.parsers.rocprof.v1_tables import read_v1_database as read
    elif "StringTable" in tables and _any_begins(tables, "CUPTI_ACTIVITY_KIND_"):
        from traceflops.parsers.nsight.nvprof.tables import read_nvprof as read
    elif _is_nsys(tables):
        from traceflops.parsers.nsight.nsys.read import read_nsys as read
    else:
        return None
    return read


def _read_databases(sources: Sequence[ByteSource], _: Reading) -> list[Trace]:
    """Return the traces in some databases. Raises InputError where none can be read.

    One that cannot be read is a note as long as another can.
    """

    def traced(source: ByteSource) -> list[tuple[ByteSource, Trace]]:
        return [(source, trace) for trace in read_database(source)]

    read, failed = read_each(sources, traced, close=True)
    by_source = [pair for pairs in read for pair in pairs]
    from traceflops.parsers.nsight.nsys.process_registry import without_clashes
    from traceflops.parsers.rocprof.trace import without_repeated_passes

    traces = without_clashes(without_repeated_passes(by_source))
    notes = []
    for source, error in failed:
        code = "not-a-trace" if isinstance(error, NotATrace) else "file-not-read"
        reason = error.message.replace(str(source.path), source.label)
        text = f"A database could not be read: {reason}."
        notes.append(Note("dropped", code, text, 1, source.label))
    return with_notes(traces, notes)


def read_database(source: ByteSource) -> Sequence[Trace]:
    """Return the traces in a database. Raises InputError where it holds none that is known."""
    from traceflops.parsers.io.database_file import placed
    from traceflops.parsers.io.database_rows import Database

    with placed(source) as place, Database(source, place) as database:
        read = _reader(database.tables)
        if read is None:
            raise _foreign(database)
        source.text_bytes = place.bytes
        traces = read(database)
        if source.stored_bytes is not None:
            source.progress(source.stored_bytes)
        return traces


def _foreign(database: Database) -> NotATrace:
    """Return what to say of a database that no reader knows; its tables may be in the log."""
    names = sorted(database.tables)
    if (other := other_database(names)) is not None:
        return NotATrace(f"{_place(database)} is {other.what}", other.hint)
    if names:
        printable = ["".join(c if c.isprintable() else "?" for c in name[:24]) for name in names]
        named = ", ".join(printable[:_MOST_NAMED])
        more = f", … {len(names)} total" if len(names) > _MOST_NAMED else ""
        return NotATrace(
            f"{_place(database)} is an unknown SQLite database (tables: {named}{more})",
            "give a database from nsys export --type sqlite, rocprof (rocpd, results.db) or RPD",
        )
    from traceflops.parsers.io.database_file import how_to_copy, in_wal_mode

    what = f"{_place(database)} is an SQLite database without tables"
    if not in_wal_mode(database.place.path) and not in_wal_mode(database.source.path):
        return NotATrace(what, "record again")
    label = database.source.label
    return NotATrace(
        f"{what}: its content is in the write-ahead log beside it ({label}-wal), which is missing "
        "or unreadable",
        how_to_copy(label),
    )


def _place(database: Database) -> str:
    return str(database.source.path or database.source.label)


SQLITE: Final = Format(
    "SQLite database", lambda head: head.startswith(MAGIC), _read_databases, gathers=True
)
"""Given all databases at once, since some are repetitions of one run."""


FORMATS: Final = (
    TRACEFLOPS_PACK,
    TRACEFLOPS_PAGE,
    XPLANE,
    SNAPSHOT,
    ROCPROF_TABLES,
    NSYS_STATS,
    NCU,
    or_exported(NSYS_PARQUET, open_parquet),
    or_exported(NSYS_ARROW, open_arrow),
    NSYS_REPORT,
    ROCPROF_JSON,
    ROCPROF_V1_JSON,
    ROCPROF_PERFETTO,
    PYTORCH,
    SQLITE,
    GPU_SAMPLES_TEXT,
)
"""The formats that are read, in the order in which they are asked whether an input is theirs."""

_TELLING_BYTES: Final = 6
"""Of so few bytes it can be told that they are the beginning of a database."""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def recognise(source: ByteSource) -> Format:
    """Return the format of an input, told by its content. Raises InputError if it is none."""
    head = source.head()
    if not head.strip() and source.cut:
        raise InputError(
            f"cut off before its first complete event: {source.label} ({source.cut})",
            "nothing can be recovered; record or copy the trace again",
        )
    if not head.strip():
        raise NotATrace(f"empty file: {source.path or source.label}", "record the trace again")
    text = head.removeprefix(_BYTE_ORDER_MARK)
    format_ = next((known for known in installed_formats() if known.recognises(text)), None)
    if format_ is not None:
        return format_
    other = other_file(text)
    if other is None:
        format_ = next((known for known in FORMATS if known.recognises(text)), None)
        if format_ is not None:
            return format_
        other = other_file(text, source.label, UNKNOWN_FILES)
    what, hint = (other.what, other.hint) if other is not None else _unknown(head)
    raise NotATrace(f"{source.path or source.label} is {what}", hint)


def _unknown(head: bytes) -> tuple[str, str]:
    """Return what an input is that has no sign of anything known, and what to do about it.

    Nothing of its content is said: that may be a secret.
    """
    if len(head) >= _TELLING_BYTES and MAGIC.startswith(head):
        return (
            f"the first {len(head)} bytes of an SQLite database",
            "the rest is lost; copy the database again or record again",
        )
    try:
        is_text = "\0" not in getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        is_text = False
    return (
        f"not a known trace ({'text' if is_text else 'binary data'})",
        "give a torch.profiler trace (.json, .gz, .zst, .zip), a rocprof export (rocpd, CSV, "
        "JSON, pftrace), an nsys report or export (.nsys-rep, SQLite, parquetdir, nsys stats CSV), "
        "an ncu report or CSV page, or an XPlane file (.xplane.pb)",
    )
