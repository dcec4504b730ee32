"""Reads the output of Nsight Systems recipes: ranges projected on the GPU, facts of devices."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io.arrow_files import ARROW_UNREADABLE, ArrowTable, damaged_arrow
from traceflops.parsers.io.notes import NoteTable
from traceflops.parsers.nsight.nsys.tables import integers
from traceflops.parsers.nsight.stats_rows import UNNAMED_RANGE
from traceflops.parsers.shared.trace_builder import Gathered, ProcessFacts, overflow_notes
from traceflops.table.columns import ABSENT, LIMIT_NS, Array, codes, count_true
from traceflops.table.columns import names as texts_in
from traceflops.table.grouping import group_rows
from traceflops.table.trace import Source, SourceFile, Trace

FORMAT: Final = "nsys recipe"
_RANGES: Final = frozenset({"Name", "Projected Start", "Projected Duration"})
_USED: Final = ("Name", "Projected Start", "Projected Duration", "PID", "TID", "Rank", "NumGPUOps")
_TUPLE: Final = re.compile(r"^\('(\w{1,80})', '(\w{1,80})'\)$")
_GPU: Final = "TARGET_INFO_GPU"
_MOST_OPERATIONS: Final = 2**40
"""A range with more GPU operations is damaged; its number could overflow the sum."""
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
        "nameless-ranges": "{count} [range|ranges] without a name, shown as '(unnamed range)'."
    },
    dropped={"no-time": "{count} [range|ranges] skipped: no valid time."},
    missing={
        "no-device-work": (
            "The recipe's output holds NVTX ranges projected on the GPU, not kernels: range times, "
            "but no idle time, overlap or MFU.",
            "Give the SQLite export of the report (nsys export --type sqlite).",
        )
    },
)


def is_of_recipe(file: ArrowTable) -> bool:
    """Return whether a file is the output of nvtx_gpu_proj_trace, or a table of devices."""
    return set(file.columns) >= _RANGES or (_GPU, "name") in map(_pair_of, file.columns)


def _pair_of(column: str) -> tuple[str, str] | None:
    """Return the two words of a column whose name is a pair as text, ('a', 'b'), else None."""
    match = _TUPLE.match(column[:200])
    return (match[1], match[2]) if match else None


def read_recipes(files: Sequence[ArrowTable]) -> list[Trace]:
    """Return a trace per file of ranges, with the facts of the device tables that belong to it.

    A device table belongs to the files of ranges in its folder or directly below it; to the only
    file if there is one. Raises InputError if there are no ranges.
    """
    ranges = [file for file in files if set(file.columns) >= _RANGES]
    devices = [file for file in files if not {*file.columns} >= _RANGES]
    if not ranges:
        raise NotATrace(
            f"only a list of the machine's GPUs: {files[0].source.label}",
            "give the SQLite export of the report (nsys export --type sqlite), or the recipe's "
            "trace.parquet beside it",
        )
    traces = []
    for file in ranges:
        folder, is_only = PurePath(file.source.folder), len(ranges) == 1
        near = (folder, folder.parent)
        beside = [d for d in devices if is_only or PurePath(d.source.folder) in near]
        label, builder, counts = file.source.label, Gathered(), Counter[str]()
        try:
            for batch in file.batches(_USED):
                _add(batch, label, builder, counts)
        except ARROW_UNREADABLE as error:
            raise damaged_arrow(file.source, error) from None
        if not builder["marks"].count:
            hint = "run the recipe again, or use nsys export"
            raise InputError(f"no range with a valid time: {label}", hint)
        sources = [table.source for table in (file, *beside)]
        source = Source(
            format=FORMAT,
            files=tuple(SourceFile(s.label, s.stored_bytes, s.stored_bytes) for s in sources),
            tool="Nsight Systems recipe nvtx_gpu_proj_trace",
            facts=dict(fact for device in beside for fact in _device_facts(device)),
            event_counts={
                "nvtx_gpu_proj_trace": counts["ranges"],
                "GPU operations in ranges": counts["operations"],
            },
        )
        notes = (
            *_NOTES.counted(counts, "nameless-ranges", "no-time"),
            _NOTES.note("no-device-work"),
            *overflow_notes(builder.tables.values(), label),
        )
        of_file = tuple(replace(note, file=label) for note in notes)
        traces.append(Trace(source, builder.finish(), of_file))
    return traces


def _add(batch: pa.RecordBatch, label: str, builder: Gathered, counts: Counter[str]) -> None:
    """Add ranges with a time to the marks of `builder`; count ranges, operations and odd rows."""
    start, length = (integers(batch, f"Projected {what}") for what in ("Start", "Duration"))
    has_time = (start != ABSENT) & (np.abs(start) < LIMIT_NS) & (length >= 0) & (length < LIMIT_NS)
    operations = integers(batch, "NumGPUOps")
    table = builder["marks"]
    names = batch.column("Name")
    if pa.types.is_dictionary(names.type):
        names = names.cast(names.type.value_type)
    # The code of each range's name in the table of marks, -1 if it has none.
    name = np.full(batch.num_rows, -1, np.int32)
    if pa.types.is_string(names.type) or pa.types.is_large_string(names.type):
        coded = names.dictionary_encode()
        # The appended -1 is for null, whose code is -1.
        code_of = np.append(table.names["name"].codes(texts_in(coded)), np.int32(-1))
        name = code_of[codes(coded)].astype(np.int32)
    counts["ranges"] += batch.num_rows
    counts["no-time"] += count_true(~has_time)
    counts["operations"] += int(
        operations[(operations > 0) & (operations < _MOST_OPERATIONS)].sum()
    )
    counts["nameless-ranges"] += count_true(name < 0)
    # A process per distinct pid and rank.
    pids, ranks = integers(batch, "PID"), integers(batch, "Rank")
    group, first = group_rows([pids, ranks])
    processes = []
    for pid, rank in zip(pids[first].tolist(), ranks[first].tolist(), strict=True):
        own_rank = rank if 0 <= rank < (2**31) else None
        facts = ProcessFacts(label, own_rank, pid=None if pid == ABSENT else pid)
        processes.append(builder.process((pid, rank), facts))
    columns: dict[str, Array] = {
        "process": np.array(processes, np.int64)[group],
        "thread": integers(batch, "TID"),
        "name": np.where(name < 0, table.names["name"][UNNAMED_RANGE], name),
        "start_ns": start,
        "dur_ns": length,
    }
    table.add(
        count_true(has_time),
        kind=table.names["kind"]["gpu_annotation"],
        **{column: values[has_time] for column, values in columns.items()},
    )


def _device_facts(file: ArrowTable) -> Iterator[tuple[str, str]]:
    """Yield the facts of a table's first device (its devices are alike), and how many there are."""
    pairs = {column: _pair_of(column) or ("", "") for column in file.columns}
    columns = [c for c, (table, fact) in pairs.items() if table == _GPU and fact in _FACTS]
    try:
        batch = next(file.batches(columns), None)
    except ARROW_UNREADABLE:
        return
    row: Mapping[str, Any] = batch.slice(0, 1).to_pylist()[0] if batch else {}
    for column, value in row.items():
        if isinstance(value, str | int | float):
            text = str(int(value) if isinstance(value, float) else value)
            yield _FACTS[pairs[column][1]], text[:200]
    if batch and batch.num_rows > 1:
        yield "gpus", str(batch.num_rows)
