"""The profiler's own work on the host, and how much of the devices' idle time it falls in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from traceflops.account import DeviceAccount
from traceflops.columns import IntArray, codes, names, numbers
from traceflops.intervals import Intervals
from traceflops.trace import Note, Trace
from traceflops.words import several, time_amount

OF_PROFILER: Final = "profiler: "
"""How the name of an overhead begins that a program without a profiler would not have."""


def profiler_notes(trace: Trace, accounts: Mapping[int, DeviceAccount]) -> tuple[Note, ...]:
    """Return what to say of the time in which the profiler held up the program."""
    rows = _rows(trace)
    if not len(rows):
        return ()
    by_process = _by_process(trace, rows)
    spent = sum(one.length_ns for one in by_process.values())
    within = sum(_within_idle(trace, account, by_process) for account in accounts.values())
    text = (
        f"The profiler itself worked {several(len(rows), 'time')} on the host, "
        f"{time_amount(spent)} in all; {time_amount(within)} of that the devices were idle. That "
        "is not the program's idle time: a run without the profiler does not have it."
    )
    return (Note("assumed", "profiler-overhead", text, len(rows)),)


def _rows(trace: Trace) -> IntArray:
    """Return the marks that are the profiler's."""
    marks = trace.marks
    labels = names(marks["name"]) if marks.num_rows else []
    wanted = [place for place, label in enumerate(labels) if label.startswith(OF_PROFILER)]
    if not wanted:
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(np.isin(codes(marks["name"]), wanted))


def _by_process(trace: Trace, rows: IntArray) -> dict[int, Intervals]:
    process = numbers(trace.marks["process"])[rows]
    start = numbers(trace.marks["start_ns"])[rows]
    end = start + numbers(trace.marks["dur_ns"])[rows]
    return {
        one: Intervals.of(start[process == one], end[process == one])
        for one in np.unique(process).tolist()
    }


def _within_idle(trace: Trace, account: DeviceAccount, by_process: Mapping[int, Intervals]) -> int:
    """Return for how long a device was idle while a profiler of its processes worked."""
    users = np.unique(numbers(trace.activities["process"])[account.rows.row]).tolist()
    working = [by_process[one] for one in users if one in by_process]
    if not working:
        return 0
    busy = working[0].union(*working[1:])
    return int(busy.length_within(account.idle.gap_start_ns, account.idle.gap_end_ns).sum())
