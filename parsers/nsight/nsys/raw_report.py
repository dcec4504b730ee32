"""A report of Nsight Systems itself (.nsys-rep, .qdrep) as the tables that its export would have.

They are read like those of an export.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import pyarrow as pa

from traceflops.errors import NotATrace
from traceflops.parsers.io import ArrowTable, ByteSource, NoteTable
from traceflops.parsers.nsight.nsys.raw_events import UNREAD, Events
from traceflops.parsers.nsight.nsys.raw_file import Parts, RawFile, joined, opened
from traceflops.parsers.nsight.nsys.raw_target import Target, target_tables
from traceflops.parsers.nsight.nsys.tables import Folder
from traceflops.table import Note
from traceflops.units import several

_CHUNK_BYTES: Final = 1 << 22
"""So many bytes of events are parsed at once."""
_STRINGS: Final = "StringIds"
_OF_STRINGS: Final = pa.schema([("id", pa.int64()), ("value", pa.binary())])
_NUL: Final = b"\0"
"""It separates variables of an environment; no name holds it."""
_OF_EVENTS: Final = frozenset(
    {
        *(f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME")),
        "NVTX_EVENTS",
    }
)
_MOST_NAMED: Final = 8
_COMMAND: Final = "nsys export --type sqlite --include-json=true"
_RELEASE: Final = re.compile(r"(20\d\d)@(\d{1,2})@(\d{1,3})@(\d{1,6})")
_NOTES: Final = NoteTable(
    dropped={
        "input-cut": (
            "The report is cut off, or its end is damaged: {events} of {expected} could be read."
        ),
        "rows-lost": "The report is damaged: {listed} could not be read. All others are used.",
        "names-lost": (
            "Names are missing: they stand behind the events, in the part of the report that is "
            "lost."
        ),
    },
    missing={
        "raw-report": (
            "Read from the profiler's own file{by}. Nodes of CUDA graphs, NCCL sizes and "
            f"settings of the recording are read only from its export ({_COMMAND} "
            "REPORT.nsys-rep)."
        ),
        "only-in-export": (
            "{count} [record|records] not read from the profiler's own file: {listed}. Only its "
            f"export shows [it|them] ({_COMMAND} REPORT.nsys-rep)."
        ),
        "unknown-parts": (
            "{count} [part|parts] of the report [is|are] of an unknown kind and not used: only its "
            f"export shows what [it holds|they hold] ({_COMMAND} REPORT.nsys-rep)."
        ),
        "several-machines": (
            "The report is of {count} machines, whose GPUs may be taken for each other. Its export "
            "tells them apart."
        ),
        "gpu-numbers": (
            "{count} [GPU has|GPUs have] another number in a process than in the report, and which "
            "is which is unknown. Only its export tells."
        ),
    },
)


@dataclass(slots=True, kw_only=True)
class Report(Folder):
    """The tables of a report, and notes on what was lost of it and what only an export shows.

    `origin` is the note that this is no export, which version wrote it, and what an export adds.
    """

    origin: Note
    own_notes: tuple[Note, ...] = ()

    def notes(self, label: Callable[[str], str] = str) -> tuple[Note, ...]:
        """Return what was lost, and what only an export shows."""
        return self.own_notes


def report_of(source: ByteSource) -> Report:
    """Return the tables of a report. Raises InputError where its layout is unknown."""
    file = opened(source)
    with file.stream:
        try:
            file.open()
            events = _events_of(file)
            file.is_cut = file.is_cut or source.cut is not None
            target = target_tables(file.head, file.tail, file.clocks)
        except (ValueError, EOFError, OSError):
            raise _refused(file) from None
    # Where so little fits, the layout must be another one.
    is_empty = not file.events and bool(file.damaged or (file.expected_events and not file.is_cut))
    if is_empty or 2 * events.damaged > file.events:
        raise _refused(file)
    # Rows of events are freed as they are read, once.
    tables = {
        name: ArrowTable(source, batches[0].schema, partial(_each_once, batches))
        for name, batches in events.tables.items()
    }
    others = dict(target.tables)
    if release := _RELEASE.match(file.version):
        row = {"name": "EXPORT_PRODUCT_VERSION", "value": ".".join(release.groups())}
        others["META_DATA_EXPORT"] = [pa.RecordBatch.from_pylist([row])]
    for name, batches in others.items():
        tables[name] = ArrowTable(source, batches[0].schema, partial(_each, batches))
    tables[_STRINGS] = ArrowTable(source, _OF_STRINGS, partial(_texts, file))
    by = _writer(file.version)
    origin = _NOTES.note("raw-report", by=by and f", {by}")
    notes = (origin, *_notes(file, events, target))
    origin, *own_notes = (replace(note, file=source.label) for note in notes)
    lost = set(events.damaged_tables)
    if file.events < file.expected_events or events.unknown:
        lost |= _OF_EVENTS
    if file.texts_lost:
        lost.add(_STRINGS)
    missing = frozenset(lost)
    return Report(source, tables, origin=origin, missing=missing, own_notes=tuple(own_notes))


def _refused(file: RawFile) -> NotATrace:
    """Return the error for a report of an unknown layout."""
    source, by = file.source, _writer(file.version)
    argument = "REPORT.nsys-rep" if source.path is None else shlex.quote(str(source.path))
    return NotATrace(
        f"{source.path or source.label} is a binary Nsight Systems report (.nsys-rep, "
        f".qdrep{by and f', {by}'}) {'that was cut off or is ' if file.is_cut else ''}of an "
        "unknown layout",
        f"export it with the same or a newer nsys: {_COMMAND} {argument} (from 2024.6 also "
        "--type parquetdir, better for very large reports)",
    )


def _events_of(file: RawFile) -> Events:
    """Return the events of a report, parsed some blocks at a time."""
    events = Events()
    waiting: list[Parts] = []
    waiting_bytes = 0
    for block in file.blocks():
        waiting.append(block)
        waiting_bytes += len(block.data)
        if waiting_bytes >= _CHUNK_BYTES:
            events.add(joined(waiting))
            waiting, waiting_bytes = [], 0
    if waiting:
        events.add(joined(waiting))
    return events


def _each(batches: list[pa.RecordBatch], columns: list[str]) -> Iterator[pa.RecordBatch]:
    return (batch.select(columns) for batch in batches)


def _each_once(batches: list[pa.RecordBatch], columns: list[str]) -> Iterator[pa.RecordBatch]:
    batches.reverse()
    while batches:
        yield batches.pop().select(columns)


def _texts(file: RawFile, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the texts by their numbers, without those that are blocks of an environment."""
    first = 0
    for parts in file.texts:
        spans = zip(parts.begin.tolist(), parts.end.tolist(), strict=True)
        texts = [parts.data[begin:end] for begin, end in spans]
        values = [None if _NUL in text else text for text in texts]
        ids = pa.array(range(first, first + parts.count), pa.int64())
        first += parts.count
        batch = pa.RecordBatch.from_pydict({"id": ids, "value": pa.array(values, pa.binary())})
        yield batch.select(columns)


