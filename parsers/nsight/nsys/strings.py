"""Texts that rows refer to by number; only those that a row refers to are kept.

The table of texts also holds the environment of the recorded process, which nothing refers to that
is read here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.parsers.io import Coder, TextsById, Wanted
from traceflops.parsers.nsight.nsys.tables import Tables
from traceflops.table import ABSENT, Array, IntArray, TableBuilder, compact, distinct

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
