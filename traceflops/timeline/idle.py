"""Why a device did nothing: each gap split by what the activity that ended it was waiting for.

Let the gap be [g0, g1), A the activity that starts at g1, c the start of A's launch call and r the
time at which that call returned.

* no launch in the trace: unknown
* before c: host_late, nothing had been launched yet
* from c on, if A had been launched before the gap began and its own stream was free before the
  gap began: queued, another stream held it back
* from c on otherwise: launch_latency, launched and not yet started. Before r it is in the launch
  call, then while a stream wait before A lasts it is a stream wait, then it is launch to start.
  A wait of which the end is not known counts only where A starts later than launches usually do

Where A starts long after r and after the gap began, it waited for something that is not in the
trace: nothing ran on the device meanwhile. Unless a stream wait explains it, the cause is unknown.
Before the first known activity of a stream even less is known, since earlier work of the stream may
be missing: there it is unknown from c on for a copy whose call blocks, and a stream wait explains
it only where its end is known.

Time in which nothing runs and nothing starts any more (after the last activity) is unknown.

What a launch had to wait for on its stream: `cudaStreamWaitEvent` and its like before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    Links,
    Trace,
    distinct,
    first_match,
    in_order,
    is_one_of,
    joint_codes,
    matching,
    numbers,
    ranked,
)
from traceflops.timeline.intervals import NEVER, Intervals, latest_end_before
from traceflops.timeline.records import IdleCauses

ENDLESS: Final = int(np.iinfo(np.int64).max)
"""Stands for the time of an event of which it is not known when it was reached."""

_WAIT: Final = re.compile(r"(cuda|cu|hip)StreamWait(Event|Value)")
_FACTS: Final = ("stream", "wait_stream", "wait_correlation")


@dataclass(frozen=True, slots=True)
class StreamWaits:
    """Per call, until when a stream wait held back what it launched, and for which activity.

    `until_ns` is NEVER without a wait before it and ENDLESS where the end of the wait is not
    known; `work` is the last activity before the event, -1 where it is not known.
    """

    until_ns: IntArray
    work: IntArray


@dataclass(frozen=True, slots=True)
class _Launches:
    """The activities that were launched: their rows, processes, streams, and launch calls."""

    row: IntArray
    process: IntArray
    stream: IntArray
    call: IntArray
    start_ns: IntArray


def stream_waits(trace: Trace, links: Links) -> StreamWaits:
    """Return what the launches of a trace had to wait for.

    A wait holds back the next launch on its stream; where the trace does not say on which stream
    it is, the next launch of its thread. It lasts until everything has ended that was launched on
    the other stream before the event was recorded.
    """
    calls = trace.calls
    until = np.full(calls.num_rows, NEVER, dtype=np.int64)
    work = np.full(calls.num_rows, -1, dtype=np.int64)
    wait = np.flatnonzero(matching(calls["name"], _WAIT.match))
    launches = _launches(trace, links)
    if not len(wait) or not len(launches.row):
        return StreamWaits(until, work)
    facts = _facts(trace, wait)
    held = _held_launch(trace, wait, facts["stream"], launches)
    last = _last_before_event(trace, wait, facts, launches)
    held, last = held[held >= 0], last[held >= 0]
    end = _ends(trace, last)
    order = np.argsort(end, kind="stable")  # of several waits the one that lasts longest
    until[held[order]] = end[order]
    work[held[order]] = last[order]
    return StreamWaits(until, work)


def _launches(trace: Trace, links: Links) -> _Launches:
    row = np.flatnonzero(links.call_of_activity >= 0)
    call = links.call_of_activity[row]
    activities = trace.activities
    return _Launches(
        row,
        numbers(activities["process"])[row],
        numbers(activities["stream"], ABSENT)[row],
        call,
        numbers(trace.calls["start_ns"])[call],
    )


def _facts(trace: Trace, wait: IntArray) -> dict[str, IntArray]:
    """Return what the profiler's own mark of each wait says of it."""
    marks, calls = trace.marks, trace.calls
    row = np.flatnonzero(is_one_of(marks["kind"], "sync"))
    mark = first_match(
        numbers(marks["process"])[row],
        numbers(marks["correlation"], ABSENT)[row],
        numbers(marks["start_ns"])[row],
        numbers(calls["process"])[wait],
        numbers(calls["correlation"], ABSENT)[wait],
    )
    facts = {}
    for name in _FACTS:
        values = np.append(numbers(marks[name], ABSENT)[row], ABSENT)[mark]
        facts[name] = np.where(values < 0, ABSENT, values)  # profilers write -1 for none
    return facts


