"""Rows of CSV of one kind as typed columns, of which readers make rows of tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from traceflops.parsers.io import Column, Texts
from traceflops.parsers.shared.sanity_checks import spans
from traceflops.table import ABSENT, Array, BoolArray, IntArray, Names, TableBuilder, distinct


@dataclass(frozen=True, slots=True)
class Cut:
    """Some rows of a block."""

    count: int
    columns: Mapping[str, Column]

    def has(self, role: str) -> bool:
        """Return whether the file has such a column."""
        return role in self.columns

    def numbers(self, role: str) -> IntArray:
        """Return a column of whole numbers; ABSENT where the file has none."""
        column = self.columns.get(role)
        if column is None or isinstance(column, Texts):
            return np.full(self.count, ABSENT, np.int64)
        return column

    __getitem__ = numbers

    def codes(self, role: str, names: Names, otherwise: str | None = None) -> Array:
        """Return a column of texts as codes of `names`; `otherwise` stands for an empty one."""
        column = self.columns.get(role)
        if not isinstance(column, Texts):
            code = -1 if otherwise is None else names[otherwise]
            return np.full(self.count, code, np.int32)
        used = distinct(column.codes)
        table = np.full(len(column.values) + 1, -1, np.int32)
        texts = (column.values[code] or otherwise for code in used.tolist())
        table[used] = [-1 if text is None else names[text] for text in texts]
        return table[column.codes]

    def timed(self, odd: Counter[str]) -> Cut:
        """Return the rows that have a time, with `start_ns` and `dur_ns`; odd ones are counted."""
        is_time, start, dur = spans(self["start"], self["end"], odd)
        kept = self.only(is_time)
        return Cut(kept.count, {**kept.columns, "start_ns": start, "dur_ns": dur})

    def only(self, rows: BoolArray | IntArray) -> Cut:
        """Return the chosen rows."""
        if rows.dtype == np.bool_ and rows.all():
            return self
        places = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows.astype(np.int64)
        taken = {
            role: column.taken(places) if isinstance(column, Texts) else column[places]
            for role, column in self.columns.items()
        }
        return Cut(len(places), taken)


def chosen(table: TableBuilder, rows: BoolArray) -> TableBuilder:
    """Return the chosen rows of a table, under the same codes of texts."""
    if rows.all():
        return table
    start = 0
    pieces = []
    for count, columns in table.pieces:
        kept = rows[start : start + count]
        start += count
        number = int(np.count_nonzero(kept))
        if number:
            cut = {
                k: c if isinstance(c, int) or np.ndim(c) == 0 else c[kept]
                for k, c in columns.items()
            }
            pieces.append((number, cut))
    table.pieces = pieces
    table.count = int(np.count_nonzero(rows))
    return table
