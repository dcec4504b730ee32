"""Makes exports of Nsight Systems, a row at a time, as its versions wrote them."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SECRET = "env-value-removed"
HOST, USER = "node-of-somebody", "somebody"
PID, TID = 4242, 945961
VM = 1 << 48

KERNEL = (
    "start end deviceId contextId streamId correlationId globalPid demangledName shortName "
    "mangledName launchType cacheConfig registersPerThread gridX gridY gridZ blockX blockY blockZ "
    "staticSharedMemory dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId "
    "sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig"
)
COPY = (
    "start end deviceId contextId streamId correlationId globalPid bytes copyKind deprecatedSrcId "
    "srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId migrationCause graphNodeId"
)
NVTX = (
    "start end eventType rangeId category color text globalTid endGlobalTid textId domainId "
    "uint64Value int64Value uint32Value int32Value jsonTextId jsonText"
)
COLUMNS = {
    "StringIds": "id value",
    "CUPTI_ACTIVITY_KIND_KERNEL": KERNEL,
    "CUPTI_ACTIVITY_KIND_MEMCPY": COPY,
    "CUPTI_ACTIVITY_KIND_MEMSET": "start end deviceId contextId streamId correlationId globalPid "
    "value bytes graphNodeId memKind",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start end deviceId contextId greenContextId streamId "
    "correlationId globalPid graphId graphExecId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId "
    "returnValue callchainId",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "start end deviceId contextId streamId correlationId "
    "globalPid syncType eventId",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "timestamp deviceId contextId streamId correlationId "
    "globalPid eventId",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": "start end eventClass globalTid correlationId nameId "
    "overheadType",
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS": "start end globalPid deviceId address numberOfPageFaults "
    "faultAccessType",
    "CUDA_GRAPH_NODE_EVENTS": "start end eventClass globalTid nameId graphNodeId "
    "originalGraphNodeId",
    "PROFILER_OVERHEAD": "start end globalTid nameId returnValue",
    "CUPTI_ACTIVITY_KIND_OPENACC_DATA": "start end nameId eventClass globalTid lineNo",
    "OSRT_API": "start end eventClass globalTid nameId returnValue nestingLevel callchainId",
    "COMPOSITE_EVENTS": "id start cpu threadState globalTid cpuCycles",
    "SAMPLING_CALLCHAINS": "id symbol module kernelMode unresolved originalIP stackDepth",
    "NVTX_EVENTS": NVTX,
    "CUDA_GPU_MEMORY_USAGE_EVENTS": "start globalPid deviceId contextId address bytes memKind "
    "memoryOperationType name correlationId",
    "GPU_METRICS": "timestamp typeId metricId value",
    "TARGET_INFO_GPU_METRICS": "typeId metricId metricName",
    "TARGET_INFO_GPU": "vmId id name busLocation totalMemory memoryBandwidth clockRate smCount "
    "uuid chipName threadsPerWarp computeMajor computeMinor",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid uuid",
    "TARGET_INFO_CUDA_GPU": "pid deviceId globalMemoryBandwidth globalMemorySize coreClockRate "
    "numMultiprocessors computeCapabilityMajor computeCapabilityMinor",
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName name nameEnum value",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime localTime",
    "ANALYSIS_DETAILS": "globalVid duration startTime stopTime",
    "META_DATA_EXPORT": "name value",
    "META_DATA_CAPTURE": "name value",
    "EXPORT_META_DATA": "name value",
    "DIAGNOSTIC_EVENT": "timestamp timestampType source severity text globalPid",
    "PROCESSES": "globalPid pid name",
    "MPI_RANKS": "globalPid rank",
}
TEXTS = {"value", "name", "text", "jsonText", "uuid", "metricName", "devStateName", "chipName"}
TEXTS |= {"busLocation", "utcTime", "localTime"}
NOT_TEXT = {("CUPTI_ACTIVITY_KIND_MEMSET", "value"), ("GPU_METRICS", "value")}


def process(pid: int = PID) -> int:
    return VM | pid << 24


def thread(tid: int = TID, pid: int = PID) -> int:
    return process(pid) | tid


class NsysFile:
    """An export as it is made: rows by table; strings become ids. A table comes with its rows."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.columns: dict[str, tuple[str, ...]] = {}
        self._strings: dict[str, int] = {}

    def string(self, text: str) -> int:
        if text not in self._strings:
            self._strings[text] = len(self._strings)
            self.row("StringIds", id=self._strings[text], value=text)
        return self._strings[text]

    def row(self, table: str, /, **values: Any) -> None:
        self.rows[table].append(values)

    def kernel(self, start: int, end: int | None, name: str = "k(int)", **more: Any) -> None:
        values = {
            "start": start,
            "end": end,
            "deviceId": 0,
            "contextId": 1,
            "streamId": 7,
            "globalPid": process(),
            "demangledName": self.string(name),
            "shortName": self.string(name.partition("(")[0]),
            "registersPerThread": 32,
            "staticSharedMemory": 16,
            "dynamicSharedMemory": 32,
            **{f"grid{axis}": size for axis, size in zip("XYZ", (4, 2, 1), strict=True)},
            **{f"block{axis}": size for axis, size in zip("XYZ", (128, 1, 1), strict=True)},
        }
        self.row("CUPTI_ACTIVITY_KIND_KERNEL", **values | more)

    def copy(self, start: int, end: int, kind: int, size: int = 64, **more: Any) -> None:
        place = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": process()}
        values = {"start": start, "end": end, "copyKind": kind, "bytes": size, **place, **more}
        self.row("CUPTI_ACTIVITY_KIND_MEMCPY", **values)

    def fill(self, start: int, end: int, size: int = 64, **more: Any) -> None:
        place = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": process()}
        values = {"start": start, "end": end, "value": 0, "bytes": size, **place, **more}
        self.row("CUPTI_ACTIVITY_KIND_MEMSET", **values)

    def graph(self, start: int, end: int, graph: int, **more: Any) -> None:
        place = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": process()}
        values = {"start": start, "end": end, "graphId": graph, "graphExecId": graph + 1, **place}
        self.row("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", **values | more)

    def call(self, start: int, end: int, correlation: int, **more: Any) -> None:
        name = more.pop("name", "cudaLaunchKernel_v7000")
        values = {
            "start": start,
            "end": end,
            "eventClass": 0,
            "globalTid": thread(),
            "correlationId": correlation,
            "nameId": self.string(name),
            "returnValue": 0,
        }
        self.row("CUPTI_ACTIVITY_KIND_RUNTIME", **values | more)

    def range(self, start: int, end: int | None, text: str | None, **more: Any) -> None:
        values = {"start": start, "end": end, "eventType": 59, "text": text, "domainId": 0}
        self.row("NVTX_EVENTS", **values | {"globalTid": thread()} | more)

    def gpu(self, number: int = 0, name: str = "NVIDIA H100 80GB HBM3", **more: Any) -> None:
        values = {"id": number, "name": name, "totalMemory": 85_899_345_920, "smCount": 132}
        values |= {"clockRate": 1_980_000_000, "threadsPerWarp": 32}
        self.row("TARGET_INFO_GPU", **values | {"computeMajor": 9, "computeMinor": 0} | more)

    def environment(self) -> None:
        """Add what must never leave the file, everywhere it stands in real ones."""
        block = f"API_KEY={SECRET}\0PATH={SECRET}"
        self.string(block)
        self.row("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value=f"A={SECRET}")
        self.row("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value=f"B={SECRET}")
        self.row("META_DATA_CAPTURE", name="PROCESS_0:ARGUMENT_0", value=f"--token={SECRET}")
        self.row("META_DATA_CAPTURE", name="PROCESS_0:WORKING_DIR", value=f"/home/{SECRET}")
        self.row("TARGET_INFO_SYSTEM_ENV", name="DeviceEnvironment", value=f"A={SECRET};B=1")
        self.row("TARGET_INFO_SYSTEM_ENV", name="Hostname", value=HOST)
        self.row("PROCESSES", globalPid=process(1), pid=1, name=f"/opt/{SECRET}")

    def columns_of(self, table: str) -> tuple[str, ...]:
        known = self.columns.get(table, tuple(COLUMNS.get(table, "").split()))
        used = (name for row in self.rows[table] for name in row)
        return known if table in self.columns else tuple(dict.fromkeys((*known, *used)))

    def save(self, path: Path) -> Path:
        """Write the export as an SQLite database."""
        connection = sqlite3.connect(path)
        for table in list(self.rows):
            columns = self.columns_of(table)
            declared = ", ".join(f'"{name}" {_declared(table, name)}' for name in columns)
            connection.execute(f'CREATE TABLE "{table}" ({declared})')
            marks = ", ".join("?" * len(columns))
            connection.executemany(
                f'INSERT INTO "{table}" VALUES ({marks})',
                [tuple(row.get(name) for name in columns) for row in self.rows[table]],
            )
        connection.commit()
        connection.close()
        return path

    def save_parquet(self, folder: Path) -> Path:
        """Write the export as a folder of Parquet files."""
        folder.mkdir(parents=True)
        for table, rows in self.rows.items():
            columns = {
                name: pa.array([row.get(name) for row in rows], _arrow_type(table, name))
                for name in self.columns_of(table)
            }
            pq.write_table(pa.table(columns), folder / f"{table}.parquet")
        return folder

    def save_arrow(self, folder: Path, *, stream: bool = False) -> Path:
        """Write the export as a folder of Arrow files."""
        folder.mkdir(parents=True)
        make = pa.ipc.new_stream if stream else pa.ipc.new_file
        for table, rows in self.rows.items():
            columns = {
                name: pa.array([row.get(name) for row in rows], _arrow_type(table, name))
                for name in self.columns_of(table)
            }
            whole = pa.table(columns)
            with make(str(folder / f"{table}.arrow"), whole.schema) as writer:
                writer.write_table(whole)
        return folder


def _is_text(table: str, column: str) -> bool:
    return column in TEXTS and (table, column) not in NOT_TEXT


def _declared(table: str, column: str) -> str:
    return "TEXT" if _is_text(table, column) else "INTEGER"


def _arrow_type(table: str, column: str) -> pa.DataType:
    return pa.string() if _is_text(table, column) else pa.int64()


@contextmanager
def nsys(path: Path) -> Iterator[NsysFile]:
    """Give an export to fill; it is written when the context ends."""
    made = NsysFile()
    yield made
    made.save(path)


def small(era: str = "2026") -> NsysFile:
    """Return a small run as an era's version wrote it; what it says of the run is the same."""
    made = NsysFile()
    made.environment()
    made.call(1_000, 1_500, 1)
    made.kernel(2_000, 3_000, "void gemm<float>(float*)", correlationId=1)
    made.call(3_100, 3_200, 2, name="cudaMemcpyAsync_v3020")
    made.copy(4_000, 4_500, 1, 4096, correlationId=2, srcKind=1, dstKind=2)
    made.call(4_600, 4_700, 3, name="cudaMemsetAsync_v3020")
    made.fill(5_000, 5_100, 512, correlationId=3, memKind=2)
    made.call(5_200, 5_300, 4, name="cuLaunchKernel", eventClass=1)
    made.kernel(6_000, 7_000, "relu(float*)", correlationId=4)
    made.range(900, 5_400, "step 1")
    made.range(5_000, None, None, textId=made.string("a mark"), eventType=34)
    if era == "2020":
        _as_of_2020(made)
        return made
    made.gpu()
    made.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000_000_000_000)
    table = "EXPORT_META_DATA" if era == "2022" else "META_DATA_EXPORT"
    version = {"2022": "2.9.1", "2023": "3.4.0"}.get(era, "3.25.0")
    made.row(table, name="EXPORT_SCHEMA_VERSION", value=version)
    made.row(table, name="EXPORT_PRODUCT_VERSION", value="2022.2.1.31")
    made.row(table, name="EXPORT_OUTUPT_PATH", value=f"/home/{USER}/out.sqlite")
    made.row(table, name="EXPORT_HOST", value=HOST)
    made.row(table, name="EXPORT_USER", value=USER)
    if era == "2026":
        made.row("TARGET_INFO_CUDA_DEVICE", gpuId=0, cudaId=0, pid=PID)
        more = ("greenContextId", "graphId", "clusterX", "somethingOfTomorrow")
        kernel = tuple(COLUMNS["CUPTI_ACTIVITY_KIND_KERNEL"].split())
        made.columns["CUPTI_ACTIVITY_KIND_KERNEL"] = (*kernel, *more)
    return made


def _as_of_2020(made: NsysFile) -> None:
    """Take away what reports of 2020 and 2021 do not have, and list the GPU as they do."""
    for table in ("META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV", "PROCESSES"):
        made.rows.pop(table, None)
    for table, absent in (
        ("CUPTI_ACTIVITY_KIND_KERNEL", {"mangledName"}),
        ("CUPTI_ACTIVITY_KIND_MEMCPY", {"virtualAddress", "srcDeviceId"}),
    ):
        made.columns[table] = tuple(c for c in COLUMNS[table].split() if c not in absent)
    made.columns["TARGET_INFO_GPU"] = ("deviceId", "name")
    made.row("TARGET_INFO_GPU", deviceId=0, name="NVIDIA H100 80GB HBM3")
    made.row(
        "TARGET_INFO_CUDA_GPU",
        pid=PID,
        deviceId=0,
        globalMemorySize=85_899_345_920,
        coreClockRate=1_980_000,
        numMultiprocessors=132,
        computeCapabilityMajor=9,
        computeCapabilityMinor=0,
    )
