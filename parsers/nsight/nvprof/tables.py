"""Reads databases of nvprof and the Visual Profiler (.nvvp, .nvprof) as if they were nsys exports.

Both have the records of CUPTI, so a database becomes the tables that an export would have. Kinds of
memory count from 1 (in exports from 0), and calls have no names but numbers (see `calls`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
from msgspec import field
from msgspec.structs import replace

from traceflops.parsers.io.arrow_files import ArrowTable
from traceflops.parsers.io.database_query import Batch, Lookup, TextsById, Wanted, by_distinct
from traceflops.parsers.io.database_rows import Database
from traceflops.parsers.nsight.nsys.enums import MARK, THREAD_BITS
from traceflops.parsers.nsight.nsys.read import trace_of_file
from traceflops.parsers.nsight.nsys.reading import CUPTI, PAGE_FAULTS
from traceflops.parsers.nsight.nsys.tables import Folder
from traceflops.parsers.nsight.nvprof.calls import APIS, MOST_CALLS, OVERHEADS
from traceflops.parsers.nsight.nvprof.notes import with_notes
from traceflops.table.builder import with_numbers
from traceflops.table.columns import (
    ABSENT,
    IntArray,
    count_true,
    number_column,
    numbers,
    string_column,
)
from traceflops.table.grouping import distinct, joint_codes
from traceflops.table.trace import Note, Trace

_TEXTS: Final = "StringTable"
_USED: Final = "TARGET_INFO_CUDA_CONTEXT_INFO"
_OVERHEAD_IDS: Final = 1 << 42
_MASK: Final = (1 << THREAD_BITS) - 1
_PROCESS, _THREAD = 1, 2
"""Kinds of objects that a row may belong to."""
_INSTANT, _BEGINS, _ENDS = 1, 2, 4
"""The flags of a marker: a mark, the begin of a range, the end of a range."""
_PUSHED, _STARTED = 59, 60
_MIGRATIONS: Final = {1: 11, 2: 12, 8: 13}
"""The kinds of unified memory counters that are copies, and the kinds of copies in exports."""
_FROM_DEVICE, _GPU_FAULT = 2, 4
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
Reader = Callable[[object], Iterator[pa.RecordBatch]]


class _TablePart(NamedTuple):
    """How to make rows of a table of an export from a `table` of the database.

    `columns` maps columns of the export to columns of the database. `fill` returns all columns of
    the export, given these and the database's columns `others` and `blobs`. `whole`: it needs all
    rows in one batch.
    """

    table: str
    columns: Mapping[str, str]
    fill: Callable[[Nvprof, Batch, Numbers], Numbers]
    others: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()
    whole: bool = False


class Nvprof(Folder, kw_only=True):
    """The tables of an export, made from those of a database when they are read.

    `pids` are the processes with calls, `device_of` maps contexts to devices, `own_threads` thread
    numbers of the database to small ones. `left_out` counts unused records by code of their note.
    """

    database: Database
    pids: IntArray
    device_of: Lookup
    own_threads: dict[int, int] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def damaged(self) -> bool:
        """Whether part of the database is missing."""
        return self.database.damaged

    @property
    def lost(self) -> frozenset[str]:
        """The tables of an export that lack rows, since a table of the database does."""
        lost = self.database.lost
        return frozenset(
            table for table, parts in _PARTS.items() for part in parts if CUPTI + part.table in lost
        )

    def columns(self, table: str) -> frozenset[str]:
        """Return the columns of a table of the export or, if there is none, of the database."""
        return Folder.columns(self, table) or self.database.columns(table)

    def unused(self, families: tuple[str, ...]) -> dict[str, int]:
        """Return row counts of tables of the database that were not read (see `Folder.unused`)."""
        return self.database.unused(families)

    def notes(self) -> tuple[Note, ...]:
        """Return the notes on damage that was found so far."""
        return self.database.notes()

    def thread_ids(self, pids: IntArray, threads: IntArray) -> IntArray:
        """Return global ids as in exports: the pid, and 24 bits for a new number of the thread."""

        def small_number(thread: int, _: int) -> int:
            if thread not in self.own_threads and len(self.own_threads) < _MASK:
                self.own_threads[thread] = len(self.own_threads) + 1
            return self.own_threads.get(thread, 0)

        return (pids & _MASK) << THREAD_BITS | by_distinct(threads & 0xFFFF_FFFF, small_number)


def nvprof_tables(database: Database) -> Nvprof:
    """Return the tables of an export, made from those that a database of nvprof has."""
    calls = (database.whole(CUPTI + api, Wanted(integers=("processId",))) for api in APIS)
    pids = distinct(np.concatenate([rows["processId"] for rows in calls]))
    contexts = database.whole(f"{CUPTI}CONTEXT", Wanted(integers=("contextId", "deviceId")))
    device_of = Lookup(contexts["contextId"], contexts["deviceId"])
    files: dict[str, ArrowTable] = {}
    tables = Nvprof(
        database.source, files, database=database, pids=pids[pids > 0], device_of=device_of
    )

    def add(name: str, columns: Iterable[str], read: Reader) -> None:
        # Readers ask a schema only which columns there are, so all types are the same.
        schema = pa.schema([(column, pa.int64()) for column in columns])
        files[name] = ArrowTable(database.source, schema, read)

    for name, parts in _PARTS.items():
        present = [p for p in parts if {"start", "timestamp"} & database.columns(CUPTI + p.table)]
        if present:
            add(name, present[0].columns, partial(_rows, tables, present))
    rows = database.whole(f"{CUPTI}DEVICE", _GPU)  # names are ids of texts
    texts = database.whole(_TEXTS, Wanted(integers=("_id_",), texts=("value",)))
    text_of_id = TextsById(texts["_id_"], texts.texts["value"])
    columns: dict[str, Any] = {name: rows[own_name] for name, own_name in _OF_GPU.items()}
    columns["name"] = [text_of_id[text] for text in rows["name"].tolist()]
    columns["uuid"] = [
        str(UUID(digits)) if digits and len(digits) == 32 else None for digits in rows.texts["uuid"]
    ]
    gpus = _batch(columns)
    add("TARGET_INFO_GPU", ("id",), lambda _: iter([gpus]))
    users = tables.pids[:4_096]  # every process numbers the GPUs as the database does
    gpu_ids, user_of_id = np.tile(columns["id"], len(users)), np.repeat(users, len(gpus))
    ordinals = _batch({"gpuId": gpu_ids, "cudaId": gpu_ids, "pid": user_of_id})
    add("TARGET_INFO_CUDA_DEVICE", ("gpuId",), lambda _: iter([ordinals]))
    add(_USED, ("contextId",), lambda _: iter([_batch({"contextId": contexts["contextId"]})]))
    add("StringIds", ("id", "value"), partial(_texts, database))
    return tables


def _batch(columns: Mapping[str, IntArray | Sequence[str | None]]) -> pa.RecordBatch:
    """Return columns of numbers and of texts as a batch."""
    arrays = [
        number_column(column) if isinstance(column, np.ndarray) else string_column(column)
        for column in columns.values()
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _rows(tables: Nvprof, parts: Iterable[_TablePart], _: object) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table of an export, made from `parts` of the database."""
    database = tables.database
    for part in parts:
        columns = tuple(dict.fromkeys((*part.columns.values(), *part.others)))
        wanted, table = Wanted(integers=columns, blobs=part.blobs), CUPTI + part.table
        batches = [database.whole(table, wanted)] if part.whole else database.batches(table, wanted)
        for batch in batches:
            named = {name: batch[own_name] for name, own_name in part.columns.items()}
            yield _batch(part.fill(tables, batch, named))


