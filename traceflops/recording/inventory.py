"""What is in a trace, what is missing and its cost; when the profiler held up the program."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from traceflops.devices import (
    JobReport,
    SeenDevice,
    is_undecided,
    match,
    of_job,
    of_no_job,
    ranks_of_devices,
)
from traceflops.errors import UsageError
from traceflops.recording.capture_gaps import Missing, how_to_record, missing_from
from traceflops.table import (
    TABLES,
    IntArray,
    Note,
    Source,
    Trace,
    distinct,
    groups,
    is_one_of,
    matching,
    numbers,
)
from traceflops.timeline import Intervals
from traceflops.windows import Selection, find_marked_steps, partition_text

if TYPE_CHECKING:
    from traceflops.timeline import DeviceAccount


_PROPERTIES: Final = (
    *("type", "local_id", "product", "memory_bytes", "sm_count", "architecture", "clock_hz"),
    "dies",
)
Shown = Callable[[Trace, Selection], tuple[Trace, str | None]]


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """One device: properties as the trace gives them, None where it does not.

    `name` is what reports call it. `ranks` are those of all processes that worked on it. `run` is
    which of the runs one after the other on a GPU this row is about, and `runs` how many there
    are; None where there is but one.
    """

    rank: int | None
    ranks: tuple[int, ...]
    file: str
    type: str
    local_id: int
    product: str | None
    memory_bytes: int | None
    sm_count: int | None
    architecture: str | None
    clock_hz: int | None
    dies: int | None
    partition: str | None
    activities: int
    name: str
    run: int | None = None
    runs: int | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """What is in a trace.

    `rows` are the rows of each table, `steps` the marked steps' numbers, `record` the command line
    that would record what is missing. `jobs` are those that the files are
    of, where there are several.
    """

    source: Source
    ranks: tuple[int | None, ...]
    world_size: int | None
    devices: tuple[DeviceEntry, ...]
    rows: dict[str, int]
    steps: tuple[int, ...]
    steps_text: str
    missing: tuple[Missing, ...]
    record: str | None
    notes: tuple[Note, ...]
    jobs: tuple[JobReport, ...] = ()
    of_jobs: tuple[Inventory | None, ...] = ()


def inventory_of(trace: Trace, selection: Selection, shown: Shown) -> Inventory:
    """Return what is in a trace, or in each of its jobs where none is chosen.

    `shown` returns what a selection leaves of a trace, and the step mark, as they may be shown.
    """
    if not is_undecided(trace):
        return take_inventory(*shown(trace, selection))
    found: list[Inventory | None] = []
    for job in trace.jobs:
        mine = replace(selection, job=job.number)
        try:
            found.append(take_inventory(*shown(of_job(trace, mine.job), mine)))
        except UsageError as error:
            found.append(None)
            refused = error
    if not any(found):
        raise refused
    empty = take_inventory(*shown(of_no_job(trace), Selection()))
    return replace(empty, missing=(), record=None, of_jobs=tuple(found))


def take_inventory(trace: Trace, step_mark: str | None = None) -> Inventory:
    """Return what is in the trace."""
    found = find_marked_steps(trace, step_mark)
    if found is None and step_mark is not None:
        raise UsageError(
            f"no annotation matches --step-mark {step_mark!r}",
            "traceflops export --table marks lists them",
        )
    steps = sorted({int(n) for s in found.by_process.values() for n in s.number}) if found else []
    sizes = trace.processes["world_size"].drop_null().to_pylist()
    return Inventory(
        source=trace.source,
        ranks=trace.ranks,
        world_size=max(sizes, default=None),
        devices=tuple(_devices(trace)),
        rows={name: trace.table(name).num_rows for name in TABLES},
        steps=tuple(steps),
        steps_text=found.text if found else "no step markers",
        missing=missing_from(trace),
        record=how_to_record(trace),
        notes=trace.notes,
    )


def _devices(trace: Trace) -> list[DeviceEntry]:
    processes = trace.processes.to_pylist()
    ranks = ranks_of_devices(trace)
    counts = np.bincount(numbers(trace.activities["device"]), minlength=trace.devices.num_rows)
    return [
        DeviceEntry(
            rank=processes[row["process"]]["rank"],
            ranks=ranks[row["device"]],
            file=processes[row["process"]]["file"],
            **{name: row[name] for name in _PROPERTIES},
            partition=partition_text(row),
            activities=int(counts[row["device"]]),
            name=match(SeenDevice.of(row)).name(row["type"]),
            **_run(trace, row["device"]),
        )
        for row in trace.devices.to_pylist()
    ]


def _run(trace: Trace, device: int) -> dict[str, Any]:
    """Return which run of its GPU a device is, of how many; nothing where there is but one."""
    if not trace.runs:
        return {}
    gpu, run = trace.runs[device]
    count = sum(one == gpu for one, _ in trace.runs)
    return {"run": run, "runs": count} if count > 1 else {}


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
