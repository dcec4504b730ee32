"""A comparison as statements: what changed, by how much, why, and how sure.

    sides, causes, interval  ->  reasons worth naming  ->  facts  ->  words

The words are in `reports.view`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from fractions import Fraction
from typing import Final

from msgspec import Struct

from traceflops.attribution.idle_classes import CLASSES
from traceflops.categories.kernel_names import without_return_type
from traceflops.characters import function_name, shortened
from traceflops.comparison import difference
from traceflops.comparison.difference import REPLACED, Cause, Part
from traceflops.comparison.matching import OF_WORK, SHAPE, Unlike, work_ratio
from traceflops.comparison.side import Side
from traceflops.comparison.spread import Interval, interval
from traceflops.facts import Fact, Value
from traceflops.timeline.records import COMPONENTS
from traceflops.units import PART_NAMES

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


class Reason(Struct, frozen=True):
    """Causes that belong together, such as kernels that replace those of other components."""

    causes: tuple[Cause, ...]

    @property
    def ns(self) -> int:
        """Return the sum of their changes in ns."""
        return sum(cause.ns for cause in self.causes)

    @property
    def parts(self) -> list[Part]:
        """Return their parts, the largest first."""
        parts = [part for cause in self.causes for part in cause.parts]
        return sorted(parts, key=lambda part: -abs(part.ns))


def statement(
    before: Side,
    after: Side,
    difference_ns: int,
    spread: Interval | None,
    reasons: Sequence[Reason],
) -> Fact:
    """Return the main statement as a fact: the change, its `reasons`, and how sure it is."""
    change: dict[str, Value] = {"signed_ns": difference_ns, "ns": abs(difference_ns)}
    change["share"] = share_of(difference_ns, before)
    if spread is not None and spread.holds_zero:
        ends = (float(spread.low_ns), float(spread.high_ns))
        return _fact("within-spread", low_ns=ends[0], high_ns=ends[1], **change)
    sure = sureness(spread, before, after)
    if not difference_ns:
        return _fact("same-time", sure=sure, **change)
    code = "steps" if before.steps else "recording"
    facts = tuple(reason_fact(reason, before, after) for reason in reasons)
    facts = facts or (_fact("no-cause"),)
    return _fact(code, more=_more(difference_ns), sure=sure, reasons=facts, **change)


def title_of(before: Side, after: Side, difference_ns: int, reasons: Sequence[Reason]) -> Fact:
    """Return the short statement for a title: the change and its first reason."""
    why = reason_fact(reasons[0], before, after, named=False) if reasons else None
    code = "steps" if before.steps else "recording"
    if not difference_ns:
        return _fact("title-same")
    ns = abs(difference_ns)
    return _fact(f"title-{code}", ns=ns, more=_more(difference_ns), reason=why)


def caveats(
    before: Side, after: Side, unlike: Sequence[Unlike], shares: Sequence[Fraction]
) -> tuple[Fact, ...]:
    """Return caveats to the statement: missing records, and other work.

    `shares` are, for both sides, the share of its kernel time that the other side has, too.
    """
    incomplete = tuple(side.name for side in (before, after) if side.lacks_records)
    facts = [_fact("records-incomplete", sides=incomplete)] if incomplete else []
    changes = tuple(
        _fact("became", what=differing.what, before=differing.before, after=differing.after)
        for differing in unlike
        if differing.what in OF_WORK
    )
    ratio = work_ratio(before, after)
    has_other_shape = any(differing.what == SHAPE for differing in unlike)
    has_other_flops = ratio is not None and abs(ratio - 1) > _OTHER_WORK
    if not (has_other_shape or has_other_flops):
        if ratio is None and max(shares) < _RECOGNISED:
            facts.append(_fact("work-may-differ", first=float(shares[0]), second=float(shares[1])))
    elif ratio is None:
        facts.append(_fact("other-work", changes=changes))
    else:
        # Twice the FLOPs in 3 times the time: the same work takes 1.5 times as long.
        times = float(after.mean_ns / before.mean_ns / ratio)
        code = "less"
        if times > 1:
            code = "times" if times > 2 else "more"
        share = abs(times - 1)
        facts.append(_fact(f"other-work-{code}", changes=changes, times=times, share=share))
    return tuple(facts)


def share_of(difference_ns: int, before: Side) -> float:
    """Return a difference as a share of the mean window before."""
    return difference_ns / float(before.mean_ns)


def sureness(spread: Interval | None, before: Side, after: Side) -> Fact:
    """Return how sure a difference is: its interval, which does not hold 0, or why it has none."""
    if spread is None:  # at least one side has a single step
        is_one_each = len(before.steps) == len(after.steps)
        return _fact("one-step-each" if is_one_each else "one-step-on-one-side")
    low, high = sorted(abs(end) for end in spread)
    if low == high:
        return _fact("same-in-all-steps")
    return _fact("interval", ends=(low, high))


def reasons_of(
    before: Side, after: Side, difference_ns: int, causes: Sequence[Cause]
) -> list[Reason]:
    """Return the reasons worth naming: beyond the spread, not far below the largest.

    1. If the causes beyond the spread explain half of the difference, they are the reasons.
    2. Else a component is one cause if it is mostly noise cause by cause, but not as a whole: 1 ms
       of each of 40 kernels may be noise, 40 ms are not.
    """
    reasons = _worth_naming(causes)
    unexplained_ns = difference_ns - sum(reason.ns for reason in reasons)
    if 2 * abs(unexplained_ns) <= abs(difference_ns):
        return reasons
    wholes: dict[str, Cause] = {}  # by component
    for name in COMPONENTS:
        own = [cause for cause in causes if cause.component == name]
        total_ns = sum(cause.ns for cause in own)
        noise_ns = sum(cause.ns for cause in own if cause.is_noise)
        parts = tuple(part for cause in own for part in cause.parts)
        change = interval(before.series(name), after.series(name))
        whole = Cause(name, difference.UNTOLD, name, total_ns, parts, change)
        is_mostly_noise = abs(noise_ns) > abs(total_ns - noise_ns)
        if is_mostly_noise and not whole.is_noise:
            wholes[name] = whole
    others = [cause for cause in causes if cause.component not in wholes]
    return _worth_naming([*wholes.values(), *others])


def _worth_naming(causes: Sequence[Cause]) -> list[Reason]:
    """Return the largest reasons beyond the spread, without those far below the first one.

    Replaced kernels of the same scopes are one reason, whatever their component.
    """
    groups: dict[Hashable, list[Cause]] = {}
    for cause in causes:
        if not cause.ns or cause.is_noise:
            continue
        key: Hashable = (cause.component, cause.kind, cause.subject)
        if cause.kind == REPLACED:
            key = frozenset(scope for part in cause.parts for scope in part.scopes)
        groups.setdefault(key, []).append(cause)
    reasons = [Reason(tuple(group)) for group in groups.values()]
    reasons.sort(key=lambda reason: -abs(reason.ns))
    return [reason for reason in reasons[:_MOST] if abs(reason.ns) >= _LEAST * abs(reasons[0].ns)]


def reason_fact(reason: Reason, before: Side, after: Side, *, named: bool = True) -> Fact:
    """Return one reason as a fact.

    If `named`, it names the kernel with most of the change, and the scope if all of it is in one.
    """
    name = _kernel_of(reason) if named else None
    scope = _scope_of(reason, before, after) if named else None
    ns, more, where = abs(reason.ns), _more(reason.ns), _where(reason, before, after)
    return _fact("reason", ns=ns, more=more, where=where, name=name, scope=scope)


def _kernel_of(reason: Reason) -> str | None:
    """Return the name of the kernel or culprit with most of a reason's change, if one has most."""
    if reason.causes[0].kind in (REPLACED, difference.WAIT):
        return None  # several kernels replace several others; a wait is for a rank
    largest = reason.parts[0]
    if abs(largest.ns) < _MOSTLY * sum(abs(part.ns) for part in reason.parts):
        return None
    # The name on the side with more time, if it has one.
    old_names, new_names = largest.names
    names = (*new_names, *old_names) if reason.ns > 0 else (*old_names, *new_names)
    return short(names[0]) if names and names[0] else None


