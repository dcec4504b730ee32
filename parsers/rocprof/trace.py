"""Makes the trace of the rows that a reader of rocprof collected, and joins passes of one run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from traceflops.parsers.io.database_file import nothing_left
from traceflops.parsers.io.database_rows import Database
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.notes import NoteTable
from traceflops.parsers.rocprof.notes import NOTES as RUN_NOTES
from traceflops.parsers.rocprof.notes import link_notes
from traceflops.parsers.rocprof.tables.parts import OutputPlace, place_of
from traceflops.parsers.shared.sanity_checks import COUNTED_WHILE_TIMED, span_notes
from traceflops.parsers.shared.sinks import UNNAMED_KERNEL
from traceflops.parsers.shared.trace_builder import Gathered, overflow_notes
from traceflops.remedies import ROCPROFV3
from traceflops.table.builder import with_numbers
from traceflops.table.columns import ABSENT, codes, names, numbers
from traceflops.table.patterns import launches_no_kernel
from traceflops.table.trace import Note, Source, SourceFile, Trace, of_noun, rank_from_name

_RECORDS: Final = ("activities", "calls", "marks", "counters", "kernel_counters")
_HOST_COPIES: Final = "within CPU memory skipped: no GPU involved."
_NO_WORK: Final = f"The {{}} has no GPU operations; {ROCPROFV3} records them."
_DROPPED: Final = {
    "no-value json": of_noun("counter", "without a value skipped."),
    "host-copies json": of_noun("copy record", _HOST_COPIES),
    "host-copies": f"{{n}} [copy|copies] {_HOST_COPIES}",
    "graph-without-device": of_noun("graph launch", "skipped: unknown GPU."),
    "sampled": of_noun("call stack sample", "skipped: not supported."),
    "system": of_noun("driver event", "skipped: not supported."),
    "streamed-counter": of_noun("counter value", "skipped: sampled over time, not per kernel."),
    "no-value": of_noun("counter value", "skipped: not a number."),
    "launcher": of_noun("launcher", "left no records: not shown."),
    "empty-doubles": of_noun(
        "record", "of 0 ns skipped: another has the same kernel, start and queue."
    ),
    "loose-arrows": of_noun(
        "arrow", "between calls and GPU operations skipped: the link is ambiguous."
    ),
}
_ASSUMED: Final = {
    "kernel-clash": of_noun(
        "launch", "of kernels whose number has two names: the later name is shown."
    ),
    "device-unknown json": of_noun(
        "record", "without a GPU: counted for the only GPU, else for device 0."
    ),
}
_MISSING: Final = {
    "kernels-unnamed": of_noun("kernel", "without a name in the database."),
    "kernels-unnamed json": of_noun("kernel", "without a name in the file, shown by number."),
    "agents-missing": of_noun("device", "missing from the file's list of agents: model unknown."),
    "device-ambiguous": (
        "Unknown GPU model for gpu-id {numbers}: the listed GPUs differ and none has that number."
    ),
    "no-device-work database": _NO_WORK.format("database"),
    "no-device-work file": _NO_WORK.format("file"),
    "no-kernels": "None of the recorded API calls launches a kernel.",
    "no-device-work v1 file": (
        "The file has no GPU operations. Record with rocprof --hip-trace or --timestamp on, or "
        f"with {ROCPROFV3}."
    ),
}
NOTES: Final = NoteTable(dropped=_DROPPED, assumed=_ASSUMED, missing=_MISSING)
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
    differ. If the file's place tells the rank of its only process, it is filled in.
    """
    counts = dict(sorted((+recorded.counts).items()))  # +: without zeros
    tables, name = recorded.finish(), file.label
    count = tables["processes"].num_rows
    clock_of_process = [*clocks, *("",) * count][:count]  # "": unknown
    facts = dict(about.facts)
    if counts:
        facts.setdefault("recorded", ", ".join(counts))
    all_notes = [*notes]
    rank = place_of(file.folder, file.name).rank
    if rank is not None and count == 1:
        tables["processes"] = with_numbers(tables["processes"], "rank", np.array([rank]))
        all_notes.append(rank_from_name([rank]))
    odd, kernels = recorded.odd, tables["activities"]["name"]
    all_notes += [*span_notes(odd), *NOTES.counted(odd, *_DROPPED)]
    all_notes += RUN_NOTES.counted(odd, "instances-summed")
    all_notes += [RUN_NOTES.note("device-unknown")] if odd["device-unknown"] else []
    all_notes += NOTES.counted(odd, *_ASSUMED)
    labels = names(kernels)
    if UNNAMED_KERNEL in labels:
        nameless = np.count_nonzero(codes(kernels) == labels.index(UNNAMED_KERNEL))
        odd["kernels-unnamed"] = int(nameless)
    all_notes += NOTES.counted(odd, "kernels-unnamed", "kernels-unnamed json", "agents-missing")
    was_counted = tables[_COUNTERS].num_rows > 0
    if kernels.length():
        no_calls = {"no_calls": _NO_CALLS_V1} if holder == "v1 file" else {}
        all_notes += link_notes(tables, **no_calls)
        all_notes += [COUNTED_WHILE_TIMED] if was_counted else []
    else:
        only_counters = RUN_NOTES.note("no-timeline counters")
        launches_none = launches_no_kernel(tables["calls"])
        no_work = NOTES.note("no-kernels" if launches_none else f"no-device-work {holder}")
        all_notes.append(only_counters if was_counted else no_work)
    return Trace(
        source=replace(
            about,
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


def with_losses(database: Database, trace: Trace, label: Callable[[str], str] = str) -> Trace:
    """Return the trace with notes on database damage. Raises InputError if nothing is left."""
    if database.damaged and not any(trace.table(name).num_rows for name in _RECORDS):
        again = "record or copy the database again"
        raise nothing_left(database.source.label, database.file.notes, again)
    return replace(trace, notes=(*database.notes(label), *trace.notes))


def without_repeated_passes(read: Iterable[tuple[ByteSource, Trace]]) -> list[Trace]:
    """Return the traces of all sources, with the passes of each run joined into one trace.

    Times are those of the first pass with device work and without counters, else with device work.
    Of the others only the counters are used. The n-th process, by pid, is the n-th in each pass.
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
        passes: defaultdict[int, list[Trace]] = defaultdict(list)
        for output, trace in sorted(
            members, key=lambda m: (m[0].pid or 0, m[1].source.files[0].name)
        ):
            passes[output.run_pass or 0].append(trace)
        if len(passes) == 1:
            traces += [trace for _, trace in members]
            continue
        with_times = _with_rows("activities", passes) or set(passes)
        timed = min(with_times - _with_rows(_COUNTERS, passes) or with_times)
        other_passes = sorted(number for number in passes if number != timed)
        for row, trace in enumerate(passes[timed]):
            others = [(n, passes[n][row]) for n in other_passes if row < len(passes[n])]
            traces.append(_with_passes(trace, timed, others))
    return traces


def _with_rows(table: str, passes: Mapping[int, Sequence[Trace]]) -> set[int]:
    return {n for n, traces in passes.items() if any(t.table(table).num_rows for t in traces)}


def _with_passes(trace: Trace, timed: int, others: Sequence[tuple[int, Trace]]) -> Trace:
    """Return a trace, which is pass `timed`, with the counters of the same process in `others`.

    Their devices are replaced by those of the trace with the same process and number. Their
    correlations become null: the ids of another run link to nothing here.
    """
    passes = [(timed, trace.kernel_counters)]
    row_of = {device: row for row, device in enumerate(_devices(trace))}
    source, counts = trace.source, Counter(trace.source.event_counts)
    files, lost = list(source.files), list[Note]()
    for number, other in others:
        counters = other.kernel_counters
        rows = [row_of.get(device, ABSENT) for device in _devices(other)]
        device = numbers(counters["device"], ABSENT)
        # An unknown device selects the ABSENT that is appended.
        device = np.array([*rows, ABSENT])[np.where(device == ABSENT, len(rows), device)]
        counters = with_numbers(counters, "device", device)
        no_calls = np.full(counters.num_rows, ABSENT)
        passes.append((number, with_numbers(counters, "correlation", no_calls)))
        files += other.source.files
        counts.update(other.source.event_counts)
        lost += [note for note in other.notes if note.code in _LOSSES]
    repeated = [with_numbers(t, "repetition", np.full(t.num_rows, number)) for number, t in passes]
    joined = pa.concat_tables(repeated).unify_dictionaries().combine_chunks()
    listed = ", ".join(str(number) for number, _ in others[:_MOST_NAMED])
    note = RUN_NOTES.note("repeated-passes", len(others), passes=listed)
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
