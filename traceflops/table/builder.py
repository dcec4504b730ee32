"""Builds a declared table from rows that were collected as numpy columns.

The builder knows the schema, so a parser never spells out an Arrow type.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceflops.table.columns import (
    BoolArray,
    IntArray,
    dictionary_column,
    number_column,
    pack_validity,
    string_column,
    with_column,
)
from traceflops.table.rows import ABSENT, Array, Rows
from traceflops.table.schema import TABLES, Column, arrow_schema

MOST_TEXTS: Final = 500_000
"""So many distinct texts a column holds; no recording has more, and each costs memory for good."""

BEYOND: Final = "(one of very many more names)"
"""The name of a record that has none of those."""

_WIDEST: Final = 12
"""Bytes of a row of the widest column, three numbers of 32 bits."""

_NARROW: Final = np.iinfo(np.int32)


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
        super().add(count, **{name: compact(values) for name, values in columns.items()})

    def column(self, name: str) -> Array:
        """Return a column as collected so far: int64 with ABSENT, or codes with -1."""
        return self._filled(self._columns[name], _collected_type(self._columns[name]))

    def replace(self, name: str, values: Array) -> None:
        """Put another column in the place of one that was collected."""
        start = 0
        for count, piece in self.pieces:
            piece[name] = compact(values[start : start + count])
            start += count

    def join(self) -> None:
        """Make one piece of all: of very many small ones each costs more than its rows."""
        if len(self.pieces) < 2:
            return
        names = dict.fromkeys(name for _, piece in self.pieces for name in piece)
        self.pieces = [(self.count, {name: compact(self.column(name)) for name in names})]

    def put_in_order(self, name: str) -> None:
        """Put the pieces in the order of a column, where the values of no two overlap."""
        ends = [_ends(piece[name]) for _, piece in self.pieces if name in piece]
        order = sorted(range(len(ends)), key=ends.__getitem__)
        apart = all(ends[one][1] < ends[two][0] for one, two in pairwise(order))
        if apart and len(ends) == len(self.pieces):
            self.pieces = [self.pieces[place] for place in order]

    def finish(self, order: IntArray | None = None) -> pa.Table:
        """Return the table, its rows in the given order; the collected rows are given up."""
        arrays, zeros = [], _zeros(self.count)
        for column in TABLES[self.table]:
            arrays.append(self._arrow(column, order, zeros))
            for _, piece in self.pieces:
                piece.pop(column.name, None)  # each column is held twice only while it is built
        return pa.Table.from_arrays(arrays, schema=arrow_schema(self.table))

    def _filled(self, column: Column, dtype: npt.DTypeLike) -> Array:
        """Return a column of all rows, null where a piece does not have it."""
        wide = (column.type.list_size,) if pa.types.is_fixed_size_list(column.type) else ()
        null = _null_of(column)
        values = [piece.get(column.name, null) for _, piece in self.pieces]
        out: Array = np.empty((self.count, *wide), dtype)
        at = 0
        for (count, _), piece in zip(self.pieces, values, strict=True):
            out[at : at + count] = piece
            at += count
        return out

    def _arrow(self, column: Column, order: IntArray | None, zeros: pa.Buffer) -> pa.Array:
        null = _null_of(column)
        values = [piece.get(column.name, null) for _, piece in self.pieces]
        if column.nullable and _all_are(values, null):
            return _nulls(column.type, self.count, zeros)
        if not column.nullable and pa.types.is_integer(column.type) and _all_are(values, 0):
            return pa.Array.from_buffers(column.type, self.count, [None, zeros], 0)
        if pa.types.is_boolean(column.type):
            return _booleans(_ordered(self.column(column.name), order))
        if pa.types.is_dictionary(column.type):
            codes = _ordered(self.column(column.name), order)
            return dictionary_column(codes, list(self.names[column.name]))
        # Where no value can be null, the column is made in its own type at once.
        if column.nullable and pa.types.is_floating(column.type):
            decimals = _ordered(self.column(column.name), order)
            return number_column(decimals, column.type, ~np.isnan(decimals))
        is_known = not column.nullable or all(map(_fits_narrow, values))
        if pa.types.is_fixed_size_list(column.type):
            dtype = np.int32 if is_known else np.int64
            return _fixed_lists(_ordered(self._filled(column, dtype), order), column.type)
        if is_known or pa.types.is_floating(column.type):
            dtype = column.type.to_pandas_dtype()
            return number_column(_ordered(self._filled(column, dtype), order), column.type)
        found = _ordered(self.column(column.name), order)
        return number_column(found, column.type, _known(found, column.type))


def compact(values: Array | int) -> Array | int:
    """Return a column in the least memory: the value that all rows have, or 32 bits if they fit.

    What is part of something larger is copied, so that the rest can go.
    """
    if isinstance(values, int):
        return values
    if values.dtype.kind == "i" and values.size:
        low, high = _ends(values)
        if low == high and values.ndim == 1:
            return low
        if _NARROW.min <= low and high <= _NARROW.max:
            return values.astype(np.int32)
    return values if values.base is None else values.copy()


def _fits_narrow(values: Array | float) -> bool:
    """Return whether all of a column fits in 32 bits, so that nothing of it is ABSENT."""
    if isinstance(values, int | float):
        return bool(_NARROW.min <= values <= _NARROW.max)
    return values.dtype == np.int32


def _known(values: Array, arrow_type: pa.DataType) -> BoolArray:
    """Return which numbers are not ABSENT and fit in a column, where others would wrap."""
    fits: BoolArray = values == values.astype(arrow_type.to_pandas_dtype())
    known: BoolArray = fits & (values != ABSENT)
    return known


def _ends(values: Array | int) -> tuple[int, int]:
    return int(np.min(values)), int(np.max(values))


def _ordered(values: Array, order: IntArray | None) -> Array:
    return values if order is None else values[order]


def _collected_type(column: Column) -> npt.DTypeLike:
    if pa.types.is_dictionary(column.type):
        return np.int32
    return np.float64 if pa.types.is_floating(column.type) else np.int64


def _null_of(column: Column) -> int | float:
    if pa.types.is_dictionary(column.type):
        return -1
    return np.nan if pa.types.is_floating(column.type) else ABSENT


def _all_are(values: list[Array | int | float], wanted: int | float) -> bool:
    """Return whether every piece has one value in all of its rows, and that is the wanted one."""
    return all(isinstance(value, int) and value == wanted for value in values)


def _zeros(count: int) -> pa.Buffer:
    """Return zeros for so many rows of any column: columns that hold nothing else share them."""
    zeros = np.zeros(count * _WIDEST, dtype=np.uint8)
    zeros.flags.writeable = False  # what one column's reader wrote, all would have
    return pa.py_buffer(zeros)


def _nulls(arrow_type: pa.DataType, count: int, zeros: pa.Buffer) -> pa.Array:
    if pa.types.is_dictionary(arrow_type):
        indices = pa.Array.from_buffers(pa.int32(), count, [zeros, zeros], count)
        return pa.DictionaryArray.from_arrays(indices, string_column([]))
    if pa.types.is_fixed_size_list(arrow_type):
        size = count * arrow_type.list_size
        flat = pa.Array.from_buffers(arrow_type.value_type, size, [None, zeros], 0)
        return pa.Array.from_buffers(arrow_type, count, [zeros], count, children=[flat])
    return pa.Array.from_buffers(arrow_type, count, [zeros, zeros], count)


def _fixed_lists(values: Array, arrow_type: pa.DataType) -> pa.Array:
    """Return rows of integers as lists; a row of which one is missing or does not fit is null."""
    item = arrow_type.value_type
    dtype = np.dtype(item.to_pandas_dtype())
    flat = number_column(np.ascontiguousarray(values, dtype=dtype).reshape(-1), item)
    limits = np.iinfo(dtype)
    missing = np.zeros(len(values), dtype=np.bool_)
    for axis in range(arrow_type.list_size if values.dtype != dtype else 0):
        missing |= (values[:, axis] < limits.min) | (values[:, axis] > limits.max)
    if not missing.any():
        return pa.FixedSizeListArray.from_arrays(flat, arrow_type.list_size)
    bitmap, nulls = pack_validity(~missing)
    return pa.Array.from_buffers(arrow_type, len(values), [bitmap], nulls, children=[flat])


def _booleans(values: Array) -> pa.Array:
    valid = values != ABSENT
    bits = np.packbits((values == 1) & valid, bitorder="little").tobytes()
    bitmap, nulls = pack_validity(valid)
    return pa.Array.from_buffers(pa.bool_(), len(values), [bitmap, pa.py_buffer(bits)], nulls)


def with_numbers(table: pa.Table, name: str, values: IntArray) -> pa.Table:
    """Return a table with other numbers in one of its columns, null where they are ABSENT."""
    known = values != ABSENT
    filled = np.where(known, values, 0)
    return with_column(table, name, number_column(filled, table.schema.field(name).type, known))
