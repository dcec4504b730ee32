"""Which names of two runs are of one kernel: profilers write it plain, mangled or cut short.

Two names are one kernel's where they are equal but for blanks and the endings .kd and [clone .kd].
A name that is cut short (`gemm`) or mangled (`_ZN2ns4gemmI...`) is that of a full one
(`void ns::gemm<float>(float*)`) where each run has only one name that ends so; else nothing is
certain, and they are two kernels.

Tools also spell one name in several ways: `k<4, true>(float const*)` is to Nsight Systems
`k<(int)4, (bool)1>(const T1 *)`, and Nsight Compute leaves out namespaces and casts. Such names are
one kernel's where each run has only one name that is so but for the spelling.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.table import IntArray

_ENDINGS: Final = re.compile(r"(?:\s*\[clone [^\]]*\]|\.kd)+\s*$")
_BLANKS: Final = re.compile(r"\s+(?=[^\w\s])|(?<=[^\w\s])\s+")
_MANGLED: Final = re.compile(r"_ZN?[rVK]*(?=\d)")
_BRACKETS: Final = {")": "(", ">": "<", "]": "["}
"""What closes a bracket, and what opens it."""
_NAMESPACES: Final = re.compile(
    r"(?:\b(?!T\d+::)\w+|<unnamed>|\(anonymous namespace\)|\{anonymous\})::"
)
_CASTS: Final = re.compile(r"\((?:(?:un)?signed )?(?:bool|char|short|int|long(?: long)?)\)(?=-?\d)")
_SPELLINGS: Final = tuple(
    (re.compile(pattern), to)
    for pattern, to in (
        (r"\(anonymous namespace\)|\{anonymous\}", "<unnamed>"),
        (_CASTS.pattern, ""),
        (r"\btrue\b", "1"),
        (r"\bfalse\b", "0"),
        (r"(?<![\w.])(\d+)[uUlL]{1,3}\b", r"\1"),
        (r"\(instance (\d+)\)", r"#\1"),
        (r"\bconst\b", ""),
        (r"[\[\]{}]", ""),
    )
)
"""What tools spell differently: numbers and truths in templates, lambdas, the place of const."""
_ARGUMENTS: Final = re.compile(r"\([^()]*\)")
_PARAMETER: Final = re.compile(r"\bT\d+\b")
"""Types that depend on the template's arguments, as NVIDIA's tools write them."""
_LONGEST: Final = 4096
_MOST: Final = 20_000
"""Names without a counterpart of which short forms are looked at; a program has far fewer."""

_LENGTH: Final = re.compile(r"[1-9]\d{0,3}")
_ANONYMOUS: Final = {"_GLOBAL__N_1": "(anonymous namespace)"}


def plain_name(name: str) -> str:
    """Return a kernel's name without what differs between tools: blanks, .kd, [clone .kd]."""
    text = name.strip().strip('"')
    if len(text) > _LONGEST:
        return text
    return _BLANKS.sub("", _ENDINGS.sub("", text))


def short_name(name: str) -> str:
    """Return the last word of a function's name: no arguments, namespaces and templates.

    As rocprof cuts names: `gemm` of `void ns::gemm<float>(float*)`, also of the mangled name.
    """
    text = _ENDINGS.sub("", name.strip().strip('"'))[:_LONGEST]
    path = _mangled_path(text)
    if path:
        return path[-1]
    end = _before_brackets(text)
    start = max(text.rfind(" ", 0, end), text.rfind(":", 0, end)) + 1
    return text[start:end]


def spelled_name(name: str) -> str:
    """Return a name spelled in one way, whichever tool wrote it; const is left out."""
    text = _ENDINGS.sub("", name.strip().strip('"'))
    return text if len(text) > _LONGEST else _spelled(text)


def bare_name(name: str) -> str:
    """Return a name as `spelled_name` does, without namespaces; two kernels may have one."""
    text = _ENDINGS.sub("", name.strip().strip('"'))
    # Before const is left out: Nsight Compute takes that of `() const::[lambda` for a namespace.
    return text if len(text) > _LONGEST else _spelled(_NAMESPACES.sub("", text))


def _spelled(text: str) -> str:
    for pattern, to in _SPELLINGS:
        text = pattern.sub(to, text)
    return _BLANKS.sub("", text).strip()


def _without_arguments(name: str) -> str:
    """Return a name without the arguments of functions; its template tells which function it is."""
    count = 1 if len(name) <= _LONGEST else 0
    while count:
        name, count = _ARGUMENTS.subn("", name)
    return name


