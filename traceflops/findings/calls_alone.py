"""Where the time of a thread goes that launches GPU work of which nothing is recorded.

    |malloc|   |copy     |launch|wait  |   |read    |   |free|      # of one thread, outermost
            own                          own          own

The first call of a name may set up what the later ones use: what it takes beyond their median is
left out, of its kind and of the whole. Copies and waits keep their time: it is that of what they
move or await.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.attribution.host_events import has_fact, host_span
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
from traceflops.table.patterns import LAUNCH
from traceflops.table.trace import Trace
from traceflops.timeline.first_calls import FEW
from traceflops.timeline.intervals import Intervals

_CALLS: Final = {"allocates": "allocate", "copies": "copy", "waits_for_device": "wait"}
_SYSTEM: Final = {
    "uses_files": "files",
    "awaits_input": "input",
    "sleeps": "sleep",
    "waits": "others",
}
"""Kinds of calls by what their names reveal (`has_fact`): those of a GPU, and of the system."""
_MOST_NAMES: Final = 2


def calls_alone(trace: Trace) -> tuple[Fact, ...]:
    """Return the kind of call that takes most of the time of the thread that launches most.

    Nothing if the trace has operators, which say more, or if no kind takes much.
    """
    calls = trace.calls
    launches = matching(calls["name"], LAUNCH.match)
    if trace.ops.num_rows or not launches.any() or calls.num_rows < FEW:
        return ()
    thread, thread_of_mark = shared_codes(thread_columns(calls), thread_columns(trace.marks))
    threads, count = np.unique(thread[launches], return_counts=True)
    busiest = threads[count.argmax()]
    row = outermost(calls, np.flatnonzero(thread == busiest))
    is_system = is_one_of(trace.marks["kind"], "system")
    marks = np.flatnonzero(is_system & (thread_of_mark == busiest))
    # Time in calls, and the rest of the thread from its first call to its last
    (_, start, end), (_, begin, stop) = host_span(calls), host_span(trace.marks)
    name, dur_ns = codes(calls["name"])[row], end[row] - start[row]
    spent_ns = _usual(name, dur_ns)
    # Copies and waits take as long as the GPU does: a long first one is no set-up.
    for reveals in ("copies", "waits_for_device"):
        spent_ns = np.where(has_fact(calls["name"], reveals)[row], dur_ns, spent_ns)
    inside = Intervals.of(start[row], end[row])
    rest = Intervals.one(int(start[row].min()), int(end[row].max())).subtract(inside)
    first_ns = int(dur_ns.sum() - spent_ns.sum())
    whole_ns = inside.length_ns + rest.length_ns - first_ns
    # Time by kind; calls of the system count outside calls of the GPU
    times = {"launch": int(spent_ns[launches[row]].sum())}
    for reveals, kind in _CALLS.items():
        times[kind] = int(spent_ns[has_fact(calls["name"], reveals)[row]].sum())
    for reveals, kind in _SYSTEM.items():
        some = marks[has_fact(trace.marks["name"], reveals)[marks]]
        times[kind] = Intervals.of(begin[some], stop[some]).intersect(rest).length_ns
    kind = max(times, key=lambda kind: times[kind])
    share = times[kind] / whole_ns if whole_ns > 0 else 0.0
    if severity_of(share) not in ("high", "medium"):
        return ()
    # The share of time in no call at all: what runs then is not recorded.
    outside = rest.subtract(Intervals.of(begin[marks], stop[marks])).length_ns / whole_ns
    reveals = next((reveals for reveals, of in _CALLS.items() if of == kind), "")
    of_kind = has_fact(calls["name"], reveals)[row] if reveals else np.zeros(len(row), np.bool_)
    # The names with most of that time, those with a tenth of it or more
    labels = names(calls["name"])
    sums = np.bincount(name[of_kind], spent_ns[of_kind], minlength=len(labels))
    first = np.argsort(-sums)[:_MOST_NAMES]
    largest = tuple(labels[code] for code in first if 10 * sums[code] >= sums.sum())
    return (
        fact(
            "calls-alone.lead",
            what=fact(f"calls-alone.{kind}"),
            share=share,
            whole_ns=whole_ns,
            first_ns=first_ns if severity_of(first_ns / whole_ns) else None,
            names=largest if reveals else None,
            outside=outside if severity_of(outside) in ("high", "medium") else None,
        ),
    )


def outermost(calls: pa.Table, row: IntArray) -> IntArray:
    """Return the calls of one thread (rows) that lie in no other call, by start."""
    _, start, end = host_span(calls)
    row = row[np.lexsort((-end[row], start[row]))]  # an outer call before those that begin with it
    reach = np.maximum.accumulate(end[row])
    is_inner: BoolArray = np.append(False, end[row][1:] <= reach[:-1])
    return np.asarray(row[~is_inner])


def _usual(name: IntArray, dur_ns: IntArray) -> IntArray:
    """Return how long each call takes; the first of many of a name, their median at most.

    A first call also sets up what it needs, which is not done again.
    """
    spent_ns = dur_ns.copy()
    order = np.lexsort((dur_ns, name))
    _, begin, count = np.unique(name[order], return_index=True, return_counts=True)
    median_ns = dur_ns[order][begin + count // 2]
    first = np.unique(name, return_index=True)[1]
    many = first[count >= FEW]
    spent_ns[many] = np.minimum(spent_ns[many], median_ns[count >= FEW])
    return np.asarray(spent_ns)
