"""Rules of speed: the same kernels slower in later steps or beside communication, and low clocks.

Clocks that were sampled beside a recording also say why a rank is late (`clocks_of_late`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.characters import kernel_name
from traceflops.devices.gpu_samples import Sampled
from traceflops.facts import Fact, Value, fact
from traceflops.findings.case import Case, cause, limit, share_of_window
from traceflops.findings.finding import Cause, Gain, Row, Verdict, Where, short_name
from traceflops.findings.launch_geometry import identical_launches
from traceflops.findings.rules import advice_of
from traceflops.gpu_samples import GpuSamples
from traceflops.ranks.slow_rank import SlowRank
from traceflops.table.columns import (
    UNKNOWN_SIZE,
    FloatArray,
    IntArray,
    axes,
    codes,
    floats,
    is_one_of,
    names,
    numbers,
)
from traceflops.table.grouping import group_rows, groups
from traceflops.table.trace import Trace
from traceflops.timeline.device_span import is_top
from traceflops.timeline.intervals import Intervals
from traceflops.timeline.records import Window
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import chosen_time

_CLOCKS: Final = "clocks"
_BESIDE: Final = "beside-communication"
_QUARTERS: Final = 4  # the steps, in their order, are compared by quarters
_ORDINALS: Final = ("first", "second", "third", "last")
_DIFFER: Final = 0.10
"""From this share of the time on, differences between GPUs and idle time in one piece are told."""
_IDLE_PERCENT: Final = 5.0  # below this utilisation a GPU only shows its desktop, or nothing
_SUBS: Final = ("gemm", "convolution")  # subcategories of the kernels that are called products here


class _Slower(Struct, frozen=True):
    """How much slower the products of a device run in a `later` quarter than in an `earlier` one.

    They take `times` as long. At the earlier speed, all would take the part `as_before` of their
    time. `row` is the kernel with most time.
    """

    device: int
    earlier: int
    later: int
    times: float
    as_before: float
    row: Row


def slower_kernels(case: Case) -> Iterator[Cause]:
    """Give a cause if most products are slower in one quarter of the steps than before."""
    if case.prepared.plan.layout.are_passes:
        return  # passes of a server have different work
    slowdowns = [
        slowdown
        for device in case.prepared.accounts
        if (slowdown := _slower(case, device)) is not None
    ]
    if not slowdowns:
        return
    worst = max(slowdowns, key=lambda slowdown: slowdown.times)
    (report,) = (device for device in case.devices if device.device == worst.device)
    rank, components = next(iter(report.ranks), None), case.total.components
    # What is not compared may be as much slower: that is the most that is gained.
    slowed_ns = (1 - worst.as_before) * (components.compute_ns + components.memory_ns)
    yield cause(
        case,
        _CLOCKS,
        share_of_window(case, round(slowed_ns)),
        {
            "longer": worst.times - 1,
            "later": fact(f"{_CLOCKS}.{_ORDINALS[worst.later]}"),
            "earlier": fact(f"{_CLOCKS}.{_ORDINALS[worst.earlier]}"),
            "rank": rank if len(case.devices) > 1 else None,
        },
        rows=(worst.row,),
        where=Where(rank=rank),
        edits=(f"kernel:^(compute|memory)/*{worst.as_before:.4f}",),
        partly=(f"kernel:^compute/({'|'.join(_SUBS)})$*{worst.as_before:.4f}",),
    )


def _slower(case: Case, device: int) -> _Slower | None:
    """Return the largest slow-down on which most products of a device agree, None without one.

    Runs of the same name and grid are one kernel. Kernels that ran often enough in all quarters of
    the steps are compared, weighted by time; they must have half of the time of all products.
    """
    prepared = case.prepared
    windows = [own for own in prepared.windows[device] if own.used and own.step is not None]
    if len(windows) < limit(case, _CLOCKS, "least_steps"):
        return None
    row, window_of_run, dur_ns = _product_runs(prepared, device, windows)
    if not len(row):
        return None
    table, quarter = prepared.trace.activities, window_of_run * _QUARTERS // len(windows)
    kernel, first = group_rows((codes(table["name"])[row], *axes(table["grid"])[row].T))
    # Medians, counts and times have a row per kernel and a column per quarter.
    least_runs = limit(case, _CLOCKS, "least_runs")
    medians, count = _medians(kernel, quarter, dur_ns, len(first), least_runs)
    sums = np.bincount(kernel * _QUARTERS + quarter, dur_ns, medians.size)
    time_ns = sums.reshape(-1, _QUARTERS).astype(np.float64)
    measured = ~np.isnan(medians).any(axis=1)
    few = measured.sum() < limit(case, _CLOCKS, "least_kernels")
    if few or 2 * time_ns[measured].sum() < time_ns.sum():
        return None
    # The slowest quarter, and the fastest one before it: kernels that speed up are no slow-down.
    usual_ns, weight = medians[measured], time_ns[measured].sum(axis=1) / time_ns[measured].sum()
    relative = usual_ns / usual_ns.min(axis=1, keepdims=True)
    mean = weight @ relative
    later = int(mean.argmax())
    earlier = int(mean[: later + 1].argmin())
    ratio = relative[:, later] / relative[:, earlier]
    times = float(weight @ ratio)
    agrees = float(weight[ratio > (1 + times) / 2].sum())  # at least half as much slower
    are_unsure = agrees < limit(case, _CLOCKS, "least_agree")
    if are_unsure or times < 1 + limit(case, _CLOCKS, "least_slower"):
        return None
    # The time of all quarters beyond that at the speed of the earlier one
    excess_ns = round((time_ns[measured] * (1 - usual_ns[:, [earlier]] / usual_ns)).sum())
    as_before = 1 - excess_ns / int(time_ns.sum())
    of_kernel_ns = time_ns.sum(axis=1)
    most = int(of_kernel_ns.argmax())
    name = names(table["name"])[codes(table["name"])[row[first[most]]]]
    largest = Row(short_name(kernel_name(name)), int(of_kernel_ns[most]), int(count[most].sum()))
    return _Slower(device, earlier, later, times, as_before, largest)


def _product_runs(
    prepared: Prepared, device: int, windows: Sequence[Window]
) -> tuple[IntArray, IntArray, IntArray]:
    """Return per run of a product: its row in `activities`, the index of its window, its ns.

    Runs of an unknown grid are left out. `windows` are sorted, and not empty.
    """
    rows, categorised = prepared.accounts[device].rows, prepared.linked.categorised
    begins = [window.start_ns for window in windows]
    ends = np.array([window.end_ns for window in windows])
    window = np.searchsorted(begins, rows.start_ns, side="right") - 1  # -1: before all windows
    is_inside = (window >= 0) & (rows.start_ns < ends[window])
    is_product = [kind.top == "compute" and kind.sub in _SUBS for kind in categorised.categories]
    # Category -1, that of runs without one, finds the False at the end.
    of_product = np.array([*is_product, False])[categorised.category[rows.row]]
    has_grid = axes(prepared.trace.activities["grid"])[rows.row, 0] != UNKNOWN_SIZE
    chosen = is_inside & of_product & has_grid
    return rows.row[chosen], window[chosen], (rows.end_ns - rows.start_ns)[chosen]


def _medians(
    group: IntArray, column: IntArray, dur_ns: IntArray, groups: int, least: float
) -> tuple[FloatArray, IntArray]:
    """Return median times (ns) and counts of runs, each of shape (groups, _QUARTERS).

    `group`, `column` and `dur_ns` are per run. The median of fewer than `least` runs is NaN.
    """
    cell = group * _QUARTERS + column
    order = np.lexsort((dur_ns, cell))
    count = np.bincount(cell, minlength=groups * _QUARTERS)
    middle = np.cumsum(count) - count + count // 2
    enough = count >= least
    medians = np.full(groups * _QUARTERS, np.nan)
    medians[enough] = dur_ns[order][middle[enough]]
    return medians.reshape(groups, _QUARTERS), count.reshape(groups, _QUARTERS)


def slowed_kernels(case: Case) -> Iterator[Cause]:
    """Give a cause if kernels take longer beside communication of their device than alone.

    Launches of the same name, grid, block and shapes are compared: those that ran beside
    communication all the time with those that ran alone.
    """
    # Of the time beside communication: how much is lost, how much is compared, and all of it
    lost_ns, compared_ns, beside_ns, prepared = 0.0, 0, 0, case.prepared
    for device, account in prepared.accounts.items():
        rows = account.rows
        communicates = is_top(prepared.linked.categorised, "communication", rows.row)
        if not communicates.any():
            continue
        chosen = chosen_time(prepared.windows[device]).contains(rows.start_ns) & ~communicates
        start, end, row = rows.start_ns[chosen], rows.end_ns[chosen], rows.row[chosen]
        communication = Intervals.of(rows.start_ns[communicates], rows.end_ns[communicates])
        covered_ns = communication.length_within(start, end)
        # Median times of each group of launches: column 0 alone, column 1 beside communication
        group, is_sized = identical_launches(prepared, row)
        counts = is_sized & ((covered_ns == 0) | (covered_ns == end - start))
        column, least = np.sign(covered_ns[counts]), limit(case, _BESIDE, "least_runs")
        groups = int(group.max(initial=-1)) + 1
        medians, _ = _medians(group[counts], column, (end - start)[counts], groups, least)
        lost = 1 - medians[:, 0] / np.maximum(medians[:, 1], 1)  # NaN: cannot be compared
        known_ns = np.where(np.isnan(lost[group]), 0, covered_ns)
        if known_ns.any():
            lost_ns += float((np.nan_to_num(lost)[group] * known_ns).sum())
            compared_ns += int(known_ns.sum())
            beside = Intervals.of(start[covered_ns > 0], end[covered_ns > 0])
            beside_ns += beside.intersect(communication).length_ns
    # At most, all kernels beside communication lose as much as those that are compared.
    most_ns = round(lost_ns * beside_ns / max(compared_ns, 1))
    share = share_of_window(case, most_ns)
    if not compared_ns or share < limit(case, _BESIDE, "least_share"):
        return
    longer = lost_ns / (compared_ns - lost_ns)
    few = compared_ns / beside_ns if 2 * compared_ns < beside_ns else None
    gain = Gain(0, most_ns // case.windows_used, None)
    yield cause(case, _BESIDE, share, {"longer": longer, "few": few}, gain=gain)


_LOW_CLOCK: Final = "low-clock"
_REASONS: Final = {"thermal": 0x20 | 0x40 | 1 << 17, "supply": 0x80 | 0x8, "power": 0x4 | 1 << 16}
"""Bits of NVML's reasons why a clock is low, by what to do about it."""


