"""Why a device was idle: each gap split by what the activity that ended it was waiting for.

Let the gap be [g0, g1), A the activity that starts at g1, c the start of A's launch call and r the
time at which that call returned.

* no launch in the trace: unknown
* before c: host_late, nothing had been launched yet
* from c on, if A had been launched before the gap began and its own stream was free before the
  gap began: queued, another stream held it back
* from c on otherwise: launch_latency, launched and not yet started. Its parts are in_launch_call
  until r, stream_wait while a stream wait before A lasts, then launch_to_start. A wait with an
  unknown end counts only if A starts later than launches usually do

If A starts long after r and after the gap began, it waited for something, though nothing ran on the
device. If a stream wait does not explain it, that is not in the trace: the cause is unknown
("unrecorded"). Before the first activity of a stream, earlier work of this stream may be missing
from the trace. There the cause is unknown from c on for a copy whose call blocks, and a stream wait
explains it only if its end is known.

Idle time after the last activity is unknown.

Stream waits are `cudaStreamWaitEvent` and its like before a launch on the same stream.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.table.arrays import ABSENT, BoolArray, IntArray
from traceflops.table.columns import is_one_of, matching, numbers, span_columns
from traceflops.table.grouping import distinct, in_order, ranked, shared_codes
from traceflops.table.links import Links, first_match
from traceflops.table.trace import Trace
from traceflops.timeline.intervals import ENDLESS, NEVER, Intervals, latest_end_before
from traceflops.timeline.records import IdleCauses

_WAIT: Final = re.compile(r"(cuda|cu|hip)StreamWait(Event|Value)")


class StreamWaits(Struct, frozen=True):
    """Per call, until when a stream wait held back what it launched, and for which activity.

    `until_ns` is NEVER without such a wait and ENDLESS if its end is unknown; `work` is the row of
    the last activity that was waited for, -1 if unknown.
    """

    until_ns: IntArray
    work: IntArray


def stream_waits(trace: Trace, links: Links) -> StreamWaits:
    """Return, per call of a trace, the stream wait that held back what it launched.

    A wait holds back the next launch on its stream, or of its thread if the trace does not record
    the stream. It lasts until everything has ended that was launched on the other stream before the
    event was recorded. Streams and events of waits are in marks of kind sync.
    """
    calls, activities, marks = trace.calls, trace.activities, trace.marks
    until = np.full(calls.num_rows, NEVER, dtype=np.int64)
    work = np.full(calls.num_rows, -1, dtype=np.int64)
    wait = np.flatnonzero(matching(calls["name"], _WAIT.match))
    row = np.flatnonzero(links.call_of_activity >= 0)
    if not len(wait) or not len(row):
        return StreamWaits(until, work)
    process, thread, start, correlation = (
        numbers(calls[name], ABSENT) for name in ("process", "thread", "start_ns", "correlation")
    )
    sync = np.flatnonzero(is_one_of(marks["kind"], "sync"))
    mark_process, mark_correlation, mark_start = (
        numbers(marks[name], ABSENT)[sync] for name in ("process", "correlation", "start_ns")
    )
    mark = first_match(mark_process, mark_correlation, mark_start, process[wait], correlation[wait])
    stream, other_stream, event = (
        np.append(numbers(marks[name], ABSENT)[sync], ABSENT)[mark]
        for name in ("stream", "wait_stream", "wait_correlation")
    )
    for column in (stream, other_stream, event):
        column[column < 0] = ABSENT  # profilers write -1 for none

    # Per launched activity (`row`): its call, process, stream, and the start of its call.
    call, owner = links.call_of_activity[row], numbers(activities["process"])[row]
    launch_stream, launched = numbers(activities["stream"], ABSENT)[row], start[call]
    # The launch that each wait holds back: the next one of its stream, else of its thread.
    held_call = np.full(len(wait), -1, dtype=np.int64)
    for is_used, queue_of_wait, queue_of_launch in (
        (stream != ABSENT, stream, launch_stream),
        (stream == ABSENT, thread[wait], thread[call]),
    ):
        rows = wait[is_used]
        group = shared_codes((owner, queue_of_launch), (process[rows], queue_of_wait[is_used]))
        following = _next_launch(np.concatenate(group), launched, start[rows])
        held_call[is_used] = np.where(following >= 0, call[following], -1)

    # The activity that ends last of those that each wait waits for.
    record = first_match(process, correlation, start, process[wait], event)
    has_record = np.flatnonzero((record >= 0) & (other_stream != ABSENT))
    group = shared_codes(
        (owner, launch_stream), (process[wait[has_record]], other_stream[has_record])
    )
    _, ended = span_columns(activities)
    last_row = np.full(len(wait), -1, dtype=np.int64)
    latest = _latest_ending(np.concatenate(group), launched, ended[row], start[record[has_record]])
    last_row[has_record] = np.append(row, -1)[latest]
    holds = held_call >= 0
    held_call, last_row = held_call[holds], last_row[holds]
    end = np.where(last_row >= 0, ended[last_row], ENDLESS)
    order = np.argsort(end, kind="stable")  # the longest wait of a call is written last, and stays
    until[held_call[order]] = end[order]
    work[held_call[order]] = last_row[order]
    return StreamWaits(until, work)


def _next_launch(group: IntArray, launched: IntArray, since: IntArray) -> IntArray:
    """Return, per time in `since`, the index of the next launch of its group, or -1.

    `launched` has the times of the launches; `group` the groups of these, then of `since`.
    """
    is_launch = np.arange(len(group)) < len(launched)
    order = in_order(group, np.concatenate([launched, since]), is_launch.astype(np.int64))
    # Per position in that order, the first launch at or after it: a running minimum from the end.
    # Is a launch [0 0 1 0 1]: position [5 5 2 5 4], following [2 2 2 4 4]; 5 stands for none.
    position = np.where(is_launch[order], np.arange(len(order)), len(order))
    following = np.minimum.accumulate(position[::-1])[::-1]
    after = np.append(order, -1)[following]
    after[(after >= 0) & (group[after] != group[order])] = -1
    result = np.empty(len(group), dtype=np.int64)
    result[order] = after
    return result[len(launched) :]


def _latest_ending(
    group: IntArray, launched: IntArray, end_ns: IntArray, before_ns: IntArray
) -> IntArray:
    """Return, per time in `before_ns`, which launch of its group up to then ends last, or -1.

    Launches are indices; `end_ns` is the end of their work, `group` as in `_next_launch`.
    """
    # Ends are replaced by their ranks, and groups are shifted apart by more than any rank: so one
    # running maximum serves all groups. Ranks of three launches, 0 for times, [2 1 0 | 3 0], shift
    # [0 0 0 | 4 4]: the sums [2 1 0 7 4] have the maximum [2 2 2 7 7], so latest is [2 2 2 3 3].
    by_end, count = np.argsort(end_ns, kind="stable"), len(end_ns)
    rank = np.zeros(len(group), dtype=np.int64)  # 0 for the times: nothing yet
    rank[by_end] = np.arange(1, count + 1)
    is_launch = np.arange(len(group)) < count
    order = in_order(group, np.concatenate([launched, before_ns]), is_launch * 1)
    _, code = ranked(group[order])
    shift = code * (count + 1)
    latest = np.maximum.accumulate(rank[order] + shift) - shift
    result = np.empty(len(group), dtype=np.int64)
    result[order] = np.append(by_end, -1)[latest - 1]  # rank 0, no launch, takes the -1 at the end
    return result[count:]


LONGEST_START_NS: Final = 1_000_000
"""The longest that a launch takes to reach a stream that is free."""
_LONGEST_LATENCY_NS: Final = 20_000
"""The longest that an ordinary launch takes from call to start, without a stream wait."""
_LATENCY: Final = ("in_launch_call", "stream_wait", "launch_to_start")


class DeviceWork(Struct, frozen=True):
    """The activities of one device, sorted by start: times, streams and launches.

    `call_start_ns` and `call_end_ns` are ABSENT if no launch is known. `waited_until_ns` is the end
    of a stream wait that held the activity back: NEVER without one, ENDLESS if unknown.
    """

    start_ns: IntArray
    end_ns: IntArray
    stream: IntArray
    is_copy: BoolArray
    call_start_ns: IntArray
    call_end_ns: IntArray
    waited_until_ns: IntArray


class IdleTime(Struct, frozen=True):
    """The gaps of one device and their split by cause.

    `gap_start_ns` and `gap_end_ns` are per gap, in order; an activity without length ends one gap
    and begins the next. `next_row` is, per gap, the activity that ends it (a row of the device's
    work). `by_cause` has the time of each known cause and of `unrecorded`, all disjoint; the rest
    of the gaps is unknown. `unseen` is the part of `unrecorded` in which graphs without a record
    may have run: the launch of the next activity does not explain it.
    """

    gap_start_ns: IntArray
    gap_end_ns: IntArray
    next_row: IntArray
    by_cause: dict[str, Intervals]
    unseen: Intervals

    def without(self, start_up: Intervals) -> IdleTime:
        """Return the gaps with causes only outside of `start_up`."""
        if not len(start_up):
            return self
        by_cause = {cause: part.subtract(start_up) for cause, part in self.by_cause.items()}
        return replace(self, by_cause=by_cause, unseen=self.unseen.subtract(start_up))

    def explained_by(self, times: Intervals) -> IdleTime:
        """Return the gaps with recorded causes for late starts in these `times`."""
        unrecorded = self.by_cause["unrecorded"].subtract(times).union(self.unseen)
        return replace(self, by_cause={**self.by_cause, "unrecorded": unrecorded})

    def late(self, start_ns: IntArray, end_ns: IntArray) -> IntArray:
        """Return the unrecorded ns in each time, and those of the gaps that end in it: two rows."""
        unrecorded = self.by_cause["unrecorded"]
        of_gap = unrecorded.length_within(self.gap_start_ns, self.gap_end_ns)
        upto_ns = np.append(0, np.cumsum(of_gap))
        first, stop = np.searchsorted(self.gap_end_ns, (start_ns, end_ns))
        within_ns = unrecorded.length_within(start_ns, end_ns)
        return np.stack([within_ns, upto_ns[stop] - upto_ns[first]])

    def causes(self, start_ns: IntArray, end_ns: IntArray, idle_ns: IntArray) -> list[IdleCauses]:
        """Return the idle causes of each window [start, end); the rest of `idle_ns` is unknown."""
        ns = {name: part.length_within(start_ns, end_ns) for name, part in self.by_cause.items()}
        latency = sum((ns[name] for name in _LATENCY), np.zeros_like(idle_ns))
        unknown = idle_ns - ns["host_late"] - ns["queued"] - latency
        columns = [  # in the order of the fields of IdleCauses
            *(ns["host_late"], ns["queued"], latency, unknown),
            *(ns["in_launch_call"], ns["stream_wait"], ns["unrecorded"]),
        ]
        return [IdleCauses(*row) for row in np.stack(columns, axis=1).tolist()]


def idle_time(work: DeviceWork, busy: Intervals, replays: Intervals, begin_ns: int) -> IdleTime:
    """Split the gaps of a device, from `begin_ns` to the end of its work, by cause.

    Rules: see the head of this file. In the times of `replays`, work without a record may have run.
    """
    start, end = _gaps(work, busy)
    first_ns = int(work.start_ns[0])
    if begin_ns < first_ns:
        start, end = np.append(begin_ns, start), np.append(first_ns, end)
    # The activity that ends each gap: of several that start together, the one launched first.
    launch = np.where(work.call_start_ns == ABSENT, ENDLESS, work.call_start_ns)
    order = in_order(work.start_ns, launch)
    row = order[np.searchsorted(work.start_ns[order], end, side="left")]
    call, until = work.call_start_ns[row], work.waited_until_ns[row]
    has_call = call != ABSENT
    free_since = latest_end_before(work.stream, work.start_ns, work.end_ns, strictly=True)[row]

    # Cut to the gap: when that activity was launched, its call returned, its stream wait ended.
    # Gap [10, 50): a call from 20 to 30 stays, one from 2 to 5 becomes 10 to 10.
    launched = np.clip(call, start, end)
    returned = np.clip(work.call_end_ns[row], launched, end)
    # A wait with an unknown end counts only if the start is later than that of a usual launch.
    is_usual = (until == ENDLESS) & (end - returned <= _LONGEST_LATENCY_NS)
    waited = np.where(is_usual, returned, np.clip(until, returned, end))
    # Up to `explained` something known held the activity back. What comes after is unrecorded if it
    # is too long for a start. Before the first work of a stream, earlier work may be missing: then
    # a copy that blocks its call, or a stream wait of unknown end, may have waited for that.
    is_first = (free_since == NEVER) & (work.stream[row] != ABSENT)
    is_blocking_copy = work.is_copy[row] & (work.call_end_ns[row] >= work.end_ns[row])
    is_vague_wait = until == ENDLESS
    explained = np.select(
        [is_first & is_blocking_copy, is_first & is_vague_wait], [launched, returned], waited
    )
    unrecorded = has_call & (end - explained > LONGEST_START_NS)
    settled = np.where(unrecorded, explained, end)
    returned, waited = np.minimum(returned, settled), np.minimum(waited, settled)

    was_launched_before = call < start
    queued = has_call & was_launched_before & (free_since < start) & ~unrecorded
    direct = has_call & ~queued
    unseen = Intervals.of(start, end).intersect(replays)
    by_cause = {
        "host_late": Intervals.of(start[has_call], launched[has_call]),
        "queued": Intervals.of(launched[queued], end[queued]),
        "in_launch_call": Intervals.of(launched[direct], returned[direct]),
        "stream_wait": Intervals.of(returned[direct], waited[direct]),
        "launch_to_start": Intervals.of(waited[direct], settled[direct]),
        "unrecorded": Intervals.of(settled[direct], end[direct]),
    }
    by_cause = {cause: part.subtract(unseen) for cause, part in by_cause.items()}
    by_cause["unrecorded"] = by_cause["unrecorded"].union(unseen)
    return IdleTime(start, end, row, by_cause, unseen)


def _gaps(work: DeviceWork, busy: Intervals) -> tuple[IntArray, IntArray]:
    """Return starts and ends of the gaps: times between two activities in which none ran."""
    instants = distinct(work.start_ns[work.start_ns == work.end_ns])
    if len(busy) == 0:  # no activity has a length
        return instants[:-1], instants[1:]
    low, high = int(work.start_ns.min()), int(work.end_ns.max())
    free = busy.complement(low, high)
    # An activity without length divides a gap only if it lies inside it.
    inside = instants[free.contains(instants) & free.contains(instants - 1)]
    starts, ends = np.append(free.start_ns, inside), np.append(inside, free.end_ns)
    return np.sort(starts), np.sort(ends)
