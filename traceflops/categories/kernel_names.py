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
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from traceflops.categories.mangled import readable
from traceflops.table.columns import IntArray

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

_Named = dict[str, dict[int, str]]
"""By a form of names: the codes that have it, each with one of its names."""

_Test = Callable[..., bool]
"""Whether two names of one form may be of one kernel; takes the form and both names."""

_BRACKET: Final = re.compile(r"[<(]")
_LENGTH: Final = re.compile(r"[1-9]\d{0,3}")
_OPENING: Final = {"<": ">", "(": ")", "[": "]", "{": "}"}
_NAMELESS: Final = "(anonymous namespace)"
_CALLED: Final = frozenset({"decltype", "__launch_bounds__", "__attribute__", ""})
_TYPE: Final = re.compile(
    r"(void|bool|auto|char|short|int|long|unsigned|signed|float|double|__half2?|half|size_t|const"
    r"|static|inline|extern|constexpr|typename|__(global|device|host|forceinline|inline)__)[*&]*$"
    r"|(decltype|__launch_bounds__|__attribute__)\(.*\)[*&]*$|[\w:]+<.*>(::\w+)*[*&]*$|[*&]+$"
)
"""A word of what stands before a function's name."""
_ANONYMOUS: Final = {"_GLOBAL__N_1": "(anonymous namespace)"}


def plain_name(name: str) -> str:
    """Return a kernel's name without what differs between tools: blanks, .kd, [clone .kd]."""
    text = name.strip().strip('"')
    if len(text) > _LONGEST:
        return text
    return _BLANKS.sub("", _ENDINGS.sub("", text))


def without_return_type(name: str) -> str:
    """Return a function's name without what it returns and how it is stored, if that is told.

    `ns::kernel<int>(int)` of `std::enable_if_t<true, void> ns::kernel<int>(int)`. A mangled name is
    made readable.
    """
    name = readable(name)
    blanks = _top_blanks(name[:_LONGEST]) if " " in name else []
    words = [name[start + 1 : end] for start, end in pairwise([-1, *blanks])]
    own = name[blanks[-1] + 1 :] if words and all(map(_TYPE.match, words)) else name
    return own if own[:1].isidentifier() or own.startswith(_NAMELESS) else name


def _top_blanks(name: str) -> list[int]:
    """Return the blanks before the name of a function that are inside no brackets of a type."""
    opened: list[str] = []
    blanks: list[int] = []
    for index, char in enumerate(name):
        if char in _OPENING and not (char == "<" and "(" in opened[-1:]):
            # Behind a word that is no type's the arguments of the function begin.
            is_first = char == "(" and not opened
            if is_first and name[:index].rpartition(" ")[2] not in _CALLED:
                break
            opened.append(char)
        elif opened and char == _OPENING[opened[-1]] and name[index - 1 : index] != "-":
            opened.pop()
        elif char == " " and not opened:
            blanks.append(index)
    return blanks


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


def from_own_word(names: Sequence[str]) -> list[str]:
    """Return names cut before the function's own name, where they stay distinct.

    What is left out is what it returns, and namespaces: `kernel<float>(float*)` of
    `enable_if<true, void>::type kernel<float>(float*)`.
    """
    own = []
    for name in names:
        plain, word = _ENDINGS.sub("", name.strip()), short_name(name)
        is_word = _BRACKET.search(plain) and len(plain) <= _LONGEST and word.isidentifier()
        own.append(plain[max(plain.find(word), 0) :] if is_word else plain)
    return own if len(set(own)) == len(set(names)) else list(names)


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
    codes: dict[str, int] = {}
    ours, theirs = (
        [codes.setdefault(plain_name(name), len(codes)) for name in run] for run in (first, second)
    )
    code_of: dict[int, int] = {}
    done = set(ours) & set(theirs)
    for form, tests in _FORMS:
        by_form: tuple[_Named, _Named] = (defaultdict(dict), defaultdict(dict))
        for named, names, of_names in zip(by_form, (first, second), (ours, theirs), strict=True):
            for name, code in zip(names, of_names, strict=True) if len(names) <= _MOST else ():
                named[form(name)].setdefault(code, name)
        pairs = []
        for text in by_form[0].keys() & by_form[1].keys():
            alike = [*by_form[0][text].items(), *by_form[1][text].items()]
            if not text or len(by_form[0][text]) != 1 or len(alike) != 2:
                continue  # certain is only what is the only one in each run
            (code, name), (other, other_name) = alike
            is_new = code != other and done.isdisjoint((code, other))
            if is_new and all(test(text, name, other_name) for test in tests):
                pairs.append((code, other))
        code_of |= {other: code for code, other in pairs}
        done |= {code for pair in pairs for code in pair}
    return (
        np.array(ours, dtype=np.int64),
        np.array([code_of.get(code, code) for code in theirs], dtype=np.int64),
    )


def _has_bare(_: str, *names: str) -> bool:
    """Return whether one of two names has no namespaces: a::f and b::f are two kernels."""
    return not all(map(_NAMESPACES.search, names))


def _has_open(_: str, *names: str) -> bool:
    """Return whether one does not say its arguments: f<1>(int), f<1>(float) are two kernels."""
    return sum(_PARAMETER.search(name) is not None for name in names) == 1


def _has_cut(short: str, *names: str) -> bool:
    """Return whether two names can be of one kernel.

    They can if one of them is `short`, the name without namespaces and arguments, or if one is
    mangled and the path of its namespaces stands in the other, which is not.
    """
    texts = [plain_name(name) for name in names]
    if short in texts:
        return True
    mangled, full = sorted(texts, key=lambda text: not _mangled_path(text))
    path = "::".join(_mangled_path(mangled))
    start = full.find(path)
    if not path or _mangled_path(full) or start < 0:
        return False
    # It is ns::gemm, but not ns2::gemm.
    if start and path[0] != "(" and full[start - 1] not in " *&":
        return False
    return full[start + len(path) : start + len(path) + 1] in ("", "<", "(", "[")


_FORMS: Final[tuple[tuple[Callable[[str], str], tuple[_Test, ...]], ...]] = (
    (spelled_name, ()),
    (lambda name: _without_arguments(spelled_name(name)), (_has_open,)),
    (bare_name, (_has_bare,)),
    (lambda name: _without_arguments(bare_name(name)), (_has_bare, _has_open)),
    (short_name, (_has_cut,)),
)
"""Forms in which names of one kernel are alike, and what else must hold of two such names."""


def _mangled_path(text: str) -> list[str]:
    """Return the namespaces and the name of a function whose name is mangled, else nothing."""
    begun = _MANGLED.match(text)
    if begun is None:
        return []
    words, end = [], begun.end()
    while (length := _LENGTH.match(text, end)) is not None:
        end = length.end() + int(length.group())
        words.append(text[length.end() : end])
    return [_ANONYMOUS.get(word, word) for word in words] if end <= len(text) else []


def _before_brackets(text: str) -> int:
    """Return where a name ends: before arguments, template arguments and [abi:...]."""
    end, depth, opened = len(text), 0, ""
    while end:
        char = text[end - 1]
        if not depth:
            if char != " " and char not in _BRACKETS:
                break
            depth, opened = (1, char) if char != " " else (0, "")
        else:
            depth += (char == opened) - (char == _BRACKETS[opened])
        end -= 1
    return end
