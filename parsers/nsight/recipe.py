"""Reads what recipes of Nsight Systems write: ranges projected on the GPU, facts of devices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io import ByteSource, NoteTable
from traceflops.parsers.nsight.batches import UNREADABLE, sound
from traceflops.parsers.nsight.stats.rows import UNNAMED_RANGE
from traceflops.parsers.shared import Gathered, ProcessFacts, overflow_notes
from traceflops.table import (
    ABSENT,
    Array,
    IntArray,
    Names,
    Source,
    SourceFile,
    Trace,
    codes,
    names,
    numbers,
    validity,
)

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

FORMAT: Final = "nsys recipe"
_RANGES: Final = frozenset({"Name", "Projected Start", "Projected Duration"})
_USED: Final = ("Name", "Projected Start", "Projected Duration", "PID", "TID", "Rank", "NumGPUOps")
_TUPLE: Final = re.compile(r"^\('(\w{1,80})', '(\w{1,80})'\)$")
_GPU: Final = "TARGET_INFO_GPU"
_BATCH_ROWS: Final = 1 << 15
_FEW: Final = 64
_LIMIT: Final = 2**61
_MOST_RANKS: Final = 2**31
_FACTS: Final = {
    "name": "gpu",
    "totalMemory": "gpu_memory_bytes",
    "memoryBandwidth": "gpu_memory_bytes_per_s",
    "clockRate": "gpu_clock_hz",
    "smCount": "gpu_sm_count",
    "computeMajor": "gpu_compute_major",
    "computeMinor": "gpu_compute_minor",
}

_NOTES: Final = NoteTable(
    repaired={
        "nameless-ranges": "{count} [range|ranges] without a name, shown as '(unnamed range)'.",
    },
    dropped={
        "no-time": "{count} [range|ranges] skipped: no valid time.",
    },
    missing={
        "no-device-work": (
            "The recipe's output holds NVTX ranges projected on the GPU, not kernels: range times, "
            "but no idle time, overlap or MFU. Give the SQLite export of the report (nsys export "
            "--type sqlite)."
        ),
    },
)


@dataclass(frozen=True, slots=True)
class Opened:
    """A Parquet file and where it came from."""

    source: ByteSource
    file: ParquetFile
    columns: tuple[str, ...]

    def batches(self, columns: Sequence[str], rows: int = _BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Give some of the columns, some rows at a time. Raises where the file is damaged."""
        wanted = [name for name in columns if name in self.columns]
        batches = self.file.iter_batches(rows, columns=wanted, use_threads=False)
        yield from sound(batches, self.source)

    @property
    def has_ranges(self) -> bool:
        """Return whether it is the output of the recipe nvtx_gpu_proj_trace."""
        return set(self.columns) >= _RANGES

    @property
    def has_devices(self) -> bool:
        """Return whether it is a table of devices, its columns named by pairs of words."""
        return (_GPU, "name") in map(pair_of, self.columns)


def pair_of(column: str) -> tuple[str, str] | None:
    """Return the two words of a column that is named by the text of a pair, else None."""
    found = _TUPLE.match(column[:200])
    return (found[1], found[2]) if found else None


def opened(source: ByteSource) -> Opened:
    """Return a Parquet file. Raises InputError where it is damaged."""
    from pyarrow import parquet

    try:
        place = source.path
        if place is not None and _is_plain(place):
            file = parquet.ParquetFile(str(place))
        else:
            file = parquet.ParquetFile(pa.BufferReader(b"".join(source.blocks())))
        columns = tuple(file.schema_arrow.names)
        groups = map(file.metadata.row_group, range(file.num_row_groups))
        source.refuse_expansion(sum(group.total_byte_size for group in groups))
    except UNREADABLE as error:
        raise damaged(source, error) from None
    return Opened(source, file, columns)


def _is_plain(place: Path) -> bool:
    """Return whether a file is not compressed as a whole."""
    with place.open("rb") as stream:
        return stream.read(4) == b"PAR1"


def damaged(source: ByteSource, error: BaseException) -> InputError:
    """Return what to say of a Parquet file that cannot be read."""
    reason = " ".join(str(error).split())[:120]
    return InputError(
        f"damaged or cut Parquet file: {source.label} ({reason})",
        "its index was at the end, so nothing can be recovered; copy or export it again",
    )


def read_recipes(files: Sequence[Opened]) -> list[Trace]:
    """Return the traces of files of ranges; files of devices tell of those beside them.

    Raises InputError where there are no ranges.
    """
    ranges = [file for file in files if file.has_ranges]
    devices = [file for file in files if file.has_devices]
    if not ranges:
        raise NotATrace(
            f"only a list of the machine's GPUs: {files[0].source.label}",
            "give the SQLite export of the report (nsys export --type sqlite), or the recipe's "
            "trace.parquet beside it",
        )
    return [_trace(file, _beside(file, devices, len(ranges))) for file in ranges]


def _beside(file: Opened, devices: Sequence[Opened], traces: int) -> list[Opened]:
    """Return the tables of devices that are of a file: in its folder or the one above."""
    folder = PurePath(file.source.folder)
    return [
        one
        for one in devices
        if traces == 1 or PurePath(one.source.folder) in (folder, folder.parent)
    ]


