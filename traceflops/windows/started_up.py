"""The end of start-up in a program without steps: its figures are of the work that follows.

span of a device   |start-up .... start-up|work work work . work work|
                   |before                |span                      |

If the user marked a range that repeats the work before it, such as a measurement after a warm-up,
or that follows a range named warm-up, the figures are of that range.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

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
    span_columns,
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
_MUCH, _HARDLY, _HALF = 0.2, 0.1, 0.5
"""Start-up is excluded from 20 % of the time on; later copies take at most 10 % as long."""
_LEAST_WORK, _LEAST_TIME = 1 / 3, 0.03
"""The least shares of work and of the time that must follow start-up, or be measured.
Less time may follow if nearly all work does, by its number or its time."""
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
    since_ns, how = _begin_of_figures(linked, accounts, selection)
    windows = {}
    for device, account in accounts.items():
        begin_ns, end_ns = account.rows.span
        used_from_ns = begin_ns if since_ns is None else max(since_ns, begin_ns)
        windows[device] = [Stretch("span", used_from_ns, end_ns)]
        if used_from_ns > begin_ns:
            windows[device].insert(0, Stretch("before", begin_ns, used_from_ns))
    return windows, how


def _begin_of_figures(
    linked: LinkedTrace, accounts: Accounts, selection: Selection
) -> tuple[int | None, Fact]:
    """Return when the chosen windows begin (None: with the span of each device), and how so."""
    whole = fact("steps-by.whole")
    # Start-up is judged by the work of GPUs that have one clock.
    clocks = clocks_of(linked.trace)[numbers(linked.trace.devices["process"])[list(accounts)]]
    has_cpu = any(account.is_cpu for account in accounts.values())
    if selection.is_time_range or has_cpu or len(distinct(clocks)) != 1:
        return None, whole
    begin_ns, how = started_up_ns(linked, accounts), AFTER_START_UP
    if begin_ns is None:
        begin_ns, how = _loaded_ns(linked, accounts), fact(f"steps-by.{_LOADED}")
    if begin_ns is None:
        how = whole
    first_ns = min(account.rows.span[0] for account in accounts.values())
    measured = measured_range(linked, accounts, first_ns if begin_ns is None else begin_ns)
    if measured is None:
        return begin_ns, how
    mark, range_begin_ns = measured
    return range_begin_ns, fact(RANGE, row=mark)


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

    It is unclear if start-up is short, if little work follows it, or little time with a part of the
    work, or without repetition.
    """
    trace, devices = linked.trace, [*accounts.values()]
    whole_ns = sum(device.rows.span[1] - device.rows.span[0] for device in devices)
    start_up = [device.start_up.union(set_up(linked, device)) for device in devices]
    if sum(times.length_ns for times in start_up) < max(_MUCH * whole_ns, 1):
        return None
    over_ns = max(int(times.end_ns[-1]) for times in start_up if len(times))
    time_left_ns = [device.rows.span[1] - over_ns for device in devices]
    if min(time_left_ns) <= 0 or not _leaves_work(devices, start_up, over_ns):
        return None
    # What follows in little time is the program if it is nearly all work, by number or by time.
    following = sum(int((own.rows.start_ns >= over_ns).sum()) for own in devices)
    is_short = sum(time_left_ns) < _LEAST_TIME * whole_ns
    is_most = following >= _NEARLY_ALL * sum(len(own.rows.row) for own in devices)
    if is_short and not (is_most or _leaves_work(devices, start_up, over_ns, _NEARLY_ALL)):
        return None
    # Half of the device time that follows must be of activities whose names repeat.
    rows = np.concatenate([own.rows.row[own.rows.start_ns >= over_ns] for own in devices])
    name = codes(trace.activities["name"])[rows] + 1  # 0 for no name
    is_often = np.bincount(name)[name] >= _REPEATS
    dur_ns = numbers(trace.activities["dur_ns"])[rows]
    repeats = len(rows) >= _FEW and 2 * int(dur_ns[is_often].sum()) >= int(dur_ns.sum())
    return over_ns if repeats else None


