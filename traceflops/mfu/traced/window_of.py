"""The window that each activity's FLOPs go to: that of the step which launched it."""

from __future__ import annotations

from typing import Final

import numpy as np

from traceflops.table import BoolArray, IntArray, numbers
from traceflops.timeline import Window
from traceflops.windows import Prepared

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
    for one, windows in prepared.windows.items():
        # The last one is that of NO_WINDOW.
        used = np.array([*(each.used for each in windows), False], dtype=np.bool_)
        mine = device == one
        found[mine] = used[window[mine]]
    return found


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