def _held_launch(trace: Trace, wait: IntArray, stream: IntArray, launches: _Launches) -> IntArray:
    """Return the call that each wait holds back, -1 where nothing is launched after it."""
    calls = trace.calls
    process, start = numbers(calls["process"])[wait], numbers(calls["start_ns"])[wait]
    thread = numbers(calls["thread"], ABSENT)
    on_stream = stream != ABSENT
    held = np.full(len(wait), -1, dtype=np.int64)
    for mine, of_wait, of_launch in (
        (on_stream, stream, launches.stream),
        (~on_stream, thread[wait], thread[launches.call]),
    ):
        place = _neighbour(
            np.concatenate([launches.process, process[mine]]),
            np.concatenate([of_launch, of_wait[mine]]),
            np.concatenate([launches.start_ns, start[mine]]),
            len(launches.row),
        )
        held[mine] = np.where(place >= 0, launches.call[place], -1)
    return held


def _neighbour(process: IntArray, queue: IntArray, time: IntArray, known: int) -> IntArray:
    """Return, for each row from `known` on, the next of the rows before `known` in its queue."""
    group = joint_codes(process, queue)
    is_known = np.arange(len(group)) < known
    order = in_order(group, time, is_known.astype(np.int64))
    place = np.where(is_known[order], np.arange(len(order)), len(order))
    following = np.minimum.accumulate(place[::-1])[::-1]
    after = np.append(order, -1)[following]
    after[(after >= 0) & (group[after] != group[order])] = -1
    neighbour = np.empty(len(group), dtype=np.int64)
    neighbour[order] = after
    return neighbour[known:]


def _last_before_event(
    trace: Trace, wait: IntArray, facts: dict[str, IntArray], launches: _Launches
) -> IntArray:
    """Return the activity that ends last of those before the event of each wait; -1 if unknown."""
    calls = trace.calls
    process = numbers(calls["process"])
    record = first_match(
        process,
        numbers(calls["correlation"], ABSENT),
        numbers(calls["start_ns"]),
        process[wait],
        facts["wait_correlation"],
    )
    known = np.flatnonzero((record >= 0) & (facts["wait_stream"] != ABSENT))
    last = np.full(len(wait), -1, dtype=np.int64)
    last[known] = _latest_ending(
        launches,
        _ends(trace, launches.row),
        joint_codes(
            np.concatenate([launches.process, process[wait[known]]]),
            np.concatenate([launches.stream, facts["wait_stream"][known]]),
        ),
        numbers(calls["start_ns"])[record[known]],
    )
    return last


def _latest_ending(
    launches: _Launches, end_ns: IntArray, group: IntArray, before_ns: IntArray
) -> IntArray:
    """Return, per time, the latest ending activity of its group launched earlier, or -1.

    Ends are replaced by their places in order and groups shifted apart by more than any place, so
    that one running maximum serves all groups.
    """
    by_end, count = np.argsort(end_ns, kind="stable"), len(end_ns)
    place = np.zeros(len(group), dtype=np.int64)  # 0 for the questions: nothing yet
    place[by_end] = np.arange(1, count + 1)
    is_launch = np.arange(len(group)) < count
    order = in_order(group, np.concatenate([launches.start_ns, before_ns]), is_launch * 1)
    _, code = ranked(group[order])
    shift = code * (count + 1)
    latest = np.maximum.accumulate(place[order] + shift) - shift
    answer = np.empty(len(group), dtype=np.int64)
    answer[order] = np.append(launches.row[by_end], -1)[latest - 1]
    return answer[count:]


def _ends(trace: Trace, row: IntArray) -> IntArray:
    """Return when activities end, ENDLESS for -1."""
    start, duration = (numbers(trace.activities[name]) for name in ("start_ns", "dur_ns"))
    return np.where(row >= 0, start[row] + duration[row], ENDLESS)


LONGEST_START_NS: Final = 1_000_000
"""No launch takes so long to reach a stream on which nothing is left to do."""
_LONGEST_WAY_NS: Final = 20_000
"""As long as an ordinary launch takes from its call to its start: no sign of a stream wait."""
_LATENCY: Final = ("in_launch_call", "stream_wait", "launch_to_start")


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """The activities of one device, sorted by start: times, streams and launches.

    `call_start_ns` and `call_end_ns` are ABSENT where no launch is known. `waited_until_ns` is
    until when a stream wait held the activity back: NEVER without one, ENDLESS where unknown.
    """

    start_ns: IntArray
    end_ns: IntArray
    stream: IntArray
    is_copy: BoolArray
    call_start_ns: IntArray
    call_end_ns: IntArray
    waited_until_ns: IntArray


