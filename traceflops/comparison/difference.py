"""From the old step time to the new one: by component, then by cause; the parts sum exactly.

Times are means per window as exact fractions, so recordings of different length compare. They
become whole ns by the method of the largest remainder: first the components, so that they sum to
the difference of the rounded step times, then the parts of each.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from fractions import Fraction
from operator import attrgetter
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from traceflops.attribution.charged import ChargedKernel
from traceflops.attribution.marks import numberless
from traceflops.comparison.matching import Match, Work
from traceflops.comparison.side import Side
from traceflops.comparison.spread import Interval, interval
from traceflops.timeline.records import COMPONENTS

PACE, CALLS, REPLACED, NEW, GONE, WAIT, IDLE, UNTOLD = (
    *("pace", "calls", "replaced", "new", "gone", "wait", "idle", "untold"),
)
"""Kinds of causes: time per call at equal calls, number of calls, other kernels for the same work,
kernels on one side only, waiting for other ranks, idle time, and what is not told apart."""
_COLLECTIVE: Final = re.compile(r"(?:nccl|rccl|c10d|gloo)::?([a-z_]+)")
NO_CULPRIT: Final = "no culprit"


class Part(Struct, frozen=True):
    """A change of one thing: from `before_ns` to `after_ns` per window, `exact_ns` more.

    `kind` is PACE, CALLS, ... `subject` is a category of kernels (with the group of ranks), or a
    class of idle time. `names` are kernels or a culprit, by side. `way` says how both sides were
    matched (`Match.way`). `calls` are the numbers of calls per window by side, None for idle time.
    `work` are the kernels by side. `ns` is `exact_ns` rounded.
    """

    component: str
    kind: str
    subject: str
    names: tuple[tuple[str, ...], tuple[str, ...]]
    scopes: tuple[str, ...]
    way: str
    exact_ns: Fraction
    before_ns: Fraction
    after_ns: Fraction
    calls: tuple[Fraction, Fraction] | None = None
    work: tuple[Work, Work] = ((), ())
    ns: int = 0


class Cause(Struct, frozen=True):
    """All parts of one component, kind and subject, the largest first; `ns` is their sum.

    `interval` is the 95 % confidence interval of `ns`. For idle time it is as wide as that of all
    idle time. It is None for CALLS, and if the times of single steps are not known.
    """

    component: str
    kind: str
    subject: str
    ns: int
    parts: tuple[Part, ...]
    interval: Interval | None

    @property
    def is_noise(self) -> bool:
        """Return whether the spread between steps may explain the change."""
        return self.interval is not None and self.interval.holds_zero


def apportioned(exact: Sequence[Fraction], total: int) -> list[int]:
    """Return exact values as whole numbers that sum to `total`, by the largest remainder.

    All are rounded down, then those with the largest remainders get 1 more until the sum fits. A
    `total` that is further from the sum of the values is spread over all of them.
    """
    whole = [value.numerator // value.denominator for value in exact]
    if not whole:
        return whole
    by_remainder = sorted(range(len(whole)), key=lambda index: whole[index] - exact[index])
    for_all, left = divmod(total - sum(whole), len(whole))
    for rank, index in enumerate(by_remainder):
        whole[index] += for_all + (rank < left)
    return whole


def rounded(value: Fraction) -> int:
    """Return the nearest whole number; halves are rounded up."""
    return (2 * value.numerator + value.denominator) // (2 * value.denominator)


def parts_of(before: Side, after: Side, matched: Iterable[Match]) -> list[Part]:
    """Return all parts of the difference of the step times; their `ns` sum to it exactly."""
    common = {kernel.name for kernel in before.work or ()}
    common &= {kernel.name for kernel in after.work or ()}
    by_component: defaultdict[str, list[Part]] = defaultdict(list)
    of_matches = (part for match in matched for part in _of_match(match, before, after, common))
    for part in (*of_matches, *_of_idle(before, after)):
        by_component[part.component].append(part)
    # What the parts of a component do not explain of its difference is one more part.
    for name, (old_ns, new_ns) in _by_component(before, after).items():
        of_component = by_component[name]
        unexplained_ns = new_ns - old_ns - sum(part.exact_ns for part in of_component)
        if unexplained_ns:
            has_culprits = name == "idle" and tell_culprits(before, after)
            kind, subject = (IDLE, NO_CULPRIT) if has_culprits else (UNTOLD, name)
            rest = Part(
                component=name,
                kind=kind,
                subject=subject,
                names=((), ()),
                scopes=(),
                way="",
                exact_ns=unexplained_ns,
                before_ns=old_ns - sum(part.before_ns for part in of_component),
                after_ns=new_ns - sum(part.after_ns for part in of_component),
            )
            of_component.append(rest)
    differences, parts = component_differences(before, after), []
    for name, of_component in by_component.items():
        whole_ns = apportioned([part.exact_ns for part in of_component], differences[name])
        pairs = zip(of_component, whole_ns, strict=True)
        parts += [replace(part, ns=ns) for part, ns in pairs]
    return parts


def component_differences(before: Side, after: Side) -> dict[str, int]:
    """Return the difference of each component in whole ns; they sum to that of the step times."""
    total = rounded(after.mean_ns) - rounded(before.mean_ns)
    exact = [new - old for old, new in _by_component(before, after).values()]
    return dict(zip(COMPONENTS, apportioned(exact, total), strict=True))


def _by_component(before: Side, after: Side) -> dict[str, tuple[Fraction, Fraction]]:
    """Return the mean time of each component per window, before and after."""
    old, new = (side.components.parts() for side in (before, after))
    return {name: (before.per_window(old[name]), after.per_window(new[name])) for name in old}


def _of_match(match: Match, before: Side, after: Side, common: Set[str]) -> Iterator[Part]:
    """Yield the parts of a match by component; `common` are kernel names that both sides have."""
    kind, way = NEW if match.after else GONE, match.way
    if match.before and match.after:
        kind = REPLACED
    elif all(kernel.name in common for kernel in match.work):
        kind, way = CALLS, "name"  # the other side has the kernel, but in another match
    for component in dict.fromkeys(kernel.top for kernel in match.work):
        old_work, new_work = (
            tuple(kernel for kernel in kernels if kernel.top == component)
            for kernels in (match.before, match.after)
        )
        sides = ((old_work, before), (new_work, after))
        old_ns, new_ns = (
            side.per_window(sum(kernel.charged_ns for kernel in work)) for work, side in sides
        )
        if old_ns == new_ns == 0:
            continue
        old_calls, new_calls = (
            side.per_window(sum(kernel.count for kernel in work)) for work, side in sides
        )
        old_names, new_names = (
            tuple(dict.fromkeys(kernel.name for kernel in work)) for work, _ in sides
        )
        kernels = (*old_work, *new_work)
        whole = Part(
            component=component,
            kind=kind,
            subject=_subject(max(kernels, key=attrgetter("charged_ns"))),
            names=(old_names, new_names),
            scopes=tuple(dict.fromkeys(kernel.scope for kernel in kernels if kernel.scope)),
            way=way,
            exact_ns=new_ns - old_ns,
            before_ns=old_ns,
            after_ns=new_ns,
            calls=(old_calls, new_calls),
            work=(old_work, new_work),
        )
        yield from _split(whole, before, after) if match.is_same else (whole,)


def _subject(kernel: ChargedKernel) -> str:
    """Return what a kernel does: its category, or the collective, and the group of ranks."""
    is_communication = kernel.top == "communication"
    collective = _COLLECTIVE.fullmatch(kernel.scope or "") if is_communication else None
    what = collective[1] if collective is not None else kernel.sub
    return f"{what} of group {kernel.group}" if kernel.group else what


def _split(whole: Part, before: Side, after: Side) -> Iterator[Part]:
    """Yield the parts of kernels of the same names: waiting, number of calls, time per call."""
    old_ns, new_ns = whole.before_ns, whole.after_ns
    old_wait_ns, new_wait_ns = Fraction(0), Fraction(0)
    # A kernel without charged time has none in which it could wait.
    old_waits, new_waits = ([k.wait_ns for k in work if k.charged_ns] for work in whole.work)
    waits = [*old_waits, *new_waits]
    if waits and None not in waits:
        old_wait_ns = before.per_window(sum(ns or 0 for ns in old_waits))
        new_wait_ns = after.per_window(sum(ns or 0 for ns in new_waits))
    old_ns, new_ns = old_ns - old_wait_ns, new_ns - new_wait_ns
    # More calls at the old time per call; the rest is due to another time per call.
    old_calls, new_calls = whole.calls or (Fraction(0), Fraction(0))
    by_calls_ns = Fraction(0)
    if old_calls and new_calls:
        by_calls_ns = (new_calls - old_calls) * old_ns / old_calls
    at_old_pace_ns = old_ns + by_calls_ns
    ends_by_kind = {
        WAIT: (old_wait_ns, new_wait_ns),
        CALLS: (old_ns, at_old_pace_ns),
        PACE: (at_old_pace_ns, new_ns),
    }
    for kind, (start, end) in ends_by_kind.items():
        if start != end:
            yield replace(whole, kind=kind, exact_ns=end - start, before_ns=start, after_ns=end)


def _of_idle(before: Side, after: Side) -> Iterator[Part]:
    """Yield the parts of idle time by culprit.

    Labels of the same culprit may differ in numbers and in what follows a "#", which is a class:
    "Optimizer.step#Adam.step" is the culprit "Optimizer.step".
    """
    if not tell_culprits(before, after):
        return
    # Per class and culprit: the idle time in ns and the first label, [before, after].
    sums_ns: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    labels: defaultdict[tuple[str, str], list[tuple[str, ...]]] = defaultdict(lambda: [(), ()])
    for index, side in enumerate((before, after)):
        for culprit in side.idle:
            key = (culprit.kind, numberless(culprit.label).partition("#")[0])
            sums_ns[key][index] += culprit.idle_ns
            labels[key][index] = labels[key][index] or (culprit.label,)
    for (kind, name), (old_names, new_names) in labels.items():
        old_ns, new_ns = sums_ns[kind, name]
        old, new = before.per_window(old_ns), after.per_window(new_ns)
        way = "culprit" if old_names and new_names else ""  # "": one side lacks it
        yield Part("idle", IDLE, kind, (old_names, new_names), (), way, new - old, old, new)


def tell_culprits(*sides: Side) -> bool:
    """Return whether all sides know the culprits of at least half of their idle time."""
    return all(
        2 * sum(culprit.idle_ns for culprit in side.idle) >= side.components.idle_ns
        for side in sides
    )


def causes_of(before: Side, after: Side, parts: Iterable[Part]) -> list[Cause]:
    """Return a cause per component, kind and subject: noise last, the largest first."""
    groups: defaultdict[tuple[str, str, str], list[Part]] = defaultdict(list)
    for part in parts:
        groups[part.component, part.kind, part.subject].append(part)
    idle = interval(before.series("idle"), after.series("idle"))
    causes = []
    for (component, kind, subject), own_parts in groups.items():
        ns = sum(part.ns for part in own_parts)
        spread = None
        if component == "idle":
            spread = idle and idle.around(ns)
        elif kind != CALLS:  # calls are counted, not measured: they have no spread
            # The interval is that of all time of these kernels, moved to this part of its change.
            old_work, new_work = (
                [kernel for part in own_parts for kernel in part.work[side]] for side in (0, 1)
            )
            old, new = before.series_of(old_work), after.series_of(new_work)
            if (old_work or new_work) and old is not None and new is not None:
                exact_ns = sum((part.exact_ns for part in own_parts), Fraction(0))
                change = interval(old, new)
                spread = change and change.around(float(exact_ns))
        own_parts.sort(key=lambda part: -abs(part.ns))
        causes.append(Cause(component, kind, subject, ns, tuple(own_parts), spread))
    return sorted(causes, key=lambda cause: (cause.is_noise, -abs(cause.ns)))