def _trace(file: Opened, devices: Sequence[Opened]) -> Trace:
    source = file.source
    gathered = Gathered()
    counts = {"nameless-ranges": 0, "no-time": 0, "ranges": 0, "operations": 0}
    try:
        for batch in file.batches(_USED):
            _add(batch, source, gathered, counts)
    except UNREADABLE as error:
        raise damaged(source, error) from None
    if not gathered["marks"].count:
        raise InputError(
            f"no range with a valid time: {source.label}",
            "run the recipe again, or use nsys export",
        )
    overflowed = gathered.overflowed
    made = Source(
        format=FORMAT,
        files=tuple(
            SourceFile(one.source.label, one.source.stored_bytes, one.source.stored_bytes)
            for one in (file, *devices)
        ),
        tool="Nsight Systems recipe nvtx_gpu_proj_trace",
        facts=dict(fact for one in devices for fact in _device_facts(one)),
        event_counts={
            "nvtx_gpu_proj_trace": counts["ranges"],
            "GPU operations in ranges": counts["operations"],
        },
    )
    notes = [
        *_NOTES.counted(counts, "nameless-ranges", "no-time"),
        _NOTES.note("no-device-work"),
        *overflow_notes(overflowed, source.label),
    ]
    return Trace(made, gathered.finish(), tuple(replace(one, file=source.label) for one in notes))


def _add(
    batch: pa.RecordBatch, source: ByteSource, gathered: Gathered, counts: dict[str, int]
) -> None:
    """Add the ranges of some rows."""
    start, length = whole(batch, "Projected Start"), whole(batch, "Projected Duration")
    known = (start != ABSENT) & (np.abs(start) < _LIMIT) & (length >= 0) & (length < _LIMIT)
    operations = whole(batch, "NumGPUOps")
    counts["ranges"] += batch.num_rows
    counts["no-time"] += int(np.count_nonzero(~known))
    counts["operations"] += int(operations[(operations > 0) & (operations < 2**40)].sum())
    table = gathered["marks"]
    name = texts(batch, "Name", table.names["name"])
    counts["nameless-ranges"] += int(np.count_nonzero(name < 0))
    name = np.where(name < 0, table.names["name"][UNNAMED_RANGE], name)
    process = _processes(whole(batch, "PID"), whole(batch, "Rank"), source, gathered)
    columns: dict[str, Array] = {
        "process": process,
        "thread": whole(batch, "TID"),
        "name": name,
        "start_ns": start,
        "dur_ns": length,
    }
    table.add(
        int(np.count_nonzero(known)),
        kind=table.names["kind"]["gpu_annotation"],
        **{column: values[known] for column, values in columns.items()},
    )


def _processes(pid: IntArray, rank: IntArray, source: ByteSource, gathered: Gathered) -> IntArray:
    pairs, place = np.unique(np.stack([pid, rank]), axis=1, return_inverse=True)
    numbered = []
    for one, of in pairs.T.tolist():
        facts = ProcessFacts(
            source.label,
            rank=of if 0 <= of < _MOST_RANKS else None,
            pid=None if one == ABSENT else one,
        )
        numbered.append(gathered.process((one, of), facts))
    return np.array(numbered, np.int64)[place.reshape(-1)]


def whole(batch: pa.RecordBatch, column: str) -> IntArray:
    """Return a column of whole numbers, also where missing values made doubles of it."""
    absent = np.full(batch.num_rows, ABSENT, np.int64)
    if column not in batch.schema.names:
        return absent
    values = batch.column(column)
    if pa.types.is_integer(values.type):
        return numbers(values, ABSENT)
    if not pa.types.is_floating(values.type):
        return absent
    exact = values.cast(pa.float64())
    raw = np.frombuffer(exact.buffers()[1], np.float64)[exact.offset : exact.offset + len(exact)]
    valid = validity(exact)
    fits = np.isfinite(raw) & (np.abs(raw) < 2.0**62) & (True if valid is None else valid)
    return np.where(fits, np.rint(np.where(fits, raw, 0.0)).astype(np.int64), absent)


def texts(batch: pa.RecordBatch, column: str, known: Names) -> Array:
    """Return a column of texts as codes of `known`, -1 for null and for what is no text."""
    values = batch.column(column)
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return np.full(batch.num_rows, -1, np.int32)
    coded = values.dictionary_encode()
    own = known.codes(names(coded))
    return np.append(own, np.int32(-1))[codes(coded)].astype(np.int32)


def _device_facts(file: Opened) -> Iterator[tuple[str, str]]:
    """Yield what a table of devices says of the first; further ones of its kind are the same."""
    wanted = {pair: column for column in file.columns if (pair := pair_of(column)) is not None}
    columns = {
        _FACTS[pair[1]]: column
        for pair, column in wanted.items()
        if pair[0] == _GPU and pair[1] in _FACTS
    }
    try:
        batch = next(file.batches(list(columns.values()), _FEW), None)
    except UNREADABLE:
        return
    row: Mapping[str, Any] = batch.slice(0, 1).to_pylist()[0] if batch and batch.num_rows else {}
    for fact, column in columns.items():
        value = row.get(column)
        if isinstance(value, str | int | float):
            yield fact, str(int(value) if isinstance(value, float) else value)[:200]
    if batch is not None and batch.num_rows > 1:
        yield "gpus", str(batch.num_rows)
