"""The tables of an export of Nsight Systems, as data: columns by table and era.

A word is a column: `name` is a number, `name:T` a text, `name:R` a real; `!` is NOT NULL. What
stands under an era's name came with it.

What the numbers of an export stand for: rows of its ENUM tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal

from msgspec import Struct

Era = Literal["2020", "2023", "2026"]
Value = str | int | float | None
Row = Mapping[str, Value]
Tables = dict[str, list[Row]]

ERAS: Final[tuple[Era, ...]] = ("2020", "2023", "2026")
RELEASES: Final[Mapping[Era, tuple[str, str]]] = {
    "2023": ("2023.1.2.43", "3.1.2"),
    "2026": ("2026.1.3.425", "3.24.18"),
}
"""Version of the program and of the schema; exports of 2020 do not say them."""

_PLACE: Final = "start! end! deviceId! contextId! {green} streamId! correlationId globalPid"
_KIND: Final = "CUPTI_ACTIVITY_KIND_"
_COLUMNS: Final = {
    "StringIds": "id! value:T!",
    f"{_KIND}MEMCPY": f"{_PLACE} bytes! copyKind! deprecatedSrcId srcKind dstKind srcDeviceId "
    "srcContextId dstDeviceId dstContextId {cause} graphNodeId {address}",
    f"{_KIND}MEMSET": f"{_PLACE} value! bytes! graphNodeId memKind",
    f"{_KIND}KERNEL": f"{_PLACE} demangledName! shortName! {{mangled}} launchType cacheConfig "
    "registersPerThread! gridX! gridY! gridZ! blockX! blockY! blockZ! staticSharedMemory! "
    "dynamicSharedMemory! localMemoryPerThread! localMemoryTotal! gridId! sharedMemoryExecuted "
    "graphNodeId sharedMemoryLimitConfig {cluster}",
    f"{_KIND}GRAPH_TRACE": f"{_PLACE} graphId! graphExecId!",
    f"{_KIND}RUNTIME": "start! end! eventClass! globalTid correlationId nameId! returnValue! "
    "callchainId",
    f"{_KIND}SYNCHRONIZATION": f"{_PLACE} {{sync}} syncType! eventId! {{eventsync}}",
    f"{_KIND}CUDA_EVENT": "timestamp deviceId! contextId! greenContextId streamId! correlationId "
    "globalPid eventId! eventSyncId",
    "OSRT_API": "start! end! eventClass! globalTid correlationId nameId! returnValue! nestingLevel "
    "callchainId",
    "NVTX_EVENTS": "start! end eventType! rangeId category color text:T globalTid endGlobalTid "
    "textId domainId uint64Value int64Value doubleValue:R uint32Value int32Value floatValue:R "
    "jsonTextId jsonText:T {binary}",
    "TARGET_INFO_CUDA_GPU": "pid! deviceId! name:T globalMemoryBandwidth globalMemorySize "
    "coreClockRate numMultiprocessors computeCapabilityMajor computeCapabilityMinor "
    "numThreadsPerWarp",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId! pid! uuid:T numMultiprocessors",
    "TARGET_INFO_CUDA_NULL_STREAM": "streamId! hwId! vmId! processId! deviceId! contextId!",
    "TARGET_INFO_CUDA_CONTEXT_INFO": "nullStreamId! hwId! vmId! processId! deviceId! contextId! "
    "parentContextId isGreenContext",
    "TARGET_INFO_CUDA_STREAM": "streamId! hwId! vmId! processId! contextId! priority! flag!",
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName:T! name:T! nameEnum! value:T!",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime:T localTime:T {clock}",
    "ANALYSIS_DETAILS": "globalVid! duration! startTime! stopTime!",
    "DIAGNOSTIC_EVENT": "timestamp! timestampType! source! severity! text:T! globalPid",
    "PROCESSES": "globalPid pid name:T",
    "ThreadNames": "nameId! priority globalTid",
    "EXPORT_META_DATA": "name:T! value:T",
    "META_DATA_EXPORT": "name:T! value:T",
    "META_DATA_CAPTURE": "name:T! value:T",
}
_GPU_OLD: Final = "deviceId! name:T"
_GPU: Final = (
    "vmId! id! name:T busLocation:T isDiscrete l2CacheSize totalMemory memoryBandwidth clockRate "
    "smCount pwGpuId uuid:T luid chipName:T cuDevice constantMemory maxRegistersPerBlock "
    "maxShmemPerBlock maxShmemPerBlockOptin maxShmemPerSm maxRegistersPerSm threadsPerWarp "
    "asyncEngines maxWarpsPerSm maxBlocksPerSm maxThreadsPerBlock computeMajor computeMinor "
    "smMajor smMinor"
)
_ENUM: Final = "id! name:T label:T"

_NOTHING: Final = dict.fromkeys(
    (
        *("green", "cause", "address", "mangled", "cluster", "sync", "eventsync", "binary"),
        "clock",
    ),
    "",
)
_OF_2023: Final = _NOTHING | {
    "cause": "migrationCause",
    "address": "virtualAddress",
    "mangled": "mangledName",
}
_ADDED: Final[Mapping[Era, Mapping[str, str]]] = {
    "2020": _NOTHING,
    "2023": _OF_2023,
    "2026": _OF_2023
    | {
        "green": "greenContextId",
        "address": "virtualAddress copyCount",
        "cluster": "qmdBulkReleaseDone qmdPreexitDone qmdLastCtaDone graphId clusterX clusterY "
        "clusterZ clusterSchedulingPolicy maxPotentialClusterSize maxActiveClusters "
        "sharedMemoryRequestedPercentage tensorSizeMinusOneElements:T!",
        "sync": "deprecatedSyncType",
        "eventsync": "eventSyncId",
        "binary": "binaryData:T",
        "clock": "systemClockNs",
    },
}
_LACKING: Final[Mapping[Era, frozenset[str]]] = {
    "2020": frozenset(
        {
            *(f"{_KIND}GRAPH_TRACE", f"{_KIND}CUDA_EVENT", "TARGET_INFO_CUDA_DEVICE"),
            *("TARGET_INFO_CUDA_CONTEXT_INFO", "TARGET_INFO_SYSTEM_ENV", "ANALYSIS_DETAILS"),
            *("TARGET_INFO_SESSION_START_TIME", "DIAGNOSTIC_EVENT", "PROCESSES"),
            *("EXPORT_META_DATA", "META_DATA_EXPORT", "META_DATA_CAPTURE"),
        }
    ),
    "2023": frozenset(
        {
            *(f"{_KIND}CUDA_EVENT", "TARGET_INFO_CUDA_DEVICE", "TARGET_INFO_CUDA_CONTEXT_INFO"),
            *("TARGET_INFO_CUDA_GPU", "DIAGNOSTIC_EVENT", "META_DATA_EXPORT", "META_DATA_CAPTURE"),
        }
    ),
    "2026": frozenset({"TARGET_INFO_CUDA_GPU", "TARGET_INFO_CUDA_NULL_STREAM", "EXPORT_META_DATA"}),
}
"""Tables that an era does not know, or no longer."""


class Column(Struct, frozen=True):
    """A column; `kind` is INTEGER, TEXT or REAL."""

    name: str
    kind: str
    required: bool


def columns_of(table: str, era: Era) -> list[Column]:
    """Return the columns of a table in an era."""
    if table == "TARGET_INFO_GPU":
        words = _GPU_OLD if era == "2020" else _GPU
    else:
        words = _ENUM if table.startswith("ENUM_") else _COLUMNS[table].format(**_ADDED[era])
    return [_column(word) for word in words.split()]


def of_era(tables: Tables, era: Era) -> Iterator[tuple[str, list[Column], list[Row]]]:
    """Give the tables that an export of an era has: those it knows and that have rows."""
    for name, rows in tables.items():
        if rows and name not in _LACKING[era]:
            yield name, columns_of(name, era), rows


def _column(word: str) -> Column:
    name, _, kind = word.rstrip("!").partition(":")
    kinds = {"": "INTEGER", "T": "TEXT", "R": "REAL"}
    return Column(name, kinds[kind], word.endswith("!"))


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
