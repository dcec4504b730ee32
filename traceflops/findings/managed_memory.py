"""What the host does between pages of managed memory that it brings back by touching them."""

from __future__ import annotations

from typing import Final

import numpy as np

from traceflops.attribution.cpu_samples import sample_spacing_ns
from traceflops.attribution.culprits import IdleClass
from traceflops.attribution.idle_classes import is_prefetch, on_demand
from traceflops.facts import Value
from traceflops.findings.case import Case
from traceflops.findings.host_samples import sampled
from traceflops.table.columns import is_one_of, numbers
from traceflops.table.grouping import group_sums, joint_codes, ranked
from traceflops.table.trace import Trace

_NEARLY_ALL: Final = 0.9
_LEAST_CORRELATION: Final = 0.9
"""From here on the time after a page tells how much of it is work on its bytes."""
_LEAST_GAPS: Final = 20
_SURE_ERRORS: Final = 2
"""Standard errors by which a fixed time may be longer than fitted."""


def between_pages(case: Case, idle: IdleClass) -> tuple[set[str], dict[str, Value]]:
    """Return what is known of the time between pages, and values of its text.

    That is work on the data, but for a fixed time per page, where it grows with the bytes. Code
    runs then, rather than page faults, where the CPU is sampled at least half as often as while it
    is busy.
    """
    if case.prepared is None:
        return set(), {}
    values: dict[str, Value] = {"bytes": _fetched_twice(case.prepared.trace) or None}
    if (times := _times_after_pages(case.prepared.trace)) is not None:
        gaps, each_byte_ns, each_ns = sum(one.gaps for one in idle.culprits), *times
        fixed_ns = min(round(gaps * each_ns), idle.idle_ns)
        own = {"each_kib_ns": round(1024 * each_byte_ns), "each_ns": round(each_ns)}
        return {"per-byte"}, {**values, **own, "fixed_ns": fixed_ns}
    samples = sampled(case, idle.kind)
    count = samples.get("samples")
    spacing_ns = sample_spacing_ns(case.prepared.trace)
    if isinstance(count, int) and 2 * count * spacing_ns >= idle.idle_ns:
        return {"sampled"}, values | samples
    return set(), values


def _times_after_pages(trace: Trace) -> tuple[float, float] | None:
    """Return ns per byte of a page, and at most ns per page, from one page to the next.

    Fitted to the pages that the host brings back; None where they are few, have one size, or where
    the time depends on something else.

        ns  |            ' .   slope: the host works on the bytes
            |        . '
            |    . '
            |' '               left at 0 bytes: a fault, whatever the size
            +--------------- bytes
    """
    work = trace.activities
    begin_ns, device = numbers(work["start_ns"]), numbers(work["device"])
    order = np.lexsort((begin_ns, device))
    begin_ns, device = begin_ns[order], device[order]
    end_ns = begin_ns + numbers(work["dur_ns"])[order]
    to_host = on_demand(work, "migration DtoH")[order]
    page = np.flatnonzero(to_host[:-1] & to_host[1:] & (device[1:] == device[:-1]))
    size = numbers(work["bytes"], 0)[order][page].astype(np.float64)
    gap_ns = (begin_ns[page + 1] - end_ns[page]).astype(np.float64)
    spread, count = ((size - size.mean()) ** 2).sum() if len(page) else 0.0, len(page)
    if count < _LEAST_GAPS or not spread or not gap_ns.std():
        return None
    slope, fixed_ns = np.polyfit(size, gap_ns, 1)
    if slope <= 0 or np.corrcoef(size, gap_ns)[0, 1] < _LEAST_CORRELATION:
        return None
    variance = ((gap_ns - slope * size - fixed_ns) ** 2).sum() / (count - 2)
    error_ns = np.sqrt(variance * (1 / count + size.mean() ** 2 / spread))
    return float(slope), float(max(fixed_ns, 0.0) + _SURE_ERRORS * error_ns)


def _fetched_twice(trace: Trace) -> int:
    """Return the bytes prefetched to a GPU that the host fetches before the next kernel there.

    They are as many as those that migrate to it again during that kernel; 0 where most do not.
    """
    work = trace.activities
    is_kernel, device = is_one_of(work["kind"], "kernel"), numbers(work["device"])
    order = np.lexsort((numbers(work["start_ns"]), device))
    # A stretch begins with each kernel of a device.
    stretch = np.cumsum(is_kernel[order].astype(np.int64))
    stretches, number = ranked(joint_codes(device[order], stretch))
    count, size = len(stretches), numbers(work["bytes"], 0)[order]
    asked = is_prefetch(work, "migration HtoD")[order]
    place, last = np.arange(len(order)), np.full(count, len(order))
    last[number[asked]] = place[asked]
    back = on_demand(work, "migration DtoH")[order] & (place > last[number])
    again = on_demand(work, "migration HtoD")[order]
    gone, come, more = (
        group_sums(number, np.where(some, size, 0), count) for some in (asked, back, again)
    )
    of_device = device[order][np.unique(number, return_index=True)[1]]
    is_next = np.append(of_device[1:] == of_device[:-1], False)[:count]
    more = np.where(is_next, np.append(more[1:], 0)[:count], 0)
    twice = np.minimum(np.minimum(gone, come), more)
    return int(twice[twice >= _NEARLY_ALL * gone].sum())
