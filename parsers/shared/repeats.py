"""What stands in the inputs more than once counts once: records, copies of files, exports of a run.

The rule for records is in docs/damage.md. Copies of a file are traces of one writer with the same
processes, clock and device work. Two traces of different tools or formats, such as rocprof's CSV
and JSON in one folder, are of one run where their kernels have the same times: by process, or all
together where one does not tell processes apart.

Copies between devices that cannot reach each other go through the host: a call leaves a record of
each half, which says that it is from or to the host.
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
    number_column,
    numbers,
    with_column,
)
from traceflops.table.grouping import groups
from traceflops.table.nesting import first_match
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

_OTHER_FORM: Final = " in another form (pack, page or export)"


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
    parts = ", ".join(several(n, _NOUNS[name]) for name, n in counts.items() if n)
    amount = f" ({time_amount(device_ns)} of GPU time)" if counts["activities"] else ""
    note = _NOTES.note("written-twice", sum(counts.values()), listed=parts, amount=amount)
    kept = only_rows(trace.tables, {name: ~again for name, again in same.items()})
    return with_notes(trace, [note], kept)


def _same_as_before(table: pa.Table) -> BoolArray:
    """Return which rows equal the row before them; the rows are ordered by time and id."""
    repeats = np.zeros(table.num_rows, dtype=np.bool_)
    if table.num_rows < 2:
        return repeats
    length, start, name = numbers(table["dur_ns"]), numbers(table["start_ns"]), codes(table["name"])
    alike = length[1:] > 0
    for values in (start, length, name):
        alike &= values[1:] == values[:-1]
    before = np.flatnonzero(alike)
    if not len(before):
        return repeats
    first, second = (table.take(number_column(rows, pa.int64())) for rows in (before, before + 1))
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


def _is_proof(table: pa.Table, name: str, again: BoolArray) -> bool:
    """Return whether equal rows of one id prove a repeat, as two alike records cannot occur.

    Device work of a clock of whole microseconds can: branches of a graph that run side by side.
    """
    if name not in _UNIQUE or not again.any():
        return False
    ids, start = numbers(table[_UNIQUE[name]], ABSENT), numbers(table["start_ns"])
    if name == "activities" and not (start % 1_000).any():
        return False
    has_id = (ids != ABSENT) & (ids != 0)
    return bool((again & has_id & (numbers(table["dur_ns"]) >= _SURELY_APART_NS)).any())


def each_run_once(traces: Sequence[Trace]) -> list[Trace]:
    """Return the traces without copies and without other exports of a run, with a note each."""
    return without_other_exports(_kept(traces, copies(traces)))


def copies(traces: Sequence[Trace]) -> dict[int, list[Note]]:
    """Return the indexes of traces of which none holds the recording of another, with a note each.

    Of copies the one of the shortest name counts: who copies a file adds to its name.
    """
    circumstances = [_circumstances(trace) for trace in traces]
    often = Counter(circumstances)
    alike: defaultdict[Hashable, list[int]] = defaultdict(list)
    for index, (trace, same) in enumerate(zip(traces, circumstances, strict=True)):
        # Their kernels are looked at only where all else is the same: that takes a while.
        kernels = next(_runs(trace), None) if same is not None and often[same] > 1 else None
        alike[index if kernels is None else (same, kernels)].append(index)
    name_length = [sum(len(file.name) for file in trace.source.files) for trace in traces]
    notes: dict[int, list[Note]] = {}
    for members in alike.values():
        first, *others = sorted(members, key=name_length.__getitem__)
        ignored = [traces[other] for other in others]
        notes[first] = [_note("copies", traces[first], ignored)] if ignored else []
    return notes


def _circumstances(trace: Trace) -> Hashable | None:
    """Return what copies of a recording have in common beside its kernels, None if not certain.

    Without its clock and the numbers of its processes two that look alike may be two ranks.
    """
    source, rows = trace.source, trace.processes.to_pylist()
    clock = source.clock or source.origin_unix_ns
    if clock is None or not rows or any(row["pid"] is None for row in rows):
        return None
    processes = tuple((row["pid"], row["host"], row["rank"]) for row in rows)
    return (*_writer(trace), clock, processes, trace.activities.num_rows)


def without_other_exports(traces: Sequence[Trace]) -> list[Trace]:
    """Return the traces without those that hold what another one holds, too, with a note each.

    Of several exports the one is kept that names its devices, of these the one with most rows, and
    then the one that says most of how it was recorded.
    """
    if len({_writer(trace) for trace in traces}) < 2:
        return list(traces)
    runs = [list(_runs(trace)) for trace in traces]
    notes: dict[int, list[Note]] = {}
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
        elsewhere = {run for other in twins for run in runs[other]}
        # The first of its runs is of all its processes.
        if own and (own[0] in elsewhere or elsewhere.issuperset(own[1:])):
            kept = twins[0]
            notes[kept].append(_note("exports", traces[kept], [trace]))
        else:
            notes[index] = []
    return _kept(traces, notes)


def _kept(traces: Sequence[Trace], notes: Mapping[int, Sequence[Note]]) -> list[Trace]:
    """Return the traces of which there are notes, which may be none, with these first."""
    return [
        replace(traces[index], notes=(*notes[index], *traces[index].notes))
        for index in sorted(notes)
    ]


def _note(what: str, kept: Trace, ignored: Sequence[Trace]) -> Note:
    """Return the note that traces are ignored because they repeat the one that is kept.

    `what` is the end of the note's code. An ignored file that has the name of a kept one is another
    form of it, such as a pack, and is marked as such.
    """
    names_kept = [file.name for file in kept.source.files]
    files = [
        f"{file.name}{_OTHER_FORM if file.name in names_kept else ''}"
        for trace in ignored
        for file in trace.source.files
    ]
    stays, others = ", ".join(names_kept[:3]), listed(files, most=3)
    return _NOTES.note(f"same-run {what}", len(files), stays=stays, ignored=others)


def _writer(trace: Trace) -> tuple[str, str | None]:
    return trace.source.format, trace.source.tool


def _runs(trace: Trace) -> Iterator[str]:
    """Yield a digest of the kernels of the trace, and of each process; nothing without any."""
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


_CALL: Final = re.compile(r"Memcpy|memory_(?:async_)?copy", re.I)
_PEER: Final = re.compile("Peer")
_BETWEEN: Final = "PtoP"
_HALVES: Final = ("DtoH", "HtoD")
_WAYS: Final = (*_HALVES, "DtoD", "HtoH")


def with_peer_copies(trace: Trace) -> Trace:
    """Return the trace with the copies as PtoP that were made by calls that copy between devices.

    Their names say so (`cudaMemcpyPeer`), or one call copied from a device and to another.
    """
    calls, work = trace.calls, trace.activities
    copying = np.flatnonzero(matching(calls["name"], _CALL.search))
    if not len(copying) or not work.num_rows:
        return trace
    rows = np.flatnonzero(is_one_of(work["kind"], "memcpy") & is_one_of(work["direction"], *_WAYS))
    call = first_match(
        *(numbers(calls[name], ABSENT)[copying] for name in ("process", "correlation", "start_ns")),
        *(numbers(work[name], ABSENT)[rows] for name in ("process", "correlation")),
    )
    rows, call = rows[call >= 0], call[call >= 0]
    of_peers = matching(calls["name"], _PEER.search)[copying]
    # Per call the device that it copied from and the one that it copied to.
    device, ends = numbers(work["device"], ABSENT)[rows], np.full((2, len(copying)), ABSENT)
    for end, direction in zip(ends, _HALVES, strict=True):
        is_half = is_one_of(work["direction"], direction)[rows]
        end[call[is_half]] = device[is_half]
    of_peers |= (ends != ABSENT).all(axis=0) & (ends[0] != ends[1])
    rows = rows[of_peers[call]]
    if not len(rows):
        return trace
    directions = [*names(work["direction"]), _BETWEEN]
    code = codes(work["direction"]).copy()
    code[rows] = directions.index(_BETWEEN)
    changed = with_column(work, "direction", dictionary_column(code, directions))
    return replace(trace, tables={**trace.tables, "activities": changed})
