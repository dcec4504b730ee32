"""Reads Nsight Systems' own file (.nsys-rep, .qdrep) as the tables that its export would have."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from traceflops.errors import NotATrace
from traceflops.parsers.io.arrow_files import ArrowTable
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.messages import fields, last_fields, message_text, parts_of, signed
from traceflops.parsers.io.notes import NoteTable
from traceflops.parsers.nsight.nsys.raw_events import UNREAD, Events, Numbers, numbered
from traceflops.parsers.nsight.nsys.raw_file import CLOCKS, Parts, RawFile, joined, opened
from traceflops.parsers.nsight.nsys.streams import ERRORS, OUTPUT, STREAMS
from traceflops.parsers.nsight.nsys.tables import Folder
from traceflops.table.columns import batch_of, bytes_column, number_column
from traceflops.table.trace import Note
from traceflops.units import several

_STRINGS: Final = "StringIds"
_OF_STRINGS: Final = pa.schema([("id", pa.int64()), ("value", pa.binary())])
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
        "input-cut": "The report is cut off, or its end is damaged: {events} of {expected} could "
        "be read.",
        "rows-lost": ("The report is damaged: {listed} could not be read.", "All others are used."),
        "names-lost": "Names are missing: they stand behind the events, in the part of the report "
        "that is lost.",
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
        "several-machines": "The report is of {count} machines, whose GPUs may be taken for each "
        "other. Its export tells them apart.",
        "gpu-numbers": "{count} [GPU has|GPUs have] another number in a process than in the "
        "report, and which is which is unknown. Only its export tells.",
    },
)
_MACHINE, _HARDWARE = 1, 2
_PROPERTIES: Final = (1, 2, 1)
"""Fields of the head, one in another, down to the (number, text) of a property of a machine."""
_DRIVER: Final = 611
"""The number of the version of the CUDA driver."""
_OLD_GPU, _GPU, _NUMBERS = 1, 7, 9
_OF_GPU: Final = numbered(
    "1 id 11 totalMemory 13 clockRate 14 smCount 30 threadsPerWarp 15 cuDevice 41 computeMajor "
    "42 computeMinor"
)
_TEXTS_OF_GPU: Final = numbered("2 name 3 busLocation 5 uuid")
_OF_OLD_GPU: Final = numbered(
    "3 globalMemorySize 6 numThreadsPerWarp 7 coreClockRate 9 numMultiprocessors "
    "22 computeCapabilityMajor 23 computeCapabilityMinor 24 deviceId 25 pid"
)
"""GPUs as reports of 2020 and 2021 list them, by process."""
_OF_NUMBERS: Final = numbered("1 gpuId 2 cudaId 3 pid")
_OFFSETS, _STARTED = 16, 17
_SESSION, _UTC = 7, 9
_PAIRS: Final = 2
_LATEST: Final = 2**62
_RECENT_NS: Final = 10**18
"""Today's times since 1970 are larger; times since the start of a machine are smaller."""


class Report(Folder, kw_only=True):
    """The tables of a .nsys-rep file, and notes on what is lost and what only its export shows.

    `origin` is the note that this is not an export, which version wrote it, and what exports add.
    """

    origin: Note
    own_notes: tuple[Note, ...] = ()

    def notes(self) -> tuple[Note, ...]:
        """Return the notes on what was lost, and on what only an export shows."""
        return self.own_notes


def report_of(source: ByteSource) -> Report:
    """Return the tables of a report. Raises InputError if its layout is unknown."""
    file = opened(source)
    with file.stream:
        try:
            file.open()
            # Parse several blocks at a time, which is faster.
            events = Events()
            waiting: list[Parts] = []
            waiting_bytes = 0
            for block in file.blocks():
                waiting.append(block)
                waiting_bytes += len(block.data)
                if waiting_bytes >= 1 << 22:
                    events.add(joined(waiting))
                    waiting, waiting_bytes = [], 0
            if waiting:
                events.add(joined(waiting))
            file.is_cut = file.is_cut or source.cut is not None
            traced = file.traced()
            others, counts = _target_tables(file.head, file.tail, file.section(CLOCKS))
        except (ValueError, EOFError, OSError):
            raise _refused(file) from None
    # If no or few events can be read, the layout must be another one.
    is_unreadable = bool(file.damaged or (file.expected_events and not file.is_cut))
    if (not file.events and is_unreadable) or 2 * events.damaged > file.events:
        raise _refused(file)
    # To save memory, rows of events are freed when they are read: they can be read only once.
    tables = {
        name: ArrowTable(source, batches[0].schema, partial(_rows, batches, once=True))
        for name, batches in events.tables.items()
    }
    if release := _RELEASE.match(file.version):
        row = {"name": "EXPORT_PRODUCT_VERSION", "value": ".".join(release.groups())}
        others["META_DATA_EXPORT"] = batch_of([row])
    if traced:
        row = {"name": "TRACED", "value": traced}
        others["META_DATA_CAPTURE"] = batch_of([row])
    if streams := list(_streams(file)):
        others[STREAMS] = batch_of(streams)
    for name, batch in others.items():
        tables[name] = ArrowTable(source, batch.schema, partial(_rows, [batch]))
    tables[_STRINGS] = ArrowTable(source, _OF_STRINGS, partial(_texts, file))
    by = _writer(file.version)
    origin = replace(_NOTES.note("raw-report", by=by and f", {by}"), file=source.label)
    own_notes = tuple(replace(n, file=source.label) for n in _notes(file, events, counts))
    missing = set(events.damaged_tables)  # the tables that lack rows
    if file.events < file.expected_events or events.unknown:
        missing |= _OF_EVENTS
    if file.texts_lost:
        missing.add(_STRINGS)
    return Report(source, tables, origin=origin, missing=frozenset(missing), own_notes=own_notes)


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


