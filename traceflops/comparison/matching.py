"""Which kernels of one recording do the same work as those of another: by what is certain first.

Each pass has a key. All kernels with the same key that no earlier pass matched form a match: one to
one, or several that became others ("6 kernels became 1"). What is left is on one side only. Also
what else differs between two recordings, and whether they can be compared.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Final, TypeVar

from msgspec import Struct

from traceflops.attribution.charged import ChargedKernel
from traceflops.comparison.side import Side
from traceflops.facts import Fact, fact
from traceflops.flops.ops.arguments import Shapes, read_shapes
from traceflops.units import listed, significant

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
    """Return matches; each kernel of both sides is in exactly one, alone if no pass matches it."""
    unmatched: list[Work] = [before.work or (), after.work or ()]  # by side
    matched: list[Match] = []
    for way, key_of in PASSES:
        old = grouped(key_of, unmatched[0])
        new = grouped(key_of, unmatched[1])
        matched += [Match(way, tuple(old[key]), tuple(new[key])) for key in old if key in new]
        unmatched = _without(unmatched, matched)
    windows = (len(before.windows), len(after.windows))
    for way, key_of in _MOVED:
        _extend(matched, way, key_of, unmatched, windows)
        unmatched = _without(unmatched, matched)
    only_before, only_after = unmatched
    matched += [Match("", (kernel,), ()) for kernel in only_before]
    return matched + [Match("", (), (kernel,)) for kernel in only_after]


def grouped(key_of: Callable[[T], Hashable], items: Iterable[T]) -> dict[Hashable, list[T]]:
    """Return items by their key, without those whose key is None."""
    groups: defaultdict[Hashable, list[T]] = defaultdict(list)
    for item in items:
        groups[key_of(item)].append(item)
    groups.pop(None, None)
    return groups


def _without(left: Sequence[Work], matched: Iterable[Match]) -> list[Work]:
    """Return the kernels of both sides that are in none of the matches."""
    matched_ids = {id(kernel) for match in matched for kernel in match.work}
    return [tuple(kernel for kernel in work if id(kernel) not in matched_ids) for work in left]


def _extend(
    matched: list[Match], way: str, key: Key, left: Sequence[Work], windows: tuple[int, int]
) -> None:
    """Add kernels of `left` (by side) to the matches with their key, in place.

    A kernel joins a match if that brings the calls per window of both sides closer together. Kernel
    a is called 8 times before, 6 times after; b, only after, 2 times: b took over 2 calls and
    joins. The match gets the name `way`. `windows` counts the windows by side.
    """
    place_of_key = {
        key(kernel): place for place, match in enumerate(matched) for kernel in match.work
    }
    place_of_key.pop(None, None)
    only_before, only_after = left
    additions = [*(Match(way, (kernel,), ()) for kernel in only_before)]
    additions += [Match(way, (), (kernel,)) for kernel in only_after]
    for added in additions:
        place = place_of_key.get(key(added.work[0]))
        if place is None:
            continue
        match = matched[place]
        extended = Match(way, match.before + added.before, match.after + added.after)
        if _call_gap(extended, windows) < _call_gap(match, windows):
            matched[place] = extended


def _call_gap(match: Match, windows: tuple[int, int]) -> Fraction:
    """Return the difference in calls per window between the sides of a match."""
    old_windows, new_windows = windows
    old_calls = Fraction(sum(kernel.count for kernel in match.before), old_windows)
    new_calls = Fraction(sum(kernel.count for kernel in match.after), new_windows)
    return abs(new_calls - old_calls)


UNRECORDED: Final = "not recorded"
_OF_RUN: Final = frozenset(
    {"created", "process_lifetime_ns", "hip_streams", "schema_version", "utc_offset"}
)
"""Facts about a single run or file, which are no settings."""
_SAME_WORK: Final = Fraction(1, 100)
"""Share by which the FLOPs of a step may differ."""
_SAME_CALLS: Final = Fraction(1, 10)
"""Share by which the calls of a kernel per window may differ."""
_MOSTLY: Final = Fraction(1, 2)
_COMMON: Final = Fraction(1, 100) ** 2
"""Two recordings have nothing in common if the product of their shares of recognised kernel time is
less: 1 % on each side is enough, as is 0.1 % and 10 %."""
_UNCERTAIN: Final = frozenset({"", MODULE})
OF_ANY_WORK: Final = _UNCERTAIN | BY_OPERATOR
"""Ways to match kernels by which even programs that do other work match."""
_FLOPS, SHAPE = "model FLOPs of a step", "shape of an input"
KERNELS: Final = "most kernels"
OF_WORK: Final = (_FLOPS, SHAPE)
"""What says that a step does other work."""
_PREFIXES: Final = ("", "k", "M", "G", "T", "P", "E")
_RECORDED: Final = {"operators": "op", "shapes": "shapes", "modules": "scope"}


class Unlike(Struct, frozen=True):
    """One thing that differs between two recordings, and its value on each side."""

    what: str
    before: str
    after: str


def is_same(before: Side, after: Side) -> bool:
    """Return whether two sides are one recording."""
    return (before.windows, before.work) == (after.windows, after.work) and bool(before.windows)


def obstacle(before: Side, after: Side, matched: Sequence[Match]) -> Fact | None:
    """Return why two sides cannot be compared, None if they can."""
    if not (before.windows or after.windows) and before.speeds and after.speeds:
        return fact("comparison.no-timelines")
    for side in (before, after):
        if not side.windows and any(code == "no-timeline" for _, code, _ in side.notes):
            return fact("comparison.only-totals", side=side.name)
        if not side.windows or not side.components.window_ns:
            return fact("comparison.no-gpu-time", side=side.name)
        if side.lacks_durations:
            return fact("comparison.no-durations", side=side.name)
    if before.on_host != after.on_host:
        name = before.name if before.on_host else after.name
        return fact("comparison.only-on-cpu", side=name)
    without_steps = [side.name for side in (before, after) if not side.steps]
    if len(without_steps) == 1:
        return fact("comparison.steps-on-one-side", side=without_steps[0])
    if math.prod(shares_in_common(before, after, matched)) < _COMMON:
        return fact("comparison.nothing-in-common")
    return None


def shares_in_common(
    before: Side, after: Side, matched: Iterable[Match], unsure: frozenset[str] = _UNCERTAIN
) -> list[Fraction]:
    """Return the share of each side's kernel time that surely matches; 1 if unknown.

    Matches by a way in `unsure` do not count.
    """
    old_ns, new_ns = (_kernel_ns(side.work or ()) for side in (before, after))
    if not old_ns or not new_ns:
        return [Fraction(1), Fraction(1)]
    sure = [match for match in matched if match.way not in unsure]
    matched_old_ns = sum(_kernel_ns(match.before) for match in sure)
    matched_new_ns = sum(_kernel_ns(match.after) for match in sure)
    return [Fraction(matched_old_ns, old_ns), Fraction(matched_new_ns, new_ns)]


def _kernel_ns(work: Iterable[ChargedKernel]) -> int:
    """Return the time of kernels alone, as copies are alike in all programs."""
    return sum(kernel.charged_ns for kernel in work if kernel.kind == "kernel")


def unlikeness(before: Side, after: Side, matched: Iterable[Match]) -> tuple[Unlike, ...]:
    """Return what differs between two sides, the most important first."""
    differences = [*_work(before, after), *_shapes(matched)]
    old, new = _values(before), _values(after)
    recorded = ("steps", "ranks", *_RECORDED, "single kernels", *before.facts, *after.facts)
    differences += [
        Unlike(what, old.get(what, UNRECORDED), new.get(what, UNRECORDED))
        for what in dict.fromkeys(recorded)  # each once
    ]
    return tuple(unlike for unlike in differences if unlike.before != unlike.after)


def work_ratio(before: Side, after: Side) -> Fraction | None:
    """Return the model FLOPs of a window after, divided by those before, None if unknown."""
    if not (before.model_flops and before.windows and after.model_flops and after.windows):
        return None
    return after.per_window(after.model_flops) / before.per_window(before.model_flops)


def has_same_flops(before: Side, after: Side) -> bool:
    """Return whether a window has as many model FLOPs on both sides; False if unknown."""
    ratio = work_ratio(before, after)
    return ratio is not None and abs(ratio - 1) <= _SAME_WORK


def may_do_other_work(before: Side, after: Side, matched: Iterable[Match]) -> bool:
    """Return whether two sides may do other work, by how often they call their kernels.

    They may if on a side, less than half of kernel time is of kernels that both call about as often
    per window. False if FLOPs are known: these tell it.
    """
    if work_ratio(before, after) is not None:
        return False
    windows = (len(before.windows), len(after.windows))
    alike = []
    for match in matched:
        calls = before.per_window(sum(kernel.count for kernel in match.before))
        if match.after and _call_gap(match, windows) <= _SAME_CALLS * calls:
            alike.append(match)
    return min(shares_in_common(before, after, alike)) < _MOSTLY


def replaced_kernels(before: Side, after: Side) -> frozenset[str]:
    """Return the names of kernels before whose operators became others, while all others stayed.

    Before: linear, bmm. After: linear with as many FLOPs, flash_attention -> the kernels of bmm.
    """
    old = {op: before.per_window(flops) for op, flops in before.op_flops.items() if flops}
    new = {op: after.per_window(flops) for op, flops in after.op_flops.items() if flops}
    common = old.keys() & new.keys()
    gone = old.keys() - common
    come = new.keys() - common
    if not (common and gone and come):
        return frozenset()
    if any(abs(new[op] / old[op] - 1) > _SAME_WORK for op in common):
        return frozenset()
    return frozenset(kernel.name for kernel in before.work or () if kernel.op in gone)


def _work(before: Side, after: Side) -> Iterator[Unlike]:
    """Yield the model FLOPs of a window on both sides ("777.6 GFLOP"), if they differ."""
    if work_ratio(before, after) is None or has_same_flops(before, after):
        return
    texts = []
    for side in (before, after):
        flops = (side.model_flops or 0) / len(side.windows)
        # 777_600_000_000 has 12 digits: it is 777.6 times 1000 ** 3, with the prefix G.
        power = min((len(str(int(flops))) - 1) // 3, len(_PREFIXES) - 1)
        texts.append(f"{significant(flops / Fraction(1000**power), 4)} {_PREFIXES[power]}FLOP")
    yield Unlike(_FLOPS, *texts)


def _shapes(matched: Iterable[Match]) -> Iterator[Unlike]:
    """Yield the input shape of the longest kernel whose input has another size, on both sides.

    1. In a match of as many kernels on both sides, these are paired by size, the smallest first:
       [8, 8] and [64, 8] before, [16, 8] and [64, 8] after -> 8 x 8 became 16 x 8.
    2. If the pairs of other sizes take more time (before) than the others, the longest is yielded.
    """
    same_ns = changed_ns = 0
    longest_ns = -1
    shown = ("", "")
    for match in matched:
        old_shapes = _shapes_and_times(match.before)
        new_shapes = _shapes_and_times(match.after)
        if not len(match.before) == len(match.after) == len(old_shapes) == len(new_shapes):
            continue
        for (old, ns), (new, _) in zip(old_shapes, new_shapes, strict=True):
            if math.prod(old) == math.prod(new):
                same_ns += ns
                continue
            changed_ns += ns
            if ns >= longest_ns:
                longest_ns = ns
                shown = (" x ".join(map(str, old)), " x ".join(map(str, new)))
    if changed_ns > same_ns:
        yield Unlike(SHAPE, *shown)


def _shapes_and_times(work: Work) -> list[tuple[Sequence[int], int]]:
    """Return the known first shapes of kernels with their times in ns, the smallest shape first."""
    first_shapes: list[tuple[Sequence[int], int]] = []
    for kernel in work:
        # The first input that is a tensor with dimensions
        for shape in read_shapes(kernel.shapes or "[]") or ():
            if shape and not isinstance(shape, Shapes):
                first_shapes.append((shape, kernel.charged_ns))
                break
    return sorted(first_shapes, key=lambda pair: math.prod(pair[0]))


def _values(side: Side) -> dict[str, str]:
    """Return what was recorded of a side, as texts by name; what was not recorded is left out."""
    values = {"steps": str(len(side.steps))} if side.steps else {}
    if side.ranks:
        numbers = f"number{'s' * (len(side.ranks) > 1)} {listed(sorted(side.ranks))}"
        values["ranks"] = f"{len(side.ranks)} ({numbers})"
    for what, column in _RECORDED.items():
        if any(getattr(kernel, column) is not None for kernel in side.work or ()):
            values[what] = "recorded"
    if side.work is not None:
        values["single kernels"] = "recorded"
    # Facts of a single run, such as when it began, differ between any two.
    return values | {key: value for key, value in side.facts.items() if key not in _OF_RUN}
