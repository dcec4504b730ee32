"""rocprofv3's JSON, of all releases since ROCm 6.2."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from traceflops.errors import InputError
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.worker_pool import Crew
from traceflops.parsers.shared.formats import Format, Reading
from traceflops.table.trace import Note, Trace

if TYPE_CHECKING:
    from traceflops.parsers.rocprof.tables.names import Place

_WORTH_BYTES: Final = 1 << 29
"""These records are decoded so quickly that other processes cost more than they save below this."""
_START: Final = re.compile(rb'\s*\{[^{}\[\]]*?"rocprofiler-sdk-tool"\s*:')


def _read(sources: Sequence[ByteSource], reading: Reading) -> list[Trace]:
    """Return the traces of some files. Raises InputError where none can be read.

    One that cannot be read is a note as long as another can.
    """
    traces: list[Trace] = []
    failed: list[tuple[str, InputError]] = []
    for members in _runs(sources):
        trace = _read_run(members, reading, failed)
        traces += [trace] if trace is not None else []
    if not traces:
        raise failed[0][1]
    from traceflops.parsers.rocprof.v3json.notes import launcher_notes

    notes = [
        Note("dropped", "file-not-read", f"{name} could not be read: {error.message}.", 1, name)
        for name, error in failed
    ]
    idle = [trace for trace in traces if not trace.source.event_counts]
    if 0 < len(idle) < len(traces):
        traces = [trace for trace in traces if trace.source.event_counts]
        notes += launcher_notes(len(idle), idle[0].source.files[0].name)
    return [replace(traces[0], notes=(*notes, *traces[0].notes)), *traces[1:]]


def _read_run(
    members: Sequence[tuple[ByteSource, Place]],
    reading: Reading,
    failed: list[tuple[str, InputError]],
) -> Trace | None:
    """Return the trace of a run, None where none of its files can be read."""
    from traceflops.parsers.rocprof.v3json.run import Run

    large = sum(source.expected_text_bytes for source, _ in members) >= _WORTH_BYTES
    run = Run(reading.crew if large else Crew())
    passes = {place.run_pass for _, place in members}
    places_in: defaultdict[int | None, int] = defaultdict(int)
    read = 0
    for source, place in members:
        number = places_in[place.run_pass]
        places_in[place.run_pass] += 1
        try:
            run.add(source, place, number, is_repeated=len(passes) > 1)
            read += 1
        except InputError as error:
            failed.append((source.label, error))
        finally:
            source.close()
    return run.trace() if read else None


def _runs(sources: Sequence[ByteSource]) -> list[list[tuple[ByteSource, Place]]]:
    """Return the files of each run: of a run that was repeated one or more for each pass."""
    from traceflops.parsers.rocprof.tables.names import place_of

    runs: defaultdict[tuple[str, int | None], list[tuple[ByteSource, Place]]] = defaultdict(list)
    for number, source in enumerate(sources):
        place = place_of(source.folder, source.name)
        key = (str(number), -1) if place.run_pass is None else (place.root, place.rank)
        runs[key].append((source, place))
    return [
        sorted(members, key=lambda one: (one[1].run_pass or 0, one[1].pid or 0, one[0].name))
        for members in runs.values()
    ]


ROCPROF_JSON: Final = Format(
    "rocprofv3 JSON", lambda head: _START.match(head) is not None, _read, gathers=True
)
