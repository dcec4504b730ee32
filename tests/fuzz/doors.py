"""Files whose checksums and lengths are right and whose content is false: the doors behind them.

A mutation unpacks what the file holds, changes it, and packs it again: a summary of `reduce`, a
pack, a page with a pack, tables as Arrow. On any other input it does nothing.
"""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pyarrow as pa

from tests.fuzz.damage import Mutation

_IN_PAGE = re.compile(rb'(id="recording-pack">)([^<]*)')
_NUMBERS = (0, 1, -1, 2, 7, 255, 2**31 - 1, 2**31, -(2**31), 2**53, 2**62, 2**63 - 1, -(2**63))
_MOST_BYTES = 1 << 24
_DAMAGED = (
    *(pa.ArrowException, OSError, ValueError, KeyError, IndexError, TypeError, AttributeError),
    *(MemoryError, SystemError, OverflowError, RecursionError, msgspec.MsgspecError),
)
"""What finding nothing to change in a file that is damaged already may raise."""
_VALUES: tuple[Any, ...] = (*_NUMBERS, None, True, "", "x", 0.5, [], [1], {}, {"a": 1}, b"", b"9")


def door(draw: Random, data: bytes) -> tuple[bytes, str]:
    """Change what is behind the checksums of a file of ours."""
    for is_of, change in _DOORS:
        if is_of(data):
            try:
                return change(draw, data)
            except _DAMAGED:
                break
    return data, "no door"


def _summary(draw: Random, data: bytes) -> tuple[bytes, str]:
    table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
    content = msgspec.msgpack.decode(table["summary"][0].as_py())
    step = _changed_value(draw, content)
    packed = pa.array([msgspec.msgpack.encode(content)], pa.large_binary())
    new = pa.table([packed, table["failed"]], schema=table.schema)
    return _as_file(new), step


def _changed_value(draw: Random, content: Any) -> str:
    """Change a value somewhere in decoded MessagePack or JSON; tables and arrays as bytes, too."""
    at, path = content, ""
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return "nothing to change"
        key = draw.choice(keys)
        path += f".{key}"
        inner = at[key]
        is_array = isinstance(inner, list) and len(inner) == 3 and isinstance(inner[2], bytes)
        if is_array and draw.random() < 0.8:
            at[key] = _array(draw, *inner)
        elif isinstance(inner, dict | list) and inner and draw.random() < 0.95:
            at = inner
            continue
        elif isinstance(inner, bytes) and inner:
            at[key] = _table(draw, inner)
        elif isinstance(inner, list) and inner and draw.random() < 0.5:
            at[key] = draw.choice((inner[1:], inner * 2, inner[::-1]))
        elif isinstance(inner, int) and draw.random() < 0.8:
            at[key] = draw.choice((*_NUMBERS, inner + 1, inner - 1, -inner, inner << 8))
        elif isinstance(inner, str) and draw.random() < 0.6:
            at[key] = draw.choice(("", "x", inner * 2, "gpu", "cpu", "compute", "\0", "[1]"))
        else:
            at[key] = draw.choice(_VALUES)
        return f"{path} becomes another"


