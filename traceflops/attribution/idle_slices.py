"""Idle time cut into slices, each with the host event that the device waited for.

A gap ends with an activity that the call L of thread T launched. Until L begins, the device waits
for the host: each slice gets the innermost event of T at that time. Where T has no event, or runs a
backward pass (which other threads work on), the slice gets the operator or call of any thread of
the process that began last; if the input pipeline makes L, also its ranges. From L on the device
waits for the launch: inside the call, then after it; if that takes long, calls of the process that
allocate memory meanwhile explain it. On a CPU a gap ends with an operator, T is its
thread, and there is no launch; where T has no event, functions of other threads explain the slice
unless they wait.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.attribution.host_events import CALL, FRAME, LABEL, OP, HostEvents
from traceflops.attribution.launch_lead import leads
from traceflops.table.columns import ABSENT, BoolArray, Columns, IntArray, numbers
from traceflops.table.grouping import group_rows, group_sums, places_in_runs, runs
from traceflops.table.nesting import StackTops, innermost_pieces, taken
from traceflops.table.patterns import ALLOCATES
from traceflops.table.trace import Trace
from traceflops.timeline.account import DeviceAccount
from traceflops.timeline.intervals import Intervals
from traceflops.windows.prepared import MOST_DEVICES, Prepared
from traceflops.windows.records import chosen_time

HOST, IN_CALL, AFTER_CALL, NO_LAUNCH = range(4)
_DECADES_NS: Final = 10 ** np.arange(19)
_STARTS_THREAD: Final = re.compile(r"(^|/)threading\.py\(\d+\): (_bootstrap\w*|run)$")


class GapParts(Columns, frozen=True):
    """The parts of gaps that lie in chosen windows, a row each; times in ns.

    `gap_start_ns` and `gap_end_ns` are the edges of the whole gap. `activity` ends the gap and
    `call` launched this activity: rows of their tables, -1 if unknown. `op` is the operator of a
    CPU that ends the gap, else -1. An activity that starts within `cap_ns` of its launch counts as
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


def chosen_gaps(prepared: Prepared) -> GapParts:
    """Return the parts of gaps in the chosen windows of all devices."""
    return GapParts.joined(
        gap_parts(account, chosen_time(prepared.windows[device]))
        for device, account in prepared.accounts.items()
    )


def gap_parts(account: DeviceAccount, within: Intervals, cap_ns: int | None = None) -> GapParts:
    """Return the parts of a device's gaps that lie `within` some time, without start-up.

    `cap_ns` is computed if it is not given. Where graph replays without a record may have run, the
    call is -1: the launch does not tell what the device waited for.
    """
    idle, work, within = account.idle, account.work, within.subtract(account.start_up)
    unseen = within.intersect(idle.unseen)
    seen = within.subtract(unseen)
    # The pieces of both are disjoint, so sorting starts and ends apart keeps them together:
    # seen [0, 4) and [8, 9), unseen [4, 8)  ->  begin [0 4 8], end [4 8 9]
    begin_ns = np.sort(np.append(seen.start_ns, unseen.start_ns))
    end_ns = np.sort(np.append(seen.end_ns, unseen.end_ns))
    # Every pair of a piece (`window`) and a gap that it overlaps.
    first_gap = np.searchsorted(idle.gap_end_ns, begin_ns, side="right")
    stop_gap = np.searchsorted(idle.gap_start_ns, end_ns, side="left")
    gap, window = runs(first_gap, stop_gap)
    row = idle.next_row[gap]  # of the activity that ends the gap, in `account.rows`
    is_seen = ~unseen.contains(begin_ns)[window]
    return GapParts(
        start_ns=np.maximum(idle.gap_start_ns[gap], begin_ns[window]),
        end_ns=np.minimum(idle.gap_end_ns[gap], end_ns[window]),
        gap_start_ns=idle.gap_start_ns[gap],
        gap_end_ns=idle.gap_end_ns[gap],
        activity=account.rows.row[row],
        call=np.where(is_seen, account.timed_call[row], -1),
        call_start_ns=np.where(is_seen, work.call_start_ns[row], ABSENT),
        call_end_ns=np.where(is_seen, work.call_end_ns[row], ABSENT),
        cap_ns=np.full(len(row), leads(account).cap_ns if cap_ns is None else cap_ns),
        op=account.op[row],
    )


class GapLengths(Struct, frozen=True):
    """Number and total time of the gaps with lengths from `from_ns` to below `to_ns`."""

    from_ns: int
    to_ns: int
    gaps: int
    idle_ns: int


