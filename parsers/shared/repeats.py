"""Counts once what the inputs contain repeatedly: records, copies of files, exports of a run.

The rule for records is in docs/damage.md. Copies of a file are traces of one writer with the same
processes, clock and device work. Traces of different tools or formats are of one run if their
kernels have the same times: per process, or together if one does not distinguish processes.

A copy between devices may go through the host: then its call leaves two records, DtoH and HtoD.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from traceflops.parsers.io.notes import NoteTable
from traceflops.parsers.shared.amounts import only_rows, with_notes
from traceflops.table.columns import (
    ABSENT,
    BoolArray,
    IntArray,
    codes,
    dictionary_column,
    is_one_of,
    matching,
    names,
    numbers,
    take_rows,
    with_column,
)
from traceflops.table.grouping import groups
from traceflops.table.links import first_match
from traceflops.table.trace import Note, Trace
from traceflops.units import listed, several, time_amount

_SURELY_APART_NS: Final = 3_000
"""Two records of this length cannot begin in the same tick, even if ticks are microseconds."""
_UNIQUE: Final = {"activities": "correlation", "calls": "correlation", "ops": "external_id"}
"""The id that distinguishes records of a table; without one nothing proves a repeat."""
_NOUNS: Final = {"activities": "GPU record", "calls": "call", "ops": "operator", "marks": "mark"}
_NOTES: Final = NoteTable(
    repaired={
        "written-twice": "Identical records appear more than once in the file and count once. "
        "Ignored: {listed}{amount}."
    },
    dropped={
        "same-run copies": "The same recording is given more than once (same processes, clock and "
        "kernels). It counts once, from {stays}; ignored: {ignored}.",
        "same-run exports": "{ignored} and {stays} hold the same kernels at the same times, as "
        "exports of one run. It counts once, from {stays}.",
    },
)
_OTHER_FILE: Final = " in another file (pack, page, export or summary)"
_MOST_NAMED: Final = 3
_CALL: Final = re.compile(r"Memcpy|memory_(?:async_)?copy", re.I)
_BETWEEN: Final = "PtoP"
_HALVES: Final = ("DtoH", "HtoD")
_WAYS: Final = (*_HALVES, "DtoD", "HtoH")


def without_repeats(trace: Trace) -> Trace:
    """Return the trace without repeated records, with a note if there were any.

    With a coarse clock, different events can give equal records. So equal records are taken as
    repeats only if some of them cannot be equal by chance (`_is_proof`).
    """
    repeated = {name: _same_as_before(trace.table(name)) for name in _NOUNS}
    if not any(_is_proof(trace.table(name), name, rows) for name, rows in repeated.items()):
        return trace
    counts = {name: int(rows.sum()) for name, rows in repeated.items()}
    device_ns = int(numbers(trace.activities["dur_ns"])[repeated["activities"]].sum())
    parts = ", ".join(several(n, _NOUNS[name]) for name, n in counts.items() if n)
    amount = f" ({time_amount(device_ns)} of GPU time)" if counts["activities"] else ""
    note = _NOTES.note("written-twice", sum(counts.values()), listed=parts, amount=amount)
    kept = only_rows(trace.tables, {name: ~rows for name, rows in repeated.items()})
    return with_notes(trace, [note], kept)


def _same_as_before(table: pa.Table) -> BoolArray:
    """Return which rows equal the row before them in all columns and last longer than 0 ns.

    Different instants are often equal. Rows are sorted by time and id: equal ones are neighbors.
    """
    repeats = np.zeros(table.num_rows, dtype=np.bool_)
    if table.num_rows < 2:
        return repeats
    length, start, name = numbers(table["dur_ns"]), numbers(table["start_ns"]), codes(table["name"])
    # Compare the columns that mostly differ first; all columns only of the candidates that remain.
    is_candidate = length[1:] > 0
    for values in (start, length, name):
        is_candidate &= values[1:] == values[:-1]
    before = np.flatnonzero(is_candidate)
    if not len(before):
        return repeats
    first, second = (take_rows(table, rows) for rows in (before, before + 1))
    same = np.ones(len(before), dtype=np.bool_)
    for column in table.schema.names:  # nulls are equal
        left, right = first[column], second[column]
        if pa.types.is_dictionary(left.type):
            same &= codes(left) == codes(right)
        elif pa.types.is_integer(left.type):
            same &= numbers(left, ABSENT) == numbers(right, ABSENT)
        else:
            pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
            same &= np.array([a == b for a, b in pairs], np.bool_)
    repeats[before[same] + 1] = True
    return repeats


def _is_proof(table: pa.Table, name: str, repeated: BoolArray) -> bool:
    """Return whether a repeated row has an id and is too long for two events to be so by chance."""
    if name not in _UNIQUE or not repeated.any():
        return False
    ids, start = numbers(table[_UNIQUE[name]], ABSENT), numbers(table["start_ns"])
    # With a clock of whole microseconds, parallel branches of a graph can give equal records.
    if name == "activities" and not (start % 1_000).any():
        return False
    has_id = (ids != ABSENT) & (ids != 0)  # 0 is written for none
    return bool((repeated & has_id & (numbers(table["dur_ns"]) >= _SURELY_APART_NS)).any())


def each_run_once(traces: Sequence[Trace]) -> list[Trace]:
    """Return one trace of each run: without copies of files and other exports, with notes."""
    return without_other_exports(_kept(traces, copies(traces)))


def copies(traces: Sequence[Trace]) -> dict[int, list[Note]]:
    """Return the indices of the traces to keep, one of each set of copies, with its notes.

    Of copies the one with the shortest file name is kept: who copies a file adds to its name.
    """
    circumstances = [_circumstances(trace) for trace in traces]
    uses = Counter(circumstances)
    copies_of: defaultdict[Hashable, list[int]] = defaultdict(list)
    for index, (trace, own) in enumerate(zip(traces, circumstances, strict=True)):
        # A digest of the kernels is slow: take it only if everything else is the same.
        kernels = next(_runs(trace), None) if own is not None and uses[own] > 1 else None
        copies_of[index if kernels is None else (own, kernels)].append(index)
    name_length = [sum(len(file.name) for file in trace.source.files) for trace in traces]
    notes: dict[int, list[Note]] = {}
    for members in copies_of.values():
        kept, *others = sorted(members, key=name_length.__getitem__)
        ignored = [traces[other] for other in others]
        notes[kept] = [_note("copies", traces[kept], ignored)] if ignored else []
    return notes


def _circumstances(trace: Trace) -> Hashable | None:
    """Return what all copies of a recording have in common, except its kernels.

    Return None without a clock or process ids: equal traces may then be two ranks.
    """
    source, rows = trace.source, trace.processes.to_pylist()
    clock = source.clock or source.origin_unix_ns
    if clock is None or not rows or any(row["pid"] is None for row in rows):
        return None
    processes = tuple((row["pid"], row["host"], row["rank"]) for row in rows)
    return (*_writer(trace), clock, processes, trace.activities.num_rows)


def without_other_exports(traces: Sequence[Trace]) -> list[Trace]:
    """Return one trace of each run that several tools or formats exported, with a note.

    The exports of a run are compared in this order: one that names its devices is kept, else the
    one with the most rows, else the one with the most facts, else the first.
    """
    if len({_writer(trace) for trace in traces}) < 2:
        return list(traces)
    runs = [list(_runs(trace)) for trace in traces]
    notes: dict[int, list[Note]] = {}  # by the index of each kept trace
    order = []
    for index, trace in enumerate(traces):
        products = trace.devices["product"]
        is_unnamed = products.null_count == len(products)
        rows = sum(table.num_rows for table in trace.tables.values())
        order.append((is_unnamed, -rows, -len(trace.source.facts), index))
    for *_, index in sorted(order):
        trace, own = traces[index], runs[index]
        others = [other for other in notes if _writer(traces[other]) != _writer(trace)]
        twins = [other for other in others if set(runs[other]) & set(own)]
        digests = {digest for other in twins for digest in runs[other]}
        # own[0] is the digest of all processes together, the others of one process each.
        if own and (own[0] in digests or digests.issuperset(own[1:])):
            kept = twins[0]
            notes[kept].append(_note("exports", traces[kept], [trace]))
        else:
            notes[index] = []
    return _kept(traces, notes)


def _kept(traces: Sequence[Trace], notes: Mapping[int, Sequence[Note]]) -> list[Trace]:
    """Return the traces whose index is in `notes`, with these notes (if any) before their own."""
    return [
        replace(traces[index], notes=(*notes[index], *traces[index].notes))
        for index in sorted(notes)
    ]


def _note(what: str, kept: Trace, ignored: Sequence[Trace]) -> Note:
    """Return the note that the traces `ignored` repeat the one that is kept.

    `what`, "copies" or "exports", completes the key of the note. A name that a kept and an
    ignored trace share is marked: packs, pages and exports keep the names of the files they
    were made from.
    """
    names_kept = [file.name for file in kept.source.files]
    files = [
        f"{file.name}{_OTHER_FILE if file.name in names_kept else ''}"
        for trace in ignored
        for file in trace.source.files
    ]
    stays, others = ", ".join(names_kept[:_MOST_NAMED]), listed(files, most=_MOST_NAMED)
    return _NOTES.note(f"same-run {what}", len(files), stays=stays, ignored=others)


def _writer(trace: Trace) -> tuple[str, str | None]:
    return trace.source.format, trace.source.tool


def _runs(trace: Trace) -> Iterator[str]:
    """Yield a digest of all kernels of the trace, then one per process; nothing without kernels."""
    activities = trace.activities
    kinds = names(activities["kind"]) if activities.num_rows else []
    if "kernel" not in kinds:
        return
    rows = np.flatnonzero(codes(activities["kind"]) == kinds.index("kernel"))
    if len(rows):
        yield _digest(activities, rows)
        for _, members in groups(numbers(activities["process"])[rows]):
            yield _digest(activities, rows[members])


def _digest(activities: pa.Table, rows: IntArray) -> str:
    start, length = (numbers(activities[name])[rows] for name in ("start_ns", "dur_ns"))
    order = np.lexsort((length, start))
    return hashlib.sha256(start[order].tobytes() + length[order].tobytes()).hexdigest()


def with_peer_copies(trace: Trace) -> Trace:
    """Return the trace with direction PtoP for the copies of calls that copy between two devices.

    The name of such a call says so (`cudaMemcpyPeer`), or it left two records: a copy from one
    device to the host, and a copy from the host to another device.
    """
    calls, work = trace.calls, trace.activities
    copying = np.flatnonzero(matching(calls["name"], _CALL.search))
    if not len(copying) or not work.num_rows:
        return trace
    # Copies whose direction is known, but not that they are between devices.
    rows = np.flatnonzero(is_one_of(work["kind"], "memcpy") & is_one_of(work["direction"], *_WAYS))
    # For each copy the index, in `copying`, of its call: same process and correlation; -1: none.
    call = first_match(
        *(numbers(calls[name], ABSENT)[copying] for name in ("process", "correlation", "start_ns")),
        *(numbers(work[name], ABSENT)[rows] for name in ("process", "correlation")),
    )
    rows, call = rows[call >= 0], call[call >= 0]
    is_peer_call = matching(calls["name"], lambda name: "Peer" in name)[copying]
    device = numbers(work["device"], ABSENT)[rows]
    ends = np.full((2, len(copying)), ABSENT)  # per call the source and the target device
    for end, direction in zip(ends, _HALVES, strict=True):
        is_half = is_one_of(work["direction"], direction)[rows]
        end[call[is_half]] = device[is_half]
    is_peer_call |= (ends != ABSENT).all(axis=0) & (ends[0] != ends[1])
    rows = rows[is_peer_call[call]]
    if not len(rows):
        return trace
    directions = [*names(work["direction"]), _BETWEEN]
    code = codes(work["direction"]).copy()
    code[rows] = directions.index(_BETWEEN)
    changed = with_column(work, "direction", dictionary_column(code, directions))
    return replace(trace, tables={**trace.tables, "activities": changed})
