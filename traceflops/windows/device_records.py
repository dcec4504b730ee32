"""Calls that start work on a GPU, recognised by name, and those whose work is not recorded.

What a lost record means depends on the kind of call: see `LaunchRecords`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Final, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.devices.processes import whose
from traceflops.table.columns import ABSENT, BoolArray, IntArray, is_one_of, matching, numbers
from traceflops.table.grouping import distinct, group_most, groups, is_among, joint_codes
from traceflops.table.links import recorded_calls
from traceflops.table.patterns import ASYNC_COPY, ASYNC_FILL, GRAPH_LAUNCH, LAUNCH
from traceflops.table.trace import Note, Trace, note_of
from traceflops.timeline.account import DeviceAccount
from traceflops.timeline.aggregates import Untimed
from traceflops.timeline.idle import LONGEST_START_NS
from traceflops.units import listed, several

_ASYNC: Final = {"copy": ASYNC_COPY, "fill": ASYNC_FILL}
_WORDS: Final = {"kernel": "launch call", "graph": "graph launch", "copy": "copy", "fill": "fill"}
_CAPTURE: Final = {1: re.compile(r"\w*StreamBeginCapture"), -1: re.compile(r"\w*StreamEndCapture")}
_GPU: Final = "gpu"
_WHOLE_PER_CUT: Final = 2  # there must be more than two whole processes for each one that is cut
NO_DEVICE_RECORDS: Final = "device-records-missing"
"""The code of the note on launch calls without any device record."""
MATERIAL: Final = 0.05
"""From this share of lost calls on nothing is judged; complete public traces lack up to 2 %."""
State = Literal[
    "complete", "few missing", "incomplete", "missing", "capture", "collectives", "serialized"
]
CallKind = Literal["kernel", "graph", "copy", "fill"]


class CallRecords(Struct, frozen=True):
    """Number of calls of one kind that start work on a device; `lost`: those without a record."""

    calls: int = 0
    lost: int = 0

    def __add__(self, other: CallRecords) -> CallRecords:
        return CallRecords(self.calls + other.calls, self.lost + other.lost)

    def lack(self, of: int | None = None) -> bool:
        """Return whether a MATERIAL share of `of` calls is lost, by default of these calls."""
        return 0 < self.lost >= MATERIAL * (self.calls if of is None else of)


class LaunchRecords(Struct, frozen=True):
    """Calls that start work, and those of them without a device record, by kind.

    Calls that start nothing, such as queries, are not counted. `captured` calls became part of a
    graph and ran nothing; they are in no kind. `has_devices`: there are device records.
    `only_collectives`: all recorded kernels are collectives. `serialized`: the profiler ran kernels
    one by one. `timed` are recorded operations of the GPU; those `lost` have no known duration.
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

    def __add__(self, other: LaunchRecords) -> LaunchRecords:
        """Return the records of two recordings; one with other kernels has not only collectives."""
        return LaunchRecords(
            self.kernel + other.kernel,
            self.graph + other.graph,
            self.copy + other.copy,
            self.fill + other.fill,
            self.captured + other.captured,
            self.has_devices or other.has_devices,
            self.only_collectives and other.only_collectives,
            self.serialized or other.serialized,
            self.timed + other.timed,
        )

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
    return int(_launching(trace).sum())


def graph_launches(trace: Trace) -> BoolArray:
    """Return, per call of a trace, whether it launches a graph."""
    return _named(trace, GRAPH_LAUNCH)


def launch_records(trace: Trace, untimed: Untimed | None, is_chosen: BoolArray) -> LaunchRecords:
    """Count the calls that start work, of those chosen (per call), and those without a record."""
    types = trace.devices["type"].to_pylist()
    devices = distinct(numbers(trace.activities["device"])).tolist()
    has_devices = _GPU in {types[device] for device in devices}
    if untimed is not None and not launch_calls(trace):
        return replace(NO_LAUNCHES, has_devices=False)  # a summary of calls has no device work
    wanted = _wanted_records(trace, is_chosen, has_devices=has_devices)
    all_as_one = np.zeros(trace.calls.num_rows, dtype=np.int64)
    (records,) = _by_process(*wanted, all_as_one, 1)
    return replace(records, has_devices=has_devices)


def _by_process(
    kind: IntArray, captured: BoolArray, lost: BoolArray, process: IntArray, processes: int
) -> list[LaunchRecords]:
    """Count calls by process; `kind`, `captured` and `lost` are per call, see `_wanted_records`."""
    width = len(KINDS) + 1
    key = process * width + kind + 1  # column 0 takes the calls of no kind (-1), and is cut off
    calls, without_record = (
        np.bincount(key[rows], minlength=processes * width).reshape(-1, width)[:, 1:].tolist()
        for rows in (~captured, lost)
    )
    in_graphs = np.bincount(process[captured], minlength=processes).tolist()
    records = []
    for all_calls, lost_calls, count in zip(calls, without_record, in_graphs, strict=True):
        kernel, graph, copy, fill = map(CallRecords, all_calls, lost_calls)
        records.append(LaunchRecords(kernel, graph, copy, fill, count))
    return records


