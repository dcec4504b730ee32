"""Records of devices and the host: work, calls, waits, overheads; and values over time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from traceflops.parsers.io.database_query import Batch, Wanted, by_distinct
from traceflops.parsers.nsight.nsys import enums
from traceflops.parsers.nsight.nsys.reading import CUPTI, PAGE_FAULTS, Columns, ReportReading
from traceflops.parsers.shared.sinks import at_least
from traceflops.table.builder import TableBuilder
from traceflops.table.columns import (
    ABSENT,
    IntArray,
    Names,
    codes,
    count_true,
    is_one_of,
    merged_column,
    names,
    with_column,
)
from traceflops.table.grouping import distinct
from traceflops.table.links import first_match, first_of_same
from traceflops.table.nesting import taken

UNNAMED_KERNEL: Final = "(unnamed kernel)"
_UNNAMED: Final = "(unnamed)"
_OF_PROFILER: Final = "profiler: {}".format
"""Returns the name of an overhead that the profiler causes."""
_API_VERSION: Final = re.compile(r"_v\d{4,6}$")
_KIND_NUMBERS: Final = 64
"""The numbers of kinds of copies and of memory are below this; larger ones are unknown."""
_BY_DEVICES: Final = (1, 2, 8, enums.BETWEEN_DEVICES)
"""Kinds of copies (HtoD, DtoH, DtoD, PtoP) that are PtoP if source and target device differ."""
_DIRECTIONS: Final = {kind: direction for kind, (direction, _) in enums.COPIES.items()}
_FILLS: Final = {kind: f"Memset ({name})" for kind, name in enums.MEMORY.items()}
_SPAN: Final = ("start", "end")
_SYSTEM: Final = ("OSRT_API", *(f"{CUPTI}OPENACC_{kind}" for kind in ("DATA", "LAUNCH", "OTHER")))
_PLACE: Final = ("deviceId", "contextId", "streamId", "correlationId", "globalPid")
_NAMES: Final = ("demangledName", "shortName", "mangledName")
_SIZES: Final = tuple(f"{what}{axis}" for what in ("grid", "block") for axis in "XYZ")
_SHARED: Final = ("staticSharedMemory", "dynamicSharedMemory")
_ALLOCATION: Final = Wanted(
    integers=(
        *("start", "globalPid", "deviceId", "address"),
        *("bytes", "memKind", "memoryOperationType"),
    )
)
_METRIC: Final = Wanted(integers=("timestamp", "typeId", "metricId"), reals=("value",))
_METRIC_NAME: Final = Wanted(integers=("typeId", "metricId"), texts=("metricName", "typeName"))
_GPU_IN_NAME: Final = re.compile(r"\[(\d{1,4})\]$")
_MOST_KINDS, _MOST_VALUES = 256, 4_000_000
_EVENT, _WAIT_EVENT, _STREAM, _CONTEXT = enums.WAITS.values()
_WAIT_OF: Final[Mapping[str, str]] = {
    **dict.fromkeys(("EventSynchronize", "EventQuery"), _EVENT),
    "StreamWaitEvent": _WAIT_EVENT,
    **dict.fromkeys(("StreamSynchronize", "StreamQuery"), _STREAM),
    **dict.fromkeys(("DeviceSynchronize", "ThreadSynchronize", "CtxSynchronize"), _CONTEXT),
}
_WAITING_CALL: Final = re.compile(rf"(?:cuda|cu)({'|'.join(_WAIT_OF)})(?:_ptsz|_v\d{{1,6}})*")


def _call_name(text: str) -> str:
    """Return a call's name without its API version (`_v3020`)."""
    return _API_VERSION.sub("", text)


def _coded(
    names: Names, values: IntArray, labels: Mapping[int, str], otherwise: str | None
) -> IntArray:
    """Return the code in `names` of each value's label, else of `otherwise` (None: -1)."""

    def code(value: int, _: int) -> int:
        text = labels.get(value, otherwise)
        return -1 if text is None else names[text]

    return by_distinct(values, code)


