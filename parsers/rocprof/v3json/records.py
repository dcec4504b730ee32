"""The records of rocprofv3's JSON as the decoder sees them, and the columns they become.

Only what is read is named. Names stand in tables of strings that may follow the records, so the
columns hold numbers: of kernels, kinds, operations, agents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np

from traceflops.parsers.pytorch import typed_integers
from traceflops.table import ABSENT, Array, IntArray


class Handle(msgspec.Struct, frozen=True, gc=False):
    """The id of an agent, a queue or a counter."""

    handle: int = ABSENT


class Correlation(msgspec.Struct, frozen=True, gc=False):
    """What ties records together; `internal` is unique within a process."""

    internal: int = ABSENT


class Axes(msgspec.Struct, frozen=True, gc=False):
    """A size along three axes."""

    x: int = ABSENT
    y: int = ABSENT
    z: int = ABSENT


_NONE: Final = Handle()
_UNTIED: Final = Correlation()
_NO_SIZE: Final = Axes()
_NOTHING: Final = msgspec.Raw(b"")
_SIZE: Final = re.compile(
    rb'"sizeBytes"\s*:\s*"?(\d{1,18})\b|"sizeBytes"\s*,\s*"value"\s*:\s*"(\d{1,18})"'
)
"""An argument by its name, or as one object of a list of names and values."""


class DispatchInfo(msgspec.Struct, frozen=True, gc=False):
    """What was launched, and where; grid sizes are in threads."""

    agent_id: Handle = _NONE
    queue_id: Handle = _NONE
    kernel_id: int = ABSENT
    dispatch_id: int = ABSENT
    group_segment_size: int = ABSENT
    workgroup_size: Axes = _NO_SIZE
    grid_size: Axes = _NO_SIZE


_NO_INFO: Final = DispatchInfo()


class _Timed(msgspec.Struct, gc=False):
    start_timestamp: int = ABSENT
    end_timestamp: int = ABSENT
    thread_id: int = ABSENT
    correlation_id: Correlation = _UNTIED


class Dispatch(_Timed, gc=False):
    """One launch of a kernel."""

    dispatch_info: DispatchInfo = _NO_INFO
    stream_id: Handle = _NONE
    graph_exec_id: int | Handle = ABSENT
    graph_node_id: int | Handle = ABSENT


class Copy(_Timed, gc=False):
    """One copy of memory."""

    kind: int = ABSENT
    operation: int = ABSENT
    src_agent_id: Handle = _NONE
    dst_agent_id: Handle = _NONE
    bytes: int = ABSENT


class Call(_Timed, gc=False):
    """One call of an API, or one range or mark of the program."""

    kind: int = ABSENT
    operation: int = ABSENT


class HipCall(Call, gc=False):
    """One call of HIP; since ROCm 7.0 with its arguments, which stay text."""

    args: msgspec.Raw = _NOTHING


class CollectiveRecord(Call, gc=False):
    """One call of RCCL; its arguments are there only in some releases."""

    args: Any = None


class Scratch(Call, gc=False):
    """One making or freeing of scratch memory."""

    agent_id: Handle = _NONE
    queue_id: Handle = _NONE


class Message(msgspec.Struct, gc=False):
    """The text of a range or mark, by the correlation of its record."""

    key: int = ABSENT
    value: str = ""


class Symbol(msgspec.Struct, gc=False):
    """A kernel that was loaded, launched or not."""

    kernel_id: int = ABSENT
    formatted_kernel_name: str = ""
    demangled_kernel_name: str = ""
    kernel_name: str = ""
    arch_vgpr_count: int = ABSENT


class Counter(msgspec.Struct, gc=False):
    """A hardware counter that can be read."""

    id: Handle = _NONE
    name: str = ""


class CounterValue(msgspec.Struct, gc=False):
    """The value of a counter in one of its instances."""

    counter_id: Handle = _NONE
    value: float | None = None


class _Counted(msgspec.Struct, gc=False):
    correlation_id: Correlation = _UNTIED
    dispatch_info: DispatchInfo = _NO_INFO


class Counting(msgspec.Struct, gc=False):
    """One launch of which counters were read."""

    dispatch_data: _Counted = msgspec.field(default_factory=_Counted)
    records: list[CounterValue] = msgspec.field(default_factory=list)


class AgentRecord(msgspec.Struct, gc=False):
    """A processor, by rocprofiler-sdk's own words."""

    id: Handle = _NONE
    type: Any = None
    node_id: int = ABSENT
    logical_node_id: int = ABSENT
    name: Any = None
    product_name: Any = None
    cu_count: Any = None
    wave_front_size: Any = None
    num_xcc: Any = None
    gfx_target_version: Any = None
    max_engine_clk_fcompute: Any = None
    local_mem_size: Any = None
    mem_banks: Any = None


class Other(msgspec.Struct, gc=False):
    """A record that is counted and not read."""


