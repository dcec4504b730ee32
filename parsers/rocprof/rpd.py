"""Reads RPD databases, which ROCm's rocmProfileData writes (.rpd).

Their tables begin with rocpd_ as those of rocpd do, but they are others: rocpd_op, rocpd_api.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from traceflops.parsers.io import Batch, Database, Lookup, TextsById, Wanted, by_distinct
from traceflops.parsers.rocprof.copies import BETWEEN, WITHIN, ways_named
from traceflops.parsers.rocprof.rocpd_host import APIS, MARK, add_calls, kind_by_name
from traceflops.parsers.rocprof.trace import Recorded, trace_of, with_losses
from traceflops.parsers.shared import (
    UNNAMED,
    UNNAMED_COPY,
    UNNAMED_KERNEL,
    Copies,
    Kernels,
    Marks,
    Overheads,
    ProcessIds,
    blocks_of,
    fill_collectives,
    timed,
    told_apart,
)
from traceflops.table import ABSENT, Array, IntArray, Source, Trace

_API: Final = Wanted(integers=("id", "pid", "tid", "start", "end", "apiName_id", "args_id"))
_TEXT: Final = Wanted(integers=("id",), texts=("string",))
_USER: Final = "UserMarker"
_TRACER: Final = re.compile(r"\w+::writeRows|rpdflush|run_to_completion|\w+_activity_callback")
"""What the tracer says of its own work."""
_CUDA: Final = ((re.compile("cuda[A-Z]"), "runtime"), (re.compile("cu[A-Z]"), "driver"))
_OVERHEAD, _OF_PROGRAM = "overhead", "of the program"
_CALLS: Final = (*APIS, "runtime", "driver")
_KINDS: Final = (*_CALLS, MARK, _OVERHEAD, _OF_PROGRAM)
_BARRIER: Final = "barrier"
_TYPES: Final = (
    (re.compile("barrier|marker", re.IGNORECASE), _BARRIER),
    (re.compile("fill|memset", re.IGNORECASE), "memset"),
    (re.compile("copy|memcpy", re.IGNORECASE), "memcpy"),
)
_WORK: Final = ("kernel", "memcpy", "memset", _BARRIER)
_PLANES: Final = re.compile(r"[23]D$")
_OPERATION: Final = Wanted(
    integers=("id", "gpuId", "queueId", "start", "end", "description_id", "opType_id")
)
_LINK: Final = Wanted(integers=("api_id", "op_id"))
_COPIED: Final = Wanted(integers=("api_ptr_id", "size", "srcDevice", "dstDevice"))
_GRID: Final = ("gridX", "gridY", "gridZ")
_BLOCK: Final = ("workgroupX", "workgroupY", "workgroupZ")
_LAUNCHED: Final = Wanted(
    integers=("api_ptr_id", *_GRID, *_BLOCK, "groupSegmentSize", "kernelName_id")
)
_IN_THREADS: Final = ("hipExtModuleLaunchKernel", "hipHccModuleLaunchKernel")
"""Calls that are given the grid in threads; all others are given it in blocks."""


def read_rpd(database: Database) -> Sequence[Trace]:
    """Return the trace in an RPD database. Raises InputError where there is none to be read."""
    reading = _RpdReading(database)
    reading.add_operations(reading.add_calls())
    fill_collectives(reading, {})
    rows = database.whole("rocpd_metadata", Wanted(texts=("tag", "value")))
    version = dict(zip(rows.texts["tag"], rows.texts["value"], strict=True)).get("schema_version")
    facts = {"schema_version": version[:20]} if version else {}
    about = Source("rpd", (), "rocmProfileData", facts=facts)
    return [with_losses(database, trace_of(reading, database.source, about, "database"))]


def _kind(name: str | None) -> str:
    """Return what a record of the host is, by its name."""
    text = name or ""
    if text == _USER:
        return _OF_PROGRAM
    if _TRACER.fullmatch(text):
        return _OVERHEAD
    api = next((api for sign, api in _CUDA if sign.match(text)), None) or kind_by_name(text)
    return api if api in _CALLS else MARK


class _RpdReading(Recorded):
    """What is recorded of one database."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        rows = database.whole("rocpd_string", _TEXT)
        self._strings = TextsById(rows["id"], rows.texts["string"])
        self._pids = ProcessIds(self, database.source.label)
        self._gpus: set[int] = set()

    def add_calls(self) -> dict[str, IntArray]:
        """Add calls and marks; return ids, processes and names of all these records."""
        columns: dict[str, list[IntArray]] = {name: [] for name in ("id", "process", "apiName_id")}
        of_program: list[Batch] = []
        call_name = self._strings.coder(self["calls"].names["name"], UNNAMED)
        mark_name = self._strings.coder(self["marks"].names["name"], UNNAMED)
        for batch in self._database.batches("rocpd_api", _API):
            self.counts["api"] += batch.count
            rows = self._placed(timed(batch, self.odd))
            calls, marks, overheads, texts = (
                rows.only(np.isin(rows["kind"], [_KINDS.index(word) for word in words]))
                for words in (_CALLS, (MARK,), (_OVERHEAD,), (_OF_PROGRAM,))
            )
            add_calls(self, calls, call_name(calls["apiName_id"]), calls["id"], _CALLS)
            self._mark(Marks, marks, mark_name(marks["apiName_id"]))
            self._mark(Overheads, overheads, mark_name(overheads["apiName_id"]))
            of_program.append(texts)
            for name, pieces in columns.items():
                pieces.append(rows[name])
        self._add_marks_of_program(of_program)
        return {name: _joined(pieces) for name, pieces in columns.items()}

    def _placed(self, rows: Batch) -> Batch:
        """Return records of the host with their processes, threads and kinds."""
        kind = by_distinct(
            rows["apiName_id"], lambda key, _: _KINDS.index(_kind(self._strings[key]))
        )
        process = self._pids.numbers(rows["pid"])
        columns = {"process": process, "thread": rows["tid"], "kind": kind}
        return Batch(rows.count, {**rows.numbers, **columns}, {})

    def _add_marks_of_program(self, batches: Sequence[Batch]) -> None:
        """Add the marks of the program, whose texts are arguments of their records."""
        texts = self._arguments(np.unique(_joined(rows["args_id"] for rows in batches)))
        name = texts.coder(self["marks"].names["name"], _USER)
        for rows in batches:
            self._mark(Marks, rows, name(rows["args_id"]))

    def _mark(self, batch: type[Marks | Overheads], rows: Batch, name: Array) -> None:
        process, thread = rows["process"], rows["thread"]
        batch(rows=rows, process=process, thread=thread, name=name).add_to(self)

    def _arguments(self, wanted: IntArray) -> TextsById:
        """Return some texts of arguments, which have a table of their own from schema 3 on."""
        if not self._database.has_rows("rocpd_ustring"):
            return self._strings
        batches = [
            rows.only(np.isin(rows["id"], wanted))
            for rows in self._database.batches("rocpd_ustring", _TEXT)
        ]
        texts = [text for rows in batches for text in rows.texts["string"]]
        return TextsById(_joined(rows["id"] for rows in batches), texts)

    def add_operations(self, calls: Mapping[str, IntArray]) -> None:
        """Add all operations but barriers, which are no work."""
        rows = timed(self._database.whole("rocpd_op", _OPERATION), self.odd)
        links = self._database.whole("rocpd_api_ops", _LINK)
        call = Lookup(links["op_id"], links["api_id"])(rows["id"])
        process = Lookup(calls["id"], calls["process"])(call)
        columns = {
            "call": call,
            "call_name": Lookup(calls["id"], calls["apiName_id"])(call),
            "operations": Lookup(*np.unique(links["api_id"], return_counts=True))(call),
            "process": self._with_others(process, rows["gpuId"]),
        }
        rows = Batch(rows.count, {**rows.numbers, **columns}, {})
        kind = by_distinct(rows["opType_id"], lambda key, _: self._kind_of_work(key))
        parts = {word: rows.only(kind == place) for place, word in enumerate(_WORK)}
        self.counts.update({word: part.count for word, part in parts.items()})
        self._add_kernels(parts["kernel"])
        for word in ("memcpy", "memset"):
            self._add_copies(parts[word], word)

    def _kind_of_work(self, key: int) -> int:
        text = self._strings[key] or ""
        return _WORK.index(next((kind for sign, kind in _TYPES if sign.search(text)), "kernel"))

    def _with_others(self, process: IntArray, gpus: IntArray) -> IntArray:
        """Return processes; work without a call is of the process that uses its GPU most."""
        alone = process == ABSENT
        if not alone.any():
            return process
        pairs = np.stack([gpus, process], axis=1)[~alone]
        distinct, times = np.unique(pairs, axis=0, return_counts=True)
        most = dict(distinct[np.argsort(times, kind="stable")].tolist())
        process = process.copy()
        process[alone] = by_distinct(
            gpus[alone], lambda gpu, _: most[gpu] if gpu in most else self._pids.number(ABSENT)
        )
        return process

    def _place(self, rows: Batch) -> dict[str, IntArray]:
        """Return where operations ran and what launched them."""
        process = rows["process"]
        device = by_distinct(rows["gpuId"], lambda gpu, row: self._device(gpu, int(process[row])))
        place = {"process": process, "device": device, "stream": rows["queueId"]}
        return place | {"correlation": rows["call"]}

    def _device(self, gpu: int, process: int) -> int:
        gpu = told_apart(self._gpus, -1 if gpu == ABSENT else gpu, -1)
        return self.device(gpu, process, gpu)

    def _add_kernels(self, rows: Batch) -> None:
        """Add names and shapes, too: what operations do not say, their calls do."""
        names = self["activities"].names["name"]
        launched = self._database.whole("rocpd_kernelapi", _LAUNCHED)
        column = {
            name: Lookup(launched["api_ptr_id"], launched[name])(rows["call"])
            for name in _LAUNCHED.integers
        }
        own = self._strings.coder(names, None)(rows["description_id"])
        lent = self._strings.coder(names, UNNAMED_KERNEL)(column["kernelName_id"])
        grid, block = (np.stack([column[n] for n in axes], axis=1) for axes in (_GRID, _BLOCK))
        Kernels(
            rows=rows,
            **self._place(rows),
            name=np.where(own >= 0, own, lent),
            grid=self._blocks(grid, block, rows["call_name"]),
            block=block,
            shared_memory_bytes=column["groupSegmentSize"],
        ).add_to(self)

    def _blocks(self, grid: IntArray, block: IntArray, name_id: IntArray) -> IntArray:
        """Return grids in blocks: the tracer wrote what the call was given.

        Versions on rocprofiler-sdk write threads; they are known by how they spell copies. Where
        neither spelling occurs, what the numbers mean is unknown.
        """
        types = self._database.whole("rocpd_op", Wanted(integers=("opType_id",)))["opType_id"]
        spelled = [self._strings[key] or "" for key in np.unique(types).tolist()]
        if any(text.startswith("MEMORY_COPY") for text in spelled):
            return blocks_of(grid, block)
        if not any(text.startswith(("Copy", "Fill", "Task")) for text in spelled):
            return np.full_like(grid, ABSENT)
        in_threads = by_distinct(name_id, lambda key, _: self._strings[key] in _IN_THREADS) == 1
        return np.where(in_threads[:, None], blocks_of(grid, block), grid)

    def _add_copies(self, rows: Batch, kind: str) -> None:
        """Add copies or fills with their sizes; a call of several states their sum."""
        copied = self._database.whole("rocpd_copyapi", _COPIED)
        size, source, target = (
            Lookup(copied["api_ptr_id"], copied[name])(rows["call"])
            for name in _COPIED.integers[1:]
        )
        types, place = np.unique(rows["opType_id"], return_inverse=True)
        texts = [_PLANES.sub("", self._strings[key] or "") for key in types.tolist()]
        way = ways_named(texts)[place]
        is_between = (way == WITHIN) & (source >= 0) & (target >= 0) & (source != target)
        Copies(
            rows=rows,
            **self._place(rows),
            kind=kind,
            name=self._strings.coder(self["activities"].names["name"], UNNAMED_COPY)(
                rows["opType_id"]
            ),
            way=np.where(is_between, BETWEEN, way),
            bytes=np.where(rows["operations"] == 1, size, ABSENT),
        ).add_to(self)


def _joined(pieces: Iterable[IntArray]) -> IntArray:
    return np.concatenate([np.empty(0, np.int64), *pieces])
