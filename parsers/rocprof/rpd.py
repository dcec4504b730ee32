"""Reads RPD databases, which ROCm's rocmProfileData writes (.rpd).

Their tables begin with rocpd_ as those of rocpd do, but they are others: rocpd_op, rocpd_api.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.parsers.io import Batch, Database, Lookup, TextsById, Wanted, by_distinct
from traceflops.parsers.rocprof.copies import ways_named
from traceflops.parsers.rocprof.rocpd.categories import APIS, kind_of
from traceflops.parsers.rocprof.rocpd.trace import Origin, Tallies, trace_of, with_losses
from traceflops.parsers.shared import (
    UNNAMED,
    UNNAMED_COPY,
    UNNAMED_KERNEL,
    Calls,
    Copies,
    Gathered,
    Kernels,
    Marks,
    Overheads,
    ProcessIds,
    blocks_of,
    fill_collectives,
    timed,
    told_apart,
)
from traceflops.table import ABSENT, IntArray, Trace

_API: Final = Wanted(integers=("id", "pid", "tid", "start", "end", "apiName_id", "args_id"))
_TEXT: Final = Wanted(integers=("id",), texts=("string",))
_USER: Final = "UserMarker"
_TRACER: Final = re.compile(r"\w+::writeRows|rpdflush|run_to_completion|\w+_activity_callback")
"""What the tracer says of its own work."""
_CUDA: Final = ((re.compile("cuda[A-Z]"), "runtime"), (re.compile("cu[A-Z]"), "driver"))
_MARK, _OVERHEAD, _OF_PROGRAM = "mark", "overhead", "of the program"
_CALLS: Final = (*APIS, "runtime", "driver")
_KINDS: Final = (*_CALLS, _MARK, _OVERHEAD, _OF_PROGRAM)


def read_rpd(database: Database) -> Sequence[Trace]:
    """Return the trace in an RPD database. Raises InputError where there is none to be read."""
    return [with_losses(database, _RpdReader(database).trace())]


def _kind(name: str | None) -> str:
    """Return what a record of the host is, by its name."""
    text = name or ""
    if text == _USER:
        return _OF_PROGRAM
    if _TRACER.fullmatch(text):
        return _OVERHEAD
    api = next((api for sign, api in _CUDA if sign.match(text)), None) or kind_of(None, text)
    return api if api in _CALLS else _MARK


class _RpdReader:
    """Reads one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._gathered = Gathered()
        self._tallies = Tallies()
        rows = database.whole("rocpd_string", _TEXT)
        self._strings = TextsById(rows["id"], rows.texts["string"])
        self._processes = ProcessIds(self._gathered, database.source.label)
        self._mark_name = self._strings.coder(self._gathered["marks"].names["name"], UNNAMED)
        self._of_program: list[Batch] = []

    def trace(self) -> Trace:
        """Return the trace."""
        calls = self._read_calls()
        self._add_marks_of_program()
        operations = Operations(self._database, self._gathered, self._tallies, self._strings)
        operations.add(calls, lambda: self._processes.number(ABSENT))
        fill_collectives(self._gathered, {})
        origin = Origin("rpd", "rocmProfileData", self._facts())
        return trace_of(self._database, self._gathered, self._tallies, origin)

    def _facts(self) -> dict[str, str]:
        rows = self._database.whole("rocpd_metadata", Wanted(texts=("tag", "value")))
        tags = dict(zip(rows.texts["tag"], rows.texts["value"], strict=True))
        version = tags.get("schema_version")
        return {"schema_version": version[:20]} if version else {}

    def _read_calls(self) -> CallIds:
        """Add calls and marks, except for marks whose texts are still to be read."""
        columns: dict[str, list[IntArray]] = {name: [] for name in ("id", "process", "apiName_id")}
        for batch in self._database.batches("rocpd_api", _API):
            self._tallies.counts["api"] += batch.count
            rows = timed(batch, self._tallies.odd)
            process = self._processes.numbers(rows["pid"])
            rows = Batch(rows.count, {**rows.numbers, "process": process}, {})
            for name, values in columns.items():
                values.append(rows[name])
            kind = by_distinct(
                rows["apiName_id"], lambda key, _: _KINDS.index(_kind(self._strings[key]))
            )
            self._add_calls(rows, kind)
            for word, batches in ((_MARK, Marks), (_OVERHEAD, Overheads)):
                some = rows.only(kind == _KINDS.index(word))
                self._mark(batches, some, self._mark_name(some["apiName_id"]))
            self._of_program.append(rows.only(kind == _KINDS.index(_OF_PROGRAM)))
        whole = [np.concatenate([np.empty(0, np.int64), *values]) for values in columns.values()]
        return CallIds(*whole)

    def _add_calls(self, rows: Batch, kind: IntArray) -> None:
        names = self._gathered["calls"].names
        is_call = kind < len(_CALLS)
        some = rows.only(is_call)
        Calls(
            rows=some,
            process=some["process"],
            thread=some["tid"],
            name=self._strings.coder(names["name"], UNNAMED)(some["apiName_id"]),
            correlation=some["id"],
            api=by_distinct(kind[is_call], lambda place, _: names["api"][_KINDS[place]]),
        ).add_to(self._gathered)

    def _add_marks_of_program(self) -> None:
        """Add the marks of the program, whose texts are arguments of their records."""
        names = self._gathered["marks"].names["name"]
        ids = [rows["args_id"] for rows in self._of_program]
        name = self._arguments(np.unique(np.concatenate([np.empty(0, np.int64), *ids])))
        coder = name.coder(names, _USER)
        for rows in self._of_program:
            self._mark(Marks, rows, coder(rows["args_id"]))

    def _mark(self, batches: type[Marks | Overheads], rows: Batch, name: IntArray) -> None:
        process, thread = rows["process"], rows["tid"]
        batches(rows=rows, process=process, thread=thread, name=name).add_to(self._gathered)

    def _arguments(self, wanted: IntArray) -> TextsById:
        """Return some texts of arguments, which have a table of their own from schema 3 on."""
        if not self._database.has_rows("rocpd_ustring"):
            return self._strings
        ids, texts = [np.empty(0, np.int64)], []
        for batch in self._database.batches("rocpd_ustring", _TEXT):
            rows = batch.only(np.isin(batch["id"], wanted))
            ids.append(rows["id"])
            texts += rows.texts["string"]
        return TextsById(np.concatenate(ids), texts)


