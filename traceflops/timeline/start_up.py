"""Start-up: what a process does once, when it uses something for the first time.

    calls of one name    |###############|  |#|  |#|   |#|  |#|      # is the call, in time
                         |usual| start-up |

A first call of its kind loads code, creates a context, or pins a buffer. What it takes beyond the
usual call of its kind is start-up, as is all of a call that loads code, of a compilation and of
the capture of a graph, if what is launched next had not been launched before. While a process
starts up, so is a stretch of which nothing is recorded, if the device is not usually idle so long
before the work that ends it.
Only time in which the device is idle counts: see `DeviceAccount.start_up`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.table.columns import (
    ABSENT,
    BoolArray,
    IntArray,
    codes,
    is_one_of,
    matching,
    names,
    numbers,
)
from traceflops.table.grouping import (
    distinct,
    group_rows,
    groups,
    in_order,
    joint_codes,
    lower_medians,
)
from traceflops.table.nesting import Links, taken
from traceflops.table.patterns import COMPILES, GRAPH_LAUNCH, LAUNCH, LOADS
from traceflops.table.trace import Trace
from traceflops.timeline.intervals import NEVER, Intervals

KINDS: Final = {
    "load": "loading code",
    "compile": "compiling",
    "capture": "capturing graphs",
    "first-launch": "first launches",
    "first-copy": "first copies",
    "first-call": "first calls",
    "hole": "gaps with nothing recorded",
}
"""What start-up is made of, in words; of two at one time the first counts."""
_BEYOND_USUAL: Final = {"first-launch", "first-copy", "first-call"}
"""What is no start-up unless it takes much longer than usual."""

_COPIES: Final = re.compile(r"Mem(cpy|set)|memory_(async_)?copy")
_WAITS: Final = re.compile(r"Synchronize|signal_wait|StreamWait|EventQuery|StreamQuery")
_CAPTURE: Final = re.compile(r"Stream(Begin|End)Capture")
_INSTANTIATE: Final = re.compile(r"GraphInstantiate|GraphExecUpdate|GraphUpload")
_LEAST_NS: Final = 100_000
"""What takes less is no start-up worth telling."""
_LEAST_ALONE_NS: Final = 1_000_000
"""The same for calls that nothing is compared with."""
_LONG_ANYWAY_NS: Final = 50_000_000
"""No call takes so long but those that wait, or a few that set up."""
_TIMES_USUAL, _FIRST, _FEW = 10, 3, 2
"""How many times longer than usual a call is, of the first how many, and how many are too few."""
_NEARLY_ALL: Final = 0.9
_FEW_ACTIVITIES: Final = 8
"""Nothing repeats where a process has fewer."""


class _HostRecords:
    """When calls, operators and functions of the host are recorded, by process."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    @cached_property
    def _tables(self) -> list[tuple[pa.Table, dict[int, IntArray]]]:
        """Each table with the rows of each process."""
        marks = self._trace.marks
        is_work = np.flatnonzero(is_one_of(marks["kind"], "python", "system"))
        owner = numbers(marks["process"])[is_work]
        of_marks = {number: is_work[mine] for number, mine in groups(owner)}
        tables = (self._trace.calls, self._trace.ops)
        return [
            (marks, of_marks),
            *((table, dict(groups(numbers(table["process"])))) for table in tables),
        ]

    def of(self, process: int) -> Intervals:
        """Return when anything of a process is recorded but labels."""
        sets = []
        for table, rows in self._tables:
            mine = rows.get(process, np.empty(0, dtype=np.int64))
            start, dur_ns = (numbers(table[name])[mine] for name in ("start_ns", "dur_ns"))
            sets.append(Intervals.of(start, start + dur_ns))
        return Intervals.empty().union(*sets)


