"""The records of one process of rocprofv3's JSON as rows of the tables of a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Final

import numpy as np

from traceflops.parsers.io import Lookup, TextsById, by_distinct
from traceflops.parsers.rocprof.agents import facts_of_agent, is_gpu
from traceflops.parsers.rocprof.copies import direction_of, fill_sizes
from traceflops.parsers.rocprof.notes import place_of_node
from traceflops.parsers.rocprof.tables.counts import takes_largest
from traceflops.parsers.rocprof.tables.work import blocks_of
from traceflops.parsers.rocprof.v3json.block import RecordBlock, narrow
from traceflops.parsers.rocprof.v3json.places import APIS, ProcessRecords
from traceflops.parsers.shared import Gathered, Spans, spans
from traceflops.table import ABSENT, Array, BoolArray, IntArray, Names

_UNLISTED: Final = -1
_MOST: Final = 4_096
"""So many agents that are not listed are told apart; a file with more has invented them."""
_WAYS: Final = ("HtoD", "DtoH", "DtoD", "PtoP", "HtoH")
_KIND_BASE: Final = 1 << 20
"""More than there are operations of a kind."""


@dataclass(slots=True)
class Odd:
    """What was odd about the records, by the code of the note that says so."""

    counts: Counter[str] = field(default_factory=Counter)
    unknown_kernels: set[int] = field(default_factory=set)
    unlisted_agents: set[int] = field(default_factory=set)
    streams: set[int] = field(default_factory=set)


class ProcessTables:
    """Adds the records of one process to the rows of a trace, whose `number` there is given."""

    def __init__(
        self, gathered: Gathered, records: ProcessRecords, number: int, machine: str, odd: Odd
    ) -> None:
        self._gathered = gathered
        self._records = records
        self._number = number
        self._machine = machine
        self._odd = odd
        kept = [agent for block in records.take("agents") for agent in block.kept]
        self._agents: dict[int, Mapping[str, Any]] = {a["id"].handle: a for a in kept}
        self._kernels = Kernels(records.take("kernel_symbols"))
        self.arguments: dict[int, dict[str, str]] = {}
        self._asked = [(np.empty(0, np.int64), np.empty(0, np.int64))]

    def add_timeline(self) -> None:
        """Add everything that has a time."""
        since = self._gathered["activities"].count
        for block in self._records.each("buffer_records.kernel_dispatch"):
            self._add_dispatches(block)
        for block in self._records.each("buffer_records.memory_copy"):
            self._add_copies(block)
        for name, api in APIS.items():
            for block in self._records.each(f"buffer_records.{name}"):
                self._add_calls(block, api)
        calls, sizes = (np.concatenate(columns) for columns in zip(*self._asked, strict=True))
        fill_sizes(self._gathered["activities"], since, calls, sizes)
        self._add_marks()
        for block in self._records.each("buffer_records.scratch_memory"):
            self._add_scratch(block)

    def add_counters(self, repetition: int | None, *, is_own: bool) -> None:
        """Add counters; of another repetition than that of the times, an id links to nothing."""
        counters = NamesByNumber(
            texts_of(self._records.take("counters"), "counter"), "(unknown counter {})"
        )
        table = self._gathered["kernel_counters"]
        for block in self._records.each("callback_records.counter_collection"):
            columns = block.columns
            known = Names()
            counter = counters.codes(columns["counter"], known)
            largest = np.array([takes_largest(text) for text in known], dtype=np.bool_)
            self._odd.counts["no-value"] += int(columns["valueless"].max(initial=0))
            self._odd.counts["instances"] += int((columns["instances"] - 1).sum())
            table.add(
                block.rows,
                process=self._number,
                device=self._devices(columns["agent"]),
                name=self._kernel_names(columns["kernel"], table.names["name"]),
                dispatch=columns["dispatch"],
                correlation=columns["correlation"] if is_own else ABSENT,
                repetition=ABSENT if repetition is None else repetition,
                threads=_product(columns["grid"]),
                block_threads=_product(columns["block"]),
                counter=table.names["counter"].codes(known)[counter],
                value=np.where(largest[counter], columns["largest"], columns["sum"]),
            )

    def _add_dispatches(self, block: RecordBlock) -> None:
        timed, columns = self._timed(block)
        table = self._gathered["activities"]
        threads, block_threads = columns["grid"], columns["block"]
        self._odd.streams.update(np.unique(columns["stream"]).tolist())
        table.add(
            len(timed.start),
            process=self._number,
            device=self._devices(columns["agent"]),
            stream=columns["queue"],
            kind=table.names["kind"]["kernel"],
            name=self._kernel_names(columns["kernel"], table.names["name"]),
            start_ns=timed.start,
            dur_ns=timed.dur,
            correlation=columns["correlation"],
            graph=columns["graph"],
            graph_node=columns["graph_node"],
            grid=narrow(blocks_of(threads, block_threads)),
            block=narrow(_whole_sizes(block_threads)),
            registers_per_thread=narrow(self._kernels.registers(columns["kernel"])),
            shared_memory_bytes=narrow(_sizes(columns["shared"])),
        )

    def _add_copies(self, block: RecordBlock) -> None:
        """Add copies; one between two places of the host is no work of a device."""
        timed, columns = self._timed(block)
        table = self._gathered["activities"]
        source, target = columns["source"], columns["target"]
        to_gpu, from_gpu = self._are_gpus(target), self._are_gpus(source)
        kept = to_gpu | from_gpu
        self._odd.counts["host-copies"] += int(np.count_nonzero(~kept))
        texts = Names()
        operation = self._operations(columns, texts, "(unknown copy {})")
        told = [direction_of(text) for text in texts]
        way = np.array([_WAYS.index(one) if one else -1 for one in told], np.int64)[operation]
        way = _ways(way, from_gpu, to_gpu, source != target)
        name = table.names["name"].codes(texts)[operation]
        table.add(
            int(np.count_nonzero(kept)),
            process=self._number,
            # An engine for copies works it off: neither a queue nor a stream is its place.
            device=self._devices(np.where(to_gpu, target, source)[kept]),
            kind=table.names["kind"]["memcpy"],
            name=name[kept],
            start_ns=timed.start[kept],
            dur_ns=timed.dur[kept],
            correlation=columns["correlation"][kept],
            bytes=_sizes(columns["bytes"])[kept],
            direction=table.names["direction"].codes(_WAYS)[way[kept]],
        )

    def _add_calls(self, block: RecordBlock, api: str) -> None:
        timed, columns = self._timed(block)
        table = self._gathered["calls"]
        for row, given in enumerate(compress(block.kept, timed.rows.tolist())):
            if given:
                self.arguments[table.count + row] = _arguments(given)
        if "size" in columns:
            said = columns["size"] != ABSENT
            self._asked.append((columns["correlation"][said], columns["size"][said]))
        table.add(
            len(timed.start),
            process=self._number,
            thread=columns["thread"],
            name=self._operations(columns, table.names["name"], f"(unknown {api} call {{}})"),
            start_ns=timed.start,
            dur_ns=timed.dur,
            correlation=columns["correlation"],
            api=table.names["api"][api],
        )

    def _add_marks(self) -> None:
        """Add ranges and marks of the program by their texts; one without has its call's name."""
        texts = texts_of(self._records.take("strings.marker_api"), "key")
        table = self._gathered["marks"]
        kinds = table.names["kind"]
        message = texts.coder(table.names["name"], None)
        for block in self._records.each("buffer_records.marker_api"):
            timed, columns = self._timed(block)
            name = message(columns["correlation"].astype(np.int64))
            unsaid = name < 0
            if unsaid.any():
                some = {key: columns[key][unsaid] for key in ("kind", "operation")}
                name[unsaid] = self._operations(some, table.names["name"], "(unknown mark {})")
            table.add(
                len(timed.start),
                process=self._number,
                thread=columns["thread"],
                kind=np.where(timed.dur > 0, kinds["annotation"], kinds["instant"]),
                name=name,
                start_ns=timed.start,
                dur_ns=timed.dur,
            )

    def _add_scratch(self, block: RecordBlock) -> None:
        """Add the making of scratch memory, for which a queue waits, as overhead of the device."""
        timed, columns = self._timed(block)
        table = self._gathered["marks"]
        table.add(
            len(timed.start),
            process=self._number,
            thread=columns["thread"],
            device=self._devices(columns["agent"]),
            stream=columns["queue"],
            kind=table.names["kind"]["overhead"],
            name=self._operations(columns, table.names["name"], "(unknown scratch operation {})"),
            start_ns=timed.start,
            dur_ns=timed.dur,
        )

    def _timed(self, block: RecordBlock) -> tuple[Spans, dict[str, Array]]:
        """Return the spans of the records that have a time, and their other columns."""
        columns = block.columns
        start, end = (columns[name].astype(np.int64) for name in ("start", "end"))
        timed = spans(start, end, self._odd.counts)
        if not timed.rows.all():
            columns = {name: column[timed.rows] for name, column in columns.items()}
        return timed, columns

    def _devices(self, agents: Array) -> IntArray:
        return narrow(by_distinct(agents, lambda handle, _: self._device(handle)))

    def _device(self, handle: int) -> int:
        agent = self._agents.get(handle)
        if agent is None:
            return self._unlisted(handle)
        node = agent["node_id"] if agent["node_id"] != ABSENT else agent["logical_node_id"]
        local = node if 0 <= node < 2**31 else _UNLISTED
        place = (node,) if node != ABSENT else ("handle", handle)
        facts = facts_of_agent(agent)
        return self._gathered.device(
            (self._machine, *place), self._number, local, facts, place_of_node(node)
        )

    def _unlisted(self, handle: int) -> int:
        """Return the number of a device of which nothing is known but the id of its records."""
        if handle not in self._odd.unlisted_agents and len(self._odd.unlisted_agents) >= _MOST:
            handle = ABSENT
        self._odd.unlisted_agents.add(handle)
        local = handle if 0 <= handle < 2**31 else _UNLISTED
        return self._gathered.device((self._machine, "handle", handle), self._number, local)

    def _are_gpus(self, agents: Array) -> BoolArray:
        """Return which agents are GPUs; one that is not listed is taken for one."""

        def known(handle: int, _: int) -> int:
            agent = self._agents.get(handle)
            return is_gpu(agent) if agent is not None else handle not in (0, ABSENT)

        found: BoolArray = by_distinct(agents, known) == 1
        return found

    def _kernel_names(self, kernels: Array, names: Names) -> Array:
        self._odd.counts["kernel-clash"] += self._kernels.clashes(kernels)
        codes = self._kernels.codes(kernels, names)
        self._odd.unknown_kernels |= self._kernels.missing
        return codes

    def _operations(self, columns: Mapping[str, Array], names: Names, unknown: str) -> Array:
        """Return the codes of the names of operations, which kinds and numbers stand for."""
        kind, operation = columns["kind"], columns["operation"]
        both = np.clip(kind, -1, _KIND_BASE) * _KIND_BASE + np.clip(operation, -1, _KIND_BASE - 2)

        def name(_: int, row: int) -> int:
            found = self._records.operation(int(kind[row]), int(operation[row]))
            return names[found or unknown.format(int(operation[row]))]

        return by_distinct(both, name).astype(np.int32)


