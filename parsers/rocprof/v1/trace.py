"""Puts the events of rocprof's (v1) JSON into the tables of a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from traceflops.parsers.io import by_distinct
from traceflops.parsers.rocprof.copies import direction_of
from traceflops.parsers.rocprof.tables.sums import summed_instances
from traceflops.parsers.rocprof.tables.work import DISPATCH
from traceflops.parsers.rocprof.v1.agents import Machine
from traceflops.parsers.rocprof.v1.block import (
    ARROW_FROM,
    ARROW_TO,
    CALLS,
    COPY,
    FILL,
    KERNEL,
    MARK,
    WORK,
)
from traceflops.parsers.rocprof.v1.links import links
from traceflops.parsers.rocprof.v1.rows import AllRows
from traceflops.parsers.shared import NOTHING_KNOWN, Gathered, ProcessFacts, Spans
from traceflops.table import ABSENT, Array, BoolArray, IntArray, Names

_KINDS: Final[Mapping[str, str]] = {WORK: "kernel", COPY: "memcpy", FILL: "memset"}
_APIS: Final = {name: name.removesuffix("_api") for name in CALLS.values()}
_SHOWN: Final = ("section", "lane", "shown_us", "start", "end")
_MOST_PROCESSES: Final = 4_096
_QUEUED: Final = "hsa_dispatch"
_CALL_IDS: Final = 1 << 40
"""The places of calls stand for ids above this; kernels of results.csv have the ids below."""
_MARK_NS: Final = 1
"""rocprof writes an instant as a range of so much."""


@dataclass(slots=True)
class Told:
    """What came up while the events were put together."""

    odd: Counter[str] = field(default_factory=Counter)
    open_devices: set[int] = field(default_factory=set)


class Assembly:
    """Adds the events of one file to the tables of a trace."""

    def __init__(self, file: str, rank: int | None, rows: AllRows, machine: Machine) -> None:
        self.gathered = Gathered()
        self.told = Told()
        self._file = file
        self._rank = rank
        self._rows = rows
        self._machine = machine
        self._pids: set[int] = set()
        gpus = np.concatenate([rows.column(kind, "gpu") for kind in (KERNEL, *_KINDS)])
        self._gpus = sorted(set(gpus[gpus != ABSENT].tolist()))
        self._add()

    def _add(self) -> None:
        if KERNEL in self._rows:
            # Numbered as in results.csv: in the order in which they stand there.
            index = np.arange(self._rows[KERNEL].count)
            if WORK not in self._rows:  # else the same kernels stand among the operations
                self._add_kernels(index)
            self._add_counters(index)
        asked_by = self._asked_by()
        self._add_calls()
        for kind in _KINDS:
            if kind in self._rows:
                self._add_work(kind, asked_by.get(kind))
        if MARK in self._rows:
            self._add_marks()
        counters, merged = summed_instances(self.gathered["kernel_counters"])
        self.gathered.tables["kernel_counters"] = counters
        self.told.odd["instances"] += merged

    def _add_kernels(self, index: IntArray) -> None:
        timed = self._timed(KERNEL)
        column, kept = self._rows.column, timed.rows
        process = self._processes(KERNEL, kept)
        table = self.gathered["activities"]
        registers, shared = column(KERNEL, "registers"), column(KERNEL, "shared")
        table.add(
            len(timed.start),
            process=process,
            device=self._devices(column(KERNEL, "gpu")[kept], process),
            stream=column(KERNEL, "queue")[kept],
            kind=table.names["kind"]["kernel"],
            name=self._rows.names(KERNEL, table.names["name"])[kept],
            start_ns=timed.start,
            dur_ns=timed.dur,
            correlation=index[kept],
            registers_per_thread=np.where(registers > 0, registers, ABSENT)[kept],
            shared_memory_bytes=np.where(shared >= 0, shared, ABSENT)[kept],
        )
        self._add_queueing(index, kept)

    def _add_queueing(self, index: IntArray, kept: BoolArray) -> None:
        """Add the moments at which kernels were put into their queues, as calls of no length."""
        queued = self._rows.column(KERNEL, "queued")
        known = kept & (queued > 0)
        if known.any():
            calls = self.gathered["calls"]
            calls.add(
                int(known.sum()),
                process=self._processes(KERNEL, known),
                thread=self._rows.column(KERNEL, "thread")[known],
                name=calls.names["name"][DISPATCH],
                start_ns=queued[known],
                dur_ns=0,
                correlation=index[known],
                api=calls.names["api"]["hsa"],
            )

    def _add_counters(self, index: IntArray) -> None:
        table, column = self.gathered["kernel_counters"], self._rows.column
        for counter, values in self._rows[KERNEL].counters.items():
            known = np.isfinite(values)
            process = self._processes(KERNEL, known)
            table.add(
                int(known.sum()),
                process=process,
                device=self._devices(column(KERNEL, "gpu")[known], process),
                name=self._rows.names(KERNEL, table.names["name"])[known],
                dispatch=index[known],
                correlation=index[known],
                threads=_above_zero(column(KERNEL, "threads")[known]),
                block_threads=_above_zero(column(KERNEL, "block_threads")[known]),
                counter=table.names["counter"][counter.split("[")[0]],
                value=values[known],
            )

    def _asked_by(self) -> dict[str, IntArray]:
        """Return the place, among all calls, of the call that asked for each piece of work."""
        kinds = [kind for kind in _KINDS if kind in self._rows]
        if not kinds or ARROW_FROM not in self._rows or ARROW_TO not in self._rows:
            return {}
        apis = [kind for kind in _APIS if kind in self._rows]
        work = self._rows.together(kinds, _SHOWN)
        calls: dict[str, Array] = dict(self._rows.together(apis, _SHOWN))
        names = Names()
        codes = [self._rows.names(kind, names) for kind in apis]
        calls["name"] = np.concatenate([np.empty(0, np.int32), *codes])
        begins, ends = self._rows[ARROW_FROM].columns, self._rows[ARROW_TO].columns
        found = links(begins, ends, work, calls, list(names))
        self.told.odd["loose-arrows"] += found.loose
        sizes = [self._rows[kind].count for kind in kinds]
        return dict(zip(kinds, np.split(found.call, np.cumsum(sizes)[:-1]), strict=True))

    def _add_calls(self) -> None:
        """Add the calls, each under its place among all of them as id."""
        table = self.gathered["calls"]
        were_queued = DISPATCH in table.names["name"]
        offset = 0
        for kind, api in _APIS.items():
            if kind not in self._rows:
                continue
            timed = self._timed(kind)
            rows, kept = self._rows[kind], timed.rows
            # What is no call but such a moment is known already.
            queued = rows.names.get(_QUEUED, -1) if were_queued else -1
            is_call = rows.columns["name"][kept] != queued
            places = np.flatnonzero(kept)[is_call]
            table.add(
                len(places),
                process=self._processes(kind, kept)[is_call],
                thread=self._rows.column(kind, "thread")[places],
                name=self._rows.names(kind, table.names["name"])[places],
                start_ns=timed.start[is_call],
                dur_ns=timed.dur[is_call],
                correlation=_CALL_IDS + offset + places,
                api=table.names["api"][api],
            )
            offset += rows.count

    def _add_work(self, kind: str, asked_by: IntArray | None) -> None:
        """Add kernels, copies and fills as they were seen to run."""
        timed, rows = self._timed(kind), self._rows[kind]
        kept = timed.rows
        process = self._processes(kind, kept)
        table = self.gathered["activities"]
        ways = [direction_of(name) if kind == COPY else None for name in rows.names]
        way = np.array([-1 if one is None else table.names["direction"][one] for one in ways])
        sizes, correlation = self._rows.column(kind, "bytes"), np.full(rows.count, ABSENT)
        if asked_by is not None:
            sizes = np.where(sizes == ABSENT, self._sizes_asked(asked_by), sizes)
            correlation = np.where(asked_by < 0, ABSENT, asked_by + _CALL_IDS)
        table.add(
            len(timed.start),
            process=process,
            device=self._devices(self._gpu_of(kind)[kept], process),
            # An engine for copies works these off: no queue is their place.
            stream=ABSENT if kind == COPY else self._rows.column(kind, "queue")[kept],
            kind=table.names["kind"][_KINDS[kind]],
            name=self._rows.names(kind, table.names["name"])[kept],
            start_ns=timed.start,
            dur_ns=timed.dur,
            correlation=correlation[kept],
            bytes=ABSENT if kind == WORK else sizes[kept],
            direction=way[rows.columns["name"]][kept].astype(np.int32),
        )

    def _sizes_asked(self, asked_by: IntArray) -> IntArray:
        """Return how many bytes were asked for, where a call asked for one piece of work only."""
        said = self._rows.together([kind for kind in _APIS if kind in self._rows], ("bytes",))
        calls, place, count = np.unique(asked_by, return_inverse=True, return_counts=True)
        once = (calls >= 0) & (count == 1)
        sizes = np.append(said["bytes"], ABSENT)  # the last is of those without a call
        return np.where(once, sizes[np.where(once, calls, -1)], ABSENT)[place]

    def _gpu_of(self, kind: str) -> IntArray:
        """Return the GPU of each piece of work; one that names none is of the only one, or of 0."""
        gpu = self._rows.column(kind, "gpu")
        missing = gpu == ABSENT
        self.told.odd["device-unknown"] += int(np.count_nonzero(missing))
        return np.where(missing, self._gpus[0] if len(self._gpus) == 1 else 0, gpu)

    def _add_marks(self) -> None:
        timed = self._timed(MARK)
        table = self.gathered["marks"]
        kinds = table.names["kind"].codes(("annotation", "instant"))
        is_range = timed.dur > _MARK_NS
        table.add(
            len(timed.start),
            process=self._processes(MARK, timed.rows),
            thread=self._rows.column(MARK, "thread")[timed.rows],
            kind=np.where(is_range, kinds[0], kinds[1]),
            name=self._rows.names(MARK, table.names["name"])[timed.rows],
            start_ns=timed.start,
            dur_ns=np.where(is_range, timed.dur, 0),
        )

    def _timed(self, kind: str) -> Spans:
        return self._rows.spans(kind, self.told.odd)

    def _processes(self, kind: str, kept: BoolArray) -> IntArray:
        return by_distinct(self._rows.column(kind, "pid")[kept], lambda pid, _: self._process(pid))

    def _process(self, pid: int) -> int:
        if pid not in self._pids and len(self._pids) >= _MOST_PROCESSES:
            pid = ABSENT
        self._pids.add(pid)
        known = pid if pid >= 0 else None
        return self.gathered.process(pid, ProcessFacts(self._file, self._rank, pid=known))

    def _devices(self, gpus: IntArray, process: IntArray) -> IntArray:
        return by_distinct(gpus, lambda gpu, row: self._device(gpu, int(process[row])))

    def _device(self, gpu: int, process: int) -> int:
        facts = self._machine.facts_of(gpu)
        if facts is None:
            self.told.open_devices.add(gpu)
        return self.gathered.device(gpu, process, gpu, facts or NOTHING_KNOWN)


def _above_zero(values: IntArray) -> IntArray:
    return np.where(values > 0, values, ABSENT)
