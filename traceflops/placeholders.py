"""Placeholders that stand for names: numbered as they come up, one and the same for equal names."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from traceflops.librarywords import is_library_word, words_of
from traceflops.rows import Names

_LETTERS: Final = re.compile(r"[A-Za-z\u0080-\U0010ffff]+")
_LONGEST: Final = 4_096
"""What stands behind so many characters of a name is left out."""


class Placeholders:
    """Gives names their placeholders, and counts how many names got one, by kind.

    A name is replaced as a whole ("module 3"), or the words in it that are not those of libraries
    ("name2_gemm_kernel"). Different names stay different.
    """

    def __init__(self) -> None:
        self._whole: dict[str, Names] = {}
        self._words = Names()
        self._partly: dict[str, str] = {}
        self._taken: dict[str, str] = {}
        self.changed: Counter[str] = Counter()
        self._counted: set[tuple[str, str]] = set()

    def whole(self, kind: str, text: str) -> str:
        """Return what stands for a whole name."""
        self.count(kind, text)
        return f"{kind} {self._whole.setdefault(kind, Names())[text] + 1}"

    def partly(self, kind: str, text: str) -> str:
        """Return a name in which the words that no library uses are replaced."""
        found = self._partly.get(text)
        if found is None:
            found = self._partly[text] = self._distinct(text, self._replaced(text))
        if found != text:
            self.count(kind, text)
        return found

    def names(self, kind: str) -> list[str]:
        """Return the names of a kind that were replaced as a whole, the longest first."""
        return sorted(self._whole.get(kind, ()), key=len, reverse=True)

    def count(self, kind: str, text: str) -> None:
        """Count a text as replaced, once."""
        if (kind, text) not in self._counted:
            self._counted.add((kind, text))
            self.changed[kind] += 1

    def _distinct(self, text: str, made: str) -> str:
        """Return what was made of a text, marked where the same was made of another one."""
        place, found = 1, made
        while self._taken.setdefault(found, text) != text:
            place += 1
            found = f"{made} ({place})"
        return found

    def _replaced(self, text: str) -> str:
        if text.startswith("_Z"):  # which of its letters are words, only a demangler knows
            return self._word(text)
        return self._plain(text[:_LONGEST])

    def _plain(self, text: str) -> str:
        pieces, at = [], 0
        for found in _LETTERS.finditer(text):
            pieces += [text[at : found.start()], self._letters(found.group())]
            at = found.end()
            if at < len(text) and text[at].isdigit() and pieces[-1][-1:].isdigit():
                pieces.append("_")
        return "".join([*pieces, text[at:]])

    def _letters(self, letters: str) -> str:
        if not letters.isascii():
            return self._word(letters)
        words = words_of(letters)
        return "".join(word if is_library_word(word) else self._word(word) for word in words)

    def _word(self, word: str) -> str:
        return f"name{self._words[word] + 1}"
