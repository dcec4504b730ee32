"""The chosen windows in a form that replays can move: where each begins and ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.replay.recorded_graph import RecordedGraph, World
from traceflops.table.columns import ABSENT, BoolArray, Columns, IntArray, is_one_of, numbers
from traceflops.table.grouping import (
    differ_from_before,
    group_most,
    joint_codes,
    ranked,
    runs,
    without,
)
from traceflops.timeline.intervals import ENDLESS, NEVER, Intervals
from traceflops.windows.prepared import Prepared
from traceflops.windows.tiling import paced

_LAST, _COPY, PACED = range(3)
"""Roles of nodes: the last of a queue in the step before; the first of a queue of nothing but
copies; the first of a queue with kernels."""


class Candidates(Columns, frozen=True):
    """The nodes of which one decides the time of an instant; several rows per instant.

    `instant` is the number of the instant, in ascending order. _LAST nodes end the step before; a
    _COPY counts only if it begins after these. The instant is `ahead_ns` before the node begins.
    """

    instant: IntArray
    node: IntArray
    role: IntArray
    ahead_ns: IntArray


class Instants(Struct, frozen=True):
    """Begins or ends of windows, one per row of `device` and `mark`.

    An instant is the begin of the first of its candidates or, without any, the end of the device's
    last work. If the step begins at a moment of the host (node `mark`, else -1), and that is
    earlier, it is that moment, but not before the end of the step before.
    """

    device: IntArray
    mark: IntArray
    candidates: Candidates

    def earlier(self, by_node: IntArray) -> Instants:
        """Return the instants for a world in which nodes begin later by some ns per node."""
        candidates = self.candidates
        ahead_ns = candidates.ahead_ns + by_node[candidates.node]
        return replace(self, candidates=replace(candidates, ahead_ns=ahead_ns))

    def at(
        self, graph: RecordedGraph, world: World, time_ns: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Return the times of the instants if nodes end at `time_ns`, and the nodes that decide."""
        own = self.candidates
        instant, candidate, role = own.instant, own.node, own.role
        begin = time_ns[candidate] - world.dur_ns[candidate] - own.ahead_ns
        # instant [0 0 2]  ->  opens [0 2] (rows of candidates), with_work [0 2] (instants)
        opens = np.flatnonzero(differ_from_before(instant))
        with_work = instant[opens]

        def extreme(best: np.ufunc, values: IntArray, none: int) -> IntArray:
            """Return the best of the candidates' values per instant, `none` without candidates."""
            best_values = np.full(len(self.device), none, dtype=np.int64)
            if len(opens):
                best_values[with_work] = best.reduceat(values, opens)
            return best_values

        # Queues of copies alone may run ahead: they count only after the end of the step before.
        ended = extreme(np.maximum, np.where(role == _LAST, time_ns[candidate], NEVER), NEVER)
        before = np.maximum(ended, extreme(np.minimum, begin, NEVER))
        counts = (role == PACED) | (role == _COPY) & (begin >= before[instant])
        # The begin of the first candidate that counts
        begin = np.where(counts, begin, ENDLESS)
        time = extreme(np.minimum, begin, ENDLESS)
        node = np.full_like(self.device, -1)
        first = np.flatnonzero(counts & (begin == time[instant]))[::-1]
        node[instant[first]] = candidate[first]  # the first of several is written last
        # The moment of the host at which the step begins, if that is earlier
        marked = np.maximum(ended, time_ns[self.mark])
        is_marked = (self.mark >= 0) & (marked < time)
        time, node = np.where(is_marked, marked, time), np.where(is_marked, self.mark, node)
        # Without candidates, the end of the device's last work
        bare = without(np.arange(len(self.device)), with_work)
        if len(bare):
            last = _last_work(graph, time_ns)[self.device[bare]]
            time[bare], node[bare] = time_ns[last], last
        return time, node


