"""Idle time cut into slices, each with what the host did meanwhile. See `idle_slices`.

A gap ends with an activity that the call L of thread T launched. Up to L the host is what the
device waits for: each slice has the innermost event of T. Where T shows nothing, or runs a backward
pass that other threads do, it has that of whichever thread last began an operator or a call. From L
on it is the launch: inside the call, then after it. On a CPU an operator ends a gap, and T is its
thread: nothing launches it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from traceflops.attribution.host_events import CALL, LABEL, OP, HostEvents
from traceflops.attribution.launch_lead import leads
from traceflops.table.columns import ABSENT, BoolArray, Columns, IntArray
from traceflops.table.grouping import differ_from_before, in_order, runs
from traceflops.table.grouping import groups as by_group
from traceflops.table.nesting import innermost, taken
from traceflops.timeline.account import DeviceAccount
from traceflops.timeline.intervals import Intervals
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import chosen_time

HOST, IN_CALL, AFTER_CALL, NO_LAUNCH = range(4)
_DECADES_NS: Final = 10 ** np.arange(19)


@dataclass(frozen=True, slots=True)
class GapParts(Columns):
    """The parts of gaps that lie in chosen windows, a row each; times in ns.

    `gap_start_ns` and `gap_end_ns` are those of the whole gap, `activity` the one that ends it and
    `call` its launch: rows of their tables, -1 where no launch is known. `op` is that of a CPU, -1
    for none: it starts as soon as its thread comes to it. What starts within `cap_ns` of its launch
    started at once.
    """

    start_ns: IntArray
    end_ns: IntArray
    gap_start_ns: IntArray
    gap_end_ns: IntArray
    activity: IntArray
    call: IntArray
    call_start_ns: IntArray
    call_end_ns: IntArray
    cap_ns: IntArray
    op: IntArray

    @property
    def launched_ns(self) -> IntArray:
        """Return since when, in each gap, the activity that ends it was launched."""
        return np.maximum(self.call_start_ns, self.gap_start_ns)


def chosen_gaps(prepared: Prepared) -> GapParts:
    """Return the parts of gaps in the chosen windows of all devices, at least one."""
    return GapParts.joined(
        gap_parts(account, chosen_time(prepared.windows[device]))
        for device, account in prepared.accounts.items()
    )


def gap_parts(account: DeviceAccount, within: Intervals, cap_ns: int | None = None) -> GapParts:
    """Return the parts of a device's gaps in some windows; `cap_ns` if it is known already.

    Start-up is no part of them. Where replays without a record may have run, no launch tells what
    the device waited for.
    """
    idle, work, within = account.idle, account.work, within.subtract(account.start_up)
    unseen = within.intersect(idle.unseen)
    seen = within.subtract(unseen)
    begin_ns = np.sort(np.append(seen.start_ns, unseen.start_ns))
    end_ns = np.sort(np.append(seen.end_ns, unseen.end_ns))
    first = np.searchsorted(idle.gap_end_ns, begin_ns, side="right")
    stop = np.searchsorted(idle.gap_start_ns, end_ns, side="left")
    gap, window = runs(first, stop)
    row, is_seen = idle.next_row[gap], ~unseen.contains(begin_ns)[window]
    return GapParts(
        np.maximum(idle.gap_start_ns[gap], begin_ns[window]),
        np.minimum(idle.gap_end_ns[gap], end_ns[window]),
        idle.gap_start_ns[gap],
        idle.gap_end_ns[gap],
        account.rows.row[row],
        np.where(is_seen, account.timed_call[row], -1),
        np.where(is_seen, work.call_start_ns[row], ABSENT),
        np.where(is_seen, work.call_end_ns[row], ABSENT),
        np.full(len(row), leads(account).cap_ns if cap_ns is None else cap_ns),
        account.op[row],
    )


@dataclass(frozen=True, slots=True)
class GapLengths:
    """The gaps of one decade of lengths, from `from_ns` to below `to_ns`, and their time."""

    from_ns: int
    to_ns: int
    gaps: int
    idle_ns: int


def gap_lengths(length_ns: IntArray) -> tuple[GapLengths, ...]:
    """Return lengths by decade: all decades from the shortest to the longest."""
    if not len(length_ns):
        return ()
    decade = np.searchsorted(_DECADES_NS[1:-1], length_ns, side="right")
    rows = []
    for number in range(int(decade.min()), int(decade.max()) + 1):
        low, high = int(_DECADES_NS[number]), int(_DECADES_NS[number + 1])
        lengths = length_ns[decade == number]
        rows.append(GapLengths(low, high, len(lengths), int(lengths.sum())))
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class Slices(Columns):
    """Disjoint slices of gap parts, which they fill exactly; times in ns.

    `part` is a row of GapParts, `role` HOST to NO_LAUNCH. `event` is the event that tells of the
    slice, `own` that of the launching thread, `label` the label around it there: rows of
    HostEvents or -1.
    """

    part: IntArray
    role: IntArray
    start_ns: IntArray
    end_ns: IntArray
    event: IntArray
    own: IntArray
    label: IntArray

    @property
    def dur_ns(self) -> IntArray:
        """Return the length of each slice."""
        return self.end_ns - self.start_ns


def idle_slices(parts: GapParts, events: HostEvents) -> Slices:
    """Return the slices of gap parts."""
    known, is_op = parts.call >= 0, parts.op >= 0
    launched = np.where(is_op, parts.end_ns, parts.launched_ns)
    launched = np.clip(launched, parts.start_ns, parts.end_ns)
    returned = np.clip(parts.call_end_ns, launched, parts.end_ns)
    waits = np.flatnonzero((known | is_op) & (launched > parts.start_ns))
    pieces = list(_host_slices(parts, waits, launched, events))
    call = events.of_call(parts.call)
    for role, is_of_role, start, end, event in (
        (IN_CALL, known, launched, returned, call),
        (AFTER_CALL, known, returned, parts.end_ns, call),
        (NO_LAUNCH, ~(known | is_op), parts.start_ns, parts.end_ns, np.full_like(parts.call, -1)),
    ):
        part = np.flatnonzero(is_of_role & (end > start))
        roles, none = np.full((2, len(part)), [[role], [-1]])
        pieces.append(Slices(part, roles, start[part], end[part], event[part], event[part], none))
    return Slices.joined(pieces)


def starters(parts: GapParts, events: HostEvents) -> tuple[IntArray, IntArray]:
    """Return process and thread, as events have it, that began the work at the end of each part.

    -1 where neither a call nor an operator of a CPU is known.
    """
    is_op = parts.op >= 0
    return (
        np.where(
            is_op, taken(events.process_of_op, parts.op), taken(events.process_of_call, parts.call)
        ),
        np.where(
            is_op, taken(events.thread_of_op, parts.op), taken(events.thread_of_call, parts.call)
        ),
    )


def _host_slices(
    parts: GapParts, part: IntArray, until: IntArray, events: HostEvents
) -> tuple[Slices, Slices]:
    """Return the slices of some parts up to a time: by their own thread, and by other threads."""
    processes, threads = starters(parts.only(part), events)
    is_label = events.kind == LABEL
    spans = parts.start_ns[part], until[part], threads
    which, start, end = _cut(spans, events, events.thread, events.is_work | is_label)
    own = innermost_of(events, events.is_work, events.thread, threads[which], start)
    label = innermost_of(events, is_label, events.thread, threads[which], start)
    slices = Slices(part[which], np.full_like(which, HOST), start, end, own, own, label)
    loads = events.is_inside("data_input", own, label)
    silent = ((own < 0) | events.has_fact("runs_backward", own)) & ~loads
    # Where the own thread shows nothing: what any thread of the process did.
    others, process = slices.only(silent), processes[which[silent]]
    works = ((events.kind == CALL) | (events.kind == OP)) & events.is_work
    spans = others.start_ns, others.end_ns, process
    which, start, end = _cut(spans, events, events.process, works)
    event = innermost_of(events, works, events.process, process[which], start)
    others = replace(others.only(which), start_ns=start, end_ns=end, event=event)
    return slices.only(~silent), others


def _cut(
    spans: tuple[IntArray, IntArray, IntArray], events: HostEvents, group: IntArray, some: BoolArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Return the pieces of spans between the edges of some events of their group.

    `spans` are start, end and group (a thread or a process) per span, `group` is per event. Per
    piece, in the order of spans and times: the span, start and end.
    """
    span_start, span_end, span_group = spans
    rows = np.flatnonzero(some)
    groups, edges = np.tile(group[rows], 2), np.append(events.start_ns[rows], events.end_ns[rows])
    order = in_order(groups, edges)
    groups, edges = groups[order], edges[order]
    first = places_in_groups(groups, edges, span_group, span_start)
    stop = places_in_groups(groups, edges, span_group, span_end)
    places, which = runs(first - 1, stop)  # the first piece of a span begins with it
    opens = differ_from_before(which)
    closes = np.append(opens[1:], True)[: len(which)]
    start = np.where(opens, span_start[which], taken(edges, places))
    end = np.where(closes, span_end[which], np.roll(start, -1))
    lasts = end > start
    return which[lasts], start[lasts], end[lasts]


def places_in_groups(
    groups: IntArray, times: IntArray, at_group: IntArray, at_ns: IntArray
) -> IntArray:
    """Return, per instant (group and time), how many of the sorted (group, time) pairs are before.

    Pairs with the same time count.
    """
    places = np.empty(len(at_ns), dtype=np.int64)
    for group, rows in by_group(at_group):
        first, stop = np.searchsorted(groups, [group, group + 1])
        places[rows] = first + np.searchsorted(times[first:stop], at_ns[rows], side="right")
    return places


def innermost_of(
    events: HostEvents, some: BoolArray, group: IntArray, at_group: IntArray, at_ns: IntArray
) -> IntArray:
    """Return, per instant, the innermost of some events of its group, or -1."""
    rows = np.flatnonzero(some)
    start, end = events.start_ns[rows], events.end_ns[rows]
    return taken(rows, innermost(group[rows], start, end, at_group, at_ns))
