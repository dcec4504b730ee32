"""The statements on a recording that holds only totals by name, without a timeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from traceflops.categories.programs import may_be_own
from traceflops.facts import Fact, Value, fact
from traceflops.findings.calls_alone import graph_launches_of, launches_of, single_calls
from traceflops.findings.case import Case
from traceflops.findings.counted_estimates import short_names
from traceflops.findings.finding import Finding, Row, severity_of
from traceflops.findings.main_kernel import MAIN_KERNEL, known_of_compute
from traceflops.findings.rules import advice_of, statement
from traceflops.table.columns import is_one_of, numbers
from traceflops.table.grouping import distinct
from traceflops.table.schema import DEVICE_KINDS
from traceflops.table.trace import Trace
from traceflops.timeline.aggregates import Untimed

_MOST, _MUCH = 0.5, 0.15
"""A kernel with more than half of the time is told instead of its category; one with much of it
beside the largest category, if it is of another one."""
_WAITING, _MEMORY, _COMPUTE = "communication", "memory", "compute"
_NAMES: Final = 1_000  # of so many kernels with most time, short names differ
_STEM: Final = 4  # so many letters of a category in a name tell it: conv_forward_kernel
_NSYS: Final = "nsys"
_OF_KERNELS: Final = "nsys stats --report cuda_gpu_kern_sum"


def totals_alone(untimed: Untimed, trace: Trace) -> tuple[Fact, ...]:
    """Return what takes most of the time of all GPU work, or that totals of kernels are missing.

    What was called once follows.
    """
    launches = launches_of(untimed)
    if launches and not untimed.of_kind("kernel").num_rows:
        return _without_kernels(untimed, trace, launches)
    works = untimed.of_kind(*DEVICE_KINDS).to_pylist()
    longest = (work["name"] for work in works[:_NAMES] if work["kind"] == "kernel")
    shown = short_names([*longest])
    is_kernel = is_one_of(trace.totals["kind"], "kernel")
    processes = len(distinct(numbers(trace.totals["process"])[is_kernel]))
    several = (fact("verdict.several-totals", count=processes),) if processes > 1 else ()
    graphs = graph_launches_of(untimed)
    replayed = (fact("verdict.replayed-totals", count=graphs),) if graphs else ()
    return (
        _with_kernels(untimed, works, shown),
        *replayed,
        *_communication(untimed, works, shown, is_one=processes == 1),
        *several,
        *single_calls(untimed.of_kind("call"), untimed.device_ns),
    )


def main_total(case: Case) -> Iterator[Finding]:
    """Give a finding on the kernel with more than half of the time, if it is worth profiling.

    It is not if start-up takes longer than all GPU work, if it runs hardly longer than
    a launch, if other ranks may make it wait, or if it moves memory for a framework or library.
    """
    untimed = case.untimed
    if untimed is None or not untimed.device_ns:
        return
    calls, limits = untimed.of_kind("call"), case.finding_rules.limits(MAIN_KERNEL)
    is_held_up = bool(single_calls(calls, untimed.device_ns))
    works = untimed.of_kind(*DEVICE_KINDS).to_pylist()
    main, kernels = works[0], [work["name"] for work in works if work["kind"] == "kernel"]
    is_judged = main["kind"] == "kernel" and main["name"] and main["count"]
    is_judged = is_judged and main["share"] is not None
    if is_held_up or not is_judged or main["share"] <= max(_MOST, limits["least_share"]):
        return
    is_of_others = main["top"] == _MEMORY and not may_be_own(main["name"])
    if main["top"] == _WAITING or is_of_others or main["mean_ns"] < limits["least_ns"]:
        return
    knows = {"long"} if main["mean_ns"] >= limits["long_ns"] else set[str]()
    if main["top"] == _COMPUTE:
        knows |= {_COMPUTE, main["sub"], *known_of_compute(main["name"], main["sub"], 0)}
    values: dict[str, Value] = {
        "name": short_names(kernels)[main["name"]],
        "of": fact("basis.gpu"),
        "launches": main["count"],
        "mean_ns": main["mean_ns"],
        "kernels": 1,
    }
    advice = advice_of(MAIN_KERNEL, case.program | knows, values)
    rows = (Row(str(values["name"]), main["sum_ns"], main["count"]),)
    yield statement(MAIN_KERNEL, main["share"], values, advice=advice, rows=rows)


def _with_kernels(
    untimed: Untimed, works: Sequence[Mapping[str, Any]], shown: Mapping[str, str]
) -> Fact:
    """Return what takes the time of devices, by sums of all their work."""
    largest = untimed.categories.slice(0, 1).to_pylist()[0]  # rows are sorted by time
    is_known = untimed.device_ns is not None and largest["share"] is not None
    time_ns = untimed.device_ns if is_known else None
    counts = untimed.categories["count"].to_pylist()
    count = None if None in counts else sum(counts)
    one = works[0] if is_known and works[0]["kind"] == "kernel" else None
    is_most = one is not None and one["share"] > _MOST
    is_other = one is not None and (one["top"], one["sub"]) != (largest["top"], largest["sub"])
    is_beside = one is not None and is_other and one["top"] != _WAITING and one["share"] >= _MUCH
    named = one if is_most or is_beside else None
    return fact(
        "verdict.untimed-totals",
        time_ns=time_ns,
        count=count,
        mean_ns=round(time_ns / count) if time_ns is not None and count and count > 1 else None,
        share=largest["share"] if is_known and not is_most else None,
        kind=largest["sub"].replace("_", " "),
        most=named["share"] if named else None,
        name=shown[named["name"]] if named else None,
        of=_kind_of(named["sub"], shown[named["name"]]) if named else None,
        unknown=sum(not work["sum_ns"] for work in works) or None,
        names=len(works),
    )


def _kind_of(sub: str, name: str) -> str | None:
    """Return a category in words, None if it is unknown or a kernel's short name tells it."""
    is_told = sub == "other" or sub[:_STEM] in name.lower()
    return None if is_told else sub.replace("_", " ")


