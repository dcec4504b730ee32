"""The end of start-up in a program without steps: its figures are of the work that follows.

span of a device   |start-up .... start-up|work work work . work work|
                   |before                |span                      |

No start-up is in what follows: what is left out, start-up or beside it, and what follows are all.
If it ends with a range of the user that repeats what ran before, as a measurement after a warm-up,
the figures are of that range.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from traceflops.devices.processes import clocks_of
from traceflops.facts import Fact, fact
from traceflops.table.columns import ABSENT, codes, is_one_of, names, numbers, take_rows
from traceflops.table.grouping import distinct, group_rows, groups
from traceflops.table.nesting import taken
from traceflops.timeline.account import DeviceAccount, LinkedTrace
from traceflops.timeline.device_span import is_top
from traceflops.timeline.first_calls import times_of
from traceflops.timeline.intervals import ENDLESS, NEVER, Intervals
from traceflops.windows.selection import Selection
from traceflops.windows.tiling import Stretch

AFTER_START_UP: Final = fact("steps-by.after")
"""How the single window of a program without steps is chosen."""
RANGE: Final = "steps-by.range"
"""The same, by code, where it is the range that measures: `row` of the marks."""
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
) -> tuple[dict[int, list[Stretch]], Fact]:
    """Return the windows of each device, start-up apart if it is over, and how they are chosen."""
    # A chosen time range is taken as it is, with start-up.
    is_judged = not selection.is_time_range and _have_one_clock(linked, accounts)
    since_ns = started_up_ns(linked, accounts) if is_judged else None
    how, windows = fact("steps-by.whole") if since_ns is None else AFTER_START_UP, {}
    begin_ns = min(account.rows.span[0] for account in accounts.values()) if is_judged else 0
    after_ns = begin_ns if since_ns is None else since_ns
    if is_judged and (measured := measured_range(linked, accounts, after_ns)):
        how, since_ns = fact(RANGE, row=measured[0]), measured[1]
    for device, account in accounts.items():
        low, high = account.rows.span
        since = low if since_ns is None else max(since_ns, low)
        before = [Stretch("before", None, low, since, None)] if since > low else []
        windows[device] = [*before, Stretch("span", None, since, high, None)]
    return windows, how


def _have_one_clock(linked: LinkedTrace, accounts: Mapping[int, DeviceAccount]) -> bool:
    """Return whether there are devices, all with one clock, and none of them a CPU."""
    trace = linked.trace
    clocks = clocks_of(trace)[numbers(trace.devices["process"])[list(accounts)]]
    return len(distinct(clocks)) == 1 and not any(one.is_cpu for one in accounts.values())


def started_up_ns(linked: LinkedTrace, accounts: Mapping[int, DeviceAccount]) -> int | None:
    """Return the time in ns at which start-up is over on all devices, None if that is unclear.

    It is unclear if start-up is a small part of the time; if little time or work follows it; if
    that work does not repeat.
    """
    trace, devices = linked.trace, [*accounts.values()]
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


def measured_range(
    linked: LinkedTrace, accounts: Mapping[int, DeviceAccount], since_ns: int
) -> tuple[int, int] | None:
    """Return the row of the user's range that measures, and when its work begins; None without.

        thread  |start-up|warm-up            |measured ..............|
        device      |a b     a c      a c      |a c   a c   a c   a c|

    It is the only outermost range of its thread and begins after start-up. All work from its first
    on was launched in it: most kernels, and work of each device. Nearly all time of these kernels
    is of such as ran before. So a range around the whole program is none, nor one that does
    something else.
    """
    trace = linked.trace
    work, calls = trace.activities, trace.calls
    row = np.sort(np.concatenate([account.rows.row for account in accounts.values()]))
    issued_ns = taken(numbers(calls["start_ns"]), linked.links.call_of_activity[row], NEVER)
    owner, begin_ns, dur_ns = (
        numbers(work[column])[row] for column in ("process", "start_ns", "dur_ns")
    )
    is_kernel, name = is_one_of(work["kind"], "kernel")[row], codes(work["name"])[row]
    marks = np.flatnonzero(is_one_of(trace.marks["kind"], "annotation"))
    process, thread, from_ns, lasts_ns = (column[marks] for column in times_of(trace.marks))
    until_ns = np.where(lasts_ns == ABSENT, ENDLESS, from_ns + lasts_ns)
    middle_ns = np.sort(issued_ns[is_kernel])[is_kernel.sum() // 2 :][:1]
    for _, same in groups(group_rows((process, thread))[0]):
        outer = same[np.lexsort((-until_ns[same], from_ns[same]))[0]]
        low, high, number = int(from_ns[outer]), int(until_ns[outer]), process[outer]
        is_alone = low >= since_ns and (until_ns[same] <= high).all() and high < ENDLESS
        # What launches most kernels launches the middle one: few ranges need a closer look.
        may_be_most = ((low <= middle_ns) & (middle_ns < high)).any()
        if not (is_alone and may_be_most) or linked.clock_offsets[number]:
            continue
        inside = (owner == number) & (issued_ns >= low) & (issued_ns < high)
        measured, before = inside & is_kernel, ~inside
        if 2 * measured.sum() <= is_kernel.sum() or not before.any():
            continue
        first_ns = int(begin_ns[inside].min())
        again_ns = dur_ns[measured & np.isin(name, name[before & is_kernel])].sum()
        repeats = again_ns >= _NEARLY_ALL * dur_ns[measured].sum()
        ended_ns = int((begin_ns + dur_ns)[before].max())
        work_from_ns = max(low, min(first_ns, ended_ns))
        go_on = all(account.rows.span[1] > work_from_ns for account in accounts.values())
        if repeats and go_on and (begin_ns[before] < first_ns).all():
            return int(marks[outer]), work_from_ns
    return None


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
