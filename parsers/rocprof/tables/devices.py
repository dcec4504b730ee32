"""The devices of a run: which one each text by which a file names an agent stands for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from traceflops.parsers.rocprof.notes import place_of_node
from traceflops.parsers.rocprof.tables.agents import UNKNOWN, Agent, Agents
from traceflops.parsers.rocprof.tables.processes import Placed, Process
from traceflops.parsers.shared import Gathered, ProcessPart
from traceflops.table import ABSENT, IntArray

Numbered = tuple[int, Process]
"""A process and its number in the trace."""


class Devices:
    """The devices of a run, numbered as their files number them, each for its first process.

    `unplaced` says that some records do not name theirs.
    """

    def __init__(
        self, lists: AgentLists, processes: Sequence[Numbered], gathered: Gathered
    ) -> None:
        self._gathered = gathered
        self._lists: dict[int, Agents] = {}
        for _, process in processes:
            self._list_for(process, lists, lists.of(process))
        self._numbering = self._numberings(processes)
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
        agents = self._lists[id(part)]
        numbering = self._numbering[id(agents)]
        return [agents.agent(text, numbering) for text in part.agents]

    def numbers(self, part: ProcessPart, process: int) -> IntArray:
        """Return the device of each text of a part; behind them ABSENT, which -1 leads to."""
        found = (self._device(agent, process) for agent in self.agents(part))
        return np.array([*found, ABSENT], np.int64)

    def _list_for(self, process: Process, lists: AgentLists, agents: Agents) -> None:
        """Take a list of agents for that of the rows of a process; repetitions may have theirs."""
        for part in process.parts:
            self._lists[id(part)] = agents
        for other in process.others:
            self._list_for(other, lists, lists.of(other, agents))

    def _numberings(self, processes: Sequence[Numbered]) -> dict[int, str]:
        """Return what the numbers in the files are, by list of agents."""
        by_id = {id(agents): agents for agents in self._lists.values()}
        texts: dict[int, set[str]] = {key: set() for key in by_id}
        for _, process in processes:
            for one in _all_of(process):
                for key in {id(self._lists[id(part)]) for part in one.parts}:
                    texts[key] |= one.kernel_agents
        return {key: by_id[key].numbering(found) for key, found in texts.items()}

    def _device(self, agent: Agent, process: int) -> int:
        own = self._own.get(process, self._only) if agent.key == UNKNOWN else None
        known = own or agent
        key = (UNKNOWN, process) if known.key == UNKNOWN else known.key
        place = place_of_node(known.node)
        return self._gathered.device(key, process, known.number, known.facts, place)


def _all_of(process: Process) -> Iterator[Process]:
    """Yield a process and all that repeated it."""
    yield process
    for other in process.others:
        yield from _all_of(other)


def _only_ones(users: Iterable[tuple[int, Agent]]) -> dict[int, Agent]:
    """Return the GPU of each process that used one alone."""
    found: dict[int, dict[Hashable, Agent]] = {}
    for number, agent in users:
        found.setdefault(number, {})[agent.key] = agent
    return {
        number: next(iter(agents.values())) for number, agents in found.items() if len(agents) == 1
    }


# The lists of agents of a folder: each process may see devices of its own.


class AgentLists:
    """The agents by the process that lists them; a process that lists none has the first list.

    A process may be allowed to see some devices only, and its numbers count those.
    """

    def __init__(self, placed: Iterable[Placed], system: Mapping[str, str]) -> None:
        rows: defaultdict[Hashable, list[Mapping[str, str]]] = defaultdict(list)
        for one in placed:
            for row in one.file.agents:
                guid = next((cell for key, cell in row.items() if key.lower() == "guid"), "")
                rows[guid or (one.place.run_pass, one.place.key)].append(row)
        self._lists = {key: Agents(listed, system) for key, listed in rows.items()}
        self._first = next(iter(self._lists.values()), Agents((), system))

    def of(self, process: Process, otherwise: Agents | None = None) -> Agents:
        """Return the agents of a process; those of another one, or the first, if it lists none."""
        names = [(process.place.run_pass, name) for name, _ in sorted(process.names, key=str)]
        found = (self._lists.get(key) for key in (process.guid, *names) if key)
        return next(filter(None, found), otherwise or self._first)
