"""All GPU work of a recording by queue, and the usual lags of launches and queues.

A work is a kernel, copy or fill. All are numbered from 0, sorted by device, process, queue and
start; unless otherwise said, columns have a value per work.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.ranks.who_waits import RankReport
from traceflops.replay.recorded_graph import LONG_AGO
from traceflops.table.arrays import ABSENT, BoolArray, IntArray
from traceflops.table.columns import codes, is_one_of, matching, numbers
from traceflops.table.grouping import group_least, groups, in_order, joint_codes, places_in_groups
from traceflops.table.nesting import taken
from traceflops.timeline.intervals import ENDLESS, Intervals
from traceflops.windows.prepared import Prepared

USUAL_LAUNCH_NS: Final = 6_000
_USUAL_GAP_NS: Final = 1_000
"""Usual lags of a launch and of a queue, where too few are seen to measure them."""
CLOSE_NS: Final = 25_000  # work begins at most this long after the end of what its queue waited for
_ENOUGH: Final = 8  # the fewest cases for a median, or for the limit of a queue
_LONG_CALL_NS: Final = 20_000
_LEAST_LIMIT: Final = 64
_MOST_TOLD: Final = 0.9
"""A queue has a limit if that explains at least this share of its long launch calls."""


def typical(group: IntArray, values: IntArray, known: BoolArray, otherwise: int) -> IntArray:
    """Return, per row, the median of those values of its group that are `known` (a mask).

    Groups with few known values, and rows of no group (-1), get the median of all known values, or
    `otherwise` if there are none.
    """
    known_values = values[known]
    overall = int(np.median(known_values)) if len(known_values) else otherwise
    # The last entry is for group -1.
    of_group = np.full(int(group.max(initial=-1)) + 2, overall, dtype=np.int64)
    for number, rows in groups(group[known]):
        if len(rows) >= _ENOUGH:
            of_group[number] = int(np.median(known_values[rows]))
    return of_group[group]


def before_in(group: IntArray) -> IntArray:
    """Return, per row, the row before if it is of the same group, else -1: [-1 0 -1] of [7 7 9]."""
    previous = np.arange(len(group)) - 1
    previous[1:][group[1:] != group[:-1]] = -1
    return previous


def last_up_to(group: IntArray, time: IntArray, at_group: IntArray, at_ns: IntArray) -> IntArray:
    """Return, per pair of `at_group` and `at_ns`, the last row of the group up to then, or -1.

    Rows of `group` and `time` are sorted.
    """
    last = places_in_groups(group, time, at_group, at_ns) - 1
    return np.where((last >= 0) & (taken(group, last) == at_group), last, -1)


class RecordedWork(Struct, frozen=True, dict=True):
    """All GPU work, its queues and launches; times are in ns, on one clock for all processes.

    Per work: `row` is its activity, `queue` the number of its stream of a process on a device,
    `before` the work before it in its queue, or -1, and `free` the end of that, or LONG_AGO. `call`
    launched it, -1 if unknown, and began at `called`, or LONG_AGO; `opens` marks the first work of
    a call in its queue. `migrates`: an access of host or kernel starts it, and no call.

    `work_of_row` is, per activity, its work, -1 for none; `calls_ns` the start and end of each call
    (per row of calls); `offset_ns` by how much the clock of each process is ahead.
    """

    prepared: Prepared
    ranks: RankReport
    row: IntArray
    device: IntArray
    process: IntArray
    stream: IntArray
    start: IntArray
    end: IntArray
    queue: IntArray
    before: IntArray
    free: IntArray
    call: IntArray
    called: IntArray
    opens: BoolArray
    migrates: BoolArray
    work_of_row: IntArray
    calls_ns: tuple[IntArray, IntArray]
    offset_ns: IntArray

    @classmethod
    def of(cls, prepared: Prepared, ranks: RankReport) -> RecordedWork:
        """Return the work of a recording; migrations of pages inside a kernel are no work."""
        trace, activities = prepared.trace, prepared.trace.activities
        is_kernel = is_one_of(activities["kind"], "kernel")
        is_migration = matching(activities["direction"], lambda name: name.startswith("migration"))
        kept = []
        for account in prepared.accounts.values():
            rows = account.rows
            of_kernels = is_kernel[rows.row]
            kernels = Intervals.of(rows.start_ns[of_kernels], rows.end_ns[of_kernels])
            dur_ns = rows.end_ns - rows.start_ns
            outside_ns = dur_ns - kernels.length_within(rows.start_ns, rows.end_ns)
            kept.append(rows.row[~is_migration[rows.row] | (outside_ns > 0)])
        row = np.concatenate(kept)
        keys = ("device", "process", "stream", "start_ns")
        columns = [numbers(activities[name], ABSENT)[row] for name in (*keys, "dur_ns")]
        order = in_order(*columns[: len(keys)])
        row = row[order]
        device, process, stream, start, dur_ns = (column[order] for column in columns)
        work_of_row = np.full(activities.num_rows, -1, dtype=np.int64)
        work_of_row[row] = np.arange(len(row))
        # From here on, all times are on one clock.
        offset_ns = np.zeros(trace.processes.num_rows, dtype=np.int64)
        if ranks.comparable:
            owner = numbers(trace.devices["process"])
            offset_ns[owner[[*ranks.records.devices]]] = ranks.alignment.offset_ns
        start = start - offset_ns[process]
        end = start + dur_ns
        begun = numbers(trace.calls["start_ns"]) - offset_ns[numbers(trace.calls["process"])]
        queue = joint_codes(joint_codes(device, process), stream)
        before, call = before_in(queue), prepared.linked.links.call_of_activity[row]
        return cls(
            prepared=prepared,
            ranks=ranks,
            row=row,
            device=device,
            process=process,
            stream=stream,
            start=start,
            end=end,
            queue=queue,
            before=before,
            free=taken(end, before, LONG_AGO),
            call=call,
            called=taken(begun, call, LONG_AGO),
            opens=np.asarray((call >= 0) & (taken(call, before) != call)),
            migrates=is_migration[row],
            work_of_row=work_of_row,
            calls_ns=(begun, begun + numbers(trace.calls["dur_ns"])),
            offset_ns=offset_ns,
        )

    @cached_property
    def is_blocking(self) -> BoolArray:
        """Return which copies block the host: most of the copy ran inside its call.

        A call may return a little before the end of a copy whose last part is staged.
        """
        is_copy = is_one_of(self.prepared.trace.activities["kind"], "memcpy")[self.row]
        dur = self.end - self.start
        inside = taken(self.calls_ns[1], self.call, LONG_AGO) - self.start
        is_whole, is_staged = inside >= dur, (inside >= CLOSE_NS) & (2 * inside >= dur)
        return np.asarray(is_copy & (self.start >= self.called) & (is_whole | is_staged))

    @cached_property
    def held(self) -> tuple[IntArray, BoolArray]:
        """Return the work of another queue that each waited for, or -1, and whether it is a guess.

        If no record names the work, it is the last to end of those launched before in other queues.
        """
        waits = self.prepared.linked.stream_waits
        call = np.where(self.opens, self.call, -1)
        held = taken(self.work_of_row, taken(waits.work, call))
        # What ended after the work began was not waited for: the record names something else.
        held = np.where(taken(self.end, held) <= self.start, held, -1)
        # Waits for work that is not named.
        asked = np.flatnonzero((taken(waits.until_ns, call) == ENDLESS) & (held < 0))
        candidates = np.zeros(len(asked), dtype=np.int64)
        latest = np.full(len(asked), LONG_AGO, dtype=np.int64)
        for queue, index in self.queues_of(self.process[asked]):
            # `index` (into `asked`) is of the waiting work of other queues of the process.
            index = index[self.queue[asked[index]] != self.queue[queue[0]]]
            waiting = asked[index]
            work = self.last_launched(queue, self.called[waiting], self.start[waiting])
            end = taken(self.end, work, LONG_AGO)
            candidates[index] += work >= 0
            is_later = end > latest[index]
            held[waiting[is_later]] = work[is_later]
            latest[index[is_later]] = end[is_later]
        # No guess if only one queue had work, or if the work began right after that end.
        is_close = self.start[asked] - latest < CLOSE_NS
        is_guess = np.zeros(len(held), dtype=np.bool_)
        is_guess[asked] = (candidates > 1) & ~is_close
        return held, is_guess

    @cached_property
    def is_behind_unseen(self) -> BoolArray:
        """Return which work seems to wait for work from before the recording.

        Such work is the first in its queue, was launched before any recorded work of the device
        began, and begins long after its launch returned.
        """
        first_start = group_least(self.device, self.start, int(self.device.max()) + 1)
        is_late = self.start - taken(self.calls_ns[1], self.call, LONG_AGO) > CLOSE_NS
        is_early = (self.call >= 0) & (self.called < first_start[self.device])
        return np.asarray(is_early & is_late & (self.before < 0) & (self.held[0] < 0))

    @cached_property
    def ended_before(self) -> IntArray:
        """Return, per work, the last work of its device to end before it began, or -1."""
        order = np.lexsort((self.end, self.device))
        last = last_up_to(self.device[order], self.end[order], self.device, self.start)
        return taken(order, last)

    @cached_property
    def launch(self) -> tuple[IntArray, IntArray]:
        """Return the usual lag of each launch onto an idle queue, and the part inside its call.

        A lag runs from the start of the call to the start of the work. The usual lag is a median by
        name of the call: of times from the start, or from the end of the call if these vary less.
        If the work began during the call or blocked it, the start counts. Works that begin 5 ns
        after the ends of calls of 2, 9 and 4 ns have lags of 7, 14 and 9 ns, 2, 9 and 4 ns inside.
        """
        called, returned = (taken(ns, self.call, LONG_AGO) for ns in self.calls_ns)
        # Launches with nothing to wait for: the work before them had ended when they were called,
        # or ended so long before they began that they did not wait for it.
        is_idle = self.opens & (self.start >= called) & ~self.is_behind_unseen
        is_idle &= np.maximum(self.free, taken(self.end, self.held[0], LONG_AGO)) <= called
        ended_before = taken(self.end, self.ended_before, LONG_AGO)
        is_idle &= (ended_before <= called) | (self.start - ended_before > CLOSE_NS)
        name = taken(codes(self.prepared.trace.calls["name"]), self.call)

        def lag_and_spread(since: IntArray) -> tuple[IntArray, IntArray]:
            lag = typical(name, self.start - since, is_idle, USUAL_LAUNCH_NS)
            return lag, typical(name, np.abs(self.start - since - lag), is_idle, 0)

        since_start, spread_since_start = lag_and_spread(called)
        since_end, spread_since_end = lag_and_spread(returned)
        from_end = (spread_since_end <= spread_since_start) & (self.start > returned - CLOSE_NS)
        in_call = np.where(from_end & ~self.is_blocking, returned - called, 0)
        return np.where(in_call > 0, since_end + in_call, since_start), in_call

    @cached_property
    def lags(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return usual lags per work: after its launch, after its queue, after another queue."""
        launch, gap = self.launch[0], self.start - self.free
        held_until = taken(self.end, self.held[0], LONG_AGO)
        # Work that waited only for its queue, by kind.
        follows = (self.before >= 0) & (held_until < self.free) & (gap < CLOSE_NS)
        follows &= ~self.opens | (self.free >= self.called + launch)
        kind = codes(self.prepared.trace.activities["kind"])[self.row]
        queue_lag = typical(kind, gap, follows, _USUAL_GAP_NS)
        # Work that waited for another queue after it was launched and its own queue was free.
        is_held = (held_until > self.free + queue_lag) & (held_until > self.called + launch)
        is_held &= self.start - held_until < CLOSE_NS
        all_as_one = np.zeros_like(kind)
        wait_lag = typical(all_as_one, self.start - held_until, is_held, _USUAL_GAP_NS)
        return launch, queue_lag, wait_lag

    @cached_property
    def full(self) -> tuple[IntArray, IntArray]:
        """Return pairs: work whose launch waited for a full queue, and the work that freed a slot.

        The limit of a queue is the most launches that were unfinished when a call returned. It is
        believed if long calls return right after the end of the work so many launches before.
        """
        pairs = [np.empty((2, 0), dtype=np.int64)]
        called, returned = (taken(ns, self.call, LONG_AGO) for ns in self.calls_ns)
        for _, queue in groups(np.where(self.opens, self.queue, -1)):
            rows = queue[np.argsort(called[queue], kind="stable")]
            # Ends [5 9 30], returns [1 6 7]: 1, 2 and 3 launched, 0, 1 and 1 ended by then, so
            # unfinished [1 1 2], and the limit is 2: launch n waits for the end of launch n - 2.
            ended = np.searchsorted(np.sort(self.end[rows]), returned[rows], side="right")
            unfinished = np.arange(1, len(rows) + 1) - ended
            limit = int(unfinished.max())
            # Queues hold many launches. Group -1 is no queue, but all work that opens none.
            if not _LEAST_LIMIT <= limit < len(rows) or not self.opens[rows[0]]:
                continue
            held_up, slot = rows[limit:], rows[:-limit]
            is_long = (returned - called)[held_up] > _LONG_CALL_NS
            late = returned[held_up] - self.end[slot]
            explained_calls = int((is_long & (late >= 0) & (late < CLOSE_NS)).sum())
            # Long calls while the queue was less than half full have other reasons.
            long_calls = int((is_long & (2 * unfinished[limit:] > limit)).sum())
            if explained_calls >= max(_ENOUGH, _MOST_TOLD * long_calls):
                pairs.append(np.stack([held_up, slot]))
        held_up, slot = np.concatenate(pairs, axis=1)
        return held_up, slot

    @cached_property
    def is_only(self) -> BoolArray:
        """Return which work is in the only queue of its process, as a mask."""
        _, queues = np.unique(self.queue, return_index=True)  # a work of each queue
        count = np.bincount(self.process[queues], minlength=int(self.process.max()) + 1)
        return np.asarray(count[self.process] == 1)

    def queues_of(self, process: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
        """Yield the work of each queue, and which indices of `process` are of its process."""
        rows = dict(groups(process))
        for _, work in groups(self.queue):
            rows_of = rows.get(int(self.process[work[0]]))
            if rows_of is not None:
                yield work, rows_of

    def last_launched(self, queue: IntArray, before_ns: IntArray, done_ns: IntArray) -> IntArray:
        """Return the last work of a queue launched before one time and done by another, or -1."""
        rows = queue[np.argsort(self.called[queue], kind="stable")]
        last = np.searchsorted(self.called[rows], before_ns) - 1
        latest_end = np.maximum.accumulate(self.end[rows])  # work ends in the order of launches
        last_done = np.searchsorted(latest_end, done_ns, side="right") - 1
        return taken(rows, np.minimum(last, last_done))
