"""The end of start-up in a program without steps: its figures are of the work that follows.

span of a device   |start-up .... start-up ...|work work work . work work|
                   |before                    |span                      |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from traceflops.devices.processes import clocks_of
from traceflops.facts import fact
from traceflops.table.columns import codes, names, numbers
from traceflops.table.grouping import distinct
from traceflops.table.trace import Trace
from traceflops.timeline.account import DeviceAccount
from traceflops.timeline.intervals import ENDLESS, NEVER, Intervals
from traceflops.windows.selection import Selection
from traceflops.windows.tiling import Stretch

AFTER_START_UP: Final = fact("steps-by.after")
"""How the single window of a program without steps is chosen."""
BEFORE_WORK: Final = fact("left-out.start-up")
"""Why figures exclude the time in which a program starts up."""
_MUCH, _HARDLY = 0.2, 0.1
"""Start-up is excluded from 20 % of the time on; what follows has at most 10 % of it."""
_LEAST_WORK, _LEAST_TIME = 1 / 3, 0.03
"""The least shares of device work and of the time that must follow start-up: no finding is less."""
_REPEATS: Final = 3
"""Kernels that run three times repeat; half of the work that follows must repeat."""
_FEW: Final = 8
"""Fewer activities do not count as repeating."""


def spans(
    trace: Trace, accounts: Mapping[int, DeviceAccount], selection: Selection
) -> tuple[dict[int, list[Stretch]], str]:
    """Return the windows of each device, and "after" if start-up is one of them, else "whole"."""
    # A chosen time range is taken as it is, with start-up.
    since_ns = None if selection.is_time_range else started_up_ns(trace, accounts)
    windows = {}
    for device, account in accounts.items():
        low, high = account.rows.span
        since = low if since_ns is None else max(since_ns, low)
        before = [Stretch("before", None, low, since, None)] if since > low else []
        windows[device] = [*before, Stretch("span", None, since, high, None)]
    return windows, "whole" if since_ns is None else "after"


def started_up_ns(trace: Trace, accounts: Mapping[int, DeviceAccount]) -> int | None:
    """Return the time in ns at which start-up is over on all devices, None if that is unclear.

    It is unclear if devices have several clocks, or some are CPUs; if start-up is a small part of
    the time; if little time or work follows it, or work that does not repeat.
    """
    devices = [*accounts.values()]
    clocks = clocks_of(trace)[numbers(trace.devices["process"])[list(accounts)]]
    if not devices or len(distinct(clocks)) > 1 or any(device.is_cpu for device in devices):
        return None
    whole_ns = sum(device.rows.span[1] - device.rows.span[0] for device in devices)
    once = [device.start_up.union(upload(trace, device)) for device in devices]
    if sum(times.length_ns for times in once) < max(_MUCH * whole_ns, 1):
        return None
    since_ns = max(map(_hardly_starts_up, devices, once))
    rest_ns = sum(max(device.rows.span[1] - since_ns, 0) for device in devices)
    busy = [own.timeline.busy.subtract(times) for own, times in zip(devices, once, strict=True)]
    left_ns = sum(work.within(since_ns, ENDLESS).length_ns for work in busy)
    is_enough = left_ns >= _LEAST_WORK * sum(work.length_ns for work in busy)
    is_enough &= rest_ns >= _LEAST_TIME * whole_ns
    goes_on = all(device.rows.span[1] > since_ns for device in devices)
    return since_ns if goes_on and is_enough and _repeats(trace, devices, since_ns) else None


def upload(trace: Trace, account: DeviceAccount) -> Intervals:
    """Return the time until the first kernel in which a device gets the data that it keeps.

    None if copies between host and device go on: later ones take more than 10 % as long. None
    either if neither copies from the host nor start-up fill half of that time.
    """
    begin_ns, first_ns, rows = account.rows.span[0], account.first_kernel_ns, account.rows
    labels = names(trace.activities["direction"])
    direction = rows.columns.direction[rows.row]
    copies = {
        label: Intervals.of(rows.start_ns[which], rows.end_ns[which])
        for label in ("HtoD", "DtoH")
        if label in labels
        for which in [direction == labels.index(label)]
    }
    none = Intervals.empty()
    before = copies.get("HtoD", none).within(NEVER, first_ns)
    later_ns = sum(times.within(first_ns, ENDLESS).length_ns for times in copies.values())
    known_ns = before.union(account.start_up.within(NEVER, first_ns)).length_ns
    is_once = len(before) > 0 and later_ns <= _HARDLY * before.length_ns
    if first_ns == NEVER or not is_once or 2 * known_ns < first_ns - begin_ns:
        return none
    return Intervals.of(np.array([begin_ns]), np.array([first_ns]))


def _hardly_starts_up(account: DeviceAccount, once: Intervals) -> int:
    """Return the first time in ns after which start-up is at most 10 % of the rest of a device."""
    low, high = account.rows.span
    ends = np.append(low, once.end_ns)
    spent = np.append(0, np.cumsum(once.end_ns - once.start_ns))
    is_over = spent[-1] - spent <= _HARDLY * (high - ends)  # True at the last end: none is left
    return int(ends[np.argmax(is_over)])


def _repeats(trace: Trace, accounts: list[DeviceAccount], since_ns: int) -> bool:
    """Return whether half of the device time since a time is of activities whose names repeat."""
    rows = np.concatenate([own.rows.row[own.rows.start_ns >= since_ns] for own in accounts])
    name = codes(trace.activities["name"])[rows] + 1  # 0 for no name
    often = np.bincount(name)[name] >= _REPEATS
    dur_ns = numbers(trace.activities["dur_ns"])[rows]
    return len(rows) >= _FEW and 2 * int(dur_ns[often].sum()) >= int(dur_ns.sum())
