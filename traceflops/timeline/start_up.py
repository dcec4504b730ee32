"""Start-up: what a process does once, when it uses something for the first time.

    calls of one name    |###############|  |#|  |#|   |#|  |#|      # is the call, in time
                         |usual| start-up |

A first call of its kind loads code, creates a context, or pins a buffer. What it takes beyond the
usual call of its kind is start-up, as is all of a call that loads code, of a compilation, of a long
allocation and of the capture of a graph, if what is launched next had not been launched before. A
later call that takes longer than the first waits or works, unless nothing was launched since the
first, or no kernel has run so far: there the program is still being set up. A gap in which code is
loaded or compiled that is used for the first time is start-up as a whole, but for operators and
functions, if most gaps are much shorter and no more than a few without loading as long. While a
process starts up, so is a stretch of which nothing is recorded, if the device is not usually idle
so long before the work that ends it, nor later without starting up, and what is known takes a part
of it: work of the host leaves as little behind. Of a process of which no host work is recorded,
such a gap is start-up if the work that ends it is the first of many of its name, or if only copies
and fills came before.
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

from traceflops.table.columns import ABSENT, BoolArray, IntArray, is_one_of, numbers
from traceflops.table.grouping import group_rows, groups, lower_medians
from traceflops.table.nesting import Links
from traceflops.table.trace import Trace
from traceflops.timeline.first_calls import (
    COMPILING,
    EXTENSIONS,
    FEW,
    LEAST_NS,
    TIMES_USUAL,
    Calls,
)
from traceflops.timeline.first_ranges import first_operators, first_ranges
from traceflops.timeline.intervals import NEVER, Intervals

KINDS: Final = {
    "load": "loading code",
    "compile": "compiling",
    "capture": "capturing graphs",
    "workers": "loader workers",
    "first-launch": "first launches",
    "first-copy": "first copies",
    "first-call": "first calls",
    "gap": "gaps that load code",
    "hole": "gaps with nothing recorded",
}
"""What start-up is made of, in words; of two at one time the first counts."""
_BEYOND_USUAL: Final = {"first-launch", "first-copy", "first-call"}
"""What is no start-up unless it takes much longer than usual."""
_NEARLY_ALL: Final = 0.9
_TIMES_KNOWN: Final = 3
"""How many times longer than all known start-up a gap without a record may be: others are work."""
_LOADING: Final = ("load", "compile")
GAPS: Final = ("gap", "hole")
"""Kinds that are found in gaps of a device, not on a thread of the host."""


class _HostRecords:
    """When calls, operators and functions of the host are recorded, by process."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    @cached_property
    def _rows(self) -> dict[str, tuple[pa.Table, dict[int, IntArray]]]:
        """By name, each table with the rows of each process."""
        marks = self._trace.marks
        owner = numbers(marks["process"])
        found = {}
        for name, kind in (("functions", "python"), ("system", "system")):
            rows = np.flatnonzero(is_one_of(marks["kind"], kind))
            found[name] = marks, {number: rows[mine] for number, mine in groups(owner[rows])}
        for name in ("calls", "ops"):
            table = self._trace.table(name)
            found[name] = table, dict(groups(numbers(table["process"])))
        return found

    def of(self, process: int, *named: str) -> Intervals:
        """Return when anything of a process is recorded in the tables of some names."""
        sets = []
        for table, rows in map(self._rows.__getitem__, named):
            mine = rows.get(process, np.empty(0, dtype=np.int64))
            start, dur_ns = (numbers(table[name])[mine] for name in ("start_ns", "dur_ns"))
            sets.append(Intervals.of(start, start + dur_ns))
        return Intervals.empty().union(*sets)


