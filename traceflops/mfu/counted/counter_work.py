"""FLOPs and bytes of launches from their hardware counters, by the formulas of `counters.toml`.

A quantity is known of a launch only if all counters of its formula are: never a part of a sum in
its place. So is the work of matrix units only if every data type that the hardware has is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.attribution import float_type
from traceflops.devices import (
    ACTIVE,
    BUSY,
    MATRIX,
    MOVED,
    READ,
    SIMDS_PER_UNIT,
    VECTOR,
    WRITTEN,
    Family,
    Formula,
    formulas_of,
    quantities,
)
from traceflops.mfu.counted.counted_launches import CountedLaunches
from traceflops.mfu.counted.launches import (
    ORIGINS,
    UNKNOWN,
    UNSPLIT_LINE,
    Kind,
    Launches,
    LaunchWork,
    Origin,
    kinds_of,
)
from traceflops.table import BoolArray, FloatArray, IntArray, exact_sums, group_rows, taken

if TYPE_CHECKING:
    from traceflops.mfu.counted.joins import CrossCheck, Join
    from traceflops.mfu.counted.kernel_speeds import KernelSpeed
    from traceflops.table import Note

BYTES_AGREE: Final = 0.02
"""Bytes of one launch differ from run to run with what the caches hold; up to here they agree."""

XF32: Final = "tf32"
"""The data type that AMD calls so, as it is called here."""

_TOO_MUCH: Final = 2.0**62

_COUNTED_AT: Final = {"rocprofv3": "the fabric", "ncu": "the memory"}


@dataclass(frozen=True, slots=True)
class CounterWork:
    """What counters say of each launch; UNKNOWN where they do not say it.

    `matrix` and `vector` are FLOPs by data type, `matrix_flops` and `vector_flops` all of them.
    `partial` are launches of which some types are counted and others not, `homeless` such of which
    nothing tells the device, so that it is not known which types there are, `uncounted` those of
    kernels whose names say that they compute in XF32 while that was not counted, `rounded` those
    whose FLOPs are of means with decimals, `disputed` those of whose FLOPs passes disagree.
    """

    counted: CountedLaunches
    families: tuple[Family | None, ...]
    matrix: Mapping[str, IntArray] = field(hash=False)
    vector: Mapping[str, IntArray] = field(hash=False)
    matrix_flops: IntArray
    vector_flops: IntArray
    read: IntArray
    written: IntArray
    moved: IntArray
    busy: IntArray
    active: IntArray
    uncounted: BoolArray
    partial: BoolArray
    homeless: BoolArray
    rounded: BoolArray
    disputed: BoolArray

    @property
    def size(self) -> IntArray:
        """Return the bytes read and written at the fabric, or at the memory."""
        both = (self.read >= 0) & (self.written >= 0)
        return np.where(both, self.read + self.written, self.moved)

    def launch_work(self) -> LaunchWork:
        """Return it as what any run says of its launches."""
        kind, kinds = kinds_of(UNSPLIT_LINE, dict(self.matrix), self.matrix_flops >= 0)
        return LaunchWork(
            "counters", self.counted.launches, kind, kinds, self.size, self.vector_flops
        )


@dataclass(frozen=True, slots=True)
class _Amount:
    """A quantity by launch, and how sure it is."""

    value: IntArray
    rounded: BoolArray
    disputed: BoolArray


def counter_work(
    counted: CountedLaunches, families: tuple[Family | None, ...], family: IntArray
) -> CounterWork:
    """Return what the counters say; `family` is the place of each launch's own in `families`."""
    reader = _CounterReader(counted, families, family)
    matrix = reader.types(MATRIX)
    work = {name: amount.value for name, amount in matrix.items()}
    vectors = {name: amount.value for name, amount in reader.types(VECTOR).items()}
    total, nothing = reader.total(work, "matrix"), np.full(1, UNKNOWN)
    uncounted = (total >= 0) & _in_xf32(counted.launches) & (work.get(XF32, nothing) < 0)
    total = np.where(uncounted, UNKNOWN, total)
    nobody = np.zeros(counted.launches.count, dtype=np.bool_)
    partial = (total < 0) & _any(nobody, (amount.value >= 0 for amount in matrix.values()))
    homeless = (
        partial & np.array([hardware is None for hardware in families], dtype=np.bool_)[family]
    )
    return CounterWork(
        counted=counted,
        families=families,
        matrix=work,
        vector=vectors,
        matrix_flops=total,
        vector_flops=reader.total(vectors, "vector"),
        read=reader.amount(READ, BYTES_AGREE).value,
        written=reader.amount(WRITTEN, BYTES_AGREE).value,
        moved=reader.amount(MOVED, BYTES_AGREE).value,
        busy=reader.amount(BUSY, 1.0).value,
        active=reader.amount(ACTIVE, 1.0).value,
        uncounted=uncounted,
        partial=partial & ~uncounted & ~homeless,
        homeless=homeless & ~uncounted,
        rounded=(total >= 0) & _any(nobody, (amount.rounded for amount in matrix.values())),
        disputed=_any(nobody, (amount.disputed for amount in matrix.values())),
    )


