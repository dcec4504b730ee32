"""A trace with accounts and windows per device, the input of all later rooms. See `Prepared`.

Accounts and windows are by row of the devices table; times are integer ns.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.characters import kernel_name
from traceflops.remedies import SKIPPED
from traceflops.table.columns import BoolArray, IntArray, codes, is_one_of, names, numbers
from traceflops.table.grouping import distinct, groups
from traceflops.table.trace import Note, Trace
from traceflops.timeline.account import LinkedTrace
from traceflops.timeline.aggregates import Untimed
from traceflops.timeline.device_span import is_top
from traceflops.timeline.intervals import NEVER, Intervals
from traceflops.windows.choice import StepPlan
from traceflops.windows.device_records import (
    MATERIAL,
    CallRecords,
    LaunchRecords,
    launch_records,
    timed_work,
)
from traceflops.windows.records import Accounts, InWindows, Windows, chosen_activities, chosen_time
from traceflops.windows.selection import Selection

MOST_DEVICES: Final = 64
"""Of one process, at most so many devices have their idle time explained: those with most of it."""
SERIALIZED: Final = ("counted-while-timed", "timed-one-by-one")
"""Codes of readers' notes on runs whose kernels the profiler ran one by one."""
_UNALIGNED: Final = "clocks-not-aligned"
"""Code of a reader's note that it cannot align the clocks of files."""


class Replays(Struct, frozen=True):
    """The captured launches of the work that graphs replay.

    `linked` is the trace with the host of the capture. `captured` is, per activity, the row of its
    captured launch among the activities of that recording, -1 for none.
    """

    linked: LinkedTrace
    captured: IntArray
    notes: tuple[Note, ...]


class Prepared(Struct, frozen=True, dict=True):
    """A trace with the accounts, windows and steps that the selection asks for.

    `accounts` and `windows` are by row of the devices table. `untimed` has the sums of a trace
    without a timeline. If devices were removed since their times mean nothing, `with_work` is the
    `Prepared` with these devices. `replays` has the captured launches of graphs. `cut` are the
    processes that are left out since their GPU records are incomplete.
    """

    selection: Selection
    linked: LinkedTrace
    accounts: Accounts
    plan: StepPlan
    windows: Windows
    cut: IntArray
    untimed: Untimed | None = None
    with_work: Prepared | None = None
    replays: Replays | None = None

    @property
    def as_launched(self) -> Prepared:
        """Itself with the captured launches of replays, to attribute work to its launches."""
        return self if self.replays is None else replace(self, linked=self.replays.linked)

    @property
    def trace(self) -> Trace:
        """The trace, with its operators as activities where it has no device work."""
        return self.linked.trace

    @cached_property
    def chosen(self) -> InWindows:
        """The activities of all devices in their chosen windows."""
        return chosen_activities(self.accounts, self.windows)

    @property
    def begins(self) -> IntArray:
        """Per row of `chosen`, whether it counts as an activity: 0 or 1."""
        return self.chosen.starts_inside * self.linked.split.first[self.chosen.row]

    @cached_property
    def launch_records(self) -> LaunchRecords:
        """Number of calls that start work, and of those without a record, by kind of call."""
        windows = (self.with_work or self).windows_of_process
        is_chosen = self._chosen_calls(windows)
        begins_ns = np.full(self.trace.processes.num_rows, NEVER)
        for number, window in windows.items():
            begins_ns[number] = min(window.start_ns, default=NEVER)
        records = launch_records(self.trace, self.untimed, is_chosen, begins_ns)
        kernels = np.flatnonzero(is_one_of(self.trace.activities["kind"], "kernel"))
        is_collective = is_top(self.linked.categorised, "communication", kernels)
        # Without calls, only the numbers of the dispatches tell how many kernels are missing.
        skipped = sum(note.count or 0 for note in self.trace.notes if note.code == SKIPPED)
        if skipped and not records.kernel.calls:
            records = replace(records, kernel=CallRecords(len(kernels) + skipped, skipped))
        return replace(
            records,
            only_collectives=len(kernels) > 0 and bool(is_collective.all()),
            serialized=any(note.code in SERIALIZED for note in self.trace.notes),
            timed=timed_work(self.trace),
        )

    def _chosen_calls(self, windows: Mapping[int, Intervals]) -> BoolArray:
        """Return, per call, whether it counts: by the first line that holds for its process.

            it has a chosen device; steps or a time are selected   if called in its windows
            it has a chosen device                                 yes
            it has work on other devices, or is `cut`              no
            it has no work of devices                              if no ranks or GPUs are selected

        `windows` are, by process with chosen devices, the chosen time of these.
        """
        selection = self.selection
        process = numbers(self.trace.calls["process"])
        start_ns = numbers(self.trace.calls["start_ns"])
        worked = numbers(self.trace.activities["process"])
        is_chosen = np.full(len(process), selection.ranks is None and selection.gpus is None)
        is_chosen[np.isin(process, np.append(worked, self.cut))] = False
        is_timed = selection.steps is not None or selection.is_time_range
        for number, calls in groups(process):
            if number in windows:
                is_chosen[calls] = not is_timed or windows[number].contains(start_ns[calls])
        return is_chosen

    @cached_property
    def windows_of_process(self) -> dict[int, Intervals]:
        """By process, the chosen windows of all devices on which it launched work."""
        owner = numbers(self.trace.activities["process"])
        of_process: defaultdict[int, list[Intervals]] = defaultdict(list)
        for device, account in self.accounts.items():
            chosen = chosen_time(self.windows[device])
            for process in distinct(owner[account.rows.row]).tolist():
                of_process[process].append(chosen)
        return {process: first.union(*more) for process, (first, *more) in of_process.items()}

    @cached_property
    def unseen_ns(self) -> dict[int, int]:
        """By device, the ns of chosen time in which graphs without a record may have run."""
        return {
            device: account.idle.unseen.intersect(chosen_time(self.windows[device])).length_ns
            for device, account in self.accounts.items()
        }

    @cached_property
    def devices_left(self) -> int:
        """How many devices are more than MOST_DEVICES of their process."""
        process: list[int] = numbers(self.trace.devices["process"]).tolist()
        count_by_process = Counter(process[device] for device in self.accounts)
        return sum(max(count - MOST_DEVICES, 0) for count in count_by_process.values())

    @property
    def on_host(self) -> bool:
        """Whether all work is operators of CPUs."""
        return bool(self.accounts) and all(own.is_cpu for own in self.accounts.values())

    @property
    def knows_host_work(self) -> bool:
        """Whether host work explains idle time: enough is recorded, or all work is of CPUs."""
        return self.launch_records.is_judged or self.on_host

    @property
    def knows_replays(self) -> bool:
        """Whether graphs without a record ran for at most a trifle of the chosen time."""
        chosen_ns = sum(chosen_time(self.windows[device]).length_ns for device in self.accounts)
        return sum(self.unseen_ns.values()) <= MATERIAL * chosen_ns


