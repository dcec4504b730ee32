"""One run of rocprofv3 out of its JSON: the processes of one file, or of one file for each pass."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io import BLOCK_BYTES, ByteSource, Crew, ListStream
from traceflops.parsers.rocprof.notes import SEVERAL_MACHINES, clock_of, clock_of_folder
from traceflops.parsers.rocprof.tables.parts import OutputPlace
from traceflops.parsers.rocprof.v3json.notes import file_notes, launcher_notes, run_notes
from traceflops.parsers.rocprof.v3json.places import ROOT, ROOT_KEY, Described, ProcessRecords
from traceflops.parsers.rocprof.v3json.tables import Odd, ProcessTables
from traceflops.parsers.shared import Gathered, ProcessFacts, Reading, fill_collectives
from traceflops.table import ABSENT, Note, Source, SourceFile, Trace, rank_from_name

if TYPE_CHECKING:
    from traceflops.parsers.rocprof.tables.parts import OutputPlace

_TIMELINE: Final = ("kernel_dispatch", "memory_copy")
_NEWEST: Final = "MARKER_CORE_RANGE_API"
"""The kind of records by which releases since ROCm 7.0 are known."""


class JsonRun:
    """Adds up the files of a run; of repeated passes the times of the first that has any count."""

    def __init__(self, crew: Crew, block_bytes: int = BLOCK_BYTES) -> None:
        self._crew = crew
        self._block_bytes = block_bytes
        self._gathered = Gathered()
        self._odd = Odd()
        self._notes: list[Note] = []
        self._files: list[SourceFile] = []
        self._counts: Counter[str] = Counter()
        self._described: list[Described] = []
        self._clock_of: dict[int, str | None] = {}
        self._arguments: dict[int, dict[str, str]] = {}
        self._releases: list[str] = []
        self._place: OutputPlace | None = None
        self._timed_pass: int | None = None
        self._has_times = False
        self._unused_passes: set[int] = set()
        self._launchers: list[tuple[tuple[int, int], ProcessFacts]] = []

    def add(
        self, source: ByteSource, place: OutputPlace, file_number: int, *, is_repeated: bool
    ) -> None:
        """Add the processes of a file. Raises InputError where nothing of it can be used."""
        stream = ListStream(source, ROOT, self._crew, self._block_bytes)
        total = ProcessRecords()
        number, records = -1, ProcessRecords()
        for found in stream:
            if len(found.path) < 3:
                continue
            if found.path[1] != number:
                self._finish(records, source, place, (file_number, number), is_repeated)
                _add_up(total, records)
                number, records = int(found.path[1]), ProcessRecords()
            records.absorb(found)
        self._finish(records, source, place, (file_number, number), is_repeated)
        _add_up(total, records)
        if number < 0:
            raise _nothing_in(source, stream)
        self._place = self._place or place
        self._files.append(SourceFile(source.label, source.stored_bytes, source.text_bytes))
        self._notes += file_notes(source, stream, total)

    def _finish(
        self,
        records: ProcessRecords,
        source: ByteSource,
        place: OutputPlace,
        key: tuple[int, int],
        is_repeated: bool,
    ) -> None:
        """Add the rows of a process, whose records are all known."""
        if key[1] < 0:
            return
        described = records.described
        facts = ProcessFacts(source.label, place.rank, None, described.host, described.pid)
        if not +records.counts:
            self._launchers.append((key, facts))
            return
        number = self._gathered.process(key, facts)
        clock = self._clock_of[number] = clock_of(described.machine, described.host)
        machine = clock or ""
        tables = ProcessTables(self._gathered, records, number, machine, self._odd)
        timed = any(records.counts[name] for name in _TIMELINE)
        if timed and not self._has_times:
            self._has_times, self._timed_pass = True, place.run_pass
        is_own = not timed or not is_repeated or place.run_pass == self._timed_pass
        if is_own:
            tables.add_timeline()
            self._arguments |= tables.arguments
            self._described.append(described)
        elif place.run_pass is not None:
            self._unused_passes.add(place.run_pass)
        tables.add_counters(place.run_pass if is_repeated else None, is_own=is_own)
        self._counts.update(records.counts)
        self._releases += [release] if (release := _release(records)) else []

    def trace(self) -> Trace:
        """Return the trace of what was added."""
        launchers = len(self._launchers)
        if not self._counts:  # nothing else is known of the run
            for key, facts in self._launchers:
                self._gathered.process(key, facts)
            launchers = 0
        fill_collectives(self._gathered, self._arguments)
        overflowed = self._gathered.overflowed
        tables = self._gathered.finish()
        name = self._files[0].name
        notes = [
            *self._notes,
            *self._clock_notes(name),
            *self._pass_notes(name),
            *launcher_notes(launchers, name),
            *run_notes(self._odd, tables, overflowed, name),
        ]
        clocks = tuple(
            self._clock_of.get(number) or "" for number in range(tables["processes"].num_rows)
        )
        places = self._gathered.places
        return Trace(
            self._source(),
            tables,
            tuple(notes),
            places,
            clocks if len(set(clocks)) > 1 else (),
        )

    def _clock_notes(self, name: str) -> Iterator[Note]:
        if len(self._clocks() - {None}) > 1:
            yield replace(SEVERAL_MACHINES, file=name)

    def _pass_notes(self, name: str) -> Iterator[Note]:
        rank = self._place.rank if self._place else None
        if rank is not None:
            yield rank_from_name([rank], name)
        if self._unused_passes:
            listed = ", ".join(map(str, sorted(self._unused_passes)[:8]))
            text = (
                "The run was repeated for more counters. Times are from one pass; only counters "
                f"are used from the others (pass {listed})."
            )
            yield Note("dropped", "repeated-passes", text, len(self._unused_passes), name)

    def _source(self) -> Source:
        releases = ", ".join(dict.fromkeys(self._releases))
        hosts = [one.host for one in self._described if one.host]
        return Source(
            format="rocprof",
            files=tuple(self._files),
            tool="rocprofv3 JSON" + (f" (records of {releases})" if releases else ""),
            clock=self._clock(),
            facts=dict(self._facts(releases)),
            event_counts={name: self._counts[name] for name in sorted(+self._counts)},
            identities=tuple(dict.fromkeys(hosts)),
            lifetimes=self._lifetimes(),
            kinds_apart=True,
        )

    def _facts(self, releases: str) -> Iterator[tuple[str, str]]:
        yield "generation", "v3"
        if releases:
            yield "layout", releases
        recorded = ", ".join(sorted(+self._counts))
        if recorded:
            yield "recorded", recorded
        streams = self._odd.streams - {ABSENT}
        if streams - {0}:
            yield "hip_streams", str(len(streams))
        lifetimes = self._lifetimes()
        if len(lifetimes) == 1:
            yield "process_lifetime_ns", str(lifetimes[0][1] - lifetimes[0][0])

    def _lifetimes(self) -> tuple[tuple[int, int], ...]:
        return tuple(one.lifetime_ns for one in self._described if one.lifetime_ns is not None)

    def _clock(self) -> str | None:
        """Return what names the clock: the machine's, else that of the folder its files lie in."""
        clocks = self._clocks()
        if len(clocks) == 1 and (clock := clocks.pop()):
            return clock
        return None if clocks or self._place is None else clock_of_folder(self._place.root)

    def _clocks(self) -> set[str | None]:
        return {clock_of(one.machine, one.host) for one in self._described}


