"""Drops records that stand in the input more than once; the rule is in docs/damage.md."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    Note,
    Trace,
    codes,
    groups,
    names,
    number_column,
    numbers,
)
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


# Several exports of one run, such as rocprof's CSV and JSON in one folder, count once.
#
# So do copies of a file: traces of one writer with the same processes, clock and device work. Two
# traces of different tools or formats are of one run where their kernels have the same times:
# by process, or all together where one does not tell processes apart.


def each_run_once(traces: Sequence[Trace]) -> list[Trace]:
    """Return the traces without copies and without other exports of a run, with a note each."""
    return without_other_exports(without_copies(traces))


def without_copies(traces: Sequence[Trace]) -> list[Trace]:
    """Return the traces without those that hold the same recording again, with a note each.

    Of copies the one of the shortest name is kept: who copies a file adds to its name.
    """
    seem = [_circumstances(trace) for trace in traces]
    often = Counter(seem)
    alike: defaultdict[Hashable, list[int]] = defaultdict(list)
    for place, (trace, one) in enumerate(zip(traces, seem, strict=True)):
        # Their kernels are looked at only where all else is the same: that takes a while.
        whole = next(_runs(trace), None) if one is not None and often[one] > 1 else None
        alike[place if whole is None else (one, whole)].append(place)
    if len(alike) == len(traces):
        return list(traces)
    notes: dict[int, Note] = {}
    kept: list[int] = []
    for places in alike.values():
        first, *others = sorted(places, key=lambda place: (_name_length(traces[place]), place))
        kept.append(first)
        if others:
            notes[first] = _copies_note(traces[first], [traces[other] for other in others])
    return [
        replace(traces[place], notes=(notes[place], *traces[place].notes))
        if place in notes
        else traces[place]
        for place in sorted(kept)
    ]


def _name_length(trace: Trace) -> int:
    return sum(len(file.name) for file in trace.source.files)


def _circumstances(trace: Trace) -> Hashable | None:
    """Return what copies of a recording have in common beside its kernels, None if not certain.

    Without its clock and the numbers of its processes two that look alike may be two ranks.
    """
    source, rows = trace.source, trace.processes.to_pylist()
    clock = source.clock or source.origin_unix_ns
    if clock is None or not rows or any(row["pid"] is None for row in rows):
        return None
    people = tuple((row["pid"], row["host"], row["rank"]) for row in rows)
    return (*_writer(trace), clock, people, trace.activities.num_rows)


def _copies_note(kept: Trace, copies: Sequence[Trace]) -> Note:
    names_ = [file.name for trace in copies for file in trace.source.files]
    stays = ", ".join(file.name for file in kept.source.files[:3])
    more = ", …" if len(names_) > 3 else ""
    text = (
        "The same recording is given more than once (same processes, clock and kernels). It "
        f"counts once, from {stays}; ignored: {', '.join(names_[:3])}{more}."
    )
    return Note("dropped", "same-run", text, len(names_))


def without_other_exports(traces: Sequence[Trace]) -> list[Trace]:
    """Return the traces without those that hold what another one holds, too, with a note each.

    Of several exports the one is kept that names its devices, and of these the one with most rows.
    """
    if len({_writer(trace) for trace in traces}) < 2:
        return list(traces)
    runs = [frozenset(_runs(trace)) for trace in traces]
    kept: list[int] = []
    notes: dict[int, list[Note]] = {}
    for place in sorted(range(len(traces)), key=lambda place: _worth(traces[place])):
        twins = [
            other
            for other in kept
            if runs[place] & runs[other] and _writer(traces[place]) != _writer(traces[other])
        ]
        if _is_covered(traces[place], runs[place], [runs[other] for other in twins]):
            notes.setdefault(twins[0], []).append(_note(traces[place], traces[twins[0]]))
        else:
            kept.append(place)
    return [
        replace(traces[place], notes=(*notes.get(place, ()), *traces[place].notes))
        for place in sorted(kept)
    ]


def _writer(trace: Trace) -> tuple[str, str | None]:
    return trace.source.format, trace.source.tool


def _worth(trace: Trace) -> tuple[bool, int]:
    """Return what sorts the trace that says most before the others."""
    products = trace.devices["product"]
    unnamed = products.null_count == len(products)
    return unnamed, -sum(table.num_rows for table in trace.tables.values())


def _runs(trace: Trace) -> Iterator[str]:
    """Yield what tells the kernels of the trace, and those of each process; nothing without any."""
    activities = trace.activities
    kinds = names(activities["kind"]) if activities.num_rows else []
    if "kernel" not in kinds:
        return
    rows = np.flatnonzero(codes(activities["kind"]) == kinds.index("kernel"))
    if len(rows):
        yield _digest(activities, rows)
        for _, mine in groups(numbers(activities["process"])[rows]):
            yield _digest(activities, rows[mine])


def _digest(activities: pa.Table, rows: IntArray) -> str:
    start, length = (numbers(activities[name])[rows] for name in ("start_ns", "dur_ns"))
    order = np.lexsort((length, start))
    digest = hashlib.sha256(start[order].tobytes())
    digest.update(length[order].tobytes())
    return digest.hexdigest()


def _is_covered(trace: Trace, runs: frozenset[str], others: Sequence[frozenset[str]]) -> bool:
    """Return whether the kernels as a whole, or those of every process, are in the others."""
    if not others:
        return False
    known = frozenset[str]().union(*others)
    whole = next(_runs(trace))
    return whole in known or (runs - {whole} <= known and len(runs) > 1)


def _note(trace: Trace, kept: Trace) -> Note:
    left, stays = (", ".join(file.name for file in t.source.files[:3]) for t in (trace, kept))
    text = (
        f"{left} and {stays} hold the same kernels at the same times, as exports of one run. It "
        f"counts once, from {stays}."
    )
    return Note("dropped", "same-run", text, len(trace.source.files))
