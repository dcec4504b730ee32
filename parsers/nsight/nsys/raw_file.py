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
_SHOWN: Final = "UI Data"
"""The section that the viewer shows, with the command line."""
_BEGIN: Final = b"QDTEXT00"
_END: Final = b"U3w[END]"
_PACKED_BY, _AT_TEXTS, _AT_SCHEMAS = 1, 2, 3
"""Fields of the section of offsets: the codec, where the texts begin, where the schemas begin."""
_EVENT_COUNT, _TEXT_COUNT = 1, 3
"""Fields of the message after the head."""
_TRAILER_BYTES: Final = 8 + len(_END)
_MOST_BYTES: Final = 1 << 27
"""The largest size of an unpacked block, and of the head or the tail of the file."""
_MOST_PACKED: Final = 255
"""The largest ratio that LZ4 can reach; texts, such as long names of templates, come near it."""
_READ_BYTES: Final = 1 << 20
_REPEATED, _COMMAND_LINE = 1, 25
_TRACE: Final = re.compile(r"\bnsys(?:\.exe)?\"? profile\b.*?\s(?:-t|--trace)[ =]([\w,-]+)")
_TRACES: Final = frozenset(
    {
        *("cuda", "cuda-hw", "nvtx", "osrt", "opengl", "openacc", "openmp", "mpi", "ucx", "none"),
        *("oshmem", "nvshmem", "vulkan", "nvvideo", "cublas", "cudnn", "cusolver", "cusparse"),
        *("cublas-verbose", "cusolver-verbose", "cusparse-verbose", "syscall", "python-gil", "gds"),
    }
)
"""What nsys can trace: only these words of a command line are kept, since others are private."""
_UNREADABLE: Final = (ValueError, OSError, EOFError)


class Parts(NamedTuple):
    """A message that repeats one field: its bytes, and where each repeated part begins and ends."""

    data: bytes
    begin: IntArray
    end: IntArray