def _add_up(total: ProcessRecords, records: ProcessRecords) -> None:
    total.unreadable.update(records.unreadable)
    total.mended.update(records.mended)


def _release(records: ProcessRecords) -> str:
    """Return which releases write such records, as far as the file tells."""
    kinds = {one.kind for one in records.kinds}
    if _NEWEST in kinds:
        return "ROCm 7.0 or later"
    if not kinds:
        return ""
    return "ROCm 6.3 or 6.4" if records.described.has_node else "ROCm 6.2 or 6.3"


def _nothing_in(source: ByteSource, stream: ListStream) -> InputError:
    if source.cut or stream.cut_in is not None:
        return InputError(
            f"cut off before its first complete record: {source.label}",
            "nothing can be recovered; record or copy the file again",
        )
    if stream.damage.dropped_places:
        return InputError(
            f"no readable record: {source.label} (damaged JSON)",
            "its JSON is broken; copy the file again or record again",
        )
    return NotATrace(
        f"no process: {source.label} ({ROOT_KEY} holds no records)",
        "give the JSON written by rocprofv3 --output-format json",
    )


# rocprofv3's JSON, of all releases since ROCm 6.2.


_WORTH_BYTES: Final = 1 << 29
"""These records are decoded so quickly that other processes cost more than they save below this."""


def read_runs(sources: Sequence[ByteSource], reading: Reading) -> list[Trace]:
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
    members: Sequence[tuple[ByteSource, OutputPlace]],
    reading: Reading,
    failed: list[tuple[str, InputError]],
) -> Trace | None:
    """Return the trace of a run, None where none of its files can be read."""
    large = sum(source.expected_text_bytes for source, _ in members) >= _WORTH_BYTES
    run = JsonRun(reading.crew if large else Crew())
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


def _runs(sources: Sequence[ByteSource]) -> list[list[tuple[ByteSource, OutputPlace]]]:
    """Return the files of each run: of a run that was repeated one or more for each pass."""
    from traceflops.parsers.rocprof.tables.parts import place_of

    runs: defaultdict[tuple[str, int | None], list[tuple[ByteSource, OutputPlace]]] = defaultdict(
        list
    )
    for number, source in enumerate(sources):
        place = place_of(source.folder, source.name)
        key = (str(number), -1) if place.run_pass is None else (place.root, place.rank)
        runs[key].append((source, place))
    return [
        sorted(members, key=lambda one: (one[1].run_pass or 0, one[1].pid or 0, one[0].name))
        for members in runs.values()
    ]
