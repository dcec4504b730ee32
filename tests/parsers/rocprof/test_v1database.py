"""results.db of rocprof v1: KERN is the CSV, OPS and COPY are work, HIP, HSA and rocTX the host."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from traceflops.errors import InputError
from traceflops.parsers.reading import read
from traceflops.table.trace import Trace

T = 168_853_321_180_888

CALL = ("BeginNs", "EndNs", "pid", "tid", "Name", "args", "Index", "Data", "__section", "__lane")
WORK = (
    *("BeginNs", "EndNs", "dev-id", "queue-id", "Name", "pid", "tid", "roctx-range", "stream-id"),
    *("Index", "Data", "__section", "__lane", "DurationNs"),
)
ASYNC_COPY = ("BeginNs", "EndNs", "Name", "pid", "tid", "Index", "Data", "__section", "__lane")
KERN = (
    *("Index", "KernelName", "gpu-id", "queue-id", "queue-index", "pid", "tid", "grd", "wgr"),
    *("lds", "scr", "arch_vgpr", "accum_vgpr", "sgpr", "wave_size", "sig", "obj"),
)
TIMES = ("DispatchNs", "BeginNs", "EndNs", "CompleteNs")
ROCTX = ("BeginNs", "EndNs", "pid", "tid", "Name", "Index", "__section", "__lane")
TEXTS = ("KernelName", "Name", "args", "Data", "roctx-range")


def write(path: Path, **tables: tuple[tuple[str, ...], list[dict[str, Any]]]) -> Path:
    """Write tables as rocprof does: names of columns with hyphens, texts and integers."""
    with closing(sqlite3.connect(path)) as connection:
        for table, (columns, rows) in tables.items():
            spelled = ", ".join(
                f'"{name}" {"TEXT" if name in TEXTS else "INTEGER"}' for name in columns
            )
            connection.execute(f"CREATE TABLE {table} ({spelled})")
            for row in rows:
                places = ", ".join("?" * len(columns))
                values = tuple(row.get(name) for name in columns)
                connection.execute(f"INSERT INTO {table} VALUES ({places})", values)
        connection.commit()
    return path


def rows(trace: Trace, table: str, *columns: str) -> list[Any]:
    found = [trace.table(table)[column].to_pylist() for column in columns]
    return found[0] if len(columns) == 1 else list(zip(*found, strict=True))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.db"


def kernel(index: int, **values: Any) -> dict[str, Any]:
    at = T + 100 * index
    row = {"Index": index, "KernelName": '"void k(int, float)"', "gpu-id": 2, "queue-id": 1}
    row |= {"pid": 7, "tid": 8, "grd": 1024, "wgr": 256, "lds": 512, "arch_vgpr": 24}
    row |= {"DispatchNs": at, "BeginNs": at + 20, "EndNs": at + 60, "CompleteNs": at + 70}
    return row | values


def test_a_database_with_the_table_of_kernels_alone(path: Path) -> None:
    """Quirk 31."""
    write(path, KERN=((*KERN, *TIMES, "DurationNs"), [kernel(0), kernel(1)]))
    trace = read(path)
    assert trace.source.format == "rocprof-v1-db"
    columns = ("kind", "name", "start_ns", "dur_ns", "stream", "correlation", "process")
    assert rows(trace, "activities", *columns) == [
        ("kernel", "void k(int, float)", T + 20, 40, 1, 0, 0),
        ("kernel", "void k(int, float)", T + 120, 40, 1, 1, 0),
    ]
    sizes = ("registers_per_thread", "shared_memory_bytes", "grid", "block")
    assert rows(trace, "activities", *sizes)[0] == (24, 512, None, None)
    assert rows(trace, "calls", "name", "start_ns", "dur_ns", "correlation", "api") == [
        ("dispatch", T, 0, 0, "hsa"),
        ("dispatch", T + 100, 0, 1, "hsa"),
    ]
    assert rows(trace, "devices", "local_id") == [2]
    assert rows(trace, "processes", "pid") == [7]


def test_a_database_with_operations_and_copies_alone(path: Path) -> None:
    """Quirk 31."""
    base = {"pid": 7, "tid": 8, "dev-id": 1, "queue-id": 3, "stream-id": 2}
    operations = [
        {**base, "BeginNs": T, "EndNs": T + 9, "Name": '"k"', "Index": 4},
        {**base, "BeginNs": T + 10, "EndNs": T + 11, "Name": '"<barrier packet>"', "Index": 5},
    ]
    copies = [
        {**base, "BeginNs": T + 20, "EndNs": T + 29, "Name": "CopyHostToDevice", "Index": 6},
        {**base, "BeginNs": T + 30, "EndNs": T + 39, "Name": "CopyDeviceToHost", "Index": 7},
        {**base, "BeginNs": T + 40, "EndNs": T + 49, "Name": "FillBuffer", "Index": 8},
    ]
    write(path, OPS=(WORK, operations), COPY=(WORK, copies))
    trace = read(path)
    columns = ("kind", "name", "direction", "start_ns", "dur_ns", "correlation", "stream", "bytes")
    assert rows(trace, "activities", *columns) == [
        ("kernel", "k", None, T, 9, 4, 3, None),
        ("memcpy", "CopyHostToDevice", "HtoD", T + 20, 9, 6, 3, None),
        ("memcpy", "CopyDeviceToHost", "DtoH", T + 30, 9, 7, 3, None),
        ("memset", "FillBuffer", None, T + 40, 9, 8, 3, None),
    ]
    assert rows(trace, "devices", "local_id") == [1]
    assert trace.source.event_counts["barrier"] == 1
    assert "no-calls" in {note.code for note in trace.notes}


def test_empty_doubles_of_kernels_are_skipped(path: Path) -> None:
    base = {"pid": 7, "tid": 8, "dev-id": 1, "queue-id": 3, "stream-id": 2, "Name": '"k"'}
    ends = (T, T + 9, T + 20)
    starts = (T, T, T + 20)
    operations = [
        {**base, "BeginNs": start, "EndNs": end, "Index": index}
        for index, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
    write(path, OPS=(WORK, operations))
    trace = read(path)
    assert rows(trace, "activities", "start_ns", "dur_ns") == [(T, 9), (T + 20, 0)]
    assert {note.code: note.count for note in trace.notes}["empty-doubles"] == 1


def test_calls_and_ranges_of_the_host(path: Path) -> None:
    call = {"pid": 7, "tid": 8, "BeginNs": T, "EndNs": T + 5}
    work = {"pid": 7, "tid": 8, "dev-id": 0, "queue-id": 0, "BeginNs": T + 9, "EndNs": T + 19}
    copy = {"pid": 7, "tid": -1, "BeginNs": T + 20, "EndNs": T + 25, "Name": "async-copy"}
    write(
        path,
        rocTX=(
            ROCTX,
            [
                {"pid": 7, "tid": 8, "BeginNs": T, "EndNs": T + 50, "Name": "step 1", "Index": 0},
                {"pid": 7, "tid": 8, "BeginNs": T, "EndNs": T + 1, "Name": "mark", "Index": 1},
            ],
        ),
        HSA=(CALL, [{**call, "Name": "hsa_amd_memory_async_copy", "Index": 1}]),
        COPY=(ASYNC_COPY, [{**copy, "Index": 1}]),
        HIP=(CALL, [{**call, "Name": "hipLaunchKernel", "Index": 1}]),
        OPS=(WORK, [{**work, "Name": "k", "Index": 1}]),
        KERN=(("Index", "KernelName"), []),
    )
    trace = read(path)
    ids = dict(rows(trace, "calls", "name", "correlation"))
    assert ids["hipLaunchKernel"] != ids["hsa_amd_memory_async_copy"]
    assert rows(trace, "activities", "kind", "correlation") == [
        ("kernel", ids["hipLaunchKernel"]),
        ("memcpy", ids["hsa_amd_memory_async_copy"]),
    ]
    assert sorted(rows(trace, "calls", "api")) == ["hip", "hsa"]
    assert sorted(rows(trace, "marks", "name", "kind", "dur_ns", "thread")) == [
        ("mark", "instant", 0, 8),
        ("step 1", "annotation", 50, 8),
    ]
    assert rows(trace, "devices", "local_id") == [0]
    assert "device-unknown" in {note.code for note in trace.notes}


def test_kernels_that_stand_in_two_tables_count_once(path: Path) -> None:
    work = {"pid": 7, "tid": 8, "dev-id": 0, "queue-id": 0, "Name": "k", "Index": 9}
    counted = kernel(0, SQ_WAVES=12)
    write(
        path,
        OPS=(WORK, [{**work, "BeginNs": T + 20, "EndNs": T + 60}]),
        KERN=((*KERN, "SQ_WAVES", *TIMES), [counted]),
    )
    trace = read(path)
    assert rows(trace, "activities", "name", "correlation") == [("k", 9)]
    assert rows(trace, "kernel_counters", "counter", "value") == [("SQ_WAVES", 12.0)]


def test_counters_stand_in_columns(path: Path) -> None:
    columns = (*KERN, "SQ_WAVES", "TCC_HIT[0]", "TCC_HIT[1]", "MfmaUtil")
    values = {"SQ_WAVES": 64, "TCC_HIT[0]": "1.5", "TCC_HIT[1]": 2, "MfmaUtil": "oops"}
    write(path, KERN=(columns, [kernel(5, **values)]))
    trace = read(path)
    wanted = ("counter", "value", "dispatch", "threads", "block_threads", "name")
    assert sorted(rows(trace, "kernel_counters", *wanted)) == [
        ("SQ_WAVES", 64.0, 5, 1024, 256, "void k(int, float)"),
        ("TCC_HIT", 3.5, 5, 1024, 256, "void k(int, float)"),
    ]
    assert trace.activities.num_rows == 0
    assert "no-timeline" in {note.code for note in trace.notes}


def test_calls_of_dispatches_stand_once(path: Path) -> None:
    """HSA lists the moments of dispatches again, as calls named hsa_dispatch."""
    again = {"pid": 7, "tid": 8, "BeginNs": T, "EndNs": T, "Name": "hsa_dispatch", "Index": 3}
    write(path, KERN=((*KERN, *TIMES), [kernel(0)]), HSA=(CALL, [again]))
    assert rows(read(path), "calls", "name") == ["dispatch"]


def test_missing_cells_are_unknown(path: Path) -> None:
    row = kernel(0, **{"queue-id": "None", "lds": None, "arch_vgpr": "None", "DispatchNs": None})
    write(path, KERN=((*KERN, *TIMES), [row]))
    trace = read(path)
    columns = ("stream", "shared_memory_bytes", "registers_per_thread")
    assert rows(trace, "activities", *columns) == [(None, None, None)]
    assert trace.calls.num_rows == 0


def test_tables_of_the_same_names_and_other_columns_are_refused(path: Path) -> None:
    write(path, COPY=(("from", "to"), []), OPS=(("what",), []))
    with pytest.raises(InputError, match="OPS, COPY") as caught:
        read(path)
    assert path.name in caught.value.message


def test_a_cut_database_gives_what_is_left(path: Path) -> None:
    write(path, KERN=((*KERN, *TIMES), [kernel(index) for index in range(3000)]))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    trace = read(path)
    assert 0 < trace.activities.num_rows < 3000
    assert {"input-cut", "rows-lost"} <= {note.code for note in trace.notes}


# ROCm 3 to 4.2: `pid` is a track of the viewer, operations name their process as `proc-id`

OLD_CALL = ("BeginNs", "EndNs", "pid", "tid", "Name", "args", "Index", "Data", "DurationNs")
OLD_WORK = (
    *("BeginNs", "EndNs", "dev-id", "queue-id", "Name", "pid", "tid", "Index", "proc-id", "Data"),
)


def old_call(start: int, thread: int, index: int, name: str = "hipLaunchKernel") -> dict[str, Any]:
    times = {"BeginNs": T + start, "EndNs": T + start + 10}
    return {**times, "pid": 2, "tid": thread, "Index": index, "Name": name}


def old_work(
    start: int, process: int, index: int, name: str = "k", took: int = 20, gpu: int = 0
) -> dict[str, Any]:
    row: dict[str, Any] = {"BeginNs": T + start, "EndNs": T + start + took, "queue-id": 0}
    track = 1 if "Copy" in name else 6 + gpu
    row |= {"dev-id": gpu, "pid": track, "tid": 1, "Index": index, "proc-id": process, "Name": name}
    return row


def test_the_track_of_the_viewer_is_no_process(path: Path) -> None:
    """Calls and ranges lie on tracks 2, 3 and 0, copies on 1, GPU n on 6 + n."""
    marker = old_work(60, 4711, 3, "Unknown command type", took=0)
    write(
        path,
        rocTX=(ROCTX[:6], [{"BeginNs": T, "EndNs": T + 99, "pid": 0, "tid": 4712, "Name": "r"}]),
        HIP=(
            OLD_CALL,
            [old_call(0, 4711, 1, "hipMemcpy"), old_call(20, 4712, 2), old_call(55, 4711, 3)],
        ),
        HSA=(OLD_CALL, [{**old_call(1, 4711, 1, "hsa_queue_create"), "pid": 3}]),
        OPS=(OLD_WORK, [old_work(30, 4711, 2), marker]),
        COPY=(OLD_WORK, [old_work(5, 4711, 1, "CopyHostToDevice")]),
        A=(("Index", "KernelName"), []),
    )
    trace = read(path)
    assert rows(trace, "processes", "pid") == [4711]
    assert rows(trace, "activities", "name", "correlation", "process") == [
        ("CopyHostToDevice", 1, 0),
        ("k", 2, 0),
    ]
    assert trace.source.event_counts["barrier"] == 1
    assert set(rows(trace, "calls", "process") + rows(trace, "marks", "process")) == {0}
    assert not {note.code for note in trace.notes} & {"no-calls", "calls-missing"}


def test_calls_of_several_processes_belong_to_none(path: Path) -> None:
    """Before ROCm 4.3 they name only their thread."""
    calls = [old_call(0, 50, 1), old_call(100, 60, 1)]
    work = [old_work(12, 50, 1), old_work(112, 60, 1, gpu=1)]
    write(path, HIP=(OLD_CALL, calls), OPS=(OLD_WORK, work))
    trace = read(path)
    pids = rows(trace, "processes", "pid")
    called = [(thread, pids[p]) for thread, p in rows(trace, "calls", "thread", "process")]
    assert called == [(50, None), (60, None)]
    assert sorted(rows(trace, "devices", "local_id")) == [0, 1]
    assert "calls-of-unknown-process" in {note.code for note in trace.notes}


def test_kernels_and_copies_of_hsa_before_rocm_4_3(path: Path) -> None:
    """Kernels stand in A, with their real process; copies are numbered on their own."""
    copy = {**old_work(5, 7, 1, "async-copy"), "pid": 1}
    columns = ("BeginNs", "EndNs", "Name", "pid", "tid", "Index", "proc-id")
    write(
        path,
        A=((*KERN, *TIMES), [kernel(3)]),
        COPY=(columns, [copy]),
        HSA=(OLD_CALL, [{**old_call(0, 8, 1, "hsa_queue_create"), "pid": 3}]),
    )
    trace = read(path)
    assert rows(trace, "processes", "pid") == [7]
    assert rows(trace, "activities", "kind", "correlation") == [("memcpy", None), ("kernel", 3)]
    assert "hsa_queue_create" in rows(trace, "calls", "name")