def _kernels(rows: Batch) -> Columns:
    """Return the columns of kernels: ids of names, launch sizes, registers, shared memory."""
    static, dynamic = (at_least(0, rows[column]) for column in _SHARED)
    has_both = (static != ABSENT) & (dynamic != ABSENT)
    # The demangled name, else the short one, else the mangled one.
    name_ids = rows[_NAMES[0]]
    for column in _NAMES[1:]:
        is_unknown = name_ids == ABSENT
        if not is_unknown.any():
            break
        name_ids = np.where(is_unknown, rows[column], name_ids)
    sizes = {}
    for what in ("grid", "block"):  # shape (rows, 3), all three unknown where one of them is
        axes = np.stack([rows[f"{what}{axis}"] for axis in "XYZ"], axis=1)
        is_size = (axes > 0).all(axis=1, keepdims=True)
        sizes[what] = axes if is_size.all() else np.where(is_size, axes, ABSENT)
    return {
        "name": name_ids,
        **sizes,
        "registers_per_thread": at_least(0, rows["registersPerThread"]),
        "shared_memory_bytes": at_least(0, np.where(has_both, static + dynamic, ABSENT)),
    }


def _copies(reading: ReportReading, table: TableBuilder, rows: Batch) -> Columns:
    """Return the columns name, bytes and direction of copies."""
    kind, source, target = (rows[name] for name in ("copyKind", "srcDeviceId", "dstDeviceId"))
    devices_differ = (source >= 0) & (target >= 0) & (source != target)
    is_between = devices_differ & np.isin(kind, _BY_DEVICES)
    kind = np.where(is_between, enums.BETWEEN_DEVICES, kind) if is_between.any() else kind
    # Migrations (kinds above BETWEEN_DEVICES) by a call or an eviction get kinds of their own.
    for cause, added in enums.CAUSES.items():
        is_caused = (kind > enums.BETWEEN_DEVICES) & (rows["migrationCause"] == cause)
        kind = np.where(is_caused, kind + added, kind)
    reading.odd["copy-kind"] += count_true(~np.isin(kind, [*enums.COPIES]))
    # Join the kinds of copy, source memory and target memory as the digits of one number, so that
    # each distinct name is made only once. The largest digit stands for all unknown kinds.
    joined, unknown = np.zeros(rows.count, np.int64), _KIND_NUMBERS - 1
    for digit in (kind, rows["srcKind"], rows["dstKind"]):
        joined = joined * _KIND_NUMBERS + np.where((digit < 0) | (digit > unknown), unknown, digit)
    names = table.names["name"]

    def name_code(joined_kinds: int, _: int) -> int:
        """Return the code of a copy's name, with the kinds of memory if both are known."""
        upper_digits, to_memory = divmod(joined_kinds, _KIND_NUMBERS)
        copy_kind, from_memory = divmod(upper_digits, _KIND_NUMBERS)
        name = enums.COPIES.get(copy_kind, ("", "Memcpy"))[1]
        if from_memory in enums.MEMORY and to_memory in enums.MEMORY:
            name = f"{name} ({enums.MEMORY[from_memory]} -> {enums.MEMORY[to_memory]})"
        return names[name]

    return {
        "name": by_distinct(joined, name_code),
        "bytes": at_least(0, rows["bytes"]),
        "direction": _coded(table.names["direction"], kind, _DIRECTIONS, None),
    }


def _columns(kind: str, reading: ReportReading, table: TableBuilder, rows: Batch) -> Columns:
    """Return the columns that only records of the report's table `kind` have in `table`."""
    names = table.names
    if kind == "KERNEL":
        return _kernels(rows)
    if kind == "MEMCPY":
        return _copies(reading, table, rows)
    if kind == "MEMSET":
        name = _coded(names["name"], rows["memKind"], _FILLS, "Memset")
        return {"name": name, "bytes": at_least(0, rows["bytes"])}
    if kind == "GRAPH_TRACE":  # replays whose kernels were not recorded one by one
        graph = enums.present(rows["graphId"])
        graph = np.where(graph == ABSENT, enums.present(rows["graphExecId"]), graph)
        labels = {number: f"graph {number}" for number in distinct(graph).tolist()}
        return {"name": _coded(names["name"], graph, labels | {ABSENT: "graph"}, None)}
    if kind == "RUNTIME":
        reading.calling.append(distinct(rows["globalTid"]))
        api = _coded(names["api"], rows["eventClass"], {enums.DRIVER: "driver"}, "runtime")
        return {"name": rows["nameId"], "api": api, "error_code": rows["returnValue"]}
    if kind == "SYNCHRONIZATION":
        kinds = rows["syncType"]
        return {n: _coded(names[n], kinds, enums.WAITS, enums.WAIT) for n in ("name", "sync_kind")}
    return {"name": names["name"]["CUDA event"]}  # CUDA_EVENT is the only other kind