@dataclass(frozen=True)  # without slots, for the cached property
class StartUp:
    """The start-up of one process: disjoint sets of instants by kind.

    `is_once` says that the process does so little on a GPU that nothing of it repeats.
    """

    by_kind: Mapping[str, Intervals]
    is_once: bool
    host: _HostRecords = field(repr=False)
    process: int
    loops_from_ns: int | None

    @cached_property
    def all(self) -> Intervals:
        """All of it."""
        return Intervals.empty().union(*self.by_kind.values())

    @cached_property
    def recorded(self) -> Intervals:
        """When anything of the host is recorded but labels."""
        return self.host.of(self.process)

    def within_gaps(
        self, start_ns: IntArray, end_ns: IntArray, is_odd: BoolArray
    ) -> dict[str, Intervals]:
        """Return the instants of gaps of a device in which the process starts up, by kind.

        `is_odd` says of each gap whether it is much longer than others before the same work.
        """
        gaps = Intervals.of(start_ns, end_ns)
        by_kind = {
            kind: (_mostly_in(gaps, times) if kind in _BEYOND_USUAL else times).intersect(gaps)
            for kind, times in self.by_kind.items()
        }
        known = Intervals.empty().union(*by_kind.values())
        sums_ns = np.cumsum(known.end_ns - known.start_ns)
        if not len(known) or sums_ns[-1] < _LEAST_NS:
            return by_kind
        # What is used late for the first time may be an exception.
        until_ns = known.end_ns[np.searchsorted(sums_ns, _NEARLY_ALL * sums_ns[-1])]
        until_ns = gaps.end_ns[-1] if self.is_once else until_ns
        if self.loops_from_ns is not None:
            until_ns = min(int(until_ns), self.loops_from_ns)
        length = end_ns - start_ns
        # How many gaps are at least half as long: what happens again and again is no start-up.
        alike = len(length) - np.searchsorted(np.sort(length), length / 2)
        is_rare = (alike <= _FEW) | (known.length_within(start_ns, end_ns) > 0)
        some = np.flatnonzero(is_odd & is_rare & (start_ns < until_ns))
        silent = Intervals.of(start_ns[some], end_ns[some])
        silent = silent.subtract(self.recorded.union(known)) if len(some) else silent
        is_long = silent.end_ns - silent.start_ns >= _LEAST_NS
        by_kind["hole"] = Intervals(silent.start_ns[is_long], silent.end_ns[is_long])
        return by_kind


def _mostly_in(gaps: Intervals, times: Intervals) -> Intervals:
    """Return the stretches that lie in gaps by half: others wait for a place in the queue."""
    idle_ns = gaps.length_within(times.start_ns, times.end_ns)
    mine = 2 * idle_ns >= times.end_ns - times.start_ns
    return Intervals(times.start_ns[mine], times.end_ns[mine])


def start_up(trace: Trace, links: Links, loops_from_ns: Mapping[int, int]) -> dict[int, StartUp]:
    """Return the start-up of each process that has some.

    Where a process loops, nothing but graphs is made anew: from `loops_from_ns` on, by process,
    what takes long does so in a step.
    """
    sets: dict[int, dict[str, Intervals]] = {}
    calls, host = _Calls(trace, links), _HostRecords(trace)
    for kind, (process, start_ns, end_ns) in (
        ("load", calls.loads()),
        ("compile", calls.compilations()),
        ("capture", calls.captures()),
        ("first-launch", calls.first_launches()),
        ("first-copy", calls.first_copies()),
        ("first-call", calls.first_calls()),
        ("first-call", calls.set_up()),
    ):
        for number, mine in groups(process):
            by_kind = sets.setdefault(number, {})
            times = Intervals.of(start_ns[mine], end_ns[mine])
            if kind != "capture" and number in loops_from_ns:
                times = times.within(NEVER, loops_from_ns[number])
            times = times.subtract(Intervals.empty().union(*by_kind.values()))
            by_kind[kind] = by_kind.get(kind, Intervals.empty()).union(times)
    found = {
        number: StartUp(by_kind, calls.is_once(number), host, number, loops_from_ns.get(number))
        for number, by_kind in sets.items()
    }
    return {number: own for number, own in found.items() if len(own.all)}


