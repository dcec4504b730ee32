"""Reads rocprofv3's JSON, of all releases since ROCm 6.2."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from msgspec.structs import replace

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.json_lists import Document
from traceflops.parsers.io.json_text import input_cut, repairs_and_losses
from traceflops.parsers.io.notes import not_read, printable, read_each, with_notes
from traceflops.parsers.io.worker_pool import BLOCK_BYTES, WorkerPool
from traceflops.parsers.rocprof import v3json_tables
from traceflops.parsers.rocprof.counter_passes import without_repeated_passes
from traceflops.parsers.rocprof.trace import NOTES, trace_of
from traceflops.parsers.shared.collectives import fill_collectives
from traceflops.parsers.shared.formats import Reading
from traceflops.parsers.shared.trace_builder import ProcessFacts
from traceflops.table.columns import ABSENT
from traceflops.table.trace import Note, Source, Trace
from traceflops.units import several

_WORTH_BYTES: Final = 1 << 29  # for smaller files worker processes cost more than they save


def read_runs(sources: Sequence[ByteSource], reading: Reading) -> list[Trace]:
    """Return the traces in some files, passes joined, launchers (files without records) left out.

    An unreadable file becomes a note. Raises InputError if no file can be read.
    """

    def traced(source: ByteSource) -> tuple[ByteSource, Trace]:
        is_large = source.expected_text_bytes >= _WORTH_BYTES  # else workers cost more time
        return source, read_v3_json(source, reading.pool if is_large else WorkerPool())

    read, failed = read_each(sources, traced, close=True)
    notes = not_read(failed)
    traces = without_repeated_passes(read)
    working = [trace for trace in traces if trace.source.event_counts]
    idle = [trace for trace in traces if not trace.source.event_counts]
    if working and idle:
        launchers = NOTES.note("launcher json", len(idle))
        notes.append(replace(launchers, file=idle[0].source.files[0].name))
    return with_notes(working or idle, notes)


def read_v3_json(source: ByteSource, pool: WorkerPool, block_bytes: int = BLOCK_BYTES) -> Trace:
    """Return the trace in a file. Raises InputError if nothing of it can be used."""
    document = Document(source, v3json_tables.ROOT, pool, block_bytes)
    recorded = v3json_tables.JsonRecorded()
    # The path of a part is root, process, list: group the parts by process.
    in_process = (part for part in document.parts() if len(part.path) > 2)
    number = None
    for number, parts in groupby(in_process, key=lambda part: int(part.path[1])):
        records = v3json_tables.ProcessRecords(recorded)
        for part in parts:
            records.absorb(part)
        _add_process(recorded, number, records, source.label)
    if number is None:
        if source.cut or document.cut_in is not None:
            raise InputError(
                f"cut off before its first complete record: {source.label}",
                "nothing can be recovered; record or copy the file again",
            )
        if document.damage.dropped_places:
            raise InputError(
                f"no readable record: {source.label} (damaged JSON)",
                "its JSON is broken; copy the file again or record again",
            )
        raise NotATrace(
            f"no process: {source.label} ({v3json_tables.ROOT_KEY} holds no records)",
            "give the JSON written by rocprofv3 --output-format json",
        )
    # The notes on damage of the text.
    damage, notes = document.damage, list[Note]()
    if source.cut:
        notes.append(input_cut(source.cut, damage))
    if document.cut_in is not None:
        name = str(document.cut_in[-1]) if document.cut_in else "the document"
        text = f"The file ends early (in {printable(name)})."
        used = (
            "Every complete record is used; the rest is missing "
            f"({several(damage.cut_bytes or 0, 'byte')} of an incomplete record lost)."
        )
        notes.append(Note("dropped", "text-cut", text, damage.cut_bytes, advice=used))
    damage.repaired.update(recorded.mended)
    notes += repairs_and_losses(damage, "record")
    if damage.tail_bytes:
        code = "second-trace" if damage.another else "tail-unread"
        text = f"{several(damage.tail_bytes, 'byte')} after the end of the document not read."
        notes.append(Note("dropped", code, text, damage.tail_bytes))
    return _trace(recorded, source, notes)


def _add_process(
    recorded: v3json_tables.JsonRecorded,
    number: int,
    records: v3json_tables.ProcessRecords,
    file: str,
) -> None:
    """Add the rows of the process `number`; one without records is a launcher, kept apart."""
    metadata = records.metadata
    facts = ProcessFacts(file, host=metadata.host, pid=metadata.pid)
    if not +records.counts:
        recorded.launchers.append((number, facts))
        return
    records.add(recorded.process(number, facts))
    recorded.counts.update(records.counts)
    recorded.metadata.append(metadata)
    kinds = {operations.kind for operations in records.kinds}
    if "MARKER_CORE_RANGE_API" in kinds:  # not in earlier releases
        recorded.releases["ROCm 7.0 or later"] = None
    elif kinds:
        recorded.releases["ROCm 6.3 or 6.4" if metadata.has_node else "ROCm 6.2 or 6.3"] = None


def _trace(recorded: v3json_tables.JsonRecorded, source: ByteSource, notes: list[Note]) -> Trace:
    """Return the trace of the added processes, with `notes` before the notes on records."""
    if not recorded.counts:  # only launchers: the run has no other process
        for number, launcher in recorded.launchers:
            recorded.process(number, launcher)
        recorded.launchers.clear()
    fill_collectives(recorded, recorded.arguments)
    recorded.odd["kernels-unnamed json"] = len(recorded.unknown_kernels)
    recorded.odd["agents-missing"] = len(recorded.unlisted_agents)

    # The source: clock, releases, lists, streams and lifetimes.
    clocks = [metadata.clock for metadata in recorded.metadata] or [None]
    clocks_differ = len(set(clocks)) > 1
    lifetimes = [m.lifetime_ns for m in recorded.metadata if m.lifetime_ns]
    facts = {"generation": "v3"}
    if releases := ", ".join(recorded.releases):
        facts["layout"] = releases
    if recorded.counts:
        facts["recorded"] = ", ".join(sorted(+recorded.counts))
    # If all streams are the default one (0) or unknown, their number says nothing.
    if (streams := recorded.streams - {ABSENT}) - {0}:
        facts["hip_streams"] = str(len(streams))
    if len(lifetimes) == 1:
        facts["process_lifetime_ns"] = str(lifetimes[0][1] - lifetimes[0][0])
    about = Source(
        format="rocprof",
        files=(),
        tool="rocprofv3 JSON" + (f" (records of {releases})" if releases else ""),
        clock=None if clocks_differ else clocks[0],
        facts=facts,
        identities=tuple(dict.fromkeys(m.host for m in recorded.metadata if m.host)),
        lifetimes=tuple(lifetimes),
    )

    if unreadable := +recorded.unreadable:
        listed = ", ".join(f"{name} ({count:,})" for name, count in sorted(unreadable.items()))
        text = f"Records in an unknown form were skipped: {listed}."
        notes.append(Note("dropped", "json-dropped", text, unreadable.total()))
    if len(set(clocks) - {None}) > 1:
        notes.append(NOTES.note("clocks-not-aligned"))
    notes += NOTES.counted({"launcher json": len(recorded.launchers)}, "launcher json")
    of_processes = [clock or "" for clock in clocks] if clocks_differ else ()
    return trace_of(recorded, source, about, "file", notes=notes, clocks=of_processes)
