"""A device with its windows and what runs in them, how steps were chosen; labels of devices.

Times are integer ns. Windows of a device do not overlap and are in order; `chosen` is the sum of
the accounts of those that are used. No two devices of a report have the same label.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from traceflops.devices.device_facts import by_name
from traceflops.devices.peaks import partition
from traceflops.devices.processes import ranks_text
from traceflops.table.columns import IntArray, names
from traceflops.table.trace import Trace
from traceflops.timeline.account import DeviceAccount
from traceflops.timeline.intervals import Intervals
from traceflops.timeline.records import Account, Gap, WholeSpan, Window

_BETWEEN: Final = " · "


class DeviceWords(NamedTuple):
    """What sentences call a device, its work, one piece of that, and an optimizer's."""

    device: str
    work: str
    operation: str
    optimizer: str


_GPU: Final = DeviceWords("GPU", "GPU work", "GPU operation", "optimizer kernels")
_CPU: Final = DeviceWords("CPU", "CPU work", "CPU operator", "optimizer operators")


@dataclass(frozen=True, slots=True)
class InWindows:
    """Activities of the chosen windows: their rows, the time of each inside, and if it starts in.

    An activity that reaches over a window's edge counts with the part inside.
    """

    row: IntArray
    inside_ns: IntArray
    starts_inside: IntArray


def device_words(trace: Trace) -> DeviceWords:
    """Return what sentences on a trace call its devices: the CPU where it has no other."""
    return _CPU if {*names(trace.devices["type"])} == {"cpu"} else _GPU


def chosen_activities(
    accounts: Mapping[int, DeviceAccount], windows: Mapping[int, tuple[Window, ...]]
) -> InWindows:
    """Return the activities of all devices that touch their chosen windows."""
    parts: list[tuple[IntArray, ...]] = [(np.empty(0, dtype=np.int64),) * 3]
    for device, account in accounts.items():
        rows, chosen = account.rows, chosen_time(windows[device])
        inside = chosen.length_within(rows.start_ns, rows.end_ns)
        starts = chosen.contains(rows.start_ns)
        # Windows do not hold the instant at which they end, unless the device's span ends there.
        end = rows.span[1]
        if any(window.used and window.end_ns >= end for window in windows[device]):
            starts |= rows.start_ns == end
        keep = starts | (inside > 0)
        parts.append((rows.row[keep], inside[keep], starts[keep].astype(np.int64)))
    return InWindows(*map(np.concatenate, zip(*parts, strict=True)))


def chosen_time(windows: tuple[Window, ...]) -> Intervals:
    """Return the time of the chosen windows of one device."""
    used = [window for window in windows if window.used]
    return Intervals.of(
        np.array([window.start_ns for window in used], dtype=np.int64),
        np.array([window.end_ns for window in used], dtype=np.int64),
    )


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """One device: what it is, its whole span, its windows and the chosen ones added up.

    Unknown properties are None; `partition` says which part of a card it is. `chosen` is the
    account of the windows with `used` set. `ranks` are those of all processes that worked on it,
    of which `rank` is that of the one it is listed for. `owner` is what stands for the process in
    the label, "" for the only rank of the only file; `apart` is what else tells it from others.
    """

    device: int
    rank: int | None
    process: int
    file: str
    type: str
    local_id: int
    product: str | None
    memory_bytes: int | None
    sm_count: int | None
    whole: WholeSpan
    windows: tuple[Window, ...]
    chosen: Account
    gaps: tuple[Gap, ...]
    owner: str = ""
    apart: str = ""
    architecture: str | None = None
    partition: str | None = None
    ranks: tuple[int, ...] = ()

    @property
    def rank_text(self) -> str:
        """Return the ranks that worked on the device in words, "" where none is known."""
        return ranks_text(self.ranks or ((self.rank,) if self.rank is not None else ()))

    @property
    def with_idle_unrecorded(self) -> DeviceReport:
        """Return the same where any of the idle time may be work that is not in the trace."""
        return replace(
            self,
            whole=replace(self.whole, account=self.whole.account.with_idle_unrecorded),
            windows=tuple(
                replace(one, account=one.account.with_idle_unrecorded) for one in self.windows
            ),
            chosen=self.chosen.with_idle_unrecorded,
            gaps=tuple(replace(gap, causes=gap.causes.unrecorded) for gap in self.gaps),
        )

    @property
    def label(self) -> str:
        """Return what to call the device in a table."""
        device = self.type if self.owner else self.type.upper()
        numbered = device if self.type == "cpu" else f"{device} {self.local_id}"
        return _BETWEEN.join(filter(None, (self.owner, numbered, self.apart)))

    @property
    def steps(self) -> tuple[Window, ...]:
        """Return the windows that are steps."""
        return tuple(window for window in self.windows if window.role == "step")


