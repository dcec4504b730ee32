"""Texts of a report: those that rows refer to by number, and those that rows hold themselves.

Of the first only those are kept that a row refers to: their table also holds the environment of the
recorded process, which nothing refers to that is read here. Of the second there are millions and
nearly all differ: they come through Arrow and stay bytes, since as texts of Python they would take
most of all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from traceflops.parsers.io import (
    LONGEST_VALUE,
    Batch,
    Coder,
    Database,
    NotFast,
    Table,
    TextsById,
    Wanted,
    quoted,
    record_batches,
    select,
)
from traceflops.parsers.nsight.nsys.tables import Tables
from traceflops.table import (
    ABSENT,
    Array,
    BoolArray,
    IntArray,
    TableBuilder,
    compact,
    distinct,
    number_column,
    numbers,
    string_column,
)

_STRINGS: Final = "StringIds"
_NUL: Final = "\0"
"""No name holds it; the variables of an environment are parted by it."""
_WANTED: Final = Wanted(integers=("id",), texts=("value",))

Shown = Callable[[str], str]
"""What is shown of a text."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Some texts and their ids."""

    ids: IntArray
    texts: Sequence[str | None]

    def shown(self, how: Shown | None = None) -> TextsById:
        """Return the texts by their ids, as they are shown."""
        if how is None:
            return TextsById(self.ids, self.texts)
        return TextsById(self.ids, [how(text) if text else text for text in self.texts])


def texts_of(tables: Tables, ids: Sequence[IntArray]) -> Texts:
    """Return the texts of some ids."""
    wanted = distinct(np.concatenate([np.empty(0, np.int64), *map(distinct, ids)]))
    wanted = wanted[wanted != ABSENT]
    found: list[IntArray] = [np.empty(0, np.int64)]
    texts: list[str | None] = []
    for batch in tables.batches(_STRINGS, _WANTED) if len(wanted) else ():
        rows = batch.only(np.isin(batch["id"], wanted))
        found.append(rows["id"])
        texts += [None if text and _NUL in text else text for text in rows.texts["value"]]
    return Texts(np.concatenate(found), texts)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of a table whose names are still ids."""

    table: TableBuilder
    columns: dict[str, Array | int]
    unnamed: str
    shown: Shown | None

    @property
    def ids(self) -> IntArray:
        return np.atleast_1d(self.columns["name"])


class NamesToCome:
    """Rows whose names are ids of texts until all rows are read: then the texts are looked up."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []

    def add(
        self,
        table: TableBuilder,
        ids: IntArray,
        unnamed: str,
        shown: Shown | None = None,
        /,
        **columns: Array | int,
    ) -> None:
        """Append rows to a table by the ids of their names; `unnamed` is for ids without a text."""
        if len(ids):
            table.add(len(ids), name=ids, **columns)
            self._pieces.append(_Piece(table, table.pieces[-1][1], unnamed, shown))

    def ids(self) -> list[IntArray]:
        """Return the ids of all names that are still to come."""
        return [distinct(piece.ids) for piece in self._pieces]

    def resolve(self, texts: Texts) -> None:
        """Put the texts in the place of their ids."""
        coders: dict[tuple[str, str, Shown | None], Coder] = {}
        for piece in self._pieces:
            key = piece.table.table, piece.unnamed, piece.shown
            if key not in coders:
                names = piece.table.names["name"]
                coders[key] = texts.shown(piece.shown).coder(names, piece.unnamed)
            piece.columns["name"] = compact(coders[key](piece.ids))
        self._pieces.clear()


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
            for found in _ahead(_fast(tables, table, integers, text)):
                done += found.rows.count
                yield found
            return
        except NotFast:
            pass  # the careful way goes on behind the last rows
    for batch in tables.batches(table, Wanted(integers=integers, texts=(text,))):
        skipped = min(done, batch.count)
        done -= skipped
        rows = batch.only(np.arange(batch.count) >= skipped) if skipped else batch
        if rows.count:
            yield _of_texts(rows, rows.texts[text])


def _of_texts(rows: Batch, texts: Sequence[str | None]) -> TextRows:
    has_text = np.array([one is not None for one in texts], dtype=np.bool_)
    return TextRows(
        Batch(rows.count, rows.numbers, {}), string_column([one or "" for one in texts]), has_text
    )


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
        *found, has_text, texts = batch.columns
        if texts.null_count or not pa.types.is_string(texts.type):
            raise NotFast
        whole = [_whole(column) for column in (*found[1:], has_text)]
        rows = Batch(batch.num_rows, dict(zip(integers, whole[:-1], strict=True)), {})
        yield TextRows(rows, texts, whole[-1] == 1)


def _whole(column: pa.Array) -> Any:
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
