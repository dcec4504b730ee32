"""Whether files were recorded at the same time, so that what they hold can be compared by time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from traceflops.table.columns import numbers
from traceflops.table.trace import Note, Trace
from traceflops.units.words import time_amount

_PAUSE_NS: Final = 10**9
"""Clocks of machines differ by less than that."""
_SAID: Final = "runs-apart"
"""The note of a reader that has said so itself."""


def different_times(traces: Sequence[Trace]) -> Iterator[Note]:
    """Say that the work in some files ended long before that in others began.

    The traces are on their own clocks; nothing is said where these are not tied to the calendar.
    """
    if any(note.code == _SAID for trace in traces for note in trace.notes):
        return
    spans = []
    for trace in traces:
        origin, activities = trace.source.origin_unix_ns, trace.activities
        if origin is None or not activities.num_rows:
            continue
        start = numbers(activities["start_ns"])
        end = int((start + numbers(activities["dur_ns"])).max())
        spans.append((origin + int(start.min()), origin + end, trace.source.files[0].name))
    spans.sort()
    before = spans[:1]
    for span in spans[1:]:
        last = max(before, key=lambda one: one[1])
        pause = span[0] - last[1]
        if pause > _PAUSE_NS:
            text = (
                f"The files were recorded at different times: {time_amount(pause)} lie between "
                f"the work in {last[2]} and that in {span[2]}. Times cannot be compared between "
                "them; each GPU's own figures are unaffected."
            )
            yield Note("assumed", "files-of-different-times", text)
            return
        before.append(span)
