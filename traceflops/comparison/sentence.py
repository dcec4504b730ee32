"""A comparison in one sentence: what changed, by how much, why, and how sure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from traceflops.attribution import CLASSES
from traceflops.categories import without_return_type
from traceflops.characters import function_name, shortened
from traceflops.comparison.difference import (
    CALLS,
    GONE,
    IDLE,
    NEW,
    PACE,
    REPLACED,
    UNTOLD,
    WAIT,
    Cause,
    Part,
)
from traceflops.comparison.likeness import OF_WORK, Unlike, work_ratio
from traceflops.comparison.matching import PLACE
from traceflops.comparison.side import Side
from traceflops.comparison.spread import Interval, interval
from traceflops.timeline import COMPONENTS
from traceflops.units import PART_NAMES, duration, percent, several, significant, unit_for

_MOST: Final = 3
"""So many reasons are named."""
_LEAST: Final = 0.1
"""Share of the largest reason that another one must have to be named."""
_MOSTLY: Final = 0.8
_NEARLY_ALL: Final = 0.95
_LONGEST: Final = 60
_OTHER_WORK: Final = 0.2
"""Share by which the FLOPs of a step differ where it does other work: fewer may be the change."""
_RECOGNISED: Final = 0.5
"""Share of kernel time below which two sides may do other work."""
_UNITS: Final = {"s": 10**9, "ms": 10**6, "µs": 10**3, "ns": 1}


@dataclass(frozen=True, slots=True)
class Reason:
    """Causes that are told as one: kernels that became others may be of several components."""

    causes: tuple[Cause, ...]

    @property
    def ns(self) -> int:
        """Return what they change together."""
        return sum(cause.ns for cause in self.causes)

    @property
    def parts(self) -> list[Part]:
        """Return their parts, the largest first."""
        parts = [part for cause in self.causes for part in cause.parts]
        return sorted(parts, key=lambda part: -abs(part.ns))

    @property
    def scopes(self) -> set[str]:
        """Return the modules or annotations in which they are."""
        return {scope for part in self.parts for scope in part.scopes}


def sentence(
    before: Side,
    after: Side,
    difference_ns: int,
    found: Interval | None,
    reasons: Sequence[Reason],
) -> str:
    """Return what changed from one side to the other, which compare."""
    share = share_words(difference_ns, before)
    amount = duration(abs(difference_ns))
    if found is not None and found.holds_zero:
        ends = " to ".join(signed(duration(abs(end)), end) for end in found)
        sure = f"{signed(amount, difference_ns)}, {share}, 95 % interval {ends}"
        return f"No difference beyond the spread between steps ({sure})."
    more = "more" if difference_ns > 0 else "less"
    sure = f"{share}, {interval_words(found, before, after)}"
    if not difference_ns:
        return f"No difference in time ({sure})."
    what = "Steps take" if before.steps else "The recording takes"
    why = "; ".join(reason_words(one, before, after) for one in reasons)
    why = why or "no single cause is beyond the spread"
    return f"{what} {amount} {more} ({sure}): {why}."


def caveat(before: Side, after: Side, unlike: Sequence[Unlike], shares: Sequence[Fraction]) -> str:
    """Return what must be known before the sentence: of what records lack, and of other work.

    `shares` of the kernel time are recognised on the other side.
    """
    lacking = [side.name for side in (before, after) if side.lacks_records]
    told = f"GPU records of {' and '.join(lacking)} are incomplete, so work and idle time are"
    work = _work_words(before, after, unlike)
    if not work and work_ratio(before, after) is None and max(shares) < _RECOGNISED:
        each = " and ".join(percent(float(share)) for share in shares)
        work = (
            f"The work may differ: only {each} of kernel time is in kernels or operator shapes "
            "of both. "
        )
    return f"{told} uncertain. " * bool(lacking) + work


def _work_words(before: Side, after: Side, unlike: Sequence[Unlike]) -> str:
    """Return in what the work of the two differs, and the time per FLOP where that is known."""
    of_work, ratio = [one for one in unlike if one.what in OF_WORK], work_ratio(before, after)
    is_other = any(one.what == OF_WORK[1] for one in of_work)
    if not (is_other or (ratio and abs(ratio - 1) > _OTHER_WORK)):
        return ""
    told = " and ".join(f"{one.what} {one.before} became {one.after}" for one in of_work)
    if ratio is None:
        return f"The work differs, {told}. "
    per_flop = float(after.mean_ns / before.mean_ns / ratio) - 1
    change = f"{percent(abs(per_flop))} {'more' if per_flop > 0 else 'less'}"
    if per_flop > 1:
        change = f"{significant(per_flop + 1, 3)} times the"
    return f"The work differs, {told}: {change} time per FLOP. "


def share_words(difference_ns: int, before: Side) -> str:
    """Return a difference as a share of the window before: "+8.1 %"."""
    return signed(percent(abs(difference_ns) / float(before.mean_ns)), difference_ns)


def interval_words(found: Interval | None, before: Side, after: Side) -> str:
    """Return within what a difference of one sign lies, in one unit."""
    if found is None:
        where = "each" if len(before.steps) == len(after.steps) else "on one side"
        return f"one step {where}: no interval"
    low, high = sorted(abs(end) for end in found)
    if low == high:
        return "the same in all steps"
    return f"95 % interval {together((low, high), ' to ')}"


def together(times_ns: Sequence[float | Fraction], between: str) -> str:
    """Return times in the unit of the longest, which stands behind them: "11.4 to 67.5 ms"."""
    unit = unit_for(float(max(times_ns)))
    return (
        f"{between.join(significant(ns / _UNITS[unit], 3, zeros=True) for ns in times_ns)} {unit}"
    )


def signed(text: str, value: float | Fraction) -> str:
    """Return an amount with its sign."""
    return f"{'-' if value < 0 else '+' if value > 0 else ''}{text}"


def reasons_of(
    before: Side, after: Side, difference_ns: int, causes: Sequence[Cause]
) -> list[Reason]:
    """Return the reasons worth naming: beyond the spread, not far below the largest.

    Where they explain less than half of the difference, components that are beyond the spread as a
    whole stand for their causes, of which most is not.
    """
    found = _worth_naming(causes)
    left = difference_ns - sum(one.ns for one in found)
    if 2 * abs(left) <= abs(difference_ns):
        return found
    whole = dict(_whole_components(before, after, causes))
    return _worth_naming([*whole.values(), *(one for one in causes if one.component not in whole)])


def _whole_components(
    before: Side, after: Side, causes: Sequence[Cause]
) -> Iterator[tuple[str, Cause]]:
    """Yield components beyond the spread as one cause: those of which most causes are within it."""
    for name in COMPONENTS:
        mine = [cause for cause in causes if cause.component == name]
        sums = Counter[bool]()
        for cause in mine:
            sums[cause.is_noise] += cause.ns
        parts = tuple(part for cause in mine for part in cause.parts)
        found = interval(before.series(name), after.series(name))
        whole = Cause(name, UNTOLD, name, sums.total(), parts, found)
        if abs(sums[True]) > abs(sums[False]) and not whole.is_noise:
            yield name, whole


def _worth_naming(causes: Sequence[Cause]) -> list[Reason]:
    groups: dict[Hashable, list[Cause]] = {}
    for cause in causes:
        if cause.ns and not cause.is_noise:
            key: Hashable = (cause.component, cause.kind, cause.subject)
            if cause.kind == REPLACED:
                key = frozenset(scope for part in cause.parts for scope in part.scopes) or REPLACED
            groups.setdefault(key, []).append(cause)
    found = sorted((Reason(tuple(mine)) for mine in groups.values()), key=lambda one: -abs(one.ns))
    return [one for one in found[:_MOST] if abs(one.ns) >= _LEAST * abs(found[0].ns)]


def reason_words(reason: Reason, before: Side, after: Side) -> str:
    """Return one reason in words: "9.80 ms more in 47 more calls of elementwise kernels"."""
    amount = f"{duration(abs(reason.ns))} {'more' if reason.ns > 0 else 'less'}"
    return " ".join([amount, *_words(reason, before, after)])


def _words(reason: Reason, before: Side, after: Side) -> Iterator[str]:
    cause, parts, more = reason.causes[0], reason.parts, reason.ns > 0
    names = parts[0].names[:: -1 if more else 1]  # those of the side with more of it first
    name = next((mine[0] for mine in names if mine), "")
    kernels = f"{cause.subject.replace('_', ' ')} kernels"
    if cause.component == "communication":
        kernels = f"transfers of {cause.subject}"
    if cause.kind == IDLE:
        yield f"idle time, {CLASSES.get(cause.subject, cause.subject)}"
    elif cause.kind == UNTOLD:
        yield PART_NAMES[cause.component]
    else:
        yield {
            PACE: f"in {'slower' if more else 'faster'} {kernels} at equal calls",
            CALLS: f"in {_calls(parts)} of {kernels}",
            NEW: f"in {_alone(parts, cause, 'new ')}",
            GONE: f"as {_alone(parts, cause)} went",
            REPLACED: f"where {_became(reason)}",
            WAIT: f"waiting for {_late(before, after, more)} in {cause.subject}",
        }[cause.kind]
    largest = abs(parts[0].ns) >= _MOSTLY * sum(abs(part.ns) for part in parts)
    if name and largest and cause.kind not in (REPLACED, WAIT):
        yield f"({short(name)})"
    told = reason.scopes - _everywhere(before) - _everywhere(after)
    if len(reason.scopes) == len(told) == 1 and cause.component != "communication":
        yield f"under {short(told.pop())}"


def _everywhere(side: Side) -> set[str | None]:
    """Return the module or annotation in which nearly all work is, as it tells nothing."""
    sums = Counter[str | None]()
    for one in side.work or ():
        sums[one.scope] += one.charged_ns
    return {scope for scope, ns in sums.items() if ns >= _NEARLY_ALL * sums.total()}


def _alone(parts: Sequence[Part], cause: Cause, new: str = "") -> str:
    """Return how many kernels one side alone has, and of what."""
    if cause.component == "communication":
        return f"{several(len(parts), f'{new}kernel')} of {cause.subject}"
    return several(len(parts), f"{new}{cause.subject.replace('_', ' ')} kernel")


def _calls(parts: Sequence[Part]) -> str:
    calls = [part.calls for part in parts if part.calls is not None]
    change = sum((new - old for old, new in calls), Fraction(0))
    number = significant(abs(change), 3)
    return f"{number} {'more' if change > 0 else 'fewer'} {'call' if number == '1' else 'calls'}"


def _became(reason: Reason) -> str:
    """Return which kernels became which: by name where it is one each, and else how many."""
    parts, of = reason.parts, {cause.subject for cause in reason.causes}
    old, new = (list({name for part in parts for name in part.names[side]}) for side in (0, 1))
    of_place = sum(abs(part.ns) for part in parts if part.way == PLACE)
    is_guess = of_place > (1 - _MOSTLY) * sum(abs(part.ns) for part in parts)
    became = "probably became" if is_guess else "became"
    if len(old) == len(new) == 1:
        return f"{short(old[0])} {became} {short(new[0])}"
    most = max(reason.causes, key=lambda cause: abs(cause.ns))
    subject, others = most.subject.replace("_", " "), " others" if len(old) == len(new) else ""
    what = f"{subject} kernel" if len(of) == 1 else "kernel"
    of_most = sum(abs(part.ns) for part in parts if part.subject == most.subject)
    mostly = len(of) > 1 and of_most >= _MOSTLY * sum(abs(part.ns) for part in parts)
    more = f", mostly {subject}" if mostly else ""
    return f"{several(len(old), what)} {became} {len(new)}{others}{more}"


def _late(before: Side, after: Side, more: bool) -> str:
    """Return the rank that others waited most for, on the side where they waited longer."""
    late = (after if more else before).late
    rank = max(late, key=lambda one: late[one], default=None)
    if rank is None or 2 * late[rank] < sum(late.values()):
        return "other ranks"
    return f"rank {rank}"


def short(name: str, longest: int = _LONGEST) -> str:
    """Return a name without namespaces, templates and parameters, cut in the middle if long."""
    head = re.sub(r"\(anonymous namespace\)::", "", without_return_type(function_name(name)))
    if "::" in head or "<" in head:
        head = head.split("<")[0].split("(")[0].rpartition("::")[2] or head
    plain = "".join(char if char.isprintable() else " " for char in head)
    return shortened(plain, longest)
