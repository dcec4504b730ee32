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

PACE, CALLS, REPLACED, NEW = "pace", "calls", "replaced", "new"
GONE, WAIT, IDLE, UNTOLD = "gone", "wait", "idle", "untold"
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

    All are rounded down. What is missing of `total` is given out in ones, first to those with the
    largest remainders: 1.2, 2.7 and 0.1 with total 4 are 1, 2 and 0, then 1, 3 and 0.
    """
    whole = [value.numerator // value.denominator for value in exact]
    if not whole:
        return whole
    # If more than one each is missing (or less than 0), each gets `for_all`.
    for_all, left = divmod(total - sum(whole), len(whole))
    remainders = [value - down for value, down in zip(exact, whole, strict=True)]
    largest_first = sorted(range(len(whole)), key=lambda index: -remainders[index])
    for turn, index in enumerate(largest_first):
        whole[index] += for_all + 1 if turn < left else for_all
    return whole


def rounded(value: Fraction) -> int:
    """Return the nearest whole number; halves are rounded up."""
    return (2 * value.numerator + value.denominator) // (2 * value.denominator)


def parts_of(before: Side, after: Side, matched: Iterable[Match]) -> list[Part]:
    """Return all parts of the difference of the step times; their `ns` sum to it exactly.

    What neither kernels nor idle culprits explain is one more part: compute takes 9 ns more, its
    kernels 7 -> 2 ns.
    """
    old_names = {kernel.name for kernel in before.work or ()}
    new_names = {kernel.name for kernel in after.work or ()}
    by_component: defaultdict[str, list[Part]] = defaultdict(list)
    for match in matched:
        for part in _of_match(match, before, after, old_names & new_names):
            by_component[part.component].append(part)
    for part in _of_idle(before, after):
        by_component["idle"].append(part)
    for name, (old_ns, new_ns) in _by_component(before, after).items():
        explained = by_component[name]
        old_rest_ns = old_ns - sum(part.before_ns for part in explained)
        new_rest_ns = new_ns - sum(part.after_ns for part in explained)
        if old_rest_ns != new_rest_ns:
            has_culprits = name == "idle" and tell_culprits(before, after)
            rest = Part(
                component=name,
                kind=IDLE if has_culprits else UNTOLD,
                subject=NO_CULPRIT if has_culprits else name,
                names=((), ()),
                scopes=(),
                way="",
                exact_ns=new_rest_ns - old_rest_ns,
                before_ns=old_rest_ns,
                after_ns=new_rest_ns,
            )
            explained.append(rest)
    differences = component_differences(before, after)
    parts = []
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
    way = match.way
    if match.before and match.after:
        kind = REPLACED
    elif all(kernel.name in common for kernel in match.work):
        # The other side has the kernel in another match: it was called from elsewhere, too.
        kind = CALLS
        way = "name"
    else:
        kind = NEW if match.after else GONE
    for component in dict.fromkeys(kernel.top for kernel in match.work):
        old_work = tuple(kernel for kernel in match.before if kernel.top == component)
        new_work = tuple(kernel for kernel in match.after if kernel.top == component)
        old_ns = before.per_window(sum(kernel.charged_ns for kernel in old_work))
        new_ns = after.per_window(sum(kernel.charged_ns for kernel in new_work))
        if old_ns == new_ns == 0:
            continue
        old_calls = before.per_window(sum(kernel.count for kernel in old_work))
        new_calls = after.per_window(sum(kernel.count for kernel in new_work))
        old_names = tuple(dict.fromkeys(kernel.name for kernel in old_work))
        new_names = tuple(dict.fromkeys(kernel.name for kernel in new_work))
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
    """Yield the parts of kernels of the same names: waiting, number of calls, time per call.

    2 calls of 10 ns become 3 of 9 ns -> CALLS from 20 to 30 ns, then PACE from 30 to 27 ns.
    """
    old_wait_ns = new_wait_ns = Fraction(0)
    # A kernel without charged time has none in which it could wait.
    old_waits, new_waits = ([k.wait_ns for k in work if k.charged_ns] for work in whole.work)
    if None not in (*old_waits, *new_waits):
        old_wait_ns = before.per_window(sum(ns or 0 for ns in old_waits))
        new_wait_ns = after.per_window(sum(ns or 0 for ns in new_waits))
    old_ns, new_ns = whole.before_ns - old_wait_ns, whole.after_ns - new_wait_ns
    at_old_pace_ns = old_ns  # the new number of calls, each as long as before
    if whole.calls is not None and all(whole.calls):
        old_calls, new_calls = whole.calls
        at_old_pace_ns = new_calls * old_ns / old_calls
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
        if component == "idle":
            spread = idle.around(ns) if idle is not None else None
        elif kind == CALLS:  # calls are counted, not measured: they have no spread
            spread = None
        else:
            spread = _spread_of(own_parts, before, after)
        own_parts.sort(key=lambda part: -abs(part.ns))
        causes.append(Cause(component, kind, subject, ns, tuple(own_parts), spread))
    return sorted(causes, key=lambda cause: (cause.is_noise, -abs(cause.ns)))


def _spread_of(parts: Sequence[Part], before: Side, after: Side) -> Interval | None:
    """Return the interval of some parts' change, as wide as that of all time of their kernels."""
    old_work = [kernel for part in parts for kernel in part.work[0]]
    new_work = [kernel for part in parts for kernel in part.work[1]]
    old, new = before.series_of(old_work), after.series_of(new_work)
    if not (old_work or new_work) or old is None or new is None:
        return None
    change = interval(old, new)
    exact_ns = sum(part.exact_ns for part in parts)
    return change.around(float(exact_ns)) if change is not None else None
