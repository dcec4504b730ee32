"""Arrow columns from and to numpy arrays.

`pyarrow.array()` imports pandas to find out whether it was given a Series, which costs a quarter
of a second at start-up. The builders here go through buffers and do not.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import add
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import astuple

# Offered here, too, beside the functions that take and return them.
from traceflops.table.arrays import ABSENT as ABSENT
from traceflops.table.arrays import BoolArray as BoolArray
from traceflops.table.arrays import FloatArray as FloatArray
from traceflops.table.arrays import IntArray as IntArray
from traceflops.table.arrays import SmallArray as SmallArray
from traceflops.table.arrays import WholeArray as WholeArray

NAME_TYPE = pa.dictionary(pa.int32(), pa.string())
_INT64 = pa.int64()
_INT32_MAX = 2**31 - 1
UNKNOWN_SIZE: Final = -1
_LARGEST_PRODUCT: Final = 2.0**62


def pack_validity(valid: BoolArray | None) -> tuple[pa.Buffer | None, int]:
    """Return the Arrow validity bitmap of `valid` (None: all valid) and the number of nulls."""
    if valid is None or bool(valid.all()):
        return None, 0
    bits = np.packbits(valid, bitorder="little")
    return pa.py_buffer(bits.tobytes()), int(len(valid) - np.count_nonzero(valid))


def number_column(
    values: npt.NDArray[Any], arrow_type: pa.DataType = _INT64, valid: BoolArray | None = None
) -> pa.Array:
    """Return `values` as an Arrow column of `arrow_type`; where `valid` is False it is null."""
    data = np.ascontiguousarray(values, dtype=arrow_type.to_pandas_dtype())
    bitmap, nulls = pack_validity(valid)
    return pa.Array.from_buffers(arrow_type, len(data), [bitmap, pa.py_buffer(data)], nulls)


def flag_column(flags: BoolArray) -> pa.Array:
    """Return flags as an Arrow column of booleans."""
    bits = np.packbits(flags, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(flags), [None, pa.py_buffer(bits.tobytes())], 0)


def only_where(wanted: pa.Array, column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return a column with null where `wanted` is false or null (a scalar null imports pandas)."""
    from pyarrow import compute  # takes as long to load as pyarrow, and few need it

    return compute.if_else(wanted, column, pa.nulls(len(column), column.type))


def nullable(values: IntArray, arrow_type: pa.DataType = _INT64) -> pa.Array:
    """Return numbers as a column, null for ABSENT."""
    valid = values != ABSENT
    return number_column(np.where(valid, values, 0), arrow_type, valid)


def take_rows(table: pa.Table, rows: IntArray) -> pa.Table:
    """Return these rows of a table; given a numpy array, `table.take` would import pandas."""
    return table.take(number_column(rows))


def with_column(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    """Return a table with one column replaced."""
    index = table.schema.get_field_index(name)
    return table.set_column(index, table.schema.field(index), column)


def string_column(values: Sequence[str | None]) -> pa.Array:
    """Return `values` as an Arrow string column; lone surrogates become question marks."""

    def utf8(text: str | None) -> bytes | None:
        try:
            return None if text is None else text.encode()
        except UnicodeEncodeError:
            return (text or "").encode(errors="replace")

    column = bytes_column([utf8(value) for value in values])
    if column.type == pa.binary():
        return column.view(pa.string())  # a cast would check the texts, and load pyarrow.compute
    return column.cast(pa.string())


def bytes_column(values: Sequence[bytes | None]) -> pa.Array:
    """Return `values` as a binary Arrow column, `large_binary` if they have over 2 GiB in all."""
    texts = [value or b"" for value in values]
    offsets = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)), out=offsets[1:])
    is_small = int(offsets[-1]) <= _INT32_MAX
    kind, dtype = (pa.binary(), np.int32) if is_small else (pa.large_binary(), np.int64)
    valid = np.array([value is not None for value in values], dtype=np.bool_)
    bitmap, nulls = pack_validity(valid)
    buffers = [bitmap, pa.py_buffer(offsets.astype(dtype)), pa.py_buffer(b"".join(texts))]
    return pa.Array.from_buffers(kind, len(texts), buffers, nulls)


