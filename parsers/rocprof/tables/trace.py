"""Puts the tables of a run of rocprof together: one trace."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Final

import numpy as np

from traceflops.parsers.rocprof.layouts import COMPUTE
from traceflops.parsers.rocprof.notes import clock_of_folder, run_notes
from traceflops.parsers.rocprof.tables.counters import counted_once
from traceflops.parsers.rocprof.tables.parts import COUNTERS, ProcessPart
from traceflops.parsers.rocprof.tables.processes import Devices, Process
from traceflops.parsers.rocprof.tables.runs import TableRun
from traceflops.parsers.rocprof.tables.work import api_of, resolve_copies
from traceflops.parsers.shared.collectives import fill_collectives
from traceflops.parsers.shared.trace_builder import Gathered, ProcessFacts, chosen
from traceflops.table.builder import TableBuilder
from traceflops.table.columns import ABSENT, IntArray
from traceflops.table.trace import Source, SourceFile, Trace

_TIMELINES: Final[Mapping[str, str]] = {
    "kernel": "activities",
    "memcpy": "copies",
    "memset": "copies",
    "call": "calls",
    "mark": "marks",
}
"""The table that has the records of each kind of totals."""
_INTO: Final = {
    "activities": "activities",
    "copies": "activities",
    "graphs": "activities",
    "calls": "calls",
    "marks": "marks",
}
"""The table of the trace that the rows of each builder go to."""
_TOOLS: Final = {"v1": "rocprof", "v2": "rocprofv2", "v3": "rocprofv3", COMPUTE: "rocprof-compute"}


class Assembly(Gathered):
    """Makes the trace of a run, and uses up its rows."""

    def __init__(self, run: TableRun, host: str | None) -> None:
        super().__init__()
        self._run = run
        self._host = host

    def trace(self) -> Trace:
        """Return the trace."""
        processes = []
        for key, process in enumerate(self._run.processes):
            file, rank = process.main_file.source.label, process.place.rank
            facts = ProcessFacts(file, rank, None, self._host, process.pid)
            processes.append((self.process(key, facts), process))
        devices = Devices(self._run.agents, processes, self)
        self._run.odd["device-unknown"] = devices.has_unknown
        for number, process in processes:
            self._add(number, process, devices)
        fill_collectives(self, {})
        overflowed = self.overflowed
        tables = self.finish()
        notes = tuple(run_notes(self._run, tables, overflowed))
        return Trace(self._source(), tables, notes, places=self.places)

    def _add(self, number: int, process: Process, devices: Devices) -> None:
        """Add the rows of a process under its number."""
        odd = self._run.odd
        recorded = {kind for kind, table in _TIMELINES.items() if process.has(table)}
        is_counted = any(is_own for _, is_own, _ in process.counted)
        odd["counted-while-timed"] |= is_counted and process.has_work
        launched: list[IntArray] = []
        if process.has("graphs"):
            launched = [part["activities"].column("correlation") for part in process.parts]
        for part in process.parts:
            numbers = devices.numbers(part, number)
            for name in ("activities", "graphs", "marks"):
                _number_devices(part[name], numbers)
            odd["host-copies"] += resolve_copies(part, devices.agents(part), numbers)
            graphs = part["graphs"]
            if graphs.count:  # leave out those whose kernels were recorded one by one
                launch = graphs.column("correlation")
                opaque = (launch == ABSENT) | ~np.isin(launch, np.concatenate(launched))
                part.tables["graphs"] = chosen(graphs, opaque)
            for name, into in _INTO.items():
                if name in part.tables:
                    self._absorb(part.tables.pop(name), into, process=number)
        self._add_sums(number, process, recorded)
        self._add_counters(number, process, devices)

    def _add_sums(self, number: int, process: Process, recorded: set[str]) -> None:
        """Add sums of what is not `recorded`; of whole domains if there are no others."""
        for name in ("totals", "domains"):
            summed: set[str] = set()
            for part in (part for part in process.parts if part.has(name)):
                table = part[name]
                kinds = list(table.names["kind"])
                wanted = np.array([kind not in recorded for kind in kinds])
                summed.update(kinds)
                rows = chosen(table, wanted[table.column("kind")])
                self._absorb(rows, "totals", process=number)
            recorded |= summed

    def _add_counters(self, number: int, process: Process, devices: Devices) -> None:
        """Add the counters of each repetition; only ids of the run with the times link to calls."""
        runs: defaultdict[tuple[int | None, bool], list[ProcessPart]] = defaultdict(list)
        for repetition, is_own, part in process.counted:
            _number_devices(part[COUNTERS], devices.numbers(part, number))
            runs[repetition, is_own].append(part)
        for (repetition, is_own), parts in runs.items():
            columns = {"process": number} if is_own else {"process": number, "correlation": ABSENT}
            if repetition is not None:
                columns["repetition"] = repetition
            self._absorb(counted_once(parts, self._run.odd), COUNTERS, **columns)

    def _absorb(self, table: TableBuilder, into: str, **columns: int) -> None:
        for _, piece in table.pieces:
            piece |= columns
        self[into].absorb(table)

    def _source(self) -> Source:
        """Return what is known of the files as a whole, and what they recorded."""
        files, system = self._run.files, self._run.system
        events: Counter[str] = Counter()
        recorded: list[str] = []
        for file in files:
            events.update(file.events)
            events.update(file.domains)
            for layout in file.layouts:
                apis = [f"{api_of(domain)}_api" for domain in sorted(file.domains)]
                recorded += apis if layout.what == "calls" else [layout.name]
        layouts = list(dict.fromkeys(layout for file in files for layout in file.layouts))
        generations = [layout.generation for layout in layouts]
        most_common = Counter(generations).most_common(1)[0][0]
        generation = COMPUTE if COMPUTE in generations else most_common
        releases = ", ".join(dict.fromkeys(layout.release for layout in layouts if layout.release))
        facts = {"generation": generation}
        if releases:
            facts["layout"] = releases
        facts["recorded"] = ", ".join(dict.fromkeys(recorded))
        for key in ("rocm_version", "compute_partition", "memory_partition"):
            if system.get(key):
                facts[key] = system[key][:200]
        hosts = (self._host, system.get("hostname"), system.get("host_name"))
        sources = [file.source for file in files]
        return Source(
            format="rocprof",
            files=tuple(SourceFile(s.label, s.stored_bytes, s.text_bytes) for s in sources),
            tool=f"{_TOOLS[generation]} CSV" + (f" (columns of {releases})" if releases else ""),
            clock=clock_of_folder(self._run.root) if self._run.is_one_clock else None,
            facts=facts,
            event_counts={name: events[name] for name in sorted(events) if events[name]},
            identities=tuple(dict.fromkeys(host for host in hosts if host)),
            kinds_apart=True,
        )


def _number_devices(table: TableBuilder, numbers: IntArray) -> None:
    """Replace indices of the texts that name devices by the numbers of the devices."""
    for _, columns in table.pieces:
        if "device" in columns:
            text = columns["device"]
            columns["device"] = int(numbers[text]) if isinstance(text, int) else numbers[text]
