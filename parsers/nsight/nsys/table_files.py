"""Reads folders of the tables of a report: nsys export --type parquetdir and --type arrowdir."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final

import pyarrow as pa

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io import ByteSource
from traceflops.parsers.nsight.batches import UNREADABLE, refuse_packed, sound
from traceflops.parsers.nsight.nsys.ranks import without_clashes
from traceflops.parsers.nsight.nsys.read import trace_of
from traceflops.parsers.nsight.nsys.tables import Folder, TableFile
from traceflops.parsers.nsight.unreadable_files import Failed, with_set_aside
from traceflops.table import SourceFile, Trace

if TYPE_CHECKING:
    from traceflops.parsers.nsight.recipe import Opened

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traceflops.parsers.nsight.recipe import Opened

PARQUET: Final = "nsys-parquet"
ARROW: Final = "nsys-arrow"

_BATCH_ROWS: Final = 1 << 15
_NAMES: Final = re.compile(
    r"(?:CUPTI_ACTIVITY_KIND|TARGET_INFO|META_DATA|ENUM|NVTX|OSRT|CUDA|GPU|MPI|UCP|NET|CUBLAS|CUDNN"
    r"|ANALYSIS|SCHED|COMPOSITE|SAMPLING|DIAGNOSTIC|EXPORT_META)_[A-Z0-9_]+"
    r"|StringIds|PROFILER_OVERHEAD|PROCESSES|ThreadNames|ProcessStreams|GENERIC_EVENTS"
)
"""What tables of reports are named; their files are named after them."""
_BY_COLUMNS: Final[tuple[tuple[str, frozenset[str]], ...]] = (
    ("CUPTI_ACTIVITY_KIND_KERNEL", frozenset({"start", "end", "gridX", "demangledName"})),
    ("CUPTI_ACTIVITY_KIND_MEMCPY", frozenset({"start", "end", "bytes", "copyKind"})),
    ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", frozenset({"start", "end", "streamId", "graphExecId"})),
    ("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", frozenset({"start", "end", "syncType"})),
    ("CUPTI_ACTIVITY_KIND_RUNTIME", frozenset({"start", "end", "correlationId", "returnValue"})),
    ("NVTX_EVENTS", frozenset({"start", "eventType", "globalTid", "textId"})),
)
"""By which columns a table is known whose file was given another name."""
_WORK: Final = ("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "OSRT_API")


def table_of(name: str, columns: Sequence[str]) -> str | None:
    """Return which table of a report a file holds; None where it holds none."""
    stem = name.partition(".")[0]
    if _NAMES.fullmatch(stem):
        return stem
    return next((table for table, needed in _BY_COLUMNS if needed <= set(columns)), None)


@dataclass(frozen=True, slots=True)
class _Arrow:
    """A table in an Arrow file or stream."""

    source: ByteSource
    columns: Sequence[str]

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Give some of the columns, some rows at a time."""
        fields = [self.columns.index(name) for name in columns]
        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        for batch in sound(_arrow_batches(self.source, options), self.source):
            for first in range(0, batch.num_rows, _BATCH_ROWS):
                yield batch.slice(first, _BATCH_ROWS)


def read_parquet_tables(files: Sequence[Opened]) -> list[Trace]:
    """Return the traces of folders of Parquet files. Raises InputError where there is none."""
    return _read_folders(files, PARQUET)


def read_arrow_tables(sources: Sequence[ByteSource]) -> list[Trace]:
    """Return the traces of folders of Arrow files. Raises InputError where there is none."""
    known: list[_Arrow] = []
    failed: list[Failed] = []
    for source in sources:
        try:
            file = _Arrow(source, _arrow_columns(source))
        except InputError as error:
            failed.append((source.label, error))
            continue
        if table_of(source.name, file.columns) is None:
            failed.append((source.label, _unknown(file)))
        else:
            known.append(file)
    return with_set_aside(_read_folders(known, ARROW) if known else [], failed)


def _unknown(file: _Arrow) -> NotATrace:
    listed = ", ".join("".join(c for c in one[:30] if c.isprintable()) for one in file.columns[:5])
    return NotATrace(
        f"{file.source.path or file.source.label} is an unknown Arrow file (columns: {listed})",
        "give the folder written by nsys export --type arrowdir, or the SQLite export of the "
        "report",
    )


def _read_folders(files: Sequence[Opened | _Arrow], format_: str) -> list[Trace]:
    """Return the trace of each folder; files of one folder are the tables of one report."""
    by_folder: defaultdict[str, dict[str, Opened | _Arrow]] = defaultdict(dict)
    for file in files:
        table = table_of(file.source.name, file.columns)
        if table is not None:
            by_folder[file.source.folder].setdefault(table, file)
    traces: list[Trace] = []
    failed: list[Failed] = []
    for tables in by_folder.values():
        try:
            traces.append(_read_folder(tables, format_))
        except InputError as error:
            failed += [(file.source.label, error) for file in tables.values()]
    return with_set_aside(without_clashes(traces), failed)


