"""What CPU samples and scheduler switches tell about idle time without other host records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from traceflops.attribution.idle_classes import PLACES
from traceflops.attribution.idle_slices import chosen_gaps
from traceflops.attribution.named_slices import NamedSlices
from traceflops.table.arrays import BoolArray, IntArray
from traceflops.table.columns import codes, is_one_of, names, numbers, thread_columns
from traceflops.table.grouping import groups, shared_codes
from traceflops.table.trace import Trace
from traceflops.timeline.intervals import Intervals
from traceflops.windows.prepared import Prepared


def sampled_in(prepared: Prepared, kind: str) -> Counter[str]:
    """Count CPU samples of launching threads per function, in idle time of a class (`kind`)."""
    marks, labels = prepared.trace.marks, names(prepared.trace.marks["name"])
    at_ns, name = numbers(marks["start_ns"]), codes(marks["name"])
    counts = np.zeros(len(labels), dtype=np.int64)
    for idle, samples in _in_idle_time(prepared, kind, "sample"):
        counts += np.bincount(name[samples[idle.contains(at_ns[samples])]], minlength=len(counts))
    return _by_function(labels, counts)


def sample_spacing_ns(trace: Trace) -> int:
    """Return the median time between two CPU samples of one thread, 0 without any."""
    row = np.flatnonzero(is_one_of(trace.marks["kind"], "sample"))
    process, thread = thread_columns(trace.marks, row)
    at_ns = numbers(trace.marks["start_ns"])[row]
    order = np.lexsort((at_ns, thread, process))
    spacing = np.diff(at_ns[order])
    same = (np.diff(thread[order]) == 0) & (np.diff(process[order]) == 0)
    return int(np.median(spacing[same])) if same.any() else 0


def sampled_outside(prepared: Prepared) -> tuple[Counter[str], Counter[str]]:
    """Count CPU samples per function before the first work of the only GPU, and after the last.

    Several GPUs work at different times: then both counts are empty.
    """
    if len(prepared.accounts) != 1:
        return Counter(), Counter()
    [(first_ns, last_ns)] = (account.rows.span for account in prepared.accounts.values())
    marks, labels = prepared.trace.marks, names(prepared.trace.marks["name"])
    at_ns, is_sample = numbers(marks["start_ns"]), is_one_of(marks["kind"], "sample")

    def counted(chosen: BoolArray) -> Counter[str]:
        name = codes(marks["name"])[is_sample & chosen]
        return _by_function(labels, np.bincount(name, minlength=len(labels)))

    return counted(at_ns < first_ns), counted(at_ns >= last_ns)


def _by_function(labels: Sequence[str], counts: IntArray) -> Counter[str]:
    """Return counts by name, without those that are 0."""
    return Counter({labels[code]: int(counts[code]) for code in np.flatnonzero(counts).tolist()})


def off_cpu_in(prepared: Prepared, kind: str) -> int:
    """Return the ns of idle time of one class in which the launching thread runs on no CPU."""
    off_ns, marks = 0, prepared.trace.marks
    start_ns, dur_ns = numbers(marks["start_ns"]), numbers(marks["dur_ns"])
    for idle, rows in _in_idle_time(prepared, kind, "off_cpu"):
        off_ns += Intervals.of(start_ns[rows], (start_ns + dur_ns)[rows]).intersect(idle).length_ns
    return off_ns


def _in_idle_time(
    prepared: Prepared, kind: str, of_marks: str
) -> Iterator[tuple[Intervals, IntArray]]:
    """Yield, per launching thread, its idle time of one class, and its marks of a kind.

    Where no launch ends idle time, all threads of the process that call the GPU count as one.
    """
    trace = prepared.trace
    row = np.flatnonzero(is_one_of(trace.marks["kind"], of_marks))
    if not len(row) or not prepared.accounts:
        return
    naming = NamedSlices.of(chosen_gaps(prepared), trace)
    call = naming.parts.call[naming.slices.part]  # that ended the gap
    of_kind = np.flatnonzero(naming.kind == PLACES[kind])
    is_launched = call[of_kind] >= 0
    of_kind = of_kind[is_launched] if is_launched.any() else of_kind
    slices = naming.slices.only(of_kind)
    # Number the threads, equally for the calls and the marks.
    if is_launched.any():
        callers = thread_columns(trace.calls, call[of_kind])
        thread_of_slice, thread_of_mark = shared_codes(callers, thread_columns(trace.marks, row))
    else:
        thread_of_slice = numbers(trace.activities["process"])[naming.parts.activity[slices.part]]
        calling, own = shared_codes(thread_columns(trace.calls), thread_columns(trace.marks, row))
        row = row[np.isin(own, calling)]
        thread_of_mark = numbers(trace.marks["process"])[row]
    slices_of = dict(groups(thread_of_slice))
    for thread, same in groups(thread_of_mark):
        own = slices_of.get(thread, of_kind[:0])
        yield Intervals.of(slices.start_ns[own], slices.end_ns[own]), row[same]