def _wanted_records(
    trace: Trace, is_chosen: BoolArray, *, has_devices: bool
) -> tuple[IntArray, BoolArray, BoolArray]:
    """Return, per call, its index in KINDS, whether it was captured, and whether its work is lost.

    The index is -1 for calls that start nothing, are not chosen, or have a kind that the tool does
    not record. Lost is work without a record that was not captured in a graph, was not still queued
    when the recording stopped, and is not among records without a correlation.
    """
    recorded = recorded_calls(trace)
    # In KINDS a kernel is 0 and a graph 1.
    kind = np.where(_launching(trace), graph_launches(trace).astype(np.int64), -1)
    for name, pattern in _ASYNC.items():
        kind[_named(trace, pattern)] = KINDS.index(name)
    kind[~(is_chosen & _linkable(trace))] = -1
    # Tools record copies and fills together: without any record, both were not asked for.
    is_copy_or_fill = np.isin(kind, [*map(KINDS.index, _ASYNC)])
    if not (is_copy_or_fill & recorded).any():
        kind[is_copy_or_fill] = -1
    is_wanted = kind >= 0
    captured = is_wanted & ~recorded & _capturing(trace)
    lost = is_wanted & ~recorded & ~captured
    if has_devices:
        queued = _still_queued(trace, is_wanted & recorded)
        # In a process without any recorded kernel, kernels were not just queued: all are lost.
        of_kernels = np.isin(kind, (KINDS.index("kernel"), KINDS.index("graph")))
        owner = numbers(trace.calls["process"])
        queued &= ~of_kernels | np.isin(owner, owner[of_kernels & recorded])
        lost &= ~queued
    # A lost call may have one of as many device records without a correlation, so it is not lost.
    work, process, width = trace.activities, numbers(trace.calls["process"]), len(KINDS)
    kind_of_work = np.full(work.num_rows, -1)
    for work_kind, starts in _STARTS.items():
        kind_of_work[is_one_of(work["kind"], work_kind)] = KINDS.index(starts)
    is_unlinked = (kind_of_work >= 0) & (numbers(work["correlation"], ABSENT) == ABSENT)
    # A cell per process and kind.
    cells, cell = trace.processes.num_rows * width, process * width + kind
    cell_of_work = numbers(work["process"]) * width + kind_of_work
    unlinked_count = np.bincount(cell_of_work[is_unlinked], minlength=cells)
    lost_count = np.bincount(cell[lost], minlength=cells)
    return kind, captured, lost & ~(lost_count <= unlinked_count)[cell]


def lost_replays(trace: Trace) -> dict[int, IntArray]:
    """Return, by process, the rows of calls that replay a graph without a device record."""
    replays = graph_launches(trace)
    if not replays.any():
        return {}
    recorded = recorded_calls(trace)
    # Only a call whose record would name it (correlation) shows that there is none. A call during a
    # capture runs nothing, but becomes a part of another graph.
    replays = replays & (numbers(trace.calls["correlation"], ABSENT) != ABSENT)
    lost = replays & ~recorded & _linkable(trace) & ~_capturing(trace)
    row = np.flatnonzero(lost & ~_still_queued(trace, recorded))
    return {process: row[rows] for process, rows in groups(numbers(trace.calls["process"])[row])}


def timed_work(trace: Trace) -> CallRecords:
    """Return the number of kernels, copies and graphs, and of those that last 0 ns: none does.

    A 0 stands for a missing duration if half of all are 0, or if the reader's notes tell of as many
    missing durations. Else it is that of a very short one.
    """
    kind, length = trace.activities["kind"], numbers(trace.activities["dur_ns"])
    length = length[np.logical_or.reduce([is_one_of(kind, name) for name in _TIMED])]
    unknown = int(np.count_nonzero(length == 0))
    counts = [note.count for note in trace.notes if note.code in _NO_DURATION]
    missing = sum(unknown if count is None else count for count in counts)
    is_known = 2 * unknown < len(length) and missing < unknown
    return CallRecords(len(length), 0 if is_known else unknown)


