"""What readers of several generations of rocprof say: notes, and names of clocks and devices."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.parsers.io import NoteTable
from traceflops.table import ABSENT, BoolArray, Note, joint_codes, numbers
from traceflops.units import does, percent, several

COUNTERS_ONLY: Final = Note(
    "missing",
    "no-timeline",
    "The files hold only hardware counters. Reading them serializes kernels, so there is no "
    "timeline; give a run of rocprofv3 --kernel-trace beside it.",
)
COUNTED_WHILE_TIMED: Final = Note(
    "assumed",
    "counted-while-timed",
    "Hardware counters were recorded in the timed run, which serializes kernels: idle time and "
    "overlap are not those of a normal run.",
)
LAUNCH_IS_QUEUEING: Final = Note(
    "assumed",
    "launch-is-queueing",
    "No API calls were recorded. Kernel launch time is taken as the time of queueing (DispatchNs).",
)
DEVICE_UNKNOWN: Final = Note(
    "assumed",
    "device-unknown",
    "Some records name no GPU. They count for the only GPU, else for device 0.",
)

_NOTES: Final = NoteTable(
    repaired={
        "instances-summed": "{n} counter [value|values] of chip instances merged: summed per "
        "launch (GRBM counters: largest value).",
    },
    missing={
        "calls-of-unknown-process": "{count} API [call|calls] without a process, and several "
        "processes used GPUs: what launched {work} is unknown.",
        "calls-missing": "{linked} of {work} ({share}) {have} a launch call in the file. The other "
        "calls were not recorded or were removed; the cause of idle time before their work is "
        "unknown.",
    },
)
SEVERAL_MACHINES: Final = Note(
    "assumed",
    "clocks-not-aligned",
    "The file covers several machines whose clocks are not aligned. Times cannot be compared "
    "between machines; figures of each machine are unaffected.",
)
_NO_CALLS: Final = (
    "No API calls were recorded, so what launched the GPU operations is unknown. rocprofv3 "
    "--hip-trace --kernel-trace records them."
)


def instance_notes(rows: int) -> Iterator[Note]:
    """Say how many rows of instances were added to others."""
    return _NOTES.counted({"instances-summed": rows}, "instances-summed")


def clock_of(machine: str | None, host: str | None) -> str | None:
    """Return the name of a machine's clock: a digest, since neither id nor name is to be shared.

    Both count: machines that were set up as copies of one have the same id.
    """
    if not machine and not host:
        return None
    name = "\n".join((machine or "", host or ""))
    return f"machine {_digest(name)}"


def clock_of_folder(root: str) -> str | None:
    """Return what names the clock of the machine whose folder it is, without naming the folder."""
    if root in ("", "."):
        return None
    return f"folder {_digest(root)}"


def place_of_node(node: int) -> str | None:
    """Return what names a device among those of its machine, by its node there."""
    return f"node {node}" if node >= 0 else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def link_notes(tables: Mapping[str, pa.Table], *, no_calls: str = _NO_CALLS) -> Iterator[Note]:
    """Say that no calls were recorded, or of how much work the call is missing."""
    activities, calls = tables["activities"], tables["calls"]
    total = activities.num_rows
    if not total:
        return
    if not calls.num_rows:
        yield Note("missing", "no-calls", no_calls)
        return
    linked = int(np.count_nonzero(_linked(activities, calls)))
    nameless = _of_unknown_process(tables)
    if linked < total and nameless:
        work = several(total - linked, "GPU operation")
        yield _NOTES.note("calls-of-unknown-process", nameless, work=work)
    elif linked < total:
        work, have, share = several(total, "GPU operation"), does(linked, "have"), linked / total
        fields = {"linked": f"{linked:,}", "work": work, "share": percent(share), "have": have}
        yield _NOTES.note("calls-missing", total - linked, **fields)


def _of_unknown_process(tables: Mapping[str, pa.Table]) -> int:
    """Return how many calls are of a process without an id and without any device work."""
    pids = tables["processes"]["pid"].to_pylist()
    working = np.unique(numbers(tables["activities"]["process"]))
    idle = [row for row, pid in enumerate(pids) if pid is None and row not in working]
    return int(np.isin(numbers(tables["calls"]["process"]), idle).sum())


def _linked(activities: pa.Table, calls: pa.Table) -> BoolArray:
    """Return which activities have a call of their process with their correlation."""
    ids = [numbers(table["correlation"], ABSENT) for table in (activities, calls)]
    processes = [numbers(table["process"]) for table in (activities, calls)]
    keys = joint_codes(np.concatenate(processes), np.concatenate(ids))
    count = activities.num_rows
    return np.asarray(np.isin(keys[:count], keys[count:]) & (ids[0] != ABSENT))
