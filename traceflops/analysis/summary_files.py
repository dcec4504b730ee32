"""The file of a summary: an Arrow file of one value, the fields of `RankSummary` as MessagePack.

It is decoded by their types, so that a file can name no code, and checked before it is used.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from traceflops.analysis.rank_summary import RankSummary
from traceflops.analysis.summary_checks import check_summary
from traceflops.analysis.summary_sums import HeldSummary, Shared
from traceflops.errors import InputError
from traceflops.facts import Fact, in_words
from traceflops.table.packed import ARROW_UNREADABLE, checked, require

_KEY: Final = b"traceflops"
_SCHEMA: Final = {_KEY: b"summary/5"}
"""The number goes up with each change of what a summary holds."""
_ANY_VERSION: Final = re.compile(rb"summary/\d{1,9}\0")
_FILE: Final = {"summary": pa.large_binary(), "failed": pa.string()}
_ARROW: Final = b"ARROW1"
_MOST_BYTES: Final = 2_000_000
_MOST_RECORDS: Final = 1 << 20
_ALONE: Final = pa.ipc.IpcReadOptions(use_threads=False)
"""Threads cost more than they gain on little data."""
_DTYPES: Final = {"<i8", "|b1"}


def is_summary(head: bytes) -> bool:
    """Return whether a file that begins so may be a summary."""
    return head.startswith(_ARROW) and _ANY_VERSION.search(head) is not None


def encoded(summary: RankSummary | str) -> bytes:
    """Return a summary, or the name of a file that could not be read, as the content of a file.

    Collectives at the end are left out until it fits.
    """
    if isinstance(summary, str):
        return _file(None, summary)
    most = _MOST_RECORDS
    content = _file(summary.compact(most, keeps_work=True))
    while len(content) > _MOST_BYTES and most > 1:
        content = _file(summary.compact(most, keeps_work=False))
        most //= 2
    return content


def packed(summary: RankSummary) -> bytes:
    """Return a whole summary as bytes, for a process on this machine."""
    return msgspec.msgpack.encode(summary, enc_hook=_plain)


def unpacked(data: Any) -> RankSummary:
    """Return the summary in bytes."""
    return msgspec.msgpack.decode(data, type=RankSummary, dec_hook=_restored)


def _file(summary: RankSummary | None, failed: str | None = None) -> bytes:
    """Return a file of one row: a summary, or the name of the file that `failed` to give one."""
    data = packed(summary) if summary is not None else None
    columns = {"summary": pa.array([data], pa.large_binary()), "failed": pa.array([failed])}
    table = pa.table({name: column.cast(_FILE[name]) for name, column in columns.items()})
    table = table.replace_schema_metadata(_SCHEMA)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def decoded(content: bytes, name: str) -> RankSummary | str:
    """Return the summary in a file, or the name of a file that could not be read.

    Raises InputError where it is none, damaged, or written by another version.
    """
    try:
        table = checked(_table(content, name))
        data = table["summary"][0].as_buffer()
        if data is None:
            return str(table["failed"][0])
        summary = unpacked(data)
        check_summary(summary)
    except (*ARROW_UNREADABLE, IndexError, msgspec.MsgspecError, ArithmeticError, RecursionError):
        raise _unreadable("damaged summary", name) from None
    return summary


def held(data: bytes, shared: Shared) -> HeldSummary:
    """Return what to hold of the summary in bytes, which stay as they are."""
    return HeldSummary.of(unpacked(data), shared, partial(unpacked, data))


def held_file(content: bytes, name: str, shared: Shared) -> HeldSummary | str:
    """Return what to hold of the summary in a file; for all else see `decoded`."""
    part = decoded(content, name)
    if isinstance(part, str):
        return part
    return HeldSummary.of(part, shared, partial(_again, content, name))


def _again(content: bytes, name: str) -> RankSummary:
    """Return the summary in a file that was checked before."""
    return unpacked(_table(content, name)["summary"][0].as_buffer())


def _table(content: bytes, name: str) -> pa.Table:
    """Return the table of a file. Raises InputError for another version's."""
    reader = pa.ipc.open_file(pa.py_buffer(content), options=_ALONE)
    if (reader.schema.metadata or {})[_KEY] != _SCHEMA[_KEY]:
        raise _unreadable("summary written by another version of traceflops", name)
    return reader.read_all()


def _unreadable(what: str, name: str) -> InputError:
    return InputError(f"{what}: {name}", "write it again with traceflops reduce")


def _plain(value: Any) -> object:
    """Return a value that MessagePack lacks as one that it has; `_restored` reads it again.

    A fact becomes a dict of code and values, a fraction [numerator, denominator], a mapping a dict,
    an array [dtype, shape, bytes], a table the bytes of an Arrow stream.
    """
    if isinstance(value, Fact):
        return _plain_value(value)
    if isinstance(value, Fraction):
        return value.as_integer_ratio()
    if isinstance(value, MappingProxyType):
        return dict(value)
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    assert isinstance(value, pa.Table), type(value)
    sink = pa.BufferOutputStream()
    bare = pa.schema([field.remove_metadata() for field in value.schema])
    with pa.ipc.new_stream(sink, bare) as writer:
        writer.write_table(pa.Table.from_arrays(value.columns, schema=bare))
    return bytes(sink.getvalue())


def _plain_value(value: Any) -> Any:
    """Return a value of a fact so that its kind can be told again."""
    if isinstance(value, Fact):
        return {"code": value.code, "values": {k: _plain_value(v) for k, v in value.values.items()}}
    if isinstance(value, Fraction):
        return {"ratio": value.as_integer_ratio()}
    return tuple(map(_plain_value, value)) if isinstance(value, tuple) else value


def _value(data: Any) -> Any:
    """Return a value of a fact from what `_plain_value` made of it."""
    if isinstance(data, list):
        return tuple(map(_value, data))
    if not isinstance(data, dict):
        return data
    if "ratio" in data:
        return Fraction(*data["ratio"])
    return Fact(data["code"], {str(name): _value(value) for name, value in data["values"].items()})


def _restored(kind: Any, data: Any) -> Any:
    """Return the value of type `kind` that `_plain` encoded as `data`.

    Fraction: [numerator, denominator]. Fact: as `_value` reads it. Table: bytes of an Arrow stream.
    Any other kind is an array: [dtype, shape, bytes]. Damaged data raise one of the errors that
    `decoded` turns into an InputError.
    """
    if kind is Fraction:
        return Fraction(*data)
    if kind is Fact:
        fact = _value(data)
        require(isinstance(fact, Fact))
        in_words(fact)  # what has no words is damaged
        return fact
    if kind is pa.Table:
        require(isinstance(data, bytes))
        return checked(pa.ipc.open_stream(data).read_all())
    dtype, shape, content = data
    require(dtype in _DTYPES and all(side >= 0 for side in shape))
    return np.frombuffer(content, dtype).reshape(shape)
