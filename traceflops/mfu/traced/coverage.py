"""Windows of the FLOPs of activities, compute time with counted FLOPs, what is not counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.attribution import Attribution, Fate
from traceflops.flops import UNKNOWN, Unknown
from traceflops.table import (
    BoolArray,
    IntArray,
    codes,
    exact_sum,
    exact_sums,
    group_rows,
    groups,
    is_one_of,
    names,
    numbers,
    taken,
)
from traceflops.timeline import Intervals, Window
from traceflops.windows import Prepared, graph_launches

if TYPE_CHECKING:
    from traceflops.mfu.counted.counter_work import MeasuredWork

ENOUGH: Final = Fraction(95, 100)
"""From this share of the FLOPs on what is counted stands for all; below, an interval is given.

Unknown FLOPs are taken to be the most they can be: peak x time of kernels without counted FLOPs.
"""

TOO_LITTLE: Final = Fraction(50, 100)
"""Below this share of the compute time there is no utilisation from the trace."""

NO_WINDOW: Final = -1
"""Outside the stretch of time that was chosen, or of a device that was not."""


def window_of_activity(prepared: Prepared) -> IntArray:
    """Return, per activity, a place in the windows of its device, or NO_WINDOW.

    An activity counts in the window of the step that launched it, wherever it ran. One that no
    step launched, or of steps that are not those of the host, counts where it starts. So windows
    sum to the device. Where a stretch of time is chosen, what starts in it counts in it.
    """
    found = np.full(prepared.trace.activities.num_rows, NO_WINDOW, dtype=np.int64)
    for device, account in prepared.accounts.items():
        windows = prepared.windows[device]
        row, start = account.rows.row, account.rows.start_ns
        if prepared.plan.time_range is not None:
            found[row] = _in_range(windows, start, account.rows.span[1])
        else:
            found[row] = _by_launch(prepared, device, row, _by_start(windows, start))
    return found


def in_chosen_window(prepared: Prepared, window: IntArray) -> BoolArray:
    """Return, per activity, whether its window is one of the chosen; `window` as above."""
    device = numbers(prepared.trace.activities["device"])
    found = np.zeros(len(window), dtype=np.bool_)
    for one, mine in groups(device):
        # The last one is that of NO_WINDOW.
        windows = prepared.windows.get(one, ())
        used = np.array([*(each.used for each in windows), False], dtype=np.bool_)
        found[mine] = used[window[mine]]
    return found


def chosen_activities(prepared: Prepared) -> BoolArray:
    """Return which activities have their FLOPs in a chosen window."""
    return in_chosen_window(prepared, window_of_activity(prepared))


def on_chosen_device(prepared: Prepared) -> BoolArray:
    """Return which activities are of the chosen devices."""
    return np.isin(numbers(prepared.trace.activities["device"]), list(prepared.accounts))


def _by_start(windows: tuple[Window, ...], start_ns: IntArray) -> IntArray:
    """Return the last window that begins no later; windows tile, so it is the one around."""
    begins = np.array([window.start_ns for window in windows], dtype=np.int64)
    return np.maximum(np.searchsorted(begins, start_ns, side="right") - 1, 0)


def _in_range(windows: tuple[Window, ...], start_ns: IntArray, span_end_ns: int) -> IntArray:
    places = [at for at, window in enumerate(windows) if window.role == "range"]
    if not places:  # nothing of the device was recorded in the stretch
        return np.full(len(start_ns), NO_WINDOW, dtype=np.int64)
    place = places[0]
    chosen = windows[place]
    inside = (chosen.start_ns <= start_ns) & (start_ns < chosen.end_ns)
    # What begins and ends with the span is in the window that ends there.
    inside |= (start_ns == chosen.end_ns) & (chosen.end_ns >= span_end_ns)
    return np.where(inside, place, NO_WINDOW)


def _by_launch(prepared: Prepared, device: int, row: IntArray, otherwise: IntArray) -> IntArray:
    layout = prepared.plan.layout
    if layout.launched_in is None:
        return otherwise
    stretches = layout.stretches[device]
    steps = [(one.place, at) for at, one in enumerate(stretches) if one.place is not None]
    if not steps:
        return otherwise
    of_step = np.full(max(place for place, _ in steps) + 2, NO_WINDOW, dtype=np.int64)
    for place, at in steps:
        of_step[place] = at
    launched = of_step[layout.launched_in[row]]  # the last one is that of place -1
    return np.where(launched == NO_WINDOW, otherwise, launched)


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
    kinds = (is_compute, is_compute & counted)
    return tuple(
        time for device in prepared.accounts for time in _of_device(prepared, device, kinds)
    )


def _of_device(
    prepared: Prepared, device: int, kinds: tuple[BoolArray, BoolArray]
) -> Iterator[ComputeTime]:
    """Yield the times of each window; `kinds` are compute kernels, all and those counted."""
    rows, windows = prepared.accounts[device].rows, prepared.windows[device]
    low, high = (
        np.array([getattr(window, edge) for window in windows], dtype=np.int64)
        for edge in ("start_ns", "end_ns")
    )
    places = [np.flatnonzero(kind[rows.row]) for kind in kinds]
    times = [(rows.start_ns[at], rows.end_ns[at]) for at in places]
    whole, covered = (Intervals.of(*each) for each in times)
    kernels, counted = (_added_within(*each, low, high) for each in times)
    bare = whole.subtract(covered).length_within(low, high).tolist()
    for place, figures in enumerate(zip(kernels, counted, bare, strict=True)):
        yield ComputeTime(device, place, windows[place].used, *figures)


def _added_within(
    start_ns: IntArray, end_ns: IntArray, low_ns: IntArray, high_ns: IntArray
) -> list[int]:
    """Return, per window, the time of all intervals inside it, overlaps counted twice."""
    edges = np.concatenate([low_ns, high_ns])
    before = _elapsed(np.sort(start_ns), edges) - _elapsed(np.sort(end_ns), edges)
    found: list[int] = (before[len(low_ns) :] - before[: len(low_ns)]).tolist()
    return found


def _elapsed(sorted_ns: IntArray, at_ns: IntArray) -> IntArray:
    """Return, per time, how long ago all earlier ones were, added up.

    Sums may wrap; differences of them that fit an int64 are right all the same.
    """
    sums = np.append(np.int64(0), np.cumsum(sorted_ns))
    count = np.searchsorted(sorted_ns, at_ns, side="left")
    with np.errstate(over="ignore"):
        return count * at_ns - sums[count]


def compute_kernels(prepared: Prepared) -> BoolArray:
    """Return, per activity, whether it is a kernel of category compute; no op of a CPU is one."""
    categorised = prepared.linked.categorised
    top = np.array([one == "compute" for one in categorised.top()], dtype=np.bool_)
    found: BoolArray = top[categorised.category] & ~is_one_of(
        prepared.trace.activities["kind"], "op"
    )
    return found


# What stands beside the ledger: ghosts, duplicates, vector work, kernels without FLOPs.

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
        return sum(one.count for one in self.not_counted if one.why in why)

    def flops(self, *why: Fate) -> int:
        """Return the FLOPs that the shapes of these ops say and nobody executed."""
        return sum(one.flops for one in self.not_counted if one.why in why)


def outside(
    prepared: Prepared, attribution: Attribution, work: MeasuredWork | None = None
) -> Outside:
    """Return what stands beside the ledger of a prepared trace; `work` are kernels known else."""
    return Outside(
        tuple(_not_counted(prepared, attribution)),
        tuple(sorted(_unattributed(prepared, attribution, work), key=lambda one: -one.sum_ns)),
        _vector_flops(prepared, attribution, work),
    )


def _vector_flops(
    prepared: Prepared, attribution: Attribution, work: MeasuredWork | None
) -> int | None:
    """Return the vector work of ops, else that which was counted of all kernels."""
    of_ops = attribution.work
    if (of_ops.of_ops(of_ops.vector_flops) != UNKNOWN).any():
        return of_ops.total(of_ops.vector_flops, vector_ops(prepared, attribution))
    if work is None:
        return None
    is_kernel = is_one_of(prepared.trace.activities["kind"], "kernel")
    counted = work.vector[is_kernel & on_chosen_device(prepared)]
    return exact_sum(counted) if len(counted) and (counted >= 0).all() else None


def vector_ops(prepared: Prepared, attribution: Attribution) -> BoolArray:
    """Return which ops of known vector work ran an activity of their own."""
    work = attribution.work
    known = (work.of_ops(work.vector_flops) != UNKNOWN) & ~work.matrix
    around = taken(attribution.tree.nearest(known), attribution.op[on_chosen_device(prepared)])
    found = np.zeros(len(known), dtype=np.bool_)
    found[around[around >= 0]] = True
    innermost: BoolArray = found & (attribution.tree.below(found) == 0)
    return innermost


def _not_counted(prepared: Prepared, attribution: Attribution) -> Iterator[NotCounted]:
    ops = prepared.trace.ops
    labels, work = names(ops["name"]), attribution.work
    for why in _LISTED:
        rows = np.flatnonzero(attribution.has(why))
        group, first = group_rows([codes(ops["name"])[rows]])
        flops = exact_sums(group, work.of_ops(work.flops)[rows], len(first))
        counts = np.bincount(group, minlength=len(first)).tolist()
        for at, count, total in zip(first.tolist(), counts, flops, strict=True):
            yield NotCounted(why, labels[int(codes(ops["name"])[rows[at]])], count, total)


def _unattributed(
    prepared: Prepared, attribution: Attribution, work: MeasuredWork | None
) -> Iterator[Unattributed]:
    activities = prepared.trace.activities
    open_rows = chosen_activities(prepared) & compute_kernels(prepared) & (attribution.owner < 0)
    if work is not None:
        open_rows &= work.kind < 0
    rows = np.flatnonzero(open_rows)
    reasons, place = _reasons(prepared, attribution, rows)
    if work is not None:
        place = np.where(work.how[rows] >= 0, len(reasons) + work.how[rows], place)
        reasons = [*reasons, *work.reasons]
    name = codes(activities["name"])
    group, first = group_rows([name[rows], place])
    counts = np.bincount(group, minlength=len(first)).tolist()
    sums = exact_sums(group, numbers(activities["dur_ns"])[rows], len(first))
    labels = names(activities["name"])
    for at, count, sum_ns in zip(first.tolist(), counts, sums, strict=True):
        yield Unattributed(labels[int(name[rows[at]])], reasons[int(place[at])], count, sum_ns)


def _reasons(
    prepared: Prepared, attribution: Attribution, rows: IntArray
) -> tuple[list[str], IntArray]:
    """Return why work can be not known, and per activity the place of its reason."""
    work, op = attribution.work, attribution.op[rows]
    reasons = [one.reason if isinstance(one, Unknown) else _NO_MODELLED_OP for one in work.works]
    modelled = taken(attribution.tree.nearest(work.matrix), op)
    place = np.where(modelled >= 0, taken(work.place, modelled), len(reasons))
    place = np.where(op < 0, len(reasons) + 1, place)
    call = prepared.linked.links.call_of_activity[rows]
    replayed = taken(graph_launches(prepared.trace).astype(np.int64), call) > 0
    if prepared.replays is not None:
        replayed &= prepared.replays.captured[rows] < 0
    place = np.where(replayed, len(reasons) + 2, place)
    return [*reasons, _NO_MODELLED_OP, _NO_OP, REPLAYED], place
