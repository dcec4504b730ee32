"""Kernels, copies, fills and replays of graphs as activities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from traceflops.parsers.io import Batch, Wanted, by_distinct
from traceflops.parsers.nsight.nsys.enums import COPIES, MEMORY, UNIFIED, present, processes_of
from traceflops.parsers.nsight.nsys.reading import ReportReading
from traceflops.table import ABSENT, IntArray

UNNAMED: Final = "(unnamed kernel)"

_PLACE: Final = (
    *("start", "end", "deviceId", "contextId", "streamId"),
    *("correlationId", "globalPid"),
)
_AXES: Final = ("X", "Y", "Z")
_GRID: Final = tuple(f"grid{axis}" for axis in _AXES)
_BLOCK: Final = tuple(f"block{axis}" for axis in _AXES)
_SHARED: Final = ("staticSharedMemory", "dynamicSharedMemory")
_NAMES: Final = ("demangledName", "shortName", "mangledName")
_OF_KERNEL: Final = (
    *_PLACE,
    *("graphNodeId", "graphId", "registersPerThread"),
    *(*_NAMES, *_GRID, *_BLOCK, *_SHARED),
)
_OF_COPY: Final = (*_PLACE, "graphNodeId", "bytes", "copyKind", "srcKind", "dstKind")
_OF_FILL: Final = (*_PLACE, "graphNodeId", "bytes", "memKind")
_OF_GRAPH: Final = (*_PLACE, "graphId", "graphExecId")
_KIND_NUMBERS: Final = 32
"""Kinds of copies and of memory are smaller than that; larger ones are not known."""


def read_work(reading: ReportReading) -> None:
    """Add everything that a device did."""
    _read_kernels(reading)
    _read_copies(reading)
    _read_fills(reading)
    _read_graphs(reading)


def _batches(reading: ReportReading, kind: str, columns: tuple[str, ...]) -> Iterator[Batch]:
    """Give the rows of a table of activities, counted."""
    for batch in reading.tables.batches(f"CUPTI_ACTIVITY_KIND_{kind}", Wanted(integers=columns)):
        reading.counts[kind] += batch.count
        yield batch


def _read_kernels(reading: ReportReading) -> None:
    activities = reading.gathered["activities"]
    for batch in _batches(reading, "KERNEL", _OF_KERNEL):
        rows, start, dur = reading.timed(batch)
        reading.names.add(
            activities,
            _name_ids(rows),
            UNNAMED,
            **_common(reading, rows, start, dur),
            graph=present(rows["graphId"]),
            kind=activities.names["kind"]["kernel"],
            grid=_axes(rows, _GRID),
            block=_axes(rows, _BLOCK),
            registers_per_thread=_sizes(rows["registersPerThread"]),
            shared_memory_bytes=_shared(rows),
        )


def _read_copies(reading: ReportReading) -> None:
    activities = reading.gathered["activities"]
    labels, ways = activities.names["name"], activities.names["direction"]

    def label(key: int, _: int) -> int:
        kind, source, target = _split(key)
        name = COPIES.get(kind, ("", "Memcpy"))[1]
        ends = [MEMORY.get(end) for end in (source, target)]
        return labels[name if None in ends else f"{name} ({ends[0]} -> {ends[1]})"]

    def way(kind: int, _: int) -> int:
        return ways[COPIES[kind][0]] if kind in COPIES else -1

    for batch in _batches(reading, "MEMCPY", _OF_COPY):
        rows, start, dur = reading.timed(batch)
        reading.odd["migrations"] += int(np.count_nonzero(np.isin(rows["copyKind"], UNIFIED)))
        reading.odd["copy-kind"] += int(np.count_nonzero(~np.isin(rows["copyKind"], [*COPIES])))
        key = _joined(rows["copyKind"], rows["srcKind"], rows["dstKind"])
        activities.add(
            rows.count,
            **_common(reading, rows, start, dur),
            kind=activities.names["kind"]["memcpy"],
            name=by_distinct(key, label),
            bytes=_sizes(rows["bytes"]),
            direction=by_distinct(rows["copyKind"], way),
        )


def _read_fills(reading: ReportReading) -> None:
    activities = reading.gathered["activities"]
    labels = activities.names["name"]

    def label(kind: int, _: int) -> int:
        return labels[f"Memset ({MEMORY[kind]})" if kind in MEMORY else "Memset"]

    for batch in _batches(reading, "MEMSET", _OF_FILL):
        rows, start, dur = reading.timed(batch)
        activities.add(
            rows.count,
            **_common(reading, rows, start, dur),
            kind=activities.names["kind"]["memset"],
            name=by_distinct(rows["memKind"], label),
            bytes=_sizes(rows["bytes"]),
        )


def _read_graphs(reading: ReportReading) -> None:
    """Add replays of graphs whose kernels were not recorded one by one."""
    activities = reading.gathered["activities"]
    labels = activities.names["name"]

    def label(graph: int, _: int) -> int:
        return labels["graph" if graph == ABSENT else f"graph {graph}"]

    for batch in _batches(reading, "GRAPH_TRACE", _OF_GRAPH):
        rows, start, dur = reading.timed(batch)
        graph = present(rows["graphId"])
        shown = np.where(graph == ABSENT, present(rows["graphExecId"]), graph)
        activities.add(
            rows.count,
            **_common(reading, rows, start, dur),
            graph=graph,
            kind=activities.names["kind"]["graph"],
            name=by_distinct(shown, label),
        )


def _common(
    reading: ReportReading, rows: Batch, start: IntArray, dur: IntArray
) -> dict[str, IntArray]:
    """Return what all activities have: when and where they ran, and what launched them."""
    process = reading.people.processes(processes_of(rows["globalPid"]))
    if rows.count:
        reading.latest_ns = max(reading.latest_ns, int((start + dur).max()))
    reading.odd["device-unknown"] += int(np.count_nonzero(rows["deviceId"] < 0))
    common = {
        "process": process,
        **reading.people.place(process, rows["deviceId"], rows["contextId"], rows["streamId"]),
        "start_ns": start,
        "dur_ns": dur,
        "correlation": present(rows["correlationId"]),
    }
    if "graphNodeId" in rows.numbers:
        common["graph_node"] = present(rows["graphNodeId"])
    return common


def _name_ids(rows: Batch) -> IntArray:
    """Return the ids of kernels' names: with their arguments, else short, else mangled."""
    found = rows[_NAMES[0]]
    for other in _NAMES[1:]:
        unknown = found == ABSENT
        if not unknown.any():
            break
        found = np.where(unknown, rows[other], found)
    return found


