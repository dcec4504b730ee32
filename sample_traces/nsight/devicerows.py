"""Rows of an export for what the device did: kernels, copies, fills, replays of graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sample_traces.nsight.names import demangled, mangled, short
from sample_traces.nsight.schema import COPY_KINDS, DEVICE, PINNED, Tables, Value
from sample_traces.nsight.session import CONTEXT, Session, global_pid
from sample_traces.records import Activity, RankRun, Triple

GRAPH: Final = 1
_TABLES: Final = {
    "kernel": "CUPTI_ACTIVITY_KIND_KERNEL",
    "memcpy": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memset": "CUPTI_ACTIVITY_KIND_MEMSET",
    "graph": "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
}


def device_rows(session: Session) -> Tables:
    """Return the rows of all device work of a session, by start."""
    placed = [(rank, activity) for rank in session.ranks for activity in rank.activities]
    placed.sort(key=lambda one: session.time(one[0], one[1].start_ns))
    tables: Tables = {table: [] for table in _TABLES.values()}
    for number, (rank, activity) in enumerate(placed, start=1):
        row = _place(session, rank, activity) | _own(session, activity, number)
        tables[_TABLES[activity.work.kind]].append(row)
    return tables


def _place(session: Session, rank: RankRun, activity: Activity) -> dict[str, Value]:
    return {
        "start": session.time(rank, activity.start_ns),
        "end": session.time(rank, activity.end_ns),
        "deviceId": session.device(rank),
        "contextId": CONTEXT,
        "greenContextId": 0,
        "streamId": activity.stream,
        "correlationId": activity.correlation,
        "globalPid": global_pid(rank),
    }


def _own(session: Session, activity: Activity, number: int) -> dict[str, Value]:
    """Return what a row has beside its time and place."""
    work = activity.work
    node = None if activity.graph_node is None else GRAPH << 32 | activity.graph_node
    match work.kind:
        case "kernel":
            return _kernel(session, activity, number) | {"graphNodeId": node}
        case "memcpy":
            ends = (PINNED, DEVICE) if work.direction == "HtoD" else (DEVICE, PINNED)
            copy = {"bytes": work.bytes, "copyKind": COPY_KINDS[work.direction or ""]}
            memory = {"srcKind": ends[0], "dstKind": ends[1], "copyCount": 1}
            return {**copy, **memory, "graphNodeId": node}
        case "memset":
            return {"value": 0, "bytes": work.bytes, "memKind": DEVICE, "graphNodeId": node}
    return {"graphId": GRAPH, "graphExecId": GRAPH + 1}


def _kernel(session: Session, activity: Activity, number: int) -> dict[str, Value]:
    work = activity.work
    in_graph = None if activity.graph_node is None else GRAPH
    return {
        "demangledName": session.text(demangled(work.name)),
        "shortName": session.text(short(work.name)),
        "mangledName": session.text(mangled(work.name)),
        "launchType": 1,
        "cacheConfig": 1,
        "registersPerThread": work.registers,
        **dict(_axes("grid", work.grid)),
        **dict(_axes("block", work.block)),
        "staticSharedMemory": 0,
        "dynamicSharedMemory": work.shared_bytes,
        "localMemoryPerThread": 0,
        "localMemoryTotal": 250_871_808,
        "gridId": number,
        "sharedMemoryExecuted": max(32_768, work.shared_bytes),
        "sharedMemoryLimitConfig": 0,
        "graphId": in_graph,
        **dict.fromkeys(("clusterX", "clusterY", "clusterZ"), 0),
        "clusterSchedulingPolicy": 1,
        **dict.fromkeys(("maxPotentialClusterSize", "maxActiveClusters"), 0),
        "tensorSizeMinusOneElements": "[]",
    }


def _axes(name: str, size: Triple) -> Iterator[tuple[str, int]]:
    return ((f"{name}{axis}", length) for axis, length in zip("XYZ", size, strict=True))