def cut_processes(trace: Trace) -> IntArray:
    """Return the processes whose GPU records are incomplete, to be left out; none if many are."""
    if trace.processes.num_rows <= _WHOLE_PER_CUT:
        return np.empty(0, dtype=np.int64)
    every_call = np.ones(trace.calls.num_rows, dtype=np.bool_)
    wanted = _wanted_records(trace, every_call, has_devices=True)
    records = _by_process(*wanted, numbers(trace.calls["process"]), trace.processes.num_rows)
    cut = [  # many lost copies may fill idle time; lost fills take little
        process
        for process, own in enumerate(records)
        if own.kernel.lack() or own.graph.lack() or own.lacks_copies
    ]
    # The truncated file of one rank shall not affect the others; if many are cut, all are judged.
    is_few = _WHOLE_PER_CUT * len(cut) < sum(own.calls > 0 for own in records)
    return np.array(cut if is_few else [], dtype=np.int64)


def whole_devices(
    trace: Trace, accounts: Mapping[int, DeviceAccount], cut: IntArray
) -> tuple[dict[int, DeviceAccount], tuple[Note, ...]]:
    """Return the accounts of devices that others than `cut` processes used, and a note on these."""
    owner = numbers(trace.activities["process"])
    if not len(cut):
        return dict(accounts), ()
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
    """Return a note on calls whose GPU work was captured in a graph, or is not in the trace.

    `on_host`: only operators of CPUs are shown. `share`: of time, estimated for the missing work.
    """
    if records.state == "capture":
        calls, captured = records.calls + records.captured, records.captured
        return (note_of("missing", "graph-capture", count=captured, calls=calls),)
    if not records.lost:
        return ()
    # The estimate of a share only holds if few calls are lost.
    variant = "some" if records.has_devices else "on-host" if on_host else "all"
    code, part = f"{NO_DEVICE_RECORDS}.{variant}", share if records.state == "few missing" else None
    return (note_of("missing", code, count=records.lost, calls=records.words, part=part),)


def _named(trace: Trace, pattern: re.Pattern[str]) -> BoolArray:
    """Return, per call, whether its name begins with a match of the pattern."""
    return matching(trace.calls["name"], pattern.match)


def _launching(trace: Trace) -> BoolArray:
    """Return, per call, whether it launches kernels or graphs.

    The driver's record of a call, with the correlation of the runtime's record, does not count.
    """
    launches, calls = _named(trace, LAUNCH), trace.calls
    correlation = numbers(calls["correlation"], ABSENT)
    pair = joint_codes(numbers(calls["process"]), correlation)
    is_driver = is_one_of(calls["api"], "driver")
    repeats = is_driver & (correlation != ABSENT) & is_among(pair, pair[launches & ~is_driver])
    return np.asarray(launches & ~repeats)


def _linkable(trace: Trace) -> BoolArray:
    """Return, per call, whether it could be linked to its work: the process has correlations.

    If one process has work and no calls, its work may belong to the calls of a process that has no
    work. So calls of processes without work cannot be linked then, either.
    """
    of_work, of_calls = numbers(trace.activities["process"]), numbers(trace.calls["process"])
    has_correlation = numbers(trace.activities["correlation"], ABSENT) != ABSENT
    is_unlinkable = ~is_among(of_calls, of_work[has_correlation])
    if is_among(of_work, of_calls).all():
        is_unlinkable &= is_among(of_calls, of_work)
    return ~is_unlinkable


def _capturing(trace: Trace) -> BoolArray:
    """Return, per call, whether its process captures a stream at that time, on any thread."""
    process, sign = numbers(trace.calls["process"]), np.zeros(trace.calls.num_rows, dtype=np.int64)
    for begin_or_end, pattern in _CAPTURE.items():  # 1 or -1
        sign += begin_or_end * _named(trace, pattern)
    order = np.lexsort((numbers(trace.calls["start_ns"]), process))
    depth = np.cumsum(sign[order])
    _, first, count = np.unique(process[order], return_index=True, return_counts=True)
    # The depth outside of captures is the lowest of a process, or that before its first call. It
    # may be below the latter, as a recording may begin inside a capture.
    outside = np.minimum(np.minimum.reduceat(depth, first), np.append(0, depth)[first])
    is_inside = np.zeros(len(order), dtype=np.bool_)
    is_inside[order] = depth > np.repeat(outside, count)
    return is_inside


def _still_queued(trace: Trace, recorded: BoolArray) -> BoolArray:
    """Return, per call, whether its work ran after the recording stopped.

    That is so after the last `recorded` call of a process whose GPU work lasted to its last call.
    """
    calls, activities = trace.calls, trace.activities
    process, start = numbers(calls["process"]), numbers(calls["start_ns"])
    work_end = numbers(activities["start_ns"]) + numbers(activities["dur_ns"])
    count = trace.processes.num_rows
    last_recorded = group_most(process[recorded], start[recorded], count)
    stopped = group_most(process, start + numbers(calls["dur_ns"]), count)
    busy_until = group_most(numbers(activities["process"]), work_end, count)
    is_busy_to_the_end = stopped <= busy_until + LONGEST_START_NS
    return np.asarray((start > last_recorded[process]) & is_busy_to_the_end[process])
