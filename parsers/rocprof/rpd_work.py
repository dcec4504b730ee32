"""Operations of an RPD database as activities."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.parsers.io import Batch, Database, Lookup, TextsById, Wanted, by_distinct
from traceflops.parsers.rocprof.copies import direction_of
from traceflops.parsers.rocprof.rocpd.trace import Tallies
from traceflops.parsers.rocprof.tables.work import UNNAMED, blocks_of
from traceflops.parsers.shared import Gathered, timed
from traceflops.table import ABSENT, Array, IntArray

_KINDS: Final = ("kernel", "memcpy", "memset")
_TYPES: Final = (
    (re.compile("barrier|marker", re.IGNORECASE), None),
    (re.compile("fill|memset", re.IGNORECASE), "memset"),
    (re.compile("copy|memcpy", re.IGNORECASE), "memcpy"),
)
_PLANES: Final = re.compile(r"[23]D$")
_OPERATION: Final = Wanted(
    integers=("id", "gpuId", "queueId", "start", "end", "description_id", "opType_id")
)
_LINK: Final = Wanted(integers=("api_id", "op_id"))
_COPIED: Final = Wanted(integers=("api_ptr_id", "size"))
_AXES: Final = ("X", "Y", "Z")
_GRID: Final = tuple(f"grid{axis}" for axis in _AXES)
_BLOCK: Final = tuple(f"workgroup{axis}" for axis in _AXES)
_LAUNCHED: Final = Wanted(
    integers=("api_ptr_id", *_GRID, *_BLOCK, "groupSegmentSize", "kernelName_id")
)
_MOST_DEVICES: Final = 4_096
"""So many devices are told apart; a database with more has invented them."""
_IN_THREADS: Final = ("hipExtModuleLaunchKernel", "hipHccModuleLaunchKernel")
"""Calls that are given the grid in threads; all others are given it in blocks."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of a database: their ids, processes and names."""

    ids: IntArray
    process: IntArray
    name_id: IntArray


