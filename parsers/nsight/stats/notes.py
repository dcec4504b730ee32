"""What the reader of a report must know about how reports of `nsys stats` were read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from traceflops.parsers.io import text_notes
from traceflops.parsers.nsight.stats.read import StatsFile
from traceflops.parsers.shared import overflow_notes
from traceflops.table import Note, NoteKind, counted_note, of_noun, rank_from_name
from traceflops.units import several

_ODD: Final[tuple[tuple[str, NoteKind, str, str], ...]] = (
    ("no-time", "dropped", "record", "skipped: no valid start time"),
    ("no-duration", "repaired", "record", "without a duration: counted as 0 ns"),
    ("negative-duration", "repaired", "record", "with negative duration: counted as 0 ns"),
    ("other-calls", "dropped", "call", "skipped: operating system, not CUDA"),
    ("beyond", "dropped", "number", "too large for 64 bits: unknown"),
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
        verb = "repeats" if len(told.repeated) == 1 else "repeat"
        text = f"{', '.join(told.repeated)} {verb} another report: ignored."
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
        text = f"{several(bad, 'number')} could not be read."
        yield Note("dropped", "bad-cells", text, bad)
    for code, kind, noun, sentence in _ODD:
        if odd[code]:
            yield counted_note(kind, code, of_noun(noun, f"{sentence}."), odd[code])
    if odd[_NESTED]:
        text = (
            f"{several(odd[_NESTED], 'row')} of kernels by NVTX range ignored: nested ranges "
            "repeat a kernel."
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
            f"{several(len(file.unread), 'table')} skipped: unknown report or damaged header "
            f"({_listed(file.unread)})."
        )
        yield Note("dropped", "tables-unread", text, len(file.unread))
    if odd["repeated"]:
        tables = several(odd["repeated"], "table")
        text = f"{tables} ignored: every number repeats an earlier table."
        yield Note("dropped", "table-repeated", text, odd["repeated"])


def _timeline_notes(tables: Mapping[str, pa.Table], told: Told, name: str | None) -> Iterator[Note]:
    if told.processes > 1:
        text = (
            f"The GPU trace does not say which of {told.processes} processes ran its work, and "
            "their correlation ids repeat. The work is shown as a separate process without links "
            "to calls; give the SQLite export (nsys export --type sqlite)."
        )
        yield Note("missing", "process-unknown", text, told.processes, name)
    elif not tables["calls"].num_rows:
        yield Note("missing", "no-calls", _NO_CALLS, None, name)


def _listed(titles: Sequence[str]) -> str:
    some = "; ".join("".join(c if c.isprintable() else "?" for c in one) for one in titles[:3])
    return f"{some}, ..." if len(titles) > 3 else some


_SEVERAL: Final = (
    "The file holds reports of several profiles. Each is treated as a separate run or rank."
)
_NO_SIZE_UNIT: Final = (
    "The size columns name no unit, and it differs between releases: copy sizes are unknown."
)
_NO_UNIT: Final = "The time columns name no unit: read as ns, as older releases write them."
_ROUNDED: Final = (
    "Copy sizes are rounded to three decimals of a large unit. Those printed as 0 are unknown."
)
_TOTALS_ONLY: Final = (
    "The file holds only totals by name: shares of kernels, but no timeline, idle time, overlap, "
    "steps or MFU. Give the SQLite export (nsys export --type sqlite) or the report "
    "cuda_gpu_trace."
)
_NO_WORK: Final = (
    "The reports have no GPU operations. Give cuda_gpu_trace, or record with nsys profile "
    "--trace=cuda."
)
_NO_CALLS: Final = (
    "The report has no API calls, so launch calls and idle causes are unknown. Give "
    "cuda_api_trace beside it, or the SQLite export (nsys export --type sqlite)."
)
