"""The time range that `--from` and `--to` choose on each device, and the run shown of each GPU.

A GPU that did work of several runs, one after the other, has a row of the devices table per run
(see `devices.shared_gpus`). Figures of two runs together would count the GPU twice.

`restrict` cuts a trace down to what a selection is about.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
from msgspec.structs import replace

from traceflops.devices.jobs import of_job
from traceflops.devices.processes import called, clocks_of, device_name, lives, whose
from traceflops.errors import UsageError
from traceflops.table.columns import BoolArray, IntArray, numbers, take_rows
from traceflops.table.grouping import (
    distinct,
    group_least,
    group_sums,
    groups,
    without,
    without_unused,
)
from traceflops.table.links import Links, link
from traceflops.table.trace import Note, Trace, counted_note, note_of
from traceflops.timeline.intervals import ENDLESS
from traceflops.units import duration, listed
from traceflops.windows.records import Accounts, device_words
from traceflops.windows.selection import Selection
from traceflops.windows.steps import find_marked_steps, step_of_activity
from traceflops.windows.tiling import Stretch

_Account = TypeVar("_Account")
_Stretches = dict[int, tuple[int, int]]  # start and end in ns, by device
_MOST_GIVEN = 5  # numbers of `--gpus` that a note names, the lowest ones


def origins(trace: Trace) -> IntArray:
    """Return, by process, the time in ns from which `--from` and `--to` count.

    That is the first activity (in a trace without any, the first op) on the process's clock, or 0.
    Processes 0 and 1 share a clock, 2 has its own, first works are at 5, 7 and 80  ->  [5 5 80]
    """
    clock = clocks_of(trace)
    table = trace.activities if trace.activities.num_rows else trace.ops
    owner, start = clock[numbers(table["process"])], numbers(table["start_ns"])
    first = group_least(owner, start, int(clock.max(initial=0)) + 1)
    return np.where(first == ENDLESS, 0, first)[clock]


def chosen_range(
    trace: Trace, accounts: Accounts, selection: Selection
) -> tuple[_Stretches | None, tuple[Note, ...]]:
    """Return the time that --from and --to choose on each device that has records then, and notes.

    The time is None without these options. It ends at the last activity on the device's clock at
    the latest, and is limited to the time in which processes of the device were recorded: outside
    of that it is unknown whether the device was idle. UsageError if no device has records.
    Work on the clock 100..900, --from 50 --to 1000  ->  wanted 150..900. Its process was recorded
    300..700  ->  chosen 300..700.
    """
    if not selection.is_time_range:
        return None, ()
    if not accounts:
        raise UsageError(
            "nothing is recorded from which --from and --to could count",
            "leave them out: the report then says what the recording lacks",
        )
    clocks = _clocks(trace, accounts)
    wanted, chosen = {}, {}
    begin, end = lives(trace)
    owner = numbers(trace.activities["process"])
    for device, account in accounts.items():
        _, first_ns, last_ns = clocks[device]
        since = first_ns + (selection.from_ns or 0)
        until = last_ns if selection.to_ns is None else min(last_ns, first_ns + selection.to_ns)
        wanted[device] = (since, until)
        # The part of the wanted time in which any process of the device was recorded.
        processes = distinct(owner[account.rows.row])
        start = max(since, int(begin[processes].min()))
        stop = min(until, int(end[processes].max()))
        if start < stop:
            chosen[device] = (start, stop)
    operation = device_words(trace).operation
    longest_ns = max(clock.last_ns - clock.first_ns for clock in clocks.values())
    if not chosen:
        raise UsageError(
            "--from/--to lie outside the trace", f"its {operation}s span {duration(longest_ns)}"
        )
    notes = []
    shortest_ns = min(clock.last_ns - clock.first_ns for clock in clocks.values())
    if selection.to_ns is not None and shortest_ns < selection.to_ns:
        notes.append(note_of("assumed", "range-clipped", operation=operation))
    clock_count = len({clock.number for clock in clocks.values()})
    if clock_count > 1:
        notes.append(
            counted_note(
                "assumed",
                "range-by-clock",
                "The devices have {n} clocks (different machines or files) that cannot be "
                f"compared. --from and --to count from the first {operation} on each.",
                clock_count,
            )
        )
    return chosen, (*notes, *_unrecorded(trace, wanted, chosen))


class _Clock(NamedTuple):
    """The clock of a device: its number, and when the first and the last work on it is, in ns."""

    number: int
    first_ns: int
    last_ns: int


def _clocks(trace: Trace, accounts: Accounts) -> dict[int, _Clock]:
    """Return the clock of each device; work of all devices with this clock counts."""
    process: list[int] = numbers(trace.devices["process"]).tolist()
    number: list[int] = clocks_of(trace).tolist()
    first_ns: list[int] = origins(trace).tolist()
    last_ns: defaultdict[int, list[int]] = defaultdict(list)
    for device, account in accounts.items():
        last_ns[number[process[device]]].append(account.rows.span[1])
    clocks = {}
    for device in accounts:
        owner = process[device]
        clocks[device] = _Clock(number[owner], first_ns[owner], max(last_ns[number[owner]]))
    return clocks


def _unrecorded(trace: Trace, wanted: _Stretches, chosen: _Stretches) -> Iterator[Note]:
    """Yield notes on devices without records in the wanted time, or in a part of it.

    `chosen` has the recorded part of the time in `wanted`, without devices that have none.
    """
    unrecorded = [device for device in wanted if device not in chosen]
    if unrecorded:
        devices = listed(unrecorded, partial(device_name, trace))
        count = len(unrecorded)
        yield note_of("missing", "devices-outside-range", count=count, devices=devices)
    wanted_ns = {device: stop - start for device, (start, stop) in wanted.items()}
    missing_ns = [wanted_ns[device] - (stop - start) for device, (start, stop) in chosen.items()]
    cut_ns = [ns for ns in missing_ns if ns > 0]
    if cut_ns:
        yield note_of("assumed", "range-not-recorded", count=len(cut_ns), ns=max(cut_ns))


def one_run_per_gpu(
    trace: Trace, accounts: Mapping[int, _Account], selection: Selection
) -> tuple[dict[int, _Account], tuple[Note, ...]]:
    """Return the accounts of one run per GPU (see `_shown`), and a note on the runs left out."""
    shown = _shown(trace, accounts, selection)
    chosen = {device: account for device, account in accounts.items() if device in shown}
    if not trace.runs:
        return chosen, ()
    # `trace.runs` has, by device, its GPU and the number of the run.
    run_count = Counter(gpu for gpu, _ in trace.runs)
    of_several = [device for device in chosen if run_count[trace.runs[device][0]] > 1]
    if not of_several:
        return chosen, ()

    def run_text(device: int) -> str:
        gpu, number = trace.runs[device]
        owner = whose(trace, trace.devices["process"][device].as_py(), with_file=True)
        return f"{called(trace, device)} run {number} of {run_count[gpu]} ({owner})"

    work_ns = _work_ns(trace, selection)
    ignored_ns = sum(work_ns[device] for device in accounts.keys() - shown)
    note = note_of(
        "assumed",
        "one-run-of-several",
        count=sum(run_count[trace.runs[device][0]] - 1 for device in of_several),
        share=ignored_ns / max(sum(work_ns), 1),
        gpus=len(of_several),
        runs=listed(of_several, run_text),
    )
    return chosen, (note,)


def _work_ns(trace: Trace, selection: Selection) -> list[int]:
    """Return the time of the activities of each device in the selected range, by its row."""
    process, start = (numbers(trace.activities[name]) for name in ("process", "start_ns"))
    end = start + numbers(trace.activities["dur_ns"])
    if selection.is_time_range:
        first = origins(trace)[process]
        start = np.maximum(start, first + (selection.from_ns or 0))
        end = end if selection.to_ns is None else np.minimum(end, first + selection.to_ns)
    owner, count = numbers(trace.activities["device"]), trace.devices.num_rows
    sums: list[int] = group_sums(owner, np.maximum(end - start, 0), count).tolist()
    return sums


def _shown(trace: Trace, devices: Collection[int], selection: Selection) -> set[int]:
    """Return one run per GPU, as a device. Raises UsageError if no GPU has the run asked for.

    It is the run with the same number for every GPU: the number asked for, else the one with most
    device time over all GPUs with several runs: 9 and 5 ms in runs 1 and 2 of one GPU, 1 and 8 ms
    of another are most in run 2. A GPU without that run has its own run with most time.
    """
    most_runs = max((number for _, number in trace.runs), default=1)
    if selection.run is not None and selection.run > most_runs:
        text = "one run" if most_runs == 1 else f"{most_runs} runs"
        raise UsageError(
            f"there is no run {selection.run}: no GPU has more than {text}",
            "traceflops info lists the runs",
        )
    if not trace.runs:
        return set(devices)
    work_ns = _work_ns(trace, selection)
    of_gpu: defaultdict[int, list[int]] = defaultdict(list)
    for device in devices:
        of_gpu[trace.runs[device][0]].append(device)
    # By number of a run: the work of GPUs that have several runs.
    run_ns = Counter[int]()
    for runs in of_gpu.values():
        if len(runs) > 1:
            run_ns.update({trace.runs[device][1]: work_ns[device] for device in runs})
    wanted = selection.run or max(run_ns, key=lambda run: (run_ns[run], -run), default=1)
    return {
        max(runs, key=lambda device: (trace.runs[device][1] == wanted, work_ns[device], -device))
        for runs in of_gpu.values()
    }


def one_step_note(trace: Trace, stretches: Mapping[int, Sequence[Stretch]]) -> Note:
    """Return the note that there is one step, or that the GPUs of a process do it one by one.

    They do so if all pauses between the steps of two GPUs are longer than any of these steps.
    """
    steps = [step for of_gpu in stretches.values() for step in of_gpu if step.role == "step"]
    steps.sort(key=lambda step: step.start_ns)
    apart_ns = min((after.start_ns - step.end_ns for step, after in pairwise(steps)), default=0)
    is_one_process = len(set(trace.devices["process"].to_pylist())) == 1
    if not is_one_process or apart_ns <= max(step.dur_ns for step in steps):
        return note_of("assumed", "one-step")
    # The note concerns all of the time (share 1): each GPU is idle during the steps of the others.
    return note_of("assumed", "one-step.apart", share=1.0, count=len(steps), apart_ns=apart_ns)


def gpu_notes(trace: Trace, devices: Collection[int], selection: Selection) -> Iterator[Note]:
    """Yield a note if a number of `--gpus` chose several devices, as those of several machines."""
    if selection.gpus is None:
        return
    local_id = {device: int(trace.devices["local_id"][device].as_py()) for device in devices}
    repeated = {number for number, count in Counter(local_id.values()).items() if count > 1}
    chosen = [device for device in devices if local_id[device] in repeated]
    if not chosen:
        return
    given = tuple(sorted(repeated)[:_MOST_GIVEN])
    names = listed(chosen, partial(device_name, trace))
    count = len(chosen)
    yield note_of("assumed", "gpu-number-repeats", count=count, given=given, devices=names)


_TIMED = ("activities", "calls", "ops", "marks", "counters")
_OF_PROCESSES = (*_TIMED, "kernel_counters", "kernel_rules")
_OF_DEVICES = ("activities", "marks", "counters", "kernel_counters", "kernel_rules")
"""Tables whose rows have a time, a process, a device."""


def restrict(trace: Trace, selection: Selection) -> Trace:
    """Return the trace with only the rows of the chosen job, ranks, devices, run, steps and time.

    Processes and devices stay as they are, so that row numbers keep their meaning. A row belongs
    to a time range if it overlaps it; an activity belongs to the step it was launched in, a row of
    the host or a counter to the step at its time. The call and the op that caused a kept activity
    are kept, for its category; calls of removed ones are removed. UsageError if nothing is left.
    """
    trace = of_job(trace, selection.job)
    keep = {name: np.ones(t.num_rows, dtype=np.bool_) for name, t in trace.to_arrow().items()}
    if selection.ranks is not None:
        wanted = [p for p, rank in enumerate(trace.ranks) if rank in selection.ranks]
        for name, mask in keep.items():
            mask &= np.isin(numbers(trace.table(name)["process"]), wanted)
    if selection.gpus is not None:
        local_ids = trace.devices["local_id"].to_pylist()
        others = [row for row, number in enumerate(local_ids) if number not in selection.gpus]
        _drop_devices(trace, others, keep)
    if selection.run is not None:  # each run on a GPU is a device of its own
        devices = range(len(trace.runs))
        _drop_devices(trace, sorted({*devices} - _shown(trace, devices, selection)), keep)
    _keep_time_range(trace, selection, keep)
    _keep_steps(trace, selection, keep)
    if not all(keep[name].all() for name in ("activities", "calls", "ops")):
        _keep_causes(link(trace), keep)
    tables = trace.to_arrow()
    for name in tables.keys() - {"processes", "devices"}:
        if not keep[name].all():
            tables[name] = without_unused(take_rows(tables[name], np.flatnonzero(keep[name])))
    before = sum(table.num_rows for table in trace.tables.values())
    after = sum(table.num_rows for table in tables.values())
    unselectable = trace.processes.num_rows + trace.devices.num_rows
    if before > unselectable and after == unselectable:
        raise UsageError("the selection is empty", "select more with --ranks, --steps, --from")
    return replace(trace, tables=tables)


def _drop_devices(trace: Trace, devices: Sequence[int], keep: dict[str, BoolArray]) -> None:
    """Clear `keep` for rows of some devices, and for processes that only work on these."""
    for name in _OF_DEVICES:
        keep[name] &= ~np.isin(numbers(trace.table(name)["device"]), devices)
    process = numbers(trace.activities["process"])
    is_dropped = np.isin(numbers(trace.activities["device"]), devices)
    emptied = without(process[is_dropped], process[~is_dropped])
    for name in _OF_PROCESSES:
        keep[name] &= ~np.isin(numbers(trace.table(name)["process"]), emptied)


def _keep_causes(links: Links, keep: dict[str, BoolArray]) -> None:
    """Clear `keep` for calls of removed activities; set it for call and op of kept activities."""
    is_kept = keep["activities"]
    launched = links.call_of_activity[~is_kept]
    keep["calls"][launched[launched >= 0]] = False
    for name, cause in (("calls", links.call_of_activity), ("ops", links.op_of_activity)):
        rows = cause[is_kept]
        keep[name][rows[rows >= 0]] = True


def _process_and_start(trace: Trace, name: str) -> tuple[IntArray, IntArray]:
    """Return process and time of each row of a table of _TIMED."""
    time = "time_ns" if name == "counters" else "start_ns"
    return numbers(trace.table(name)["process"]), numbers(trace.table(name)[time])


def _keep_time_range(trace: Trace, selection: Selection, keep: dict[str, BoolArray]) -> None:
    """Clear `keep` for rows outside of the time range, which counts from each process's origin."""
    if not selection.is_time_range:
        return
    origin = origins(trace)
    from_ns = origin + (selection.from_ns or 0)
    for name in _TIMED:
        process, start = _process_and_start(trace, name)
        end = start
        if name != "counters":  # these are moments
            end = start + np.maximum(numbers(trace.table(name)["dur_ns"], 0), 0)
        # A row without length at the very beginning is inside.
        keep[name] &= (end > from_ns[process]) | (start == from_ns[process])
        if selection.to_ns is not None:
            keep[name] &= start < origin[process] + selection.to_ns


def _keep_steps(trace: Trace, selection: Selection, keep: dict[str, BoolArray]) -> None:
    """Clear `keep` for rows outside of the chosen steps. Raises UsageError without markers."""
    if selection.steps is None:
        return
    marked = find_marked_steps(trace, selection.step_mark)
    if marked is None:
        raise UsageError(
            "this trace has no step markers, so its tables cannot be selected by step",
            "select a time range with --from and --to",
        )
    step_of = step_of_activity(trace, link(trace), marked)
    for name in _TIMED:
        process, time = _process_and_start(trace, name)
        for number, rows in groups(process):
            if number not in marked.by_process:
                continue  # nothing tells which rows are of a chosen step: all are kept
            steps = marked.by_process[number]
            step = step_of[rows] if name == "activities" else steps.at(time[rows])
            # Index -1, for rows in no step, takes the False at the end.
            wanted = [selection.wants_step(int(n)) for n in steps.number] + [False]
            keep[name][rows] &= np.array(wanted)[step]
