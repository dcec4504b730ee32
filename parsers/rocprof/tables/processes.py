"""Which rows of rocprof's tables are of one process, and which devices a run's texts name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from traceflops.characters import kernel_name
from traceflops.parsers.rocprof.agents import UNKNOWN, Agent, Agents, place_of_node
from traceflops.parsers.rocprof.tables.parts import (
    COUNTERS,
    OutputPlace,
    ProcessPart,
    Stretch,
    TableFile,
)
from traceflops.parsers.shared import Gathered
from traceflops.table import ABSENT, IntArray

_DAY_NS: Final = 86_400 * 10**9
_STARTING_NS: Final = 10**6
"""A process takes longer than this to start: so far from its times nothing of it was recorded."""
_WORK: Final = ("activities", "copies", "graphs")
_NAMED_BY: Final = ("activities", "copies", "calls", "marks", COUNTERS, "totals")
"""A process is named by the file with its work, else by that with what comes next to it."""


@dataclass(slots=True, eq=False)
class Process:
    """The rows of one process.

    `counted` are its counters: the repetition (None where there is but one), whether that is the
    run whose times are used, the rows. `others` are the processes it was in other repetitions;
    `names` those of its files, with their rank.
    """

    place: OutputPlace
    guid: str | None = None
    pid: int | None = None
    parts: list[ProcessPart] = field(default_factory=list)
    counted: list[tuple[int | None, bool, ProcessPart]] = field(default_factory=list)
    others: list[Process] = field(default_factory=list)
    names: set[tuple[str, int | None]] = field(default_factory=set)

    def all(self) -> Iterator[Process]:
        """Yield it and all that repeated it."""
        yield self
        for other in self.others:
            yield from other.all()

    @property
    def all_parts(self) -> list[ProcessPart]:
        """Return its rows in each file, those counted in other repetitions last."""
        _, *others = self.all()
        again = [part for other in others for part in other.parts if part.has(COUNTERS)]
        return [*self.parts, *again]

    @property
    def main_file(self) -> TableFile:
        """Return the file to name it by."""
        found = (part for table in _NAMED_BY for part in self.parts if part.has(table))
        return next(found, self.parts[0]).file

    @property
    def stretch(self) -> Stretch:
        """Return when its first and its last record begin."""
        whole = Stretch()
        for part in self.parts:
            whole.join(part.stretch)
        return whole

    @property
    def order(self) -> tuple[int, int, str]:
        """Return what processes of a run are sorted by."""
        rank = self.place.rank
        return (2**31 if rank is None else rank, self.pid or 0, self.place.key)

    def has(self, *tables: str) -> bool:
        """Return whether it has rows in one of these tables."""
        return any(part.has(*tables) for part in self.parts)

    @property
    def has_work(self) -> bool:
        """Return whether it has times of device work."""
        return self.has(*_WORK)

    @property
    def kernel_agents(self) -> frozenset[str]:
        """Return how its files name the devices that ran kernels, or counted."""
        found: set[str] = set()
        for part in self.all_parts:
            texts = list(part.agents)
            for name in ("activities", COUNTERS):
                codes = np.unique(part[name].column("device")) if part.has(name) else ()
                found.update(texts[code] for code in codes if 0 <= code < len(texts))
        return frozenset(found - {""})

    def count_own(self, repetition: int | None) -> None:
        """Take its own counters for those of a repetition."""
        self.counted = [
            (repetition, not self._is_other_run(part), part)
            for part in self.parts
            if part.has(COUNTERS)
        ]

    def _is_other_run(self, part: ProcessPart) -> bool:
        """Return whether counters are of another run than the times: ids of processes come again.

        Counters in columns are of a table that has the times of its own run, or none.
        """
        is_apart = part.counting.is_apart(self.stretch, by_ns=_STARTING_NS)
        return self.has_work and (part.is_wide or is_apart)

    def join(self, other: Process, repetition: int | None) -> None:
        """Take the counters of a process that is this one, run again."""
        self.counted += [
            (repetition, False, part) for part in other.all_parts if part.has(COUNTERS)
        ]
        self.others.append(other)

    @property
    def last_repetition(self) -> int:
        """Return the number of the last repetition that counted, 0 where none has a number."""
        return max((number or 0 for number, _, _ in self.counted), default=0)

    def kernels(self) -> set[str]:
        """Return the names of kernels that ran or were counted, without what marks a descriptor."""
        return set(map(kernel_name, names_in(self.all_parts, "name", "activities", COUNTERS)))

    def counters(self) -> set[str]:
        """Return the names of its counters."""
        return names_in(self.all_parts, "counter", COUNTERS)


def names_in(parts: Iterable[ProcessPart], column: str, *tables: str) -> set[str]:
    """Return the texts of a column in some tables."""
    found = [part[table].names[column] for part in parts for table in tables if part.has(table)]
    return set().union(*found)


def processes_of(files: Sequence[TableFile]) -> list[Process]:
    """Return the processes that some files of one pass are of, in order."""
    found: dict[Hashable, Process] = {}
    unnamed: list[ProcessPart] = []
    for part in (part for file in files for part in file.parts.values() if not part.is_empty):
        place = part.file.place
        pid = place.pid if part.pid is None else part.pid
        if part.guid is None and pid is None:
            unnamed.append(part)
            continue
        key = ("guid", part.guid) if part.guid else ("pid", place.rank, pid)
        process = found.setdefault(key, Process(place))
        process.guid, process.pid = part.guid, process.pid if pid is None else pid
        process.parts.append(part)
        process.names.add((place.key, place.rank))
    _join_by_pid(found)
    _place_unnamed(found, unnamed)
    return sorted(found.values(), key=lambda process: process.order)


def _join_by_pid(found: dict[Hashable, Process]) -> None:
    """Give rows with only the id of a process to the only run of that id that has a name."""
    of_pid: defaultdict[int | None, list[Process]] = defaultdict(list)
    for process in found.values():
        if process.guid is not None:
            of_pid[process.pid].append(process)
    for key, process in list(found.items()):
        named = of_pid[process.pid]
        if process.guid is None and len(named) == 1:
            named[0].parts += process.parts
            named[0].names |= process.names
            del found[key]


def _place_unnamed(found: dict[Hashable, Process], unnamed: Sequence[ProcessPart]) -> None:
    """Give rows that do not say their process to the one that files of the same name are of.

    Where these name several, or are of another day, the rows are of a process without a number.
    """
    named = list(found.values())
    by_name: defaultdict[tuple[str, int | None], list[ProcessPart]] = defaultdict(list)
    for part in unnamed:
        by_name[part.file.place.key, part.file.place.rank].append(part)
    for name, parts in by_name.items():
        alike = [process for process in named if name in process.names]
        parts.sort(key=lambda part: -1 if part.stretch.low is None else part.stretch.low)
        candidates = alike if len(alike) == 1 else []
        for part in parts:
            process = next(
                (candidate for candidate in candidates if _same_day(candidate, part)), None
            )
            if process is None:
                process = Process(part.file.place, names={name})
                found[(*name, len(found))] = process
                candidates.append(process)
            process.parts.append(part)


def _same_day(process: Process, part: ProcessPart) -> bool:
    return not process.stretch.is_apart(part.stretch, by_ns=_DAY_NS)


class AgentLists:
    """The agents by the process that lists them; a process that lists none has the first list.

    A process may be allowed to see some devices only, and its numbers count those.
    """

    def __init__(self, files: Iterable[TableFile], system: Mapping[str, str]) -> None:
        rows: defaultdict[Hashable, list[Mapping[str, str]]] = defaultdict(list)
        for file in files:
            for row in file.agents:
                guid = next((cell for key, cell in row.items() if key.lower() == "guid"), "")
                rows[guid or (file.place.run_pass, file.place.key)].append(row)
        self._lists = {key: Agents(listed, system) for key, listed in rows.items()}
        self._first = next(iter(self._lists.values()), Agents((), system))

    def of(self, process: Process, otherwise: Agents | None = None) -> Agents:
        """Return the agents of a process; those of another one, or the first, if it lists none."""
        names = [(process.place.run_pass, name) for name, _ in sorted(process.names, key=str)]
        found = (self._lists.get(key) for key in (process.guid, *names) if key)
        return next(filter(None, found), otherwise or self._first)


class Devices:
    """The devices of a run, numbered as their files number them, each for its first process.

    `unplaced` says that some records do not name theirs. Processes come with their numbers.
    """

    def __init__(
        self, lists: AgentLists, processes: Sequence[tuple[int, Process]], gathered: Gathered
    ) -> None:
        self._gathered = gathered
        self._lists: dict[ProcessPart, Agents] = {}
        texts: defaultdict[Agents, set[str]] = defaultdict(set)
        for _, process in processes:
            own = lists.of(process)
            for repeated in process.all():
                agents = lists.of(repeated, own)
                self._lists |= dict.fromkeys(repeated.parts, agents)
                texts[agents] |= repeated.kernel_agents
        self._numbering = {agents: agents.numbering(found) for agents, found in texts.items()}
        users = [
            (agent, number)
            for number, process in processes
            for part in process.all_parts
            for agent in self.agents(part)
        ]
        known = {agent.key: agent for agent, _ in users if agent.key != UNKNOWN}
        gpus = [agent for agent in known.values() if agent.is_gpu is not False]
        self._only = gpus[0] if len(gpus) == 1 else None
        self._own = _only_ones((number, agent) for agent, number in users if agent in gpus)
        self.unplaced = len(known) < len({agent.key for agent, _ in users})
        for agent, number in sorted(users, key=lambda user: user[0].number):
            self._device(agent, number)

    def agents(self, part: ProcessPart) -> list[Agent]:
        """Return what each text of a part stands for."""
        agents = self._lists[part]
        return [agents.agent(text, self._numbering[agents]) for text in part.agents]

    def numbers(self, part: ProcessPart, process: int) -> IntArray:
        """Return the device of each text of a part; behind them ABSENT, which -1 leads to."""
        found = (self._device(agent, process) for agent in self.agents(part))
        return np.array([*found, ABSENT], np.int64)

    def _device(self, agent: Agent, process: int) -> int:
        own = self._own.get(process, self._only) if agent.key == UNKNOWN else None
        known = own or agent
        key = (UNKNOWN, process) if known.key == UNKNOWN else known.key
        place = place_of_node(known.node)
        return self._gathered.device(key, process, known.number, known.facts, place)


def _only_ones(users: Iterable[tuple[int, Agent]]) -> dict[int, Agent]:
    """Return the GPU of each process that used one alone."""
    found: defaultdict[int, dict[Hashable, Agent]] = defaultdict(dict)
    for number, agent in users:
        found[number][agent.key] = agent
    return {n: next(iter(agents.values())) for n, agents in found.items() if len(agents) == 1}
