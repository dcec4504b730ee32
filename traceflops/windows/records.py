"""Reports of devices with their windows and labels, and how steps were chosen.

Times are integer ns. Windows of a device are in order, without overlap. Labels of devices differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.devices.device_facts import by_name
from traceflops.devices.peaks import partition
from traceflops.devices.processes import ranks_text
from traceflops.table.columns import IntArray, names
from traceflops.table.trace import Trace
from traceflops.timeline.account import DeviceAccount
from traceflops.timeline.intervals import Intervals
from traceflops.timeline.records import Account, Gap, WholeSpan, Window

Accounts = Mapping[int, DeviceAccount]
"""The account of each device."""
Windows = Mapping[int, tuple[Window, ...]]
"""The windows of each device, in order."""
_BETWEEN: Final = " · "


class DeviceWords(NamedTuple):
    """Words for a device, its work, one piece of work, and the work of an optimizer."""

    device: str
    work: str
    operation: str
    optimizer: str


_GPU: Final = DeviceWords("GPU", "GPU work", "GPU operation", "optimizer kernels")
_CPU: Final = DeviceWords("CPU", "CPU work", "CPU operator", "optimizer operators")


class InWindows(Struct, frozen=True):
    """Activities that touch chosen windows: their row, ns inside, and 1 if they start inside."""

    row: IntArray
    inside_ns: IntArray
    starts_inside: IntArray


def device_words(trace: Trace) -> DeviceWords:
    """Return the words for the devices of a trace: those of CPUs if there are only CPUs."""
    return _CPU if {*names(trace.devices["type"])} == {"cpu"} else _GPU


def chosen_activities(accounts: Accounts, windows: Windows) -> InWindows:
    """Return the activities of all devices that touch their chosen windows."""
    parts: list[tuple[IntArray, ...]] = [(np.empty(0, dtype=np.int64),) * 3]
    for device, account in accounts.items():
        rows, chosen = account.rows, chosen_time(windows[device])
        inside_ns = chosen.length_within(rows.start_ns, rows.end_ns)
        starts = chosen.contains(rows.start_ns)
        # The instant at which a window ends is outside, except for the last window that ends with
        # the device's span: an activity without length would be in no window.
        end = rows.span[1]
        at_end = [window.used for window in windows[device] if window.end_ns >= end]
        if any(at_end[-1:]):
            starts |= rows.start_ns == end
        keep = starts | (inside_ns > 0)
        parts.append((rows.row[keep], inside_ns[keep], starts[keep].astype(np.int64)))
    return InWindows(*map(np.concatenate, zip(*parts, strict=True)))


def chosen_time(windows: tuple[Window, ...]) -> Intervals:
    """Return the time of the chosen windows of one device."""
    edges = [(window.start_ns, window.end_ns) for window in windows if window.used]
    return Intervals.of(*np.array(edges, dtype=np.int64).reshape(-1, 2).T)


class DeviceReport(Struct, frozen=True):
    """One device: its properties, its whole span, its windows, and the chosen ones added up.

    Unknown properties are None; `partition` is in words, as in "CPX, 1 of 8 dies". `chosen` is the
    sum of the accounts of the windows with `used` set. `rank` is that of the process that the
    device is listed for, `ranks` are of all processes that worked on it. In the label, `owner`
    names the process ("" for the only rank of the only file), and `apart` is a text that only
    devices with otherwise equal labels have.
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
        """Return the ranks that worked on the device as text, "" where none is known."""
        return ranks_text(self.ranks or ((self.rank,) if self.rank is not None else ()))

    @property
    def with_idle_unrecorded(self) -> DeviceReport:
        """Return the same report with all idle time unrecorded; see IdleCauses."""
        return replace(
            self,
            whole=replace(self.whole, account=self.whole.account.with_idle_unrecorded),
            windows=tuple(replace(w, account=w.account.with_idle_unrecorded) for w in self.windows),
            chosen=self.chosen.with_idle_unrecorded,
            gaps=tuple(replace(gap, causes=gap.causes.unrecorded) for gap in self.gaps),
        )

    @property
    def label(self) -> str:
        """Return the name of the device in tables."""
        device = self.type if self.owner else self.type.upper()
        # A process has one device of type cpu.
        numbered = device if self.type == "cpu" else f"{device} {self.local_id}"
        return _BETWEEN.join(filter(None, (self.owner, numbered, self.apart)))

    @property
    def steps(self) -> tuple[Window, ...]:
        """Return the windows that are steps."""
        return tuple(window for window in self.windows if window.role == "step")


