"""Rates given by hand, in TFLOP/s: what cannot be meant, and what they are beside the table's."""

from __future__ import annotations

import math
from collections.abc import Collection
from fractions import Fraction
from typing import Final

from traceflops.devices.peaks import PER_TERA, DeviceSpec, rate_text
from traceflops.errors import UsageError
from traceflops.facts import Fact, fact
from traceflops.units import decimal

LARGEST_PEAK: Final = 100_000
"""TFLOP/s that are taken; the largest rate of the table is 15,000."""

NOT_A_PEAK: Final = ("int8",)
"""Rates that count operations on integers: no FLOP."""

_SPARSE: Final = (Fraction(19, 10), Fraction(21, 10))
"""How much a 2:4 sparse figure is of the dense one, with what rounding on data sheets allows."""

_USUAL_TYPES: Final = ("bf16", "fp16")
"""What a rate is for that says no data type and is that of one of these."""

_WITH_SPARSITY: Final = ("bf16", "fp16", "tf32", "fp8", "fp6", "fp4")
"""Types that have sparse figures on data sheets."""

_SAME: Final = (Fraction(95, 100), Fraction(105, 100))
_USUAL: Final = (Fraction(1, 2), Fraction(110, 100))
"""What of the table's rate a peak of one's own may be: measured ones are lower, and clocks vary."""

_UNITS_OF_MISTAKES: Final = (
    *(("PFLOP/s", 1000.0), ("GFLOP/s", 1e-3), ("MFLOP/s", 1e-6), ("FLOP/s", 1e-12)),
)


def given_rate(tflops: float, option: str = "--peak") -> int:
    """Return a rate given in TFLOP/s as FLOP per nanosecond.

    Raises UsageError for what is not positive, or must be in another unit.
    """
    if not math.isfinite(tflops) or tflops <= 0:
        raise UsageError(
            f"{option} {tflops:g} is not a rate",
            f"give TFLOP/s of one GPU, such as {option} 989.4",
        )
    if 1 <= tflops <= LARGEST_PEAK:
        return round(tflops * PER_TERA)
    extent = "small" if tflops < 1 else "large"
    rates = ((unit, tflops * factor) for unit, factor in _UNITS_OF_MISTAKES)
    meant = (f"; for {u}, use {option} {rate:g}" for u, rate in rates if 1 <= rate <= LARGEST_PEAK)
    hint = next(meant, f", such as {option} 989.4")
    raise UsageError(
        f"{option} {tflops:g} TFLOP/s is too {extent} for a GPU", f"{option} is in TFLOP/s{hint}"
    )


def rate_doubt(spec: DeviceSpec, rate: int, dtypes: Collection[str] = ()) -> Fact | None:
    """Return why a peak given by hand may be wrong for a device, None if it seems right.

    `rate` is in FLOP per nanosecond; `dtypes` are the data types that it is for, empty if unknown.
    The table has the dense rates of the device by data type. A peak is doubtful if it equals

    * the sparse rate of a type (twice the dense one), unless it is the dense rate of a usual type;
    * no rate of the table, and is far above the nearest (far below, too, if the types are known).
    """
    table = {name: dense for name, dense in spec.dense.items() if name not in NOT_A_PEAK}
    table = {name: dense for name, dense in table.items() if not dtypes or name in dtypes}
    if not table:
        return None
    equal_dense = None if dtypes else _type_with(rate, table, _SAME)
    if equal_dense in _USUAL_TYPES:
        return None
    with_sparsity: dict[str, int] = {name: table[name] for name in _WITH_SPARSITY if name in table}
    equal_sparse = _type_with(rate, with_sparsity, _SPARSE)
    if equal_sparse is not None:
        return _sparse_doubt(spec, rate, equal_dense, equal_sparse)
    if equal_dense is not None:
        return None
    return _ratio_doubt(spec, rate, table, may_be_low=not dtypes)


def _sparse_doubt(spec: DeviceSpec, rate: int, dense_type: str | None, sparse_type: str) -> Fact:
    """Return that a peak is the sparse rate of a type, or perhaps the dense one of another."""
    given = rate_text(rate)
    if dense_type is not None:
        return fact(
            "peak-doubt.dense-or-sparse",
            rate=given,
            same=dense_type,
            sparse=sparse_type,
            id=spec.id,
        )
    dense = rate_text(spec.dense[sparse_type])
    return fact("peak-doubt.sparse", rate=given, sparse=sparse_type, id=spec.id, dense=dense)


def _ratio_doubt(
    spec: DeviceSpec, rate: int, table: dict[str, int], *, may_be_low: bool
) -> Fact | None:
    """Return how many times the nearest rate of the table a peak is, None if that is usual."""
    nearest = min(table, key=lambda name: abs(table[name] - rate))
    least, most = _USUAL
    ratio = Fraction(rate, table[nearest])
    if ratio <= most and (ratio >= least or may_be_low):
        return None
    dense, times = rate_text(table[nearest]), decimal(ratio, 2)
    return fact(
        "peak-doubt.times",
        rate=rate_text(rate),
        times=times,
        nearest=nearest,
        id=spec.id,
        dense=dense,
    )


def _type_with(rate: int, table: dict[str, int], ratio: tuple[Fraction, Fraction]) -> str | None:
    """Return the first type where `rate` / dense rate lies in the range `ratio`, None without."""
    least, most = ratio
    return next((name for name in table if least <= Fraction(rate, table[name]) <= most), None)
