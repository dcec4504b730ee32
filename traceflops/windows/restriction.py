"""The part of a trace that a selection is about, as a smaller trace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from traceflops.devices import of_job
from traceflops.errors import UsageError
from traceflops.table import BoolArray, IntArray, Trace, groups, link, number_column, numbers
from traceflops.windows.chosen_runs import of_other_runs, origins
from traceflops.windows.selection import Selection
from traceflops.windows.steps import find_marked_steps, step_of_activity

_TIMED = ("activities", "calls", "ops", "marks", "counters")


def restrict(trace: Trace, selection: Selection) -> Trace:
    """Return the rows of the chosen job, ranks, devices, steps and time.

    Processes and devices stay as they are, so that row numbers keep their meaning. A row belongs
    to a stretch of time if it overlaps it; an activity belongs to the step it was launched in,
    a row of the host or a counter to the step in whose time it is. The call and the op that
    caused a kept activity are kept with it, so that its category stays what it was. Raises
    UsageError where nothing is left.
    """
    trace = of_job(trace, selection.job)
    keep = {name: np.ones(t.num_rows, dtype=np.bool_) for name, t in trace.to_arrow().items()}
    for narrow in (_keep_ranks, _keep_devices, _keep_run, _keep_time, _keep_steps):
        narrow(trace, selection, keep)
    _keep_causes(trace, keep)
    tables = {
        name: table
        if name in ("processes", "devices") or keep[name].all()
        else table.take(number_column(np.flatnonzero(keep[name]), pa.int64()))
        for name, table in trace.to_arrow().items()
    }
    before = sum(table.num_rows for table in trace.tables.values())
    after = sum(table.num_rows for table in tables.values())
    settled = trace.processes.num_rows + trace.devices.num_rows
    if before > settled and after == settled:
        raise UsageError("the selection is empty", "select more with --ranks, --steps, --from")
    return replace(trace, tables=tables)


def _keep_ranks(trace: Trace, selection: Selection, keep: dict[str, BoolArray]) -> None:
    if selection.ranks is None:
        return
    wanted = [p for p, rank in enumerate(trace.ranks) if rank in selection.ranks]
    for name, mask in keep.items():
        mask &= np.isin(numbers(trace.table(name)["process"]), wanted)


def _keep_devices(trace: Trace, selection: Selection, keep: dict[str, BoolArray]) -> None:
    if selection.gpus is None:
        return
    local = trace.devices["local_id"].to_pylist()
    wanted = [d for d, number in enumerate(local) if number in selection.gpus]
    for name in ("activities", "marks", "counters", "kernel_counters"):
        device = numbers(trace.table(name)["device"])
        keep[name] &= (device < 0) | np.isin(device, wanted)


def _keep_run(trace: Trace, selection: Selection, keep: dict[str, BoolArray]) -> None:
    """Leave out rows of devices that are other runs, and those of their processes."""
    others = of_other_runs(trace, selection)
    if not others:
        return
    done, process = (numbers(trace.activities[name]) for name in ("device", "process"))
    apart = np.isin(done, others)
    gone = np.setdiff1d(process[apart], process[~apart])
    for name in (*_TIMED, "kernel_counters"):
        table = trace.table(name)
        keep[name] &= ~np.isin(numbers(table["process"]), gone)
        if "device" in table.column_names:
            keep[name] &= ~np.isin(numbers(table["device"]), others)


def _keep_time(trace: Trace, selection: Selection, keep: dict[str, BoolArray]) -> None:
    if not selection.is_time_range:
        return
    first = origins(trace)
    low = first + (selection.from_ns or 0)
    for name in _TIMED:
        process, start = _process_and_start(trace, name)
        end = start
        if name != "counters":
            end = start + np.maximum(numbers(trace.table(name)["dur_ns"], 0), 0)
        keep[name] &= (end > low[process]) | (start == low[process])
        if selection.to_ns is not None:
            keep[name] &= start < first[process] + selection.to_ns


def _process_and_start(trace: Trace, name: str) -> tuple[IntArray, IntArray]:
    time = "time_ns" if name == "counters" else "start_ns"
    return numbers(trace.table(name)["process"]), numbers(trace.table(name)[time])


def _keep_steps(trace: Trace, selection: Selection, keep: dict[str, BoolArray]) -> None:
    if selection.steps is None:
        return
    found = find_marked_steps(trace, selection.step_mark)
    if found is None:
        raise UsageError(
            "this trace has no step markers, so its tables cannot be selected by step",
            "select a time range with --from and --to",
        )
    place = step_of_activity(trace, link(trace), found)
    for name in _TIMED:
        process, time = _process_and_start(trace, name)
        for one, mine in groups(process):
            if one not in found.by_process:
                continue
            steps = found.by_process[one]
            at = place[mine] if name == "activities" else steps.at(time[mine])
            wanted = [selection.wants_step(int(n)) for n in steps.number] + [False]
            keep[name][mine] &= np.array(wanted)[at]


def _keep_causes(trace: Trace, keep: dict[str, BoolArray]) -> None:
    if keep["calls"].all() and keep["ops"].all():
        return
    links = link(trace)
    for name, cause in (("calls", links.call_of_activity), ("ops", links.op_of_activity)):
        rows = cause[keep["activities"]]
        keep[name][rows[rows >= 0]] = True
