"""From what was gathered of a database of rocprof to its trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.parsers.io import Database, nothing_left
from traceflops.parsers.rocprof.notes import (
    COUNTED_WHILE_TIMED,
    COUNTERS_ONLY,
    DEVICE_UNKNOWN,
    LAUNCH_IS_QUEUEING,
    instance_notes,
    link_notes,
)
from traceflops.parsers.rocprof.rocpd.categories import SAMPLED, SYSTEM
from traceflops.parsers.rocprof.tables.parts import place_of
from traceflops.parsers.shared import DISPATCH, UNNAMED_KERNEL, Gathered, overflow_notes, span_notes
from traceflops.table import (
    Note,
    Source,
    SourceFile,
    Trace,
    codes,
    counted_note,
    names,
    number_column,
    of_noun,
    rank_from_name,
)

_RECORDS: Final = ("activities", "calls", "marks", "counters", "kernel_counters")


@dataclass(frozen=True, slots=True)
class Tallies:
    """What was counted while a database was read: odd records, and all of them by kind."""

    odd: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a trace comes from, beside its file; see `traceflops.table.trace.Source`.

    `lifetimes` are first and last moment of each process, where they are known; `clocks` are those
    of processes where they differ.
    """

    format: str
    tool: str
    facts: Mapping[str, str] = field(default_factory=dict)
    clock: str | None = None
    identities: tuple[str, ...] = ()
    lifetimes: tuple[tuple[int, int], ...] = ()
    clocks: tuple[str, ...] = ()


def trace_of(database: Database, gathered: Gathered, tallies: Tallies, origin: Origin) -> Trace:
    """Return the trace of what was gathered, with the notes on its records."""
    source, overflowed = database.source, gathered.overflowed
    tables = gathered.finish()
    recorded = ", ".join(sorted(+tallies.counts))
    rank = place_of(source.folder, source.name).rank
    notes = content_notes(tables, tallies.odd, overflowed, source.label)
    if rank is not None and tables["processes"].num_rows == 1:
        tables["processes"] = _ranked(tables["processes"], rank)
        notes = (rank_from_name([rank], source.label), *notes)
    return Trace(
        source=Source(
            format=origin.format,
            files=(SourceFile(source.label, source.stored_bytes, source.text_bytes),),
            tool=origin.tool,
            clock=origin.clock,
            facts={**origin.facts, **({"recorded": recorded} if recorded else {})},
            event_counts=dict(sorted((+tallies.counts).items())),
            identities=origin.identities,
            lifetimes=origin.lifetimes,
            kinds_apart=True,
        ),
        tables=tables,
        notes=notes,
        places=gathered.places,
        clocks=_padded(origin.clocks, tables["processes"].num_rows),
    )


def _padded(clocks: tuple[str, ...], count: int) -> tuple[str, ...]:
    """Return the clocks of all processes: of those that are not listed none is known."""
    return (*clocks, *("",) * count)[:count] if clocks else ()


def _ranked(processes: pa.Table, rank: int) -> pa.Table:
    place = processes.schema.get_field_index("rank")
    field = processes.schema.field(place)
    return processes.set_column(place, field, number_column(np.array([rank]), field.type))


def with_losses(database: Database, trace: Trace, label: Callable[[str], str] = str) -> Trace:
    """Return the trace with the notes on what was lost of its database.

    Raises InputError where everything was.
    """
    if database.damaged and not any(trace.table(name).num_rows for name in _RECORDS):
        again = "record or copy the database again"
        raise nothing_left(database.source.label, database.place.notes, again)
    lost: tuple[Note, ...] = database.notes(label)
    return replace(trace, notes=(*lost, *trace.notes))


# What the reader of a report must know about how a database of rocprof was read.


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
    notes = [
        *span_notes(odd),
        *_left_out(odd),
        *instance_notes(odd["instances"]),
        *([DEVICE_UNKNOWN] if odd["device-unknown"] else ()),
        *_unnamed(tables["activities"]),
        *_content(tables),
        *overflow_notes(overflowed, file),
    ]
    return tuple(replace(note, file=file) for note in notes)


def _left_out(odd: Counter[str]) -> Iterator[Note]:
    for code, (one, many, sentence) in _LEFT_OUT.items():
        count = odd[code]
        if count:
            yield counted_note("dropped", code, f"{{n}} [{one}|{many}] {sentence}.", count)


def _unnamed(activities: pa.Table) -> Iterator[Note]:
    labels = names(activities["name"])
    if UNNAMED_KERNEL in labels:
        count = int(np.count_nonzero(codes(activities["name"]) == labels.index(UNNAMED_KERNEL)))
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
