"""Databases of nvprof and the Visual Profiler: the same tables as those of Nsight Systems."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import traceflops as tf
from tests.conftest import shared_file
from tests.parsers.nsight.nsysfile import NsysFile
from tests.parsers.nsight.test_nsys_quirks import codes, note, rows
from traceflops.remedies import advice, command

BORN = 1_600_000_000 * 10**9
PID, TID = 4_242, 0x6D0B_01C0
PLACE = {"deviceId": 0, "contextId": 1, "streamId": 7}
COLUMNS = {
    "CONCURRENT_KERNEL": "start end deviceId contextId streamId correlationId name gridX gridY "
    "gridZ blockX blockY blockZ staticSharedMemory dynamicSharedMemory registersPerThread",
    "MEMCPY": "start end deviceId contextId streamId correlationId copyKind srcKind dstKind bytes",
    "MEMCPY2": "start end deviceId contextId streamId correlationId copyKind srcKind dstKind bytes "
    "srcDeviceId dstDeviceId",
    "MEMSET": "start end deviceId contextId streamId correlationId bytes memoryKind",
    "UNIFIED_MEMORY_COUNTER": "start end counterKind value srcId dstId streamId processId",
    "RUNTIME": "start end cbid processId threadId correlationId",
    "SYNCHRONIZATION": "start end type contextId streamId correlationId",
    "CONTEXT": "contextId deviceId",
    "OVERHEAD": "start end overheadKind objectKind objectId",
    "MARKER": "timestamp flags id objectKind objectId name domain",
    "DEVICE": "id name globalMemorySize numMultiprocessors computeCapabilityMajor "
    "computeCapabilityMinor coreClockRate numThreadsPerWarp uuid",
    "PCIE": "type id",
    "METRIC": "value",
}
COLUMNS |= dict.fromkeys(("KERNEL", "CDP_KERNEL"), COLUMNS["CONCURRENT_KERNEL"])
COLUMNS["DRIVER"] = COLUMNS["RUNTIME"]


class NvprofFile:
    """A database as nvprof writes it, a row at a time; all its tables are there."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.texts = ["-- null --"]

    def text(self, text: str) -> int:
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text)

    def row(self, table: str, at: int | None = None, length: int = 0, /, **values: Any) -> None:
        times = {} if at is None else {"start": BORN + at, "end": BORN + at + length}
        self.rows[table].append(times | values)

    def kernel(self, at: int, length: int, call: int, table: str = "CONCURRENT_KERNEL") -> None:
        sizes = {f"{what}{axis}": 1 for what in ("grid", "block") for axis in "XYZ"} | {"gridX": 64}
        shared = {"staticSharedMemory": 16, "dynamicSharedMemory": 32, "registersPerThread": 40}
        name = {"name": self.text("_Z6VecAddPKiS0_Pii"), "correlationId": call}
        self.row(table, at, length, **PLACE, **name, **sizes, **shared)

    def call(self, at: int, length: int, cbid: int, call: int, **more: Any) -> None:
        table = more.pop("table", "RUNTIME")
        who = {"processId": PID, "threadId": TID, "correlationId": call, "cbid": cbid}
        self.row(table, at, length, **who | more)

    def marker(self, at: int, flags: int, number: int, name: str = "", **more: Any) -> None:
        owner = {"objectKind": 2, "objectId": thread(PID, TID), "domain": 0}
        text = self.text(name) if name else 0
        values = {"timestamp": BORN + at, "flags": flags, "id": number, "name": text}
        self.row("MARKER", **values | owner | more)

    def gpu(self, number: int = 0, name: str = "Tesla K20c") -> None:
        self.row(
            "DEVICE",
            id=number,
            name=self.text(name),
            globalMemorySize=5 << 30,
            numMultiprocessors=13,
            computeCapabilityMajor=3,
            computeCapabilityMinor=5,
            coreClockRate=705_500,
            numThreadsPerWarp=32,
            uuid=bytes(range(number, number + 16)),
        )

    def save(self, path: Path) -> Path:
        with sqlite3.connect(path) as made:
            made.execute("CREATE TABLE StringTable (_id_ INTEGER PRIMARY KEY, value TEXT)")
            made.executemany("INSERT INTO StringTable VALUES (?, ?)", enumerate(self.texts))
            made.execute("CREATE TABLE Version (version INTEGER)")
            for table, columns in COLUMNS.items():
                named = f"CUPTI_ACTIVITY_KIND_{table}"
                own = columns.split()
                made.execute(f"CREATE TABLE {named} (_id_ INTEGER PRIMARY KEY, {', '.join(own)})")
                marks = ", ".join("?" * len(own))
                made.executemany(
                    f"INSERT INTO {named} ({', '.join(own)}) VALUES ({marks})",
                    [[row.get(column) for column in own] for row in self.rows[table]],
                )
        made.close()
        return path


