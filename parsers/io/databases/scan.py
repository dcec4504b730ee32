"""One table read row by row, in the order of its rows or against it, up to where it is damaged."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from traceflops.parsers.io.databases.query import Condition, Table, Wanted, conditions_sql, select
from traceflops.parsers.io.databases.salvage import FAULTS, HIGHEST, Damaged, Row

_BATCH_ROWS: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class TableScan:
    """Rows of a table that fulfil conditions; `most_rows` is more than the file has room for."""

    connection: sqlite3.Connection
    table: Table
    wanted: Wanted
    conditions: Sequence[Condition]
    most_rows: int

    def __call__(self, low: int, high: int, backwards: bool) -> Iterator[list[Row]]:
        """Give the rows with numbers between two, some at a time. Raises Damaged."""
        rows: list[Row] = []
        damaged, numbered = False, self.table.row_number is not None
        try:
            for row in self._checked(low, high, backwards, self.most_rows):
                if numbered:
                    low, high = (low, row[0] - 1) if backwards else (row[0] + 1, high)
                rows.append(row)
                if len(rows) == _BATCH_ROWS:
                    yield rows
                    rows = []
        except (*FAULTS, Damaged):
            damaged = True
            # Python looks one row ahead: it fails without giving the row before the damage.
            with suppress(*FAULTS, Damaged):
                rows += self._checked(low, high, backwards, 1) if numbered else ()
        if rows:
            yield rows
        if damaged:
            raise Damaged

    def _checked(self, low: int, high: int, backwards: bool, most: int) -> Iterator[Row]:
        """Give rows as long as each has its place: pages that refer to each other have no end."""
        if low > high:
            return
        numbered = self.table.row_number is not None
        for place, row in enumerate(self._cursor(low, high, backwards, most)):
            number = row[0]
            if place >= self.most_rows or (numbered and not low <= number <= high):
                raise Damaged
            if numbered:
                low, high = (low, number - 1) if backwards else (number + 1, high)
            yield row

    def _cursor(self, low: int, high: int, backwards: bool, most: int) -> sqlite3.Cursor:
        table = self.table
        terms, values = conditions_sql(self.conditions, table)
        order = ""
        if table.row_number is not None:
            terms, values = [f"{table.row_number} BETWEEN ? AND ?", *terms], [low, high, *values]
            order = f" ORDER BY {table.row_number}{' DESC' if backwards else ''}"
        where = f" WHERE {' AND '.join(terms)}" if terms else ""
        query = select(table, self.wanted, f"{where}{order} LIMIT ?")
        # Behind the last row SQLite looks for another one, which may lie in the damage.
        return self.connection.execute(query, [*values, min(most, high - low + 1, HIGHEST)])