class _RecordKind(NamedTuple):
    """How to read a table of a report: the columns to read, the trace's table, their `kind` there.

    If `unnamed` is given, names are ids of texts; `ReportReading.add` explains it.
    """

    table: str
    trace_table: str
    kind: str
    columns: tuple[str, ...]
    unnamed: str | None = None


_OF_KERNELS: Final = (
    *(*_SPAN, *_PLACE, "graphNodeId", "graphId", "registersPerThread"),
    *(*_NAMES, *_SIZES, *_SHARED),
)
_OF_COPIES: Final = (
    *(*_SPAN, *_PLACE, "graphNodeId", "bytes", "copyKind", "srcKind", "dstKind"),
    *("srcDeviceId", "dstDeviceId", "migrationCause"),
)
_OF_FILLS: Final = (*_SPAN, *_PLACE, "graphNodeId", "bytes", "memKind")
_OF_CALLS: Final = (*_SPAN, "eventClass", "globalTid", "correlationId", "nameId", "returnValue")
_OF_NODES: Final = (*_SPAN, "globalTid", "graphNodeId", "originalGraphNodeId")
_RECORD_KINDS: Final = (
    _RecordKind("KERNEL", "activities", "kernel", _OF_KERNELS, UNNAMED_KERNEL),
    _RecordKind("MEMCPY", "activities", "memcpy", _OF_COPIES),
    _RecordKind("MEMSET", "activities", "memset", _OF_FILLS),
    _RecordKind("GRAPH_TRACE", "activities", "graph", (*_SPAN, *_PLACE, "graphId", "graphExecId")),
    _RecordKind("RUNTIME", "calls", "", _OF_CALLS, _UNNAMED),
    _RecordKind("SYNCHRONIZATION", "marks", "sync", (*_SPAN, *_PLACE, "syncType")),
    _RecordKind("CUDA_EVENT", "marks", "event", ("timestamp", *_PLACE)),
)


def read_records(reading: ReportReading) -> None:
    """Add device work, calls, waits, and those CUDA events that have a time."""
    for record in _RECORD_KINDS:
        table = reading.builder[record.trace_table]
        for batch in reading.batches(CUPTI + record.table, record.columns):
            timed_batch = batch
            if "timestamp" in record.columns:  # CUDA events; most have no time
                events = batch.only(batch["timestamp"] > 0)
                timed_batch = events.with_numbers(dict.fromkeys(_SPAN, events["timestamp"]))
            rows = reading.timed(timed_batch)
            if record.trace_table == "activities":
                reading.odd["device-unknown"] += count_true(rows["deviceId"] < 0)
            if rows.count and record.trace_table != "marks":  # work and calls end open ranges
                latest_ns = int((rows["start_ns"] + rows["dur_ns"]).max())
                reading.latest_ns = max(reading.latest_ns, latest_ns)
            columns = _columns(record.table, reading, table, rows)
            if record.kind:
                columns["kind"] = table.names["kind"][record.kind]
            shown = _call_name if record.table == "RUNTIME" else None
            reading.add(record.trace_table, rows, record.unnamed, shown, **columns)


def read_overheads(reading: ReportReading) -> None:
    """Add marks for overheads of the profiler and the driver, in processes that have rows."""
    kind = reading.builder["marks"].names["kind"]
    for table in ("PROFILER_OVERHEAD", f"{CUPTI}OVERHEAD"):
        for batch in reading.batches(table, (*_SPAN, "globalTid", "nameId", "overheadType")):
            has_rows = reading.registry.have_rows(enums.processes_of(batch["globalTid"]))
            rows = reading.timed(batch.only(has_rows))
            is_profiler = np.isin(rows["overheadType"], enums.OF_THE_PROFILER)
            if not table.startswith(CUPTI):
                # As the table's name says, rows without a type are overhead of the profiler.
                is_profiler |= rows["overheadType"] == ABSENT
            for chosen, shown in ((~is_profiler, str), (is_profiler, _OF_PROFILER)):
                overheads = rows.only(chosen)
                columns: Columns = {"name": overheads["nameId"], "kind": kind["overhead"]}
                reading.add("marks", overheads, shown(_UNNAMED), shown, **columns)


