"""Identical launches whose times differ many times over: the GPU is held up from outside.

They have the same kernel, grid, block and shapes, so they do the same work unless data decide it.
Where that holds of much of the time and of many kernels, faster kernels are no remedy.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from traceflops.characters import kernel_name
from traceflops.facts import Fact, Value, fact
from traceflops.findings.case import Case
from traceflops.findings.finding import Finding, Row, short_name
from traceflops.findings.launch_geometry import identical_launches
from traceflops.findings.main_kernel import MAIN_KERNEL
from traceflops.findings.rules import statement
from traceflops.table.columns import (
    Columns,
    IntArray,
    axes,
    codes,
    is_one_of,
    names,
    numbers,
)
from traceflops.table.grouping import group_sums
from traceflops.timeline.device_span import is_top
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import chosen_time

_TENTH: Final = 10


class KernelLaunches(Columns, frozen=True):
    """Launches of kernels: row of activities, time in ns, and a number that identical ones share.

    Of a grid that fits the GPU at once and has no shapes that number is -1: persistent kernels have
    it for all sizes.
    """

    row: IntArray
    ns: IntArray
    group: IntArray


def uneven_launches(case: Case) -> Finding | None:
    """Return that identical launches take many times as long as the fastest tenth of them.

    None where that is little of the time, or of few kernels.
    """
    if case.prepared is None:
        return None
    limits = case.finding_rules.limits(MAIN_KERNEL)
    launches = launches_of(case.prepared)
    known = launches.only(launches.group >= 0)  # of others nothing tells which are identical
    order = np.lexsort((known.ns, known.group))
    group, first, count = np.unique(known.group[order], return_index=True, return_counts=True)
    fast_ns = known.ns[order][first + count // _TENTH]
    of_launch = np.searchsorted(group, known.group)
    is_slow = known.ns > limits["many_times"] * np.maximum(fast_ns, 1)[of_launch]
    is_slow &= (count >= limits["least_runs"])[of_launch]
    slow = known.only(is_slow)
    name = codes(case.prepared.trace.activities["name"])[slow.row]
    kernels, index = np.unique(name, return_inverse=True)
    slow_ns, all_ns = int(slow.ns.sum()), int(launches.ns.sum())
    if slow_ns < limits["least_slow"] * all_ns or len(kernels) < limits["least_kernels"]:
        return None
    by_kernel = group_sums(index, slow.ns, len(kernels))
    largest = int(by_kernel.argmax())
    times = slow.ns // np.maximum(fast_ns, 1)[of_launch[is_slow]]
    labels = names(case.prepared.trace.activities["name"])
    largest_name = short_name(kernel_name(labels[kernels[largest]]))
    share = min(slow_ns / case.total.components.window_ns, 1.0)
    values: dict[str, Value] = {
        "share": share,
        "times": int(times[index == largest].max()),
        "name": largest_name,
        "kernels": len(kernels),
        "many": int(limits["many_times"]),
    }
    return statement(
        MAIN_KERNEL,
        share,
        values,
        name=Fact(f"{MAIN_KERNEL}.title-uneven", values),
        claim=Fact(f"{MAIN_KERNEL}.claim-uneven", values),
        details=(Fact(f"{MAIN_KERNEL}.uneven-most", values),),
        advice=fact(f"{MAIN_KERNEL}.remedy.uneven"),
        rows=(Row(largest_name, int(by_kernel[largest])),),
    )


def launches_of(prepared: Prepared) -> KernelLaunches:
    """Return the launches of kernels in the chosen windows, without those that communicate.

    Identical launches have the same `group`; it is -1 where the size of the work is unknown.
    """
    table, categorised = prepared.trace.activities, prepared.linked.categorised
    is_kernel = is_one_of(table["kind"], "kernel")
    rows = [np.empty(0, dtype=np.int64)]
    for number, account in prepared.accounts.items():
        inside = chosen_time(prepared.windows[number]).contains(account.rows.start_ns)
        rows.append(account.rows.row[inside])
    row = np.concatenate(rows)
    row = row[is_kernel[row] & ~is_top(categorised, "communication", row)]
    group, is_sized = identical_launches(prepared, row)
    is_known = is_sized & (axes(table["grid"])[row] > 0).all(axis=1)
    return KernelLaunches(row, numbers(table["dur_ns"])[row], np.where(is_known, group, -1))