def same_kernels(first: Sequence[str], second: Sequence[str]) -> tuple[IntArray, IntArray]:
    """Return a code per name of two runs; names of one kernel, and only those, have one code."""
    known: dict[str, int] = {}
    ours, theirs = (
        [known.setdefault(plain_name(name), len(known)) for name in run] for run in (first, second)
    )
    code_of: dict[int, int] = {}
    done = set(ours) & set(theirs)
    for spelling in _ONE_NAME:
        pairs = [
            (one, other)
            for one, other in spelling.pairs(first, ours, second, theirs)
            if one not in done and other not in done
        ]
        code_of |= {other: one for one, other in pairs}
        done |= {code for pair in pairs for code in pair}
    pairs = list(_certain(_by_short_name(first, ours), _by_short_name(second, theirs)))
    code_of |= {other: one for one, other in pairs}
    return (
        np.array(ours, dtype=np.int64),
        np.array([code_of.get(code, code) for code in theirs], dtype=np.int64),
    )


@dataclass(frozen=True, slots=True)
class _Spelling:
    """A form in which names of one kernel are alike, and which two names may be so.

    `bare` asks that one of them has no namespaces: a::f and b::f are two kernels. `open` asks that
    one of them does not say its arguments: f<1>(int) and f<1>(float) are two kernels.
    """

    form: Callable[[str], str]
    bare: bool = False
    open: bool = False

    def pairs(
        self,
        first: Sequence[str],
        ours: Sequence[int],
        second: Sequence[str],
        theirs: Sequence[int],
    ) -> Iterator[tuple[int, int]]:
        """Yield codes of names that are alike, where each run has one such name alone."""
        mine, other = self._by_form(first, ours), self._by_form(second, theirs)
        for text in mine.keys() & other.keys():
            if len(mine[text]) == len(other[text]) == 1:
                ((one, name),) = mine[text].items()
                ((another, told),) = other[text].items()
                if one != another and self._may_be_one(name, told):
                    yield one, another

    def _by_form(self, names: Sequence[str], codes: Sequence[int]) -> _Named:
        found: _Named = defaultdict(dict)
        if len(names) <= _MOST:
            for name, code in zip(names, codes, strict=True):
                found[self.form(name)].setdefault(code, name)
        return found

    def _may_be_one(self, *names: str) -> bool:
        full = sum(_NAMESPACES.search(name) is not None for name in names)
        untold = sum(_PARAMETER.search(name) is not None for name in names)
        return not (self.bare and full == 2) and not (self.open and untold != 1)


_ONE_NAME: Final = (
    _Spelling(spelled_name),
    _Spelling(lambda name: _without_arguments(spelled_name(name)), open=True),
    _Spelling(bare_name, bare=True),
    _Spelling(lambda name: _without_arguments(bare_name(name)), bare=True, open=True),
)


_Named = dict[str, dict[int, str]]
"""By a form of names: the codes that have it, each with one of its names."""


def _by_short_name(names: Sequence[str], codes: Sequence[int]) -> _Named:
    found: _Named = defaultdict(dict)
    if len(names) <= _MOST:
        for name, code in zip(names, codes, strict=True):
            found[short_name(name)].setdefault(code, name)
    return found


def _certain(ours: _Named, theirs: _Named) -> Iterator[tuple[int, int]]:
    """Yield the codes of one kernel in two runs: the only ones with a short name in each."""
    for short in ours.keys() & theirs.keys():
        if short and len(ours[short]) == len(theirs[short]) == 1:
            ((one, name),) = ours[short].items()
            ((other, another),) = theirs[short].items()
            if one != other and _may_be_one(short, name, another):
                yield one, other


def _may_be_one(short: str, *names: str) -> bool:
    """Return whether one of two names is cut short, or mangled with the other's namespaces."""
    texts = [plain_name(name) for name in names]
    if short in texts:
        return True
    paths = ["::".join(_mangled_path(text)) for text in texts]
    full = [text for text, path in zip(texts, paths, strict=True) if not path]
    told = [path for path in paths if path]
    return len(told) == 1 and len(full) == 1 and _names_function(full[0], told[0])


def _names_function(full: str, path: str) -> bool:
    """Return whether a full name is of the function with this path: ns::gemm, but not ns2::gemm."""
    spot = full.find(path)
    if spot < 0 or (spot and path[0] != "(" and full[spot - 1] not in " *&"):
        return False
    return full[spot + len(path) : spot + len(path) + 1] in ("", "<", "(", "[")


def _mangled_path(text: str) -> list[str]:
    """Return the namespaces and the name of a function whose name is mangled, else nothing."""
    begun = _MANGLED.match(text)
    if begun is None:
        return []
    words, at = [], begun.end()
    while (length := _LENGTH.match(text, at)) is not None:
        at = length.end() + int(length.group())
        words.append(text[length.end() : at])
    return [_ANONYMOUS.get(word, word) for word in words] if at <= len(text) else []


def _before_brackets(text: str) -> int:
    """Return where a name ends: before arguments, template arguments and [abi:...]."""
    at, depth, opened = len(text), 0, ""
    while at:
        char = text[at - 1]
        if not depth:
            if char != " " and char not in _BRACKETS:
                break
            depth, opened = (1, char) if char != " " else (0, "")
        else:
            depth += (char == opened) - (char == _BRACKETS[opened])
        at -= 1
    return at
