"""What the reader of a report must know about how reports of `nsys stats` were read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from traceflops.notes import counted_note, of_noun, rank_from_name
from traceflops.parsers.csvfiles.notes import text_notes
from traceflops.parsers.nsight.stats.read import StatsFile
from traceflops.parsers.overflow import overflow_notes
from traceflops.trace import Note, NoteKind
from traceflops.words import several

_ODD: Final[tuple[tuple[str, NoteKind, str, str], ...]] = (
    ("no-time", "dropped", "record", "left out: no start that can be a time"),
    ("no-duration", "repaired", "record", "without a duration: counted as 0 ns"),
    ("negative-duration", "repaired", "record", "of negative duration: counted as 0 ns"),
    ("other-calls", "dropped", "call", "left out: not of CUDA (the operating system's)"),
    ("negative-sum", "dropped", "sum", "below 0: unknown, not shown"),
    ("beyond", "dropped", "number", "too large to be a time or a size in 64 bits: unknown"),
)
_NESTED: Final = "nested"


@dataclass(slots=True)
class Told:
    """What came up while the reports of a profile were put together."""

    rank: int | None = None
    processes: int = 0
    repeated: list[str] = field(default_factory=list)
    overflowed: tuple[str, ...] = ()


def profile_notes(
    files: Sequence[StatsFile], tables: Mapping[str, pa.Table], told: Told
) -> Iterator[Note]:
    """Give the notes of a profile: those of its files, then those of the whole."""
    for file in files:
        for note in _file_notes(file):
            yield replace(note, file=file.name)
    name = files[0].name if len(files) == 1 else None
    yield from overflow_notes(told.overflowed, files[0].name)
    if told.rank is not None:
        yield rank_from_name([told.rank], name)
    if told.repeated:
        verb = "tells" if len(told.repeated) == 1 else "tell"
        text = f"{', '.join(told.repeated)} {verb} again what another report tells: not counted."
        yield Note("dropped", "report-repeated", text, len(told.repeated), name)
    if tables["activities"].num_rows:
        yield from _timeline_notes(tables, told, name)
    elif tables["totals"].num_rows and not tables["calls"].num_rows:
        yield Note("missing", "no-timeline", _TOTALS_ONLY, None, name)
    else:
        yield Note("missing", "no-device-work", _NO_WORK, None, name)


def _file_notes(file: StatsFile) -> Iterator[Note]:
    yield from text_notes(file.damage, file.source.cut)
    odd: Counter[str] = Counter()
    for part in file.parts:
        odd.update(part.odd)
    bad = sum(file.damage.bad_cells.values())
    if bad:
        text = f"{several(bad, 'number')} could not be read and are left out."
        yield Note("dropped", "bad-cells", text, bad)
    for code, kind, noun, sentence in _ODD:
        if odd[code]:
            yield counted_note(kind, code, of_noun(noun, f"{sentence}."), odd[code])
    if odd[_NESTED]:
        text = (
            f"{several(odd[_NESTED], 'row')} of kernels by NVTX range not read: a kernel counts "
            "there once for each range around it."
        )
        yield Note("dropped", "nested-sums", text, odd[_NESTED])
    yield from _table_notes(file, odd)
    if odd["no-unit"]:
        yield Note("assumed", "unit-assumed", _NO_UNIT)
    if odd["no-size-unit"]:
        yield Note("missing", "sizes-without-unit", _NO_SIZE_UNIT, odd["no-size-unit"])
    if odd["rounded-bytes"]:
        yield Note("assumed", "sizes-rounded", _ROUNDED, odd["rounded-bytes"])


def _table_notes(file: StatsFile, odd: Counter[str]) -> Iterator[Note]:
    """Give what became of whole tables of a file."""
    if file.profile:
        yield Note("assumed", "several-profiles", _SEVERAL)
    if file.unread:
        text = (
            f"{several(len(file.unread), 'table')} could not be read: of a report that is not "
            f"known here, or without a sound header ({_listed(file.unread)})."
        )
        yield Note("dropped", "tables-unread", text, len(file.unread))
    if odd["repeated"]:
        tables = several(odd["repeated"], "table")
        text = f"{tables} left out: the same as one before, number by number."
        yield Note("dropped", "table-repeated", text, odd["repeated"])


def _timeline_notes(tables: Mapping[str, pa.Table], told: Told, name: str | None) -> Iterator[Note]:
    if told.processes > 1:
        text = (
            f"The report of device work does not say of which of {told.processes} processes it is, "
            "and ids of calls repeat between them: its work is shown as of a process of its own, "
            "without links to calls. Give the SQLite export (nsys export --type sqlite)."
        )
        yield Note("missing", "process-unknown", text, told.processes, name)
    elif not tables["calls"].num_rows:
        yield Note("missing", "no-calls", _NO_CALLS, None, name)


def _listed(titles: Sequence[str]) -> str:
    some = "; ".join("".join(c if c.isprintable() else "?" for c in one) for one in titles[:3])
    return f"{some}, ..." if len(titles) > 3 else some


_SEVERAL: Final = (
    "The file holds reports of several profiles, one after the other: each is taken for a run or "
    "rank of its own."
)
_NO_SIZE_UNIT: Final = (
    "The columns of sizes do not say their unit, which differs between releases: how much was "
    "copied is unknown."
)
_NO_UNIT: Final = "The columns of times do not say their unit: read as ns, as old releases write."
_ROUNDED: Final = (
    "Sizes of copies stand in the table in a large unit with three decimals: bytes are as exact "
    "as that, and those that show as 0 are unknown."
)
_TOTALS_ONLY: Final = (
    "Only sums by name are here: shares of kernels can be told, no timeline, so no idle time, no "
    "overlap, no steps and no MFU. Give the SQLite export (nsys export --type sqlite), or the "
    "report cuda_gpu_trace."
)
_NO_WORK: Final = (
    "No device work is in the reports; give cuda_gpu_trace, or record with nsys profile "
    "--trace=cuda."
)
_NO_CALLS: Final = (
    "The report has no calls, so launches and causes of idle time are unknown. Give "
    "cuda_api_trace beside it, or the SQLite export (nsys export --type sqlite)."
)
