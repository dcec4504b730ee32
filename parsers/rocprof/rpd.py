"""Reads RPD databases (.rpd of rocmProfileData), whose rocpd_ tables differ from rocpd's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from traceflops.parsers.io.database_query import Batch, Lookup, TextsById, Wanted, by_distinct
from traceflops.parsers.io.database_rows import Database
from traceflops.parsers.rocprof.copies import BETWEEN, WITHIN, directions_named
from traceflops.parsers.rocprof.rocpd_host import APIS, MARK, add_calls_of, kind_by_name
from traceflops.parsers.rocprof.trace import trace_of, with_losses
from traceflops.parsers.shared import sinks
from traceflops.parsers.shared.collectives import fill_collectives
from traceflops.parsers.shared.sanity_checks import timed
from traceflops.parsers.shared.trace_builder import Gathered, ProcessIds, within_limit
from traceflops.table.columns import ABSENT, IntArray
from traceflops.table.grouping import distinct
from traceflops.table.trace import Source, Trace

_API: Final = Wanted(integers=("id", "pid", "tid", "start", "end", "apiName_id", "args_id"))
_TEXT: Final = Wanted(integers=("id",), texts=("string",))
_USER_MARKER: Final = "UserMarker"
"""The name of the call by which a program makes a mark; its argument is the name of the mark."""
_TRACER: Final = re.compile(r"\w+::writeRows|rpdflush|run_to_completion|\w+_activity_callback")
"""Records of the tracer's own work."""
_CUDA: Final = ((re.compile("cuda[A-Z]"), "runtime"), (re.compile("cu[A-Z]"), "driver"))
_OVERHEAD, _OF_PROGRAM = "overhead", "of the program"
_CALLS: Final = (*APIS, "runtime", "driver")
_KINDS: Final = (*_CALLS, MARK, _OVERHEAD, _OF_PROGRAM)
"""Kinds of records: calls by their API, other marks, the tracer's own work, the program's marks."""
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
"""Calls that take the grid in threads; all others take it in blocks."""


def read_rpd(database: Database) -> Sequence[Trace]:
    """Return the trace in an RPD database. Raises InputError if none can be read."""
    reading = _RpdReading(database)
    reading.add_operations(reading.add_calls())
    fill_collectives(reading, {})
    rows = database.whole("rocpd_metadata", Wanted(texts=("tag", "value")))
    version = dict(zip(rows.texts["tag"], rows.texts["value"], strict=True)).get("schema_version")
    facts = {"schema_version": version[:20]} if version else {}  # a damaged text may be long
    about = Source("rpd", (), "rocmProfileData", facts=facts)
    return [with_losses(database, trace_of(reading, database.source, about, "database"))]


