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
    class of idle time. `names` are kernels or a culprit, by side. `way` is by what both sides were
    matched. `calls` are per window and side, None if there are none. `ns` is `exact_ns` rounded.
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
    """All parts of one component, kind and subject, the largest first.

    `interval` holds `ns` with a confidence of 95 %. For idle time it is as wide as that of all idle
    time; it is None if the times of single steps are not known, and for numbers of calls.
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
    """Return exact values as whole numbers that sum to `total`, by the largest remainder."""
    whole = [value.numerator // value.denominator for value in exact]
    if not whole:
        return whole
    # As a rule `each` is 0: the values with the largest remainders get 1 more.
    by_remainder = sorted(range(len(whole)), key=lambda part: whole[part] - exact[part])
    left = total - sum(whole)
    each, rest = divmod(left, len(whole))
    for place, part in enumerate(by_remainder):
        whole[part] += each + (place < rest)
    return whole


def rounded(value: Fraction) -> int:
    """Return the nearest whole number; halves are rounded up."""
    return (2 * value.numerator + value.denominator) // (2 * value.denominator)


def parts_of(before: Side, after: Side, matched: Iterable[Match]) -> list[Part]:
    """Return all parts of the difference, each with its whole ns; they sum to it exactly."""
    common = {kernel.name for kernel in before.work or ()}
    common &= {kernel.name for kernel in after.work or ()}
    by_component: defaultdict[str, list[Part]] = defaultdict(list)
    of_matches = (part for match in matched for part in _of_match(match, before, after, common))
    for part in (*of_matches, *_of_idle(before, after)):
        by_component[part.component].append(part)
    # What the parts of a component leave of its difference is one more part.
    for name, (old, new) in _by_component(before, after).items():
        of_component = by_component[name]
        left = new - old - sum(part.exact_ns for part in of_component)
        if left:
            old -= sum(part.before_ns for part in of_component)
            new -= sum(part.after_ns for part in of_component)
            has_culprits = name == "idle" and tell_culprits(before, after)
            kind, subject = (IDLE, NO_CULPRIT) if has_culprits else (UNTOLD, name)
            of_component.append(Part(name, kind, subject, ((), ()), (), "", left, old, new))
    whole, parts = component_differences(before, after), []
    for name, of_component in by_component.items():
        whole_ns = apportioned([part.exact_ns for part in of_component], whole[name])
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
    for top in dict.fromkeys(kernel.top for kernel in match.work):
        work = (
            tuple(kernel for kernel in match.before if kernel.top == top),
            tuple(kernel for kernel in match.after if kernel.top == top),
        )
        sides = tuple(zip(work, (before, after), strict=True))
        old, new = (
            side.per_window(sum(kernel.charged_ns for kernel in kernels)) for kernels, side in sides
        )
        old_calls, new_calls = (
            side.per_window(sum(kernel.count for kernel in kernels)) for kernels, side in sides
        )
        if old == new == 0:
            continue
        # The subject: the category with most time; of communication, the collective and its group.
        kernels = (*work[0], *work[1])
        largest = max(kernels, key=attrgetter("charged_ns"))
        collective = _COLLECTIVE.fullmatch(largest.scope or "") if top == "communication" else None
        what = collective[1] if collective is not None else largest.sub
        subject = f"{what} of group {largest.group}" if largest.group else what
        old_names, new_names = (
            tuple(dict.fromkeys(kernel.name for kernel in of_side)) for of_side in work
        )
        scopes = tuple(dict.fromkeys(kernel.scope for kernel in kernels if kernel.scope))
        names, calls, times = (old_names, new_names), (old_calls, new_calls), (new - old, old, new)
        whole = Part(top, kind, subject, names, scopes, way, *times, calls, work)
        yield from _split(whole, sides) if match.is_same else (whole,)


def _split(whole: Part, sides: Sequence[tuple[Work, Side]]) -> Iterator[Part]:
    """Yield the parts of kernels of the same names: waiting, number of calls, time per call."""
    times, waits = [whole.before_ns, whole.after_ns], [Fraction(0)] * 2
    # A kernel without charged time has none in which it could wait.
    waits_by_side = [[kernel.wait_ns for kernel in work if kernel.charged_ns] for work, _ in sides]
    if all(None not in waits_ns for waits_ns in waits_by_side) and any(waits_by_side):
        waits = [
            side.per_window(sum(wait_ns or 0 for wait_ns in waits_ns))
            for waits_ns, (_, side) in zip(waits_by_side, sides, strict=True)
        ]
        times = [time - wait for time, wait in zip(times, waits, strict=True)]
    old, new = times
    old_calls, new_calls = whole.calls or (Fraction(0), Fraction(0))
    # More calls at the old time per call; the rest is due to another time per call.
    by_calls = Fraction(0)
    if old_calls and new_calls:
        by_calls = (new_calls - old_calls) * old / old_calls
    kinds = {
        WAIT: (waits[1] - waits[0], *waits),
        CALLS: (by_calls, old, old + by_calls),
        PACE: (new - old - by_calls, old + by_calls, new),
    }
    for kind, (exact, start, end) in kinds.items():
        if exact:
            yield replace(whole, kind=kind, exact_ns=exact, before_ns=start, after_ns=end)


def _of_idle(before: Side, after: Side) -> Iterator[Part]:
    """Yield the parts of idle time by culprit.

    Labels of the same culprit may differ in numbers and in what follows a "#", which is a class:
    "Optimizer.step#Adam.step" is the culprit "Optimizer.step".
    """
    if not tell_culprits(before, after):
        return
    sums: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    labels: defaultdict[tuple[str, str], list[tuple[str, ...]]] = defaultdict(lambda: [(), ()])
    for number, side in enumerate((before, after)):
        for culprit in side.idle:
            key = (culprit.kind, numberless(culprit.label).partition("#")[0])
            sums[key][number] += culprit.idle_ns
            labels[key][number] = labels[key][number] or (culprit.label,)
    for key, names in labels.items():
        old, new = before.per_window(sums[key][0]), after.per_window(sums[key][1])
        way = "culprit" if all(names) else ""  # how it was matched; "": one side lacks it
        yield Part("idle", IDLE, key[0], (names[0], names[1]), (), way, new - old, old, new)


def tell_culprits(*sides: Side) -> bool:
    """Return whether all sides know the culprits of at least half of their idle time."""
    named_ns = (2 * sum(culprit.idle_ns for culprit in side.idle) for side in sides)
    return all(ns >= side.components.idle_ns for ns, side in zip(named_ns, sides, strict=True))


def causes_of(before: Side, after: Side, parts: Iterable[Part]) -> list[Cause]:
    """Return the parts by component, kind and subject: first those beyond the spread, by size."""
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
            # The spread between steps of all time of these kernels, around this change of it.
            work = [[kernel for part in own_parts for kernel in part.work[n]] for n in (0, 1)]
            old, new = before.series_of(work[0]), after.series_of(work[1])
            if any(work) and old is not None and new is not None:
                exact_ns = sum((part.exact_ns for part in own_parts), Fraction(0))
                change = interval(old, new)
                spread = change and change.around(float(exact_ns))
        own_parts.sort(key=lambda part: -abs(part.ns))
        causes.append(Cause(component, kind, subject, ns, tuple(own_parts), spread))
    return sorted(causes, key=lambda cause: (cause.is_noise, -abs(cause.ns)))
