"""In which window the FLOPs of activities count, and compute time with counted FLOPs."""

from __future__ import annotations

from fractions import Fraction
from typing import Final, Literal, get_args

import numpy as np
from msgspec import Struct

from traceflops.table.columns import BoolArray, IntArray, numbers
from traceflops.table.grouping import groups
from traceflops.table.nesting import taken
from traceflops.timeline.device_span import is_top
from traceflops.timeline.host_work import ran_on_cpu
from traceflops.timeline.intervals import Intervals
from traceflops.windows.prepared import Prepared

ENOUGH: Final = Fraction(95, 100)
"""If at least this share of all FLOPs is counted, the others are ignored; else figures are ranges.

Of the unknown FLOPs the most possible is assumed: peak x time of kernels without counted FLOPs.
"""
TOO_LITTLE: Final = Fraction(50, 100)
"""If FLOPs of less than this share of the compute time are known, there is no utilisation."""
NO_WINDOW: Final = -1  # outside the chosen time, or on a device that is not chosen
How = Literal[
    "dispatch", "replay", "order", "step", "alike", "between", "ambiguous", "uncounted", "absent"
]
HOW: Final[tuple[How, ...]] = get_args(How)
"""How a launch is joined with another recording, or why it is not: see counted/joins.py."""


def window_of_activity(prepared: Prepared) -> IntArray:
    """Return the window in which each activity counts, an index of its device's windows.

    1. If a time range is chosen, it is this one if the activity starts in it, else NO_WINDOW.
    2. Else, if a step launched the activity, it is that step, whenever the activity ran: a kernel
       that step 3 launched and that runs during step 4 counts in step 3.
    3. Else it is the window in which the activity starts.
    """
    window_of = np.full(prepared.trace.activities.num_rows, NO_WINDOW, dtype=np.int64)
    for device, account in prepared.accounts.items():
        windows = prepared.windows[device]
        row, start = account.rows.row, account.rows.start_ns
        if prepared.plan.time_range is None:
            # Windows leave no gap: the last one that begins no later contains the start.
            # begins [0 10 20], start [3 10 25] -> [1 2 3] begin no later -> containing [0 1 2]
            begins = np.array([window.start_ns for window in windows], dtype=np.int64)
            containing = np.maximum(np.searchsorted(begins, start, side="right") - 1, 0)
            window_of[row] = containing
            if (layout := prepared.plan.layout).launched_in is not None:
                # A stretch is the time of a window; `place` is the index of its step, if it is one.
                stretches = enumerate(layout.stretches[device])
                window_of_step = {s.place: index for index, s in stretches if s.place is not None}
                windows_of_steps = np.full(max(window_of_step, default=-1) + 1, NO_WINDOW)
                windows_of_steps[list(window_of_step)] = list(window_of_step.values())
                launching = taken(windows_of_steps, layout.launched_in[row], NO_WINDOW)
                window_of[row] = np.where(launching == NO_WINDOW, containing, launching)
        # A device that recorded nothing in the chosen time has no window of the role "range".
        elif ranges := [index for index, window in enumerate(windows) if window.role == "range"]:
            window = windows[ranges[0]]
            inside = (window.start_ns <= start) & (start < window.end_ns)
            # An activity of no duration at the very end of the recording is inside, too.
            inside |= (start == window.end_ns) & (window.end_ns >= account.rows.span[1])
            window_of[row] = np.where(inside, ranges[0], NO_WINDOW)
    return window_of


def in_chosen_window(prepared: Prepared, window: IntArray) -> BoolArray:
    """Return whether the window of each activity (by `window_of_activity`) is chosen."""
    is_chosen = np.zeros(len(window), dtype=np.bool_)
    for device, rows in groups(numbers(prepared.trace.activities["device"])):
        used = [own.used for own in prepared.windows.get(device, ())]
        used.append(False)  # for NO_WINDOW, -1
        is_chosen[rows] = np.array(used, dtype=np.bool_)[window[rows]]
    return is_chosen


def chosen_activities(prepared: Prepared) -> BoolArray:
    """Return, per activity, whether its FLOPs count in a chosen window."""
    return in_chosen_window(prepared, window_of_activity(prepared))


def on_chosen_device(prepared: Prepared) -> BoolArray:
    """Return, per activity, whether it is on a chosen device."""
    return np.isin(numbers(prepared.trace.activities["device"]), list(prepared.accounts))


class ComputeTime(Struct, frozen=True):
    """Compute time of one device in one window, in ns; 0 on a CPU, which has no kernels.

    `kernels_ns` is the sum of the times of compute kernels inside the window, overlaps counted
    twice; `counted_kernels_ns` is that of kernels whose FLOPs are counted. `uncounted_ns` is the
    time in which only compute kernels without counted FLOPs ran: u_j of the waterfall.
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
        kernels, counted_kernels = is_compute[rows.row], (is_compute & counted)[rows.row]
        all_spans = rows.start_ns[kernels], rows.end_ns[kernels]
        counted_spans = rows.start_ns[counted_kernels], rows.end_ns[counted_kernels]
        uncounted = Intervals.of(*all_spans).subtract(Intervals.of(*counted_spans))
        all_ns, counted_ns = (_added_within(*s, low, high) for s in (all_spans, counted_spans))
        uncounted_ns = uncounted.length_within(low, high).tolist()
        for number, window in enumerate(windows):
            sums = (all_ns[number], counted_ns[number], uncounted_ns[number])
            times.append(ComputeTime(device, number, window.used, *sums))
    return tuple(times)


def _added_within(
    start_ns: IntArray, end_ns: IntArray, low_ns: IntArray, high_ns: IntArray
) -> list[int]:
    """Return the time of all intervals inside each window, overlaps counted twice."""
    # The time of an interval before an edge is the time since its start less the time since its
    # end. So sum, per edge, the times since all earlier starts and since all earlier ends. The sums
    # may wrap; their difference fits an int64, and is right even then. Starts [0 4], ends [6 9],
    # edge 8: (8 - 0) + (8 - 4) = 12 since starts, 8 - 6 = 2 since ends -> 10 = 6 + 4 before it
    edges = np.concatenate([low_ns, high_ns])
    elapsed = []
    for times in (np.sort(start_ns), np.sort(end_ns)):
        sums = np.append(np.int64(0), np.cumsum(times))
        earlier = np.searchsorted(times, edges, side="left")
        with np.errstate(over="ignore"):
            elapsed.append(earlier * edges - sums[earlier])
    before_edge = elapsed[0] - elapsed[1]
    added: list[int] = (before_edge[len(low_ns) :] - before_edge[: len(low_ns)]).tolist()
    return added


def compute_kernels(prepared: Prepared) -> BoolArray:
    """Return, per activity, whether it is a kernel of category compute; no op of a CPU is one."""
    is_compute = is_top(prepared.linked.categorised, "compute")
    return np.asarray(is_compute & ~ran_on_cpu(prepared.trace))