Columns = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of records: how one is decoded, its columns, its texts, what is kept of it as is."""

    record: type[msgspec.Struct]
    columns: Callable[[Sequence[Any]], Columns]
    texts: Callable[[Sequence[Any]], list[str]] = lambda _: []
    kept: Callable[[Sequence[Any]], list[Any]] = lambda _: []


def _ids(values: Sequence[int]) -> IntArray:
    """Return ids; 0 stands for none."""
    found = typed_integers(values)
    return np.where(found == 0, ABSENT, found)


def _timed(records: Sequence[_Timed]) -> Columns:
    return {
        "start": typed_integers([r.start_timestamp for r in records]),
        "end": typed_integers([r.end_timestamp for r in records]),
        "correlation": _ids([r.correlation_id.internal for r in records]),
    }


def _launched(infos: Sequence[DispatchInfo]) -> Columns:
    return {
        "agent": typed_integers([i.agent_id.handle for i in infos]),
        "kernel": typed_integers([i.kernel_id for i in infos]),
        "grid": _axes([i.grid_size for i in infos]),
        "block": _axes([i.workgroup_size for i in infos]),
    }


def _axes(sizes: Sequence[Axes]) -> IntArray:
    columns = ([s.x for s in sizes], [s.y for s in sizes], [s.z for s in sizes])
    return np.stack([typed_integers(column) for column in columns], axis=1)


def _dispatches(records: Sequence[Dispatch]) -> Columns:
    infos = [r.dispatch_info for r in records]
    return {
        **_timed(records),
        **_launched(infos),
        "queue": typed_integers([i.queue_id.handle for i in infos]),
        "shared": typed_integers([i.group_segment_size for i in infos]),
        "stream": typed_integers([r.stream_id.handle for r in records]),
        "graph": _graph_ids([r.graph_exec_id for r in records]),
        "graph_node": _graph_ids([r.graph_node_id for r in records]),
    }


def _graph_ids(values: Sequence[int | Handle]) -> IntArray:
    return _ids([v.handle if isinstance(v, Handle) else v for v in values])


def _copies(records: Sequence[Copy]) -> Columns:
    return {
        **_timed(records),
        **_named(records),
        "source": typed_integers([r.src_agent_id.handle for r in records]),
        "target": typed_integers([r.dst_agent_id.handle for r in records]),
        "bytes": typed_integers([r.bytes for r in records]),
    }


def _named(records: Sequence[Copy] | Sequence[Call]) -> Columns:
    return {
        "kind": typed_integers([r.kind for r in records]),
        "operation": typed_integers([r.operation for r in records]),
    }


def _calls(records: Sequence[Call]) -> Columns:
    threads = _ids([r.thread_id for r in records])
    return {**_timed(records), **_named(records), "thread": threads}


def _hip_calls(records: Sequence[HipCall]) -> Columns:
    return {**_calls(records), "size": typed_integers([_size(r.args) for r in records])}


def _size(args: msgspec.Raw) -> int:
    found = _SIZE.search(bytes(args))
    return int(found[1] or found[2]) if found else ABSENT


def _scratch(records: Sequence[Scratch]) -> Columns:
    return {
        **_calls(records),
        "agent": typed_integers([r.agent_id.handle for r in records]),
        "queue": typed_integers([r.queue_id.handle for r in records]),
    }


def _messages(records: Sequence[Message]) -> Columns:
    return {"key": typed_integers([r.key for r in records])}


def _symbols(records: Sequence[Symbol]) -> Columns:
    return {
        "kernel": typed_integers([r.kernel_id for r in records]),
        "registers": typed_integers([r.arch_vgpr_count for r in records]),
    }


def _symbol_names(records: Sequence[Symbol]) -> list[str]:
    """Return the names as rocprofv3 prints them; one that stands for no kernel has none."""
    return [
        (r.formatted_kernel_name or r.demangled_kernel_name or r.kernel_name) if r.kernel_id else ""
        for r in records
    ]


def _counters(records: Sequence[Counter]) -> Columns:
    return {"counter": typed_integers([r.id.handle for r in records])}


def _countings(records: Sequence[Counting]) -> Columns:
    """Return one row per launch and counter: the sum and the largest of its instances."""
    values = list(chain.from_iterable(r.records for r in records))
    launch = np.repeat(np.arange(len(records)), [len(r.records) for r in records])
    value = np.array([v.value for v in values], dtype=np.float64)
    counter = typed_integers([v.counter_id.handle for v in values])
    known = np.isfinite(value)
    launch, counter, value = launch[known], counter[known], value[known]
    order = np.lexsort((counter, launch))
    launch, counter, value = launch[order], counter[order], value[order]
    opens = (launch[1:] != launch[:-1]) | (counter[1:] != counter[:-1])
    first = np.flatnonzero(np.append(True, opens)[: len(launch)])
    infos = [r.dispatch_data.dispatch_info for r in records]
    correlation = _ids([r.dispatch_data.correlation_id.internal for r in records])
    dispatch = typed_integers([i.dispatch_id for i in infos])
    columns = {**_launched(infos), "dispatch": dispatch, "correlation": correlation}
    return {
        **{name: column[launch[first]] for name, column in columns.items()},
        "counter": counter[first],
        "sum": np.add.reduceat(value, first) if len(first) else value,
        "largest": np.maximum.reduceat(value, first) if len(first) else value,
        "instances": np.diff(np.append(first, len(value))),
        "valueless": np.full(len(first), int((~known).sum())),
    }


def _nothing(_: Sequence[Any]) -> Columns:
    return {}


KINDS: Final[Mapping[str, Kind]] = {
    "dispatch": Kind(Dispatch, _dispatches),
    "copy": Kind(Copy, _copies),
    "call": Kind(Call, _calls),
    "hip call": Kind(HipCall, _hip_calls),
    "collective": Kind(CollectiveRecord, _calls, kept=lambda records: [r.args for r in records]),
    "scratch": Kind(Scratch, _scratch),
    "message": Kind(Message, _messages, lambda records: [r.value for r in records]),
    "symbol": Kind(Symbol, _symbols, _symbol_names),
    "counter": Kind(Counter, _counters, lambda records: [r.name for r in records]),
    "counting": Kind(Counting, _countings),
    "agent": Kind(
        AgentRecord, _nothing, kept=lambda records: [msgspec.structs.asdict(r) for r in records]
    ),
    "other": Kind(Other, _nothing),
}
