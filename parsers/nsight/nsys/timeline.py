"""Records of devices and the host: work, calls, waits, overheads; and values over time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from traceflops.parsers.io.database_query import Batch, Wanted, by_distinct
from traceflops.parsers.nsight.nsys import enums
from traceflops.parsers.nsight.nsys.reading import (
    CUPTI,
    GPU_PAGE_FAULTS,
    Columns,
    ReportReading,
    Shown,
)
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
"""Returns the name of an overhead that the program would not have without the profiler."""
_API_VERSION: Final = re.compile(r"_v\d{4,6}$")
_KIND_NUMBERS: Final = 64
"""Kinds of copies and of memory are smaller; larger ones are unknown."""
_BY_DEVICES: Final = (1, 2, 8, enums.BETWEEN_DEVICES)
"""Kinds of copies that are between devices if their ends are known and differ."""
_DIRECTIONS: Final = {kind: direction for kind, (direction, _) in enums.COPIES.items()}
_FILLS: Final = {kind: f"Memset ({name})" for kind, name in enums.MEMORY.items()}
_SPAN: Final = ("start", "end")
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


def call_name(text: str) -> str:
    """Return a call's name without its API version; that of a driver call (`_v2`) is part of it."""
    return _API_VERSION.sub("", text)


def _coded(
    names: Names, values: IntArray, labels: Mapping[int, str], otherwise: str | None
) -> IntArray:
    """Return the codes of the labels of values; `otherwise` is the label of others, None: -1."""

    def code(value: int, _: int) -> int:
        text = labels.get(value, otherwise)
        return -1 if text is None else names[text]

    return by_distinct(values, code)


def _kernels(rows: Batch) -> Columns:
    """Return the columns of kernels: ids of names, launch sizes, registers, shared memory."""
    static, dynamic = (at_least(0, rows[column]) for column in _SHARED)
    has_both = (static != ABSENT) & (dynamic != ABSENT)
    # The demangled name, else the short one, else the mangled one.
    ids = rows[_NAMES[0]]
    for other in _NAMES[1:]:
        unknown = ids == ABSENT
        if not unknown.any():
            break
        ids = np.where(unknown, rows[other], ids)
    sizes = {}
    for what in ("grid", "block"):  # shape (rows, 3), unknown where one of the three is
        axes = np.stack([rows[f"{what}{axis}"] for axis in "XYZ"], axis=1)
        is_size = (axes > 0).all(axis=1, keepdims=True)
        sizes[what] = axes if is_size.all() else np.where(is_size, axes, ABSENT)
    return {
        "name": ids,
        **sizes,
        "registers_per_thread": at_least(0, rows["registersPerThread"]),
        "shared_memory_bytes": at_least(0, np.where(has_both, static + dynamic, ABSENT)),
    }


def _copies(reading: ReportReading, table: TableBuilder, rows: Batch) -> Columns:
    """Return the columns name, bytes and direction of copies."""
    kind, source, target = (rows[name] for name in ("copyKind", "srcDeviceId", "dstDeviceId"))
    are_two = (source >= 0) & (target >= 0) & (source != target) & np.isin(kind, _BY_DEVICES)
    kind = np.where(are_two, enums.BETWEEN_DEVICES, kind) if are_two.any() else kind
    # Migrations (the kinds above that one) by a call or an eviction get kinds of their own.
    for cause, more in enums.CAUSES.items():
        caused = (kind > enums.BETWEEN_DEVICES) & (rows["migrationCause"] == cause)
        kind = np.where(caused, kind + more, kind)
    reading.odd["copy-kind"] += count_true(~np.isin(kind, [*enums.COPIES]))
    # Join the kinds of copy, source and target into one number, to make each name only once.
    joined, largest = np.zeros(rows.count, np.int64), _KIND_NUMBERS - 1
    for part in (kind, rows["srcKind"], rows["dstKind"]):
        joined = joined * _KIND_NUMBERS + np.where((part < 0) | (part > largest), largest, part)
    names = table.names["name"]

    def named(kinds: int, _: int) -> int:
        """Return the code of the name of a copy, with the kinds of memory if both are known."""
        rest, target = divmod(kinds, _KIND_NUMBERS)
        kind, source = divmod(rest, _KIND_NUMBERS)
        name = enums.COPIES.get(kind, ("", "Memcpy"))[1]
        if source in enums.MEMORY and target in enums.MEMORY:
            name = f"{name} ({enums.MEMORY[source]} -> {enums.MEMORY[target]})"
        return names[name]

    return {
        "name": by_distinct(joined, named),
        "bytes": at_least(0, rows["bytes"]),
        "direction": _coded(table.names["direction"], kind, _DIRECTIONS, None),
    }


