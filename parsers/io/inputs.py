"""One input as a stream of plain bytes, however it is compressed.

Compression is recognised by content. Streams are read in blocks, never as a whole. A stream that
ends too early is not an error: what came before is used, and `cut` says so.

Successive gzip members, or zstd or LZ4 frames, are one text.
"""

from __future__ import annotations

import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import IO, Final

from traceflops.errors import InputError

BLOCK_BYTES: Final = 1 << 20
GZIP_CUT: Final = "the gzip stream was cut off"
"""The value of `Unpacked.cut` if everything before the end was sound."""
_FEED_BYTES: Final = 1 << 15
"""Small, since the rest behind each member's end is copied, which adds up for many members."""
_STEP_BYTES: Final = 1 << 10
"""Small, since a read that fails at a cut loses what it had already decompressed."""
_GZIP: Final = b"\x1f\x8b\x08"
_FRAMES: Final = {b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
_SKIPPABLE: Final = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
"""The beginning of a frame that is no content: pzstd writes one before each other frame."""


class Unpacked:
    """The plain blocks of a packed stream, which can be iterated once.

    Afterwards `cut` says how it ended too early (or None), `behind_bytes` how many bytes follow it.
    """

    def __init__(self, raw: Iterator[bytes], unpack: Callable[[Unpacked], Iterator[bytes]]) -> None:
        self.feed = Feed(raw)
        self.cut: str | None = None
        self.behind_bytes = 0
        self._unpack = unpack

    def __iter__(self) -> Iterator[bytes]:
        """Yield the content, small pieces together in pieces of 64 KiB or more."""
        held = bytearray()
        for piece in self._unpack(self):
            held += piece
            if len(held) >= (1 << 16):
                yield bytes(held)
                held.clear()
        if held:
            yield bytes(held)


def unpacked(first: bytes, raw: Iterator[bytes]) -> Unpacked | None:
    """Return the unpacker of a stream by its first bytes, None if it is not compressed."""
    if first.startswith(_GZIP[:2]):
        return Unpacked(raw, _gunzip)
    is_framed = first[:4] in _FRAMES or _SKIPPABLE.match(first)
    return Unpacked(raw, _decompress) if is_framed else None


class Feed(io.RawIOBase):
    """A stream over blocks of bytes, in which the next few bytes can be peeked at."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._held = b""
        self._offset = 0

    def peek(self, size: int) -> bytes:
        """Return the next `size` bytes without taking them, fewer at the end."""
        while len(self._held) - self._offset < size:
            block = next(self._blocks, b"")
            if not block:
                break
            self._held, self._offset = self._held[self._offset :] + block, 0
        return self._held[self._offset : self._offset + size]

    def take(self, most: int = _FEED_BYTES) -> bytes:
        """Return at most `most` bytes; none at the end."""
        self.peek(1)
        part = self._held[self._offset : self._offset + most]
        self._offset += len(part)
        return part

    def give_back(self, size: int) -> None:
        """Push back the last `size` bytes of the last take."""
        self._offset -= size

    def readable(self) -> bool:
        """Return True: Arrow's decompressors want a file that can be read."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return at least one and at most `size` bytes; none at the end."""
        return self.take(size)


def _gunzip(stream: Unpacked) -> Iterator[bytes]:
    """Yield the content of gzip members; a cut or damaged stream ends early."""
    member = zlib.decompressobj(wbits=31)  # 31: with the header and checksum of gzip
    while data := stream.feed.take():
        try:
            yield from _inflated(member, data)
        except zlib.error as error:
            stream.cut = f"the gzip stream is damaged ({error}) and values may be wrong"
            return
        if not member.eof:
            continue
        # Skip padding (NUL bytes); behind it another member or trailing bytes begin.
        stream.feed.give_back(len(member.unused_data))
        while padded := stream.feed.take():
            if rest := padded.lstrip(b"\0"):
                stream.feed.give_back(len(rest))
                break
        begun = stream.feed.peek(len(_GZIP))
        if not begun or not _GZIP.startswith(begun):
            stream.behind_bytes = sum(map(len, iter(stream.feed.take, b"")))
            return
        member = zlib.decompressobj(wbits=31)
    stream.cut = GZIP_CUT


def _inflated(member: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    """Yield the content of compressed data in small blocks. Raises zlib.error at damage."""
    while not member.eof:  # data behind the end stays in `member.unused_data`
        saved = member.copy()
        try:
            plain = member.decompress(data, BLOCK_BYTES)
        except zlib.error:
            # Try again byte by byte, to get everything before the damage.
            for offset in range(len(data)):
                yield saved.decompress(data[offset : offset + 1])
            raise
        yield plain
        data = member.unconsumed_tail
        # Without input, a block that is not full shows that no output is waiting, either.
        if not data and len(plain) < BLOCK_BYTES:
            return


def _decompress(stream: Unpacked) -> Iterator[bytes]:
    """Yield the content of zstd or LZ4 frames, up to a cut, damage, or any trailing bytes."""
    import pyarrow as pa

    codec = _FRAMES.get(stream.feed.peek(4), "zstd")
    plain = pa.CompressedInputStream(pa.PythonFile(stream.feed, "r"), codec)
    while True:
        try:
            block: bytes = plain.read(_STEP_BYTES)
        except OSError as error:
            stream.cut = f"the {codec} stream is cut off or damaged ({error})"
            return
        if not block:
            return
        yield block


_BOMB_BYTES = 1 << 30
_MOST_EXPANSION = 300
"""The most by which an input may expand. Traces shrink to a tenth, at most to a fiftieth."""
UNREADABLE = (OSError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
"""Errors of reading or unpacking a file."""
Progress = Callable[[int], None]
"""Called with the number of stored bytes read so far of the current input."""


@dataclass(slots=True)
class ByteSource:
    """One input as decompressed blocks.

    `name` is the base name, `label` the name in reports (see `tell_apart`), `folder` its folder on
    disk or in an archive, `inside` the name of the folder or archive that the user gave. `path` is
    its path if it is a file, `uri` that of a file in a store. `stored_bytes` is its size on disk if
    known (of a member of an archive: unpacked), `packed_bytes` its size in an archive. `limits`
    refuses an input that expands more than traces do. After the blocks are consumed, `text_bytes`
    is the decompressed size, `cut` says how the stream ended too early (None: it did not), and
    `behind_bytes` is how many bytes follow the end of a compressed stream.
    """

    name: str
    opener: Callable[[], IO[bytes] | io.RawIOBase]
    stored_bytes: int | None = None
    path: Path | None = None
    folder: str = ""
    inside: str = ""
    uri: str | None = None
    label: str = ""
    packed_bytes: int | None = None
    release: Callable[[], None] = lambda: None
    progress: Progress = lambda _: None
    limits: bool = True
    text_bytes: int = 0
    cut: str | None = None
    behind_bytes: int = 0
    _raw_bytes: int = 0
    _stream: IO[bytes] | io.RawIOBase | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Label the input by its base name; `tell_apart` changes labels that are not unique."""
        self.label = self.label or self.name

    @property
    def location(self) -> str | None:
        """Path or URI by which another process can read it, None if it cannot."""
        return self.uri if self.path is None else str(self.path)

    @property
    def expected_text_bytes(self) -> int:
        """Estimated size of the text before it is read; 0 if it is unknown."""
        packed = Path(self.name).suffix in (".gz", ".zst", ".lz4")
        return (self.stored_bytes or 0) * (10 if packed else 1)

    def blocks(self) -> Iterator[bytes]:
        """Yield the decompressed content in blocks.

        `opener` unpacks a member of an archive; what is compressed in it, or in a file, is unpacked
        here.
        """
        self._close_stream()
        self.text_bytes, self.behind_bytes, self.cut = 0, 0, None
        self._stream = self.opener()
        raw = self._raw_blocks(self._stream)
        begun = list(islice(raw, 1))
        raw = chain(begun, raw)
        packed = unpacked(begun[0], raw) if begun else None
        for block in raw if packed is None else packed:
            self.text_bytes += len(block)
            # The packed size: of a file what was read so far; of a member of an archive, which is
            # read unpacked, its size in there.
            read_bytes, in_archive = self._raw_bytes, self.packed_bytes
            self._refuse_bomb(self.text_bytes, read_bytes if in_archive is None else in_archive)
            yield block
        if packed is not None:
            self.cut, self.behind_bytes = self.cut or packed.cut, packed.behind_bytes
        self._close_stream()

    def _raw_blocks(self, stream: IO[bytes] | io.RawIOBase) -> Iterator[bytes]:
        """Yield the stored content; at a read error stop, and set `cut`."""
        self._raw_bytes = 0
        while True:
            try:
                block = stream.read(BLOCK_BYTES)
            except UNREADABLE as error:
                self.cut = f"reading stopped ({reason(error)})"
                return
            if not block:
                return
            self._raw_bytes += len(block)
            self.progress(self._raw_bytes)
            yield block

    def refuse_expansion(self, plain_bytes: int) -> None:
        """Raise InputError if compressed content inside the input expands to far too many bytes."""
        self._refuse_bomb(plain_bytes, max(self.stored_bytes or 0, self.text_bytes))

    def _refuse_bomb(self, plain_bytes: int, packed_bytes: int) -> None:
        """Raise InputError if an input has unpacked to far more than a trace does."""
        if not self.limits or plain_bytes < _BOMB_BYTES:
            return
        if plain_bytes > _MOST_EXPANSION * max(packed_bytes, 1):
            raise InputError(
                f"unpacks to more than {_MOST_EXPANSION} times its size: {self.name} "
                f"(stopped at {plain_bytes / 1e9:.1f} GB)",
                "if you trust the file, read it with --no-limits",
            )

    def close(self) -> None:
        """Close the input for good; its blocks need not have been read to the end."""
        self._close_stream()
        self.release()

    def _close_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def head(self, size: int = 1 << 16) -> bytes:
        """Return the first `size` decompressed bytes (fewer if the input is shorter)."""
        parts: list[bytes] = []
        for block in self.blocks():
            parts.append(block)
            if self.text_bytes >= size:
                break
        self._close_stream()
        return b"".join(parts)[:size]


def reason(error: BaseException) -> str:
    """Return an error's message in one line, without the names and addresses that stores add."""
    return " ".join(str(error).rpartition("': ")[2].partition("; Details")[0].split())[:200]
