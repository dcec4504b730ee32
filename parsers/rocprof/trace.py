"""What a reader of rocprof gathers of a recording, and the trace it becomes, with its notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.parsers.io import ByteSource, Database, NoteTable, nothing_left
from traceflops.parsers.rocprof.linking import link_notes
from traceflops.parsers.rocprof.notes import (
    COUNTED_WHILE_TIMED,
    COUNTERS_ONLY,
    DEVICE_UNKNOWN,
    LAUNCH_IS_QUEUEING,
    instance_notes,
)
from traceflops.parsers.shared import (
    DISPATCH,
    UNNAMED_KERNEL,
    Gathered,
    overflow_notes,
    span_notes,
)
from traceflops.table import (
    Note,
    Source,
    SourceFile,
    Trace,
    codes,
    names,
    number_column,
    of_noun,
    rank_from_name,
)

_RECORDS: Final = ("activities", "calls", "marks", "counters", "kernel_counters")
_HOST_COPIES: Final = "within CPU memory skipped: no GPU involved."
_DROPPED: Final = {
    "no-value json": of_noun("counter", "without a value skipped."),
    "host-copies json": of_noun("copy record", _HOST_COPIES),
    "host-copies": f"{{n}} [copy|copies] {_HOST_COPIES}",
    "graph-without-device": of_noun("graph launch", "skipped: unknown GPU."),
    "sampled": of_noun("call stack sample", "skipped: not supported."),
    "system": of_noun("driver event", "skipped: not supported."),
    "streamed-counter": of_noun("counter value", "skipped: sampled over time, not per kernel."),
    "no-value": of_noun("counter value", "skipped: not a number."),
    "launcher": of_noun("launcher", "left no records: not shown."),
    "loose-arrows": of_noun(
        "arrow", "between calls and GPU operations skipped: the link is ambiguous."
    ),
}
_ASSUMED: Final = {
    "kernel-clash": of_noun(
        "launch", "of kernels whose number has two names: the later name is shown."
    ),
    "device-unknown json": of_noun(
        "record", "without a GPU: counted for the only GPU, else for device 0."
    ),
}
_MISSING: Final = {
    "kernels-unnamed": of_noun("kernel", "without a name in the database."),
    "kernels-unnamed json": of_noun("kernel", "without a name in the file, shown by number."),
    "agents-missing": of_noun("device", "missing from the file's list of agents: model unknown."),
    "device-ambiguous": (
        "Unknown GPU model for gpu-id {numbers}: the listed GPUs differ and none has that number."
    ),
    "no-device-work": (
        "The {holder} has no GPU operations; rocprofv3 --kernel-trace --memory-copy-trace records "
        "them."
    ),
    "no-device-work v1": (
        "The file has no GPU operations. Record with rocprof --hip-trace or --timestamp on, or "
        "with rocprofv3 --kernel-trace."
    ),
}
NOTES: Final = NoteTable(dropped=_DROPPED, assumed=_ASSUMED, missing=_MISSING)
_NO_CALLS_V1: Final = (
    "The file has no API calls, so what launched the GPU operations is unknown. Record with "
    "rocprof --hip-trace, or rocprofv3 --hip-trace --kernel-trace."
)
_NO_WORK: Final = {
    "database": NOTES.note("no-device-work", holder="database"),
    "file": NOTES.note("no-device-work", holder="file"),
    "v1 file": NOTES.note("no-device-work v1"),
}


class Recorded(Gathered):
    """The rows of a recording, how many odd records it has, and how many of each kind.

    Odd records are counted under the keys of the notes above.
    """

    def __init__(self) -> None:
        super().__init__()
        self.odd: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()


def file_of(source: ByteSource) -> SourceFile:
    """Return what a trace says of one of its files."""
    return SourceFile(source.label, source.stored_bytes, source.text_bytes)


def trace_of(
    recorded: Recorded,
    source: Source,
    holder: str,
    *,
    rank: int | None = None,
    notes: Iterable[Note] = (),
    clocks: Iterable[str] = (),
) -> Trace:
    """Return the trace of what was recorded, with the notes on its records behind others.

    `holder` is what held it: a database, a file or a v1 file; `rank` is what a name says of its
    only process, `clocks` are those of processes where they differ.
    """
    overflowed, counts = recorded.overflowed, dict(sorted((+recorded.counts).items()))
    tables, file = recorded.finish(), source.files[0].name
    count = tables["processes"].num_rows
    every_clock = [*clocks, *("",) * count][:count]
    facts = dict(source.facts)
    if counts:
        facts.setdefault("recorded", ", ".join(counts))
    all_notes = [
        *notes,
        *_ranked(tables, rank),
        *_record_notes(tables, recorded.odd),
        *_content_notes(tables, holder),
    ]
    return Trace(
        source=replace(source, facts=facts, event_counts=counts, kinds_apart=True),
        tables=tables,
        notes=(
            *(note if note.file else replace(note, file=file) for note in all_notes),
            *overflow_notes(overflowed, file),
        ),
        places=recorded.places,
        clocks=tuple(every_clock) if any(every_clock) else (),
    )


def _ranked(tables: dict[str, pa.Table], rank: int | None) -> Iterator[Note]:
    """Fill in the rank of the only process, and say where it is from."""
    processes = tables["processes"]
    if rank is not None and processes.num_rows == 1:
        at = processes.schema.get_field_index("rank")
        field = processes.schema.field(at)
        column = number_column(np.array([rank]), field.type)
        tables["processes"] = processes.set_column(at, field, column)
        yield rank_from_name([rank])


def _record_notes(tables: Mapping[str, pa.Table], odd: Counter[str]) -> Iterator[Note]:
    """Say which records were repaired, dropped or guessed at."""
    yield from span_notes(odd)
    yield from NOTES.counted(odd, *_DROPPED)
    yield from instance_notes(odd["instances"])
    if odd["device-unknown"]:
        yield DEVICE_UNKNOWN
    yield from NOTES.counted(odd, *_ASSUMED)
    kernels = tables["activities"]["name"]
    labels = names(kernels)
    if UNNAMED_KERNEL in labels:
        nameless = np.count_nonzero(codes(kernels) == labels.index(UNNAMED_KERNEL))
        odd["kernels-unnamed"] = int(nameless)
    yield from NOTES.counted(odd, "kernels-unnamed", "kernels-unnamed json", "agents-missing")


def _content_notes(tables: Mapping[str, pa.Table], holder: str) -> Iterator[Note]:
    """Say what the recording lacks as a whole."""
    was_counted = tables["kernel_counters"].num_rows > 0
    if not tables["activities"].num_rows:
        yield COUNTERS_ONLY if was_counted else _NO_WORK[holder]
        return
    if names(tables["calls"]["name"]) == [DISPATCH]:
        yield LAUNCH_IS_QUEUEING
    else:
        no_calls = {"no_calls": _NO_CALLS_V1} if holder == "v1 file" else {}
        yield from link_notes(tables, **no_calls)
    if was_counted:
        yield COUNTED_WHILE_TIMED


def with_losses(database: Database, trace: Trace, label: Callable[[str], str] = str) -> Trace:
    """Return the trace with the notes on what was lost of its database.

    Raises InputError where everything was.
    """
    if database.damaged and not any(trace.table(name).num_rows for name in _RECORDS):
        again = "record or copy the database again"
        raise nothing_left(database.source.label, database.place.notes, again)
    return replace(trace, notes=(*database.notes(label), *trace.notes))