def most_exposed(
    prepared: Prepared, component: str, wanted: Collection[str]
) -> tuple[str, int] | None:
    """Return the kernel of `wanted` with most chosen time of a component, and that time in ns.

    Time in which a kernel runs twice at once counts once. None if no kernel has any time.
    """
    linked = prepared.linked
    exposed_ns = Counter[str]()
    column = prepared.trace.activities["name"]
    name, labels = codes(column), names(column)
    for device, account in prepared.accounts.items():
        # The component has only the time that no component before it covers.
        alone = account.timeline.parts[component].intersect(chosen_time(prepared.windows[device]))
        rows = account.rows
        selected = np.flatnonzero(is_top(linked.categorised, component, rows.row))
        rows_of_kernel: defaultdict[str, list[IntArray]] = defaultdict(list)
        for code, group in groups(name[rows.row[selected]]):
            rows_of_kernel[kernel_name(labels[code]) if code >= 0 else ""].append(selected[group])
        for kernel in rows_of_kernel.keys() & {*wanted}:
            index = np.concatenate(rows_of_kernel[kernel])
            ran = Intervals.of(rows.start_ns[index], rows.end_ns[index])
            exposed_ns[kernel] += ran.intersect(alone).length_ns
    kernel, ns = min(exposed_ns.items(), key=lambda item: (-item[1], item[0]), default=("", 0))
    return (kernel, ns) if ns else None


class Origins(Struct, frozen=True):
    """The time in ns that is shown as 0, by process and by device.

    It is the earliest activity of the process, or of all if `aligned`: their times are comparable.
    """

    of_process: Mapping[int, int]
    of_device: Mapping[int, int]
    aligned: bool


def origins(prepared: Prepared) -> Origins:
    """Return the origins of all processes with device work.

    Processes have one origin, the first work of any. But if a note of the reader says that clocks
    differ, each has its own. So it is if the work of a device ended before that of another began:
    of spans 0..5 s and 900..905 s, the second is shown as 0..5 s, too.
    """
    process: list[int] = numbers(prepared.trace.devices["process"]).tolist()
    spans = {device: account.rows.span for device, account in prepared.accounts.items()}
    origin: dict[int, int] = {}
    for device, (start, _) in spans.items():
        origin[process[device]] = min(start, origin.get(process[device], start))
    starts = [start for start, _ in spans.values()]
    ends = [end for _, end in spans.values()]
    are_apart = max(starts, default=0) > min(ends, default=0)
    has_other_clocks = any(note.code == _UNALIGNED for note in prepared.trace.notes)
    aligned = len(origin) < 2 or not (has_other_clocks or are_apart)
    if aligned:
        origin = dict.fromkeys(origin, min(starts, default=0))
    return Origins(origin, {device: origin[process[device]] for device in spans}, aligned)
