"""Removes impossible amounts: below 0, or larger than any recording can have.

An amount is a nullable column with a unit, the three sizes of a launch, or a counter of bytes.
Times are not amounts: they may lie before the zero of the clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from traceflops.parsers.io.notes import NoteTable
from traceflops.table.columns import (
    BoolArray,
    codes,
    flag_column,
    floats,
    names,
    numbers,
    only_where,
    take_rows,
    with_column,
)
from traceflops.table.schema import TABLES
from traceflops.table.trace import Note, Trace
from traceflops.units import time_amount

_MOST: Final = 2**53  # 9 PB, or 104 days: a double below it is exact, and sums fit an int64
_SEVERAL: Final = 3  # so many different counters are hardly all 0 of launches that did run
_MUCH_OF_IT: Final = 0.1  # a note says if more of a lifetime is outside device work
_NOTES: Final = NoteTable(
    dropped={
        "impossible-amounts": "{count} impossible [amount|amounts] ignored (negative or too "
        "large): {listed}."
    },
    assumed={
        "window": "The process ran for {life}; its GPU operations start after {before} and span "
        "{span}. Shares cover that span only."
    },
    missing={
        "nothing-counted": "All {n} hardware counters are 0 in every launch: they were not "
        "counted, unless no kernel does what they count. Other programs that count, or missing "
        "rights, can be why."
    },
)


def with_notes(
    trace: Trace, notes: Iterable[Note], tables: Mapping[str, pa.Table] | None = None
) -> Trace:
    """Return the trace with further notes, on its first file, and with `tables` if given."""
    file = trace.source.files[0].name
    named = (replace(note, file=file) for note in notes)
    return replace(trace, tables=tables or trace.tables, notes=(*trace.notes, *named))


def only_rows(tables: Mapping[str, pa.Table], keep: Mapping[str, BoolArray]) -> dict[str, pa.Table]:
    """Return the tables, each table named in `keep` with only the rows for which it is true."""
    out = dict(tables)
    for name, is_kept in keep.items():
        if not is_kept.all():
            out[name] = take_rows(tables[name], np.flatnonzero(is_kept))
    return out


def without_impossible_amounts(trace: Trace) -> Trace:
    """Return the trace with null for impossible amounts, without impossible counters of bytes."""
    tables, wrong = dict(trace.tables), dict[str, int]()
    for name, columns in TABLES.items():
        for column in columns:
            array = trace.table(name)[column.name]
            is_amount = column.unit or pa.types.is_fixed_size_list(column.type)
            # Amounts can be unknown: a required column with a unit is a time.
            if not is_amount or not column.nullable or array.null_count == len(array):
                continue
            bad = _impossible(array)
            if bad is not None:
                possible = only_where(flag_column(~bad), array)
                tables[name] = with_column(tables[name], column.name, possible)
                wrong[f"{column.name} of {name}"] = int(np.count_nonzero(bad))
    counters = trace.counters  # they cannot be null: rows are dropped
    counter_names = [*names(counters["name"]), ""]  # the last one for code -1, which is null
    is_of_bytes, may_be_negative = (
        np.array([name.endswith(end) for name in counter_names])[codes(counters["name"])]
        for end in ("_bytes", "change_bytes")
    )
    value = floats(counters["value"])
    is_possible = (np.abs(value) < _MOST) & ((value >= 0) | may_be_negative)
    kept = ~is_of_bytes | is_possible
    if not kept.all():
        wrong["bytes of memory counters"] = int(np.count_nonzero(~kept))
    listed = ", ".join(f"{count:,} {what}" for what, count in wrong.items())
    notes = [_NOTES.note("impossible-amounts", sum(wrong.values()), listed=listed)] if wrong else []
    return with_notes(trace, notes, only_rows(tables, {"counters": kept}))


def _impossible(array: pa.ChunkedArray) -> BoolArray | None:
    """Return which values (or lists) are impossible, None if none is; not all of them are null."""
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        parts = [  # `values` of a sliced chunk begins before the chunk
            chunk.values.slice(chunk.offset * size, len(chunk) * size) for chunk in array.chunks
        ]
        bad = _impossible(pa.chunked_array(parts, array.type.value_type))
        return np.asarray(bad.reshape(-1, size).any(axis=1)) if bad is not None else None
    values = numbers(array, 0)
    if int(values.min()) >= 0 and int(values.max()) < _MOST:
        return None
    return np.asarray((values < 0) | (values >= _MOST))


def counter_notes(trace: Trace) -> Iterator[Note]:
    """Yield a note if the hardware counters of launches are all 0."""
    counted = trace.table("kernel_counters")
    kinds = len(names(counted["counter"]))
    if kinds >= _SEVERAL and not floats(counted["value"]).any():
        yield _NOTES.note("nothing-counted", kinds)


def lifetime_notes(trace: Trace) -> Iterator[Note]:
    """Yield a note if device work spans only part of the process's lifetime."""
    activities = trace.activities
    if len(trace.source.lifetimes) != 1 or not activities.num_rows:
        return
    start = numbers(activities["start_ns"])
    first, last = int(start.min()), int((start + numbers(activities["dur_ns"])).max())
    began, ended = trace.source.lifetimes[0]
    before, after = max(0, first - began), max(0, ended - last)
    if before + after > _MUCH_OF_IT * (ended - began):
        life, before_text, span = map(time_amount, (ended - began, before, last - first))
        yield _NOTES.note("window", life=life, before=before_text, span=span)
