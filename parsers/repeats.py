"""Drops records that stand in the input more than once; the rule is in docs/damage.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.columns import BoolArray, codes, number_column, numbers
from traceflops.rows import ABSENT
from traceflops.trace import Note, Trace
from traceflops.words import several, time_amount

_SURELY_APART_NS: Final = 3_000
"""Two records of this length cannot begin in the same tick, even if ticks are microseconds."""

_UNIQUE: Final = {"activities": "correlation", "calls": "correlation", "ops": "external_id"}
"""The id by which records of a table are told apart; of others nothing proves a repeat."""

_NOUNS: Final = {
    "activities": "device record",
    "calls": "call",
    "ops": "operator",
    "marks": "mark",
}
_SAME: Final = {
    "activities": ("device", "stream", "correlation", "graph_node"),
    "calls": ("thread", "correlation", "external_id"),
    "ops": ("thread", "external_id", "sequence"),
    "marks": ("kind", "thread", "device", "stream", "correlation", "python_id"),
}
"""What must be equal in a repeat, besides start, duration and name."""


def without_repeats(trace: Trace) -> Trace:
    """Return the trace in which each record of the input counts once, with a note if one did not.

    An input holds repeats where two records of one id are the same and too long for that to be
    the work of a coarse clock; then all that is the same counts once.
    """
    same = {name: _same_as_before(trace.table(name), name) for name in _SAME}
    if not any(_is_proof(trace.table(name), name, again) for name, again in same.items()):
        return trace
    counts = {name: int(again.sum()) for name, again in same.items()}
    device_ns = int(numbers(trace.activities["dur_ns"])[same["activities"]].sum())
    listed = ", ".join(several(n, _NOUNS[name]) for name, n in counts.items() if n)
    note = Note(
        "repaired",
        "written-twice",
        "Records of the same id, name and times stand in the file more than once; each counts "
        f"once. Left out: {listed} ({time_amount(device_ns)} of device work).",
        sum(counts.values()),
        trace.source.files[0].name,
    )
    return replace(trace, tables=_kept(trace.tables, same), notes=(*trace.notes, note))


def _same_as_before(table: pa.Table, name: str) -> BoolArray:
    """Return the rows that are the same as the one before them; rows are in order of all this."""
    if table.num_rows < 2:
        return np.zeros(table.num_rows, dtype=np.bool_)
    length = numbers(table["dur_ns"])
    same = length[1:] > 0
    for values in (numbers(table["start_ns"]), length, codes(table["name"])):
        same &= values[1:] == values[:-1]
    for column in _SAME[name]:
        is_text = pa.types.is_dictionary(table.schema.field(column).type)
        values = codes(table[column]) if is_text else numbers(table[column], ABSENT)
        same &= values[1:] == values[:-1]
    return np.append(False, same)


def _is_proof(table: pa.Table, name: str, again: BoolArray) -> bool:
    if name not in _UNIQUE or not again.any():
        return False
    known = numbers(table[_UNIQUE[name]], ABSENT) != ABSENT
    return bool((again & known & (numbers(table["dur_ns"]) >= _SURELY_APART_NS)).any())


def _kept(tables: Mapping[str, pa.Table], again: Mapping[str, BoolArray]) -> dict[str, pa.Table]:
    out = dict(tables)
    for name, repeated in again.items():
        if repeated.any():
            rows = number_column(np.flatnonzero(~repeated), pa.int64())
            out[name] = tables[name].take(rows)
    return out