def _communication(
    untimed: Untimed,
    works: Sequence[Mapping[str, Any]],
    shown: Mapping[str, str],
    *,
    is_one: bool,
) -> tuple[Fact, ...]:
    """Return how much of the time is communication, which other ranks may make long, if much.

    Sums of one source (`is_one`) may be of several GPUs: their names do not tell.
    """
    shares = [row["share"] for row in untimed.categories.to_pylist() if row["top"] == _WAITING]
    if None in shares or severity_of(sum(shares)) not in ("high", "medium"):
        return ()
    longest = next(work for work in works if work["top"] == _WAITING)  # they are sorted by time
    values: dict[str, Value] = {"count": longest["count"], "mean_ns": longest["mean_ns"]}
    values["sums"] = fact("verdict.several-gpus") if is_one else None
    name = shown.get(longest["name"], longest["name"])
    return (fact("verdict.communication-totals", share=sum(shares), name=name, **values),)


def _without_kernels(untimed: Untimed, trace: Trace, launches: int) -> tuple[Fact, ...]:
    """Return that sums of kernels are missing, and which calls take most of their time."""
    is_nsys = trace.source.format.startswith(_NSYS)
    values = {
        "time_ns": untimed.device_ns,
        "launches": launches,
        "report": _OF_KERNELS if is_nsys else None,
    }
    missing = fact("verdict.kernel-totals-missing", **values)
    return missing, *filter(None, [longest_call(untimed)])


def longest_call(untimed: Untimed) -> Fact | None:
    """Return which call takes most of the time of all calls, None if that is unknown."""
    most = untimed.of_kind("call").slice(0, 1).to_pylist()[0]
    if most["share"] is None:
        return None
    once_ns = most["sum_ns"] if most["count"] == 1 else None
    return fact("verdict.call-most", name=most["name"], share=most["share"], once_ns=once_ns)
