"""Recognises a file by its first bytes, a database by its tables; says what to do with others.

A new format is an entry of FORMATS; a new kind of database needs a reader, named in `_reader`.
Formats of installed packages are asked first: they are what somebody chose to add. What they give
is checked, and their failures are errors with their names.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec.structs import replace

from traceflops.errors import InputError, NoContent, NotATrace
from traceflops.parsers.gpu_samples import GPU_SAMPLES_TEXT
from traceflops.parsers.io.arrow_files import open_arrow, open_parquet
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.notes import printable, read_each, with_notes
from traceflops.parsers.nsight import formats as nsight
from traceflops.parsers.other_files import ASCEND, LFS_POINTER, other_file
from traceflops.parsers.pack import TRACEFLOPS_PACK, TRACEFLOPS_PAGE, or_exported
from traceflops.parsers.pytorch.reader import PYTORCH
from traceflops.parsers.pytorch.snapshot import SNAPSHOT
from traceflops.parsers.rocprof import formats as rocprof
from traceflops.parsers.shared.formats import Format, Reading
from traceflops.parsers.unknown_files import UNKNOWN_FILES
from traceflops.parsers.xla.read import XPLANE
from traceflops.plugins import blamed, loaded, plugins
from traceflops.table.packed import check_trace
from traceflops.table.trace import Note, Trace
from traceflops.units import listed

if TYPE_CHECKING:
    from traceflops.parsers.io.database_rows import Database


T = TypeVar("T")
_SQLITE_MAGIC: Final = b"SQLite format 3\x00"
_MOST_NAMED, _LONGEST_NAME = 5, 24
_NSYS_WORK: Final = ("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "OSRT_API")
_NSYS_ABOUT: Final = (
    *("TARGET_INFO_", "META_DATA_", "EXPORT_META_DATA", "ANALYSIS_", "PROFILER_OVERHEAD"),
)


def _any_begins(tables: frozenset[str], *words: str) -> bool:
    return any(table.startswith(words) for table in tables)


def _reader(database: Database) -> Callable[[Database], Sequence[Trace]]:
    """Return the function, imported now, that reads a database. Raises NotATrace if none does."""
    tables = database.tables
    if tables >= {"rocpd_op", "rocpd_string"}:
        from traceflops.parsers.rocprof.rpd import read_rpd as read
    elif _any_begins(tables, "rocpd_"):
        from traceflops.parsers.rocprof.rocpd_read import read_rocpd as read
    elif tables >= {"compute_workload", "compute_metric_definition"}:
        raise NotATrace(
            f"{_path(database)} is a rocprof-compute analysis database, which is not read",
            "give the workload folder (pmc_perf.csv and sysinfo.csv), or record a timeline with "
            "rocprofv3 --kernel-trace --output-format rocpd",
        )
    elif not tables.isdisjoint({"KERN", "OPS", "COPY", "HIP", "HSA", "rocTX"}):
        from traceflops.parsers.rocprof.v1_tables import read_v1_database as read
    elif "StringTable" in tables and _any_begins(tables, "CUPTI_ACTIVITY_KIND_"):
        from traceflops.parsers.nsight.nvprof.tables import read_nvprof as read
    # An export of nsys without any work still has texts and facts about the recording.
    elif _any_begins(tables, *_NSYS_WORK) or (
        "StringIds" in tables and _any_begins(tables, *_NSYS_ABOUT)
    ):
        from traceflops.parsers.nsight.nsys.read import read_nsys as read
    elif not tables.isdisjoint({"STRING_IDS", "CommAnalyzerTime", "ClusterStepTraceTime"}):
        raise NotATrace(f"{_path(database)} is a database of an Ascend NPU", ASCEND)
    else:
        raise _unknown_database(database)
    return read


def _read_databases(sources: Sequence[ByteSource], _: Reading) -> list[Trace]:
    """Return the traces in databases, passes joined. Raises InputError if none can be read."""
    from traceflops.parsers.io.database_file import placed
    from traceflops.parsers.io.database_rows import Database

    def traces_in(source: ByteSource) -> list[tuple[ByteSource, Trace]]:
        with placed(source) as file, Database(source, file) as database:
            read = _reader(database)
            source.text_bytes = file.bytes
            traces = read(database)
            if source.stored_bytes is not None:
                source.progress(source.stored_bytes)
            return [(source, trace) for trace in traces]

    by_source, failed = read_each(sources, traces_in, close=True)
    source_and_trace = [pair for pairs in by_source for pair in pairs]
    from traceflops.parsers.nsight.nsys.process_registry import without_clashes
    from traceflops.parsers.rocprof.counter_passes import without_repeated_passes

    traces = without_clashes(without_repeated_passes(source_and_trace))
    notes = []
    for source, error in failed:
        code = "not-a-trace" if isinstance(error, NotATrace) else "file-not-read"
        reason = error.message.replace(str(source.path), source.label)  # notes show no full path
        text = f"A database could not be read: {reason}."
        notes.append(Note("dropped", code, text, 1, source.label))
    return with_notes(traces, notes)


def _unknown_database(database: Database) -> NotATrace:
    """Return the error for an unknown database; if it has no tables, a lost log may hold them."""
    names = sorted(database.tables)
    if names:
        shown = [printable(name, _LONGEST_NAME) for name in names]
        total = f" {len(names)} total" if len(names) > _MOST_NAMED else ""
        return NotATrace(
            f"{_path(database)} is an unknown SQLite database (tables: {listed(shown)}{total})",
            "give one of nsys export --type sqlite, nvprof, rocprof (rocpd, results.db) or RPD",
        )
    from traceflops.parsers.io.database_file import how_to_copy, in_wal_mode

    what = f"{_path(database)} is an SQLite database without tables"
    if not in_wal_mode(database.file.path) and not in_wal_mode(database.source.path):
        return NotATrace(what, "record again")
    label = database.source.label
    return NotATrace(
        f"{what}: its content is in the write-ahead log beside it ({label}-wal), which is missing "
        "or unreadable",
        how_to_copy(label),
    )


def _path(database: Database) -> str:
    return str(database.source.path or database.source.label)


SQLITE: Final = Format(
    "SQLite database", lambda head: head.startswith(_SQLITE_MAGIC), _read_databases, gathers=True
)
"""Gathers all databases before it reads, since some are repetitions of one run."""
FORMATS: Final = (
    TRACEFLOPS_PACK,
    TRACEFLOPS_PAGE,
    XPLANE,
    SNAPSHOT,
    rocprof.ROCPROF_TABLES,
    nsight.NSYS_STATS,
    nsight.NCU,
    or_exported(nsight.NSYS_PARQUET, open_parquet),
    or_exported(nsight.NSYS_ARROW, open_arrow),
    nsight.NSYS_REPORT,
    rocprof.ROCPROF_JSON,
    rocprof.ROCPROF_V1_JSON,
    rocprof.ROCPROF_PERFETTO,
    PYTORCH,
    SQLITE,
    GPU_SAMPLES_TEXT,
)
"""The formats that are read; the first that recognises an input reads it."""


@cache
def _installed_formats() -> tuple[Format, ...]:
    """Return the formats that installed packages add; their errors name the package.

    Raises UsageError if a format cannot be loaded. If they fail, `recognises` raises UsageError,
    since every input asks it, but `read` InputError: other files of a folder are still read.
    """
    group = "parsers"

    def checked(point: EntryPoint, format_: Format) -> Format:
        """Return `format_` with errors that name its package, and with checks of its traces."""

        def recognises(head: bytes) -> bool:
            with blamed(group, point):
                return bool(format_.recognises(head))

        def read(sources: Sequence[ByteSource], reading: Reading) -> Sequence[Trace]:
            with blamed(group, point, InputError):
                traces = [_of_type(trace, Trace) for trace in format_.read(sources, reading)]
                for trace in traces:
                    check_trace(trace)
                return traces

        return replace(format_, recognises=recognises, read=read, is_checked=False)

    formats = loaded(group, lambda value, *_: _of_type(value, Format))
    return tuple(map(checked, plugins(group), formats))


def _of_type(value: object, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"it gives {type(value).__name__}, not {kind.__name__}")
    return value


UNKNOWN: Final = (
    "give a torch.profiler trace (.json, .gz, .zst, .zip), a rocprof export (rocpd, CSV, JSON, "
    "pftrace), an nsys report or export (.nsys-rep, SQLite, parquetdir, nsys stats CSV), an ncu "
    "report or CSV page, an XPlane file (.xplane.pb), a memory snapshot of PyTorch (.pickle), or "
    "samples of nvidia-smi or amd-smi (CSV); traceflops recipe says how to record one"
)
"""The hint on a file that may be anything."""


def recognise(source: ByteSource) -> Format:
    """Return the format of an input, by its first bytes. Raises InputError if it has none.

    Order: formats of installed packages, files of other tools to refuse, our formats. Last come
    refused files that are recognised only if no format fits, by content or name.
    """
    head = source.head()
    if not head.strip() and source.cut:
        raise InputError(
            f"cut off before its first complete event: {source.label} ({source.cut})",
            "nothing can be recovered; record or copy the trace again",
        )
    if not head.strip():
        raise NoContent(f"empty file: {source.path or source.label}", "record the trace again")
    text = head.removeprefix(b"\xef\xbb\xbf")  # the byte order mark

    def format_among(formats: Sequence[Format]) -> Format | None:
        return next((format_ for format_ in formats if format_.recognises(text)), None)

    if (format_ := format_among(_installed_formats())) is not None:
        return format_
    refused = other_file(text)
    if refused is None and (format_ := format_among(FORMATS)) is not None:
        return format_
    refused = refused or other_file(text, source.label, UNKNOWN_FILES)
    path = source.path or source.label
    if refused is not None:
        kind = NoContent if refused is LFS_POINTER else NotATrace
        raise kind(f"{path} is {refused.what}", refused.hint)
    # Fewer than 6 bytes may be the beginning of anything.
    if len(head) >= 6 and _SQLITE_MAGIC.startswith(head):
        raise NoContent(
            f"{path} is the first {len(head)} bytes of an SQLite database",
            "the rest is lost; copy the database again or record again",
        )
    try:  # incrementally: `head` may end within a character
        is_text = "\0" not in getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        is_text = False
    # Nothing of the content is shown, since it may be secret.
    raise (NotATrace if is_text else NoContent)(
        f"{path} is not a known trace ({'text' if is_text else 'binary data'})", UNKNOWN
    )