class Operations:
    """Adds the operations of a database to what is gathered."""

    def __init__(
        self, database: Database, gathered: Gathered, tallies: Tallies, strings: TextsById
    ) -> None:
        self._database = database
        self._gathered = gathered
        self._tallies = tallies
        self._strings = strings
        self._gpus: set[int] = set()
        links = database.whole("rocpd_api_ops", _LINK)
        self._call = Lookup(links["op_id"], links["api_id"])
        alone, times = np.unique(links["api_id"], return_counts=True)
        self._operations_of = Lookup(alone, times)

    def add(self, calls: Calls, unknown_process: Callable[[], int]) -> None:
        """Add all operations but barriers, which are no work."""
        rows, start, dur = timed(self._database.whole("rocpd_op", _OPERATION), self._tallies.odd)
        call = self._call(rows["id"])
        process = Lookup(calls.ids, calls.process)(call)
        process = _with_others(process, rows["gpuId"], unknown_process)
        kind = by_distinct(rows["opType_id"], lambda key, _: self._kind(key))
        table = self._gathered["activities"]
        for place, word in enumerate(_KINDS):
            mine = kind == place
            some, of = rows.only(mine), call[mine]
            self._tallies.counts[word] += some.count
            table.add(
                some.count,
                process=process[mine],
                device=self._devices(some["gpuId"], process[mine]),
                stream=some["queueId"],
                kind=table.names["kind"][word],
                start_ns=start[mine],
                dur_ns=dur[mine],
                correlation=of,
                **(self._kernels(some, of, calls) if word == "kernel" else self._copies(some, of)),
            )
        self._tallies.counts["barrier"] += int(np.count_nonzero(kind == len(_KINDS)))

    def _kind(self, key: int) -> int:
        text = self._strings[key] or ""
        word = next((kind for sign, kind in _TYPES if sign.search(text)), "kernel")
        return len(_KINDS) if word is None else _KINDS.index(word)

    def _devices(self, gpus: IntArray, process: IntArray) -> IntArray:
        return by_distinct(gpus, lambda gpu, row: self._device(gpu, int(process[row])))

    def _device(self, gpu: int, process: int) -> int:
        known = gpu != ABSENT and (gpu in self._gpus or len(self._gpus) < _MOST_DEVICES)
        gpu = gpu if known else -1
        self._gpus.add(gpu)
        return self._gathered.device(gpu, process, gpu)

    def _kernels(self, rows: Batch, call: IntArray, calls: Calls) -> dict[str, Array]:
        """Return names and shapes of kernels: what their operations do not say, their calls do."""
        names = self._gathered["activities"].names["name"]
        launched = self._database.whole("rocpd_kernelapi", _LAUNCHED)
        row = Lookup(launched["api_ptr_id"], np.arange(launched.count))(call)
        column = {name: _taken(launched[name], row) for name in _LAUNCHED.integers}
        own = self._strings.coder(names, None)(rows["description_id"])
        lent = self._strings.coder(names, UNNAMED)(column["kernelName_id"])
        grid, block = (np.stack([column[n] for n in axes], axis=1) for axes in (_GRID, _BLOCK))
        shared = column["groupSegmentSize"]
        return {
            "name": np.where(own >= 0, own, lent),
            "grid": self._blocks(grid, block, Lookup(calls.ids, calls.name_id)(call)),
            "block": np.where((block > 0).all(axis=1, keepdims=True), block, ABSENT),
            "shared_memory_bytes": np.where(shared >= 0, shared, ABSENT),
        }

    def _blocks(self, grid: IntArray, block: IntArray, name_id: IntArray) -> IntArray:
        """Return grids in blocks: the tracer wrote what the call was given.

        Versions on rocprofiler-sdk write threads; they are known by how they spell copies. Where
        neither spelling occurs, what the numbers mean is unknown.
        """
        spelled = {text or "" for text in self._type_names()}
        if any(text.startswith("MEMORY_COPY") for text in spelled):
            return blocks_of(grid, block)
        if not any(text.startswith(("Copy", "Fill", "Task")) for text in spelled):
            return np.full_like(grid, ABSENT)
        in_threads = by_distinct(name_id, lambda key, _: self._strings[key] in _IN_THREADS) == 1
        as_given = np.where((grid > 0).all(axis=1, keepdims=True), grid, ABSENT)
        return np.where(in_threads[:, None], blocks_of(grid, block), as_given)

    def _type_names(self) -> list[str | None]:
        ids = self._database.whole("rocpd_op", Wanted(integers=("opType_id",)))["opType_id"]
        return [self._strings[key] for key in np.unique(ids).tolist()]

    def _copies(self, rows: Batch, call: IntArray) -> dict[str, Array]:
        """Return names, directions and sizes; a call of several copies states their sum."""
        table = self._gathered["activities"]
        copied = self._database.whole("rocpd_copyapi", _COPIED)
        size = Lookup(copied["api_ptr_id"], copied["size"])(call)
        certain = (size >= 0) & (self._operations_of(call) == 1)
        ways = by_distinct(rows["opType_id"], lambda key, _: self._direction(key))
        return {
            "name": self._strings.coder(table.names["name"], "(unnamed copy)")(rows["opType_id"]),
            "direction": ways,
            "bytes": np.where(certain, size, ABSENT),
        }

    def _direction(self, key: int) -> int:
        way = direction_of(_PLANES.sub("", self._strings[key] or ""))
        return -1 if way is None else self._gathered["activities"].names["direction"][way]


def _taken(values: IntArray, rows: IntArray) -> IntArray:
    """Return values by their rows, ABSENT where there is no row."""
    return np.append(values, ABSENT)[np.where(rows == ABSENT, len(values), rows)]


def _with_others(process: IntArray, gpus: IntArray, unknown_process: Callable[[], int]) -> IntArray:
    """Return processes; an operation without a call is of the process that uses its GPU most."""
    alone = process == ABSENT
    if not alone.any():
        return process
    pairs, times = np.unique(np.stack([gpus, process], axis=1)[~alone], axis=0, return_counts=True)
    most = dict(pairs[np.argsort(times, kind="stable")].tolist())
    process = process.copy()
    process[alone] = by_distinct(gpus[alone], lambda gpu, _: most.get(gpu, -1))
    process[process == -1] = unknown_process() if (process == -1).any() else -1
    return process
