"""Start-up: what a process does once, when it uses something for the first time.

    calls of one name    |###############|  |#|  |#|   |#|  |#|      # is the call, in time
                         |usual| start-up |

A first call of its kind loads code, creates a context, or pins a buffer. Start-up is:

* what a first call takes beyond the usual call of its kind. Launches of something new do not tell
  what is usual: if each is new, all of a long one is start-up. A later call that takes longer than
  the first counts only if nothing was launched since, or no kernel has run yet: else it may wait;
* all of a call that loads code or makes a stream, of a compilation, of a long allocation and of the
  capture of a graph, if what is launched next has not been launched before; of a call that loads
  code also if the process has unloaded none so far;
* all of a range in which NCCL or RCCL makes or frees a communicator;
* what an operator takes beyond usual that looks up many functions: it chooses a kernel;
* "gap": the time without operators and functions in a gap in which code is loaded or compiled for
  its first use, if the others, a quarter of all or more, are much shorter, at most a few aside;
* "hole": while the process starts up, time in a gap of which nothing is recorded, if the device is
  not usually idle so long before such work, and at most a few gaps without start-up are as long.
  It must not be much longer than all known start-up. If no host work of the process is recorded,
  the work that ends the gap must be the first of many of its name, or only copies and fills came
  before. If only these came before and most of a gap is of holes, files that are read in it count.

Only time in which the device is idle counts: see `DeviceAccount.start_up`. On a CPU an operator is
idle while a call in it starts up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from traceflops.table.arrays import BoolArray, IntArray
from traceflops.table.columns import codes, is_one_of, matching, numbers, span_columns
from traceflops.table.grouping import distinct, group_rows, groups, in_order, lower_medians
from traceflops.table.links import Links
from traceflops.table.nesting import OpTree
from traceflops.table.trace import Trace
from traceflops.timeline.first_calls import (
    COMPILING,
    COPIES,
    EXTENSIONS,
    FEW,
    FEW_ACTIVITIES,
    LEAST_ALONE_NS,
    LOOKS_UP,
    WAITS,
    Calls,
    Times,
    stretch,
    times_of,
)
from traceflops.timeline.intervals import ENDLESS, NEVER, Intervals
from traceflops.timeline.long_calls import LEAST_NS, TIMES_USUAL, longer

KINDS: Final = {
    "load": "loading code",
    "compile": "compiling",
    "capture": "capturing graphs",
    "workers": "loader workers",
    "communicator": "making communicators",
    "children": "child processes",
    "first-launch": "first launches",
    "first-copy": "first copies",
    "first-call": "first calls",
    "gap": "gaps that load code",
    "hole": "gaps with nothing recorded",
}
"""The kinds of start-up, in words; time of several kinds counts for the first of them."""
_BEYOND_USUAL: Final = {"first-launch", "first-copy", "first-call"}
"""Kinds of which only the time beyond usual is start-up."""
_NEARLY_ALL: Final = 0.9
_TIMES_KNOWN: Final = 3
"""A hole may be so many times longer than all known start-up: a longer one is work."""
_LOADING: Final = ("load", "compile")
_MANY: Final = 32
"""An operator that looks up so many functions chooses a kernel; to launch one takes a few."""
GAPS: Final = ("gap", "hole")
"""Kinds that are found in gaps of a device, not on a thread of the host."""


class _HostRecords:
    """When calls, operators and functions of the host are recorded, by process."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    @cached_property
    def _rows(self) -> dict[str, tuple[pa.Table, dict[int, IntArray]]]:
        """By name of the records, their table, and their rows by process."""
        marks = self._trace.marks
        process = numbers(marks["process"])
        rows_of = {}
        for name, kind in (("functions", "python"), ("system", "system")):
            rows = np.flatnonzero(is_one_of(marks["kind"], kind))
            by_process = groups(process[rows])
            rows_of[name] = marks, {number: rows[index] for number, index in by_process}
        for name in ("calls", "ops"):
            table = self._trace.table(name)
            rows_of[name] = table, dict(groups(numbers(table["process"])))
        return rows_of

    def of(self, process: int, *named: str) -> Intervals:
        """Return when anything of a process is recorded: functions, system, calls or ops."""
        sets = []
        for table, by_process in map(self._rows.__getitem__, named):
            rows = by_process.get(process, np.empty(0, dtype=np.int64))
            sets.append(Intervals.of(*span_columns(table, rows)))
        return Intervals.empty().union(*sets)


