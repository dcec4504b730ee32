"""Which names of two runs are of one kernel: profilers write names plain, mangled or cut short.

Two names are of one kernel if they are equal except for blanks and the endings .kd and [clone .kd].
A short name (`gemm`) or a mangled one (`_ZN2ns4gemmI...`) is of the same kernel as a full name
(`void ns::gemm<float>(float*)`) if each run has only one name that fits.

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

from traceflops.categories.mangled import CONDITIONS_END, path_of, readable
from traceflops.table.columns import IntArray

_ENDINGS: Final = re.compile(r"(?:\s*\[clone [^\]]*\]|\.kd)+\s*$")
_BLANKS: Final = re.compile(r"\s+(?=[^\w\s])|(?<=[^\w\s])\s+")
_BRACKETS: Final = {")": "(", ">": "<", "]": "["}  # the opening bracket by the closing one
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
"""Replacements of spellings that tools differ in: numbers, booleans, lambdas, const."""
_ARGUMENTS: Final = re.compile(r"\([^()]*\)")
_PARAMETER: Final = re.compile(r"\bT\d+\b")
"""Types that depend on template arguments, as NVIDIA's tools write them."""
_LONGEST: Final = 4096
_MOST: Final = 20_000  # a run with more names (programs have far fewer) is compared only as written
_Named = dict[str, dict[int, str]]
"""By form of a name: the codes of names with that form, each with one such name."""
_Test = Callable[..., bool]
"""A function that takes a form and two names of it: whether they may be of one kernel."""

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
_CONDITIONAL: Final = re.compile(r"(?:typename )?(?:std::)?enable_if<")
_ANONYMOUS: Final = {"_GLOBAL__N_1": "(anonymous namespace)"}


def plain_name(name: str) -> str:
    """Return a kernel's name without the parts that tools differ in: blanks, .kd, [clone .kd]."""
    text = name.strip().strip('"')
    if len(text) > _LONGEST:
        return text
    return _BLANKS.sub("", _ENDINGS.sub("", text))


def without_return_type(name: str) -> str:
    """Return a function's name without return type and storage class, if these can be recognised.

    `std::enable_if_t<true, void> k<int>(int)` becomes `k<int>(int)`; mangled names readable.
    """
    name = readable(name)
    blanks = _top_blanks(name[:_LONGEST]) if " " in name else []
    words = [name[start + 1 : end] for start, end in pairwise([-1, *blanks])]
    # Only types and specifiers may precede the last blank.
    own = name[blanks[-1] + 1 :] if words and all(map(_TYPE.match, words)) else name
    if own is name and _CONDITIONAL.match(name):
        end = CONDITIONS_END.search(name, 0, _LONGEST)
        own = name[end.end() :] if end else name
    return own if own[:1].isidentifier() or own.startswith(_NAMELESS) else name


def _top_blanks(name: str) -> list[int]:
    """Return the indices of blanks outside all brackets, up to the function's arguments."""
    opened: list[str] = []
    blanks: list[int] = []
    for sign in _SIGN.finditer(name):
        index, char = sign.start(), sign[0]
        if char in _OPENING and not (char == "<" and "(" in opened[-1:]):  # (a < b) is a comparison
            # A parenthesis outside of brackets begins the function's arguments, unless it stands
            # alone or after a word like decltype.
            word_before = name[:index].rpartition(" ")[2]
            if char == "(" and not opened and word_before not in _CALLED:
                break
            opened.append(char)
        elif opened and char == _OPENING[opened[-1]] and name[index - 1 : index] != "-":  # not ->
            opened.pop()
        elif char == " " and not opened:
            blanks.append(index)
    return blanks


def short_name(name: str) -> str:
    """Return the last word of a function's name, without arguments, namespaces and templates.

    rocprof cuts names like this: `gemm` for `void ns::gemm<float>(float*)` or its mangled form.
    """
    text = _ENDINGS.sub("", name.strip().strip('"'))[:_LONGEST]
    path = _mangled_path(text)
    if path:
        return path[-1]
    # Go back over blanks and brackets (of arguments, templates, [abi:...]) to the end of the name.
    # Inside of brackets, `closing` is the outermost one, and `depth` counts the open ones like it.
    end, depth, closing = len(text), 0, ""
    while end:
        char = text[end - 1]
        if depth and char == closing:
            depth += 1
        elif depth:
            depth -= char == _BRACKETS[closing]
        elif char in _BRACKETS:
            depth, closing = 1, char
        elif char != " ":
            break
        end -= 1
    start = max(text.rfind(" ", 0, end), text.rfind(":", 0, end)) + 1
    return text[start:end]


