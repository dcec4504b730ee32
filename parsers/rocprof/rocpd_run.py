"""A run of a rocpd database: which tables are its own, and what their rows refer to by ids.

A database holds the tables of one run or, where databases were merged, of several: each run has
its own, whose names end in its id, or its rows are those with its id. Ids of rows count from 1 in
every run. Command line and environment of a process are never read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io import (
    UNDECODABLE,
    Among,
    Batch,
    Condition,
    Database,
    Lookup,
    TextsById,
    Wanted,
    by_distinct,
)
from traceflops.parsers.rocprof.agents import facts_of_agent, place_of_node
from traceflops.parsers.rocprof.notes import clock_of
from traceflops.parsers.rocprof.trace import Recorded
from traceflops.parsers.shared import NOTHING_KNOWN, DeviceFacts, ProcessFacts
from traceflops.table import ABSENT, BoolArray, IntArray, Note

T = TypeVar("T")

_UNKNOWN_DEVICE: Final = -1
_MOST_NUMBERED: Final = 4_096
"""So many processes and agents are told apart; a database with more has invented them."""
_AGENT: Final = Wanted(
    integers=("id", "absolute_index"), texts=("type", "name", "product_name", "extdata")
)
_NODE: Final = Wanted(integers=("id",), texts=("machine_id", "hostname"))
_PROCESS: Final = Wanted(integers=("id", "nid", "pid", "start", "end"))
_PREFIX: Final = "rocpd_"
_TELLING: Final = ("metadata", "string", "kernel_dispatch", "memory_copy", "region", "pmc_event")
_WORK: Final = frozenset(_TELLING[2:])
_NEWEST_MAJOR: Final = 3
_NEWEST_MINOR: Final = 0
_MOST_FACTS: Final = 1_000
_GUID: Final = "guid"
_DESCRIBING: Final = ("info_node", "info_process", "info_agent")
"""Small tables in which every run has a row."""
_MOST_RUNS: Final = 64
"""So many runs may share tables, which are read once for each."""


@dataclass(frozen=True, slots=True)
class RocpdRun:
    """The rows of one run: of tables whose names end so, and if several share them with that id."""

    database: Database
    ending: str
    guid: str | None = None

    def name(self, table: str) -> str:
        """Return the name that a table has in the database."""
        return f"{_PREFIX}{table}{self.ending}"

    def has(self, table: str, column: str) -> bool:
        """Return whether there is such a table and it has such a column."""
        return column in self.database.columns(self.name(table))

    def has_rows(self, table: str) -> bool:
        """Return whether there is such a table and it has rows."""
        return self.database.has_rows(self.name(table))

    def batches(self, table: str, wanted: Wanted, *conditions: Condition) -> Iterator[Batch]:
        """Give the rows of a table, some at a time."""
        return self.database.batches(self.name(table), wanted, self._mine(table, conditions))

    def whole(self, table: str, wanted: Wanted, *conditions: Condition) -> Batch:
        """Return the rows of a table at once."""
        return self.database.whole(self.name(table), wanted, self._mine(table, conditions))

    def _mine(self, table: str, conditions: Sequence[Condition]) -> Sequence[Condition]:
        """Return the conditions for rows of this run; a table without ids is of all runs."""
        if self.guid is None or not self.has(table, _GUID):
            return conditions
        return (*conditions, Among(_GUID, (self.guid,)))


def label(table: str) -> str:
    """Return the name of a table without prefix and the id of its run."""
    return re.sub(r"_[0-9a-f]{8}(?:_[0-9a-f]{4}){3}_[0-9a-f]{12}$", "", table.removeprefix(_PREFIX))


def runs_of(database: Database) -> list[RocpdRun]:
    """Return the runs in a database. Raises InputError where there is none that can be read."""
    tables = [
        (base, table[len(_PREFIX + base) :])
        for table in database.tables
        for base in _TELLING
        if table.startswith(_PREFIX + base)
    ]
    endings = {ending for base, ending in tables if base in _WORK and ending[:1] in ("", "_")}
    if not endings:
        raise NotATrace(
            f"rocpd database without records of GPU operations or calls: {database.source.label}",
            "record with rocprofv3 --kernel-trace --output-format rocpd",
        )
    return [
        run
        for ending in sorted(endings)
        for run in _runs_in_tables(RocpdRun(database, ending), tables)
    ]


def _runs_in_tables(run: RocpdRun, tables: Sequence[tuple[str, str]]) -> Iterator[RocpdRun]:
    """Yield the runs in tables with one ending, which are several where they hold several ids."""
    guids = _guids(run, _DESCRIBING)
    if len(guids) > 1:
        guids |= _guids(run, [base for base, ending in tables if ending == run.ending])
    if len(guids) > _MOST_RUNS:
        raise InputError(
            f"rocpd database of {len(guids):,} runs: {run.database.source.label}",
            f"give at most {_MOST_RUNS} runs per file; rocpd can write separate files",
        )
    for guid in sorted(guids) if len(guids) > 1 else [None]:
        yield RocpdRun(run.database, run.ending, guid)


def _guids(run: RocpdRun, tables: Iterable[str]) -> set[str]:
    """Return the ids of runs in some tables."""
    wanted = Wanted(texts=(_GUID,))
    return {
        guid
        for table in tables
        if run.has(table, _GUID)
        for batch in run.batches(table, wanted)
        for guid in batch.texts[_GUID]
        if guid is not None
    }


def version_of(run: RocpdRun) -> tuple[str | None, tuple[Note, ...]]:
    """Return the version of the schema as it is written, and what to say of it.

    Raises InputError where it is newer than what this version understands.
    """
    rows = run.whole("metadata", Wanted(texts=("tag", "value")))
    words = {
        tag: value
        for tag, value in zip(rows.texts["tag"][:_MOST_FACTS], rows.texts["value"], strict=False)
        if tag is not None and value is not None
    }
    version = words.get("schema_version")
    numbers = [int(part[:6]) for part in re.findall(r"\d+", version or "")]
    by_track = run.has("kernel_dispatch", "track_id") and not run.has("kernel_dispatch", "agent_id")
    if (numbers and numbers[0] > _NEWEST_MAJOR) or by_track or "compression" in words:
        raise _too_new(run, version)
    if len(numbers) > 1 and numbers[1] > _NEWEST_MINOR:
        text = (
            f"The database has rocpd schema {version[:20] if version else ''}, which is newer "
            "than this version supports. Columns were read by name."
        )
        return version, (Note("assumed", "schema-newer", text),)
    return version, ()


def _too_new(run: RocpdRun, version: str | None) -> InputError:
    shown = (version or "4 (from its columns)")[:20]
    shown = "".join(c if c.isprintable() else "?" for c in shown)
    return InputError(
        f"unsupported rocpd schema {shown}: {run.database.source.label} (supported: schema 3)",
        "convert it to CSV with rocpd convert, or record with rocprofv3 of ROCm 7",
    )


class RunReading(Recorded):
    """What is recorded of a run, and what its rows refer to by their ids."""

    def __init__(self, run: RocpdRun) -> None:
        super().__init__()
        self.run = run
        self._agents = _agents(run)
        nodes = run.whole("info_node", _NODE)
        self._read_processes(nodes["id"].tolist(), nodes.texts["hostname"])
        self._read_clocks(nodes)
        self._read_events()

    def _read_processes(self, node_ids: list[int], hosts: list[str | None]) -> None:
        self.hosts = tuple(dict.fromkeys(name for name in hosts if name))
        host_of = dict(zip(node_ids, hosts, strict=True))
        file, self._numbers = self.run.database.source.label, dict[int, int]()
        rows = self.run.whole("info_process", _PROCESS)
        self._nodes = rows["nid"].tolist()[:_MOST_NUMBERED]
        people = zip(rows["id"].tolist(), self._nodes, rows["pid"].tolist(), strict=False)
        for key, node, pid in people:
            known_pid = pid if pid != ABSENT else None
            facts = ProcessFacts(file, host=host_of.get(node) or None, pid=known_pid)
            self._numbers[key] = self.process(key, facts)
        times = zip(rows["start"].tolist(), rows["end"].tolist(), strict=True)
        self.lifetimes = tuple((start, end) for start, end in times if 0 < start < end)

    def _read_clocks(self, nodes: Batch) -> None:
        """Tell the clock of the machine, or those of processes where it is not one machine's."""
        machines, hosts = nodes.texts["machine_id"], nodes.texts["hostname"]
        of_nodes = list(map(clock_of, machines[:_MOST_NUMBERED], hosts))
        by_node = dict(zip(nodes["id"].tolist(), of_nodes, strict=False))
        self.clock = of_nodes[0] if len(set(of_nodes)) == 1 else None
        self.is_of_several_machines = len(set(of_nodes) - {None}) > 1
        clocks = (by_node.get(node) or "" for node in self._nodes)
        self.clocks = tuple(clocks) if self.is_of_several_machines else ()

    def _read_events(self) -> None:
        # Only what runs on the host is told apart by category.
        on_host = self.run.has_rows("region") or self.run.has_rows("sample")
        columns = ("id", "stack_id", *(("category_id",) if on_host else ()))
        events = self.run.whole("event", Wanted(integers=columns))
        ids, calls = events["id"], events["stack_id"]
        self.correlations = Lookup(ids, np.where(calls == 0, ABSENT, calls))
        """The correlation of each event; 0 stands for none in these databases."""
        some = len(ids) if on_host else 0
        self.categories = Lookup(ids[:some], events[columns[-1]][:some])
        """The ids of the names of the events' categories, if anything ran on the host."""

    @cached_property
    def strings(self) -> TextsById:
        """Return the texts of the table of strings."""
        rows = self.run.whole("string", Wanted(integers=("id",), texts=("string",)))
        return TextsById(rows["id"], rows.texts["string"])

    def processes(self, ids: IntArray) -> IntArray:
        """Return the numbers of the processes with these ids."""
        return by_distinct(ids, lambda key, _: self._process(key))

    def threads(self, ids: IntArray) -> IntArray:
        """Return the operating system's numbers of threads."""
        listed = self._threads(ids)
        return np.where(listed == ABSENT, ids, listed)

    def devices(self, agents: IntArray, processes: IntArray) -> IntArray:
        """Return the numbers of the devices that agents are."""
        return by_distinct(agents, lambda key, row: self._device(key, int(processes[row])))

    def are_gpus(self, agents: IntArray) -> BoolArray:
        """Return which agents are GPUs; one that is not listed is taken for one."""
        return by_distinct(agents, lambda key, _: self._is_gpu(key)).astype(np.bool_)

    def messages(self, category: int) -> TextsById:
        """Return the messages of the events of a category, where they have one."""
        wanted = Wanted(integers=("id",), texts=("extdata",))
        ids = [np.empty(0, np.int64)]
        texts: list[str | None] = []
        for batch in self.run.batches("event", wanted, Among("category_id", (category,))):
            ids.append(batch["id"])
            texts += map(_message, batch.texts["extdata"])
        return TextsById(np.concatenate(ids), texts)

    @cached_property
    def _threads(self) -> Lookup:
        rows = self.run.whole("info_thread", Wanted(integers=("id", "tid")))
        return Lookup(rows["id"], rows["tid"])

    def _process(self, key: int) -> int:
        if key in self._numbers:
            return self._numbers[key]
        return self.process(None, ProcessFacts(self.run.database.source.label))

    def _is_gpu(self, key: int) -> bool:
        return self._agents[key].is_gpu if key in self._agents else key != ABSENT

    def _device(self, key: int, process: int) -> int:
        agent = self._agents.get(key)
        if agent is not None:
            place = place_of_node(agent.number)
            return self.device(key, process, agent.number, agent.facts, place)
        unknown = key if 0 <= key < _MOST_NUMBERED else _UNKNOWN_DEVICE
        return self.device(("unlisted", unknown), process, unknown)