def dictionary_column(codes: npt.NDArray[Any], names: Sequence[str]) -> pa.DictionaryArray:
    """Return a dictionary column: row i is names[codes[i]], null where the code is negative."""
    narrow = np.asarray(codes, dtype=np.int32)
    valid = narrow >= 0
    if not valid.all():
        narrow = np.where(valid, narrow, 0)
    indices = number_column(narrow, pa.int32(), valid)
    return pa.DictionaryArray.from_arrays(indices, string_column(names))


def merged_column(codes: npt.NDArray[Any], names: Sequence[str]) -> pa.DictionaryArray:
    """Return a dictionary column from codes of names that may repeat; equal ones get one code."""
    new_codes = {name: code for code, name in enumerate(dict.fromkeys(names))}
    # The -1 at the end is what a code of -1 (null) takes.
    new_code_of = np.array([*(new_codes[name] for name in names), -1], np.int32)
    return dictionary_column(new_code_of[codes], list(new_codes))


def numbers(column: pa.ChunkedArray | pa.Array, null: int = -1) -> IntArray:
    """Return an integer column as a read-only int64 array, with `null` in place of nulls."""
    array = one_array(column)
    if not len(array):
        return np.empty(0, dtype=np.int64)
    if array.null_count == len(array):  # a broadcast value takes no memory
        return np.broadcast_to(np.int64(null), len(array))
    values, valid = _raw(array).astype(np.int64, copy=False), validity(array)
    return values if valid is None else np.where(valid, values, np.int64(null))


def _raw(array: pa.Array) -> WholeArray:
    """Return the numbers of a column as they are stored; those of nulls mean nothing."""
    dtype = np.dtype(array.type.to_pandas_dtype())
    return np.frombuffer(array.buffers()[1], dtype, array.offset + len(array))[array.offset :]


def floats(column: pa.ChunkedArray | pa.Array) -> npt.NDArray[np.float64]:
    """Return a column of doubles as numpy, NaN for null (Arrow's `to_numpy` imports pandas)."""
    array = one_array(column)
    if len(array) == 0:
        return np.empty(0, dtype=np.float64)
    end = array.offset + len(array)
    values = np.frombuffer(array.buffers()[1], np.float64, end)[array.offset :]
    valid = validity(array)
    return values if valid is None else np.where(valid, values, np.nan)


def flags(column: pa.Array) -> BoolArray:
    """Return a column of booleans as numpy, False for null."""
    if not len(column):
        return np.empty(0, np.bool_)
    bits = np.unpackbits(np.frombuffer(column.buffers()[1], np.uint8), bitorder="little")
    values = bits[column.offset : column.offset + len(column)].astype(np.bool_)
    valid = validity(column)
    return values if valid is None else values & valid


def validity(column: pa.ChunkedArray | pa.Array) -> BoolArray | None:
    """Return which rows are not null, or None where every row is valid."""
    array = one_array(column)
    if array.null_count == 0:
        return None
    bitmap = np.frombuffer(array.buffers()[0], dtype=np.uint8)
    bits = np.unpackbits(bitmap, bitorder="little")
    return bits[array.offset : array.offset + len(array)].astype(np.bool_)


def codes(column: pa.ChunkedArray | pa.Array) -> IntArray:
    """Return the dictionary codes of a dictionary column, -1 for null."""
    return numbers(one_array(column).indices)


def names(column: pa.ChunkedArray | pa.Array) -> list[str]:
    """Return the dictionary of a dictionary column, in the order of its codes."""
    dictionary: list[str] = one_array(column).dictionary.to_pylist()
    return dictionary


_Rows = WholeArray | slice


