"""In which window the FLOPs of activities count, and compute time with counted FLOPs."""

from __future__ import annotations

from fractions import Fraction
from typing import Final, Literal, get_args

import numpy as np
from msgspec import Struct

from traceflops.table.columns import BoolArray, IntArray, numbers
from traceflops.table.grouping import groups
from traceflops.timeline.device_span import is_top
from traceflops.timeline.host_work import ran_on_cpu
from traceflops.timeline.intervals import Intervals
from traceflops.windows.prepared import Prepared

ENOUGH: Final = Fraction(95, 100)
"""From this share of the FLOPs on what is counted stands for all; below, an interval is given.

Unknown FLOPs are taken to be the most they can be: peak x time of kernels without counted FLOPs.
"""
TOO_LITTLE: Final = Fraction(50, 100)
"""Below this share of the compute time there is no utilisation from the trace."""
NO_WINDOW: Final = -1  # outside the time that was chosen, or of a device that was not
How = Literal[
    "dispatch", "replay", "order", "step", "alike", "between", "ambiguous", "uncounted", "absent"
]
HOW: Final[tuple[How, ...]] = get_args(How)
"""How another recording tells the work of a launch, or why it does not: see counted/joins.py."""


def window_of_activity(prepared: Prepared) -> IntArray:
    """Return the window in which each activity counts, a place in those of its device.

    It is the step that launched the activity, wherever it ran; if no step did, or the steps are not
    those of the host, the window in which it starts. If a time range is chosen, it is the range,
    for activities that start in it. NO_WINDOW is none.
    """
    window_of = np.full(prepared.trace.activities.num_rows, NO_WINDOW, dtype=np.int64)
    for device, account in prepared.accounts.items():
        windows = prepared.windows[device]
        row, start = account.rows.row, account.rows.start_ns
        if prepared.plan.time_range is None:
            # Windows leave no gap: the last one that begins no later is the one around.
            begins = np.array([window.start_ns for window in windows], dtype=np.int64)
            around = np.maximum(np.searchsorted(begins, start, side="right") - 1, 0)
            layout = prepared.plan.layout
            has_steps = layout.launched_in is not None
            stretches = enumerate(layout.stretches[device] if has_steps else ())
            window_of_step = {each.place: n for n, each in stretches if each.place is not None}
            if window_of_step and layout.launched_in is not None:
                # The last entry is for activities of no step, -1.
                of_step = np.full(max(window_of_step) + 2, NO_WINDOW, dtype=np.int64)
                of_step[list(window_of_step)] = list(window_of_step.values())
                launched = of_step[layout.launched_in[row]]
                around = np.where(launched == NO_WINDOW, around, launched)
            window_of[row] = around
        # A device that recorded nothing in the chosen time has no window of the role "range".
        elif ranges := [index for index, window in enumerate(windows) if window.role == "range"]:
            chosen = windows[ranges[0]]
            inside = (chosen.start_ns <= start) & (start < chosen.end_ns)
            # An activity of no duration at the very end of the recording is inside, too.
            inside |= (start == chosen.end_ns) & (chosen.end_ns >= account.rows.span[1])
            window_of[row] = np.where(inside, ranges[0], NO_WINDOW)
    return window_of


def in_chosen_window(prepared: Prepared, window: IntArray) -> BoolArray:
    """Return whether the window of each activity is chosen; `window` is a place or NO_WINDOW."""
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


class ComputeTime(Struct, frozen=True):
    """Compute time of one device in one window, in ns; 0 on a CPU, which has no kernels.

    `kernels_ns` adds up the parts of compute kernels inside the window, overlaps counted twice;
    `counted_kernels_ns` those of kernels whose FLOPs are counted. `uncounted_ns` is the time in
    which only compute kernels without counted FLOPs ran: u_j of the waterfall.
    """

    device: int
    window: int
    used: bool
    kernels_ns: int
    counted_kernels_ns: int
    uncounted_ns: int


def compute_times(prepared: Prepared, counted: BoolArray) -> tuple[ComputeTime, ...]:
    """Return the compute times by device and window; `counted` are activities with known FLOPs."""
    is_compute = compute_kernels(prepared)
    times = []
    for device, account in prepared.accounts.items():
        rows, windows = account.rows, prepared.windows[device]
        low = np.array([window.start_ns for window in windows], dtype=np.int64)
        high = np.array([window.end_ns for window in windows], dtype=np.int64)
        all_of_them, with_flops = (
            (rows.start_ns[own], rows.end_ns[own])
            for own in (is_compute[rows.row], (is_compute & counted)[rows.row])
        )
        bare = Intervals.of(*all_of_them).subtract(Intervals.of(*with_flops))
        sums = [_added_within(*spans, low, high) for spans in (all_of_them, with_flops)]
        sums.append(bare.length_within(low, high).tolist())
        for number, window in enumerate(windows):
            of_window = [column[number] for column in sums]
            times.append(ComputeTime(device, number, window.used, *of_window))
    return tuple(times)


def _added_within(
    start_ns: IntArray, end_ns: IntArray, low_ns: IntArray, high_ns: IntArray
) -> list[int]:
    """Return the time of all intervals inside each window, overlaps counted twice."""
    # The time of an interval before an edge is the time since its start less that since its end. So
    # add up how long ago all starts before each edge were, and all ends; sums may wrap, but their
    # differences, which fit an int64, are right all the same.
    edges = np.concatenate([low_ns, high_ns])
    elapsed = []
    for times in (np.sort(start_ns), np.sort(end_ns)):
        sums = np.append(np.int64(0), np.cumsum(times))
        count = np.searchsorted(times, edges, side="left")
        with np.errstate(over="ignore"):
            elapsed.append(count * edges - sums[count])
    before_edge = elapsed[0] - elapsed[1]
    added: list[int] = (before_edge[len(low_ns) :] - before_edge[: len(low_ns)]).tolist()
    return added


def compute_kernels(prepared: Prepared) -> BoolArray:
    """Return, per activity, whether it is a kernel of category compute; no op of a CPU is one."""
    is_compute = is_top(prepared.linked.categorised, "compute")
    return np.asarray(is_compute & ~ran_on_cpu(prepared.trace))