def _texts(database: Database, _: object) -> Iterator[pa.RecordBatch]:
    """Yield the texts by id (0 is no id), then the names of calls and of overheads."""
    for batch in database.batches(_TEXTS, Wanted(integers=("_id_",), texts=("value",))):
        ids = np.where(batch["_id_"] > 0, batch["_id_"], ABSENT)
        yield _batch({"id": ids, "value": batch.texts["value"]})
    for api, (first_id, calls) in APIS.items():
        names = [calls.get(n, f"{api.lower()} call {n}") for n in range(MOST_CALLS)]
        yield _batch({"id": first_id + np.arange(MOST_CALLS), "value": names})
    overhead_ids = _OVERHEAD_IDS + np.array(list(OVERHEADS))
    yield _batch({"id": overhead_ids, "value": list(OVERHEADS.values())})


def _work(tables: Nvprof, batch: Batch, named: Numbers) -> Numbers:
    """Return the columns of device work; it belongs to the only process with calls, else to none.

    Work from 0 to 0 is work that CUPTI could not time: its start is unknown.
    """
    pid = int(tables.pids[0]) & _MASK if len(tables.pids) == 1 else 0
    is_untimed = (named["start"] == 0) & (named["end"] == 0)
    columns = named | {"start": np.where(is_untimed, ABSENT, named["start"])}
    if "deviceId" not in named:  # a wait has only a context
        columns["deviceId"] = tables.device_of(named["contextId"])
    return columns | {"globalPid": np.full(batch.count, pid << THREAD_BITS)}