def low_clocks(case: Case) -> Iterator[Cause]:
    """Give a cause if GPUs run far below their clocks, except late ranks: see rule late-rank."""
    slow = case.ranks.slow
    late = slow.ranks if slow is not None and slow.cause == "slow_clock" else ()
    reports = {device.device: device for device in case.devices if device.rank not in late}
    low = [
        gpu
        for gpu in case.gpu_samples
        if gpu.device in reports and _is_known(case, gpu)
        if gpu.below is not None and gpu.below >= limit(case, _LOW_CLOCK, "least_below")
    ]
    if not low:
        return
    worst = max(low, key=lambda gpu: gpu.below or 0.0)
    device = reports[worst.device]
    lost_ns = sum(
        reports[gpu.device].chosen.components.compute_ns * (gpu.below or 0.0) for gpu in low
    )
    is_all, factor = len(low) == len(case.devices), f"{1 - (worst.below or 0.0):.4f}"
    ranks = (reports[gpu.device].rank for gpu in low)
    faster = tuple(f"rank {rank}=median" for rank in ranks if rank is not None)
    # A clock that is low all the time (a reason has the share 1) has no place in the timeline.
    at_times = max((worst.reasons or {}).values(), default=1.0) < 1
    start_ns, end_ns = worst.slow_ns if at_times and worst.slow_ns else (None, None)
    yield cause(
        case,
        _LOW_CLOCK,
        share_of_window(case, round(lost_ns)),
        {"whose": fact("low-clock.the-gpu") if len(case.devices) == 1 else device.label}
        | _values(worst),
        (fact("low-clock.several", count=len(low), all=len(case.devices)),) * (len(low) > 1),
        _reasons(worst),
        where=Where(rank=None if is_all else device.rank, start_ns=start_ns, end_ns=end_ns),
        edits=(f"kernel:^compute/*{factor}",) if is_all else faster,
        partly=(f"kernel:^compute/(gemm|convolution)$*{factor}",) if is_all else (),
        on_path=frozenset({"compute"}) if is_all else frozenset(),
    )


