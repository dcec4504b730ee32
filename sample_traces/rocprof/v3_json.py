"""rocprofv3: `results.json`, one element per process, names resolved through tables of strings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct

from sample_traces.machines import MACHINES
from sample_traces.records import Run, Triple
from sample_traces.rocprof.agents import DIES, Agent, agents, handle
from sample_traces.rocprof.capture import (
    Capture,
    Dispatch,
    Domain,
    HostRange,
    Symbol,
    Transfer,
    captures,
    instances,
)
from sample_traces.rocprof.names import mangled, save, truncated
from sample_traces.rocprof.options import RocprofOptions
from sample_traces.rocprof.v3_csv import DIRECTIONS

Release = Literal["6.2", "7.0", "7.13"]

_SINCE_7: Final = (
    *("NONE", "HSA_CORE_API", "HSA_AMD_EXT_API", "HSA_IMAGE_EXT_API", "HSA_FINALIZE_EXT_API"),
    *("HIP_RUNTIME_API", "HIP_COMPILER_API", "MARKER_CORE_API", "MARKER_CONTROL_API"),
    *("MARKER_NAME_API", "MEMORY_COPY", "KERNEL_DISPATCH", "SCRATCH_MEMORY"),
    *("CORRELATION_ID_RETIREMENT", "RCCL_API", "OMPT", "MEMORY_ALLOCATION"),
    *("RUNTIME_INITIALIZATION", "ROCDECODE_API", "ROCJPEG_API", "HIP_STREAM"),
    *("HIP_RUNTIME_API_EXT", "HIP_COMPILER_API_EXT", "ROCDECODE_API_EXT"),
    "MARKER_CORE_RANGE_API",
)
KINDS: Final[dict[Release, tuple[str, ...]]] = {
    "6.2": (
        *("NONE", "HSA_CORE_API", "HSA_AMD_EXT_API", "HSA_IMAGE_EXT_API", "HSA_FINALIZE_EXT_API"),
        *("HIP_RUNTIME_API", "HIP_COMPILER_API", "MARKER_CORE_API", "MARKER_CONTROL_API"),
        *("MARKER_NAME_API", "MEMORY_COPY", "KERNEL_DISPATCH", "PAGE_MIGRATION"),
        *("SCRATCH_MEMORY", "CORRELATION_ID_RETIREMENT", "RCCL_API"),
    ),
    "7.0": _SINCE_7,
    "7.13": (*_SINCE_7, "HIP_GRAPH"),
}
"""Kinds of records in the order of their numbers, which move from release to release."""

_HIP: Final = (
    *("hipApiName", "hipEventRecord", "hipExtLaunchKernel", "hipExtModuleLaunchKernel"),
    *("hipGraphLaunch", "hipLaunchKernel", "hipMemcpyAsync", "hipMemsetAsync"),
    *("hipStreamSynchronize", "hipStreamWaitEvent"),
)
_COPY_OPERATIONS: Final = (
    *("MEMORY_COPY_NONE", "MEMORY_COPY_HOST_TO_HOST", "MEMORY_COPY_HOST_TO_DEVICE"),
    *("MEMORY_COPY_DEVICE_TO_HOST", "MEMORY_COPY_DEVICE_TO_DEVICE"),
)
OPERATIONS: Final[dict[str, tuple[str, ...]]] = {
    "HIP_RUNTIME_API": _HIP,
    "HIP_RUNTIME_API_EXT": _HIP,
    "MARKER_CORE_API": ("roctxMarkA", "roctxRangePushA", "roctxRangePop", "roctxGetThreadId"),
    "MARKER_CORE_RANGE_API": ("roctxMarkA", "roctxThreadRangeA", "roctxProcessRangeA"),
    "MEMORY_COPY": _COPY_OPERATIONS,
    "KERNEL_DISPATCH": (
        *("KERNEL_DISPATCH_NONE", "KERNEL_DISPATCH_ENQUEUE", "KERNEL_DISPATCH_COMPLETE"),
    ),
    "RCCL_API": ("ncclAllGather", "ncclAllReduce", "ncclAllToAll", "ncclBroadcast", "ncclReduce"),
}
MARKED: Final = {
    "MARKER_CORE_API": "roctxRangePushA",
    "MARKER_CORE_RANGE_API": "roctxThreadRangeA",
}
"""The operation by which a range of each kind was made; its text stands elsewhere."""


def kind_of(domain: Domain, release: Release) -> str:
    """Return the kind of record of a call or marker."""
    first = release == "6.2"
    kinds: dict[Domain, str] = {
        "hip": "HIP_RUNTIME_API" if first else "HIP_RUNTIME_API_EXT",
        "marker": "MARKER_CORE_API" if first else "MARKER_CORE_RANGE_API",
        "rccl": "RCCL_API",
    }
    return kinds[domain]


Document = dict[str, Any]

_RECORDS: Final[dict[Domain, str]] = {"hip": "hip_api", "marker": "marker_api", "rccl": "rccl_api"}


def write_v3_json(
    run: Run,
    folder: Path,
    options: RocprofOptions,
    release: Release = "7.0",
    together: bool = False,
) -> list[Path]:
    """Write `<host>/<pid>_results.json` for each rank, or all processes into one `results.json`."""
    nodes = agents(MACHINES[run.config.machine], run.config.ranks)
    found = captures(run, options)
    processes = {one.process: _Process(one, release, options, nodes).document() for one in found}
    start = folder / options.host
    if together:
        return [save(start / "results.json", _text(list(processes.values()), release))]
    return [
        save(start / f"{process}_results.json", _text([document], release))
        for process, document in processes.items()
    ]


def _text(processes: list[Document], release: Release) -> str:
    document = {"rocprofiler-sdk-tool": processes}
    if release == "6.2":
        return json.dumps(document, indent=1)
    return json.dumps(document, separators=(",", ":"))


class _Process(Struct, frozen=True):
    """Makes the document of one process."""

    capture: Capture
    release: Release
    options: RocprofOptions
    nodes: list[Agent]

    @property
    def is_first(self) -> bool:
        """Whether it is the first release."""
        return self.release == "6.2"

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of records by number."""
        return KINDS[self.release]

    def document(self) -> Document:
        """Return the element of the list."""
        capture = self.capture
        records: Document = {"kernel_dispatch": [], "hip_api": [], "hsa_api": []}
        records |= {"marker_api": [], "rccl_api": [], "memory_copy": []}
        if self.options.times:
            records["kernel_dispatch"] = [self._kernel(one) for one in capture.dispatches]
        records["memory_copy"] = [self._copy(one) for one in capture.transfers]
        for one in capture.ranges:
            records[_RECORDS[one.domain]].append(self._range(one))
        records["scratch_memory"] = []
        counted = [self._counted(one) for one in capture.dispatches if one.counters]
        summary: Document = {"summary": []}
        return {
            "metadata": self._metadata(),
            **(summary if self.is_first else {}),
            "agents": self.nodes,
            "counters": self._counters(),
            "strings": self._strings(),
            "code_objects": [{"size": 88, "code_object_id": 1, "uri": "memory://0"}],
            "kernel_symbols": [self._symbol(one) for one in capture.symbols],
            **({} if self.is_first else {"host_functions": [], **summary}),
            "callback_records": {"counter_collection": counted},
            "buffer_records": records,
        }

    def _metadata(self) -> Document:
        capture = self.capture
        times = {"init_time": capture.init_ns, "fini_time": capture.fini_ns}
        if self.is_first:
            return {"pid": capture.process, **times}
        node = {
            "id": 0,
            "hash": 0,
            "machine_id": "0123456789abcdef0123456789abcdef",
            "system_name": "Linux",
            "hostname": self.options.host,
            "release": "6.8.0-generic",
            "version": "#1 SMP",
            "hardware_name": "x86_64",
            "domain_name": "(none)",
        }
        command = ["python3", "train.py"]
        config = {"json_output": True, "csv_output": False, "kernel_rename": False}
        return {"node": node, "pid": capture.process, **times, "command": command, "config": config}

    def _strings(self) -> Document:
        kinds = [{"kind": kind, "operations": self._operations(kind)} for kind in self.kinds]
        messages = [
            {"key": one.correlation, "value": one.name} for one in self.capture.of("marker")
        ]
        return {
            "callback_records": [{"kind": "NONE", "operations": []}],
            "buffer_records": kinds,
            "marker_api": messages,
            "correlation_id": {"external": []},
            "counters": {"dimension_ids": []},
        }

    def _symbol(self, one: Symbol) -> Document:
        work = one.work
        return {
            "size": 88,
            "kernel_id": one.kernel_id,
            "code_object_id": 1,
            "kernel_name": mangled(one.name),
            "kernel_object": 140_000_000_000_000 + 64 * one.kernel_id,
            "kernarg_segment_size": 280,
            "kernarg_segment_alignment": 16,
            "group_segment_size": work.shared_bytes if work else 0,
            "private_segment_size": 0,
            "sgpr_count": 112,
            "arch_vgpr_count": work.registers if work else 8,
            "accum_vgpr_count": 0,
            "formatted_kernel_name": one.name,
            "demangled_kernel_name": one.name,
            "truncated_kernel_name": truncated(one.name),
        }

    def _counters(self) -> list[Document]:
        names = self.capture.dispatches[0].counters if self.capture.dispatches else {}
        return [
            {
                "agent_id": {"handle": handle(self.capture.node)},
                "id": {"handle": number},
                "is_constant": 0,
                "is_derived": int(name.endswith("_sum")),
                "name": name,
                "description": "",
                "block": name.split("_")[0],
                "expression": "",
                "dimension_ids": [],
            }
            for number, name in enumerate(names, start=1)
        ]

    def _head(self, kind: str, operation: str, size: int) -> Document:
        return {
            "size": size,
            "kind": self.kinds.index(kind),
            "operation": self._operations(kind).index(operation),
        }

    def _operations(self, kind: str) -> list[str]:
        """Return the operations of a kind; of calls also those that only this process makes."""
        known = OPERATIONS.get(kind, ())
        called = {one.name for one in self.capture.of("hip")} if kind.startswith("HIP_RUN") else ()
        return [*known, *sorted({*called}.difference(known))]

    def _dispatch_info(self, one: Dispatch) -> Document:
        return {
            "size": 72,
            "agent_id": {"handle": handle(self.capture.node)},
            "queue_id": {"handle": one.queue},
            "kernel_id": one.kernel.kernel_id,
            "dispatch_id": one.dispatch_id,
            "private_segment_size": 0,
            "group_segment_size": one.work.shared_bytes,
            "workgroup_size": _axes(one.workgroup),
            "grid_size": _axes(one.grid),
        }

    def _kernel(self, one: Dispatch) -> Document:
        record = {
            **self._head("KERNEL_DISPATCH", "KERNEL_DISPATCH_COMPLETE", 184),
            "thread_id": one.thread,
            "correlation_id": _correlation(one.correlation),
            "start_timestamp": one.start_ns,
            "end_timestamp": one.end_ns,
            "dispatch_info": self._dispatch_info(one),
        }
        if not self.is_first:
            record["stream_id"] = {"handle": one.stream}
        if self.release == "7.13":
            record |= {"graph_exec_id": int(one.graph_node > 0), "graph_node_id": one.graph_node}
        return record

    def _copy(self, one: Transfer) -> Document:
        record = {
            **self._head("MEMORY_COPY", DIRECTIONS[one.work.direction or ""], 104),
            "thread_id": one.thread,
            "correlation_id": _correlation(one.correlation),
            "start_timestamp": one.start_ns,
            "end_timestamp": one.end_ns,
            "dst_agent_id": {"handle": handle(one.target)},
            "src_agent_id": {"handle": handle(one.source)},
            "bytes": one.work.bytes,
        }
        return record if self.is_first else record | {"stream_id": {"handle": one.stream}}

    def _range(self, one: HostRange) -> Document:
        kind = kind_of(one.domain, self.release)
        operation = MARKED.get(kind, one.name)
        record = {
            **self._head(kind, operation, 72),
            "correlation_id": _correlation(one.correlation),
            "start_timestamp": one.start_ns,
            "end_timestamp": one.end_ns,
            "thread_id": one.thread,
        }
        if kind != "HIP_RUNTIME_API_EXT":
            return record
        return record | {"args": {name: value for _, name, value in one.arguments}, "retval": 0}

    def _counted(self, one: Dispatch) -> Document:
        return {
            "dispatch_data": {
                "size": 144,
                "correlation_id": _correlation(one.correlation),
                "start_timestamp": one.start_ns,
                "end_timestamp": one.end_ns,
                "dispatch_info": self._dispatch_info(one),
            },
            "records": list(self._values(one)),
            "thread_id": one.thread,
            "arch_vgpr_count": one.work.registers,
            "sgpr_count": 112,
            "lds_block_size_v": one.work.shared_bytes,
        }

    def _values(self, one: Dispatch) -> Iterator[Document]:
        for number, (name, value) in enumerate(one.counters.items(), start=1):
            for part in instances(name, value, DIES):
                yield {"counter_id": {"handle": number}, "value": float(part)}


def _axes(sizes: Triple) -> dict[str, int]:
    return dict(zip("xyz", sizes, strict=True))


def _correlation(internal: int) -> Document:
    return {"internal": internal, "external": 0}
