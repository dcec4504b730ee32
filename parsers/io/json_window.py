"""The part of a JSON text that is in memory, and how to find the end of a value in it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, TypeVar

import msgspec

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of msgspec for text that it cannot decode."""
LONGEST_VALUE: Final = 1 << 26
"""The longest object of a list, or value that is kept whole."""
SPACE: Final = b" \t\r\n"
BETWEEN: Final = SPACE + b","
STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
"""The regular expression for a whole string."""
_DEEPEST: Final = 5000
_BYTE: Final = re.compile(r"\(byte (\d+)\)")
_SPACES: Final = re.compile(rb"[ \t\r\n]*+")
_GRAMMAR: Final = msgspec.json.Decoder(msgspec.Raw)
T = TypeVar("T")


def decoded(text: bytes | str | msgspec.Raw, form: type[T]) -> T | None:
    """Return JSON as a value of the type `form`, None if it is no such value."""
    try:
        return msgspec.json.decode(text, type=form)
    except UNDECODABLE:
        return None


@cache
def list_decoder(element: Any, strict: bool = True) -> msgspec.json.Decoder[list[Any]]:
    """Return the decoder of a list of such elements; if not strict, it accepts numbers as texts."""
    return msgspec.json.Decoder(list.__class_getitem__(element), strict=strict)


def first_value(text: bytes | memoryview) -> tuple[bool, int]:
    """Return whether a text's first JSON value is whole and valid, and its valid length, from 1."""
    try:
        _GRAMMAR.decode(text)
    except msgspec.DecodeError as error:
        byte = _BYTE.search(str(error))
        offset = int(byte[1]) if byte else len(text)
        # If only more text follows the value, the error names the byte one behind its end.
        whole = "trailing characters" in str(error)
        return whole, max(1, offset - whole)
    except UNDECODABLE:
        return False, min(len(text), _DEEPEST)
    return True, len(text)


class Window:
    """A text whose blocks are read when they are needed; `text[at:]` is still to be parsed.

    Offsets into `text` change whenever more is read. `ended` says that no more text follows.
    """

    def __init__(self, blocks: Iterator[bytes], block_bytes: int) -> None:
        """Begin before the first of the blocks; `block_bytes` is how much is read at a time."""
        self.text = b""
        self.at = 0
        self.ended = False
        self._before = 0  # bytes of the input before `text`
        self._blocks = blocks
        self._block_bytes = block_bytes
        # Per pattern: from where on this text was searched, and the first match from there.
        self._matches: dict[re.Pattern[bytes], tuple[int, re.Match[bytes] | None]] = {}

    @property
    def available(self) -> int:
        """Number of bytes in memory that are still to be parsed."""
        return len(self.text) - self.at

    @property
    def position(self) -> int:
        """Number of bytes of the whole input before `at`."""
        return self._before + self.at

    def rewind(self, text: bytes) -> None:
        """Go back to the beginning of `text`, which was consumed last."""
        if len(text) <= self.at:
            self.at -= len(text)
        else:
            self._replace(text + self.text[self.at :], -len(text))

    def more(self, least: int = 0) -> bool:
        """Read on, dropping consumed text; return whether there was more.

        Read at least `least` bytes (0: a block), and at least as much as is available: the text is
        doubled each time, so that a long value takes linear time.
        """
        if self.ended:
            return False
        wanted = max(least or self._block_bytes, self.available)
        parts, length = [self.text[self.at :]], 0
        for block in self._blocks:
            parts.append(block)
            length += len(block)
            if length >= wanted:
                break
        else:
            self.ended = True
        self._replace(b"".join(parts))
        return length > 0

    def ensure(self, size: int) -> None:
        """Read on until `size` bytes are available or the text has ended."""
        while self.available < size and self.more():
            pass

    def sign(self) -> bytes:
        """Skip spaces and return the next byte without consuming it; b"" at the end."""
        while True:
            spaces = _SPACES.match(self.text, self.at)
            self.at = spaces.end() if spaces else self.at
            if self.at < len(self.text) or not self.more():
                return self.text[self.at : self.at + 1]

    def search(self, pattern: re.Pattern[bytes], offset: int) -> re.Match[bytes] | None:
        """Return the first match from an offset on; results are cached to search text only once."""
        since, match = self._matches.get(pattern, (len(self.text) + 1, None))
        if offset < since or (match is not None and match.start() < offset):
            match = pattern.search(self.text, offset)
            self._matches[pattern] = (offset, match)
        return match

    def last(self, pattern: re.Pattern[bytes], stop: int) -> re.Match[bytes] | None:
        """Return the last match that ends before `stop`, or None. It searches near `stop` first."""
        first = self.search(pattern, self.at)
        if first is None or first.end() > stop:
            return None
        near = max(first.start(), stop - (1 << 16))
        matches = deque(pattern.finditer(self.text, near, stop), 1)
        return (matches or deque(pattern.finditer(self.text, first.start(), stop), 1))[0]

    def _replace(self, text: bytes, further: int = 0) -> None:
        self._before += self.at + further
        self.text, self.at = text, 0
        self._matches.clear()
