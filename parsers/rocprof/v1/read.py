"""Reads rocprof's (v1) JSON into a trace. docs/parsers/rocprof.md says what goes where."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io import (
    BLOCK_BYTES,
    Batch,
    ByteSource,
    Crew,
    EventStream,
    event_text_notes,
)
from traceflops.parsers.rocprof.notes import clock_of_folder
from traceflops.parsers.rocprof.tables.names import place_of
from traceflops.parsers.rocprof.trace import NOTES, file_of, trace_of
from traceflops.parsers.rocprof.v1.agents import machine_of
from traceflops.parsers.rocprof.v1.events import (
    ARROW_FROM,
    ARROW_TO,
    CALLS,
    COPY,
    COUNTERS,
    FILL,
    KERNEL,
    MARK,
    NUMBERS,
    WORK,
    EventRows,
    V1Reader,
)
from traceflops.parsers.rocprof.v1.links import links
from traceflops.parsers.rocprof.v1.tables import V1Tables
from traceflops.parsers.shared import UNNAMED
from traceflops.table import ABSENT, Array, IntArray, Names, Source, Trace

_AT_END: Final = "the list of GPUs"
_KINDS: Final[Mapping[str, str]] = {WORK: "kernel", COPY: "memcpy", FILL: "memset"}
_APIS: Final = {name: name.removesuffix("_api") for name in CALLS.values()}
_SHOWN: Final = ("section", "lane", "shown_us", "start", "end")
_CALL_IDS: Final = 1 << 40
"""The places of calls stand for ids above this; kernels of results.csv have the ids below."""

AllRows = Mapping[str, EventRows]
"""The events of a file by kind, in the order of the text; of others there are no rows."""


def read_v1_json(source: ByteSource, crew: Crew, block_bytes: int = BLOCK_BYTES) -> Trace:
    """Return the trace in a file. Raises InputError where nothing of it can be used."""
    place = place_of(source.folder, source.name)
    rows: defaultdict[str, EventRows] = defaultdict(EventRows)
    stream = EventStream[dict[str, EventRows]](source, V1Reader(), crew, block_bytes)
    for block in stream:
        for kind, events in block.items():
            rows[kind].absorb(events)
    if not rows:
        raise _nothing_in(source, stream)
    for kind, events in rows.items():
        events.join(np.nan if kind == COUNTERS else ABSENT)
    tables = V1Tables(source.label, machine_of(stream.header))
    tables.counts.update({kind: rows[kind].count for kind in rows if kind != COUNTERS})
    _add_all(tables, rows)
    notes = [*event_text_notes(source, stream.damage, _AT_END)]
    if tables.open_devices:
        listed = ", ".join(map(str, sorted(tables.open_devices)[:8]))
        notes.append(NOTES.note("device-ambiguous", numbers=listed))
    recorded = [kind for kind in sorted(+tables.counts) if kind not in (ARROW_FROM, ARROW_TO)]
    about = Source(
        format="rocprof",
        files=(file_of(source),),
        tool="rocprof JSON",
        clock=clock_of_folder(place.root),
        facts={"generation": "v1", "recorded": ", ".join(recorded)},
    )
    return trace_of(tables, about, "v1 file", rank=place.rank, notes=notes)


def _nothing_in(source: ByteSource, stream: EventStream[dict[str, EventRows]]) -> InputError:
    if source.cut or stream.damage.cut_bytes is not None or stream.damage.dropped_places:
        return InputError(
            f"no readable record: {source.label} (cut off or damaged)",
            "use results.csv or results.db of the same run",
        )
    return NotATrace(
        f"no records: {source.label} (rocprof JSON without kernels, copies and calls)",
        "nothing was launched while recording; record with rocprof --hip-trace or --timestamp on",
    )


def _add_all(tables: V1Tables, rows: defaultdict[str, EventRows]) -> None:
    gpus = np.concatenate([rows[kind].column("gpu") for kind in (KERNEL, *_KINDS)])
    tables.gpus |= set(gpus[gpus != ABSENT].tolist())
    only_gpu = min(tables.gpus) if len(tables.gpus) == 1 else 0
    if rows[KERNEL].count:
        _add_kernels(tables, rows)
    asked_by = _asked_by(tables, rows)
    offset = _CALL_IDS
    for kind in (kind for kind in _APIS if rows[kind].count):
        calls = _batch(rows[kind], offset + np.arange(rows[kind].count))
        tables.add_calls(calls, _labels(rows[kind]), _APIS[kind])
        offset += calls.count
    for kind in (kind for kind in _KINDS if rows[kind].count):
        _add_work(tables, rows, kind, asked_by.get(kind), only_gpu)
    if rows[MARK].count:
        tables.add_marks(_batch(rows[MARK]), _labels(rows[MARK]))
    tables.sum_instances()


def _add_kernels(tables: V1Tables, rows: AllRows) -> None:
    """Add what results.csv holds, numbered as there: in the order in which it stands there."""
    kernels, labels = _batch(rows[KERNEL], np.arange(rows[KERNEL].count)), _labels(rows[KERNEL])
    if not rows[WORK].count:  # else the same kernels stand among the operations
        tables.add_kernels(kernels, labels)
    tables.add_counters(kernels, labels, rows[COUNTERS].joined)


def _labels(rows: EventRows) -> list[str]:
    """Return the names of rows, by their codes."""
    return [name or UNNAMED for name in rows.names["name"]]


def _batch(rows: EventRows, index: IntArray | None = None, **columns: Array) -> Batch:
    """Return rows as `V1Tables` takes them."""
    known = rows.columns((*NUMBERS, "name", "bytes"))
    known["index"] = np.full(rows.count, ABSENT) if index is None else index
    return Batch(rows.count, known | columns, {})


def _asked_by(tables: V1Tables, rows: AllRows) -> dict[str, IntArray]:
    """Return the place, among all calls, of the call that asked for each piece of work."""
    if not rows[ARROW_FROM].count or not rows[ARROW_TO].count:
        return {}
    names = Names()
    codes = [names.codes(_labels(rows[kind]))[rows[kind].column("name")] for kind in _APIS]
    calls: dict[str, Array] = _together(rows, _APIS, _SHOWN) | {"name": np.concatenate(codes)}
    begins, ends = (rows[kind].columns((*_SHOWN[:3], "id")) for kind in (ARROW_FROM, ARROW_TO))
    asked = links(begins, ends, _together(rows, _KINDS, _SHOWN), calls, list(names))
    tables.odd["loose-arrows"] += asked.loose
    sizes = [rows[kind].count for kind in _KINDS]
    return dict(zip(_KINDS, np.split(asked.call, np.cumsum(sizes)[:-1]), strict=True))


def _add_work(
    tables: V1Tables, rows: AllRows, kind: str, asked_by: IntArray | None, only_gpu: int
) -> None:
    """Add kernels, copies or fills as they were seen to run.

    What names no GPU ran on the only one, or on 0.
    """
    work, labels = rows[kind], _labels(rows[kind])
    gpu, sizes = work.column("gpu"), work.column("bytes")
    tables.odd["device-unknown json"] += int(np.count_nonzero(gpu == ABSENT))
    columns = {"gpu": np.where(gpu == ABSENT, only_gpu, gpu)}
    if asked_by is not None:
        columns["bytes"] = np.where(sizes == ABSENT, _sizes_asked(rows, asked_by), sizes)
        columns["index"] = np.where(asked_by < 0, ABSENT, asked_by + _CALL_IDS)
    if kind == COPY:  # an engine for copies works these off: no queue is their place
        columns["queue"] = np.full(work.count, ABSENT)
    if kind == WORK:
        tables.add_kernels(_batch(work, **columns), labels)
    else:
        tables.add_copies(_batch(work, **columns), labels, lambda _: _KINDS[kind])


def _sizes_asked(rows: AllRows, asked_by: IntArray) -> IntArray:
    """Return how many bytes were asked for, where a call asked for one piece of work only."""
    said = _together(rows, _APIS, ("bytes",))["bytes"]
    calls, place, count = np.unique(asked_by, return_inverse=True, return_counts=True)
    once = (calls >= 0) & (count == 1)
    sizes = np.append(said, ABSENT)  # the last is of those without a call
    return np.where(once, sizes[np.where(once, calls, -1)], ABSENT)[place]


def _together(rows: AllRows, kinds: Iterable[str], columns: Sequence[str]) -> dict[str, Array]:
    """Return columns of several kinds, one behind the other."""
    return {name: np.concatenate([rows[kind].column(name) for kind in kinds]) for name in columns}