class StartUp(Struct, frozen=True, dict=True):
    """The start-up of one process: disjoint sets of instants by kind.

    `by_thread` has the same by thread. `is_once` says that the process does so little on a GPU that
    nothing of it repeats.
    """

    by_kind: Mapping[str, Intervals]
    by_thread: Mapping[int, Intervals]
    is_once: bool
    host: _HostRecords
    process: int
    loops_from_ns: int | None

    @cached_property
    def all(self) -> Intervals:
        """All of it."""
        return Intervals.empty().union(*self.by_kind.values())

    @cached_property
    def recorded(self) -> Intervals:
        """When anything of the host is recorded but labels."""
        return self.host.of(self.process, "functions", "ops", "system", "calls")

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
        if not len(known) or sums_ns[-1] < LEAST_NS:
            return by_kind
        # What is used late for the first time may be an exception.
        until_ns = known.end_ns[np.searchsorted(sums_ns, _NEARLY_ALL * sums_ns[-1])]
        until_ns = gaps.end_ns[-1] if self.is_once else until_ns
        loops_from_ns = gaps.end_ns[-1] if self.loops_from_ns is None else self.loops_from_ns
        until_ns = min(int(until_ns), loops_from_ns)
        # What happens again and again is no start-up, while starting up only if it does so later.
        length, known_ns = end_ns - start_ns, known.length_within(start_ns, end_ns)
        later = _as_long(length[known_ns == 0], length - known_ns)
        is_rare = np.where(known_ns > 0, later, _as_long(length, length)) <= FEW
        loads = self._load_code(by_kind, start_ns, end_ns) & is_rare & (start_ns < loops_from_ns)
        for kind, some in (("gap", loads), ("hole", is_odd & is_rare & (start_ns < until_ns))):
            times = Intervals.of(start_ns[some], end_ns[some]).subtract(known)
            if some.any():
                told = self.host.of(self.process, "functions", "ops")
                times = times.subtract(told if kind == "gap" else self.recorded)
            lasts_ns = times.end_ns - times.start_ns
            fits = lasts_ns >= LEAST_NS
            if kind == "hole":
                fits &= lasts_ns <= _TIMES_KNOWN * sums_ns[-1]
            by_kind[kind] = Intervals(times.start_ns[fits], times.end_ns[fits])
            known = known.union(by_kind[kind])
        return by_kind

    def _load_code(
        self, by_kind: Mapping[str, Intervals], start_ns: IntArray, end_ns: IntArray
    ) -> BoolArray:
        """Return in which gaps code is loaded or compiled, where most are much shorter."""
        none, length = Intervals.empty(), end_ns - start_ns
        loading = none.union(*(by_kind.get(kind, none) for kind in _LOADING))
        loads = loading.length_within(start_ns, end_ns) > 0
        if 2 * loads.sum() >= len(loads):
            return np.zeros_like(loads)
        return np.asarray(loads & (length > TIMES_USUAL * np.median(length[~loads])))


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
    threads: defaultdict[int, dict[int, Intervals]] = defaultdict(dict)
    calls, host = Calls(trace, links), _HostRecords(trace)
    for told, (process, thread, start_ns, end_ns) in (
        ("load", calls.loads()),
        ("load", calls.functions(EXTENSIONS)),
        ("compile", calls.functions(COMPILING)),
        ("capture", calls.captures()),
        ("workers", calls.workers()),
        ("first-launch", calls.first_launches()),
        ("first-copy", calls.first_copies()),
        ("first-call", calls.first_calls()),
        ("first-call", calls.frees()),
        ("first-call", calls.allocations()),
        ("first-call", calls.set_up()),
        ("first-op", first_operators(calls)),
        ("first-op", first_ranges(calls)),
    ):
        kind = "first-call" if told == "first-op" else told
        for number, mine in groups(process):
            by_kind = sets.setdefault(number, {})
            if told == "first-op":  # what its calls explain is told by them
                known = Intervals.empty().union(*by_kind.values())
                inside_ns = known.length_within(start_ns[mine], end_ns[mine])
                mine = mine[2 * inside_ns < (end_ns - start_ns)[mine]]
            times = Intervals.of(start_ns[mine], end_ns[mine])
            if kind != "capture" and number in loops_from_ns:
                times = times.within(NEVER, loops_from_ns[number])
            times = times.subtract(Intervals.empty().union(*by_kind.values()))
            by_kind[kind] = by_kind.get(kind, Intervals.empty()).union(times)
            for own, rows in groups(thread[mine]):
                of_thread = Intervals.of(start_ns[mine[rows]], end_ns[mine[rows]]).intersect(times)
                before = threads[number].get(own, Intervals.empty())
                threads[number][own] = before.union(of_thread)
    found = {
        number: StartUp(
            by_kind,
            threads[number],
            calls.is_once(number),
            host,
            number,
            loops_from_ns.get(number),
        )
        for number, by_kind in sets.items()
    }
    return {number: own for number, own in found.items() if len(own.all)}


