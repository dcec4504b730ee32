"""What the signature of a kernel, and the course of its launches, tell of what may limit it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from traceflops.characters import kernel_name
from traceflops.facts import Fact
from traceflops.mfu.budget import DevicePeaks
from traceflops.table.columns import matching, numbers
from traceflops.table.trace import Trace

_POINTER: Final = r"\s?(?:const\s?)?[*&]"
_WIDE: Final = re.compile(
    rf"\b(?:double|Float64){_POINTER}|<[^<>]{{0,200}}\b(?:double|Float64)\b", re.ASCII
)
_SHORT: Final = r"(?:float|Float32|Float16|\w{0,20}[Hh]alf2?|\w{0,20}[Bb][Ff]loat16)"
_NARROW: Final = re.compile(rf"\b{_SHORT}{_POINTER}|<[^<>]{{0,200}}\b{_SHORT}\b", re.ASCII)
"""Find pointers and arrays of 64-bit numbers in a signature, and of shorter ones."""
_PARTS: Final = 10


def slower_doubles(name: str, devices: Sequence[DevicePeaks]) -> float | None:
    """Return how many times as fast the GPUs are at FP32 as at the FP64 that a kernel works on.

    None if the kernel also has arrays of shorter numbers, or none of FP64, or a rate is unknown.
    """
    if not _WIDE.search(name) or _NARROW.search(name):
        return None
    rates = [(device.match.peak("fp64"), device.match.peak("fp32")) for device in devices]
    return min((fp32 / fp64 if fp64 and fp32 else 0.0 for fp64, fp32 in rates), default=0.0) or None


def falling(trace: Trace, name: str, limits: Mapping[str, float]) -> Fact | None:
    """Return how far the time of a kernel's launches falls from first to last, None if it does not.

    Means of tenths of its launches must all fall: one slow launch, or data that vary, do not count.
    """
    activities = trace.activities
    own = matching(activities["name"], lambda text: kernel_name(text) == name)
    start_ns, dur_ns = (numbers(activities[column])[own] for column in ("start_ns", "dur_ns"))
    if len(dur_ns) < max(limits["least_course"], _PARTS):
        return None
    parts = np.array_split(dur_ns[np.argsort(start_ns, kind="stable")], _PARTS)
    means = np.array([part.mean() for part in parts])
    if (np.diff(means) >= 0).any() or means[0] < limits["falls"] * means[-1]:
        return None
    return Fact("main-kernel.falling", {"first_ns": round(means[0]), "last_ns": round(means[-1])})
