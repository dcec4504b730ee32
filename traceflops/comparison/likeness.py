"""What differs between two recordings, whether they can be compared, and whether they are one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
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
"""Facts about a single run or file, which are no settings."""
_SAME_WORK: Final = Fraction(1, 100)
"""Share by which the FLOPs of a step may differ."""
_COMMON: Final = Fraction(1, 100) ** 2
"""The share of kernel time of one side that is recognised on the other, times that of the other:
with less, two recordings have nothing in common."""
_UNCERTAIN: Final = frozenset({"", MODULE})
OF_ANY_WORK: Final = _UNCERTAIN | BY_OPERATOR
"""Ways to match kernels by which even programs that do other work match."""
_FLOPS, SHAPE = "model FLOPs of a step", "shape of an input"
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
    old, new = _values(before), _values(after)
    recorded = ("steps", "ranks", *_RECORDED, "single kernels", *before.facts, *after.facts)
    differences = [*_work(before, after), *_shapes(matched)]
    differences += [
        Unlike(what, old.get(what, UNRECORDED), new.get(what, UNRECORDED))
        for what in dict.fromkeys(recorded)
    ]
    return tuple(unlike for unlike in differences if unlike.before != unlike.after)


def work_ratio(before: Side, after: Side) -> Fraction | None:
    """Return the model FLOPs of a window after, divided by those before, None if unknown."""
    old, new = (
        side.model_flops / len(side.windows) if side.model_flops and side.windows else None
        for side in (before, after)
    )
    return new / old if old and new else None


def _work(before: Side, after: Side) -> Iterator[Unlike]:
    """Yield the model FLOPs of a window on both sides ("777.6 GFLOP"), if they differ."""
    ratio = work_ratio(before, after)
    if ratio is None or abs(ratio - 1) <= _SAME_WORK:
        return
    texts = []
    for side in (before, after):
        flops = (side.model_flops or 0) / len(side.windows)
        power = min((len(str(int(flops))) - 1) // 3, len(_PREFIXES) - 1)  # of 1000
        texts.append(f"{significant(flops / Fraction(1000**power), 4)} {_PREFIXES[power]}FLOP")
    yield Unlike(_FLOPS, *texts)


def _shapes(matched: Iterable[Match]) -> Iterator[Unlike]:
    """Yield the input shape of the longest kernel whose input has another size, on both sides.

    Nothing is yielded unless most kernel time is of such kernels. Only matches of one kernel with
    one other count.
    """
    same_ns = changed_ns = 0
    shown = ("", "")
    pairs = [match for match in matched if len(match.before) == len(match.after) == 1]
    for match in sorted(pairs, key=lambda match: match.before[0].charged_ns):  # the longest last
        old, new = map(_first_shape, match.work)
        if old is None or new is None:
            continue
        if math.prod(old) == math.prod(new):
            same_ns += match.before[0].charged_ns
        else:
            changed_ns += match.before[0].charged_ns
            shown = (" x ".join(map(str, old)), " x ".join(map(str, new)))
    if changed_ns > same_ns:
        yield Unlike(SHAPE, *shown)


def _first_shape(kernel: ChargedKernel) -> Sequence[int] | None:
    """Return the shape of a kernel's first input that is a tensor with dimensions, if known."""
    shapes = read_shapes(kernel.shapes or "[]") or ()
    return next((shape for shape in shapes if shape and not isinstance(shape, Shapes)), None)


def _values(side: Side) -> dict[str, str]:
    """Return, in words, what was recorded of a side; it lacks what was not recorded."""
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
