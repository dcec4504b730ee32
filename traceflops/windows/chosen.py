"""Which activities the figures are about: those that touch the chosen windows of their device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from traceflops.table import IntArray
from traceflops.timeline import DeviceAccount, DeviceRows, Intervals, Window


@dataclass(frozen=True, slots=True)
class InWindows:
    """Activities of the chosen windows: their rows, the time of each inside, and if it starts in.

    An activity that reaches over a window's edge counts with the part inside.
    """

    row: IntArray
    inside_ns: IntArray
    starts_inside: IntArray


def _of_device(
    rows: DeviceRows, windows: tuple[Window, ...]
) -> tuple[IntArray, IntArray, IntArray]:
    """Return the columns of the activities of one device that touch its chosen windows.

    Windows do not hold the instant at which they end, but one that ends with the device's span
    does.
    """
    chosen, end = chosen_time(windows), rows.span[1]
    inside = chosen.length_within(rows.start_ns, rows.end_ns)
    starts = chosen.contains(rows.start_ns)
    if any(window.used and window.end_ns >= end for window in windows):
        starts |= rows.start_ns == end
    keep = starts | (inside > 0)
    return rows.row[keep], inside[keep], starts[keep].astype(np.int64)


def chosen_activities(
    accounts: Mapping[int, DeviceAccount], windows: Mapping[int, tuple[Window, ...]]
) -> InWindows:
    """Return the activities of all devices in their chosen windows."""
    empty = np.empty(0, dtype=np.int64)
    parts = [_of_device(account.rows, windows[device]) for device, account in accounts.items()]
    columns = zip((empty,) * 3, *parts, strict=True)
    return InWindows(*map(np.concatenate, columns))


def chosen_time(windows: tuple[Window, ...]) -> Intervals:
    """Return the time of the chosen windows of one device."""
    used = [window for window in windows if window.used]
    return Intervals.of(
        np.array([window.start_ns for window in used], dtype=np.int64),
        np.array([window.end_ns for window in used], dtype=np.int64),
    )
