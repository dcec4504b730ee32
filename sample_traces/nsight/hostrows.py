"""Rows of an export for what the host did: calls, waits and NVTX ranges."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from sample_traces.config import ELEMENT_BYTES, Dtype
from sample_traces.kineto_host import ExternalIds
from sample_traces.library import nccl_function
from sample_traces.nsight.schema import (
    DOMAIN,
    DRIVER,
    PUSH_POP,
    RUNTIME,
    SYSTEM,
    WAITS,
    Row,
    Tables,
    Value,
)
from sample_traces.nsight.session import CONTEXT, Markers, Session, global_pid, global_tid
from sample_traces.parallel import all_groups
from sample_traces.records import Argument, Call, Collective, Group, Op, RankRun

COMMUNICATOR: Final = 6_148_914_691_236_517_205
NCCL_DOMAIN: Final = 1
DRIVER_LAUNCH: Final = "cuLaunchKernelEx"
VERSIONS: Final = {
    "cudaLaunchKernel": "v7000",
    "cudaLaunchKernelExC": "v11060",
    "cudaMemcpyAsync": "v3020",
    "cudaMemsetAsync": "v3020",
    "cudaGraphLaunch": "v10000",
    "cudaEventRecord": "v3020",
    "cudaStreamWaitEvent": "v3020",
    "cudaStreamSynchronize": "v3020",
    "cudaDeviceSynchronize": "v3020",
    "cudaEventSynchronize": "v3020",
    "cudaMemcpy": "v3020",
    "cudaMalloc": "v3020",
    "cudaFree": "v3020",
}
"""The version of the API that stands behind the name of each function."""
_LAUNCHES: Final = ("cudaLaunchKernel", "cudaLaunchKernelExC")
_NONE: Final = (1 << 32) - 1
_NCCL_NS: Final = 200
_INIT_NS: Final = 1_000
_MARKED: Final[dict[Markers, tuple[str, ...]]] = {
    "none": (),
    "steps": ("step",),
    "all": ("step", "annotation"),
}
_DTYPES: Final[dict[str, Dtype]] = {"BFloat16": "bf16", "Half": "fp16", "Float": "fp32"}


def host_rows(session: Session) -> Tables:
    """Return the rows of the host."""
    tables: Tables = {
        "CUPTI_ACTIVITY_KIND_RUNTIME": [],
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [],
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT": [],
        "NVTX_EVENTS": [],
        "OSRT_API": [],
    }
    for rank in session.ranks:
        if session.options.calls:
            for call in rank.calls:
                tables["CUPTI_ACTIVITY_KIND_RUNTIME"] += _calls(session, rank, call)
            tables["CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"] += _waits(session, rank)
            tables["CUPTI_ACTIVITY_KIND_CUDA_EVENT"] += _events(session, rank)
        tables["NVTX_EVENTS"] += _ranges(session, rank)
        tables["OSRT_API"] += _system_calls(session, rank)
    return tables


def full_name(call: str) -> str:
    """Return the name of a call with the version of the API."""
    return f"{call}_{VERSIONS[call]}" if call in VERSIONS else call


def _calls(session: Session, rank: RankRun, call: Call) -> Iterator[Row]:
    start_ns, end_ns = session.time(rank, call.start_ns), session.time(rank, call.end_ns)
    row = {
        "start": start_ns,
        "end": end_ns,
        "eventClass": RUNTIME,
        "globalTid": global_tid(rank, call.thread),
        "correlationId": call.correlation,
        "nameId": session.text(full_name(call.name)),
        "returnValue": 0,
    }
    yield row
    if session.options.driver_calls and call.name in _LAUNCHES:
        inner = {"start": min(start_ns + 1, end_ns), "eventClass": DRIVER}
        yield row | inner | {"nameId": session.text(DRIVER_LAUNCH)}


def _waits(session: Session, rank: RankRun) -> Iterator[Row]:
    for call in rank.calls:
        if call.kind in ("wait", "sync"):
            has_event = "Event" in call.name
            yield _stream_row(session, rank, call) | {
                "start": session.time(rank, call.start_ns),
                "end": session.time(rank, call.end_ns),
                "syncType": WAITS[call.name],
                "eventId": call.correlation - 1 if has_event else _NONE,
                "eventSyncId": 0,
            }


def _events(session: Session, rank: RankRun) -> Iterator[Row]:
    for call in rank.calls:
        if call.kind == "record":
            # As in real exports, the time of the event itself is mostly not there.
            yield _stream_row(session, rank, call) | {
                "timestamp": 0,
                "eventId": call.correlation,
                "eventSyncId": 0,
            }


def _stream_row(session: Session, rank: RankRun, call: Call) -> dict[str, Value]:
    return {
        "deviceId": session.device(rank),
        "contextId": CONTEXT,
        "streamId": _NONE if call.stream is None else call.stream,
        "correlationId": call.correlation,
        "globalPid": global_pid(rank),
    }


def _ranges(session: Session, rank: RankRun) -> list[Row]:
    """Return the ranges of a process: operators, what the program marks, what NCCL marks."""
    options = session.options
    ids = ExternalIds.of(rank)
    found: list[Row] = []
    for position, mark in enumerate(rank.marks):
        if mark.kind in _MARKED[options.markers]:
            own = f", op_id = {ids.marks[position]}" if options.ops else ""
            times = mark.start_ns, mark.end_ns
            found.append(_range(session, rank, mark.thread, times) | {"text": mark.name + own})
    for position, op in enumerate(rank.ops if options.ops else ()):
        text = op_text(op, ids.ops[position])
        found.append(_range(session, rank, op.thread, (op.start_ns, op.end_ns)) | {"text": text})
    if options.nccl != "none":
        found += _nccl(session, rank)
    # Ranges are written down when they end.
    return sorted(found, key=_end_ns)


def _end_ns(row: Row) -> int:
    end = row.get("end", row["start"])
    return end if isinstance(end, int) else 0


def op_text(op: Op, number: int) -> str:
    """Return the text of an operator's range as PyTorch makes it."""
    sequence = "" if op.sequence is None else f", seq = {op.sequence}"
    sizes = ", ".join(str(list(_size(one))) for one in op.inputs)
    return f"{op.name}{sequence}, op_id = {number}" + (f", sizes = [{sizes}]" if sizes else "")


