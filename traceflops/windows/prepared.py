"""A trace prepared for questions: what every later room takes. See `Prepared`.

Accounts and windows are by row of the devices table; times are integer ns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np

from traceflops.characters import kernel_name
from traceflops.table import IntArray, Note, Trace, codes, groups, is_one_of, names, numbers
from traceflops.timeline import DeviceAccount, Intervals, LinkedTrace, Untimed, Window, is_top
from traceflops.windows.choice import StepPlan
from traceflops.windows.device_records import (
    MATERIAL,
    LaunchRecords,
    chosen_calls,
    launch_records,
)
from traceflops.windows.records import InWindows, StepChoice, chosen_activities, chosen_time
from traceflops.windows.selection import Selection

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


@dataclass(frozen=True)  # without slots, so that there is a place for what is found on demand
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
        """Return the same with the captured launches of replays, to ask what launched work."""
        return self if self.replays is None else replace(self, linked=self.replays.linked)

    @property
    def trace(self) -> Trace:
        """Return the trace, with its operators as activities where it has no device work."""
        return self.linked.trace

    @cached_property
    def chosen(self) -> InWindows:
        """Return the activities of all devices in their chosen windows."""
        return chosen_activities(self.accounts, self.windows)

    @property
    def begins(self) -> IntArray:
        """Return how many activities each record of the chosen windows counts for: 0 or 1."""
        return self.chosen.starts_inside * self.linked.split.first[self.chosen.row]

    @property
    def without_work(self) -> Prepared:
        """Return the same without devices and steps, for a trace whose times say nothing."""
        plan = replace(self.plan, choice=StepChoice("none", "", (), ()), notes=())
        return replace(self, accounts={}, windows={}, plan=plan, with_work=self)

    @cached_property
    def launch_records(self) -> LaunchRecords:
        """Return how many calls that start work have a device record, and of what kind."""
        whole = self.with_work or self
        asked = chosen_calls(self.trace, self.selection, whole.accounts, whole.windows, self.cut)
        kernels = np.flatnonzero(is_one_of(self.trace.activities["kind"], "kernel"))
        only = bool(is_top(self.linked.categorised, "communication", kernels).all())
        found = launch_records(self.trace, self.untimed, asked)
        return replace(found, only_collectives=only and len(kernels) > 0)

    @cached_property
    def unseen_ns(self) -> dict[int, int]:
        """Return, by device, the chosen time in which graphs without a record may have run."""
        return {
            device: account.idle.unseen.intersect(chosen_time(self.windows[device])).length_ns
            for device, account in self.accounts.items()
        }

    @property
    def knows_replays(self) -> bool:
        """Return whether graphs without a record may have run for no more than a trifle."""
        chosen_ns = sum(chosen_time(self.windows[device]).length_ns for device in self.accounts)
        return sum(self.unseen_ns.values()) <= MATERIAL * chosen_ns


def most_exposed(
    prepared: Prepared, component: str, wanted: Collection[str]
) -> tuple[str, int] | None:
    """Return the kernel with most time of a component in the chosen windows, and that time.

    It is time of the devices: of a kernel that runs twice at once it counts once. Only kernels
    `wanted` are looked at; None where none of them has any.
    """
    exposed: defaultdict[str, int] = defaultdict(int)
    for device, account in prepared.accounts.items():
        alone = account.timeline.parts[component].intersect(chosen_time(prepared.windows[device]))
        for name, places in _by_name(prepared, account, component, wanted):
            ran = Intervals.of(account.rows.start_ns[places], account.rows.end_ns[places])
            exposed[name] += ran.intersect(alone).length_ns
    name, ns = min(exposed.items(), key=lambda one: (-one[1], one[0]), default=("", 0))
    return (name, ns) if ns else None


def _by_name(
    prepared: Prepared, account: DeviceAccount, component: str, wanted: Collection[str]
) -> list[tuple[str, IntArray]]:
    """Return the wanted activities of a category of one device by their names."""
    linked, rows = prepared.linked, account.rows.row
    labels = names(linked.trace.activities["name"])
    mine = np.flatnonzero(is_top(linked.categorised, component, rows))
    places: defaultdict[str, list[IntArray]] = defaultdict(list)
    for code, at in groups(codes(linked.trace.activities["name"])[rows[mine]]):
        name = kernel_name(labels[code]) if code >= 0 else ""
        if name in wanted:
            places[name].append(mine[at])
    return [(name, np.concatenate(parts)) for name, parts in places.items()]


@dataclass(frozen=True, slots=True)
class Origins:
    """The instant that is 0 for each process: its earliest activity, or that of all.

    `aligned` says that it is one and the same, so that times of different processes compare.
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