def read_page_faults(reading: ReportReading) -> None:
    """Add marks for GPU page faults in unified memory; they last until the fault is served."""
    names = reading.builder["marks"].names
    kinds = {"kind": names["kind"]["page_fault"], "name": names["name"]["GPU page faults"]}
    for batch in reading.batches(PAGE_FAULTS, (*_SPAN, "globalPid", "deviceId")):
        rows = reading.timed(batch)
        unknown = np.full(rows.count, ABSENT)
        rows = rows.with_numbers({"contextId": unknown, "streamId": unknown})
        reading.add("marks", rows, **kinds)


def read_graph_nodes(reading: ReportReading) -> None:
    """Add a mark for the creation of each CUDA graph node, with the node as correlation.

    A node that was copied from another one gets the time and thread of the original's creation.
    """
    table, names = "CUDA_GRAPH_NODE_EVENTS", reading.builder["marks"].names
    events = reading.tables.whole(table, Wanted(integers=_OF_NODES))
    reading.counts[table] += events.count
    has_rows = reading.registry.have_rows(enums.processes_of(events["globalTid"]))
    rows = reading.timed(events.only(has_rows))
    process, node = enums.processes_of(rows["globalTid"]), enums.present(rows["graphNodeId"])
    original = enums.present(rows["originalGraphNodeId"])
    original_row = first_match(process, node, rows["start_ns"], process, original)
    source = np.where(original_row >= 0, original_row, np.arange(rows.count))
    for _ in range(5):  # copies of copies: each step doubles the chain that is followed, up to 32
        source = source[source]
    created = {name: rows[name][source] for name in ("globalTid", "start_ns")}
    columns = {**created, "correlationId": node, "dur_ns": np.zeros_like(node)}
    kinds = {"kind": names["kind"]["graph_node"], "name": names["name"]["graph node"]}
    reading.add("marks", Batch(rows.count, columns, {}), **kinds)


def read_system_calls(reading: ReportReading) -> None:
    """Add marks for operating system calls, and for OpenACC's, of the threads that call CUDA."""
    callers = reading.callers()
    kind = reading.builder["marks"].names["kind"]["system"]
    columns = (*_SPAN, "globalTid", "nameId")
    for batch in chain.from_iterable(reading.batches(table, columns) for table in _SYSTEM):
        rows = reading.timed(batch.only(np.isin(batch["globalTid"], callers)))
        reading.add("marks", rows, _UNNAMED, name=rows["nameId"], kind=kind)


def read_memory(reading: ReportReading) -> None:
    """Add allocations and frees as counters of changes in bytes, named like PyTorch's events."""
    counters = reading.builder["counters"]
    names = counters.names["name"]
    for batch in reading.tables.batches("CUDA_GPU_MEMORY_USAGE_EVENTS", _ALLOCATION):
        reading.counts["MEMORY_USAGE"] += batch.count
        is_known = np.isin(batch["memoryOperationType"], (enums.ALLOCATED, enums.FREED))
        rows = batch.only(is_known & (batch["bytes"] >= 0) & (batch["start"] != ABSENT))
        process = reading.registry.processes(enums.processes_of(rows["globalPid"]))
        device = reading.registry.of_devices(rows["deviceId"], process)
        is_host = np.isin(rows["memKind"], (0, 1))  # pageable, pinned
        host, gpu = names["host_memory.change_bytes"], names["device_memory.change_bytes"]
        is_allocation = rows["memoryOperationType"] == enums.ALLOCATED
        change_bytes = np.where(is_allocation, rows["bytes"], -rows["bytes"])
        counters.add(
            rows.count,
            process=process,
            device=np.where(is_host, ABSENT, device),
            name=np.where(is_host, host, gpu),
            time_ns=rows["start"],
            value=change_bytes.astype(np.float64),
            address=rows["address"],
        )