def gap_lengths(length_ns: IntArray) -> tuple[GapLengths, ...]:
    """Count lengths in ns by decade, from that of the shortest to that of the longest."""
    if not len(length_ns):
        return ()
    # Without the outer edges, the shortest and the longest lengths are in the outer decades.
    decade = np.searchsorted(_DECADES_NS[1:-1], length_ns, side="right")
    rows = []
    for number in range(int(decade.min()), int(decade.max()) + 1):
        low, high = int(_DECADES_NS[number]), int(_DECADES_NS[number + 1])
        lengths = length_ns[decade == number]
        rows.append(GapLengths(low, high, len(lengths), int(lengths.sum())))
    return tuple(rows)


class Slices(Columns, frozen=True, dict=True):
    """Disjoint slices of gap parts, a row per slice; times in ns.

    They fill a part exactly, except for the host's time in parts that are not cut (see
    `of_few_devices`). `part` is a row of GapParts, `role` HOST to NO_LAUNCH. `event` is the host
    event that explains the slice, `own` the event of the launching thread at that time, `label` the
    label around `own`: rows of HostEvents, or -1.
    """

    part: IntArray
    role: IntArray
    start_ns: IntArray
    end_ns: IntArray
    event: IntArray
    own: IntArray
    label: IntArray

    @cached_property
    def dur_ns(self) -> IntArray:
        """The length of each slice."""
        return self.end_ns - self.start_ns


def of_few_devices(parts: GapParts, trace: Trace) -> BoolArray:
    """Return, per gap part, whether its device is one of the MOST_DEVICES of its process.

    These are the ones with the most time in the parts. The host's time is cut anew for each device
    that waits for it, so without a bound devices that all wait would cost their number squared.
    """
    device = taken(numbers(trace.activities["device"]), parts.activity)
    process = taken(numbers(trace.devices["process"]), device)
    number, first = group_rows((process, device))
    if len(first) <= MOST_DEVICES:
        return np.ones(len(device), dtype=np.bool_)
    time_ns = group_sums(number, parts.end_ns - parts.start_ns, len(first))
    order = np.lexsort((-time_ns, process[first]))
    is_of_few = np.empty(len(first), dtype=np.bool_)
    is_of_few[order] = places_in_runs(process[first][order]) < MOST_DEVICES
    return is_of_few[number]


def idle_slices(parts: GapParts, events: HostEvents, is_cut: BoolArray) -> Slices:
    """Cut gap parts into slices by the launch call, and where `is_cut` by what the host did."""
    has_call, is_op = parts.call >= 0, parts.op >= 0
    # Cut to the part: the launch and the return of its call. On a CPU all time is the host's.
    launched = np.where(is_op, parts.end_ns, np.maximum(parts.call_start_ns, parts.gap_start_ns))
    launched = np.clip(launched, parts.start_ns, parts.end_ns)
    returned = np.clip(parts.call_end_ns, launched, parts.end_ns)
    part = np.flatnonzero(is_cut & (has_call | is_op) & (launched > parts.start_ns))
    host, process = _of_launching_thread(parts, part, launched, events)
    # Where this thread does nothing, others of its process may. A range that loads data explains a
    # slice even if its thread has no event inside.
    is_loading = events.is_inside("data_input", host.event, host.label)
    has_work = (host.event >= 0) & ~events.has_fact("runs_backward", host.event)
    silent = ~(has_work | is_loading)
    others = _of_others(host.only(silent), process[silent], parts, events)
    pieces = [host.only(~silent), others]
    # From the launch on, the device waits for it.
    call, no_event = events.of_call(parts.call), np.full_like(parts.call, -1)
    for role, is_of_role, start, end, event in (
        (IN_CALL, has_call, launched, returned, call),
        (AFTER_CALL, has_call, returned, parts.end_ns, call),
        (NO_LAUNCH, ~(has_call | is_op), parts.start_ns, parts.end_ns, no_event),
    ):
        part = np.flatnonzero(is_of_role & (end > start))
        roles, none = np.full_like(part, role), np.full_like(part, -1)
        piece = Slices(part, roles, start[part], end[part], event[part], event[part], none)
        pieces += _beside_allocations(piece, parts, events) if role == AFTER_CALL else [piece]
    return Slices.joined(pieces)


def _of_launching_thread(
    parts: GapParts, part: IntArray, launched: IntArray, events: HostEvents
) -> tuple[Slices, IntArray]:
    """Return the slices of some parts up to the launch, and the process of each slice.

    They are cut at the edges of what the launching thread works on, then of its labels.
    """
    process, thread = starters(parts.only(part), events)
    working = events.innermost(events.thread, events.is_work)
    span, start, end, event = working.cut(thread, parts.start_ns[part], launched[part])
    labelled = events.innermost(events.thread, events.kind == LABEL)
    piece, start, end, label = labelled.cut(thread[span], start, end)
    span, event = span[piece], event[piece]  # per final piece: index into `part`, and its event
    role = np.full_like(span, HOST)
    return Slices(part[span], role, start, end, event, event, label), process[span]


