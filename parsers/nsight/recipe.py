"""Reads what recipes of Nsight Systems write: ranges projected on the GPU, facts of devices."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, Final

import numpy as np
import pyarrow as pa

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io import ARROW_UNREADABLE, ArrowTable, ByteSource, NoteTable, damaged_arrow
from traceflops.parsers.nsight.nsys.tables import integers
from traceflops.parsers.nsight.stats_rows import UNNAMED_RANGE
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
    group_rows,
    names,
)

FORMAT: Final = "nsys recipe"
_RANGES: Final = frozenset({"Name", "Projected Start", "Projected Duration"})
_USED: Final = ("Name", "Projected Start", "Projected Duration", "PID", "TID", "Rank", "NumGPUOps")
_TUPLE: Final = re.compile(r"^\('(\w{1,80})', '(\w{1,80})'\)$")
_GPU: Final = "TARGET_INFO_GPU"
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
    dropped={"no-time": "{count} [range|ranges] skipped: no valid time."},
    missing={
        "no-device-work": (
            "The recipe's output holds NVTX ranges projected on the GPU, not kernels: range times, "
            "but no idle time, overlap or MFU. Give the SQLite export of the report (nsys export "
            "--type sqlite)."
        ),
    },
)


def is_of_recipe(file: ArrowTable) -> bool:
    """Return whether a file is the output of nvtx_gpu_proj_trace, or a table of devices."""
    return _has_ranges(file) or (_GPU, "name") in map(_pair_of, file.columns)


def _has_ranges(file: ArrowTable) -> bool:
    return set(file.columns) >= _RANGES


def _pair_of(column: str) -> tuple[str, str] | None:
    """Return the two words of a column that is named by the text of a pair, else None."""
    match = _TUPLE.match(column[:200])
    return (match[1], match[2]) if match else None


def read_recipes(files: Sequence[ArrowTable]) -> list[Trace]:
    """Return the traces of files of ranges; files of devices tell of those beside them.

    Raises InputError where there are no ranges.
    """
    ranges = [file for file in files if _has_ranges(file)]
    devices = [file for file in files if not _has_ranges(file)]
    if not ranges:
        raise NotATrace(
            f"only a list of the machine's GPUs: {files[0].source.label}",
            "give the SQLite export of the report (nsys export --type sqlite), or the recipe's "
            "trace.parquet beside it",
        )
    return [_trace(file, _beside(file, devices, len(ranges))) for file in ranges]


def _beside(file: ArrowTable, devices: Sequence[ArrowTable], traces: int) -> list[ArrowTable]:
    """Return the tables of devices that are of a file: in its folder or the one above."""
    folder = PurePath(file.source.folder)
    near = (folder, folder.parent)
    return [device for device in devices if traces == 1 or PurePath(device.source.folder) in near]


def _trace(file: ArrowTable, devices: Sequence[ArrowTable]) -> Trace:
    source, gathered, counts = file.source, Gathered(), Counter[str]()
    try:
        for batch in file.batches(_USED):
            _add(batch, source, gathered, counts)
    except ARROW_UNREADABLE as error:
        raise damaged_arrow(source, error) from None
    if not gathered["marks"].count:
        hint = "run the recipe again, or use nsys export"
        raise InputError(f"no range with a valid time: {source.label}", hint)
    files = [one.source for one in (file, *devices)]
    made = Source(
        format=FORMAT,
        files=tuple(
            SourceFile(a_file.label, a_file.stored_bytes, a_file.stored_bytes) for a_file in files
        ),
        tool="Nsight Systems recipe nvtx_gpu_proj_trace",
        facts=dict(fact for device in devices for fact in _device_facts(device)),
        event_counts={
            "nvtx_gpu_proj_trace": counts["ranges"],
            "GPU operations in ranges": counts["operations"],
        },
    )
    notes = (
        *_NOTES.counted(counts, "nameless-ranges", "no-time"),
        _NOTES.note("no-device-work"),
        *overflow_notes(gathered.overflowed, source.label),
    )
    return Trace(made, gathered.finish(), tuple(replace(note, file=source.label) for note in notes))


def _add(
    batch: pa.RecordBatch, source: ByteSource, gathered: Gathered, counts: Counter[str]
) -> None:
    """Add the ranges of some rows."""
    start, length = (integers(batch, f"Projected {what}") for what in ("Start", "Duration"))
    known = (start != ABSENT) & (np.abs(start) < _LIMIT) & (length >= 0) & (length < _LIMIT)
    operations = integers(batch, "NumGPUOps")
    table = gathered["marks"]
    name = _texts(batch, "Name", table.names["name"])
    counts["ranges"] += batch.num_rows
    counts["no-time"] += int(np.count_nonzero(~known))
    counts["operations"] += int(operations[(operations > 0) & (operations < 2**40)].sum())
    counts["nameless-ranges"] += int(np.count_nonzero(name < 0))
    columns: dict[str, Array] = {
        "process": _processes(integers(batch, "PID"), integers(batch, "Rank"), source, gathered),
        "thread": integers(batch, "TID"),
        "name": np.where(name < 0, table.names["name"][UNNAMED_RANGE], name),
        "start_ns": start,
        "dur_ns": length,
    }
    table.add(
        int(np.count_nonzero(known)),
        kind=table.names["kind"]["gpu_annotation"],
        **{column: values[known] for column, values in columns.items()},
    )


def _processes(pid: IntArray, rank: IntArray, source: ByteSource, gathered: Gathered) -> IntArray:
    def number(row: int) -> int:
        own, of = int(pid[row]), int(rank[row])
        known_rank = of if 0 <= of < _MOST_RANKS else None
        facts = ProcessFacts(source.label, known_rank, pid=None if own == ABSENT else own)
        return gathered.process((own, of), facts)

    group, first = group_rows([pid, rank])
    return np.array([number(row) for row in first.tolist()], np.int64)[group]


def _texts(batch: pa.RecordBatch, column: str, known: Names) -> Array:
    """Return a column of texts as codes of `known`, -1 for null and for what is no text."""
    values = batch.column(column)
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return np.full(batch.num_rows, -1, np.int32)
    coded = values.dictionary_encode()
    own = known.codes(names(coded))
    return np.append(own, np.int32(-1))[codes(coded)].astype(np.int32)


def _device_facts(file: ArrowTable) -> Iterator[tuple[str, str]]:
    """Yield what a table of devices says of the first; further ones of its kind are the same."""
    pairs = {column: _pair_of(column) or ("", "") for column in file.columns}
    columns = [c for c, (table, fact) in pairs.items() if table == _GPU and fact in _FACTS]
    try:
        batch = next(file.batches(columns), None)
    except ARROW_UNREADABLE:
        return
    row: Mapping[str, Any] = batch.slice(0, 1).to_pylist()[0] if batch else {}
    for column, value in row.items():
        if isinstance(value, str | int | float):
            shown = str(int(value) if isinstance(value, float) else value)
            yield _FACTS[pairs[column][1]], shown[:200]
    if batch and batch.num_rows > 1:
        yield "gpus", str(batch.num_rows)
