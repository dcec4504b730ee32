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
from traceflops.parsers.io.unpacking import BLOCK_BYTES, unpacked

_PACKED = (".gz", ".zst", ".lz4")
_USUAL_EXPANSION = 10
_BOMB_BYTES = 1 << 30
_MOST_EXPANSION = 300
"""A trace shrinks to a tenth, in the extreme to a fiftieth; more is only ever a trap."""
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
    the decompressed size, `cut` says how the stream ended too early (None: it ended well), and
    `behind_bytes` how much stands behind the end of a compressed stream that is no part of it. With
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
    behind_bytes: int = 0
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
        self.text_bytes, self.behind_bytes, self.cut = 0, 0, None
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
        packed = unpacked(first, raw)
        if packed is None:
            yield from raw
            return
        yield from packed
        self.cut = self.cut or packed.cut
        self.behind_bytes = packed.behind_bytes

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


def reason(error: BaseException) -> str:
    """Return what an error says, without the names and addresses that stores put around it."""
    return " ".join(str(error).rpartition("': ")[2].partition("; Details")[0].split())[:200]