class StartUp(Struct, frozen=True, dict=True):
    """The start-up of one process: disjoint sets of instants by kind.

    `by_thread` has the same by thread. `is_once`: the process does so little on a GPU that nothing
    repeats. From `loops_from_ns` on it runs its loop and no longer starts up; ENDLESS if unknown.
    """

    by_kind: Mapping[str, Intervals]
    by_thread: Mapping[int, Intervals]
    is_once: bool
    host: _HostRecords
    process: int
    loops_from_ns: int

    @cached_property
    def all(self) -> Intervals:
        """The start-up of all kinds."""
        return Intervals.empty().union(*self.by_kind.values())

    def within_gaps(
        self, start_ns: IntArray, end_ns: IntArray, is_odd: BoolArray, first_kernel_ns: int
    ) -> dict[str, Intervals]:
        """Return the instants of gaps of a device in which the process starts up, by kind.

        The head of this file has the rules, `device_start_up` says what `is_odd` (per gap) and
        `first_kernel_ns` are.
        """
        gaps = Intervals.of(start_ns, end_ns)
        by_kind = {}
        for kind, times in self.by_kind.items():
            if kind in _BEYOND_USUAL:  # at least half in gaps: calls beside work wait for the queue
                idle_ns = gaps.length_within(times.start_ns, times.end_ns)
                is_mostly = 2 * idle_ns >= times.end_ns - times.start_ns
                times = Intervals(times.start_ns[is_mostly], times.end_ns[is_mostly])
            by_kind[kind] = times.intersect(gaps)
        known = Intervals.empty().union(*by_kind.values())
        if known.length_ns < LEAST_NS:
            return by_kind  # without known start-up, gaps are not taken for it either
        # A gap as long as many others is no start-up. If known start-up takes a part of the gap,
        # only the rest is compared, and only with gaps without start-up.
        length = end_ns - start_ns
        known_ns = known.length_within(start_ns, end_ns)
        as_long_as_rest = count_at_least_half(length[known_ns == 0], length - known_ns)
        as_long = np.where(known_ns > 0, as_long_as_rest, count_at_least_half(length, length))
        is_rare = as_long <= FEW
        # Gaps that load or compile code are much longer than others, which are a quarter or more.
        loading = Intervals.empty().union(*(by_kind[kind] for kind in _LOADING if kind in by_kind))
        loads = loading.length_within(start_ns, end_ns) > 0
        is_loading = np.zeros_like(loads)
        if 4 * loads.sum() <= 3 * len(loads):
            is_loading = loads & (length > TIMES_USUAL * np.median(length[~loads]))
        is_loading &= is_rare & (start_ns < self.loops_from_ns)
        loading = Intervals.of(start_ns[is_loading], end_ns[is_loading]).subtract(known)
        by_kind["gap"] = self._unrecorded(loading, ("functions", "ops"), ENDLESS)
        is_hole = is_odd & is_rare & (start_ns < self._holes_until_ns(known))
        holes = Intervals.of(start_ns[is_hole], end_ns[is_hole])
        holes = holes.subtract(known.union(by_kind["gap"]))
        tables = ("functions", "ops", "system", "calls")
        unrecorded = self._unrecorded(holes, tables, _TIMES_KNOWN * known.length_ns)
        # Before the first kernel, gaps that are mostly holes read code and data: all is start-up.
        hole_ns = unrecorded.length_within(start_ns, end_ns)
        is_early = is_hole & (end_ns <= first_kernel_ns) & (2 * hole_ns >= length)
        early = holes.intersect(Intervals.of(start_ns[is_early], end_ns[is_early]))
        early = self._unrecorded(early, ("functions", "ops", "calls"), ENDLESS)
        by_kind["hole"] = unrecorded.union(early)
        return by_kind

    def _holes_until_ns(self, known: Intervals) -> int:
        """Return until when holes may begin: the loop begins, or known start-up is nearly over."""
        if self.is_once:  # it does everything once, and may start up to its end
            return self.loops_from_ns
        sums_ns = np.cumsum(known.end_ns - known.start_ns)
        nearly_over_ns = int(known.end_ns[np.searchsorted(sums_ns, _NEARLY_ALL * sums_ns[-1])])
        return min(nearly_over_ns, self.loops_from_ns)

    def _unrecorded(self, times: Intervals, tables: tuple[str, ...], longest_ns: int) -> Intervals:
        """Return the parts of LEAST_NS to `longest_ns` of which these host records have nothing."""
        if not len(times):
            return times
        parts = times.subtract(self.host.of(self.process, *tables))
        length_ns = parts.end_ns - parts.start_ns
        fits = (length_ns >= LEAST_NS) & (length_ns <= longest_ns)
        return Intervals(parts.start_ns[fits], parts.end_ns[fits])


