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
from traceflops.table.columns import IntArray, codes, is_one_of, names, numbers
from traceflops.table.grouping import groups
from traceflops.table.trace import Note, Trace
from traceflops.timeline.account import DeviceAccount, LinkedTrace
from traceflops.timeline.aggregates import Untimed
from traceflops.timeline.device_span import is_top
from traceflops.timeline.intervals import Intervals
from traceflops.timeline.records import Window
from traceflops.windows.choice import StepPlan
from traceflops.windows.device_records import MATERIAL, LaunchRecords, chosen_calls, launch_records
from traceflops.windows.records import InWindows, chosen_activities, chosen_time
from traceflops.windows.selection import Selection

SERIALIZED: Final = ("counted-while-timed", "timed-one-by-one")
"""Codes of readers' notes on runs whose kernels the profiler ran one by one."""
_UNALIGNED: Final = "clocks-not-aligned"
"""Code of a reader's note that it cannot align the clocks of files."""


class Replays(Struct, frozen=True):
    """The captured launches of the work that graphs replay.

    `linked` is the trace with the host of the capture. `captured` is, per activity, its captured
    launch, a row of the activities of the capture's recording, -1 for none.
    """

    linked: LinkedTrace
    captured: IntArray
    notes: tuple[Note, ...]


class Prepared(Struct, frozen=True, dict=True):
    """A trace with the accounts, windows and steps that the selection asks for.

    `accounts` and `windows` are by row of the devices table. `untimed` has the sums of a trace
    without a timeline. `with_work` is the same with its devices, if these were removed since their
    times mean nothing. `replays` has the captured launches of graphs. `cut` are processes that are
    left out: their GPU records are incomplete.
    """

    selection: Selection
    linked: LinkedTrace
    accounts: Mapping[int, DeviceAccount]
    plan: StepPlan
    windows: Mapping[int, tuple[Window, ...]]
    cut: IntArray
    untimed: Untimed | None = None
    with_work: Prepared | None = None
    replays: Replays | None = None

    @property
    def as_launched(self) -> Prepared:
        """The same with the captured launches of replays, to attribute work to its launches."""
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
        p = self.with_work or self
        is_chosen = chosen_calls(self.trace, self.selection, p.accounts, p.windows, self.cut)
        kernels = np.flatnonzero(is_one_of(self.trace.activities["kind"], "kernel"))
        only = bool(is_top(self.linked.categorised, "communication", kernels).all())
        records = launch_records(self.trace, self.untimed, is_chosen)
        serialized = any(note.code in SERIALIZED for note in self.trace.notes)
        return replace(records, only_collectives=only and len(kernels) > 0, serialized=serialized)

    @cached_property
    def unseen_ns(self) -> dict[int, int]:
        """By device, the ns of chosen time in which graphs without a record may have run."""
        return {
            device: account.idle.unseen.intersect(chosen_time(self.windows[device])).length_ns
            for device, account in self.accounts.items()
        }

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

    Time in which a kernel runs twice at once counts once. None if none of them has any time.
    """
    linked, exposed = prepared.linked, Counter[str]()
    column = prepared.trace.activities["name"]
    name, labels = codes(column), names(column)
    for device, account in prepared.accounts.items():
        alone = account.timeline.parts[component].intersect(chosen_time(prepared.windows[device]))
        rows = account.rows
        selected = np.flatnonzero(is_top(linked.categorised, component, rows.row))
        rows_of_kernel: defaultdict[str, list[IntArray]] = defaultdict(list)
        for code, group in groups(name[rows.row[selected]]):
            rows_of_kernel[kernel_name(labels[code]) if code >= 0 else ""].append(selected[group])
        for kernel in rows_of_kernel.keys() & {*wanted}:
            index = np.concatenate(rows_of_kernel[kernel])
            ran = Intervals.of(rows.start_ns[index], rows.end_ns[index])
            exposed[kernel] += ran.intersect(alone).length_ns
    kernel, ns = min(exposed.items(), key=lambda item: (-item[1], item[0]), default=("", 0))
    return (kernel, ns) if ns else None


class Origins(Struct, frozen=True):
    """The time in ns that is shown as 0, by process and by device.

    It is the earliest activity of the process. `aligned`: it is the earliest of all processes, so
    that their times can be compared.
    """

    of_process: Mapping[int, int]
    of_device: Mapping[int, int]
    aligned: bool


def origins(prepared: Prepared) -> Origins:
    """Return the origins of all processes with device work.

    They are aligned unless a reader's note says that clocks are not, or the work of one device
    ended before that of another began.
    """
    process: list[int] = numbers(prepared.trace.devices["process"]).tolist()
    spans = {device: account.rows.span for device, account in prepared.accounts.items()}
    starts: dict[int, int] = {}
    for device, (low, _) in spans.items():
        starts[process[device]] = min(low, starts.get(process[device], low))
    lows, highs = ([span[edge] for span in spans.values()] for edge in (0, 1))
    apart = max(lows, default=0) > min(highs, default=0)
    unaligned = any(note.code == _UNALIGNED for note in prepared.trace.notes)
    aligned = not (len(starts) > 1 and (unaligned or apart))
    if aligned:
        starts = dict.fromkeys(starts, min(lows, default=0))
    return Origins(starts, {device: starts[process[device]] for device in spans}, aligned)
