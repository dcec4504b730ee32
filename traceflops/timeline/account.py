"""The account of one device: components and idle causes of any window, and the longest gaps.

And the time in which the device may have run replays of graphs that have no record.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.categories.activities import Categorised
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
from traceflops.table.grouping import distinct, groups, joint_codes, runs
from traceflops.table.links import Links
from traceflops.table.nesting import OpTree, taken
from traceflops.table.patterns import ALLOCATES, LOADS_DATA, WAITS_FOR_DEVICE
from traceflops.table.trace import Trace
from traceflops.timeline.clock_offsets import clock_offsets
from traceflops.timeline.device_span import (
    ActivityColumns,
    DeviceRows,
    Timeline,
    is_top,
    replay_time,
    timeline,
)
from traceflops.timeline.device_start_up import device_start_up
from traceflops.timeline.host_work import SplitWork
from traceflops.timeline.idle import DeviceWork, IdleTime, StreamWaits, idle_time, stream_waits
from traceflops.timeline.intervals import ENDLESS, NEVER, Intervals, latest_end_before
from traceflops.timeline.records import WORK, Account, Copies, Gap, Sums, WholeSpan, Window
from traceflops.timeline.start_up import StartUp

_GAPS_KEPT = 100


class LinkedTrace(Struct, frozen=True, dict=True):
    """A trace with links, category and parts of each activity, and the start-up of processes.

    All of these rely on names: they are derived before names are redacted.
    """

    trace: Trace
    links: Links
    categorised: Categorised
    split: SplitWork
    start_up: Mapping[int, StartUp]

    @cached_property
    def columns(self) -> ActivityColumns:
        """Columns of all activities that the accounts of all devices need."""
        work = self.trace.activities
        name, kind, direction = (codes(work[column]) for column in ("name", "kind", "direction"))
        stream, size = (numbers(work[column], ABSENT) for column in ("stream", "bytes"))
        return ActivityColumns(name, stream, kind, direction, size)

    @cached_property
    def stream_waits(self) -> StreamWaits:
        """Per call, what the stream of its launch waited for."""
        return stream_waits(self.trace, self.links)

    @cached_property
    def clock_offsets(self) -> IntArray:
        """By process, how far its GPU's clock is from the CPU's, in ns (see clock_offsets.py)."""
        return clock_offsets(self.trace, self.links, self.device_waits)

    @cached_property
    def device_waits(self) -> dict[int, IntArray]:
        """By process, starts and ends in ns of calls that wait for all of a GPU: [2, calls]."""
        calls = self.trace.calls
        row = np.flatnonzero(matching(calls["name"], WAITS_FOR_DEVICE.match))
        times = np.stack(span_columns(calls, row))
        waits = dict.fromkeys(range(self.trace.processes.num_rows), times[:, :0])
        for process, of_process in groups(numbers(calls["process"])[row]):
            waits[process] = times[:, of_process]
        return waits

    @cached_property
    def thread_of_call(self) -> IntArray:
        """Per call, a number of its thread, unique in the trace."""
        return joint_codes(*thread_columns(self.trace.calls))

    @cached_property
    def allocating(self) -> dict[int, Intervals]:
        """By thread (see `thread_of_call`), when its calls allocate memory."""
        calls = self.trace.calls
        row = np.flatnonzero(matching(calls["name"], ALLOCATES.search))
        start_ns, end_ns = span_columns(calls, row)
        by_thread = groups(self.thread_of_call[row])
        return {thread: Intervals.of(start_ns[own], end_ns[own]) for thread, own in by_thread}

    @cached_property
    def comparable_start_up(self) -> dict[int, StartUp]:
        """Start-up of the processes whose clock agrees with that of their device."""
        offset = self.clock_offsets.tolist()
        return {number: own for number, own in self.start_up.items() if not offset[number]}

    @cached_property
    def is_calling(self) -> BoolArray:
        """Per process, whether calls are recorded, other than RCCL's, which tools always record."""
        calls = self.trace.calls
        is_calling = np.zeros(self.trace.processes.num_rows, dtype=np.bool_)
        is_calling[numbers(calls["process"])[~is_one_of(calls["api"], "rccl")]] = True
        return is_calling

    @cached_property
    def is_unseen(self) -> BoolArray:
        """Per process, whether no call, op or mark of it is recorded that has a length."""
        is_unseen = np.ones(self.trace.processes.num_rows, dtype=np.bool_)
        for table in (self.trace.calls, self.trace.ops, self.trace.marks):
            lasts = numbers(table["dur_ns"], ABSENT) != 0
            is_unseen[numbers(table["process"], 0)[lasts]] = False
        return is_unseen

    @cached_property
    def first_batch_ns(self) -> int:
        """When a data loader first begins to give a batch, in ns; ENDLESS without any."""
        marks = self.trace.marks
        is_loader = matching(marks["name"], LOADS_DATA.search)
        return int(numbers(marks["start_ns"])[is_loader].min(initial=ENDLESS))

    @cached_property
    def op_tree(self) -> OpTree:
        """The forest of the ops."""
        return OpTree.of(self.trace.ops)

    @cached_property
    def derived(self) -> dict[str, IntArray]:
        """Columns that later rooms derive once, by their name there."""
        return {}


