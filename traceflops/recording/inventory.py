"""What is in a trace, what is missing and its cost; when the profiler held up the program."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.categories.programs import of_ml, of_pytorch
from traceflops.devices.counter_formulas import family_of
from traceflops.devices.device_facts import SeenDevice
from traceflops.devices.jobs import JobReport, is_undecided, of_job, of_no_job
from traceflops.devices.matching import match
from traceflops.devices.processes import ranks_of_devices
from traceflops.devices.side_records import SIDE_FORMATS
from traceflops.errors import UsageError
from traceflops.facts import in_words
from traceflops.remedies import How, command, way_to_record
from traceflops.table.columns import ABSENT, is_one_of, matching, numbers, span_columns
from traceflops.table.grouping import distinct, groups
from traceflops.table.patterns import launches_no_kernel
from traceflops.table.schema import TABLES
from traceflops.table.trace import CUDA_TRACE, PROGRAM_ERROR, Note, Source, Trace
from traceflops.timeline.account import DeviceAccount
from traceflops.timeline.host_work import lacks_copies
from traceflops.timeline.intervals import Intervals
from traceflops.windows.device_records import launch_calls
from traceflops.windows.records import partition_text
from traceflops.windows.selection import Selection
from traceflops.windows.steps import find_marked_steps

_OF_COLLECTIVES: Final = re.compile("[nr]ccl", re.IGNORECASE)
_TRACED: Final = How(
    "CUDA was traced but recorded nothing: profile the process that uses the GPU, while it does",
    is_clause=True,
)
_RECORDED: Final = {
    *("device records", "device work", "copies", "timeline", "calls", "steps", "collectives"),
}
"""What the command for everything records."""


class Missing(Struct, frozen=True):
    """Something the trace lacks: its code (texts `missing.CODE.what`, `.cost`), how to get it."""

    code: str
    how: How


def missing_from(trace: Trace) -> tuple[Missing, ...]:
    """Return what the trace lacks although its tool can record it."""
    if trace.source.format in SIDE_FORMATS:  # made beside a trace, which has the rest
        return ()
    did_nothing = _did_nothing(trace)
    missing = []
    for code, lack in _lacks(trace).items():
        how = way_to_record(trace, lack)
        if lack == "kernel counters" and how is not None and (options := _counting(trace)):
            how = How(options)
        if lack in ("device work", "calls") and did_nothing:  # what tracing of CUDA records
            # Said of the device work only: without work there are no calls. An error of the program
            # explains it already.
            is_explained = PROGRAM_ERROR in trace.source.facts
            how = _TRACED if lack == "device work" and not is_explained else None
        if how is not None:
            missing.append(Missing(code, how))
    return tuple(missing)


def _lacks(trace: Trace) -> dict[str, str]:
    """Return what the trace lacks, in the order of reports: by code, its name in the remedies."""
    work, calls, ops = trace.activities, trace.calls, trace.ops
    is_untimed = bool(trace.totals.num_rows or trace.kernel_counters.num_rows)
    is_empty, launches = not work.num_rows and not is_untimed, launch_calls(trace)
    sizes = numbers(work["bytes"], ABSENT)[is_one_of(work["kind"], "memcpy")]
    devices, ranks = trace.devices.to_pylist(), trace.processes["rank"]
    is_lacking = {
        "device-records": is_empty and launches > 0,
        # The trace tells neither that work was launched nor that none was.
        "device-work": is_empty and launches <= 0 and not launches_no_kernel(calls),
        "timeline": not work.num_rows and is_untimed,
        "copies": lacks_copies(trace),
        "sizes-of-copies": len(sizes) > 0 and (sizes == ABSENT).all(),
        "calls": not calls.num_rows,
        # Calls are only the moments at which work was queued.
        "calls-but-moments": calls.num_rows and is_one_of(calls["name"], "dispatch").all(),
        # Kernels ran collectives, and no activity says which.
        "collectives": work["collective"].null_count == work.num_rows
        and matching(work["name"], _OF_COLLECTIVES.search).any(),
        "operators": not ops.num_rows and of_pytorch(trace),
        "shapes": ops.num_rows and ops["input_dims"].null_count == ops.num_rows,
        "kernel-counters": not trace.kernel_counters.num_rows,
        "steps": find_marked_steps(trace, None) is None and of_ml(trace),
        "stacks": not is_one_of(trace.marks["kind"], "python", "module").any(),
        # No device has a name or properties that tell its model.
        "device": devices
        and not any(row["product"] or match(SeenDevice.of(row)).row for row in devices),
        "rank": len(ranks) and ranks.null_count == len(ranks),
        "memory": not trace.counters.num_rows,
    }
    codes = (code for code, lacks_it in is_lacking.items() if lacks_it)
    return {code: code.removesuffix("-but-moments").replace("-", " ") for code in codes}


def how_to_record(trace: Trace) -> str | None:
    """Return the command line that records what the trace has and lacks, None if none helps."""
    if _did_nothing(trace):
        return None  # the same command would record as little again
    return command(trace) if _RECORDED.intersection(_lacks(trace).values()) else None


def _did_nothing(trace: Trace) -> bool:
    """Return whether the process did no work, which another command would not change."""
    facts, has_work = trace.source.facts, trace.activities.num_rows > 0
    is_known = facts.get(CUDA_TRACE) == "true" or PROGRAM_ERROR in facts
    return not has_work and (is_known or launches_no_kernel(trace.calls))


def _counting(trace: Trace) -> str | None:
    """Return options that record counters of the devices, None if these are not of one family."""
    families = {family_of(device) for device in trace.devices["architecture"].to_pylist()}
    family = families.pop() if len(families) == 1 else None
    if family is None:
        return None
    options = ", ".join(family.options)
    runs = "in a separate run" if len(family.passes) == 1 else "each in a separate run"
    caveat = "" if family.counts_matrix_work else f"; {family.hardware} counts no matrix work"
    return f"{options} ({runs}{caveat})"


_PROPERTIES: Final = (
    *("type", "local_id", "product", "memory_bytes", "sm_count", "architecture", "clock_hz"),
    "dies",
)
Shown = Callable[[Trace, Selection], tuple[Trace, str | None]]
"""Returns what a selection leaves of a trace, ready to be shown, and the step mark."""


class DeviceEntry(Struct, frozen=True):
    """One device; properties are None if the trace does not give them.

    `name` is what reports call it. `ranks` are those of all processes that worked on it. If an
    application ran several times on a GPU, `run` is the number of the run that this row is about,
    and `runs` how many there are.
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


