"""What a file is, told by its first bytes, a database by its tables; or what to do instead.

A new format has its place in FORMATS; a new kind of database needs a reader and a row in SCHEMAS.
Formats of installed packages are asked first: they are what somebody chose to add.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.gpu_samples import GPU_SAMPLES_TEXT
from traceflops.parsers.installed import installed_formats
from traceflops.parsers.io import ByteSource, open_arrow, open_parquet, read_each, with_notes
from traceflops.parsers.nsight import (
    NCU,
    NSYS_ARROW,
    NSYS_PARQUET,
    NSYS_REPORT,
    NSYS_STATS,
)
from traceflops.parsers.other_files import console_text, other_database, other_file, other_name
from traceflops.parsers.pack import TRACEFLOPS_PACK, TRACEFLOPS_PAGE, or_exported
from traceflops.parsers.pytorch import PYTORCH, SNAPSHOT
from traceflops.parsers.rocprof import (
    ROCPROF_JSON,
    ROCPROF_PERFETTO,
    ROCPROF_TABLES,
    ROCPROF_V1_JSON,
)
from traceflops.parsers.shared import Format, Reading
from traceflops.parsers.xla import XPLANE
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


def _is_nvprof(tables: Tables) -> bool:
    """Return whether there are records of CUPTI beside the table that nvprof has for texts."""
    return "StringTable" in tables and _any_begins(tables, "CUPTI_ACTIVITY_KIND_")


def _read_nvprof(database: Database) -> Sequence[Trace]:
    from traceflops.parsers.nsight import read_nvprof

    return read_nvprof(database)


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
    (_is_nvprof, _read_nvprof),
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
        return _without_tables(database)
    if (other := other_database(names)) is not None:
        return NotATrace(f"{_place(database)} is {other.what}", other.hint)
    named = ", ".join(_printable_name(name) for name in names[:_MOST_NAMED])
    more = f", … {len(names)} total" if len(names) > _MOST_NAMED else ""
    return NotATrace(
        f"{_place(database)} is an unknown SQLite database (tables: {named}{more})",
        "give a database from nsys export --type sqlite, rocprof (rocpd, results.db) or RPD",
    )


def _without_tables(database: Database) -> NotATrace:
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


def _printable_name(name: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in name[:24])


SQLITE: Final = Format(
    "SQLite database", lambda head: head.startswith(MAGIC), _read_databases, gathers=True
)
"""Given all databases at once, since some are repetitions of one run."""


_FOREIGN_COLUMNS = "give the table as rocprof wrote it, or the whole folder"
_NSYS = "export the report as SQLite: nsys export --type sqlite --include-json=true REPORT.nsys-rep"
_UNPACK = "unpack it and give the traces, or pack them with gzip, zstd, LZ4 or zip"

_EXPORT: Final = "export the run again: rocprofv3 --output-format rocpd, or json, or csv"
_SAME_RUN: Final = "give the profiler's trace of the same run (prof.export_chrome_trace)"
_SIGNS: Final = (
    (
        rb"version https://git-lfs",
        "a git-lfs pointer, not the file itself",
        "run git lfs pull and try again",
    ),
    (rb"PK\x03\x04", "a zip archive inside another archive, which is not read", _UNPACK),
    (rb"[\s\S]{257}ustar", "a tar archive, which is not read", _UNPACK),
    (rb"BZh[1-9]", "packed with bzip2, which is not read", _UNPACK),
    (rb"\xfd7zXZ\x00", "packed with xz, which is not read", _UNPACK),
    (rb"\x02\x21\x4c\x18", "packed in LZ4's legacy format, which is not read", _UNPACK),
    (rb"7z\xbc\xaf|Rar!", "a 7z or rar archive, which is not read", _UNPACK),
    (
        rb"(?i)\s*<(?:!doctype|html|\?xml|head|body)"
        rb'(?![\s\S]{0,4096}?name="generator" content="traceflops )',
        "a web page (HTML), not a trace",
        "give the recording; if a server sent this page for it, download the file again",
    ),
    (
        rb"\xff\xfe|\xfe\xff",
        "text in UTF-16",
        "convert it to UTF-8 (iconv -f utf-16 -t utf-8)",
    ),
    (
        rb"\x37\x7f\x06[\x82\x83]|\xd9\xd5\x05\xf9\x20\xa1\x63\xd7|\x18\xe2\x2d\x00",
        "a log of an SQLite database (-wal, -shm, -journal), not the database",
        "give the database beside it; its log is read too",
    ),
    (
        rb"\x03[#B]",
        "part of an OTF2 archive",
        _EXPORT,
    ),
    (
        rb'\s*,\s*\{\s*"(?:args|ph|ts)"\s*:',
        "a rocprof (v1) JSON export without its beginning, a known rocprof bug",
        "use results.csv or results.db of the same run",
    ),
    (
        rb'\s*\{\s*"traceEvents"\s*:\s*\[\s*\{\s*"args"\s*:\s*\{\s*'
        rb'(?:"cid"\s*:\s*\d|"name"\s*:\s*"CPU"\s*\}\s*,\s*"name"\s*:\s*"process_name"'
        rb'\s*,\s*"ph"\s*:\s*"M"\s*,\s*"pid"\s*:\s*1\s*,\s*"sort_index"\s*:\s*0)',
        "rocprofv2 plugin JSON, whose times are truncated to microseconds and whose copies "
        "name no GPU",
        "give the tables of the same run (rocprofv2 --plugin file), or record with rocprofv3",
    ),
    (
        rb'\s*\{(?=[^{}\[\]]*"schema"\s*:)[^{}\[\]]*"nodes"\s*:|\s*\{\s*"nodes"\s*:',
        "a PyTorch execution trace (Chakra) without GPU times",
        _SAME_RUN,
    ),
    (
        rb'\s*\{\s*"\d{1,20}"\s*:\s*["\[]',
        "annotations of CUDA graph nodes without GPU times",
        "merge them into the trace: python -m torch.cuda._annotate_cuda_graph_trace TRACE",
    ),
    (
        rb'\s*\{\s*"(?:preToPost|postToPre|cppCodeToPost|postToCppCode)"\s*:'
        rb'|\s*\{\s*"(?:triton_|extern_kernels\.)[\w.]{1,200}(?::\d{1,9})?"\s*:\s*\[',
        "a map from Inductor's kernels to source lines, without GPU times",
        "record with TORCH_COMPILE_DEBUG_EXTEND=1 and torch._inductor.profiler."
        "inductor_trace_handler: then the trace has them",
    ),
    (
        rb'\s*\{\s*"displayTimeUnit"\s*:\s*"ns"\s*,\s*"metadata"\s*:\s*\{\s*"highres-ticks"',
        "a JSON export of XLA's profiler, which is less complete than its own file",
        "give the file HOST.xplane.pb beside it",
    ),
    (
        rb"\s*\[\s*\[\s*-?\d",
        "a memory timeline export without GPU times",
        _SAME_RUN,
    ),
    (
        rb"(?:[^\n]*\n){0,20}?(?:dispatch\[\d+\], gpu_id\(|Record\s*[(\[]\d+.{0,4}Domain)",
        "a rocprofv2 text listing (ROCm 5.5 and 5.6), not a table",
        "record with rocprofv3 --kernel-trace, or with rocprofv2 --plugin file (ROCm 5.7 or later)",
    ),
    (
        rb"ARROW1[\s\S]{1,400}?summary/\d{1,9}\0{1,4}\n\0{3}traceflops",
        "a summary of traceflops reduce, no recording",
        "give it to traceflops report or summary, or give the recording",
    ),
    (rb"\x89HDF", "an HDF5 file (nsys export --type hdf)", _NSYS),
    (
        rb'\s*\{\s*"(?:data"\s*:\s*\[|Type"\s*:\s*\d+\s*,\s*"\w+"\s*:\s*\{'
        rb'|(?:Cuda|Nvtx|TraceProcess|Uuid)Event"\s*:)',
        "an Nsight Systems JSON export, which is less complete than SQLite",
        _NSYS,
    ),
    (
        rb'\s*[\[{]\s*(?:[{"]\s*)?"?(?:Time ?\(%\)|Start ?\(\w+\)|Total Time \(\w+\))"',
        "an nsys stats report as JSON",
        "write it as CSV: nsys stats --format csv",
    ),
    (
        rb"\x80[\x02-\x05](?![\s\S]{0,50}segments)",
        "a Python pickle, which is unsafe to open",
        "export the trace as JSON; a memory snapshot of PyTorch is read as it is",
    ),
)
"""What inputs begin with that are not read: a sign, what it is, and what to do about it."""

_TABLES: Final = (
    (
        rb'(?i)\s*"?(?:Kind|Domain|Index|Guid|Node_Id|Dispatch_Id|Correlation_Id)"?,'
        rb'|\s*"?Name"?,"?Calls"?,"?TotalDurationNs"?',
        "a rocprof table that lacks columns",
        _FOREIGN_COLUMNS,
    ),
    (
        rb'(?i)\s*"?(?:Time ?\(%\)|Start ?\(\w+\)|Total ?\(\w+\))"?\s*[,;\t]',
        "an Nsight Systems table without CUDA work",
        "give cuda_gpu_trace or cuda_gpu_kern_sum of the same report, or export it: nsys "
        "export --type sqlite",
    ),
    (
        rb'(?i)\s*"?ID"?,"?Process ID"?,',
        "an Nsight Compute table without metrics",
        "export again: ncu --import FILE --csv --page raw",
    ),
    (
        rb"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}, ",
        "samples of nvidia-smi without a header",
        "record them with their header: --format=csv alone",
    ),
    (
        rb"==PROF==|  Section: ",
        "Nsight Compute console output without a table",
        "profile with ncu --csv --page raw --log-file kernels.csv",
    ),
)
"""What the first lines of tables look like that no format takes."""

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

_LINES_LOOKED_AT: Final = 20
_TELLING_BYTES: Final = 6
"""Of so few bytes it can be told that they are the beginning of a database."""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def recognise(source: ByteSource) -> Format:
    """Return the format of an input, told by its content. Raises InputError if it is none."""
    head = source.head()
    if not head.strip():
        raise _empty(source)
    text = head.removeprefix(_BYTE_ORDER_MARK)
    format_ = next((known for known in installed_formats() if known.recognises(text)), None)
    if format_ is not None:
        return format_
    if (other := other_file(text)) is not None:
        raise _not_a_trace(source, other.what, other.hint)
    for sign, what, hint in _SIGNS:
        if re.match(sign, text):
            raise _not_a_trace(source, what, hint)
    format_ = next((known for known in FORMATS if known.recognises(text)), None)
    if format_ is None:
        other = console_text(text) or other_name(source.label)
        what, hint = (other.what, other.hint) if other is not None else _unknown(head)
        raise _not_a_trace(source, what, hint)
    return format_


def _empty(source: ByteSource) -> InputError:
    if source.cut:
        return InputError(
            f"cut off before its first complete event: {source.label} ({source.cut})",
            "nothing can be recovered; record or copy the trace again",
        )
    return NotATrace(f"empty file: {source.path or source.label}", "record the trace again")


def _not_a_trace(source: ByteSource, what: str, hint: str) -> NotATrace:
    return NotATrace(f"{source.path or source.label} is {what}", hint)


def _unknown(head: bytes) -> tuple[str, str]:
    """Return what an input is that has no sign of anything known, and what to do about it."""
    if len(head) >= _TELLING_BYTES and MAGIC.startswith(head):
        return (
            f"the first {len(head)} bytes of an SQLite database",
            "the rest is lost; copy the database again or record again",
        )
    lines = head.removeprefix(_BYTE_ORDER_MARK).splitlines()[:_LINES_LOOKED_AT]
    for sign, what, hint in _TABLES:
        if any(re.match(sign, line) for line in lines):
            return what, hint
    return (
        f"not a known trace ({_kind_of(head)})",
        "give a torch.profiler trace (.json, .gz, .zst, .zip), a rocprof export (rocpd, CSV, "
        "JSON, pftrace), an nsys report or export (.nsys-rep, SQLite, parquetdir, nsys stats CSV), "
        "an ncu report or CSV page, or an XPlane file (.xplane.pb)",
    )


def _kind_of(head: bytes) -> str:
    """Return what bytes are, and nothing of what they say: that may be a secret."""
    try:
        return "binary data" if "\0" in getincrementaldecoder("utf-8")().decode(head) else "text"
    except UnicodeDecodeError:
        return "binary data"
