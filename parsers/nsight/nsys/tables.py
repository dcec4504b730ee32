"""The tables of a report of Nsight Systems: in a database, or as files of a folder.

A folder has Parquet (parquetdir) or Arrow files (arrowdir).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from traceflops.parsers.io import (
    Among,
    Batch,
    Between,
    ByteSource,
    Condition,
    Present,
    Wanted,
    no_rows,
)
from traceflops.parsers.nsight.batches import UNREADABLE
from traceflops.table import ABSENT, Array, BoolArray, Note, numbers


class Tables(Protocol):
    """Tables whose columns are asked for by name; what is not there is absent in all rows."""

    source: ByteSource

    @property
    def tables(self) -> frozenset[str]:
        """Return the names of the tables."""

    @property
    def damaged(self) -> bool:
        """Return whether something of them is lost."""

    @property
    def lost(self) -> frozenset[str]:
        """Return the tables of which rows are lost, among those that were asked for so far."""

    def columns(self, table: str) -> frozenset[str]:
        """Return the columns of a table; none where there is no such table."""

    def whole(self, table: str, wanted: Wanted, conditions: Sequence[Condition] = ()) -> Batch:
        """Return the rows of a table at once."""

    def batches(
        self, table: str, wanted: Wanted, conditions: Sequence[Condition] = ()
    ) -> Iterator[Batch]:
        """Give the rows of a table some at a time."""

    def notes(self, label: Callable[[str], str] = str) -> tuple[Note, ...]:
        """Return what was lost and mended so far."""


_EXACT: Final = 2.0**53


class TableFile(Protocol):
    """A file that holds one table."""

    @property
    def columns(self) -> Sequence[str]:
        """Return the names of its columns."""

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Give some of its columns, some rows at a time. Raises where the file is damaged."""


@dataclass(slots=True)
class Folder:
    """The tables of a report, each with the file that holds it."""

    source: ByteSource
    files: Mapping[str, TableFile]
    _lost: dict[str, str] = field(default_factory=dict)

    @property
    def tables(self) -> frozenset[str]:
        """Return the names of the tables."""
        return frozenset(self.files)

    @property
    def damaged(self) -> bool:
        """Return whether part of a file could not be read."""
        return bool(self._lost)

    @property
    def lost(self) -> frozenset[str]:
        """Return the tables of which rows are lost, among those that were asked for so far."""
        return frozenset(self._lost)

    def columns(self, table: str) -> frozenset[str]:
        """Return the columns of a table; none where there is no such table."""
        return frozenset(self.files[table].columns) if table in self.files else frozenset()

    def whole(self, table: str, wanted: Wanted, conditions: Sequence[Condition] = ()) -> Batch:
        """Return the rows of a table at once."""
        found = [no_rows(wanted), *self.batches(table, wanted, conditions)]
        return Batch(
            sum(batch.count for batch in found),
            {name: np.concatenate([b[name] for b in found]) for name in found[0].numbers},
            {name: [text for b in found for text in b.texts[name]] for name in wanted.texts},
        )

    def batches(
        self, table: str, wanted: Wanted, conditions: Sequence[Condition] = ()
    ) -> Iterator[Batch]:
        """Give the rows of a table some at a time; of a damaged one those before the damage."""
        if table not in self.files:
            return
        file = self.files[table]
        asked = dict.fromkeys((*wanted.integers, *wanted.reals, *wanted.texts))
        asked |= dict.fromkeys(one.column for one in conditions)
        there = [name for name in asked if name in file.columns]
        try:
            for rows in file.batches(there):
                batch = _batch(rows, wanted)
                keep = np.ones(batch.count, dtype=np.bool_)
                for one in conditions:
                    keep &= _fulfils(rows, one)
                yield batch.only(keep)
        except UNREADABLE as error:
            self._lost.setdefault(table, type(error).__name__)

    def notes(self, label: Callable[[str], str] = str) -> tuple[Note, ...]:
        """Return what was lost so far."""
        if not self._lost:
            return ()
        listed = ", ".join(label(name) for name in list(self._lost)[:4])
        text = (
            "Some files of the folder are damaged. Every row before the damage is used; rows are "
            f"missing from {listed}."
        )
        return (Note("dropped", "rows-lost", text, None, self.source.label),)


def _batch(rows: pa.RecordBatch, wanted: Wanted) -> Batch:
    """Return columns as numbers and texts; one that is not there is absent in all rows."""
    count = rows.num_rows
    columns = {name: rows.column(place) for place, name in enumerate(rows.schema.names)}
    found: dict[str, Array] = {}
    for name in wanted.integers:
        found[name] = (
            _integers(columns[name]) if name in columns else np.full(count, ABSENT, np.int64)
        )
    for name in wanted.reals:
        found[name] = _reals(columns[name]) if name in columns else np.full(count, np.nan)
    nothing: list[str | None] = [None] * count
    texts = {name: _texts(columns[name]) if name in columns else nothing for name in wanted.texts}
    return Batch(count, found, texts)


def _integers(column: pa.Array) -> Array:
    """Return a column as integers; reals stand for integers where others are missing."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _integers(column.dictionary_decode())
    if pa.types.is_uint64(kind):
        whole = np.asarray(column.fill_null(0).to_numpy(zero_copy_only=False), dtype=np.uint64)
        return np.where(_valid(column), whole.view(np.int64), ABSENT)
    if pa.types.is_integer(kind):
        return numbers(column.cast(pa.int64()), ABSENT)
    if pa.types.is_floating(kind):
        values = _reals(column)
        exact = np.abs(values) < _EXACT  # a NaN is not
        exact &= np.where(exact, values, 0.0) == np.floor(np.where(exact, values, 0.0))
        return np.where(exact, np.where(exact, values, 0.0).astype(np.int64), ABSENT)
    if pa.types.is_boolean(kind):
        return numbers(column.cast(pa.int64()), ABSENT)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.array([_integer(text) for text in column.to_pylist()], dtype=np.int64)
    return np.full(len(column), ABSENT, dtype=np.int64)


def _integer(text: str | None) -> int:
    digits = (text or "").removeprefix("-")
    is_small = digits.isascii() and digits.isdecimal() and len(digits) < 19
    return int(text) if text and is_small else ABSENT


def _reals(column: pa.Array) -> Array:
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return np.full(len(column), np.nan)
    values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.where(_valid(column) & np.isfinite(values), values, np.nan)


def _texts(column: pa.Array) -> list[str | None]:
    values: list[Any] = column.to_pylist()
    return [one if one is None or isinstance(one, str) else _as_text(one) for one in values]


def _as_text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value) if isinstance(value, int) else None


def _valid(column: pa.Array) -> BoolArray:
    valid: BoolArray = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)
    return valid


def _fulfils(rows: pa.RecordBatch, condition: Condition) -> BoolArray:
    """Return which rows fulfil a condition; none one on a column that is not there."""
    if condition.column not in rows.schema.names:
        return np.zeros(rows.num_rows, dtype=np.bool_)
    column = rows.column(rows.schema.names.index(condition.column))
    if isinstance(condition, Present):
        return _valid(column)
    if isinstance(condition, Between):
        values = _integers(column)
        inside: BoolArray = (values >= condition.low) & (values <= condition.high)
        inside &= values != ABSENT
        return inside
    return _is_among(column, condition)


def _is_among(column: pa.Array, condition: Among) -> BoolArray:
    if all(isinstance(one, int) for one in condition.values):
        found: BoolArray = np.isin(_integers(column), condition.values)
        return found
    texts = set(condition.values)
    named: BoolArray = np.array([one in texts for one in _texts(column)], dtype=np.bool_)
    return named
