"""The tables of an SQLite database as columns, read without trusting anything in it.

Only stored columns of base tables are read, so no SQL in the file is executed. Numbers are read
through Arrow if that works, everything else row by row, around damage.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import chain
from typing import Final, Self

import numpy as np
from msgspec.structs import replace

from traceflops.errors import InputError
from traceflops.parsers.io import database_scan
from traceflops.parsers.io.database_file import PlacedFile
from traceflops.parsers.io.database_query import (
    Batch,
    Condition,
    Table,
    Wanted,
    batch_of_columns,
    conditions_sql,
    one_batch,
    quoted,
    select,
)
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.notes import NoteTable
from traceflops.table.trace import Note
from traceflops.units import listed, several

_MOST_TABLES: Final = 100_000
_MOST_CALLS: Final = 1_000
_STEPS_A_CALL: Final = 50_000
"""With _MOST_CALLS, limits SQLite's steps for listing the tables; a real list takes thousands."""
_BATCH_ROWS: Final = 1 << 14
_LARGE: Final = 500_000  # tables with at least so many rows are read in two parts, in parallel
_BYTES_A_ROW: Final = 4
"""A row takes more bytes of the file, so a table with more rows must have pages in circles."""
_NOTES: Final = NoteTable(
    dropped={
        "input-cut": ("The file ends {size} before the end of the database.", "The rest is lost."),
        "rows-lost": (
            "The database is damaged.",
            "Every readable row is used; rows are missing from {listed}.",
        ),
    },
    repaired={"invalid-utf8": "Invalid UTF-8 in {count} [text|texts] was replaced by U+FFFD."},
)


