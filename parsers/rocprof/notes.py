"""Notes that readers of several generations of rocprof give, each written once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceflops.notes import counted_note
from traceflops.trace import Note

COUNTERS_ONLY: Final = Note(
    "missing",
    "no-timeline",
    "Only counters are here. Kernels run one by one while they are read, so their times are not "
    "used: no timeline. Give a run of rocprofv3 --kernel-trace beside it.",
)
COUNTED_WHILE_TIMED: Final = Note(
    "assumed",
    "counted-while-timed",
    "Counters were read in the run whose times are shown: kernels then run one by one, so idle "
    "time and overlap are not those of a normal run.",
)
LAUNCH_IS_QUEUEING: Final = Note(
    "assumed",
    "launch-is-queueing",
    "No API calls were recorded. The launch of a kernel is taken to be when it was put into its "
    "queue (DispatchNs).",
)
DEVICE_UNKNOWN: Final = Note(
    "assumed",
    "device-unknown",
    "Some records do not say on which device they ran; they are shown as of the only one, or of "
    "device 0.",
)

_INSTANCES: Final = (
    "Counters are there once for each instance of a part of the chip: {n} [value|values] added to "
    "others (of GRBM counters, which count the same in each, the largest stands)."
)


def instance_notes(rows: int) -> Iterator[Note]:
    """Say how many rows of instances were added to others."""
    if rows:
        yield counted_note("repaired", "instances-summed", _INSTANCES, rows)
