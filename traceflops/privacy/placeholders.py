"""Placeholders that stand for names: numbered in order of appearance, equal for equal names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Final

from traceflops.privacy import known_words
from traceflops.table.columns import Names

_TOKEN: Final = re.compile(r"(?:(?![\u2026\u00d7\u2192\u2013\u00b7])[A-Za-z0-9\u0080-\U0010ffff])+")
_LONGEST: Final = 4_096  # characters of a name that are read; the rest is dropped


class Placeholders:
    """Gives names their placeholders, and counts by kind how many names got one (`changed`).

    A name is replaced as a whole ("module 3"), or only those of its words that no library uses
    ("name2_gemm_kernel"). Different names stay different.
    """

    def __init__(self) -> None:
        """Start without names.

        `_whole` numbers names by kind, `_words` numbers unknown words. `_partly` has the text that
        is shown for each name, `_taken` the name by that text. `_counted` are the pairs of kind and
        name that `changed` has counted.
        """
        self._whole: dict[str, Names] = {}
        self._words = Names()
        self._partly: dict[str, str] = {}
        self._taken: dict[str, str] = {}
        self._token = cache(self._replaced_token)  # names are made of few tokens
        self.changed: Counter[str] = Counter()
        self._counted: set[tuple[str, str]] = set()

    def whole(self, kind: str, text: str) -> str:
        """Return the placeholder of a whole name: its kind and a number."""
        self.count(kind, text)
        return f"{kind} {self._whole.setdefault(kind, Names())[text] + 1}"

    def partly(self, kind: str, text: str) -> str:
        """Return a name with words of no library replaced, and "(2)" if that is taken."""
        shown = self._partly.get(text)
        if shown is None:
            shown = replaced = self._replaced(text)
            copy_number = 1
            while self._taken.setdefault(shown, text) != text:
                copy_number += 1
                shown = f"{replaced} ({copy_number})"
            self._partly[text] = shown
        if shown != text:
            self.count(kind, text)
        return shown

    def _replaced(self, text: str) -> str:
        """Return a name with its unknown words replaced; another name may give the same text."""
        if text.startswith("_Z"):  # mangled: its words cannot be told from its codes
            return self._word(text)
        text = replaced_addresses(text[:_LONGEST], self._word)
        # Names that Tensile generates have codes of their own.
        of_tensile = known_words.TENSILE_NAME.match(text) is not None
        return _TOKEN.sub(lambda token: self._token(of_tensile, token[0]), text)

    def standing_for(self, text: str) -> str:
        """Return what `partly` returned for a name, or the name itself if it was not asked."""
        return self._partly.get(text, text)

    def names(self, kind: str) -> list[str]:
        """Return the names of a kind that were replaced as a whole, the longest first."""
        return sorted(self._whole.get(kind, ()), key=len, reverse=True)

    def count(self, kind: str, text: str) -> None:
        """Count a text as replaced; a second time it does not count."""
        if (kind, text) not in self._counted:
            self._counted.add((kind, text))
            self.changed[kind] += 1

    def _replaced_token(self, of_tensile: bool, token: str) -> str:
        """Return a token with its unknown words replaced.

        A token of words and codes or numbers is replaced as a whole if a piece of it is unknown,
        since the pieces together may be a name, such as `n17`. There, single letters are unknown.
        """
        if not token.isascii():
            return self._word(token)
        if of_tensile and known_words.TENSILE_TOKEN.fullmatch(token):
            return token
        matches = known_words.PIECE.finditer(token)
        pieces = [(match.lastgroup or "", match[0]) for match in matches]
        is_mixed = any(kind != "word" for kind, _ in pieces) and len(pieces) > 1
        are_known = [
            known_words.is_library_word(piece) and not (is_mixed and len(piece) == 1)
            if kind == "word"
            else kind == "code" or known_words.is_plain_number(piece)
            for kind, piece in pieces
        ]
        if is_mixed and not all(are_known):
            return self._word(token)
        checked = zip(pieces, are_known, strict=True)
        return "".join(piece if is_known else self._word(piece) for (_, piece), is_known in checked)

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
"""How private addresses begin if `_` joins their numbers; other such numbers are sizes."""
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
"""Machines that are called by a number, e.g. node17."""
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
    """Return a text with paths, addresses and names of machines replaced by `replace`."""

    def whole(match: re.Match[str]) -> str:
        return replace(match.group())

    def v4(match: re.Match[str]) -> str:
        """Replace an IPv4 address; numbers joined by `_` are sizes, unless it is a private one."""
        if (joined := match["joined"]) is not None:
            has_bytes = max(map(int, joined.split("_"))) <= _BYTE
            if not (has_bytes and _PRIVATE.match(joined)):
                return match.group()
        return whole(match)

    def v6(match: re.Match[str]) -> str:
        """Replace an IPv6 address, but neither `a::b` of C++ nor a time such as `12:30:45`.

        A short one such as `f16::d` is taken for C++, unless it is in brackets.
        """
        run = match["run"].lstrip(":")
        is_short = not match["open"] and sum(map(str.isalnum, run)) < _SHORTEST_V6
        # All eight groups are there, or `::` stands for those left out; a time has neither.
        is_whole = "::" in match["run"] or run.count(":") >= _MOST_COLONS
        of_cpp = run.startswith(("c10::", "c10d::")) or not any(map(str.isdigit, run))
        return match.group() if is_short or of_cpp or not is_whole else whole(match)

    # The signs are a quick test: most texts have none of them.
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
    # Machines called by a number, node17, have no such sign.
    return _NUMBERED.sub(whole, text)


def _is_machine(text: str) -> bool:
    """Return whether words joined by `.` or `-` are the name of a machine.

    They are if they end in a domain; else if they are neither a library's module nor a version, and
    have several dots, a digit or a word such as "node", or a word that no library uses.
    """
    if _MODULES.match(text) is not None:
        return False
    if "." in text and text.rpartition(".")[2].lower() in _DOMAINS:
        return True
    if _VERSION.fullmatch(text) or ("-" not in text and text.count(".") < 2):
        return False
    if text.count(".") > 1 or any(char.isdigit() for char in text):
        return True
    words = [word for part in re.split(r"[.-]", text) for word in known_words.words_of(part)]
    names_machine = "-" in text and not _MACHINES.isdisjoint(map(str.lower, words))
    is_public = text.isascii() and all(map(known_words.is_library_word, words))
    return names_machine or not is_public
