"""Passes of rocprof, which repeat a run for further counters, joined into one trace."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.rocprof.tables.parts import COUNTERS, OutputPlace, place_of
from traceflops.parsers.rocprof.trace import passes_note
from traceflops.table.builder import with_numbers
from traceflops.table.columns import ABSENT, numbers
from traceflops.table.trace import Note, Trace

_LOSSES: Final = (
    *("input-cut", "rows-lost", "log-unread", "log-cut"),
    *("text-cut", "json-dropped", "json-repaired", "second-trace", "tail-unread"),
)
"""Codes of the notes that are kept of a pass of which only the counters are used."""


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
        timed = min(with_work - _with_rows(COUNTERS, passes) or with_work)
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
    note = passes_note([number for number, _ in others])
    return replace(
        trace,
        source=replace(source, files=tuple(files), event_counts=dict(sorted(counts.items()))),
        tables={**trace.tables, COUNTERS: joined},
        notes=(replace(note, file=files[0].name), *trace.notes, *lost),
    )


def _devices(trace: Trace) -> list[tuple[int, int]]:
    """Return, for each device, its process and the number it has there."""
    columns = (trace.devices[name].to_pylist() for name in ("process", "local_id"))
    return list(zip(*columns, strict=True))