def samples_verdict(sampled: Sequence[GpuSamples], trace: Trace) -> Verdict | None:
    """Return the verdict on samples that come without a recording; None without samples."""
    if not sampled:
        return None
    slowest = max(sampled, key=lambda gpu: gpu.below or 0.0)
    held = [used.most for gpu in sampled if (used := gpu.values.get(Sampled.MEMORY_USED))]
    alone = fact("samples.alone", count=len(sampled), bytes=max(held, default=None))
    parts = [*_utilisation(trace)] or [alone]
    if slowest.below:
        number = trace.devices["local_id"][slowest.device].as_py()
        code = "samples.slowest" if len(sampled) > 1 else "samples.only"
        parts.append(fact(code, number=number, **_values(slowest)))
    return Verdict(tuple(parts), "samples")


def _utilisation(trace: Trace) -> Iterator[Fact]:
    """Give how busy the GPUs were while they were sampled, if their utilisation was."""
    table = trace.counters
    rows = np.flatnonzero(is_one_of(table["name"], Sampled.UTILISATION))
    time_ns, percent = numbers(table["time_ns"])[rows], floats(table["value"])[rows]
    of_gpu = dict(groups(numbers(table["device"])[rows]))
    # GPUs of several files may be sampled hours apart: the longest time of one is told.
    time_sampled_ns = max((int(np.ptp(time_ns[own])) for own in of_gpu.values()), default=0)
    if not time_sampled_ns:
        return
    share_of = {gpu: float(percent[members].mean()) / 100 for gpu, members in of_gpu.items()}
    low, high = min(share_of, key=share_of.__getitem__), max(share_of, key=share_of.__getitem__)
    differ = share_of[high] - share_of[low] >= _DIFFER
    local_id = trace.devices["local_id"].to_pylist()
    idle_ns = 0
    if len(of_gpu) == 1:
        # From the first to the last of successive samples without work; `edges` are where they
        # begin and end.
        order = np.argsort(time_ns, kind="stable")
        edges = np.diff((percent[order] < _IDLE_PERCENT).astype(np.int8), prepend=0, append=0)
        begin, end = np.flatnonzero(edges > 0), np.flatnonzero(edges < 0) - 1
        idle_ns = int((time_ns[order][end] - time_ns[order][begin]).max(initial=0))
    yield fact(
        "samples.busy",
        count=len(of_gpu),
        busy=sum(share_of.values()) / len(share_of),
        time_ns=time_sampled_ns,
        low=share_of[low] if differ else None,
        low_gpu=local_id[low],
        high=share_of[high] if differ else None,
        high_gpu=local_id[high],
        idle_ns=idle_ns if idle_ns >= _DIFFER * time_sampled_ns else None,
    )
    yield fact("samples.any-kernel")


