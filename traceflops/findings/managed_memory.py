"""What the host does between pages of managed memory that it brings back by touching them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.attribution.cpu_samples import sample_spacing_ns
from traceflops.attribution.idle_classes import is_prefetch, on_demand
from traceflops.facts import Value
from traceflops.findings.host_samples import sampled
from traceflops.table.columns import is_one_of, numbers
from traceflops.table.grouping import group_sums, joint_codes, ranked

if TYPE_CHECKING:
    from traceflops.attribution.culprits import IdleClass
    from traceflops.findings.case import Case
    from traceflops.table.trace import Trace

_NEARLY_ALL: Final = 0.9


def between_pages(case: Case, idle: IdleClass) -> tuple[set[str], dict[str, Value]]:
    """Return what is known of the time between pages, and values of its text.

    Code runs then, rather than page faults, where the CPU is sampled at least half as often as
    while it is busy.
    """
    if case.prepared is None:
        return set(), {}
    values: dict[str, Value] = {"bytes": _fetched_twice(case.prepared.trace) or None}
    samples = sampled(case, idle.kind)
    count = samples.get("samples")
    spacing_ns = sample_spacing_ns(case.prepared.trace)
    if isinstance(count, int) and 2 * count * spacing_ns >= idle.idle_ns:
        return {"sampled"}, values | samples
    return set(), values


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