def thread(pid: int, tid: int) -> bytes:
    return pid.to_bytes(4, "little") + tid.to_bytes(4, "little") + bytes(4)


def small() -> NvprofFile:
    """Return a kernel, copies between host, device and devices, a fill, and their calls."""
    made = NvprofFile()
    made.gpu()
    made.row("CONTEXT", contextId=1, deviceId=0)
    made.call(0, 50, 211, 1)  # cudaLaunchKernel
    made.kernel(100, 900, 1)
    made.call(60, 20, 31, 2)  # cudaMemcpy
    kinds = {"copyKind": 2, "srcKind": 3, "dstKind": 1, "bytes": 64}
    made.row("MEMCPY", 1_000, 100, **PLACE, correlationId=2, **kinds)
    made.row("MEMSET", 1_200, 10, **PLACE, correlationId=3, bytes=32, memoryKind=3)
    made.call(90, 5, 251, 3, table="DRIVER")  # cuMemsetD32_v2
    return made


def test_the_tables_are_those_of_nsight_systems(tmp_path: Path) -> None:
    trace = tf.read(small().save(tmp_path / "run.nvvp"))
    assert (trace.source.format, trace.source.tool) == ("nvprof", "nvprof")
    assert trace.source.origin_unix_ns == 0
    columns = ("kind", "name", "start_ns", "dur_ns", "stream", "correlation", "bytes", "direction")
    assert rows(trace, "activities", *columns) == [
        ("kernel", "_Z6VecAddPKiS0_Pii", BORN + 100, 900, 7, 1, None, None),
        ("memcpy", "Memcpy DtoH (Device -> Pageable)", BORN + 1_000, 100, 7, 2, 64, "DtoH"),
        ("memset", "Memset (Device)", BORN + 1_200, 10, 7, 3, 32, None),
    ]
    sizes = ("grid", "block", "registers_per_thread", "shared_memory_bytes")
    assert rows(trace, "activities", *sizes)[0] == ([64, 1, 1], [1, 1, 1], 40, 48)
    assert rows(trace, "calls", "api", "name", "start_ns", "dur_ns", "thread", "correlation") == [
        ("runtime", "cudaLaunchKernel", BORN, 50, TID, 1),
        ("runtime", "cudaMemcpy", BORN + 60, 20, TID, 2),
        ("driver", "cuMemsetD32_v2", BORN + 90, 5, TID, 3),
    ]
    facts = ("product", "memory_bytes", "sm_count", "compute_major", "warp_size", "clock_hz")
    assert rows(trace, "devices", *facts) == [("Tesla K20c", 5 << 30, 13, 3, 32, 705_500_000)]
    assert trace.places == ("everywhere 00010203-0405-0607-0809-0a0b0c0d0e0f",)
    assert rows(trace, "processes", "pid") == [PID]
    assert not trace.notes
    assert tf.analyze(trace).total.components.idle_ns == 100


@pytest.mark.parametrize("table", ["KERNEL", "CDP_KERNEL"])
def test_kernels_stand_in_any_of_three_tables(tmp_path: Path, table: str) -> None:
    made = small()
    made.kernel(1_300, 7, 9, table)
    trace = tf.read(made.save(tmp_path / "a.nvprof"))
    assert rows(trace, "activities", "kind", "dur_ns")[-1] == ("kernel", 7)


