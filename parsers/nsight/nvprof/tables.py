"""A database of nvprof as the tables that an export of Nsight Systems would have.

Both hold the records of CUPTI, so that the reader of those exports reads these, too. Numbers are
those of the enumerations in NVIDIA's header `cupti_activity.h`: kinds of memory count from 1 where
exports count from 0, and calls have numbers (`traceflops.parsers.nsight.nvprof.calls`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from traceflops.parsers.io import (
    ArrowTable,
    Batch,
    Database,
    Lookup,
    TextsById,
    Wanted,
    by_distinct,
)
from traceflops.parsers.nsight.nsys.enums import MARK, THREAD_BITS
from traceflops.parsers.nsight.nsys.reading import CUPTI
from traceflops.parsers.nsight.nsys.tables import Folder
from traceflops.parsers.nsight.nvprof.calls import DRIVER_CALLS, RUNTIME_CALLS
from traceflops.table import ABSENT, IntArray, Note, distinct, joint_codes

_TEXTS: Final = "StringTable"
_MOST_CALLS: Final = 1 << 12
_APIS: Final[Mapping[str, tuple[int, Mapping[int, str]]]] = {
    "RUNTIME": (1 << 40, RUNTIME_CALLS),
    "DRIVER": (1 << 41, DRIVER_CALLS),
}
"""By API from where the ids of the names of its calls count, and the names by their numbers."""
_OVERHEADS: Final[Mapping[int, str]] = {
    2: "compiling",
    3: "flushing buffers",
    4: "instrumenting kernels",
    5: "resources",
    6: "loading modules",
    7: "loading functions",
    8: "command buffer full",
}
"""By the numbers of exports what overheads are; their own count from 1, or above 16 bits."""
_OVERHEAD_IDS: Final = 1 << 42
_MASK: Final = (1 << THREAD_BITS) - 1
_PROCESS, _THREAD = 1, 2
"""What an object may be, of whose numbers something is known."""
_INSTANT, _BEGINS, _ENDS = 1, 2, 4
"""The flags of a marker."""
_PUSHED, _STARTED = 59, 60
_MIGRATIONS: Final = {1: 11, 2: 12, 8: 13}
"""By the kind of a counter of unified memory that of the copy that it counts."""
_FROM_DEVICE: Final = 2
_MOST_PIDS: Final = 4_096
_PROCESS_OF: Final = Wanted(integers=("processId",))
_CONTEXT: Final = Wanted(integers=("contextId", "deviceId"))
_OF_GPU: Final = {
    "id": "id",
    "totalMemory": "globalMemorySize",
    "computeMajor": "computeCapabilityMajor",
    "computeMinor": "computeCapabilityMinor",
    "smCount": "numMultiprocessors",
    "threadsPerWarp": "numThreadsPerWarp",
    "clockRate": "coreClockRate",
}
_GPU: Final = Wanted(integers=(*_OF_GPU.values(), "name"), blobs=("uuid",))

Numbers = dict[str, IntArray]


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of a table: by column of an export its column here, and how the rest is made.

    `whole` says that rows depend on each other.
    """

    table: str
    columns: Mapping[str, str]
    fill: Callable[[Nvprof, Batch, Numbers], Numbers]
    others: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()
    whole: bool = False


@dataclass(slots=True, kw_only=True)
class Nvprof(Folder):
    """The tables, made of those of a database when they are asked for.

    `pids` are the processes that call, `device_of` gives the device of each context, `own_threads`
    are the numbers of threads by those they have here. `left_out` counts what no row was made of,
    by what it is.
    """

    database: Database
    pids: IntArray
    device_of: Lookup
    own_threads: dict[int, int] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def damaged(self) -> bool:
        """Return whether part of the database is missing."""
        return self.database.damaged

    @property
    def lost(self) -> frozenset[str]:
        """Return the tables of which rows are lost."""
        lost = self.database.lost
        found = {into for into, parts in _PARTS.items() for p in parts if CUPTI + p.table in lost}
        return frozenset(found)

    def columns(self, table: str) -> frozenset[str]:
        """Return the columns of a table, else those of the database's own table."""
        return Folder.columns(self, table) or self.database.columns(table)

    def unused(self, families: tuple[str, ...]) -> dict[str, int]:
        """Return the numbers of rows of tables whose rows were never asked for."""
        return self.database.unused(families)

    def notes(self, label: Callable[[str], str] = str) -> tuple[Note, ...]:
        """Return what was lost so far."""
        return self.database.notes(label)

    def thread_ids(self, pids: IntArray, threads: IntArray) -> IntArray:
        """Return ids of threads as an export has them, where a thread has a number of 24 bits."""
        numbers = by_distinct(threads & 0xFFFF_FFFF, self._number)
        return (pids & _MASK) << THREAD_BITS | numbers

    def _number(self, thread: int, _: int) -> int:
        if thread not in self.own_threads and len(self.own_threads) < _MASK:
            self.own_threads[thread] = len(self.own_threads) + 1
        return self.own_threads.get(thread, 0)


