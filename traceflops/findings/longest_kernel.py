"""The kernel that takes most time, for verdicts where there is no timeline of the program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from traceflops.characters import kernel_name
from traceflops.devices.peaks import PER_TERA
from traceflops.facts import Fact, fact
from traceflops.findings.counted_estimates import COUNTED_KERNEL, counted_fact, short_names
from traceflops.findings.counted_kernels import kind_of, longest_first, remedy_of_grid, speed_of
from traceflops.findings.counted_roofs import roofs
from traceflops.findings.launch_geometry import few_blocks
from traceflops.findings.rules import thresholds
from traceflops.mfu.counted.counter_work import CountedKernel
from traceflops.mfu.measurement import Measurement
from traceflops.remedies import advice
from traceflops.table.columns import floats, is_one_of, matching
from traceflops.table.trace import Trace

_RATES: Final = {f"{COUNTED_KERNEL}.{way}" for way in ("bytes", "read", "written")}
"""The codes of limits that are rates of memory."""
_MOSTLY: Final = 0.5  # waves that wait for more of their cycles mostly wait


def kernel_with_most(measured: Measurement, trace: Trace) -> tuple[Fact, ...]:
    """Return which kernel takes most time, its speed, and what to do if its grids are small.

    If its counters are known, findings tell what to do.
    """
    kernels = longest_first(measured)
    if not kernels:
        return ()
    most, total_ns = kernels[0], sum(row.sum_ns for row in kernels)
    speed, work = speed_of(measured, most), most.measured
    few, kind = few_blocks(trace, most.name), kind_of(most.category.top, most.category.sub)
    is_to_grow = few is not None and speed is None
    remedies = [remedy_of_grid(most.name, kind)] if is_to_grow else []
    limits = [*filter(None, [few])]
    if work.flops_per_ns:
        limits.append(counted_fact("flops", tflops=work.flops_per_ns / PER_TERA))
    if work.bytes_per_ns:
        limits.append(_rate_of_memory(measured, float(work.bytes_per_ns)))
    limits += _of_amd(trace, most.name)
    if speed is not None:
        near = thresholds()[COUNTED_KERNEL]["near"]
        # Shares of 0 tell of units that the kernel does not use.
        limits += [roof for roof in roofs(speed, near) if roof.values["share"]]
    name, share = short_names([row.name for row in kernels])[most.name], most.sum_ns / total_ns
    told = counted_fact("most", name=name, share=share, time_ns=total_ns, limits=tuple(limits))
    return told, *remedies


def _rate_of_memory(measured: Measurement, rate: float) -> Fact:
    """Return a rate in bytes per ns, as a share of the memory's peak if no cache may serve it."""
    work, peak = measured.executed.work, measured.memory_peak
    families = work.families if work is not None else ()
    is_known = families and all(one is not None and one.counts_memory for one in families)
    share = rate / peak if is_known and peak and rate <= peak else None
    return counted_fact("bytes", gigabytes=rate, share=share)


def _of_amd(trace: Trace, kernel: str) -> list[Fact]:
    """Return what counters of an AMD GPU tell of a kernel: hits in L2, waves that mostly wait.

    Some counters are counted in several runs, so their means are compared.
    """
    table = trace.kernel_counters
    is_own = matching(table["name"], lambda name: kernel_name(name) == kernel_name(kernel))
    value = floats(table["value"])
    named = ("TCC_HIT_sum", "TCC_MISS_sum", "SQ_WAIT_ANY", "SQ_WAVE_CYCLES")
    counted = [value[is_own & is_one_of(table["counter"], counter)] for counter in named]
    hits, misses, waiting, alive = (float(one.sum()) / max(len(one), 1) for one in counted)
    told = []
    if hits > 0 < misses:  # NaN is not
        told.append(counted_fact("l2-hits", share=hits / (hits + misses)))
    if _MOSTLY * alive < waiting <= alive:
        told.append(counted_fact("waits", share=waiting / alive))
    return told


def counted_with_most(measured: Measurement) -> Fact | None:
    """Return which kernel has most of the time of counted launches, if counters tell little else.

    Without any time it is the kernel that moves most bytes. None if some times are missing, or if
    throughputs are known: then findings tell more.
    """
    work = measured.executed.work
    if work is None or work.has_throughputs:
        return None
    counted = [(row.name, row.time_ns) for row in work.counted]
    times = Counter[str]()
    for kernel, ns in [(speed.name, speed.duration_ns) for speed in work.speeds] or counted:
        times[kernel] += ns or 0
    rows, total_ns = [row for row in work.counted if times[row.name]], times.total()
    if not total_ns:
        return _moves_most(work.counted)
    if not rows or len(rows) < len(work.counted):
        return None
    most = max(rows, key=lambda row: times[row.name])
    rates = {"bytes": float(most.bytes_per_ns)} if most.bytes_per_ns else {}
    if not rates and most.time_ns:  # one of the ways was not counted
        ways = {"read": most.read, "written": most.written}
        rates = {way: float(moved) / most.time_ns for way, moved in ways.items() if moved}
    limits, peak = list[Fact](), measured.memory_peak
    for way, rate in rates.items():  # a rate above the peak is that of a cache
        share = rate / peak if peak and rate <= peak else None
        limits.append(counted_fact(way, gigabytes=rate, share=share))
    limits += [
        counted_fact("counter", name=name, mean=total / most.launches)
        for name, total in ({} if work.speeds else most.counters).items()
    ]
    name, share = short_names([row.name for row in rows])[most.name], times[most.name] / total_ns
    return counted_fact("most", name=name, share=share, time_ns=total_ns, limits=tuple(limits))


def _moves_most(counted: Sequence[CountedKernel]) -> Fact | None:
    """Return how many bytes a launch moves, of the kernel that moves most; None if unknown."""
    moved = {row.name: (row.read or 0) + (row.written or 0) for row in counted}
    most = max(counted, key=lambda row: moved[row.name], default=None)
    if most is None or not most.read or not most.written:
        return None
    each = {"read": most.read // most.launches, "written": most.written // most.launches}
    return counted_fact("moves", name=short_names([*moved])[most.name], **each)


def no_peak(most: Fact | None, measured: Measurement, trace: Trace) -> Fact | None:
    """Return that no GPU is recorded, if `most`, of a trace of counters, has a rate of memory."""
    limits = most.values.get("limits") if most is not None else None
    told = limits if isinstance(limits, tuple) else ()
    has_rate = any(isinstance(limit, Fact) and limit.code in _RATES for limit in told)
    if not has_rate or trace.devices.num_rows or measured.memory_peak is not None:
        return None
    return fact("verdict.no-peak", how=advice(trace, "device"))
