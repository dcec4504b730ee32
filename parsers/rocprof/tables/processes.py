"""Which rows of rocprof's CSV files belong to one process, and which devices its texts name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct, field

from traceflops.characters import kernel_name
from traceflops.parsers.rocprof.agents import UNKNOWN, Agent, Agents, place_of_node
from traceflops.parsers.rocprof.tables.parts import (
    COUNTERS,
    OutputPlace,
    ProcessPart,
    Stretch,
    TableFile,
)
from traceflops.parsers.shared.sanity_checks import DAY_NS
from traceflops.parsers.shared.trace_builder import Gathered
from traceflops.table.columns import ABSENT, IntArray
from traceflops.table.grouping import distinct

_STARTING_NS: Final = 10**6
"""A process takes longer than this to start: rows further apart are of two runs."""
NAMED_BY: Final = ("activities", "copies", "calls", "marks", COUNTERS, "totals")
"""A process is named by its first file that has the first of these tables, else the second, ..."""


class Process(Struct, eq=False):
    """The rows of one process.

    A run may be repeated for more counters; `others` are this process in the other repetitions.
    `counted` has the counters of each: number of the repetition (None if there is only one),
    whether its times are those that are used, rows. `names` are the keys and ranks of its files.
    """

    place: OutputPlace
    guid: str | None = None
    pid: int | None = None
    parts: list[ProcessPart] = field(default_factory=list)
    counted: list[tuple[int | None, bool, ProcessPart]] = field(default_factory=list)
    others: list[Process] = field(default_factory=list)
    names: set[tuple[str, int | None]] = field(default_factory=set)

    def all(self) -> Iterator[Process]:
        """Yield the process and, recursively, its repetitions."""
        yield self
        for other in self.others:
            yield from other.all()

    @property
    def all_parts(self) -> list[ProcessPart]:
        """Its parts in all files, then the counter parts of other repetitions."""
        repetitions = list(self.all())[1:]
        counting = [part for other in repetitions for part in other.parts if part.has(COUNTERS)]
        return [*self.parts, *counting]

    @property
    def stretch(self) -> Stretch:
        """The times at which its first and its last record begin."""
        whole = Stretch()
        for part in self.parts:
            whole.join(part.stretch)
        return whole

    @property
    def order(self) -> tuple[int, int, str]:
        """The key by which the processes of a run are sorted: rank, pid, name."""
        rank = self.place.rank
        return (2**31 if rank is None else rank, self.pid or 0, self.place.key)

    def has(self, *tables: str) -> bool:
        """Return whether it has rows in one of these tables."""
        return any(part.has(*tables) for part in self.parts)

    @property
    def has_work(self) -> bool:
        """Whether it has times of device work."""
        return self.has("activities", "copies", "graphs")

    @property
    def kernel_agents(self) -> frozenset[str]:
        """The texts by which its files name the devices that ran kernels or have counters."""
        agents: set[str] = set()
        for part in self.all_parts:
            texts = list(part.agents)
            for name in ("activities", COUNTERS):
                codes = distinct(part[name].column("device")) if part.has(name) else ()
                agents.update(texts[code] for code in codes if 0 <= code < len(texts))
        return frozenset(agents - {""})

    def count_own(self, repetition: int | None) -> None:
        """Set `counted` to the counters in the parts of this process, as counters of `repetition`.

        Process ids recur, so counters may be of another run than the times. They are if they were
        read at another time, or if they are columns beside times (these times are not used).
        """
        self.counted = []
        for part in self.parts:
            if part.has(COUNTERS):
                is_apart = part.counting.is_apart(self.stretch, by_ns=_STARTING_NS)
                is_other_run = self.has_work and (part.is_wide or is_apart)
                self.counted.append((repetition, not is_other_run, part))

    def join(self, other: Process, repetition: int | None) -> None:
        """Add the counters of `other`, which is this process in another repetition."""
        self.counted += [
            (repetition, False, part) for part in other.all_parts if part.has(COUNTERS)
        ]
        self.others.append(other)


def names_in(parts: Iterable[ProcessPart], column: str, *tables: str) -> set[str]:
    """Return the distinct names in a column of some tables, as `kernel_name` shortens them."""
    names = [part[table].names[column] for part in parts for table in tables if part.has(table)]
    return set(map(kernel_name, set().union(*names)))


def processes_of(files: Sequence[TableFile]) -> list[Process]:
    """Return the processes in the files of one pass, by guid, else rank and pid, else file name."""
    processes: dict[Hashable, Process] = {}
    unnamed: defaultdict[tuple[str, int | None], list[ProcessPart]] = defaultdict(list)
    for part in (part for file in files for part in file.parts.values()):
        if not part.records and not part.has(*part.tables):  # no rows
            continue
        output = part.file.place
        pid = output.pid if part.pid is None else part.pid
        if part.guid is None and pid is None:
            unnamed[output.key, output.rank].append(part)
            continue
        key = ("guid", part.guid) if part.guid else ("pid", output.rank, pid)
        process = processes.setdefault(key, Process(output))
        process.guid = part.guid
        process.pid = process.pid if pid is None else pid
        process.parts.append(part)
        process.names.add((output.key, output.rank))

    # Join a process that is known by pid alone to the only process with a guid and this pid.
    of_pid: defaultdict[int | None, list[Process]] = defaultdict(list)
    for process in processes.values():
        if process.guid is not None:
            of_pid[process.pid].append(process)
    for own_key, process in list(processes.items()):
        same_pid = of_pid[process.pid]
        if process.guid is None and len(same_pid) == 1:
            same_pid[0].parts += process.parts
            same_pid[0].names |= process.names
            del processes[own_key]

    # Rows without a process belong to the process of the files with the same name. If there are
    # several, or it is of another day, the rows get a process without a pid.
    named = list(processes.values())
    for name, parts in unnamed.items():
        of_name = [process for process in named if name in process.names]
        candidates = of_name if len(of_name) == 1 else []
        for part in sorted(parts, key=lambda p: p.stretch.low if p.stretch else -1):
            of_day = (c for c in candidates if not c.stretch.is_apart(part.stretch, by_ns=DAY_NS))
            owner = next(of_day, None)
            if owner is None:
                owner = Process(part.file.place, names={name})
                processes[(*name, len(processes))] = owner
                candidates.append(owner)
            owner.parts.append(part)
    return sorted(processes.values(), key=lambda process: process.order)


def agents_listed(
    files: Iterable[TableFile], system: Mapping[str, str]
) -> dict[Hashable | None, Agents]:
    """Return the lists of agents, by guid or by (pass, key) of the file; under None the first.

    Each process has its own list: it may see only some devices, and numbers only these.
    """
    rows: defaultdict[Hashable, list[Mapping[str, str]]] = defaultdict(list)
    for file in files:
        for row in file.agents:
            guid = next((cell for key, cell in row.items() if key.lower() == "guid"), "")
            rows[guid or (file.place.run_pass, file.place.key)].append(row)
    lists: dict[Hashable | None, Agents] = {k: Agents(listed, system) for k, listed in rows.items()}
    return lists | {None: next(iter(lists.values()), Agents((), system))}


class Devices:
    """The devices of a run, in the order of the numbers that their files give them.

    A device belongs to the first process that uses it. `has_unknown`: some records name no device.
    """

    def __init__(
        self,
        lists: Mapping[Hashable | None, Agents],
        processes: Sequence[tuple[int, Process]],
        builder: Gathered,
    ) -> None:
        """Add to `builder` all devices that records name; `processes` come with their numbers."""

        def list_of(process: Process, otherwise: Agents) -> Agents:
            names = [(process.place.run_pass, name) for name, _ in sorted(process.names, key=str)]
            keys = (key for key in (process.guid, *names) if key and key in lists)
            return next((lists[key] for key in keys), otherwise)

        self._gathered = builder
        # The list of agents of each part, and how the texts number the agents of each list.
        self._lists: dict[ProcessPart, Agents] = {}
        texts: defaultdict[Agents, set[str]] = defaultdict(set)
        for _, process in processes:
            own = list_of(process, lists[None])
            for repetition in process.all():
                agents = list_of(repetition, own)
                self._lists |= dict.fromkeys(repetition.parts, agents)
                texts[agents] |= repetition.kernel_agents
        self._numbering = {agents: agents.numbering(names) for agents, names in texts.items()}

        # The agents that records name, with the number of the process of the records.
        users = [
            (agent, number)
            for number, process in processes
            for part in process.all_parts
            for agent in self.agents(part)
        ]
        named = {agent.key: agent for agent, _ in users if agent.key != UNKNOWN}
        self.has_unknown = len(named) < len({agent.key for agent, _ in users})

        # An unknown agent is taken as the only GPU of its process, else as the only one of all.
        gpus = [agent for agent in named.values() if agent.is_gpu is not False]  # or not known
        used: defaultdict[int, dict[Hashable, Agent]] = defaultdict(dict)
        for agent, number in users:
            if agent in gpus:
                used[number][agent.key] = agent
        self._only = gpus[0] if len(gpus) == 1 else None
        self._only_of = {n: next(iter(own.values())) for n, own in used.items() if len(own) == 1}
        for agent, number in sorted(users, key=lambda user: user[0].number):
            self._device(agent, number)

    def agents(self, part: ProcessPart) -> list[Agent]:
        """Return the agent that each text of a part names."""
        agents = self._lists[part]
        return [agents.agent(text, self._numbering[agents]) for text in part.agents]

    def numbers(self, part: ProcessPart, process: int) -> IntArray:
        """Return the device of each text of a part; ABSENT at the end is for the index -1."""
        numbers = (self._device(agent, process) for agent in self.agents(part))
        return np.array([*numbers, ABSENT], np.int64)

    def _device(self, agent: Agent, process: int) -> int:
        if agent.key == UNKNOWN:
            agent = self._only_of.get(process, self._only) or agent
        key = (UNKNOWN, process) if agent.key == UNKNOWN else agent.key
        place = place_of_node(agent.node)
        return self._gathered.device(key, process, agent.number, agent.facts, place)
