"""What a recording without a timeline tells: sums by name, counted launches, or the CPU alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from traceflops.facts import Fact, fact
from traceflops.findings.finding import Verdict
from traceflops.findings.longest_kernel import counted_with_most, no_peak
from traceflops.findings.totals_alone import longest_call, totals_alone
from traceflops.mfu.measurement import Measurement
from traceflops.remedies import NSIGHT, family
from traceflops.table.trace import Trace
from traceflops.timeline.aggregates import Untimed

_ON_CPU: Final = {
    "call": "verdict.api-calls",
    "python": "verdict.python-functions",
    "mark": "verdict.annotations",
    "system": "verdict.system-calls",
}
"""Codes for what is recorded of the CPU, by kind of record."""


def untimed_verdict(
    untimed: Untimed | None, measured: Measurement, trace: Trace, late_rank: Fact | None = None
) -> Verdict | None:
    """Return the verdict on a trace without a timeline; None for any other trace."""
    if untimed is None:
        return None
    if untimed.categories.num_rows:
        return Verdict(totals_alone(untimed, trace), "no-timeline")
    if untimed.launches:
        launches, kernels = untimed.launches, untimed.counted.num_rows
        counters = fact("verdict.untimed-counters", launches=launches, kernels=kernels)
        most = counted_with_most(measured)
        work, of_ncu = measured.executed.work, family(trace.source.format) == NSIGHT
        is_rated = most.values.get("limits") if most else work is None or work.has_throughputs
        unrated = no_peak(most, measured, trace)
        if of_ncu and not is_rated:
            unrated = fact("verdict.no-throughput")
        parts = filter(None, [most, unrated])
        return Verdict((*parts, counters), "no-timeline")
    kinds = set(untimed.rows["kind"].to_pylist())
    if "gpu_mark" in kinds:
        only_marks = fact("verdict.only-gpu-annotations")
        return Verdict((only_marks, *filter(None, [late_rank])), "no-timeline")
    if "domain" in kinds:
        return Verdict((_by_domain(untimed.of_kind("domain").to_pylist()),), "no-timeline")
    if kinds == {"call"} and trace.totals.num_rows:
        return Verdict((fact("verdict.call-totals", most=longest_call(untimed)),), "no-timeline")
    of_cpu = tuple(fact(code) for kind, code in _ON_CPU.items() if kind in kinds)
    only = fact("verdict.only-cpu-records", kinds=of_cpu)
    return Verdict((only,), "no-gpu-work")


def _by_domain(rows: Sequence[Mapping[str, Any]]) -> Fact:
    """Return the statement on sums of whole domains: that of kernels if it is there."""
    row = next((row for row in rows if row["name"].startswith("KERNEL")), rows[0])
    figures = {"name": row["name"], "count": row["count"], "mean_ns": row["mean_ns"]}
    return fact("verdict.domain-totals", time_ns=row["sum_ns"], **figures)