def read_metrics(reading: ReportReading) -> None:
    """Add samples of GPU metrics, which are of the whole machine, not of a process.

    A sample names its metric by `typeId` (the source, a GPU) and `metricId` (the number there).
    """
    tables, registry, counters = reading.tables, reading.registry, reading.builder["counters"]
    metrics = tables.whole("TARGET_INFO_GPU_METRICS", _METRIC_NAME)
    if not metrics.count or not registry.keys:  # a counter needs a process
        return
    type_ids = metrics["typeId"].tolist()
    keys = zip(type_ids, metrics["metricId"].tolist(), strict=True)
    labels = dict(zip(keys, metrics.texts["metricName"], strict=True))
    # The GPU of each source, from the source's name or else the low byte of its id.
    gpu_of: dict[int, int] = {}
    sources = dict(zip(type_ids, metrics.texts["typeName"], strict=True))
    for source, text in list(sources.items())[:_MOST_KINDS]:
        match = _GPU_IN_NAME.search(text or "")
        gpu_of[source] = int(match[1]) if match else source & 0xFF
    is_one_gpu = len(set(gpu_of.values())) <= 1
    no_device = next(iter(registry.keys.values())), ABSENT  # any process, as one is needed

    def name_code(source: int, device: int, metric: int, _: int) -> int:
        """Return the code of a metric's name; the name tells the GPU if `device` does not."""
        label = labels.get((source, metric)) or f"metric {metric}"
        if not is_one_gpu and source != ABSENT and device == ABSENT:
            label = f"{label} (GPU {gpu_of[source]})"
        return counters.names["name"][label]

    for batch in tables.batches("GPU_METRICS", _METRIC):
        reading.counts["GPU_METRICS"] += batch.count
        rows = batch.only((batch["timestamp"] != ABSENT) & ~np.isnan(batch["value"]))
        room = max(0, _MOST_VALUES - counters.count)  # how many values still fit
        reading.odd["metrics-left-out"] += max(0, rows.count - room)
        rows = rows.only(np.arange(rows.count) < room)
        row_source = np.where(np.isin(rows["typeId"], list(gpu_of)), rows["typeId"], ABSENT)
        for source in distinct(row_source).tolist():
            samples = rows.only(row_source == source)
            user = registry.device_of_gpu(gpu_of[source]) if source in gpu_of else None
            process, device = user or no_device
            counters.add(
                samples.count,
                process=process,
                device=device,
                name=by_distinct(samples["metricId"], partial(name_code, source, device)),
                time_ns=samples["timestamp"],
                value=samples["value"],
            )


def with_kinds_of_calls(tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """Return the tables with the kind of each wait corrected by the call of its correlation.

    Exports of 2023 and 2024 write 1 for waits for a whole device and 2 for waits for an event or a
    stream, although their table of these codes says otherwise. If most calls contradict a code,
    waits with that code and without a call get an unknown kind.
    """
    marks, calls = tables["marks"], tables["calls"]
    wait_rows = np.flatnonzero(is_one_of(marks["kind"], "sync"))
    matches = [_WAITING_CALL.fullmatch(name) for name in names(calls["name"])]
    if not len(wait_rows) or not any(matches):
        return dict(tables)
    # The kind of each wait by its call and by its code: an index in `labels`, -1 if unknown.
    labels = [*enums.WAITS.values(), enums.WAIT]
    call = first_of_same(calls, "correlation", marks, wait_rows)
    kinds_of_names = [labels.index(_WAIT_OF[match[1]]) if match else -1 for match in matches]
    by_call = taken(np.array(kinds_of_names, np.int64), taken(codes(calls["name"]), call))
    kinds_of_codes = [labels.index(name) for name in names(marks["sync_kind"])]
    by_code = np.array(kinds_of_codes, np.int64)[codes(marks["sync_kind"])[wait_rows]]
    for kind in range(len(enums.WAITS)):
        has_code, has_call = by_code == kind, by_call >= 0
        contradicted = has_code & has_call & (by_call != kind)
        if 2 * count_true(contradicted) > count_true(has_code & has_call):
            by_code[has_code & ~has_call] = labels.index(enums.WAIT)
    kinds = np.where(by_call >= 0, by_call, by_code)
    for column in ("name", "sync_kind"):
        code, texts = codes(marks[column]).astype(np.int64), names(marks[column])
        code[wait_rows] = len(texts) + kinds
        marks = with_column(marks, column, merged_column(code, [*texts, *labels]))
    return {**tables, "marks": marks}
