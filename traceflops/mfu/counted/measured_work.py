"""What counters and a paired run tell of each activity, as columns by its row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.flops import Measured, WorkBasis
from traceflops.table import codes, exact_sum, group_rows, names, numbers

if TYPE_CHECKING:
    from traceflops.devices import Family
    from traceflops.mfu.counted.counter_work import CountedKernel
    from traceflops.mfu.counted.joins import CrossCheck, Join
    from traceflops.mfu.counted.launches import Kind, Origin
    from traceflops.table import IntArray, Note
    from traceflops.windows import Prepared

_COUNTED_AT: Final = {"rocprofv3": "the fabric", "ncu": "the memory"}

ORIGINS: Final[tuple[Origin, ...]] = ("counters", "pair")


@dataclass(frozen=True, slots=True)
class MeasuredWork:
    """What counters and a paired run tell of each activity; UNKNOWN where they do not.

    `kind` is a place in `kinds`, and UNKNOWN for kernels whose FLOPs an op's shapes tell. `size`
    are bytes, `vector` FLOPs of vector units. `how` is a place in HOW, -1 for what is no launch,
    `origin` one in ORIGINS, -1 where nothing is known. `counted` are the kernels of counted runs,
    with or without times here; `families` and `missing` say of what hardware, and which counters
    a total of their FLOPs would need besides.
    """

    kind: IntArray
    kinds: tuple[Kind, ...]
    size: IntArray
    vector: IntArray
    how: IntArray
    origin: IntArray
    joins: tuple[Join, ...]
    counted: tuple[CountedKernel, ...]
    families: tuple[Family | None, ...]
    missing: tuple[str, ...]
    check: CrossCheck | None
    notes: tuple[Note, ...] = field(repr=False)

    @property
    def bytes_at(self) -> str:
        """Return where the bytes were counted: the memory of NVIDIA's devices, AMD's fabric."""
        tools = {family.tool for family in self.families if family is not None}
        places = [word for tool, word in _COUNTED_AT.items() if tool in tools]
        return " or ".join(places) or _COUNTED_AT["rocprofv3"]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return the words that `how` are places in."""
        from traceflops.mfu.counted.joins import HOW

        return HOW

    def columns(self) -> Iterator[tuple[str, str, IntArray, IntArray]]:
        """Yield each line and data type with its FLOPs by kind, the most and the least."""
        count = len(self.kinds)
        sums: dict[tuple[str, str], tuple[IntArray, IntArray]] = {}
        for place, kind in enumerate(self.kinds):
            for part in kind:
                key = (part.line, part.dtype)
                if key not in sums:
                    sums[key] = (np.zeros(count, np.int64), np.zeros(count, np.int64))
                sums[key][0][place] += part.flops
                sums[key][1][place] += part.at_least
        for (line, dtype), (most, least) in sums.items():
            yield line, dtype, most, least


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
    rows = rows[np.argsort(name[rows], kind="stable")]
    dur_ns = numbers(activities["dur_ns"])
    _, first = group_rows([name[rows]])
    return {
        labels[int(name[mine[0]])]: _of_launches(work, mine, dur_ns[mine])
        for mine in np.split(rows, np.sort(first)[1:])
        if len(mine)
    }


def _of_launches(work: MeasuredWork, rows: IntArray, dur_ns: IntArray) -> NamedWork:
    """Return what is told of some launches together."""
    kind, size, vector = work.kind[rows], work.size[rows], work.vector[rows]
    known = kind >= 0
    kinds, times = (column.tolist() for column in np.unique(kind[known], return_counts=True))
    parts = [(part, n) for at, n in zip(kinds, times, strict=True) for part in work.kinds[at]]
    told_of = known if kinds else size >= 0
    has_bytes = kinds or told_of.any()
    measured = Measured(
        sum(part.flops * n for part, n in parts) if kinds else None,
        exact_sum(size[told_of]) if has_bytes and (size[told_of] >= 0).all() else None,
        exact_sum(dur_ns[told_of]),
        sum(part.at_least * n for part, n in parts) if kinds else None,
    )
    dtypes = {part.dtype for part, _ in parts if part.flops}
    basis = ORIGINS[int(np.argmax(np.bincount(work.origin[rows], minlength=len(ORIGINS))))]
    vector_flops = exact_sum(vector) if (vector >= 0).all() else None
    return NamedWork(sum(times), measured, tuple(sorted(dtypes)), basis, vector_flops)
