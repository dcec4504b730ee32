"""Puts the tables of a run of rocprof together: one trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from traceflops.parsers.rocprof.notes import clock_of_folder
from traceflops.parsers.rocprof.tables.counter_repeats import readings
from traceflops.parsers.rocprof.tables.devices import Devices
from traceflops.parsers.rocprof.tables.host import api_of
from traceflops.parsers.rocprof.tables.notes import Told, run_notes
from traceflops.parsers.rocprof.tables.processes import Process
from traceflops.parsers.rocprof.tables.repetitions import COUNTERS
from traceflops.parsers.rocprof.tables.runs import TableRun
from traceflops.parsers.rocprof.tables.work import resolve_copies
from traceflops.parsers.shared import (
    COMPUTE,
    Gathered,
    Layout,
    ProcessFacts,
    ProcessPart,
    TableFile,
    chosen,
    fill_collectives,
)
from traceflops.table import ABSENT, IntArray, Source, SourceFile, TableBuilder, Trace

_TIMELINES: Final[Mapping[str, str]] = {
    "kernel": "activities",
    "memcpy": "copies",
    "memset": "copies",
    "call": "calls",
    "mark": "marks",
}
"""The table with the records whose totals are of each kind."""

_TOOLS: Final = {"v1": "rocprof", "v2": "rocprofv2", "v3": "rocprofv3", COMPUTE: "rocprof-compute"}


class Assembly:
    """Makes the trace of a run."""

    def __init__(self, run: TableRun, host: str | None) -> None:
        self.run = run
        self.host = host
        self.gathered = Gathered()
        self.told = Told()

    def trace(self) -> Trace:
        """Return the trace; the rows of the run are used up."""
        processes = [
            (self._process(place, one), one) for place, one in enumerate(self.run.processes)
        ]
        devices = Devices(self.run.agents, processes, self.gathered)
        self.told.unplaced = devices.unplaced
        for number, process in processes:
            self._add(number, process, devices)
        fill_collectives(self.gathered, {})
        self.told.overflowed = tuple(self.gathered.overflowed)
        tables = self.gathered.finish()
        notes = tuple(run_notes(self.run, tables, self.told))
        return Trace(self._source(), tables, notes, places=self.gathered.places)

    def _process(self, place: int, process: Process) -> int:
        file = process.main_file.source.label
        if process.place.rank is not None:
            self.told.ranks.append(process.place.rank)
        facts = ProcessFacts(file, process.place.rank, None, self.host, process.pid)
        return self.gathered.process(place, facts)

    def _add(self, number: int, process: Process, devices: Devices) -> None:
        """Add the rows of a process."""
        timelines = {kind for kind, table in _TIMELINES.items() if process.has(table)}
        counted_now = any(is_own for _, is_own, _ in process.counted)
        self.told.counted_while_timed |= counted_now and process.has_work
        launched = _launched(process) if process.has("graphs") else np.empty(0, np.int64)
        for part in process.parts:
            numbers = devices.numbers(part, number)
            for name in ("activities", "graphs", "marks"):
                _place(part[name], numbers)
            self.told.host_copies += resolve_copies(part, devices.agents(part), numbers)
            _leave_out_graphs(part, launched)
            for name in ("activities", "copies", "graphs"):
                self._absorb(part, name, "activities", number)
            self._absorb(part, "calls", "calls", number)
            self._absorb(part, "marks", "marks", number)
        self._add_totals(process, number, timelines)
        for counted in readings(process.counted, self.told):
            table = counted.table
            _place(table, devices.numbers(counted.part, number))
            _fill(table, process=number)
            self.gathered[COUNTERS].absorb(table)

    def _absorb(self, part: ProcessPart, name: str, into: str, process: int) -> None:
        _fill(part[name], process=process)
        self.gathered[into].absorb(part.tables.pop(name))

    def _add_totals(self, process: Process, number: int, timelines: set[str]) -> None:
        """Add the sums of what there are no records of; of whole domains if there are no others."""
        counted = set(timelines)
        for name in ("totals", "domains"):
            found: set[str] = set()
            for part in process.parts:
                table = part[name]
                kinds = list(table.names["kind"])
                wanted = np.array([kind not in counted for kind in kinds], np.bool_)
                if kinds:
                    part.tables[name] = chosen(table, wanted[table.column("kind")])
                found |= set(kinds)
                self._absorb(part, name, "totals", number)
            counted |= found

    def _source(self) -> Source:
        files = self.run.files
        events: Counter[str] = Counter()
        for file in files:
            events.update(file.tally.events)
            events.update(file.tally.domains)
        layouts = list(dict.fromkeys(layout for file in files for layout in file.layouts))
        hosts = (self.host, self.run.system.get("hostname"), self.run.system.get("host_name"))
        return Source(
            format="rocprof",
            files=tuple(
                SourceFile(f.source.label, f.source.stored_bytes, f.source.text_bytes)
                for f in files
            ),
            tool=_tool(layouts),
            clock=clock_of_folder(self.run.root) if self.run.is_one_clock else None,
            facts=dict(_facts(layouts, _recorded(files), self.run.system)),
            event_counts={name: events[name] for name in sorted(events) if events[name]},
            identities=tuple(dict.fromkeys(host for host in hosts if host)),
            kinds_apart=True,
        )


def _place(table: TableBuilder, numbers: IntArray) -> None:
    """Put the numbers of devices in the place of those of the texts that name them."""
    for _, columns in table.pieces:
        if "device" in columns:
            place = columns["device"]
            columns["device"] = int(numbers[place]) if isinstance(place, int) else numbers[place]


def _fill(table: TableBuilder, **columns: int) -> None:
    for _, piece in table.pieces:
        piece |= columns


def _launched(process: Process) -> IntArray:
    """Return the ids of the calls that launched the kernels of a process."""
    return np.concatenate([part["activities"].column("correlation") for part in process.parts])


def _leave_out_graphs(part: ProcessPart, launched: IntArray) -> None:
    """Leave out launches of graphs whose kernels were recorded one by one."""
    table = part["graphs"]
    if table.count:
        correlation = table.column("correlation")
        opaque = (correlation == ABSENT) | ~np.isin(correlation, launched)
        part.tables["graphs"] = chosen(table, opaque)


def _tool(layouts: Sequence[Layout]) -> str:
    generation = _generation(layouts)
    releases = _releases(layouts)
    return f"{_TOOLS[generation]} CSV" + (f" (columns of {releases})" if releases else "")


def _generation(layouts: Sequence[Layout]) -> str:
    found = [layout.generation for layout in layouts]
    return COMPUTE if COMPUTE in found else Counter(found).most_common(1)[0][0]


def _releases(layouts: Sequence[Layout]) -> str:
    return ", ".join(dict.fromkeys(layout.release for layout in layouts if layout.release))


def _recorded(files: Sequence[TableFile]) -> Iterator[str]:
    """Yield what was recorded; of tables of calls of which APIs."""
    for file in files:
        for layout in file.layouts:
            if layout.what == "calls":
                yield from (f"{api_of(domain)}_api" for domain in sorted(file.tally.domains))
            else:
                yield layout.name


def _facts(
    layouts: Sequence[Layout], recorded: Iterable[str], system: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    yield "generation", _generation(layouts)
    if releases := _releases(layouts):
        yield "layout", releases
    yield "recorded", ", ".join(dict.fromkeys(recorded))
    for key in ("rocm_version", "compute_partition", "memory_partition"):
        if system.get(key):
            yield key, system[key][:200]