def device_start_up(
    by_process: Mapping[int, StartUp],
    owner: IntArray,
    name: IntArray,
    gaps_ns: tuple[IntArray, IntArray],
) -> dict[str, Intervals]:
    """Return when processes start up while nothing runs on a device, by kind.

    `owner` and `name` are of the work that ends each gap, its process and name; `gaps_ns` are the
    starts and ends of the gaps.
    """
    start_ns, end_ns = gaps_ns
    by_kind, told = dict[str, Intervals](), Intervals.empty()
    for number, mine in groups(owner):
        if number not in by_process:
            continue
        start, end = start_ns[mine], end_ns[mine]
        is_odd = _are_odd(end - start, name[mine])
        for kind, times in by_process[number].within_gaps(start, end, is_odd).items():
            by_kind[kind] = by_kind.get(kind, Intervals.empty()).union(times)
    for kind in KINDS:  # of processes that share the device, one may start up as another does
        if kind in by_kind:
            by_kind[kind], told = by_kind[kind].subtract(told), told.union(by_kind[kind])
    return by_kind


def _are_odd(length_ns: IntArray, name: IntArray) -> BoolArray:
    """Return which gaps are much longer than usual before work of a name, or not to be compared."""
    group, _ = group_rows((name,))
    usual_ns, count = lower_medians(group, length_ns)[group], np.bincount(group)[group]
    is_odd = (length_ns > _TIMES_USUAL * usual_ns) | (count <= _FEW)
    return np.asarray(is_odd & (length_ns >= _LEAST_NS))


_Times = tuple[IntArray, IntArray, IntArray]
"""Process, start and end in ns, per stretch."""