def _ways(told: IntArray, from_gpu: Array, to_gpu: Array, apart: Array) -> Array:
    """Return the ways of copies: as their names say, else by their ends; of two GPUs by both."""
    within, between = _WAYS.index("DtoD"), _WAYS.index("PtoP")
    unsaid = told < 0
    way = np.where(unsaid & to_gpu & ~from_gpu, _WAYS.index("HtoD"), told)
    way = np.where(unsaid & from_gpu & ~to_gpu, _WAYS.index("DtoH"), way)
    both = from_gpu & to_gpu & (unsaid | (told == within))
    return np.where(both, np.where(apart, between, within), way)


def _whole_sizes(axes: Array) -> Array:
    known = np.all(axes > 0, axis=1, keepdims=True)
    return np.where(known, axes, ABSENT)


def _sizes(values: Array) -> Array:
    return np.where(values >= 0, values, ABSENT)


def _product(axes: Array) -> IntArray:
    """Return the product of the axes, where it is known and an int64 holds it."""
    wide = axes.astype(np.int64)
    product: IntArray = wide.prod(axis=1)
    fits = (wide > 0).all(axis=1) & (np.prod(wide.astype(np.float64), axis=1) < 2**62)
    return np.where(fits, product, ABSENT)


def _arguments(given: Any) -> dict[str, str]:
    """Return the arguments of a call by name, as one object or as a list of names and values."""
    if isinstance(given, dict):
        return {str(name): str(value) for name, value in given.items()}
    pairs = [one for one in given if isinstance(one, dict)] if isinstance(given, list) else []
    return {str(one.get("name")): str(one.get("value")) for one in pairs}


