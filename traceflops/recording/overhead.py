"""The profiler's own work on the host, and how much of the devices' idle time it falls in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

import numpy as np

from traceflops.table import IntArray, Note, Trace, distinct, groups, matching, numbers
from traceflops.timeline import DeviceAccount, Intervals
from traceflops.units import several, time_amount

OF_PROFILER: Final = "profiler: "
"""How the name of an overhead begins that a program without a profiler would not have."""


def profiler_notes(trace: Trace, accounts: Mapping[int, DeviceAccount]) -> tuple[Note, ...]:
    """Return what to say of the time in which the profiler held up the program."""
    rows = np.flatnonzero(matching(trace.marks["name"], lambda name: name.startswith(OF_PROFILER)))
    if not len(rows):
        return ()
    by_process = _by_process(trace, rows)
    spent = sum(one.length_ns for one in by_process.values())
    idle = _idle_by_process(trace, accounts)
    within = sum(
        working.intersect(idle[process]).length_ns
        for process, working in by_process.items()
        if process in idle
    )
    whose = "the GPU" if len(accounts) == 1 else "at least one GPU of its process"
    text = (
        f"The profiler itself ran {several(len(rows), 'time')} on the CPU, {time_amount(spent)} "
        f"total; {whose} was idle for {time_amount(within)} of that. Without the "
        "profiler this idle time would not occur."
    )
    return (Note("assumed", "profiler-overhead", text, len(rows)),)


def _by_process(trace: Trace, rows: IntArray) -> dict[int, Intervals]:
    start = numbers(trace.marks["start_ns"])[rows]
    end = start + numbers(trace.marks["dur_ns"])[rows]
    by_process = groups(numbers(trace.marks["process"])[rows])
    return {process: Intervals.of(start[at], end[at]) for process, at in by_process}


def _idle_by_process(trace: Trace, accounts: Mapping[int, DeviceAccount]) -> dict[int, Intervals]:
    """Return when at least one device of each process was idle."""
    gaps: defaultdict[int, list[Intervals]] = defaultdict(list)
    process = numbers(trace.activities["process"])
    for account in accounts.values():
        idle = Intervals.of(account.idle.gap_start_ns, account.idle.gap_end_ns)
        for one in distinct(process[account.rows.row]).tolist():
            gaps[one].append(idle)
    return {one: mine[0].union(*mine[1:]) for one, mine in gaps.items()}
