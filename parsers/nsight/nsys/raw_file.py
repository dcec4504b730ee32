"""The file of a report of Nsight Systems as blocks of events and texts, and what stands beside.

The vendor does not document it. What is known was found by comparing files with their exports
(docs/parsers/nsight.md). Of its sections only those named here are read: others hold environment,
command lines and hosts.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Final

import numpy as np
import pyarrow as pa

from traceflops.errors import InputError
from traceflops.parsers.io import (
    ByteSource,
    fields,
    last_fields,
    message_text,
    parts_of,
    split,
    varint,
)
from traceflops.table import IntArray

MAGIC: Final = b"NVIDIA Tegra Profiler Report"
_VERSION: Final = re.compile(rb"[\x00-\x20]{0,16}([0-9][0-9A-Za-z@.\-]{0,60})")
_LONGEST_VERSION: Final = 80
_RAW: Final = "Raw Sampling Data"
_OFFSETS: Final = "Sampling Data Offsets"
_CLOCKS: Final = "Time Conversion Data"
_BEGIN: Final = b"QDTEXT00"
_END: Final = b"U3w[END]"
_CODEC: Final = "lz4"
_TRAILER_BYTES: Final = 8 + len(_END)
_MOST_BYTES: Final = 1 << 27
"""No block is so large unpacked, nor is what stands before and behind the blocks."""
_MOST_PARTS: Final = 1_000
"""Unknown parts behind the tail are skipped and counted up to so many."""
_MOST_PACKED: Final = 64
"""No block is packed to less than one byte of so many: the times of events differ."""
_MORE, _FULL, _LEAST_MATCH = 15, 255, 4
_READ_BYTES: Final = 1 << 20
_VARINT_BYTES: Final = 10
_REPEATED: Final = 1
_UNREADABLE: Final = (ValueError, OSError, EOFError)


class Unfit(ValueError):
    """The file is not laid out as those that are known."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a message that repeats one: their bytes, where each begins and ends."""

    data: bytes
    begin: IntArray
    end: IntArray

    @property
    def count(self) -> int:
        """Return how many there are."""
        return len(self.begin)


