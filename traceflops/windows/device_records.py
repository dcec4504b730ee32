"""Calls that launch work on a GPU, known by their names, and those whose work is not recorded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from traceflops.devices import whose
from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    Note,
    Trace,
    distinct,
    is_one_of,
    joint_codes,
    matching,
    numbers,
    recorded_calls,
)
from traceflops.timeline import LONGEST_START_NS
from traceflops.units import listed, several
from traceflops.windows.records import chosen_time

if TYPE_CHECKING:
    from traceflops.timeline import DeviceAccount, Untimed, Window
    from traceflops.windows.selection import Selection
_LAUNCH: Final = re.compile(
    r"(cuda|cu|hip)(?!\w*HostFunc)\w*Launch(?!Attribute)|(ze|ur|sycl)\w*(LaunchKernel|KernelLaunch)"
)
_GRAPH: Final = re.compile(r"\w*GraphLaunch")
_COPY: Final = re.compile(r"(cuda|cu|hip)Mem(cpy|set)\w*Async")
_CAPTURE: Final = {
    1: re.compile(r"\w*StreamBeginCapture"),
    -1: re.compile(r"\w*StreamEndCapture"),
}
_GPU: Final = "gpu"
_NEVER: Final = np.iinfo(np.int64).min
_CUT: Final = "GPU records of {} ({}) are incomplete; the figures are those of the others."
_OTHERS: Final = 2
"""So many processes must be there for each that is cut, and one more."""
NO_DEVICE_RECORDS: Final = "device-records-missing"
"""The code of the note on launch calls without any record of a device."""
MATERIAL: Final = 0.05
"""From this share of lost calls on, nothing is judged: complete public traces lack up to 2 %."""

State = Literal["complete", "few missing", "incomplete", "missing", "capture"]


@dataclass(frozen=True, slots=True)
class LaunchRecords:
    """How many launch calls should have a device record, and how many have none.

    `captured` calls became part of a graph: they ran nothing, and are not among `calls`. `replays`
    says that the trace also launches graphs; `has_devices` that some device record is there.
    """

    calls: int = 0
    lost: int = 0
    captured: int = 0
    replays: bool = False
    has_devices: bool = True

    @property
    def state(self) -> State:
        """Return what that makes of the trace."""
        if self.captured > self.calls and not self.replays:
            return "capture"
        if not self.lost:
            return "complete"
        if not self.has_devices:
            return "missing"
        return "incomplete" if self.lost >= MATERIAL * self.calls else "few missing"

    @property
    def is_judged(self) -> bool:
        """Return whether enough is recorded to say what was idle and what was lost."""
        return self.state in ("complete", "few missing")


def launch_calls(trace: Trace) -> int:
    """Return how many calls of a trace launch kernels or graphs on a GPU."""
    return int(_launching(trace).sum())


def graph_launches(trace: Trace) -> BoolArray:
    """Return which calls of a trace replay a graph."""
    return _named(trace, _GRAPH)


def launch_records(trace: Trace, untimed: Untimed | None, is_chosen: BoolArray) -> LaunchRecords:
    """Return which launch calls of the chosen ones have a device record.

    Copies count where any copy is recorded.
    """
    types = trace.devices["type"].to_pylist()
    has_devices = _GPU in {types[one] for one in distinct(numbers(trace.activities["device"]))}
    if untimed is not None and not launch_calls(trace):
        count = _counted(untimed)
        return LaunchRecords(count, count, has_devices=False)
    asked, captured, lost = _asked_of_devices(trace, is_chosen, has_devices=has_devices)
    calls = int((asked & ~captured).sum())
    replays = bool((asked & graph_launches(trace)).any())
    return LaunchRecords(calls, int(lost.sum()), int(captured.sum()), replays, has_devices)


def _asked_of_devices(
    trace: Trace, is_chosen: BoolArray, *, has_devices: bool
) -> tuple[BoolArray, BoolArray, BoolArray]:
    """Return which calls ask for work on a device, which were captured, and whose work is lost."""
    recorded, launches, copies = recorded_calls(trace), _launching(trace), _named(trace, _COPY)
    asked = launches | (copies & (copies & recorded).any())
    asked &= is_chosen & _linkable(trace)
    captured = asked & ~recorded & _capturing(trace)
    lost = asked & ~recorded & ~captured
    if has_devices:
        lost &= ~_still_queued(trace, asked & recorded)
    return asked, captured, lost


def lost_replays(trace: Trace) -> IntArray:
    """Return the calls that replay a graph and of which there is no device record."""
    replays = graph_launches(trace)
    if not replays.any():
        return np.empty(0, dtype=np.int64)
    recorded = recorded_calls(trace)
    replays = replays & (numbers(trace.calls["correlation"], ABSENT) != ABSENT)
    lost = replays & ~recorded & _linkable(trace) & ~_capturing(trace)
    return np.flatnonzero(lost & ~_still_queued(trace, recorded))


def cut_processes(trace: Trace) -> IntArray:
    """Return the processes whose GPU records are incomplete, where those of most are whole.

    A rank whose file was cut says nothing about the others.
    """
    if trace.processes.num_rows <= _OTHERS:
        return np.empty(0, dtype=np.int64)
    every = np.ones(trace.calls.num_rows, dtype=np.bool_)
    asked, captured, lost = _asked_of_devices(trace, every, has_devices=True)
    process, count = numbers(trace.calls["process"]), trace.processes.num_rows
    calls, gone = (np.bincount(process[one], minlength=count) for one in (asked & ~captured, lost))
    cut = np.flatnonzero((gone > 0) & (gone >= MATERIAL * calls))
    return cut if _OTHERS * len(cut) < (calls > 0).sum() else cut[:0]


def whole_devices(
    trace: Trace, accounts: Mapping[int, DeviceAccount], cut: IntArray
) -> tuple[dict[int, DeviceAccount], tuple[Note, ...]]:
    """Return the devices but for those of cut processes, and the note that names these."""
    owner = numbers(trace.activities["process"])
    if not len(cut):
        return dict(accounts), ()
    whole = {
        device: account
        for device, account in accounts.items()
        if not np.isin(owner[account.rows.row], cut).all()
    }
    text = _CUT.format(several(len(cut), "process"), listed(cut.tolist(), partial(whose, trace)))
    return whole, (Note("missing", "processes-left-out", text, len(cut)),)


def records_notes(found: LaunchRecords, *, on_host: bool) -> tuple[Note, ...]:
    """Return how many calls launched work on a GPU that is not in the trace, or captured it."""
    if found.state == "capture":
        calls = several(found.calls + found.captured, "launch call")
        text = (
            f"{found.captured:,} of {calls} were captured into a graph; their kernels did not run."
        )
        return (Note("missing", "graph-capture", text, found.captured),)
    if not found.lost:
        return ()
    calls = several(found.calls, "launch call")
    shown = "; all times and shares are of CPU operators" if on_host else ""
    text = (
        f"No device record for {found.lost:,} of {calls}; their work is missing from the figures."
        if found.has_devices
        else f"GPU records of {calls} are missing{shown}."
    )
    return (Note("missing", NO_DEVICE_RECORDS, text, found.lost),)


def _named(trace: Trace, pattern: re.Pattern[str]) -> BoolArray:
    return matching(trace.calls["name"], pattern.match)


def _launching(trace: Trace) -> BoolArray:
    """Return which calls launch kernels or graphs; the driver's half of a runtime call is none."""
    found, calls = _named(trace, _LAUNCH), trace.calls
    correlation = numbers(calls["correlation"], ABSENT)
    launch = joint_codes(numbers(calls["process"]), correlation)
    is_driver = is_one_of(calls["api"], "driver")
    halves = is_driver & (correlation != ABSENT) & np.isin(launch, launch[found & ~is_driver])
    return np.asarray(found & ~halves)


