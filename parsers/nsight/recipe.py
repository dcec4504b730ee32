"""Reads the output of Nsight Systems recipes: ranges projected on the GPU, facts of devices."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Final

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
    """Return whether a file is the output of nvtx_gpu_proj_trace or a recipe's table of devices."""
    return set(file.columns) >= _RANGES or (_GPU, "name") in map(_pair_of, file.columns)


def _pair_of(column: str) -> tuple[str, str] | None:
    """Return (a, b) for a column with the name "('a', 'b')", None for any other column."""
    match = _TUPLE.match(column[:200])
    return (match[1], match[2]) if match else None


def read_recipes(files: Sequence[ArrowTable]) -> list[Trace]:
    """Return a trace per file of ranges, with the facts of the device tables that belong to it.

    A device table belongs to the files of ranges in its folder and directly below it, and to a
    single file of ranges wherever that is. Raises InputError if there are no ranges.
    """
    range_files = [file for file in files if {*file.columns} >= _RANGES]
    device_files = [file for file in files if not {*file.columns} >= _RANGES]
    if not range_files:
        raise NotATrace(
            f"only a list of the machine's GPUs: {files[0].source.label}",
            "give the SQLite export of the report (nsys export --type sqlite), or the recipe's "
            "trace.parquet beside it",
        )
    traces = []
    for file in range_files:
        folder, is_only = PurePath(file.source.folder), len(range_files) == 1
        near = (folder, folder.parent)
        devices = [d for d in device_files if is_only or PurePath(d.source.folder) in near]
        label, builder, counts = file.source.label, Gathered(), Counter[str]()
        try:
            for batch in file.batches(_USED):
                _add(batch, label, builder, counts)
        except ARROW_UNREADABLE as error:
            raise damaged_arrow(file.source, error) from None
        if not builder["marks"].count:
            hint = "run the recipe again, or use nsys export"
            raise InputError(f"no range with a valid time: {label}", hint)
        sources = [table.source for table in (file, *devices)]
        source = Source(
            format=FORMAT,
            files=tuple(SourceFile(s.label, s.stored_bytes, s.stored_bytes) for s in sources),
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
            *overflow_notes(builder.tables.values(), label),
        )
        notes_of_file = tuple(replace(note, file=label) for note in notes)
        traces.append(Trace(source, builder.finish(), notes_of_file))
    return traces


def _add(batch: pa.RecordBatch, label: str, builder: Gathered, counts: Counter[str]) -> None:
    """Add ranges with a time to the marks of `builder`; count ranges, operations and odd rows."""
    start_ns, dur_ns = (integers(batch, f"Projected {what}") for what in ("Start", "Duration"))
    has_start = (start_ns != ABSENT) & (np.abs(start_ns) < LIMIT_NS)
    has_time = has_start & (dur_ns >= 0) & (dur_ns < LIMIT_NS)
    # The code of each range's name in the table of marks, -1 if it has none.
    table = builder["marks"]
    names = batch.column("Name")
    if pa.types.is_dictionary(names.type):
        names = names.cast(names.type.value_type)
    name = np.full(batch.num_rows, -1, np.int32)
    if pa.types.is_string(names.type) or pa.types.is_large_string(names.type):
        coded = names.dictionary_encode()
        # The appended -1 is for null, whose code is -1.
        code_of = np.append(table.names["name"].codes(texts_in(coded)), np.int32(-1))
        name = code_of[codes(coded)].astype(np.int32)
    operations = integers(batch, "NumGPUOps")
    is_plausible = (operations > 0) & (operations < _MOST_OPERATIONS)
    counts["ranges"] += batch.num_rows
    counts["no-time"] += count_true(~has_time)
    counts["operations"] += int(operations[is_plausible].sum())
    counts["nameless-ranges"] += count_true(name < 0)
    # A process per distinct pid and rank.
    pids, ranks = integers(batch, "PID"), integers(batch, "Rank")
    group, first_row = group_rows([pids, ranks])
    processes = []
    for pid, rank in zip(pids[first_row].tolist(), ranks[first_row].tolist(), strict=True):
        valid_rank = rank if 0 <= rank < 2**31 else None
        facts = ProcessFacts(label, valid_rank, pid=None if pid == ABSENT else pid)
        processes.append(builder.process((pid, rank), facts))
    columns: dict[str, Array] = {
        "process": np.array(processes, np.int64)[group],
        "thread": integers(batch, "TID"),
        "name": np.where(name < 0, table.names["name"][UNNAMED_RANGE], name),
        "start_ns": start_ns,
        "dur_ns": dur_ns,
    }
    table.add(
        count_true(has_time),
        kind=table.names["kind"]["gpu_annotation"],
        **{column: values[has_time] for column, values in columns.items()},
    )


def _device_facts(file: ArrowTable) -> Iterator[tuple[str, str]]:
    """Yield facts as (name, text): of the first device (all are alike), the number of devices."""
    fact_of: dict[str, str] = {}  # by column
    for column in file.columns:
        table, fact = _pair_of(column) or ("", "")
        if table == _GPU and fact in _FACTS:
            fact_of[column] = _FACTS[fact]
    try:
        batch = next(file.batches([*fact_of]), None)
    except ARROW_UNREADABLE:
        return
    if not batch:
        return
    for column, value in batch.slice(0, 1).to_pylist()[0].items():
        if isinstance(value, str | int | float):
            text = str(int(value) if isinstance(value, float) else value)
            yield fact_of[column], text[:200]
    if batch.num_rows > 1:
        yield "gpus", str(batch.num_rows)