def _notes(file: RawFile, events: Events, target: Target) -> Iterator[Note]:
    """Yield what was lost of a report, and what only its export shows."""
    if file.is_cut:
        expected = several(file.expected_events, "event")
        yield _NOTES.note("input-cut", events=f"{file.events:,}", expected=expected)
    missing = 0 if file.is_cut else max(0, file.expected_events - file.events)
    losses = ((file.damaged, "block"), (missing + events.damaged, "event"))
    if lost := [several(count, noun) for count, noun in losses if count]:
        yield _NOTES.note("rows-lost", listed=" and ".join(lost))
    if file.texts_lost:
        yield _NOTES.note("names-lost")
    if events.unread:
        kinds = []
        for key, count in events.unread.most_common(_MOST_NAMED):
            name, number = UNREAD.get(key), key if " " in key else f"type {key}"
            kinds.append(f"{count:,} {f'{name} ({number})' if name else f'of {number}'}")
        listed = ", ".join(kinds) + (", …" if len(events.unread) > _MOST_NAMED else "")
        yield _NOTES.note("only-in-export", events.unread.total(), listed=listed)
    if file.unknown_parts:
        yield _NOTES.note("unknown-parts", file.unknown_parts)
    if target.unknown_numbers:
        yield _NOTES.note("gpu-numbers", target.unknown_numbers)
    if target.machines > 1:
        yield _NOTES.note("several-machines", target.machines)


def _writer(version: str) -> str:
    """Return which version wrote a report, in words; "" where it is unknown."""
    release = _RELEASE.match(version)
    if release is not None:
        return f"written by Nsight Systems {'.'.join(release.groups()[:3])}"
    return f"written by Nsight Systems (format {version.rstrip('.')})" if version else ""
