"""What the numbers of an export stand for: rows of its ENUM tables."""

from __future__ import annotations

from typing import Final

from sample_traces.nsight.schema import Era, Tables

COPY_KINDS: Final = {"HtoD": 1, "DtoH": 2}
PINNED: Final = 1
DEVICE: Final = 2
WAITS: Final = {
    "cudaEventSynchronize": 1,
    "cudaStreamWaitEvent": 2,
    "cudaStreamSynchronize": 3,
    "cudaDeviceSynchronize": 4,
}
MARK: Final = 34
PUSH_POP: Final = 59
DOMAIN: Final = 75
RUNTIME: Final = 0
DRIVER: Final = 1
SYSTEM: Final = 27

_Named = tuple[tuple[int, str, str], ...]
_COPIES: Final = (
    *((0, "UNKNOWN", "Unknown"), (1, "HTOD", "Host-to-Device"), (2, "DTOH", "Device-to-Host")),
    *((8, "DTOD", "Device-to-Device"), (10, "PTOP", "Peer-to-Peer")),
)
_MEMORY: Final = (
    *((0, "PAGEABLE", "Pageable"), (1, "PINNED", "Pinned"), (2, "DEVICE", "Device")),
    *((3, "ARRAY", "Array"), (4, "MANAGED", "Managed")),
)
_LAUNCHES: Final = ((0, "UNKNOWN", "Unknown"), (1, "REGULAR", "Regular"))
_SYNCS: Final = (
    *((1, "EVENT_SYNCHRONIZE", "Event sync"), (2, "STREAM_WAIT_EVENT", "Stream wait sync")),
    *((3, "STREAM_SYNCHRONIZE", "Stream sync"), (4, "CONTEXT_SYNCHRONIZE", "Context sync")),
)
_CLASSES: Final = ((0, "CUDA_RUNTIME", "CUDA runtime"), (1, "CUDA_DRIVER", "CUDA driver"))
_TYPES: Final = (
    *((34, "NvtxMark", "NvtxMark"), (59, "NvtxPushPopRange", "NvtxPushPopRange")),
    *((60, "NvtxStartEndRange", "NvtxStartEndRange"), (75, "NvtxDomainCreate", "NvtxDomainCreate")),
)
_ENUMS: Final[dict[str, tuple[str, _Named]]] = {
    "ENUM_CUDA_MEMCPY_OPER": ("CUDA_MEMCPY_KIND_", _COPIES),
    "ENUM_CUDA_MEM_KIND": ("CUDA_MEMOPR_MEMORY_KIND_", _MEMORY),
    "ENUM_CUDA_KERNEL_LAUNCH_TYPE": ("CUDA_KERNEL_LAUNCH_TYPE_", _LAUNCHES),
    "ENUM_CUPTI_SYNC_TYPE": ("CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_", _SYNCS),
    "ENUM_NSYS_EVENT_CLASS": ("TRACE_PROCESS_EVENT_", _CLASSES),
    "ENUM_NSYS_EVENT_TYPE": ("", _TYPES),
}
_MISSPELT: Final = {"ENUM_CUDA_KERNEL_LAUNCH_TYPE": "ENUM_CUDA_KRENEL_LAUNCH_TYPE"}


def enums(era: Era) -> Tables:
    """Return the tables that explain numbers; those of 2020 have none, one of 2023 is misspelt."""
    if era == "2020":
        return {}
    return {
        _MISSPELT.get(table, table) if era == "2023" else table: [
            {"id": number, "name": head + name, "label": label} for number, name, label in named
        ]
        for table, (head, named) in _ENUMS.items()
    }
