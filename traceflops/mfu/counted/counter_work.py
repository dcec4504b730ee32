"""FLOPs and bytes of launches from their hardware counters, by the formulas of `counters.toml`.

A quantity of a launch is known only if all counters of its formula are, and the work of matrix
units only if every data type of the hardware is counted: a part of a sum is never used.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import partial
from math import isfinite
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct, field

from traceflops.attribution.datatypes import float_type
from traceflops.devices import counter_formulas as formulas
from traceflops.devices.counter_formulas import Family
from traceflops.mfu.counted.launches import UNKNOWN, UNSPLIT_LINE, Kind, LaunchWork, WorkPart
from traceflops.mfu.counted.same_launches import FEW, CountedLaunches
from traceflops.table.columns import BoolArray, FloatArray, IntArray
from traceflops.table.grouping import exact_sums, extremes, group_rows

BYTES_AGREE: Final = 0.02
"""Bytes of a launch may differ by this share between runs, which find other data in the caches."""
XF32: Final = "tf32"  # AMD calls this data type XF32
_TOO_MUCH: Final = 2.0**62
Families = tuple[Family | None, ...]


class CounterWork(Struct, frozen=True):
    """The work of each launch by counters; UNKNOWN if it is not known.

    `matrix` is FLOPs by data type, `matrix_flops` and `vector_flops` those of all types; bytes are
    `read`, `written` or `moved`; `busy` and `active` are cycles. A launch is `partial` if only some
    types are counted, `homeless` if its device is unknown, too; `uncounted` if its name says that
    it computes in XF32, which was not counted; `rounded` if FLOPs have decimals (of a mean);
    `disputed` if passes disagree.
    """

    counted: CountedLaunches
    families: Families
    matrix: Mapping[str, IntArray]
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

    def launch_work(self) -> LaunchWork:
        """Return the work of each launch, in the form that all sources share."""
        kind = np.full(self.counted.launches.count, UNKNOWN, dtype=np.int64)
        rows = np.flatnonzero(self.matrix_flops >= 0)
        kinds: list[Kind] = []
        if len(rows) and self.matrix:
            # Launches with equal FLOPs of each data type (0 if not counted) are of one kind.
            columns = [np.maximum(flops[rows], 0) for flops in self.matrix.values()]
            kind[rows], first = group_rows(columns)
            for counts in zip(*(column[first].tolist() for column in columns), strict=True):
                of_types = zip(self.matrix, counts, strict=True)
                parts = (WorkPart(UNSPLIT_LINE, dtype, n, n) for dtype, n in of_types if n)
                kinds.append(tuple(parts))
        # Bytes read and written at the fabric, or moved at the memory.
        has_both = (self.read >= 0) & (self.written >= 0)
        size = np.where(has_both, self.read + self.written, self.moved)
        launches, vector = self.counted.launches, self.vector_flops
        return LaunchWork("counters", launches, kind, tuple(kinds), size, vector)


class _Amount(NamedTuple):
    """A quantity by launch (or UNKNOWN), and whether it is rounded or passes disagree on it."""

    value: IntArray
    rounded: BoolArray
    disputed: BoolArray


def counter_work(counted: CountedLaunches, families: Families, family: IntArray) -> CounterWork:
    """Return the work by counters; `family` is the index in `families` of each launch's family."""
    nowhere = np.zeros(counted.launches.count, dtype=np.bool_)
    amount = partial(_quantity, counted, families, family)

    def by_type(prefix: str, units: str) -> tuple[dict[str, _Amount], IntArray]:
        """Return the FLOPs of `units` ("matrix" or "vector") by data type, and their sum.

        The sum is UNKNOWN if not all data types that the units have are counted. The names of the
        quantities are `prefix` and a data type.
        """
        names = (name for hardware in families for name in formulas.quantities(prefix, hardware))
        # FLOPs of one launch are equal in all passes (tolerance 0).
        amounts = {name.removeprefix(prefix): amount(name, 0.0) for name in dict.fromkeys(names)}
        is_complete = np.zeros_like(nowhere)
        for number, hardware in enumerate(families):
            if dtypes := getattr(hardware, units, ()):  # of these units; none without a family
                all_read = np.logical_and.reduce([amounts[dtype].value >= 0 for dtype in dtypes])
                is_complete |= (family == number) & all_read
        flops = [np.maximum(of_type.value, 0) for of_type in amounts.values()]
        as_floats = sum((column.astype(np.float64) for column in flops), np.zeros(1))
        is_complete &= as_floats < _TOO_MUCH  # else the sum of integers may wrap
        return amounts, np.where(is_complete, sum(flops, np.zeros(1, dtype=np.int64)), UNKNOWN)

    matrix, total = by_type(formulas.MATRIX, "matrix")
    _, vector_flops = by_type(formulas.VECTOR, "vector")
    # Totals need the counter of XF32 only for kernels whose names say that they compute in it.
    in_xf32 = [float_type(name) == XF32 for name in counted.launches.names]
    is_xf32 = np.array([*in_xf32, False], dtype=np.bool_)[counted.launches.name]
    xf32 = matrix[XF32].value if XF32 in matrix else np.full(1, UNKNOWN)
    uncounted = (total >= 0) & is_xf32 & (xf32 < 0)
    total = np.where(uncounted, UNKNOWN, total)
    has_any, rounded, disputed = nowhere.copy(), nowhere.copy(), nowhere.copy()
    for of_type in matrix.values():
        has_any |= of_type.value >= 0
        rounded |= of_type.rounded
        disputed |= of_type.disputed
    incomplete = (total < 0) & has_any & ~uncounted
    no_family = np.array([hardware is None for hardware in families], dtype=np.bool_)[family]
    return CounterWork(
        counted=counted,
        families=families,
        matrix={name: of_type.value for name, of_type in matrix.items()},
        matrix_flops=total,
        vector_flops=vector_flops,
        read=amount(formulas.READ, BYTES_AGREE).value,
        written=amount(formulas.WRITTEN, BYTES_AGREE).value,
        moved=amount(formulas.MOVED, BYTES_AGREE).value,
        busy=amount(formulas.BUSY, 1.0).value,  # cycles vary freely from pass to pass
        active=amount(formulas.ACTIVE, 1.0).value,
        uncounted=uncounted,
        partial=incomplete & ~no_family,
        homeless=incomplete & no_family,
        rounded=(total >= 0) & rounded,
        disputed=disputed,
    )