class _Calls:
    """The calls of all processes, and what each launched."""

    def __init__(self, trace: Trace, links: Links) -> None:
        """Read the columns of the calls and their links to activities.

        Per call: `process`, `thread`, `start_ns`, `dur_ns`, `name`, `launches` (whether it launches
        kernels) and `others` (neither that nor of a kind of its own here). Per launched activity:
        `activity` and `call_of_activity`. Per process: `activities_of` (number of activities) and
        `first_graph_ns` (its first graph launch).
        """
        calls = trace.calls
        self.trace, self.name = trace, codes(calls["name"])
        self.process, self.start_ns, self.dur_ns = (
            numbers(calls[name], ABSENT) for name in ("process", "start_ns", "dur_ns")
        )
        # Threads of different processes may have the same number.
        process, thread = (
            np.concatenate([numbers(table[name], ABSENT) for table in (calls, trace.marks)])
            for name in ("process", "thread")
        )
        threads = joint_codes(process, thread)
        self.thread, self.thread_of_mark = np.split(threads, [calls.num_rows])
        owner = numbers(trace.activities["process"])
        self.activities_of = np.bincount(owner, minlength=trace.processes.num_rows)
        self.activity = np.flatnonzero(links.call_of_activity >= 0)
        self.call_of_activity = links.call_of_activity[self.activity]
        self.launches = matching(calls["name"], LAUNCH.match)
        is_kernel = is_one_of(trace.activities["kind"], "kernel")[self.activity]
        self.launches[self.call_of_activity[is_kernel]] = True
        apart = (_COPIES, _WAITS, LOADS, _CAPTURE, _INSTANTIATE)
        is_apart = matching(calls["name"], lambda name: any(kind.search(name) for kind in apart))
        self.others = ~self.launches & ~is_apart
        is_graph = np.flatnonzero(matching(calls["name"], GRAPH_LAUNCH.match))
        self.first_graph_ns = {
            number: int(self.start_ns[is_graph[mine]].min())
            for number, mine in groups(self.process[is_graph])
        }

    def is_once(self, process: int) -> bool:
        """Return whether a process does so little on a GPU that nothing of it repeats."""
        return bool(self.activities_of[process] < _FEW_ACTIVITIES)

    def stretch(self, rows: IntArray, usual_ns: IntArray | int = 0) -> _Times:
        """Return the calls in some rows, from when a usual one would have returned."""
        start_ns = self.start_ns[rows]
        return self.process[rows], start_ns + usual_ns, start_ns + self.dur_ns[rows]

    def uses_first(self, rows: IntArray) -> BoolArray:
        """Return, per call, whether it launched something that the process had not run before."""
        activities, wanted = self.trace.activities, np.isin(self.call_of_activity, rows)
        name, process = codes(activities["name"]), numbers(activities["process"])
        same = self.activity[np.isin(name[self.activity], distinct(name[self.activity[wanted]]))]
        call = self.call_of_activity[np.searchsorted(self.activity, same)]
        order = in_order(self.start_ns[call])
        _, first = group_rows((process[same][order], name[same][order]))
        return np.isin(rows, call[order][first])

    def next_launch(self, thread: IntArray, at_ns: IntArray) -> IntArray:
        """Return, per thread and time, the next call that launches there; -1 for none."""
        following = np.full(len(at_ns), -1)
        launch = np.flatnonzero(self.launches)
        launch = launch[in_order(self.thread[launch], self.start_ns[launch])]
        owner = self.thread[launch]
        for number, rows in groups(thread):
            mine = launch[slice(*np.searchsorted(owner, [number, number + 1]))]
            place = np.searchsorted(self.start_ns[mine], at_ns[rows])
            following[rows] = taken(mine, np.where(place < len(mine), place, -1))
        return following

    def precedes_first_use(self, thread: IntArray, at_ns: IntArray) -> BoolArray:
        """Return, per thread and time, whether what is launched next had not been run before."""
        following = self.next_launch(thread, at_ns)
        return (following < 0) | self.uses_first(following)

    def loads(self) -> _Times:
        """Return the calls that load code which is used for the first time."""
        rows = np.flatnonzero(matching(self.trace.calls["name"], LOADS.match))
        return self.stretch(rows[self.precedes_first_use(self.thread[rows], self.start_ns[rows])])

    def compilations(self) -> _Times:
        """Return the compilations of code which is used for the first time."""
        marks = self.trace.marks
        rows = np.flatnonzero(matching(marks["name"], COMPILES.search))
        process, start_ns, dur_ns = (
            numbers(marks[name], ABSENT)[rows] for name in ("process", "start_ns", "dur_ns")
        )
        end_ns = start_ns + np.maximum(dur_ns, 0)
        mine = self.precedes_first_use(self.thread_of_mark[rows], end_ns)
        return process[mine], start_ns[mine], end_ns[mine]

    def captures(self) -> _Times:
        """Return when graphs were captured and made before the first was launched."""
        calls = self.trace.calls
        edge = np.flatnonzero(matching(calls["name"], _CAPTURE.search))
        edge = edge[in_order(self.thread[edge], self.start_ns[edge])]
        begins = matching(calls["name"], lambda name: "BeginCapture" in name)[edge]
        pairs = np.flatnonzero(
            begins[:-1] & ~begins[1:] & (self.thread[edge[:-1]] == self.thread[edge[1:]])
        )
        made = np.flatnonzero(matching(calls["name"], _INSTANTIATE.search))
        first, last = np.append(edge[pairs], made), np.append(edge[pairs + 1], made)
        process, start_ns, _ = self.stretch(first)
        _, _, end_ns = self.stretch(last)
        before = [
            start < self.first_graph_ns.get(number, start + 1)
            for number, start in zip(process.tolist(), start_ns.tolist(), strict=True)
        ]
        mine = np.flatnonzero(before)
        return process[mine], start_ns[mine], end_ns[mine]

    def first_launches(self) -> _Times:
        """Return what first launches of a kernel or of graphs take more than usual ones."""
        rows, usual_ns, number, _ = self._long_calls(self.launches)
        is_graph = matching(self.trace.calls["name"], GRAPH_LAUNCH.match)[rows]
        is_first = self.uses_first(rows) | (is_graph & (number < _FIRST))
        return self.stretch(rows[is_first], usual_ns[is_first])

    def first_calls(self) -> _Times:
        """Return what the first calls of other names take more than usual ones."""
        rows, usual_ns, number, count = self._long_calls(self.others)
        is_first = (number < _FIRST) & ((count > _FEW) | (self.dur_ns[rows] >= _LEAST_ALONE_NS))
        return self.stretch(rows[is_first], usual_ns[is_first])

    def set_up(self) -> _Times:
        """Return calls of other names that take long where nothing, or hardly any, repeats."""
        rows = np.flatnonzero(self.others & (self.dur_ns >= _LEAST_ALONE_NS))
        is_once = self.activities_of[self.process[rows]] < _FEW_ACTIVITIES
        longest = np.flatnonzero(self.dur_ns[rows] >= _LONG_ANYWAY_NS)
        group, _ = group_rows((self.process[rows[longest]], self.name[rows[longest]]))
        is_once[longest] |= np.bincount(group)[group] <= _FEW
        return self.stretch(rows[is_once])

    def _long_calls(self, fits: BoolArray) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Return the calls that take much longer than usual, of some; per call, what is usual.

        That is the median of its name and process, 0 for a call without another. Then the place of
        the call among these by start, and how many there are.
        """
        named = distinct(self.name[fits & (self.dur_ns >= _LEAST_NS)])
        some = np.flatnonzero(np.isin(self.name, named))
        group, first = group_rows((self.process[some], self.name[some]))
        dur_ns, count = self.dur_ns[some], np.bincount(group, minlength=len(first))
        usual_ns = np.where(count == 1, 0, lower_medians(group, dur_ns))[group]
        by_start = np.lexsort((self.start_ns[some], group))
        number = np.empty(len(some), dtype=np.int64)
        number[by_start] = np.arange(len(some)) - (np.cumsum(count) - count)[group[by_start]]
        is_long = (dur_ns > _TIMES_USUAL * usual_ns) & (dur_ns - usual_ns >= _LEAST_NS)
        rows = np.flatnonzero(fits[some] & is_long)
        return some[rows], usual_ns[rows], number[rows], count[group[rows]]

    def first_copies(self) -> _Times:
        """Return what first copies of a direction take more than later ones of as many bytes.

        Of calls whose copies are not recorded, what they take more than later ones usually do.
        """
        activities, calls = self.trace.activities, self.trace.calls
        copies = self.activity[is_one_of(activities["kind"], "memcpy", "memset")[self.activity]]
        call = self.call_of_activity[np.searchsorted(self.activity, copies)]
        size = np.maximum(numbers(activities["bytes"], 0)[copies], 1)
        unknown = np.flatnonzero(matching(calls["name"], _COPIES.search))
        unknown = unknown[~np.isin(unknown, call)]
        # The kind of a copy: its direction, or the name of its call, after all directions.
        direction = codes(activities["direction"])[copies]
        kind = np.append(direction, len(names(activities["direction"])) + self.name[unknown])
        call, size = np.append(call, unknown), np.append(size, np.full_like(unknown, ABSENT))
        rows, usual_ns = [], []
        group, _ = group_rows((self.process[call], kind))
        for _, mine in groups(group):
            order = mine[in_order(self.start_ns[call[mine]])]
            dur_ns, bytes_ = self.dur_ns[call[order]], size[order]
            for place in range(min(_FIRST, len(order))):
                like = np.sort(dur_ns[place + 1 :][bytes_[place + 1 :] >= bytes_[place]])
                most = (len(like) - 1) // 2 if bytes_[place] == ABSENT else -1
                usual = int(like[most]) if len(like) else 0
                if len(like) and dur_ns[place] > max(_TIMES_USUAL * usual, usual + _LEAST_NS):
                    rows.append(int(call[order[place]]))
                    usual_ns.append(usual)
        return self.stretch(np.array(rows, dtype=np.int64), np.array(usual_ns, dtype=np.int64))
