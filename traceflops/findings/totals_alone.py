"""The statements on a recording that holds only totals by name, without a timeline."""

from __future__ import annotations

from traceflops.facts import Fact, fact
from traceflops.findings.calls_alone import launches_beyond_work, single_calls
from traceflops.findings.counted_estimates import short_names
from traceflops.table.columns import is_one_of, numbers
from traceflops.table.grouping import distinct
from traceflops.table.schema import DEVICE_KINDS
from traceflops.table.trace import Trace
from traceflops.timeline.aggregates import Untimed

_MOST, _MUCH = 0.5, 0.15
"""A kernel with more than half of the time is told instead of its category; one with much of it
beside the largest category, if it is of another one."""


def totals_alone(untimed: Untimed, trace: Trace) -> tuple[Fact, ...]:
    """Return what takes most of the time of all GPU work, and of how many processes the totals are.

    What was launched once, and what launching takes, follows.
    """
    largest = untimed.categories.slice(0, 1).to_pylist()[0]  # rows are sorted by time
    is_known = untimed.device_ns is not None and largest["share"] is not None
    time_ns = untimed.device_ns if is_known else None
    counts = untimed.categories["count"].to_pylist()
    count = None if None in counts else sum(counts)
    works = untimed.of_kind(*DEVICE_KINDS).to_pylist()
    one = works[0] if is_known and works[0]["kind"] == "kernel" else None
    is_most = one is not None and one["share"] > _MOST
    is_other = one is not None and (one["top"], one["sub"]) != (largest["top"], largest["sub"])
    named = one if one and (is_most or (is_other and one["share"] >= _MUCH)) else None
    totals = fact(
        "verdict.untimed-totals",
        time_ns=time_ns,
        count=count,
        mean_ns=round(time_ns / count) if time_ns is not None and count and count > 1 else None,
        share=largest["share"] if is_known and not is_most else None,
        kind=largest["sub"].replace("_", " "),
        most=named["share"] if named else None,
        name=short_names([named["name"]])[named["name"]] if named else None,
        unknown=sum(not work["sum_ns"] for work in works) or None,
        names=len(works),
    )
    is_kernel = is_one_of(trace.totals["kind"], "kernel")
    processes = len(distinct(numbers(trace.totals["process"])[is_kernel]))
    several = (fact("verdict.several-totals", count=processes),) if processes > 1 else ()
    once = single_calls(untimed.of_kind("call"), untimed.device_ns)
    return totals, *several, *once, *launches_beyond_work(untimed)
