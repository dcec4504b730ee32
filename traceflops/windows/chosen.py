"""Which activities the figures are about: those that touch the chosen windows of their device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from traceflops.table import IntArray
from traceflops.timeline import DeviceAccount, Intervals, Window


@dataclass(frozen=True, slots=True)
class InWindows:
    """Activities of the chosen windows: their rows, the time of each inside, and if it starts in.

    An activity that reaches over a window's edge counts with the part inside.
    """

    row: IntArray
    inside_ns: IntArray
    starts_inside: IntArray


def clip_to_windows(
    rows: IntArray,
    start_ns: IntArray,
    end_ns: IntArray,
    windows: Intervals,
    closed_at_ns: int | None = None,
) -> InWindows:
    """Return the activities of one device that touch its chosen windows.

    Windows do not hold the instant at which they end, but one that ends with the device's span
    does: `closed_at_ns`.
    """
    inside = windows.length_within(start_ns, end_ns)
    starts = windows.contains(start_ns)
    if closed_at_ns is not None:
        starts |= start_ns == closed_at_ns
    keep = starts | (inside > 0)
    return InWindows(rows[keep], inside[keep], starts[keep].astype(np.int64))


def join_windows(parts: list[InWindows]) -> InWindows:
    """Return the activities of several devices together."""
    if not parts:
        empty = np.empty(0, dtype=np.int64)
        return InWindows(empty, empty, empty)
    return InWindows(
        np.concatenate([p.row for p in parts]),
        np.concatenate([p.inside_ns for p in parts]),
        np.concatenate([p.starts_inside for p in parts]),
    )


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