def test_copies_between_devices_and_of_unified_memory(tmp_path: Path) -> None:
    made = small()
    between = {"copyKind": 10, "srcKind": 3, "dstKind": 3, "bytes": 8, "correlationId": 5}
    made.row("MEMCPY2", 1_300, 10, **PLACE, **between, srcDeviceId=0, dstDeviceId=1)
    for number, kind in enumerate((1, 2, 8, 3, 4)):  # page faults of the CPU, and of the GPU
        ends = {"srcId": 0, "dstId": 0, "streamId": 7, "processId": PID}
        made.row("UNIFIED_MEMORY_COUNTER", 1_400 + number, 1, counterKind=kind, value=4_096, **ends)
    trace = tf.read(made.save(tmp_path / "a.nvvp"))
    assert rows(trace, "activities", "name", "bytes", "direction")[-4:] == [
        ("Memcpy PtoP (Device -> Device)", 8, "PtoP"),
        ("Unified memory HtoD", 4_096, "migration HtoD"),
        ("Unified memory DtoH", 4_096, "migration DtoH"),
        ("Unified memory DtoD", 4_096, "migration DtoD"),
    ]
    assert rows(trace, "marks", "kind", "device", "start_ns", "dur_ns")[-1:] == [
        ("page_fault", 0, BORN + 1_404, 1)
    ]
    assert note(trace, "unified-memory").count == 1


def test_ranges_waits_and_overheads(tmp_path: Path) -> None:
    made = small()
    made.marker(10, 2, 1, "step 1")
    made.marker(20, 2, 2, "aten::mm, seq = 12, sizes = [[2, 3], [3, 4]]")
    made.marker(30, 4, 2)
    made.marker(40, 1, 3, "a mark")
    made.marker(45, 2, 4, "ncclSend", domain=made.text("NCCL"))
    made.marker(47, 4, 4)
    made.marker(50, 4, 1)
    made.row("SYNCHRONIZATION", 60, 5, type=4, contextId=1, streamId=-1, correlationId=9)
    for number, kind in enumerate((1, 1 << 16, 2 << 16)):
        owner = {"objectKind": 2, "objectId": thread(PID, TID)}
        made.row("OVERHEAD", 70 + number, 1, overheadKind=kind, **owner)
    trace = tf.read(made.save(tmp_path / "a.nvvp"))
    assert rows(trace, "ops", "name", "start_ns", "dur_ns", "sequence", "input_dims", "thread") == [
        ("aten::mm", BORN + 20, 10, 12, "[[2, 3], [3, 4]]", TID)
    ]
    assert rows(trace, "marks", "kind", "name", "start_ns", "dur_ns") == [
        ("annotation", "step 1", BORN + 10, 40),
        ("instant", "a mark", BORN + 40, 0),
        ("annotation", "ncclSend", BORN + 45, 2),
        ("sync", "Context Synchronize", BORN + 60, 5),
        ("overhead", "compiling", BORN + 70, 1),
        ("overhead", "profiler: flushing buffers", BORN + 71, 1),
        ("overhead", "profiler: instrumenting kernels", BORN + 72, 1),
    ]
    (text,) = [one.text for one in trace.notes if one.code == "nccl-sizes"]
    assert "export" not in text  # there is nothing to export: nvprof does not record them


def test_what_could_not_be_timed_is_not_used_and_said(tmp_path: Path) -> None:
    made = small()
    made.rows["CONCURRENT_KERNEL"].append(
        made.rows["CONCURRENT_KERNEL"][0] | {"start": 0, "end": 0}
    )
    trace = tf.read(made.save(tmp_path / "a.nvvp"))
    assert len(rows(trace, "activities", "kind")) == 3
    assert note(trace, "no-time").count == 1


def test_a_call_without_a_known_name_is_told_by_its_number(tmp_path: Path) -> None:
    made = small()
    made.call(10, 1, 92, 7)
    made.call(20, 1, 92, 8, table="DRIVER", threadId=-5)
    trace = tf.read(made.save(tmp_path / "a.nvvp"))
    names = rows(trace, "calls", "name", "thread")
    assert ("runtime call 92", TID) in names
    assert ("driver call 92", 2**32 - 5) in names


def test_tables_that_are_not_read_are_named(tmp_path: Path) -> None:
    made = small()
    made.row("PCIE", type=0, id=0)
    made.row("PCIE", type=1, id=1)
    text = note(tf.read(made.save(tmp_path / "a.nvvp")), "tables-not-used").text
    assert text == "2 rows of tables that are not read: CUPTI_ACTIVITY_KIND_PCIE (2)."