def _rows(
    batches: list[pa.RecordBatch], columns: list[str], *, once: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the columns of batches; `once`: forget each batch before it is yielded, for good."""
    waiting = batches if once else [*batches]
    waiting.reverse()
    while waiting:
        yield waiting.pop().select(columns)


def _texts(file: RawFile, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the texts of a file with their ids; a text with a NUL, an environment, is null."""
    first_id = 0
    for parts in file.texts:
        spans = zip(parts.begin.tolist(), parts.end.tolist(), strict=True)
        texts = [parts.data[begin:end] for begin, end in spans]
        values = [None if b"\0" in text else text for text in texts]
        ids = number_column(np.arange(first_id, first_id + len(values)))
        first_id += len(values)
        batch = pa.RecordBatch.from_pydict({"id": ids, "value": bytes_column(values)})
        yield batch.select(columns)


def _streams(file: RawFile) -> Iterator[dict[str, int]]:
    """Yield the ids of texts that are names of output files, and of the next: its content."""
    first_id = 0
    for parts in file.texts:
        for text_id, end in enumerate(parts.end.tolist(), first_id):
            if parts.data[end - len(ERRORS) : end].endswith((OUTPUT.encode(), ERRORS.encode())):
                yield {"filenameId": text_id, "contentId": text_id + 1}
        first_id += len(parts.begin)


def _notes(file: RawFile, events: Events, counts: Mapping[str, int]) -> Iterator[Note]:
    """Yield the notes on what was lost of a report, and on what only its export shows."""
    if file.is_cut:
        expected = several(file.expected_events, "event")
        yield _NOTES.note("input-cut", events=f"{file.events:,}", expected=expected)
    # If the file is cut, the note above tells how many events are missing.
    missing = 0 if file.is_cut else max(0, file.expected_events - file.events)
    losses = ((file.damaged, "block"), (missing + events.damaged, "event"))
    if lost := [several(count, noun) for count, noun in losses if count]:
        yield _NOTES.note("rows-lost", listed=" and ".join(lost))
    if file.texts_lost:
        yield _NOTES.note("names-lost")
    if events.unread:
        kinds = []
        for key, count in events.unread.most_common(_MOST_NAMED):
            # A key is the type of an event, or "class" and the class of a call.
            name, type_words = UNREAD.get(key), key if " " in key else f"type {key}"
            what = f"{name} ({type_words})" if name else f"of {type_words}"
            kinds.append(f"{count:,} {what}")
        listed = ", ".join(kinds) + (", …" if len(events.unread) > _MOST_NAMED else "")
        yield _NOTES.note("only-in-export", events.unread.total(), listed=listed)
    counts = {"unknown-parts": file.unknown_parts, **counts}
    yield from _NOTES.counted(counts, "unknown-parts", "gpu-numbers", "several-machines")


def _writer(version: str) -> str:
    """Return in words which version wrote a report, "" if it is unknown."""
    release = _RELEASE.match(version)
    if release is not None:
        return f"written by Nsight Systems {'.'.join(release.groups()[:3])}"
    return f"written by Nsight Systems (format {version.rstrip('.')})" if version else ""


def _target_tables(
    head: bytes, tail: bytes, clocks: bytes
) -> tuple[dict[str, pa.RecordBatch], dict[str, int]]:
    """Return the tables about GPUs and the session by name, and counts by the code of a note."""
    machines, _ = parts_of(tail, _MACHINE)
    hardware = [part for machine in machines for part in parts_of(machine, _HARDWARE)[0]]

    def listed(key: int) -> list[dict[int, Any]]:
        """Return the messages in a field of the hardware of all machines, at most 4,096."""
        parts = (part for own in hardware for part in parts_of(own, key)[0])
        return [last_fields(part) for part in islice(parts, 4_096)]

    # Field 3 is the pid; one of fields 1 and 2 is the GPU's number in the report, the other its
    # ordinal in the process, and which is which is unknown. A row can be used all the same if the
    # pid also has the row with the two exchanged.
    numbers = listed(_NUMBERS)
    known = {tuple(row.get(key, 0) for key in (3, 1, 2)) for row in numbers}
    certain = [row for row in numbers if (row.get(3, 0), row.get(2, 0), row.get(1, 0)) in known]
    origin = _origin(head, clocks)
    old_gpus = [_row(gpu, _OF_OLD_GPU, numbered("1 name")) for gpu in listed(_OLD_GPU)]
    rows = {
        "TARGET_INFO_GPU": [_row(gpu, _OF_GPU, _TEXTS_OF_GPU) for gpu in listed(_GPU)],
        "TARGET_INFO_CUDA_GPU": old_gpus,
        "TARGET_INFO_CUDA_DEVICE": [_row(row, _OF_NUMBERS) for row in certain],
        "TARGET_INFO_SESSION_START_TIME": [] if origin is None else [{"utcEpochNs": origin}],
        "TARGET_INFO_SYSTEM_ENV": _driver(head),
    }
    counts = {"gpu-numbers": len(numbers) - len(certain)}
    if len(machines) > 1:
        counts["several-machines"] = len(machines)
    tables = {name: batch_of(some) for name, some in rows.items() if some}
    return tables, counts


def _driver(head: bytes) -> list[dict[str, Any]]:
    """Return a row per known version of the CUDA driver, "0" on a machine that had none."""
    parts = [head]
    for key in _PROPERTIES:
        parts = [inner for part in parts for inner in parts_of(part, key)[0]]
    rows = map(last_fields, islice(parts, 4_096))
    versions = [message_text(row.get(2)) for row in rows if row.get(1) == _DRIVER]
    return [{"name": "CudaDriverVersion", "value": version} for version in versions]


def _row(message: Mapping[int, Any], numbers: Numbers, texts: Numbers = ()) -> dict[str, Any]:
    """Return the numbers and texts of a message by name; a missing number is 0."""
    row: dict[str, Any] = {}
    for key, name in numbers:
        value = message.get(key, 0)
        row[name] = value if isinstance(value, int) and value < _LATEST else None
    return row | {name: message_text(message.get(key)) for key, name in texts}


def _origin(head: bytes, clocks: bytes) -> int | None:
    """Return when the session began, in ns since 1970; None if it is unknown.

    The head has differences between clocks; `clocks`, the section of that name, has times.
    """
    started, messages = 0, []
    try:
        for key, value in fields(head):
            if key == _OFFSETS and isinstance(value, bytes):
                messages += parts_of(value, 1)[0]
            elif key == _STARTED and isinstance(value, int):
                started = value
    except ValueError:
        return None
    # How far (in ns) the first clock of each pair is ahead of the second.
    differences: list[tuple[int, int, int]] = []
    for offset in map(last_fields, messages):
        # Fields 1 and 2 are the clocks, 5 is the difference as a text of at most 64 bits.
        text = message_text(offset.get(5))
        digits = text.removeprefix("-")
        if digits.isascii() and digits.isdecimal() and len(digits) <= 20:
            differences.append((offset.get(1, 0), offset.get(2, 0), int(text)))
    # Go from clock to clock: what does each show when the session's clock shows 0?
    times = {_SESSION: 0}
    for _ in differences:  # each pass reaches at least one more clock, or no more are reachable
        for first, second, ahead_ns in differences:
            if first in times:
                times.setdefault(second, times[first] - ahead_ns)
            elif second in times:
                times[first] = times[second] + ahead_ns
    time = signed(times.get(_UTC, 0) % 2**64)
    # Any other time is damaged or that of another clock.
    return time if 0 < time < _LATEST else _origin_by_times(clocks, started)


def _origin_by_times(clocks: bytes, started: int) -> int | None:
    """Return when the session began, in ns since 1970, from simultaneous times of two clocks.

    The session's clock is the first clock of a pair (`started`, 0), or one that is equal to it.
    The newest pair of a calendar time and a time of that clock counts. None if there is none.
    """
    records: list[tuple[Any, Any, tuple[int, int]]] = []  # two clocks, and what both show
    messages = (part for own in parts_of(clocks, _PAIRS)[0] for part in parts_of(own, 1)[0])
    for message in map(last_fields, messages):  # fields 1 and 2 are the clocks, 3 their times
        content = message.get(3)
        for pair in map(last_fields, parts_of(content, 1)[0] if isinstance(content, bytes) else ()):
            times = pair.get(1, 0), pair.get(2, 0)  # on the first and on the second clock
            if all(isinstance(time, int) for time in times):
                records.append((message.get(1), message.get(2), times))
    own_clocks = {first for first, _, times in records if times == (started, 0)}
    own_clocks |= {a for a, b, times in records if b in own_clocks and times == (0, 0)}
    # Only times of the calendar's clock are so large: they count from 1970.
    pairs = [times for _, b, times in records if b in own_clocks and times[0] > _RECENT_NS]
    if not pairs:
        return None
    calendar, session = max(pairs)
    return calendar + started - session
