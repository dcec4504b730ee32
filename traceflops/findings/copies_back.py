"""Rule `copy-back`: the result of each launch is copied to where the next launch reads it.

|kernel|  |copy|  |kernel|  |copy|  |kernel|  |copy|     # with two buffers, swapped: no copy
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from traceflops.categories.programs import of_ml
from traceflops.facts import Value
from traceflops.findings.case import Case, cause, limit, share_of_window
from traceflops.findings.device_memory import times_alone_ns
from traceflops.findings.finding import Cause, Gain, Row, row_name, short_name
from traceflops.table.arrays import IntArray
from traceflops.table.columns import codes, is_one_of, names, numbers

_RULE: Final = "copy-back"
_NEARLY_ALL: Final = 0.9


def copies_back(case: Case) -> Iterator[Cause]:
    """Give a cause if copies within a GPU, of one size, come between launches of one kernel."""
    activities = case.prepared.trace.activities
    if of_ml(case.prepared.trace):
        return  # frameworks copy for many reasons
    around = [_between_launches(case, device) for device in case.prepared.accounts]
    between = np.concatenate([rows for rows, _ in around]) if around else np.empty(0, np.int64)
    if len(between) < limit(case, _RULE, "least_copies"):
        return
    mask = np.zeros(activities.num_rows, dtype=np.bool_)
    mask[between] = True
    alone_ns, _ = times_alone_ns(case.prepared, mask)
    share = share_of_window(case, alone_ns)
    if share < limit(case, _RULE, "least_share"):
        return
    sizes, dur_ns = (numbers(activities[column], 0)[between] for column in ("bytes", "dur_ns"))
    name = names(activities["name"])[max(around, key=lambda one: len(one[0]))[1]]
    values: dict[str, Value] = {
        "name": short_name(name),
        "count": len(between),
        "bytes": int(np.median(sizes)) or None,
    }
    copy = names(activities["name"])[codes(activities["name"])[between[0]]]
    yield cause(
        case,
        _RULE,
        share,
        values,
        rows=(Row(row_name(copy), int(dur_ns.sum()), len(between)),),
        gain=Gain(0, alone_ns // case.windows_used, None),
    )


def _between_launches(case: Case, device: int) -> tuple[IntArray, int]:
    """Return the copies of a device right between two launches of one kernel, and its name's code.

    They are nearly all copies within the device, and after nearly all launches of that kernel: then
    none moves anything else.
    """
    activities, rows = case.prepared.trace.activities, case.prepared.accounts[device].rows
    row = rows.row[np.argsort(rows.start_ns, kind="stable")]
    is_kernel = is_one_of(activities["kind"], "kernel")[row]
    is_copy = is_one_of(activities["direction"], "DtoD")[row]
    name = np.where(is_kernel, codes(activities["name"])[row], -1)
    before, after = np.append(-1, name[:-1]), np.append(name[1:], -1)
    inside = np.flatnonzero(is_copy & (before >= 0) & (before == after))
    if not len(inside) or len(inside) < _NEARLY_ALL * is_copy.sum():
        return np.empty(0, np.int64), -1
    kernels, times = np.unique(before[inside], return_counts=True)
    usual = kernels[times.argmax()]
    sizes, times = np.unique(numbers(activities["bytes"], 0)[row[inside]], return_counts=True)
    is_own = before[inside] == usual
    is_own &= numbers(activities["bytes"], 0)[row[inside]] == sizes[times.argmax()]
    own = row[inside[is_own]]
    # A copy after a few of the launches keeps a result, and saves no other copy.
    least = _NEARLY_ALL * max(len(inside), (name == usual).sum() - 1)
    return (own, int(usual)) if len(own) >= least else (own[:0], -1)
