"""Puts the tables of a run of rocprof together: one trace."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from traceflops.parsers.rocprof.layouts import COMPUTE, Layout
from traceflops.parsers.rocprof.notes import clock_of_folder, run_notes
from traceflops.parsers.rocprof.tables.counters import counted_once
from traceflops.parsers.rocprof.tables.parts import COUNTERS, ProcessPart, TableFile
from traceflops.parsers.rocprof.tables.processes import Devices, Process
from traceflops.parsers.rocprof.tables.runs import TableRun
from traceflops.parsers.rocprof.tables.work import api_of, resolve_copies
from traceflops.parsers.shared import Gathered, ProcessFacts, chosen, fill_collectives
from traceflops.table import ABSENT, IntArray, Source, SourceFile, TableBuilder, Trace

_TIMELINES: Final[Mapping[str, str]] = {
    "kernel": "activities",
    "memcpy": "copies",
    "memset": "copies",
    "call": "calls",
    "mark": "marks",
}
"""The table with the records whose totals are of each kind."""
_INTO: Final = {
    "activities": "activities",
    "copies": "activities",
    "graphs": "activities",
    "calls": "calls",
    "marks": "marks",
}
"""The table into which the rows of each go."""
_TOOLS: Final = {"v1": "rocprof", "v2": "rocprofv2", "v3": "rocprofv3", COMPUTE: "rocprof-compute"}


class Assembly:
    """Makes the trace of a run."""

    def __init__(self, run: TableRun, host: str | None) -> None:
        self.run = run
        self.host = host
        self.gathered = Gathered()

    def trace(self) -> Trace:
        """Return the trace; the rows of the run are used up."""
        processes = [
            (self._process(place, process), process)
            for place, process in enumerate(self.run.processes)
        ]
        devices = Devices(self.run.agents, processes, self.gathered)
        self.run.odd["device-unknown"] = devices.unplaced
        for number, process in processes:
            self._add(number, process, devices)
        fill_collectives(self.gathered, {})
        overflowed = self.gathered.overflowed
        tables = self.gathered.finish()
        notes = tuple(run_notes(self.run, tables, overflowed))
        return Trace(self._source(), tables, notes, places=self.gathered.places)

    def _process(self, place: int, process: Process) -> int:
        file, rank = process.main_file.source.label, process.place.rank
        return self.gathered.process(place, ProcessFacts(file, rank, None, self.host, process.pid))

    def _add(self, number: int, process: Process, devices: Devices) -> None:
        """Add the rows of a process."""
        timelines = {kind for kind, table in _TIMELINES.items() if process.has(table)}
        is_counted = any(is_own for _, is_own, _ in process.counted)
        self.run.odd["counted-while-timed"] |= is_counted and process.has_work
        launched: list[IntArray] = []
        if process.has("graphs"):
            launched = [part["activities"].column("correlation") for part in process.parts]
        for part in process.parts:
            numbers = devices.numbers(part, number)
            for name in ("activities", "graphs", "marks"):
                _place(part[name], numbers)
            self.run.odd["host-copies"] += resolve_copies(part, devices.agents(part), numbers)
            _leave_out_graphs(part, launched)
            for name, into in _INTO.items():
                if name in part.tables:
                    self._absorb(part.tables.pop(name), into, process=number)
        self._add_totals(process, number, timelines)
        self._add_counters(process, number, devices)

    def _add_counters(self, process: Process, number: int, devices: Devices) -> None:
        """Add the counters of each repetition; only ids of the run with the times link to calls."""
        runs: defaultdict[tuple[int | None, bool], list[ProcessPart]] = defaultdict(list)
        for repetition, is_own, part in process.counted:
            _place(part[COUNTERS], devices.numbers(part, number))
            runs[repetition, is_own].append(part)
        for (repetition, is_own), parts in runs.items():
            columns = {"process": number} if is_own else {"process": number, "correlation": ABSENT}
            if repetition is not None:
                columns["repetition"] = repetition
            self._absorb(counted_once(parts, self.run.odd), COUNTERS, **columns)

    def _absorb(self, table: TableBuilder, into: str, **columns: int) -> None:
        for _, piece in table.pieces:
            piece |= columns
        self.gathered[into].absorb(table)

    def _add_totals(self, process: Process, number: int, timelines: set[str]) -> None:
        """Add the sums of what there are no records of; of whole domains if there are no others."""
        counted = set(timelines)
        for name in ("totals", "domains"):
            found: set[str] = set()
            for part in process.parts:
                if part.has(name):
                    table = part[name]
                    kinds = list(table.names["kind"])
                    wanted = np.array([kind not in counted for kind in kinds])
                    found.update(kinds)
                    rows = chosen(table, wanted[table.column("kind")])
                    self._absorb(rows, "totals", process=number)
            counted |= found

    def _source(self) -> Source:
        files = self.run.files
        events: Counter[str] = Counter()
        for file in files:
            events.update(file.events)
            events.update(file.domains)
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


def _leave_out_graphs(part: ProcessPart, launched: Sequence[IntArray]) -> None:
    """Leave out launches of graphs whose kernels were recorded one by one."""
    table = part["graphs"]
    if table.count:
        correlation = table.column("correlation")
        opaque = (correlation == ABSENT) | ~np.isin(correlation, np.concatenate(launched))
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
                yield from (f"{api_of(domain)}_api" for domain in sorted(file.domains))
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
