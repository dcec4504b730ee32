"""What devices and the host did: work, calls, waits, overheads; and values over time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from traceflops.parsers.io import Batch, Wanted, by_distinct
from traceflops.parsers.nsight.nsys.enums import (
    ALLOCATED,
    BETWEEN_DEVICES,
    COPIES,
    DRIVER,
    FREED,
    MEMORY,
    OF_THE_PROFILER,
    WAIT,
    WAITS,
    asked_for,
    present,
    processes_of,
)
from traceflops.parsers.nsight.nsys.reading import CUPTI, Columns, ReportReading, Shown
from traceflops.parsers.shared import at_least
from traceflops.table import ABSENT, IntArray, Names, TableBuilder, distinct, first_match

UNNAMED_KERNEL: Final = "(unnamed kernel)"
_UNNAMED: Final = "(unnamed)"
_OF_PROFILER: Final = "profiler: {}".format
"""The name of an overhead that a program without a profiler would not have."""
_API_VERSION: Final = re.compile(r"_v\d{4,6}$")
_KIND_NUMBERS: Final = 32
"""Kinds of copies and of memory are smaller than that; larger ones are not known."""

_WAYS: Final = {kind: way for kind, (way, _) in COPIES.items()}
_BY_DEVICES: Final = (1, 2, 8, BETWEEN_DEVICES)
"""Kinds of copies of which the devices of both ends tell more, where they are known."""
_FILLS: Final = {kind: f"Memset ({name})" for kind, name in MEMORY.items()}
_SPAN: Final = ("start", "end")
_PLACE: Final = ("deviceId", "contextId", "streamId", "correlationId", "globalPid")
_NAMES: Final = ("demangledName", "shortName", "mangledName")
_GRID, _BLOCK = (tuple(f"{what}{axis}" for axis in "XYZ") for what in ("grid", "block"))
_SHARED: Final = ("staticSharedMemory", "dynamicSharedMemory")
_ALLOCATION: Final = Wanted(
    integers=(
        *("start", "globalPid", "deviceId", "address"),
        *("bytes", "memKind", "memoryOperationType"),
    )
)
_METRIC: Final = Wanted(integers=("timestamp", "typeId", "metricId"), reals=("value",))
_METRIC_NAME: Final = Wanted(integers=("typeId", "metricId"), texts=("metricName", "typeName"))
_IN_NAME: Final = re.compile(r"\[(\d{1,4})\]$")
_ON_HOST: Final = (0, 1)
_MOST_KINDS: Final = 256
_MOST_VALUES: Final = 4_000_000


def call_name(text: str) -> str:
    """Return the name of a call without the version of its API: `cudaLaunchKernel_v7000`.

    The driver's own versions stay, since they are other functions: `cuMemAlloc_v2`.
    """
    return _API_VERSION.sub("", text)


def _coded(
    names: Names, values: IntArray, labels: Mapping[int, str], otherwise: str | None
) -> IntArray:
    """Return the codes of what values are called, -1 for those that have no name."""

    def code(value: int, _: int) -> int:
        text = labels.get(value, otherwise)
        return -1 if text is None else names[text]

    return by_distinct(values, code)


def _kernels(_: ReportReading, __: TableBuilder, rows: Batch) -> Columns:
    fixed, asked = (at_least(0, rows[column]) for column in _SHARED)
    has_both = (fixed != ABSENT) & (asked != ABSENT)
    return {
        "name": _name_ids(rows),
        "grid": _axes(rows, _GRID),
        "block": _axes(rows, _BLOCK),
        "registers_per_thread": at_least(0, rows["registersPerThread"]),
        "shared_memory_bytes": at_least(0, np.where(has_both, fixed + asked, ABSENT)),
    }


def _name_ids(rows: Batch) -> IntArray:
    """Return the ids of kernels' names: with their arguments, else short, else mangled."""
    ids = rows[_NAMES[0]]
    for other in _NAMES[1:]:
        unknown = ids == ABSENT
        if not unknown.any():
            break
        ids = np.where(unknown, rows[other], ids)
    return ids


def _axes(rows: Batch, columns: tuple[str, ...]) -> IntArray:
    axes = np.stack([rows[column] for column in columns], axis=1)
    known = (axes > 0).all(axis=1, keepdims=True)
    return axes if known.all() else np.where(known, axes, ABSENT)


