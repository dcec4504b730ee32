"""Small documents as rocprofv3 writes them, made by hand for the tests of its reader."""

from __future__ import annotations

import io
import json
from typing import Any

from traceflops.devices.merging import merge
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.worker_pool import WorkerPool
from traceflops.parsers.rocprof.formats import ROCPROF_JSON
from traceflops.parsers.rocprof.v3json_run import read_v3_json
from traceflops.parsers.shared.formats import Reading
from traceflops.parsers.shared.sanity_checks import plausible
from traceflops.table.trace import Note, Trace

Json = dict[str, Any]

KINDS = [
    *("NONE", "HSA_CORE_API", "HIP_RUNTIME_API", "MARKER_CORE_API", "MEMORY_COPY"),
    *("KERNEL_DISPATCH", "RCCL_API", "SCRATCH_MEMORY", "MARKER_CORE_RANGE_API"),
]
OPERATIONS = {
    "HSA_CORE_API": ["hsa_init", "hsa_signal_create"],
    "HIP_RUNTIME_API": ["hipApiName", "hipLaunchKernel", "hipMemcpyAsync", "hipGraphLaunch"],
    "MARKER_CORE_API": ["roctxMarkA", "roctxRangePushA"],
    "MARKER_CORE_RANGE_API": ["roctxMarkA", "roctxThreadRangeA"],
    "MEMORY_COPY": [
        "MEMORY_COPY_NONE",
        "MEMORY_COPY_HOST_TO_HOST",
        "MEMORY_COPY_HOST_TO_DEVICE",
        "MEMORY_COPY_DEVICE_TO_HOST",
        "MEMORY_COPY_DEVICE_TO_DEVICE",
    ],
    "RCCL_API": ["ncclAllGather", "ncclAllReduce"],
    "SCRATCH_MEMORY": ["SCRATCH_MEMORY_NONE", "SCRATCH_MEMORY_ALLOC"],
}
CPU, GPU, OTHER_GPU = 100, 102, 103
START = 500_000_000_000


def kind(name: str, kinds: list[str] = KINDS) -> int:
    return kinds.index(name)


def timed(start: int, end: int, correlation: int = 0, thread: int = 7) -> Json:
    return {
        "thread_id": thread,
        "correlation_id": {"internal": correlation, "external": 0, "ancestor": 0},
        "start_timestamp": start,
        "end_timestamp": end,
    }


def axes(x: int, y: int = 1, z: int = 1) -> Json:
    return {"x": x, "y": y, "z": z}


def info(**more: Any) -> Json:
    return {
        "size": 72,
        "agent_id": {"handle": GPU},
        "queue_id": {"handle": 3},
        "kernel_id": 1,
        "dispatch_id": 1,
        "private_segment_size": 0,
        "group_segment_size": 512,
        "workgroup_size": axes(256),
        "grid_size": axes(1000),
        **more,
    }


def dispatch(start: int, end: int, correlation: int = 0, **more: Any) -> Json:
    where = {name: more.pop(name) for name in list(more) if name not in ("stream_id", "graph")}
    graph = more.pop("graph", {})
    return {
        "size": 184,
        "kind": kind("KERNEL_DISPATCH"),
        "operation": 2,
        **timed(start, end, correlation),
        "dispatch_info": info(**where),
        "stream_id": more.pop("stream_id", {"handle": 0}),
        **graph,
    }


def copy(start: int, end: int, operation: str, source: int, target: int, **more: Any) -> Json:
    return {
        "size": 104,
        "kind": kind("MEMORY_COPY"),
        "operation": OPERATIONS["MEMORY_COPY"].index(operation),
        **timed(start, end),
        "dst_agent_id": {"handle": target},
        "src_agent_id": {"handle": source},
        "bytes": 4096,
        **more,
    }


def call(start: int, end: int, what: str, operation: str, correlation: int = 0) -> Json:
    return {
        "size": 72,
        "kind": kind(what),
        "operation": OPERATIONS[what].index(operation),
        **timed(start, end, correlation),
    }


def counted(dispatch_id: int, *values: tuple[int, float | None], **more: Any) -> Json:
    return {
        "dispatch_data": {
            "size": 144,
            "correlation_id": {"internal": dispatch_id, "external": 0},
            "start_timestamp": START,
            "end_timestamp": START + 10,
            "dispatch_info": info(dispatch_id=dispatch_id, **more),
        },
        "records": [{"counter_id": {"handle": one}, "value": value} for one, value in values],
        "thread_id": 7,
    }