_MOVES: Final = ("copy", "memset", "migration")  # subcategories of work that copies or fills


class LaunchCounter:
    """Counts the distinct launch calls of any run of consecutive activities of one device."""

    def __init__(self, call: IntArray) -> None:
        """Take the call of each activity, in order of start; -1 for none."""
        self._linked_before = np.append(0, np.cumsum(call >= 0))
        # A repeat is an activity whose call launched an earlier activity, too; `previous` is the
        # last of these. A run counts the call of a repeat twice if it contains both.
        # call [4 7 4 -1 4]: by_call [0 2 4 1], repeats [2 4], previous [0 2].
        linked = np.flatnonzero(call >= 0)
        by_call = linked[np.argsort(call[linked], kind="stable")]
        is_repeat = call[by_call[1:]] == call[by_call[:-1]]
        repeats, previous = by_call[1:][is_repeat], by_call[:-1][is_repeat]
        order = np.argsort(repeats, kind="stable")
        self._repeat, self._previous = repeats[order], previous[order]

    def count(self, first: IntArray, stop: IntArray) -> tuple[IntArray, IntArray]:
        """Return, per run [first, stop), the number of launched activities and distinct calls."""
        linked = self._linked_before[stop] - self._linked_before[first]
        # In the example, run [1, 5) has repeats 2 and 4; previous 0 is outside: 3 linked, 2 calls.
        low, high = np.searchsorted(self._repeat, first), np.searchsorted(self._repeat, stop)
        repeat, run = runs(low, high)
        repeats = run[self._previous[repeat] >= first[run]]
        return linked, linked - np.bincount(repeats, minlength=len(first))


