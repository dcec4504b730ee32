"""NVTX ranges and marks of a report: operators of PyTorch, and what the program itself marked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from traceflops.parsers.io import Batch, Lookup
from traceflops.parsers.nsight.nsys.enums import MARK, RANGES, STACKED
from traceflops.parsers.nsight.nsys.op_texts import OpTexts, op_texts
from traceflops.parsers.nsight.nsys.reading import ReportReading, texts_of
from traceflops.parsers.nsight.nsys.strings import text_rows
from traceflops.table import ABSENT, Array, IntArray, Names, string_column

_UNNAMED: Final = "(unnamed range)"
_TABLE: Final = "NVTX_EVENTS"
_COLUMNS: Final = ("start", "end", "eventType", "globalTid", "textId", "domainId")
_NCCL: Final = re.compile(r"p?nccl[A-Z]")
"""Functions of NCCL; PyTorch's own ranges around them are named `nccl:all_reduce`."""


def read_nvtx(reading: ReportReading) -> list[Batch]:
    """Add operators and marks; return the ranges of NCCL, which are among the marks.

    Their names are the texts `name`.
    """
    registered: list[Batch] = []
    nccl: list[Batch] = []
    for batch in text_rows(reading.tables, _TABLE, _COLUMNS, "text"):
        reading.counts["NVTX"] += batch.rows.count
        kind = batch.rows["eventType"]
        known = batch.only(np.isin(kind, (*RANGES, MARK)))
        own = known.only(known.has_text)
        if own.rows.count:
            nccl += _add(reading, own.rows, np.arange(own.rows.count), op_texts(own.texts))
        if not known.has_text.all():
            registered.append(known.rows.only(~known.has_text))
    if registered:
        nccl += _add_registered(reading, registered)
    return nccl


def _add_registered(reading: ReportReading, batches: Sequence[Batch]) -> Iterator[Batch]:
    """Add rows whose texts stand in the table of texts; of some the text is not there."""
    ids, texts = texts_of(reading.tables, [batch["textId"] for batch in batches])
    shown = [_UNNAMED if text is None else text for text in texts]
    parsed = op_texts(string_column([*shown, _UNNAMED]))
    place = Lookup(ids, np.arange(len(ids)))
    for batch in batches:
        row = place(batch["textId"])
        reading.odd["unnamed"] += int(np.count_nonzero(row == ABSENT))
        yield from _add(reading, batch, np.where(row == ABSENT, len(ids), row), parsed)


def _add(reading: ReportReading, batch: Batch, text: IntArray, texts: OpTexts) -> Iterator[Batch]:
    """Add rows by the places of their texts, which were taken apart; give the ranges of NCCL."""
    own = {"end": _ends(reading, batch), "text": text, "name": texts.name[text]}
    rows = reading.timed(Batch(batch.count, {**batch.numbers, **own}, {}))
    # A domain of its own is not PyTorch's: it marks its operators in the default one.
    default = (rows["domainId"] == 0) | (rows["domainId"] == ABSENT)
    is_op = texts.is_op[rows["text"]] & np.isin(rows["eventType"], STACKED) & default
    _add_ops(reading, rows.only(is_op), texts)
    _add_marks(reading, rows.only(~is_op), texts)
    nccl = np.array([bool(_NCCL.match(name)) for name in texts.names], dtype=np.bool_)
    if nccl.any():
        mine = rows.only(~is_op & nccl[rows["name"]])
        names: list[str | None] = [texts.names[place] for place in mine["name"].tolist()]
        yield Batch(mine.count, mine.numbers, {"name": names})


def _ends(reading: ReportReading, batch: Batch) -> IntArray:
    """Return where rows end: marks where they begin, open ranges at the latest time known."""
    start, end = batch["start"], batch["end"]
    is_open = end == ABSENT
    if not is_open.any():
        return end
    is_range = np.isin(batch["eventType"], RANGES)
    reading.odd["open-range"] += int(np.count_nonzero(is_open & is_range))
    last = np.where(is_range, np.maximum(start, reading.latest_ns), start)
    return np.where(is_open, last, end)


def _add_ops(reading: ReportReading, rows: Batch, texts: OpTexts) -> None:
    names, text = reading.gathered["ops"].names, rows["text"]
    sizes = texts.sizes[text]
    columns: dict[str, Array] = {}
    if (sizes >= 0).any():
        columns["input_dims"] = _codes(names["input_dims"], texts.all_sizes, sizes)
    reading.add(
        "ops",
        rows,
        name=_codes(names["name"], texts.names, rows["name"]),
        external_id=texts.op_id[text],
        sequence=texts.sequence[text],
        **columns,
    )


def _add_marks(reading: ReportReading, rows: Batch, texts: OpTexts) -> None:
    names = reading.gathered["marks"].names
    kinds = names["kind"]
    is_mark = rows["eventType"] == MARK
    reading.add(
        "marks",
        rows,
        kind=np.where(is_mark, kinds["instant"], kinds["annotation"]),
        name=_codes(names["name"], texts.names, rows["name"]),
    )


def _codes(names: Names, texts: Sequence[str | None], places: IntArray) -> Array:
    """Return the codes of texts among names, given by their places; -1 where there is none."""
    table = np.full(len(texts) + 1, -1, dtype=np.int32)
    for place in np.unique(places[places >= 0]).tolist():
        text = texts[place]
        if text is not None:
            table[place] = names[text or _UNNAMED]
    return table[places]
