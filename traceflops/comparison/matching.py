"""Which kernels of one recording do the same work as those of another: by what is certain first.

Each pass has a key. All kernels with the same key that no earlier pass matched form a match: one to
one, or several that became others ("6 kernels became 1"). What is left is on one side only.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from fractions import Fraction
from typing import Final, TypeVar

from msgspec import Struct

from traceflops.attribution.charged import ChargedKernel
from traceflops.comparison.side import Side

Work = tuple[ChargedKernel, ...]
Key = Callable[[ChargedKernel], Hashable | None]
T = TypeVar("T")
MODULE: Final = "module"
"""The way to match kernels of the same module, which is a guess."""
BY_OPERATOR: Final = frozenset({"operator", "operator and module", "operator of another library"})
"""Ways by operators of any shapes."""
_ARGUMENTS: Final = re.compile(r"<.*|\(.*")
_WORD: Final = re.compile("[A-Za-z]{3,}")
_OF_LIBRARY: Final = frozenset(
    ("", "cudnn", "miopen", "mkldnn", "native", "flash", "efficient", "fused", "input", "weight")
)
"""Words of operators that say who does the work, in place or not, or which half of its backward."""
_LONGEST: Final = 10_000


class Match(Struct, frozen=True):
    """The same work on both sides, and the `way` it was recognised; "" for one side only."""

    way: str
    before: Work
    after: Work

    @property
    def work(self) -> Work:
        """Return the kernels of both sides."""
        return (*self.before, *self.after)

    @property
    def is_same(self) -> bool:
        """Return whether the kernels have the same names on both sides."""
        return {kernel.name for kernel in self.before} == {kernel.name for kernel in self.after}


def family(name: str) -> str:
    """Return the words of a kernel's own name: no namespace, sizes, templates and versions."""
    plain = name[:_LONGEST].removeprefix("void ").replace("(anonymous namespace)", "")
    own = _ARGUMENTS.sub("", plain).rpartition("::")[2]
    return "_".join(_WORD.findall(own)) or name


def plain_operator(op: str | None) -> str | None:
    """Return an operator's name without its library: "convolution", "attention"."""
    words = (op or "").rpartition("::")[2].replace("attn", "attention").split("_")
    return "_".join(word for word in words if word not in _OF_LIBRARY) or op


def _known(*values: Hashable | None) -> Hashable | None:
    return values if all(value is not None for value in values) else None


PASSES: Final[tuple[tuple[str, Key], ...]] = (
    ("name", lambda k: (k.name, k.op, k.shapes, k.scope, k.backward, k.group)),
    ("name", lambda k: (k.name, k.op, k.scope, k.backward)),
    ("operator and shape", lambda k: _known(k.op, k.shapes, k.scope, k.backward, k.top)),
    ("name", lambda k: (k.name, k.op)),
    ("operator and shape", lambda k: _known(k.op, k.shapes, k.top)),
    ("name", lambda k: k.name),
    ("operator and module", lambda k: _known(k.op, k.scope, k.backward)),
    ("name without sizes", lambda k: (family(k.name), k.top)),
    ("operator", lambda k: _known(k.op, k.top)),
    ("operator of another library", lambda k: _known(plain_operator(k.op), k.shapes, k.top)),
    ("operator of another library", lambda k: _known(plain_operator(k.op), k.top)),
    (MODULE, lambda k: _known(k.scope, k.backward, k.top != "communication")),
)
"""Passes: the name of a way to match, and the key that is equal for kernels of the same work."""
_MOVED: Final[tuple[tuple[str, Key], ...]] = (
    ("operator and shape", lambda k: _known(k.op, k.shapes, k.scope, k.backward, k.top)),
    ("operator and shape", lambda k: _known(k.op, k.shapes, k.top)),
    ("operator and module", lambda k: _known(k.op, k.scope, k.backward, k.top)),
)
"""Passes that find kernels which took over some of the calls of kernels matched before."""


def matches(before: Side, after: Side) -> list[Match]:
    """Return matches such that each kernel of both sides is in exactly one of them."""
    left: tuple[Work, Work] = (before.work or (), after.work or ())
    matched: list[Match] = []
    for way, key_of in PASSES:
        old, new = (grouped(key_of, work) for work in left)
        matched += [Match(way, tuple(old[key]), tuple(new[key])) for key in old if key in new]
        left = _without(left, matched)
    windows = (len(before.windows), len(after.windows))
    for way, key_of in _MOVED:
        matched, left = _moved(way, key_of, matched, left, windows)
    only_before, only_after = left
    matched += [Match("", (kernel,), ()) for kernel in only_before]
    return matched + [Match("", (), (kernel,)) for kernel in only_after]


def grouped(key_of: Callable[[T], Hashable], items: Iterable[T]) -> dict[Hashable, list[T]]:
    """Return items by their key, without those whose key is None."""
    groups: defaultdict[Hashable, list[T]] = defaultdict(list)
    for item in items:
        groups[key_of(item)].append(item)
    groups.pop(None, None)
    return groups


def _without(left: tuple[Work, Work], matched: Iterable[Match]) -> tuple[Work, Work]:
    """Return the kernels of both sides that are in none of the matches."""
    matched_ids = {id(kernel) for match in matched for kernel in match.work}
    before, after = (
        tuple(kernel for kernel in work if id(kernel) not in matched_ids) for work in left
    )
    return before, after


def _moved(
    way: str, key: Key, matched: list[Match], left: tuple[Work, Work], windows: tuple[int, int]
) -> tuple[list[Match], tuple[Work, Work]]:
    """Return the matches, some with kernels of `left` added, and the kernels that are still left.

    A kernel joins the match with its key if that brings the calls per window of both sides closer
    together: then it took over some of the calls. The match gets the name `way`. `windows` are the
    numbers of windows by side.
    """
    match_of_key = {
        key(kernel): index for index, match in enumerate(matched) for kernel in match.work
    }
    match_of_key.pop(None, None)
    joined, matched = [], list(matched)
    for side, work in enumerate(left):
        for kernel in work:
            index = match_of_key.get(key(kernel))
            if index is None:
                continue
            sides = [matched[index].before, matched[index].after]
            sides[side] = (*sides[side], kernel)
            extended = Match(way, *sides)
            if _call_gap(extended, windows) < _call_gap(matched[index], windows):
                matched[index] = extended
                joined.append(Match("", (kernel,), ()))  # only to take it out of `left`
    return matched, _without(left, joined)


def _call_gap(match: Match, windows: tuple[int, int]) -> Fraction:
    """Return the difference in calls per window between the sides of a match."""
    before, after = (
        Fraction(sum(kernel.count for kernel in work), window_count)
        for work, window_count in zip((match.before, match.after), windows, strict=True)
    )
    return abs(after - before)
