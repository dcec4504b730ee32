"""The end of start-up in a program without steps: its figures are of the work that follows.

span of a device   |start-up .... start-up|work work work . work work|
                   |before                |span                      |

No start-up is in what follows: what is left out, start-up or beside it, and what follows are all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from traceflops.devices.processes import clocks_of
from traceflops.facts import fact
from traceflops.table.columns import ABSENT, codes, names, numbers, take_rows
from traceflops.table.grouping import distinct, group_rows, groups
from traceflops.timeline.account import DeviceAccount, LinkedTrace
from traceflops.timeline.device_span import is_top
from traceflops.timeline.intervals import ENDLESS, NEVER, Intervals
from traceflops.windows.selection import Selection
from traceflops.windows.tiling import Stretch

AFTER_START_UP: Final = fact("steps-by.after")
"""How the single window of a program without steps is chosen."""
BEFORE_WORK: Final = fact("left-out.start-up")
"""Why figures exclude the time in which a program starts up."""
_MUCH, _HARDLY = 0.2, 0.1
"""Start-up is excluded from 20 % of the time on; later copies take at most 10 % as long."""
_LEAST_WORK, _LEAST_TIME = 1 / 3, 0.03
"""The least shares of device work and of the time that must follow start-up: no finding is less."""
_REPEATS, _NEARLY_ALL = 3, 0.9
"""Kernels that run three times repeat; half of the work that follows must repeat."""
_SET_UP: Final = 2
"""A first collective that takes so many times as long as any later one like it sets up."""
_FEW: Final = 8  # fewer activities do not count as repeating


def spans(
    linked: LinkedTrace, accounts: Mapping[int, DeviceAccount], selection: Selection
) -> tuple[dict[int, list[Stretch]], str]:
    """Return the windows of each device, and "after" if start-up is one of them, else "whole"."""
    # A chosen time range is taken as it is, with start-up.
    since_ns = None if selection.is_time_range else started_up_ns(linked, accounts)
    windows = {}
    for device, account in accounts.items():
        low, high = account.rows.span
        since = low if since_ns is None else max(since_ns, low)
        before = [Stretch("before", None, low, since, None)] if since > low else []
        windows[device] = [*before, Stretch("span", None, since, high, None)]
    return windows, "whole" if since_ns is None else "after"


def started_up_ns(linked: LinkedTrace, accounts: Mapping[int, DeviceAccount]) -> int | None:
    """Return the time in ns at which start-up is over on all devices, None if that is unclear.

    It is unclear if devices have several clocks, or some are CPUs; if start-up is a small part of
    the time; if little time or work follows it, or work that does not repeat.
    """
    trace, devices = linked.trace, [*accounts.values()]
    clocks = clocks_of(trace)[numbers(trace.devices["process"])[list(accounts)]]
    if not devices or len(distinct(clocks)) > 1 or any(device.is_cpu for device in devices):
        return None
    whole_ns = sum(device.rows.span[1] - device.rows.span[0] for device in devices)
    once = [device.start_up.union(set_up(linked, device)) for device in devices]
    if sum(times.length_ns for times in once) < max(_MUCH * whole_ns, 1):
        return None
    since_ns = max(int(times.end_ns[-1]) for times in once if len(times))
    rest_ns = sum(max(device.rows.span[1] - since_ns, 0) for device in devices)
    busy = [own.timeline.busy.subtract(times) for own, times in zip(devices, once, strict=True)]
    left_ns = sum(work.within(since_ns, ENDLESS).length_ns for work in busy)
    is_enough = left_ns >= _LEAST_WORK * sum(work.length_ns for work in busy)
    is_enough &= rest_ns >= _LEAST_TIME * whole_ns
    goes_on = all(device.rows.span[1] > since_ns for device in devices)
    # Half of the device time that follows must be of activities whose names repeat.
    rows = np.concatenate([own.rows.row[own.rows.start_ns >= since_ns] for own in devices])
    name = codes(trace.activities["name"])[rows] + 1  # 0 for no name
    often = np.bincount(name)[name] >= _REPEATS
    dur_ns = numbers(trace.activities["dur_ns"])[rows]
    repeats = len(rows) >= _FEW and 2 * int(dur_ns[often].sum()) >= int(dur_ns.sum())
    return since_ns if goes_on and is_enough and repeats else None


def set_up(linked: LinkedTrace, account: DeviceAccount) -> Intervals:
    """Return the time of work that a device does once, before what it does again and again."""
    # What first collectives take beyond usual ones of their name and size: they set up their group,
    # or wait for ranks that are not started up.
    rows = account.rows
    index = np.flatnonzero(is_top(linked.categorised, "communication", rows.row))
    row, start_ns = rows.row[index], rows.start_ns[index]
    took_ns = rows.end_ns[index] - start_ns
    sizes = take_rows(linked.trace.activities.select(["collective_in_elements"]), row)
    alike, _ = group_rows((rows.columns.name[row], numbers(sizes[0], ABSENT)))
    starts, ends = [], []
    for _, same in groups(alike):  # in order of their starts
        later_ns = np.sort(took_ns[same[1:]])
        if len(later_ns) >= _REPEATS and took_ns[same[0]] > _SET_UP * later_ns[-1]:
            starts.append(start_ns[same[0]])
            ends.append(start_ns[same[0]] + took_ns[same[0]] - later_ns[(len(later_ns) - 1) // 2])
    beyond = Intervals.of(np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64))
    return upload(linked, account).union(beyond)


def upload(linked: LinkedTrace, account: DeviceAccount) -> Intervals:
    """Return the time until the first kernel in which a device gets the data that it keeps.

    None if copies between host and device go on: later ones take more than 10 % as long. None
    either if neither copies from the host nor start-up fill half of that time, or if the copies may
    be the input of a single pass: kernels do not recur, or a data loader ran before.
    """
    begin_ns, first_ns, rows = account.rows.span[0], account.first_kernel_ns, account.rows
    labels = names(linked.trace.activities["direction"])
    direction = rows.columns.direction[rows.row]
    copies = {}
    for code, label in enumerate(labels):
        if label in ("HtoD", "DtoH"):
            is_copy = direction == code
            copies[label] = Intervals.of(rows.start_ns[is_copy], rows.end_ns[is_copy])
    none = Intervals.empty()
    before = copies.get("HtoD", none).within(NEVER, first_ns)
    later_ns = sum(times.within(first_ns, ENDLESS).length_ns for times in copies.values())
    known_ns = before.union(account.start_up.within(NEVER, first_ns)).length_ns
    is_once = len(before) > 0 and later_ns <= _HARDLY * before.length_ns
    if first_ns == NEVER or not is_once or 2 * known_ns < first_ns - begin_ns:
        return none
    # Nearly all kernels run several times, but for a single pass.
    runs = np.bincount(rows.columns.name[rows.row[account.is_kernel]] + 1)
    recurs = (runs >= _REPEATS).sum() >= _NEARLY_ALL * (runs > 0).sum()
    if linked.first_batch_ns < first_ns or not recurs:
        return none
    return Intervals.of(np.array([begin_ns]), np.array([first_ns]))
