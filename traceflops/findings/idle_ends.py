"""Which kernel ends most of the idle time: the host is late for one of many launches."""

from __future__ import annotations

from typing import Final

import numpy as np

from traceflops.attribution.idle_slices import chosen_gaps
from traceflops.characters import kernel_name
from traceflops.findings.case import Case
from traceflops.table.columns import codes, is_one_of, names
from traceflops.table.grouping import exact_sums

_MOST: Final = 0.8
_FEW: Final = 0.2
"""Shares of the idle time that one kernel ends, and of the kernels that it may be at most."""


def ended_by(case: Case) -> tuple[str, float] | None:
    """Return the kernel that ends most of the idle time, and its share; None if no kernel does.

    None also if it is a large part of all launches: then it says nothing about what is late.
    """
    if case.prepared is None or not case.prepared.accounts:
        return None
    gaps, activities = chosen_gaps(case.prepared), case.prepared.trace.activities
    labels, name = names(activities["name"]), codes(activities["name"])
    if not len(gaps.activity):
        return None
    idle_ns = exact_sums(name[gaps.activity], gaps.end_ns - gaps.start_ns, len(labels))
    most = int(np.argmax(idle_ns))
    of_name = (name == most) & is_one_of(activities["kind"], "kernel")
    part = idle_ns[most] / max(sum(idle_ns), 1)
    is_one = 0 < np.count_nonzero(of_name) <= _FEW * len(name)
    return (kernel_name(labels[most]), part) if is_one and part >= _MOST else None
