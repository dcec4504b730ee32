"""Which names of two runs are of one kernel: profilers write it plain, mangled or cut short.

Two names are one kernel's where they are equal but for blanks and the endings .kd and [clone .kd].
A name that is cut short (`gemm`) or mangled (`_ZN2ns4gemmI...`) is that of a full one
(`void ns::gemm<float>(float*)`) where each run has only one name that ends so; else nothing is
certain, and they are two kernels. So it is with names that Nsight Compute writes, which leaves out
namespaces and casts (`gemm<4>` of `ns::gemm<(int)4>`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from traceflops.columns import IntArray

_ENDINGS: Final = re.compile(r"(?:\s*\[clone [^\]]*\]|\.kd)+\s*$")
_BLANKS: Final = re.compile(r"\s+(?=[^\w\s])|(?<=[^\w\s])\s+")
_MANGLED: Final = re.compile(r"_ZN?[rVK]*(?=\d)")
_BRACKETS: Final = {")": "(", ">": "<", "]": "["}
"""What closes a bracket, and what opens it."""
_NAMESPACES: Final = re.compile(
    r"(?:\b(?!T\d+::)\w+|<unnamed>|\(anonymous namespace\)|\{anonymous\})::"
)
_CASTS: Final = re.compile(r"\((?:(?:un)?signed )?(?:bool|char|short|int|long(?: long)?)\)(?=-?\d)")
_SQUARE: Final = re.compile(r"[\[\]]")
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


def bare_name(name: str) -> str:
    """Return a name without namespaces, casts of template arguments, blanks and [ ].

    As far as Nsight Compute leaves them out; two kernels may have one bare name.
    """
    text = _ENDINGS.sub("", name.strip().strip('"'))
    if len(text) > _LONGEST:
        return text
    return _BLANKS.sub("", _SQUARE.sub("", _NAMESPACES.sub("", _CASTS.sub("", text))))


def same_kernels(first: Sequence[str], second: Sequence[str]) -> tuple[IntArray, IntArray]:
    """Return a code per name of two runs; names of one kernel, and only those, have one code."""
    known: dict[str, int] = {}
    ours, theirs = (
        [known.setdefault(plain_name(name), len(known)) for name in run] for run in (first, second)
    )
    pairs = _certain(_by_short_name(first, ours), _by_short_name(second, theirs))
    code_of = dict(_bare_pairs(first, ours, second, theirs))
    code_of |= {other: one for one, other in pairs}
    return (
        np.array(ours, dtype=np.int64),
        np.array([code_of.get(code, code) for code in theirs], dtype=np.int64),
    )


def _bare_pairs(
    first: Sequence[str], ours: Sequence[int], second: Sequence[str], theirs: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield the codes of names of the second run with those of the first they are, bare.

    Only where each run has one name alone that has this bare name, and one of the two is bare:
    a::f and b::f are two kernels.
    """
    shared = set(ours) & set(theirs)
    mine, other = _by_bare_name(first, ours), _by_bare_name(second, theirs)
    for bare in mine.keys() & other.keys():
        if len(mine[bare]) == len(other[bare]) == 1:
            ((one, name),) = mine[bare].items()
            ((another, text),) = other[bare].items()
            is_new = one != another and one not in shared and another not in shared
            if is_new and not (_NAMESPACES.search(name) and _NAMESPACES.search(text)):
                yield another, one


def _by_bare_name(names: Sequence[str], codes: Sequence[int]) -> _Named:
    found: _Named = defaultdict(dict)
    if len(names) <= _MOST:
        for name, code in zip(names, codes, strict=True):
            found[bare_name(name)].setdefault(code, name)
    return found


_Named = dict[str, dict[int, str]]
"""By short or bare name: the codes that have it, each with one of its names."""


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