def _axes(rows: Batch, columns: tuple[str, ...]) -> IntArray:
    axes = np.stack([rows[column] for column in columns], axis=1)
    if (axes > 0).all():
        return axes
    return np.where((axes > 0).all(axis=1, keepdims=True), axes, ABSENT)


def _shared(rows: Batch) -> IntArray:
    """Return the shared memory of a block; what one part of it has is unknown where that is."""
    fixed, asked = (_sizes(rows[column]) for column in _SHARED)
    known = (fixed != ABSENT) & (asked != ABSENT)
    return np.where(known, fixed + asked, ABSENT)


def _sizes(values: IntArray) -> IntArray:
    known = (values >= 0) & (values < 2**62)
    return values if known.all() else np.where(known, values, ABSENT)


def _joined(*numbers: IntArray) -> IntArray:
    """Return one number for several small ones; one that is not small counts as the largest."""
    joined = np.zeros(len(numbers[0]), dtype=np.int64)
    for one in numbers:
        small = (one >= 0) & (one < _KIND_NUMBERS)
        joined = joined * _KIND_NUMBERS + np.where(small, one, _KIND_NUMBERS - 1)
    return joined


def _split(joined: int) -> tuple[int, int, int]:
    rest, third = divmod(joined, _KIND_NUMBERS)
    first, second = divmod(rest, _KIND_NUMBERS)
    return first, second, third
