"""Which names of two runs are of one kernel: profilers write it plain, mangled or cut short.

Two names are of one kernel if they are equal except for blanks and the endings .kd and [clone .kd].
A short name (`gemm`) or a mangled one (`_ZN2ns4gemmI...`) is that of a full one
(`void ns::gemm<float>(float*)`) if each run has only one name that fits; else they count as
different kernels.

Tools also spell one name in several ways: `k<4, true>(float const*)` is `k<(int)4, (bool)1>(const
T1 *)` in Nsight Systems, and Nsight Compute leaves out namespaces and casts. Such names are of one
kernel if each run has only one name that is equal except for the spelling.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np

from traceflops.categories.mangled import path_of, readable
from traceflops.table.columns import IntArray

_ENDINGS: Final = re.compile(r"(?:\s*\[clone [^\]]*\]|\.kd)+\s*$")
_BLANKS: Final = re.compile(r"\s+(?=[^\w\s])|(?<=[^\w\s])\s+")
_BRACKETS: Final = {")": "(", ">": "<", "]": "["}  # by closing bracket the opening one
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
"""What tools spell differently: numbers and booleans in templates, lambdas, the place of const."""
_ARGUMENTS: Final = re.compile(r"\([^()]*\)")
_PARAMETER: Final = re.compile(r"\bT\d+\b")
"""Types that depend on template arguments, as NVIDIA's tools write them."""
_LONGEST: Final = 4096
_MOST: Final = 20_000  # a run with more names is compared only as written; a program has far fewer

_Named = dict[str, dict[int, str]]
"""By form of a name: the codes of names with that form, each with one such name."""

_Test = Callable[..., bool]
"""Returns whether two names of one form may be of one kernel; takes the form and both names."""

_BRACKET: Final = re.compile(r"[<(]")
_SIGN: Final = re.compile(r"[][<>(){} ]")
_OPENING: Final = {"<": ">", "(": ")", "[": "]", "{": "}"}
_NAMELESS: Final = "(anonymous namespace)"
_CALLED: Final = frozenset({"decltype", "__launch_bounds__", "__attribute__", ""})
_TYPE: Final = re.compile(
    r"(void|bool|auto|char|short|int|long|unsigned|signed|float|double|__half2?|half|size_t|const"
    r"|static|inline|extern|constexpr|typename|__(global|device|host|forceinline|inline)__)[*&]*$"
    r"|(decltype|__launch_bounds__|__attribute__)\(.*\)[*&]*$|[\w:]+<.*>(::\w+)*[*&]*$|[*&]+$"
)
"""A word that may stand before a function's name."""
_ANONYMOUS: Final = {"_GLOBAL__N_1": "(anonymous namespace)"}


def plain_name(name: str) -> str:
    """Return a kernel's name without what differs between tools: blanks, .kd, [clone .kd]."""
    text = name.strip().strip('"')
    if len(text) > _LONGEST:
        return text
    return _BLANKS.sub("", _ENDINGS.sub("", text))


def without_return_type(name: str) -> str:
    """Return a function's name without return type and storage class, if these can be recognised.

    `std::enable_if_t<true, void> ns::kernel<int>(int)` becomes `ns::kernel<int>(int)`. A mangled
    name is made readable.
    """
    name = readable(name)
    blanks = _top_blanks(name[:_LONGEST]) if " " in name else []
    words = [name[start + 1 : end] for start, end in pairwise([-1, *blanks])]
    # What precedes the last blank must be types and specifiers only.
    own = name[blanks[-1] + 1 :] if words and all(map(_TYPE.match, words)) else name
    return own if own[:1].isidentifier() or own.startswith(_NAMELESS) else name


def _top_blanks(name: str) -> list[int]:
    """Return the places of blanks before a function's own name, outside all brackets."""
    opened: list[str] = []
    blanks: list[int] = []
    for sign in _SIGN.finditer(name):
        index, char = sign.start(), sign[0]
        if char in _OPENING and not (char == "<" and "(" in opened[-1:]):  # in (), < is "less"
            # A parenthesis begins the function's arguments, unless it follows e.g. decltype.
            is_first = char == "(" and not opened
            if is_first and name[:index].rpartition(" ")[2] not in _CALLED:
                break
            opened.append(char)
        elif opened and char == _OPENING[opened[-1]] and name[index - 1 : index] != "-":  # not ->
            opened.pop()
        elif char == " " and not opened:
            blanks.append(index)
    return blanks


def short_name(name: str) -> str:
    """Return the last word of a function's name, without arguments, namespaces and templates.

    So rocprof cuts names: `gemm` for `void ns::gemm<float>(float*)` and for its mangled name.
    """
    text = _ENDINGS.sub("", name.strip().strip('"'))[:_LONGEST]
    path = _mangled_path(text)
    if path:
        return path[-1]
    # The name ends before all brackets of arguments, templates and [abi:...].
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
    start = max(text.rfind(" ", 0, end), text.rfind(":", 0, end)) + 1
    return text[start:end]