def _copies(tables: Nvprof, batch: Batch, named: Numbers) -> Numbers:
    """Return the columns of copies and fills, with kinds of memory from 0 as in exports."""
    kinds = {name: named[name] for name in ("srcKind", "dstKind", "memKind") if name in named}
    from_0 = {name: np.where(kind > 0, kind - 1, ABSENT) for name, kind in kinds.items()}
    return _work(tables, batch, named | from_0)


def _migrations(tables: Nvprof, batch: Batch, named: Numbers) -> Numbers:
    """Return the columns of unified memory counters that are copies; count unused counters."""
    kind_of = Lookup(*map(np.array, (list(_MIGRATIONS), list(_MIGRATIONS.values()))))
    counter = batch["counterKind"]
    copy_kind = kind_of(counter)
    is_copy = copy_kind != ABSENT
    is_used = is_copy | (counter == _GPU_FAULT)  # `_faults` reads these
    tables.left_out["unified-memory"] += count_true(~is_used)
    device = np.where(counter == _FROM_DEVICE, batch["srcId"], batch["dstId"])
    global_pid = (batch["processId"] & _MASK) << THREAD_BITS
    columns = named | {"copyKind": copy_kind, "deviceId": device, "globalPid": global_pid}
    return {name: column[is_copy] for name, column in columns.items()}


def _faults(tables: Nvprof, batch: Batch, named: Numbers) -> Numbers:
    """Return the columns of unified memory counters that are page faults of a GPU."""
    global_pid = (batch["processId"] & _MASK) << THREAD_BITS
    columns = named | {"deviceId": batch["srcId"], "globalPid": global_pid}
    is_fault = batch["counterKind"] == _GPU_FAULT
    return {name: column[is_fault] for name, column in columns.items()}


def _calls(api: str, tables: Nvprof, batch: Batch, named: Numbers) -> Numbers:
    """Return the columns of calls of an API, with ids of their names."""
    number, first_id = batch["cbid"], APIS[api][0]
    is_number = (number >= 0) & (number < MOST_CALLS)
    return named | {
        "globalTid": tables.thread_ids(batch["processId"], batch["threadId"]),
        "nameId": np.where(is_number, first_id + number, ABSENT),
        "eventClass": np.full(batch.count, list(APIS).index(api)),
    }


def _owners(tables: Nvprof, batch: Batch) -> IntArray:
    """Return the global thread ids of rows, from the objects that they belong to.

    An object is eight bytes, the pid and the thread's number; that of a process has no thread.
    """
    objects = (bytes.fromhex(text or "").ljust(8, b"\0")[:8] for text in batch.texts["objectId"])
    pid, thread = np.frombuffer(b"".join(objects), "<u4").reshape(-1, 2).astype(np.int64).T
    kind = batch["objectKind"]
    pid = np.where(np.isin(kind, (_PROCESS, _THREAD)), pid, 0)
    return tables.thread_ids(pid, np.where(kind == _THREAD, thread, 0))


def _overheads(tables: Nvprof, batch: Batch, named: Numbers) -> Numbers:
    """Return the columns of overheads, with the kinds of an export."""
    # nvprof's kind 1 (compiling) is 2 in exports, n << 16 is n + 2.
    kind, high_bits = batch["overheadKind"], batch["overheadKind"] >> 16
    export_kind = np.where(kind == 1, 2, np.where(high_bits > 0, high_bits + 2, 0))
    name_ids, owner = _OVERHEAD_IDS + export_kind, _owners(tables, batch)
    return named | {"overheadType": export_kind, "nameId": name_ids, "globalTid": owner}


