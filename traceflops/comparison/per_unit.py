"""Time per sample and per token, where both recordings tell how many a step or pass has."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from traceflops.comparison.side import Side


@dataclass(frozen=True, slots=True)
class PerUnit:
    """Time per one of a unit: counts are of a step of the whole job, or of a server's pass."""

    unit: str
    before_count: Fraction
    after_count: Fraction
    before_ns: Fraction
    after_ns: Fraction

    @property
    def share(self) -> Fraction:
        """Return by which share of the time before one takes longer."""
        return self.after_ns / self.before_ns - 1


def per_unit(before: Side, after: Side) -> tuple[PerUnit, ...]:
    """Return the time per one of each unit that both sides count."""
    both = [
        (unit, old, after.counts[unit])
        for unit, old in before.counts.items()
        if unit in after.counts
    ]
    return tuple(
        PerUnit(unit, old.count, new.count, old.ns / old.count, new.ns / new.count)
        for unit, old, new in both
    )
