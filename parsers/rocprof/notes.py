"""Notes that readers of several generations of rocprof give, each written once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

from traceflops.table import Note, counted_note

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

_INSTANCES: Final = (
    "{n} counter [value|values] of chip instances merged: summed per launch (GRBM counters: "
    "largest value)."
)


def instance_notes(rows: int) -> Iterator[Note]:
    """Say how many rows of instances were added to others."""
    if rows:
        yield counted_note("repaired", "instances-summed", _INSTANCES, rows)


# What names the clock of a machine and its devices, without naming the machine.


SEVERAL_MACHINES: Final = Note(
    "assumed",
    "clocks-not-aligned",
    "The file covers several machines whose clocks are not aligned. Times cannot be compared "
    "between machines; figures of each machine are unaffected.",
)


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