def _in_xf32(launches: Launches) -> BoolArray:
    """Return which launches are of kernels whose names say XF32: no total needs its counter."""
    said = [float_type(name) == XF32 for name in launches.names]
    in_xf32: BoolArray = np.array([*said, False], dtype=np.bool_)[launches.name]
    return in_xf32


@dataclass(frozen=True, slots=True)
class _CounterReader:
    """Quantities by launch; `family` is the place of each launch's own in `families`."""

    counted: CountedLaunches
    families: tuple[Family | None, ...]
    family: IntArray

    def types(self, prefix: str) -> dict[str, _Amount]:
        """Return the quantities under a prefix by data type."""
        named = (quantities(prefix, family) for family in self.families)
        names = dict.fromkeys(name for some in named for name in some)
        return {name.removeprefix(prefix): self.amount(name, 0.0) for name in names}

    def amount(self, quantity: str, agree: float) -> _Amount:
        """Return a quantity; passes that differ by more than `agree` leave it unknown."""
        nothing = np.zeros(len(self.family), dtype=np.bool_)
        amount = _Amount(np.where(nothing, 0, UNKNOWN), nothing, nothing)
        for place, family in enumerate(self.families):
            mine = self.family == place
            for formula in formulas_of(quantity, family):
                amount = _filled(amount, _computed(self.counted, formula, agree), mine)
        return amount

    def total(self, by_type: Mapping[str, IntArray], units: str) -> IntArray:
        """Return the sum over data types where all are known that the units of a device have."""
        known = np.zeros(len(self.family), dtype=np.bool_)
        for place, family in enumerate(self.families):
            if types := getattr(family, units, ()):
                all_known = reduce(np.logical_and, (by_type[name] >= 0 for name in types))
                known |= (self.family == place) & all_known
        flops = [np.maximum(column, 0) for column in by_type.values()]
        known &= sum((column.astype(np.float64) for column in flops), np.zeros(1)) < _TOO_MUCH
        return np.where(known, sum(flops, np.zeros(1, dtype=np.int64)), UNKNOWN)


def _computed(counted: CountedLaunches, formula: Formula, agree: float) -> _Amount | None:
    """Return the sum of a formula; None where one of its counters was never read."""
    if not formula.terms.keys() <= counted.values.keys():
        return None
    columns = [(counted.values[name], factor) for name, factor in formula.terms.items()]
    known = reduce(np.logical_and, (~np.isnan(values) for values, _ in columns))
    columns = [(np.where(known, values, 0.0), factor) for values, factor in columns]
    known &= sum(values * abs(factor) for values, factor in columns) < _TOO_MUCH
    columns = [(np.where(known, values, 0.0), factor) for values, factor in columns]
    # Whole parts as integers, so that nothing is rounded but what has decimals.
    whole = sum(np.floor(values).astype(np.int64) * factor for values, factor in columns)
    rest: FloatArray = sum(
        ((values - np.floor(values)) * factor for values, factor in columns), np.zeros(1)
    )
    value = whole + np.rint(rest).astype(np.int64)
    decimals = reduce(np.logical_or, (values != np.floor(values) for values, _ in columns))
    disputed = reduce(np.logical_or, (counted.spread[name] > agree for name in formula.terms))
    possible = known & (value >= 0) & ~disputed
    if formula.only_zero:
        possible &= value == 0
    return _Amount(np.where(possible, value, UNKNOWN), decimals & possible, disputed & known)