@pytest.mark.parametrize("was_counted", [False, True])
def test_counters_in_the_timed_run_are_said(tmp_path: Path, was_counted: bool) -> None:
    made = small()
    if was_counted:
        made.row("METRIC", value=7)
    trace = tf.read(made.save(tmp_path / "a.nvprof"))
    assert ("counted-while-timed" in codes(trace)) == was_counted
    second = tf.analyze(trace).verdict.parts[1:2]
    assert [part.values.get("count") for part in second] == ([1] if was_counted else [None])


@pytest.mark.parametrize(("product", "major", "tool"), [("K20c", 3, "nvprof"), ("P100", 6, "nsys")])
def test_no_gpu_is_to_be_recorded_by_a_tool_that_cannot(
    tmp_path: Path, product: str, major: int, tool: str
) -> None:
    made = NvprofFile()
    made.kernel(0, 10, 1)
    made.gpu(name=f"Tesla {product}")
    made.rows["DEVICE"][0]["computeCapabilityMajor"] = major
    trace = tf.read(made.save(tmp_path / "a.nvvp"))
    told = (note(trace, "no-calls").text, advice(trace, "host work"), command(trace) or "")
    assert [("nvprof" in text, "nsys" in text) for text in told] == 3 * [
        (tool == "nvprof", tool == "nsys")
    ]


@pytest.mark.parametrize("table", ["NVTX_EVENTS_V2", "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL"])
@pytest.mark.parametrize("form", ["sqlite", "parquet"])
def test_so_they_are_of_exports_of_nsight_systems(tmp_path: Path, table: str, form: str) -> None:
    export = NsysFile()
    export.kernel(0, 5)
    export.call(0, 5, 1)
    for start in (1, 2, 3):
        export.row(table, start=start, end=9)
    path = tmp_path / "run"
    export.save(path) if form == "sqlite" else export.save_parquet(path)
    assert note(tf.read(path), "tables-not-used").text.endswith(f": {table} (3).")


def test_the_ranks_of_a_job_lie_side_by_side(tmp_path: Path) -> None:
    for rank in range(2):
        made = small()
        made.gpu(1)
        for table in ("CONCURRENT_KERNEL", "MEMCPY", "MEMSET"):
            for row in made.rows[table]:
                row["deviceId"] = rank
        made.rows["RUNTIME"] = [row | {"processId": PID + rank} for row in made.rows["RUNTIME"]]
        made.rows["DRIVER"] = []
        made.save(tmp_path / f"rank{rank}.nvvp")
    trace = tf.read(tmp_path)
    assert rows(trace, "devices", "local_id", "product") == [(0, "Tesla K20c"), (1, "Tesla K20c")]
    assert rows(trace, "processes", "rank") == [0, 1]
    assert "calls-of-unknown-process" not in codes(trace)


def test_the_case_of_the_issue() -> None:
    found = tf.analyze(
        tf.read(shared_file("cases/nsight/nvprof_database_taken_for_nsys/prof.nvvp"))
    )
    window = found.total.components.window_ns
    assert window == 2_014_000_000
    by_name = {row["name"]: row["sum_ns"] for row in found.kernels.to_pylist()}
    assert by_name["_Z11sweep_stepsPdi"] == 1_799_998_000
    assert by_name["Memcpy DtoH (Device -> Pageable)"] == 8_000_000


def test_a_context_without_calls_tells_that_cuda_left_no_records(tmp_path: Path) -> None:
    made = NvprofFile()
    made.gpu()
    made.row("CONTEXT", contextId=1, deviceId=0)
    made.row("OVERHEAD", 0, 5_000, overheadKind=3 << 16, objectKind=1, objectId=thread(PID, 0))
    trace = tf.read(made.save(tmp_path / "run.nvvp"))
    assert "CUDA was traced but left no records" in note(trace, "no-device-work").text
    assert tf.analyze(trace).verdict.sentence.startswith("CUDA was traced but left no records")


@pytest.mark.parametrize("has_gpu", [True, False])
def test_a_database_without_a_row_is_an_empty_recording(tmp_path: Path, *, has_gpu: bool) -> None:
    file = NvprofFile()
    if has_gpu:
        file.gpu()
    trace = tf.read(file.save(tmp_path / "run.nvvp"))
    said = tf.analyze(trace).verdict.sentence
    assert said.startswith("The recording is empty: no call,") != has_gpu
    assert ("no table has a row" in note(trace, "no-device-work").text) != has_gpu
