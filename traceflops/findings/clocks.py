"""Rules of the same kernels at another speed: in later steps, and beside communication."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.characters import kernel_name
from traceflops.facts import fact
from traceflops.findings.case import cause, limit, share_of_window
from traceflops.findings.finding import Cause, Gain, Row, Where, short_name
from traceflops.table.columns import UNKNOWN_SIZE, axes, codes, names
from traceflops.table.grouping import group_rows
from traceflops.table.nesting import taken
from traceflops.timeline.intervals import Intervals
from traceflops.windows.records import chosen_time

if TYPE_CHECKING:
    from traceflops.findings.case import Case
    from traceflops.table.columns import BoolArray, FloatArray, IntArray
    from traceflops.windows.prepared import Prepared

RULE: Final = "clocks"
_BESIDE: Final = "beside-communication"
_QUARTERS: Final = 4
_ORDINALS: Final = ("first", "second", "third", "last")
_SUBS: Final = ("gemm", "convolution")


@dataclass(frozen=True, slots=True)
class _Slower:
    """How many times as long products take in one quarter of the steps as in an earlier one.

    `excess_ns` is what all of them take beyond the time of the earlier one.
    """

    device: int
    earlier: int
    later: int
    times: float
    kernel_ns: int
    excess_ns: int
    row: Row | None = None

    @property
    def as_before(self) -> float:
        """Return the part of the time that they would take at the speed of the earlier one."""
        return 1 - self.excess_ns / self.kernel_ns


def slower_kernels(case: Case) -> Iterator[Cause]:
    """Give a cause where most products are slower in one quarter of the steps than before."""
    prepared = case.prepared
    if prepared is None or prepared.plan.layout.are_passes:
        return
    found = [
        one for device in prepared.accounts if (one := _slower(case, prepared, device)) is not None
    ]
    if not found:
        return
    worst = max(found, key=lambda one: one.times)
    (report,) = (one for one in case.devices if one.device == worst.device)
    rank = next(iter(report.ranks), None)
    yield cause(
        case,
        RULE,
        share_of_window(case, worst.excess_ns),
        {
            "longer": worst.times - 1,
            "later": fact(f"{RULE}.{_ORDINALS[worst.later]}"),
            "earlier": fact(f"{RULE}.{_ORDINALS[worst.earlier]}"),
            "rank": rank if len(case.devices) > 1 else None,
        },
        rows=(worst.row,) if worst.row else (),
        where=Where(rank=rank),
        edits=(f"kernel:^(compute|memory)/*{worst.as_before:.4f}",),
        partly=(f"kernel:^compute/({'|'.join(_SUBS)})$*{worst.as_before:.4f}",),
    )


def _slower(case: Case, prepared: Prepared, device: int) -> _Slower | None:
    """Return how a device slows down, None where its kernels do not agree on that."""
    windows = [one for one in prepared.windows[device] if one.used and one.step is not None]
    if len(windows) < limit(case, RULE, "least_steps"):
        return None
    rows = prepared.accounts[device].rows
    place = np.searchsorted([one.start_ns for one in windows], rows.start_ns, side="right") - 1
    ends = np.array([one.end_ns for one in windows])
    inside = (place >= 0) & (rows.start_ns < ends[place]) & _is_product(prepared, rows.row)
    row, quarter = rows.row[inside], place[inside] * _QUARTERS // len(windows)
    dur = (rows.end_ns - rows.start_ns)[inside]
    table = prepared.trace.activities
    sides = axes(table["grid"])[row]
    known = sides[:, 0] != UNKNOWN_SIZE
    row, quarter, dur, sides = (one[known] for one in (row, quarter, dur, sides))
    if not len(row):
        return None
    group, first = group_rows((codes(table["name"])[row], *sides.T))
    medians, count = _medians(group, quarter, dur, len(first), limit(case, RULE, "least_runs"))
    sums = np.bincount(group * _QUARTERS + quarter, dur, medians.size)
    time_ns = sums.reshape(-1, _QUARTERS).astype(np.float64)
    found = _agreed(case, device, medians, time_ns)
    own_ns = time_ns.sum(axis=1)
    at = int(own_ns.argmax())
    name = short_name(kernel_name(names(table["name"])[codes(table["name"])[row[first[at]]]]))
    return found and replace(found, row=Row(name, int(own_ns[at]), int(count[at].sum())))


def _is_product(prepared: Prepared, row: IntArray) -> BoolArray:
    categorised = prepared.linked.categorised
    wanted = [one.top == "compute" and one.sub in _SUBS for one in categorised.categories]
    return np.array([*wanted, False], dtype=np.bool_)[categorised.category[row]]


def _medians(
    group: IntArray, quarter: IntArray, dur: IntArray, groups: int, least: float
) -> tuple[FloatArray, IntArray]:
    """Return the median of each group in each quarter, NaN for few runs, and how many there are."""
    key = group * _QUARTERS + quarter
    order = np.lexsort((dur, key))
    count = np.bincount(key, minlength=groups * _QUARTERS)
    middle = np.cumsum(count) - count + count // 2
    known = count >= least
    found = np.full(groups * _QUARTERS, np.nan)
    found[known] = dur[order][middle[known]]
    return found.reshape(groups, _QUARTERS), count.reshape(groups, _QUARTERS)


def _agreed(case: Case, device: int, medians: FloatArray, time_ns: FloatArray) -> _Slower | None:
    """Return the largest slow-down that nearly all time of several kernels agrees on."""
    known = ~np.isnan(medians).any(axis=1)
    if known.sum() < limit(case, RULE, "least_kernels") or 2 * time_ns[known].sum() < time_ns.sum():
        return None
    weight = time_ns[known].sum(axis=1) / time_ns[known].sum()
    speed = medians[known] / medians[known].min(axis=1, keepdims=True)
    mean = weight @ speed
    later = int(mean.argmax())
    earlier = int(mean[: later + 1].argmin())
    ratio = speed[:, later] / speed[:, earlier]
    times = float(weight @ ratio)
    agrees = float(weight[ratio > (1 + times) / 2].sum())
    if times < 1 + limit(case, RULE, "least_slower") or agrees < limit(case, RULE, "least_agree"):
        return None
    excess = (time_ns[known] * (1 - medians[known][:, [earlier]] / medians[known])).sum()
    return _Slower(device, earlier, later, times, int(time_ns.sum()), round(excess))


def slowed_kernels(case: Case) -> Iterator[Cause]:
    """Give a cause where kernels take longer while their device communicates than alone."""
    prepared = case.prepared
    if prepared is None:
        return
    found = [_beside(case, prepared, device) for device in prepared.accounts]
    excess, covered = (round(sum(one[at] for one in found)) for at in range(2))
    share = share_of_window(case, excess)
    if share < limit(case, _BESIDE, "least_share"):
        return
    yield cause(
        case,
        _BESIDE,
        share,
        {"longer": excess / (covered - excess)},
        gain=Gain(0, excess // case.windows_used, None),
    )


def _beside(case: Case, prepared: Prepared, device: int) -> tuple[float, int]:
    """Return how much longer kernels take for communication beside them, and how long that runs.

    Of kernels that never ran alone, or never beside it as a whole, it is as of the others.
    """
    rows, categorised = prepared.accounts[device].rows, prepared.linked.categorised
    talks = np.array([*(one.top == "communication" for one in categorised.categories), False])
    talking = talks[categorised.category[rows.row]]
    inside = chosen_time(prepared.windows[device]).contains(rows.start_ns) & ~talking
    start, end, row = rows.start_ns[inside], rows.end_ns[inside], rows.row[inside]
    spans = Intervals.of(rows.start_ns[talking], rows.end_ns[talking])
    covered, table = spans.length_within(start, end), prepared.trace.activities
    shape = taken(
        codes(prepared.trace.ops["input_dims"]), prepared.linked.links.op_of_activity[row]
    )
    group, first = group_rows((codes(table["name"])[row], *axes(table["grid"])[row].T, shape))
    whole = (covered == 0) | (covered == end - start)
    key, least = np.sign(covered[whole]), limit(case, _BESIDE, "least_runs")
    medians, _ = _medians(group[whole], key, (end - start)[whole], len(first), least)
    more = 1 - medians[:, 0] / np.maximum(medians[:, 1], 1)
    covered_ns = np.bincount(group, covered, len(first))
    known = ~np.isnan(more)
    known_ns = covered_ns[known].sum()
    if not known_ns:
        return 0.0, 0
    excess = (more[known] * covered_ns[known]).sum()
    return float(excess * covered_ns.sum() / known_ns), int(covered_ns.sum())