def _scope_of(reason: Reason, before: Side, after: Side) -> str | None:
    """Return a reason's only scope; None if it is around all kernels, or launches transfers."""
    scopes = {scope for part in reason.parts for scope in part.scopes}
    if len(scopes) != 1 or reason.causes[0].component == "communication":
        return None
    telling = scopes - _everywhere(before) - _everywhere(after)
    return short(telling.pop()) if telling else None


def _where(reason: Reason, before: Side, after: Side) -> Fact | str:
    """Return where the time of a reason went, by the kind of its causes."""
    cause = reason.causes[0]
    is_more = reason.ns > 0
    is_transfer = cause.component == "communication"
    subject = cause.subject if is_transfer else cause.subject.replace("_", " ")
    kernels = _fact("transfers" if is_transfer else "kernels", subject=subject)
    match cause.kind:
        case difference.IDLE:
            return _fact("idle", kind=CLASSES.get(cause.subject, cause.subject))
        case difference.UNTOLD:
            return PART_NAMES[cause.component]
        case difference.PACE:
            return _fact("slower" if is_more else "faster", kernels=kernels)
        case difference.CALLS:
            calls = [part.calls for part in reason.parts if part.calls is not None]
            change = sum((new - old for old, new in calls), Fraction(0))
            code = "more-calls" if change > 0 else "fewer-calls"
            return _fact(code, count=abs(change), kernels=kernels)
        case difference.NEW | difference.GONE as kind:
            one_side = "of-one-side-transfers" if is_transfer else "of-one-side"
            return _fact(f"{one_side}-{kind}", count=len(reason.parts), subject=subject)
        case difference.WAIT:
            # A rank that caused half of all waiting is named; of the side with longer waiting.
            late = (after if is_more else before).late
            rank = max(late, key=lambda rank: late[rank], default=None)
            if rank is None or 2 * late[rank] < sum(late.values()):
                return _fact("waiting-for-others", subject=cause.subject)
            return _fact("waiting-for-rank", rank=rank, subject=cause.subject)
        case _:  # REPLACED
            return _became(reason)