class _RpdReading(Gathered):
    """The rows of one database."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        rows = database.whole("rocpd_string", _TEXT)
        self._strings = TextsById(rows["id"], rows.texts["string"])
        self._pids = ProcessIds(self, database.source.label)
        self._gpus: set[int] = set()

    def add_calls(self) -> dict[str, IntArray]:
        """Add calls and marks; return the columns id, process and apiName_id of all records."""
        records: dict[str, list[IntArray]] = {name: [] for name in ("id", "process", "apiName_id")}
        of_program: list[Batch] = []
        # Coders turn ids of strings into codes of names of calls or marks.
        mark_names = self["marks"].names["name"]
        code_call = self._strings.coder(self["calls"].names["name"], sinks.UNNAMED)
        code_mark = self._strings.coder(mark_names, sinks.UNNAMED)
        for batch in self._database.batches("rocpd_api", _API):
            self.counts["api"] += batch.count
            rows = timed(batch, self.odd)
            kinds = by_distinct(rows["apiName_id"], self._kind)
            process = self._pids.numbers(rows["pid"])
            rows = rows.with_numbers({"process": process, "thread": rows["tid"], "kind": kinds})
            calls = rows.only(kinds < len(_CALLS))  # _KINDS begins with _CALLS
            marks, overheads, program_marks = (
                rows.only(kinds == _KINDS.index(kind)) for kind in (MARK, _OVERHEAD, _OF_PROGRAM)
            )
            add_calls_of(self, calls, code_call(calls["apiName_id"]), calls["id"], _CALLS)
            for add, part in ((sinks.add_marks, marks), (sinks.add_overheads, overheads)):
                columns: dict[str, Any] = {"process": part["process"], "thread": part["thread"]}
                add(self, part, **columns, name=code_mark(part["apiName_id"]))
            of_program.append(program_marks)
            for name, pieces in records.items():
                pieces.append(rows[name])

        arguments = self._arguments(_joined(rows["args_id"] for rows in of_program))
        code_argument = arguments.coder(mark_names, _USER_MARKER)
        for rows in of_program:
            columns = {"process": rows["process"], "thread": rows["thread"]}
            sinks.add_marks(self, rows, **columns, name=code_argument(rows["args_id"]))
        return {name: _joined(pieces) for name, pieces in records.items()}

    def _kind(self, name_id: int, _row: int) -> int:
        """Return the kind, an index in _KINDS, of records with this apiName_id."""
        name = self._strings[name_id] or ""
        if name == _USER_MARKER:
            return _KINDS.index(_OF_PROGRAM)
        if _TRACER.fullmatch(name):
            return _KINDS.index(_OVERHEAD)
        api = next((api for sign, api in _CUDA if sign.match(name)), None) or kind_by_name(name)
        return _KINDS.index(api if api in _CALLS else MARK)

    def _arguments(self, ids: IntArray) -> TextsById:
        """Return the arguments of calls by id, at least those with these `ids`."""
        # Before schema 3 arguments are among all other strings.
        if not self._database.has_rows("rocpd_ustring"):
            return self._strings
        wanted = distinct(ids)
        batches = [
            rows.only(np.isin(rows["id"], wanted))
            for rows in self._database.batches("rocpd_ustring", _TEXT)
        ]
        texts = [text for rows in batches for text in rows.texts["string"]]
        return TextsById(_joined(rows["id"] for rows in batches), texts)

    def add_operations(self, calls: Mapping[str, IntArray]) -> None:
        """Add operations, without barriers (no work); `calls` is the result of `add_calls`."""
        rows = timed(self._database.whole("rocpd_op", _OPERATION), self.odd)
        links = self._database.whole("rocpd_api_ops", _LINK)
        call, gpus = Lookup(links["op_id"], links["api_id"])(rows["id"]), rows["gpuId"]
        process = Lookup(calls["id"], calls["process"])(call)
        without_call = process == ABSENT
        if without_call.any():  # such an operation gets the process that uses its GPU most
            gpu_and_process = np.stack([gpus, process], axis=1)[~without_call]
            users, uses = np.unique(gpu_and_process, axis=0, return_counts=True)
            # In ascending order of uses: the dict keeps the last process of each GPU.
            main_user = dict(users[np.argsort(uses, kind="stable")].tolist())
            process[without_call] = by_distinct(
                gpus[without_call],
                lambda gpu, _: main_user[gpu] if gpu in main_user else self._pids.number(ABSENT),
            )
        columns = {
            "call": call,
            "call_name": Lookup(calls["id"], calls["apiName_id"])(call),
            "operations": Lookup(*np.unique(links["api_id"], return_counts=True))(call),
            "process": process,
        }
        rows = rows.with_numbers(columns)

        def kind_of(type_id: int, _row: int) -> int:
            """Return the kind, an index in _WORK, of operations with this opType_id."""
            text = self._strings[type_id] or ""
            kind = next((kind for sign, kind in _TYPES if sign.search(text)), "kernel")
            return _WORK.index(kind)

        kinds = by_distinct(rows["opType_id"], kind_of)
        parts = {word: rows.only(kinds == index) for index, word in enumerate(_WORK)}
        self.counts.update({word: part.count for word, part in parts.items()})
        self._add_kernels(parts["kernel"])
        for word in ("memcpy", "memset"):
            self._add_copies(parts[word], word)

    def _common(self, rows: Batch) -> dict[str, Any]:
        """Return the process, device, stream and correlation (the call's id) of operations."""
        process = rows["process"]

        def device(gpu: int, row: int) -> int:
            # -1 is the device of operations without a GPU, or beyond the limit of devices.
            gpu = within_limit(self._gpus, -1 if gpu == ABSENT else gpu, -1)
            return self.device(gpu, int(process[row]), gpu)

        devices = by_distinct(rows["gpuId"], device)
        common = {"process": process, "device": devices, "stream": rows["queueId"]}
        return common | {"correlation": rows["call"]}

    def _add_kernels(self, rows: Batch) -> None:
        """Add kernels; their calls have the grid, the block, and names that operations lack."""
        names = self["activities"].names["name"]
        launched = self._database.whole("rocpd_kernelapi", _LAUNCHED)
        column = {
            name: Lookup(launched["api_ptr_id"], launched[name])(rows["call"])
            for name in _LAUNCHED.integers
        }
        own_name = self._strings.coder(names, None)(rows["description_id"])
        call_name = self._strings.coder(names, sinks.UNNAMED_KERNEL)(column["kernelName_id"])
        grid, block = (np.stack([column[n] for n in axes], axis=1) for axes in (_GRID, _BLOCK))

        # The unit of the grid depends on the tracer's version, which shows in the spelling of the
        # types of operations. Versions based on rocprofiler-sdk (MEMORY_COPY_...) write threads;
        # older ones (CopyHostToDevice, ...) write the argument of the call, for most calls blocks.
        types = self._database.whole("rocpd_op", Wanted(integers=("opType_id",)))["opType_id"]
        spellings = [self._strings[key] or "" for key in distinct(types).tolist()]
        blocks = sinks.blocks_of(grid, block)
        if not any(text.startswith("MEMORY_COPY") for text in spellings):
            in_threads = by_distinct(
                rows["call_name"], lambda key, _: self._strings[key] in _IN_THREADS
            )
            blocks = np.where(in_threads[:, None] == 1, blocks, grid)
            if not any(text.startswith(("Copy", "Fill", "Task")) for text in spellings):
                blocks = np.full_like(grid, ABSENT)  # unknown version
        sinks.add_work(
            self,
            rows,
            "kernel",
            **self._common(rows),
            name=np.where(own_name >= 0, own_name, call_name),
            grid=blocks,
            block=block,
            shared_memory_bytes=column["groupSegmentSize"],
        )

    def _add_copies(self, rows: Batch, kind: str) -> None:
        """Add copies or fills (`kind`) with their sizes in bytes.

        Only calls have a size. If a call has several operations, the size of each is
        unknown.
        """
        copied = self._database.whole("rocpd_copyapi", _COPIED)
        size, source, target = (
            Lookup(copied["api_ptr_id"], copied[name])(rows["call"])
            for name in _COPIED.integers[1:]
        )
        types, inverse = np.unique(rows["opType_id"], return_inverse=True)
        # Remove 2D or 3D from the end, where `directions_named` expects the direction.
        texts = [_PLANES.sub("", self._strings[key] or "") for key in types.tolist()]
        direction = directions_named(texts)[inverse]
        is_between = (direction == WITHIN) & (source >= 0) & (target >= 0) & (source != target)
        name = self._strings.coder(self["activities"].names["name"], sinks.UNNAMED_COPY)
        sinks.add_work(
            self,
            rows,
            kind,
            **self._common(rows),
            name=name(rows["opType_id"]),
            direction=np.where(is_between, BETWEEN, direction),
            bytes=np.where(rows["operations"] == 1, size, ABSENT),
        )


def _joined(pieces: Iterable[IntArray]) -> IntArray:
    return np.concatenate([np.empty(0, np.int64), *pieces])
