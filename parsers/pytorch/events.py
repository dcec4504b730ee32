"""What a Kineto event looks like to the JSON decoder, and which table each category feeds.

Every field may hold anything: traces are written by hand-made printers and re-saved by other
tools. The types are therefore as wide as JSON, and `values` narrows them.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from traceflops.builder import ABSENT

NOTHING: Final = msgspec.Raw(b"")


class Event(msgspec.Struct, gc=False):
    """One element of traceEvents; the arguments stay text until their category is known."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    id: Any = None
    args: msgspec.Raw = NOTHING


class ExactEvent(msgspec.Struct, gc=False):
    """The same with times as text, for times that a double cannot hold."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = NOTHING
    dur: msgspec.Raw = NOTHING
    id: Any = None
    args: msgspec.Raw = NOTHING


class CollectiveArgs(msgspec.Struct, gc=False):
    """Arguments of a collective, on its op and on the kernel it launched."""

    collective: Any = msgspec.field(name="Collective name", default=None)
    dtype: Any = None
    in_elements: Any = msgspec.field(name="In msg nelems", default=ABSENT)
    out_elements: Any = msgspec.field(name="Out msg nelems", default=ABSENT)
    group: Any = msgspec.field(name="Process Group Name", default=None)
    group_size: Any = msgspec.field(name="Group size", default=ABSENT)
    group_ranks: Any = msgspec.field(name="Process Group Ranks", default=None)


class DeviceArgs(CollectiveArgs, gc=False):
    """Arguments of device work."""

    device: Any = ABSENT
    stream: Any = ABSENT
    correlation: Any = ABSENT
    external_id: Any = msgspec.field(name="External id", default=ABSENT)
    old_external_id: Any = msgspec.field(name="external id", default=ABSENT)
    queue: Any = msgspec.field(name="sycl queue", default=ABSENT)
    bytes: Any = ABSENT
    kind: Any = None
    grid: Any = None
    block: Any = None
    registers: Any = msgspec.field(name="registers per thread", default=ABSENT)
    shared_memory: Any = msgspec.field(name="shared memory", default=ABSENT)
    occupancy: Any = msgspec.field(name="est. achieved occupancy %", default=ABSENT)
    graph: Any = msgspec.field(name="graph id", default=ABSENT)
    graph_node: Any = msgspec.field(name="graph node id", default=ABSENT)
    sync_kind: Any = msgspec.field(name="cuda_sync_kind", default=None)
    wait_stream: Any = msgspec.field(name="wait_on_stream", default=ABSENT)
    wait_correlation: Any = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=ABSENT)


class CallArgs(msgspec.Struct, gc=False):
    """Arguments of a runtime or driver call."""

    correlation: Any = ABSENT
    external_id: Any = msgspec.field(name="External id", default=ABSENT)
    old_external_id: Any = msgspec.field(name="external id", default=ABSENT)


class OpArgs(CollectiveArgs, gc=False):
    """Arguments of a framework operator; shapes stay text."""

    external_id: Any = msgspec.field(name="External id", default=ABSENT)
    sequence: Any = msgspec.field(name="Sequence number", default=ABSENT)
    forward_thread: Any = msgspec.field(name="Fwd thread id", default=ABSENT)
    input_dims: msgspec.Raw = msgspec.field(name="Input Dims", default=NOTHING)
    input_types: msgspec.Raw = msgspec.field(name="Input type", default=NOTHING)
    input_strides: msgspec.Raw = msgspec.field(name="Input Strides", default=NOTHING)
    concrete_inputs: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=NOTHING)
    finished: Any = None
    kernel_backend: Any = None
    kernel_hash: Any = None
    kernel_kwargs: Any = None
    num_warps: Any = None
    num_stages: Any = None


class PythonArgs(msgspec.Struct, gc=False):
    """Arguments of a python frame."""

    python_id: Any = msgspec.field(name="Python id", default=ABSENT)
    parent: Any = msgspec.field(name="Python parent id", default=ABSENT)
    module: Any = msgspec.field(name="Python module id", default=ABSENT)


class MemoryArgs(msgspec.Struct, gc=False):
    """Arguments of an allocation or release."""

    address: Any = msgspec.field(name="Addr", default=ABSENT)
    bytes: Any = msgspec.field(name="Bytes", default=ABSENT)
    allocated: Any = msgspec.field(name="Total Allocated", default=ABSENT)
    reserved: Any = msgspec.field(name="Total Reserved", default=ABSENT)
    device_type: Any = msgspec.field(name="Device Type", default=ABSENT)
    device: Any = msgspec.field(name="Device Id", default=ABSENT)


ACTIVITY_KINDS: Final = {
    "kernel": "kernel",
    "Kernel": "kernel",
    "mtia_ccp_events": "kernel",
    "collective_comm": "kernel",
    "gpu_memcpy": "memcpy",
    "Memcpy": "memcpy",
    "gpu_memset": "memset",
    "Memset": "memset",
}
"""Categories of device work and the kind of activity they are."""

CALL_APIS: Final = {
    "cuda_runtime": "runtime",
    "Runtime": "runtime",
    "mtia_runtime": "runtime",
    "xpu_runtime": "runtime",
    "privateuse1_runtime": "runtime",
    "cuda_driver": "driver",
    "xpu_driver": "driver",
    "privateuse1_driver": "driver",
}
"""Categories of API calls and the API they belong to."""

OP_CATEGORIES: Final = frozenset({"cpu_op", "Operator"})

HOST_MARKS: Final = {"user_annotation": "annotation", "overhead": "overhead"}
DEVICE_MARKS: Final = {
    "gpu_user_annotation": "gpu_annotation",
    "cuda_sync": "sync",
    "xpu_sync": "sync",
    "cuda_event": "event",
}
PYTHON_CATEGORIES: Final = frozenset({"python_function", "Python"})

FLOW_CATEGORIES: Final = frozenset({"ac2g", "async_cpu_to_gpu", "async_gpu", "async"})
"""Arrows between a call and its device work; their id is the correlation."""

IGNORED: Final = frozenset(
    {
        "fwdbwd",
        "external_correlation",
        "Trace",
        "glow_runtime",
        "hpu_op",
        "mtia_insight",
        "hardware_counters",
        "mtia_counters",
        "xpu_scope_profiler",
        "cuda_profiler_range",
    }
)
"""Known categories that no table needs; they are counted and nothing else."""

KNOWN_CATEGORIES: Final = (
    frozenset(ACTIVITY_KINDS)
    | frozenset(CALL_APIS)
    | frozenset(HOST_MARKS)
    | frozenset(DEVICE_MARKS)
    | OP_CATEGORIES
    | PYTHON_CATEGORIES
    | FLOW_CATEGORIES
    | IGNORED
    | {"cpu_instant_event"}
)
"""A file none of whose events is of these is not a PyTorch trace."""
