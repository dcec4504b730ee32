"""Reads rocprofv3's JSON, of all releases since ROCm 6.2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io import (
    BLOCK_BYTES,
    ByteSource,
    Crew,
    Document,
    input_cut,
    read_each,
    repairs_and_losses,
    with_notes,
)
from traceflops.parsers.rocprof.notes import SEVERAL_MACHINES, clock_of_folder
from traceflops.parsers.rocprof.tables.parts import place_of
from traceflops.parsers.rocprof.trace import NOTES, trace_of, without_repeated_passes
from traceflops.parsers.rocprof.v3json_places import ROOT, ROOT_KEY, Described, ProcessRecords
from traceflops.parsers.rocprof.v3json_tables import JsonRecorded, ProcessTables
from traceflops.parsers.shared import ProcessFacts, Reading, fill_collectives
from traceflops.table import ABSENT, Note, Source, Trace
from traceflops.units import several

_NEWEST: Final = "MARKER_CORE_RANGE_API"
"""The kind of records by which releases since ROCm 7.0 are known."""
_WORTH_BYTES: Final = 1 << 29
"""These records are decoded so quickly that other processes cost more than they save below this."""


def read_runs(sources: Sequence[ByteSource], reading: Reading) -> list[Trace]:
    """Return the traces of some files. Raises InputError where none can be read.

    One that cannot be read is a note as long as another can.
    """

    def traced(source: ByteSource) -> tuple[ByteSource, Trace]:
        is_large = source.expected_text_bytes >= _WORTH_BYTES
        return source, read_v3_json(source, reading.crew if is_large else Crew())

    read, failed = read_each(sources, traced, close=True)
    notes = [
        Note(
            "dropped",
            "file-not-read",
            f"{at.label} could not be read: {error.message}.",
            1,
            at.label,
        )
        for at, error in failed
    ]
    traces = without_repeated_passes(read)
    working = [trace for trace in traces if trace.source.event_counts]
    idle = [trace for trace in traces if not trace.source.event_counts]
    if working and idle:
        launchers = NOTES.note("launcher", len(idle))
        notes.append(replace(launchers, file=idle[0].source.files[0].name))
    traces = working or idle
    return with_notes(traces, notes)


def read_v3_json(source: ByteSource, crew: Crew, block_bytes: int = BLOCK_BYTES) -> Trace:
    """Return the trace in a file. Raises InputError where nothing of it can be used."""
    document = Document(source, ROOT, crew, block_bytes)
    reading = _FileReading()
    inside = (value for value in document.parts() if len(value.path) > 2)
    number = None
    for number, values in groupby(inside, key=lambda value: int(value.path[1])):
        records = ProcessRecords()
        for value in values:
            records.absorb(value)
        reading.add(number, records, source.label)
    if number is None:
        raise _nothing_in(source, document)
    return reading.trace(source, _text_notes(source, document))


class _FileReading(JsonRecorded):
    """Adds up the processes of a file."""

    def __init__(self) -> None:
        super().__init__()
        self._unreadable: Counter[str] = Counter()
        self._mended: Counter[str] = Counter()
        self._described: list[Described] = []
        self._releases: dict[str, None] = {}
        self._launchers: list[tuple[int, ProcessFacts]] = []

    def add(self, number: int, records: ProcessRecords, file: str) -> None:
        """Add the rows of a process, whose records are all known."""
        described = records.described
        self._unreadable.update(records.unreadable)
        self._mended.update(records.mended)
        facts = ProcessFacts(file, host=described.host, pid=described.pid)
        if not +records.counts:
            self._launchers.append((number, facts))
            return
        tables = ProcessTables(self, records, self.process(number, facts))
        tables.add_timeline()
        tables.add_counters()
        self.counts.update(records.counts)
        self._described.append(described)
        self._releases |= dict.fromkeys(_release(records))

    def trace(self, source: ByteSource, text_notes: Iterator[Note]) -> Trace:
        """Return the trace of what was added."""
        if not self.counts:  # nothing else is known of the run
            for number, facts in self._launchers:
                self.process(number, facts)
            self._launchers.clear()
        fill_collectives(self, self.arguments)
        self.odd["kernels-unnamed json"] = len(self.unknown_kernels)
        self.odd["agents-missing"] = len(self.unlisted_agents)
        clocks = [described.clock for described in self._described] or [None]
        are_several = len(set(clocks)) > 1
        folder = clock_of_folder(place_of(source.folder, source.name).root)
        releases = ", ".join(self._releases)
        hosts = [described.host for described in self._described if described.host]
        lifetimes = [d.lifetime_ns for d in self._described if d.lifetime_ns]
        about = Source(
            format="rocprof",
            files=(),
            tool="rocprofv3 JSON" + (f" (records of {releases})" if releases else ""),
            clock=None if are_several else clocks[0] or folder,
            facts=dict(self._facts(releases, lifetimes)),
            identities=tuple(dict.fromkeys(hosts)),
            lifetimes=tuple(lifetimes),
        )
        notes = [*text_notes, *self._notes()]
        of_processes = [clock or "" for clock in clocks] if are_several else ()
        return trace_of(self, source, about, "file", notes=notes, clocks=of_processes)

    def _notes(self) -> Iterator[Note]:
        for what, count in sorted(self._mended.items()):
            yield Note("repaired", "json-repaired", f"Damaged JSON: {what} ({count:,}).", count)
        unreadable = +self._unreadable
        if unreadable:
            listed = ", ".join(f"{name} ({count:,})" for name, count in sorted(unreadable.items()))
            text = f"Records in an unknown form were skipped: {listed}."
            yield Note("dropped", "json-dropped", text, unreadable.total())
        if len({described.clock for described in self._described} - {None}) > 1:
            yield SEVERAL_MACHINES
        yield from NOTES.counted({"launcher": len(self._launchers)}, "launcher")

    def _facts(self, releases: str, lifetimes: list[tuple[int, int]]) -> Iterator[tuple[str, str]]:
        yield "generation", "v3"
        if releases:
            yield "layout", releases
        if self.counts:
            yield "recorded", ", ".join(sorted(+self.counts))
        streams = self.streams - {ABSENT}
        if streams - {0}:
            yield "hip_streams", str(len(streams))
        if len(lifetimes) == 1:
            yield "process_lifetime_ns", str(lifetimes[0][1] - lifetimes[0][0])


def _release(records: ProcessRecords) -> list[str]:
    """Return which releases write such records, as far as the file tells."""
    kinds = {operations.kind for operations in records.kinds}
    if _NEWEST in kinds:
        return ["ROCm 7.0 or later"]
    older = "ROCm 6.3 or 6.4" if records.described.has_node else "ROCm 6.2 or 6.3"
    return [older] if kinds else []


def _text_notes(source: ByteSource, document: Document) -> Iterator[Note]:
    damage = document.damage
    if source.cut:
        yield input_cut(source.cut, damage)
    if document.cut_in is not None:
        yield Note("dropped", "text-cut", _cut(document), damage.cut_bytes)
    yield from repairs_and_losses(damage, "record")
    if damage.tail_bytes:
        code = "second-trace" if damage.another else "tail-unread"
        text = f"{several(damage.tail_bytes, 'byte')} after the end of the document not read."
        yield Note("dropped", code, text, damage.tail_bytes)


def _cut(document: Document) -> str:
    place = str(document.cut_in[-1]) if document.cut_in else "the document"
    where = "".join(c if c.isprintable() else "?" for c in place[:40])
    return (
        f"The file ends early (in {where}). Every complete record is used; the rest is missing "
        f"({several(document.damage.cut_bytes or 0, 'byte')} of an incomplete record lost)."
    )


def _nothing_in(source: ByteSource, document: Document) -> InputError:
    if source.cut or document.cut_in is not None:
        return InputError(
            f"cut off before its first complete record: {source.label}",
            "nothing can be recovered; record or copy the file again",
        )
    if document.damage.dropped_places:
        return InputError(
            f"no readable record: {source.label} (damaged JSON)",
            "its JSON is broken; copy the file again or record again",
        )
    return NotATrace(
        f"no process: {source.label} ({ROOT_KEY} holds no records)",
        "give the JSON written by rocprofv3 --output-format json",
    )
