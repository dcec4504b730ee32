"""The tables of a report of Nsight Systems: in a database, or as files of a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from traceflops.parsers.io.arrow_files import ARROW_UNREADABLE, ArrowTable
from traceflops.parsers.io.database_query import Among, Batch, Present, Wanted, one_batch
from traceflops.parsers.io.database_rows import Database
from traceflops.parsers.io.inputs import ByteSource
from traceflops.table.columns import ABSENT, Array, numbers
from traceflops.table.trace import Note

Condition = Among | Present


class Folder(Struct):
    """The tables of a report, each in a file. Rows of the tables `asked` were read.

    `missing` are tables known to lack rows from the start, `_lost` those with damaged files.
    """

    source: ByteSource
    files: Mapping[str, ArrowTable]
    asked: set[str] = field(default_factory=set)
    missing: frozenset[str] = frozenset()
    _lost: dict[str, str] = field(default_factory=dict)

    @property
    def damaged(self) -> bool:
        """Whether part of a file could not be read."""
        return bool(self.lost)

    @property
    def lost(self) -> frozenset[str]:
        """The tables of which rows are lost, as far as they were read."""
        return self.missing | frozenset(self._lost)

    def columns(self, table: str) -> frozenset[str]:
        """Return the columns of a table; none if there is no such table."""
        return frozenset(self.files[table].columns) if table in self.files else frozenset()

    def unused(self, families: tuple[str, ...]) -> dict[str, int]:
        """Return the row counts of tables that were not read; `families` are prefixes of names."""
        names = sorted(n for n in self.files.keys() - self.asked if n.startswith(families))
        first = {name: Wanted(integers=self.files[name].columns[:1]) for name in names}
        counts = {name: self.whole(name, wanted).count for name, wanted in first.items()}
        return {name: count for name, count in counts.items() if count}

    def whole(self, table: str, wanted: Wanted, conditions: Sequence[Condition] = ()) -> Batch:
        """Return the rows of a table at once."""
        return one_batch(wanted, self.batches(table, wanted, conditions))

    def batches(
        self, table: str, wanted: Wanted, conditions: Sequence[Condition] = ()
    ) -> Iterator[Batch]:
        """Yield the rows of a table that fulfil the conditions, in batches, up to any damage.

        A missing column is ABSENT in all rows, so no row fulfils a condition on it.
        """
        self.asked.add(table)
        if table not in self.files:
            return
        asked = dict.fromkeys((*wanted.integers, *wanted.reals, *wanted.texts))
        asked |= dict.fromkeys(condition.column for condition in conditions)
        try:
            for rows in self.files[table].batches(list(asked)):
                columns = {name: integers(rows, name) for name in wanted.integers}
                columns |= {name: _reals(_column(rows, name)) for name in wanted.reals}
                texts = {name: _texts(rows, name) for name in wanted.texts}
                keep = np.ones(rows.num_rows, np.bool_)
                for condition in conditions:
                    name = condition.column
                    if isinstance(condition, Present):
                        keep &= np.asarray(_column(rows, name).is_valid(), np.bool_)
                    elif isinstance(condition.values[0], int):
                        keep &= np.isin(integers(rows, name), condition.values)
                    else:
                        of_rows = _texts(rows, name)
                        keep &= np.array([text in condition.values for text in of_rows], np.bool_)
                yield Batch(rows.num_rows, columns, texts).only(keep)
        except ARROW_UNREADABLE as error:
            self._lost.setdefault(table, type(error).__name__)

    def notes(self) -> tuple[Note, ...]:
        """Return the note on damaged files, if there are any so far."""
        if not self._lost:
            return ()
        listed = ", ".join(list(self._lost)[:4])
        text = "Some files of the folder are damaged."
        used = f"Every row before the damage is used; rows are missing from {listed}."
        return (Note("dropped", "rows-lost", text, None, self.source.label, advice=used),)


Tables: TypeAlias = Database | Folder
"""Tables whose columns are read by name; a missing column is ABSENT in all rows."""


def _column(rows: pa.RecordBatch, name: str) -> pa.Array:
    names = rows.schema.names
    return rows.column(names.index(name)) if name in names else pa.nulls(rows.num_rows)


def integers(rows: pa.RecordBatch, name: str) -> Array:
    """Return a column as int64, ABSENT for null. Exact floats and texts of digits are converted."""
    column = _column(rows, name)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_uint64(kind):
        values = np.asarray(column.fill_null(0), np.uint64)
        return np.where(np.asarray(column.is_valid(), np.bool_), values.view(np.int64), ABSENT)
    if pa.types.is_integer(kind):
        return numbers(column.cast(pa.int64()), ABSENT)
    if pa.types.is_floating(kind):
        reals = _reals(column)
        exact = (np.abs(reals) < (2.0**53)) & (reals == np.floor(reals))  # a NaN is not
        return np.where(exact, np.where(exact, reals, 0.0).astype(np.int64), ABSENT)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.array([whole_number(text) for text in column.to_pylist()], np.int64)
    return np.full(len(column), ABSENT, np.int64)


def whole_number(value: object) -> int:
    """Return an integer, which may be a text; ABSENT if it is none or too large."""
    if isinstance(value, str):
        digits = value.removeprefix("-")
        is_small = digits.isascii() and digits.isdecimal() and len(digits) < 19
        return int(value) if is_small else ABSENT
    return value if type(value) is int else ABSENT


def _reals(column: pa.Array) -> Array:
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return np.full(len(column), np.nan)
    values = np.asarray(column.cast(pa.float64(), safe=False), np.float64)
    return np.where(np.isfinite(values), values, np.nan)


def _texts(rows: pa.RecordBatch, name: str) -> list[str | None]:
    """Return a column as texts: bytes decoded, integers printed, None for anything else."""
    texts: list[str | None] = []
    for value in _column(rows, name).to_pylist():
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        elif isinstance(value, int):
            value = str(value)
        texts.append(value if isinstance(value, str) else None)
    return texts