@dataclass(slots=True)
class RawFile:
    """A report that is open; `blocks` gives its events, and then the rest is known.

    `version` is what the first line says of the writer. `is_cut` says that the end of the file is
    missing. `expected_events` and `expected_texts` are what the file says that it holds. `texts`
    are those that events refer to by their number; where `texts_lost`, later numbers are not known.
    `damaged` blocks were left out, and so were parts whose meaning is unknown: `unknown_parts`.
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
        """Read what stands before the events. Raises Unfit where nothing behind it can be."""
        self.sections = self._contents()
        if self.sections:
            self._begin, size = self.sections[_RAW]
            self._end = min(self._begin + size, self.size)
            self.is_cut = self._begin + size > self.size
            self._texts_at, self._schemas_at = self._offsets()
        else:
            self._begin, self._end, self.is_cut = self._found(), self.size, True
        self.stream.seek(self._begin)
        if self.stream.read(len(_BEGIN)) != _BEGIN:
            raise Unfit("no events where they should begin")
        self.head = self._counted()
        index = {number: one for number, one in fields(self._counted()) if isinstance(one, int)}
        self.expected_events, self.expected_texts = index.get(1, 0), index.get(3, 0)

    def section(self, name: str) -> bytes:
        """Return a section, empty where there is none."""
        at, size = self.sections.get(name, (0, 0))
        self.stream.seek(at)
        return self.stream.read(min(size, _MOST_BYTES))

    @property
    def clocks(self) -> bytes:
        """Return what newer files say of their clocks."""
        return self.section(_CLOCKS)

    def blocks(self) -> Iterator[Parts]:
        """Give the events some at a time; texts and tail are known behind the last."""
        texts, is_last = 0, False
        while not is_last and not (
            self._is_of_texts() and texts >= self.expected_texts and self._rest()
        ):
            of_texts = self._is_of_texts()
            parts, is_last = self._next(of_texts)
            if parts is None:
                self.texts_lost = self.texts_lost or (of_texts and texts < self.expected_texts)
            elif not of_texts:
                self.events += parts.count
                yield parts
            elif not self.texts_lost:
                self.texts.append(parts)
                texts += parts.count
        self.texts_lost = self.texts_lost or texts < self.expected_texts

    def _next(self, of_texts: bool) -> tuple[Parts | None, bool]:
        """Return the parts of the next block, None of a damaged one, and whether it is the last."""
        packed = self._packed()
        parts = self._parts(*packed) if packed is not None else None
        if packed is None and (of_texts or self._texts_at is None):
            self.damaged += not self.is_cut and self.stream.tell() < self._end
            return self._before_cut(), True
        if packed is None:  # where the next block of events begins is not known
            self.stream.seek(self._texts_at or self._end)
        self.damaged += parts is None
        return parts, False

    def _before_cut(self) -> Parts | None:
        """Return the parts of a block that ends with the file; None where there are none."""
        try:
            _, plain = self._varint(), self._varint()
            packed = self.stream.read(max(0, self._end - self.stream.tell()))
            data = unpacked_before_cut(packed, min(plain, _MOST_BYTES))
            _, at = varint(data, 0)
        except _UNREADABLE:
            return None
        begin, end, _ = split(data, at, len(data), _REPEATED)
        return Parts(data, begin, end) if len(begin) and self.is_cut else None

    def _contents(self) -> dict[str, tuple[int, int]]:
        """Return where sections begin and how long they are; none where the file was cut."""
        if self.size < _TRAILER_BYTES:
            return {}
        self.stream.seek(self.size - _TRAILER_BYTES)
        trailer = self.stream.read(_TRAILER_BYTES)
        at, behind = int.from_bytes(trailer[:8], "little"), self.size - _TRAILER_BYTES
        if trailer[8:] != _END or not behind - _MOST_BYTES < at < behind:
            return {}
        self.stream.seek(at)
        entries, is_whole = parts_of(self.stream.read(behind - at), _REPEATED)
        if not is_whole:
            return {}
        found = dict(filter(None, map(_section, entries)))
        if any(at > self.size for at, _ in found.values()):
            return {}
        if _RAW not in found or _OFFSETS not in found:
            raise Unfit("no section of events")
        return found

    def _offsets(self) -> tuple[int, int | None]:
        """Return where the texts begin, and the schemas of payloads of NVTX, None without any."""
        said = dict(fields(self.section(_OFFSETS)))
        texts, schemas = said.get(2), said.get(3)
        if message_text(said.get(1)) != _CODEC or not isinstance(texts, int):
            raise Unfit("packed in an unknown way")
        first = self._begin + len(_BEGIN)
        return min(first + texts, self._end), first + schemas if isinstance(schemas, int) else None

    def _found(self) -> int:
        """Return where events begin in a file without its end. Raises EOFError where they do not.

        What stands before them is private and is passed over.
        """
        self.stream.seek(0)
        at, kept = 0, b""
        while block := self.stream.read(_READ_BYTES):
            place = (kept + block).find(_BEGIN)
            if place >= 0:
                return at - len(kept) + place
            at, kept = at + len(block), (kept + block)[-len(_BEGIN) :]
        raise EOFError

    def _is_of_texts(self) -> bool:
        if self._texts_at is not None:
            return self.stream.tell() >= self._texts_at
        return self.events >= self.expected_events

    def _varint(self) -> int:
        at = self.stream.tell()
        value, length = varint(self.stream.read(min(_VARINT_BYTES, self._end - at)), 0)
        self.stream.seek(at + length)
        return value

    def _counted(self) -> bytes:
        """Return a message that stands behind its length. Raises EOFError where it is cut."""
        size = self._varint()
        if size > min(self._end - self.stream.tell(), _MOST_BYTES):
            raise EOFError
        return self.stream.read(size)

    def _packed(self) -> tuple[bytes, int] | None:
        """Return the next block, and how many bytes are in it; None where there is no whole one."""
        at = self.stream.tell()
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
        self.stream.seek(at)
        return None

    def _parts(self, packed: bytes, plain: int) -> Parts | None:
        """Return the parts in a block; None where it is damaged."""
        self.plain_bytes += plain
        self.source.refuse_expansion(self.plain_bytes)
        data = _unpacked(packed, plain)
        if data is None:
            return None
        try:
            size, at = varint(data, 0)
        except ValueError:
            return None
        begin, end, is_whole = split(data, at, len(data), _REPEATED)
        return Parts(data, begin, end) if is_whole and at + size == len(data) else None

    def _rest(self) -> bool:
        """Read what stands behind the texts; return whether it is what is known to stand there.

        Some writers add parts behind it. These say nothing of whether the file is whole.
        """
        at = self.stream.tell()
        try:
            threads, tail = self._counted(), self._counted()  # nothing needs the names of threads
        except _UNREADABLE:
            self.stream.seek(at)
            return False
        is_end = self.is_cut or self.stream.tell() == self._end
        if not is_end and not all(parts_of(one, _REPEATED)[1] for one in (threads, tail)):
            self.stream.seek(at)
            return False
        self.tail = tail
        self.unknown_parts = 0 if self.is_cut else self._skipped()
        return True

    def _skipped(self) -> int:
        """Return how many more parts there are, packed or not, of which nothing is known."""
        count = 0
        while count < _MOST_PARTS and (at := self.stream.tell()) < self._end:
            count += at != self._schemas_at
            packed = self._packed()
            if packed is None or _unpacked(*packed) is None:
                self.stream.seek(at)
                try:
                    self._counted()
                except _UNREADABLE:
                    break
        return count


def _section(entry: bytes) -> tuple[str, tuple[int, int]] | None:
    """Return the name of a section that is read and its place; None of another one."""
    said = last_fields(entry)
    name, at, size = message_text(said.get(1)), said.get(2, 0), said.get(3, 0)
    is_known = name in (_RAW, _OFFSETS, _CLOCKS) and isinstance(at, int) and isinstance(size, int)
    return (name, (at, size)) if is_known else None


def _unpacked(packed: bytes, plain: int) -> bytes | None:
    """Return what a block holds; None where it is not as long as it says.

    Of one that is shorter the rest would be whatever the memory held: it fits into less.
    """
    codec = pa.Codec("lz4_raw")
    if plain > _MOST_PACKED * len(packed) + _READ_BYTES:
        return None
    try:
        data: bytes = codec.decompress(packed, plain, asbytes=True)
    except (OSError, ValueError, MemoryError):
        return None
    try:
        codec.decompress(packed, plain - 1) if plain > 1 else None
    except OSError:
        return data
    return data if plain == 1 else None


def unpacked_before_cut(packed: bytes, most: int) -> bytes:
    """Return what the beginning of an LZ4 block holds, at most so many bytes."""
    data = bytearray()
    at = 0
    try:
        while at < len(packed) and len(data) < most:
            token = packed[at]
            size, at = _size(packed, at + 1, token >> 4)
            data += packed[at : at + size]
            at += size
            back = packed[at] | packed[at + 1] << 8
            size, at = _size(packed, at + 2, token & 15)
            if not 0 < back <= len(data):
                break
            size = min(size + _LEAST_MATCH, most)
            again = data[len(data) - back :][:size]
            data += (again * -(-size // len(again)))[:size]
    except IndexError:
        pass  # the cut
    return bytes(data[:most])


def _size(packed: bytes, at: int, size: int) -> tuple[int, int]:
    """Return a length of LZ4, which goes on in the bytes behind where it is 15."""
    if size == _MORE:
        while packed[at] == _FULL:
            size += _FULL
            at += 1
        size += packed[at]
        at += 1
    return size, at


def opened(source: ByteSource) -> RawFile:
    """Return a report of which nothing has been read yet."""
    stream = _plain(source) or io.BytesIO(b"".join(source.blocks()))
    source.text_bytes = size = stream.seek(0, io.SEEK_END)
    stream.seek(max(size - _READ_BYTES, 0))
    padded = stream.read()
    filled = padded.rstrip(b"\0")  # copies by blocks pad with zeros
    size -= len(padded) - len(filled) if filled.endswith(_END) else 0
    stream.seek(len(MAGIC))
    version = _VERSION.match(stream.read(_LONGEST_VERSION))
    return RawFile(source, stream, size, version[1].decode() if version else "")


def _plain(source: ByteSource) -> IO[bytes] | None:
    """Return an input as a file; None where it is none, or packed. Raises InputError."""
    if source.path is None:
        return None
    try:
        stream = source.path.open("rb")
        if stream.read(len(MAGIC)) == MAGIC:
            return stream
        stream.close()
    except OSError as error:
        raise InputError(f"cannot be read: {source.label} ({error})", "copy it again") from None
    return None


def joined(blocks: list[Parts]) -> Parts:
    """Return the parts of several blocks as those of one."""
    if len(blocks) == 1:
        return blocks[0]
    first = np.cumsum([0, *(len(block.data) for block in blocks)])
    shifts = list(zip(blocks, first.tolist(), strict=False))
    return Parts(
        b"".join(block.data for block in blocks),
        np.concatenate([block.begin + shift for block, shift in shifts]),
        np.concatenate([block.end + shift for block, shift in shifts]),
    )