class DeviceAccount:
    """Accounts for any window of one device."""

    def __init__(
        self, linked: LinkedTrace, rows: IntArray, lost_replays: Mapping[int, IntArray]
    ) -> None:
        """Prepare the account of a device, whose activities are in `rows`.

        `lost_replays` are, by process, rows of calls that launched a graph without a recorded
        replay. The replays may have run on any device with other work of the process.
        """
        # The activities in order of start, and their time by component.
        trace, calls = linked.trace, linked.trace.calls
        row = rows[np.argsort(numbers(trace.activities["start_ns"])[rows], kind="stable")]
        start, end = span_columns(trace.activities, row)
        self._linked = linked
        self.rows = DeviceRows(row, start, end, linked.split.first[row], linked.columns)
        top = np.array([WORK.index(name) for name in linked.categorised.top()], dtype=np.int64)
        component = top[linked.categorised.category[row]]
        is_part = {name: component == code for code, name in enumerate(WORK)}
        self.timeline: Timeline = timeline(start, end, is_part)
        # The calls that launched them.
        process = numbers(trace.activities["process"])[row]
        self.call = linked.links.call_of_activity[row]
        differs = linked.clock_offsets[process] != 0
        self.timed_call = np.where(differs, -1, self.call) if differs.any() else self.call
        """Per activity, its launch; -1 also if the clocks of call and activity differ."""
        self._launches = LaunchCounter(self.call)
        self._begun_before = np.append(0, np.cumsum(linked.split.first[row]))
        device = trace.activities["device"][int(row[0])].as_py()
        self.is_cpu = str(trace.devices["type"][device].as_py()) == "cpu"
        # The number of launches is known if calls of its processes are recorded.
        is_recorded = (self.call >= 0).any() or linked.is_calling[process].any()
        self.has_calls = not self.is_cpu and bool(is_recorded)
        # Operators of CPUs have -1 - op as their correlation: see `with_host_activities`.
        correlation = numbers(trace.activities["correlation"], ABSENT)[row]
        self.op = -1 - correlation if self.is_cpu else np.broadcast_to(np.int64(-1), len(row))
        """Per activity, the operator that it is a part of on a CPU; -1 on other devices."""
        # What idle time is derived from, in `begin_at`.
        kinds = names(trace.activities["kind"])
        copy = kinds.index("memcpy") if "memcpy" in kinds else ABSENT
        called = taken(numbers(calls["start_ns"]), self.timed_call, ABSENT)
        self.work = DeviceWork(
            start,
            end,
            linked.columns.stream[row],
            linked.columns.kind[row] == copy,
            called,
            called + taken(numbers(calls["dur_ns"]), self.timed_call, 0),
            taken(linked.stream_waits.until_ns, self.timed_call, NEVER),
        )
        unseen = replay_time(trace, lost_replays, linked.device_waits, self.rows, self.call)
        self._unseen = unseen
        self.begin_at(self.rows.span[0])

    def begin_at(self, begin_ns: int) -> None:
        """Set `idle` and `start_up`; `begin_ns` may be before the first activity."""
        idle = idle_time(self.work, self.timeline.busy, self._unseen, begin_ns)
        process = numbers(self._linked.trace.activities["process"])
        # While a thread allocates memory, the driver may hold up what it queued.
        thread = taken(self._linked.thread_of_call, self.timed_call[idle.next_row], ABSENT)
        allocating = self._linked.allocating
        for number, own in groups(thread):
            if number in allocating:
                late = Intervals.of(idle.gap_start_ns[own], idle.gap_end_ns[own])
                idle = idle.explained_by(allocating[number].intersect(late))
        self.start_up_by_kind = device_start_up(
            self._linked.comparable_start_up,
            self._linked.is_unseen,
            (process[self.rows.row], self._linked.columns.name[self.rows.row]),
            idle.next_row,
            (idle.gap_start_ns, idle.gap_end_ns),
            self.first_kernel_ns,
        )
        """Time in which nothing ran while the program started up, by kind of start-up."""
        self.start_up = Intervals.empty().union(*self.start_up_by_kind.values())
        self.idle: IdleTime = idle.without(self.start_up)

    @cached_property
    def is_kernel(self) -> BoolArray:
        """Per activity, whether it neither copies nor fills."""
        moves = [category.sub in _MOVES for category in self._linked.categorised.categories]
        is_move = np.array([*moves, False])[self._linked.categorised.category[self.rows.row]]
        return np.asarray(~is_move, dtype=np.bool_)

    @property
    def first_kernel_ns(self) -> int:
        """Return when the first work starts that neither copies nor fills, NEVER without any."""
        first = np.argmax(self.is_kernel)
        return int(self.rows.start_ns[first]) if self.is_kernel.any() else NEVER

    def account(self, start_ns: int, end_ns: int) -> Account:
        """Return the account of the window [start_ns, end_ns)."""
        return self.accounts(np.array([start_ns]), np.array([end_ns]))[0]

    def accounts(self, start_ns: IntArray, end_ns: IntArray) -> list[Account]:
        """Return the account of each window [start, end), which are in order."""
        components = self.timeline.components(start_ns, end_ns, self.start_up)
        idle = np.array([parts.idle_ns for parts in components], dtype=np.int64)
        causes = self.idle.causes(start_ns, end_ns, idle)
        hidden = self.timeline.hidden_communication_ns(start_ns, end_ns).tolist()
        first = np.searchsorted(self.rows.start_ns, start_ns, side="left")
        last = np.searchsorted(self.rows.start_ns, end_ns, side="left")
        # An activity without length at the end of the span is in the last window that ends there.
        last[np.flatnonzero(end_ns >= self.rows.span[1])[-1:]] = len(self.rows.start_ns)
        begun = (self._begun_before[last] - self._begun_before[first]).tolist()
        linked, calls = (counts.tolist() for counts in self._launches.count(first, last))
        launches = calls if self.has_calls else [None] * len(calls)
        return list(map(Account, components, causes, hidden, begun, linked, launches))

    def gaps(
        self, device: int, chosen: Intervals, windows: tuple[Window, ...], most: int | None = None
    ) -> tuple[Gap, ...]:
        """Return the `most` longest gaps of `device` that touch the chosen time, by length."""
        start, end = self.idle.gap_start_ns, self.idle.gap_end_ns
        touched = np.flatnonzero(chosen.length_within(start, end) > 0)
        longest_first = np.argsort(start[touched] - end[touched], kind="stable")
        gap_index = touched[longest_first][: most or _GAPS_KEPT]
        start, end = start[gap_index], end[gap_index]
        start_up = self.start_up.length_within(start, end)
        causes = self.idle.causes(start, end, end - start - start_up)
        # The activities that end the gaps; the call of those that a stream wait held back.
        next_place, links = self.idle.next_row[gap_index], self._linked.links
        row = self.rows.row[next_place]
        is_held = np.array([cause.stream_wait_ns > 0 for cause in causes], dtype=np.bool_)
        held_call = np.where(is_held, self.call[next_place], -1)

        def labels(table: str, rows: IntArray) -> list[str]:
            """Return the names of some rows of a table, "" for row -1."""
            texts = self._linked.trace.table(table)["name"]
            return [texts[row].as_py() if row >= 0 else "" for row in rows.tolist()]

        after = labels("activities", self.ended_at(start))
        before = labels("activities", row)
        call = labels("calls", links.call_of_activity[row])
        op = labels("ops", links.op_of_activity[row])
        waited_for = labels("activities", taken(self._linked.stream_waits.work, held_call))
        steps, steps_after = _steps_at(windows, start), _steps_at(windows, end)
        # The next step came late only if the gap does not end in its own step.
        late_steps = [b if a != b else None for a, b in zip(steps, steps_after, strict=True)]
        times = start.tolist(), (end - start).tolist(), steps
        texts = after, before, call, op, causes, waited_for
        columns = *times, *texts, late_steps, start_up.tolist()  # in the order of the fields of Gap
        return tuple(Gap(device, *values) for values in zip(*columns, strict=True))

    def ended_at(self, at_ns: IntArray) -> IntArray:
        """Return, per time up to the last end, the first activity that ends then, or -1."""
        order = np.argsort(self.rows.end_ns, kind="stable")
        ended = order[np.searchsorted(self.rows.end_ns[order], at_ns, side="left")]
        return np.where(self.rows.end_ns[ended] == at_ns, self.rows.row[ended], -1)