def _quantity(
    counted: CountedLaunches, families: Families, family: IntArray, name: str, tolerance: float
) -> _Amount:
    """Return a quantity by launch: by the first formula of its family that gives a value."""
    nowhere = np.zeros(len(family), dtype=np.bool_)
    total = _Amount(np.full(len(family), UNKNOWN), nowhere, nowhere)
    for number, hardware in enumerate(families):
        for formula in formulas.formulas_of(name, hardware):
            if formula.terms.keys() <= counted.values.keys():
                amount = _by_formula(counted, formula, tolerance)
                is_new = (family == number) & (total.value < 0)
                columns = zip(amount, total, strict=True)
                total = _Amount(*(np.where(is_new, new, old) for new, old in columns))
    return total


def _by_formula(counted: CountedLaunches, formula: formulas.Formula, tolerance: float) -> _Amount:
    """Return the sum of a formula by launch; unknown if passes differ by more than `tolerance`."""
    # A row per term, a column per launch.
    values = np.array([counted.values[key] for key in formula.terms])
    spread = np.array([counted.spread[key] for key in formula.terms])
    factor = np.array([*formula.terms.values()])[:, np.newaxis]
    # Launches with a value that is unknown, or too large for an int64, get 0 instead.
    is_read = ~np.isnan(values).any(axis=0)
    values = np.where(is_read, values, 0.0)
    is_read &= (values * abs(factor)).sum(axis=0) < _TOO_MUCH
    values = np.where(is_read, values, 0.0)
    # Sum the whole parts as integers: only decimals are rounded.
    # values 2^53 - 1 and 0.75, factors 4 and 2 -> 4 (2^53 - 1) exactly, plus round(1.5) = 2
    whole = np.floor(values)
    decimals: FloatArray = ((values - whole) * factor).sum(axis=0)
    total = (whole.astype(np.int64) * factor).sum(axis=0) + np.rint(decimals).astype(np.int64)
    is_disputed, has_decimals = (spread > tolerance).any(axis=0), (values != whole).any(axis=0)
    is_known = is_read & (total >= 0) & ~is_disputed
    if formula.only_zero:  # how much a count stands for is unknown, but 0 stands for 0
        is_known &= total == 0
    total = np.where(is_known, total, UNKNOWN)
    return _Amount(total, rounded=is_known & has_decimals, disputed=is_read & is_disputed)


# The counters of kernels, added up by name: for runs without times, too.


