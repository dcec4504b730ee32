"""What a Kineto event looks like to the JSON decoder, and which table each category feeds.

Most text is decoded in one pass: the category of an event is its tag, which tells the type of its
arguments (`tagged_events`). Other text (events without a category, numbers written as text, times
that are not exact as doubles) is decoded as `LooseEvent` or `ExactEvent`, whose arguments stay text
until a second pass. Fields of type Any may have any JSON value; `values` converts them.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import msgspec

from traceflops.parsers.pytorch import legacy
from traceflops.table.columns import ABSENT

NOTHING: Final = msgspec.Raw(b"")


class LooseEvent(msgspec.Struct, gc=False):
    """One element of traceEvents of any category; the arguments are text."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    id: Any = None
    args: msgspec.Raw = NOTHING


class ExactEvent(LooseEvent, gc=False):
    """A LooseEvent with times as text, for times that are not exact as doubles."""

    ts: msgspec.Raw = NOTHING
    dur: msgspec.Raw = NOTHING


class Args(msgspec.Struct, gc=False):
    """Arguments of an event; merged files have its rank."""

    rank: int = ABSENT


class CollectiveArgs(Args, gc=False):
    """Arguments of a collective, on its op and on the kernel it launched; named as the columns."""

    collective: Any = msgspec.field(name="Collective name", default=None)
    collective_dtype: Any = msgspec.field(name="dtype", default=None)
    collective_in_elements: int = msgspec.field(name="In msg nelems", default=ABSENT)
    collective_out_elements: int = msgspec.field(name="Out msg nelems", default=ABSENT)
    collective_group: Any = msgspec.field(name="Process Group Name", default=None)
    collective_group_size: int = msgspec.field(name="Group size", default=ABSENT)
    collective_group_ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    collective_description: Any = msgspec.field(name="Process Group Description", default=None)
    collective_sequence: int = msgspec.field(name="Seq", default=ABSENT)
    collective_call: int = msgspec.field(name="Comms Id", default=ABSENT)
    collective_source: int = msgspec.field(name="Src Rank", default=ABSENT)
    collective_destination: int = msgspec.field(name="Dst Rank", default=ABSENT)


class DeviceArgs(CollectiveArgs, gc=False):
    """Arguments of device work."""

    device: int = ABSENT
    stream: int = ABSENT
    correlation: int = ABSENT
    external_id: int = msgspec.field(name="External id", default=ABSENT)
    old_external_id: int = msgspec.field(name="external id", default=ABSENT)
    queue: int = msgspec.field(name="sycl queue", default=ABSENT)
    bytes: int = ABSENT
    kind: Any = None
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    registers_per_thread: int = msgspec.field(name="registers per thread", default=ABSENT)
    shared_memory_bytes: int = msgspec.field(name="shared memory", default=ABSENT)
    occupancy_percent: int = msgspec.field(name="est. achieved occupancy %", default=ABSENT)
    graph: int = msgspec.field(name="graph id", default=ABSENT)
    graph_node: int = msgspec.field(name="graph node id", default=ABSENT)
    name: Any = None
    stack: Any = None
    sync_kind: Any = msgspec.field(name="cuda_sync_kind", default=None)
    wait_stream: int = msgspec.field(name="wait_on_stream", default=ABSENT)
    wait_correlation: int = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=ABSENT)


class CallArgs(Args, gc=False):
    """Arguments of a runtime or driver call; calls of HIP name the kernel that they launch."""

    kernel: Any = None
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    correlation: int = ABSENT
    external_id: int = msgspec.field(name="External id", default=ABSENT)
    old_external_id: int = msgspec.field(name="external id", default=ABSENT)


class OpArgs(CollectiveArgs, gc=False):
    """Arguments of a framework operator; shapes stay text."""

    external_id: int = msgspec.field(name="External id", default=ABSENT)
    sequence: int = msgspec.field(name="Sequence number", default=ABSENT)
    forward_thread: int = msgspec.field(name="Fwd thread id", default=ABSENT)
    input_dims: msgspec.Raw = msgspec.field(name="Input Dims", default=NOTHING)
    old_input_dims: msgspec.Raw = msgspec.field(name="Input dims", default=NOTHING)
    input_types: msgspec.Raw = msgspec.field(name="Input type", default=NOTHING)
    input_strides: msgspec.Raw = msgspec.field(name="Input Strides", default=NOTHING)
    concrete_inputs: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=NOTHING)
    finished: Any = None
    kernel_backend: Any = None
    kernel_hash: Any = None
    kernel_kwargs: Any = None
    num_warps: Any = None
    num_stages: Any = None


