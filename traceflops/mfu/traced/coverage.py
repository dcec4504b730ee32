"""What is counted, in which window, and what is not: ghosts, duplicates, kernels without FLOPs."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final, Literal, get_args

import numpy as np

from traceflops.attribution.op_kernels import Attribution, Fate
from traceflops.flops.ops.count import UNKNOWN
from traceflops.flops.ops.work import Unknown
from traceflops.table.columns import BoolArray, IntArray, codes, is_one_of, names, numbers
from traceflops.table.grouping import exact_sum, exact_sums, group_rows, groups
from traceflops.table.nesting import taken
from traceflops.timeline.host_work import ran_on_cpu
from traceflops.timeline.intervals import Intervals
from traceflops.windows.device_records import graph_launches
from traceflops.windows.prepared import Prepared

if TYPE_CHECKING:
    from traceflops.mfu.counted.joins import MeasuredWork

ENOUGH: Final = Fraction(95, 100)
"""From this share of the FLOPs on what is counted stands for all; below, an interval is given.

Unknown FLOPs are taken to be the most they can be: peak x time of kernels without counted FLOPs.
"""

TOO_LITTLE: Final = Fraction(50, 100)
"""Below this share of the compute time there is no utilisation from the trace."""

NO_WINDOW: Final = -1
"""Outside the stretch of time that was chosen, or of a device that was not."""

How = Literal[
    "dispatch", "replay", "order", "step", "alike", "between", "ambiguous", "uncounted", "absent"
]

HOW: Final[tuple[How, ...]] = get_args(How)
"""How another recording tells the work of a launch, or why it does not: see counted/joins.py."""


def window_of_activity(prepared: Prepared) -> IntArray:
    """Return, per activity, a place in the windows of its device, or NO_WINDOW.

    An activity counts in the window of the step that launched it, wherever it ran. One that no
    step launched, or of steps that are not those of the host, counts where it starts. So windows
    sum to the device. Where a stretch of time is chosen, what starts in it counts in it.
    """
    window_of = np.full(prepared.trace.activities.num_rows, NO_WINDOW, dtype=np.int64)
    for device, account in prepared.accounts.items():
        windows = prepared.windows[device]
        row, start = account.rows.row, account.rows.start_ns
        if prepared.plan.time_range is None:
            # Windows tile: the last one that begins no later is the one around.
            begins = np.array([window.start_ns for window in windows], dtype=np.int64)
            around = np.maximum(np.searchsorted(begins, start, side="right") - 1, 0)
            layout = prepared.plan.layout
            has_steps = layout.launched_in is not None
            stretches = enumerate(layout.stretches[device] if has_steps else ())
            window_of_step = {each.place: n for n, each in stretches if each.place is not None}
            if window_of_step and layout.launched_in is not None:
                # The last one is that of step -1: launched by none.
                of_step = np.full(max(window_of_step) + 2, NO_WINDOW, dtype=np.int64)
                of_step[list(window_of_step)] = list(window_of_step.values())
                launched = of_step[layout.launched_in[row]]
                around = np.where(launched == NO_WINDOW, around, launched)
            window_of[row] = around
        # Without a range nothing of the device was recorded in the stretch.
        elif ranges := [index for index, window in enumerate(windows) if window.role == "range"]:
            chosen = windows[ranges[0]]
            inside = (chosen.start_ns <= start) & (start < chosen.end_ns)
            # What begins and ends with the span is in the window that ends there.
            inside |= (start == chosen.end_ns) & (chosen.end_ns >= account.rows.span[1])
            window_of[row] = np.where(inside, ranges[0], NO_WINDOW)
    return window_of


def in_chosen_window(prepared: Prepared, window: IntArray) -> BoolArray:
    """Return, per activity, whether its window is one of the chosen; `window` as above."""
    is_chosen = np.zeros(len(window), dtype=np.bool_)
    for device, rows in groups(numbers(prepared.trace.activities["device"])):
        windows = prepared.windows.get(device, ())
        used = [*(each.used for each in windows), False]  # the last one is that of NO_WINDOW
        is_chosen[rows] = np.array(used, dtype=np.bool_)[window[rows]]
    return is_chosen


def chosen_activities(prepared: Prepared) -> BoolArray:
    """Return which activities have their FLOPs in a chosen window."""
    return in_chosen_window(prepared, window_of_activity(prepared))


def on_chosen_device(prepared: Prepared) -> BoolArray:
    """Return which activities are of the chosen devices."""
    return np.isin(numbers(prepared.trace.activities["device"]), list(prepared.accounts))


@dataclass(frozen=True, slots=True)
class ComputeTime:
    """Compute time of one device in one window, in ns.

    `kernels_ns` adds up the parts of compute kernels inside the window, overlaps counted twice;
    `counted_kernels_ns` those of kernels whose FLOPs are counted. `uncounted_ns` is the time in
    which only compute kernels without counted FLOPs ran: u_j of the waterfall. A CPU has no
    kernels, so there all are 0.
    """

    device: int
    window: int
    used: bool
    kernels_ns: int
    counted_kernels_ns: int
    uncounted_ns: int


def compute_times(prepared: Prepared, counted: BoolArray) -> tuple[ComputeTime, ...]:
    """Return the compute times of every device and window; FLOPs of `counted` activities count."""
    is_compute = compute_kernels(prepared)
    times = []
    for device, account in prepared.accounts.items():
        rows, windows = account.rows, prepared.windows[device]
        edges = [(window.start_ns, window.end_ns) for window in windows]
        low, high = np.array(edges, dtype=np.int64).reshape(-1, 2).T
        all_of_them, with_flops = (
            (rows.start_ns[chosen_rows], rows.end_ns[chosen_rows])
            for chosen_rows in (is_compute[rows.row], (is_compute & counted)[rows.row])
        )
        bare = Intervals.of(*all_of_them).subtract(Intervals.of(*with_flops))
        figures = zip(
            _added_within(*all_of_them, low, high),
            _added_within(*with_flops, low, high),
            bare.length_within(low, high).tolist(),
            strict=True,
        )
        for number, (window, sums) in enumerate(zip(windows, figures, strict=True)):
            times.append(ComputeTime(device, number, window.used, *sums))
    return tuple(times)


def _added_within(
    start_ns: IntArray, end_ns: IntArray, low_ns: IntArray, high_ns: IntArray
) -> list[int]:
    """Return, per window, the time of all intervals inside it, overlaps counted twice."""
    edges = np.concatenate([low_ns, high_ns])
    elapsed = []
    for times in (np.sort(start_ns), np.sort(end_ns)):
        # How long ago all times before each edge were, added up. Sums may wrap; differences of
        # them that fit an int64 are right all the same.
        sums = np.append(np.int64(0), np.cumsum(times))
        count = np.searchsorted(times, edges, side="left")
        with np.errstate(over="ignore"):
            elapsed.append(count * edges - sums[count])
    inside = elapsed[0] - elapsed[1]
    added: list[int] = (inside[len(low_ns) :] - inside[: len(low_ns)]).tolist()
    return added


def compute_kernels(prepared: Prepared) -> BoolArray:
    """Return, per activity, whether it is a kernel of category compute; no op of a CPU is one."""
    categorised = prepared.linked.categorised
    top = np.array([category == "compute" for category in categorised.top()], dtype=np.bool_)
    is_compute: BoolArray = top[categorised.category] & ~ran_on_cpu(prepared.trace)
    return is_compute


_LISTED: Final[tuple[Fate, ...]] = ("cached", "ghost", "lost", "duplicate")
_NO_OP: Final = "no-op"
_NO_MODELLED_OP: Final = "no-modelled-op"
REPLAYED: Final = "replayed"
_WORDS: Final = {
    "no-op": "launching operator unknown",
    "no-modelled-op": "its operator is not supported yet",
    REPLAYED: "replayed graph, capture not given",
    "ambiguous": "equal launches did different work in the other run",
    "uncounted": "its FLOPs are unknown in the other run too",
    "absent": "the other run has no launch with its name and size",
    "not-modelled": "its operator is not supported yet",
    "no-shapes": "the shapes of its operator were not recorded",
    "odd-shapes": "the recorded shapes do not fit its operator",
    "no-values": "values that its operator needs, such as stride and padding, were not recorded",
    "not-in-trace": "no profiler records what its FLOPs depend on",
    "children": "the shapes of its operator are not enough",
    "too-large": "its operation count is implausibly large",
}


@dataclass(frozen=True, slots=True)
class NotCounted:
    """Ops of one name that are not in the ledger: how many, and the FLOPs their shapes say.

    `why` is their fate: cached, ghost, lost or duplicate (see `attribution.FATES`).
    """

    why: Fate
    op: str
    count: int
    flops: int


@dataclass(frozen=True, slots=True)
class Unattributed:
    """Compute kernels of one name without counted FLOPs.

    `why` is `no-op` (no launch record, or launched by no op), `no-modelled-op`, `replayed` (by a
    graph whose capture is not known), or the reason why the work of the op is not known (see
    `ops.Reason`). Where counters or a paired run were asked
    it is why these do not tell it: `ambiguous`, `uncounted` or `absent` (see `joins`).
    """

    kernel: str
    why: str
    count: int
    sum_ns: int

    @property
    def reason(self) -> str:
        """Return why its FLOPs are unknown, in words."""
        return _WORDS.get(self.why, self.why)


@dataclass(frozen=True, slots=True)
class Outside:
    """What stands beside the ledger, of the whole recording of the chosen devices.

    `unattributed` alone is of the chosen windows, as the time beside it is.

    `vector_flops` are operations without matrix work of the ops that ran; they enter no
    utilisation, and ops whose vector work is not known add nothing. Without such ops they are those
    that were counted, if they were of every kernel; None where nothing tells them. Ghosts have no
    device, so these are of all processes.
    """

    not_counted: tuple[NotCounted, ...]
    unattributed: tuple[Unattributed, ...]
    vector_flops: int | None

    def count(self, *why: Fate) -> int:
        """Return how many ops have one of these fates."""
        return sum(row.count for row in self.not_counted if row.why in why)


def outside(
    prepared: Prepared, attribution: Attribution, work: MeasuredWork | None = None
) -> Outside:
    """Return what stands beside the ledger of a prepared trace; `work` are kernels known else."""
    ops, of_ops = prepared.trace.ops, attribution.work
    labels = names(ops["name"])
    not_counted: list[NotCounted] = []
    for why in _LISTED:
        rows = np.flatnonzero(attribution.has(why))
        code = codes(ops["name"])[rows]
        group, first = group_rows([code])
        flops = exact_sums(group, of_ops.of_ops(of_ops.flops)[rows], len(first))
        counts = np.bincount(group, minlength=len(first)).tolist()
        kernels = [labels[label] for label in code[first].tolist()]
        not_counted += map(NotCounted, [why] * len(first), kernels, counts, flops)
    vector_flops = None
    if (of_ops.of_ops(of_ops.vector_flops) != UNKNOWN).any():
        vector_flops = of_ops.total(of_ops.vector_flops, vector_ops(prepared, attribution))
    elif work is not None:
        is_kernel = is_one_of(prepared.trace.activities["kind"], "kernel")
        counted = work.vector[is_kernel & on_chosen_device(prepared)]
        vector_flops = exact_sum(counted) if len(counted) and (counted >= 0).all() else None
    unattributed = _unattributed(prepared, attribution, work)
    return Outside(tuple(not_counted), tuple(unattributed), vector_flops)


def vector_ops(prepared: Prepared, attribution: Attribution) -> BoolArray:
    """Return which ops of known vector work ran an activity of their own."""
    work = attribution.work
    known = (work.of_ops(work.vector_flops) != UNKNOWN) & ~work.matrix
    around = taken(attribution.tree.nearest(known), attribution.op[on_chosen_device(prepared)])
    ran = np.zeros(len(known), dtype=np.bool_)
    ran[around[around >= 0]] = True
    innermost: BoolArray = ran & (attribution.tree.below(ran) == 0)
    return innermost


def _unattributed(
    prepared: Prepared, attribution: Attribution, work: MeasuredWork | None
) -> list[Unattributed]:
    """Return the compute kernels of the chosen windows without counted FLOPs, by name and reason.

    Those with most time come first.
    """
    activities, of_ops = prepared.trace.activities, attribution.work
    uncounted = chosen_activities(prepared) & compute_kernels(prepared) & (attribution.owner < 0)
    if work is not None:
        uncounted &= work.kind < 0
    rows = np.flatnonzero(uncounted)
    op = attribution.op[rows]
    works = of_ops.works
    reasons = [each.reason if isinstance(each, Unknown) else _NO_MODELLED_OP for each in works]
    modelled = taken(attribution.tree.nearest(of_ops.matrix), op)
    reason = np.where(modelled >= 0, taken(of_ops.place, modelled), len(reasons))
    reason = np.where(op < 0, len(reasons) + 1, reason)
    call = prepared.linked.links.call_of_activity[rows]
    replayed = taken(graph_launches(prepared.trace).astype(np.int64), call) > 0
    if prepared.replays is not None:
        replayed &= prepared.replays.captured[rows] < 0
    reason = np.where(replayed, len(reasons) + 2, reason)
    reasons += [_NO_MODELLED_OP, _NO_OP, REPLAYED]
    if work is not None:
        reason = np.where(work.how[rows] >= 0, len(reasons) + work.how[rows], reason)
        reasons += HOW
    name = codes(activities["name"])
    group, first = group_rows([name[rows], reason])
    counts = np.bincount(group, minlength=len(first)).tolist()
    sums = exact_sums(group, numbers(activities["dur_ns"])[rows], len(first))
    labels = names(activities["name"])
    kernels = [labels[code] for code in name[rows[first]].tolist()]
    whys = [reasons[code] for code in reason[first].tolist()]
    return sorted(map(Unattributed, kernels, whys, counts, sums), key=lambda row: -row.sum_ns)
