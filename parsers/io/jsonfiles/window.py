"""The part of a long text that is being looked at, read on as it is needed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_SPACES: Final = re.compile(rb"[ \t\r\n]*+")


class Window:
    """Text from `at` on; `text` also holds what was looked at since it was last read on.

    `ended` says that no more follows.
    """

    def __init__(self, blocks: Iterator[bytes], block_bytes: int) -> None:
        self.text = b""
        self.at = 0
        self.ended = False
        self._blocks = blocks
        self._block_bytes = block_bytes
        # Of the text as it is: from where on a sign was searched, and what was found first.
        self._found: dict[re.Pattern[bytes], tuple[int, re.Match[bytes] | None]] = {}

    @property
    def available(self) -> int:
        """How many bytes can be looked at."""
        return len(self.text) - self.at

    def more(self) -> bool:
        """Read on and return whether there was more; offsets into the text change.

        At least as much again is read as is there, so that a long value does not cost its square.
        """
        if self.ended:
            return False
        wanted = max(self._block_bytes, self.available)
        parts, length = [self.text[self.at :]], 0
        for block in self._blocks:
            parts.append(block)
            length += len(block)
            if length >= wanted:
                break
        else:
            self.ended = True
        self._replace(b"".join(parts), 0)
        return length > 0

    def ensure(self, size: int) -> None:
        """Read on until so many bytes are there or none follow."""
        while self.available < size and self.more():
            pass

    def sign(self) -> bytes:
        """Return the next byte that is no space, b"" at the end; it is not passed."""
        while True:
            spaces = _SPACES.match(self.text, self.at)
            self.at = spaces.end() if spaces else self.at
            if self.at < len(self.text) or not self.more():
                return self.text[self.at : self.at + 1]

    def search(self, pattern: re.Pattern[bytes], at: int) -> re.Match[bytes] | None:
        """Return the first place of a sign from `at` on; no part of the text is searched twice."""
        since, found = self._found.get(pattern, (len(self.text) + 1, None))
        if at < since or (found is not None and found.start() < at):
            found = pattern.search(self.text, at)
            self._found[pattern] = (at, found)
        return found

    def forget(self, keep: int) -> int:
        """Pass all but the last bytes; return how many were passed."""
        passed = max(0, self.available - keep)
        self.at += passed
        return passed

    def _replace(self, text: bytes, at: int) -> None:
        self.text, self.at = text, at
        self._found.clear()
