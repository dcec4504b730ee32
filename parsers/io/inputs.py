"""One input as a stream of plain bytes, however it is compressed.

Compression is recognised by content. Every stream is read in blocks, never as a whole, and a
stream that ends too early says so instead of raising: what came before the cut is used.
"""

from __future__ import annotations

import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from traceflops.errors import InputError

BLOCK_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_ZSTD_READ = 1 << 16  # a cut loses what the failing read had already decompressed
_PACKED = (".gz", ".zst")
_USUAL_EXPANSION = 10
_BOMB_BYTES = 1 << 30
_MOST_EXPANSION = 300
"""A trace shrinks to a tenth, in the extreme to a fiftieth; more is only ever a trap."""
GZIP_CUT = "the gzip stream was cut off"
"""What `ByteSource.cut` says where everything up to there was read and was sound."""

UNREADABLE = (OSError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
"""What reading a file, or unpacking it, can raise."""

Progress = Callable[[int], None]
"""Called with the number of stored bytes read so far of the current input."""


@dataclass(slots=True)
class ByteSource:
    """One input as decompressed blocks.

    `name` is the base name, `label` what reports call it (see `tell_apart`), `folder` where it lies
    on disk or in its archive, `inside` the name of the folder or archive that was given and that it
    was found in, `stored_bytes` its size on disk where known (of a member of an
    archive: unpacked), `packed_bytes` what an archive holds of it, `path` its path where it is a
    file by itself, `uri` where it is one of a store. After the blocks are consumed, `text_bytes` is
    the decompressed size and `cut` says how the stream ended too early (None: it ended well). With
    `limits` an input that expands like no trace does is refused.
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
    _raw_bytes: int = 0
    _stream: IO[bytes] | io.RawIOBase | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Call it by its base name, until others have that, too."""
        self.label = self.label or self.name

    @property
    def location(self) -> str | None:
        """By what another process finds it, None where it cannot."""
        return self.uri if self.path is None else str(self.path)

    @property
    def expected_text_bytes(self) -> int:
        """A guess at the size of the text before it is read; 0 where there is nothing to go by."""
        packed = Path(self.name).suffix in _PACKED
        return (self.stored_bytes or 0) * (_USUAL_EXPANSION if packed else 1)

    def blocks(self) -> Iterator[bytes]:
        """Yield the decompressed content in blocks."""
        self._close_stream()
        self.text_bytes, self.cut = 0, None
        self._stream = self.opener()
        for block in self._plain(self._stream):
            self.text_bytes += len(block)
            packed = self._raw_bytes if self.packed_bytes is None else self.packed_bytes
            self._refuse_bomb(self.text_bytes, packed)
            yield block
        self._close_stream()

    def refuse_expansion(self, plain_bytes: int) -> None:
        """Raise InputError where what the input itself holds packed takes far too many bytes."""
        self._refuse_bomb(plain_bytes, max(self.stored_bytes or 0, self.text_bytes))

    def _refuse_bomb(self, plain_bytes: int, packed_bytes: int) -> None:
        """Raise InputError where an input has unpacked to far more than a trace does."""
        if not self.limits or plain_bytes < _BOMB_BYTES:
            return
        if plain_bytes > _MOST_EXPANSION * max(packed_bytes, 1):
            raise InputError(
                f"unpacks to more than {_MOST_EXPANSION} times its size: {self.name} "
                f"(stopped at {plain_bytes / 1e9:.1f} GB)",
                "if you trust the file, read it with --no-limits",
            )

    def close(self) -> None:
        """Close what is open for good, also where the blocks were not read to their end."""
        self._close_stream()
        self.release()

    def _close_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def head(self, size: int = 1 << 16) -> bytes:
        """Return the first `size` decompressed bytes (fewer if the input is shorter)."""
        parts: list[bytes] = []
        length = 0
        for block in self.blocks():
            parts.append(block)
            length += len(block)
            if length >= size:
                break
        self._close_stream()
        return b"".join(parts)[:size]

    def _plain(self, stream: IO[bytes] | io.RawIOBase) -> Iterator[bytes]:
        first = self._read(stream)
        raw = self._counted(first, stream)
        if first.startswith(_GZIP):
            return self._gunzip(raw)
        if first.startswith(_ZSTD):
            return self._unzstd(_Reader(raw))
        return raw

    def _read(self, stream: IO[bytes] | io.RawIOBase) -> bytes:
        try:
            return stream.read(BLOCK_BYTES) or b""
        except UNREADABLE as error:
            self.cut = f"reading stopped ({reason(error)})"
            return b""

    def _counted(self, first: bytes, stream: IO[bytes] | io.RawIOBase) -> Iterator[bytes]:
        self._raw_bytes = 0
        block = first
        while block:
            self._raw_bytes += len(block)
            self.progress(self._raw_bytes)
            yield block
            block = self._read(stream)

    def _gunzip(self, raw: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the content of one or more gzip members; a cut or damaged stream ends early."""
        member = zlib.decompressobj(wbits=31)
        for block in raw:
            pending = block
            while pending:
                if member.eof:
                    pending = pending.lstrip(b"\0")  # padding between or after members
                    if not pending:
                        break
                    if not pending.startswith(_GZIP[:1]):
                        return
                    member = zlib.decompressobj(wbits=31)
                try:
                    yield from _inflated(member, pending)
                except zlib.error as error:
                    self.cut = f"the gzip stream is damaged ({error}) and values may be wrong"
                    return
                pending = member.unused_data
        if not member.eof:
            self.cut = GZIP_CUT

    def _unzstd(self, reader: _Reader) -> Iterator[bytes]:
        import pyarrow as pa

        stream = pa.CompressedInputStream(pa.PythonFile(reader, "r"), "zstd")
        while True:
            try:
                block: bytes = stream.read(_ZSTD_READ)
            except OSError as error:
                self.cut = f"the zstd stream is cut off or damaged ({error})"
                return
            if not block:
                return
            yield block


def reason(error: BaseException) -> str:
    """Return what an error says, without the names and addresses that stores put around it."""
    return " ".join(str(error).rpartition("': ")[2].partition("; Details")[0].split())[:200]


def _inflated(member: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    """Yield what compressed data holds, in blocks however far it expands.

    Raises zlib.error where it is damaged, once what stands before the damage has been yielded.
    """
    while True:
        saved = member.copy()
        try:
            plain = member.decompress(data, BLOCK_BYTES)
        except zlib.error:
            yield from _before_damage(saved, data)
            raise
        yield plain
        data = member.unconsumed_tail
        if not data and len(plain) < BLOCK_BYTES:
            return


def _before_damage(member: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    """Yield what can be decompressed of data that is damaged somewhere."""
    for step in (1 << 12, 1):
        for at in range(0, len(data), step):
            saved = member.copy()
            try:
                yield member.decompress(data[at : at + step])
            except zlib.error:
                member, data = saved, data[at : at + step]
                break


class _Reader(io.RawIOBase):
    """A file object over an iterator of blocks, as Arrow's decompressor wants one."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self._rest) < size:
            block = next(self._blocks, b"")
            if not block:
                break
            self._rest += block
        if size < 0:
            size = len(self._rest)
        part, self._rest = self._rest[:size], self._rest[size:]
        return part