def _filled(amount: _Amount, other: _Amount | None, where: BoolArray) -> _Amount:
    """Return an amount with another in the places where it is not known yet."""
    if other is None:
        return amount
    taken = where & (amount.value < 0)
    return _Amount(
        np.where(taken, other.value, amount.value),
        np.where(taken, other.rounded, amount.rounded),
        np.where(taken, other.disputed, amount.disputed),
    )


def _any(nobody: BoolArray, columns: Iterable[BoolArray]) -> BoolArray:
    return reduce(np.logical_or, columns, nobody)


# What counters say of kernels, added up by name: for runs without times, too.


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
    rows = sorted(_kernels(work, units), key=lambda row: row.name)
    rows.sort(key=lambda row: (row.flops or 0, (row.read or 0) + (row.written or 0)), reverse=True)
    return tuple(rows)


def _kernels(work: CounterWork, units: IntArray) -> Iterator[CountedKernel]:
    launches = work.counted.launches
    group, first = group_rows([launches.name])
    columns = (work.matrix_flops, work.vector_flops, work.read, work.written, work.busy)
    possible = np.where((units > 0) & (work.active > 0), work.active * np.maximum(units, 0), -1)
    sums = [_sums(group, len(first), column) for column in (*columns, possible)]
    types = {dtype: _sums(group, len(first), column) for dtype, column in work.matrix.items()}
    times = np.bincount(group, minlength=len(first)).tolist()
    for at, row in enumerate(first.tolist()):
        flops, vector, read, written, busy, cycles = (column[at] for column in sums)
        share = Fraction(busy, cycles * SIMDS_PER_UNIT) if busy is not None and cycles else None
        by_type = {dtype: column[at] for dtype, column in types.items()}
        name = launches.names[int(launches.name[row])]
        yield CountedKernel(name, times[at], flops, vector, read, written, share, by_type)


def _sums(group: IntArray, count: int, column: IntArray) -> list[int | None]:
    """Return the sum of each group, None for those of which one value is not known."""
    unknown = np.bincount(group[column < 0], minlength=count).tolist()
    totals = exact_sums(group, np.maximum(column, 0), count)
    return [None if some else total for some, total in zip(unknown, totals, strict=True)]


@dataclass(frozen=True, slots=True)
class MeasuredWork:
    """What counters and a paired run tell of each activity; UNKNOWN where they do not.

    `kind` is a place in `kinds`, and UNKNOWN for kernels whose FLOPs an op's shapes tell. `size`
    are bytes, `vector` FLOPs of vector units. `how` is a place in HOW, -1 for what is no launch,
    `origin` one in ORIGINS, -1 where nothing is known. `counted` are the kernels of counted runs,
    with or without times here, `speeds` how near these came to their limits; `families` and
    `missing` say of what hardware, and which counters a total of their FLOPs would need besides.
    """

    kind: IntArray
    kinds: tuple[Kind, ...]
    size: IntArray
    vector: IntArray
    how: IntArray
    origin: IntArray
    joins: tuple[Join, ...]
    counted: tuple[CountedKernel, ...]
    speeds: tuple[KernelSpeed, ...]
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

    @property
    def flops(self) -> IntArray:
        """Return the FLOPs of each activity, the most where they are not exact, else UNKNOWN."""
        none = np.zeros(len(self.kinds), np.int64)
        return taken(sum((most for _, _, most, _ in self.columns()), none), self.kind, UNKNOWN)

    def basis(self, rows: IntArray) -> Origin:
        """Return what tells most of some activities."""
        return ORIGINS[int(np.argmax(np.bincount(self.origin[rows], minlength=len(ORIGINS))))]
