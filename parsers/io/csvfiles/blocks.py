"""The content of a source as blocks of whole lines of valid UTF-8, line ends plain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from traceflops.parsers.io.inputs import ByteSource

_LONGEST_LINE: Final = 4 << 20
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_REPLACEMENT: Final = "\ufffd"


class TextDamage(Protocol):
    """Where damage to the text is counted."""

    dropped_rows: int
    cut_bytes: int | None
    replaced_characters: int
    rows_with_replacements: int
    first_bad_byte: int | None


class LineBlocks:
    """Blocks of about `block_bytes`, each of whole lines with a line end behind the last.

    Bytes that are no UTF-8, and NUL, become U+FFFD. A line of more than 4 MB is left out.
    `ended_open` says of the block just yielded that it is the last and had no line end. Where the
    source itself was cut, a last line without end is left out: it may lack its own end, too.
    """

    def __init__(self, source: ByteSource, block_bytes: int, damage: TextDamage) -> None:
        self.ended_open = False
        self._source = source
        self._block_bytes = block_bytes
        self._damage = damage
        self._offset = 0

    def __iter__(self) -> Iterator[bytes]:
        """Yield the blocks."""
        parts: list[bytes] = []
        size = 0
        in_long_line = False
        for chunk in self._chunks():
            if in_long_line:
                end = chunk.find(b"\n") + 1
                in_long_line = end == 0
                self._offset += end or len(chunk)
                chunk = chunk[end:] if end else b""
            parts.append(chunk)
            size += len(chunk)
            if size < self._block_bytes:
                continue
            text = b"".join(parts)
            stop = text.rfind(b"\n") + 1
            if stop:
                yield self._valid(text[:stop])
            elif size > _LONGEST_LINE:
                in_long_line, stop = True, size
                self._offset += size
                self._damage.dropped_rows += 1
            parts, size = [text[stop:]], size - stop
        yield from self._last(b"".join(parts))

    def _chunks(self) -> Iterator[bytes]:
        """Yield the text without byte order mark; of carriage returns alone line feeds are made."""
        bare_returns = False
        for place, chunk in enumerate(self._source.blocks()):
            if place == 0:
                bare_returns = b"\n" not in chunk and b"\r" in chunk
                if chunk.startswith(_BYTE_ORDER_MARK):
                    self._offset = len(_BYTE_ORDER_MARK)
                    chunk = chunk[self._offset :]
            yield chunk.replace(b"\r", b"\n") if bare_returns else chunk

    def _last(self, text: bytes) -> Iterator[bytes]:
        stop = text.rfind(b"\n") + 1
        tail = text[stop:]
        if not tail.strip(b"\0 \t\r"):
            tail = b""
        elif self._source.cut:
            self._damage.cut_bytes = len(tail)
            tail = b""
        if tail:
            self.ended_open = True
            yield self._valid(text + b"\n")
        elif stop:
            yield self._valid(text[:stop])

    def _valid(self, text: bytes) -> bytes:
        """Return the text as UTF-8 with plain line ends; what is none is replaced and counted."""
        offset, self._offset = self._offset, self._offset + len(text)
        bad = _first_bad(text)
        if bad is not None:
            before = text.count(_REPLACEMENT.encode())
            decoded = text.decode(errors="replace").replace("\0", _REPLACEMENT)
            damage = self._damage
            damage.replaced_characters += decoded.count(_REPLACEMENT) - before
            damage.rows_with_replacements += sum(_REPLACEMENT in r for r in decoded.split("\n"))
            if damage.first_bad_byte is None:
                damage.first_bad_byte = offset + bad
            text = decoded.encode()
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return text


def _first_bad(text: bytes) -> int | None:
    """Return where the first byte is that is no text; None where there is none."""
    nul = text.find(b"\0")
    if text.isascii():
        return nul if nul >= 0 else None
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return error.start if nul < 0 else min(error.start, nul)
    return nul if nul >= 0 else None
