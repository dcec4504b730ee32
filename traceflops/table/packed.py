"""Packs: a trace in few bytes, its tables as Arrow, and everything else as JSON.

Integers are written in as few bytes as they need, and as differences of neighbours where that is
shorter; columns of nulls are left out; small tables are compressed together. On real recordings
this is smaller and faster to read than Parquet with deltas and dictionaries, or Arrow with each
buffer compressed by itself. Types, nulls and the order of names come back unchanged.

A pack is an Arrow stream with a row per part of a trace: `head` is JSON, `data` the compressed
tables of the part, and `crc32` the checksum of both.

Tables of untrusted origin are checked before anything else is done with them: Arrow and all code on
its columns trust the offsets, codes and nulls that were read.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import fields, replace

from traceflops.table.arrays import IntArray
from traceflops.table.builder import null_column, zeros_for
from traceflops.table.columns import (
    LIMIT_NS,
    bytes_column,
    number_column,
    numbers,
    one_array,
    string_column,
    validity,
)
from traceflops.table.schema import TABLES, arrow_schema
from traceflops.table.trace import Note, Source, Trace

ARROW_UNREADABLE: Final = (pa.ArrowException, OSError, ValueError, KeyError, MemoryError)
"""Errors of reading damaged Arrow or Parquet files, by Arrow and by this module."""
LARGEST: Final = 2**62
_SIGNED: Final = frozenset({"start_ns", "time_ns"})


def column_names(schema: pa.Schema) -> tuple[str, ...]:
    """Return the column names. Raises ValueError if one is not UTF-8 or occurs twice."""
    names = tuple(schema.names)
    if len(set(names)) < len(names):
        raise ValueError("a column is there twice")
    return names


def checked(table: Any, schema: pa.Schema | None = None) -> Any:
    """Return the table, checked (against a `schema` if given). Raises ARROW_UNREADABLE."""
    column_names(table.schema)
    table.validate(full=True)
    if schema is not None and not table.schema.equals(schema):
        raise ValueError("the columns are others")
    for field in schema or ():
        if not field.nullable and table[field.name].null_count:
            raise ValueError(f"a row without {field.name}")
    return table


def check_trace(trace: Trace) -> None:
    """Raise ValueError if the fields of a trace contradict each other or the rows."""
    processes, devices = trace.processes.num_rows, trace.devices.num_rows
    require(len(trace.places) in (0, devices) and len(trace.runs) in (0, devices))
    require(len(trace.clocks) in (0, processes))
    source = trace.source
    require(source.files and source.resolution_ns > 0)
    require(abs(source.origin_unix_ns or 0) < LARGEST)
    require(all(0 <= count < LARGEST for count in source.event_counts.values()))
    require(all(-LIMIT_NS < begin <= end < LIMIT_NS for begin, end in source.lifetimes))
    require(all(min(f.bytes or 0, f.text_bytes or 0) >= 0 for f in source.files))
    for name, table in trace.tables.items():
        for column_name, count in (("process", processes), ("device", devices)):
            if column_name in table.column_names:
                _check_range(table[column_name], 0, count - 1)
        for column in TABLES[name]:
            if column.unit and pa.types.is_int64(column.type):
                most = LIMIT_NS if column.name.endswith("_ns") else LARGEST
                _check_range(table[column.name], -most if column.name in _SIGNED else 0, most)
        # Sums of times must fit in an int64.
        if table.num_rows and {"start_ns", "dur_ns"} <= {*table.column_names}:
            start, length = numbers(table["start_ns"]), numbers(table["dur_ns"])
            span = int(start.max()) - int(start.min())
            require(max(span, int(length.max()), float(length.sum(dtype=np.float64))) < LIMIT_NS)
    for name, table in (("process", trace.processes), ("device", trace.devices)):
        require(np.array_equal(numbers(table[name]), np.arange(table.num_rows)))


def require(is_so: object) -> None:
    """Raise ValueError unless a condition holds."""
    if not is_so:
        raise ValueError("figures that contradict each other")


def _check_range(column: pa.ChunkedArray, least: int, most: int) -> None:
    """Raise ValueError if a number is below `least` or above `most`."""
    values = numbers(column, least)
    if len(values) > column.null_count and not least <= values.min() <= values.max() <= most:
        raise ValueError("a number that cannot be")


VERSION: Final = 1
PACK: Final = "traceflops.pack"
"""The key of the version in the metadata of a pack; no other Arrow file has it."""
PAGE_PACK: Final = "recording-pack"
"""The id of the element of an HTML page that holds a pack."""
PARTS: Final = pa.schema(
    [
        pa.field("head", pa.string(), False),
        pa.field("data", pa.binary(), False),
        pa.field("crc32", pa.int64(), False),
    ],
    {PACK: str(VERSION)},
)
_LEVEL: Final = 15
_TOGETHER_BYTES: Final = 1 << 24
"""Tables are compressed together up to 16 MiB; a larger table is a part by itself."""
_HEAD: Final = "traceflops.table"
_DIFFERENCES: Final = {b"of": b"differences"}
_INTEGERS: Final = (np.int8, np.int16, np.int32, np.int64)


class Outside(Struct, frozen=True):
    """The fields of a trace outside of its tables."""

    source: Source
    notes: tuple[Note, ...] = ()
    places: tuple[str | None, ...] = ()
    clocks: tuple[str, ...] = ()
    runs: tuple[tuple[int, int], ...] = ()


class Head(Struct, frozen=True):
    """The contents of a part: names of tables, their unpacked `bytes`, whether more parts follow.

    Only the first part of a trace has the fields outside of tables.
    """

    tables: tuple[str, ...]
    bytes: int
    more: bool
    trace: Outside | None = None


class Part(Struct, frozen=True):
    """A part of a packed trace; `plain` are its tables, one Arrow stream after the other."""

    head: Head
    plain: bytes

    @property
    def row(self) -> pa.RecordBatch:
        """Return the compressed part as a row of a pack."""
        head = _encoded_head(self.head)
        data = pa.Codec("zstd", compression_level=_LEVEL).compress(self.plain, asbytes=True)
        crc32 = number_column(np.array([checksum(head, data)]))
        return pa.record_batch([string_column([head]), bytes_column([data]), crc32], schema=PARTS)


def _encoded_head(head: Head) -> str:
    """Return a head as JSON; lone surrogates become question marks."""
    text = json.dumps(msgspec.to_builtins(head), ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace").decode()


def head_of(text: str | bytes) -> Head:
    """Return the head of a part from JSON. Raises msgspec.MsgspecError if it is damaged."""
    return msgspec.json.decode(text, type=Head)


def checksum(head: str, data: bytes) -> int:
    """Return the checksum of a part as it is stored."""
    return zlib.crc32(data, zlib.crc32(head.encode()))


def parts_of(trace: Trace) -> Iterator[Part]:
    """Yield the parts of a trace; the first one has the fields outside of tables."""
    parts: list[dict[str, bytes]] = [{}]  # per part, the Arrow streams by name of their table
    for name in TABLES:
        if trace.table(name).num_rows:
            table = _encoded(trace.table(name))
            sink = io.BytesIO()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            stream = sink.getvalue()
            bytes_before = sum(map(len, parts[-1].values()))
            if parts[-1] and bytes_before + len(stream) > _TOGETHER_BYTES:
                parts.append({})
            parts[-1][name] = stream
    for number, streams in enumerate(parts):
        plain = b"".join(streams.values())
        more = number + 1 < len(parts)
        outside = _outside(trace) if number == 0 else None
        yield Part(Head(tuple(streams), len(plain), more, outside), plain)


def _outside(trace: Trace) -> Outside:
    return Outside(**{f.name: getattr(trace, f.name) for f in fields(Outside)})


def trace_of(parts: Sequence[Part]) -> Trace:
    """Return the trace of its parts. Raises ValueError or an error of Arrow if damaged."""
    outside = parts[0].head.trace
    if outside is None:
        raise ValueError("the first part of a trace is missing")
    tables: dict[str, pa.Table] = {}
    for part in parts:
        reader, names = pa.BufferReader(part.plain), part.head.tables
        require(len({*names}) == len(names) and tables.keys().isdisjoint(names))
        for name in names:
            table = checked(pa.ipc.open_stream(reader).read_all())
            if name in TABLES:  # packs of other releases may have tables unknown here: skip them
                tables[name] = _decoded(table, name)
    return _assembled(outside, tables)


def described(table: pa.Table, name: str, trace: Trace) -> pa.Table:
    """Return a table with its name and the fields of its trace, except `places`, as metadata."""
    head = Head((name,), 0, more=False, trace=_outside(replace(trace, places=())))
    metadata = {PACK: str(VERSION), _HEAD: _encoded_head(head)}
    return table.replace_schema_metadata({**(table.schema.metadata or {}), **metadata})


def described_head(schema: pa.Schema) -> Head | None:
    """Return the head in a table's metadata, or None. Raises msgspec.MsgspecError if damaged."""
    text = (schema.metadata or {}).get(_HEAD.encode())
    return head_of(text) if text is not None else None