def nvprof_tables(database: Database) -> Nvprof:
    """Return the tables of a database."""
    calls = [database.whole(CUPTI + api, _PROCESS_OF) for api in _APIS]
    pids = distinct(np.concatenate([rows["processId"] for rows in calls]))
    contexts = database.whole(f"{CUPTI}CONTEXT", _CONTEXT)
    device_of = Lookup(contexts["contextId"], contexts["deviceId"])
    files: dict[str, ArrowTable] = {}
    tables = Nvprof(
        database.source, files, database=database, pids=pids[pids > 0], device_of=device_of
    )
    for into, parts in _PARTS.items():
        there = [p for p in parts if {"start", "timestamp"} & database.columns(CUPTI + p.table)]
        if there:
            files[into] = _table(database, there[0].columns, partial(_rows, tables, there))
    gpus = _gpus(database)
    files["TARGET_INFO_GPU"] = _table(database, ("id",), lambda _: iter([gpus]))
    files["TARGET_INFO_CUDA_DEVICE"] = _table(database, ("gpuId",), partial(_called, tables, gpus))
    files["StringIds"] = _table(database, ("id", "value"), partial(_texts, database))
    return tables


def _table(
    database: Database, columns: Iterable[str], read: Callable[[object], Iterator[pa.RecordBatch]]
) -> ArrowTable:
    schema = pa.schema([(name, pa.int64()) for name in columns])
    return ArrowTable(database.source, schema, read)


def _rows(tables: Nvprof, parts: Sequence[_Part], _: object) -> Iterator[pa.RecordBatch]:
    for part in parts:
        columns = tuple(dict.fromkeys((*part.columns.values(), *part.others)))
        wanted, table = Wanted(integers=columns, blobs=part.blobs), CUPTI + part.table
        database = tables.database
        batches = [database.whole(table, wanted)] if part.whole else database.batches(table, wanted)
        for batch in batches:
            named = {name: batch[own] for name, own in part.columns.items()}
            yield pa.RecordBatch.from_pydict(part.fill(tables, batch, named))


def _texts(database: Database, _: object) -> Iterator[pa.RecordBatch]:
    """Give the texts by their numbers, of which 0 is none, and behind them the names of calls."""
    for batch in database.batches(_TEXTS, Wanted(integers=("_id_",), texts=("value",))):
        ids = np.where(batch["_id_"] > 0, batch["_id_"], ABSENT)
        yield pa.RecordBatch.from_pydict({"id": ids, "value": pa.array(batch.texts["value"])})
    for api, (first, known) in _APIS.items():
        word = api.lower()
        names = [known.get(number, f"{word} call {number}") for number in range(_MOST_CALLS)]
        yield pa.RecordBatch.from_pydict({"id": first + np.arange(_MOST_CALLS), "value": names})
    of_overheads = [_OVERHEAD_IDS + kind for kind in _OVERHEADS]
    yield pa.RecordBatch.from_pydict({"id": of_overheads, "value": list(_OVERHEADS.values())})


