"""The peak memory of a GPU before and after, by who allocated what it holds.

Of several GPUs it is that which held most. The parts sum to the difference exactly; where a side
does not tell who allocated, there is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from traceflops.attribution.range_labels import numberless
from traceflops.comparison.side import Side
from traceflops.memory.usage import Holder

ALLOCATED, EARLIER, UNTOLD = "allocated", "earlier", "untold"
"""Held since an operator of the recording allocated it, since before that, or not told which."""
_UNTOLD: Final = (UNTOLD, "", "")


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """What is held at the peak of what one operator under one module allocated; "": unknown."""

    kind: str
    op: str
    scope: str
    before_bytes: int
    after_bytes: int

    @property
    def bytes(self) -> int:
        """Return how much more is held."""
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """The highest peak of a GPU on both sides, in bytes.

    `parts` are those that changed, most first; they sum to the difference exactly.
    """

    before_bytes: int
    after_bytes: int
    parts: tuple[MemoryPart, ...]

    @property
    def difference_bytes(self) -> int:
        """Return how much more is held."""
        return self.after_bytes - self.before_bytes


def memory_change(before: Side, after: Side) -> MemoryChange | None:
    """Return what became of the peak memory, None where a side has none recorded."""
    old, new = before.memory_bytes, after.memory_bytes
    if old is None or new is None:
        return None
    held = [Counter({_UNTOLD: old}), Counter({_UNTOLD: new})]
    if before.held and after.held:
        held = [_by_who(side.held) for side in (before, after)]
    all_parts = (
        MemoryPart(*key, held[0][key], held[1][key]) for key in dict.fromkeys((*held[0], *held[1]))
    )
    parts = sorted((part for part in all_parts if part.bytes), key=lambda part: -abs(part.bytes))
    return MemoryChange(old, new, tuple(parts))


def _by_who(held: Sequence[Holder]) -> Counter[tuple[str, str, str]]:
    """Return bytes by who allocated them; annotations that differ only in numbers are one."""
    sums = Counter[tuple[str, str, str]]()
    for holder in held:
        sums[ALLOCATED if holder.recorded else EARLIER, holder.op, numberless(holder.scope)] += (
            holder.bytes
        )
    return sums
