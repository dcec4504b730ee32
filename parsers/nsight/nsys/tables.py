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
from traceflops.table.columns import ABSENT, Array, BoolArray, flags, floats, numbers
from traceflops.table.trace import Note

Condition = Among | Present


class Folder(Struct):
    """The tables of a report, each in a file of `files`; `asked` are those that were read.

    `missing` are tables known to lack rows from the start, `_lost` those with a damaged file.
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
        """The tables that are known to lack rows so far."""
        return self.missing | frozenset(self._lost)

    def columns(self, table: str) -> frozenset[str]:
        """Return the columns of a table; none if there is no such table."""
        return frozenset(self.files[table].columns) if table in self.files else frozenset()

    def unused(self, families: tuple[str, ...]) -> dict[str, int]:
        """Return row counts of tables not read by name; `families` are beginnings of names."""
        names = sorted(n for n in self.files.keys() - self.asked if n.startswith(families))
        counts = {}
        for name in names:
            first_column = Wanted(integers=self.files[name].columns[:1])
            if count := self.whole(name, first_column).count:
                counts[name] = count
        return counts

    def whole(self, table: str, wanted: Wanted, conditions: Sequence[Condition] = ()) -> Batch:
        """Return the rows of a table at once."""
        return one_batch(wanted, self.batches(table, wanted, conditions))

    def batches(
        self, table: str, wanted: Wanted, conditions: Sequence[Condition] = ()
    ) -> Iterator[Batch]:
        """Yield the rows of a table that meet all conditions, in batches, up to any damage.

        A missing column is ABSENT in all rows, so no row meets a condition on it.
        """
        self.asked.add(table)
        if table not in self.files:
            return
        names = dict.fromkeys((*wanted.integers, *wanted.reals, *wanted.texts))
        names |= dict.fromkeys(condition.column for condition in conditions)
        try:
            for rows in self.files[table].batches(list(names)):
                columns = {name: integers(rows, name) for name in wanted.integers}
                columns |= {name: _reals(_column(rows, name)) for name in wanted.reals}
                texts = {name: _texts(rows, name) for name in wanted.texts}
                keep = np.ones(rows.num_rows, np.bool_)
                for condition in conditions:
                    keep &= _meets(rows, condition)
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


def _meets(rows: pa.RecordBatch, condition: Condition) -> BoolArray:
    """Return which rows meet a condition."""
    name = condition.column
    if isinstance(condition, Present):
        return flags(_column(rows, name).is_valid())
    if isinstance(condition.values[0], int):
        return np.isin(integers(rows, name), condition.values)
    return np.array([text in condition.values for text in _texts(rows, name)], np.bool_)


def integers(rows: pa.RecordBatch, name: str) -> Array:
    """Return a column as int64, ABSENT for null; whole floats and texts of digits are converted."""
    column = _column(rows, name)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_integer(kind):  # the upper half of uint64 wraps
        return numbers(column, ABSENT)
    if pa.types.is_floating(kind):
        reals = _reals(column)
        is_exact = (np.abs(reals) < (2.0**53)) & (reals == np.floor(reals))  # False for NaN
        return np.where(is_exact, np.where(is_exact, reals, 0.0).astype(np.int64), ABSENT)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.array([whole_number(text) for text in column.to_pylist()], np.int64)
    return np.full(len(column), ABSENT, np.int64)


def whole_number(value: object) -> int:
    """Return an integer or the integer in a text; ABSENT for anything else or a long text."""
    if isinstance(value, str):
        digits = value.removeprefix("-")
        is_small = digits.isascii() and digits.isdecimal() and len(digits) < 19
        return int(value) if is_small else ABSENT
    return value if type(value) is int else ABSENT


def _reals(column: pa.Array) -> Array:
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return np.full(len(column), np.nan)
    values = floats(column.cast(pa.float64(), safe=False))
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
