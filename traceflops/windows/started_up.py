"""The end of start-up in a program without steps: its figures are of the work that follows.

span of a device   |start-up .... start-up|work work work . work work|
                   |before                |span                      |

If the user marked a range that repeats the work before it, such as a measurement after a warm-up,
or that follows a range named warm-up, the figures are of that range.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final

import numpy as np

from traceflops.devices.processes import clocks_of
from traceflops.facts import Fact, fact
from traceflops.table.columns import (
    ABSENT,
    IntArray,
    codes,
    is_one_of,
    matching,
    names,
    numbers,
    take_rows,
)
from traceflops.table.grouping import distinct, group_rows, groups
from traceflops.table.nesting import taken
from traceflops.timeline.account import DeviceAccount, LinkedTrace
from traceflops.timeline.device_span import is_top
from traceflops.timeline.first_calls import times_of
from traceflops.timeline.intervals import ENDLESS, NEVER, Intervals
from traceflops.windows.records import Accounts
from traceflops.windows.selection import Selection
from traceflops.windows.tiling import Stretch

AFTER_START_UP: Final = fact("steps-by.after")
"""How the window of a program without steps is chosen: it begins after start-up."""
RANGE: Final = "steps-by.range"
"""The code of the same if the window is a measured range; its `row` is that of the marks."""
BEFORE_WORK: Final = fact("left-out.start-up")
"""Why figures exclude the time in which a program starts up."""
WARM_UP: Final = re.compile(r"warm[ _-]?up", re.IGNORECASE)
"""Finds names of ranges that warm up."""
_LOADED: Final = "loaded"  # how, if the window begins with the first kernel, after weights
_MUCH, _HARDLY = 0.2, 0.1
"""Start-up is excluded from 20 % of the time on; later copies take at most 10 % as long."""
_LEAST_WORK, _LEAST_TIME = 1 / 3, 0.03
"""The least shares of work and of the time that must follow start-up, or be measured."""
_REPEATS, _NEARLY_ALL = 3, 0.9
"""Kernels that run three times repeat; half of the work that follows must repeat."""
_SET_UP: Final = 2
"""A first collective that takes so many times as long as any later one like it sets up."""
_FEW: Final = 8  # fewer activities do not count as repeating
_LOOP: Final = 200  # so many launches of kernels that repeat are a loop
_WEIGHTS: Final = 100  # so many copies before the first kernel are of weights


def spans(
    linked: LinkedTrace, accounts: Accounts, selection: Selection
) -> tuple[dict[int, list[Stretch]], Fact]:
    """Return the windows of each device without steps, and how they are chosen.

    The chosen window of a device is its span. If the program is seen to start up, it begins after
    start-up; if the user measured a range, with the work of that range. Where the user gives a time
    range, nothing is left out of it.
    """
    # Start-up is judged by the work of GPUs that have one clock.
    trace, devices = linked.trace, accounts.values()
    clocks = clocks_of(trace)[numbers(trace.devices["process"])[list(accounts)]]
    is_judged = not selection.is_time_range and len(distinct(clocks)) == 1
    is_judged &= not any(account.is_cpu for account in devices)
    since_ns = started_up_ns(linked, accounts) if is_judged else None
    how = fact("steps-by.whole") if since_ns is None else AFTER_START_UP
    if is_judged and since_ns is None and (since_ns := _loaded_ns(linked, accounts)) is not None:
        how = fact(f"steps-by.{_LOADED}")
    if is_judged:
        first_ns = min(account.rows.span[0] for account in devices)
        begins_after_ns = first_ns if since_ns is None else since_ns
        if measured := measured_range(linked, accounts, begins_after_ns):
            mark, since_ns = measured
            how = fact(RANGE, row=mark)
    windows = {}
    for device, account in accounts.items():
        begin_ns, end_ns = account.rows.span
        used_from_ns = begin_ns if since_ns is None else max(since_ns, begin_ns)
        windows[device] = [Stretch("span", used_from_ns, end_ns)]
        if used_from_ns > begin_ns:
            windows[device].insert(0, Stretch("before", begin_ns, used_from_ns))
    return windows, how


def warms_up(
    linked: LinkedTrace, accounts: Accounts, windows: Mapping[int, Sequence[Stretch]]
) -> bool:
    """Return whether all steps begin before the range that the user measures after a warm-up."""
    steps = [one.start_ns for one in chain(*windows.values()) if one.role == "step"]
    if not steps:
        return False
    return measured_range(linked, accounts, max(steps), must_warm_up=True) is not None


def started_up_ns(linked: LinkedTrace, accounts: Accounts) -> int | None:
    """Return the time in ns at which start-up is over on all devices, None if that is unclear.

    It is unclear if start-up is short, if little time or work follows it, or without repetition.
    """
    trace, devices = linked.trace, [*accounts.values()]
    whole_ns = sum(device.rows.span[1] - device.rows.span[0] for device in devices)
    start_up = [device.start_up.union(set_up(linked, device)) for device in devices]
    if sum(times.length_ns for times in start_up) < max(_MUCH * whole_ns, 1):
        return None
    over_ns = max(int(times.end_ns[-1]) for times in start_up if len(times))
    time_left_ns = [device.rows.span[1] - over_ns for device in devices]
    if min(time_left_ns) <= 0 or sum(time_left_ns) < _LEAST_TIME * whole_ns:
        return None
    if not _leaves_work(devices, start_up, over_ns):
        return None
    # Half of the device time that follows must be of activities whose names repeat.
    rows = np.concatenate([own.rows.row[own.rows.start_ns >= over_ns] for own in devices])
    name = codes(trace.activities["name"])[rows] + 1  # 0 for no name
    is_often = np.bincount(name)[name] >= _REPEATS
    dur_ns = numbers(trace.activities["dur_ns"])[rows]
    repeats = len(rows) >= _FEW and 2 * int(dur_ns[is_often].sum()) >= int(dur_ns.sum())
    return over_ns if repeats else None


def _leaves_work(
    devices: Sequence[DeviceAccount], start_up: Sequence[Intervals], over_ns: int
) -> bool:
    """Return whether enough of the work beside start-up (per device) follows a time."""
    pairs = zip(devices, start_up, strict=True)
    work = [device.timeline.busy.subtract(times) for device, times in pairs]
    work_left_ns = sum(times.within(over_ns, ENDLESS).length_ns for times in work)
    return work_left_ns >= _LEAST_WORK * sum(times.length_ns for times in work)


def _loaded_ns(linked: LinkedTrace, accounts: Accounts) -> int | None:
    """Return the time in ns from which all devices run kernels, if they get weights before.

    It is None if most of the work is done by then.
    """
    devices = [*accounts.values()]
    whole_ns = sum(device.rows.span[1] - device.rows.span[0] for device in devices)
    uploads = [upload(linked, device, _WEIGHTS) for device in devices]
    is_much = sum(times.length_ns for times in uploads) >= _LEAST_TIME * whole_ns
    if not all(map(len, uploads)) or not is_much:
        return None
    begin_ns = max(device.first_kernel_ns for device in devices)
    return begin_ns if _leaves_work(devices, uploads, begin_ns) else None


def measured_range(
    linked: LinkedTrace, accounts: Accounts, since_ns: int, *, must_warm_up: bool = False
) -> tuple[int, int] | None:
    """Return the mark of the range that the user measured, and when its work begins; else None.

        thread  |start-up|warm-up            |measured ..............|
        device      |a b     a c      a c      |a c   a c   a c   a c|

    The range contains all other ranges of its thread and begins after start-up (`since_ns`). It
    launched a third of the kernels, and all work of all devices from its first work on. Nearly all
    time of its kernels is of names that ran before, too. So neither a range around the whole
    program counts, nor one that does something else than what ran before it. But after ranges named
    warm-up (`must_warm_up`: only then) only ranges behind them count, and a tenth is enough.
    """
    trace = linked.trace
    is_warm_up = matching(trace.marks["name"], WARM_UP.search)
    if must_warm_up and not is_warm_up.any():
        return None
    work, calls = trace.activities, trace.calls
    row = np.sort(np.concatenate([account.rows.row for account in accounts.values()]))
    launched_ns = taken(numbers(calls["start_ns"]), linked.links.call_of_activity[row], NEVER)
    owner, begin_ns, dur_ns = (
        numbers(work[column])[row] for column in ("process", "start_ns", "dur_ns")
    )
    is_kernel, name = is_one_of(work["kind"], "kernel")[row], codes(work["name"])[row]
    marks = np.flatnonzero(is_one_of(trace.marks["kind"], "annotation"))
    process, thread, opened_ns, lasted_ns = (column[marks] for column in times_of(trace.marks))
    closed_ns = np.where(lasted_ns == ABSENT, ENDLESS, opened_ns + lasted_ns)
    last_ns = launched_ns[is_kernel].max(initial=NEVER)
    for _, of_thread in groups(group_rows((process, thread))[0]):
        if is_named := is_warm_up[marks[of_thread]].any():
            over_ns = closed_ns[of_thread][is_warm_up[marks[of_thread]]].max()
            of_thread = of_thread[opened_ns[of_thread] >= over_ns]
        if not len(of_thread) or (must_warm_up and not is_named):
            continue
        # The candidate of a thread is its first range to open, of several the longest.
        outer = of_thread[np.lexsort((-closed_ns[of_thread], opened_ns[of_thread]))[0]]
        open_ns, close_ns, launcher = int(opened_ns[outer]), int(closed_ns[outer]), process[outer]
        contains_all = (closed_ns[of_thread] <= close_ns).all() and close_ns < ENDLESS
        is_candidate = since_ns <= open_ns <= last_ns < close_ns and contains_all
        if not is_candidate or linked.clock_offsets[launcher]:
            continue
        # The work that the range launched, and all other work.
        is_measured = (owner == launcher) & (launched_ns >= open_ns) & (launched_ns < close_ns)
        is_other, measured_kernel = ~is_measured, is_measured & is_kernel
        least = _HARDLY if is_named else _LEAST_WORK
        if measured_kernel.sum() < least * is_kernel.sum() or not is_other.any():
            continue
        first_ns = int(begin_ns[is_measured].min())
        is_repeated = measured_kernel & np.isin(name, name[is_other & is_kernel])
        repeats = dur_ns[is_repeated].sum() >= _NEARLY_ALL * dur_ns[measured_kernel].sum()
        other_end_ns = int((begin_ns + dur_ns)[is_other].max())
        work_from_ns = max(open_ns, min(first_ns, other_end_ns))
        go_on = all(account.rows.span[1] > work_from_ns for account in accounts.values())
        if repeats and go_on and (begin_ns[is_other] < first_ns).all():
            return int(marks[outer]), work_from_ns
    return None


def set_up(linked: LinkedTrace, account: DeviceAccount) -> Intervals:
    """Return the time in which a device gets or makes its data, or sets up collectives.

    See `upload` and `made_once`.

    The first collective of a name and size sets up its group, or waits for ranks that have not
    started up: the time that it takes beyond a usual collective of the name and size is set-up.
    """
    rows = account.rows
    is_collective = is_top(linked.categorised, "communication", rows.row)
    row, start_ns = rows.row[is_collective], rows.start_ns[is_collective]
    took_ns = rows.end_ns[is_collective] - start_ns
    sizes = take_rows(linked.trace.activities.select(["collective_in_elements"]), row)
    name_and_size, _ = group_rows((rows.columns.name[row], numbers(sizes[0], ABSENT)))
    starts, ends = [], []
    for _, same in groups(name_and_size):  # the collectives of a name and size, by start
        first, later_ns = same[0], np.sort(took_ns[same[1:]])
        if len(later_ns) >= _REPEATS and took_ns[first] > _SET_UP * later_ns[-1]:
            usual_ns = later_ns[(len(later_ns) - 1) // 2]
            starts.append(start_ns[first])
            ends.append(start_ns[first] + took_ns[first] - usual_ns)
    beyond = Intervals.of(np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64))
    made = made_once(account)
    making = Intervals.of(rows.start_ns[made], rows.end_ns[made])
    return upload(linked, account).union(making).union(beyond)


def made_once(account: DeviceAccount) -> IntArray:
    """Return the places of kernels that run once, before a loop of hundreds of other launches."""
    places = np.flatnonzero(account.is_kernel)
    name = account.rows.columns.name[account.rows.row[places]]
    count = np.bincount(name + 1)[name + 1]  # a code of -1, no name, is counted in cell 0
    in_loop = count >= _REPEATS
    first = int(in_loop.argmax()) if in_loop.sum() >= _LOOP else 0
    return places[:first] if (count[:first] == 1).all() else places[:0]


def upload(linked: LinkedTrace, account: DeviceAccount, least: int = 1) -> Intervals:
    """Return the time up to the first kernel if the device gets data in it that it keeps: weights.

    The result is empty if fewer than `least` copies from the host precede that kernel; if copies
    between host and device after it take more than 10 % as long as those before; if copies and
    start-up fill less than half of the time; or if the data may be the input of a single pass.
    """
    begin_ns, first_kernel_ns, rows = account.rows.span[0], account.first_kernel_ns, account.rows
    labels = names(linked.trace.activities["direction"])
    direction = rows.columns.direction[rows.row]
    copies, count = {}, 0
    for code, label in enumerate(labels):
        if label in ("HtoD", "DtoH"):
            is_copy = direction == code
            copies[label] = Intervals.of(rows.start_ns[is_copy], rows.end_ns[is_copy])
            if label == "HtoD":
                count = int((rows.start_ns[is_copy] < first_kernel_ns).sum())
    none = Intervals.empty()
    uploads = copies.get("HtoD", none).within(NEVER, first_kernel_ns)
    later_ns = sum(times.within(first_kernel_ns, ENDLESS).length_ns for times in copies.values())
    if first_kernel_ns == NEVER or count < least or later_ns > _HARDLY * uploads.length_ns:
        return none
    explained = uploads.union(account.start_up.within(NEVER, first_kernel_ns))
    if 2 * explained.length_ns < first_kernel_ns - begin_ns:
        return none
    # The data may be the input of a single pass if a data loader ran before the first kernel, or if
    # few names of kernels occur several times and the copies are few. A code of -1, no name, is
    # counted in cell 0.
    count_by_name = np.bincount(rows.columns.name[rows.row[account.is_kernel]] + 1)
    repeated = (count_by_name >= _REPEATS).sum()
    is_one_pass = repeated < _NEARLY_ALL * (count_by_name > 0).sum()
    is_one_pass &= count < _WEIGHTS
    if linked.first_batch_ns < first_kernel_ns or is_one_pass:
        return none
    return Intervals.one(begin_ns, first_kernel_ns)
