"""Device time of forward passes: from a pass's first kernel to the first one of the next.

Idle time counts in the pass it follows. Time between two passes in which work of none runs is of
none (see `stretches`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from traceflops.attribution import Attribution
from traceflops.mfu.inference.forward_passes import ALWAYS, ForwardPass, places_in
from traceflops.table import ABSENT, IntArray, codes, names, numbers, taken
from traceflops.timeline import Intervals, Window
from traceflops.windows import Prepared, chosen_time


@dataclass(frozen=True, slots=True)
class PassTimes:
    """When devices worked for which pass.

    `of_activity` is, per activity, the place of its pass, -1 for none: that in which it was
    launched, else that during which it starts. `used_ns` is, per device, the time of each pass in
    the chosen windows. `outside_ns` is time of no pass, over all devices: there, and between a
    chosen window and the next pass.
    """

    of_activity: IntArray
    used_ns: Mapping[int, list[int]]
    outside_ns: int


def pass_times(
    prepared: Prepared, attribution: Attribution, passes: tuple[ForwardPass, ...]
) -> PassTimes:
    """Return the device time of some passes."""
    found = _launched_in(prepared, attribution, passes)
    whole = np.array([one.start_ns == -ALWAYS for one in passes], dtype=np.bool_)
    used_ns, outside_ns = {}, 0
    for device, account in prepared.accounts.items():
        rows, start = account.rows.row, account.rows.start_ns
        begins = _begins(prepared, rows, start, found[rows], len(passes))
        begins[whole & (begins < ALWAYS)] = -ALWAYS
        order = np.argsort(begins, kind="stable")
        order = order[begins[order] < ALWAYS]
        around = np.searchsorted(begins[order], start, side="right") - 1
        windows = prepared.windows[device]
        between = _time(window for window in windows if window.role == "between")
        around[between.contains(start)] = -1
        found[rows] = np.where(found[rows] >= 0, found[rows], taken(order, around))
        chosen = chosen_time(windows)
        used_ns[device], before_ns = _used(chosen.subtract(between), begins, order)
        behind = _time(late for one, late in pairwise(windows) if one.used)
        outside_ns += before_ns + between.intersect(chosen.union(behind)).length_ns
    return PassTimes(found, used_ns, outside_ns)


def _launched_in(
    prepared: Prepared, attribution: Attribution, passes: tuple[ForwardPass, ...]
) -> IntArray:
    """Return, per activity, the pass in which it was launched, or on a CPU ran."""
    trace, call = prepared.trace, prepared.linked.links.call_of_activity
    at_call = taken(numbers(trace.calls["start_ns"]), call, ABSENT)
    at_op = taken(numbers(trace.ops["start_ns"]), attribution.op, ABSENT)
    launched = (call >= 0) | (attribution.op >= 0)
    process = numbers(trace.activities["process"])
    place = places_in(passes, process, np.where(call >= 0, at_call, at_op))
    return np.where(launched, place, -1)


def _begins(
    prepared: Prepared, rows: IntArray, start: IntArray, place: IntArray, count: int
) -> IntArray:
    """Return when each pass begins on a device, ALWAYS for one that launched nothing there.

    Copies do not begin a pass: inputs of the next one are copied while this one runs.
    """
    kinds = names(prepared.trace.activities["kind"])
    copies = [code for code, kind in enumerate(kinds) if kind in ("memcpy", "memset")]
    mine = (place >= 0) & ~np.isin(codes(prepared.trace.activities["kind"])[rows], copies)
    found = np.full(count, ALWAYS, dtype=np.int64)
    np.minimum.at(found, place[mine], start[mine])
    return found


def _time(windows: Iterable[Window]) -> Intervals:
    edges = [(window.start_ns, window.end_ns) for window in windows]
    return Intervals.of(*np.array(edges, dtype=np.int64).reshape(-1, 2).T)


def _used(chosen: Intervals, begins: IntArray, order: IntArray) -> tuple[list[int], int]:
    """Return the chosen time of each pass, and that before the first of them."""
    before = chosen.covered_before(np.append(begins[order], ALWAYS))
    found = np.zeros(len(begins), dtype=np.int64)
    found[order] = np.diff(before)
    return found.tolist(), int(before[0])
