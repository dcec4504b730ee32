"""Calls in which the host waits for the device: where, how long, and the idle time after them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import numpy as np

from traceflops.attribution.culprits import REST
from traceflops.attribution.host_events import (
    HostEvents,
    host_events,
    host_span,
    host_time,
    host_windows,
    owners,
)
from traceflops.attribution.idle_classes import waiting_calls
from traceflops.attribution.idle_slices import chosen_gaps
from traceflops.table import BoolArray, IntArray, innermost, taken
from traceflops.timeline import Intervals
from traceflops.windows import Prepared

_MOST: Final = 50
"""So many are named; the rest is one more."""


@dataclass(frozen=True, slots=True)
class Synchronisation:
    """Waiting calls of one name and site in the chosen windows; times in ns.

    `site` is the function, operator or annotation around the calls, "" without any. `blocked_ns` is
    the time in the calls, `idle_after_ns` the idle time in gaps that began during them, before work
    that their thread launched.
    """

    call: str
    site: str
    count: int
    blocked_ns: int
    idle_after_ns: int


def synchronisations(prepared: Prepared) -> tuple[Synchronisation, ...]:
    """Return the calls that waited for a device, those that took the most time first."""
    if not prepared.launch_records.is_judged or not prepared.accounts:
        return ()
    events, event, blocked_ns = calls_inside(prepared, waiting_calls(prepared.trace.calls))
    return _most_important(
        _grouped(events, event, blocked_ns, _idle_after(prepared, events, event))
    )


def calls_inside(prepared: Prepared, wanted: BoolArray) -> tuple[HostEvents, IntArray, IntArray]:
    """Return wanted calls in the chosen windows, as events, and the time of each there.

    Calls that another call makes are none of them.
    """
    span = host_span(prepared.trace.calls)
    inside_ns = host_time(host_windows(prepared), *span)
    row = np.flatnonzero(wanted & (inside_ns > 0))
    start = span[1][row]
    events = host_events(prepared.trace, Intervals.of(start, start + 1))
    event = events.of_call(row)
    mine = events.is_work[event]
    return events, event[mine], inside_ns[row[mine]]


def _idle_after(prepared: Prepared, events: HostEvents, event: IntArray) -> IntArray:
    """Return, by call, the idle time in the gaps that began during it."""
    gaps = chosen_gaps(prepared)
    thread = taken(events.thread_of_call, gaps.call)
    span = events.thread[event], events.start_ns[event], events.end_ns[event]
    call = innermost(*span, thread, gaps.gap_start_ns)
    idle_ns = np.zeros(len(event), dtype=np.int64)
    np.add.at(idle_ns, call[call >= 0], (gaps.end_ns - gaps.start_ns)[call >= 0])
    return idle_ns


def _grouped(
    events: HostEvents, event: IntArray, blocked_ns: IntArray, idle_ns: IntArray
) -> Iterable[Synchronisation]:
    """Return calls by name and site."""
    owner = taken(owners(events), event)
    site = np.where(owner == event, -1, owner)
    sums: defaultdict[tuple[str, str], IntArray] = defaultdict(lambda: np.zeros(3, np.int64))
    for row, (call, around) in enumerate(zip(event.tolist(), site.tolist(), strict=True)):
        sums[events.text(call), events.text(around)] += 1, blocked_ns[row], idle_ns[row]
    return [Synchronisation(*names, *times.tolist()) for names, times in sums.items()]


def _most_important(found: Iterable[Synchronisation]) -> tuple[Synchronisation, ...]:
    """Return those with most time, the most first, and the others as one."""
    ordered = sorted(found, key=attrgetter("blocked_ns"), reverse=True)
    rest = [(one.count, one.blocked_ns, one.idle_after_ns) for one in ordered[_MOST:]]
    others = [Synchronisation(REST, "", *map(sum, zip(*rest, strict=True)))] if rest else []
    return (*ordered[:_MOST], *others)
