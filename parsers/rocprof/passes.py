"""Files of one run that was repeated to count more: rocprof writes each pass to a folder."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.parsers.io import ByteSource
from traceflops.parsers.rocprof.tables.names import OutputPlace, place_of
from traceflops.table import ABSENT, IntArray, Note, Trace, number_column, numbers

_TABLE: Final = "kernel_counters"
_MOST_NAMED: Final = 8
_LOSSES: Final = (
    *("input-cut", "rows-lost", "log-unread", "log-cut"),
    *("text-cut", "json-dropped", "json-repaired", "second-trace", "tail-unread"),
)
Placed = tuple[OutputPlace, Trace]


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
    passes: defaultdict[int, list[Placed]] = defaultdict(list)
    for place, trace in members:
        passes[place.run_pass or 0].append((place, trace))
    if len(passes) == 1:
        return [trace for _, trace in members]
    for of_pass in passes.values():
        of_pass.sort(key=lambda one: (one[0].pid or 0, one[1].source.files[0].name))
    with_times = _with_rows("activities", passes) or set(passes)
    timed = min(with_times - _with_rows(_TABLE, passes) or with_times)
    others = sorted(number for number in passes if number != timed)
    return [
        _with_passes(trace, timed, [(n, passes[n][row][1]) for n in others if row < len(passes[n])])
        for row, (_, trace) in enumerate(passes[timed])
    ]


def _with_rows(table: str, passes: Mapping[int, Sequence[Placed]]) -> set[int]:
    """Return the passes that have rows of a table."""
    return {
        number
        for number, members in passes.items()
        if any(trace.table(table).num_rows for _, trace in members)
    }


def _with_passes(trace: Trace, timed: int, others: Sequence[tuple[int, Trace]]) -> Trace:
    """Return a trace with the counters of the same process in other passes."""
    counted = [_of_pass(trace.kernel_counters, timed)]
    counted += [_of_pass(_moved(other, trace), number) for number, other in others]
    source, counts = trace.source, Counter(trace.source.event_counts)
    files = list(source.files)
    for _, other in others:
        files += other.source.files
        counts.update(other.source.event_counts)
    listed = ", ".join(str(number) for number, _ in others[:_MOST_NAMED])
    note = Note(
        "dropped",
        "repeated-passes",
        "The run was repeated for more counters. Times are from one pass; only counters are used "
        f"from the others (pass {listed}).",
        len(others),
        source.files[0].name,
    )
    lost = [one for _, other in others for one in other.notes if one.code in _LOSSES]
    whole = pa.concat_tables(counted).unify_dictionaries().combine_chunks()
    return replace(
        trace,
        source=replace(source, files=tuple(files), event_counts=dict(sorted(counts.items()))),
        tables={**trace.tables, _TABLE: whole},
        notes=(note, *trace.notes, *lost),
    )


def _of_pass(counters: pa.Table, number: int) -> pa.Table:
    return _replaced(counters, "repetition", np.full(counters.num_rows, number))


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
    counters = _replaced(counters, "device", device)
    return _replaced(counters, "correlation", np.full(counters.num_rows, ABSENT))


def _devices(trace: Trace) -> list[tuple[int, int]]:
    """Return the process and its number of each device."""
    columns = (trace.devices[name].to_pylist() for name in ("process", "local_id"))
    return list(zip(*columns, strict=True))


def _replaced(table: pa.Table, column: str, values: IntArray) -> pa.Table:
    place = table.schema.get_field_index(column)
    field = table.schema.field(place)
    known = values != ABSENT
    return table.set_column(
        place, field, number_column(np.where(known, values, 0), field.type, known)
    )
