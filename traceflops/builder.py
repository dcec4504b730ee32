"""Builds a declared table from rows that were collected as numpy columns.

The builder knows the schema, so a parser never spells out an Arrow type.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.columns import IntArray, dictionary_column, number_column, string_column
from traceflops.rows import ABSENT, Array, Rows
from traceflops.schema import TABLES, Column, arrow_schema

MOST_TEXTS: Final = 500_000
"""So many distinct texts a column holds; no recording has more, and each costs memory for good."""

BEYOND: Final = "(one of very many more names)"
"""The name of a record that has none of those."""


class TableBuilder(Rows):
    """Collects the rows of one declared table, with so many distinct texts that memory suffices.

    Further names are BEYOND, further texts of columns that may be null are null.
    """

    def __init__(self, table: str) -> None:
        super().__init__()
        self.table = table
        self._columns = {column.name: column for column in TABLES[table]}
        for column in TABLES[table]:
            if pa.types.is_dictionary(column.type):
                self.names[column.name].most = MOST_TEXTS
                self.names[column.name].beyond = None if column.nullable else BEYOND

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Return the Arrow type of each column."""
        return {name: column.type for name, column in self._columns.items()}

    @property
    def overflowed(self) -> list[str]:
        """Return the columns that had more distinct texts than they hold."""
        return [column for column, names in self.names.items() if names.overflowed]

    def add(self, count: int, /, **columns: Array | int) -> None:
        """Append `count` rows. Raises ValueError for a column the table does not have."""
        unknown = columns.keys() - self._columns.keys()
        if unknown:
            raise ValueError(f"table {self.table!r} has no column {sorted(unknown)}")
        super().add(count, **columns)

    def column(self, name: str) -> Array:
        """Return a column as collected so far: int64 with ABSENT, or codes with -1."""
        out = self._absent(self._columns[name])
        at = 0
        for count, piece in self.pieces:
            if name in piece:
                out[at : at + count] = piece[name]
            at += count
        return out

    def replace(self, name: str, values: Array) -> None:
        """Put another column in the place of one that was collected."""
        start = 0
        for count, piece in self.pieces:
            piece[name] = values[start : start + count]
            start += count

    def finish(self, order: IntArray | None = None) -> pa.Table:
        """Return the table, its rows in the given order; the collected rows are given up."""
        arrays = []
        for column in TABLES[self.table]:
            arrays.append(self._arrow(column, order))
            for _, piece in self.pieces:
                piece.pop(column.name, None)  # each column is held twice only while it is built
        return pa.Table.from_arrays(arrays, schema=arrow_schema(self.table))

    def _absent(self, column: Column) -> Array:
        if pa.types.is_dictionary(column.type):
            return np.full(self.count, -1, np.int32)
        if pa.types.is_floating(column.type):
            return np.full(self.count, np.nan)
        if pa.types.is_fixed_size_list(column.type):
            return np.full((self.count, column.type.list_size), ABSENT, np.int64)
        return np.full(self.count, ABSENT, np.int64)

    def _arrow(self, column: Column, order: IntArray | None) -> pa.Array:
        if column.nullable and not any(column.name in piece for _, piece in self.pieces):
            return _nulls(column.type, self.count)
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


def _nulls(arrow_type: pa.DataType, count: int) -> pa.Array:
    """Return a column of nulls whose zeros take memory only where somebody looks at them."""
    nothing = np.zeros(count, dtype=np.bool_)
    if pa.types.is_dictionary(arrow_type):
        indices = number_column(np.zeros(count, np.int32), pa.int32(), nothing)
        return pa.DictionaryArray.from_arrays(indices, string_column([]))
    if pa.types.is_fixed_size_list(arrow_type):
        item = arrow_type.value_type
        zeros = np.zeros(count * arrow_type.list_size, item.to_pandas_dtype())
        flat = number_column(zeros, item)
        none = pa.py_buffer(np.packbits(nothing).tobytes())
        return pa.Array.from_buffers(arrow_type, count, [none], count, children=[flat])
    if pa.types.is_boolean(arrow_type):
        return _booleans(np.full(count, ABSENT))
    dtype = arrow_type.to_pandas_dtype()
    return number_column(np.zeros(count, dtype), arrow_type, nothing)


def _fixed_lists(values: Array, arrow_type: pa.DataType) -> pa.Array:
    """Return rows of integers as lists; a row of which one is missing or does not fit is null."""
    item = arrow_type.value_type
    dtype = np.dtype(item.to_pandas_dtype())
    limits = np.iinfo(dtype)
    missing = ((values < limits.min) | (values > limits.max)).any(axis=1)
    flat = number_column(np.ascontiguousarray(values, dtype=dtype).reshape(-1), item)
    if not missing.any():
        return pa.FixedSizeListArray.from_arrays(flat, arrow_type.list_size)
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