def _gpus(database: Database) -> pa.RecordBatch:
    """Return the GPUs; of a newer version a name is the number of a text."""
    rows = database.whole(f"{CUPTI}DEVICE", _GPU)
    texts = database.whole(_TEXTS, Wanted(integers=("_id_",), texts=("value",)))
    by_id = TextsById(texts["_id_"], texts.texts["value"])
    named = [by_id[number] for number in rows["name"].tolist()]
    return pa.RecordBatch.from_pydict(
        {name: rows[own] for name, own in _OF_GPU.items()}
        | {"name": named, "uuid": [_uuid(text) for text in rows.texts["uuid"]]}
    )


def _uuid(digits: str | None) -> str | None:
    return str(UUID(digits)) if digits and len(digits) == 32 else None


def _called(tables: Nvprof, gpus: pa.RecordBatch, _: object) -> Iterator[pa.RecordBatch]:
    """Give the numbers of GPUs for each process: they are those of the records."""
    for pid in tables.pids.tolist()[:_MOST_PIDS]:
        ids = gpus["id"]
        yield pa.RecordBatch.from_pydict(
            {"gpuId": ids, "cudaId": ids, "pid": np.full(len(ids), pid)}
        )


def _worked(tables: Nvprof, batch: Batch, named: Numbers) -> Numbers:
    """Return records of a device, which are of the only process that calls, else of none.

    What CUPTI could not time begins and ends at 0.
    """
    only = int(tables.pids[0]) & _MASK if len(tables.pids) == 1 else 0
    start = np.where((named["start"] == 0) & (named["end"] == 0), ABSENT, named["start"])
    return named | {"start": start, "globalPid": np.full(batch.count, only << THREAD_BITS)}


def _moved(tables: Nvprof, batch: Batch, named: Numbers) -> Numbers:
    """Return copies and fills: kinds of memory count from 1, of which 0 is none."""
    kinds = {name: named[name] for name in ("srcKind", "dstKind", "memKind") if name in named}
    known = {name: np.where(kind > 0, kind - 1, ABSENT) for name, kind in kinds.items()}
    return _worked(tables, batch, named | known)


def _migrated(tables: Nvprof, batch: Batch, named: Numbers) -> Numbers:
    """Return counters of unified memory that are copies, on their GPU; others are left out."""
    kind = Lookup(*map(np.array, (list(_MIGRATIONS), list(_MIGRATIONS.values()))))(
        batch["counterKind"]
    )
    copies = kind != ABSENT
    tables.left_out["unified-memory"] += int(np.count_nonzero(~copies))
    device = np.where(batch["counterKind"] == _FROM_DEVICE, batch["srcId"], batch["dstId"])
    columns = named | {"copyKind": kind, "deviceId": device}
    owner = {"globalPid": (batch["processId"] & _MASK) << THREAD_BITS}
    return {name: column[copies] for name, column in (columns | owner).items()}


def _called_by(api: str) -> Callable[[Nvprof, Batch, Numbers], Numbers]:
    first, event_class = _APIS[api][0], list(_APIS).index(api)

    def fill(tables: Nvprof, batch: Batch, named: Numbers) -> Numbers:
        number = batch["cbid"]
        known = (number >= 0) & (number < _MOST_CALLS)
        return named | {
            "globalTid": tables.thread_ids(batch["processId"], batch["threadId"]),
            "nameId": np.where(known, first + number, ABSENT),
            "eventClass": np.full(batch.count, event_class),
        }

    return fill


def _waited(tables: Nvprof, batch: Batch, named: Numbers) -> Numbers:
    """Return waits, on the device of their context."""
    device = tables.device_of(named["contextId"])
    return _worked(tables, batch, named | {"deviceId": device})


def _owners(tables: Nvprof, batch: Batch) -> IntArray:
    """Return the threads that rows are of: their objects are numbers of a process and a thread."""
    found = {text: bytes.fromhex(text or "") for text in set(batch.texts["objectId"])}
    parts = {
        text: [int.from_bytes(data[at : at + 4], "little") for at in (0, 4)]
        for text, data in found.items()
    }
    both = np.array([parts[text] for text in batch.texts["objectId"]], np.int64).reshape(-1, 2)
    kind = batch["objectKind"]
    pid = np.where(np.isin(kind, (_PROCESS, _THREAD)), both[:, 0], 0)
    return tables.thread_ids(pid, np.where(kind == _THREAD, both[:, 1], 0))