def _columns(kind: str, reading: ReportReading, table: TableBuilder, rows: Batch) -> Columns:
    """Return the columns of records; `kind` is the name of their table in a report."""
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
        return {"name": rows["nameId"], "api": api}
    if kind == "SYNCHRONIZATION":
        kinds = rows["syncType"]
        return {n: _coded(names[n], kinds, enums.WAITS, enums.WAIT) for n in ("name", "sync_kind")}
    return {"name": names["name"]["CUDA event"]}  # of the kind CUDA_EVENT


class _RecordKind(NamedTuple):
    """Records of one table of a report: the table of a trace, their kind there, columns to read.

    If `unnamed` is given, names are ids of texts (see `ReportReading.add`).
    """

    table: str
    into: str
    kind: str
    columns: tuple[str, ...]
    unnamed: str | None = None
    shown: Shown | None = None


_OF_KERNELS: Final = (
    *(*_SPAN, *_PLACE, "graphNodeId", "graphId", "registersPerThread"),
    *(*_NAMES, *_SIZES, *_SHARED),
)
_OF_COPIES: Final = (
    *(*_SPAN, *_PLACE, "graphNodeId", "bytes", "copyKind", "srcKind", "dstKind"),
    *("srcDeviceId", "dstDeviceId", "migrationCause"),
)
_OF_FILLS: Final = (*_SPAN, *_PLACE, "graphNodeId", "bytes", "memKind")
_OF_CALLS: Final = (*_SPAN, "eventClass", "globalTid", "correlationId", "nameId")
_OF_NODES: Final = (*_SPAN, "globalTid", "graphNodeId", "originalGraphNodeId")
_RECORD_KINDS: Final = (
    _RecordKind("KERNEL", "activities", "kernel", _OF_KERNELS, UNNAMED_KERNEL),
    _RecordKind("MEMCPY", "activities", "memcpy", _OF_COPIES),
    _RecordKind("MEMSET", "activities", "memset", _OF_FILLS),
    _RecordKind("GRAPH_TRACE", "activities", "graph", (*_SPAN, *_PLACE, "graphId", "graphExecId")),
    _RecordKind("RUNTIME", "calls", "", _OF_CALLS, _UNNAMED, call_name),
    _RecordKind("SYNCHRONIZATION", "marks", "sync", (*_SPAN, *_PLACE, "syncType")),
    _RecordKind("CUDA_EVENT", "marks", "event", ("timestamp", *_PLACE)),
)


def read_records(reading: ReportReading) -> None:
    """Add device work, calls, waits, and those CUDA events that have a time."""
    for kind in _RECORD_KINDS:
        table = reading.builder[kind.into]
        for batch in reading.batches(CUPTI + kind.table, kind.columns):
            if "timestamp" in kind.columns:  # of events; most have no time
                events = batch.only(batch["timestamp"] > 0)
                span = dict.fromkeys(_SPAN, events["timestamp"])
                batch = events.with_numbers(span)
            rows = reading.timed(batch)
            if kind.into == "activities":
                reading.odd["device-unknown"] += count_true(rows["deviceId"] < 0)
            if rows.count and kind.into != "marks":  # open ranges end with the last work or call
                latest_ns = int((rows["start_ns"] + rows["dur_ns"]).max())
                reading.latest_ns = max(reading.latest_ns, latest_ns)
            columns = _columns(kind.table, reading, table, rows)
            if kind.kind:
                columns["kind"] = table.names["kind"][kind.kind]
            reading.add(kind.into, rows, kind.unnamed, kind.shown, **columns)