def start_up(trace: Trace, links: Links, loops_from_ns: Mapping[int, int]) -> dict[int, StartUp]:
    """Return the start-up of each process that has some.

    `loops_from_ns` is, by process, when its loop begins: from then on what takes long is a part of
    a step, except for the capture of graphs. Time of several kinds counts for the first of them.
    """
    sets: dict[int, dict[str, Intervals]] = {}  # by process and kind
    threads: dict[int, defaultdict[int, Intervals]] = {}  # by process and thread
    calls, host = Calls(trace, links), _HostRecords(trace)
    for source, (process, thread, start_ns, end_ns) in (
        ("load", calls.loads()),
        ("load", calls.functions(EXTENSIONS)),
        ("compile", calls.functions(COMPILING)),
        ("capture", calls.captures()),
        ("workers", calls.workers()),
        ("communicator", calls.communicators()),
        ("children", calls.children()),
        ("first-launch", calls.first_launches()),
        ("first-copy", calls.first_copies()),
        ("first-call", calls.first_calls()),
        ("first-call", calls.frees()),
        ("first-call", calls.allocations()),
        ("first-call", calls.set_up()),
        ("first-call", calls.streams()),
        ("first-call", choosing_operators(calls)),
        ("first-op", first_operators(calls)),
        ("first-op", first_ranges(calls)),
    ):
        kind = "first-call" if source == "first-op" else source
        for number, rows in groups(process):
            by_kind = sets.setdefault(number, {})
            by_thread = threads.setdefault(number, defaultdict(Intervals.empty))
            known = Intervals.empty().union(*by_kind.values())
            if source == "first-op":  # a short rest beside known start-up is not worth counting
                known_ns = known.length_within(start_ns[rows], end_ns[rows])
                rows = rows[(end_ns - start_ns)[rows] - known_ns >= LEAST_NS]
            times = Intervals.of(start_ns[rows], end_ns[rows])
            if kind != "capture":
                times = times.within(NEVER, loops_from_ns.get(number, ENDLESS))
            times = times.subtract(known)
            by_kind[kind] = by_kind.get(kind, Intervals.empty()).union(times)
            for tid, members in groups(thread[rows]):
                own = rows[members]
                of_thread = Intervals.of(start_ns[own], end_ns[own]).intersect(times)
                by_thread[tid] = by_thread[tid].union(of_thread)
    start_ups = {}
    for number, by_kind in sets.items():
        is_once = bool(calls.activities_of[number] < FEW_ACTIVITIES)
        loop_ns = loops_from_ns.get(number, ENDLESS)
        start_ups[number] = StartUp(by_kind, threads[number], is_once, host, number, loop_ns)
    return {number: own for number, own in start_ups.items() if len(own.all)}


def count_at_least_half(some_ns: IntArray, length_ns: IntArray) -> IntArray:
    """Return, per length, how many of `some_ns` are at least half as long."""
    return len(some_ns) - np.searchsorted(np.sort(some_ns), length_ns / 2)


def first_operators(calls: Calls) -> Times:
    """Return the time that first operators take beyond usual, in processes that launch GPU work.

    These are the first operators of their name, and those that launch a kernel for the first time,
    for which usual is the median of all that launch. Operators that spend half of that time in
    calls that launch, copy or wait are left out: these calls are judged by themselves.
    """
    ops, activities = calls.trace.ops, calls.trace.activities
    process, thread, start_ns, dur_ns = times_of(ops)
    launching = distinct(numbers(activities["process"])[calls.activity])
    fits = np.isin(process, launching) & (dur_ns >= LEAST_ALONE_NS)
    if not fits.any():
        return process[:0], thread[:0], start_ns[:0], dur_ns[:0]
    # The first operators of a name, then others that launch for the first time.
    long = longer(process, codes(ops["name"]), start_ns, dur_ns, fits)
    is_first = (long.calls > FEW) & (long.number == 0)
    launcher, launcher_usual_ns, launches_first = _long_to_launch(calls, process, dur_ns, fits)
    is_new = launches_first & ~np.isin(launcher, long.row[is_first])
    row = np.append(long.row[is_first], launcher[is_new])
    usual_ns = np.append(long.usual_ns[is_first], launcher_usual_ns[is_new])
    begin_ns, end_ns = start_ns[row] + usual_ns, start_ns[row] + dur_ns[row]
    # Without those that spend half of this time in calls that are judged by themselves.
    is_kept = np.zeros(len(row), dtype=np.bool_)
    called = calls.trace.calls
    waits = matching(called["name"], lambda name: COPIES.search(name) or WAITS.search(name))
    judged = np.flatnonzero(calls.launches | waits)
    judged_of = {number: judged[rows] for number, rows in groups(calls.process[judged])}
    for number, of_process in groups(process[row]):
        in_calls = Intervals.of(*span_columns(called, judged_of.get(number, judged[:0])))
        inside_ns = in_calls.length_within(begin_ns[of_process], end_ns[of_process])
        is_kept[of_process] = 2 * inside_ns < (end_ns - begin_ns)[of_process]
    return stretch(ops, row[is_kept], usual_ns[is_kept])


