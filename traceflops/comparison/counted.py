"""Two recordings of counters: which kernels are the same, and what their launches take.

Their times are of launches that ran serialized, mostly at locked clocks: means per launch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from typing import Final

from msgspec import Struct

from traceflops.categories.kernel_names import from_own_word
from traceflops.comparison.matching import family, grouped
from traceflops.comparison.side import Side
from traceflops.facts import Fact, fact
from traceflops.findings.finding import short_name
from traceflops.mfu.counted.kernel_speeds import ROOFS, KernelSpeed

_WORD_BEFORE_ARGUMENTS: Final = re.compile(r"^(\w+)\(.*", re.S)
_KEYS: Final[tuple[Callable[[KernelSpeed], Hashable], ...]] = (
    lambda speed: (speed.name, speed.grid, speed.block),
    lambda speed: speed.name,
    lambda speed: family(speed.name),
)
"""What kernels are matched by: name and size, else name, else name without sizes and templates."""


class KernelChange(Struct, frozen=True):
    """One kernel before and after, None on a side that lacks it; times are ns per launch."""

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
        """Return the change of a launch's time as a share of the time before, None if unknown."""
        old, new = self.before_ns, self.after_ns
        return new / old - 1 if old and new is not None else None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the name of the kernel; both names if they differ between the sides."""
        sides = (self.before, self.after)
        return tuple(dict.fromkeys(side.name for side in sides if side is not None))


def kernel_changes(before: Side, after: Side) -> tuple[KernelChange, ...]:
    """Return the counted kernels of two sides, the largest change first.

    Each of `_KEYS` matches what the one before left. It matches two kernels if each is the only one
    of its side with that key: two `gemm` before and one after do not match by name. Kernels of one
    side only come last. Empty if a side has a timeline or no counters.
    """
    if before.windows or after.windows or not (before.speeds and after.speeds):
        return ()
    changes = []
    matched: set[int] = set()  # ids of kernels
    for key_of in _KEYS:
        old_left = [kernel for kernel in before.speeds if id(kernel) not in matched]
        new_left = [kernel for kernel in after.speeds if id(kernel) not in matched]
        new_by_key = grouped(key_of, new_left)
        for key, old in grouped(key_of, old_left).items():
            new = new_by_key.get(key, [])
            if len(old) == len(new) == 1:
                changes.append(KernelChange(old[0], new[0]))
                matched |= {id(old[0]), id(new[0])}
    changes += [KernelChange(old, None) for old in before.speeds if id(old) not in matched]
    changes += [KernelChange(None, new) for new in after.speeds if id(new) not in matched]

    def order(change: KernelChange) -> tuple[bool, float]:
        """Return the sort key: a change with an unknown time last, else the largest first."""
        is_unknown = change.before_ns is None or change.after_ns is None
        return is_unknown, -abs((change.before_ns or 0.0) - (change.after_ns or 0.0))

    return tuple(sorted(changes, key=order))


def largest_change(changes: tuple[KernelChange, ...]) -> Fact | None:
    """Return as a fact the first of `changes` whose times are known on both sides, None if none is.

    If no kernel is on both sides, the fact says that. It has the roofs of both sides (the limit
    that is nearest, and the share reached) if both are known.
    """
    if changes and all(change.before is None or change.after is None for change in changes):
        return fact("counters-compared.none-in-both")
    change = next((change for change in changes if change.share is not None), None)
    if change is None or change.share is None:
        return None
    if change.before_ns == change.after_ns:
        return fact("counters-compared.same")
    roofs = [speed.roof for speed in (change.before, change.after) if speed is not None]
    known = [roof for roof in roofs if roof is not None]
    # Roofs are said if both sides have one; two equal ones are said once.
    said_roofs = dict.fromkeys(known) if len(known) == len(roofs) else {}
    # `void ns::kernel(float*)` becomes `kernel(float*)`, then `kernel`.
    without_types = from_own_word(change.names)
    names = (_WORD_BEFORE_ARGUMENTS.sub(r"\1", name) for name in without_types)
    return fact(
        "counters-compared.change",
        names=tuple(map(short_name, names)),
        before_ns=change.before_ns,
        after_ns=change.after_ns,
        share=change.share,
        roofs=tuple(
            fact("counters-compared.roof", roof=ROOFS[roof], share=reached)
            for roof, reached in said_roofs
        ),
    )


def _mean_ns(speed: KernelSpeed | None) -> float | None:
    if speed is None or speed.duration_ns is None:
        return None
    return speed.duration_ns / speed.launches
