"""Reads databases of nvprof and the Visual Profiler (.nvvp, .nvprof)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.parsers.io.database_query import Lookup
from traceflops.parsers.io.database_rows import Database
from traceflops.parsers.io.notes import NoteTable
from traceflops.parsers.nsight.nsys.read import trace_of_file
from traceflops.parsers.nsight.nsys.reading import CUPTI
from traceflops.parsers.nsight.nvprof.tables import nvprof_tables
from traceflops.parsers.shared.sanity_checks import COUNTED_WHILE_TIMED
from traceflops.table.columns import ABSENT, number_column, numbers, with_column
from traceflops.table.trace import Trace

NVPROF: Final = "nvprof"
_RECENT_NS: Final = 10**18
"""A later time counts from 1970."""
_WITH_THREADS: Final = ("calls", "ops", "marks")
_COUNTED: Final = tuple(f"{CUPTI}{what}" for what in ("EVENT", "METRIC"))
_NOTES: Final = NoteTable(
    dropped={
        "unified-memory": (
            "{n} [counter|counters] of unified memory that [is|are] no [copy|copies] (page faults "
            "and the like) [is|are] not read."
        ),
    },
    missing={
        "nccl-sizes": "NCCL annotated its collectives, but nvprof does not record their sizes.",
    },
)


def read_nvprof(database: Database) -> Sequence[Trace]:
    """Return the trace in a database. Raises InputError where none can be read."""
    tables = nvprof_tables(database)
    trace = trace_of_file(tables, NVPROF)
    # Threads get their numbers in the database, of which 0 is none.
    numbers_of = tables.own_threads
    sides = (np.array(list(side), np.int64) for side in (numbers_of.values(), numbers_of.keys()))
    own_thread = Lookup(*sides)
    changed: dict[str, pa.Table] = {}
    for name in _WITH_THREADS:
        table = trace.table(name)
        threads = own_thread(numbers(table["thread"], ABSENT))
        column = number_column(threads, table.schema.field("thread").type)
        changed[name] = with_column(table, "thread", column)
    # Times count from 1970, or on another clock.
    starts = [numbers(trace.table(name)["start_ns"]) for name in ("activities", "calls", "marks")]
    earliest = min((int(start.min()) for start in starts if len(start)), default=0)
    origin = 0 if earliest > _RECENT_NS else None
    kept = [note for note in trace.notes if note.code != "nccl-sizes"]
    counted = tables.left_out | Counter({"nccl-sizes": len(trace.notes) - len(kept)})
    notes = [*_NOTES.counted(counted, "unified-memory", "nccl-sizes")]
    counters = [name for name in database.tables if name.startswith(_COUNTED)]
    notes += [COUNTED_WHILE_TIMED] if any(map(database.has_rows, counters)) else []
    return [
        replace(
            trace,
            source=replace(trace.source, tool=NVPROF, origin_unix_ns=origin),
            tables={**trace.tables, **changed},
            notes=(*kept, *(replace(note, file=database.source.label) for note in notes)),
        )
    ]
