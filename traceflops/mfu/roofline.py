"""Whether work is bound by the rate of arithmetic or by memory, from FLOPs, bytes and time.

Arithmetic intensity is FLOPs per byte. A device of P FLOP per ns and B bytes per ns reaches P only
from the intensity P / B on, its balance; below, at most B x intensity (Williams et al., 2009).
Bytes are lower bounds, so an intensity is an upper bound and a memory-bound verdict is certain,
while a compute-bound one holds if nothing is moved twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from traceflops.categories.model import Category

Bound = Literal["compute", "memory"]
Basis = Literal["shapes", "category"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What bounds some work, and what says so: its FLOPs and bytes, or only its category."""

    bound: Bound
    basis: Basis


@dataclass(frozen=True, slots=True)
class Measured:
    """Work and its time: FLOPs and bytes are None where they are not known; time in ns."""

    flops: int | None
    min_bytes: int | None
    time_ns: int

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

    def share_of_bandwidth(self, bandwidth: int | None) -> Fraction | None:
        """Return the least bandwidth used as a share of a device's, in bytes per ns."""
        used = self.bytes_per_ns
        return None if used is None or not bandwidth else used / bandwidth


def verdict(
    measured: Measured, peak: int | None, bandwidth: int | None, category: Category | None = None
) -> Verdict | None:
    """Return what bounds some work: by its intensity, else by its category, else None.

    `peak` is in FLOP per ns of the work's data type, `bandwidth` in bytes per ns.
    """
    intensity = measured.intensity
    if intensity is not None and peak and bandwidth:
        return Verdict("compute" if intensity > Fraction(peak, bandwidth) else "memory", "shapes")
    if category is not None and category.top in ("compute", "memory"):
        return Verdict("compute" if category.top == "compute" else "memory", "category")
    return None


def _ratio(amount: int | None, of: int | None) -> Fraction | None:
    return Fraction(amount, of) if amount is not None and of else None
