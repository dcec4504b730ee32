"""Puts the events of rocprof's (v1) JSON into the tables of a trace."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from traceflops.parsers.io import Batch
from traceflops.parsers.rocprof.v1.agents import Machine
from traceflops.parsers.rocprof.v1.block import (
    ARROW_FROM,
    ARROW_TO,
    CALLS,
    COPY,
    FILL,
    KERNEL,
    MARK,
    NUMBERS,
    WORK,
    V1Rows,
)
from traceflops.parsers.rocprof.v1.links import links
from traceflops.parsers.rocprof.v1.tables import QUEUED, V1Tables
from traceflops.parsers.shared import DISPATCH, NOTHING_KNOWN, UNNAMED, Gathered, ProcessIds
from traceflops.table import ABSENT, Array, IntArray, Names

_KINDS: Final[Mapping[str, str]] = {WORK: "kernel", COPY: "memcpy", FILL: "memset"}
_APIS: Final = {name: name.removesuffix("_api") for name in CALLS.values()}
_SHOWN: Final = ("section", "lane", "shown_us", "start", "end")
_CALL_IDS: Final = 1 << 40
"""The places of calls stand for ids above this; kernels of results.csv have the ids below."""


@dataclass(slots=True)
class V1Oddities:
    """What came up while the events were put together."""

    odd: Counter[str] = field(default_factory=Counter)
    open_devices: set[int] = field(default_factory=set)


class V1Assembly:
    """Adds the events of one file to the tables of a trace."""

    def __init__(self, file: str, rank: int | None, rows: AllRows, machine: Machine) -> None:
        self.gathered = Gathered()
        self.oddities = V1Oddities()
        self._rows = rows
        self._machine = machine
        processes = ProcessIds(self.gathered, file, rank)
        self._tables = V1Tables(self.gathered, self.oddities.odd, processes, self._device)
        gpus = np.concatenate([rows.column(kind, "gpu") for kind in (KERNEL, *_KINDS)])
        self._gpus = sorted(set(gpus[gpus != ABSENT].tolist()))
        self._add()

    def _add(self) -> None:
        rows, tables = self._rows, self._tables
        if KERNEL in rows:
            # Numbered as in results.csv: in the order in which they stand there.
            index = np.arange(rows[KERNEL].count)
            kernels, labels = rows.batch(KERNEL, index), rows.labels(KERNEL)
            if WORK not in rows:  # else the same kernels stand among the operations
                tables.add_kernels(kernels, labels)
            tables.add_counters(kernels, labels, rows[KERNEL].counters)
        asked_by = self._asked_by()
        self._add_calls()
        for kind in _KINDS:
            if kind in rows:
                self._add_work(kind, asked_by.get(kind))
        if MARK in rows:
            tables.add_marks(rows.batch(MARK), rows.labels(MARK))
        tables.sum_instances()

    def _asked_by(self) -> dict[str, IntArray]:
        """Return the place, among all calls, of the call that asked for each piece of work."""
        kinds = [kind for kind in _KINDS if kind in self._rows]
        if not kinds or ARROW_FROM not in self._rows or ARROW_TO not in self._rows:
            return {}
        apis = [kind for kind in _APIS if kind in self._rows]
        work = self._rows.together(kinds, _SHOWN)
        calls: dict[str, Array] = dict(self._rows.together(apis, _SHOWN))
        names = Names()
        codes = [names.codes(self._rows.labels(k))[self._rows.column(k, "name")] for k in apis]
        calls["name"] = np.concatenate([np.empty(0, np.int32), *codes])
        begins, ends = self._rows[ARROW_FROM].columns, self._rows[ARROW_TO].columns
        asked = links(begins, ends, work, calls, list(names))
        self.oddities.odd["loose-arrows"] += asked.loose
        sizes = [self._rows[kind].count for kind in kinds]
        return dict(zip(kinds, np.split(asked.call, np.cumsum(sizes)[:-1]), strict=True))

    def _add_calls(self) -> None:
        """Add the calls, each under its place among all of them as id."""
        were_queued = DISPATCH in self.gathered["calls"].names["name"]
        offset = 0
        for kind, api in _APIS.items():
            if kind in self._rows:
                labels, count = self._rows.labels(kind), self._rows[kind].count
                calls = self._rows.batch(kind, _CALL_IDS + offset + np.arange(count))
                if were_queued and QUEUED in labels:  # such a moment is known already
                    calls = calls.only(calls["name"] != labels.index(QUEUED))
                self._tables.add_calls(calls, labels, api)
                offset += count

    def _add_work(self, kind: str, asked_by: IntArray | None) -> None:
        """Add kernels, copies and fills as they were seen to run."""
        columns, labels = dict(self._rows.batch(kind).numbers), self._rows.labels(kind)
        columns["gpu"] = self._gpu_of(kind)
        if asked_by is not None:
            sizes = columns["bytes"]
            columns["bytes"] = np.where(sizes == ABSENT, self._sizes_asked(asked_by), sizes)
            columns["index"] = np.where(asked_by < 0, ABSENT, asked_by + _CALL_IDS)
        if kind == COPY:  # an engine for copies works these off: no queue is their place
            columns["queue"] = np.full_like(columns["queue"], ABSENT)
        work = Batch(self._rows[kind].count, columns, {})
        if kind == WORK:
            self._tables.add_kernels(work, labels)
        else:
            self._tables.add_copies(work, labels, lambda _: _KINDS[kind])

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
        self.oddities.odd["device-unknown"] += int(np.count_nonzero(missing))
        return np.where(missing, self._gpus[0] if len(self._gpus) == 1 else 0, gpu)

    def _device(self, gpu: int, process: int) -> int:
        facts = self._machine.facts_of(gpu)
        if facts is None:
            self.oddities.open_devices.add(gpu)
        return self.gathered.device(gpu, process, gpu, facts or NOTHING_KNOWN)


# The events, of all blocks together.


class AllRows:
    """Rows by kind, in the order of the text."""

    def __init__(self) -> None:
        self._pieces: defaultdict[str, list[V1Rows]] = defaultdict(list)
        self._rows: dict[str, V1Rows] = {}

    def absorb(self, rows: Mapping[str, V1Rows]) -> None:
        """Add what one block gives; blocks are added in the order of the text."""
        for kind, piece in rows.items():
            self._pieces[kind].append(piece)

    def join(self) -> None:
        """Put the blocks together: all are known."""
        self._rows = {kind: _joined(pieces) for kind, pieces in self._pieces.items()}
        self._pieces.clear()

    def __contains__(self, kind: str) -> bool:
        """Return whether there are rows of a kind."""
        return kind in self._rows

    def __getitem__(self, kind: str) -> V1Rows:
        """Return the rows of a kind."""
        return self._rows[kind]

    def column(self, kind: str, name: str) -> IntArray:
        """Return a column, ABSENT in all rows where the file has none."""
        rows = self._rows.get(kind) or V1Rows()
        return rows.columns.get(name, np.full(rows.count, ABSENT, dtype=np.int64))

    def labels(self, kind: str) -> list[str]:
        """Return the names of rows, by their codes."""
        return [name or UNNAMED for name in self._rows[kind].names]

    def batch(self, kind: str, index: IntArray | None = None) -> Batch:
        """Return rows as `V1Tables` takes them; of work, `index` is the call that asked for it."""
        count = self._rows[kind].count
        columns = {name: self.column(kind, name) for name in (*NUMBERS, "name", "bytes")}
        columns["index"] = np.full(count, ABSENT) if index is None else index
        return Batch(count, columns, {})

    def together(self, kinds: Sequence[str], columns: Sequence[str]) -> dict[str, IntArray]:
        """Return columns of several kinds, one behind the other."""
        nothing = np.empty(0, dtype=np.int64)
        return {
            name: np.concatenate([nothing, *(self.column(kind, name) for kind in kinds)])
            for name in columns
        }


def _joined(pieces: Sequence[V1Rows]) -> V1Rows:
    whole = V1Rows(sum(piece.count for piece in pieces))
    for piece in pieces:
        codes = whole.names.codes(piece.names)
        if "name" in piece.columns:
            piece.columns["name"] = codes[piece.columns["name"]]
    for name in dict.fromkeys(name for piece in pieces for name in piece.columns):
        whole.columns[name] = np.concatenate(
            [p.columns.get(name, np.full(p.count, ABSENT, dtype=np.int64)) for p in pieces]
        )
    for counter in dict.fromkeys(name for piece in pieces for name in piece.counters):
        whole.counters[counter] = np.concatenate(
            [p.counters.get(counter, np.full(p.count, np.nan)) for p in pieces]
        )
    return whole
