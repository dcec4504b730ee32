"""Counted bytes that no memory could have moved in the time of the timed run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceflops.mfu.counted.launch_work import UNKNOWN
from traceflops.mfu.trace_peaks import DevicePeaks
from traceflops.table.columns import BoolArray, IntArray, codes, numbers
from traceflops.table.trace import Note
from traceflops.units.words import several
from traceflops.windows.prepared import Prepared


def too_many_bytes(prepared: Prepared, devices: Sequence[DevicePeaks], size: IntArray) -> BoolArray:
    """Return, per activity, whether the bytes of its kernel exceed what its memory can move.

    `size` is UNKNOWN for activities without bytes. All launches of a name on a device count.
    """
    activities = prepared.trace.activities
    found = np.zeros(len(size), dtype=np.bool_)
    name, device = codes(activities["name"]), numbers(activities["device"])
    dur = numbers(activities["dur_ns"]).astype(np.float64)
    for one in devices:
        if one.bandwidth is None:
            continue
        rows = np.flatnonzero((device == one.device) & (size != UNKNOWN) & (dur > 0))
        moved, time = (
            np.bincount(name[rows], weights=column[rows].astype(np.float64), minlength=1)
            for column in (size, dur)
        )
        found[rows] = (moved > one.bandwidth * time)[name[rows]]
    return found


def too_fast_note(prepared: Prepared, rows: BoolArray) -> Note:
    """Return that the bytes of some activities are left out."""
    kernels = len(np.unique(codes(prepared.trace.activities["name"])[rows]))
    text = (
        f"The counted bytes of {several(kernels, 'kernel')} exceed what the memory "
        "can move in their time: caches served them in the timed run, or the "
        "counters belong to other work. They are ignored."
    )
    return Note("dropped", "bytes-beyond-bandwidth", text, int(np.count_nonzero(rows)))