def from_own_word(names: Sequence[str]) -> list[str]:
    """Return names from the function's own word on; all names unchanged if some become equal.

    The return type and namespaces are left out: `enable_if<true, void>::type kernel<float>(float*)`
    becomes `kernel<float>(float*)`.
    """
    shortened = []
    for name in names:
        plain, word = _ENDINGS.sub("", name.strip()), short_name(name)
        # A name without brackets has no types around its own word.
        has_types = _BRACKET.search(plain) and len(plain) <= _LONGEST and word.isidentifier()
        own = re.search(rf"\b{word}\b", plain) if has_types else None  # `trace` of rtracer::trace
        shortened.append(plain[own.start() :] if own else plain)
    return shortened if len(set(shortened)) == len(set(names)) else list(names)


def spelled_name(name: str, *, bare: bool = False) -> str:
    """Return a name in a spelling that does not depend on the tool, without const.

    With `bare`, namespaces are left out, too; several kernels may share such a name.
    """
    text = _ENDINGS.sub("", name.strip().strip('"'))
    if len(text) > _LONGEST:
        return text
    # Before const is removed: Nsight Compute treats that of `() const::[lambda` as a namespace.
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
    """Return a code per name of both runs; names of one kernel, and only those, have equal codes.

    Names that are equal in `plain_name` are paired first, then those equal in each of _FORMS.
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
    theirs = [partner.get(code, code) for code in theirs]
    return np.array(ours, dtype=np.int64), np.array(theirs, dtype=np.int64)


def _by_form(form: Callable[[str], str], names: Sequence[str], codes: Sequence[int]) -> _Named:
    """Return the names of a run by their form; {} if there are too many."""
    named: _Named = defaultdict(dict)
    for name, code in zip(names, codes, strict=True) if len(names) <= _MOST else ():
        named[form(name)].setdefault(code, name)
    return named


def _has_bare(_: str, *names: str) -> bool:
    """Return whether one of two names has no namespaces: a::f and b::f are two kernels."""
    return not all(map(_NAMESPACES.search, names))


def _has_open(_: str, *names: str) -> bool:
    """Return whether exactly one name has types such as T1: f<1>(int) and f<1>(float) differ."""
    return sum(_PARAMETER.search(name) is not None for name in names) == 1


def _is_short_or_mangled(short: str, *names: str) -> bool:
    """Return whether one of two names is the short or the mangled form of the other.

    One is `short`, the function's name alone; or one is mangled, and its path is in the other.
    """
    first, second = map(plain_name, names)
    if short in (first, second):
        return True
    first_path, second_path = _mangled_path(first), _mangled_path(second)
    if bool(first_path) == bool(second_path):  # both are mangled, or none is
        return False
    path, full_name = "::".join(first_path or second_path), second if first_path else first
    before, found, after = full_name.partition(path)
    # The path must begin and end at a word: ns::gemm, but neither other_ns::gemm nor ns::gemm2. An
    # anonymous namespace, "(anonymous", begins a word by itself.
    begins_word = before[-1:] in ("", " ", "*", "&") or path[0] == "("
    return bool(found) and begins_word and after[:1] in ("", "<", "(", "[")


_FORMS: Final[tuple[tuple[Callable[[str], str], tuple[_Test, ...]], ...]] = (
    (spelled_name, ()),
    (lambda name: _without_arguments(spelled_name(name)), (_has_open,)),
    (partial(spelled_name, bare=True), (_has_bare,)),
    (lambda name: _without_arguments(spelled_name(name, bare=True)), (_has_bare, _has_open)),
    (short_name, (_is_short_or_mangled,)),
)
"""Forms in which names of one kernel are equal, and further tests of two such names."""


def _mangled_path(text: str) -> list[str]:
    """Return the namespaces and the name of a mangled function, [] if not mangled or cut off."""
    path, end = path_of(text)
    return [_ANONYMOUS.get(word, word) for word in path] if end <= len(text) else []
