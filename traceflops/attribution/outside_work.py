"""Recorded time of a process before and after its GPU work, and in this work outside used steps.

|<--------------------- recorded --------------------->|
|--- before ---|GPU work: unused, used steps|-- after --|

Also the component or class of idle time by which steps left out are longer than used ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from traceflops.attribution.culprits import culprits_of_devices
from traceflops.attribution.host_events import host_span
from traceflops.attribution.idle_classes import waiting_calls
from traceflops.table.columns import (
    IntArray,
    codes,
    flag_column,
    is_one_of,
    names,
    numbers,
    span_columns,
    thread_columns,
)
from traceflops.table.grouping import distinct, group_least, group_most, group_sums, joint_codes
from traceflops.timeline.intervals import Intervals, latest_end_before
from traceflops.timeline.records import Window
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import DeviceReport, chosen_time

_FEW: Final = 10
"""Time outside the GPU's work is reported if it is at least a tenth of the time of that work."""


class OutsideGpuWork(Struct, frozen=True):
    """Recorded time of a process before its first GPU operation and after its last; times in ns.

    `recorded_ns` is the length of the recording. `call` is the call, or the annotation, that takes
    most of the time before and after (see `_longest_name`); `call_ns` is its time there.
    `unused_ns` is the time of one GPU outside used steps, `once_ns` the part of this in which the
    program starts up.
    """

    before_ns: int
    after_ns: int
    recorded_ns: int
    call: str
    call_ns: int
    unused_ns: int = 0
    once_ns: int = 0

    @property
    def ns(self) -> int:
        """The time before, after and unused, in ns."""
        return self.before_ns + self.after_ns + self.unused_ns

    @property
    def is_most(self) -> bool:
        """Whether this is more than half of the recording."""
        return 2 * self.ns > self.recorded_ns


def outside_gpu_work(prepared: Prepared) -> OutsideGpuWork | None:
    """Return the time that a process records outside its GPU work and outside used steps.

    Of several processes, whose clocks may differ, the one with the most such time counts. None if
    it is short (see _FEW), or if the clock of a GPU is not that of its process.
    """
    if not prepared.accounts or prepared.linked.clock_offsets.any():
        return None
    in_no_step = _in_no_step(prepared)
    by_process, recorded = {}, _recorded(prepared)
    for process, (begin, first, last, end) in recorded.items():
        unused_ns, once_ns = in_no_step.get(process, (0, 0))
        times = first - begin, end - last, end - begin
        by_process[process] = OutsideGpuWork(*times, "", 0, unused_ns, once_ns)
    process = max(by_process, key=lambda number: by_process[number].ns)
    outside = by_process[process]
    begin, first, last, end = recorded[process]
    if outside.ns * _FEW < last - first:
        return None
    edges = Intervals.of(np.array([begin, last]), np.array([first, end]))
    name, name_ns = _longest_name(prepared, process, edges)
    return replace(outside, call=name, call_ns=name_ns)


def _recorded(prepared: Prepared) -> dict[int, list[int]]:
    """Return when recording begins, GPU work begins, it ends, recording ends, by working process.

    Work is taken to begin with the first window, which may begin at a mark of the host.
    """
    trace, count = prepared.trace, prepared.trace.processes.num_rows
    rows = np.concatenate([account.rows.row for account in prepared.accounts.values()])
    process = numbers(trace.activities["process"])[rows]
    start_ns, stop_ns = span_columns(trace.activities, rows)
    first, last = group_least(process, start_ns, count), group_most(process, stop_ns, count)
    begin, end = first.copy(), last.copy()
    # The profiler's overhead, such as writing its buffers at the end, is no time of the program.
    is_overhead = is_one_of(trace.marks["kind"], "overhead")
    marks = trace.marks.filter(flag_column(~is_overhead)) if is_overhead.any() else trace.marks
    for table in (trace.calls, trace.ops, marks):
        processes, start_ns, stop_ns = host_span(table)
        np.minimum.at(begin, processes, start_ns)
        np.maximum.at(end, processes, stop_ns)
    process_of_device = numbers(trace.devices["process"]).tolist()
    for device in prepared.accounts:
        for window in prepared.windows[device]:
            own = process_of_device[device]
            first[own] = min(first[own], window.start_ns)
    used, times = distinct(process), np.stack([begin, first, last, end], axis=1)
    return dict(zip(used.tolist(), times[used].tolist(), strict=True))