def choosing_operators(calls: Calls) -> Times:
    """Return the time beyond usual of operators that look up many functions.

    Libraries do so to choose a kernel for new shapes: only the first operator of its shapes counts.
    """
    process, _, start_ns, dur_ns = times_of(calls.trace.ops)
    op_of_call = calls.links.op_of_call
    looks_up = matching(calls.trace.calls["name"], LOOKS_UP.search) & (op_of_call >= 0)
    chooses = np.bincount(op_of_call[looks_up], minlength=len(dur_ns)) >= _MANY
    fits = chooses & (dur_ns >= LEAST_ALONE_NS)
    row, usual_ns, _ = _long_to_launch(calls, process, dur_ns, fits)
    order = in_order(start_ns[row])
    row, usual_ns = row[order], usual_ns[order]
    name, shape = (codes(calls.trace.ops[column])[row] for column in ("name", "input_dims"))
    _, first = group_rows((process[row], name, shape))
    is_new = shape < 0  # unknown shapes may be new
    is_new[first] = True
    return stretch(calls.trace.ops, row[is_new], usual_ns[is_new])


def _long_to_launch(
    calls: Calls, process: IntArray, dur_ns: IntArray, fits: BoolArray
) -> tuple[IntArray, IntArray, BoolArray]:
    """Return operators that launch kernels and take much longer than usual.

    Per such operator: its row, the usual ns (the median of all that launch in its process), and
    whether it launches something for the first time. Operators that contain others of LEAST_NS are
    left out: they may take long for these. `process`, `dur_ns` and `fits` (operators to look at)
    are per row.
    """
    launch = np.flatnonzero(calls.launches & (calls.links.op_of_call >= 0))
    launcher, first = group_rows((calls.links.op_of_call[launch],))
    ops = calls.links.op_of_call[launch][first]
    owner, _ = group_rows((process[ops],))
    usual_ns = lower_medians(owner, dur_ns[ops])[owner]
    is_long = fits[ops] & (dur_ns[ops] > TIMES_USUAL * usual_ns)
    is_first = np.zeros_like(is_long)
    if is_long.any():  # the checks below are slower
        is_long &= OpTree.of(calls.trace.ops).below(dur_ns >= LEAST_NS)[ops] == 0
        is_first = np.bincount(launcher, weights=calls.uses_first(launch)) > 0
    return ops[is_long], usual_ns[is_long], is_first[is_long]


def first_ranges(calls: Calls) -> Times:
    """Return the time that the first range of a name takes beyond usual, if no other is so long."""
    marks = calls.trace.marks
    process, _, start_ns, dur_ns = times_of(marks)
    name, is_range = codes(marks["name"]), is_one_of(marks["kind"], "annotation")
    long = longer(process, name, start_ns, dur_ns, is_range & (dur_ns >= LEAST_ALONE_NS))
    is_first = (long.calls > FEW) & (long.number == 0)
    row, usual_ns = long.row[is_first], long.usual_ns[is_first]
    # Sorted by group and duration, the second from the end of a group is its second longest range.
    # Durations [1 2 9 | 3 4 7]: group_end [3 6], the second longest 2 and 4.
    same = np.flatnonzero(np.isin(name, distinct(name[row])))
    group, _ = group_rows((process[same], name[same]))
    order = np.lexsort((dur_ns[same], group))
    group_end = np.cumsum(np.bincount(group))
    second_ns = dur_ns[same][order][group_end - 2][group]
    is_alone = dur_ns[row] > TIMES_USUAL * second_ns[np.searchsorted(same, row)]
    return stretch(marks, row[is_alone], usual_ns[is_alone])
