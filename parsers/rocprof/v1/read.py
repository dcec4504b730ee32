"""Reads rocprof's (v1) JSON into a trace. docs/parsers/rocprof.md says what goes where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io import BLOCK_BYTES, ByteSource, Crew, EventStream, event_text_notes
from traceflops.parsers.rocprof.linking import link_notes
from traceflops.parsers.rocprof.notes import (
    COUNTED_WHILE_TIMED,
    COUNTERS_ONLY,
    LAUNCH_IS_QUEUEING,
    clock_of_folder,
    instance_notes,
)
from traceflops.parsers.rocprof.tables.names import OutputPlace, place_of
from traceflops.parsers.rocprof.v1.agents import machine_of
from traceflops.parsers.rocprof.v1.block import ARROW_FROM, ARROW_TO, V1Block, V1Reader
from traceflops.parsers.rocprof.v1.trace import AllRows, V1Assembly
from traceflops.parsers.shared import DISPATCH, overflow_notes, span_notes
from traceflops.table import (
    Note,
    NoteKind,
    Source,
    SourceFile,
    Trace,
    counted_note,
    names,
    of_noun,
    rank_from_name,
)

_AT_END: Final = "the list of GPUs"
_NO_CALLS: Final = (
    "The file has no API calls, so what launched the GPU operations is unknown. Record with "
    "rocprof --hip-trace, or rocprofv3 --hip-trace --kernel-trace."
)
_NO_WORK: Final = (
    "The file has no GPU operations. Record with rocprof --hip-trace or --timestamp on, or with "
    "rocprofv3 --kernel-trace."
)
_ODD: Final[Mapping[str, tuple[NoteKind, str, str]]] = {
    "device-unknown": (
        "assumed",
        "record",
        "without a GPU: counted for the only GPU, else for device 0",
    ),
    "loose-arrows": (
        "dropped",
        "arrow",
        "between calls and GPU operations skipped: the link is ambiguous",
    ),
}


def read_v1_json(source: ByteSource, crew: Crew, block_bytes: int = BLOCK_BYTES) -> Trace:
    """Return the trace in a file. Raises InputError where nothing of it can be used."""
    place = place_of(source.folder, source.name)
    rows = AllRows()
    counts: Counter[str] = Counter()
    stream = EventStream[V1Block](source, V1Reader(), crew, ("otherData",), block_bytes)
    for block in stream:
        rows.absorb(block.rows)
        counts.update(block.counts)
    if not +counts:
        raise _nothing_in(source, stream)
    rows.join()
    assembly = V1Assembly(source.label, place.rank, rows, machine_of(stream.header))
    overflowed = assembly.gathered.overflowed
    tables = assembly.gathered.finish()
    notes = (
        *event_text_notes(source, stream.damage, _AT_END),
        *_rank_notes(place),
        *span_notes(assembly.oddities.odd),
        *_odd_notes(assembly),
        *_content_notes(tables),
    )
    return Trace(
        _source(source, place, counts),
        tables,
        (
            *(Note(n.kind, n.code, n.text, n.count, source.label) for n in notes),
            *overflow_notes(overflowed, source.label),
        ),
    )


def _source(source: ByteSource, place: OutputPlace, counts: Counter[str]) -> Source:
    known = {kind: counts[kind] for kind in sorted(+counts)}
    recorded = [kind for kind in known if kind not in (ARROW_FROM, ARROW_TO)]
    return Source(
        format="rocprof",
        files=(SourceFile(source.label, source.stored_bytes, source.text_bytes),),
        tool="rocprof JSON",
        clock=clock_of_folder(place.root),
        facts={"generation": "v1", "recorded": ", ".join(recorded)},
        event_counts=known,
        kinds_apart=True,
    )


def _nothing_in(source: ByteSource, stream: EventStream[V1Block]) -> InputError:
    if source.cut or stream.damage.cut_bytes is not None or stream.damage.dropped_places:
        return InputError(
            f"no readable record: {source.label} (cut off or damaged)",
            "use results.csv or results.db of the same run",
        )
    return NotATrace(
        f"no records: {source.label} (rocprof JSON without kernels, copies and calls)",
        "nothing was launched while recording; record with rocprof --hip-trace or --timestamp on",
    )


def _rank_notes(place: OutputPlace) -> Iterator[Note]:
    if place.rank is not None:
        yield rank_from_name([place.rank])


def _odd_notes(assembly: V1Assembly) -> Iterator[Note]:
    oddities = assembly.oddities
    yield from instance_notes(oddities.odd["instances"])
    for code, (kind, noun, text) in _ODD.items():
        if oddities.odd[code]:
            yield counted_note(kind, code, of_noun(noun, f"{text}."), oddities.odd[code])
    if oddities.open_devices:
        listed = ", ".join(map(str, sorted(oddities.open_devices)[:8]))
        text = (
            f"Unknown GPU model for gpu-id {listed}: the listed GPUs differ and none has that "
            "number."
        )
        yield Note("missing", "device-ambiguous", text)


def _content_notes(tables: Mapping[str, pa.Table]) -> Iterator[Note]:
    was_counted = tables["kernel_counters"].num_rows > 0
    if not tables["activities"].num_rows:
        yield COUNTERS_ONLY if was_counted else Note("missing", "no-device-work", _NO_WORK)
        return
    if names(tables["calls"]["name"]) == [DISPATCH]:
        yield LAUNCH_IS_QUEUEING
    else:
        yield from link_notes(tables, no_calls=_NO_CALLS)
    if was_counted:
        yield COUNTED_WHILE_TIMED
