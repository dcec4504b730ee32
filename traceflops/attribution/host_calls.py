"""What calls and operators cost the host: waits for the device, memory calls, operators."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.attribution.culprits import REST
from traceflops.attribution.host_events import (
    HostEvents,
    has_fact,
    host_events,
    host_span,
    host_time,
    owners,
)
from traceflops.attribution.idle_classes import waiting_calls
from traceflops.attribution.idle_slices import GapParts, chosen_gaps
from traceflops.table.arrays import ABSENT, BoolArray, IntArray
from traceflops.table.columns import codes, is_one_of, matching, names, numbers, thread_columns
from traceflops.table.grouping import (
    distinct,
    exact_sums,
    group_most,
    group_rows,
    group_sums,
    groups,
    shared_codes,
)
from traceflops.table.nesting import innermost, innermost_pieces, taken
from traceflops.timeline.intervals import Intervals, latest_end_before
from traceflops.windows.prepared import Prepared
from traceflops.windows.steps import is_step_label

_MOST_CALLS: Final = 50  # at most so many calls are named; the others become one more


class Synchronisation(Struct, frozen=True):
    """Waiting calls of one name and site in the chosen windows; times in ns.

    `site` is the function, operator or annotation around the calls, "" for none. `blocked_ns` is
    the time in the calls, `idle_after_ns` the idle time that they caused (see `gaps_due_to`).
    """

    call: str
    site: str
    count: int
    blocked_ns: int
    idle_after_ns: int


def synchronisations(prepared: Prepared) -> tuple[Synchronisation, ...]:
    """Return the calls that waited for a device, by name and site, the most time first."""
    if not prepared.launch_records.is_judged or not prepared.accounts:
        return ()  # if much work is not recorded, idle time after a wait is not known
    events, event, blocked_ns = calls_inside(prepared, waiting_calls(prepared.trace.calls))
    # The idle time due to each wait, at most as long as the wait itself in the chosen windows.
    gaps = chosen_gaps(prepared)
    thread = taken(events.thread_of_call, gaps.call)
    wait_start, wait_end = events.start_ns[event], events.end_ns[event]
    began_in = innermost(events.thread[event], wait_start, wait_end, thread, gaps.gap_start_ns)
    wait = gaps_due_to(prepared, gaps, began_in, wait_end - wait_start)
    idle_ns = group_sums(wait, gaps.end_ns - gaps.start_ns, len(event))
    idle_ns = np.minimum(idle_ns, blocked_ns)
    owner = taken(owners(events), event)
    site = np.where(owner == event, -1, owner)  # a call that owns itself has no site
    sums: defaultdict[tuple[str, str], IntArray] = defaultdict(lambda: np.zeros(3, np.int64))
    for row, (call_event, site_event) in enumerate(zip(event.tolist(), site.tolist(), strict=True)):
        sums[events.text(call_event), events.text(site_event)] += 1, blocked_ns[row], idle_ns[row]
    waits = [Synchronisation(*name, *times.tolist()) for name, times in sums.items()]
    waits.sort(key=attrgetter("blocked_ns"), reverse=True)
    rest = [(w.count, w.blocked_ns, w.idle_after_ns) for w in waits[_MOST_CALLS:]]
    others = [Synchronisation(REST, "", *map(sum, zip(*rest, strict=True)))] if rest else []
    return (*waits[:_MOST_CALLS], *others)


def gaps_due_to(
    prepared: Prepared, gaps: GapParts, began_in: IntArray, waited_ns: IntArray
) -> IntArray:
    """Return, per gap, the index of the wait that caused it, or -1.

    `began_in` is, per gap, the wait during which it began, or -1: when this wait returned, nothing
    was queued. Later gaps, up to the next such gap, are due to the same wait until the gaps add up
    to the time that the host waited (`waited_ns`, per wait): without the wait, the host would have
    been ahead by as much.
    """
    device, due = numbers(prepared.trace.activities["device"])[gaps.activity], began_in.copy()
    for _, rows in groups(device):
        # Gaps from one that began in a wait up to the next such one form a run, -1 before it.
        # began_in [-1 7 -1 8], length [9 4 5 6]  ->  first [1 3], run [-1 0 0 1],
        # since [0 9 13 18], less that of the first gap of the run: [0 0 4 0]
        first = np.flatnonzero(began_in[rows] >= 0)
        run = np.searchsorted(first, np.arange(len(rows)), side="right") - 1
        length_ns = (gaps.end_ns - gaps.start_ns)[rows]
        since_ns = np.cumsum(length_ns) - length_ns
        since_ns -= taken(since_ns[first], run, 0)  # idle time since the first gap of the run
        wait = taken(began_in[rows][first], run)
        due[rows] = np.where(since_ns < taken(waited_ns, wait, 0), wait, began_in[rows])
    return due


def calls_inside(prepared: Prepared, wanted: BoolArray) -> tuple[HostEvents, IntArray, IntArray]:
    """Return host events, those of them that are `wanted` calls, and the ns of these in windows.

    `wanted` is per call. Only calls with time in the chosen windows are returned, without those
    that are inside another call.
    """
    process, start, end = host_span(prepared.trace.calls)
    inside_ns = host_time(prepared.windows_of_process, process, start, end)
    row = np.flatnonzero(wanted & (inside_ns > 0))
    # The events at the starts of the calls contain all that is around these.
    events = host_events(prepared.trace, Intervals.of(start[row], start[row] + 1))
    event = events.of_call(row)
    is_outer = events.is_work[event]
    return events, event[is_outer], inside_ns[row[is_outer]]


_KINDS: Final = ("memcpy", "memset")
_HOST_MEMORY: Final = re.compile(r"\b(Pageable|Pinned)\b")
_MEMORIES: Final = ("pageable", "pinned", None)


class MemoryOperation(Struct, frozen=True):
    """Copies of one direction, fills, or memory calls of one name, in the chosen windows.

    `kind` is memcpy, memset or call; `name` is the direction ("" if unknown) or the call. `memory`
    is the kind of host memory, `pageable` or `pinned`. `sum_ns` is the time inside the windows;
    overlaps count twice. `bytes`, `largest_bytes` and `bytes_per_ns` are of the copies that begin
    in the windows and state their size. Unknown values are None.
    """

    kind: str
    name: str
    memory: str | None
    count: int
    sum_ns: int
    bytes: int | None = None
    largest_bytes: int | None = None
    bytes_per_ns: float | None = None


def memory_operations(prepared: Prepared) -> tuple[MemoryOperation, ...]:
    """Return copies and fills by direction, then allocating and freeing calls, by time.

    Of calls these are the ones with time in the chosen windows, by name.
    """
    copies = _copies(prepared)
    calls: list[MemoryOperation] = []
    if prepared.accounts:
        allocates = has_fact(prepared.trace.calls["name"], "allocates")
        events, event, inside_ns = calls_inside(prepared, allocates)
        counts = exact_sums(events.name[event], np.ones_like(event), len(events.labels))
        sums_ns = exact_sums(events.name[event], inside_ns, len(events.labels))
        calls = [
            MemoryOperation("call", label, None, count, ns)
            for label, count, ns in zip(events.labels, counts, sums_ns, strict=True)
            if count
        ]
    for operations in (copies, calls):
        operations.sort(key=attrgetter("sum_ns"), reverse=True)
    return (*copies, *calls)


def _copies(prepared: Prepared) -> list[MemoryOperation]:
    """Return the copies and fills in the chosen windows, by direction and kind of host memory."""
    activities, chosen = prepared.trace.activities, prepared.chosen
    moves = np.flatnonzero(is_one_of(activities["kind"], *_KINDS)[chosen.row])
    row, starts = chosen.row[moves], chosen.starts_inside[moves]
    kind, direction = codes(activities["kind"])[row], codes(activities["direction"])[row]
    matches = map(_HOST_MEMORY.search, names(activities["name"]))
    memory_of = [_MEMORIES.index(m[0].lower()) if m else -1 for m in matches]
    memory = np.array([*memory_of, -1])[codes(activities["name"])[row]]  # its last is for code -1
    group, first = group_rows((kind, direction, memory))
    # Sizes and rates are of the copies that begin in the windows and have a size.
    size, duration = numbers(activities["bytes"], ABSENT)[row], numbers(activities["dur_ns"])[row]
    sized = starts * (size >= 0)
    inside_ns = chosen.inside_ns[moves]
    figures = (starts, inside_ns, sized, size * sized, duration * sized)
    totals = (exact_sums(group, column, len(first)) for column in figures)
    largest = group_most(group, np.where(sized > 0, size, ABSENT), len(first))
    # Code -1 takes the last direction and the last of _MEMORIES.
    kinds, directions = names(activities["kind"]), [*names(activities["direction"]), ""]
    rows = zip(first.tolist(), largest.tolist(), zip(*totals, strict=True), strict=True)
    copies = []
    for index, largest_bytes, (count, ns, sized_count, moved, took_ns) in rows:
        name = kinds[kind[index]], directions[direction[index]], _MEMORIES[memory[index]]
        rate = moved / took_ns if took_ns else None
        sizes = (moved, largest_bytes, rate) if sized_count else ()
        copies.append(MemoryOperation(*name, count, ns, *sizes))
    return copies


_MOST_OPERATORS: Final = 100  # at most so many operators are named; the others become one more
_AT_ONCE: Final = 1 << 15  # so many operators are analysed at a time, or a few more, to save memory


class HostOperator(Struct, frozen=True):
    """Operators of one name on the launching threads in the chosen windows; times in ns.

    `count` is the number of operators with time in the windows. `self_ns` is the time in which one
    of them is the innermost operator of its thread, `total_ns` the time in which any of them runs,
    None for the row of the rest.
    """

    name: str
    count: int
    self_ns: int
    total_ns: int | None


def host_operators(prepared: Prepared) -> tuple[HostOperator, ...]:
    """Return the operators of launching threads (no step markers), the most self time first."""
    ops, calls, windows = prepared.trace.ops, prepared.trace.calls, prepared.windows_of_process
    thread, calling = shared_codes(thread_columns(ops), thread_columns(calls))
    call = prepared.linked.links.call_of_activity[prepared.chosen.row]
    launches = np.isin(thread, calling[call[call >= 0]])
    process, start, end = host_span(ops)
    is_step = matching(ops["name"], lambda text: is_step_label(text, None))
    row = np.flatnonzero(launches & ~is_step & (host_time(windows, process, start, end) > 0))
    labels, name = names(ops["name"]), codes(ops["name"])
    count = group_sums(name[row], np.ones_like(row), len(labels))
    self_ns, total_ns = np.zeros_like(count), np.zeros_like(count)
    for _, in_thread in groups(thread[row]):
        # About _AT_ONCE operators at a time, in order of start. A thread is cut only where none of
        # its operators runs, so that operators around others are never in different pieces.
        # start [0 1 9], end [8 5 12]: row 2 starts after all earlier ends  ->  is_free [0 1]
        ordered = row[in_thread]
        ordered = ordered[np.argsort(start[ordered], kind="stable")]
        is_free = start[ordered][1:] >= np.maximum.accumulate(end[ordered])[:-1]
        cuts = np.flatnonzero(is_free) + 1
        # The first possible cut from every _AT_ONCE-th operator on, as an index into `cuts`.
        chosen = np.searchsorted(cuts, np.arange(_AT_ONCE, len(ordered), _AT_ONCE))
        for rows in np.split(ordered, cuts[distinct(chosen[chosen < len(cuts)])]):
            begin, stop, same_thread = start[rows], end[rows], np.zeros_like(rows)
            piece, *times = innermost_pieces(same_thread, begin, stop)
            inner_ns = host_time(windows, process[rows[piece]], *times)
            self_ns += group_sums(name[rows[piece]], inner_ns, len(self_ns))
            # Time in several operators of one name counts once: each counts from the latest end of
            # those of its name that began before it.
            uncovered_begin = np.maximum(begin, latest_end_before(name[rows], begin, stop))
            uncovered_end = np.maximum(uncovered_begin, stop)
            uncovered_ns = host_time(windows, process[rows], uncovered_begin, uncovered_end)
            total_ns += group_sums(name[rows], uncovered_ns, len(total_ns))
    sums = zip(labels, count.tolist(), self_ns.tolist(), total_ns.tolist(), strict=True)
    return most_important([HostOperator(*figures) for figures in sums if figures[1]])


def most_important(operators: Sequence[HostOperator]) -> tuple[HostOperator, ...]:
    """Return the operators with most self time; the others are added up in a last row, REST."""
    ordered = sorted(operators, key=lambda op: (op.name == REST, -op.self_ns))
    rest = ordered[_MOST_OPERATORS:]
    count, self_ns = sum(op.count for op in rest), sum(op.self_ns for op in rest)
    others = (HostOperator(REST, count, self_ns, None),) if rest else ()
    return (*ordered[:_MOST_OPERATORS], *others)
