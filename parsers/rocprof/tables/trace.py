"""Puts the tables of a run of rocprof together: one trace."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from traceflops.columns import IntArray
from traceflops.parsers.collectives import fill_collectives
from traceflops.parsers.csvfiles.parts import Part, TableFile, chosen
from traceflops.parsers.gathered import Gathered, ProcessFacts
from traceflops.parsers.rocprof.layouts import COMPUTE, Layout
from traceflops.parsers.rocprof.tables.agents import UNKNOWN, Agent
from traceflops.parsers.rocprof.tables.copies import resolve_copies
from traceflops.parsers.rocprof.tables.host import api_of
from traceflops.parsers.rocprof.tables.notes import Told, run_notes
from traceflops.parsers.rocprof.tables.processes import Process
from traceflops.parsers.rocprof.tables.runs import COUNTERS, Run
from traceflops.parsers.rocprof.tables.sums import summed_instances
from traceflops.rows import ABSENT, Array
from traceflops.trace import Source, SourceFile, Trace

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

    def __init__(self, run: Run, host: str | None) -> None:
        self.run = run
        self.host = host
        self.gathered = Gathered()
        self.told = Told()
        self._numbering = run.agents.numbering(_agents_with_kernels(run.processes))
        self._only: Agent | None = None
        self._own: dict[int, Agent] = {}

    def trace(self) -> Trace:
        """Return the trace; the rows of the run are used up."""
        numbers = [self._process(place, one) for place, one in enumerate(self.run.processes)]
        self._number_devices(numbers)
        for number, process in zip(numbers, self.run.processes, strict=True):
            self._add(number, process)
        fill_collectives(self.gathered, {})
        counters, self.told.instances = summed_instances(self.gathered[COUNTERS])
        self.gathered.tables[COUNTERS] = counters
        self.told.overflowed = tuple(self.gathered.overflowed)
        tables = self.gathered.finish()
        return Trace(self._source(), tables, tuple(run_notes(self.run, tables, self.told)))

    def _process(self, place: int, process: Process) -> int:
        file = process.main_file.source.name
        if process.place.rank is not None:
            self.told.ranks.append(process.place.rank)
        facts = ProcessFacts(file, process.place.rank, None, self.host, process.pid)
        return self.gathered.process(place, facts)

    def _number_devices(self, numbers: Sequence[int]) -> None:
        """Number the devices by their numbers in the files, each for its first process."""
        users = [
            (self.run.agents.agent(text, self._numbering), number)
            for number, process in zip(numbers, self.run.processes, strict=True)
            for part in process.all_parts
            for text in part.agents
        ]
        known = {agent.key: agent for agent, _ in users if agent.key != UNKNOWN}
        gpus = [agent for agent in known.values() if agent.is_gpu is not False]
        self._only = gpus[0] if len(gpus) == 1 else None
        self._own = _only_ones((number, agent) for agent, number in users if agent in gpus)
        self.told.unplaced = len(known) < len({agent.key for agent, _ in users})
        for agent, number in sorted(users, key=lambda user: user[0].number):
            self._device(agent, number)

    def _device(self, agent: Agent, process: int) -> int:
        if agent.key != UNKNOWN:
            return self.gathered.device(agent.key, process, agent.number, agent.facts)
        own = self._own.get(process, self._only)
        if own is None:
            return self.gathered.device((UNKNOWN, process), process, agent.number, agent.facts)
        return self.gathered.device(own.key, process, own.number, own.facts)

    def _add(self, number: int, process: Process) -> None:
        """Add the rows of a process."""
        timelines = {kind for kind, table in _TIMELINES.items() if process.has(table)}
        launched = _launched(process) if process.has("graphs") else np.empty(0, np.int64)
        for part in process.parts:
            agents = [self.run.agents.agent(text, self._numbering) for text in part.agents]
            devices = np.array([*(self._device(one, number) for one in agents), ABSENT], np.int64)
            self._place(part, "activities", devices)
            self._place(part, "graphs", devices)
            self._place(part, "marks", devices)
            self.told.host_copies += resolve_copies(part, agents, devices)
            _leave_out_graphs(part, launched)
            for name in ("activities", "copies", "graphs"):
                self._absorb(part, name, "activities", number)
            self._absorb(part, "calls", "calls", number)
            self._absorb(part, "marks", "marks", number)
        self._add_totals(process, number, timelines)
        for repetition, is_own, part in process.counted:
            self._add_counters(part, repetition, number, is_own=is_own)

    def _place(self, part: Part, name: str, devices: Array) -> None:
        for _, columns in part[name].pieces:
            if "device" in columns:
                columns["device"] = devices[columns["device"]]

    def _absorb(self, part: Part, name: str, into: str, process: int) -> None:
        for _, columns in part[name].pieces:
            columns["process"] = process
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

    def _add_counters(
        self, part: Part, repetition: int | None, process: int, *, is_own: bool
    ) -> None:
        """Add counters; an id of another repetition than that of the times links to nothing."""
        agents = [self.run.agents.agent(text, self._numbering) for text in part.agents]
        devices = np.array([*(self._device(one, process) for one in agents), ABSENT], np.int64)
        self._place(part, COUNTERS, devices)
        for _, columns in part[COUNTERS].pieces:
            if repetition is not None:
                columns["repetition"] = repetition
            if not is_own:
                columns["correlation"] = ABSENT
        self._absorb(part, COUNTERS, COUNTERS, process)

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
                SourceFile(f.source.name, f.source.stored_bytes, f.source.text_bytes) for f in files
            ),
            tool=_tool(layouts),
            clock=_clock(self.run) if self.run.is_one_clock else None,
            facts=dict(_facts(layouts, _recorded(files), self.run.system)),
            event_counts={name: events[name] for name in sorted(events) if events[name]},
            identities=tuple(dict.fromkeys(host for host in hosts if host)),
        )


def _only_ones(users: Iterable[tuple[int, Agent]]) -> dict[int, Agent]:
    """Return the GPU of each process that used one alone."""
    found: dict[int, dict[Hashable, Agent]] = {}
    for number, agent in users:
        found.setdefault(number, {})[agent.key] = agent
    return {
        number: next(iter(agents.values())) for number, agents in found.items() if len(agents) == 1
    }


def _agents_with_kernels(processes: Sequence[Process]) -> Iterator[str]:
    """Yield how files name the agents that ran kernels."""
    for part in (part for process in processes for part in process.all_parts):
        texts = list(part.agents)
        for name in ("activities", COUNTERS):
            codes = np.unique(part[name].column("device"))
            yield from (texts[code] for code in codes.tolist() if 0 <= code < len(texts))


def _launched(process: Process) -> IntArray:
    """Return the ids of the calls that launched the kernels of a process."""
    return np.concatenate([part["activities"].column("correlation") for part in process.parts])


def _leave_out_graphs(part: Part, launched: IntArray) -> None:
    """Leave out launches of graphs whose kernels were recorded one by one."""
    table = part["graphs"]
    if table.count:
        correlation = table.column("correlation")
        opaque = (correlation == ABSENT) | ~np.isin(correlation, launched)
        part.tables["graphs"] = chosen(table, opaque)


def _clock(run: Run) -> str:
    """Return what names the clock of the machine whose folder it is, without naming the folder."""
    return f"folder {hashlib.sha256(run.root.encode()).hexdigest()[:16]}"


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
