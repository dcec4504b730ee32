"""What the reader of a report must know about how CSV of rocprof was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from traceflops.parsers.io import text_notes
from traceflops.parsers.rocprof.linking import link_notes
from traceflops.parsers.rocprof.notes import (
    COUNTED_WHILE_TIMED,
    COUNTERS_ONLY,
    DEVICE_UNKNOWN,
    LAUNCH_IS_QUEUEING,
    instance_notes,
)
from traceflops.parsers.shared import DISPATCH, TableFile, overflow_notes, span_notes
from traceflops.table import Note, counted_note, names, numbers, of_noun, rank_from_name, together
from traceflops.units import several

if TYPE_CHECKING:
    from traceflops.parsers.rocprof.tables.runs import TableRun

_LONG_NS: Final = 60 * 10**9
_ROUNDED: Final = ("start", "end", "dispatched", "completed")


@dataclass(slots=True)
class Told:
    """What came up while the tables of a run were put together."""

    ranks: list[int] = field(default_factory=list)
    overflowed: tuple[str, ...] = ()
    host_copies: int = 0
    instances: int = 0
    counted_again: int = 0
    untold: int = 0
    counted_while_timed: bool = False
    unplaced: bool = False


def run_notes(run: TableRun, tables: Mapping[str, pa.Table], told: Told) -> Iterator[Note]:
    """Give the notes of a run: those of its files, then those of the whole."""
    of_files = [(place, n) for place, file in enumerate(run.files) for n in file_notes(file)]
    yield from together(of_files, len(run.files))
    name = run.files[0].source.label if len(run.files) == 1 else None
    yield from overflow_notes(told.overflowed, run.files[0].source.label)
    if told.ranks:
        yield rank_from_name(told.ranks)
    if run.number:
        yield _LATER
    yield from _pass_notes(run, name)
    if told.host_copies:
        wording = of_noun("copy record", "within CPU memory skipped: no GPU involved.")
        yield counted_note("dropped", "host-copies", wording, told.host_copies, name)
    if told.unplaced:
        yield replace(DEVICE_UNKNOWN, file=name)
    for note in (*instance_notes(told.instances), *_again_notes(told)):
        yield replace(note, file=name)
    yield from _content_notes(tables, told, name)


def file_notes(file: TableFile) -> Iterator[Note]:
    """Give what is to be said of one file."""
    notes = [
        *text_notes(file.damage, file.source.cut),
        *span_notes(file.tally.odd),
        *_row_notes(file),
    ]
    for note in notes:
        yield replace(note, file=file.source.label)


def _row_notes(file: TableFile) -> Iterator[Note]:
    odd, bad = file.tally.odd, file.damage.bad_cells
    times = sum(bad[role] for role in _ROUNDED)
    others = sum(bad.values()) - times
    samples = file.tally.events["pc_sampling"] + file.tally.events["spm_counters"]
    counted = {
        "times-rounded": times,
        "bad-cells": others,
        "no-value": odd["no-value"],
        "unpaired-ranges": odd["unpaired"],
        "samples-not-read": samples,
    }
    for code, count in counted.items():
        if count:
            yield counted_note("dropped", code, _ROWS[code], count)


def _pass_notes(run: TableRun, name: str | None) -> Iterator[Note]:
    if run.passes_left_out:
        listed = ", ".join(map(str, run.passes_left_out[:8]))
        text = (
            "The run was repeated for more counters. Times are from one pass; only counters are "
            f"used from the others (pass {listed})."
        )
        yield Note("dropped", "repeated-passes", text, len(run.passes_left_out), name)
    if run.merged_passes:
        wording = of_noun(
            "table",
            "of single passes found beside the table merged by rocprof-compute. Only counters "
            "that the merged table lacks are used.",
        )
        yield counted_note("dropped", "merged-passes", wording, run.merged_passes, name)
    if run.launchers:
        wording = of_noun("launcher", "left only a list of agents: not shown.")
        yield counted_note("dropped", "launcher", wording, run.launchers, name)


def _again_notes(told: Told) -> Iterator[Note]:
    """Say how many counters stand in the files more than once."""
    if told.counted_again:
        yield counted_note("repaired", "counters-written-twice", _TWICE, told.counted_again)
    if told.untold:
        yield counted_note("dropped", "instances-or-copies", _UNTOLD, told.untold)


def _content_notes(tables: Mapping[str, pa.Table], told: Told, name: str | None) -> Iterator[Note]:
    activities, calls = tables["activities"], tables["calls"]
    if activities.num_rows:
        yield from _link_notes(tables, name)
        yield from _long_notes(activities, name)
        if told.counted_while_timed:
            yield replace(COUNTED_WHILE_TIMED, file=name)
        return
    if tables["kernel_counters"].num_rows:
        yield replace(COUNTERS_ONLY, file=name)
    elif tables["totals"].num_rows and not calls.num_rows:
        yield Note("missing", "no-timeline", _TOTALS_ONLY, None, name)
    else:
        yield Note("missing", "no-device-work", _NO_WORK, None, name)


def _link_notes(tables: Mapping[str, pa.Table], name: str | None) -> Iterator[Note]:
    """Say of how much device work the call is missing, or what stands for it."""
    if names(tables["calls"]["name"]) == [DISPATCH]:
        yield replace(LAUNCH_IS_QUEUEING, file=name)
        return
    for note in link_notes(tables):
        yield replace(note, file=name)


def _long_notes(activities: pa.Table, name: str | None) -> Iterator[Note]:
    length = numbers(activities["dur_ns"])
    long = int(np.count_nonzero(length >= _LONG_NS))
    if long:
        text = (
            f"{several(long, 'GPU operation')} took a minute or more, the longest "
            f"{int(length.max()) / 1e9:,.1f} s. Times are used as recorded."
        )
        yield Note("assumed", "very-long", text, long, name)


_ROWS: Final = {
    "times-rounded": of_noun(
        "time",
        "[is not a whole number|are not whole numbers] of nanoseconds. Spreadsheets round them "
        "when saving (3.42E+14); use the file as rocprof wrote it.",
    ),
    "bad-cells": of_noun("number", "could not be read."),
    "no-value": of_noun("counter", "without a value skipped."),
    "unpaired-ranges": of_noun("end", "of ranges without a start skipped."),
    "samples-not-read": of_noun("sample", "[is|are] counted but not read."),
}
_TWICE: Final = (
    "{n} repeated [counter|counters] ignored: same launches and same values as others in the files."
)
_UNTOLD: Final = (
    "{n} counter [value|values] skipped: the table repeats them for the same launches, as chip "
    "instances or as copies, which would give different sums. Give the table as rocprof wrote it."
)
_LATER: Final = Note(
    "assumed",
    "runs-apart",
    "The folder holds several runs, separated by more than 10 s: they are shown separately.",
)
_TOTALS_ONLY: Final = (
    "The files hold only totals by name: no timeline, idle time or overlap. Record with rocprofv3 "
    "--kernel-trace --output-format rocpd."
)
_NO_WORK: Final = (
    "The files have no GPU operations. Record with rocprofv3 --kernel-trace --memory-copy-trace."
)