# Names that the records of rocprofv3's JSON give by number: kernels, counters, messages.


def texts_of(blocks: Sequence[RecordBlock], key: str) -> TextsById:
    """Return the texts of a list by the numbers in one of its columns."""
    return TextsById(column_of(blocks, key), [text for block in blocks for text in block.texts])


def column_of(blocks: Sequence[RecordBlock], name: str) -> IntArray:
    """Return a column of all blocks of a list."""
    columns = [block.columns[name].astype(np.int64) for block in blocks]
    return np.concatenate(columns) if columns else np.empty(0, dtype=np.int64)


class NamesByNumber:
    """Texts by their numbers; one without a text is called by its number.

    `unknown` has the place of the number in it. `missing` are the numbers that were asked for and
    have no text.
    """

    def __init__(self, texts: TextsById, unknown: str) -> None:
        self.texts = texts
        self.missing: set[int] = set()
        self._unknown = unknown

    def codes(self, numbers: Array, names: Names) -> Array:
        """Return the codes that the texts of numbers have among names."""
        wide = numbers.astype(np.int64)
        codes = self.texts.coder(names, None)(wide)
        missing = codes < 0
        if missing.any():
            self.missing.update(np.unique(wide[missing]).tolist())
            codes[missing] = by_distinct(wide[missing], lambda one, _: names[self._called(one)])
        return codes

    def _called(self, number: int) -> str:
        return self._unknown.format("without a number" if number == ABSENT else number)


class Kernels(NamesByNumber):
    """The kernels that a process had loaded, by their numbers."""

    def __init__(self, blocks: Sequence[RecordBlock]) -> None:
        super().__init__(texts_of(blocks, "kernel"), "(unknown kernel {})")
        ids, registers = column_of(blocks, "kernel"), column_of(blocks, "registers")
        self._registers = Lookup(ids, np.where(registers > 0, registers, ABSENT))
        self._clashing = _clashing(ids, self.texts.texts)

    def registers(self, kernels: Array) -> IntArray:
        """Return the registers of kernels."""
        return self._registers(kernels.astype(np.int64))

    def clashes(self, kernels: Array) -> int:
        """Return of how many launches the kernel's number stands for two names."""
        return int(np.count_nonzero(np.isin(kernels, self._clashing)))


def _clashing(ids: IntArray, texts: Sequence[str | None]) -> IntArray:
    order = np.argsort(ids, kind="stable")
    same = np.flatnonzero(ids[order][1:] == ids[order][:-1])
    pairs = zip(order[same].tolist(), order[same + 1].tolist(), strict=True)
    differ = [texts[first] != texts[second] for first, second in pairs]
    return np.array(list(compress(ids[order[same]].tolist(), differ)), dtype=np.int64)