class _Agent(NamedTuple):
    """One agent: `number` is its number among all of the machine."""

    number: int
    is_gpu: bool
    facts: DeviceFacts


def _agents(run: RocpdRun) -> dict[int, _Agent]:
    rows = run.whole("info_agent", _AGENT)
    numbers = zip(rows["id"].tolist(), rows["absolute_index"].tolist(), strict=True)
    texts = zip(*(rows.texts[name] for name in _AGENT.texts), strict=True)
    pairs = islice(zip(numbers, texts, strict=True), _MOST_NUMBERED)
    return {
        key: _agent(key if number == ABSENT else number, *words) for (key, number), words in pairs
    }


def _agent(
    number: int, kind: str | None, name: str | None, product: str | None, more: str | None
) -> _Agent:
    if kind != "GPU":
        return _Agent(number, False, NOTHING_KNOWN)
    columns = {"name": name, "product_name": product}
    words = _decoded(more, dict[str, Any]) or {}
    words |= {word: text for word, text in columns.items() if text}
    return _Agent(number, True, facts_of_agent(words))


class _Message(msgspec.Struct):
    message: str


def _message(text: str | None) -> str | None:
    decoded = _decoded(text, _Message) if text != "{}" else None
    return (decoded.message or None) if decoded else None


def _decoded(text: str | None, form: type[T]) -> T | None:
    try:
        return msgspec.json.decode(text, type=form) if text else None
    except UNDECODABLE:
        return None