def _copies(reading: ReportReading, table: TableBuilder, rows: Batch) -> Columns:
    kind = asked_for(_kinds_of_copies(rows), rows["migrationCause"])
    reading.odd["copy-kind"] += int(np.count_nonzero(~np.isin(kind, [*COPIES])))
    kinds, names = _joined(kind, rows["srcKind"], rows["dstKind"]), table.names["name"]
    return {
        "name": by_distinct(kinds, lambda one, _: names[_copy_name(one)]),
        "bytes": at_least(0, rows["bytes"]),
        "direction": _coded(table.names["direction"], kind, _WAYS, None),
    }


def _kinds_of_copies(rows: Batch) -> IntArray:
    """Return the kinds of copies; one between two devices is of that kind, whatever its own."""
    kind, source, target = (rows[name] for name in ("copyKind", "srcDeviceId", "dstDeviceId"))
    are_two = (source >= 0) & (target >= 0) & (source != target) & np.isin(kind, _BY_DEVICES)
    return np.where(are_two, BETWEEN_DEVICES, kind) if are_two.any() else kind


def _joined(*kinds: IntArray) -> IntArray:
    """Return one number for several small ones; one that is not small counts as the largest."""
    joined, largest = np.zeros(len(kinds[0]), np.int64), _KIND_NUMBERS - 1
    for kind in kinds:
        joined = joined * _KIND_NUMBERS + np.where((kind < 0) | (kind > largest), largest, kind)
    return joined


def _copy_name(kinds: int) -> str:
    rest, target = divmod(kinds, _KIND_NUMBERS)
    kind, source = divmod(rest, _KIND_NUMBERS)
    name = COPIES.get(kind, ("", "Memcpy"))[1]
    ends = source in MEMORY and target in MEMORY
    return f"{name} ({MEMORY[source]} -> {MEMORY[target]})" if ends else name


def _fills(_: ReportReading, table: TableBuilder, rows: Batch) -> Columns:
    name = _coded(table.names["name"], rows["memKind"], _FILLS, "Memset")
    return {"name": name, "bytes": at_least(0, rows["bytes"])}


def _graphs(_: ReportReading, table: TableBuilder, rows: Batch) -> Columns:
    """Return replays of graphs whose kernels were not recorded one by one."""
    graph, names = present(rows["graphId"]), table.names["name"]
    graph = np.where(graph == ABSENT, present(rows["graphExecId"]), graph)
    labels = {one: f"graph {one}" for one in distinct(graph).tolist() if one != ABSENT}
    return {"name": _coded(names, graph, labels, "graph")}


def _calls(reading: ReportReading, table: TableBuilder, rows: Batch) -> Columns:
    reading.callers.append(distinct(rows["globalTid"]))
    api = _coded(table.names["api"], rows["eventClass"], {DRIVER: "driver"}, "runtime")
    return {"name": rows["nameId"], "api": api}


def _waits(_: ReportReading, table: TableBuilder, rows: Batch) -> Columns:
    kinds, names = rows["syncType"], table.names
    return {n: _coded(names[n], kinds, WAITS, WAIT) for n in ("name", "sync_kind")}


def _events(_: ReportReading, table: TableBuilder, __: Batch) -> Columns:
    return {"name": table.names["name"]["CUDA event"]}


@dataclass(frozen=True, slots=True)
class _Kind:
    """Records of one table: the table of a trace that takes them, their kind, what they have.

    Names are ids of texts where `unnamed` stands for those without one.
    """

    table: str
    into: str
    kind: str
    columns: tuple[str, ...]
    fill: Callable[[ReportReading, TableBuilder, Batch], Columns]
    unnamed: str | None = None
    shown: Shown | None = None


