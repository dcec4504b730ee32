"""Two recordings of counters: which kernels are the same, and what their launches take.

Their times are of launches that ran serialized, mostly at locked clocks: means per launch.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from traceflops.categories.kernel_names import from_own_word
from traceflops.comparison.matching import family
from traceflops.facts import Fact, fact
from traceflops.findings.finding import short_name
from traceflops.mfu.counted.kernel_speeds import ROOFS

if TYPE_CHECKING:
    from traceflops.comparison.side import Side
    from traceflops.mfu.counted.kernel_speeds import KernelSpeed

_ARGUMENTS: Final = re.compile(r"^(\w+)\(.*", re.S)
_WAYS: Final[tuple[Callable[[KernelSpeed], object], ...]] = (
    lambda speed: (speed.name, speed.grid, speed.block),
    lambda speed: speed.name,
    lambda speed: family(speed.name),
)
"""By what kernels are matched: name and size, else name, else name without sizes and templates."""


@dataclass(frozen=True, slots=True)
class KernelChange:
    """One kernel before and after, None on a side without it; times are ns per launch."""

    before: KernelSpeed | None
    after: KernelSpeed | None

    @property
    def before_ns(self) -> float | None:
        """Return the mean time of a launch before, None where it is not known."""
        return _mean_ns(self.before)

    @property
    def after_ns(self) -> float | None:
        """Return the mean time of a launch after, None where it is not known."""
        return _mean_ns(self.after)

    @property
    def share(self) -> float | None:
        """Return by which share of its time a launch takes longer, None where that is unknown."""
        old, new = self.before_ns, self.after_ns
        return new / old - 1 if old and new is not None else None

    @property
    def names(self) -> tuple[str, ...]:
        """Return its name, or both where a side has another."""
        sides = (self.before, self.after)
        return tuple(dict.fromkeys(side.name for side in sides if side is not None))


def kernel_changes(before: Side, after: Side) -> tuple[KernelChange, ...]:
    """Return counted kernels of two sides without a timeline, the largest change first.

    Empty where a side has a timeline or no counters. A kernel of one side alone comes last.
    """
    if before.windows or after.windows or not (before.speeds and after.speeds):
        return ()
    return tuple(sorted(_matched(before.speeds, after.speeds), key=_order))


def largest_change(changes: tuple[KernelChange, ...]) -> Fact | None:
    """Return the largest change of a kernel with both times known, None where there is none."""
    if changes and all(change.before is None or change.after is None for change in changes):
        return fact("counters-compared.none-in-both")
    change = next((change for change in changes if change.share is not None), None)
    if change is None or change.share is None:
        return None
    if change.before_ns == change.after_ns:
        return fact("counters-compared.same")
    sides = [speed.roof for speed in (change.before, change.after) if speed is not None]
    roofs = dict.fromkeys(roof for roof in sides if roof is not None)
    names = from_own_word(change.names)
    return fact(
        "counters-compared.change",
        names=tuple(short_name(_ARGUMENTS.sub(r"\1", name)) for name in names),
        before_ns=change.before_ns,
        after_ns=change.after_ns,
        share=change.share,
        roofs=tuple(
            fact("counters-compared.roof", roof=ROOFS[roof], share=share) for roof, share in roofs
        )
        if None not in sides and len(sides) == 2
        else (),
    )


def _matched(
    before: tuple[KernelSpeed, ...], after: tuple[KernelSpeed, ...]
) -> Iterator[KernelChange]:
    """Yield pairs of which each side has one alone that is alike, then what is of one side."""
    old, new = list(before), list(after)
    for key_of in _WAYS:
        before_groups, others = _by(key_of, old), _by(key_of, new)
        pairs = [
            (before_groups[key][0], others[key][0])
            for key in before_groups
            if len(before_groups[key]) == len(others.get(key, ())) == 1
        ]
        yield from (KernelChange(*pair) for pair in pairs)
        done = [{id(pair[side]) for pair in pairs} for side in (0, 1)]
        old = [kernel for kernel in old if id(kernel) not in done[0]]
        new = [kernel for kernel in new if id(kernel) not in done[1]]
    yield from (KernelChange(kernel, None) for kernel in old)
    yield from (KernelChange(None, kernel) for kernel in new)


def _by(
    key_of: Callable[[KernelSpeed], object], speeds: list[KernelSpeed]
) -> dict[object, list[KernelSpeed]]:
    groups: dict[object, list[KernelSpeed]] = defaultdict(list)
    for speed in speeds:
        groups[key_of(speed)].append(speed)
    return groups


def _order(change: KernelChange) -> tuple[bool, float]:
    old, new = change.before_ns, change.after_ns
    return old is None or new is None, -abs((old or 0.0) - (new or 0.0))


def _mean_ns(speed: KernelSpeed | None) -> float | None:
    if speed is None or speed.duration_ns is None:
        return None
    return speed.duration_ns / speed.launches