@dataclass(frozen=True, slots=True)
class IdleTime:
    """The gaps of one device and their split by cause.

    `gap_start_ns` and `gap_end_ns` are the gaps in order; an activity without length ends one gap
    and begins the next. `next_row` is the activity that ends each (a row of the device's work),
    `by_cause` the instants of each known cause and of `unrecorded`, all disjoint; what is left of
    the gaps is unknown, too. `unseen` is the part of `unrecorded` in which graphs may have run of
    whose replays there is no record: whoever launched what came next is not why.
    """

    gap_start_ns: IntArray
    gap_end_ns: IntArray
    next_row: IntArray
    by_cause: dict[str, Intervals]
    unseen: Intervals

    def causes(self, start_ns: IntArray, end_ns: IntArray, idle_ns: IntArray) -> list[IdleCauses]:
        """Return the causes of the idle time of windows; what lies outside all work is unknown."""
        ns = {name: at.length_within(start_ns, end_ns) for name, at in self.by_cause.items()}
        latency = sum((ns[name] for name in _LATENCY), np.zeros_like(idle_ns))
        unknown = idle_ns - ns["host_late"] - ns["queued"] - latency
        columns = [
            *(ns["host_late"], ns["queued"], latency, unknown),
            *(ns["in_launch_call"], ns["stream_wait"], ns["unrecorded"]),
        ]
        return [IdleCauses(*row) for row in np.stack(columns, axis=1).tolist()]


def idle_time(work: DeviceWork, busy: Intervals, replays: Intervals) -> IdleTime:
    """Return the gaps between the activities of a device and their causes.

    During `replays` work may have run of which there is no record.
    """
    start, end = _gaps(work, busy)
    row = _first_starting(work, end)
    call = work.call_start_ns[row]
    has_call = call != ABSENT
    launched = np.clip(call, start, end)
    free_since = latest_end_before(work.stream, work.start_ns, work.end_ns, strictly=True)[row]
    returned, waited = _latency(work, row, launched, end)
    is_first = (free_since == NEVER) & (work.stream[row] != ABSENT)
    settled = _settled(work, row, is_first, (launched, returned, waited))
    unrecorded = settled < end
    returned, waited = np.minimum(returned, settled), np.minimum(waited, settled)
    queued = has_call & (call < start) & (free_since < start) & ~unrecorded
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
    by_cause = {cause: at.subtract(unseen) for cause, at in by_cause.items()}
    by_cause["unrecorded"] = by_cause["unrecorded"].union(unseen)
    return IdleTime(start, end, row, by_cause, unseen)


def _latency(
    work: DeviceWork, row: IntArray, launched: IntArray, end: IntArray
) -> tuple[IntArray, IntArray]:
    """Return when, inside each gap, the launch call returned and when a stream wait was over."""
    returned = np.clip(work.call_end_ns[row], launched, end)
    until = work.waited_until_ns[row]
    is_usual = (until == ENDLESS) & (end - returned <= _LONGEST_WAY_NS)
    return returned, np.where(is_usual, returned, np.clip(until, returned, end))


def _settled(
    work: DeviceWork,
    row: IntArray,
    is_first: BoolArray,
    times: tuple[IntArray, IntArray, IntArray],
) -> IntArray:
    """Return from when on, in each gap, nothing explains why the activity has not yet started.

    That is its start where it is explained. `times` are when it was launched, its call returned and
    its stream wait was over.
    """
    launched, returned, waited = times
    end = work.start_ns[row]
    blocks = is_first & work.is_copy[row] & (work.call_end_ns[row] >= work.end_ns[row])
    is_vague = is_first & (work.waited_until_ns[row] == ENDLESS)
    explained = np.where(blocks, launched, np.where(is_vague, returned, waited))
    is_late = (work.call_start_ns[row] != ABSENT) & (end - explained > LONGEST_START_NS)
    return np.where(is_late, explained, end)


def _gaps(work: DeviceWork, busy: Intervals) -> tuple[IntArray, IntArray]:
    """Return the stretches between two activities in which none ran."""
    instants = distinct(work.start_ns[work.start_ns == work.end_ns])
    if len(busy) == 0:
        return instants[:-1], instants[1:]
    low, high = int(work.start_ns.min()), int(work.end_ns.max())
    free = busy.complement(low, high)
    # Those that begin a free stretch part nothing: what is free touches no other stretch.
    inside = instants[free.contains(instants) & free.contains(instants - 1)]
    return (
        np.sort(np.concatenate([free.start_ns, inside])),
        np.sort(np.concatenate([inside, free.end_ns])),
    )


def _first_starting(work: DeviceWork, at_ns: IntArray) -> IntArray:
    """Return the activity that starts at each time; of several the one launched first."""
    launch = np.where(work.call_start_ns == ABSENT, np.iinfo(np.int64).max, work.call_start_ns)
    order = in_order(work.start_ns, launch)
    return order[np.searchsorted(work.start_ns[order], at_ns, side="left")]
