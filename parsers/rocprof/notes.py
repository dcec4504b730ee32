"""Notes that readers of several generations of rocprof give, each written once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceflops.table.notes import counted_note
from traceflops.table.trace import Note

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