def _counted(untimed: Untimed) -> int:
    """Return how many launch calls a trace without a timeline counts, 0 beside device work."""
    rows = untimed.of_kind("call")
    if untimed.categories.num_rows or untimed.launches:
        return 0
    pairs = zip(rows["name"].to_pylist(), rows["count"].to_pylist(), strict=True)
    return sum(count or 0 for name, count in pairs if _LAUNCH.match(name))


def _linkable(trace: Trace) -> BoolArray:
    """Return the calls of processes whose activities have correlations; of others none is lost.

    Work of a process without calls may be that of a process which has only calls.
    """
    process, calls = numbers(trace.activities["process"]), numbers(trace.calls["process"])
    known = numbers(trace.activities["correlation"], ABSENT) != ABSENT
    without = np.setdiff1d(process, process[known])
    if len(np.setdiff1d(process, calls)):
        without = np.union1d(without, np.setdiff1d(calls, process))
    return ~np.isin(calls, without)


def _capturing(trace: Trace) -> BoolArray:
    """Return which calls a process makes while a stream of it is captured, on any thread."""
    process, sign = numbers(trace.calls["process"]), np.zeros(trace.calls.num_rows, dtype=np.int64)
    for step, pattern in _CAPTURE.items():
        sign += step * _named(trace, pattern)
    order = np.lexsort((numbers(trace.calls["start_ns"]), process))
    depth = np.cumsum(sign[order])
    _, first, count = np.unique(process[order], return_index=True, return_counts=True)
    # A recording may begin inside a capture: then it is the lowest level that is outside.
    outside = np.minimum(np.minimum.reduceat(depth, first), np.append(0, depth)[first])
    found = np.zeros(len(order), dtype=np.bool_)
    found[order] = depth > np.repeat(outside, count)
    return found


def _still_queued(trace: Trace, recorded: BoolArray) -> BoolArray:
    """Return the calls after the last recorded one, of processes that kept a GPU busy to the end.

    Their work ran after the recording stopped.
    """
    calls, activities = trace.calls, trace.activities
    process, start = numbers(calls["process"]), numbers(calls["start_ns"])
    worked = numbers(activities["start_ns"]) + numbers(activities["dur_ns"])
    last, stopped, busy = (np.full(trace.processes.num_rows, _NEVER) for _ in range(3))
    np.maximum.at(last, process[recorded], start[recorded])
    np.maximum.at(stopped, process, start + numbers(calls["dur_ns"]))
    np.maximum.at(busy, numbers(activities["process"]), worked)
    to_the_end = stopped <= busy + LONGEST_START_NS
    return np.asarray((start > last[process]) & to_the_end[process])


def chosen_calls(
    trace: Trace,
    selection: Selection,
    accounts: Mapping[int, DeviceAccount],
    windows: Mapping[int, tuple[Window, ...]],
    cut: IntArray,
) -> BoolArray:
    """Return the calls of the chosen devices, and of processes without any; of steps if asked.

    Those of `cut` processes, which are left out, are not among them.
    """
    calls, start = (numbers(trace.calls[name]) for name in ("process", "start_ns"))
    owner = numbers(trace.activities["process"])
    alone = selection.ranks is None and selection.gpus is None
    found = np.full(len(calls), alone)
    found[np.isin(calls, np.union1d(owner, cut))] = False
    for device, account in accounts.items():
        mine = np.isin(calls, distinct(owner[account.rows.row]))
        if selection.steps is not None or selection.is_time_range:
            chosen = chosen_time(windows[device])
            place = np.searchsorted(chosen.start_ns, start, side="right")
            mine &= start < np.append(_NEVER, chosen.end_ns)[place]
        found |= mine
    return found
