"""The direction of a memory copy, by whichever word a generation has for it."""

from __future__ import annotations

from typing import Final

import numpy as np

from traceflops.parsers.io import Lookup
from traceflops.table import ABSENT, IntArray, TableBuilder

_ENDS: Final = {
    "HOST_TO_DEVICE": "HtoD",
    "DEVICE_TO_HOST": "DtoH",
    "DEVICE_TO_DEVICE": "DtoD",
    "HOST_TO_HOST": "HtoH",
    "HOSTTODEVICE": "HtoD",
    "DEVICETOHOST": "DtoH",
    "DEVICETODEVICE": "DtoD",
    "HOSTTOHOST": "HtoH",
}


def direction_of(text: str, *, between_gpus: bool = False) -> str | None:
    """Return HtoD, DtoH, DtoD, PtoP or HtoH of a name such as MEMORY_COPY_HOST_TO_DEVICE.

    Matched by its end, in any case. `between_gpus` says that the copy's ends are two different
    GPUs, which rocprof calls device to device. None where the name does not say.
    """
    upper = text.strip().upper()
    found = next((way for end, way in _ENDS.items() if upper.endswith(end)), None)
    return "PtoP" if found == "DtoD" and between_gpus else found


# Copies and fills that a kernel does: how many bytes, by the call that asked for it.


_KERNELS: Final = ("__amd_rocclr_copyBuffer", "__amd_rocclr_fillBuffer")


def copies_in(activities: TableBuilder) -> list[int]:
    """Return the codes of the names of such kernels."""
    return [code for name, code in activities.names["name"].items() if name.startswith(_KERNELS)]


def fill_sizes(activities: TableBuilder, since: int, calls: IntArray, sizes: IntArray) -> None:
    """Give such kernels of one process, whose activities begin at a row, the sizes of their calls.

    A call that launched several of them does not say how much each did.
    """
    copying = copies_in(activities)
    if not copying or not len(calls):
        return
    correlation = activities.column("correlation")
    chosen = np.isin(activities.column("name"), copying) & (correlation != ABSENT)
    chosen[:since] = False
    rows = np.flatnonzero(chosen)
    launches, first, times = np.unique(correlation[rows], return_index=True, return_counts=True)
    column = activities.column("bytes")
    column[rows[first[times == 1]]] = Lookup(calls, sizes)(launches[times == 1])
    activities.replace("bytes", column)
