"""Which part of a process's life its device work spans, as a note."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceflops.table.columns import numbers
from traceflops.table.trace import Note, Trace
from traceflops.units.words import time_amount

_MUCH_OF_IT: Final = 0.1
"""So much of a process's life outside the device's work is said."""


def lifetime_notes(trace: Trace) -> Iterator[Note]:
    """Say which part of a process's life the device's work spans, where that is not most of it."""
    activities = trace.activities
    if len(trace.source.lifetimes) != 1 or not activities.num_rows:
        return
    start = numbers(activities["start_ns"])
    first, last = int(start.min()), int((start + numbers(activities["dur_ns"])).max())
    began, ended = trace.source.lifetimes[0]
    before, after = max(0, first - began), max(0, ended - last)
    if before + after > _MUCH_OF_IT * (ended - began):
        text = (
            f"The process ran for {time_amount(ended - began)}; its GPU operations start after "
            f"{time_amount(before)} and span {time_amount(last - first)}. Shares cover that span "
            "only."
        )
        yield Note("assumed", "window", text, None, trace.source.files[0].name)