def _leaves_work(
    devices: Sequence[DeviceAccount],
    start_up: Sequence[Intervals],
    over_ns: int,
    least: float = _LEAST_WORK,
) -> bool:
    """Return whether `least` of the work beside start-up (per device) follows a time."""
    pairs = zip(devices, start_up, strict=True)
    work = [device.timeline.busy.subtract(times) for device, times in pairs]
    work_left_ns = sum(times.within(over_ns, ENDLESS).length_ns for times in work)
    return work_left_ns >= least * sum(times.length_ns for times in work)


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
    launched a third of the kernels, the last one among them, half of those with the same names,
    and all work of all devices from its first work on. Nearly all time of its kernels is of
    names that ran before, too. So a range around the whole program does not count: nothing ran
    before it. After ranges named warm-up (`must_warm_up`: only then) only ranges behind them
    count, and a tenth of the kernels is enough.
    """
    outers = [*_outer_ranges(linked, must_warm_up=must_warm_up)]
    if not outers:
        return None
    row = np.sort(np.concatenate([account.rows.row for account in accounts.values()]))
    columns = ["process", "kind", "name", "start_ns", "dur_ns"]
    work = take_rows(linked.trace.activities.select(columns), row)
    call_ns = numbers(linked.trace.calls["start_ns"])
    launched_ns = taken(call_ns, linked.links.call_of_activity[row], NEVER)
    last_ns = launched_ns[is_one_of(work["kind"], "kernel")].max(initial=NEVER)
    for outer in outers:
        is_candidate = since_ns <= outer.open_ns <= last_ns < outer.close_ns
        if not is_candidate or linked.clock_offsets[outer.process]:
            continue
        begin_ns = _begin_if_measured(work, launched_ns, outer)
        if begin_ns is not None and all(own.rows.span[1] > begin_ns for own in accounts.values()):
            return outer.mark, begin_ns
    return None


class _Outer(NamedTuple):
    """A range of the host, and whether it follows ranges of its thread that are named warm-up."""

    mark: int
    process: int
    open_ns: int
    close_ns: int
    follows_warm_up: bool


def _outer_ranges(linked: LinkedTrace, *, must_warm_up: bool) -> Iterator[_Outer]:
    """Yield of each thread the range that contains all others; those up to warm-up are left out."""
    table = linked.trace.marks
    is_warm_up = matching(table["name"], WARM_UP.search)
    if must_warm_up and not is_warm_up.any():
        return
    marks = np.flatnonzero(is_one_of(table["kind"], "annotation"))
    process, thread, opened_ns, lasted_ns = (column[marks] for column in times_of(table))
    closed_ns = np.where(lasted_ns == ABSENT, ENDLESS, opened_ns + lasted_ns)
    for _, of_thread in groups(group_rows((process, thread))[0]):
        warm_ups = of_thread[is_warm_up[marks[of_thread]]]
        if len(warm_ups):
            of_thread = of_thread[opened_ns[of_thread] >= closed_ns[warm_ups].max()]
        if not len(of_thread) or (must_warm_up and not len(warm_ups)):
            continue
        # Only the first range to open, of several the longest, can contain all others.
        first = of_thread[np.lexsort((-closed_ns[of_thread], opened_ns[of_thread]))[0]]
        open_ns, close_ns = int(opened_ns[first]), int(closed_ns[first])
        if close_ns < ENDLESS and (closed_ns[of_thread] <= close_ns).all():
            owner = int(process[first])
            yield _Outer(int(marks[first]), owner, open_ns, close_ns, len(warm_ups) > 0)


def _begin_if_measured(work: pa.Table, launched_ns: IntArray, outer: _Outer) -> int | None:
    """Return when the work of a range begins in ns; None if the work shows no measurement.

    `work` are activities, `launched_ns` is when each was launched, NEVER if unknown.
    """
    begin_ns, end_ns = span_columns(work)
    is_kernel, name = is_one_of(work["kind"], "kernel"), codes(work["name"])
    is_measured = numbers(work["process"]) == outer.process
    is_measured &= (launched_ns >= outer.open_ns) & (launched_ns < outer.close_ns)
    is_other, measured_kernel = ~is_measured, is_measured & is_kernel
    least = _HARDLY * is_kernel.sum()
    if not outer.follows_warm_up:
        is_alike = is_kernel & np.isin(name, name[measured_kernel])
        least = max(_LEAST_WORK * is_kernel.sum(), _HALF * is_alike.sum(), _REPEATS)
    if measured_kernel.sum() < least or not is_other.any():
        return None
    first_ns = int(begin_ns[is_measured].min())
    if (begin_ns[is_other] >= first_ns).any():
        return None  # other work runs after it, too
    dur_ns = end_ns - begin_ns
    is_repeated = measured_kernel & np.isin(name, name[is_other & is_kernel])
    if dur_ns[is_repeated].sum() < _NEARLY_ALL * dur_ns[measured_kernel].sum():
        return None
    other_end_ns = int(end_ns[is_other].max())
    return max(outer.open_ns, min(first_ns, other_end_ns))


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


def _loops_busily(account: DeviceAccount) -> bool:
    """Return whether a device is busy nearly all of the time from its first kernel, with a loop."""
    begin_ns, end_ns = account.first_kernel_ns, account.rows.span[1]
    name = account.rows.columns.name[account.rows.row[account.is_kernel]]
    busy_ns = account.timeline.busy.within(begin_ns, end_ns).length_ns
    is_loop = np.bincount(name + 1).max(initial=0) >= _LOOP  # a code of -1 is no name
    return bool(is_loop and busy_ns >= _NEARLY_ALL * (end_ns - begin_ns))


def upload(linked: LinkedTrace, account: DeviceAccount, least: int = 1) -> Intervals:
    """Return the time up to the first kernel if the device gets data in it that it keeps: weights.

    The result is empty if fewer than `least` copies from the host precede that kernel; if copies
    between host and device after it take more than 10 % as long as those before; if copies and
    start-up fill less than half of the time, unless a loop follows that keeps the device busy; or
    if the data may be the input of a single pass.
    """
    rows, first_kernel_ns = account.rows, account.first_kernel_ns
    begin_ns, none = rows.span[0], Intervals.empty()
    code_of = {label: n for n, label in enumerate(names(linked.trace.activities["direction"]))}
    direction = rows.columns.direction[rows.row]
    is_upload = direction == code_of.get("HtoD", ABSENT)
    count = int((rows.start_ns[is_upload] < first_kernel_ns).sum())
    if first_kernel_ns == NEVER or count < least:
        return none
    later_ns = 0
    for which in (is_upload, direction == code_of.get("DtoH", ABSENT)):
        copies = Intervals.of(rows.start_ns[which], rows.end_ns[which])
        later_ns += copies.within(first_kernel_ns, ENDLESS).length_ns
    uploads = Intervals.of(rows.start_ns[is_upload], rows.end_ns[is_upload])
    uploads = uploads.within(NEVER, first_kernel_ns)
    if later_ns > _HARDLY * uploads.length_ns:
        return none
    explained = uploads.union(account.start_up.within(NEVER, first_kernel_ns))
    is_explained = 2 * explained.length_ns >= first_kernel_ns - begin_ns
    if not is_explained and not _loops_busily(account):
        return none
    # The data may be the input of a single pass if a data loader ran before the first kernel, or if
    # few names of kernels occur several times and the copies are few. A code of -1, no name, is
    # counted in cell 0.
    count_by_name = np.bincount(rows.columns.name[rows.row[account.is_kernel]] + 1)
    repeated = (count_by_name >= _REPEATS).sum()
    is_one_pass = repeated < _NEARLY_ALL * (count_by_name > 0).sum() and count < _WEIGHTS
    if linked.first_batch_ns < first_kernel_ns or is_one_pass:
        return none
    return Intervals.one(begin_ns, first_kernel_ns)
