"""The file of an Nsight Systems report: blocks of events and texts, and a few sections.

The vendor does not document it. The layout was found by comparing files with their exports
(docs/parsers/nsight.md). Only the sections named here are read: others hold private data.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from typing import IO, Final, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from traceflops.errors import InputError
from traceflops.parsers.io import messages
from traceflops.parsers.io.inputs import ByteSource
from traceflops.table.columns import IntArray

MAGIC: Final = b"NVIDIA Tegra Profiler Report"
_VERSION: Final = re.compile(rb"[\x00-\x20]{0,16}([0-9][0-9A-Za-z@.\-]{0,60})")
_RAW: Final = "Raw Sampling Data"
_OFFSETS: Final = "Sampling Data Offsets"
CLOCKS: Final = "Time Conversion Data"
"""The section about clocks; only newer files have it."""
_BEGIN: Final = b"QDTEXT00"
_END: Final = b"U3w[END]"
_PACKED_BY, _AT_TEXTS, _AT_SCHEMAS = 1, 2, 3
"""Fields of the section of offsets."""
_EVENT_COUNT, _TEXT_COUNT = 1, 3
"""Fields of the message behind the head."""
_TRAILER_BYTES: Final = 8 + len(_END)
_MOST_BYTES: Final = 1 << 27
"""The largest size of an unpacked block, and of the head or the tail of the file."""
_MOST_PACKED: Final = 255
"""The largest ratio that LZ4 can reach; texts, such as long names of templates, come near it."""
_READ_BYTES: Final = 1 << 20
_REPEATED: Final = 1
_UNREADABLE: Final = (ValueError, OSError, EOFError)


class Parts(NamedTuple):
    """The parts of a message that repeats one field: its bytes, and begin and end of each part."""

    data: bytes
    begin: IntArray
    end: IntArray


class RawFile(Struct):
    """An open report. `blocks` yields its events; `texts` and `tail` are known after the last one.

    `version` is the writer's, from the first line. `is_cut`: the end of the file is missing.
    `expected_events` and `expected_texts` are the counts that the file states. Events refer to
    `texts` by number; `texts_lost`: later texts are missing. `damaged` counts blocks that were left
    out. `_begin` and `_end` are offsets of the section of events, `_texts_at` that of the texts.
    """

    source: ByteSource
    stream: IO[bytes]
    size: int
    version: str = ""
    sections: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    is_cut: bool = False
    head: bytes = b""
    tail: bytes = b""
    expected_events: int = 0
    expected_texts: int = 0
    events: int = 0
    damaged: int = 0
    unknown_parts: int = 0
    texts: list[Parts] = field(default_factory=list)
    texts_lost: bool = False
    plain_bytes: int = 0
    _begin: int = 0
    _end: int = 0
    _texts_at: int | None = None
    _schemas_at: int | None = None

    def open(self) -> None:
        """Read the head and seek to the first block. Raises ValueError or EOFError if it cannot."""
        self.sections = self._contents()
        if self.sections:
            self._begin, size = self.sections[_RAW]
            self._end = min(self._begin + size, self.size)
            self.is_cut = self._begin + size > self.size
            offsets = dict(messages.fields(self.section(_OFFSETS)))
            texts, schemas = offsets.get(_AT_TEXTS), offsets.get(_AT_SCHEMAS)
            codec = messages.message_text(offsets.get(_PACKED_BY))
            if codec != "lz4" or not isinstance(texts, int):
                raise ValueError("packed in an unknown way")
            first = self._begin + len(_BEGIN)
            self._texts_at = min(first + texts, self._end)
            self._schemas_at = first + schemas if isinstance(schemas, int) else None
        else:
            # The end, which has the offsets, is missing: search the beginning of the events. What
            # is before them is private and is skipped.
            self._end, self.is_cut = self.size, True
            self.stream.seek(0)
            offset, window, begin = 0, b"", -1
            while begin < 0:
                block = self.stream.read(_READ_BYTES)
                if not block:
                    raise EOFError
                window = window[-len(_BEGIN) :] + block
                offset += len(block)
                begin = window.find(_BEGIN)
            self._begin = offset - len(window) + begin
        self.stream.seek(self._begin)
        if self.stream.read(len(_BEGIN)) != _BEGIN:
            raise ValueError("no events where they should begin")
        self.head = self._counted()
        index = {
            key: value for key, value in messages.fields(self._counted()) if isinstance(value, int)
        }
        self.expected_events = index.get(_EVENT_COUNT, 0)
        self.expected_texts = index.get(_TEXT_COUNT, 0)

    def _contents(self) -> dict[str, tuple[int, int]]:
        """Return offset and size of the sections that are read; empty if the file is cut off."""
        if self.size < _TRAILER_BYTES:
            return {}
        # The trailer at the end tells where the list of sections before it begins.
        behind = self.size - _TRAILER_BYTES
        self.stream.seek(behind)
        trailer = self.stream.read(_TRAILER_BYTES)
        begin = int.from_bytes(trailer[:8], "little")
        if trailer[8:] != _END or not behind - _MOST_BYTES < begin < behind:
            return {}
        self.stream.seek(begin)
        entries, is_whole = messages.parts_of(self.stream.read(behind - begin), _REPEATED)
        sections: dict[str, tuple[int, int]] = {}
        for entry in map(messages.last_fields, entries if is_whole else ()):
            # Field 1 is the name, 2 the offset, 3 the size.
            name = messages.message_text(entry.get(1))
            offset, size = entry.get(2, 0), entry.get(3, 0)
            is_span = isinstance(offset, int) and isinstance(size, int)
            if name in (_RAW, _OFFSETS, CLOCKS) and is_span:
                sections[name] = (offset, size)
        if not is_whole or any(offset > self.size for offset, _ in sections.values()):
            return {}
        if _RAW not in sections or _OFFSETS not in sections:
            raise ValueError("no section of events")
        return sections

    def section(self, name: str) -> bytes:
        """Return the bytes of a section, empty if there is none."""
        offset, size = self.sections.get(name, (0, 0))
        self.stream.seek(offset)
        return self.stream.read(min(size, _MOST_BYTES))

    def blocks(self) -> Iterator[Parts]:
        """Yield the events of each block; read the blocks of texts that follow, and the tail."""
        texts, is_last = 0, False
        while not is_last:
            of_texts = self._is_of_texts()
            # Only when all texts are read, what follows is the tail.
            if of_texts and texts >= self.expected_texts and self._read_tail():
                break
            packed = self._packed()
            parts = self._parts(*packed) if packed is not None else None
            # Behind a block without a readable size, only texts whose place is known can be read.
            is_last = packed is None and (of_texts or self._texts_at is None)
            if packed is None and not is_last:  # the next block of events is unknown: skip to texts
                self.stream.seek(self._texts_at or self._end)
            # The block before a cut is incomplete, not damaged.
            at_cut = is_last and (self.is_cut or self.stream.tell() >= self._end)
            self.damaged += parts is None and not at_cut
            if parts is None:
                self.texts_lost = self.texts_lost or (of_texts and texts < self.expected_texts)
            elif not of_texts:
                self.events += len(parts.begin)
                yield parts
            elif not self.texts_lost:  # else the numbers of these texts are unknown
                self.texts.append(parts)
                texts += len(parts.begin)
        self.texts_lost = self.texts_lost or texts < self.expected_texts

    def _is_of_texts(self) -> bool:
        if self._texts_at is not None:
            return self.stream.tell() >= self._texts_at
        return self.events >= self.expected_events

    def _varint(self) -> int:
        offset = self.stream.tell()
        value, length = messages.varint(self.stream.read(min(10, self._end - offset)), 0)
        self.stream.seek(offset + length)
        return value

    def _counted(self) -> bytes:
        """Return the message that follows its length. Raises EOFError if it is cut off."""
        size = self._varint()
        if size > min(self._end - self.stream.tell(), _MOST_BYTES):
            raise EOFError
        return self.stream.read(size)

    def _packed(self) -> tuple[bytes, int] | None:
        """Return the next block, packed, and its unpacked size; None if there is no whole one."""
        offset = self.stream.tell()
        try:
            packed, plain = self._varint(), self._varint()
            end = self._end if self._is_of_texts() else self._texts_at or self._end
            room = end - self.stream.tell()
            if 0 < packed <= room and 0 < plain <= _MOST_BYTES:
                block = self.stream.read(packed)
                self.source.progress(self.stream.tell())
                if len(block) == packed:
                    return block, plain
        except _UNREADABLE:
            pass
        self.stream.seek(offset)
        return None

    def _parts(self, packed: bytes, plain: int) -> Parts | None:
        """Return the parts in a packed block with `plain` bytes unpacked; None if it is damaged."""
        self.plain_bytes += plain
        self.source.refuse_expansion(self.plain_bytes)
        data = _unpacked(packed, plain) or b""
        try:
            size, offset = messages.varint(data, 0)
        except ValueError:
            return None
        begin, end, is_whole = messages.split(data, offset, len(data), _REPEATED)
        return Parts(data, begin, end) if is_whole and offset + size == len(data) else None

    def _read_tail(self) -> bool:
        """Read the tail behind the texts; count unknown parts that some writers add behind it."""
        begin = self.stream.tell()
        try:
            threads, tail = self._counted(), self._counted()  # names of threads are not needed
        except _UNREADABLE:
            self.stream.seek(begin)
            return False
        is_end = self.is_cut or self.stream.tell() == self._end
        # If more follows, both must be messages of parts; else this is a block of texts.
        if not is_end and not all(
            messages.parts_of(part, _REPEATED)[1] for part in (threads, tail)
        ):
            self.stream.seek(begin)
            return False
        self.tail = tail
        # The parts behind the tail may be packed or not: try both.
        while not self.is_cut and self.unknown_parts < 1_000:
            offset = self.stream.tell()
            if offset >= self._end:
                break
            self.unknown_parts += offset != self._schemas_at  # schemas are known, but not needed
            packed = self._packed()
            if packed is None or _unpacked(*packed) is None:
                self.stream.seek(offset)
                try:
                    self._counted()
                except _UNREADABLE:
                    break
        return True


def _unpacked(packed: bytes, plain: int) -> bytes | None:
    """Return the content of a packed block; None if it is damaged or not `plain` bytes long.

    The codec does not tell how many bytes it wrote; the rest would be uninitialised memory. So
    check that the content does not fit into one byte less.
    """
    codec = pa.Codec("lz4_raw")
    if plain > _MOST_PACKED * len(packed):
        return None
    try:
        data: bytes = codec.decompress(packed, plain, asbytes=True)
    except (OSError, ValueError, MemoryError):
        return None
    try:
        codec.decompress(packed, plain - 1) if plain > 1 else None
    except OSError:
        return data
    return data if plain == 1 else None  # a block of one byte cannot be checked so


def opened(source: ByteSource) -> RawFile:
    """Return an open report with its first line read. Raises InputError if it cannot be read."""
    stream: IO[bytes] | None = None
    if source.path is not None:
        try:
            stream = source.path.open("rb")
            if stream.read(len(MAGIC)) != MAGIC:  # the file is compressed: unpack it below
                stream.close()
                stream = None
        except OSError as error:
            message = f"cannot be read: {source.label} ({error})"
            raise InputError(message, "copy it again") from None
    stream = stream or io.BytesIO(b"".join(source.blocks()))
    source.text_bytes = size = stream.seek(0, io.SEEK_END)
    stream.seek(max(size - _READ_BYTES, 0))
    last = stream.read()
    unpadded = last.rstrip(b"\0")  # a copy may be padded with zeros to whole blocks
    if unpadded.endswith(_END):  # else the zeros may belong to a file that is cut off
        size -= len(last) - len(unpadded)
    stream.seek(len(MAGIC))
    version = _VERSION.match(stream.read(80))
    return RawFile(source, stream, size, version[1].decode() if version else "")


def joined(blocks: list[Parts]) -> Parts:
    """Return the parts of several blocks as the parts of one."""
    if len(blocks) == 1:
        return blocks[0]
    first = np.cumsum([0, *(len(block.data) for block in blocks)])
    shifts = list(zip(blocks, first.tolist(), strict=False))
    return Parts(
        b"".join(block.data for block in blocks),
        np.concatenate([block.begin + shift for block, shift in shifts]),
        np.concatenate([block.end + shift for block, shift in shifts]),
    )
