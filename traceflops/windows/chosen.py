"""Which activities the figures are about: those that touch the chosen windows of their device."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from traceflops.account import DeviceAccount
from traceflops.intervals import Intervals
from traceflops.kernels import InWindows, clip_to_windows, join_windows
from traceflops.results import Window


def chosen_activities(
    accounts: Mapping[int, DeviceAccount], windows: Mapping[int, tuple[Window, ...]]
) -> InWindows:
    """Return the activities of all devices in their chosen windows."""
    return join_windows(
        [
            clip_to_windows(
                account.rows.row,
                account.rows.start_ns,
                account.rows.end_ns,
                chosen_time(windows[device]),
                _closed_at(windows[device], account.rows.span[1]),
            )
            for device, account in accounts.items()
        ]
    )


def chosen_time(windows: tuple[Window, ...]) -> Intervals:
    """Return the time of the chosen windows of one device."""
    used = [window for window in windows if window.used]
    return Intervals.of(
        np.array([window.start_ns for window in used], dtype=np.int64),
        np.array([window.end_ns for window in used], dtype=np.int64),
    )


def _closed_at(windows: tuple[Window, ...], span_end_ns: int) -> int | None:
    """Return the end of the span where a chosen window reaches it."""
    reached = any(window.used and window.end_ns >= span_end_ns for window in windows)
    return span_end_ns if reached else None
