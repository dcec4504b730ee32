"""The devices of a run: which one each text by which a file names an agent stands for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np

from traceflops.parsers.rocprof.agents import UNKNOWN, Agent, Agents
from traceflops.parsers.rocprof.notes import place_of_node
from traceflops.parsers.rocprof.tables.parts import ProcessPart, TableFile
from traceflops.parsers.rocprof.tables.processes import Process
from traceflops.parsers.shared import Gathered
from traceflops.table import ABSENT, IntArray


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