_OF_KERNELS: Final = (
    *(*_SPAN, *_PLACE, "graphNodeId", "graphId", "registersPerThread"),
    *(*_NAMES, *_GRID, *_BLOCK, *_SHARED),
)
_OF_COPIES: Final = (
    *(*_SPAN, *_PLACE, "graphNodeId", "bytes", "copyKind", "srcKind", "dstKind"),
    *("srcDeviceId", "dstDeviceId", "migrationCause"),
)
_OF_FILLS: Final = (*_SPAN, *_PLACE, "graphNodeId", "bytes", "memKind")
_OF_CALLS: Final = (*_SPAN, "eventClass", "globalTid", "correlationId", "nameId")
_OF_NODES: Final = (*_SPAN, "globalTid", "graphNodeId", "originalGraphNodeId")
_MOST_COPIES: Final = 5
"""A copy of a copy, and so on, is followed 2 to the power of that times."""
_OF_GRAPHS: Final = (*_SPAN, *_PLACE, "graphId", "graphExecId")
_KINDS: Final = (
    _Kind("KERNEL", "activities", "kernel", _OF_KERNELS, _kernels, UNNAMED_KERNEL),
    _Kind("MEMCPY", "activities", "memcpy", _OF_COPIES, _copies),
    _Kind("MEMSET", "activities", "memset", _OF_FILLS, _fills),
    _Kind("GRAPH_TRACE", "activities", "graph", _OF_GRAPHS, _graphs),
    _Kind("RUNTIME", "calls", "", _OF_CALLS, _calls, _UNNAMED, call_name),
    _Kind("SYNCHRONIZATION", "marks", "sync", (*_SPAN, *_PLACE, "syncType"), _waits),
    _Kind("CUDA_EVENT", "marks", "event", ("timestamp", *_PLACE), _events),
)


def read_records(reading: ReportReading) -> None:
    """Add all that devices did, the calls, the waits, and the events of which a time is known."""
    for kind in _KINDS:
        table = reading.gathered[kind.into]
        for batch in reading.batches(CUPTI + kind.table, kind.columns):
            rows = reading.timed(_moments(batch) if "timestamp" in kind.columns else batch)
            if kind.into == "activities":
                reading.odd["device-unknown"] += int(np.count_nonzero(rows["deviceId"] < 0))
            if rows.count and kind.into != "marks":
                latest_ns = int((rows["start_ns"] + rows["dur_ns"]).max())
                reading.latest_ns = max(reading.latest_ns, latest_ns)
            columns = kind.fill(reading, table, rows)
            if kind.kind:
                columns["kind"] = table.names["kind"][kind.kind]
            reading.add(kind.into, rows, kind.unnamed, kind.shown, **columns)


def _moments(batch: Batch) -> Batch:
    """Return the rows that have a time as such that begin and end then; most events have none."""
    rows = batch.only(batch["timestamp"] > 0)
    return Batch(rows.count, {**rows.numbers, **dict.fromkeys(_SPAN, rows["timestamp"])}, {})


def read_overheads(reading: ReportReading) -> None:
    """Add what the profiler and the driver did besides the program, of processes that have work."""
    kind = reading.gathered["marks"].names["kind"]
    for table in ("PROFILER_OVERHEAD", f"{CUPTI}OVERHEAD"):
        for batch in reading.batches(table, (*_SPAN, "globalTid", "nameId", "overheadType")):
            mine = reading.people.known(processes_of(batch["globalTid"]))
            rows = reading.timed(batch.only(mine))
            profiler = np.isin(rows["overheadType"], OF_THE_PROFILER)
            if not table.startswith(CUPTI):
                # The table says whose its rows are where they have no type of their own.
                profiler |= rows["overheadType"] == ABSENT
            for some, shown in ((rows.only(~profiler), str), (rows.only(profiler), _OF_PROFILER)):
                columns: Columns = {"name": some["nameId"], "kind": kind["overhead"]}
                reading.add("marks", some, shown(_UNNAMED), shown, **columns)


def read_graph_nodes(reading: ReportReading) -> None:
    """Add when and on which thread nodes of graphs were made; for a copy, its original."""
    table, names = "CUDA_GRAPH_NODE_EVENTS", reading.gathered["marks"].names
    rows = reading.tables.whole(table, Wanted(integers=_OF_NODES))
    reading.counts[table] += rows.count
    rows = reading.timed(rows.only(reading.people.known(processes_of(rows["globalTid"]))))
    process, node = processes_of(rows["globalTid"]), present(rows["graphNodeId"])
    original = present(rows["originalGraphNodeId"])
    source = first_match(process, node, rows["start_ns"], process, original)
    source = np.where(source >= 0, source, np.arange(rows.count))
    for _ in range(_MOST_COPIES):
        source = source[source]
    made = {name: rows[name][source] for name in ("globalTid", "start_ns")}
    columns = {**made, "correlationId": node, "dur_ns": np.zeros_like(node)}
    kinds = {"kind": names["kind"]["graph_node"], "name": names["name"]["graph node"]}
    reading.add("marks", Batch(rows.count, columns, {}), **kinds)