# Operations as activities.


_WORK: Final = ("kernel", "memcpy", "memset")
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
_IN_THREADS: Final = ("hipExtModuleLaunchKernel", "hipHccModuleLaunchKernel")
"""CallIds that are given the grid in threads; all others are given it in blocks."""


@dataclass(frozen=True, slots=True)
class CallIds:
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

    def add(self, calls: CallIds, unknown_process: Callable[[], int]) -> None:
        """Add all operations but barriers, which are no work."""
        rows = timed(self._database.whole("rocpd_op", _OPERATION), self._tallies.odd)
        call = self._call(rows["id"])
        process = Lookup(calls.ids, calls.process)(call)
        process = _with_others(process, rows["gpuId"], unknown_process)
        rows = Batch(rows.count, {**rows.numbers, "call": call, "process": process}, {})
        kind = by_distinct(rows["opType_id"], lambda key, _: self._kind(key))
        for place, word in enumerate(_WORK):
            some = rows.only(kind == place)
            self._tallies.counts[word] += some.count
            if word == "kernel":
                self._add_kernels(some, calls)
            else:
                self._add_copies(some, word)
        self._tallies.counts["barrier"] += int(np.count_nonzero(kind == len(_WORK)))

    def _kind(self, key: int) -> int:
        text = self._strings[key] or ""
        word = next((kind for sign, kind in _TYPES if sign.search(text)), "kernel")
        return len(_WORK) if word is None else _WORK.index(word)

    def _place(self, rows: Batch) -> dict[str, IntArray]:
        """Return where operations ran and what launched them."""
        process = rows["process"]
        device = by_distinct(rows["gpuId"], lambda gpu, row: self._device(gpu, int(process[row])))
        place = {"process": process, "device": device, "stream": rows["queueId"]}
        return place | {"correlation": rows["call"]}

    def _device(self, gpu: int, process: int) -> int:
        gpu = told_apart(self._gpus, -1 if gpu == ABSENT else gpu, -1)
        return self._gathered.device(gpu, process, gpu)

    def _add_kernels(self, rows: Batch, calls: CallIds) -> None:
        """Add names and shapes, too: what operations do not say, their calls do."""
        call, names = rows["call"], self._gathered["activities"].names["name"]
        launched = self._database.whole("rocpd_kernelapi", _LAUNCHED)
        row = Lookup(launched["api_ptr_id"], np.arange(launched.count))(call)
        column = {name: _lent(launched[name], row) for name in _LAUNCHED.integers}
        own = self._strings.coder(names, None)(rows["description_id"])
        lent = self._strings.coder(names, UNNAMED_KERNEL)(column["kernelName_id"])
        grid, block = (np.stack([column[n] for n in axes], axis=1) for axes in (_GRID, _BLOCK))
        Kernels(
            rows=rows,
            **self._place(rows),
            name=np.where(own >= 0, own, lent),
            grid=self._blocks(grid, block, Lookup(calls.ids, calls.name_id)(call)),
            block=block,
            shared_memory_bytes=column["groupSegmentSize"],
        ).add_to(self._gathered)

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
        return np.where(in_threads[:, None], blocks_of(grid, block), grid)

    def _type_names(self) -> list[str | None]:
        ids = self._database.whole("rocpd_op", Wanted(integers=("opType_id",)))["opType_id"]
        return [self._strings[key] for key in np.unique(ids).tolist()]

    def _add_copies(self, rows: Batch, kind: str) -> None:
        """Add copies or fills with their sizes; a call of several states their sum."""
        copied = self._database.whole("rocpd_copyapi", _COPIED)
        size = Lookup(copied["api_ptr_id"], copied["size"])(rows["call"])
        is_alone = self._operations_of(rows["call"]) == 1
        types, place = np.unique(rows["opType_id"], return_inverse=True)
        texts = [_PLANES.sub("", self._strings[key] or "") for key in types.tolist()]
        names = self._gathered["activities"].names["name"]
        Copies(
            rows=rows,
            **self._place(rows),
            kind=kind,
            name=self._strings.coder(names, UNNAMED_COPY)(rows["opType_id"]),
            way=ways_named(texts)[place],
            bytes=np.where(is_alone, size, ABSENT),
        ).add_to(self._gathered)


def _lent(values: IntArray, rows: IntArray) -> IntArray:
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
