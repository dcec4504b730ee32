"""RPD: the database of rocmProfileData, whose tables are named like those of rocpd."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from traceflops import analyze
from traceflops.attribution.host_calls import Synchronisation
from traceflops.errors import InputError
from traceflops.parsers.reading import read
from traceflops.table.trace import Trace

T = 3_489_389_201_751_353
PID, TID = 1560, 1561

OLD = {
    "metadata": "tag TEXT, value TEXT",
    "string": "string TEXT",
    "api": "pid INTEGER, tid INTEGER, start INTEGER, end INTEGER, apiName_id INTEGER,"
    " args_id INTEGER",
    "op": "gpuId INTEGER, queueId INTEGER, sequenceId INTEGER, start INTEGER, end INTEGER,"
    " description_id INTEGER, opType_id INTEGER",
    "api_ops": "api_id INTEGER, op_id INTEGER",
    "kernelapi": "api_ptr_id INTEGER, stream TEXT, gridX INTEGER, gridY INTEGER, gridZ INTEGER,"
    " workgroupX INTEGER, workgroupY INTEGER, workgroupZ INTEGER, groupSegmentSize INTEGER,"
    " privateSegmentSize INTEGER, kernelName_id INTEGER",
    "copyapi": "api_ptr_id INTEGER, stream TEXT, size, width, height, kind INTEGER,"
    " srcDevice INTEGER, dstDevice INTEGER",
}
"""Schema 2. Schema 3 has a table for texts that occur once, and domains of calls."""
NEW = OLD | {
    "ustring": "string TEXT",
    "api": OLD["api"] + ", category_id INTEGER, domain_id INTEGER",
}


class RpdFile:
    """One database while it is written."""

    def __init__(self, path: Path, version: int) -> None:
        self.connection = sqlite3.connect(path)
        self.is_new = version == 3
        for name, columns in (NEW if self.is_new else OLD).items():
            self.connection.execute(
                f"CREATE TABLE rocpd_{name}"
                f" (id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, {columns})"
            )
        self.connection.execute("CREATE VIEW top AS SELECT 1")
        self.add("metadata", tag="schema_version", value=str(version))

    def add(self, table: str, **values: Any) -> int:
        marks = ", ".join("?" * len(values))
        cursor = self.connection.execute(
            f"INSERT INTO rocpd_{table} ({', '.join(values)}) VALUES ({marks})",
            tuple(values.values()),
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def string(self, text: str) -> int:
        found = self.connection.execute("SELECT id FROM rocpd_string WHERE string = ?", (text,))
        row = found.fetchone()
        return int(row[0]) if row else self.add("string", string=text)

    def call(self, name: str, start: int, end: int, args: str = "", **values: Any) -> int:
        table = "ustring" if self.is_new else "string"
        row = {"pid": PID, "tid": TID, "start": start, "end": end, "apiName_id": self.string(name)}
        return self.add("api", **(row | values), args_id=self.add(table, string=args))

    def operation(
        self, kind: str, start: Any, end: int, call: int | None = None, name: str = "", gpu: int = 2
    ) -> int:
        row = {"gpuId": gpu, "queueId": 1, "sequenceId": 0, "start": start, "end": end}
        names = {"opType_id": self.string(kind), "description_id": self.string(name)}
        made = self.add("op", **row, **names)
        if call is not None:
            self.add("api_ops", api_id=call, op_id=made)
        return made

    def launch(self, call: int, name: str, grid: tuple[int, ...], block: tuple[int, ...]) -> None:
        sizes = {f"grid{axis}": n for axis, n in zip("XYZ", grid, strict=True)}
        sizes |= {f"workgroup{axis}": n for axis, n in zip("XYZ", block, strict=True)}
        self.add(
            "kernelapi",
            api_ptr_id=call,
            groupSegmentSize=64,
            kernelName_id=self.string(name),
            **sizes,
        )


@contextmanager
def rpd(path: Path, version: int = 3) -> Iterator[RpdFile]:
    file = RpdFile(path, version)
    file.string("")
    try:
        yield file
    finally:
        file.connection.commit()
        file.connection.close()


def rows(trace: Trace, table: str, *columns: str) -> list[Any]:
    found = [trace.table(table)[column].to_pylist() for column in columns]
    return found[0] if len(columns) == 1 else list(zip(*found, strict=True))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.rpd"


@pytest.mark.parametrize("version", [2, 3])
def test_an_rpd_file_is_not_taken_for_rocpd(path: Path, version: int) -> None:
    """Quirk 39."""
    with rpd(path, version) as file:
        call = file.call("hipLaunchKernel", T, T + 5)
        file.operation("KernelExecution", T + 10, T + 30, call, "k")
    trace = read(path)
    assert trace.source.format == "rpd"
    assert trace.source.facts == {"schema_version": str(version), "recorded": "api, kernel"}
    columns = ("kind", "name", "start_ns", "dur_ns", "correlation", "stream", "process")
    assert rows(trace, "activities", *columns) == [("kernel", "k", T + 10, 20, call, 1, 0)]
    of_calls = ("name", "api", "start_ns", "dur_ns", "correlation", "thread")
    assert rows(trace, "calls", *of_calls) == [("hipLaunchKernel", "hip", T, 5, call, TID)]
    assert rows(trace, "devices", "local_id") == [2]
    assert rows(trace, "processes", "pid") == [PID]


def test_kinds_of_operations(path: Path) -> None:
    kinds = {
        "KernelExecution": ("kernel", None),
        "Task": ("kernel", None),
        "CopyHostToDevice": ("memcpy", "HtoD"),
        "CopyDeviceToHost": ("memcpy", "DtoH"),
        "CopyDeviceToDevice": ("memcpy", "DtoD"),
        "CopyHostToDevice2D": ("memcpy", "HtoD"),
        "MEMORY_COPY_DEVICE_TO_HOST": ("memcpy", "DtoH"),
        "FillBuffer": ("memset", None),
        "Barrier": None,
    }
    with rpd(path) as file:
        for place, kind in enumerate(kinds):
            file.operation(kind, T + place, T + place + 1, name="k")
    trace = read(path)
    assert rows(trace, "activities", "kind", "direction") == [k for k in kinds.values() if k]
    assert trace.source.event_counts["barrier"] == 1


def test_grid_and_block_are_those_of_the_call(path: Path) -> None:
    """Most calls are given the grid in blocks, the older module launches in threads."""
    with rpd(path) as file:
        file.operation("CopyHostToDevice", T, T + 1)
        for place, name in enumerate(("hipLaunchKernel", "hipExtModuleLaunchKernel"), start=1):
            call = file.call(name, T, T + 5)
            file.launch(call, "lent", (1000, 3, 1), (256, 2, 1))
            file.operation("KernelExecution", T + 10 * place, T + 10 * place + 5, call)
        file.operation("KernelExecution", T + 90, T + 95)
    columns = ("name", "grid", "block", "shared_memory_bytes")
    assert rows(read(path), "activities", *columns)[1:] == [
        ("lent", [1000, 3, 1], [256, 2, 1], 64),
        ("lent", [4, 2, 1], [256, 2, 1], 64),
        ("(unnamed kernel)", None, None, None),
    ]


@pytest.mark.parametrize(
    ("copy", "grid"), [("MEMORY_COPY_HOST_TO_DEVICE", [4, 1, 1]), (None, None)]
)
def test_newer_tracers_write_the_grid_in_threads(
    path: Path, copy: str | None, grid: list[int] | None
) -> None:
    """They are known by how they spell copies; without one the unit is unknown."""
    with rpd(path) as file:
        call = file.call("hipLaunchKernel", T, T + 5)
        file.launch(call, "k", (1000, 1, 1), (256, 1, 1))
        file.operation("KernelExecution", T + 10, T + 15, call, "k")
        if copy is not None:
            file.operation(copy, T + 20, T + 25)
    assert rows(read(path), "activities", "grid", "block")[0] == (grid, [256, 1, 1])


def test_bytes_of_a_copy_are_those_of_its_call(path: Path) -> None:
    with rpd(path) as file:
        for place, (size, copies) in enumerate([(4096, 1), (8192, 2), ("", 1)]):
            call = file.call("hipMemcpyAsync", T, T + 5)
            file.add("copyapi", api_ptr_id=call, size=size, kind=1)
            for _ in range(copies):
                file.operation("CopyHostToDevice", T + 10 * place, T + 10 * place + 5, call)
    assert rows(read(path), "activities", "bytes") == [4096, None, None, None]


def test_a_copy_from_one_gpu_to_another_is_none_within_one(path: Path) -> None:
    with rpd(path) as file:
        for place, target in enumerate((1, 0)):
            call = file.call("hipMemcpyAsync", T, T + 5)
            file.add("copyapi", api_ptr_id=call, size=8, kind=3, srcDevice=0, dstDevice=target)
            file.operation("CopyDeviceToDevice", T + 10 * place, T + 10 * place + 5, call)
    assert rows(read(path), "activities", "direction") == ["PtoP", "DtoD"]


def test_many_operations_of_one_graph_launch(path: Path) -> None:
    with rpd(path) as file:
        call = file.call("hipGraphLaunch", T, T + 5)
        for place in range(4):
            file.operation("Task", T + 10 * place, T + 10 * place + 5, call, "k")
    assert rows(read(path), "activities", "correlation") == [call] * 4


@pytest.mark.parametrize("version", [2, 3])
def test_marks_bear_their_texts(path: Path, version: int) -> None:
    with rpd(path, version) as file:
        file.call("UserMarker", T, T + 50, "aten::mm")
        file.call("UserMarker", T + 60, T + 60, "here")
        file.call("forward", T + 70, T + 80, "sizes")
        file.call("rpdflush", T + 90, T + 95)
        file.call("OpTable::writeRows", T + 96, T + 97)
    trace = read(path)
    assert rows(trace, "marks", "name", "kind", "dur_ns") == [
        ("aten::mm", "annotation", 50),
        ("here", "instant", 0),
        ("forward", "annotation", 10),
        ("rpdflush", "overhead", 5),
        ("OpTable::writeRows", "overhead", 1),
    ]
    assert trace.calls.num_rows == 0


def test_processes_that_wrote_one_file(path: Path) -> None:
    """A process without calls of its own work has that of the others on its GPU."""
    with rpd(path) as file:
        for rank in range(2):
            for place in range(3):
                call = file.call("hipLaunchKernel", T, T + 5, pid=100 + rank)
                at = T + 100 * rank + 10 * place
                file.operation("KernelExecution", at, at + 5, call, "k", gpu=2 + rank)
        file.operation("KernelExecution", T + 500, T + 505, None, "k", gpu=3)
    trace = read(path)
    assert rows(trace, "processes", "pid") == [100, 101]
    assert rows(trace, "activities", "process") == [0, 0, 0, 1, 1, 1, 1]
    assert rows(trace, "devices", "local_id", "process") == [(2, 0), (3, 1)]


def test_cuda_calls_of_the_same_tracer(path: Path) -> None:
    with rpd(path) as file:
        file.call("cudaLaunchKernel", T, T + 5)
        file.call("cuLaunchKernel", T, T + 5)
        file.operation("KernelExecution", T, T + 5, name="k")
    assert sorted(rows(read(path), "calls", "api")) == ["driver", "runtime"]


def test_without_calls_there_is_still_a_process(path: Path) -> None:
    with rpd(path) as file:
        file.operation("KernelExecution", T, T + 5, name="k")
    trace = read(path)
    assert rows(trace, "processes", "pid") == [None]
    assert "no-calls" in {note.code for note in trace.notes}


def test_odd_times(path: Path) -> None:
    with rpd(path) as file:
        file.operation("KernelExecution", T, T - 5, name="k")
        file.operation("KernelExecution", T + 9, 0, name="k")
        file.operation("KernelExecution", "x", T, name="k")
    trace = read(path)
    assert rows(trace, "activities", "dur_ns") == [0, 0]
    codes = {note.code for note in trace.notes}
    assert {"no-time", "no-duration", "negative-duration"} <= codes


def test_damage_is_said_or_refused(path: Path) -> None:
    with rpd(path) as file:
        for place in range(4000):
            call = file.call("hipLaunchKernel", T + 10 * place, T + 10 * place + 5)
            file.operation("KernelExecution", T + 10 * place, T + 10 * place + 7, call, "k")
    data = path.read_bytes()
    for share in (0.02, 0.3, 0.9):
        path.write_bytes(data[: int(len(data) * share)])
        try:
            trace = read(path)
        except InputError:
            assert share == 0.02
        else:
            assert 0 < trace.activities.num_rows < 4000
            assert "rows-lost" in {note.code for note in trace.notes}


def test_collectives_and_what_was_recorded_at_all(path: Path) -> None:
    with rpd(path) as file:
        file.call("ncclAllReduce", T, T + 20)
        launch = file.call("hipExtModuleLaunchKernel", T + 5, T + 9)
        file.operation("KernelExecution", T + 30, T + 60, launch, "ncclDevKernel_Generic_1()")
    trace = read(path)
    assert rows(trace, "activities", "collective") == ["allreduce"]
    assert trace.source.event_counts == {"api": 2, "kernel": 1}
    assert "kernels-unnamed" not in {note.code for note in trace.notes}


@pytest.mark.parametrize("version", [2, 3])
def test_what_the_gpu_waits_on(path: Path, version: int) -> None:
    """Calls of HIP and ranges of ROCTX say what the CPU did while the GPU was idle."""
    with rpd(path, version) as file:
        for launched, start in ((0, 10_000), (1_000_000, 1_010_000)):
            call = file.call("hipLaunchKernel", T + launched, T + launched + 5_000)
            file.operation("KernelExecution", T + start, T + start + 10_000, call, "k")
        file.call("UserMarker", T + 6_000, T + 990_000, "save 3")
        file.call("hipMemcpyWithStream", T + 100_000, T + 500_000)
    analysis = analyze(read(path))
    assert {(one.kind, one.label): one.idle_ns for one in analysis.idle.culprits} == {
        ("host_unrecorded", "save"): 570_000,
        ("blocking_copy", "hipMemcpyWithStream in save"): 400_000,
        ("launch_latency", "hipLaunchKernel"): 10_000,
        ("host_unrecorded", ""): 10_000,
    }
    assert analysis.synchronisations == (
        Synchronisation("hipMemcpyWithStream", "save", 1, 400_000, 0),
    )
