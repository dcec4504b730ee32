"""Checks of rates that the user gives, in TFLOP/s: impossible ones, and doubts by the table."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from fractions import Fraction
from typing import Final

from traceflops.devices.peaks import PER_TERA, DeviceSpec, rate_text
from traceflops.errors import UsageError
from traceflops.facts import Fact, fact
from traceflops.units import decimal

LARGEST_PEAK: Final = 100_000  # TFLOP/s that are accepted; the table has at most 15,000
NOT_A_PEAK: Final = ("int8",)  # types whose rates count operations on integers, not FLOP
_SPARSE: Final = (Fraction(19, 10), Fraction(21, 10))
"""Range of a 2:4 sparse rate as a multiple of the dense one, given rounded data sheets."""
_USUAL_TYPES: Final = ("bf16", "fp16")
"""If no type is given, a rate equal to the dense one of these types is assumed to be for it."""
_WITH_SPARSITY: Final = ("bf16", "fp16", "tf32", "fp8", "fp6", "fp4")
"""Types that have sparse figures on data sheets."""
_SAME: Final = (Fraction(95, 100), Fraction(105, 100))
"""Range of a rate as a multiple of the table's in which both count as equal."""
_USUAL: Final = (Fraction(1, 2), Fraction(110, 100))
"""Range of a rate as a multiple of the table's that may be right: measured rates are lower."""


def given_rate(tflops: float, option: str = "--peak") -> int:
    """Return a rate in TFLOP/s as FLOP per ns. Raises UsageError if it must be in another unit."""
    if not math.isfinite(tflops) or tflops <= 0:
        hint = f"give TFLOP/s of one GPU, such as {option} 989.4"
        raise UsageError(f"{option} {tflops:g} is not a rate", hint)
    if 1 <= tflops <= LARGEST_PEAK:
        return round(tflops * PER_TERA)
    problem = f"{option} {tflops:g} TFLOP/s is too {'small' if tflops < 1 else 'large'} for a GPU"
    # Find the unit in which the number would be a possible rate, and suggest that rate.
    hint = f", such as {option} 989.4"
    tflops_of = {"FLOP/s": 1e-12, "MFLOP/s": 1e-6, "GFLOP/s": 1e-3, "PFLOP/s": 1000.0}
    for unit, tflops_of_unit in tflops_of.items():
        if 1 <= tflops * tflops_of_unit <= LARGEST_PEAK:
            hint = f"; for {unit}, use {option} {tflops * tflops_of_unit:g}"
    raise UsageError(problem, f"{option} is in TFLOP/s{hint}")


def rate_doubt(spec: DeviceSpec, rate: int, dtypes: Collection[str] = ()) -> Fact | None:
    """Return why a peak given by hand may be wrong for a device, None if it seems right.

    `rate` is in FLOP per nanosecond, for the data types `dtypes` (empty: unknown). It is doubtful
    if it is the sparse rate of a type (twice the dense one) and not the dense rate of a usual type;
    if it is far above the nearest rate of the table; or, for known types, far below it. For unknown
    types, a low rate may be of a type that the table lacks.
    """
    types = [name for name in spec.dense if name not in NOT_A_PEAK]
    types = [name for name in types if name in dtypes] if dtypes else types
    if not types:
        return None
    multiple = {name: Fraction(rate, spec.dense[name]) for name in types}  # of the dense rate

    def first_within(bounds: tuple[Fraction, Fraction], names: Iterable[str]) -> str | None:
        """Return the first type of whose dense rate the given one is such a multiple."""
        least, most = bounds
        return next((name for name in names if least <= multiple.get(name, 0) <= most), None)

    same = None if dtypes else first_within(_SAME, types)
    if same in _USUAL_TYPES:
        return None
    sparse, given = first_within(_SPARSE, _WITH_SPARSITY), rate_text(rate)
    if sparse is not None and same is not None:
        code = "peak-doubt.dense-or-sparse"
        return fact(code, rate=given, same=same, sparse=sparse, id=spec.id)
    if sparse is not None:
        dense = rate_text(spec.dense[sparse])
        return fact("peak-doubt.sparse", rate=given, sparse=sparse, id=spec.id, dense=dense)
    least, most = _USUAL
    nearest = min(types, key=lambda name: abs(spec.dense[name] - rate))
    is_usual = multiple[nearest] <= most and (multiple[nearest] >= least or not dtypes)
    if same is not None or is_usual:
        return None
    times, dense = decimal(multiple[nearest], 2), rate_text(spec.dense[nearest])
    code = "peak-doubt.times"
    return fact(code, rate=given, times=times, nearest=nearest, id=spec.id, dense=dense)