class AnnotationArgs(Args, gc=False):
    """Arguments of a named range of the host; shapes stay text."""

    input_dims: msgspec.Raw = msgspec.field(name="Input Dims", default=NOTHING)
    input_types: msgspec.Raw = msgspec.field(name="Input type", default=NOTHING)


class PythonArgs(Args, gc=False):
    """Arguments of a python frame."""

    python_id: int = msgspec.field(name="Python id", default=ABSENT)
    parent: int | None = msgspec.field(name="Python parent id", default=ABSENT)
    module: int = msgspec.field(name="Python module id", default=ABSENT)


class MemoryArgs(Args, gc=False):
    """Arguments of an allocation or release."""

    address: int = msgspec.field(name="Addr", default=ABSENT)
    bytes: int = msgspec.field(name="Bytes", default=ABSENT)
    allocated: int = msgspec.field(name="Total Allocated", default=ABSENT)
    reserved: int = msgspec.field(name="Total Reserved", default=ABSENT)
    device_type: int = msgspec.field(name="Device Type", default=ABSENT)
    device: int = msgspec.field(name="Device Id", default=ABSENT)


ACTIVITY_KINDS: Final = {
    **dict.fromkeys(("kernel", "Kernel", "mtia_ccp_events", "collective_comm"), "kernel"),
    **dict.fromkeys(("gpu_memcpy", "Memcpy"), "memcpy"),
    **dict.fromkeys(("gpu_memset", "Memset"), "memset"),
}
"""Categories of device work and the kind of activity they are."""

CALL_APIS: Final = {
    **dict.fromkeys(("cuda_runtime", "Runtime", "mtia_runtime", "xpu_runtime"), "runtime"),
    "privateuse1_runtime": "runtime",
    **dict.fromkeys(("cuda_driver", "xpu_driver", "privateuse1_driver"), "driver"),
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
        *("fwdbwd", "external_correlation", "Trace", "glow_runtime", "hpu_op", "mtia_insight"),
        *("hardware_counters", "mtia_counters", "xpu_scope_profiler", "cuda_profiler_range"),
    }
)
"""Known categories that no table needs; their events are only counted."""

INSTANT: Final = "cpu_instant_event"

KNOWN_CATEGORIES: Final = frozenset({INSTANT}).union(
    *(ACTIVITY_KINDS, CALL_APIS, HOST_MARKS, DEVICE_MARKS),
    *(OP_CATEGORIES, PYTHON_CATEGORIES, FLOW_CATEGORIES, IGNORED),
)
"""A file without any event of these categories is not a PyTorch trace."""

ARGS: Final[dict[str, type[Args]]] = {
    **dict.fromkeys((*ACTIVITY_KINDS, *DEVICE_MARKS), DeviceArgs),
    **dict.fromkeys(CALL_APIS, CallArgs),
    **dict.fromkeys(OP_CATEGORIES, OpArgs),
    "user_annotation": AnnotationArgs,
    legacy.OPS: OpArgs,
    legacy.WORK: DeviceArgs,
    **dict.fromkeys(PYTHON_CATEGORIES, PythonArgs),
    INSTANT: MemoryArgs,
}
"""By category: the type of the arguments. Arguments of other categories are not read."""


@cache
def tagged_events(python_stacks: bool) -> tuple[type[msgspec.Struct], ...]:
    """Return a type of event per known category, which decoders choose by the category as tag.

    Its `args` have the type in `ARGS`. If no table needs a category, only its phase is decoded.
    """
    unused = IGNORED if python_stacks else IGNORED | PYTHON_CATEGORIES
    types = []
    for category in sorted(KNOWN_CATEGORIES):
        names = ("ph",) if category in unused else ("ph", "name", "pid", "tid", "ts", "dur")
        fields: list[Any] = [(name, Any, None) for name in names]
        args_type = ARGS.get(category)
        if args_type is not None and category not in unused:
            fields.append(("args", args_type, msgspec.field(default_factory=args_type)))
        if category in FLOW_CATEGORIES:
            fields.append(("id", Any, None))
        types.append(msgspec.defstruct(category, fields, tag_field="cat", tag=category, gc=False))
    return tuple(types)
