"""The peak memory of a GPU before and after, by who allocated what it holds.

Of several GPUs it is that which held most. The parts sum to the difference exactly; where a side
does not tell who allocated, there is one.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from msgspec import Struct

from traceflops.attribution.marks import numberless
from traceflops.comparison.side import Side

ALLOCATED, EARLIER, UNTOLD = "allocated", "earlier", "untold"
"""Held since an operator of the recording allocated it, since before that, or not told which."""
_UNTOLD: Final = (UNTOLD, "", "")


class MemoryPart(Struct, frozen=True):
    """Memory held at the peak that one operator under one module allocated; "" is unknown."""

    kind: str
    op: str
    scope: str
    before_bytes: int
    after_bytes: int

    @property
    def bytes(self) -> int:
        """Return how much more is held."""
        return self.after_bytes - self.before_bytes


class MemoryChange(Struct, frozen=True):
    """The highest peak of a GPU on each side, in bytes.

    `parts` are those that changed, the largest first; they sum to the difference exactly.
    """

    before_bytes: int
    after_bytes: int
    parts: tuple[MemoryPart, ...]

    @property
    def difference_bytes(self) -> int:
        """Return how much more is held."""
        return self.after_bytes - self.before_bytes


def memory_change(before: Side, after: Side) -> MemoryChange | None:
    """Return the change of the peak memory by allocating operator; None where unknown."""
    old, new = before.memory_bytes, after.memory_bytes
    if old is None or new is None:
        return None
    # Bytes [before, after] by who allocated them; scopes that differ only in numbers are one. If a
    # side does not tell who allocated, there is a single part.
    held: defaultdict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    if before.held and after.held:
        for number, side in enumerate((before, after)):
            for holder in side.held:
                kind = ALLOCATED if holder.recorded else EARLIER
                held[kind, holder.op, numberless(holder.scope)][number] += holder.bytes
    else:
        held[_UNTOLD] = [old, new]
    parts = [part for key, ends in held.items() if (part := MemoryPart(*key, *ends)).bytes]
    return MemoryChange(old, new, tuple(sorted(parts, key=lambda part: -abs(part.bytes))))
