"""Reads CSV files of rocprof, all at once, since a run is a set of files."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
from msgspec.structs import replace

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io.csv_cells import Cells, Texts
from traceflops.parsers.io.csv_text import TEXT_BLOCK_BYTES, CsvBlock, CsvText
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.notes import not_read, read_each, with_notes
from traceflops.parsers.rocprof.layouts import COMPUTE, ROCPROF_TABLES, RocprofTable
from traceflops.parsers.rocprof.tables import counters, work
from traceflops.parsers.rocprof.tables.parts import (
    BUILT_AS,
    COUNTERS,
    ProcessPart,
    TableFile,
    hosts,
    place_of,
    same_run,
)
from traceflops.parsers.rocprof.tables.processes import NAMED_BY, Devices, Process
from traceflops.parsers.rocprof.tables.runs import TableRun, runs_of
from traceflops.parsers.rocprof.trace import NOTES, clock_of_folder, file_notes, run_notes
from traceflops.parsers.shared.collectives import fill_collectives
from traceflops.parsers.shared.trace_builder import Gathered, ProcessFacts, chosen, overflow_notes
from traceflops.table.builder import TableBuilder
from traceflops.table.columns import ABSENT, IntArray
from traceflops.table.trace import Note, Source, SourceFile, Trace
from traceflops.units import listed, several

_MOST_AGENTS: Final = 4_096
_MOST_NEIGHBOURS: Final = 10_000
_ADDERS: Final[dict[str, Callable[[Cells, ProcessPart], None]]] = {
    "kernels": work.add_kernels,
    "copies": work.add_copies,
    "graphs": work.add_graphs,
    "operations": work.add_operations,
    "calls": work.add_calls,
    "scratch": work.add_scratch,
    "counters": counters.add_counters,
    "totals": counters.add_totals,
    "pushes": work.add_pushes,
}
_ASCENDING: Final = (("start", "end"), ("end", "completed"))
_TIMELINES: Final[Mapping[str, str]] = {
    "kernel": "activities",
    "memcpy": "copies",
    "memset": "copies",
    "call": "calls",
    "mark": "marks",
}
"""The table with the single records of each kind of totals."""
_TOOLS: Final = {"v1": "rocprof", "v2": "rocprofv2", "v3": "rocprofv3", COMPUTE: "rocprof-compute"}


def read_tables(sources: Sequence[ByteSource]) -> list[Trace]:
    """Return the traces of the runs in some CSV files of rocprof.

    A file that cannot be read becomes a note. Raises InputError if no row of any file can be used.
    """
    files, failed = read_each(sources, read_table, close=True)
    runs = runs_of(files)
    host_of = hosts(file.place for file in files)
    used = [run for run in runs if run.processes]
    if not used:
        raise _no_rows(files)
    traces = [Assembly(run, host_of.get(run.root)).trace() for run in used]
    notes = not_read(failed)
    unused = [file for run in runs if not run.processes for file in run.files]
    for file in unused:
        notes += file_notes(file)
    empty = [file for file in unused if not file.agents]  # a list of agents has no records
    notes += [replace(NOTES.note("no-rows"), file=file.source.label) for file in empty]
    return with_notes(traces, [*notes, *_neighbour_notes(files)])


def _no_rows(files: Sequence[TableFile]) -> InputError:
    """Return the error that no file has a usable row, with the most likely reason."""
    name = files[0].source.label
    kinds = {kind for file in files for kind in file.kinds}
    if kinds and kinds <= {"agents", "system"}:
        return NotATrace(
            f"only a list of the machine's GPUs: {name}",
            "give the other tables of the run, such as ..._kernel_trace.csv; a launcher "
            "process writes only this one",
        )
    if "untimed" in kinds:
        return InputError(
            f"rocprof table without times or counters: {name}",
            "record with rocprofv3 --kernel-trace, or with --timestamp on or counters",
        )
    if any(file.damage.bad_cells or file.odd["no-time"] for file in files):
        return InputError(
            f"no row has a valid time: {name}",
            "a spreadsheet may have rounded the times; give the file as rocprof wrote it",
        )
    if any(file.damage.dropped_rows or file.damage.cut_bytes for file in files):
        return InputError(f"no readable row: {name}", "copy the file again or record again")
    if rows := sum(sum((file.events + file.domains).values()) for file in files):
        return InputError(
            f"no row can be used: {name} ({several(rows, 'row')})",
            "give the file as rocprof wrote it, or record again",
        )
    return InputError(
        f"no rows: {name} (header only)", "nothing was launched while recording; record again"
    )


def read_table(source: ByteSource, block_bytes: int = TEXT_BLOCK_BYTES) -> TableFile:
    """Return the rows of a file; it has no layout if it turns out to be no table of rocprof."""
    text = CsvText(source, ROCPROF_TABLES, block_bytes)
    file = TableFile(source, place_of(source.folder, source.name), text.damage)
    for block in text:
        table: RocprofTable = block.plan.what
        file.note(table)
        if table.what == "agents":
            file.agents += _records(block, _MOST_AGENTS - len(file.agents))
            continue
        if table.what == "system":
            file.system = file.system or _records(block, 1)[0]
            continue
        rows = block.cells
        # The last row may be cut off within a number: if it ends before it starts, drop it.
        if block.last_is_open and any(0 <= rows[b][-1] < rows[a][-1] for a, b in _ASCENDING):
            file.damage.cut_bytes = 0  # the file is cut; no bytes beside this row are lost
            rows = rows.only(np.arange(rows.count - 1))
        _add_rows(rows, table, file)
    if text.plan is not None:  # the last table, which has no block if it has no rows
        file.note(text.plan.what)
    for part in file.parts.values():
        work.pair_pushes(part)
    bad = file.damage.bad_cells
    if file.kinds == {"wide"} and (bad["start"] or bad["end"]):
        # Times beside counters that are no whole numbers are means over several passes: unused.
        for part in file.parts.values():
            part.beside = None
        for role in ("start", "end", "dispatched", "completed"):
            del bad[role]
    return file


def _add_rows(rows: Cells, table: RocprofTable, file: TableFile) -> None:
    """Add rows of a table to the parts of the file, by process and kind of table."""
    if table.what != "calls":  # calls are counted by domain
        file.events[table.layout.name] += rows.count
    for part, cut in file.cuts(rows):
        if table.what == "wide":
            counters.add_wide(cut, part, table.counters)
            if cut.has("start"):
                work.add_kernels(cut, part.times_beside())
        elif table.what == "events":  # they are only counted
            part.records += cut.count
        elif table.what in _ADDERS:
            _ADDERS[table.what](cut, part)


def _records(block: CsvBlock, most: int) -> list[dict[str, str]]:
    """Return at most `most` rows of a table, each as the texts of its columns by name."""
    columns = {
        name: [column.values[code] for code in column.codes[:most].tolist()]
        for name, column in block.cells.columns.items()
        if isinstance(column, Texts)
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _neighbour_notes(files: Sequence[TableFile]) -> Iterator[Note]:
    """Yield a note per process that has further tables in its folder, which were not given."""
    given: dict[Path, dict[str, str]] = {}  # by folder: the key of each file
    for file in files:
        if (path := file.source.path) is not None:
            given.setdefault(path.parent, {})[path.name] = file.place.key
    for folder, keys in given.items():
        try:
            with os.scandir(folder) as entries:
                names = {entry.name for entry in islice(entries, _MOST_NEIGHBOURS)}
        except OSError:
            continue
        not_given = sorted(names - keys.keys())
        # The files of a process have one key; the note is on the last of them.
        for key, name in {key: name for name, key in keys.items()}.items():
            if siblings := same_run(not_given, key):
                first, shown = listed(siblings, most=4), folder.resolve().name or folder
                note = NOTES.note("siblings-not-read", len(siblings), listed=first, folder=shown)
                yield replace(note, file=name)


class Assembly(Gathered):
    """Makes the trace of a run from the rows of its files, which it uses up."""

    def __init__(self, run: TableRun, host: str | None) -> None:
        super().__init__()
        self._run = run
        self._host = host

    def trace(self) -> Trace:
        """Add the rows of all processes; return the trace."""
        processes = []
        for index, process in enumerate(self._run.processes):
            naming = (part for table in NAMED_BY for part in process.parts if part.has(table))
            label = next(naming, process.parts[0]).file.source.label
            facts = ProcessFacts(label, process.place.rank, None, self._host, process.pid)
            processes.append((self.process(index, facts), process))
        devices = Devices(self._run.agents, processes, self)
        self._run.odd["device-unknown"] = devices.has_unknown
        for number, process in processes:
            self._add(number, process, devices)
        fill_collectives(self, {})
        tables = self.finish()
        overflowed = overflow_notes(self.tables.values(), self._run.files[0].source.label)
        notes = tuple(run_notes(self._run, tables, overflowed))
        return Trace(self._source(), tables, notes, places=self.places)

    def _source(self) -> Source:
        """Return the description of the files: generation, releases, tables, counts."""
        files, system = self._run.files, self._run.system
        events: Counter[str] = Counter()
        recorded: list[str] = []
        for file in files:
            events.update(file.events)
            events.update(file.domains)
            for layout in file.layouts:
                apis = [f"{work.api_of(domain)}_api" for domain in sorted(file.domains)]
                recorded += apis if layout.what == "calls" else [layout.name]
        layouts = list(dict.fromkeys(layout for file in files for layout in file.layouts))
        generations = [layout.generation for layout in layouts]
        most_common = Counter(generations).most_common(1)[0][0]
        # rocprof-compute runs the other tools, so their tables are beside its own.
        generation = COMPUTE if COMPUTE in generations else most_common
        releases = ", ".join(dict.fromkeys(layout.release for layout in layouts if layout.release))
        facts = {"generation": generation}
        if releases:
            facts["layout"] = releases
        facts["recorded"] = ", ".join(dict.fromkeys(recorded))
        for key in ("rocm_version", "compute_partition", "memory_partition"):
            if system.get(key):
                facts[key] = system[key][:200]  # a damaged text may be long
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

    def _add(self, number: int, process: Process, devices: Devices) -> None:
        """Add the rows of a process, whose number is `number`: timeline, totals, counters."""
        odd = self._run.odd
        recorded = {kind for kind, table in _TIMELINES.items() if process.has(table)}
        is_counted = any(is_own for _, is_own, _ in process.counted)
        odd["counted-while-timed"] |= is_counted and process.has_work

        # The timeline.
        launched: list[IntArray] = []
        if process.has("graphs"):
            launched = [part["activities"].column("correlation") for part in process.parts]
        for part in process.parts:
            numbers = devices.numbers(part, number)
            for name in ("activities", "graphs", "marks"):
                _number_devices(part[name], numbers)
            odd["host-copies"] += work.resolve_copies(part, devices.agents(part), numbers)
            graphs = part["graphs"]
            if graphs.count:  # leave out launches whose kernels were recorded one by one
                launch = graphs.column("correlation")
                without_kernels = (launch == ABSENT) | ~np.isin(launch, np.concatenate(launched))
                part.tables["graphs"] = chosen(graphs, without_kernels)
            for name in ("activities", "copies", "graphs", "calls", "marks"):
                if name in part.tables:
                    into = BUILT_AS.get(name, name)
                    self._absorb(part.tables.pop(name), into, process=number)

        # Totals only of kinds without single records; of domains only without totals by name.
        for name in ("totals", "domains"):
            summed: set[str] = set()
            for part in (part for part in process.parts if part.has(name)):
                table = part[name]
                kinds = list(table.names["kind"])
                wanted = np.array([kind not in recorded for kind in kinds])
                summed.update(kinds)
                rows = chosen(table, wanted[table.column("kind")])
                if name == "domains":
                    rows.replace(
                        "kind", np.full(rows.count, rows.names["kind"]["domain"], np.int32)
                    )
                self._absorb(rows, "totals", process=number)
            recorded |= summed

        # Counters by repetition. Only in the run whose times are used do their ids link to calls.
        runs: defaultdict[tuple[int | None, bool], list[ProcessPart]] = defaultdict(list)
        for repetition, is_own, part in process.counted:
            _number_devices(part[COUNTERS], devices.numbers(part, number))
            runs[repetition, is_own].append(part)
        for (repetition, is_own), parts in runs.items():
            columns = {"process": number} if is_own else {"process": number, "correlation": ABSENT}
            if repetition is not None:
                columns["repetition"] = repetition
            self._absorb(counters.counted_once(parts, odd), COUNTERS, **columns)

    def _absorb(self, table: TableBuilder, into: str, **columns: int) -> None:
        """Move rows into a table of the trace, with `columns` that are the same in all rows."""
        for _, piece in table.pieces:
            piece |= columns
        self[into].absorb(table)


def _number_devices(table: TableBuilder, numbers: IntArray) -> None:
    """Replace, in place, the device of each row: the index of its text by its number."""
    table.replace("device", numbers[np.maximum(table.column("device"), -1)])  # -1: no text
