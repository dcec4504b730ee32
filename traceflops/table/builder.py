"""Builds a declared table from rows that were collected as numpy columns.

The builder knows the schema, so a parser never spells out an Arrow type.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceflops.table.arrays import ABSENT, IntArray
from traceflops.table.columns import (
    Array,
    Rows,
    dictionary_column,
    nullable,
    number_column,
    pack_validity,
    string_column,
    with_column,
)
from traceflops.table.schema import TABLES, Column, arrow_schema

MOST_TEXTS: Final = 500_000
"""Distinct texts that a column holds at most; each costs memory, and no recording has more."""
BEYOND: Final = "(one of very many more names)"
"""The name of records whose own name is beyond MOST_TEXTS."""
_WIDEST: Final = 12  # bytes per row of the widest column: three numbers of 32 bits
_NARROW: Final = np.iinfo(np.int32)


class TableBuilder(Rows):
    """Collects the rows of one declared table, with a limited number of distinct texts.

    Beyond MOST_TEXTS, names become BEYOND, and texts of nullable columns become null.
    """

    def __init__(self, table: str) -> None:
        """Begin without rows of the table with the name `table`, which the schema declares."""
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
        """Return the names of the columns that had more than MOST_TEXTS distinct texts."""
        return [column for column, names in self.names.items() if names.overflowed]

    def add(self, count: int, /, **columns: Array | int) -> None:
        """Append `count` rows. Raises ValueError for a column the table does not have."""
        unknown = columns.keys() - self._columns.keys()
        if unknown:
            raise ValueError(f"table {self.table!r} has no column {sorted(unknown)}")
        super().add(count, **{name: compact(values) for name, values in columns.items()})

    def column(self, name: str) -> Array:
        """Return the rows of a column so far: int64 with ABSENT, float64, or codes with -1."""
        column = self._columns[name]
        dtype = np.float64 if pa.types.is_floating(column.type) else np.int64
        return self._filled(column, np.int32 if pa.types.is_dictionary(column.type) else dtype)

    def replace(self, name: str, values: Array) -> None:
        """Replace a collected column; `values` are per row."""
        first_row = 0
        for count, piece in self.pieces:
            piece[name] = compact(values[first_row : first_row + count])
            first_row += count

    def join(self) -> None:
        """Join the pieces into one: many small pieces cost more memory than their rows."""
        if len(self.pieces) < 2:
            return
        names = dict.fromkeys(name for _, piece in self.pieces for name in piece)
        self.pieces = [(self.count, {name: compact(self.column(name)) for name in names})]

    def put_in_order(self, name: str) -> None:
        """Sort the pieces by a column, if all pieces have it and none overlap in its values."""
        limits = []
        for _, piece in self.pieces:
            if name not in piece:
                return
            limits.append(_limits(piece[name]))
        order = sorted(range(len(limits)), key=limits.__getitem__)
        if all(limits[index][1] < limits[following][0] for index, following in pairwise(order)):
            self.pieces = [self.pieces[index] for index in order]

    def finish(self, order: IntArray | None = None) -> pa.Table:
        """Return the table, with rows in the given order, and free the collected rows."""
        arrays = []
        rows = slice(None) if order is None else order
        zeros = zeros_for(self.count)
        for column in TABLES[self.table]:
            arrays.append(self._arrow(column, rows, zeros))
            for _, piece in self.pieces:
                piece.pop(column.name, None)  # so only one column at a time is in memory twice
        return pa.Table.from_arrays(arrays, schema=arrow_schema(self.table))

    def _filled(self, column: Column, dtype: npt.DTypeLike) -> Array:
        """Return a column of all rows, null in the pieces that lack it."""
        list_shape = (column.type.list_size,) if pa.types.is_fixed_size_list(column.type) else ()
        values: Array = np.empty((self.count, *list_shape), dtype)
        first_row = 0
        for count, piece in self.pieces:
            values[first_row : first_row + count] = piece.get(column.name, _null_of(column))
            first_row += count
        return values

    def _arrow(self, column: Column, rows: IntArray | slice, zeros: pa.Buffer) -> pa.Array:
        """Return a column as an Arrow array; `zeros` is large enough for all rows of any column."""
        kind, null = column.type, _null_of(column)
        values = [piece.get(column.name, null) for _, piece in self.pieces]
        if column.nullable and _all_are(values, null):
            return null_column(kind, self.count, zeros)
        if pa.types.is_integer(kind) and _all_are(values, 0):
            # Columns that are 0 throughout share one buffer.
            return pa.Array.from_buffers(kind, self.count, [None, zeros], 0)
        # A column of numbers that cannot be null is built in its final type at once.
        is_float = pa.types.is_floating(kind)
        has_no_absent = not is_float and all(map(_fits_in_int32, values))
        has_no_null = has_no_absent or not column.nullable
        if pa.types.is_fixed_size_list(kind):
            item_type = np.int32 if has_no_null else np.int64
            return _list_column(self._filled(column, item_type)[rows], kind)
        if has_no_null and (is_float or pa.types.is_integer(kind)):
            return number_column(self._filled(column, kind.to_pandas_dtype())[rows], kind)
        collected = self.column(column.name)[rows]
        if pa.types.is_dictionary(kind):
            return dictionary_column(collected, list(self.names[column.name]))
        if is_float:
            return number_column(collected, kind, ~np.isnan(collected))
        if pa.types.is_boolean(kind):
            bits = np.packbits(collected == 1, bitorder="little").tobytes()
            bitmap, nulls = pack_validity(collected != ABSENT)
            return pa.Array.from_buffers(kind, len(collected), [bitmap, pa.py_buffer(bits)], nulls)
        # Numbers that do not fit in the type would wrap: they become null.
        fits = collected == collected.astype(kind.to_pandas_dtype())
        return number_column(collected, kind, fits & (collected != ABSENT))


def _fits_in_int32(values: Array | int | float) -> bool:
    """Return whether a piece has only numbers of 32 bits: so none is ABSENT."""
    if isinstance(values, int | float):
        return _NARROW.min <= values <= _NARROW.max
    return bool(values.dtype == np.int32)


def zeros_for(count: int) -> pa.Buffer:
    """Return read-only zeros for `count` rows of any column: those of zeros and nulls share it."""
    return pa.py_buffer(np.zeros(count * _WIDEST, dtype=np.uint8).data.toreadonly())


def null_column(kind: pa.DataType, count: int, zeros: pa.Buffer) -> pa.Array:
    """Return a column of `count` nulls that takes no memory: all its buffers are `zeros`."""
    if pa.types.is_dictionary(kind):
        indices = pa.Array.from_buffers(pa.int32(), count, [zeros, zeros], count)
        return pa.DictionaryArray.from_arrays(indices, string_column([]))
    if pa.types.is_fixed_size_list(kind):
        item_count = count * kind.list_size
        items = pa.Array.from_buffers(kind.value_type, item_count, [None, zeros], 0)
        return pa.Array.from_buffers(kind, count, [zeros], count, children=[items])
    return pa.Array.from_buffers(kind, count, [zeros, zeros], count)


def _list_column(lists: Array, kind: pa.DataType) -> pa.Array:
    """Return a column of lists of a fixed size, null where a number does not fit in the type."""
    item = kind.value_type
    item_type = np.dtype(item.to_pandas_dtype())
    flat = number_column(np.ascontiguousarray(lists, dtype=item_type).reshape(-1), item)
    limits = np.iinfo(item_type)
    is_null = np.zeros(len(lists), dtype=np.bool_)
    for axis in range(kind.list_size if lists.dtype != item_type else 0):
        is_null |= (lists[:, axis] < limits.min) | (lists[:, axis] > limits.max)
    if not is_null.any():
        return pa.FixedSizeListArray.from_arrays(flat, kind.list_size)
    bitmap, null_count = pack_validity(~is_null)
    return pa.Array.from_buffers(kind, len(lists), [bitmap], null_count, children=[flat])


def compact(values: Array | int) -> Array | int:
    """Return a column in the least memory: a single value if all are equal, else int32 if it fits.

    A view is copied, so that the larger array behind it can be freed.
    """
    if isinstance(values, int):
        return values
    if values.dtype.kind == "i" and values.size:
        low, high = _limits(values)
        if low == high and values.ndim == 1:
            return low
        if _NARROW.min <= low and high <= _NARROW.max:
            return values.astype(np.int32)
    return values if values.base is None else values.copy()


def _limits(values: Array | int) -> tuple[int, int]:
    if isinstance(values, int):
        return values, values
    return int(values.min()), int(values.max())  # np.min takes twice as long for short columns


def _null_of(column: Column) -> int | float:
    """Return the value that stands for null while rows are collected."""
    if pa.types.is_dictionary(column.type):
        return -1
    return np.nan if pa.types.is_floating(column.type) else ABSENT


def _all_are(values: list[Array | int | float], wanted: int | float) -> bool:
    """Return whether all rows of all pieces have one value, and it is `wanted`."""
    return all(isinstance(value, int) and value == wanted for value in values)


def with_numbers(table: pa.Table, name: str, values: IntArray) -> pa.Table:
    """Return a table with an integer column replaced, null where `values` are ABSENT."""
    return with_column(table, name, nullable(values, table.schema.field(name).type))
