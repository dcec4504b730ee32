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

from traceflops.table import IntArray, Trace, codes, groups, names, numbers
from traceflops.timeline import DeviceAccount, Intervals, LinkedTrace, Untimed, Window, is_top
from traceflops.units import kernel_name
from traceflops.windows.choice import StepPlan
from traceflops.windows.device_records import LaunchRecords, chosen_calls, launch_records
from traceflops.windows.records import InWindows, StepChoice, chosen_activities, chosen_time
from traceflops.windows.selection import Selection

_UNALIGNED: Final = "clocks-not-aligned"
"""The note of a reader that cannot bring the clocks of files together."""


@dataclass(frozen=True)  # without slots, so that there is a place for what is found on demand
class Prepared:
    """What every report of a trace starts from.

    `accounts` and `windows` are by row of the devices table, only the devices that the selection
    asks for. `untimed` is what a trace without a timeline says; `with_work` is what this is without
    its devices (see `without_work`). `captured` is the trace with the host of a capture, which
    launched what graphs replay.
    """

    selection: Selection
    linked: LinkedTrace
    accounts: Mapping[int, DeviceAccount]
    plan: StepPlan
    windows: Mapping[int, tuple[Window, ...]]
    untimed: Untimed | None = None
    with_work: Prepared | None = field(default=None, repr=False)
    captured: LinkedTrace | None = field(default=None, repr=False)

    @property
    def as_launched(self) -> Prepared:
        """Return the same with the captured launches of replays, to ask what launched work."""
        return self if self.captured is None else replace(self, linked=self.captured)

    @property
    def trace(self) -> Trace:
        """Return the trace, with its operators as activities where it has no device work."""
        return self.linked.trace

    @cached_property
    def chosen(self) -> InWindows:
        """Return the activities of all devices in their chosen windows."""
        return chosen_activities(self.accounts, self.windows)

    @property
    def without_work(self) -> Prepared:
        """Return the same without devices and steps, for a trace whose times say nothing."""
        plan = replace(self.plan, choice=StepChoice("none", "", (), ()), notes=())
        return replace(self, accounts={}, windows={}, plan=plan, with_work=self)

    @cached_property
    def launch_records(self) -> LaunchRecords:
        """Return how many launch calls have a device record."""
        whole = self.with_work or self
        asked = chosen_calls(self.trace, self.selection, whole.accounts, whole.windows)
        return launch_records(self.trace, self.untimed, asked)


def most_exposed(
    prepared: Prepared, component: str, wanted: Collection[str]
) -> tuple[str, int] | None:
    """Return the kernel with most time of a component in the chosen windows, and that time.

    It is time of the devices: of a kernel that runs twice at once it counts once. Only kernels
    `wanted` are looked at; None where none of them has any.
    """
    alone = {
        device: account.timeline.parts[component].intersect(chosen_time(prepared.windows[device]))
        for device, account in prepared.accounts.items()
    }
    pieces: defaultdict[str, dict[int, IntArray]] = defaultdict(dict)  # places in a device's rows
    most: defaultdict[str, int] = defaultdict(int)
    for device, account in prepared.accounts.items():
        for name, places in _by_name(prepared, account, component, wanted):
            pieces[name][device] = places
            rows = account.rows
            inside = alone[device].length_within(rows.start_ns[places], rows.end_ns[places])
            most[name] += int(inside.sum())
    # A sum counts overlaps twice, so it is the most there can be: once it is less, so are others.
    best: tuple[str, int] | None = None
    for name in sorted(most, key=lambda one: (-most[one], one)):
        if most[name] <= (best[1] if best is not None else 0):
            break
        ns = 0
        for device, places in pieces[name].items():
            rows = prepared.accounts[device].rows
            ran = Intervals.of(rows.start_ns[places], rows.end_ns[places])
            ns += ran.intersect(alone[device]).length_ns
        if best is None or ns > best[1]:
            best = (name, ns)
    return best


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
    if not starts:
        return Origins({}, {}, True)
    apart = max(low for low, _ in spans.values()) > min(high for _, high in spans.values())
    unaligned = any(note.code == _UNALIGNED for note in prepared.trace.notes)
    aligned = not (len(starts) > 1 and (unaligned or apart))
    if aligned:
        starts = dict.fromkeys(starts, min(starts.values()))
    return Origins(starts, {device: starts[process[device]] for device in spans}, aligned)
