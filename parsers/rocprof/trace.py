"""What a reader of rocprof gathers of a recording, the trace it becomes, and how passes join."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.parsers.io import ByteSource, Database, NoteTable, nothing_left
from traceflops.parsers.rocprof.notes import (
    COUNTERS_ONLY,
    DEVICE_UNKNOWN,
    LAUNCH_IS_QUEUEING,
    instance_notes,
    link_notes,
)
from traceflops.parsers.rocprof.tables.parts import OutputPlace, place_of
from traceflops.parsers.shared import (
    COUNTED_WHILE_TIMED,
    DISPATCH,
    UNNAMED_KERNEL,
    Gathered,
    overflow_notes,
    span_notes,
)
from traceflops.remedies import ROCPROFV3
from traceflops.table import (
    ABSENT,
    Note,
    Source,
    SourceFile,
    Trace,
    codes,
    names,
    numbers,
    of_noun,
    rank_from_name,
    with_numbers,
)

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
    "repeated-passes": (
        "The run was repeated for more counters. Times are from one pass; only counters are used "
        "from the others (pass {passes})."
    ),
    "launcher": of_noun("launcher", "left no records: not shown."),
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
"""Notes on a pass of which only the counters are used that are still to be read."""
Placed = tuple[OutputPlace, Trace]


class Recorded(Gathered):
    """The rows of a recording, how many odd records it has, and how many of each kind.

    Odd records are counted under the keys of the notes above.
    """

    def __init__(self) -> None:
        super().__init__()
        self.odd: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()


def trace_of(
    recorded: Recorded,
    file: ByteSource,
    about: Source,
    holder: str,
    *,
    notes: Iterable[Note] = (),
    clocks: Iterable[str] = (),
) -> Trace:
    """Return the trace of what was recorded, with the notes on its records behind others.

    `about` lacks the file and the counts; `holder` is what held the records: a database, a file or
    a v1 file; `clocks` are those of processes where they differ.
    """
    overflowed, counts = recorded.overflowed, dict(sorted((+recorded.counts).items()))
    tables, name = recorded.finish(), file.label
    count = tables["processes"].num_rows
    every_clock = [*clocks, *("",) * count][:count]
    facts = dict(about.facts)
    if counts:
        facts.setdefault("recorded", ", ".join(counts))
    all_notes = [
        *notes,
        *_ranked(tables, place_of(file.folder, file.name).rank),
        *_record_notes(tables, recorded.odd),
        *_content_notes(tables, holder),
    ]
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
            *overflow_notes(overflowed, name),
        ),
        places=recorded.places,
        clocks=tuple(every_clock) if any(every_clock) else (),
    )


def _ranked(tables: dict[str, pa.Table], rank: int | None) -> Iterator[Note]:
    """Fill in the rank of the only process, and say where it is from."""
    if rank is not None and tables["processes"].num_rows == 1:
        tables["processes"] = with_numbers(tables["processes"], "rank", np.array([rank]))
        yield rank_from_name([rank])


def _record_notes(tables: Mapping[str, pa.Table], odd: Counter[str]) -> Iterator[Note]:
    """Say which records were repaired, dropped or guessed at."""
    yield from span_notes(odd)
    yield from NOTES.counted(odd, *_DROPPED)
    yield from instance_notes(odd["instances"])
    if odd["device-unknown"]:
        yield DEVICE_UNKNOWN
    yield from NOTES.counted(odd, *_ASSUMED)
    kernels = tables["activities"]["name"]
    labels = names(kernels)
    if UNNAMED_KERNEL in labels:
        nameless = np.count_nonzero(codes(kernels) == labels.index(UNNAMED_KERNEL))
        odd["kernels-unnamed"] = int(nameless)
    yield from NOTES.counted(odd, "kernels-unnamed", "kernels-unnamed json", "agents-missing")


def _content_notes(tables: Mapping[str, pa.Table], holder: str) -> Iterator[Note]:
    """Say what the recording lacks as a whole."""
    was_counted = tables["kernel_counters"].num_rows > 0
    if not tables["activities"].num_rows:
        yield COUNTERS_ONLY if was_counted else NOTES.note(f"no-device-work {holder}")
        return
    if names(tables["calls"]["name"]) == [DISPATCH]:
        yield LAUNCH_IS_QUEUEING
    else:
        no_calls = {"no_calls": _NO_CALLS_V1} if holder == "v1 file" else {}
        yield from link_notes(tables, **no_calls)
    if was_counted:
        yield COUNTED_WHILE_TIMED


def with_losses(database: Database, trace: Trace, label: Callable[[str], str] = str) -> Trace:
    """Return the trace with the notes on what was lost of its database.

    Raises InputError where everything was.
    """
    if database.damaged and not any(trace.table(name).num_rows for name in _RECORDS):
        again = "record or copy the database again"
        raise nothing_left(database.source.label, database.place.notes, again)
    return replace(trace, notes=(*database.notes(label), *trace.notes))


def without_repeated_passes(read: Iterable[tuple[ByteSource, Trace]]) -> list[Trace]:
    """Return traces, of which those of passes of one run are put together.

    Times are those of one pass: the first that has any and counted nothing, else the first that has
    any. Of others only the counters are used; the n-th process of a pass is the n-th of the others.
    """
    runs: defaultdict[tuple[str, int | None, int], list[Placed]] = defaultdict(list)
    traces: list[Trace] = []
    for source, trace in read:
        place = place_of(source.folder, source.name)
        if place.run_pass is None:
            traces.append(trace)
        else:
            runs[place.root, place.rank, trace.processes.num_rows].append((place, trace))
    for members in runs.values():
        traces += _joined(members)
    return traces


def _joined(members: Sequence[Placed]) -> list[Trace]:
    """Return the traces of a run, one for each process."""
    passes: defaultdict[int, list[Trace]] = defaultdict(list)
    in_order = sorted(members, key=lambda p: (p[0].pid or 0, p[1].source.files[0].name))
    for place, trace in in_order:
        passes[place.run_pass or 0].append(trace)
    if len(passes) == 1:
        return [trace for _, trace in members]
    with_times = _with_rows("activities", passes) or set(passes)
    timed = min(with_times - _with_rows(_COUNTERS, passes) or with_times)
    others = sorted(number for number in passes if number != timed)
    return [
        _with_passes(trace, timed, [(n, passes[n][row]) for n in others if row < len(passes[n])])
        for row, trace in enumerate(passes[timed])
    ]


def _with_rows(table: str, passes: Mapping[int, Sequence[Trace]]) -> set[int]:
    """Return the passes that have rows of a table."""
    return {n for n, traces in passes.items() if any(t.table(table).num_rows for t in traces)}


def _with_passes(trace: Trace, timed: int, others: Sequence[tuple[int, Trace]]) -> Trace:
    """Return a trace with the counters of the same process in other passes."""
    passes = [(timed, trace.kernel_counters), *((n, _moved(other, trace)) for n, other in others)]
    repeated = [with_numbers(t, "repetition", np.full(t.num_rows, number)) for number, t in passes]
    counters = pa.concat_tables(repeated).unify_dictionaries().combine_chunks()
    source, counts = trace.source, Counter(trace.source.event_counts)
    files, lost = list(source.files), list[Note]()
    for _, other in others:
        files += other.source.files
        counts.update(other.source.event_counts)
        lost += [note for note in other.notes if note.code in _LOSSES]
    listed = ", ".join(str(number) for number, _ in others[:_MOST_NAMED])
    note = NOTES.note("repeated-passes", len(others), passes=listed)
    return replace(
        trace,
        source=replace(source, files=tuple(files), event_counts=dict(sorted(counts.items()))),
        tables={**trace.tables, _COUNTERS: counters},
        notes=(replace(note, file=files[0].name), *trace.notes, *lost),
    )


def _moved(other: Trace, trace: Trace) -> pa.Table:
    """Return the counters of another pass as of the process and the devices of a trace.

    The ids of another run link to nothing here.
    """
    counters = other.kernel_counters
    mine = {device: row for row, device in enumerate(_devices(trace))}
    rows = [mine.get(device, ABSENT) for device in _devices(other)]
    device = numbers(counters["device"], ABSENT)
    row_of = np.array([*rows, ABSENT], dtype=np.int64)
    device = row_of[np.where(device == ABSENT, len(rows), device)]
    counters = with_numbers(counters, "device", device)
    return with_numbers(counters, "correlation", np.full(counters.num_rows, ABSENT))


def _devices(trace: Trace) -> list[tuple[int, int]]:
    """Return the process and its number of each device."""
    columns = (trace.devices[name].to_pylist() for name in ("process", "local_id"))
    return list(zip(*columns, strict=True))
