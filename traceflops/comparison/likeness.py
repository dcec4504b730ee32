"""What makes two recordings not alike, whether they compare at all, and whether they are one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import chain
from typing import Final

from msgspec import Struct

from traceflops.attribution.charged import ChargedKernel
from traceflops.comparison.matching import BY_OPERATOR, MODULE, Match
from traceflops.comparison.side import Side
from traceflops.facts import Fact, fact
from traceflops.flops.ops.arguments import Shapes, read_shapes
from traceflops.units import listed, significant

UNRECORDED: Final = "not recorded"
_OF_RUN: Final = frozenset(
    {"created", "process_lifetime_ns", "hip_streams", "schema_version", "utc_offset"}
)
"""Facts that are of a single run or file, and no settings."""
_SAME_WORK: Final = Fraction(1, 100)
"""Share by which the FLOPs of a step may differ."""
_COMMON: Final = Fraction(1, 100) ** 2
"""Shares of the time of kernels that must be recognised on the other side: their product."""
_UNCERTAIN: Final = frozenset({"", MODULE})
OF_ANY_WORK: Final = _UNCERTAIN | BY_OPERATOR
"""Ways to match what programs of other work have in common, too."""
_FLOPS, SHAPE = "model FLOPs of a step", "shape of an input"
OF_WORK: Final = (_FLOPS, SHAPE)
"""What says that a step does other work."""
_PREFIXES: Final = ("", "k", "M", "G", "T", "P", "E")
_RECORDED: Final = {"operators": "op", "shapes": "shapes", "modules": "scope"}


class Unlike(Struct, frozen=True):
    """One difference between two recordings: what, and its value on each side."""

    what: str
    before: str
    after: str


def is_same(before: Side, after: Side) -> bool:
    """Return whether two sides are one recording."""
    return (before.windows, before.work) == (after.windows, after.work) and bool(before.windows)


def obstacle(before: Side, after: Side, matched: Sequence[Match]) -> Fact | None:
    """Return why two sides do not compare, None where they do."""
    if not (before.windows or after.windows) and before.speeds and after.speeds:
        return fact("comparison.no-timelines")
    for side in (before, after):
        if not side.windows and any(code == "no-timeline" for _, code, _ in side.notes):
            return fact("comparison.only-totals", side=side.name)
        if not side.windows or not side.components.window_ns:
            return fact("comparison.no-gpu-time", side=side.name)
    if before.on_host != after.on_host:
        name = before.name if before.on_host else after.name
        return fact("comparison.only-on-cpu", side=name)
    lacking = [side.name for side in (before, after) if not side.steps]
    if len(lacking) == 1:
        return fact("comparison.steps-on-one-side", side=lacking[0])
    if math.prod(shares_in_common(before, after, matched)) < _COMMON:
        return fact("comparison.nothing-in-common")
    return None


def shares_in_common(
    before: Side, after: Side, matched: Iterable[Match], unsure: frozenset[str] = _UNCERTAIN
) -> list[Fraction]:
    """Return the share of each side's kernel time matched on the other; 1 if unknown.

    What was matched in an `unsure` way does not count.
    """
    works = [_kernel_ns(side.work or ()) for side in (before, after)]
    if not all(works):
        return [Fraction(1), Fraction(1)]
    sure = [(match.before, match.after) for match in matched if match.way not in unsure]
    matched_ns = [sum(_kernel_ns(pair[side]) for pair in sure) for side in (0, 1)]
    return [Fraction(ns, total) for ns, total in zip(matched_ns, works, strict=True)]


def _kernel_ns(work: Iterable[ChargedKernel]) -> int:
    """Return the time of kernels alone, as copies are alike in all programs."""
    return sum(kernel.charged_ns for kernel in work if kernel.kind == "kernel")


def unlikeness(before: Side, after: Side, matched: Iterable[Match]) -> tuple[Unlike, ...]:
    """Return the differences between two sides, the most important first."""
    differences = chain(_work(before, after), _shapes(matched), _recorded(before, after))
    return tuple(Unlike(*row) for row in differences if row[1] != row[2])


def work_ratio(before: Side, after: Side) -> Fraction | None:
    """Return the model FLOPs of a window as a multiple of those before, None where unknown."""
    old, new = (
        side.model_flops / len(side.windows) if side.model_flops and side.windows else None
        for side in (before, after)
    )
    return new / old if old and new else None


def _work(before: Side, after: Side) -> Iterator[tuple[str, str, str]]:
    """Yield the model FLOPs of a window on both sides ("777.6 GFLOP"), where they differ."""
    ratio = work_ratio(before, after)
    if ratio is None or abs(ratio - 1) <= _SAME_WORK:
        return
    texts = []
    for side in (before, after):
        flops = (side.model_flops or 0) / len(side.windows)
        power = min(max(len(str(int(flops))) - 1, 0) // 3, len(_PREFIXES) - 1)
        texts.append(f"{significant(flops / Fraction(1000**power), 4)} {_PREFIXES[power]}FLOP")
    yield _FLOPS, texts[0], texts[1]


def _shapes(matched: Iterable[Match]) -> Iterator[tuple[str, str, str]]:
    """Yield the shape of an input, where most of the time is in inputs of another size."""
    ns, shown = Counter[bool](), ("", "")
    pairs = [match for match in matched if len(match.before) == len(match.after) == 1]
    for match in sorted(pairs, key=lambda match: match.before[0].charged_ns):
        # The first input of each side that has a shape.
        inputs = (read_shapes(kernel.shapes or "[]") or () for kernel in match.work)
        old, new = (
            next((shape for shape in shapes if shape and not isinstance(shape, Shapes)), None)
            for shapes in inputs
        )
        if old is not None and new is not None:
            changed = math.prod(old) != math.prod(new)
            ns[changed] += match.before[0].charged_ns
            if changed:
                shown = (" x ".join(map(str, old)), " x ".join(map(str, new)))
    if ns[True] > ns[False]:
        yield SHAPE, *shown


def _recorded(before: Side, after: Side) -> Iterator[tuple[str, str, str]]:
    """Yield what was recorded of each side, and how: steps, ranks, kinds of records, facts."""
    old, new = (
        {
            "steps": str(len(side.steps) or UNRECORDED),
            "ranks": f"{len(side.ranks)} (number{'s' * (len(side.ranks) > 1)} "
            f"{listed(sorted(side.ranks))})"
            if side.ranks
            else UNRECORDED,
            **{
                what: "recorded"
                for what, column in _RECORDED.items()
                if any(getattr(kernel, column) is not None for kernel in side.work or ())
            },
            **({"single kernels": "recorded"} if side.work is not None else {}),
            **{key: value for key, value in side.facts.items() if key not in _OF_RUN},
        }
        for side in (before, after)
    )
    order = ("steps", "ranks", *_RECORDED, "single kernels", *before.facts, *after.facts)
    for what in dict.fromkeys(order):
        yield what, old.get(what, UNRECORDED), new.get(what, UNRECORDED)