def clocks_of_late(case: Case, slow: SlowRank) -> tuple[Fact | None, Fact | None]:
    """Return how the clock of the late rank compares with those of other ranks, and the remedy.

    Both are None unless the clocks of the late rank and of a rank that is not late were sampled.
    The remedy is None if the clock is not lower: the kernels are slow for another reason.
    """
    rank_of = {device.device: device.rank for device in case.devices}
    sampled = [gpu for gpu in case.gpu_samples if _is_known(case, gpu)]
    own = next((gpu for gpu in sampled if rank_of.get(gpu.device) == slow.rank), None)
    late = {None, *slow.ranks}  # a GPU of unknown rank (None) may be late
    others = [
        gpu.clock_mhz
        for gpu in sampled
        if gpu.clock_mhz is not None and rank_of.get(gpu.device) not in late
    ]
    if own is None or not others or own.clock_mhz is None:
        return None, None
    usual = float(np.median(others))
    rank = slow.rank if len(slow.ranks) > 1 else None
    whose = fact("low-clock.its") if rank is None else fact("low-clock.of-rank", rank=rank)
    if own.clock_mhz > usual * (1 - limit(case, _LOW_CLOCK, "least_apart")):
        return fact("low-clock.no-lower", whose=whose, mhz=own.clock_mhz), None
    lower = fact("low-clock.lower", usual=usual, **(_values(own) | {"whose": whose}))
    return lower, advice_of(_LOW_CLOCK, case.program | _reasons(own))


def _is_known(case: Case, gpu: GpuSamples) -> bool:
    """Return whether enough samples of a GPU fall into its busy time."""
    return gpu.busy >= limit(case, _LOW_CLOCK, "least_samples")


def _values(gpu: GpuSamples) -> dict[str, Value]:
    """Return the values of texts about a low clock: how low it is, and why."""
    assert gpu.clock_mhz is not None
    return {"mhz": gpu.clock_mhz, "below": gpu.below or None, "reason": gpu.reason_words}


def _reasons(gpu: GpuSamples) -> frozenset[str]:
    """Return the one key of _REASONS that holds for most samples; empty if none holds for any."""

    def share(name: str) -> float:
        shares = (part for bit, part in (gpu.reasons or {}).items() if bit & _REASONS[name])
        return max(shares, default=0.0)

    largest = max(_REASONS, key=share)
    return frozenset({largest} if share(largest) else ())
