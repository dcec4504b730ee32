"""Which rows of rocprof's tables belong to one process, and which devices its texts name."""

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
from traceflops.parsers.shared.trace_builder import Gathered
from traceflops.table.columns import ABSENT, IntArray

_DAY_NS: Final = 86_400 * 10**9
_STARTING_NS: Final = 10**6
"""A process takes longer than this to start: what is further from its times is of another run."""
_WORK: Final = ("activities", "copies", "graphs")
NAMED_BY: Final = ("activities", "copies", "calls", "marks", COUNTERS, "totals")
"""A process is named by the file with its work, else by that with what comes next to it."""


class Process(Struct, eq=False):
    """The rows of one process.

    `counted` are its counters: the repetition (None where there is but one), whether that is the
    run whose times are used, the rows. `others` are the processes it was in other repetitions;
    `names` the keys and ranks of its files.
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
        _, *others = self.all()
        again = [part for other in others for part in other.parts if part.has(COUNTERS)]
        return [*self.parts, *again]

    @property
    def stretch(self) -> Stretch:
        """When its first and its last record begin."""
        whole = Stretch()
        for part in self.parts:
            whole.join(part.stretch)
        return whole

    @property
    def order(self) -> tuple[int, int, str]:
        """What the processes of a run are sorted by."""
        rank = self.place.rank
        return (2**31 if rank is None else rank, self.pid or 0, self.place.key)

    def has(self, *tables: str) -> bool:
        """Return whether it has rows in one of these tables."""
        return any(part.has(*tables) for part in self.parts)

    @property
    def has_work(self) -> bool:
        """Whether it has times of device work."""
        return self.has(*_WORK)

    @property
    def kernel_agents(self) -> frozenset[str]:
        """How its files name the devices that ran kernels, or counted."""
        agents: set[str] = set()
        for part in self.all_parts:
            texts = list(part.agents)
            for name in ("activities", COUNTERS):
                codes = np.unique(part[name].column("device")) if part.has(name) else ()
                agents.update(texts[code] for code in codes if 0 <= code < len(texts))
        return frozenset(agents - {""})

    def count_own(self, repetition: int | None) -> None:
        """Take its own counters for those of a repetition.

        Ids of processes recur, so they may be of another run than its times: they are if they were
        read at another time, or are columns, since their table has the times of its run if any.
        """
        self.counted = []
        for part in self.parts:
            if part.has(COUNTERS):
                is_apart = part.counting.is_apart(self.stretch, by_ns=_STARTING_NS)
                is_other_run = self.has_work and (part.is_wide or is_apart)
                self.counted.append((repetition, not is_other_run, part))

    def join(self, other: Process, repetition: int | None) -> None:
        """Take the counters of a process that is this one, run again."""
        self.counted += [
            (repetition, False, part) for part in other.all_parts if part.has(COUNTERS)
        ]
        self.others.append(other)

    @property
    def last_repetition(self) -> int:
        """The number of the last repetition that counted, 0 where none has a number."""
        return max((number or 0 for number, _, _ in self.counted), default=0)

    def kernels(self) -> set[str]:
        """Return the names of kernels that ran or were counted, without what marks a descriptor."""
        return set(map(kernel_name, names_in(self.all_parts, "name", "activities", COUNTERS)))

    def counters(self) -> set[str]:
        """Return the names of its counters."""
        return names_in(self.all_parts, "counter", COUNTERS)


def names_in(parts: Iterable[ProcessPart], column: str, *tables: str) -> set[str]:
    """Return the texts of a column in some tables."""
    names = [part[table].names[column] for part in parts for table in tables if part.has(table)]
    return set().union(*names)


def processes_of(files: Sequence[TableFile]) -> list[Process]:
    """Return the processes in the files of one pass, in order."""
    processes: dict[Hashable, Process] = {}
    unnamed: defaultdict[tuple[str, int | None], list[ProcessPart]] = defaultdict(list)
    for part in (part for file in files for part in file.parts.values()):
        if not part.records and not part.has(*part.tables):
            continue
        output = part.file.place
        pid = output.pid if part.pid is None else part.pid
        if part.guid is None and pid is None:
            unnamed[output.key, output.rank].append(part)
            continue
        key = ("guid", part.guid) if part.guid else ("pid", output.rank, pid)
        process = processes.setdefault(key, Process(output))
        process.guid, process.pid = part.guid, process.pid if pid is None else pid
        process.parts.append(part)
        process.names.add((output.key, output.rank))

    # Rows with a pid alone belong to the run with that pid, if it is the only one with a guid.
    of_pid: defaultdict[int | None, list[Process]] = defaultdict(list)
    for process in processes.values():
        if process.guid is not None:
            of_pid[process.pid].append(process)
    for own_key, process in list(processes.items()):
        runs = of_pid[process.pid]
        if process.guid is None and len(runs) == 1:
            runs[0].parts += process.parts
            runs[0].names |= process.names
            del processes[own_key]

    # Rows without a process belong to that of the files with the same name. If these name several,
    # or are of another day, the rows get a process without a number.
    named = list(processes.values())
    for name, parts in unnamed.items():
        alike = [process for process in named if name in process.names]
        candidates = alike if len(alike) == 1 else []
        for part in sorted(parts, key=lambda p: p.stretch.low if p.stretch else -1):
            of_day = (c for c in candidates if not c.stretch.is_apart(part.stretch, by_ns=_DAY_NS))
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
    """Return the agents by what the files that list them are of; the first list for None.

    A process may be allowed to see some devices only, and its numbers count those.
    """
    rows: defaultdict[Hashable, list[Mapping[str, str]]] = defaultdict(list)
    for file in files:
        for row in file.agents:
            guid = next((cell for key, cell in row.items() if key.lower() == "guid"), "")
            rows[guid or (file.place.run_pass, file.place.key)].append(row)
    lists: dict[Hashable | None, Agents] = {k: Agents(listed, system) for k, listed in rows.items()}
    return lists | {None: next(iter(lists.values()), Agents((), system))}


class Devices:
    """The devices of a run, numbered as their files number them, each for its first process.

    `has_unknown`: some records do not name theirs. Processes come with their numbers.
    """

    def __init__(
        self,
        lists: Mapping[Hashable | None, Agents],
        processes: Sequence[tuple[int, Process]],
        builder: Gathered,
    ) -> None:
        """Number all devices that records name; `lists` are those of `agents_listed`."""

        def listed_by(process: Process, otherwise: Agents) -> Agents:
            names = [(process.place.run_pass, name) for name, _ in sorted(process.names, key=str)]
            keys = (key for key in (process.guid, *names) if key and key in lists)
            return next((lists[key] for key in keys), otherwise)

        self._gathered = builder
        self._lists: dict[ProcessPart, Agents] = {}
        texts: defaultdict[Agents, set[str]] = defaultdict(set)
        for _, process in processes:
            own = listed_by(process, lists[None])
            for repeated in process.all():
                agents = listed_by(repeated, own)
                self._lists |= dict.fromkeys(repeated.parts, agents)
                texts[agents] |= repeated.kernel_agents
        self._numbering = {agents: agents.numbering(names) for agents, names in texts.items()}
        users = [
            (agent, number)
            for number, process in processes
            for part in process.all_parts
            for agent in self.agents(part)
        ]
        named = {agent.key: agent for agent, _ in users if agent.key != UNKNOWN}
        self.has_unknown = len(named) < len({agent.key for agent, _ in users})
        # An agent without a name is the only GPU of its process, else the only one of all.
        gpus = [agent for agent in named.values() if agent.is_gpu is not False]
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
        """Return the device of each text of a part, and last ABSENT, for the index -1."""
        numbers = (self._device(agent, process) for agent in self.agents(part))
        return np.array([*numbers, ABSENT], np.int64)

    def _device(self, agent: Agent, process: int) -> int:
        if agent.key == UNKNOWN:
            agent = self._only_of.get(process, self._only) or agent
        key = (UNKNOWN, process) if agent.key == UNKNOWN else agent.key
        place = place_of_node(agent.node)
        return self._gathered.device(key, process, agent.number, agent.facts, place)