def _last_work(graph: RecordedGraph, time_ns: IntArray) -> IntArray:
    """Return, by device, the node of its work that ends last, the first of several; -1: none."""
    rows = np.flatnonzero(graph.nodes.device >= 0)
    device = graph.nodes.device[rows]
    latest = group_most(device, time_ns[rows], int(device.max(initial=-1)) + 1)
    is_last = np.flatnonzero(time_ns[rows] == latest[device])[::-1]
    last_node = np.full(len(latest), -1, dtype=np.int64)
    last_node[device[is_last]] = rows[is_last]  # the first of several is written last
    return last_node


class Spans(Struct, frozen=True):
    """Where windows of devices begin and end; windows that follow each other may be one span."""

    first: Instants
    last: Instants

    @property
    def device(self) -> IntArray:
        """The device of each."""
        return self.first.device

    def at(
        self, graph: RecordedGraph, world: World, time_ns: IntArray
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Return begins and ends in a replay, and the nodes that end them."""
        end, node = self.last.at(graph, world, time_ns)
        return self.first.at(graph, world, time_ns)[0], end, node

    def rows(
        self, graph: RecordedGraph, world: World, time_ns: IntArray
    ) -> Iterator[tuple[int, int, int, int]]:
        """Yield the device, begin and end in a replay, and the ending node of each span."""
        columns = (self.device, *self.at(graph, world, time_ns))
        yield from zip(*(column.tolist() for column in columns), strict=True)

    def lengths(self, graph: RecordedGraph, world: World, time_ns: IntArray) -> list[int]:
        """Return the length of each in a replay, in ns."""
        begin, end, _ = self.at(graph, world, time_ns)
        return [*map(int, end - begin)]


class _Heads(Struct, frozen=True):
    """The work that decides when each step of a device begins; empty if launches tell no steps.

    A step begins with the first work that was launched in it. The times `at_ns`, which are sorted,
    are those at which queues begin work of the steps `step`. The entries of `index` (rows of the
    device's account) and `role` from `first[step]` to `first[step + 1]` are a step's candidates.
    """

    at_ns: IntArray
    step: IntArray
    first: IntArray
    index: IntArray
    role: IntArray

    @classmethod
    def of(cls, prepared: Prepared, device: int, is_kernel: BoolArray) -> _Heads:
        """Return the heads of the steps of a device; `is_kernel` is a mask of activities."""
        launched_in, activities = prepared.plan.layout.launched_in, prepared.trace.activities
        if launched_in is None:
            return cls(*np.empty((2, 0), dtype=np.int64), *np.zeros((3, 1), dtype=np.int64))
        rows = prepared.accounts[device].rows
        step, stream = launched_in[rows.row], numbers(activities["stream"], ABSENT)[rows.row]
        is_paced = paced(step, stream, is_kernel[rows.row])
        # The first and the last work of each queue in each step; rows are in the order of start.
        queue = joint_codes(step, stream)
        _, first = np.unique(queue, return_index=True)
        latest_first = np.argsort(-rows.end_ns)
        last = latest_first[np.unique(queue[latest_first], return_index=True)[1]]
        # Work launched in no step (-1) begins none.
        first, last = first[step[first] >= 0], last[step[first] >= 0]
        steps, number = ranked(step[first])
        # Candidates of a step (`owner`): the first work of each of its queues, and the last work of
        # the queues with kernels of the step before.
        ends_step = is_paced[first] & (number < len(steps) - 1)
        owner = np.append(number, number[ends_step] + 1)
        index = np.append(first, last[ends_step])
        role_of_first = np.where(is_paced[first], PACED, _COPY)
        role = np.append(role_of_first, np.full(ends_step.sum(), _LAST))
        order = np.lexsort((index, role == _LAST, owner))
        # Of steps that begin at one time, the last one counts: at [3 3 7]  ->  is_last [0 1 1].
        by_time = np.lexsort((number, rows.start_ns[first]))
        at_ns = rows.start_ns[first][by_time]
        is_last = np.append(differ_from_before(at_ns)[1:], True)[: len(at_ns)]
        bounds = np.searchsorted(owner[order], np.arange(len(steps) + 1))
        return cls(at_ns[is_last], number[by_time][is_last], bounds, index[order], role[order])

    def find(self, time_ns: IntArray) -> IntArray:
        """Return the step that begins at each time, -1 for none."""
        index = np.minimum(np.searchsorted(self.at_ns, time_ns), len(self.at_ns) - 1)
        if not len(self.at_ns):
            return np.full_like(time_ns, -1)
        return np.where(self.at_ns[index] == time_ns, self.step[index], -1)


def spans_of(prepared: Prepared, graph: RecordedGraph, *, joined: bool = True) -> Spans:
    """Return the chosen windows of all devices; with `joined`, adjacent windows are one span."""
    starts, ends = list[tuple[Instants, IntArray]](), list[tuple[Instants, IntArray]]()
    is_kernel = is_one_of(prepared.trace.activities["kind"], "kernel")
    for device, windows in prepared.windows.items():
        used = [(window.start_ns, window.end_ns) for window in windows if window.used]
        start, end = np.array(used, dtype=np.int64).reshape(-1, 2).T
        if joined:
            union = Intervals.of(start, end)
            start, end = union.start_ns, union.end_ns
        heads = _Heads.of(prepared, device, is_kernel)
        starts.append((_instants(prepared, graph, device, heads, start), start))
        ends.append((_instants(prepared, graph, device, heads, end), end))
    return Spans(_of_all(graph, starts), _of_all(graph, ends))


def _instants(
    prepared: Prepared, graph: RecordedGraph, device: int, heads: _Heads, time_ns: IntArray
) -> Instants:
    """Return the begins or ends of windows of a device that were recorded at these times."""
    rows, process = prepared.accounts[device].rows, numbers(prepared.trace.activities["process"])
    index = np.searchsorted(rows.start_ns, time_ns)  # the first work from each time on
    has_next = index < len(rows.row)
    following = np.minimum(index, len(rows.row) - 1)  # or the last work, if there is none
    mark = np.full_like(time_ns, -1)
    asked = np.flatnonzero(heads.find(time_ns) < 0)  # no step begins there with its work
    if len(asked):
        mark[asked] = graph.moments(process[rows.row[following[asked]]], time_ns[asked])
    # The candidates of a step that begins at a moment of the host are those of its next work.
    # Where no step begins, the only candidate is the next work.
    work_ns = np.where((mark >= 0) & has_next, rows.start_ns[following], time_ns)
    step = heads.find(work_ns)
    with_step, alone = np.flatnonzero(step >= 0), np.flatnonzero((step < 0) & has_next)
    head, number = runs(heads.first[step[with_step]], heads.first[step[with_step] + 1])
    instant = np.append(with_step[number], alone)
    node = graph.first_of_row[rows.row[np.append(heads.index[head], index[alone])]]
    role = np.append(heads.role[head], np.full_like(alone, PACED))
    order = np.argsort(instant, kind="stable")
    order = order[node[order] >= 0]
    candidates = Candidates(instant[order], node[order], role[order], np.zeros_like(order))
    return Instants(np.full_like(time_ns, device), mark, candidates)


def _of_all(graph: RecordedGraph, parts: Sequence[tuple[Instants, IntArray]]) -> Instants:
    """Return the instants of all devices as one; `parts` has them and their recorded times."""
    before = 0  # number of instants of earlier devices
    moved = []
    for part, _ in parts:
        moved.append(replace(part.candidates, instant=part.candidates.instant + before))
        before += len(part.device)
    device = np.concatenate([part.device for part, _ in parts])
    mark = np.concatenate([part.mark for part, _ in parts])
    instants = Instants(device, mark, Candidates.joined(moved))
    time_ns, _ = instants.at(graph, graph.as_recorded(), graph.nodes.time_ns)
    # With this `ahead_ns` they are at their recorded times in the recorded world.
    recorded_ns = np.concatenate([recorded for _, recorded in parts])
    ahead_ns = (time_ns - recorded_ns)[instants.candidates.instant]
    return replace(instants, candidates=replace(instants.candidates, ahead_ns=ahead_ns))
