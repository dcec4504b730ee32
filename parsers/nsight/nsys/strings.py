"""Rows of a report that hold texts themselves.

There are millions and nearly all differ: they come through Arrow and stay bytes, since as texts of
Python they would take most of all the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from traceflops.parsers.io import (
    LONGEST_VALUE,
    Batch,
    Database,
    NotFast,
    Table,
    Wanted,
    quoted,
    record_batches,
    select,
)
from traceflops.parsers.nsight.nsys.tables import Tables
from traceflops.table import BoolArray, number_column, numbers, string_column

T = TypeVar("T")
_FITS: Final = f"octet_length({{c}}) <= {LONGEST_VALUE}"
_HAS_TEXT: Final = f"CASE WHEN typeof({{c}}) <> 'text' THEN 0 WHEN {_FITS} THEN 1 END"
"""Null of a text that is too long, which the careful way then deals with."""
_TEXT: Final = f"CASE WHEN typeof({{c}}) = 'text' AND {_FITS} THEN {{c}} ELSE '' END"


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
            has_text = np.array([one is not None for one in texts], dtype=np.bool_)
            column = string_column([one or "" for one in texts])
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