class Database:
    """An open SQLite database; as a context manager it is closed at the end.

    `tables` are its base tables, `asked` those read. Raises InputError if tables cannot be listed.
    """

    def __init__(self, source: ByteSource, file: PlacedFile) -> None:
        """Open the database and list its tables, in a bounded number of steps."""
        self.source = source
        self.file = file
        self.tables: frozenset[str] = frozenset()
        self.asked: set[str] = set()
        self._tables: dict[str, Table] = {}
        self._lost: dict[str, int | None] = {}  # how many rows, by table; None: unknown
        self._last: dict[str, int] = {}  # the highest row number ever, by table
        self._rows = 0  # read so far
        self._mended = 0  # texts with invalid UTF-8
        self._opened = ExitStack()
        try:
            # Never mapped to memory: another program may change the file while it is read.
            connection = sqlite3.connect(file.uri, uri=True, isolation_level=None)
            self._connection = self._opened.enter_context(closing(connection))
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, database_scan.LONGEST_VALUE)
            connection.text_factory = self._text
            for setting in ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON"):
                connection.execute(f"PRAGMA {setting}")
            # Writes nothing, but is needed to open a database whose end is missing.
            connection.execute("PRAGMA writable_schema=ON")
            # List the tables and their last row numbers, in a limited number of steps.
            calls = iter(range(_MOST_CALLS))
            connection.set_progress_handler(lambda: next(calls, None) is None, _STEPS_A_CALL)
            # Virtual tables, whose content is computed, have no root page.
            names = connection.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND rootpage > 0 LIMIT ?",
                (_MOST_TABLES,),
            )
            self.tables = frozenset(name for (name,) in names if isinstance(name, str))
            if "sqlite_sequence" in self.tables:
                with suppress(*database_scan.FAULTS):
                    query = "SELECT name, seq FROM sqlite_sequence WHERE typeof(seq) = 'integer'"
                    rows = connection.execute(f"{query} LIMIT ?", (_MOST_TABLES,))
                    self._last = {name: seq for name, seq in rows if name in self.tables}
            connection.set_progress_handler(None, 0)
        except database_scan.FAULTS as error:
            self._opened.close()
            raise InputError(
                f"SQLite database damaged beyond reading: {source.label} ({error})",
                "its list of tables is lost; copy the file again or record again",
            ) from None

    def __enter__(self) -> Self:
        """Return the database itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close the database."""
        self._opened.close()

    @property
    def damaged(self) -> bool:
        """Whether part of the database or its log is missing, or rows of tables that were read."""
        is_cut = any(note.code in ("input-cut", "log-cut") for note in self.file.notes)
        return is_cut or self.file.missing_bytes > 0 or bool(self._lost)

    @property
    def lost(self) -> frozenset[str]:
        """The tables of which rows are lost, among those that were read so far."""
        return frozenset(self._lost)

    def columns(self, table: str) -> frozenset[str]:
        """Return the names of the stored columns of a table; none if there is no such table."""
        return frozenset(self._table(table).columns) if table in self.tables else frozenset()

    def has_rows(self, table: str) -> bool:
        """Return whether a table has rows; True also if its beginning cannot be read."""
        if table not in self.tables:
            return False
        query = f"{select(self._table(table), Wanted())} LIMIT 1"
        try:
            return self._connection.execute(query).fetchone() is not None
        except database_scan.FAULTS:
            return True

    def unused(self, families: tuple[str, ...]) -> dict[str, int]:
        """Return the row counts of tables that were not read; `families` are prefixes of names."""
        names = sorted(n for n in self.tables - self.asked if n.startswith(families))
        return {name: self.whole(name, Wanted()).count for name in names if self.has_rows(name)}

    def whole(self, table: str, wanted: Wanted, conditions: Sequence[Condition] = ()) -> Batch:
        """Return the rows of a table at once."""
        return one_batch(wanted, self.batches(table, wanted, conditions))

    def batches(
        self, table: str, wanted: Wanted, conditions: Sequence[Condition] = ()
    ) -> Iterator[Batch]:
        """Yield the rows of a table that fulfil the conditions, in batches, in no particular order.

        Unreadable rows are left out; a missing table has no rows.
        """
        self.asked.add(table)
        if table not in self.tables:
            return
        layout = self._table(table)
        parts = [(database_scan.LOWEST, database_scan.HIGHEST)]  # ranges of row numbers
        # The fast way reads numbers, of all rows; it needs row numbers to know how far it got.
        if layout.row_number is not None and not wanted.as_texts and not conditions:
            parts = self._parts(layout)
            # If the fast way fails, the careful one goes on behind the last rows of each part.
            with suppress(database_scan.NotFast):
                for part, last, batch in self._fast(layout, wanted, parts):
                    parts[part] = (last + 1, parts[part][1])
                    yield self._counted(batch)
                return
        for batch in self._careful(layout, wanted, conditions, parts):
            yield self._counted(batch)

    def notes(self, label: Callable[[str], str] = str) -> tuple[Note, ...]:
        """Return the notes on what was lost and mended so far; `label` returns a table's label."""
        notes = list(self.file.notes)
        if self.file.missing_bytes and not any(note.code == "input-cut" for note in notes):
            notes.append(_NOTES.note("input-cut", size=several(self.file.missing_bytes, "byte")))
        if self._lost:
            lost = {label(name): count for name, count in self._lost.items()}
            tables = [
                f"{table} ({'an unknown number' if count is None else f'up to {count:,}'})"
                for table, count in lost.items()
            ]
            note = _NOTES.note("rows-lost", listed=listed(tables, most=4))
            # The number of lost rows is unknown if it is unknown for one table.
            counts = [count for count in lost.values() if count is not None]
            total = sum(counts) if len(counts) == len(lost) else None
            notes.append(replace(note, count=total))
        notes += _NOTES.counted({"invalid-utf8": self._mended}, "invalid-utf8")
        return tuple(replace(note, file=self.source.label) for note in notes)

    def _text(self, raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self._mended += 1
            return raw.decode(errors="replace")

    def _table(self, name: str) -> Table:
        """Return the stored columns of a table and the name of its row number, if it has any."""
        if name not in self._tables:
            try:
                # Hidden columns are computed by expressions in the file: leave them out.
                query = "SELECT name, type FROM pragma_table_xinfo(?) WHERE hidden = 0"
                rows = self._connection.execute(query, (name,))
                columns = {str(column): str(declared) for column, declared in rows}
            except database_scan.FAULTS:
                columns = {}
            table = Table(name, columns)
            taken = {column.lower() for column in columns}
            for word in (word for word in ("_rowid_", "oid", "rowid") if word not in taken):
                with suppress(*database_scan.FAULTS):
                    self._connection.execute(f"{select(Table(name, {}, word), Wanted())} LIMIT 0")
                    table = Table(name, columns, word)
                    break
            self._tables[name] = table
        return self._tables[name]

    def _counted(self, batch: Batch) -> Batch:
        self._rows += batch.count
        total = sum(self._last.values())
        if total:
            self.source.progress(int(self.file.bytes * min(1.0, self._rows / total)))
        return batch

    def _parts(self, table: Table) -> list[tuple[int, int]]:
        """Return the ranges of row numbers in which to read a table: two if it is large."""
        ends = []
        for end in ("min", "max"):
            query = f"SELECT {end}({table.row_number}) FROM {quoted(table.name)} NOT INDEXED"
            with suppress(*database_scan.FAULTS):
                # An empty table has None; an end at 0 only makes it one part.
                ends += [number for (number,) in self._connection.execute(query) if number]
        if len(ends) < 2 or ends[1] - ends[0] < _LARGE:
            return [(database_scan.LOWEST, database_scan.HIGHEST)]
        middle = sum(ends) // 2
        return [(database_scan.LOWEST, middle), (middle + 1, database_scan.HIGHEST)]

    def _fast(
        self, table: Table, wanted: Wanted, parts: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[int, int, Batch]]:
        """Yield batches read through Arrow, with part and last row number. Raises NotFast."""
        last, queries = [database_scan.LOWEST] * len(parts), []
        for low, high in parts:
            ends = [f"{table.row_number} >= {low}"] * (low != database_scan.LOWEST)
            ends += [f"{table.row_number} <= {high}"] * (high != database_scan.HIGHEST)
            where = f" WHERE {' AND '.join(ends)}" if ends else ""
            queries.append(select(table, wanted, where, quick=True))
        for part, columns in database_scan.fast_columns(self.file.uri, queries):
            row_numbers = columns[0]
            if not len(row_numbers):
                continue
            # Row numbers must increase in a batch and from one batch of the part to the next.
            increases = bool((row_numbers[1:] > row_numbers[:-1]).all())
            goes_back = last[part] > database_scan.LOWEST and int(row_numbers[0]) <= last[part]
            # One real makes a quick query return reals for all integers of the column.
            has_reals = any(c.dtype != np.int64 for c in columns[: 1 + len(wanted.integers)])
            if not increases or goes_back or has_reals:
                raise database_scan.NotFast
            last[part] = int(row_numbers[-1])
            yield part, last[part], batch_of_columns(wanted, columns)

    def _careful(
        self,
        table: Table,
        wanted: Wanted,
        conditions: Sequence[Condition],
        parts: Sequence[tuple[int, int]],
    ) -> Iterator[Batch]:
        """Yield batches of rows read by Python's SQLite driver, around damage; note lost rows."""
        most_rows = self.file.bytes // _BYTES_A_ROW
        scan = partial(self._scan, table, wanted, conditions, most_rows)
        is_numbered = table.row_number is not None
        salvage = database_scan.Salvage(scan, self._last.get(table.name), is_numbered)
        for rows in chain.from_iterable(salvage.rows(*part) for part in parts):
            yield batch_of_columns(wanted, list(zip(*rows, strict=True)))
        if salvage.failures or salvage.lost is None:
            # If more rows are missing than fit into the file, row numbers have gaps: unknown.
            most_lost = most_rows + self.file.missing_bytes // _BYTES_A_ROW - salvage.read
            lost = salvage.lost or None  # 0 cannot be right after a failure
            self._lost[table.name] = None if lost is None or lost > most_lost else lost

    def _scan(
        self,
        table: Table,
        wanted: Wanted,
        conditions: Sequence[Condition],
        most_rows: int,
        low: int,
        high: int,
    ) -> Iterator[list[database_scan.Row]]:
        """Yield the rows numbered from `low` to `high`. Raises Damaged, also after `most_rows`."""
        terms, values = conditions_sql(conditions, table)
        order, is_damaged, is_numbered = "", False, table.row_number is not None
        if is_numbered:
            terms, values = [f"{table.row_number} BETWEEN ? AND ?", *terms], [low, high, *values]
            order = f" ORDER BY {table.row_number}"
        where = f" WHERE {' AND '.join(terms)}" if terms else ""
        query = select(table, wanted, f"{where}{order} LIMIT ?")
        # A limit, since SQLite looks for another row behind the last one, which may be damaged.
        most = min(most_rows + 1, high - low + 1, database_scan.HIGHEST)
        rows: list[database_scan.Row] = []
        try:
            for count, row in enumerate(self._connection.execute(query, [*values, most])):
                # Pages that refer to each other in circles give endless rows, or out of order.
                is_damaged = count >= most_rows or (is_numbered and not low <= row[0] <= high)
                if is_damaged:
                    break
                low = row[0] + 1 if is_numbered else low
                rows.append(row)
                if len(rows) == _BATCH_ROWS:
                    yield rows
                    rows = []
        except database_scan.FAULTS:
            is_damaged = True
        if rows:
            yield rows
        if is_damaged:
            raise database_scan.Damaged
