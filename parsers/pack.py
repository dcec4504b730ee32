"""Reads packs: recordings that were read before, as `traceflops pack` keeps them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import msgspec
import pyarrow as pa

from traceflops.errors import InputError
from traceflops.parsers.io import (
    ARROW_UNREADABLE,
    ByteSource,
    NoteTable,
    damaged_arrow,
    open_arrow,
    refuse_packed,
)
from traceflops.parsers.shared import Format, Reading
from traceflops.table import PACK, PARTS, VERSION, Part, Trace, checksum, head_of, trace_of

_STREAM: Final = b"\xff\xff\xff\xff"
_UNFIT: Final = (*ARROW_UNREADABLE, msgspec.MsgspecError, RecursionError)
_NOTES: Final = NoteTable(
    dropped={
        "input-cut": "The pack is cut off or damaged: {count} of its recordings could be read.",
    }
)


def _is_pack(head: bytes) -> bool:
    return head.startswith(_STREAM) and PACK.encode() in head


def _read_packs(sources: Sequence[ByteSource], _: Reading) -> list[Trace]:
    return [trace for source in sources for trace in traces_in(source)]


TRACEFLOPS_PACK: Final = Format("pack", _is_pack, _read_packs, is_checked=True)


def traces_in(source: ByteSource) -> list[Trace]:
    """Return the traces in a pack as they were read. Raises InputError where none is whole.

    Of one that is damaged or cut, those that are whole.
    """
    _refuse_newer(source)
    traces: list[Trace] = []
    is_damaged, parts = False, _parts(source)
    for several in parts:
        trace = _trace(several)
        is_damaged |= trace is None
        traces += [trace] if trace is not None else []
    if not traces:
        raise InputError(f"nothing in the pack is whole: {source.label}", "copy it again")
    if is_damaged:
        lost = replace(_NOTES.note("input-cut", len(traces)), file=source.label)
        traces[0] = replace(traces[0], notes=(lost, *traces[0].notes))
    return traces


def _refuse_newer(source: ByteSource) -> None:
    """Raise InputError for a pack of another version than those that are known."""
    try:
        schema = pa.ipc.open_stream(pa.BufferReader(source.head())).schema
        version = int((schema.metadata or {})[PACK.encode()])
    except _UNFIT as error:
        raise damaged_arrow(source, error, "pack") from None
    if version > VERSION:
        raise InputError(
            f"a pack of a newer traceflops: {source.label} (version {version}, this one reads up "
            f"to {VERSION})",
            "update traceflops, or pack the recording again with this version",
        )


def _parts(source: ByteSource) -> Iterator[list[Part] | None]:
    """Give the parts of each trace; None for what is damaged."""
    held: list[Part] = []
    try:
        for batch in open_arrow(source).batches(PARTS.names):
            for row in batch.to_pylist():
                if checksum(row["head"], row["data"]) != row["crc32"]:
                    raise ValueError("the checksum does not fit")
                part = _part(row["head"], row["data"], source)
                held.append(part)
                if not part.head.more:
                    yield held
                    held = []
    except _UNFIT:
        yield None
        return
    if held:
        yield None


def _part(head: str, data: bytes, source: ByteSource) -> Part:
    """Return a part unpacked. Raises one of _UNFIT where it is damaged."""
    said = head_of(head)
    if said.bytes < 0:
        raise ValueError("less than no bytes")
    source.refuse_expansion(said.bytes)
    plain = pa.Codec("zstd").decompress(data, decompressed_size=said.bytes, asbytes=True)
    stream = pa.BufferReader(plain)
    for _ in said.tables:
        refuse_packed(stream, source)
    return Part(said, plain)


def _trace(parts: Sequence[Part] | None) -> Trace | None:
    try:
        return trace_of(parts) if parts is not None else None
    except _UNFIT:
        return None
