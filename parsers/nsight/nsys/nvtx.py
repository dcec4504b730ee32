"""NVTX ranges and marks of a report: operators of PyTorch, and what the program itself marked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.parsers.io import Batch, Lookup
from traceflops.parsers.nsight.nsys.enums import MARK, RANGES, STACKED, processes_of, threads_of
from traceflops.parsers.nsight.nsys.op_texts import OpTexts, op_texts
from traceflops.parsers.nsight.nsys.reading import ReportReading
from traceflops.parsers.nsight.nsys.strings import text_rows, texts_of
from traceflops.table import ABSENT, Array, BoolArray, IntArray, Names, string_column

UNNAMED: Final = "(unnamed range)"

_TABLE: Final = "NVTX_EVENTS"
_COLUMNS: Final = ("start", "end", "eventType", "globalTid", "textId", "domainId")
_NCCL: Final = re.compile(r"p?nccl[A-Z]")
"""Functions of NCCL; PyTorch's own ranges around them are named `nccl:all_reduce`."""
_OPEN: Final = "open-range"


@dataclass(frozen=True, slots=True)
class NcclRanges:
    """Ranges that NCCL marks: their threads, times, domains and names."""

    thread: IntArray
    start_ns: IntArray
    dur_ns: IntArray
    domain: IntArray
    names: list[str]


@dataclass(frozen=True, slots=True)
class _Ranges:
    """Rows with times; `text` are the places of their texts among those taken apart."""

    rows: Batch
    start_ns: IntArray
    dur_ns: IntArray
    text: IntArray

    def only(self, chosen: BoolArray) -> _Ranges:
        return _Ranges(
            self.rows.only(chosen), self.start_ns[chosen], self.dur_ns[chosen], self.text[chosen]
        )


def read_nvtx(reading: ReportReading) -> list[NcclRanges]:
    """Add operators and marks; return the ranges of NCCL, which are among the marks."""
    found: list[NcclRanges] = []
    registered: list[Batch] = []
    for batch in text_rows(reading.tables, _TABLE, _COLUMNS, "text"):
        reading.counts["NVTX"] += batch.rows.count
        kind = batch.rows["eventType"]
        known = batch.only(np.isin(kind, RANGES) | (kind == MARK))
        own = known.only(known.has_text)
        if own.rows.count:
            _add(reading, own.rows, np.arange(own.rows.count), op_texts(own.texts), found)
        if not known.has_text.all():
            registered.append(known.rows.only(~known.has_text))
    _add_registered(reading, registered, found)
    return found


def _add_registered(
    reading: ReportReading, batches: Sequence[Batch], found: list[NcclRanges]
) -> None:
    """Add rows whose texts stand in the table of texts; of some the text is not there."""
    if not batches:
        return
    texts = texts_of(reading.tables, [batch["textId"] for batch in batches])
    known = [text if text is not None else UNNAMED for text in texts.texts]
    parsed = op_texts(string_column([*known, UNNAMED]))
    place = Lookup(texts.ids, np.arange(len(known)))
    for batch in batches:
        row = place(batch["textId"])
        reading.odd["unnamed"] += int(np.count_nonzero(row == ABSENT))
        _add(reading, batch, np.where(row == ABSENT, len(known), row), parsed, found)


def _add(
    reading: ReportReading,
    batch: Batch,
    text: IntArray,
    texts: OpTexts,
    found: list[NcclRanges],
) -> None:
    """Add rows by their texts, which were taken apart."""
    with_text = Batch(batch.count, {**_closed(reading, batch).numbers, "text": text}, {})
    rows, start, dur = reading.timed(with_text)
    ranges = _Ranges(rows, start, dur, rows["text"])
    # A domain of its own is not PyTorch's: it marks its operators in the default one.
    default = (rows["domainId"] == 0) | (rows["domainId"] == ABSENT)
    is_op = texts.is_op[ranges.text] & np.isin(rows["eventType"], STACKED) & default
    _add_ops(reading, ranges.only(is_op), texts)
    _add_marks(reading, ranges.only(~is_op), texts)
    nccl = np.array([bool(_NCCL.match(name)) for name in texts.names], dtype=np.bool_)
    if nccl.any():
        mine = ranges.only(~is_op & nccl[texts.name[ranges.text]])
        names = [texts.names[place] for place in texts.name[mine.text].tolist()]
        found.append(
            NcclRanges(
                mine.rows["globalTid"], mine.start_ns, mine.dur_ns, mine.rows["domainId"], names
            )
        )


def _closed(reading: ReportReading, batch: Batch) -> Batch:
    """Return rows that all have an end: marks, their own; open ranges, the latest time seen."""
    open_ = batch["end"] == ABSENT
    if not open_.any():
        return batch
    is_range = np.isin(batch["eventType"], RANGES)
    reading.odd[_OPEN] += int(np.count_nonzero(open_ & is_range))
    start = batch["start"]
    last = np.where(is_range, np.maximum(start, reading.latest_ns), start)
    return Batch(batch.count, {**batch.numbers, "end": np.where(open_, last, batch["end"])}, {})


def _add_ops(reading: ReportReading, ranges: _Ranges, texts: OpTexts) -> None:
    ops, rows = reading.gathered["ops"], ranges.rows
    sizes = texts.sizes[ranges.text]
    columns: dict[str, Array] = {}
    if (sizes >= 0).any():
        columns["input_dims"] = _codes(ops.names["input_dims"], texts.all_sizes, sizes)
    ops.add(
        rows.count,
        **_place(reading, rows),
        name=_codes(ops.names["name"], texts.names, texts.name[ranges.text]),
        start_ns=ranges.start_ns,
        dur_ns=ranges.dur_ns,
        external_id=texts.op_id[ranges.text],
        sequence=texts.sequence[ranges.text],
        **columns,
    )


def _add_marks(reading: ReportReading, ranges: _Ranges, texts: OpTexts) -> None:
    marks, rows = reading.gathered["marks"], ranges.rows
    kinds = marks.names["kind"]
    marks.add(
        rows.count,
        **_place(reading, rows),
        kind=np.where(rows["eventType"] == MARK, kinds["instant"], kinds["annotation"]),
        name=_codes(marks.names["name"], texts.names, texts.name[ranges.text]),
        start_ns=ranges.start_ns,
        dur_ns=ranges.dur_ns,
    )


def _place(reading: ReportReading, rows: Batch) -> dict[str, IntArray]:
    return {
        "process": reading.people.processes(processes_of(rows["globalTid"])),
        "thread": threads_of(rows["globalTid"]),
    }


def _codes(names: Names, texts: Sequence[str | None], places: IntArray) -> Array:
    """Return the codes of texts among names, given by their places; -1 where there is none."""
    table = np.full(len(texts) + 1, -1, dtype=np.int32)
    for place in np.unique(places[places >= 0]).tolist():
        text = texts[place]
        if text is not None:
            table[place] = names[text or UNNAMED]
    return table[places]
