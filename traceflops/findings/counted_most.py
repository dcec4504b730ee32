"""Which kernel takes most of the time of kernels, where counters or only their times are known."""

from __future__ import annotations

from typing import Final

from traceflops.facts import Fact
from traceflops.findings.counted_estimates import COUNTED_KERNEL, counted_fact
from traceflops.findings.counted_kernels import called, longest_first, roofs, speed_of
from traceflops.findings.launch_geometry import few_blocks
from traceflops.findings.rules import thresholds
from traceflops.mfu.measurement import Measurement
from traceflops.table.trace import Trace

_TERA: Final = 1000
"""In FLOP per ns."""


def kernel_with_most(measured: Measurement, trace: Trace) -> Fact | None:
    """Return which kernel has most of the time, its speed, and whether its grids are small."""
    kernels = longest_first(measured)
    if not kernels:
        return None
    most, total_ns = kernels[0], sum(row.sum_ns for row in kernels)
    speed, work = speed_of(measured, most), most.measured
    limits = [*filter(None, [few_blocks(trace, most.name)])]
    if work.flops_per_ns:
        limits.append(counted_fact("flops", tflops=work.flops_per_ns / _TERA))
    if work.bytes_per_ns:
        limits.append(counted_fact("bytes", gigabytes=work.bytes_per_ns))
    if speed is not None:
        near = thresholds()[COUNTED_KERNEL]["near"]
        # Shares of 0 tell of units that the kernel does not use.
        limits += [roof for roof in roofs(speed, near) if roof.values["share"]]
    return counted_fact(
        "most",
        name=called([row.name for row in kernels])[most.name],
        share=most.sum_ns / total_ns,
        time_ns=total_ns,
        limits=tuple(limits),
    )


def counted_with_most(measured: Measurement) -> Fact | None:
    """Return which kernel has most of the time of counted launches, if only these are known.

    None if a time is missing, or if speeds are known: findings tell more of them.
    """
    work = measured.executed.work
    rows = work.counted if work is not None and not work.speeds else ()
    times = [row.time_ns for row in rows if row.time_ns]
    if not times or len(times) < len(rows):
        return None
    most, total_ns = max(rows, key=lambda row: row.time_ns or 0), sum(times)
    limits = [counted_fact("bytes", gigabytes=most.bytes_per_ns)] if most.bytes_per_ns else []
    for way, moved in () if limits else (("read", most.read), ("written", most.written)):
        if moved and most.time_ns:  # the other way was not counted
            limits.append(counted_fact(way, gigabytes=moved / most.time_ns))
    if limits and (most.flops, most.vector) == (0, 0):  # counted, and none: it only moves bytes
        limits.append(counted_fact("no-flops"))
    limits += [
        counted_fact("counter", name=name, mean=total / most.launches)
        for name, total in most.counters.items()
    ]
    return counted_fact(
        "most",
        name=called([row.name for row in rows])[most.name],
        share=max(times) / total_ns,
        time_ns=total_ns,
        limits=tuple(limits),
    )
