"""CPU samples taken in idle time for which nothing else of the host is recorded."""

from __future__ import annotations

from collections import Counter

import numpy as np

from traceflops.attribution.idle_classes import PLACES
from traceflops.attribution.idle_slices import chosen_gaps
from traceflops.attribution.named_slices import NamedSlices
from traceflops.table.columns import codes, is_one_of, names, numbers, thread_columns
from traceflops.table.grouping import groups, shared_codes
from traceflops.timeline.intervals import Intervals
from traceflops.windows.prepared import Prepared


def sampled_in(prepared: Prepared, kind: str) -> Counter[str]:
    """Count the CPU samples of launching threads per function, in idle time of one class."""
    trace = prepared.trace
    row = np.flatnonzero(is_one_of(trace.marks["kind"], "sample"))
    if not len(row) or not prepared.accounts:
        return Counter()
    naming = NamedSlices.of(chosen_gaps(prepared), trace)
    call = naming.parts.call[naming.slices.part]
    of_kind = np.flatnonzero((naming.kind == PLACES[kind]) & (call >= 0))
    slices = naming.slices.only(of_kind)
    of_slice, of_sample = shared_codes(
        thread_columns(trace.calls, call[of_kind]), thread_columns(trace.marks, row)
    )
    at_ns, name = numbers(trace.marks["start_ns"])[row], codes(trace.marks["name"])[row]
    counts = np.zeros(len(names(trace.marks["name"])), dtype=np.int64)
    for number, samples in groups(of_sample):
        same = of_slice == number
        idle = Intervals.of(slices.start_ns[same], slices.end_ns[same])
        counts += np.bincount(name[samples[idle.contains(at_ns[samples])]], minlength=len(counts))
    labels = names(trace.marks["name"])
    return Counter({labels[code]: int(counts[code]) for code in np.flatnonzero(counts).tolist()})
