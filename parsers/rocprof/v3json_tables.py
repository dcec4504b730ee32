"""The lists of one process of rocprofv3's JSON; adds their records to the tables of a trace."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from traceflops.parsers.io.database_query import Batch, Lookup, TextsById, by_distinct
from traceflops.parsers.io.json_blocks import SKIPPED, WHOLE, Elements, JsonPart, Members, Records
from traceflops.parsers.io.json_text import decoded
from traceflops.parsers.rocprof import copies
from traceflops.parsers.rocprof.agents import facts_of_agent, is_gpu, place_of_node, text_of
from traceflops.parsers.rocprof.tables.counters import takes_largest
from traceflops.parsers.rocprof.trace import clock_of
from traceflops.parsers.rocprof.v3json_records import READERS, RecordBlock
from traceflops.parsers.shared import sinks
from traceflops.parsers.shared.sanity_checks import timed
from traceflops.parsers.shared.trace_builder import Gathered, ProcessFacts, within_limit
from traceflops.table.columns import ABSENT, LIMIT_NS, Array, BoolArray, IntArray, Names
from traceflops.table.grouping import distinct

ROOT_KEY: Final = "rocprofiler-sdk-tool"
APIS: Final = {
    "hip_api": "hip",
    "hsa_api": "hsa",
    "rccl_api": "rccl",
    "rocdecode_api": "rocdecode",
    "rocjpeg_api": "rocjpeg",
    "hipfile_api": "hipfile",
    "rocshmem_api": "rocshmem",
}
"""The lists of API calls, and the API of each."""
_LISTS: Final = {name: Records(reader) for name, reader in READERS.items()}
_BUFFERED: Final = {
    "kernel_dispatch": _LISTS["dispatch"],
    "memory_copy": _LISTS["copy"],
    "scratch_memory": _LISTS["scratch"],
    "marker_api": _LISTS["call"],
    **dict.fromkeys(APIS, _LISTS["call"]),
    "hip_api": _LISTS["hip call"],
    "rccl_api": _LISTS["collective"],
}
_PROCESS: Final = Members(
    {
        "metadata": WHOLE,
        "agents": _LISTS["agent"],
        "counters": _LISTS["counter"],
        "strings": Members({"buffer_records": WHOLE, "marker_api": _LISTS["message"]}),
        "code_objects": SKIPPED,
        "kernel_symbols": _LISTS["symbol"],
        "host_functions": SKIPPED,
        "summary": SKIPPED,
        "callback_records": Members({"counter_collection": _LISTS["counting"]}, _LISTS["other"]),
        "buffer_records": Members(_BUFFERED, _LISTS["other"]),
    }
)
ROOT: Final = Members({ROOT_KEY: Elements(_PROCESS)})
_UNLISTED: Final = -1
_KIND_BASE: Final = 1 << 20  # more than a kind has operations


class _Node(msgspec.Struct):
    machine_id: Any = None
    hostname: Any = None


class _Metadata(msgspec.Struct):
    node: _Node | None = None
    pid: Any = None
    init_time: Any = None
    fini_time: Any = None


class _Operations(msgspec.Struct):
    kind: str = ""
    operations: list[str] = msgspec.field(default_factory=list)


class Metadata:
    """The metadata of a process. Command, configuration and environment are never read."""

    def __init__(self, raw: msgspec.Raw | bytes = b"{}") -> None:
        """Decode the metadata; impossible values become None."""
        metadata = decoded(raw, _Metadata) or _Metadata()
        node, times = metadata.node or _Node(), (metadata.init_time, metadata.fini_time)
        self.has_node = metadata.node is not None
        self.host = text_of(node.hostname)
        self.clock = clock_of(text_of(node.machine_id), self.host)
        pid, are_ints = metadata.pid, all(type(time) is int for time in times)
        self.pid = pid if type(pid) is int and 0 <= pid < 2**63 else None
        fits = are_ints and 1 <= times[0] <= times[1] < LIMIT_NS
        self.lifetime_ns: tuple[int, int] | None = times if fits else None


class JsonRecorded(Gathered):
    """The rows of all processes of a file, and the ids that records use without a definition.

    `arguments` has those of RCCL calls by name, by the row of the call. `unreadable` counts records
    that are left out, by list, `mended` repairs by kind.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unreadable: Counter[str] = Counter()
        self.mended: Counter[str] = Counter()
        self.metadata: list[Metadata] = []
        self.releases: dict[str, None] = {}  # a set that keeps the order
        self.launchers: list[tuple[int, ProcessFacts]] = []
        self.unknown_kernels: set[int] = set()
        self.unlisted_agents: set[int] = set()
        self.streams: set[int] = set()
        self.arguments: dict[int, dict[str, str]] = {}


