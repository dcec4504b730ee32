"""Queries of tables, as SQL that contains nothing of the file but quoted identifiers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from typing import Any, Final

import numpy as np
from msgspec import Struct

from traceflops.table.columns import ABSENT, Array, BoolArray, IntArray, Names, Rows
from traceflops.table.grouping import distinct

_ABSENT_SQL: Final = "(-9223372036854775807 - 1)"
_MISSING_REAL_SQL: Final = "9e999"  # SQLite has no NaN; infinity is no measurement
# A number may be stored as a text or as a real. What is no integer then is unknown, never 0.
_INTEGER: Final = (
    "CASE typeof({c}) WHEN 'integer' THEN {c} "
    "WHEN 'real' THEN CASE WHEN abs({c}) < 9e15 AND {c} = CAST({c} AS INTEGER)"
    " THEN CAST({c} AS INTEGER) ELSE {absent} END "
    "WHEN 'text' THEN CASE WHEN CAST(CAST({c} AS INTEGER) AS TEXT) = {c}"
    " THEN CAST({c} AS INTEGER) ELSE {absent} END "
    "ELSE {absent} END"
)
# A column declared to hold integers turns such texts into integers itself; any other text is
# greater than every number. A real there makes the whole column one, which is then read carefully.
_DECLARED_INTEGER: Final = "CASE WHEN {c} <= 9223372036854775807 THEN {c} ELSE {absent} END"
_REAL: Final = (
    "CASE typeof({c}) WHEN 'real' THEN {c} WHEN 'integer' THEN CAST({c} AS REAL) ELSE {missing} END"
)
_TEXT: Final = "CASE typeof({c}) WHEN 'text' THEN {c} WHEN 'integer' THEN CAST({c} AS TEXT) END"
_BLOB: Final = "CASE typeof({c}) WHEN 'blob' THEN hex(substr({c}, 1, 16)) END"
_NOT_YET_CODED: Final = -2
Coder = Callable[[IntArray], Array]
"""Returns the codes of the texts with these ids."""


class Table(Struct, frozen=True):
    """A table: the declared types of its stored columns, and the name of its row number.

    `row_number` is None if its rows have no numbers.
    """

    name: str
    columns: Mapping[str, str]
    row_number: str | None = None


class Wanted(Struct, frozen=True):
    """Columns to read, by type; of blobs only the first 16 bytes, in hexadecimal."""

    integers: tuple[str, ...] = ()
    reals: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()

    @property
    def as_texts(self) -> tuple[str, ...]:
        """The columns that are returned as texts."""
        return self.texts + self.blobs


class Among(Struct, frozen=True):
    """A condition on rows: the column has one of these values."""

    column: str
    values: tuple[int | str, ...]


class Present(Struct, frozen=True):
    """A condition on rows: the column is not null."""

    column: str


Condition = Among | Present


class Batch(Struct, frozen=True):
    """Rows of a table: `numbers` are int64 with ABSENT or float64 with NaN, `texts` lists.

    A column that the table does not have is missing in all rows.
    """

    count: int
    numbers: Mapping[str, Array]
    texts: Mapping[str, list[str | None]]

    def __getitem__(self, column: str) -> Array:
        """Return a column of numbers."""
        return self.numbers[column]

    def with_numbers(self, columns: Mapping[str, Array]) -> Batch:
        """Return the rows with `columns` added or replaced, and without texts."""
        return Batch(self.count, {**self.numbers, **columns}, {})

    def only(self, rows: BoolArray) -> Batch:
        """Return the marked rows."""
        if rows.all():
            return self
        return Batch(
            int(np.count_nonzero(rows)),
            {name: values[rows] for name, values in self.numbers.items()},
            {name: list(compress(texts, rows)) for name, texts in self.texts.items()},
        )


def joined(rows: Rows, null: float = ABSENT, columns: Iterable[str] = ()) -> Batch:
    """Return collected rows, with at least these columns, and free them.

    Columns are int64 or float64, `null` in the pieces that lack them.
    """
    numbers: dict[str, Array] = {}
    for name in dict.fromkeys((*columns, *(name for _, piece in rows.pieces for name in piece))):
        pieces = [np.broadcast_to(piece.pop(name, null), count) for count, piece in rows.pieces]
        column = np.concatenate([np.empty(0, np.asarray(null).dtype), *pieces])
        numbers[name] = column if column.dtype.kind == "f" else column.astype(np.int64, copy=False)
    return Batch(rows.count, numbers, {})


def quoted(identifier: str) -> str:
    """Return an identifier quoted for SQL."""
    return '"' + identifier.replace('"', '""') + '"'


def select(table: Table, wanted: Wanted, rest: str = "", *, quick: bool = False) -> str:
    """Return the query for columns of a table; the first column is the number of the row, or 0.

    In the result only texts can be null, and a column has the same type in all rows; but in a
    `quick` query integers may be reals. `rest` is appended.
    """
    expressions = [table.row_number or "0"]
    for columns, template, missing in (
        (wanted.integers, _INTEGER, _ABSENT_SQL),
        (wanted.reals, _REAL, _MISSING_REAL_SQL),
        (wanted.texts, _TEXT, "NULL"),
        (wanted.blobs, _BLOB, "NULL"),
    ):
        for column in columns:
            declared = table.columns.get(column)
            if declared is None:  # the table lacks this column
                expressions.append(missing)
                continue
            # SQLite converts what is put into such a column: a simpler expression will do.
            is_declared = quick and template is _INTEGER and "INT" in declared.upper()
            terms = {"c": quoted(column), "absent": _ABSENT_SQL, "missing": _MISSING_REAL_SQL}
            expressions.append((_DECLARED_INTEGER if is_declared else template).format(**terms))
    # No index: it may be damaged although the table is not, and may contain expressions.
    return f"SELECT {', '.join(expressions)} FROM {quoted(table.name)} NOT INDEXED{rest}"


def conditions_sql(
    conditions: Sequence[Condition], table: Table
) -> tuple[list[str], list[int | str]]:
    """Return conditions as SQL terms and values; a term on a missing column is 0: no row fits."""
    terms: list[str] = []
    values: list[int | str] = []
    for condition in conditions:
        if condition.column not in table.columns:
            terms.append("0")
        elif isinstance(condition, Among):
            terms.append(
                f"{quoted(condition.column)} IN ({', '.join('?' * len(condition.values))})"
            )
            values += condition.values
        else:
            terms.append(f"{quoted(condition.column)} IS NOT NULL")
    return terms, values


def batch_of_columns(wanted: Wanted, columns: Sequence[Any]) -> Batch:
    """Return a batch of the columns of a query by `select`; the first one is the row number."""
    results = iter(columns[1:])
    numbers: dict[str, Array] = {
        name: np.asarray(next(results), dtype=np.int64) for name in wanted.integers
    }
    for name in wanted.reals:
        reals = np.asarray(next(results), dtype=np.float64)  # missing ones are infinite
        numbers[name] = np.where(np.isinf(reals), np.nan, reals)
    return Batch(len(columns[0]), numbers, {name: list(next(results)) for name in wanted.as_texts})


def one_batch(wanted: Wanted, batches: Iterable[Batch]) -> Batch:
    """Return the rows of several batches together."""
    width = 1 + len(wanted.integers) + len(wanted.reals) + len(wanted.as_texts)
    parts = [batch_of_columns(wanted, [()] * width), *batches]  # at least an empty one
    return Batch(
        sum(batch.count for batch in parts),
        {name: np.concatenate([b[name] for b in parts]) for name in parts[0].numbers},
        {name: [text for b in parts for text in b.texts[name]] for name in wanted.as_texts},
    )


class Lookup:
    """Values by key; the last value of a key counts. Unknown keys, and ABSENT, give ABSENT."""

    def __init__(self, keys: IntArray, values: IntArray) -> None:
        """Index the values: in an array by key if keys are dense, else by sorted keys."""
        is_key = keys != ABSENT
        if not is_key.all():
            keys, values = keys[is_key], values[is_key]
        self._low = int(keys.min()) if len(keys) else 0
        span = int(keys.max()) - self._low + 1 if len(keys) else 0
        self._is_dense = span <= 4 * len(keys) + (1 << 16)
        if self._is_dense:  # such as ids that count up; the last cell is for all other keys
            self._values = np.full(span + 1, ABSENT, dtype=np.int64)
            self._values[keys - self._low] = values
        else:
            order = np.argsort(keys, kind="stable")
            self._keys, self._values = keys[order], values[order]

    def __call__(self, keys: IntArray) -> IntArray:
        """Return the value of each key."""
        if self._is_dense:
            last = len(self._values) - 1
            is_inside = (keys >= self._low) & (keys < self._low + last)
            return self._values[np.where(is_inside, keys - self._low, last)]
        index = np.searchsorted(self._keys, keys, side="right") - 1  # the last of equal keys
        is_key = (index >= 0) & (self._keys[index] == keys)
        return np.where(is_key, self._values[index], ABSENT)


class TextsById:
    """Texts by id."""

    def __init__(self, ids: IntArray, texts: Sequence[str | None]) -> None:
        self.texts = texts
        self._row = Lookup(ids, np.arange(len(ids)))

    def __getitem__(self, key: int) -> str | None:
        """Return the text of an id, None without one."""
        row = int(self._row(np.array([key]))[0])
        return None if row == ABSENT else self.texts[row]

    def coder(self, names: Names, unknown: str | None) -> Coder:
        """Return a function from ids to the codes of their texts in `names`.

        An id without a text gets the code of `unknown` (None: -1). Only texts in use enter `names`.
        """
        count = len(self.texts)
        codes = np.full(count + 1, _NOT_YET_CODED, dtype=np.int32)  # the last: ids without a text

        def code(ids: IntArray) -> Array:
            row = self._row(ids)
            row = np.where(row == ABSENT, count, row)
            for new in distinct(row[codes[row] == _NOT_YET_CODED]).tolist():
                text = (self.texts[new] if new < count else None) or unknown
                codes[new] = -1 if text is None else names[text]
            return codes[row]

        return code


def by_distinct(values: IntArray, number: Callable[[int, int], int]) -> IntArray:
    """Return `number(value, row)` of each value, called once per value, with its first row."""
    if not len(values):
        return np.empty(0, dtype=np.int64)
    if (values == values[0]).all():  # a broadcast result saves memory
        return np.broadcast_to(np.int64(number(int(values[0]), 0)), len(values))
    distinct, first, index = np.unique(values, return_index=True, return_inverse=True)
    pairs = zip(distinct.tolist(), first.tolist(), strict=True)
    return np.array([number(value, row) for value, row in pairs], dtype=np.int64)[index]
