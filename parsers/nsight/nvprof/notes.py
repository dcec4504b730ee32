"""Notes on databases of nvprof: what differs from exports of Nsight Systems."""

from __future__ import annotations

from collections import Counter
from typing import Final

from msgspec.structs import replace

from traceflops.parsers.io.database_query import Wanted
from traceflops.parsers.io.database_rows import Database
from traceflops.parsers.io.notes import NoteTable
from traceflops.parsers.nsight.nsys.reading import CUPTI
from traceflops.parsers.shared.sanity_checks import COUNTED_WHILE_TIMED
from traceflops.remedies import METRIC
from traceflops.table.trace import CUDA_END, Trace

_NO_WORK: Final = "no-device-work"
_NOTES: Final = NoteTable(
    dropped={
        "unified-memory": "{n} [counter|counters] of unified memory that [is|are] no [copy|copies] "
        "(page faults of the CPU and the like) [is|are] not read."
    },
    missing={
        "nccl-sizes": "NCCL annotated its collectives, but nvprof does not record their sizes.",
        f"{_NO_WORK} empty": "The recording is empty: no table has a row, not even of a GPU.",
    },
)


def with_notes(trace: Trace, database: Database, left_out: Counter[str]) -> Trace:
    """Return the trace of a database with nvprof's own notes, and the count of its metrics.

    `left_out` counts unused records by code of their note. A database without a record is told as
    the end of tracing (CUDA_END).
    """
    # The advice of the note on NCCL's sizes is for nsys: replace it by nvprof's own.
    kept = [note for note in trace.notes if note.code != "nccl-sizes"]
    counted = left_out | Counter({"nccl-sizes": len(trace.notes) - len(kept)})
    notes = [*_NOTES.counted(counted, "unified-memory", "nccl-sizes")]
    facts, counts = dict(trace.source.facts), dict(trace.source.event_counts)
    records = [name for name in database.tables if name.startswith(CUPTI)]
    if not any(map(database.has_rows, records)):
        kept = [note for note in kept if note.code != _NO_WORK]
        notes.append(_NOTES.note(f"{_NO_WORK} empty"))
        facts[CUDA_END] = "empty"
    metrics = f"{CUPTI}{METRIC}"
    counters = [name for name in records if name.startswith((f"{CUPTI}EVENT", metrics))]
    if any(map(database.has_rows, counters)):
        notes.append(COUNTED_WHILE_TIMED)
    if metrics in counters:
        counts[METRIC] = database.whole(metrics, Wanted()).count
    own = (replace(note, file=database.source.label) for note in notes)
    source = replace(trace.source, event_counts=counts, facts=facts)
    return replace(trace, source=source, notes=(*kept, *own))
