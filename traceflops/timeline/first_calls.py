"""Calls in which a process does something for the first time; `start_up` adds up their time."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.table import grouping
from traceflops.table.arrays import ABSENT, BoolArray, IntArray
from traceflops.table.columns import (
    codes,
    is_one_of,
    matching,
    names,
    numbers,
    span_columns,
    thread_columns,
)
from traceflops.table.grouping import distinct, group_rows, groups, in_order
from traceflops.table.links import Links
from traceflops.table.nesting import taken
from traceflops.table.patterns import ALLOCATES, COMPILES, FREES, GRAPH_LAUNCH, LOADS, started
from traceflops.table.trace import Trace
from traceflops.timeline.intervals import ENDLESS
from traceflops.timeline.long_calls import LEAST_NS, TIMES_USUAL, longer

COPIES: Final = re.compile(r"Mem(cpy|set)|memory_(async_)?copy")
WAITS: Final = re.compile(r"Synchronize|signal_wait|StreamWait|EventQuery|StreamQuery")
LOOKS_UP: Final = re.compile(r"Func(tion)?GetAttribute|(Module|Library)Get(Function|Kernel)")
EXTENSIONS: Final = re.compile(
    r"(^|/)torch/utils/cpp_extension\.py\(\d+\): _?(load|load_inline|jit_compile)$"
)
"""Functions that load code of an extension, and build it if need be."""
COMPILING: Final = re.compile(
    rf"{COMPILES.pattern}|^[\w:]*(NVRTC|nvrtc|[Cc]ompile)([A-Z]\w*)?$", re.ASCII
)
"""Functions that compile, also ranges with such names: `Fuser::compileKernel`."""
_CHILD_ENDS: Final = re.compile(r"wait(pid|id|3|4)?$")
_CHILD_WRITES: Final = re.compile(r"read$|p?poll$|p?select$|epoll_p?wait$")
"""System calls that wait for a child process to end, and those that wait for its output."""
_MAKES_COMMUNICATOR: Final = re.compile(r"[nr]cclComm(Init|Split|Finalize|Destroy|Abort)")
_UNLOADS: Final = re.compile(r"(cu|hip)(Module|Library)Unload")
_CAPTURE: Final = re.compile(r"Stream(Begin|End)Capture")
_INSTANTIATE: Final = re.compile(r"GraphInstantiate|GraphExecUpdate|GraphUpload")
_STARTS_WORKER: Final = re.compile(r"(^|/)multiprocessing/process\.py\(\d+\): start$")
_NEXT_BATCH: Final = re.compile(r"(^|/)torch/utils/data/dataloader\.py\(\d+\): _next_data$")
_STOPS_WORKERS: Final = re.compile(
    r"(^|/)torch/utils/data/dataloader\.py\(\d+\): _shutdown_workers$"
)
MAKES_STREAMS: Final = re.compile(r"(cuda|cu|hip)StreamCreate")
LEAST_ALONE_NS: Final = 1_000_000
"""The same for calls without others to compare with."""
_FIRST, FEW = 3, 2
"""So many calls are first ones; so few tell no usual."""
FEW_ACTIVITIES: Final = 8  # nothing repeats where a process has fewer on GPUs
Times = tuple[IntArray, IntArray, IntArray, IntArray]
"""Process, thread, start and end in ns of some times, such as calls."""


def times_of(table: pa.Table) -> Times:
    """Return process, thread, start and duration in ns per row of ops or marks, ABSENT for null."""
    start_ns, dur_ns = numbers(table["start_ns"], ABSENT), numbers(table["dur_ns"], ABSENT)
    return *thread_columns(table), start_ns, dur_ns


def stretch(table: pa.Table, rows: IntArray, usual_ns: IntArray | int = 0) -> Times:
    """Return the time of some calls, ops or marks beyond their usual duration."""
    start_ns, end_ns = span_columns(table, rows)
    return *thread_columns(table, rows), start_ns + usual_ns, end_ns


class Calls:
    """The calls of all processes, what each launched, and which of them are start-up."""

    def __init__(self, trace: Trace, links: Links) -> None:
        """Read the columns of the calls and their links to activities.

        Per call: `process`, `thread` (a number of its own in each process), `start_ns`, `dur_ns`,
        `name` (a number, another one for launches that failed), `launches` (it launched kernels),
        `replays` (it launched a graph) and `others` (it did not launch, copy, wait, load code, or
        make a graph). Per launched activity: `activity`, its row, and `call_of_activity`. Per
        process: `activities_of`, the number of activities, and `first_graph_ns`, the start of its
        first graph launch, ENDLESS without one.
        """
        calls = trace.calls
        self.trace, self.links = trace, links
        self.name = 2 * codes(calls["name"]) + started(calls, failed=True)
        self.process, self.start_ns, self.dur_ns = (
            numbers(calls[name], ABSENT) for name in ("process", "start_ns", "dur_ns")
        )
        self.thread, self.thread_of_mark = grouping.shared_codes(
            thread_columns(calls), thread_columns(trace.marks)
        )
        owner = numbers(trace.activities["process"])
        self.activities_of = np.bincount(owner, minlength=trace.processes.num_rows)
        self.activity = np.flatnonzero(links.call_of_activity >= 0)
        self.call_of_activity = links.call_of_activity[self.activity]
        self.launches = started(calls)
        is_kernel = is_one_of(trace.activities["kind"], "kernel")[self.activity]
        self.launches[self.call_of_activity[is_kernel]] = True
        own_kinds = (COPIES, WAITS, LOADS, _CAPTURE, _INSTANTIATE)
        is_own = matching(calls["name"], lambda name: any(kind.search(name) for kind in own_kinds))
        self.others = ~self.launches & ~is_own
        self.replays = started(calls, GRAPH_LAUNCH)
        graph_launch = np.flatnonzero(self.replays)
        self.first_graph_ns = np.full(trace.processes.num_rows, ENDLESS, dtype=np.int64)
        np.minimum.at(self.first_graph_ns, self.process[graph_launch], self.start_ns[graph_launch])

    def uses_first(self, rows: IntArray) -> BoolArray:
        """Return, per row of calls, whether it launched a name that is new to its process."""
        activities, is_wanted = self.trace.activities, np.isin(self.call_of_activity, rows)
        name = codes(activities["name"])[self.activity]
        # The calls of all activities with names that these calls launched, in order of time: the
        # first of each process and name is the one that launched it first.
        same = np.flatnonzero(np.isin(name, distinct(name[is_wanted])))
        same = same[in_order(self.start_ns[self.call_of_activity[same]])]
        process = numbers(activities["process"])[self.activity[same]]
        _, first = group_rows((process, name[same]))
        return np.isin(rows, self.call_of_activity[same[first]])

    def next_launch(self, thread: IntArray, at_ns: IntArray) -> IntArray:
        """Return, per thread and time, the row of the next launching call there, or -1."""
        following = np.full(len(at_ns), -1)
        launch = np.flatnonzero(self.launches)
        launch = launch[in_order(self.thread[launch], self.start_ns[launch])]
        owner = self.thread[launch]
        for number, rows in groups(thread):
            begin, stop = np.searchsorted(owner, [number, number + 1])
            in_thread = launch[begin:stop]
            index = np.searchsorted(self.start_ns[in_thread], at_ns[rows])
            following[rows] = taken(in_thread, np.where(index < len(in_thread), index, -1))
        return following

    def precedes_first_use(self, thread: IntArray, at_ns: IntArray) -> BoolArray:
        """Return, per thread and time, whether the next launch there runs something new."""
        following = self.next_launch(thread, at_ns)
        return (following < 0) | self.uses_first(following)

    def loads(self) -> Times:
        """Return the calls that load code which is used for the first time right after.

        That is so if the next launch of the thread is the first of its name in the process, or if
        there is such a launch in the process before it loads code again after that next launch. As
        long as a process unloads none, all that it loads is new: variants of kernels share a name.
        """
        rows = np.flatnonzero(matching(self.trace.calls["name"], LOADS.match))
        rows, at_ns = rows[in_order(self.start_ns[rows])], np.sort(self.start_ns[rows])
        following = self.next_launch(self.thread[rows], at_ns)
        launched_ns = np.where(following < 0, ENDLESS, self.start_ns[following])
        is_first_use = self.precedes_first_use(self.thread[rows], at_ns)
        unloads = np.flatnonzero(matching(self.trace.calls["name"], _UNLOADS.match))
        for number, of_process in groups(self.process[rows]):
            # Loads at [10 20 50], the next launch of the thread at 30: that at 10 counts until 50.
            index = np.searchsorted(at_ns[of_process], launched_ns[of_process])
            until_ns = np.append(at_ns[of_process], ENDLESS)[index]
            # The times at which the process launches something for the first time.
            launched = np.flatnonzero(self.process[self.call_of_activity] == number)
            start_ns = self.start_ns[self.call_of_activity[launched]]
            order = np.argsort(start_ns, kind="stable")
            name = codes(self.trace.activities["name"])[self.activity[launched]][order]
            _, first = group_rows((name,))
            first_ns = np.sort(start_ns[order][first])
            before, after = np.searchsorted(first_ns, np.stack([at_ns[of_process], until_ns]))
            is_first_use[of_process] |= after > before
            unloads_ns = self.start_ns[unloads[self.process[unloads] == number]]
            is_first_use[of_process] |= at_ns[of_process] < unloads_ns.min(initial=ENDLESS)
        return stretch(self.trace.calls, rows[is_first_use])

    def functions(self, name: re.Pattern[str]) -> Times:
        """Return functions and ranges of a name whose thread launches something new next."""
        rows = np.flatnonzero(matching(self.trace.marks["name"], name.search))
        return self._before_first_use(rows)

    def children(self) -> Times:
        """Return the waits for child processes whose thread launches something new next.

        They include waits for the output of a child, within LEAST_ALONE_NS of a wait for its end.
        """
        marks = self.trace.marks
        _, _, start_ns, dur_ns = times_of(marks)
        is_system = is_one_of(marks["kind"], "system")
        awaits_end = matching(marks["name"], _CHILD_ENDS.match) & is_system
        awaits_output = matching(marks["name"], _CHILD_WRITES.match) & is_system
        rows = np.flatnonzero(awaits_end | awaits_output)
        rows = rows[in_order(self.thread_of_mark[rows], start_ns[rows])]
        # A run of waits that follow each other closely must contain one for an end. A new run
        # begins at [0 0 1 0] of the waits after the first: run [0 0 0 1 1].
        thread, end_ns = self.thread_of_mark[rows], (start_ns + dur_ns)[rows]
        is_apart = start_ns[rows][1:] - end_ns[:-1] > LEAST_ALONE_NS
        run = np.cumsum(np.append(0, (thread[1:] != thread[:-1]) | is_apart))[: len(rows)]
        is_kept = np.isin(run, run[awaits_end[rows]]) & (dur_ns[rows] >= LEAST_NS)
        return self._before_first_use(rows[is_kept])

    def _before_first_use(self, rows: IntArray) -> Times:
        """Return the times of those marks in `rows` whose thread launches something new next."""
        process, thread, start_ns, dur_ns = times_of(self.trace.marks)
        end_ns = start_ns + np.maximum(dur_ns, 0)
        rows = rows[self.precedes_first_use(self.thread_of_mark[rows], end_ns[rows])]
        return process[rows], thread[rows], start_ns[rows], end_ns[rows]

    def workers(self) -> Times:
        """Return the time that starting and stopping the workers of a data loader takes.

        And what the first batch after a start takes beyond usual. Frequent restarts do not count.
        """
        marks = self.trace.marks
        kinds = _STARTS_WORKER, _NEXT_BATCH, _STOPS_WORKERS
        rows_of_kinds = [np.flatnonzero(matching(marks["name"], kind.search)) for kind in kinds]
        process, thread, start_ns, dur_ns = times_of(marks)
        from_ns, kept = start_ns.copy(), [np.empty(0, dtype=np.int64)]
        for number, _ in groups(process[rows_of_kinds[0]]):
            starts, batches, stops = (rows[process[rows] == number] for rows in rows_of_kinds)
            batches = batches[in_order(start_ns[batches])]
            # A batch is a first one if workers were started since the last: [4 4 8] is [1 0 1].
            started = np.searchsorted(np.sort(start_ns[starts]), start_ns[batches])
            is_first = np.diff(started, prepend=0) > 0
            if is_first.sum() <= FEW:
                firsts, others_ns = batches[is_first], np.sort(dur_ns[batches[~is_first]])
                # The median of the others is usual.
                from_ns[firsts] += others_ns[(len(others_ns) - 1) // 2] if len(others_ns) else 0
                kept += [starts, firsts, stops]
        rows, end_ns = np.concatenate(kept), start_ns + np.maximum(dur_ns, 0)
        return process[rows], thread[rows], np.minimum(from_ns, end_ns)[rows], end_ns[rows]

    def communicators(self) -> Times:
        """Return the ranges in which a library makes or frees a communicator of several GPUs."""
        name = self.trace.marks["name"]
        process, thread, start_ns, dur_ns = times_of(self.trace.marks)
        rows = np.flatnonzero(matching(name, _MAKES_COMMUNICATOR.match) & (dur_ns >= LEAST_NS))
        return process[rows], thread[rows], start_ns[rows], (start_ns + dur_ns)[rows]

    def captures(self) -> Times:
        """Return the captures and instantiations of graphs before the first graph launch."""
        calls = self.trace.calls
        edge = np.flatnonzero(matching(calls["name"], _CAPTURE.search))  # begins or ends a capture
        edge = edge[in_order(self.thread[edge], self.start_ns[edge])]
        # A capture is a call that begins one, and the next edge on its thread if that ends one.
        begins = matching(calls["name"], lambda name: "BeginCapture" in name)[edge]
        is_same_thread = self.thread[edge[:-1]] == self.thread[edge[1:]]
        pairs = np.flatnonzero(begins[:-1] & ~begins[1:] & is_same_thread)
        instantiates = np.flatnonzero(matching(calls["name"], _INSTANTIATE.search))
        first, last = np.append(edge[pairs], instantiates), np.append(edge[pairs + 1], instantiates)
        process, thread, start_ns, _ = stretch(self.trace.calls, first)
        end_ns = self.start_ns[last] + self.dur_ns[last]
        kept = start_ns < self.first_graph_ns[process]
        return process[kept], thread[kept], start_ns[kept], end_ns[kept]

    def first_launches(self) -> Times:
        """Return the time that first launches of a kernel or of graphs take beyond later ones.

        If it is unknown what calls launch (graphs, no recorded work), the first _FIRST count.
        """
        launch = np.flatnonzero(self.launches)
        is_new = np.zeros(len(self.name), dtype=np.bool_)
        is_new[launch] = self.uses_first(launch)
        long = longer(self.process, self.name, self.start_ns, self.dur_ns, self.launches, is_new)
        is_unknown = self.replays[long.row] | ~np.isin(long.row, self.call_of_activity)
        is_first = is_new[long.row] | (is_unknown & (long.number < _FIRST))
        return stretch(self.trace.calls, long.row[is_first], long.usual_ns[is_first])

    def first_calls(self) -> Times:
        """Return the time that the first calls of `others` take beyond usual ones.

        A later call that takes longer than the first may wait for GPU work: it counts only if
        nothing was launched since the first, so that there is nothing to wait for.
        """
        long = longer(self.process, self.name, self.start_ns, self.dur_ns, self.others)
        dur_ns, are_many = self.dur_ns[long.row], long.calls > FEW
        awaits_none = are_many & (self._started_by(long.row) == self._started_by(long.first))
        is_worth_it = are_many | (dur_ns >= LEAST_ALONE_NS)
        is_no_wait = awaits_none | (dur_ns <= self.dur_ns[long.first])
        is_first = (long.number < _FIRST) & is_worth_it & is_no_wait
        return stretch(self.trace.calls, long.row[is_first], long.usual_ns[is_first])

    def frees(self) -> Times:
        """Return long frees before which nothing was launched since the first free of their name.

        They have nothing to wait for, and freeing itself is quick: the library loads code in them.
        """
        rows = np.flatnonzero(matching(self.trace.calls["name"], FREES.fullmatch) & self.others)
        rows = rows[in_order(self.start_ns[rows])]
        group, first = group_rows((self.process[rows], self.name[rows]))
        earliest = rows[first[group]]
        awaits_none = self._started_by(rows) == self._started_by(earliest)
        return stretch(self.trace.calls, rows[awaits_none & (self.dur_ns[rows] >= LEAST_ALONE_NS)])

    def _started_by(self, rows: IntArray) -> IntArray:
        """Return, per call, how many calls of its process had started device work before it."""
        started = np.append(np.flatnonzero(self.launches), self.call_of_activity)
        count = np.zeros(len(rows), dtype=np.int64)
        for number, of_process in groups(self.process[rows]):
            begun_ns = np.sort(self.start_ns[started[self.process[started] == number]])
            count[of_process] = np.searchsorted(begun_ns, self.start_ns[rows[of_process]])
        return count

    def allocations(self) -> Times:
        """Return long allocations before a first launch, if no other of their name is long."""
        is_long = self.others & (self.dur_ns >= LEAST_NS)
        rows = np.flatnonzero(is_long & matching(self.trace.calls["name"], ALLOCATES.search))
        following = self.next_launch(self.thread[rows], self.start_ns[rows])
        is_early = (following >= 0) & self.uses_first(following)
        group, _ = group_rows((self.process[rows], self.name[rows]))
        late_calls = np.bincount(group, weights=~is_early)
        return stretch(self.trace.calls, rows[late_calls[group] == 0])

    def streams(self) -> Times:
        """Return the calls that make streams, if their thread launches something new next."""
        rows = np.flatnonzero(matching(self.trace.calls["name"], MAKES_STREAMS.match))
        is_first = self.precedes_first_use(self.thread[rows], self.start_ns[rows])
        return stretch(self.trace.calls, rows[is_first])

    def set_up(self) -> Times:
        """Return long calls of `others` before the first kernel of a process with device work."""
        activities = self.trace.activities
        # A process prepares its work until it runs something else than copies and fills.
        works = ~is_one_of(activities["kind"], "memcpy", "memset")
        process, start_ns = (numbers(activities[name])[works] for name in ("process", "start_ns"))
        works_from_ns = grouping.group_least(process, start_ns, len(self.activities_of))
        np.minimum.at(works_from_ns, self.process[self.launches], self.start_ns[self.launches])
        works_from_ns[self.activities_of == 0] = 0  # a process without device work prepares none
        prepares = self.start_ns < works_from_ns[self.process]
        is_long = self.dur_ns >= LEAST_ALONE_NS
        return stretch(self.trace.calls, np.flatnonzero(prepares & self.others & is_long))

    def first_copies(self) -> Times:
        """Return the time that first copies of a direction take beyond later ones.

        They are compared with the slowest later copy of as many bytes or more. Copy calls without a
        recorded copy are compared with the median of later calls of their name.
        """
        activities, calls = self.trace.activities, self.trace.calls
        copies = self.activity[is_one_of(activities["kind"], "memcpy", "memset")[self.activity]]
        call = self.call_of_activity[np.searchsorted(self.activity, copies)]
        # A copy without a size counts as 1 byte, so that all later ones are as large.
        size = np.maximum(numbers(activities["bytes"], 0)[copies], 1)
        unknown = grouping.without(np.flatnonzero(matching(calls["name"], COPIES.search)), call)
        # The kind of a copy: its direction, or (`unknown`) the name of its call, after directions.
        direction = codes(activities["direction"])[copies]
        kind = np.append(direction, len(names(activities["direction"])) + self.name[unknown])
        call, size = np.append(call, unknown), np.append(size, np.full_like(unknown, ABSENT))
        # In each kind, the first few copies are compared with those after them.
        kept = list[tuple[int, int]]()
        group, _ = group_rows((self.process[call], kind))
        for _, of_kind in groups(group):
            order = of_kind[in_order(self.start_ns[call[of_kind]])]
            dur_ns, bytes_ = self.dur_ns[call[order]], size[order]
            for index in range(min(_FIRST, len(order) - 1)):
                is_comparable = bytes_[index + 1 :] >= bytes_[index]
                later_ns = np.sort(dur_ns[index + 1 :][is_comparable])
                if not len(later_ns):
                    continue
                # The median of calls without a copy (see above), else the slowest copy.
                usual_index = (len(later_ns) - 1) // 2 if bytes_[index] == ABSENT else -1
                usual = int(later_ns[usual_index])
                if dur_ns[index] > max(TIMES_USUAL * usual, usual + LEAST_NS):
                    kept.append((int(call[order[index]]), usual))
        return stretch(self.trace.calls, *np.array(kept, dtype=np.int64).reshape(-1, 2).T)
