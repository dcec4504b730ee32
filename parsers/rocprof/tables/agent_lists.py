"""The lists of agents of a folder: each process may see devices of its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping

from traceflops.parsers.rocprof.tables.agents import Agents
from traceflops.parsers.rocprof.tables.processes import Placed, Process


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
