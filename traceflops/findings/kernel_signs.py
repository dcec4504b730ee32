"""What the signature of a kernel tells of what may limit it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from traceflops.mfu.budget import DevicePeaks

_POINTER: Final = r"\s?(?:const\s?)?[*&]"
_WIDE: Final = re.compile(
    rf"\b(?:double|Float64){_POINTER}|<[^<>]{{0,200}}\b(?:double|Float64)\b", re.ASCII
)
_SHORT: Final = r"(?:float|Float32|Float16|\w{0,20}[Hh]alf2?|\w{0,20}[Bb][Ff]loat16)"
_NARROW: Final = re.compile(rf"\b{_SHORT}{_POINTER}|<[^<>]{{0,200}}\b{_SHORT}\b", re.ASCII)
"""Find pointers and arrays of 64-bit numbers in a signature, and of shorter ones."""


def slower_doubles(name: str, devices: Sequence[DevicePeaks]) -> float | None:
    """Return how many times as fast the GPUs are at FP32 as at the FP64 that a kernel works on.

    None if the kernel also has arrays of shorter numbers, or none of FP64, or a rate is unknown.
    """
    if not _WIDE.search(name) or _NARROW.search(name):
        return None
    rates = [(device.match.peak("fp64"), device.match.peak("fp32")) for device in devices]
    return min((fp32 / fp64 if fp64 and fp32 else 0.0 for fp64, fp32 in rates), default=0.0) or None
