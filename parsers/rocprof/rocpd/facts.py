"""Who took part in a run of a rocpd database: processes, threads, agents, and the texts of its ids.

Command line and environment of the process are never read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import msgspec
import numpy as np

from traceflops.parsers.io import UNDECODABLE, Lookup, TextsById, Wanted, by_distinct
from traceflops.parsers.rocprof.agents import facts_of_agent
from traceflops.parsers.rocprof.notes import clock_of, place_of_node
from traceflops.parsers.rocprof.rocpd.schema import RocpdRun
from traceflops.parsers.shared import NOTHING_KNOWN, DeviceFacts, Gathered, ProcessFacts
from traceflops.table import ABSENT, BoolArray, IntArray

_UNKNOWN_DEVICE: Final = -1
_MOST_NUMBERED: Final = 4_096
"""So many processes and agents are told apart; a database with more has invented them."""


@dataclass(frozen=True, slots=True)
class RocpdAgent:
    """One agent: `number` is its number among all of the machine."""

    number: int
    is_gpu: bool
    facts: DeviceFacts


class RunFacts:
    """What the rows of a run refer to by their ids."""

    def __init__(self, run: RocpdRun, gathered: Gathered) -> None:
        self.run = run
        self._gathered = gathered
        self._processes = _processes(run)
        self._agents = _agents(run)
        for key in self._processes:
            self._process(key)

    @cached_property
    def strings(self) -> TextsById:
        """Return the texts of the table of strings."""
        rows = self.run.whole("string", Wanted(integers=("id",), texts=("string",)))
        return TextsById(rows["id"], rows.texts["string"])

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """Return the names of the machines."""
        names = self.run.whole("info_node", Wanted(texts=("hostname",))).texts["hostname"]
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def clock(self) -> str | None:
        """Return what names the clock of the machine; None where it is not one machine's."""
        return next(iter(self._clocks)) if len(self._clocks) == 1 else None

    @property
    def is_of_several_machines(self) -> bool:
        """Return whether processes ran on several machines, each with a clock of its own."""
        return len(self._clocks - {None}) > 1

    @property
    def clocks(self) -> tuple[str, ...]:
        """Return the clock of each process, nothing where all have the same."""
        if not self.is_of_several_machines:
            return ()
        rows = self.run.whole(
            "info_node", Wanted(integers=("id",), texts=("machine_id", "hostname"))
        )
        names = map(clock_of, rows.texts["machine_id"][:_MOST_NUMBERED], rows.texts["hostname"])
        of_node = dict(zip(rows["id"].tolist(), names, strict=False))
        people = self.run.whole("info_process", Wanted(integers=("id", "nid")))
        nodes = people["nid"].tolist()[:_MOST_NUMBERED]
        return tuple(of_node.get(node) or "" for node in nodes)

    @property
    def lifetimes(self) -> tuple[tuple[int, int], ...]:
        """Return first and last moment of each process that states them."""
        rows = self.run.whole("info_process", Wanted(integers=("start", "end")))
        pairs = zip(rows["start"].tolist(), rows["end"].tolist(), strict=True)
        return tuple((start, end) for start, end in pairs if 0 < start < end)

    def processes(self, ids: IntArray) -> IntArray:
        """Return the numbers of the processes with these ids."""
        return by_distinct(ids, lambda key, _: self._process(key))

    def threads(self, ids: IntArray) -> IntArray:
        """Return the operating system's numbers of threads."""
        found = self._threads(ids)
        return np.where(found == ABSENT, ids, found)

    def devices(self, agents: IntArray, processes: IntArray) -> IntArray:
        """Return the numbers of the devices that agents are."""
        return by_distinct(agents, lambda key, row: self._device(key, int(processes[row])))

    def are_gpus(self, agents: IntArray) -> BoolArray:
        """Return which agents are GPUs; one that is not listed is taken for one."""
        return by_distinct(agents, lambda key, _: self._is_gpu(key)).astype(np.bool_)

    @cached_property
    def _clocks(self) -> frozenset[str | None]:
        rows = self.run.whole("info_node", Wanted(texts=("machine_id", "hostname")))
        return frozenset(
            map(clock_of, rows.texts["machine_id"][:_MOST_NUMBERED], rows.texts["hostname"])
        )

    @cached_property
    def _threads(self) -> Lookup:
        rows = self.run.whole("info_thread", Wanted(integers=("id", "tid")))
        return Lookup(rows["id"], rows["tid"])

    def _process(self, key: int) -> int:
        known = key in self._processes
        facts = self._processes.get(key) or ProcessFacts(self.run.database.source.label)
        return self._gathered.process(key if known else None, facts)

    def _is_gpu(self, key: int) -> bool:
        agent = self._agents.get(key)
        return key != ABSENT if agent is None else agent.is_gpu

    def _device(self, key: int, process: int) -> int:
        agent = self._agents.get(key)
        if agent is not None:
            place = place_of_node(agent.number)
            return self._gathered.device(key, process, agent.number, agent.facts, place)
        unknown = key if 0 <= key < _MOST_NUMBERED else _UNKNOWN_DEVICE
        return self._gathered.device(("unlisted", unknown), process, unknown)


def _processes(run: RocpdRun) -> dict[int, ProcessFacts]:
    nodes = run.whole("info_node", Wanted(integers=("id",), texts=("hostname",)))
    hosts = dict(zip(nodes["id"].tolist(), nodes.texts["hostname"], strict=True))
    rows = run.whole("info_process", Wanted(integers=("id", "nid", "pid")))
    columns = zip(*(rows[name].tolist() for name in ("id", "nid", "pid")), strict=True)
    return {
        key: ProcessFacts(
            run.database.source.label,
            host=hosts.get(node) or None,
            pid=pid if pid != ABSENT else None,
        )
        for key, node, pid in list(columns)[:_MOST_NUMBERED]
    }


def _agents(run: RocpdRun) -> dict[int, RocpdAgent]:
    wanted = Wanted(
        integers=("id", "absolute_index"), texts=("type", "name", "product_name", "extdata")
    )
    rows = run.whole("info_agent", wanted)
    numbers = zip(rows["id"].tolist(), rows["absolute_index"].tolist(), strict=True)
    texts = zip(*(rows.texts[name] for name in wanted.texts), strict=True)
    return {
        key: _agent(key, number, *words)
        for (key, number), words in list(zip(numbers, texts, strict=True))[:_MOST_NUMBERED]
    }


def _agent(
    key: int, number: int, kind: str | None, name: str | None, product: str | None, more: str | None
) -> RocpdAgent:
    columns = {"name": name, "product_name": product}
    words = _decoded(more) | {word: text for word, text in columns.items() if text}
    is_gpu = kind == "GPU"
    return RocpdAgent(
        key if number == ABSENT else number,
        is_gpu,
        facts_of_agent(words) if is_gpu else NOTHING_KNOWN,
    )


def _decoded(text: str | None) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text or "{}")
    except UNDECODABLE:
        return {}
    return found if isinstance(found, dict) else {}
