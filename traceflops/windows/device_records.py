"""Calls that start work on a GPU, recognised by name, and how many of them lost their record.

A call is lost if the trace has no device record of its work. `LaunchRecords` says what that means.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.devices.processes import whose
from traceflops.table.columns import ABSENT, Additive, BoolArray, IntArray, is_one_of, numbers
from traceflops.table.grouping import distinct, groups
from traceflops.table.links import recorded_calls
from traceflops.table.patterns import ASYNC_COPY, ASYNC_FILL, GRAPH_LAUNCH, started
from traceflops.table.trace import Note, Trace, note_of
from traceflops.timeline.account import DeviceAccount
from traceflops.timeline.aggregates import Untimed
from traceflops.timeline.intervals import ENDLESS
from traceflops.units import listed, several
from traceflops.windows import starting_calls
from traceflops.windows.records import Accounts

_ASYNC: Final = {"copy": ASYNC_COPY, "fill": ASYNC_FILL}
_WORDS: Final = {"kernel": "launch call", "graph": "graph launch", "copy": "copy", "fill": "fill"}
_GPU: Final = "gpu"
_WHOLE_PER_CUT: Final = 2  # there must be more than two whole processes for each one that is cut
NO_DEVICE_RECORDS: Final = "device-records-missing"
"""The code of the note on launch calls without any device record."""
MATERIAL: Final = 0.05
"""From this share of lost calls on nothing is judged; complete public traces lack up to 2 %."""
_MOST: Final = 0.5
State = Literal[
    "complete", "few missing", "incomplete", "missing", "capture", "collectives", "serialized"
]
CallKind = Literal["kernel", "graph", "copy", "fill"]


class CallRecords(Additive, frozen=True):
    """Number of calls of one kind that start work on a device; `lost`: those without a record."""

    calls: int = 0
    lost: int = 0

    def lack(self, of: int | None = None) -> bool:
        """Return whether a MATERIAL share of `of` calls is lost, by default of these calls."""
        return 0 < self.lost >= MATERIAL * (self.calls if of is None else of)


class LaunchRecords(Struct, frozen=True):
    """Calls that start work on a GPU, by kind, and how many of them have no device record.

    Calls that start nothing, such as queries, are not counted. `captured` calls became part of a
    graph and ran nothing; no kind counts them. `has_devices`: there are device records.
    `only_collectives`: all recorded kernels are collectives. `serialized`: the profiler ran kernels
    one by one. `timed` are recorded operations of the GPU; `lost` ones have no known duration.
    `early` calls ran before the windows, while the profiler started; no kind counts them. `queued`
    calls are not lost: their work had not run when the recording ended.
    """

    kernel: CallRecords
    graph: CallRecords
    copy: CallRecords
    fill: CallRecords
    captured: int = 0
    has_devices: bool = True
    only_collectives: bool = False
    serialized: bool = False
    timed: CallRecords = CallRecords()
    early: int = 0
    queued: int = 0

    def __add__(self, other: LaunchRecords) -> LaunchRecords:
        """Return the records of two recordings; one with other kernels has not only collectives."""
        flags: Any = {
            "has_devices": self.has_devices or other.has_devices,
            "only_collectives": self.only_collectives and other.only_collectives,
            "serialized": self.serialized or other.serialized,
        }
        counts = [name for name in self.__struct_fields__ if name not in flags]
        sums: Any = {name: getattr(self, name) + getattr(other, name) for name in counts}
        return LaunchRecords(**sums, **flags)

    @property
    def evidence(self) -> CallRecords:
        """All calls whose missing records prove a loss; fills of no bytes have none anyway."""
        others = self.kernel + self.graph + self.copy
        return others + (self.fill if others.lost else CallRecords(self.fill.calls))

    @property
    def calls(self) -> int:
        """Number of calls that start work."""
        return self.evidence.calls

    @property
    def lost(self) -> int:
        """Number of these calls without a record."""
        return self.evidence.lost

    @property
    def state(self) -> State:
        """How complete the device records are: incomplete if many are lost or have no duration.

        Lost graphs do not count: they only make idle time after them unknown (`replay_time`).
        """
        if self.captured > self.calls and not self.graph.calls:
            return "capture"  # graphs were made, and their replays are not in the trace
        if self.timed.lack():
            return "incomplete"
        if self.only_collectives and not self.kernel.calls + self.graph.calls:
            return "collectives"  # no call for kernels either: only a library was recorded
        if self.serialized and self.has_devices:
            return "serialized"  # whatever is lost, idle time is not that of the program
        if not self.lost:
            return "complete"
        if not self.has_devices:
            return "missing"
        return "incomplete" if self.kernel.lack() or self.lacks_copies else "few missing"

    @property
    def words(self) -> str:
        """Number and kind of the calls in words: "12 copies" if only copies lost records."""
        # Fills prove nothing alone.
        some = [kind for kind in KINDS if getattr(self, kind).lost and kind != "fill"]
        if self.has_devices and some in (["copy"], ["graph"]):
            return several(getattr(self, some[0]).calls, _WORDS[some[0]])
        return several(self.calls, "launch call")

    @property
    def lacks_all_kernels(self) -> bool:
        """Whether kernels were launched and none of them is recorded, though other work is."""
        launches = self.kernel + self.graph
        return self.has_devices and 0 < launches.calls == launches.lost

    @property
    def is_judged(self) -> bool:
        """Whether enough is recorded to judge idle time and its causes."""
        return self.state in ENOUGH

    @property
    def lacks_copies(self) -> bool:
        """Whether so many copies are missing that they may fill idle time."""
        return self.copy.lack(self.calls)


KINDS: Final[tuple[CallKind, ...]] = ("kernel", "graph", "copy", "fill")
_STARTS: Final[Mapping[str, CallKind]] = {"kernel": "kernel", "memcpy": "copy", "memset": "fill"}
"""The kind of call that starts each kind of work."""
_NO_DURATION: Final = ("no-duration", "negative-duration")
"""Codes of notes of readers on durations that they count as 0."""
_TIMED: Final = ("kernel", "memcpy", "graph")  # kinds of work that cannot take no time at all
NO_LAUNCHES: Final = LaunchRecords(CallRecords(), CallRecords(), CallRecords(), CallRecords())
ENOUGH: Final[tuple[State, ...]] = ("complete", "few missing")
"""States in which idle time and its causes are known."""
PARTIAL: Final[tuple[State, ...]] = ("incomplete", "collectives", "serialized")
"""States in which recorded work is known, and idle time is not that of the program."""
UNRECORDED: Final = PARTIAL[:2]
"""States in which idle time may be work that is not recorded."""


def launch_calls(trace: Trace) -> int:
    """Return the number of calls of a trace that launch kernels or graphs on a GPU."""
    return int(starting_calls.launching(trace).sum())


def launch_records(
    trace: Trace, untimed: Untimed | None, is_chosen: BoolArray, begins_ns: IntArray
) -> LaunchRecords:
    """Return how many calls start work and are lost, of those that `is_chosen` (per call) names.

    `begins_ns` is when the windows of each process begin.
    """
    types = trace.devices["type"].to_pylist()
    devices = distinct(numbers(trace.activities["device"])).tolist()
    has_devices = _GPU in {types[device] for device in devices}
    if untimed is not None and not launch_calls(trace):
        return replace(NO_LAUNCHES, has_devices=False)  # a summary of calls has no device work
    kind, captured, lost = _wanted_records(trace, is_chosen, has_devices=has_devices)
    recorded = recorded_calls(trace)
    is_early = starting_calls.early(trace, recorded & (kind >= 0), lost, begins_ns)
    kind[is_early] = -1
    lost[is_early] = False
    one_process = np.zeros(trace.calls.num_rows, dtype=np.int64)  # counts all calls together
    (records,) = _by_process(kind, captured, lost, one_process, 1)
    queued = 0
    if has_devices:
        is_wanted = kind >= 0
        is_queued = is_wanted & starting_calls.still_queued(trace, is_wanted & recorded)
        queued = int((is_queued & ~recorded & ~captured & ~lost).sum())
    return replace(records, has_devices=has_devices, early=int(is_early.sum()), queued=queued)


def _by_process(
    kind: IntArray, captured: BoolArray, lost: BoolArray, process: IntArray, processes: int
) -> list[LaunchRecords]:
    """Return the numbers of calls of each process; the arrays are per call (`_wanted_records`)."""

    def by_process_and_kind(calls: BoolArray) -> Any:
        calls = calls & (kind >= 0)
        cell = process[calls] * len(KINDS) + kind[calls]
        counts = np.bincount(cell, minlength=processes * len(KINDS))
        return counts.reshape(processes, len(KINDS)).tolist()

    run, lost_calls = by_process_and_kind(~captured), by_process_and_kind(lost)
    captured_calls = np.bincount(process[captured], minlength=processes).tolist()
    records = []
    for run_by_kind, lost_by_kind, count in zip(run, lost_calls, captured_calls, strict=True):
        kernel, graph, copy, fill = map(CallRecords, run_by_kind, lost_by_kind)
        records.append(LaunchRecords(kernel, graph, copy, fill, captured=count))
    return records


def _wanted_records(
    trace: Trace, is_chosen: BoolArray, *, has_devices: bool
) -> tuple[IntArray, BoolArray, BoolArray]:
    """Return, per call, its `_kinds`, whether it was captured in a graph, and whether it is lost.

    A wanted call with a record is neither. Without a record, the first line that holds decides:

        its process captures a graph                                captured
        its work was still queued when the recording stopped        not lost
        its record may be one without a correlation                 not lost
        else                                                        lost
    """
    recorded, process = recorded_calls(trace), numbers(trace.calls["process"])
    kind = _kinds(trace, is_chosen, recorded)
    is_wanted = kind >= 0
    captured = is_wanted & ~recorded & starting_calls.capturing(trace)
    lost = is_wanted & ~recorded & ~captured
    if has_devices:
        is_queued = starting_calls.still_queued(trace, is_wanted & recorded)
        # In a process without any recorded kernel, kernels were not just queued: all are lost.
        is_launch = np.isin(kind, (KINDS.index("kernel"), KINDS.index("graph")))
        lacks_kernels = ~np.isin(process, process[is_launch & recorded])
        lost &= ~is_queued | (is_launch & lacks_kernels)
    # A record without a correlation may be that of a lost call of its process and kind. 12 copies
    # lack a record, and 15 records of copies lack a correlation: no copy is lost.
    work = trace.activities
    kind_of_work = np.full(work.num_rows, -1)
    for work_kind, call_kind in _STARTS.items():
        kind_of_work[is_one_of(work["kind"], work_kind)] = KINDS.index(call_kind)
    is_unlinked = (kind_of_work >= 0) & (numbers(work["correlation"], ABSENT) == ABSENT)
    # Both are counted in a table: process 2, kind 3 of the four KINDS is cell 2 * 4 + 3.
    cells = trace.processes.num_rows * len(KINDS)
    cell_of_call = process * len(KINDS) + kind
    cell_of_work = numbers(work["process"]) * len(KINDS) + kind_of_work
    unlinked_count = np.bincount(cell_of_work[is_unlinked], minlength=cells)
    lost_count = np.bincount(cell_of_call[lost], minlength=cells)
    return kind, captured, lost & (lost_count > unlinked_count)[cell_of_call]


def _kinds(trace: Trace, is_chosen: BoolArray, recorded: BoolArray) -> IntArray:
    """Return, per call, the index in KINDS of what it starts; -1 if its record is not wanted.

    It is -1 if it starts nothing, if it is not chosen, or if the tool does not record its kind.
    """
    is_launch = starting_calls.launching(trace)
    kind = np.where(is_launch, KINDS.index("kernel"), -1)
    kind[is_launch & started(trace.calls, GRAPH_LAUNCH)] = KINDS.index("graph")
    for name, pattern in _ASYNC.items():
        kind[started(trace.calls, pattern)] = KINDS.index(name)
    is_possible = is_chosen & starting_calls.linkable(trace)
    kind[~is_possible] = -1
    # Tools record copies and fills together: without any record, both were not asked for.
    is_copy_or_fill = np.isin(kind, [*map(KINDS.index, _ASYNC)])
    if not (is_copy_or_fill & recorded).any():
        kind[is_copy_or_fill] = -1
    return kind


def lost_replays(trace: Trace) -> dict[int, IntArray]:
    """Return, by process, the rows of calls that replay a graph without a device record."""
    replays = started(trace.calls, GRAPH_LAUNCH)
    if not replays.any():
        return {}
    recorded = recorded_calls(trace)
    # A call without a correlation may have a record that does not name it. A call during a capture
    # runs nothing, but becomes a part of another graph.
    lost = replays & ~recorded & starting_calls.linkable(trace)
    lost &= numbers(trace.calls["correlation"], ABSENT) != ABSENT
    lost &= ~starting_calls.capturing(trace) & ~starting_calls.still_queued(trace, recorded)
    row = np.flatnonzero(lost)
    return {process: row[rows] for process, rows in groups(numbers(trace.calls["process"])[row])}


def timed_work(trace: Trace) -> CallRecords:
    """Return the number of kernels, copies and graphs, and of those without a known duration.

    A few durations of 0 ns are those of very short operations. They are unknown if half of all
    durations are 0, or if notes of the reader count as many missing durations as there are zeros.
    """
    is_timed = is_one_of(trace.activities["kind"], *_TIMED)
    dur_ns = numbers(trace.activities["dur_ns"])[is_timed]
    zeros = int(np.count_nonzero(dur_ns == 0))
    counts = [note.count for note in trace.notes if note.code in _NO_DURATION]
    missing = sum(zeros if count is None else count for count in counts)
    are_short = 2 * zeros < len(dur_ns) and missing < zeros
    return CallRecords(len(dur_ns), 0 if are_short else zeros)


def cut_processes(trace: Trace) -> IntArray:
    """Return the processes whose GPU records are incomplete, such as those of a truncated file.

    They are to be left out, so that they do not affect the others. Of 8 processes with calls 3 are
    incomplete: these 3 are returned. If 4 are, none is: then all processes are judged together.
    """
    if trace.processes.num_rows <= _WHOLE_PER_CUT:
        return np.empty(0, dtype=np.int64)
    every_call = np.ones(trace.calls.num_rows, dtype=np.bool_)
    kind, captured, lost = _wanted_records(trace, every_call, has_devices=True)
    no_windows_ns = np.full(trace.processes.num_rows, ENDLESS)  # windows are not known yet
    lost &= ~starting_calls.early(trace, recorded_calls(trace) & (kind >= 0), lost, no_windows_ns)
    process = numbers(trace.calls["process"])
    records = _by_process(kind, captured, lost, process, trace.processes.num_rows)
    cut = [  # many lost copies may fill idle time; lost fills take little
        process
        for process, own in enumerate(records)
        if own.kernel.lack() or own.graph.lack() or own.lacks_copies
    ]
    is_few = _WHOLE_PER_CUT * len(cut) < sum(own.calls > 0 for own in records)
    return np.array(cut if is_few else [], dtype=np.int64)


def whole_devices(
    trace: Trace, accounts: Accounts, cut: IntArray
) -> tuple[dict[int, DeviceAccount], tuple[Note, ...]]:
    """Return the accounts of devices not only used by `cut` processes, and a note on the latter."""
    if not len(cut):
        return dict(accounts), ()
    owner = numbers(trace.activities["process"])
    whole = {
        device: account
        for device, account in accounts.items()
        if not np.isin(owner[account.rows.row], cut).all()
    }
    processes = listed(cut.tolist(), partial(whose, trace))
    note = note_of("missing", "processes-left-out", count=len(cut), processes=processes)
    return whole, (note,)


def records_notes(
    records: LaunchRecords, *, on_host: bool, share: float | None = None
) -> tuple[Note, ...]:
    """Return notes on calls whose GPU work was captured in a graph, or is not in the trace.

    `on_host`: only operators of CPUs are shown. `share` is the estimated share of the missing work
    in the time; it only holds if few calls are lost.
    """
    if records.state == "capture":
        calls = records.calls + records.captured
        return (note_of("missing", "graph-capture", count=records.captured, calls=calls),)
    notes = []
    if records.queued >= max(MATERIAL * records.calls, 1):
        share_queued = records.queued / records.calls
        # If most work has not run, the note concerns all figures (share 1).
        weight = 1.0 if share_queued >= _MOST else share_queued
        calls_text = several(records.calls, "launch call")
        count = records.queued
        note = note_of("missing", "launches-queued", count=count, share=weight, calls=calls_text)
        notes.append(note)
    if not records.lost:
        if records.early:
            notes.append(note_of("missing", "launches-early", count=records.early))
        return tuple(notes)
    variant = "on-host" if on_host else "all"
    if records.has_devices:
        variant = "some"
    part = share if records.state == "few missing" else None
    code = f"{NO_DEVICE_RECORDS}.{variant}"
    note = note_of("missing", code, count=records.lost, calls=records.words, part=part)
    return (*notes, note)
