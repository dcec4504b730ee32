"""What counters or a paired run tell of kernels, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceflops.flops import Measured, WorkBasis
from traceflops.table import codes, distinct, exact_sums, group_rows, names, numbers

if TYPE_CHECKING:
    from traceflops.mfu.counted.measured_work import MeasuredWork
    from traceflops.table import BoolArray, IntArray
    from traceflops.windows import Prepared

_ORIGINS: tuple[WorkBasis, ...] = ("counters", "pair")


@dataclass(frozen=True, slots=True)
class NamedWork:
    """The launches of one name that something else than the shapes of a trace tells of.

    `counted` are those whose FLOPs are known, and `measured` is of them; without any it has the
    bytes of those whose bytes are known. `basis` is what tells most of them.
    """

    counted: int
    measured: Measured
    dtypes: tuple[str, ...]
    basis: WorkBasis
    vector_flops: int | None


def named_work(work: MeasuredWork, prepared: Prepared, rows: IntArray) -> dict[str, NamedWork]:
    """Return what is told of some activities, by their name."""
    activities = prepared.trace.activities
    rows = rows[work.origin[rows] >= 0]
    name, labels = codes(activities["name"]), names(activities["name"])
    group, first = group_rows([name[rows]])
    table = _Table(work, rows, group, len(first), numbers(activities["dur_ns"])[rows])
    found = zip(first.tolist(), table.rows(), strict=True)
    return {labels[int(name[rows[at]])]: row for at, row in found}


class _Table:
    """Sums over groups of launches."""

    def __init__(
        self, work: MeasuredWork, rows: IntArray, group: IntArray, count: int, dur_ns: IntArray
    ) -> None:
        self._work, self._rows, self._group, self._count = work, rows, group, count
        self._dur = dur_ns
        self._kind, self._size = work.kind[rows], work.size[rows]

    def rows(self) -> list[NamedWork]:
        """Return one per group."""
        known, sized = self._kind >= 0, self._size >= 0
        most, least, dtypes = self._flops()
        flops, at_least = self._sums(most, known), self._sums(least, known)
        counted, with_both, bare = (
            self._often(each) for each in (known, known & sized, ~known & sized)
        )
        size, bare_size = self._sums(self._size, known & sized), self._sums(self._size, sized)
        time, bare_time = self._sums(self._dur, known), self._sums(self._dur, sized)
        launches, vector = self._often(known | ~known), self._work.vector[self._rows]
        vectors, told = self._sums(vector, vector >= 0), self._often(vector >= 0)
        origin = self._mostly()
        found = []
        for at in range(self._count):
            measured = Measured(None, bare_size[at] if bare[at] else None, bare_time[at])
            if counted[at]:
                all_sized = with_both[at] == counted[at]
                moved = size[at] if all_sized else None
                measured = Measured(flops[at], moved, time[at], at_least[at])
            found.append(
                NamedWork(
                    counted[at],
                    measured,
                    dtypes[at],
                    _ORIGINS[origin[at]],
                    vectors[at] if told[at] == launches[at] else None,
                )
            )
        return found

    def _flops(self) -> tuple[IntArray, IntArray, list[tuple[str, ...]]]:
        """Return the most and the least FLOPs of each launch, and each group's data types."""
        most, least = np.zeros_like(self._kind), np.zeros_like(self._kind)
        types: list[set[str]] = [set() for _ in range(self._count)]
        for _, dtype, high, low in self._work.columns():
            mine = np.where(self._kind >= 0, high[np.maximum(self._kind, 0)], 0)
            most += mine
            least += np.where(self._kind >= 0, low[np.maximum(self._kind, 0)], 0)
            for group in distinct(self._group[mine > 0]).tolist():
                types[group].add(dtype)
        return most, least, [tuple(sorted(each)) for each in types]

    def _sums(self, values: IntArray, where: BoolArray) -> list[int]:
        return exact_sums(self._group, np.where(where, values, 0), self._count)

    def _often(self, rows: BoolArray) -> list[int]:
        found: list[int] = np.bincount(self._group[rows], minlength=self._count).tolist()
        return found

    def _mostly(self) -> list[int]:
        origin = self._work.origin[self._rows]
        times = [
            np.bincount(self._group[origin == place], minlength=self._count)
            for place in range(len(_ORIGINS))
        ]
        found: list[int] = np.argmax(np.stack(times), axis=0).tolist() if self._count else []
        return found
