"""Builds a declared table from numpy columns that arrive in pieces.

Parsers hand over int64 columns in which ABSENT stands for null, and codes of interned texts
(negative: null). The builder knows the schema, so a parser never spells out an Arrow type.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceflops.columns import IntArray, dictionary_column, number_column
from traceflops.schema import TABLES, Column, arrow_schema

ABSENT: Final = -(2**63)
"""Stands for a missing integer in an int64 column."""

Array = npt.NDArray[Any]


class Names(dict[str, int]):
    """Distinct texts in the order in which they were first seen; `names[text]` is its code."""

    def __missing__(self, text: str) -> int:
        """Give a text that was not seen before the next code."""
        code = len(self)
        self[text] = code
        return code

    def codes(self, texts: Iterable[str]) -> npt.NDArray[np.int32]:
        """Return the code of each text."""
        return np.fromiter(map(self.__getitem__, texts), dtype=np.int32)


class TableBuilder:
    """Collects the rows of one declared table."""

    def __init__(self, table: str) -> None:
        self.table = table
        self.rows = 0
        self.names: defaultdict[str, Names] = defaultdict(Names)
        self._columns = {column.name: column for column in TABLES[table]}
        self._pieces: list[tuple[int, dict[str, Array]]] = []

    def add(self, count: int, **columns: Array | int) -> None:
        """Append `count` rows; a column that is not given is null in them.

        A text column takes codes of `self.names[column]`; a plain number fills all rows.
        """
        unknown = columns.keys() - self._columns.keys()
        if unknown:
            raise ValueError(f"table {self.table!r} has no column {sorted(unknown)}")
        filled = {
            name: value if isinstance(value, np.ndarray) else np.full(count, value, np.int64)
            for name, value in columns.items()
        }
        self._pieces.append((count, filled))
        self.rows += count

    def column(self, name: str) -> Array:
        """Return a column as collected so far: int64 with ABSENT, or codes with -1."""
        empty = self._empty(self._columns[name])
        parts = [piece[name] if name in piece else empty(n) for n, piece in self._pieces]
        return np.concatenate(parts) if parts else empty(0)

    def replace(self, name: str, values: Array) -> None:
        """Put another column in the place of one that was collected."""
        start = 0
        for count, piece in self._pieces:
            piece[name] = values[start : start + count]
            start += count

    def finish(self, order: IntArray | None = None) -> pa.Table:
        """Return the table, its rows in the given order."""
        arrays = [self._arrow(column, order) for column in TABLES[self.table]]
        return pa.Table.from_arrays(arrays, schema=arrow_schema(self.table))

    def _empty(self, column: Column) -> Any:
        if pa.types.is_dictionary(column.type):
            return lambda n: np.full(n, -1, np.int32)
        if pa.types.is_fixed_size_list(column.type):
            return lambda n: np.full((n, column.type.list_size), ABSENT, np.int64)
        return lambda n: np.full(n, ABSENT, np.int64)

    def _arrow(self, column: Column, order: IntArray | None) -> pa.Array:
        values = self.column(column.name)
        if order is not None:
            values = values[order]
        if pa.types.is_dictionary(column.type):
            return dictionary_column(values, list(self.names[column.name]))
        if pa.types.is_fixed_size_list(column.type):
            return _fixed_lists(values, column.type)
        if pa.types.is_boolean(column.type):
            return _booleans(values)
        if pa.types.is_floating(column.type):
            return number_column(values, column.type)
        if not column.nullable:
            return number_column(values, column.type)
        return number_column(values, column.type, values != ABSENT)


def _fixed_lists(values: Array, arrow_type: pa.DataType) -> pa.Array:
    flat = number_column(np.ascontiguousarray(values).reshape(-1), pa.int64())
    lists = pa.FixedSizeListArray.from_arrays(flat, arrow_type.list_size)
    missing = (values == ABSENT).any(axis=1)
    if not missing.any():
        return lists
    valid = np.packbits(~missing, bitorder="little").tobytes()
    return pa.Array.from_buffers(
        arrow_type, len(values), [pa.py_buffer(valid)], int(missing.sum()), children=[flat]
    )


def _booleans(values: Array) -> pa.Array:
    valid = values != ABSENT
    bits = np.packbits((values == 1) & valid, bitorder="little").tobytes()
    bitmap = np.packbits(valid, bitorder="little").tobytes()
    return pa.Array.from_buffers(
        pa.bool_(),
        len(values),
        [pa.py_buffer(bitmap), pa.py_buffer(bits)],
        int(len(values) - np.count_nonzero(valid)),
    )
