"""Placeholders that stand for names: numbered as they come up, one and the same for equal names."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from typing import Final

from traceflops.privacy.addresses import replaced_addresses
from traceflops.privacy.library_words import (
    is_library_word,
    is_plain_number,
    is_tensile,
    is_tensile_code,
    pieces,
)
from traceflops.table import Names

_TOKEN: Final = re.compile(r"(?:(?![\u2026\u00d7\u2192\u2013\u00b7])[A-Za-z0-9\u0080-\U0010ffff])+")
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
        self._tokens: dict[tuple[bool, str], str] = {}
        self.changed: Counter[str] = Counter()
        self._counted: set[tuple[str, str]] = set()

    def whole(self, kind: str, text: str) -> str:
        """Return what stands for a whole name."""
        self.count(kind, text)
        return f"{kind} {self._whole.setdefault(kind, Names())[text] + 1}"

    def partly(self, kind: str, text: str) -> str:
        """Return a name in which the words that no library uses are replaced."""
        shown = self._partly.get(text)
        if shown is None:
            shown = self._partly[text] = self._distinct(text, self._replaced(text))
        if shown != text:
            self.count(kind, text)
        return shown

    def names(self, kind: str) -> list[str]:
        """Return the names of a kind that were replaced as a whole, the longest first."""
        return sorted(self._whole.get(kind, ()), key=len, reverse=True)

    def count(self, kind: str, text: str) -> None:
        """Count a text as replaced, once."""
        if (kind, text) not in self._counted:
            self._counted.add((kind, text))
            self.changed[kind] += 1

    def _distinct(self, text: str, made: str) -> str:
        place, distinct = 1, made
        while self._taken.setdefault(distinct, text) != text:
            place += 1
            distinct = f"{made} ({place})"
        return distinct

    def _replaced(self, text: str) -> str:
        if text.startswith("_Z"):  # which of its letters are words, only a demangler knows
            return self._word(text)
        made = replaced_addresses(text[:_LONGEST], self._word)
        return _TOKEN.sub(partial(self._once, is_tensile(made)), made)

    def _once(self, of_tensile: bool, token: re.Match[str]) -> str:
        """Return what a token becomes; names are made of few tokens, so each is looked at once."""
        key = (of_tensile, token.group())
        if key not in self._tokens:
            self._tokens[key] = self._token(*key)
        return self._tokens[key]

    def _token(self, of_tensile: bool, token: str) -> str:
        """Return a token as it is, or with what no library uses replaced in it.

        Where a digit stands beside an unknown word, both together may be a name.
        """
        if not token.isascii():
            return self._word(token)
        if of_tensile and is_tensile_code(token):
            return token
        parts = list(pieces(token))
        numbered = any(kind != "word" for kind, _ in parts) and len(parts) > 1
        known = [_is_known(kind, part, alone=not numbered) for kind, part in parts]
        if numbered and not all(known):
            return self._word(token)
        kept = zip(parts, known, strict=True)
        return "".join(part if stays else self._word(part) for (_, part), stays in kept)

    def _word(self, word: str) -> str:
        return f"name{self._words[word] + 1}"


def _is_known(kind: str, part: str, *, alone: bool) -> bool:
    """Return whether a piece may stay; one letter beside a digit may be a name together with it."""
    if kind == "word":
        return is_library_word(part) and (alone or len(part) > 1)
    return kind == "code" or is_plain_number(part)
