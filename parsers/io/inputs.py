"""One input as a stream of plain bytes, however it is compressed.

Compression is recognised by content. Streams are read in blocks, never as a whole. A stream that
ends too early is not an error: what came before is used, and `cut` says so.

Successive gzip members, or zstd or LZ4 frames, are one text. The layouts are those of RFC 1952,
RFC 8878 and the LZ4 frame format 1.6. Frames are delimited here by their own lengths, so that
Arrow's decompressors never see bytes behind the last one.
"""

from __future__ import annotations

import codecs
import io
import lzma
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
"""The value of `Feed.cut` if everything before the end was sound."""
_FEED_BYTES: Final = 1 << 15
"""Small, since the rest behind each member's end is copied, which adds up for many members."""
_READ_BYTES: Final = 1 << 16
"""Small, since a read that fails at a cut loses what it had already decompressed."""
_GZIP: Final = b"\x1f\x8b\x08"
_FRAMES: Final = {b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
_SKIPPED: Final = b"\x2a\x4d\x18"
_MAGIC_BYTES: Final = 4
_RLE, _RESERVED = 1, 3
_OF_ID: Final = (0, 1, 2, 4)
_OF_SIZE: Final = (0, 2, 4, 8)
_PACKED = (".gz", ".zst", ".lz4")
_USUAL_EXPANSION = 10
_BOMB_BYTES = 1 << 30
_MOST_EXPANSION = 300
"""The most by which an input may expand. Traces shrink to a tenth, at most to a fiftieth."""
UNREADABLE = (OSError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
"""Errors of reading or unpacking a file."""
Progress = Callable[[int], None]
"""Called with the number of stored bytes read so far of the current input."""


def unpacker(first: bytes) -> Callable[[Feed], Iterator[bytes]] | None:
    """Return the function that unpacks a stream with these first bytes, None if it is plain."""
    if first.startswith(_GZIP[:2]):
        return _gunzip
    magic = first[:_MAGIC_BYTES]
    return _decompress if magic in _FRAMES or _is_skipped(magic) else None


class Feed(io.RawIOBase):
    """A stream over blocks of bytes, in which the next few bytes can be peeked at.

    After unpacking, `cut` says how it ended too early (None: it did not); `behind_bytes` follow its
    end.
    """

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self.cut: str | None = None
        self.behind_bytes = 0
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

    def exactly(self, size: int) -> Iterator[bytes]:
        """Yield `size` bytes in pieces, fewer if the feed ends."""
        while size and (part := self.take(min(size, _FEED_BYTES))):
            size -= len(part)
            yield part

    def goes_on(self, is_next: Callable[[bytes], bool]) -> bool:
        """Skip padding; return whether another member begins, else count the trailing bytes.

        `is_next` tells whether the first bytes are those of a member.
        """
        while part := self.take():  # padding is NUL bytes
            if behind_padding := part.lstrip(b"\0"):
                self.give_back(len(behind_padding))
                break
        magic = self.peek(_MAGIC_BYTES)
        if magic and not is_next(magic):
            self.behind_bytes = sum(map(len, iter(self.take, b"")))
            return False
        return bool(magic)

    def readable(self) -> bool:
        """Return True: Arrow's decompressors want a file that can be read."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes, fewer at the end; all if it is negative."""
        return b"".join(self.exactly(size) if size >= 0 else iter(self.take, b""))


def gathered(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the bytes of small pieces joined to pieces of 64 KiB or more."""
    held: list[bytes] = []
    length = 0
    for piece in pieces:
        held.append(piece)
        length += len(piece)
        if length >= _READ_BYTES:
            yield b"".join(held) if len(held) > 1 else piece
            held, length = [], 0
    if length:
        yield b"".join(held)


def _in_utf8(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield text in UTF-16, as redirects of PowerShell write it, in UTF-8; other pieces as such."""
    first = next(pieces, b"")
    pieces = chain([first], pieces)
    if not first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        yield from filter(None, pieces)
        return
    decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
    texts = (decoder.decode(piece).encode() for piece in pieces)
    yield from filter(None, texts)
    yield from filter(None, [decoder.decode(b"", final=True).encode()])


def _gunzip(feed: Feed) -> Iterator[bytes]:
    """Yield the content of gzip members; a cut or damaged stream ends early."""
    member = zlib.decompressobj(wbits=31)  # 31: with the header and checksum of gzip
    while data := feed.take():
        try:
            yield from _inflated(member, data)
        except zlib.error as error:
            feed.cut = f"the gzip stream is damaged ({error}) and values may be wrong"
            return
        if member.eof:
            feed.give_back(len(member.unused_data))
            if not feed.goes_on(lambda head: head.startswith(_GZIP) or _GZIP.startswith(head)):
                return
            member = zlib.decompressobj(wbits=31)
    feed.cut = GZIP_CUT


def _inflated(member: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    """Yield the content in small blocks. Raises zlib.error, after yielding what precedes damage."""
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


def _decompress(feed: Feed) -> Iterator[bytes]:
    """Yield the content of zstd or LZ4 frames; a cut or damaged stream ends early."""
    import pyarrow as pa

    _skip(feed)
    codec = _FRAMES.get(feed.peek(_MAGIC_BYTES))
    if codec is None:
        feed.goes_on(lambda _: False)  # count what is there as trailing bytes
        return
    file = pa.PythonFile(Feed(gathered(_frames(feed, codec))), "r")
    plain = pa.CompressedInputStream(file, codec)
    while True:
        try:
            block: bytes = plain.read(_READ_BYTES)
        except OSError as error:
            feed.cut = f"the {codec} stream is cut off or damaged ({error})"
            return
        if not block:
            return
        yield block


def _frames(feed: Feed, codec: str) -> Iterator[bytes]:
    """Yield the bytes of zstd or LZ4 frames, without skippable frames and trailing data."""
    walk = _zstd_frame if codec == "zstd" else _lz4_frame
    while feed.goes_on(lambda begun: _is_skipped(begun) or _FRAMES.get(begun) == codec):
        if feed.peek(_MAGIC_BYTES) in _FRAMES:
            yield from walk(feed)
        _skip(feed)


def _skip(feed: Feed) -> None:
    """Skip skippable frames."""
    while _is_skipped(feed.peek(_MAGIC_BYTES)):
        head = b"".join(feed.exactly(8))
        size = int.from_bytes(head[_MAGIC_BYTES:], "little")
        if len(head) + sum(map(len, feed.exactly(size))) < 8 + size:
            feed.cut = "the compressed stream was cut off"


def _is_skipped(begun: bytes) -> bool:
    return begun[1:] == _SKIPPED and begun[0] >> 4 == 5


def _zstd_frame(feed: Feed) -> Iterator[bytes]:
    """Yield the bytes of a zstd frame; if it is damaged, all that follow: then unpacking fails."""
    descriptor = (feed.peek(5) + b"\0")[4]
    is_single = bool(descriptor >> 5 & 1)
    size_bytes = _OF_SIZE[descriptor >> 6] or int(is_single)
    # The header: magic and descriptor, then window descriptor, dictionary id, content size.
    yield from feed.exactly(5 + (not is_single) + _OF_ID[descriptor & 3] + size_bytes)
    while len(head := feed.peek(3)) == 3:  # blocks; bit 0 marks the last one
        block = int.from_bytes(head, "little")
        kind = block >> 1 & 3
        if kind == _RESERVED:
            yield from iter(feed.take, b"")
        yield from feed.exactly(3 + (1 if kind == _RLE else block >> 3))
        if block & 1:
            break
    yield from feed.exactly(4 if descriptor >> 2 & 1 else 0)  # the checksum, if there is one


def _lz4_frame(feed: Feed) -> Iterator[bytes]:
    """Yield the bytes of an LZ4 frame, of a cut one up to the cut.

    Bits of the descriptor: 0 dictionary id, 2 checksum and 3 size of the content, 4 checksums
    of blocks.
    """
    descriptor = (feed.peek(5) + b"\0")[4]
    # The header: magic, descriptor and checksum, then maybe content size and dictionary id.
    yield from feed.exactly(7 + 8 * (descriptor >> 3 & 1) + 4 * (descriptor & 1))
    while len(head := feed.peek(4)) == 4:  # blocks; size 0 is the end
        size = int.from_bytes(head, "little") & 0x7FFF_FFFF  # the highest bit: not compressed
        yield from feed.exactly(4 + size + (4 * (descriptor >> 4 & 1) if size else 0))
        if not size:
            break
    yield from feed.exactly(4 * (descriptor >> 2 & 1))


@dataclass(slots=True)
class ByteSource:
    """One input as decompressed blocks.

    `name` is the base name, `label` the name in reports (see `tell_apart`), `folder` the folder on
    disk or in an archive, `inside` the name of the folder or archive that the user gave. `path` is
    the path of a file, `uri` the address of a file in a store. `stored_bytes` is the size on disk
    if known (of a member of an archive: unpacked), `packed_bytes` the size in an archive. `limits`
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
        packed = Path(self.name).suffix in _PACKED
        return (self.stored_bytes or 0) * (_USUAL_EXPANSION if packed else 1)

    def blocks(self) -> Iterator[bytes]:
        """Yield the decompressed content in blocks; `opener` unpacks only members of archives."""
        self._close_stream()
        self.text_bytes, self.behind_bytes, self.cut = 0, 0, None
        self._stream = self.opener()
        raw = self._raw_blocks(self._stream)
        first = list(islice(raw, 1))  # none if the input is empty
        raw = chain(first, raw)
        unpack, feed = unpacker(first[0]) if first else None, Feed(raw)
        for block in _in_utf8(raw if unpack is None else gathered(unpack(feed))):
            self.text_bytes += len(block)
            # The raw bytes of a member of an archive are unpacked already: take its packed size.
            packed = self._raw_bytes if self.packed_bytes is None else self.packed_bytes
            self._refuse_bomb(self.text_bytes, packed)
            yield block
        self.cut, self.behind_bytes = self.cut or feed.cut, feed.behind_bytes
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
