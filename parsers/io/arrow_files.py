"""Parquet and Arrow files of untrusted origin, whose content is checked before anything uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
from msgspec import Struct

from traceflops.errors import InputError
from traceflops.parsers.io.inputs import ByteSource
from traceflops.table.packed import ARROW_UNREADABLE, checked, column_names

_AGAIN: Final = "copy or export it again"
_PARQUET_LOST: Final = f"its index was at the end, so nothing can be recovered; {_AGAIN}"
_BATCH_ROWS: Final = 1 << 15
_ARROW_FILE: Final = b"ARROW1"
_BEGINNINGS: Final = (_ARROW_FILE, b"PAR1", b"\xff\xff\xff\xff")
"""The first bytes of files and streams that are not compressed as a whole."""
_BYTES_A_VALUE: Final = 8
_HEADER, _DATA, _BUFFERS, _COMPRESSION = 2, 1, 2, 3
"""Indices of fields in the tables of Arrow's metadata: Message, DictionaryBatch, RecordBatch."""


class ArrowTable(Struct, frozen=True):
    """A file with one table; `read` yields unchecked batches of the named columns."""

    source: ByteSource
    schema: pa.Schema
    read: Callable[[list[str]], Iterator[pa.RecordBatch]]

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of its columns."""
        return column_names(self.schema)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield checked batches of the named columns, without those that the file lacks.

        Raises one of ARROW_UNREADABLE at damage, InputError if the file expands too much.
        """
        expanded_bytes = 0
        for batch in self.read([name for name in columns if name in self.columns]):
            # At least: the bytes of texts and lists can be trusted only once the batch is checked.
            least_bytes = batch.num_rows * max(batch.num_columns, 1) * _BYTES_A_VALUE
            self.source.refuse_expansion(expanded_bytes + least_bytes)
            checked(batch)
            expanded_bytes += max(least_bytes, batch.nbytes)
            for first in range(0, batch.num_rows, _BATCH_ROWS):
                yield batch.slice(first, _BATCH_ROWS)


def damaged_arrow(source: ByteSource, error: BaseException, format_: str = "Parquet") -> InputError:
    """Return the error for a file that cannot be read."""
    reason = " ".join(str(error).split())[:120]
    return InputError(
        f"damaged or cut {format_} file: {source.label} ({reason})",
        _PARQUET_LOST if format_ == "Parquet" else _AGAIN,
    )


def open_parquet(source: ByteSource) -> ArrowTable:
    """Return the table in a Parquet file. Raises InputError if it is damaged."""
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(_opened(source))
        groups = map(file.metadata.row_group, range(file.num_row_groups))
        source.refuse_expansion(sum(group.total_byte_size for group in groups))
        column_names(file.schema_arrow)
    except ARROW_UNREADABLE as error:
        raise damaged_arrow(source, error) from None

    def read(columns: list[str]) -> Iterator[pa.RecordBatch]:
        yield from file.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False)

    return ArrowTable(source, file.schema_arrow, read)


def open_arrow(source: ByteSource, *, several: bool = False) -> ArrowTable:
    """Return the table in an Arrow file or stream. Raises InputError if it is damaged.

    With `several`, successive streams are one table; anything else after a stream is damage.
    """
    try:
        with _opened(source) as stream:
            with _reader(stream, None) as reader:
                schema = reader.schema
                column_names(schema)
            stream.seek(8 if _is_file(stream) else 0)  # behind the padded magic of a file
            refuse_packed(stream, source)
    except ARROW_UNREADABLE as error:
        raise damaged_arrow(source, error, "Arrow") from None

    def read(columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with these columns; of a file by index, of streams one by one."""
        fields = [schema.names.index(name) for name in columns]
        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        with _opened(source) as stream, _reader(stream, options) as reader:
            if isinstance(reader, pa.ipc.RecordBatchFileReader):
                yield from map(reader.get_batch, range(reader.num_record_batches))
            else:
                yield from reader
                while several and stream.tell() < stream.size():
                    yield from pa.ipc.open_stream(stream, options=options)

    return ArrowTable(source, schema, read)


def _opened(source: ByteSource) -> Any:
    """Return an input as a stream in which Arrow can seek; unpacked in memory if needed."""
    if source.path is not None:
        with source.path.open("rb") as stream:
            if stream.read(8).startswith(_BEGINNINGS):
                return pa.OSFile(str(source.path), "rb")
    return pa.BufferReader(b"".join(source.blocks()))


def _reader(stream: Any, options: pa.ipc.IpcReadOptions | None) -> Any:
    make = pa.ipc.open_file if _is_file(stream) else pa.ipc.open_stream
    return make(stream, options=options)


def _is_file(stream: Any) -> bool:
    stream.seek(0)
    is_file: bool = stream.read(len(_ARROW_FILE)) == _ARROW_FILE
    stream.seek(0)
    return is_file


def refuse_packed(stream: Any, source: ByteSource) -> None:
    """Raise InputError if compressed buffers claim to unpack to far too much."""
    claimed_bytes = 0  # checked before reading, since Arrow unpacks a batch as a whole
    with suppress(*ARROW_UNREADABLE):  # Arrow does not read on behind damage, either
        for message in pa.ipc.MessageReader.open_stream(stream):
            if message.type in ("record batch", "dictionary"):
                claimed_bytes += sum(_claims(message))
                source.refuse_expansion(claimed_bytes)


def _claims(message: Any) -> Iterator[int]:
    """Yield the bytes that each compressed buffer of a message claims to unpack to."""
    metadata = message.metadata.to_pybytes()
    batch = _table(metadata, _table(metadata, 0, None), _HEADER)
    if message.type == "dictionary":
        batch = _table(metadata, batch, _DATA)
    if not _place(metadata, batch, _COMPRESSION):  # not compressed: nothing can expand
        return
    # The list of buffers: their number (4 bytes), then offset and size of each (8 and 8 bytes).
    buffers = _table(metadata, batch, _BUFFERS)
    first, count = buffers + 4, _integer(metadata, buffers, 4)
    for offset in range(first, min(first + 16 * count, len(metadata)), 16):
        start, size = _integer(metadata, offset, 8), _integer(metadata, offset + 8, 8)
        if size >= 8:  # a compressed buffer begins with its unpacked size, -1 for not compressed
            yield max(0, _integer(message.body.slice(start, 8).to_pybytes(), 0, 8))


def _table(metadata: bytes, table: int, field: int | None) -> int:
    """Return the offset of the table or vector in a field; with None, of the outermost table."""
    position = 0 if field is None else _place(metadata, table, field)
    return position + _integer(metadata, position, 4)


def _place(metadata: bytes, table: int, field: int) -> int:
    """Return the offset of a field of a FlatBuffers table, 0 if the table lacks it."""
    fields = table - _integer(metadata, table, 4)
    entry = 4 + 2 * field
    offset = _integer(metadata, fields + entry, 2) if entry < _integer(metadata, fields, 2) else 0
    return table + offset if offset else 0


def _integer(metadata: bytes, offset: int, size: int) -> int:
    return int.from_bytes(metadata[offset : offset + size], "little", signed=True)
