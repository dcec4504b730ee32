"""What the reader of a report must know about how a database of rocprof was read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.parsers.rocprof.linking import link_notes
from traceflops.parsers.rocprof.notes import (
    COUNTED_WHILE_TIMED,
    COUNTERS_ONLY,
    DEVICE_UNKNOWN,
    LAUNCH_IS_QUEUEING,
    instance_notes,
)
from traceflops.parsers.rocprof.rocpd.categories import SAMPLED, SYSTEM
from traceflops.parsers.rocprof.tables.work import DISPATCH, UNNAMED
from traceflops.parsers.shared.overflow import overflow_notes
from traceflops.parsers.shared.times import span_notes
from traceflops.table.columns import codes, names
from traceflops.table.notes import counted_note, of_noun
from traceflops.table.trace import Note

_NO_WORK: Final = (
    "The database has no GPU operations; rocprofv3 --kernel-trace --memory-copy-trace records them."
)
_LEFT_OUT: Final = {
    "host-copies": ("copy", "copies", "within CPU memory skipped: no GPU involved"),
    "graph-without-device": ("graph launch", "graph launches", "skipped: unknown GPU"),
    SAMPLED: ("call stack sample", "call stack samples", "skipped: not supported"),
    SYSTEM: ("driver event", "driver events", "skipped: not supported"),
    "streamed-counter": (
        "counter value",
        "counter values",
        "skipped: sampled over time, not per kernel",
    ),
    "no-value": ("counter value", "counter values", "skipped: not a number"),
}


def content_notes(
    tables: Mapping[str, pa.Table],
    odd: Counter[str],
    overflowed: Sequence[str],
    file: str,
) -> tuple[Note, ...]:
    """Return the notes on records: what was repaired, dropped, assumed or is missing."""
    found = [
        *span_notes(odd),
        *_left_out(odd),
        *instance_notes(odd["instances"]),
        *([DEVICE_UNKNOWN] if odd["device-unknown"] else ()),
        *_unnamed(tables["activities"]),
        *_content(tables),
        *overflow_notes(overflowed, file),
    ]
    return tuple(replace(note, file=file) for note in found)


def _left_out(odd: Counter[str]) -> Iterator[Note]:
    for code, (one, many, sentence) in _LEFT_OUT.items():
        count = odd[code]
        if count:
            yield counted_note("dropped", code, f"{{n}} [{one}|{many}] {sentence}.", count)


def _unnamed(activities: pa.Table) -> Iterator[Note]:
    labels = names(activities["name"])
    if UNNAMED in labels:
        count = int(np.count_nonzero(codes(activities["name"]) == labels.index(UNNAMED)))
        if count:
            wording = of_noun("kernel", "without a name in the database.")
            yield counted_note("missing", "kernels-unnamed", wording, count)


def _content(tables: Mapping[str, pa.Table]) -> Iterator[Note]:
    worked, counted = tables["activities"].num_rows, tables["kernel_counters"].num_rows
    if not worked:
        yield COUNTERS_ONLY if counted else Note("missing", "no-device-work", _NO_WORK)
        return
    if names(tables["calls"]["name"]) == [DISPATCH]:
        yield LAUNCH_IS_QUEUEING
    else:
        yield from link_notes(tables)
    if counted:
        yield COUNTED_WHILE_TIMED