def read_system_calls(reading: ReportReading) -> None:
    """Add the calls of the operating system of threads that call CUDA."""
    callers = distinct(np.concatenate([np.empty(0, np.int64), *reading.callers]))
    kind = reading.gathered["marks"].names["kind"]["system"]
    for batch in reading.batches("OSRT_API", (*_SPAN, "globalTid", "nameId")):
        rows = reading.timed(batch.only(np.isin(batch["globalTid"], callers)))
        reading.add("marks", rows, _UNNAMED, name=rows["nameId"], kind=kind)


def read_memory(reading: ReportReading) -> None:
    """Add allocations and frees of processes that have work, as PyTorch's memory events."""
    counters = reading.gathered["counters"]
    names = counters.names["name"]
    for batch in reading.tables.batches("CUDA_GPU_MEMORY_USAGE_EVENTS", _ALLOCATION):
        reading.counts["MEMORY_USAGE"] += batch.count
        operation = batch["memoryOperationType"]
        usable = np.isin(operation, (ALLOCATED, FREED)) & (batch["bytes"] >= 0)
        usable &= batch["start"] != ABSENT
        rows = batch.only(usable)
        process = reading.people.processes(processes_of(rows["globalPid"]))
        on_host = np.isin(rows["memKind"], _ON_HOST)
        change = np.where(rows["memoryOperationType"] == ALLOCATED, rows["bytes"], -rows["bytes"])
        host, device = names["host_memory.change_bytes"], names["device_memory.change_bytes"]
        counters.add(
            rows.count,
            process=process,
            device=np.where(on_host, ABSENT, reading.people.of_devices(rows["deviceId"], process)),
            name=np.where(on_host, host, device),
            time_ns=rows["start"],
            value=change.astype(np.float64),
            address=rows["address"],
        )


def read_metrics(reading: ReportReading) -> None:
    """Add samples of the GPUs' own counters; they are of the whole machine, not of a process."""
    tables, counters = reading.tables, reading.gathered["counters"]
    known = tables.whole("TARGET_INFO_GPU_METRICS", _METRIC_NAME)
    if not known.count or not reading.people.keys:
        return
    metrics = _Metrics(reading, known)
    for batch in tables.batches("GPU_METRICS", _METRIC):
        reading.counts["GPU_METRICS"] += batch.count
        rows = batch.only((batch["timestamp"] != ABSENT) & ~np.isnan(batch["value"]))
        room = max(0, _MOST_VALUES - counters.count)
        reading.odd["metrics-left-out"] += max(0, rows.count - room)
        rows = rows.only(np.arange(rows.count) < room)
        kinds = np.where(np.isin(rows["typeId"], list(metrics.gpus)), rows["typeId"], ABSENT)
        for kind in np.unique(kinds).tolist():
            mine = rows.only(kinds == kind)
            process, device = metrics.place(kind)
            counters.add(
                mine.count,
                process=process,
                device=device,
                name=by_distinct(mine["metricId"], partial(metrics.label, kind)),
                time_ns=mine["timestamp"],
                value=mine["value"],
            )


class _Metrics:
    """What samples of GPUs are called; `gpus` are the GPUs of the kinds of samples."""

    def __init__(self, reading: ReportReading, known: Batch) -> None:
        self._names = reading.gathered["counters"].names["name"]
        self._people = reading.people
        rows = zip(*(known[name].tolist() for name in ("typeId", "metricId")), strict=True)
        self._labels = dict(zip(rows, known.texts["metricName"], strict=True))
        kinds = dict(zip(known["typeId"].tolist(), known.texts["typeName"], strict=True))
        self.gpus = {kind: _gpu_of(kind, kinds[kind]) for kind in list(kinds)[:_MOST_KINDS]}

    def place(self, kind: int) -> tuple[int, int]:
        """Return the process and the device of a kind, ABSENT for a device without work."""
        place = self._people.device_of_gpu(self.gpus[kind]) if kind in self.gpus else None
        return place or (next(iter(self._people.keys.values())), ABSENT)

    def label(self, kind: int, metric: int, _: int) -> int:
        """Return the code of the name of a metric, with its GPU where that is no known device."""
        name = self._labels.get((kind, metric)) or f"metric {metric}"
        is_one = len(set(self.gpus.values())) <= 1
        if is_one or kind == ABSENT or self.place(kind)[1] != ABSENT:
            return self._names[name]
        return self._names[f"{name} (GPU {self.gpus[kind]})"]


def _gpu_of(kind: int, text: str | None) -> int:
    """Return which GPU a kind of samples is of: as its name ends, else the lowest byte of it."""
    named = _IN_NAME.search(text or "")
    return int(named.group(1)) if named else kind & 0xFF