def _size(argument: Argument) -> tuple[int, ...]:
    """Return the sizes of a tensor; lists and scalars have none."""
    return () if argument.members else argument.shape


def _range(
    session: Session, rank: RankRun, thread: int, times: tuple[int, int]
) -> dict[str, Value]:
    start_ns, end_ns = times
    return {
        "start": session.time(rank, start_ns),
        "end": session.time(rank, end_ns),
        "eventType": PUSH_POP,
        "globalTid": global_tid(rank, thread),
        "domainId": 0,
    }


def _system_calls(session: Session, rank: RankRun) -> Iterator[Row]:
    for mark in rank.marks:
        if mark.kind == "system":
            yield {
                "start": session.time(rank, mark.start_ns),
                "end": session.time(rank, mark.end_ns),
                "eventClass": SYSTEM,
                "globalTid": global_tid(rank, mark.thread),
                "nameId": session.text(mark.name),
                "returnValue": 0,
                "nestingLevel": 0,
            }


def _nccl(session: Session, rank: RankRun) -> Iterator[Row]:
    """Yield NCCL's domain, and its ranges with registered texts, around the launches in them."""
    begin = session.time(rank, 0)
    thread = rank.main_thread
    yield {
        "start": begin,
        "eventType": DOMAIN,
        "text": "NCCL",
        "globalTid": global_tid(rank, thread),
        "domainId": NCCL_DOMAIN,
    }
    mine = (one for one in all_groups(session.run.config) if rank.rank in one.ranks)
    for at, group in enumerate(mine):
        place = {"No. of ranks": group.size, "Rank": group.ranks.index(rank.rank)}
        own = {**_communicator(group), **place, "CUDA device": session.device(rank)}
        times = at * _INIT_NS, (at + 1) * _INIT_NS
        yield _nccl_range(session, rank, thread, times, "ncclCommInitRank", own)
    for activity in rank.activities:
        if activity.collective is None or activity.call is None:
            continue
        call = rank.calls[activity.call]
        times = call.start_ns - _NCCL_NS, call.end_ns + _NCCL_NS
        size = {"Message size [bytes]": message_bytes(activity.collective)}
        own = _communicator(activity.collective.group) | size
        name = nccl_function(activity.collective)
        yield _nccl_range(session, rank, call.thread, times, name, own)


def _communicator(group: Group) -> dict[str, int]:
    return {"NCCL communicator ID": COMMUNICATOR + int(group.name)}


def message_bytes(collective: Collective) -> int:
    """Return how much each rank gives to a collective."""
    return collective.elements * ELEMENT_BYTES[_DTYPES[collective.dtype]]


def _nccl_range(
    session: Session,
    rank: RankRun,
    thread: int,
    times: tuple[int, int],
    name: str,
    payload: dict[str, int],
) -> Row:
    row = _range(session, rank, thread, times)
    row |= {"textId": session.text(name), "domainId": NCCL_DOMAIN}
    if session.options.nccl == "payloads":
        row["jsonText"] = json.dumps(payload)
    return row
