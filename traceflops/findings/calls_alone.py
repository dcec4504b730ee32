"""How a thread that launches GPU work spends its time, where the GPU work itself is not recorded.

    |malloc|   |copy     |launch|wait  |   |read    |   |free|      # its outermost calls
            own                          own          own           # its time outside GPU calls

The first call of a name may also set up what later calls use. The time that it takes beyond the
median of its name is called set-up, and is left out of its kind and of the total. So is all of a
single allocation before the first launch, copy or fill: it creates the context.
Copies and waits keep all of their time: they last as long as the GPU work that they move or await.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.attribution.host_events import facts_of_name, has_fact, host_span
from traceflops.facts import Fact, fact
from traceflops.findings.finding import severity_of
from traceflops.table.columns import (
    BoolArray,
    IntArray,
    codes,
    is_one_of,
    matching,
    names,
    thread_columns,
)
from traceflops.table.grouping import shared_codes
from traceflops.table.patterns import ANY_FREE, GRAPH_LAUNCH, LAUNCH, STARTS, started
from traceflops.table.trace import Trace
from traceflops.timeline.aggregates import Untimed
from traceflops.timeline.first_calls import FEW
from traceflops.timeline.intervals import Intervals

_GPU_CALLS: Final = {"allocate": "allocates", "copy": "copies", "wait": "waits_for_device"}
_SYSTEM_CALLS: Final = {
    "files": "uses_files",
    "input": "awaits_input",
    "sleep": "sleeps",
    "others": "waits",
}
"""What the name of a call reveals (`has_fact`), by kind of call: to the GPU, and to the system."""
_AS_LONG_AS_WORK: Final = frozenset({"waits_for_device", "awaits_device", "copies"})
"""Facts of calls that end with GPU work."""
_MOST_NAMES: Final = 2
_MANY: Final = 100  # more copies per launch than this are of pieces
_FEWEST: Final = 10  # fewer launches, or copies of a kind, are no loop
_TWICE: Final = 2  # copies that wait take twice as long as others, or more


def calls_alone(trace: Trace) -> tuple[Fact, ...]:
    """Return the kind of call that takes most time of the thread that launches most, and a remedy.

    The total is that thread's time from its first call to its last, without set-up. Nothing is
    returned if the trace has operators, which say more; no kind if none takes much.
    """
    calls, marks = trace.calls, trace.marks
    launches = started(calls)
    if trace.ops.num_rows or not launches.any() or calls.num_rows < FEW:
        return ()
    thread_of_call, thread_of_mark = shared_codes(thread_columns(calls), thread_columns(marks))
    busiest = np.bincount(thread_of_call[launches]).argmax()
    row = outermost(calls, np.flatnonzero(thread_of_call == busiest))
    is_system = is_one_of(marks["kind"], "system")
    system = np.flatnonzero(is_system & (thread_of_mark == busiest))
    # The thread's time inside GPU calls and outside of them
    (_, start, end), (_, mark_start, mark_end) = host_span(calls), host_span(marks)
    inside = Intervals.of(start[row], end[row])
    outside = Intervals.one(int(start[row].min()), int(end[row].max())).subtract(inside)
    spent_ns = _without_set_up(calls, row)
    set_up_ns = int((end[row] - start[row]).sum() - spent_ns.sum())
    total_ns = inside.length_ns + outside.length_ns - set_up_ns
    # Time by kind. A GPU call may contain system calls: only those outside of it count.
    times = {"launch": int(spent_ns[launches[row]].sum())}
    for kind, reveals in _GPU_CALLS.items():
        times[kind] = int(spent_ns[has_fact(calls["name"], reveals)[row]].sum())
    for kind, reveals in _SYSTEM_CALLS.items():
        own = system[has_fact(marks["name"], reveals)[system]]
        times[kind] = Intervals.of(mark_start[own], mark_end[own]).intersect(outside).length_ns
    largest = max(times, key=lambda kind: times[kind])
    share = times[largest] / total_ns if total_ns > 0 else 0.0
    remedies = _remedies(calls, row, spent_ns)
    if severity_of(share) not in ("high", "medium"):
        return remedies
    # What the thread does in no call at all is not recorded.
    in_system = Intervals.of(mark_start[system], mark_end[system])
    in_no_call = outside.subtract(in_system).length_ns / total_ns
    return (
        fact(
            "calls-alone.lead",
            what=fact(f"calls-alone.{largest}"),
            share=share,
            whole_ns=total_ns,
            first_ns=set_up_ns if severity_of(set_up_ns / total_ns) else None,
            names=_longest_names(calls, row, spent_ns, largest),
            outside=in_no_call if severity_of(in_no_call) in ("high", "medium") else None,
        ),
        *remedies,
    )


def _remedies(calls: pa.Table, row: IntArray, spent_ns: IntArray) -> tuple[Fact, ...]:
    """Return what to do about allocations, many copies, or copies that wait, if they are much.

    Each must take a medium share of the time in calls. Copies right after launches seem to wait for
    kernels if they typically take twice as long as the others.
    """
    label, is_launch = calls["name"], started(calls)[row]
    is_free = matching(label, ANY_FREE.search)[row]
    is_copy, allocates, is_async = (
        has_fact(label, reveals)[row] for reveals in ("copies", "allocates", "copies_async")
    )
    launches, copies, frees = int(is_launch.sum()), int(is_copy.sum()), int(is_free.sum())
    allocations = int(allocates.sum()) - frees  # calls that free have the same fact

    def is_much(which: BoolArray) -> bool:
        share = spent_ns[which].sum() / max(int(spent_ns.sum()), 1)
        return severity_of(share) in ("high", "medium")

    if copies >= _MANY * launches > 0 and is_much(is_copy):
        return (fact("calls-alone.join", copies=copies, launches=launches),)
    values = {"allocations": allocations, "frees": frees, "launches": launches}
    if min(allocations, frees) >= launches >= _FEWEST and is_much(allocates):
        kept = allocations - frees
        return (fact("calls-alone.reuse", **values, kept=kept if kept >= launches else None),)
    waits = is_copy & ~is_async & np.append(False, is_launch[:-1])
    others = is_copy & ~waits
    if min(waits.sum(), others.sum()) < _FEWEST or not is_much(waits):
        return ()
    if np.median(spent_ns[waits]) < _TWICE * np.median(spent_ns[others]):
        return ()
    time_ns = int(spent_ns[waits].sum())
    return (fact("calls-alone.read-less", waits=int(waits.sum()), copies=copies, time_ns=time_ns),)


def outermost(calls: pa.Table, row: IntArray) -> IntArray:
    """Return the rows of one thread's calls that lie in no other call, sorted by start."""
    _, start, end = host_span(calls)
    row = row[np.lexsort((-end[row], start[row]))]  # of equal starts, the outer call first
    latest_end = np.maximum.accumulate(end[row])
    is_inner: BoolArray = np.append(False, end[row][1:] <= latest_end[:-1])
    return np.asarray(row[~is_inner])


