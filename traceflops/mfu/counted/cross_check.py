"""FLOPs by counters held against FLOPs by shapes, where both are known."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from traceflops.attribution import Attribution
from traceflops.table import (
    IntArray,
    codes,
    exact_sum,
    exact_sums,
    group_rows,
    names,
    numbers,
    taken,
)
from traceflops.windows import Prepared

AGREE: Final = Fraction(2, 100)


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """FLOPs of the launches that both tell; by shapes between `least` and `most`.

    `kernel` is the name that the two differ in most.
    """

    launches: int
    counted: int
    least: int
    most: int
    kernel: str

    @property
    def difference(self) -> Fraction:
        """Return by how much counters say more than shapes allow, or less (negative)."""
        bound = min(max(self.counted, self.least), self.most)
        return Fraction(self.counted - bound, bound) if bound else Fraction(0)

    @property
    def agree(self) -> bool:
        """Return whether the two are at most 2 % apart."""
        return abs(self.difference) <= AGREE


@dataclass(frozen=True, slots=True)
class ByShapes:
    """FLOPs of each activity by shapes, -1 where they do not tell; the most and the least."""

    most: IntArray
    least: IntArray


def by_own_shapes(prepared: Prepared, attribution: Attribution, counted: IntArray) -> ByShapes:
    """Return the FLOPs of each activity by the ops of its trace: all of an op at its main kernel.

    Only of ops of which all kernels are counted: which of them does how much is not known.
    """
    activities = prepared.trace.activities
    owner, work = attribution.owner, attribution.work
    kinds = names(activities["kind"])
    is_kernel = codes(activities["kind"]) == (kinds.index("kernel") if "kernel" in kinds else -2)
    partly = np.zeros(len(attribution.fate), dtype=np.bool_)
    partly[owner[(owner >= 0) & is_kernel & (counted < 0)]] = True
    whole = is_kernel & (owner >= 0) & ~taken(partly.astype(np.int64), owner, 1).astype(np.bool_)
    is_main = taken(attribution.main, owner) == np.arange(len(owner))
    most, least = (
        np.where(is_main, taken(work.of_ops(column), owner), 0)
        for column in (work.flops, work.at_least)
    )
    return ByShapes(np.where(whole, most, -1), np.where(whole, least, -1))


def cross_check(prepared: Prepared, shapes: ByShapes, counted: IntArray) -> CrossCheck | None:
    """Return how FLOPs by counters (-1: not known) compare; None where nothing has both."""
    rows = np.flatnonzero((shapes.most >= 0) & (counted >= 0))
    rows = rows[
        np.isin(numbers(prepared.trace.activities["device"])[rows], list(prepared.accounts))
    ]
    if not len(rows) or not (shapes.most[rows].any() or counted[rows].any()):
        return None
    label, name = names(prepared.trace.activities["name"]), codes(prepared.trace.activities["name"])
    group, first = group_rows([name[rows]])
    by_counters, by_shapes = (
        exact_sums(group, values[rows], len(first)) for values in (counted, shapes.most)
    )
    apart = [abs(one - other) for one, other in zip(by_counters, by_shapes, strict=True)]
    worst = first[apart.index(max(apart))]
    return CrossCheck(
        len(rows),
        sum(by_counters),
        exact_sum(shapes.least[rows]),
        sum(by_shapes),
        label[int(name[rows[worst]])],
    )
