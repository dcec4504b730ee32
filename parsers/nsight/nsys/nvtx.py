"""NVTX ranges and marks of a report: operators of PyTorch, and what the program itself marked.

There are millions of texts and nearly all differ: they come through Arrow and stay bytes, since as
texts of Python they would take most of all the time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from traceflops.parsers.io import (
    LONGEST_VALUE,
    Batch,
    Database,
    Lookup,
    NotFast,
    Table,
    Wanted,
    quoted,
    record_batches,
    select,
)
from traceflops.parsers.nsight.nsys.enums import MARK, RANGES, STACKED
from traceflops.parsers.nsight.nsys.op_texts import OpTexts, op_texts
from traceflops.parsers.nsight.nsys.reading import ReportReading, texts_of
from traceflops.parsers.nsight.nsys.tables import Tables
from traceflops.table import (
    ABSENT,
    Array,
    BoolArray,
    IntArray,
    Names,
    number_column,
    numbers,
    string_column,
)

_UNNAMED: Final = "(unnamed range)"
_TABLE: Final = "NVTX_EVENTS"
_COLUMNS: Final = ("start", "end", "eventType", "globalTid", "textId", "domainId")
_NCCL: Final = re.compile(r"p?nccl[A-Z]")
"""Functions of NCCL; PyTorch's own ranges around them are named `nccl:all_reduce`."""
T = TypeVar("T")
_FITS: Final = f"octet_length({{c}}) <= {LONGEST_VALUE}"
_HAS_TEXT: Final = f"CASE WHEN typeof({{c}}) <> 'text' THEN 0 WHEN {_FITS} THEN 1 END"
"""Null of a text that is too long, which the careful way then deals with."""
_TEXT: Final = f"CASE WHEN typeof({{c}}) = 'text' AND {_FITS} THEN {{c}} ELSE '' END"


def read_nvtx(reading: ReportReading) -> list[Batch]:
    """Add operators and marks; return the ranges of NCCL, which are among the marks.

    Their names are the texts `name`.
    """
    registered: list[Batch] = []
    nccl: list[Batch] = []
    for batch in text_rows(reading.tables, _TABLE, _COLUMNS, "text"):
        reading.counts["NVTX"] += batch.rows.count
        known = np.isin(batch.rows["eventType"], (*RANGES, MARK))
        own = batch.only(known & batch.has_text)
        if own.rows.count:
            nccl += _add(reading, own.rows, np.arange(own.rows.count), op_texts(own.texts))
        others = batch.rows.only(known & ~batch.has_text)
        registered += [others] if others.count else []
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


@dataclass(frozen=True, slots=True)
class TextRows:
    """Rows as numbers, and their texts: an Arrow column, "" where there is none."""

    rows: Batch
    texts: pa.Array
    has_text: BoolArray

    def only(self, chosen: BoolArray) -> TextRows:
        """Return some of the rows."""
        if chosen.all():
            return self
        places = number_column(np.flatnonzero(chosen), pa.int64())
        return TextRows(self.rows.only(chosen), self.texts.take(places), self.has_text[chosen])


def text_rows(
    tables: Tables, table: str, integers: tuple[str, ...], text: str
) -> Iterator[TextRows]:
    """Give the rows of a table some at a time, with some of its columns and one text."""
    done = 0
    if isinstance(tables, Database) and text in tables.columns(table):
        try:
            for some in _ahead(_fast(tables, table, integers, text)):
                done += some.rows.count
                yield some
            return
        except NotFast:
            pass  # the careful way goes on behind the last rows
    for batch in tables.batches(table, Wanted(integers=integers, texts=(text,))):
        skipped = min(done, batch.count)
        done -= skipped
        rows = batch.only(np.arange(batch.count) >= skipped)
        if rows.count:
            texts = rows.texts[text]
            has_text = np.array([a_text is not None for a_text in texts], dtype=np.bool_)
            column = string_column([a_text or "" for a_text in texts])
            yield TextRows(Batch(rows.count, rows.numbers, {}), column, has_text)


def _fast(
    database: Database, table: str, integers: tuple[str, ...], text: str
) -> Iterator[TextRows]:
    """Give rows as the driver does. Raises NotFast where it is missing or an error occurs."""
    there = database.columns(table)
    known = Table(table, {name: "INTEGER" for name in integers if name in there})
    plain = select(known, Wanted(integers=integers), quick=True)
    columns, _, rest = plain.rpartition(" FROM ")
    own = ", ".join(one.format(c=quoted(text)) for one in (_HAS_TEXT, _TEXT))
    for batch in record_batches(database.place.uri, f"{columns}, {own} FROM {rest}"):
        _, *read, texts = batch.columns
        if texts.null_count or not pa.types.is_string(texts.type):
            raise NotFast
        *values, has_text = map(_integers, read)
        rows = Batch(batch.num_rows, dict(zip(integers, values, strict=True)), {})
        yield TextRows(rows, texts, has_text == 1)


def _integers(column: pa.Array) -> Any:
    if column.null_count or not pa.types.is_int64(column.type):
        raise NotFast
    return numbers(column)


def _ahead(items: Iterator[T]) -> Iterator[T]:
    """Give what an iterator gives, of which the next is made while one is used."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item