def thread_columns(table: pa.Table, rows: _Rows = slice(None)) -> tuple[IntArray, IntArray]:
    """Return process and thread of rows of calls, ops or marks, ABSENT for null."""
    return numbers(table["process"])[rows], numbers(table["thread"], ABSENT)[rows]


def span_columns(table: pa.Table, rows: _Rows = slice(None)) -> tuple[IntArray, IntArray]:
    """Return start and end in ns of rows of activities, calls, ops or marks."""
    start_ns = numbers(table["start_ns"])[rows]
    return start_ns, start_ns + numbers(table["dur_ns"])[rows]


def texts_of(column: pa.ChunkedArray | pa.Array, rows: IntArray) -> list[str]:
    """Return the texts in rows of a dictionary column, "" for null and for row -1."""
    texts, code = [*names(column), ""], np.append(codes(column), -1)  # row -1 is the last code
    return [texts[number] for number in code[rows].tolist()]


def matching(column: pa.ChunkedArray | pa.Array, test: Callable[[str], object]) -> BoolArray:
    """Return, per row of a dictionary column, whether its text passes `test`; False for null."""
    column = one_array(column)
    passed = [*(bool(test(text)) for text in names(column)), False]  # code -1 takes the last one
    if not any(passed):
        return np.zeros(len(column), dtype=np.bool_)
    if passed.count(True) == 1:  # the kinds of rows: comparing is ten times as fast
        is_equal = _raw(column.indices) == passed.index(True)
        valid = validity(column.indices)
        return np.asarray(is_equal if valid is None else is_equal & valid)
    return np.array(passed, dtype=np.bool_)[codes(column)]


def is_one_of(column: pa.ChunkedArray | pa.Array, *texts: str) -> BoolArray:
    """Return, per row of a dictionary column, whether its text is one of these."""
    return matching(column, texts.__contains__)


def axes(column: pa.ChunkedArray) -> IntArray:
    """Return triples as [rows, 3]; UNKNOWN_SIZE if null, below 1 or with a huge product."""
    if not len(column) or column.null_count == len(column):
        return np.full((len(column), 3), UNKNOWN_SIZE, dtype=np.int64)
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    size = array.type.list_size
    flat = array.values.slice(array.offset * size, len(array) * size)
    sides, valid = numbers(flat, 0).reshape(-1, size), validity(array)
    low, high = (int(best.reduce(sides, axis=None)) for best in (np.minimum, np.maximum))
    if low > 0 and high**size < _LARGEST_PRODUCT and valid is None:  # all are known
        return sides
    # Column by column: numpy is several times slower along an axis of three.
    product, is_known = np.ones(len(sides)), np.ones(len(sides), dtype=np.bool_)
    for side in sides.T:
        product *= side  # float: an int64 may wrap
        is_known &= side > 0
    is_known &= product < _LARGEST_PRODUCT
    if valid is not None:
        is_known &= valid
    return np.where(is_known[:, np.newaxis], sides, UNKNOWN_SIZE)