class CountedKernel(Struct, frozen=True):
    """All counted launches of one kernel together; None if a counter of one was not read.

    `time_ns` is the sum of the times of launches while they were counted. `flops` are of matrix
    units, also `by_type`, and `vector` of vector units; `read` and `written` are bytes at the
    fabric (AMD) or the memory (NVIDIA). `busy` is the share of the time of all matrix units in
    which they computed. `unequal` names those of these figures that differ between launches.
    `counters` are sums of counters that give no figure, if few were recorded.
    """

    name: str
    launches: int
    flops: int | None
    vector: int | None
    read: int | None
    written: int | None
    busy: Fraction | None
    time_ns: int | None
    by_type: Mapping[str, int | None]
    unequal: frozenset[str] = frozenset()
    counters: Mapping[str, float] = field(default_factory=dict)

    @property
    def bytes_per_ns(self) -> Fraction | None:
        """Return the bytes read and written divided by that time (GB/s), None if unknown."""
        if self.read is None or self.written is None or not self.time_ns:
            return None
        return Fraction(self.read + self.written, self.time_ns)


def counted_kernels(work: CounterWork, units: IntArray) -> tuple[CountedKernel, ...]:
    """Return a row per kernel, most FLOPs first, then most time; `units` are CUs by launch."""
    launches, dur_ns = work.counted.launches, work.counted.dur_ns
    group, first = group_rows([launches.name])
    is_timed = dur_ns < _TOO_MUCH / max(len(group), 1)  # so that sums fit an int64
    time_ns = np.where(is_timed, np.rint(np.where(is_timed, dur_ns, 0)), UNKNOWN).astype(np.int64)
    # Active cycles of all CUs: the capacity that `busy` is a share of.
    capacity = np.where((units > 0) & (work.active > 0), work.active * np.maximum(units, 0), -1)
    columns = {"flops": work.matrix_flops, "vector": work.vector_flops}
    columns |= {"read": work.read, "written": work.written}
    sums = {name: _sums(group, len(first), column) for name, column in columns.items()}
    busy_sums, capacity_sums, time_sums = (
        _sums(group, len(first), column) for column in (work.busy, capacity, time_ns)
    )
    types = {dtype: _sums(group, len(first), column) for dtype, column in work.matrix.items()}
    # In which groups a figure differs by more than that of one launch may from run to run.
    differ = {}
    for name, column in columns.items():
        most, least = extremes(group, column, len(first))
        differ[name] = (least >= 0) & (most - least > BYTES_AGREE * most)
    # Without any known figure except the time, show the counters themselves, if they are few.
    has_figures = any((column >= 0).any() for column in (*columns.values(), work.busy))
    shown = work.counted.values if not has_figures and len(work.counted.values) <= FEW else {}
    counters = {name: np.bincount(group, v, len(first)).tolist() for name, v in shown.items()}
    launch_counts = np.bincount(group, minlength=len(first)).tolist()
    rows = []
    for number, launch in enumerate(first.tolist()):
        share, busy, cycles = None, busy_sums[number], capacity_sums[number]
        if busy is not None and cycles:
            # 600 busy cycles in 100 active cycles of 2 CUs with 4 units each are 3/4.
            share = Fraction(busy, cycles * formulas.SIMDS_PER_UNIT)
        totals = {key: total[number] for key, total in counters.items()}
        row = CountedKernel(
            name=launches.names[int(launches.name[launch])],
            launches=launch_counts[number],
            **{figure: column[number] for figure, column in sums.items()},
            busy=share,
            time_ns=time_sums[number],
            by_type={dtype: column[number] for dtype, column in types.items()},
            unequal=frozenset(figure for figure in differ if differ[figure][number]),
            counters={key: total for key, total in totals.items() if isfinite(total)},
        )
        rows.append(row)

    def order(row: CountedKernel) -> tuple[int, int, int, str]:
        moved = (row.read or 0) + (row.written or 0)
        return -(row.flops or 0), -(row.time_ns or 0), -moved, row.name

    return tuple(sorted(rows, key=order))


def _sums(group: IntArray, count: int, column: IntArray) -> list[int | None]:
    """Return the sum of each of `count` groups, None if one value of the group is not known."""
    unknowns = np.bincount(group[column < 0], minlength=count).tolist()
    totals = exact_sums(group, np.maximum(column, 0), count)
    return [None if unknown else total for unknown, total in zip(unknowns, totals, strict=True)]