def _read_folder(tables: Mapping[str, Opened | _Arrow], format_: str) -> Trace:
    first = next(iter(tables.values())).source
    if not any(table.startswith(_WORK) for table in tables):
        raise NotATrace(
            f"no table of GPU operations among the files: {first.label}",
            "give the whole folder written by nsys export --type parquetdir or arrowdir",
        )
    sources = [file.source for file in tables.values()]
    files = tuple(SourceFile(one.label, one.stored_bytes, one.stored_bytes) for one in sources)
    readable: dict[str, TableFile] = dict(tables)
    folder = Folder(first, readable)
    return trace_of(folder, format_, files, _folder_name(first))


def _folder_name(source: ByteSource) -> str:
    """Return the name of the folder, which stands for the report: its files have common names."""
    folder = source.label.rpartition("/")[0]
    return folder or re.split(r"[/\\]", source.folder.rstrip("/\\"))[-1] or source.label


def _arrow_columns(source: ByteSource) -> tuple[str, ...]:
    """Return the columns of an Arrow file. Raises InputError where it is damaged."""
    try:
        with _opened(source) as stream:
            with _reader(stream, None) as reader:
                names = tuple(reader.schema.names)
            stream.seek(_FILE_STARTS if _is_file(stream) else 0)
            refuse_packed(stream, source)
            return names
    except UNREADABLE as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(
            f"damaged or cut Arrow file: {source.label} ({reason})",
            "copy or export it again",
        ) from None


def _arrow_batches(source: ByteSource, options: pa.ipc.IpcReadOptions) -> Iterator[pa.RecordBatch]:
    with _opened(source) as stream, _reader(stream, options) as reader:
        if isinstance(reader, pa.ipc.RecordBatchFileReader):
            for place in range(reader.num_record_batches):
                yield reader.get_batch(place)
        else:
            yield from reader


def _opened(source: ByteSource) -> Any:
    """Return an input as something that Arrow can read anywhere in."""
    if source.path is not None and _begins(source.path.open("rb")).startswith(_STARTS):
        return pa.OSFile(str(source.path), "rb")
    return pa.BufferReader(b"".join(source.blocks()))


_FILE, _STREAM = b"ARROW1", b"\xff\xff\xff\xff"
_FILE_STARTS: Final = 8
_STARTS: Final = (_FILE, _STREAM)


def _begins(stream: IO[bytes]) -> bytes:
    with stream:
        return stream.read(8)


def _reader(stream: Any, options: pa.ipc.IpcReadOptions | None) -> Any:
    make = pa.ipc.open_file if _is_file(stream) else pa.ipc.open_stream
    return make(stream, options=options)


def _is_file(stream: Any) -> bool:
    stream.seek(0)
    is_file: bool = stream.read(len(_FILE)) == _FILE
    stream.seek(0)
    return is_file


# Parquet files of Nsight Systems, told apart by their columns.


def _recipes(files: Sequence[Opened]) -> Sequence[Trace]:
    from traceflops.parsers.nsight.recipe import read_recipes

    return read_recipes(files)


def _tables(files: Sequence[Opened]) -> Sequence[Trace]:
    from traceflops.parsers.nsight.nsys.table_files import read_parquet_tables

    return read_parquet_tables(files)


def _is_table(file: Opened) -> bool:
    from traceflops.parsers.nsight.nsys.table_files import table_of

    return table_of(file.source.name, file.columns) is not None


KINDS: Final[tuple[tuple[Callable[[Opened], bool], Callable[..., Sequence[Trace]]], ...]] = (
    (lambda file: file.has_ranges or file.has_devices, _recipes),
    (_is_table, _tables),
)
"""By what a Parquet file is known, and what reads all files of that kind."""


def read_parquet(sources: Sequence[ByteSource]) -> list[Trace]:
    """Return the traces in Parquet files. Raises InputError where none is known."""
    from traceflops.parsers.nsight.recipe import opened
    from traceflops.parsers.nsight.unreadable_files import with_set_aside

    kinds: list[list[Opened]] = [[] for _ in KINDS]
    failed: list[Failed] = []
    for source in sources:
        try:
            file = opened(source)
        except InputError as error:
            failed.append((source.label, error))
            continue
        place = next((at for at, (knows, _) in enumerate(KINDS) if knows(file)), None)
        if place is None:
            failed.append((source.label, _recipe_format_unknown(file)))
        else:
            kinds[place].append(file)
    traces: list[Trace] = []
    for files, (_, reader) in zip(kinds, KINDS, strict=True):
        if not files:
            continue
        try:
            traces += reader(files)
        except InputError as error:
            failed += [(file.source.label, error) for file in files]
    return with_set_aside(traces, failed)


def _recipe_format_unknown(file: Opened) -> NotATrace:
    listed = ", ".join(_printable(name) for name in file.columns[:5])
    return NotATrace(
        f"{file.source.path or file.source.label} is an unknown Parquet file (columns: {listed})",
        "give the SQLite export of the report (nsys export --type sqlite), or trace.parquet of "
        "the recipe nvtx_gpu_proj_trace",
    )


def _printable(name: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in name[:30])
