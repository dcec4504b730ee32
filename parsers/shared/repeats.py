"""Drops records that stand in the input more than once; the rule is in docs/damage.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.table import ABSENT, BoolArray, Note, Trace, codes, number_column, numbers
from traceflops.units import several, time_amount

_SURELY_APART_NS: Final = 3_000
"""Two records of this length cannot begin in the same tick, even if ticks are microseconds."""

_UNIQUE: Final = {"activities": "correlation", "calls": "correlation", "ops": "external_id"}
"""The id by which records of a table are told apart; of others nothing proves a repeat."""

_NOUNS: Final = {
    "activities": "GPU record",
    "calls": "call",
    "ops": "operator",
    "marks": "mark",
}


def without_repeats(trace: Trace) -> Trace:
    """Return the trace in which each record of the input counts once, with a note if one did not.

    An input holds repeats where two records of one id are the same and too long for that to be
    the work of a coarse clock; then all that is the same counts once.
    """
    same = {name: _same_as_before(trace.table(name)) for name in _NOUNS}
    if not any(_is_proof(trace.table(name), name, again) for name, again in same.items()):
        return trace
    counts = {name: int(again.sum()) for name, again in same.items()}
    device_ns = int(numbers(trace.activities["dur_ns"])[same["activities"]].sum())
    listed = ", ".join(several(n, _NOUNS[name]) for name, n in counts.items() if n)
    amount = f" ({time_amount(device_ns)} of GPU time)" if counts["activities"] else ""
    note = Note(
        "repaired",
        "written-twice",
        "Identical records appear more than once in the file and count once. Ignored: "
        f"{listed}{amount}.",
        sum(counts.values()),
        trace.source.files[0].name,
    )
    return replace(trace, tables=_kept(trace.tables, same), notes=(*trace.notes, note))


def _same_as_before(table: pa.Table) -> BoolArray:
    """Return the rows that are the same as the one before them; times and ids order the rows."""
    found = np.zeros(table.num_rows, dtype=np.bool_)
    if table.num_rows < 2:
        return found
    length, start, name = numbers(table["dur_ns"]), numbers(table["start_ns"]), codes(table["name"])
    alike = length[1:] > 0
    for values in (start, length, name):
        alike &= values[1:] == values[:-1]
    before = np.flatnonzero(alike)
    if not len(before):
        return found
    first, second = (table.take(number_column(rows, pa.int64())) for rows in (before, before + 1))
    same = np.ones(len(before), dtype=np.bool_)
    for column in table.schema.names:
        same &= _equal(first[column], second[column])
    found[before[same] + 1] = True
    return found


def _equal(one: pa.ChunkedArray, other: pa.ChunkedArray) -> BoolArray:
    """Return, row by row, whether two columns are equal; nulls are."""
    if pa.types.is_dictionary(one.type):
        return np.asarray(codes(one) == codes(other))
    if pa.types.is_integer(one.type):
        return np.asarray(numbers(one, ABSENT) == numbers(other, ABSENT))
    pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
    return np.fromiter((a == b for a, b in pairs), dtype=np.bool_, count=len(one))


def _is_proof(table: pa.Table, name: str, again: BoolArray) -> bool:
    """Return whether two rows of one id are the same and cannot be two that are alike.

    Device work of a clock of whole microseconds can: branches of a graph that run side by side.
    """
    if name not in _UNIQUE or not again.any():
        return False
    ids, start = numbers(table[_UNIQUE[name]], ABSENT), numbers(table["start_ns"])
    if name == "activities" and not (start % 1_000).any():
        return False
    known = (ids != ABSENT) & (ids != 0)
    return bool((again & known & (numbers(table["dur_ns"]) >= _SURELY_APART_NS)).any())


def _kept(tables: Mapping[str, pa.Table], again: Mapping[str, BoolArray]) -> dict[str, pa.Table]:
    out = dict(tables)
    for name, repeated in again.items():
        if repeated.any():
            rows = number_column(np.flatnonzero(~repeated), pa.int64())
            out[name] = tables[name].take(rows)
    return out
