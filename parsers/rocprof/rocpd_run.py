"""A run of a rocpd database: its tables, and what their rows refer to by ids.

A merged database has several runs. Each has tables of its own, whose names end with its id (guid),
or they share tables, and each has the rows with its id. Ids of rows count from 1 in every run.
Command line and environment of a process are never read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io.database_query import (
    Among,
    Batch,
    Condition,
    Lookup,
    TextsById,
    Wanted,
    by_distinct,
)
from traceflops.parsers.io.database_rows import Database
from traceflops.parsers.io.json_text import decoded
from traceflops.parsers.io.notes import printable
from traceflops.parsers.rocprof.agents import facts_of_agent, place_of_node
from traceflops.parsers.rocprof.trace import clock_of
from traceflops.parsers.shared.trace_builder import (
    NOTHING_KNOWN,
    DeviceFacts,
    Gathered,
    ProcessFacts,
)
from traceflops.table.columns import ABSENT, BoolArray, IntArray
from traceflops.table.trace import Note

_MOST_NUMBERED: Final = 4_096  # processes or agents; a database with more is damaged
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
_MOST_RUNS: Final = 64  # the most runs that may share tables, which are read once for each


class RocpdRun(NamedTuple):
    """One run: the rows of the tables whose names end with `ending`.

    `guid` is None, or selects the rows of the run in tables that several runs share.
    """

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
        """Yield the rows of a table, some at a time."""
        return self.database.batches(self.name(table), wanted, self._of_run(table, conditions))

    def whole(self, table: str, wanted: Wanted, *conditions: Condition) -> Batch:
        """Return the rows of a table at once."""
        return self.database.whole(self.name(table), wanted, self._of_run(table, conditions))

    def _of_run(self, table: str, conditions: Sequence[Condition]) -> Sequence[Condition]:
        """Return `conditions` and one for the run; a table without guids belongs to all runs."""
        if self.guid is None or not self.has(table, _GUID):
            return conditions
        return (*conditions, Among(_GUID, (self.guid,)))


def label(table: str) -> str:
    """Return the name of a table without the prefix and the guid of its run."""
    return re.sub(r"_[0-9a-f]{8}(?:_[0-9a-f]{4}){3}_[0-9a-f]{12}$", "", table.removeprefix(_PREFIX))


def runs_of(database: Database) -> list[RocpdRun]:
    """Return the runs in a database. Raises InputError if no run can be read."""
    # Names of tables, without the prefix, split into the known name and what follows: "_" and a
    # guid for a table of one run, nothing for a table that runs share.
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
    runs = []
    for ending in sorted(endings):
        run = RocpdRun(database, ending)
        guids = _guids(run, ("info_node", "info_process", "info_agent"))  # small, all runs have one
        if len(guids) > 1:  # some runs may not be described
            guids |= _guids(run, [base for base, other in tables if other == ending])
        if len(guids) > _MOST_RUNS:
            raise InputError(
                f"rocpd database of {len(guids):,} runs: {database.source.label}",
                f"give at most {_MOST_RUNS} runs per file; rocpd can write separate files",
            )
        shared = [RocpdRun(database, ending, guid) for guid in sorted(guids)]
        runs += shared if len(shared) > 1 else [run]
    return runs


def _guids(run: RocpdRun, tables: Iterable[str]) -> set[str]:
    """Return the guids of the runs that have rows in `tables`."""
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
    """Return the schema's version as spelled, with notes. Raises InputError if it is too new."""
    rows = run.whole("metadata", Wanted(texts=("tag", "value")))
    facts = {
        tag: value
        for tag, value in zip(rows.texts["tag"][:_MOST_FACTS], rows.texts["value"], strict=False)
        if tag is not None and value is not None
    }
    version = facts.get("schema_version")
    # Any version has fewer than 6 digits; the text may be damaged and long.
    numbers = [int(part[:6]) for part in re.findall(r"\d+", version or "")]
    # Schema 4 is recognised by its columns or its compression, too, if no version says so.
    by_track = run.has("kernel_dispatch", "track_id") and not run.has("kernel_dispatch", "agent_id")
    if (numbers and numbers[0] > _NEWEST_MAJOR) or by_track or "compression" in facts:
        shown = printable(version or "4 (from its columns)", 20)
        raise InputError(
            f"unsupported rocpd schema {shown}: {run.database.source.label} (supported: schema 3)",
            "convert it to CSV with rocpd convert, or record with rocprofv3 of ROCm 7",
        )
    if len(numbers) > 1 and numbers[1] > _NEWEST_MINOR:
        text = (
            f"The database has rocpd schema {version[:20] if version else ''}, which is newer "
            "than this version supports. Columns were read by name."
        )
        return version, (Note("assumed", "schema-newer", text),)
    return version, ()


class _Agent(NamedTuple):
    """An agent; `number` is its number among all agents of the machine."""

    number: int
    is_gpu: bool
    facts: DeviceFacts


def _agents_of(run: RocpdRun) -> dict[int, _Agent]:
    """Return the agents by id, with facts of the GPUs; other columns override `extdata` (JSON)."""
    agents: dict[int, _Agent] = {}
    rows = run.whole("info_agent", _AGENT)
    columns = [rows["id"].tolist(), rows["absolute_index"].tolist()]
    columns += [rows.texts[name] for name in _AGENT.texts]
    listed = islice(zip(*columns, strict=True), _MOST_NUMBERED)
    for agent, index, kind, name, product, extdata in listed:
        is_gpu, facts = kind == "GPU", NOTHING_KNOWN
        if is_gpu:
            words = decoded(extdata or b"", dict[str, Any]) or {}
            words |= {"name": name} if name else {}
            words |= {"product_name": product} if product else {}
            facts = facts_of_agent(words)
        agents[agent] = _Agent(agent if index == ABSENT else index, is_gpu, facts)
    return agents