def read_overheads(reading: ReportReading) -> None:
    """Add overheads of the profiler and the driver, of processes that have rows."""
    kind = reading.builder["marks"].names["kind"]
    for table in ("PROFILER_OVERHEAD", f"{CUPTI}OVERHEAD"):
        for batch in reading.batches(table, (*_SPAN, "globalTid", "nameId", "overheadType")):
            has_work = reading.registry.have_rows(enums.processes_of(batch["globalTid"]))
            rows = reading.timed(batch.only(has_work))
            profiler = np.isin(rows["overheadType"], enums.OF_THE_PROFILER)
            if not table.startswith(CUPTI):
                # Rows without a type of their own are of the profiler, as the table's name says.
                profiler |= rows["overheadType"] == ABSENT
            for some, shown in ((rows.only(~profiler), str), (rows.only(profiler), _OF_PROFILER)):
                columns: Columns = {"name": some["nameId"], "kind": kind["overhead"]}
                reading.add("marks", some, shown(_UNNAMED), shown, **columns)


def read_page_faults(reading: ReportReading) -> None:
    """Add page faults of GPUs in unified memory, with the time that it took to serve them."""
    names = reading.builder["marks"].names
    kinds = {"kind": names["kind"]["page_fault"], "name": names["name"]["GPU page faults"]}
    for batch in reading.batches(GPU_PAGE_FAULTS, (*_SPAN, "globalPid", "deviceId")):
        rows = reading.timed(batch)
        unknown = np.full(rows.count, ABSENT)
        rows = rows.with_numbers({"contextId": unknown, "streamId": unknown})
        reading.add("marks", rows, **kinds)


def read_graph_nodes(reading: ReportReading) -> None:
    """Add marks of graph nodes' creation; a copy has the time and thread of its original."""
    table, names = "CUDA_GRAPH_NODE_EVENTS", reading.builder["marks"].names
    rows = reading.tables.whole(table, Wanted(integers=_OF_NODES))
    reading.counts[table] += rows.count
    rows = reading.timed(
        rows.only(reading.registry.have_rows(enums.processes_of(rows["globalTid"])))
    )
    process, node = enums.processes_of(rows["globalTid"]), enums.present(rows["graphNodeId"])
    original = enums.present(rows["originalGraphNodeId"])
    source = first_match(process, node, rows["start_ns"], process, original)  # row of the original
    source = np.where(source >= 0, source, np.arange(rows.count))
    for _ in range(5):  # copies of copies: each step follows twice as many
        source = source[source]
    made = {name: rows[name][source] for name in ("globalTid", "start_ns")}
    columns = {**made, "correlationId": node, "dur_ns": np.zeros_like(node)}
    kinds = {"kind": names["kind"]["graph_node"], "name": names["name"]["graph node"]}
    reading.add("marks", Batch(rows.count, columns, {}), **kinds)


def read_system_calls(reading: ReportReading) -> None:
    """Add operating system calls of the threads that call CUDA."""
    callers = reading.callers()
    kind = reading.builder["marks"].names["kind"]["system"]
    for batch in reading.batches("OSRT_API", (*_SPAN, "globalTid", "nameId")):
        rows = reading.timed(batch.only(np.isin(batch["globalTid"], callers)))
        reading.add("marks", rows, _UNNAMED, name=rows["nameId"], kind=kind)