def agents() -> list[Json]:
    gpu = {
        "size": 312,
        "id": {"handle": GPU},
        "type": 2,
        "simd_count": 1216,
        "wave_front_size": 64,
        "num_xcc": 8,
        "cu_count": 304,
        "gfx_target_version": 90402,
        "max_engine_clk_ccompute": 3700,
        "max_engine_clk_fcompute": 2100,
        "local_mem_size": 0,
        "name": "gfx942",
        "product_name": "AMD Instinct MI300X",
        "model_name": "ip discovery",
        "node_id": 2,
        "logical_node_id": 1,
        "mem_banks": [
            {"size": 1, "width": 8192, "mem_clk_max": 1300, "size_in_bytes": 206141652992}
        ],
        "caches": [{"size": 32}, {"size": 16}],
    }
    cpu = {"size": 312, "id": {"handle": CPU}, "type": 1, "name": "EPYC", "cu_count": 96}
    other = {**gpu, "id": {"handle": OTHER_GPU}, "node_id": 3, "logical_node_id": 2}
    return [{**cpu, "node_id": 0}, gpu, other]


def symbols(*names: str) -> list[Json]:
    nothing = {"size": 0, "kernel_id": 0, "kernel_name": "", "formatted_kernel_name": "0"}
    return [
        nothing,
        *(
            {
                "size": 88,
                "kernel_id": number,
                "kernel_name": f"_Z{name}.kd",
                "arch_vgpr_count": 24,
                "formatted_kernel_name": name,
                "demangled_kernel_name": f"{name} [clone .kd]",
            }
            for number, name in enumerate(names, start=1)
        ),
    ]


def process(
    *dispatches: Json,
    counters: dict[int, str] | None = None,
    countings: list[Json] | None = None,
    messages: dict[int, str] | None = None,
    kinds: list[str] = KINDS,
    metadata: Json | None = None,
    **records: list[Json],
) -> Json:
    """Return one process; `records` are further lists of buffer_records."""
    return {
        "metadata": metadata
        or {
            "node": {"machine_id": "feedbeef", "hostname": "node17"},
            "pid": 4711,
            "init_time": START - 100,
            "fini_time": START + 200,
            "command": ["/home/somebody/train.py", "--token", "secret-token"],
            "config": {"output_path": "/home/somebody"},
        },
        "agents": agents(),
        "counters": [
            {"id": {"handle": number}, "name": name, "agent_id": {"handle": GPU}}
            for number, name in (counters or {}).items()
        ],
        "strings": {
            "callback_records": [{"kind": "NONE", "operations": []}],
            "buffer_records": [
                {"kind": name, "operations": OPERATIONS.get(name, [])} for name in kinds
            ],
            "marker_api": [{"key": key, "value": text} for key, text in (messages or {}).items()],
            "correlation_id": {"external": []},
        },
        "code_objects": [{"size": 88, "uri": "memory://1"}],
        "kernel_symbols": symbols("first(int)", "second<float>()", "ncclDevKernel_Generic_1()"),
        "callback_records": {"counter_collection": countings or []},
        "buffer_records": {"kernel_dispatch": list(dispatches), **records},
    }


def document(*processes: Json) -> Json:
    return {"rocprofiler-sdk-tool": list(processes)}


def source(data: bytes, name: str = "4711_results.json", folder: str = "") -> ByteSource:
    return ByteSource(name, lambda: io.BytesIO(data), len(data), folder=folder)


def read(what: Json | bytes | str, block_bytes: int | None = None) -> Trace:
    """Return the trace in a document, or in its text."""
    if isinstance(what, dict):
        what = json.dumps(what)
    data = what.encode() if isinstance(what, str) else what
    one = source(data)
    if block_bytes is None:
        return plausible(merge(ROCPROF_JSON.read([one], Reading(WorkerPool()))))
    return plausible(read_v3_json(one, WorkerPool(), block_bytes))


def rows(trace: Trace, table: str = "activities", *columns: str) -> list[Any]:
    """Return the rows of a table: of one column the values, of several tuples."""
    found = [trace.table(table)[name].to_pylist() for name in columns]
    return found[0] if len(found) == 1 else list(zip(*found, strict=True))


def notes(trace: Trace) -> dict[str, Note]:
    return {note.code: note for note in trace.notes}
