"""In which window the FLOPs of activities count, and compute time with counted FLOPs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.table import (
    BoolArray,
    IntArray,
    groups,
    numbers,
)
from traceflops.timeline import Intervals, Window, ran_on_cpu
from traceflops.windows import Prepared

if TYPE_CHECKING:
    pass

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
    found: BoolArray = top[categorised.category] & ~ran_on_cpu(prepared.trace)
    return found