def _without_set_up(calls: pa.Table, row: IntArray) -> IntArray:
    """Return the time of each call in ns, without the set-up in the first call of its name.

    Copies and waits take as long as the GPU does: a long first one is no set-up.
    """
    _, start, end = host_span(calls)
    name, dur_ns = codes(calls["name"])[row], (end - start)[row]
    order = np.lexsort((dur_ns, name))
    _, begin, count = np.unique(name[order], return_index=True, return_counts=True)
    median_ns = dur_ns[order][begin + (count - 1) // 2]
    _, first, group = np.unique(name, return_index=True, return_inverse=True)
    is_often = count >= FEW  # a median of fewer calls would be no measure of the usual time
    spent_ns = dur_ns.copy()
    spent_ns[first[is_often]] = np.minimum(dur_ns[first[is_often]], median_ns[is_often])
    keeps_all = has_fact(calls["name"], "copies") | has_fact(calls["name"], "waits_for_device")
    has_begun = np.cumsum(matching(calls["name"], STARTS.match)[row]) > 0
    spent_ns[has_fact(calls["name"], "allocates")[row] & ~has_begun & ~is_often[group]] = 0
    return np.where(keeps_all[row], dur_ns, spent_ns)


def _longest_names(
    calls: pa.Table, row: IntArray, spent_ns: IntArray, kind: str
) -> tuple[str, ...] | None:
    """Return the names with a tenth or more of a kind's time; None if it is no kind of GPU call."""
    if kind not in _GPU_CALLS:
        return None
    labels, of_kind = names(calls["name"]), has_fact(calls["name"], _GPU_CALLS[kind])[row]
    code = codes(calls["name"])[row[of_kind]]
    sums = np.bincount(code, spent_ns[of_kind], minlength=len(labels))
    longest = np.argsort(-sums)[:_MOST_NAMES]
    return tuple(labels[code] for code in longest if 10 * sums[code] >= sums.sum())


def single_calls(calls: pa.Table, device_ns: int | None) -> tuple[Fact, ...]:
    """Return that single calls take longer than all GPU work, if they do: they are start-up.

    `calls` are sums by name. Calls that wait or copy do not count: they last as long as GPU work.
    """
    longest: dict[str, int] = {}
    for row in calls.to_pylist():
        reveals = facts_of_name(row["name"])
        most_ns = row["max_ns"] if row["count"] != 1 else row["sum_ns"]
        if most_ns and 2 * most_ns > (row["sum_ns"] or 0) and reveals.isdisjoint(_AS_LONG_AS_WORK):
            longest[row["name"]] = most_ns
    all_ns = sum(longest.values())
    if not device_ns or all_ns <= device_ns:
        return ()
    name = max(longest, key=longest.__getitem__)
    return (fact("verdict.single-calls", time_ns=all_ns, name=name, longest_ns=longest[name]),)


def launches_of(untimed: Untimed) -> int:
    """Return how many launches of kernels and graphs the sums of calls count."""
    calls = untimed.of_kind("call").to_pylist()
    return sum(one["count"] or 0 for one in calls if LAUNCH.match(one["name"]))


def graph_launches_of(untimed: Untimed) -> int:
    """Return how many launches of graphs start most of the kernels, 0 if none do."""
    calls = untimed.of_kind("call").to_pylist()
    graphs = sum(one["count"] or 0 for one in calls if GRAPH_LAUNCH.match(one["name"]))
    kernels = sum(one["count"] or 0 for one in untimed.of_kind("kernel").to_pylist())
    return graphs if 2 * (launches_of(untimed) - graphs) < kernels else 0