class ProcessRecords:
    """The lists of one process, kept until its end: names may follow the records that use them.

    Then `add` adds the records to the tables of `recorded`.
    """

    def __init__(self, recorded: JsonRecorded) -> None:
        """Begin without lists; `recorded` counts what is damaged in them."""
        self.counts: Counter[str] = Counter()  # of records, by list
        self.metadata = Metadata()
        self._recorded = recorded
        self._lists: defaultdict[str, list[RecordBlock]] = defaultdict(list)
        self.kinds: list[_Operations] = []

    def absorb(self, item: JsonPart) -> None:
        """Add a part of this process; its path is root, process, list (or section, list)."""
        path = ".".join(map(str, item.path[2:]))
        if isinstance(item.value, RecordBlock):
            block, name = item.value, str(item.path[-1])
            if len(item.path) == 4 and item.path[2] != "strings":  # a section with lists of records
                self.counts[name] += block.records
            self._recorded.unreadable[name] += block.unreadable
            self._recorded.mended.update(block.mended)
            for column, values in block.columns.items():  # save memory if all values are equal
                if len(values) and (values == values[0]).all():
                    block.columns[column] = np.broadcast_to(values[0].copy(), values.shape)
            self._lists[path].append(block)
        elif path == "metadata":
            self.metadata = Metadata(item.value)
        elif path == "strings.buffer_records":
            self.kinds = decoded(item.value, list[_Operations]) or []

    def _take(self, path: str) -> list[RecordBlock]:
        """Return the blocks of a list and forget them."""
        return self._lists.pop(path, [])

    def _each(self, path: str) -> Iterator[RecordBlock]:
        """Yield the blocks of a list in order and forget each."""
        blocks = deque(self._take(path))
        while blocks:
            yield blocks.popleft()

    def _operation(self, kind: int, number: int) -> str | None:
        """Return the name of operation `number` of a kind of records, None if it is unknown."""
        operations = self.kinds[kind].operations if 0 <= kind < len(self.kinds) else []
        return operations[number] or None if 0 <= number < len(operations) else None

    def add(self, number: int) -> None:
        """Add all records to the tables, as those of the process with this number."""
        self._number = number
        kept = [agent for block in self._take("agents") for agent in block.kept]
        self._agents: dict[int, Mapping[str, Any]] = {a["id"].handle: a for a in kept}
        symbols = self._take("kernel_symbols")
        ids, registers = _column(symbols, "kernel"), _column(symbols, "registers")
        self._kernels = _texts(symbols, "kernel")
        self._registers = Lookup(ids, np.where(registers > 0, registers, ABSENT))
        # Kernels whose id has several names.
        texts, order = self._kernels.texts, np.argsort(ids, kind="stable")
        repeated = np.flatnonzero(ids[order][1:] == ids[order][:-1])
        pairs = zip(order[repeated].tolist(), order[repeated + 1].tolist(), strict=True)
        differ = np.array([texts[first] != texts[second] for first, second in pairs], np.bool_)
        self._ambiguous_kernels = ids[order[repeated]][differ]
        # Pairs of columns: correlations of calls, bytes that they copy. The first pair is empty.
        self._copy_sizes = [(np.empty(0, np.int64), np.empty(0, np.int64))]

        activities = self._recorded["activities"]
        since = activities.count
        self._add_dispatches()
        for block in self._each("buffer_records.memory_copy"):
            self._add_copies(block)
        for kind, api in APIS.items():
            for block in self._each(f"buffer_records.{kind}"):
                self._add_calls(block, api)  # puts the sizes of copies into `_copy_sizes`
        calls, sizes = (np.concatenate(columns) for columns in zip(*self._copy_sizes, strict=True))
        copies.fill_sizes(activities, since, calls, sizes)
        self._add_marks()
        self._add_counters()

    def _add_dispatches(self) -> None:
        """Add a kernel per dispatch; its queue is the stream."""
        kernel_names = self._recorded["activities"].names["name"]
        for block in self._each("buffer_records.kernel_dispatch"):
            rows = self._timed(block)
            self._recorded.streams.update(distinct(rows["stream"]).tolist())
            sinks.add_work(
                self._recorded,
                rows,
                "kernel",
                process=self._number,
                device=self._devices(rows["agent"]),
                stream=rows["queue"],  # a stream of the trace is a queue; HIP's are only counted
                name=self._kernel_names(rows["kernel"], kernel_names),
                correlation=rows["correlation"],
                graph=rows["graph"],
                graph_node=rows["graph_node"],
                grid=sinks.blocks_of(rows["grid"], rows["block"]),
                block=rows["block"],
                registers_per_thread=self._registers(rows["kernel"].astype(np.int64)),
                shared_memory_bytes=rows["shared"],
                scratch_bytes=rows["private"],
            )

    def _add_marks(self) -> None:
        """Add ranges and marks by text, else operation, and allocations of scratch as overheads."""
        names = self._recorded["marks"].names["name"]
        message = _texts(self._take("strings.marker_api"), "key").coder(names, None)
        for block in self._each("buffer_records.marker_api"):
            rows = self._timed(block)
            name = message(rows["correlation"].astype(np.int64))
            textless = name < 0
            if textless.any():
                name[textless] = self._operations(rows.only(textless), names, "(unknown mark {})")
            columns: dict[str, Any] = {"process": self._number, "thread": rows["thread"]}
            sinks.add_marks(self._recorded, rows, **columns, name=name)
        for block in self._each("buffer_records.scratch_memory"):
            rows = self._timed(block)
            sinks.add_overheads(
                self._recorded,
                rows,
                process=self._number,
                thread=rows["thread"],
                device=self._devices(rows["agent"]),
                stream=rows["queue"],
                name=self._operations(rows, names, "(unknown scratch operation {})"),
            )

    def _add_counters(self) -> None:
        """Add counters: the sum of instances, or the largest if each counts the whole chip."""
        counters = _texts(self._take("counters"), "counter")
        table, odd = self._recorded["kernel_counters"], self._recorded.odd
        for block in self._each("callback_records.counter_collection"):
            columns, names = block.columns, Names()
            counter, _ = _named(counters, columns["counter"], names, "(unknown counter {})")
            largest = np.array([takes_largest(text) for text in names], np.bool_)
            odd["no-value"] += int(columns["valueless"].max(initial=0))  # same in all rows
            odd["instances-summed"] += int((columns["instances"] - 1).sum())
            table.add(
                block.rows,
                process=self._number,
                device=self._devices(columns["agent"]),
                name=self._kernel_names(columns["kernel"], table.names["name"]),
                dispatch=columns["dispatch"],
                correlation=columns["correlation"],
                threads=sinks.product_of(columns["grid"]),
                block_threads=sinks.product_of(columns["block"]),
                counter=table.names["counter"].codes(names)[counter],
                value=np.where(largest[counter], columns["largest"], columns["sum"]),
            )

    def _add_copies(self, block: RecordBlock) -> None:
        """Add copies, except those within host memory, which are only counted."""
        rows, texts = self._timed(block), Names()
        operation = self._operations(rows, texts, "(unknown copy {})")
        rows = rows.with_numbers({"operation": operation})
        named, ends = copies.directions_named(texts)[operation], ("source", "target")
        work, agent, direction = copies.on_devices(rows, named, ends, self._are_gpus)
        self._recorded.odd["host-copies"] += rows.count - work.count
        sinks.add_work(
            self._recorded,
            work,
            "memcpy",
            process=self._number,
            # A copy engine executes it: it belongs to no queue or stream.
            device=self._devices(agent),
            name=self._recorded["activities"].names["name"].codes(texts)[work["operation"]],
            correlation=work["correlation"],
            bytes=work["bytes"],
            direction=direction,
        )

    def _add_calls(self, block: RecordBlock, api: str) -> None:
        """Add calls; keep the arguments of RCCL calls and the sizes in the arguments of copies."""
        rows, table = self._timed(block), self._recorded["calls"]
        kept: Sequence[Any] = rows.texts["kept"]
        for row, given in enumerate(kept):
            if given:  # an object or, in other releases, a list of names and values
                items: list[tuple[Any, Any]] = []
                if isinstance(given, dict):
                    items = [*given.items()]
                elif isinstance(given, list):
                    items = [(p.get("name"), p.get("value")) for p in given if isinstance(p, dict)]
                self._recorded.arguments[table.count + row] = {str(n): str(v) for n, v in items}
        if "size" in rows.numbers:
            has_size = rows["size"] != ABSENT
            self._copy_sizes.append((rows["correlation"][has_size], rows["size"][has_size]))
        sinks.add_calls(
            self._recorded,
            rows,
            process=self._number,
            thread=rows["thread"],
            name=self._operations(rows, table.names["name"], f"(unknown {api} call {{}})"),
            correlation=rows["correlation"],
            api=api,
        )

    def _timed(self, block: RecordBlock) -> Batch:
        """Return the records that have a valid time."""
        times = {name: block.columns[name].astype(np.int64) for name in ("start", "end")}
        rows = Batch(block.rows, {**block.columns, **times}, {"kept": block.kept})
        return timed(rows, self._recorded.odd)

    def _devices(self, agents: Array) -> IntArray:
        """Return the devices of agents (handles); an unlisted agent has no facts, only an id."""
        machine, recorded = self.metadata.clock, self._recorded

        def device(handle: int, _: int) -> int:
            agent = self._agents.get(handle)
            if agent is None:
                handle = within_limit(recorded.unlisted_agents, handle, ABSENT)
                local = handle if 0 <= handle < 2**31 else _UNLISTED  # shown as an int32
                return recorded.device((machine, "handle", handle), self._number, local)
            node = agent["node_id"] if agent["node_id"] != ABSENT else agent["logical_node_id"]
            local = node if 0 <= node < 2**31 else _UNLISTED
            key = (machine, *((node,) if node != ABSENT else ("handle", handle)))
            facts, place = facts_of_agent(agent), place_of_node(node)
            return recorded.device(key, self._number, local, facts, place)

        return by_distinct(agents, device)

    def _are_gpus(self, agents: Array) -> BoolArray:
        """Return which agents are GPUs; an agent that is not listed is assumed to be one."""
        listed = self._agents
        return by_distinct(
            agents, lambda a, _: is_gpu(listed[a]) if a in listed else a not in (0, ABSENT)
        ).astype(np.bool_)

    def _kernel_names(self, kernels: Array, names: Names) -> Array:
        """Return the codes in `names` of kernels, given by id; count those with several names.

        Kernels without a name are added to `unknown_kernels`.
        """
        ambiguous = np.count_nonzero(np.isin(kernels, self._ambiguous_kernels))
        self._recorded.odd["kernel-clash"] += int(ambiguous)
        codes, missing = _named(self._kernels, kernels, names, "(unknown kernel {})")
        self._recorded.unknown_kernels |= set(missing.tolist())
        return codes

    def _operations(self, rows: Batch, names: Names, unknown: str) -> Array:
        """Return the codes in `names` of operations; `unknown` with the number names others."""
        kind, operation = rows["kind"], rows["operation"]
        # One number per pair of kind and operation; the limits apply only to damaged records.
        both = np.clip(kind, -1, _KIND_BASE) * _KIND_BASE + np.clip(operation, -1, _KIND_BASE - 2)

        def name(_: int, row: int) -> int:
            text = self._operation(int(kind[row]), int(operation[row]))
            return names[text or unknown.format(int(operation[row]))]

        return by_distinct(both, name).astype(np.int32)


def _texts(blocks: Sequence[RecordBlock], key: str) -> TextsById:
    """Return the texts of a list by the numbers in one of its columns."""
    return TextsById(_column(blocks, key), [text for block in blocks for text in block.texts])


def _column(blocks: Sequence[RecordBlock], name: str) -> IntArray:
    columns = [block.columns[name].astype(np.int64) for block in blocks]
    return np.concatenate([np.empty(0, np.int64), *columns])


def _named(texts: TextsById, numbers: Array, names: Names, unknown: str) -> tuple[Array, IntArray]:
    """Return the codes of the texts of `numbers`, and the numbers without a text.

    The text of these is `unknown.format(number)`.
    """
    wide = numbers.astype(np.int64)
    codes = texts.coder(names, None)(wide)
    missing = codes < 0
    shown = {ABSENT: "without a number"}
    codes[missing] = by_distinct(
        wide[missing], lambda number, _: names[unknown.format(shown.get(number, number))]
    )
    return codes, distinct(wide[missing])