def trace_of_tables(head: Head, tables: Mapping[str, pa.Table]) -> Trace:
    """Return the trace of tables by name and a head with its fields. Raises as `trace_of`."""
    if head.trace is None:
        raise ValueError("no table says what it is of")
    return _assembled(head.trace, {name: _decoded(table, name) for name, table in tables.items()})


def _assembled(outside: Outside, tables: Mapping[str, pa.Table]) -> Trace:
    """Return the trace of decoded tables and of its fields outside of them, after checks."""
    trace = Trace(tables=tables, **{f.name: getattr(outside, f.name) for f in fields(outside)})
    check_trace(trace)
    return trace


def _encoded(table: pa.Table) -> pa.Table:
    """Return a table in the smallest form: no null columns, small integers, differences."""
    from pyarrow import compute

    columns, fields = [], []
    codec = pa.Codec("zstd", compression_level=1)
    for field in table.schema:
        column = one_array(table[field.name])
        if len(column) == column.null_count:
            continue
        use_differences = False
        if pa.types.is_integer(field.type):
            # A null repeats the number before it, so that its difference is 0: nulls read as 0.
            # [100 107 null 109]  ->  values [100 107 107 109], differences [100 7 0 2]
            values = numbers(compute.fill_null_forward(column), 0)
            differences = _narrow(np.diff(values, prepend=np.int64(0)))
            plain = _narrow(values)
            sizes = [len(codec.compress(v.tobytes(), asbytes=True)) for v in (plain, differences)]
            use_differences = sizes[1] < sizes[0]
            column = _integers(differences if use_differences else plain, column)
        elif pa.types.is_dictionary(field.type):
            indices = _integers(_narrow(numbers(column.indices, 0)), column.indices)
            column = pa.DictionaryArray.from_arrays(indices, column.dictionary)
        columns.append(column)
        metadata = _DIFFERENCES if use_differences else None
        fields.append(pa.field(field.name, column.type, metadata=metadata))
    if not columns:  # a column of nulls keeps the number of rows
        columns, fields = [pa.nulls(table.num_rows)], [pa.field("", pa.null())]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _decoded(table: pa.Table, name: str) -> pa.Table:
    """Return the table that was given to `_encoded`, with the declared schema of `name`."""
    columns = []
    zeros = zeros_for(table.num_rows)
    for field in arrow_schema(name):
        index = table.schema.get_field_index(field.name)
        if index < 0:  # `_encoded` leaves out columns of nulls
            columns.append(null_column(field.type, table.num_rows, zeros))
            continue
        column = one_array(table.column(index))
        if table.schema.field(index).metadata == _DIFFERENCES:
            column = _integers(np.cumsum(numbers(column, 0), dtype=np.int64), column)
        columns.append(column.cast(field.type))
    return checked(pa.Table.from_arrays(columns, schema=arrow_schema(name)), arrow_schema(name))


def _integers(values: npt.NDArray[Any], like: pa.Array) -> pa.Array:
    """Return integers as a column that is null where the column `like` is."""
    return number_column(values, pa.from_numpy_dtype(values.dtype), validity(like))


def _narrow(numbers: IntArray) -> Any:
    """Return integers in the smallest type that holds them all."""
    low, high = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
    fits = (t for t in _INTEGERS if np.iinfo(t).min <= low and high <= np.iinfo(t).max)
    return numbers.astype(next(fits))