def from_own_word(names: Sequence[str]) -> list[str]:
    """Return names from the function's own word on, or the names as they are if some become equal.

    The return type and namespaces are left out: `enable_if<true, void>::type kernel<float>(float*)`
    becomes `kernel<float>(float*)`.
    """
    own = []
    for name in names:
        plain, word = _ENDINGS.sub("", name.strip()), short_name(name)
        # A name without brackets has no types around its own word.
        is_word = _BRACKET.search(plain) and len(plain) <= _LONGEST and word.isidentifier()
        own.append(plain[max(plain.find(word), 0) :] if is_word else plain)
    return own if len(set(own)) == len(set(names)) else list(names)


def spelled_name(name: str, *, bare: bool = False) -> str:
    """Return a name in one spelling, whichever tool wrote it, without const.

    A `bare` one has no namespaces either; several kernels may share it.
    """
    text = _ENDINGS.sub("", name.strip().strip('"'))
    if len(text) > _LONGEST:
        return text
    # First, while const is there: Nsight Compute takes that of `() const::[lambda` for a namespace.
    text = _NAMESPACES.sub("", text) if bare else text
    for pattern, to in _SPELLINGS:
        text = pattern.sub(to, text)
    return _BLANKS.sub("", text).strip()


def _without_arguments(name: str) -> str:
    """Return a name without the arguments of functions, from the innermost parentheses out."""
    count = 1 if len(name) <= _LONGEST else 0
    while count:
        name, count = _ARGUMENTS.subn("", name)
    return name


def same_kernels(first: Sequence[str], second: Sequence[str]) -> tuple[IntArray, IntArray]:
    """Return a code per name of both runs; names of one kernel, and only those, have the same code.

    Names that are equal in `plain_name` are paired first, then by one of _FORMS after the other.
    """
    codes: dict[str, int] = {}
    ours, theirs = (
        [codes.setdefault(plain_name(name), len(codes)) for name in run] for run in (first, second)
    )
    partner: dict[int, int] = {}  # the code of the first run, by that of the second
    paired = set(ours) & set(theirs)
    for form, tests in _FORMS:
        our_names, their_names = _by_form(form, first, ours), _by_form(form, second, theirs)
        pairs = []
        for text in our_names.keys() & their_names.keys():
            if not text or len(our_names[text]) != 1 or len(their_names[text]) != 1:
                continue  # ambiguous
            ((code, name),) = our_names[text].items()
            ((other, other_name),) = their_names[text].items()
            is_new = code != other and paired.isdisjoint((code, other))
            if is_new and all(test(text, name, other_name) for test in tests):
                pairs.append((code, other))
        partner |= {other: code for code, other in pairs}
        paired |= {code for pair in pairs for code in pair}
    return (
        np.array(ours, dtype=np.int64),
        np.array([partner.get(code, code) for code in theirs], dtype=np.int64),
    )


def _by_form(form: Callable[[str], str], names: Sequence[str], codes: Sequence[int]) -> _Named:
    """Return the names of a run by their form; nothing if there are too many."""
    named: _Named = defaultdict(dict)
    for name, code in zip(names, codes, strict=True) if len(names) <= _MOST else ():
        named[form(name)].setdefault(code, name)
    return named


def _has_bare(_: str, *names: str) -> bool:
    """Return whether one of two names has no namespaces: a::f and b::f are two kernels."""
    return not all(map(_NAMESPACES.search, names))


def _has_open(_: str, *names: str) -> bool:
    """Return whether exactly one name leaves types open: f<1>(int), f<1>(float) are two kernels."""
    return sum(_PARAMETER.search(name) is not None for name in names) == 1


def _is_short_or_mangled(short: str, *names: str) -> bool:
    """Return whether one of two names is the short or the mangled form of the other.

    One name must be `short`, the function's name alone; or one must be mangled, and its namespaces
    and name stand in the other one, which is not mangled.
    """
    first, second = map(plain_name, names)
    if short in (first, second):
        return True
    mangled, full = (first, second) if _mangled_path(first) else (second, first)
    path = "::".join(_mangled_path(mangled))
    start = full.find(path)
    if not path or _mangled_path(full) or start < 0:
        return False
    # The path must begin and end at a word: ns::gemm, but neither other_ns::gemm nor ns::gemm2. An
    # anonymous namespace, "(anonymous", begins a word by itself.
    if start and path[0] != "(" and full[start - 1] not in " *&":
        return False
    return full[start + len(path) : start + len(path) + 1] in ("", "<", "(", "[")


_FORMS: Final[tuple[tuple[Callable[[str], str], tuple[_Test, ...]], ...]] = (
    (spelled_name, ()),
    (lambda name: _without_arguments(spelled_name(name)), (_has_open,)),
    (partial(spelled_name, bare=True), (_has_bare,)),
    (lambda name: _without_arguments(spelled_name(name, bare=True)), (_has_bare, _has_open)),
    (short_name, (_is_short_or_mangled,)),
)
"""Forms in which names of one kernel are equal, and what else must hold for two such names."""


def _mangled_path(text: str) -> list[str]:
    """Return the namespaces and the name of a mangled function, [] if it is not mangled or cut."""
    path, end = path_of(text)
    return [_ANONYMOUS.get(word, word) for word in path] if end <= len(text) else []
