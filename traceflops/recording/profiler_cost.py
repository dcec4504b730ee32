"""When the profiler itself held up the program, and how idle the devices were meanwhile."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.table import IntArray, Trace, distinct, groups, is_one_of, matching, numbers
from traceflops.timeline import Intervals

if TYPE_CHECKING:
    from traceflops.timeline import DeviceAccount

_OF_PROFILER: Final = re.compile(
    r"profiler: |(Buffer Flush|Instrumentation|Resource|(UVM )?Activity (Buffer Request|Init))$"
)
"""Overheads that a program without a profiler would not have, as nsys and Kineto name them."""


@dataclass(frozen=True, slots=True)
class ProfilerTime:
    """How often the profiler ran on the CPU, how long, and how idle a GPU of its process was."""

    times: int
    spent_ns: int
    idle_ns: int


def profiler_time(
    trace: Trace,
    accounts: Mapping[int, DeviceAccount],
    within: Mapping[int, Intervals] | None = None,
) -> ProfilerTime:
    """Return when the profiler itself ran; `within` limits idle time to some time by device."""
    named = matching(trace.marks["name"], lambda name: _OF_PROFILER.match(name) is not None)
    rows = np.flatnonzero(named & is_one_of(trace.marks["kind"], "overhead"))
    by_process = _by_process(trace, rows)
    idle = _idle_by_process(trace, accounts, within) if len(rows) else {}
    return ProfilerTime(
        len(rows),
        sum(one.length_ns for one in by_process.values()),
        sum(
            working.intersect(idle[process]).length_ns
            for process, working in by_process.items()
            if process in idle
        ),
    )


def _by_process(trace: Trace, rows: IntArray) -> dict[int, Intervals]:
    start = numbers(trace.marks["start_ns"])[rows]
    end = start + numbers(trace.marks["dur_ns"])[rows]
    by_process = groups(numbers(trace.marks["process"])[rows])
    return {process: Intervals.of(start[at], end[at]) for process, at in by_process}


def _idle_by_process(
    trace: Trace,
    accounts: Mapping[int, DeviceAccount],
    within: Mapping[int, Intervals] | None,
) -> dict[int, Intervals]:
    """Return when at least one device of each process was idle."""
    gaps: defaultdict[int, list[Intervals]] = defaultdict(list)
    process = numbers(trace.activities["process"])
    for device, account in accounts.items():
        idle = Intervals.of(account.idle.gap_start_ns, account.idle.gap_end_ns)
        idle = idle if within is None else idle.intersect(within[device])
        for one in distinct(process[account.rows.row]).tolist():
            gaps[one].append(idle)
    return {one: mine[0].union(*mine[1:]) for one, mine in gaps.items()}
