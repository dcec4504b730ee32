"""What a launch had to wait for on its stream: `cudaStreamWaitEvent` and its like before it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.table import (
    ABSENT,
    IntArray,
    Links,
    Trace,
    first_match,
    in_order,
    is_one_of,
    joint_codes,
    matching,
    numbers,
    ranked,
)
from traceflops.timeline.intervals import NEVER

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