class RawFile(Struct):
    """An open report: a head, blocks of events, blocks of texts, and a tail.

    `blocks` yields the events; `texts` and `tail` are known after the last one. Events refer to
    texts by number. `version` is the writer's. `is_cut`: the end of the file is missing.
    `expected_events` and `expected_texts` are the counts that the file states, `events` those that
    could be read. `damaged` counts blocks that were left out; `texts_lost`: later texts are
    missing. `_begin` and `_end` are offsets of the section of events, `_texts_at` of the texts.
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
        """Read the head, seek to the first events. Raises ValueError or EOFError if it cannot."""
        self.sections = self._contents()
        if self.sections:
            self._begin, size = self.sections[_RAW]
            self._end = min(self._begin + size, self.size)
            self.is_cut = self._begin + size > self.size
        if _OFFSETS in self.sections:  # older files have none: their counts tell where texts begin
            offsets = dict(messages.fields(self.section(_OFFSETS)))
            texts, schemas = offsets.get(_AT_TEXTS), offsets.get(_AT_SCHEMAS)
            codec = messages.message_text(offsets.get(_PACKED_BY))
            if codec != "lz4" or not isinstance(texts, int):
                raise ValueError("packed in an unknown way")
            first = self._begin + len(_BEGIN)
            self._texts_at = min(first + texts, self._end)
            self._schemas_at = first + schemas if isinstance(schemas, int) else None
        if not self.sections:  # the end of the file, which has the offsets, is missing
            self._end, self.is_cut = self.size, True
            self._begin = self._searched_begin()
        self.stream.seek(self._begin)
        if self.stream.read(len(_BEGIN)) != _BEGIN:
            raise ValueError("no events where they should begin")
        self.head = self._counted()
        counts = {key: n for key, n in messages.fields(self._counted()) if isinstance(n, int)}
        self.expected_events = counts.get(_EVENT_COUNT, 0)
        self.expected_texts = counts.get(_TEXT_COUNT, 0)

    def _searched_begin(self) -> int:
        """Return the offset of the first _BEGIN; parts before it are private. Raises EOFError."""
        self.stream.seek(0)
        offset, window = 0, b""
        while block := self.stream.read(_READ_BYTES):
            window = window[-len(_BEGIN) :] + block  # _BEGIN may lie across two blocks
            offset += len(block)
            index = window.find(_BEGIN)
            if index >= 0:
                return offset - len(window) + index
        raise EOFError

    def _contents(self) -> dict[str, tuple[int, int]]:
        """Return (offset, size) of the sections that are read, by name; {} if the file is cut off.

        Raises ValueError if the section of events is missing.
        """
        if self.size < _TRAILER_BYTES:
            return {}
        # The list of sections comes before the trailer, which holds the offset of the list.
        trailer_offset = self.size - _TRAILER_BYTES
        self.stream.seek(trailer_offset)
        trailer = self.stream.read(_TRAILER_BYTES)
        begin = int.from_bytes(trailer[:8], "little")
        if trailer[8:] != _END or not trailer_offset - _MOST_BYTES < begin < trailer_offset:
            return {}
        self.stream.seek(begin)
        entries, is_whole = messages.parts_of(self.stream.read(trailer_offset - begin), _REPEATED)
        sections: dict[str, tuple[int, int]] = {}
        for entry in map(messages.last_fields, entries if is_whole else ()):
            # Field 1 is the name, 2 the offset, 3 the size.
            name = messages.message_text(entry.get(1))
            offset, size = entry.get(2, 0), entry.get(3, 0)
            is_span = isinstance(offset, int) and isinstance(size, int)
            if name in (_RAW, _OFFSETS, CLOCKS, _SHOWN) and is_span:
                sections[name] = (offset, size)
        if not is_whole or any(offset > self.size for offset, _ in sections.values()):
            return {}
        if _RAW not in sections:
            raise ValueError("no section of events")
        return sections

    def section(self, name: str) -> bytes:
        """Return the bytes of a section, empty if there is none."""
        offset, size = self.sections.get(name, (0, 0))
        self.stream.seek(offset)
        return self.stream.read(min(size, _MOST_BYTES))

    def traced(self) -> str:
        """Return what the command line tells to trace, "" if it does not tell, or says too much."""
        shown = messages.last_fields(self.section(_SHOWN))
        asked = _TRACE.search(messages.message_text(shown.get(_COMMAND_LINE)))
        return asked[1] if asked and _TRACES.issuperset(asked[1].split(",")) else ""

    def blocks(self) -> Iterator[Parts]:
        """Yield the events of each block; then read the blocks of texts and the tail."""
        texts, is_last = 0, False
        while not is_last:
            has_texts = self._is_at_texts()
            # The tail follows when all texts are read.
            if has_texts and texts >= self.expected_texts and self._read_tail():
                break
            packed = self._packed()
            parts = self._parts(*packed) if packed is not None else None
            if packed is None:
                # Without the size of this block, the next one cannot be found. After a block of
                # events go on with the texts, if their offset is known.
                is_last = has_texts or self._texts_at is None
                if not is_last:
                    self.stream.seek(self._texts_at or self._end)
            if parts is None:
                # The block before a cut is incomplete, not damaged.
                is_at_cut = is_last and (self.is_cut or self.stream.tell() >= self._end)
                self.damaged += not is_at_cut
                self.texts_lost = self.texts_lost or (has_texts and texts < self.expected_texts)
            elif not has_texts:
                self.events += len(parts.begin)
                yield parts
            elif not self.texts_lost:  # else the numbers of these texts are unknown
                self.texts.append(parts)
                texts += len(parts.begin)
        self.texts_lost = self.texts_lost or texts < self.expected_texts

    def _is_at_texts(self) -> bool:
        """Return whether the next block is one of texts: by offset, else by the count of events."""
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
        """Return the bytes of the next block and their unpacked size; None if it is not whole."""
        offset = self.stream.tell()
        try:
            packed_bytes, plain_bytes = self._varint(), self._varint()
            end = self._end if self._is_at_texts() else self._texts_at or self._end
            room = end - self.stream.tell()
            if 0 < packed_bytes <= room and 0 < plain_bytes <= _MOST_BYTES:
                packed = self.stream.read(packed_bytes)
                self.source.progress(self.stream.tell())
                if len(packed) == packed_bytes:
                    return packed, plain_bytes
        except _UNREADABLE:
            pass
        self.stream.seek(offset)
        return None

    def _parts(self, packed: bytes, plain_bytes: int) -> Parts | None:
        """Return the parts in a packed block of this unpacked size; None if it is damaged."""
        self.plain_bytes += plain_bytes
        self.source.refuse_expansion(self.plain_bytes)
        data = _unpacked(packed, plain_bytes) or b""
        try:
            size, offset = messages.varint(data, 0)
        except ValueError:
            return None
        begin, end, is_whole = messages.split(data, offset, len(data), _REPEATED)
        return Parts(data, begin, end) if is_whole and offset + size == len(data) else None

    def _read_tail(self) -> bool:
        """Read the tail and count unknown parts after it; return False if this is not a tail."""
        begin = self.stream.tell()
        try:
            threads = self._counted()  # their names are not needed
            # Without any, the tail is the only part left.
            is_alone = not self.is_cut and self.stream.tell() == self._end
            tail = threads if is_alone else self._counted()
        except _UNREADABLE:
            self.stream.seek(begin)
            return False
        is_end = self.is_cut or self.stream.tell() == self._end
        # If more follows, both must be messages of parts; else this is a block of texts.
        is_tail = is_end or all(messages.parts_of(part, _REPEATED)[1] for part in (threads, tail))
        if not is_tail:
            self.stream.seek(begin)
            return False
        self.tail = tail
        # The parts after the tail may be packed or not: try both.
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


def _unpacked(packed: bytes, plain_bytes: int) -> bytes | None:
    """Return the content of a packed block; None if it is damaged or not `plain_bytes` long.

    The codec does not tell how many bytes it wrote, and bytes after these would be uninitialised
    memory. So check that the content does not fit into one byte less.
    """
    codec = pa.Codec("lz4_raw")
    if plain_bytes > _MOST_PACKED * len(packed):
        return None
    try:
        data: bytes = codec.decompress(packed, plain_bytes, asbytes=True)
    except (OSError, ValueError, MemoryError):
        return None
    if plain_bytes == 1:  # cannot be checked so
        return data
    try:
        codec.decompress(packed, plain_bytes - 1)
    except OSError:
        return data
    return None


def opened(source: ByteSource) -> RawFile:
    """Return an open report with its first line read. Raises InputError if it cannot be read."""
    stream: IO[bytes] | None = None
    if source.path is not None:
        try:
            stream = source.path.open("rb")
            if stream.read(len(MAGIC)) != MAGIC:  # a compressed file: unpack it below
                stream.close()
                stream = None
        except OSError as error:
            message = f"cannot be read: {source.label} ({error})"
            raise InputError(message, "copy it again") from None
    stream = stream or io.BytesIO(b"".join(source.blocks()))
    source.text_bytes = size = stream.seek(0, io.SEEK_END)
    stream.seek(max(size - _READ_BYTES, 0))
    # A copy may be padded with zeros to whole blocks, or end with a line feed of an editor. Without
    # the end mark before them, they may be part of a file that is cut off.
    end = stream.read()
    unpadded = end.rstrip(b"\0\r\n")
    if unpadded.endswith(_END):
        size -= len(end) - len(unpadded)
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