class Inventory(Struct, frozen=True):
    """What is in a trace.

    `rows` counts the rows of each table; `steps` are the numbers of marked steps; `record` is the
    command line that would record what is missing. If the files are of several jobs, these are
    `jobs`, and `of_jobs` has the inventory of each, None if a job cannot be selected.
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
    """Return what is in a trace, or in each of its jobs. Raises UsageError if none fits."""
    if not is_undecided(trace):
        return take_inventory(*shown(trace, selection))
    inventories: list[Inventory | None] = []
    for job in trace.jobs:
        chosen = replace(selection, job=job.number)
        try:
            inventories.append(take_inventory(*shown(of_job(trace, chosen.job), chosen)))
        except UsageError as error:
            inventories.append(None)
            refused = error
    if not any(inventories):
        raise refused
    empty = take_inventory(*shown(of_no_job(trace), Selection()))
    # The inventory of each job says what it lacks.
    return replace(empty, missing=(), record=None, of_jobs=tuple(inventories))


def take_inventory(trace: Trace, step_mark: str | None = None) -> Inventory:
    """Return what is in the trace. Raises UsageError if no mark matches `step_mark`."""
    marked = find_marked_steps(trace, step_mark)
    if marked is None and step_mark is not None:
        raise UsageError(
            f"no annotation matches --step-mark {step_mark!r}",
            "traceflops export --table marks lists them",
        )
    steps = {int(n) for s in marked.by_process.values() for n in s.number} if marked else set()
    processes, ranks = trace.processes.to_pylist(), ranks_of_devices(trace)
    counts = np.bincount(numbers(trace.activities["device"]), minlength=trace.devices.num_rows)
    runs_of_gpu = Counter(gpu for gpu, _ in trace.runs)
    devices = []
    for row in trace.devices.to_pylist():
        device, process = row["device"], processes[row["process"]]
        # In some recordings each run of an application on a GPU is a device.
        gpu, run = trace.runs[device] if trace.runs else (None, None)
        runs = runs_of_gpu[gpu] if gpu is not None else 1
        devices.append(
            DeviceEntry(
                rank=process["rank"],
                ranks=ranks[device],
                file=process["file"],
                **{name: row[name] for name in _PROPERTIES},
                partition=partition_text(row),
                activities=int(counts[device]),
                name=match(SeenDevice.of(row)).name(row["type"]),
                run=run if runs > 1 else None,
                runs=runs if runs > 1 else None,
            )
        )
    return Inventory(
        source=trace.source,
        ranks=trace.ranks,
        world_size=max(trace.processes["world_size"].drop_null().to_pylist(), default=None),
        devices=tuple(devices),
        rows={name: trace.table(name).num_rows for name in TABLES},
        steps=tuple(sorted(steps)),
        steps_text=in_words(marked.how) if marked else "no step markers",
        missing=missing_from(trace),
        record=how_to_record(trace),
        notes=trace.notes,
    )


_OF_PROFILER: Final = re.compile(
    r"profiler: |(Buffer Flush|Instrumentation|Resource|(UVM )?Activity (Buffer Request|Init))$"
)
"""Overheads that only a profiler causes, as nsys and Kineto name them."""


class ProfilerTime(Struct, frozen=True):
    """How often and how long (ns) the profiler ran on the CPU, and how long GPUs were idle then."""

    times: int
    spent_ns: int
    idle_ns: int


def profiler_time(
    trace: Trace,
    accounts: Mapping[int, DeviceAccount],
    within: Mapping[int, Intervals] | None = None,
) -> ProfilerTime:
    """Return how long the profiler ran, and GPUs were idle then (`within` by device, or ever)."""
    is_of_profiler = matching(trace.marks["name"], _OF_PROFILER.match)
    rows = np.flatnonzero(is_of_profiler & is_one_of(trace.marks["kind"], "overhead"))
    if not len(rows):
        return ProfilerTime(0, 0, 0)
    start, end = span_columns(trace.marks, rows)
    # By process, the gaps of all devices that it used.
    gaps: defaultdict[int, Intervals] = defaultdict(Intervals.empty)
    process = numbers(trace.activities["process"])
    for device, account in accounts.items():
        idle = Intervals.of(account.idle.gap_start_ns, account.idle.gap_end_ns)
        idle = idle if within is None else idle.intersect(within[device])
        for owner in distinct(process[account.rows.row]).tolist():
            gaps[owner] = gaps[owner].union(idle)
    spent_ns = idle_ns = 0
    for owner, of_process in groups(numbers(trace.marks["process"])[rows]):
        profiling = Intervals.of(start[of_process], end[of_process])
        spent_ns += profiling.length_ns
        idle_ns += profiling.intersect(gaps[owner]).length_ns
    return ProfilerTime(len(rows), spent_ns, idle_ns)
