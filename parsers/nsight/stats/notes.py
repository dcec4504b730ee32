"""What the reader of a report must know about how reports of `nsys stats` were read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from traceflops.parsers.io import NoteTable, text_notes
from traceflops.parsers.nsight.stats.read import StatsFile
from traceflops.parsers.shared import overflow_notes
from traceflops.table import Note, rank_from_name

NOTES: Final = NoteTable(
    repaired={
        "no-duration": "{n} [record|records] without a duration: counted as 0 ns.",
        "negative-duration": "{n} [record|records] with negative duration: counted as 0 ns.",
    },
    dropped={
        "bad-cells": "{count} [number|numbers] could not be read.",
        "no-time": "{n} [record|records] skipped: no valid start time.",
        "other-calls": "{n} [call|calls] skipped: operating system, not CUDA.",
        "beyond": "{n} [number|numbers] too large for 64 bits: unknown.",
        "nested-sums": (
            "{count} [row|rows] of kernels by NVTX range ignored: nested ranges repeat a kernel."
        ),
        "tables-unread": (
            "{count} [table|tables] skipped: unknown report or damaged header ({titles})."
        ),
        "table-repeated": "{count} [table|tables] ignored: every number repeats an earlier table.",
        "report-repeated": "{reports} [repeats|repeat] another report: ignored.",
        "file-not-read": "{name} could not be read: {reason}.",
    },
    assumed={
        "several-profiles": (
            "The file holds reports of several profiles. Each is treated as a separate run or rank."
        ),
        "unit-assumed": "The time columns name no unit: read as ns, as older releases write them.",
        "sizes-rounded": (
            "Copy sizes are rounded to three decimals of a large unit. Those printed as 0 are "
            "unknown."
        ),
    },
    missing={
        "sizes-without-unit": (
            "The size columns name no unit, and it differs between releases: copy sizes are "
            "unknown."
        ),
        "process-unknown": (
            "The GPU trace does not say which of {count} processes ran its work, and their "
            "correlation ids repeat. The work is shown as a separate process without links to "
            "calls; give the SQLite export (nsys export --type sqlite)."
        ),
        "no-calls": (
            "The report has no API calls, so launch calls and idle causes are unknown. Give "
            "cuda_api_trace beside it, or the SQLite export (nsys export --type sqlite)."
        ),
        "no-timeline": (
            "The file holds only totals by name: shares of kernels, but no timeline, idle time, "
            "overlap, steps or MFU. Give the SQLite export (nsys export --type sqlite) or the "
            "report cuda_gpu_trace."
        ),
        "no-device-work": (
            "The reports have no GPU operations. Give cuda_gpu_trace, or record with nsys profile "
            "--trace=cuda."
        ),
        "no-rows": "The file has no records.",
    },
)


@dataclass(slots=True)
class ProfileOddities:
    """What came up while the reports of a profile were put together."""

    rank: int | None = None
    processes: int = 0
    repeated: list[str] = field(default_factory=list)
    overflowed: tuple[str, ...] = ()


def profile_notes(
    files: Sequence[StatsFile], tables: Mapping[str, pa.Table], oddities: ProfileOddities
) -> Iterator[Note]:
    """Give the notes of a profile: those of its files, then those of the whole."""
    for file in files:
        for note in _file_notes(file):
            yield replace(note, file=file.name)
    name = files[0].name if len(files) == 1 else None
    yield from overflow_notes(oddities.overflowed, files[0].name)
    if oddities.rank is not None:
        yield rank_from_name([oddities.rank], name)
    for note in _profile_notes(tables, oddities):
        yield replace(note, file=name)


def _file_notes(file: StatsFile) -> Iterator[Note]:
    yield from text_notes(file.damage, file.source.cut)
    odd = sum((part.odd for part in file.parts), Counter[str]())
    odd["bad-cells"] = file.damage.bad_cells.total()
    yield from NOTES.counted(
        odd,
        *("bad-cells", "no-time", "no-duration", "negative-duration", "other-calls", "beyond"),
        "nested-sums",
    )
    if file.profile:
        yield NOTES.note("several-profiles")
    if file.unread:
        yield NOTES.note("tables-unread", len(file.unread), titles=_listed(file.unread))
    yield from NOTES.counted(odd, "table-repeated")
    if odd["no-unit"]:
        yield NOTES.note("unit-assumed")
    yield from NOTES.counted(odd, "sizes-without-unit", "sizes-rounded")


def _profile_notes(tables: Mapping[str, pa.Table], oddities: ProfileOddities) -> Iterator[Note]:
    if oddities.repeated:
        reports = ", ".join(oddities.repeated)
        yield NOTES.note("report-repeated", len(oddities.repeated), reports=reports)
    has_calls = tables["calls"].num_rows > 0
    if not tables["activities"].num_rows:
        is_summed = tables["totals"].num_rows and not has_calls
        yield NOTES.note("no-timeline" if is_summed else "no-device-work")
    elif oddities.processes > 1:
        yield NOTES.note("process-unknown", oddities.processes)
    elif not has_calls:
        yield NOTES.note("no-calls")


def _listed(titles: Sequence[str]) -> str:
    some = "; ".join("".join(c if c.isprintable() else "?" for c in text) for text in titles[:3])
    return f"{some}, ..." if len(titles) > 3 else some