@dataclass(frozen=True, slots=True)
class StepChoice:
    """How steps were found and which of them the figures are about.

    `source` is markers, mark-regex, annotation, optimizer, copies, signature or none; `text`
    says it in words. `seen` and `used` are step numbers, merged over the ranks. `typical_ns` is the
    median time of the steps used, None where none is used or windows have no accounts yet. Without
    steps the one window may be `after_start_up`.
    """

    source: str
    text: str
    seen: tuple[int, ...]
    used: tuple[int, ...]
    typical_ns: int | None = None
    after_start_up: bool = False


def partition_text(device: Mapping[str, Any]) -> str | None:
    """Return the partition that a row of the devices table is: "CPX, 1 of 8 dies".

    None for a device that has no partitions, or does not say.
    """
    architecture = (device["architecture"] or "").partition(":")[0]
    found = partition(by_name(device["product"]), architecture, device["dies"])
    return found.text if found is not None else None


def told_apart(trace: Trace, devices: Sequence[DeviceReport]) -> list[DeviceReport]:
    """Return devices with the words that their labels need: only such as distinguish some.

    A device is named by the rank of its process, but for the only rank of the only file. Where the
    rank is unknown the file is named if there are several, and process ids where one file holds
    several processes.
    """
    processes = trace.processes.to_pylist()
    unranked = {device.process for device in devices if not device.rank_text}
    by_file: defaultdict[str, set[int]] = defaultdict(set)
    for process in unranked:
        by_file[processes[process]["file"]].add(process)
    numbered = {place for place, process in enumerate(processes) if process["pid"] is not None}
    files = {device.file for device in devices}
    ranks = {device.rank_text for device in devices}
    is_alone = len(ranks) == 1 and len({process["file"] for process in processes}) == 1
    named = []
    for device in devices:
        owner = device.rank_text or ("" if len(files) == 1 else device.file)
        owner, alike = "" if is_alone else owner, by_file[device.file]
        if not device.rank_text and len(alike) > 1 and alike & numbered:
            text = _process_text(processes[device.process]["pid"])
            owner = text if len(files) == 1 else f"{device.file}{_BETWEEN}{text}"
        named.append(replace(device, owner=owner))
    owners = [processes[device.process] for device in named]
    hosts = list(dict.fromkeys(process["host"] for process in processes if process["host"]))
    distinctions = (
        [device.file for device in named],
        [f"host {hosts.index(p['host']) + 1}" if p["host"] else "host unknown" for p in owners],
        [_process_text(process["pid"]) for process in owners],
        [f"no. {device.device}" for device in named],
    )
    same_label: defaultdict[str, list[int]] = defaultdict(list)
    for place, device in enumerate(named):
        same_label[device.label].append(place)
    for members in (same for same in same_label.values() if len(same) > 1):
        for texts in distinctions:
            different = len({texts[place] for place in members})
            for place in members if different > 1 else ():
                apart = _BETWEEN.join(filter(None, (named[place].apart, texts[place])))
                named[place] = replace(named[place], apart=apart)
            if different == len(members):
                break
    return named


def _process_text(pid: int | None) -> str:
    return f"process {pid}" if pid is not None else "process unknown"
