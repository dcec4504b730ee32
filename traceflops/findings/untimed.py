"""What a recording without a timeline tells: sums by name, counted launches, or the CPU alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from traceflops.facts import Fact, fact
from traceflops.findings.calls_alone import launches_beyond_work, launches_of, single_calls
from traceflops.findings.counted_estimates import short_names
from traceflops.findings.finding import Verdict, severity_of
from traceflops.findings.longest_kernel import best_blocks, counted_with_most, no_peak
from traceflops.findings.nothing_recorded import functions_alone
from traceflops.mfu.measurement import Measurement
from traceflops.remedies import NSIGHT, family
from traceflops.table.schema import DEVICE_KINDS
from traceflops.table.trace import Trace
from traceflops.timeline.aggregates import Untimed

_MOST, _WAITING = 0.5, "communication"
_STEM: Final = 4  # so many letters of a category in a name tell it: conv_forward_kernel
_OF_KERNELS: Final = "nsys stats --report cuda_gpu_kern_sum"
_ON_CPU: Final = {
    "call": "verdict.api-calls",
    "python": "verdict.python-functions",
    "mark": "verdict.annotations",
}
"""Codes for what is recorded of the CPU, by kind of record."""


def untimed_verdict(
    untimed: Untimed | None, measured: Measurement, trace: Trace, late_rank: Fact | None = None
) -> Verdict | None:
    """Return the verdict on a trace without a timeline; None for any other trace."""
    if untimed is None:
        return None
    if untimed.categories.num_rows:
        launches = launches_of(untimed)
        has_kernels = untimed.of_kind("kernel").num_rows > 0
        told = _with_kernels(untimed) if has_kernels or not launches else _without(untimed, trace)
        return Verdict(told, "no-timeline")
    if untimed.launches:
        launches, kernels = untimed.launches, untimed.counted.num_rows
        counters = fact("verdict.untimed-counters", launches=launches, kernels=kernels)
        most = counted_with_most(measured)
        work, of_ncu = measured.executed.work, family(trace.source.format) == NSIGHT
        is_rated = most.values.get("limits") if most else work is None or work.has_throughputs
        unrated = no_peak(most, measured, trace)
        if of_ncu and not is_rated:
            unrated = fact("verdict.no-throughput")
        parts = filter(None, [most, best_blocks(measured) if most else None, unrated])
        return Verdict((*parts, counters), "no-timeline")
    kinds = set(untimed.rows["kind"].to_pylist())
    if "gpu_mark" in kinds:
        only_marks = fact("verdict.only-gpu-annotations")
        return Verdict((only_marks, *filter(None, [late_rank])), "no-timeline")
    if "domain" in kinds:
        return Verdict((_by_domain(untimed.of_kind("domain").to_pylist()),), "no-timeline")
    if kinds == {"call"} and trace.totals.num_rows:
        return Verdict((fact("verdict.call-totals", most=_longest(untimed)),), "no-timeline")
    of_cpu = tuple(fact(code) for kind, code in _ON_CPU.items() if kind in kinds)
    elsewhere = functions_alone(untimed.rows) if kinds == {"python"} else ()
    only = fact("verdict.only-cpu-records", kinds=of_cpu)
    return Verdict((only, *elsewhere), "no-gpu-work")


def _with_kernels(untimed: Untimed) -> tuple[Fact, ...]:
    """Return what takes the time of devices, by sums of all their work."""
    largest = untimed.categories.slice(0, 1).to_pylist()[0]  # rows are sorted by time
    is_known = untimed.device_ns is not None and largest["share"] is not None
    time_ns = untimed.device_ns if is_known else None
    counts = untimed.categories["count"].to_pylist()
    count = None if None in counts else sum(counts)
    works = untimed.of_kind(*DEVICE_KINDS).to_pylist()
    one = works[0] if is_known and works[0]["kind"] == "kernel" else None
    one = one if one and one["share"] > _MOST else None  # a kernel that takes most
    shown = short_names([work["name"] for work in works if work["kind"] == "kernel"])
    totals = fact(
        "verdict.untimed-totals",
        time_ns=time_ns,
        count=count,
        mean_ns=round(time_ns / count) if time_ns is not None and count and count > 1 else None,
        share=largest["share"] if is_known and not one else None,
        kind=largest["sub"].replace("_", " "),
        most=one["share"] if one else None,
        name=shown[one["name"]] if one else None,
        of=_kind_of(one["sub"], shown[one["name"]]) if one else None,
        unknown=sum(not work["sum_ns"] for work in works) or None,
        names=len(works),
    )
    waits = _communication(untimed, works, shown) if is_known else ()
    once = single_calls(untimed.of_kind("call"), untimed.device_ns)
    return totals, *waits, *once, *launches_beyond_work(untimed)


def _kind_of(sub: str, name: str) -> str | None:
    """Return a category in words, None if it is unknown or a kernel's short name tells it."""
    is_told = sub == "other" or sub[:_STEM] in name.lower()
    return None if is_told else sub.replace("_", " ")


def _communication(
    untimed: Untimed, works: Sequence[Mapping[str, Any]], shown: Mapping[str, str]
) -> tuple[Fact, ...]:
    """Return how much of the time is communication, which other ranks may make long, if much."""
    shares = [row["share"] for row in untimed.categories.to_pylist() if row["top"] == _WAITING]
    if severity_of(sum(shares)) not in ("high", "medium"):
        return ()
    longest = next(work for work in works if work["top"] == _WAITING)  # they are sorted by time
    values = {"count": longest["count"], "mean_ns": longest["mean_ns"]}
    name = shown.get(longest["name"], longest["name"])
    return (fact("verdict.communication-totals", share=sum(shares), name=name, **values),)


def _without(untimed: Untimed, trace: Trace) -> tuple[Fact, ...]:
    """Return that sums of kernels are missing, and which calls take most of their time."""
    is_nsight = family(trace.source.format) == NSIGHT
    launches, most = launches_of(untimed), _longest(untimed)
    values = {
        "time_ns": untimed.device_ns,
        "launches": launches,
        "report": _OF_KERNELS if is_nsight else None,
    }
    return fact("verdict.kernel-totals-missing", **values), *filter(None, [most])


def _longest(untimed: Untimed) -> Fact | None:
    """Return which call takes most of the time of all calls, None if that is unknown."""
    most = untimed.of_kind("call").slice(0, 1).to_pylist()[0]
    if most["share"] is None:
        return None
    once_ns = most["sum_ns"] if most["count"] == 1 else None
    return fact("verdict.call-most", name=most["name"], share=most["share"], once_ns=once_ns)


def _by_domain(rows: Sequence[Mapping[str, Any]]) -> Fact:
    """Return the statement on sums of whole domains: that of kernels if it is there."""
    row = next((row for row in rows if row["name"].startswith("KERNEL")), rows[0])
    figures = {"name": row["name"], "count": row["count"], "mean_ns": row["mean_ns"]}
    return fact("verdict.domain-totals", time_ns=row["sum_ns"], **figures)