class RunReading(Gathered):
    """The rows read of a run, and what its tables refer to by ids.

    `clock` names the clock of its machine. If the run is of several machines, `clocks` are those
    of its processes. `lifetimes` are start and end of processes in ns.
    """

    def __init__(self, run: RocpdRun) -> None:
        """Read the tables that describe the run, and its events."""
        super().__init__()
        self.run = run
        self._file = run.database.source.label
        self._agents = _agents_of(run)
        threads = run.whole("info_thread", Wanted(integers=("id", "tid")))
        self._tids = Lookup(threads["id"], threads["tid"])

        # Processes, and the machines (nodes) on which they ran.
        nodes = run.whole("info_node", _NODE)
        node_ids, hosts = nodes["id"].tolist(), nodes.texts["hostname"]
        self.hosts = tuple(dict.fromkeys(host for host in hosts if host))
        host_of, self._numbers = dict(zip(node_ids, hosts, strict=True)), dict[int, int]()
        rows = run.whole("info_process", _PROCESS)
        process_nodes = rows["nid"].tolist()[:_MOST_NUMBERED]
        for key, node, pid in zip(
            rows["id"].tolist(), process_nodes, rows["pid"].tolist(), strict=False
        ):
            host = host_of.get(node) or None
            facts = ProcessFacts(self._file, host=host, pid=None if pid == ABSENT else pid)
            self._numbers[key] = self.process(key, facts)
        times = zip(rows["start"].tolist(), rows["end"].tolist(), strict=True)
        self.lifetimes = tuple((start, end) for start, end in times if 0 < start < end)

        # The clock of the machine, or the clocks of processes if there are several machines.
        machines = nodes.texts["machine_id"][:_MOST_NUMBERED]
        node_clocks = list(map(clock_of, machines, hosts))
        clock_of_node = dict(zip(node_ids, node_clocks, strict=False))
        self.clock = node_clocks[0] if len(set(node_clocks)) == 1 else None
        self.is_of_several_machines = len(set(node_clocks) - {None}) > 1
        clocks = (clock_of_node.get(node) or "" for node in process_nodes)
        self.clocks = tuple(clocks) if self.is_of_several_machines else ()

        # Events: their correlation and, if there are records of the host, their category.
        has_host = run.has_rows("region") or run.has_rows("sample")
        integers = ("id", "stack_id", *(("category_id",) if has_host else ()))
        events = run.whole("event", Wanted(integers=integers))
        ids, calls = events["id"], events["stack_id"]
        self.correlations = Lookup(ids, np.where(calls == 0, ABSENT, calls))
        """The correlation of each event; in these databases 0 is none."""
        count = len(ids) if has_host else 0
        self.categories = Lookup(ids[:count], events[integers[-1]][:count])
        """The id of the name of each event's category; empty without records of the host."""

    @cached_property
    def strings(self) -> TextsById:
        """The texts of the table of strings."""
        rows = self.run.whole("string", Wanted(integers=("id",), texts=("string",)))
        return TextsById(rows["id"], rows.texts["string"])

    def processes(self, ids: IntArray) -> IntArray:
        """Return the numbers of the processes with these ids; all unlisted ones share a number."""

        def number(key: int, _: int) -> int:
            listed = self._numbers.get(key)
            return self.process(None, ProcessFacts(self._file)) if listed is None else listed

        return by_distinct(ids, number)

    def threads(self, ids: IntArray) -> IntArray:
        """Return the tid of each thread id of the database; an unlisted id stays as it is."""
        tids = self._tids(ids)
        return np.where(tids == ABSENT, ids, tids)

    def devices(self, agents: IntArray, processes: IntArray) -> IntArray:
        """Return the device of each agent id; `processes` are the processes that use them.

        Each unlisted agent is a device of its own, but all with impossible ids share one device.
        """

        def device(key: int, row: int) -> int:
            process, agent = int(processes[row]), self._agents.get(key)
            if agent is not None:
                place = place_of_node(agent.number)
                return self.device(key, process, agent.number, agent.facts, place)
            unlisted = key if 0 <= key < _MOST_NUMBERED else -1
            return self.device(("unlisted", unlisted), process, unlisted)

        return by_distinct(agents, device)

    def are_gpus(self, agents: IntArray) -> BoolArray:
        """Return which agents are GPUs; an agent that is not listed is assumed to be one."""
        listed = self._agents
        return by_distinct(
            agents, lambda key, _: listed[key].is_gpu if key in listed else key != ABSENT
        ).astype(np.bool_)

    def messages(self, category: int) -> TextsById:
        """Return the messages, by event id, of the events of a category; None without a message."""
        wanted = Wanted(integers=("id",), texts=("extdata",))
        ids, messages = [np.empty(0, np.int64)], list[str | None]()
        for batch in self.run.batches("event", wanted, Among("category_id", (category,))):
            ids.append(batch["id"])
            for text in batch.texts["extdata"]:
                event = decoded(text, _EventData) if text and text != "{}" else None
                messages.append((event.message or None) if event else None)
        return TextsById(np.concatenate(ids), messages)


class _EventData(msgspec.Struct):
    message: str