def _ranges(tables: Nvprof, batch: Batch, named: Numbers) -> Numbers:
    """Return the columns of marks and ranges. The database has a row per begin and per end."""
    flags, owner = batch["flags"], _owners(tables, batch)
    is_mark, is_end = flags & _INSTANT > 0, flags & _ENDS > 0
    # The begin and the end of a range have the same process and id.
    key = joint_codes(owner >> THREAD_BITS, batch["id"])
    end_ns = Lookup(key[is_end], batch["timestamp"][is_end])(key)
    range_type = np.where(batch["objectKind"] == _THREAD, _PUSHED, _STARTED)
    columns = named | {
        "end": np.where(is_mark, ABSENT, end_ns),
        "eventType": np.where(is_mark, MARK, range_type),
        "globalTid": owner,
        "textId": np.where(named["textId"] > 0, named["textId"], ABSENT),
    }
    is_first = flags & (_INSTANT | _BEGINS) > 0
    return {name: column[is_first] for name, column in columns.items()}


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
_PARTS: Final[Mapping[str, tuple[_TablePart, ...]]] = {
    f"{CUPTI}KERNEL": tuple(
        _TablePart(name, _KERNEL, _work) for name in ("CONCURRENT_KERNEL", "KERNEL", "CDP_KERNEL")
    ),
    f"{CUPTI}MEMCPY": (
        _TablePart("MEMCPY", _COPY, _copies),
        _TablePart("MEMCPY2", _COPY | _BOTH, _copies),
        _TablePart(
            "UNIFIED_MEMORY_COUNTER",
            (_SPAN | {"streamId": "streamId", "bytes": "value"}),
            _migrations,
            ("counterKind", "srcId", "dstId", "processId"),
        ),
    ),
    f"{CUPTI}MEMSET": (_TablePart("MEMSET", _FILL, _copies),),
    PAGE_FAULTS: (
        _TablePart("UNIFIED_MEMORY_COUNTER", _SPAN, _faults, ("counterKind", "srcId", "processId")),
    ),
    f"{CUPTI}GRAPH_TRACE": (_TablePart("GRAPH_TRACE", _WORK, _work),),
    f"{CUPTI}RUNTIME": tuple(
        _TablePart(
            api,
            _CALL | {"returnValue": "returnValue"},
            partial(_calls, api),
            ("cbid", "processId", "threadId"),
        )
        for api in APIS
    ),
    f"{CUPTI}SYNCHRONIZATION": (_TablePart("SYNCHRONIZATION", _WAIT, _work),),
    f"{CUPTI}OVERHEAD": (
        _TablePart("OVERHEAD", _SPAN, _overheads, ("overheadKind", "objectKind"), ("objectId",)),
    ),
    "NVTX_EVENTS": (
        _TablePart(
            "MARKER",
            {"start": "timestamp", "textId": "name", "domainId": "domain"},
            _ranges,
            ("flags", "timestamp", "id", "objectKind"),
            ("objectId",),
            whole=True,
        ),
    ),
}
"""By table of an export: the tables of the database that have its rows."""
NVPROF: Final = "nvprof"
_RECENT_NS: Final = 10**18
"""A time in ns that is later than this counts from 1970."""


def read_nvprof(database: Database) -> Sequence[Trace]:
    """Return the trace in a database. Raises InputError if none can be read."""
    tables = nvprof_tables(database)
    trace = trace_of_file(tables, NVPROF)
    # Give threads the numbers of the database again.
    small_numbers, own_numbers = tables.own_threads.values(), tables.own_threads.keys()
    own_number = Lookup(*(np.array(list(side), np.int64) for side in (small_numbers, own_numbers)))
    changed: dict[str, pa.Table] = {}
    for name in ("calls", "ops", "marks"):
        table = trace.table(name)
        changed[name] = with_numbers(table, "thread", own_number(numbers(table["thread"], ABSENT)))
    # Times count from 1970, or are of an unknown clock (None).
    starts = [numbers(trace.table(name)["start_ns"]) for name in ("activities", "calls", "marks")]
    earliest = min((int(start.min()) for start in starts if len(start)), default=0)
    origin = 0 if earliest > _RECENT_NS else None
    source = replace(trace.source, tool=NVPROF, origin_unix_ns=origin)
    trace = replace(trace, source=source, tables={**trace.tables, **changed})
    return [with_notes(trace, database, tables.left_out)]