def _array(draw: Random, dtype: str, shape: list[int], data: bytes) -> list[Any]:
    size = 8 if dtype == "<i8" else 1
    way = draw.randrange(4)
    if way == 0:
        count = max(0, len(data) // size + draw.choice((-1, 1)))
        return [dtype, [count], (data + bytes(size))[: count * size]]
    if way == 1:
        return [dtype, draw.choice(([-1], [*shape, 1], [1, *shape], [0], shape[::-1])), data]
    if way == 2:
        return [draw.choice(("<f8", "|O", ">i8", "<i4", "|b1", "x")), shape, data]
    at = draw.randrange(max(len(data) // size, 1)) * size
    new = draw.choice(_NUMBERS).to_bytes(8, "little", signed=True)[:size]
    return [dtype, shape, data[:at] + new + data[at + size :]]


def _table(draw: Random, data: bytes) -> bytes:
    """Change bytes of an Arrow stream, or a column of it."""
    if draw.random() < 0.4:
        at = draw.randrange(len(data))
        return data[:at] + draw.randbytes(draw.choice((1, 4, 8))) + data[at + 1 :]
    return _as_stream(_changed(draw, pa.ipc.open_stream(data).read_all()))


def _changed(draw: Random, table: pa.Table) -> pa.Table:
    """Return a table with a column that is not there, there twice, of nulls, of others, shorter."""
    at = draw.randrange(table.num_columns)
    field, column = table.schema.field(at), table.column(at)
    way = draw.randrange(6)
    if way == 0:
        return table.remove_column(at)
    if way == 1:
        return table.append_column(field, column)
    if way == 2:
        return table.slice(0, draw.randint(0, table.num_rows))
    if way == 3:
        name = draw.choice(table.column_names)
        return table.set_column(at, pa.field(name, field.type, True, field.metadata), column)
    values = [None] * len(column) if way == 4 else _others(draw, column.to_pylist())
    try:
        new = pa.array(values, field.type)
    except (pa.ArrowException, TypeError, OverflowError):
        new = pa.array([draw.choice(_NUMBERS)] * len(column), pa.int64())
    return table.set_column(at, field.with_type(new.type).with_nullable(True), new)


def _others(draw: Random, values: list[Any]) -> list[Any]:
    for _ in range(draw.choice((1, 1, 3)) if values else 0):
        values[draw.randrange(len(values))] = draw.choice((*_NUMBERS, None, "x", "", "[1]"))
    return values


def _as_stream(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _as_file(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _pack(draw: Random, data: bytes) -> tuple[bytes, str]:
    """Change the head or a table of a part of a pack, whose checksum is that of the new one."""
    from traceflops.table.packed import PARTS, checksum

    rows = pa.ipc.open_stream(data).read_all().to_pylist()
    row = draw.choice(rows)
    head = json.loads(row["head"])
    if not 0 <= head["bytes"] <= _MOST_BYTES:
        return data, "what the pack claims is false already"
    plain = pa.Codec("zstd").decompress(row["data"], decompressed_size=head["bytes"], asbytes=True)
    if draw.random() < 0.4:
        step = _changed_value(draw, head)
    else:
        reader = pa.BufferReader(plain)
        tables = [pa.ipc.open_stream(reader).read_all() for _ in head["tables"]]
        at = draw.randrange(len(tables))
        tables[at] = _changed(draw, tables[at])
        plain = b"".join(map(_as_stream, tables))
        head["bytes"] = len(plain)
        step = f"the table {head['tables'][at]} is changed"
    row["head"] = json.dumps(head)
    row["data"] = pa.Codec("zstd").compress(plain, asbytes=True)
    row["crc32"] = checksum(row["head"], row["data"])
    return _as_stream(pa.Table.from_pylist(rows, schema=PARTS)), step


def _page(draw: Random, data: bytes) -> tuple[bytes, str]:
    found = _IN_PAGE.search(data)
    if found is None:
        return data, "no pack in the page"
    if draw.random() < 0.3:
        at, size = draw.randrange(len(found[2])), draw.choice((1, 2, 3, 400))
        text, step = found[2][:at] + found[2][at + size :], f"the pack loses {size} characters"
    else:
        pack, step = _pack(draw, base64.b64decode(found[2]))
        text = base64.b64encode(pack)
    return data[: found.start(2)] + text + data[found.end(2) :], step


def _arrow(draw: Random, data: bytes) -> tuple[bytes, str]:
    reader = pa.ipc.open_file if data.startswith(b"ARROW1") else pa.ipc.open_stream
    table = reader(pa.py_buffer(data)).read_all()
    new = _changed(draw, table)
    return (_as_file if data.startswith(b"ARROW1") else _as_stream)(new), "a column is changed"


_DOORS: tuple[tuple[Callable[[bytes], bool], Mutation], ...] = (
    (lambda data: data.startswith(b"ARROW1") and b"summary/" in data[:400], _summary),
    (lambda data: data.startswith(b"\xff\xff\xff\xff") and b"traceflops.pack" in data[:400], _pack),
    (lambda data: data[:15].lower() == b"<!doctype html>", _page),
    (lambda data: data.startswith((b"ARROW1", b"\xff\xff\xff\xff")), _arrow),
)
