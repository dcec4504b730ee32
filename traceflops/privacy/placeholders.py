"""Placeholders that stand for names: numbered as they come up, one and the same for equal names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Final

from traceflops.privacy import known_words
from traceflops.table.columns import Names

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
        self._token = cache(self._made_of)  # names are made of few tokens
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
            if text.startswith("_Z"):  # which of its letters are words, only a demangler knows
                made = self._word(text)
            else:
                made = replaced_addresses(text[:_LONGEST], self._word)
                of_tensile = known_words.TENSILE_NAME.match(made) is not None
                made = _TOKEN.sub(lambda token: self._token(of_tensile, token[0]), made)
            copy_number, shown = 1, made
            while self._taken.setdefault(shown, text) != text:
                copy_number += 1
                shown = f"{made} ({copy_number})"
            self._partly[text] = shown
        if shown != text:
            self.count(kind, text)
        return shown

    def standing_for(self, text: str) -> str:
        """Return what stands for a name whose words were replaced, or may stay as they are."""
        return self._partly.get(text, text)

    def names(self, kind: str) -> list[str]:
        """Return the names of a kind that were replaced as a whole, the longest first."""
        return sorted(self._whole.get(kind, ()), key=len, reverse=True)

    def count(self, kind: str, text: str) -> None:
        """Count a text as replaced, once."""
        if (kind, text) not in self._counted:
            self._counted.add((kind, text))
            self.changed[kind] += 1

    def _made_of(self, of_tensile: bool, token: str) -> str:
        """Return a token as it is, or with what no library uses replaced in it.

        Where a digit stands beside an unknown word, both together may be a name, and so may one
        letter together with it.
        """
        if not token.isascii():
            return self._word(token)
        if of_tensile and known_words.TENSILE_TOKEN.fullmatch(token):
            return token
        parts = list(known_words.pieces(token))
        numbered = any(kind != "word" for kind, _ in parts) and len(parts) > 1
        stays_as_is = [
            known_words.is_library_word(part) and not (numbered and len(part) == 1)
            if kind == "word"
            else kind == "code" or known_words.is_plain_number(part)
            for kind, part in parts
        ]
        if numbered and not all(stays_as_is):
            return self._word(token)
        kept = zip(parts, stays_as_is, strict=True)
        return "".join(part if stays else self._word(part) for (_, part), stays in kept)

    def _word(self, word: str) -> str:
        return f"name{self._words[word] + 1}"


_URL: Final = re.compile(r"\b[A-Za-z][A-Za-z0-9+.-]*://\S+")
_PATH: Final = re.compile(
    r"(?<![\w.)>*&])(?:[A-Za-z]:|~|\.{1,2})?(?:[/\\]{1,2}[\w.@+-]+){2,}[/\\]?|"
    r"(?<![\w.])(?:[A-Za-z]:|~)[/\\][\w.@+-]+"
)
_EMAIL: Final = re.compile(r"[^\s@<>()\[\]{},;:|\"']+@[\w.-]+")
_V4: Final = re.compile(
    r"(?<!\d)(?P<quad>\d{1,3}(?:\.\d{1,3}){3}(?:\.\d+)*)(?:/\d{1,2}(?!\d))?(?::\d{1,5}(?!\d))?|"
    r"(?<!\d)(?<!\d_)(?P<joined>\d{1,3}(?:_\d{1,3}){3})(?!_?\d)"
)
"""Four numbers, whatever stands beside them: a port, a name, the end of a sentence."""
_PRIVATE: Final = re.compile(r"0*(?:10_|127_|192_0*168_|172_0*(?:1[6-9]|2\d|3[01])_|169_0*254_)")
"""How addresses begin that are given out inside of networks; joined by `_`, others are sizes."""
_HARDWARE: Final = re.compile(
    r"(?<![0-9A-Za-z])(?:[0-9A-Fa-f]{2}([:-]))(?:[0-9A-Fa-f]{2}\1){4,18}[0-9A-Fa-f]{2}"
    r"(?![0-9A-Za-z])|(?<![0-9A-Za-z.])[0-9A-Fa-f]{4}(?:\.[0-9A-Fa-f]{4}){2}(?![0-9A-Za-z])"
)
_V6: Final = re.compile(
    r"(?<![0-9A-Za-z])(?P<open>\[?)(?P<run>[0-9A-Fa-f:]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*(?<!\.))(?![0-9A-Za-z])"
    r"(?:%[\w.-]+)?(?:\](?::\d{1,5}(?!\d))?)?"
)
_SHORTEST_V6, _MOST_COLONS = 5, 7
_NUMBERED: Final = re.compile(
    r"(?<![A-Za-z])(?:node|host|server|worker|machine|gpu|compute|login|rack|blade|box|vm|nid|dgx|"
    r"hgx|slurm|pod)[_-]?\d+(?![A-Za-z])",
    re.IGNORECASE,
)
"""What machines are called where they have a number and no name."""
_MACHINES: Final = frozenset(
    {"node", "nodes", "server", "machine", "cluster", "gpu", "login", "rack"}
)
_BYTE: Final = 255
_DOMAINS: Final = frozenset(
    {
        *("internal", "local", "localdomain", "localnet", "lan", "corp", "intra", "intranet"),
        *("private", "home", "arpa", "domain", "cluster", "com", "org", "net", "edu", "gov", "mil"),
    }
)
_JOINED: Final = re.compile(r"(?<![\w.-])\w+(?:[.-]\w+)+")
_MODULES: Final = re.compile(r"(?:torch|aten|triton|cuda|nccl|c10|cublas|cutlass|cute)[.]")
_VERSION: Final = re.compile(r"v?\d+(?:\.\d+)+(?:\.?(?:a|b|rc|post|dev)\d+)*")


def replaced_addresses(text: str, replace: Callable[[str], str]) -> str:
    """Return a text in which paths, addresses and names of machines are replaced."""

    def whole(match: re.Match[str]) -> str:
        return replace(match.group())

    def v4(match: re.Match[str]) -> str:
        """Replace an address; sizes in names of kernels may be joined by `_`."""
        joined = match["joined"]
        is_size = joined is not None and (
            max(int(part) for part in joined.split("_")) > _BYTE or not _PRIVATE.match(joined)
        )
        return match.group() if is_size else whole(match)

    def v6(match: re.Match[str]) -> str:
        """Replace an address; `a::b` of C++ and `12:30:45` are none.

        What is as short as `f16::d` is rather of C++, unless it stands in brackets.
        """
        run = match["run"].lstrip(":")
        is_short = not match["open"] and sum(map(str.isalnum, run)) < _SHORTEST_V6
        parted = "::" in match["run"] or run.count(":") >= _MOST_COLONS
        of_cpp = run.startswith(("c10::", "c10d::")) or not any(map(str.isdigit, run))
        return match.group() if is_short or of_cpp or not parted else whole(match)

    for signs, pattern, replaced in (
        (("://",), _URL, whole),
        ("/\\", _PATH, whole),
        ("@", _EMAIL, whole),
        (":-.", _HARDWARE, whole),
        (":", _V6, v6),
        ("._", _V4, v4),
        (".-", _JOINED, lambda match: replace(match[0]) if _is_machine(match[0]) else match[0]),
    ):
        if any(sign in text for sign in signs):
            text = pattern.sub(replaced, text)
    return _NUMBERED.sub(whole, text)


def _is_machine(text: str) -> bool:
    """Return whether words are joined as in names of machines, and no library joins them so."""
    is_module = _MODULES.match(text) is not None
    if "." in text and text.rpartition(".")[2].lower() in _DOMAINS and not is_module:
        return True
    if is_module or _VERSION.fullmatch(text) or ("-" not in text and text.count(".") < 2):
        return False
    is_domain = text.count(".") > 1 or any(char.isdigit() for char in text)
    words = [word for part in re.split(r"[.-]", text) for word in known_words.words_of(part)]
    is_domain |= "-" in text and not _MACHINES.isdisjoint(map(str.lower, words))
    return is_domain or not (text.isascii() and all(map(known_words.is_library_word, words)))