def product_of(sides: IntArray) -> IntArray:
    """Return the product of each row of sizes [rows, 3], UNKNOWN_SIZE where one is unknown."""
    x, y, z = sides.T
    return np.where((x > 0) & (y > 0) & (z > 0), x * y * z, UNKNOWN_SIZE)


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as a single array, with a single dictionary."""
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks == 1:
            return column.chunk(0)
        if not column.num_chunks:  # combining no chunks loads pandas
            return pa.nulls(0, column.type)
        combined = column.unify_dictionaries().combine_chunks()
        return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined
    return column


LIMIT_NS: Final = 2**61
"""Larger times (73 years) are invalid; sums of smaller ones fit in an int64."""
Array = npt.NDArray[Any]


class Names(dict[str, int]):
    """Distinct texts in the order in which they were first seen; `names[text]` is the code.

    After `most` texts, new ones get the code of `beyond`, or -1 if that is None.
    """

    most: int = sys.maxsize
    beyond: str | None = None
    overflowed: bool = False

    def __missing__(self, text: str) -> int:
        if len(self) < self.most:
            code = len(self)
            self[text] = code
            return code
        self.overflowed = True
        return -1 if self.beyond is None else self.setdefault(self.beyond, len(self))

    def codes(self, texts: Iterable[str]) -> npt.NDArray[np.int32]:
        """Return the code of each text."""
        return np.fromiter(map(self.__getitem__, texts), dtype=np.int32)


class Rows:
    """Collects rows in pieces; a column that a piece lacks is null in its rows.

    Text columns hold codes of `names[column]`; a single number applies to all rows of its piece.
    """

    def __init__(self) -> None:
        self.count = 0
        self.names: defaultdict[str, Names] = defaultdict(Names)
        self.pieces: list[tuple[int, dict[str, Array | int]]] = []

    def add(self, count: int, /, **columns: Array | int) -> None:
        """Append `count` rows."""
        if count:
            self.pieces.append((count, columns))
            self.count += count

    def absorb(self, other: Rows) -> None:
        """Append the rows of another collector; its codes are replaced by those of texts here."""
        new_codes = {
            column: np.append(self.names[column].codes(names), np.int32(-1))  # -1 stays -1
            for column, names in other.names.items()
        }
        for count, columns in other.pieces:
            for column, new_code_of in new_codes.items():
                if column in columns:
                    columns[column] = new_code_of[columns[column]]
            self.add(count, **columns)


def count_true(rows: BoolArray) -> int:
    """Return the number of True values."""
    return int(np.count_nonzero(rows))


class Columns(Struct, frozen=True):
    """Base of structs whose fields are all arrays, one value per row."""

    def only(self, rows: IntArray | BoolArray) -> Self:
        """Return the selected rows, by indices or a mask."""
        made: Callable[..., Self] = type(self)
        return made(*(getattr(self, name)[rows] for name in self.__struct_fields__))

    @classmethod
    def joined(cls, parts: Iterable[Self]) -> Self:
        """Return the rows of all parts, concatenated."""
        made: Callable[..., Self] = cls
        pieces = list(parts)
        if len(pieces) == 1:
            return pieces[0]
        if not pieces:
            return made(*[np.empty(0, dtype=np.int64)] * len(cls.__struct_fields__))
        columns = zip(*map(astuple, pieces), strict=True)
        return made(*map(np.concatenate, columns))


class Additive(Struct, frozen=True):
    """Base of structs whose fields are all numbers: two of them add up field by field."""

    def __add__(self, other: Self) -> Self:
        made: Callable[..., Self] = type(self)
        return made(*map(add, astuple(self), astuple(other)))


def narrow(values: Array) -> Array:
    """Return int64 values as int32 if they fit, to save memory until all is read."""
    if values.dtype != np.int64 or not values.size:
        return values
    fits = int(values.min()) >= -(2**31) and int(values.max()) <= _INT32_MAX
    return values.astype(np.int32) if fits else values


def text_column(values: Sequence[str | None]) -> pa.DictionaryArray:
    """Return a dictionary column of texts, null for None."""
    names = Names()
    codes = [-1 if text is None else names[text] for text in values]
    return dictionary_column(np.array(codes, dtype=np.int32), list(names))


def batch_of(rows: Sequence[Mapping[str, int | str | None]]) -> pa.RecordBatch:
    """Return rows with equal names as a batch; a column has whole numbers, or texts, or nulls.

    `from_pylist` would import pandas.
    """

    def column(values: list[Any]) -> pa.Array:
        kinds = set(map(type, values)) - {type(None)}
        if not kinds:
            return pa.nulls(len(values))
        if str in kinds:
            return string_column(values)
        return nullable(np.array([ABSENT if value is None else value for value in values]))

    arrays = {name: column([row[name] for row in rows]) for name in rows[0]}
    return pa.RecordBatch.from_arrays([*arrays.values()], names=[*arrays])


def appended(*tables: pa.Table) -> pa.Table:
    """Return the rows of tables with equal columns as one table, in one chunk."""
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()
