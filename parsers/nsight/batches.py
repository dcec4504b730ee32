"""Arrow record batches of untrusted files: checked in full before anything reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa

from traceflops.parsers.io import ByteSource

UNREADABLE: Final = (pa.ArrowException, OSError, ValueError, KeyError, MemoryError)
"""What reading a damaged Arrow or Parquet file may raise."""
_BYTES_A_VALUE: Final = 8
_HEADER, _DATA, _BUFFERS, _COMPRESSION = 2, 1, 2, 3
"""Places of fields in the tables of Arrow's metadata: Message, DictionaryBatch, RecordBatch."""


def sound(batches: Iterable[pa.RecordBatch], source: ByteSource) -> Iterator[pa.RecordBatch]:
    """Give the batches of a file, each checked in full: its offsets, lengths, codes and texts.

    Raises one of UNREADABLE at the first that is damaged, and InputError where the file expands
    to far more than a trace does.
    """
    expanded_bytes = 0
    for batch in batches:
        values_bytes = batch.num_rows * max(batch.num_columns, 1) * _BYTES_A_VALUE
        source.refuse_expansion(expanded_bytes + values_bytes)
        batch.validate(full=True)
        expanded_bytes += max(values_bytes, batch.nbytes)
        yield batch


def refuse_packed(stream: Any, source: ByteSource) -> None:
    """Raise InputError where compressed columns of an Arrow stream claim far too many bytes.

    The claims are read before anything is unpacked: a batch is unpacked as a whole.
    """
    claimed_bytes = 0
    with suppress(*UNREADABLE):  # what is behind the damage is not unpacked either
        for message in pa.ipc.MessageReader.open_stream(stream):
            if message.type in ("record batch", "dictionary"):
                claimed_bytes += sum(_claims(message))
                source.refuse_expansion(claimed_bytes)


def _claims(message: Any) -> Iterator[int]:
    """Yield the bytes that each compressed buffer of a message claims to unpack to."""
    told = message.metadata.to_pybytes()
    batch = _table(told, _table(told, 0, None), _HEADER)
    if message.type == "dictionary":
        batch = _table(told, batch, _DATA)
    if not _place(told, batch, _COMPRESSION):
        return
    buffers = _table(told, batch, _BUFFERS)
    first, count = buffers + 4, _whole(told, buffers, 4)
    for at in range(first, min(first + 16 * count, len(told)), 16):
        start, size = _whole(told, at, 8), _whole(told, at + 8, 8)
        if size >= 8:
            yield max(0, _whole(message.body.slice(start, 8).to_pybytes(), 0, 8))


def _table(told: bytes, table: int, field: int | None) -> int:
    """Return where the table or vector of a field is; of no field, where the outermost is."""
    place = 0 if field is None else _place(told, table, field)
    return place + _whole(told, place, 4)


def _place(told: bytes, table: int, field: int) -> int:
    """Return where a field of a table is, 0 where it is left out."""
    fields = table - _whole(told, table, 4)
    entry = 4 + 2 * field
    offset = _whole(told, fields + entry, 2) if entry < _whole(told, fields, 2) else 0
    return table + offset if offset else 0


def _whole(told: bytes, at: int, size: int) -> int:
    return int.from_bytes(told[at : at + size], "little", signed=True)
