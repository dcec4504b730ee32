"""Starts and ends as tables hold them: which are times, and how long each record lasts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.parsers.io.databases.query import Batch
from traceflops.table.columns import BoolArray, IntArray
from traceflops.table.notes import counted_note, of_noun
from traceflops.table.trace import Note, NoteKind

_LIMIT_NS: Final = 2**61
"""Sums of times below this stay in an int64."""

_SENTENCES: Final[dict[str, tuple[NoteKind, str]]] = {
    "no-time": ("dropped", "skipped: no valid start time"),
    "no-duration": ("repaired", "without an end: counted as 0 ns"),
    "negative-duration": ("repaired", "with negative duration: counted as 0 ns"),
}


@dataclass(frozen=True, slots=True)
class Spans:
    """Which of some records have a time, and for those the start and the duration."""

    rows: BoolArray
    start: IntArray
    dur: IntArray


def spans(start: IntArray, end: IntArray, odd: Counter[str]) -> Spans:
    """Return records with start and end as spans; what is odd about them is counted."""
    is_time = (start >= 0) & (start < _LIMIT_NS)
    if not is_time.all():
        odd["no-time"] += int(np.count_nonzero(~is_time))
        start, end = start[is_time], end[is_time]
    is_end = (end > 0) & (end < _LIMIT_NS)
    late = is_end & (end < start)
    if late.any() or not is_end.all():
        odd["no-duration"] += int(np.count_nonzero(~is_end))
        odd["negative-duration"] += int(np.count_nonzero(late))
        end = np.where(is_end & ~late, end, start)
    return Spans(is_time, start, end - start)


def span_notes(odd: Counter[str]) -> Iterator[Note]:
    """Give what to say of records with odd times."""
    for code, (kind, sentence) in _SENTENCES.items():
        if odd[code]:
            yield counted_note(kind, code, of_noun("record", f"{sentence}."), odd[code])


# Rows of databases that have a time.


def timed(
    rows: Batch, odd: Counter[str], start: str = "start", end: str = "end"
) -> tuple[Batch, IntArray, IntArray]:
    """Return the rows that have a time, their starts and durations; what is odd is counted."""
    found = spans(rows[start], rows[end], odd)
    return rows.only(found.rows), found.start, found.dur
