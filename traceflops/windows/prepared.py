"""A trace prepared for questions, which every later room takes. See `Prepared`.

Accounts and windows are by row of the devices table; times are integer ns.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np

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
from traceflops.windows.records import InWindows, StepChoice, chosen_activities, chosen_time
from traceflops.windows.selection import Selection

SERIALIZED: Final = ("counted-while-timed", "timed-one-by-one")
"""The notes of readers on runs whose kernels the profiler ran one by one."""
_UNALIGNED: Final = "clocks-not-aligned"
"""The note of a reader that cannot bring the clocks of files together."""


@dataclass(frozen=True, slots=True)
class Replays:
    """The host that launched what graphs replay; `linked` is the trace with it.

    `captured` is the captured launch of each activity, a row of a pair's activities, -1 for none.
    """

    linked: LinkedTrace
    captured: IntArray
    notes: tuple[Note, ...]


@dataclass(frozen=True)  # without slots, for the cached properties
class Prepared:
    """What every report of a trace starts from.

    `accounts` and `windows` are by row of the devices table, only the devices that the selection
    asks for. `untimed` is what a trace without a timeline says; `with_work` is what this is without
    its devices (see `without_work`). `replays` tells what launched the work of graphs. `cut` are
    processes that are left out: their GPU records are incomplete.
    """

    selection: Selection
    linked: LinkedTrace
    accounts: Mapping[int, DeviceAccount]
    plan: StepPlan
    windows: Mapping[int, tuple[Window, ...]]
    cut: IntArray
    untimed: Untimed | None = None
    with_work: Prepared | None = field(default=None, repr=False)
    replays: Replays | None = field(default=None, repr=False)

    @property
    def as_launched(self) -> Prepared:
        """The same with the captured launches of replays, to ask what launched work."""
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
        """How many activities each row of `chosen` counts for: 0 or 1."""
        return self.chosen.starts_inside * self.linked.split.first[self.chosen.row]

    @property
    def without_work(self) -> Prepared:
        """The same without devices and steps, for a trace whose times mean nothing."""
        plan = replace(self.plan, choice=StepChoice("none", "", (), ()), notes=())
        return replace(self, accounts={}, windows={}, plan=plan, with_work=self)

    @cached_property
    def launch_records(self) -> LaunchRecords:
        """How many calls that start work have a device record, by kind of call."""
        p = self.with_work or self
        is_chosen = chosen_calls(self.trace, self.selection, p.accounts, p.windows, self.cut)
        kernels = np.flatnonzero(is_one_of(self.trace.activities["kind"], "kernel"))
        only = bool(is_top(self.linked.categorised, "communication", kernels).all())
        records = launch_records(self.trace, self.untimed, is_chosen)
        serialized = any(note.code in SERIALIZED for note in self.trace.notes)
        return replace(records, only_collectives=only and len(kernels) > 0, serialized=serialized)

    @cached_property
    def unseen_ns(self) -> dict[int, int]:
        """By device, the chosen time in which graphs without a record may have run."""
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
        """Whether what the host did tells why nothing ran, of a CPU whatever GPUs did."""
        return self.launch_records.is_judged or self.on_host

    @property
    def knows_replays(self) -> bool:
        """Whether graphs without a record ran for at most a trifle of the chosen time."""
        chosen_ns = sum(chosen_time(self.windows[device]).length_ns for device in self.accounts)
        return sum(self.unseen_ns.values()) <= MATERIAL * chosen_ns


def most_exposed(
    prepared: Prepared, component: str, wanted: Collection[str]
) -> tuple[str, int] | None:
    """Return the kernel with most time of a component in the chosen windows, and that time in ns.

    Times in which a kernel runs twice at once count once. Only kernels named in `wanted` count;
    None where none of them has any.
    """
    linked, exposed = prepared.linked, Counter[str]()
    name, labels = (
        codes(prepared.trace.activities["name"]),
        names(prepared.trace.activities["name"]),
    )
    for device, account in prepared.accounts.items():
        alone = account.timeline.parts[component].intersect(chosen_time(prepared.windows[device]))
        rows = account.rows
        mine = np.flatnonzero(is_top(linked.categorised, component, rows.row))
        places: defaultdict[str, list[IntArray]] = defaultdict(list)
        for code, group in groups(name[rows.row[mine]]):
            places[kernel_name(labels[code]) if code >= 0 else ""].append(mine[group])
        for kernel in places.keys() & {*wanted}:
            own = np.concatenate(places[kernel])
            ran = Intervals.of(rows.start_ns[own], rows.end_ns[own])
            exposed[kernel] += ran.intersect(alone).length_ns
    kernel, ns = min(exposed.items(), key=lambda item: (-item[1], item[0]), default=("", 0))
    return (kernel, ns) if ns else None


@dataclass(frozen=True, slots=True)
class Origins:
    """The instant that is 0 for each process: its earliest activity, or that of all.

    `aligned`: it is the same for all, so that times of different processes compare.
    """

    of_process: Mapping[int, int] = field(hash=False)
    of_device: Mapping[int, int] = field(hash=False)
    aligned: bool


def origins(prepared: Prepared) -> Origins:
    """Return the origins of all processes with device work.

    Clocks cannot be compared where a reader says so, and where the work of one device ended before
    that of another began.
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