_MIGRATION = "migration"
"""The directions of copies that the driver makes for unified memory begin with this."""


def whole_span(linked: LinkedTrace, device: DeviceAccount) -> WholeSpan:
    """Return the figures of a device over its whole span."""
    trace, categorised, work = linked.trace, linked.categorised, device.rows
    account, row, columns = device.account(*work.span), work.row, work.columns
    kind, stream, category = columns.kind[row], columns.stream[row], categorised.category[row]
    length = work.end_ns - work.start_ns
    directions = names(trace.activities["direction"])
    # No call launches the migrations of unified memory.
    migrations = [code for code, label in enumerate(directions) if label.startswith(_MIGRATION)]
    is_migration = np.isin(columns.direction[row], migrations)
    is_launched = (device.call >= 0) | is_migration
    kinds: dict[str, Sums] = {}
    unlinked: dict[str, int] = {}
    for code, label in enumerate(names(trace.activities["kind"])):
        if code in kind:
            kinds[label] = work.sums(kind == code)
            unlinked[label] = int((~is_launched & (kind == code)).sum())
    categories: dict[str, Sums] = {}
    for top in {*categorised.top()}:
        of_top = is_top(categorised, top, row)
        if of_top.any():
            categories[top] = work.sums(of_top)
    for code in distinct(category).tolist():
        top, sub = categorised.categories[code].top, categorised.categories[code].sub
        if sub != top:
            categories[f"{top}/{sub}"] = work.sums(category == code)
    # Copies by direction, only for directions that the device has.
    direction, size = columns.direction[row], columns.bytes[row]
    copies: dict[str, Copies] = {}
    for code in distinct(direction[direction >= 0]).tolist():
        is_same = direction == code
        sizes = size[is_same & (size != ABSENT)]
        total_bytes = int(sizes.sum()) if len(sizes) else None
        sum_ns = int(length[is_same].sum())
        copies[directions[code]] = Copies(int(is_same.sum()), total_bytes, sum_ns)
    # Per activity, for how long earlier work of its stream runs on; without any, it ends at NEVER.
    on_stream = stream != ABSENT
    start_ns = work.start_ns[on_stream]
    earlier_end_ns = latest_end_before(stream[on_stream], start_ns, work.end_ns[on_stream])
    overlap_ns = np.maximum(earlier_end_ns, start_ns) - start_ns
    return WholeSpan(
        start_ns=work.span[0],
        end_ns=work.span[1],
        busy_ns=device.timeline.busy.length_ns,
        sum_ns=int(length.sum()),
        streams=len(distinct(stream)),
        zero_length=int((length == 0).sum()),
        same_stream_overlaps=int((overlap_ns > 0).sum()),
        same_stream_overlap_max_ns=int(overlap_ns.max(initial=0)),
        kinds=kinds,
        categories=dict(sorted(categories.items())),
        communication=work.sums(is_top(categorised, "communication", row)),
        exposed_communication_ns=account.components.communication_ns,
        hidden_communication_ns=account.hidden_communication_ns,
        copies=copies,
        unlinked=unlinked if device.has_calls else None,
        account=account,
    )


def _steps_at(windows: tuple[Window, ...], time_ns: IntArray) -> list[int | None]:
    """Return, per time, the step of the first window around it, None outside of steps."""
    # A last window without step, which is around no time, stands for times outside of windows.
    # Windows [0, 5) [5, 9): time 6 is inside [0 1 0], first 1; time 20 inside [0 0 0], first 2.
    start = np.array([*(window.start_ns for window in windows), NEVER], dtype=np.int64)
    end = np.array([*(window.end_ns for window in windows), NEVER], dtype=np.int64)
    inside = (start <= time_ns[:, None]) & (time_ns[:, None] < end)
    steps = [*(window.step for window in windows), None]
    first = np.where(inside.any(axis=1), inside.argmax(axis=1), len(windows))
    return [steps[index] for index in first.tolist()]
