"""What samples of the CPU say of idle time in which nothing else of the host is recorded."""

from __future__ import annotations

from collections import Counter

import numpy as np

from traceflops.attribution.idle_classes import PLACES
from traceflops.attribution.idle_slices import chosen_gaps
from traceflops.attribution.named_slices import NamedSlices
from traceflops.table.columns import ABSENT, codes, is_one_of, names, numbers
from traceflops.table.grouping import groups, joint_codes
from traceflops.timeline.intervals import Intervals
from traceflops.windows.prepared import Prepared


def sampled_in(prepared: Prepared, kind: str) -> Counter[str]:
    """Return how often the launching threads were sampled where, in idle time of a class."""
    trace = prepared.trace
    row = np.flatnonzero(is_one_of(trace.marks["kind"], "sample"))
    if not len(row) or not prepared.accounts:
        return Counter()
    naming = NamedSlices.of(chosen_gaps(prepared), trace)
    call = naming.parts.call[naming.slices.part]
    own = np.flatnonzero((naming.kind == PLACES[kind]) & (call >= 0))
    slices = naming.slices.only(own)
    process, thread = (
        np.concatenate(
            [numbers(trace.calls[name], ABSENT)[call[own]], numbers(trace.marks[name], ABSENT)[row]]
        )
        for name in ("process", "thread")
    )
    of_slice, of_sample = np.split(joint_codes(process, thread), [len(own)])
    at_ns, name = numbers(trace.marks["start_ns"])[row], codes(trace.marks["name"])[row]
    counts = np.zeros(len(names(trace.marks["name"])), dtype=np.int64)
    for number, mine in groups(of_sample):
        same = of_slice == number
        idle = Intervals.of(slices.start_ns[same], slices.end_ns[same])
        counts += np.bincount(name[mine[idle.contains(at_ns[mine])]], minlength=len(counts))
    labels = names(trace.marks["name"])
    return Counter({labels[code]: int(counts[code]) for code in np.flatnonzero(counts).tolist()})