def _longest_name(prepared: Prepared, process: int, within: Intervals) -> tuple[str, int]:
    """Return the call, or the annotation, that takes most of some time, and its ns in it.

    Calls of threads that launch nothing count while none of the launching ones runs, unless they
    wait for the device. Annotations that go on after the time are about more than it.
    """
    trace, calls = prepared.trace, prepared.trace.calls
    thread = joint_codes(*thread_columns(calls))
    call = prepared.linked.links.call_of_activity
    is_launching = np.isin(thread, thread[call[call >= 0]])
    is_here = numbers(calls["process"]) == process
    row = np.flatnonzero(is_launching & is_here)
    other = np.flatnonzero(~is_launching & is_here & ~waiting_calls(calls))
    _, *span = host_span(calls)
    alone = within.subtract(Intervals.of(*(column[row] for column in span)))
    process_of_mark, start_ns, stop_ns = host_span(trace.marks)
    is_inside = within.length_within(start_ns, stop_ns) == stop_ns - start_ns
    is_own = (process_of_mark == process) & is_one_of(trace.marks["kind"], "annotation")
    mark = np.flatnonzero(is_own & is_inside)
    longest = (
        _longest(calls, row, within),
        _longest(calls, other, alone),
        _longest(trace.marks, mark, within),
    )
    return max(longest, key=itemgetter(1))


def _longest(table: pa.Table, row: IntArray, within: Intervals) -> tuple[str, int]:
    """Return the name whose rows take most of the time `within`, and its ns there.

    Rows of one name that are nested, or on several threads at once, count once.
    """
    name, labels = codes(table["name"])[row], names(table["name"])
    _, start, stop = (column[row] for column in host_span(table))
    start = np.minimum(np.maximum(start, latest_end_before(name, start, stop)), stop)
    sums = group_sums(name, within.length_within(start, stop), len(labels))
    if not len(sums):
        return "", 0
    longest = int(sums.argmax())
    return labels[longest], int(sums[longest])


def _in_no_step(prepared: Prepared) -> dict[int, tuple[int, int]]:
    """Return, by process, the ns of its GPU in no used step, and the part of it that is start-up.

    Of several GPUs the one with the most such time counts. A process is left out without steps, or
    if at least half of the time is about that of steps left out: the report counts these anyway.
    """
    process = numbers(prepared.trace.devices["process"]).tolist()
    by_process: dict[int, tuple[int, int]] = {}
    for device, account in prepared.accounts.items() if prepared.plan.choice.used else ():
        windows = prepared.windows[device]
        outside = Intervals.one(*account.rows.span).subtract(chosen_time(windows))
        used = [window.dur_ns for window in windows if window.used]
        others = sum(window.role == "step" and not window.used for window in windows)
        if used and 2 * others * np.median(used) < outside.length_ns:
            times = outside.length_ns, outside.intersect(account.start_up).length_ns
            by_process[process[device]] = max(times, by_process.get(process[device], times))
    return by_process


WARM_UP: Final = "left-out.warm-up"
"""Why a step is left out that takes longer than the others."""
_IDLE: Final = "idle"


def slow_steps(windows: Iterable[Window]) -> list[Window]:
    """Return the windows that are left out because they take longer (WARM_UP)."""
    return [w for w in windows if w.left_out is not None and w.left_out.code == WARM_UP]


def longer_by(prepared: Prepared, devices: Sequence[DeviceReport]) -> str | None:
    """Return the component, or class of idle time, that is most of the extra time of slow steps.

    Slow steps are those left out as far longer; they are compared with the steps used. None without
    steps of both kinds, or if nothing is half of the extra time.
    """
    slow = {device.device: slow_steps(device.windows) for device in devices}
    used = {device.device: [w for w in device.windows if w.used] for device in devices}
    slow_count, used_count = (sum(map(len, windows.values())) for windows in (slow, used))
    if not slow_count or not used_count:
        return None
    times = [
        {device: _time(some) for device, some in windows.items() if some}
        for windows in (slow, used)
    ]
    culprits = culprits_of_devices(prepared, times)
    # Slow minus used steps, each weighted by the number of the others: as if equally many.
    longer_ns, all_longer_ns = Counter[str](), 0
    sides = zip((slow, used), culprits, (used_count, -slow_count), strict=True)
    for windows, idle, weight in sides:
        parts = [window.account.components for some in windows.values() for window in some]
        for name, ns in sum(parts[1:], parts[0]).parts().items():
            all_longer_ns += weight * ns
            longer_ns[name] += weight * ns
        for idle_class in idle.by_class():  # its time is then no longer idle time without a class
            longer_ns[idle_class.kind] += weight * idle_class.idle_ns
            longer_ns[_IDLE] -= weight * idle_class.idle_ns
    [(name, most_ns)] = longer_ns.most_common(1)
    return name if 2 * most_ns >= all_longer_ns > 0 else None


def _time(windows: Sequence[Window]) -> Intervals:
    edges = np.array([(window.start_ns, window.end_ns) for window in windows], dtype=np.int64)
    return Intervals.of(*edges.T)
