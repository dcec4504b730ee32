"""Makes the trace of the rows that a reader of rocprof collected, and joins passes of one run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from traceflops.parsers.io.database_file import nothing_left
from traceflops.parsers.io.database_rows import Database
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.rocprof.notes import NOTES, clock_of_folder, link_notes
from traceflops.parsers.rocprof.tables.parts import OutputPlace, place_of
from traceflops.parsers.shared.sanity_checks import COUNTED_WHILE_TIMED, span_notes
from traceflops.parsers.shared.sinks import UNNAMED_KERNEL
from traceflops.parsers.shared.trace_builder import Gathered, overflow_notes
from traceflops.remedies import ROCPROFV3
from traceflops.table.builder import with_numbers
from traceflops.table.columns import ABSENT, codes, names, numbers
from traceflops.table.patterns import launches_no_kernel
from traceflops.table.trace import Note, Source, SourceFile, Trace, rank_from_name

_RECORDS: Final = ("activities", "calls", "marks", "counters", "kernel_counters")
_ODD: Final = (
    *("no-value", "host-copies", "host-copies database", "graph-without-device", "sampled"),
    *("system", "streamed-counter", "no-value database", "empty-doubles", "loose-arrows"),
    "instances-summed",
)
_NO_CALLS_V1: Final = (
    "The file has no API calls, so what launched the GPU operations is unknown. Record with "
    f"rocprof --hip-trace, or {ROCPROFV3}."
)
_COUNTERS: Final = "kernel_counters"
_MOST_NAMED: Final = 8
_LOSSES: Final = (
    *("input-cut", "rows-lost", "log-unread", "log-cut"),
    *("text-cut", "json-dropped", "json-repaired", "second-trace", "tail-unread"),
)
"""Codes of the notes that are kept of a pass of which only the counters are used."""


def trace_of(
    recorded: Gathered,
    file: ByteSource,
    about: Source,
    holder: str,
    *,
    notes: Iterable[Note] = (),
    clocks: Iterable[str] = (),
) -> Trace:
    """Return the trace of the rows in `recorded`, with `notes` before the notes on them.

    `about` is the source without its file and counts, which are added. `holder` is "database",
    "file" or "v1 file", for the wording of notes. `clocks` name the clocks of processes if they
    differ; a file without any clock has that of its folder. If the path of the file states the rank
    of its only process, the rank is filled in.
    """
    counts = dict(sorted((+recorded.counts).items()))  # +: without zeros
    tables, name = recorded.finish(), file.label
    count = tables["processes"].num_rows
    clock_of_process = [*clocks, *("",) * count][:count]  # "": unknown
    facts = dict(about.facts)
    if counts:
        facts.setdefault("recorded", ", ".join(counts))
    all_notes = [*notes]
    output = place_of(file.folder, file.name)
    rank, clock = output.rank, about.clock
    if holder != "database" and not clocks:
        clock = clock or clock_of_folder(output.root)
    if rank is not None and count == 1:
        tables["processes"] = with_numbers(tables["processes"], "rank", np.array([rank]))
        all_notes.append(rank_from_name([rank]))
    all_notes += _notes_on_records(recorded.odd, tables, holder)
    return Trace(
        source=replace(
            about,
            clock=clock,
            files=(SourceFile(name, file.stored_bytes, file.text_bytes),),
            facts=facts,
            event_counts=counts,
            kinds_apart=True,
        ),
        tables=tables,
        notes=(
            *(note if note.file else replace(note, file=name) for note in all_notes),
            *overflow_notes(recorded.tables.values(), name),
        ),
        places=recorded.places,
        clocks=tuple(clock_of_process) if any(clock_of_process) else (),
    )


def _notes_on_records(
    odd: Counter[str], tables: Mapping[str, pa.Table], holder: str
) -> Iterator[Note]:
    """Yield notes on odd records (`odd`, by code), on unlinked work and on missing work."""
    yield from span_notes(odd)
    yield from NOTES.counted(odd, *_ODD)
    if odd["device-unknown"]:
        yield NOTES.note("device-unknown")
    yield from NOTES.counted(odd, "kernel-clash", "device-unknown json")
    kernels = tables["activities"]["name"]
    labels = names(kernels)
    if UNNAMED_KERNEL in labels:
        is_unnamed = codes(kernels) == labels.index(UNNAMED_KERNEL)
        odd["kernels-unnamed"] = int(np.count_nonzero(is_unnamed))
    yield from NOTES.counted(odd, "kernels-unnamed", "kernels-unnamed json", "agents-missing")
    was_counted = tables[_COUNTERS].num_rows > 0
    if kernels.length():
        yield from link_notes(tables, **({"no_calls": _NO_CALLS_V1} if holder == "v1 file" else {}))
        if was_counted:
            yield COUNTED_WHILE_TIMED
    elif was_counted:
        yield NOTES.note("no-timeline counters")
    else:
        launches_none = launches_no_kernel(tables["calls"])
        yield NOTES.note("no-kernels" if launches_none else f"no-device-work {holder}")


def with_losses(database: Database, trace: Trace, label: Callable[[str], str] = str) -> Trace:
    """Return the trace with notes on database damage. Raises InputError if nothing is left."""
    if database.damaged and not any(trace.table(name).num_rows for name in _RECORDS):
        again = "record or copy the database again"
        raise nothing_left(database.source.label, database.file.notes, again)
    return replace(trace, notes=(*database.notes(label), *trace.notes))


def without_repeated_passes(read: Iterable[tuple[ByteSource, Trace]]) -> list[Trace]:
    """Return the traces of all sources, with the passes of each run joined into one trace.

    A pass repeats the program to read further counters. Times are from the first pass that has
    device work and no counters, else from the first one with device work; the other passes only
    give counters. Sorted by pid, the n-th process of one pass is the n-th of each other pass.
    """
    runs: defaultdict[tuple[str, int | None, int], list[tuple[OutputPlace, Trace]]]
    runs = defaultdict(list)  # by folder, rank and number of processes
    traces: list[Trace] = []
    for source, trace in read:
        output = place_of(source.folder, source.name)
        if output.run_pass is None:
            traces.append(trace)
        else:
            runs[output.root, output.rank, trace.processes.num_rows].append((output, trace))
    for members in runs.values():
        by_pid = sorted(members, key=lambda m: (m[0].pid or 0, m[1].source.files[0].name))
        passes: defaultdict[int, list[Trace]] = defaultdict(list)
        for output, trace in by_pid:
            passes[output.run_pass or 0].append(trace)
        if len(passes) == 1:
            traces += [trace for _, trace in members]
            continue
        with_work = _with_rows("activities", passes) or set(passes)
        timed = min(with_work - _with_rows(_COUNTERS, passes) or with_work)
        other_passes = sorted(number for number in passes if number != timed)
        for process, trace in enumerate(passes[timed]):
            others = [(n, passes[n][process]) for n in other_passes if process < len(passes[n])]
            traces.append(_with_passes(trace, timed, others))
    return traces


def _with_rows(table: str, passes: Mapping[int, Sequence[Trace]]) -> set[int]:
    """Return the numbers of the passes that have rows of the table in any trace."""
    return {n for n, traces in passes.items() if any(t.table(table).num_rows for t in traces)}


def _with_passes(trace: Trace, timed: int, others: Sequence[tuple[int, Trace]]) -> Trace:
    """Return a trace, which is pass `timed`, with the counters of the same process in `others`.

    `others` has the numbers of passes and their traces. Their devices become those of `trace` with
    the same process and number. Their correlations become null: they are ids of another run.
    """
    passes = [(timed, trace.kernel_counters)]
    row_of = {device: row for row, device in enumerate(_devices(trace))}
    source, counts = trace.source, Counter(trace.source.event_counts)
    files, lost = list(source.files), list[Note]()
    for number, other in others:
        counters = other.kernel_counters
        # Rows of `other`'s devices in this trace; an unknown device selects the ABSENT at the end.
        rows = np.array([*(row_of.get(device, ABSENT) for device in _devices(other)), ABSENT])
        device = numbers(counters["device"], ABSENT)
        own_device = rows[np.where(device == ABSENT, len(rows) - 1, device)]
        counters = with_numbers(counters, "device", own_device)
        no_calls = np.full(counters.num_rows, ABSENT)
        passes.append((number, with_numbers(counters, "correlation", no_calls)))
        files += other.source.files
        counts.update(other.source.event_counts)
        lost += [note for note in other.notes if note.code in _LOSSES]
    repeated = [with_numbers(t, "repetition", np.full(t.num_rows, number)) for number, t in passes]
    joined = pa.concat_tables(repeated).unify_dictionaries().combine_chunks()
    listed = ", ".join(str(number) for number, _ in others[:_MOST_NAMED])
    note = NOTES.note("repeated-passes", len(others), passes=listed)
    return replace(
        trace,
        source=replace(source, files=tuple(files), event_counts=dict(sorted(counts.items()))),
        tables={**trace.tables, _COUNTERS: joined},
        notes=(replace(note, file=files[0].name), *trace.notes, *lost),
    )


def _devices(trace: Trace) -> list[tuple[int, int]]:
    """Return, for each device, its process and the number it has there."""
    columns = (trace.devices[name].to_pylist() for name in ("process", "local_id"))
    return list(zip(*columns, strict=True))