def _of_others(slices: Slices, process: IntArray, parts: GapParts, events: HostEvents) -> Slices:
    """Cut slices at the edges of calls and operators of their process, then of its loaders."""
    is_start = ((events.kind == CALL) | (events.kind == OP)) & events.is_work
    starting = events.innermost(events.process, is_start)
    span, start, end, event = starting.cut(process, slices.start_ns, slices.end_ns)
    is_inside_loader = events.is_inside("data_input", np.arange(len(events.kind)))
    feeding = events.innermost(events.process, (events.kind == LABEL) & is_inside_loader)
    piece, start, end, loading = feeding.cut(process[span], start, end)
    span, event = span[piece], event[piece]
    # A thread may run operators of a CPU and no Python: other threads call them.
    is_of_cpu = parts.op >= 0
    functions = _functions_at_work(events, must_search=bool(is_of_cpu.any()))
    piece, start, end, function = functions.cut(process[span], start, end)
    span, event, loading = span[piece], event[piece], loading[piece]
    event = np.where((event < 0) & is_of_cpu[slices.part[span]], function, event)
    # If the input pipeline made the launch, its ranges explain what is still without an event.
    is_fed = events.is_inside("data_input", events.of_call(parts.call))[slices.part[span]]
    event = np.where((event < 0) & is_fed, loading, event)
    return replace(slices.only(span), start_ns=start, end_ns=end, event=event)


def _functions_at_work(events: HostEvents, *, must_search: bool) -> StackTops:
    """Return the innermost function of each process at all times, without those that wait.

    These wait for another thread (of the backward pass, or of a device), or in a thread that Python
    started, as monitors and loaders do all the time. But labels around waits of compiled code for
    its own threads, which record only part of their work, count as functions.
    """
    is_compiled = (events.kind == LABEL) & events.has_fact("compiled", np.arange(len(events.kind)))
    is_function = (events.kind == FRAME) | is_compiled
    rows = np.flatnonzero(is_function & events.is_work & must_search)
    columns = events.thread[rows], events.start_ns[rows], events.end_ns[rows]
    inner, start_ns, end_ns = innermost_pieces(*columns)
    event = rows[inner]
    starts = [_STARTS_THREAD.search(name) is not None for name in events.labels]
    is_starter = np.array(starts, dtype=np.bool_)
    is_started = taken(events.tree.nearest(is_starter[events.name]), event) >= 0
    waits = events.has_fact("waits", event) | events.has_fact("sleeps", event)
    waits &= is_started
    waits |= events.has_fact("runs_backward", event) | events.is_inside("awaits_device", event)
    event = event[~waits]
    tops = StackTops.of(events.process[event], start_ns[~waits], end_ns[~waits])
    return replace(tops, row=taken(event, tops.row))


def _beside_allocations(late: Slices, parts: GapParts, events: HostEvents) -> Iterator[Slices]:
    """Yield slices after a launch; what its thread allocates during late ones is their event."""
    left_ns = parts.gap_end_ns - np.maximum(parts.call_end_ns, parts.gap_start_ns)
    is_late = (left_ns >= parts.cap_ns)[late.part]
    yield late.only(~is_late)
    late = late.only(is_late)
    names = np.array([ALLOCATES.search(label) is not None for label in events.labels], np.bool_)
    allocations = events.innermost(events.thread, (events.kind == CALL) & names[events.name])
    _, thread = starters(parts.only(late.part), events)
    span, start, end, event = allocations.cut(thread, late.start_ns, late.end_ns)
    allocating, late = event >= 0, replace(late.only(span), start_ns=start, end_ns=end)
    yield late.only(~allocating)
    role = np.full_like(event, HOST)
    yield replace(late, role=role, event=event, own=event).only(allocating)


def starters(parts: GapParts, events: HostEvents) -> tuple[IntArray, IntArray]:
    """Return, per gap part, process and thread that launched its end, as in `events`, or -1."""
    is_op = parts.op >= 0
    process = np.where(
        is_op, taken(events.process_of_op, parts.op), taken(events.process_of_call, parts.call)
    )
    thread = np.where(
        is_op, taken(events.thread_of_op, parts.op), taken(events.thread_of_call, parts.call)
    )
    return process, thread
