"""Whether the roof of arithmetic or that of memory is nearer, from FLOPs, bytes and time.

Arithmetic intensity is FLOPs per byte. A device of P FLOP per ns and B bytes per ns reaches P only
from the intensity P / B on, its balance; below, at most B x intensity (Williams et al., 2009).
By shapes bytes are lower bounds, so an intensity is an upper bound: "memory" is certain, while
"compute" holds if nothing is moved twice. Counters have the bytes at the fabric, of which a cache
of the memory may serve a part: there "compute" is certain. How near is another question.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

from traceflops.categories import Category

Bound = Literal["compute", "memory", "interconnect"]
WorkBasis = Literal["shapes", "pair", "counters", "record"]
"""What tells FLOPs and bytes: shapes, those of a paired run, hardware counters, or the record of
a copy."""

Basis = Literal[WorkBasis, "category"]


BOUND_FROM: Final = Fraction(1, 2)
"""From this share of the nearer roof on, work is bound by it: the roof then takes most of its time.
"""


@dataclass(frozen=True, slots=True)
class NearerRoof:
    """Which roof is nearer, and what says so: where FLOPs and bytes are from, or the category."""

    bound: Bound
    basis: Basis


@dataclass(frozen=True, slots=True)
class Measured:
    """Work and its time: FLOPs and bytes are None where they are not known; time in ns.

    Where FLOPs lie between two bounds, `flops` is the upper one and `least_flops` the lower.
    """

    flops: int | None
    min_bytes: int | None
    time_ns: int
    least_flops: int | None = None

    def __add__(self, other: Measured) -> Measured:
        """Return both together; what one of them does not know is not known."""
        return Measured(
            _sum(self.flops, other.flops),
            _sum(self.min_bytes, other.min_bytes),
            self.time_ns + other.time_ns,
            _sum(self.at_least, other.at_least),
        )

    @property
    def at_least(self) -> int | None:
        """Return the least that the FLOPs can be, None where they are not known."""
        return self.flops if self.least_flops is None else self.least_flops

    @property
    def is_exact(self) -> bool:
        """Return whether the FLOPs are not between two bounds."""
        return self.at_least == self.flops

    @property
    def flops_per_ns(self) -> Fraction | None:
        """Return the rate in FLOP per ns (1,000 are a TFLOP/s); None where it is not known."""
        return _ratio(self.flops, self.time_ns)

    @property
    def bytes_per_ns(self) -> Fraction | None:
        """Return the least bandwidth used in bytes per ns (1 is a GB/s)."""
        return _ratio(self.min_bytes, self.time_ns)

    @property
    def intensity(self) -> Fraction | None:
        """Return FLOPs per byte, an upper bound; None where either is not known or no byte is."""
        return _ratio(self.flops, self.min_bytes)

    def share_of_peak(self, peak: int | None) -> Fraction | None:
        """Return the rate as a share of a peak in FLOP per ns."""
        rate = self.flops_per_ns
        return None if rate is None or not peak else rate / peak

    def share_of_bandwidth(self, bandwidth: int | Fraction | None) -> Fraction | None:
        """Return the least bandwidth used as a share of a device's, in bytes per ns."""
        used = self.bytes_per_ns
        return None if used is None or not bandwidth else used / bandwidth


def verdict(
    measured: Measured,
    peak: int | None,
    bandwidth: int | None,
    category: Category | None = None,
    basis: WorkBasis = "shapes",
) -> NearerRoof | None:
    """Return which roof is nearer: by the intensity, else by the category, else None.

    `peak` is in FLOP per ns of the work's data type, `bandwidth` in bytes per ns. `basis` is what
    tells its FLOPs and bytes.
    """
    intensity = measured.intensity
    if intensity is not None and peak and bandwidth:
        return NearerRoof("compute" if intensity > Fraction(peak, bandwidth) else "memory", basis)
    if category is not None and category.top in ("compute", "memory"):
        return NearerRoof("compute" if category.top == "compute" else "memory", "category")
    return None


def _sum(one: int | None, other: int | None) -> int | None:
    return one + other if one is not None and other is not None else None


def _ratio(amount: int | None, of: int | None) -> Fraction | None:
    return Fraction(amount, of) if amount is not None and of else None
