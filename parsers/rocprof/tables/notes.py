"""What the reader of a report must know about how CSV of rocprof was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from traceflops.parsers.io import NoteTable, text_notes
from traceflops.parsers.rocprof.notes import (
    COUNTED_WHILE_TIMED,
    COUNTERS_ONLY,
    DEVICE_UNKNOWN,
    LAUNCH_IS_QUEUEING,
    instance_notes,
    link_notes,
)
from traceflops.parsers.rocprof.tables.parts import TableFile
from traceflops.parsers.shared import DISPATCH, overflow_notes, span_notes
from traceflops.table import Note, names, numbers, rank_from_name, together

if TYPE_CHECKING:
    from traceflops.parsers.rocprof.tables.runs import TableRun

_LONG_NS: Final = 60 * 10**9
_ROUNDED: Final = ("start", "end", "dispatched", "completed")
NOTES: Final = NoteTable(
    dropped={
        "file-not-read": "{name} could not be read: {reason}.",
        "times-rounded": "{n} [time|times] [is not a whole number|are not whole numbers] of "
        "nanoseconds. Spreadsheets round them when saving (3.42E+14); use the file as rocprof "
        "wrote it.",
        "bad-cells": "{n} [number|numbers] could not be read.",
        "no-value": "{n} [counter|counters] without a value skipped.",
        "unpaired-ranges": "{n} [end|ends] of ranges without a start skipped.",
        "samples-not-read": "{n} [sample|samples] [is|are] counted but not read.",
        "repeated-passes": "The run was repeated for more counters. Times are from one pass; only "
        "counters are used from the others (pass {passes}).",
        "merged-passes": "{n} [table|tables] of single passes found beside the table merged by "
        "rocprof-compute. Only counters that the merged table lacks are used.",
        "launcher": "{n} [launcher|launchers] left only a list of agents: not shown.",
        "host-copies": "{n} [copy record|copy records] within CPU memory skipped: no GPU involved.",
        "counters-written-twice": "{n} repeated counter [value|values] ignored: the same counters "
        "of the same launches come earlier in the files. Where values differ, the first counts.",
    },
    assumed={
        "runs-apart": "The folder holds several runs, separated by more than 10 s: they are shown "
        "separately.",
        "very-long": "{count} GPU [operation|operations] took a minute or more, the longest "
        "{longest} s. Times are used as recorded.",
    },
    missing={
        "siblings-not-read": "{count} [table|tables] of the same process beside this file not "
        "read: {listed}. Give the folder {folder} to read all.",
        "no-rows": "The file has no records.",
        "no-timeline": "The files hold only totals by name: no timeline, idle time or overlap. "
        "Record with rocprofv3 --kernel-trace --output-format rocpd.",
        "no-device-work": "The files have no GPU operations. Record with rocprofv3 --kernel-trace "
        "--memory-copy-trace.",
    },
)


def run_notes(
    run: TableRun, tables: Mapping[str, pa.Table], overflowed: Sequence[str]
) -> Iterator[Note]:
    """Give the notes of a run: those of its files, then those of the whole."""
    of_files = [(place, n) for place, file in enumerate(run.files) for n in file_notes(file)]
    yield from together(of_files, len(run.files))
    label = run.files[0].source.label
    yield from overflow_notes(overflowed, label)
    ranks = [process.place.rank for process in run.processes if process.place.rank is not None]
    if ranks:
        yield rank_from_name(ranks)
    if run.number:
        yield NOTES.note("runs-apart")
    for note in (*_odd_notes(run), *_content_notes(run, tables)):
        yield replace(note, file=label if len(run.files) == 1 else None)


def file_notes(file: TableFile) -> Iterator[Note]:
    """Give what is to be said of one file."""
    odd, bad = file.odd, file.damage.bad_cells
    times = sum(bad[role] for role in _ROUNDED)
    samples = file.events["pc_sampling"] + file.events["spm_counters"]
    counts = {
        "times-rounded": times,
        "bad-cells": sum(bad.values()) - times,
        "no-value": odd["no-value"],
        "unpaired-ranges": odd["unpaired"],
        "samples-not-read": samples,
    }
    notes = (*text_notes(file.damage, file.source.cut), *span_notes(odd))
    for note in (*notes, *NOTES.counted(counts, *counts)):
        yield replace(note, file=file.source.label)


def _odd_notes(run: TableRun) -> Iterator[Note]:
    """Say what was odd about the files as a whole."""
    if run.passes_left_out:
        listed = ", ".join(map(str, run.passes_left_out[:8]))
        yield NOTES.note("repeated-passes", len(run.passes_left_out), passes=listed)
    yield from NOTES.counted(run.odd, "merged-passes", "launcher", "host-copies")
    if run.odd["device-unknown"]:
        yield DEVICE_UNKNOWN
    yield from instance_notes(run.odd["instances"])
    yield from NOTES.counted(run.odd, "counters-written-twice")


def _content_notes(run: TableRun, tables: Mapping[str, pa.Table]) -> Iterator[Note]:
    if tables["activities"].num_rows:
        if names(tables["calls"]["name"]) == [DISPATCH]:
            yield LAUNCH_IS_QUEUEING
        else:
            yield from link_notes(tables)
        yield from _long_notes(tables["activities"])
        if run.odd["counted-while-timed"]:
            yield COUNTED_WHILE_TIMED
    elif tables["kernel_counters"].num_rows:
        yield COUNTERS_ONLY
    else:
        only_totals = tables["totals"].num_rows and not tables["calls"].num_rows
        yield NOTES.note("no-timeline" if only_totals else "no-device-work")


def _long_notes(activities: pa.Table) -> Iterator[Note]:
    length = numbers(activities["dur_ns"])
    long = int(np.count_nonzero(length >= _LONG_NS))
    if long:
        yield NOTES.note("very-long", long, longest=f"{int(length.max()) / 1e9:,.1f}")