def _more(ns: int) -> Fact:
    return _fact("more" if ns > 0 else "less")


def _everywhere(side: Side) -> set[str | None]:
    """Return the scopes that hold nearly all work; naming them would tell nothing."""
    sums = Counter[str | None]()
    for work in side.work or ():
        sums[work.scope] += work.charged_ns
    return {scope for scope, ns in sums.items() if ns >= _NEARLY_ALL * sums.total()}


def _became(reason: Reason) -> Fact:
    """Return which kernels became which: "a became b", "6 kernels became 1, mostly attention"."""
    parts = reason.parts
    old = {name for part in parts for name in part.names[0]}
    new = {name for part in parts for name in part.names[1]}
    if len(old) == len(new) == 1:
        return _fact("one-became", old=short(old.pop()), new=short(new.pop()))
    largest = max(reason.causes, key=lambda cause: abs(cause.ns)).subject
    subject = largest.replace("_", " ")
    is_only_one = all(cause.subject == largest for cause in reason.causes)
    all_ns = sum(abs(part.ns) for part in parts)
    largest_ns = sum(abs(part.ns) for part in parts if part.subject == largest)
    is_mostly_one = not is_only_one and largest_ns >= _MOSTLY * all_ns
    return _fact(
        "some-became-others" if len(old) == len(new) else "some-became",
        count=len(old),
        subject=subject if is_only_one else None,
        new=len(new),
        mostly=subject if is_mostly_one else None,
    )


def short(name: str, longest: int = _LONGEST) -> str:
    """Return a name without namespaces, templates and parameters, cut in the middle if long."""
    head = re.sub(r"\(anonymous namespace\)::", "", without_return_type(function_name(name)))
    if "::" in head or "<" in head:
        head = head.split("<")[0].split("(")[0].rpartition("::")[2] or head
    plain = "".join(char if char.isprintable() else " " for char in head)
    return shortened(plain, longest)


def _fact(name: str, /, **values: Value) -> Fact:
    return Fact(f"comparison.{name}", values)