def read_memory(reading: ReportReading) -> None:
    """Add allocations and frees as changes of memory, named like PyTorch's memory events."""
    counters = reading.builder["counters"]
    names = counters.names["name"]
    for batch in reading.tables.batches("CUDA_GPU_MEMORY_USAGE_EVENTS", _ALLOCATION):
        reading.counts["MEMORY_USAGE"] += batch.count
        operation = batch["memoryOperationType"]
        usable = np.isin(operation, (enums.ALLOCATED, enums.FREED)) & (batch["bytes"] >= 0)
        usable &= batch["start"] != ABSENT
        rows = batch.only(usable)
        process = reading.registry.processes(enums.processes_of(rows["globalPid"]))
        on_host = np.isin(rows["memKind"], (0, 1))
        change = np.where(
            rows["memoryOperationType"] == enums.ALLOCATED, rows["bytes"], -rows["bytes"]
        )
        host, device = names["host_memory.change_bytes"], names["device_memory.change_bytes"]
        of_devices = reading.registry.of_devices(rows["deviceId"], process)
        counters.add(
            rows.count,
            process=process,
            device=np.where(on_host, ABSENT, of_devices),
            name=np.where(on_host, host, device),
            time_ns=rows["start"],
            value=change.astype(np.float64),
            address=rows["address"],
        )


def read_metrics(reading: ReportReading) -> None:
    """Add samples of GPU metrics, which are of the whole machine, not of a process.

    A sample names its metric by `typeId` (the source, a GPU) and `metricId` (the number there).
    """
    tables, registry, counters = reading.tables, reading.registry, reading.builder["counters"]
    metrics = tables.whole("TARGET_INFO_GPU_METRICS", _METRIC_NAME)
    if not metrics.count or not registry.keys:  # without any process there is none to give
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
    one_gpu = len(set(gpu_of.values())) <= 1
    no_device = next(iter(registry.keys.values())), ABSENT  # a process must be given

    def name(source: int, device: int, metric: int, _: int) -> int:
        """Return the code of a metric's name, with the GPU's number if the GPU is no device."""
        label = labels.get((source, metric)) or f"metric {metric}"
        if not one_gpu and source != ABSENT and device == ABSENT:
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
            place = registry.device_of_gpu(gpu_of[source]) if source in gpu_of else None
            process, device = place or no_device
            counters.add(
                samples.count,
                process=process,
                device=device,
                name=by_distinct(samples["metricId"], partial(name, source, device)),
                time_ns=samples["timestamp"],
                value=samples["value"],
            )


def with_kinds_of_calls(tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """Return tables in which waits have the kind of the call with their correlation.

    Exports of 2023 and 2024 write 1 for waits for a whole device and 2 for waits for an event or a
    stream, although their table of these codes says otherwise. If most calls contradict a code,
    waits with that code and without a call get an unknown kind.
    """
    marks, calls = tables["marks"], tables["calls"]
    row = np.flatnonzero(is_one_of(marks["kind"], "sync"))
    matches = [_WAITING_CALL.fullmatch(name) for name in names(calls["name"])]
    if not len(row) or not any(matches):
        return dict(tables)
    call = first_of_same(calls, "correlation", marks, row)
    # Kinds are indices in `labels`, -1 for none.
    labels = [*enums.WAITS.values(), enums.WAIT]
    by_name = np.array([labels.index(_WAIT_OF[m[1]]) if m else -1 for m in matches], np.int64)
    by_call = taken(by_name, taken(codes(calls["name"]), call))
    by_code = np.array([labels.index(name) for name in names(marks["sync_kind"])], np.int64)
    by_code = by_code[codes(marks["sync_kind"])[row]]
    for kind in range(len(enums.WAITS)):
        has_both = (by_code == kind) & (by_call >= 0)
        if 2 * np.count_nonzero(by_call[has_both] != kind) > np.count_nonzero(has_both):
            by_code[(by_code == kind) & (by_call < 0)] = labels.index(enums.WAIT)
    kinds = np.where(by_call >= 0, by_call, by_code)
    for column in ("name", "sync_kind"):
        code, texts = codes(marks[column]).astype(np.int64), names(marks[column])
        code[row] = len(texts) + kinds
        marks = with_column(marks, column, merged_column(code, [*texts, *labels]))
    return {**tables, "marks": marks}
