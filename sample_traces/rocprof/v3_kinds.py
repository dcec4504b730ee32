"""The kinds of records that rocprofv3 writes, by number, and the operations of each."""

from __future__ import annotations

from typing import Final, Literal

from sample_traces.rocprof.capture import Domain

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
