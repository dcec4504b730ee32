"""What counters say of kernels, added up by name: for runs without times, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from traceflops.devices import SIMDS_PER_UNIT
from traceflops.mfu.counted.counter_work import CounterWork
from traceflops.table import IntArray, exact_sums, group_rows


@dataclass(frozen=True, slots=True)
class CountedKernel:
    """All counted launches of one kernel together.

    `flops` are of matrix units and `vector` of vector units, `by_type` those of matrix units by
    data type; `read` and `written` are bytes at the fabric (AMD) or the memory (NVIDIA). None where
    a counter of one launch was not read. `busy` is the share of the time of all matrix units in
    which they computed.
    """

    name: str
    launches: int
    flops: int | None
    vector: int | None
    read: int | None
    written: int | None
    busy: Fraction | None
    by_type: Mapping[str, int | None] = field(hash=False)


def counted_kernels(work: CounterWork, units: IntArray) -> tuple[CountedKernel, ...]:
    """Return a row per kernel, those with most FLOPs first.

    `units` are the CUs of the device of each launch, 0 where they are not known.
    """
    return tuple(sorted(_rows(work, units), key=_by_work))


def _by_work(row: CountedKernel) -> tuple[int, int, str]:
    return -(row.flops or 0), -((row.read or 0) + (row.written or 0)), row.name


def _rows(work: CounterWork, units: IntArray) -> Iterator[CountedKernel]:
    launches = work.counted.launches
    group, first = group_rows([launches.name])
    count = len(first)
    times = np.bincount(group, minlength=count).tolist()
    sums = _Sums(group, count)
    flops, vector, read, written, busy = (
        sums.of(column)
        for column in (work.matrix_flops, work.vector_flops, work.read, work.written, work.busy)
    )
    possible = np.where((units > 0) & (work.active > 0), work.active * np.maximum(units, 0), -1)
    cycles = sums.of(possible)
    types = {dtype: sums.of(column) for dtype, column in work.matrix.items()}
    for at, row in enumerate(first.tolist()):
        spent, of = busy[at], cycles[at]
        yield CountedKernel(
            launches.names[int(launches.name[row])],
            times[at],
            flops[at],
            vector[at],
            read[at],
            written[at],
            Fraction(spent, of * SIMDS_PER_UNIT) if spent is not None and of else None,
            {dtype: column[at] for dtype, column in types.items()},
        )


class _Sums:
    """Sums by group, None for groups of which one value is not known."""

    def __init__(self, group: IntArray, count: int) -> None:
        self._group, self._count = group, count

    def of(self, column: IntArray) -> list[int | None]:
        """Return the sum of each group."""
        open_rows = np.bincount(self._group[column < 0], minlength=self._count).tolist()
        totals = exact_sums(self._group, np.maximum(column, 0), self._count)
        return [None if lacks else total for lacks, total in zip(open_rows, totals, strict=True)]