class StepChoice(Struct, frozen=True):
    """How steps were found, and which of them the figures are about.

    `source` is markers, mark-regex, annotation, optimizer, copies, signature or none; `text` is the
    same in words. `seen` and `used` are step numbers, merged over the ranks. `typical_ns` is the
    median time of the steps used, None where none is used or windows have no accounts yet.
    `after_start_up`: there are no steps, and the one window begins after start-up; it is that of
    the range `measured` if this is not None. `lossy` steps are left out, as records of their work
    are lost.
    """

    source: str
    text: str
    seen: tuple[int, ...]
    used: tuple[int, ...]
    typical_ns: int | None = None
    after_start_up: bool = False
    measured: str | None = None
    lossy: int = 0


def partition_text(device: Mapping[str, Any]) -> str | None:
    """Return the partition of a device, as in "CPX, 1 of 8 dies"; None if unknown or none."""
    architecture = (device["architecture"] or "").partition(":")[0]
    part = partition(by_name(device["product"]), architecture, device["dies"])
    return part.text if part is not None else None


def told_apart(trace: Trace, devices: Sequence[DeviceReport]) -> list[DeviceReport]:
    """Return the devices with `owner` and `apart` set, so that all labels differ and are short."""
    processes = trace.processes.to_pylist()
    named = _with_owners(processes, devices)
    owners = [processes[device.process] for device in named]
    hosts = list(dict.fromkeys(process["host"] for process in processes if process["host"]))
    distinctions = (
        [device.file for device in named],
        [f"host {hosts.index(p['host']) + 1}" if p["host"] else "host unknown" for p in owners],
        [_process_text(process["pid"]) for process in owners],
        [f"no. {device.device}" for device in named],
    )
    with_label: defaultdict[str, list[int]] = defaultdict(list)
    for index, device in enumerate(named):
        with_label[device.label].append(index)
    # Devices with the same label get further texts until all differ; texts that tell none of them
    # apart are skipped. The last distinction always differs.
    # Twice "rank 0 · gpu 0", in files a.json and b.json  ->  apart "a.json", apart "b.json"
    for members in with_label.values():
        for texts in distinctions:
            different = len({texts[index] for index in members})
            if different > 1:
                for index in members:
                    apart = _BETWEEN.join(filter(None, (named[index].apart, texts[index])))
                    named[index] = replace(named[index], apart=apart)
            if different == len(members):
                break
    return named


def _with_owners(
    processes: Sequence[Mapping[str, Any]], devices: Sequence[DeviceReport]
) -> list[DeviceReport]:
    """Return the devices with `owner` set, by the first line that holds.

        its rank is unknown, as are others of its file, and a process ID is known     file, ID
        all devices have the same ranks, and all processes are of one file            ""
        its rank is unknown                                                           file
        else                                                                          rank

    If all devices are of one file, it is left out.
    """
    unranked_in_file: defaultdict[str, set[int]] = defaultdict(set)
    for device in devices:
        if not device.rank_text:
            unranked_in_file[processes[device.process]["file"]].add(device.process)
    have_pid = {row for row, process in enumerate(processes) if process["pid"] is not None}
    has_several_files = len({device.file for device in devices}) > 1
    ranks = {device.rank_text for device in devices}
    is_alone = len(ranks) == 1 and len({process["file"] for process in processes}) == 1
    named = []
    for device in devices:
        file = device.file if has_several_files else ""
        unranked = unranked_in_file[device.file]
        has_process_ids = len(unranked) > 1 and bool(unranked & have_pid)
        if not device.rank_text and has_process_ids:
            process_id = _process_text(processes[device.process]["pid"])
            owner = _BETWEEN.join(filter(None, (file, process_id)))
        elif is_alone:
            owner = ""
        else:
            owner = device.rank_text or file
        named.append(replace(device, owner=owner))
    return named


def _process_text(pid: int | None) -> str:
    return f"process {pid}" if pid is not None else "process unknown"