def _overheads(tables: Nvprof, batch: Batch, named: Numbers) -> Numbers:
    """Return overheads by the numbers of an export."""
    kind = batch["overheadKind"]
    kind = np.where(kind == 1, 2, np.where(kind >> 16 > 0, (kind >> 16) + 2, 0))
    owner = _owners(tables, batch)
    return named | {"overheadType": kind, "nameId": _OVERHEAD_IDS + kind, "globalTid": owner}


def _ranges(tables: Nvprof, batch: Batch, named: Numbers) -> Numbers:
    """Return ranges and marks: a range is a row where it begins and one where it ends."""
    flags, owner = batch["flags"], _owners(tables, batch)
    key = joint_codes(owner >> THREAD_BITS, batch["id"])
    ends = flags & _ENDS > 0
    end = Lookup(key[ends], batch["timestamp"][ends])(key)
    is_mark = flags & _INSTANT > 0
    kind = np.where(is_mark, MARK, np.where(batch["objectKind"] == _THREAD, _PUSHED, _STARTED))
    columns = named | {
        "end": np.where(is_mark, ABSENT, end),
        "eventType": kind,
        "globalTid": owner,
        "textId": np.where(named["textId"] > 0, named["textId"], ABSENT),
    }
    begins = flags & (_INSTANT | _BEGINS) > 0
    return {name: column[begins] for name, column in columns.items()}


_SPAN: Final = {name: name for name in ("start", "end")}
_WORK: Final = _SPAN | {
    name: name
    for name in ("deviceId", "contextId", "streamId", "correlationId", "graphNodeId", "graphId")
}
_KERNEL: Final = (
    _WORK
    | {f"{what}{axis}": f"{what}{axis}" for what in ("grid", "block") for axis in "XYZ"}
    | {name: name for name in ("registersPerThread", "staticSharedMemory", "dynamicSharedMemory")}
    | {"demangledName": "name"}
)
_COPY: Final = _WORK | {name: name for name in ("bytes", "copyKind", "srcKind", "dstKind")}
_BOTH: Final = {name: name for name in ("srcDeviceId", "dstDeviceId")}
_FILL: Final = _WORK | {"bytes": "bytes", "memKind": "memoryKind"}
_CALL: Final = _SPAN | {"correlationId": "correlationId"}
_WAIT: Final = _CALL | {"contextId": "contextId", "streamId": "streamId", "syncType": "type"}
_MIGRATION: Final = _SPAN | {"streamId": "streamId", "bytes": "value"}
_PARTS: Final[Mapping[str, tuple[_Part, ...]]] = {
    f"{CUPTI}KERNEL": tuple(
        _Part(name, _KERNEL, _worked) for name in ("CONCURRENT_KERNEL", "KERNEL", "CDP_KERNEL")
    ),
    f"{CUPTI}MEMCPY": (
        _Part("MEMCPY", _COPY, _moved),
        _Part("MEMCPY2", _COPY | _BOTH, _moved),
        _Part(
            "UNIFIED_MEMORY_COUNTER",
            _MIGRATION,
            _migrated,
            ("counterKind", "srcId", "dstId", "processId"),
        ),
    ),
    f"{CUPTI}MEMSET": (_Part("MEMSET", _FILL, _moved),),
    f"{CUPTI}GRAPH_TRACE": (_Part("GRAPH_TRACE", _WORK, _worked),),
    f"{CUPTI}RUNTIME": tuple(
        _Part(api, _CALL, _called_by(api), ("cbid", "processId", "threadId")) for api in _APIS
    ),
    f"{CUPTI}SYNCHRONIZATION": (_Part("SYNCHRONIZATION", _WAIT, _waited),),
    f"{CUPTI}OVERHEAD": (
        _Part("OVERHEAD", _SPAN, _overheads, ("overheadKind", "objectKind"), ("objectId",)),
    ),
    "NVTX_EVENTS": (
        _Part(
            "MARKER",
            {"start": "timestamp", "textId": "name", "domainId": "domain"},
            _ranges,
            ("flags", "timestamp", "id", "objectKind"),
            ("objectId",),
            whole=True,
        ),
    ),
}
"""By table of an export what its rows are made of."""
