"""From when on a program without steps has started up: its figures are of the work that follows.

span of a device   |start-up .... start-up ...|work work work . work work|
                   |before                    |span                      |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from traceflops.devices.processes import clocks_of
from traceflops.facts import fact
from traceflops.table.columns import codes, numbers
from traceflops.table.grouping import distinct
from traceflops.table.trace import Trace
from traceflops.timeline.account import DeviceAccount
from traceflops.windows.periodicity import Stretch
from traceflops.windows.selection import Selection

AFTER_START_UP: Final = fact("steps-by.after")
"""How the one window of a program without steps is chosen."""
BEFORE_WORK: Final = fact("left-out.start-up")
"""Why figures are without the time in which a program starts up."""
_MUCH, _HARDLY = 0.2, 0.1
"""Start-up is told apart from such a share of the time on; what follows has hardly any of it."""
_LEAST_WORK: Final = 1 / 3
"""What follows start-up is what the program does if it has so much of the work of the devices."""
_REPEATS: Final = 3
"""What runs so often repeats; half of the work that follows must."""
_FEW: Final = 8
"""Nothing repeats in fewer activities."""


def spans(
    trace: Trace, accounts: Mapping[int, DeviceAccount], selection: Selection
) -> tuple[dict[int, list[Stretch]], str]:
    """Return the window of each device, and whether it is "after" start-up or the "whole" span.

    It is whole where start-up is little or the user chose times. What is before is a window, too.
    """
    since_ns = None if selection.is_time_range else started_up_ns(trace, accounts)
    found = {}
    for device, account in accounts.items():
        low, high = account.rows.span
        since = low if since_ns is None else max(since_ns, low)
        before = [Stretch("before", None, low, since, None)] if since > low else []
        found[device] = [*before, Stretch("span", None, since, high, None)]
    return found, "whole" if since_ns is None else "after"


def started_up_ns(trace: Trace, accounts: Mapping[int, DeviceAccount]) -> int | None:
    """Return from when on devices do what the program is for, by their one clock.

    None if start-up is no large part of their time, or if little work follows it or none that
    repeats.
    """
    several = [*accounts.values()]
    clocks = clocks_of(trace)[numbers(trace.devices["process"])[list(accounts)]]
    if not several or len(distinct(clocks)) > 1 or any(own.is_cpu for own in several):
        return None
    whole_ns = sum(own.rows.span[1] - own.rows.span[0] for own in several)
    if sum(own.start_up.length_ns for own in several) < max(_MUCH * whole_ns, 1):
        return None
    since_ns = max(_hardly_starts_up(own) for own in several)
    works = [own.timeline.busy for own in several]
    left_ns = sum(work.within(since_ns, int(work.end_ns[-1])).length_ns for work in works if work)
    is_most = left_ns >= _LEAST_WORK * sum(work.length_ns for work in works)
    goes_on = all(own.rows.span[1] > since_ns for own in several)
    return since_ns if goes_on and is_most and _repeats(trace, several, since_ns) else None


def _hardly_starts_up(account: DeviceAccount) -> int:
    """Return from when on a device starts up for a small part of the time that is left."""
    low, high = account.rows.span
    ends = np.append(low, account.start_up.end_ns)
    spent = np.append(0, np.cumsum(account.start_up.end_ns - account.start_up.start_ns))
    is_over = spent[-1] - spent <= _HARDLY * (high - ends)
    return int(ends[np.argmax(is_over)])


def _repeats(trace: Trace, accounts: list[DeviceAccount], since_ns: int) -> bool:
    """Return whether half of the work since some time repeats."""
    rows = np.concatenate([own.rows.row[own.rows.start_ns >= since_ns] for own in accounts])
    name = codes(trace.activities["name"])[rows] + 1
    often = np.bincount(name)[name] >= _REPEATS
    dur_ns = numbers(trace.activities["dur_ns"])[rows]
    return len(rows) >= _FEW and 2 * int(dur_ns[often].sum()) >= int(dur_ns.sum())