def _as_long(some_ns: IntArray, length_ns: IntArray) -> IntArray:
    """Return how many of some lengths are at least half of each length."""
    return len(some_ns) - np.searchsorted(np.sort(some_ns), length_ns / 2)


def unseen_processes(trace: Trace) -> BoolArray:
    """Return, per process, whether nothing that its host does is recorded but that it launches."""
    is_unseen = np.ones(trace.processes.num_rows, dtype=np.bool_)
    for name in ("calls", "ops", "marks"):
        table = trace.table(name)
        lasts = numbers(table["dur_ns"], ABSENT) != 0
        is_unseen[numbers(table["process"], 0)[lasts]] = False
    return is_unseen


def device_start_up(
    by_process: Mapping[int, StartUp],
    is_unseen: BoolArray,
    owner: IntArray,
    name: IntArray,
    gaps_ns: tuple[IntArray, IntArray],
    first_kernel_ns: int = NEVER,
) -> dict[str, Intervals]:
    """Return when processes start up while nothing runs on a device, by kind.

    `is_unseen` is per process. `owner` and `name` are of the work that ends each gap, its process
    and name; `gaps_ns` are the starts and ends of the gaps. Until `first_kernel_ns` the device only
    copies and fills.
    """
    start_ns, end_ns = gaps_ns
    by_kind, told = dict[str, Intervals](), Intervals.empty()
    for number, mine in groups(owner):
        start, end = start_ns[mine], end_ns[mine]
        is_odd, found = _are_odd(end - start, name[mine]), dict[str, Intervals]()
        if number in by_process:
            found = by_process[number].within_gaps(start, end, is_odd)
        elif is_unseen[number]:
            once = is_odd & _are_first(name[mine]) & (_as_long(end - start, end - start) <= FEW)
            once |= (end <= first_kernel_ns) & (end - start >= LEAST_NS)
            found = {"hole": Intervals.of(start[once], end[once])}
        for kind, times in found.items():
            by_kind[kind] = by_kind.get(kind, Intervals.empty()).union(times)
    for kind in KINDS:  # of processes that share the device, one may start up as another does
        if kind in by_kind:
            by_kind[kind], told = by_kind[kind].subtract(told), told.union(by_kind[kind])
    return by_kind


def _are_odd(length_ns: IntArray, name: IntArray) -> BoolArray:
    """Return which gaps are much longer than usual before work of a name, or not to be compared."""
    group, _ = group_rows((name,))
    usual_ns, count = lower_medians(group, length_ns)[group], np.bincount(group)[group]
    is_odd = (length_ns > TIMES_USUAL * usual_ns) | (count <= FEW)
    return np.asarray(is_odd & (length_ns >= LEAST_NS))


def _are_first(name: IntArray) -> BoolArray:
    """Return which gaps are the first before the work of a name that ends more than a few."""
    group, first = group_rows((name,))
    is_first = np.zeros(len(name), dtype=np.bool_)
    is_first[first] = np.bincount(group) > FEW
    return is_first
