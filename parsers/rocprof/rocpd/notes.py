"""What the reader of a report must know about how a database of rocprof was read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.columns import codes, names, numbers
from traceflops.parsers.overflow import overflow_notes
from traceflops.parsers.rocprof.linking import link_notes
from traceflops.parsers.rocprof.rocpd.categories import SAMPLED, SYSTEM
from traceflops.parsers.rocprof.tables.work import DISPATCH, UNNAMED
from traceflops.parsers.times import span_notes
from traceflops.trace import Note
from traceflops.words import several, time_amount

_MUCH_OF_IT: Final = 0.1
"""So much of a process's life outside the device's work is said."""
_NO_WORK: Final = (
    "No kernel and no copy is in the database; rocprofv3 --kernel-trace --memory-copy-trace "
    "records them."
)
_COUNTERS_ONLY: Final = (
    "Only counters are here. Kernels run one by one while they are read, so their times are not "
    "used: no timeline. Give a run of rocprofv3 --kernel-trace beside it."
)
_COUNTED_WHILE_TIMED: Final = (
    "Counters were read in the run whose times are shown: kernels then run one by one, so idle "
    "time and overlap are not those of a normal run."
)
_QUEUED: Final = (
    "The database holds no API calls. The launch of a kernel is taken to be when it was put into "
    "its queue (DispatchNs)."
)
_LEFT_OUT: Final = {
    "host-copies": ("copy", "copies", "between places of the host left out: no work of a GPU"),
    "graph-without-device": ("graph launch", "graph launches", "left out: of no known device"),
    SAMPLED: ("sample of the call stack", "samples of the call stack", "left out: not read"),
    SYSTEM: ("event of the driver", "events of the driver", "left out: not read"),
    "streamed-counter": (
        "counter value",
        "counter values",
        "left out: sampled while kernels ran, so of no single one",
    ),
    "no-value": ("counter value", "counter values", "left out: no number"),
}


def content_notes(
    tables: Mapping[str, pa.Table],
    odd: Counter[str],
    overflowed: Sequence[str],
    file: str,
    lifetimes: Sequence[tuple[int, int]] = (),
) -> tuple[Note, ...]:
    """Return the notes on records: what was repaired, dropped, assumed or is missing.

    `lifetimes` are those of the processes, where they are known.
    """
    found = [
        *span_notes(odd),
        *_left_out(odd),
        *_summed(odd["instances"]),
        *_unplaced(odd["device-unknown"]),
        *_unnamed(tables["activities"]),
        *_content(tables),
        *_window(tables["activities"], lifetimes),
        *overflow_notes(overflowed, file),
    ]
    return tuple(Note(n.kind, n.code, n.text, n.count, file) for n in found)


def _left_out(odd: Counter[str]) -> Iterator[Note]:
    for code, (one, many, sentence) in _LEFT_OUT.items():
        count = odd[code]
        if count:
            noun = f"1 {one}" if count == 1 else f"{count:,} {many}"
            yield Note("dropped", code, f"{noun} {sentence}.", count)


def _summed(instances: int) -> Iterator[Note]:
    if instances:
        text = (
            "Counters stand in the database once for each instance of a part of the chip: "
            f"{instances:,} rows were added to others (of GRBM counters, which count the same in "
            "each, the largest stands)."
        )
        yield Note("repaired", "instances-summed", text, instances)


def _unplaced(records: int) -> Iterator[Note]:
    if records:
        text = (
            "Some records do not say on which device they ran; they are shown as of the only one, "
            "or of device 0."
        )
        yield Note("assumed", "device-unknown", text)


def _unnamed(activities: pa.Table) -> Iterator[Note]:
    labels = names(activities["name"])
    if UNNAMED in labels:
        count = int(np.count_nonzero(codes(activities["name"]) == labels.index(UNNAMED)))
        text = f"{several(count, 'kernel')} without a name in the database."
        yield Note("missing", "kernels-unnamed", text, count)


def _content(tables: Mapping[str, pa.Table]) -> Iterator[Note]:
    worked, counted = tables["activities"].num_rows, tables["kernel_counters"].num_rows
    if not worked:
        code, text = ("no-timeline", _COUNTERS_ONLY) if counted else ("no-device-work", _NO_WORK)
        yield Note("missing", code, text)
        return
    if names(tables["calls"]["name"]) == [DISPATCH]:
        yield Note("assumed", "launch-is-queueing", _QUEUED)
    else:
        yield from link_notes(tables)
    if counted:
        yield Note("assumed", "counted-while-timed", _COUNTED_WHILE_TIMED)


def _window(activities: pa.Table, lifetimes: Sequence[tuple[int, int]]) -> Iterator[Note]:
    """Say which part of a process's life its device work spans, where that is not most of it."""
    if len(lifetimes) != 1 or not activities.num_rows:
        return
    start = numbers(activities["start_ns"])
    first, last = int(start.min()), int((start + numbers(activities["dur_ns"])).max())
    began, ended = lifetimes[0]
    before, after = max(0, first - began), max(0, ended - last)
    if before + after > _MUCH_OF_IT * (ended - began):
        text = (
            f"The process lived {time_amount(ended - began)}; its device work begins "
            f"{time_amount(before)} after its start and spans {time_amount(last - first)}. All "
            "shares are of that span."
        )
        yield Note("assumed", "window", text)
