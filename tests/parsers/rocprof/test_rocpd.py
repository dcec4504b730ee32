"""rocpd: every column of its tables ends where the docs say, in all schemas of version 3."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import traceflops as tf
from tests.conftest import shared_file
from tests.parsers.rocprof.rocpdfile import ENDING, PID, SECRET, TID, RocpdFile, rocpd
from tests.timeline.test_expected import Device
from traceflops.errors import InputError
from traceflops.parsers.reading import read
from traceflops.table.trace import Trace

T = 168_853_321_180_888
"""A time since boot as real files have it."""


def codes_of(trace: Trace) -> set[str]:
    return {note.code for note in trace.notes}


def rows(trace: Trace, table: str, *columns: str) -> list[Any]:
    """Return some columns of a table as tuples, or one column as values."""
    found = [trace.table(table)[column].to_pylist() for column in columns]
    return found[0] if len(columns) == 1 else list(zip(*found, strict=True))


# The real file


@cache
def real() -> tuple[Trace, dict[str, Any]]:
    name = "rocprof/rocpd_r9700_llamacpp.db"
    expected = json.loads(shared_file("traces/expected.json").read_text())["traces"][name]
    return read(shared_file(f"traces/{name}")), expected


def test_the_real_file_has_the_device_and_the_work_that_were_counted_independently() -> None:
    trace, expected = real()
    assert trace.source.format == expected["format"]
    assert trace.source.facts["schema_version"] == expected["meta"]["schema_version"]
    assert [str(n) for n in rows(trace, "devices", "local_id")] == list(expected["devices"])
    assert rows(trace, "devices", "product") == expected["meta"]["gpu_names"]
    assert rows(trace, "devices", "architecture") == expected["meta"]["gfx"]
    assert trace.calls.num_rows == expected["meta"]["regions"]
    assert trace.kernel_counters.num_rows == expected["meta"]["pmc_events"]
    assert Counter(rows(trace, "activities", "kind")) == expected["activities_total"]


def test_the_real_file_meets_every_figure_of_time() -> None:
    trace, expected = real()
    figures = expected["devices"]["1"]
    device = Device(trace, 0)
    everything = np.ones(len(device.row), dtype=np.bool_)
    parts = device.parts(everything)
    start, end = device.start, device.end
    assert dict(Counter(device.kind.tolist())) == figures["activities"]
    assert int(start.min()) == figures["first_start_ns"]
    assert int(end.max()) == figures["last_end_ns"]
    assert int(end.max() - start.min()) == figures["span_ns"]
    assert parts["all"].length_ns == figures["busy_ns"]
    assert figures["span_ns"] - parts["all"].length_ns == figures["idle_ns"]
    assert int((end - start).sum()) == figures["sum_of_durations_ns"]
    assert figures["sum_by_kind_ns"] == {"kernel": int((end - start).sum())}
    assert figures["union_by_kind_ns"] == {"kernel": parts["all"].length_ns}
    assert int((end == start).sum()) == figures["zero_duration"]
    assert int((end < start).sum()) == figures["negative_duration"]
    assert int(device.is_comm.sum()) == figures["comm"]["n"]
    assert parts["communication"].length_ns == figures["comm"]["union_ns"]
    compute = (device.kind == "kernel") & ~device.is_comm
    assert int(compute.sum()) == figures["compute"]["n"]
    assert int((end - start)[compute].sum()) == figures["compute"]["sum_ns"]
    assert parts["compute"].length_ns == figures["compute"]["union_ns"]
    assert parts["memory"].length_ns == figures["memory"]["union_ns"]
    window = (int(start.min()), int(end.max()))
    assert device.partition_comm_last(everything, window) == figures["partition_comm_last_ns"]


def test_the_real_file_meets_every_figure_of_names_and_queues() -> None:
    trace, expected = real()
    figures = expected["devices"]["1"]
    labels = rows(trace, "activities", "name")
    lengths = rows(trace, "activities", "dur_ns")
    sums: Counter[str] = Counter()
    for label, length in zip(labels, lengths, strict=True):
        sums[label] += length
    counts = Counter(labels)
    assert len(counts) == figures["distinct_kernel_names"]
    found = [{"name": n, "n": counts[n], "sum_ns": ns} for n, ns in sums.most_common(10)]
    assert found == figures["top_kernels"]
    blit = [n for n in counts if n.startswith("__amd_rocclr_")]
    assert sum(counts[n] for n in blit) == figures["blit_kernels"]["n"]
    assert sum(sums[n] for n in blit) == figures["blit_kernels"]["sum_ns"]
    assert len(set(rows(trace, "activities", "stream"))) == figures["streams"]
    latest: dict[int, int] = {}
    overlaps = []
    for stream, start, length in sorted(rows(trace, "activities", "stream", "start_ns", "dur_ns")):
        if start < latest.get(stream, start):
            overlaps.append(latest[stream] - start)
        latest[stream] = max(latest.get(stream, 0), start + length)
    assert {"n": len(overlaps), "max_ns": max(overlaps, default=0)} == figures[
        "same_stream_overlaps"
    ]
    assert figures["unlinked"] is None
    assert "no-calls" in codes_of(trace)


def test_the_real_file_says_nothing_of_its_environment(tmp_path: Path) -> None:
    trace, _ = real()
    tables = {name: table.to_pylist() for name, table in trace.tables.items()}
    assert SECRET not in repr((tables, trace.source, trace.notes))
    assert trace.source.identities == ("R9700-Workstation-SH",)
    assert rows(trace, "processes", "host", "pid") == [("R9700-Workstation-SH", 32432)]
    assert trace.source.clock is not None
    assert "9bc5b6353c3e4892bbb07436bf6bf124" not in trace.source.clock


# What goes where


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "4242_results.db"


def test_a_dispatch_becomes_a_kernel(path: Path) -> None:
    with rocpd(path, gpus=8) as file:
        kernel = file.symbol("void k<1>(float*)")
        grid, block = (1000, 6, 1), (256, 4, 1)
        file.dispatch(
            kernel,
            T + 10,
            T + 35,
            stack=7,
            agent_id=3,
            queue_id=2,
            grid=grid,
            block=block,
            group_segment_size=1024,
        )
    trace = read(path)
    (kernel_row,) = trace.activities.to_pylist()
    assert {name: value for name, value in kernel_row.items() if value is not None} == {
        "process": 0,
        "device": 0,
        "stream": 2,
        "kind": "kernel",
        "name": "void k<1>(float*)",
        "start_ns": T + 10,
        "dur_ns": 25,
        "correlation": 7,
        "grid": [4, 2, 1],
        "block": [256, 4, 1],
        "registers_per_thread": 32,
        "shared_memory_bytes": 1024,
    }
    (device,) = trace.devices.to_pylist()
    assert {name: value for name, value in device.items() if value is not None} == {
        "device": 0,
        "process": 0,
        "local_id": 3,
        "type": "gpu",
        "product": "AMD Instinct MI300X",
        "memory_bytes": 206158430208,
        "compute_major": 9,
        "compute_minor": 4,
        "sm_count": 304,
        "warp_size": 64,
        "architecture": "gfx942",
        "clock_hz": 2_100_000_000,
        "dies": 8,
    }
    assert rows(trace, "processes", "pid", "host", "rank") == [(PID, "node-of-somebody", None)]
    assert trace.source.event_counts["kernel_dispatch"] == 1


def test_nothing_of_command_and_environment_is_read(path: Path) -> None:
    with rocpd(path) as file:
        file.dispatch(file.symbol("k"), T, T + 1)
    trace = read(path)
    tables = {name: table.to_pylist() for name, table in trace.tables.items()}
    assert SECRET not in repr((tables, trace.source, trace.notes))
    assert "/home/somebody" not in repr((tables, trace.source, trace.notes))


@pytest.mark.parametrize(
    ("source", "target", "name", "direction", "device"),
    [
        (0, 1, "MEMORY_COPY_HOST_TO_DEVICE", "HtoD", 1),
        (2, 0, "MEMORY_COPY_DEVICE_TO_HOST", "DtoH", 2),
        (1, 1, "MEMORY_COPY_DEVICE_TO_DEVICE", "DtoD", 1),
        (1, 2, "MEMORY_COPY_DEVICE_TO_DEVICE", "PtoP", 2),
        (1, 2, "MEMORY_COPY_NONE", "PtoP", 2),
        (0, 2, "MEMORY_COPY_NONE", "HtoD", 2),
        (1, 0, "MEMORY_COPY_NONE", "DtoH", 1),
    ],
)
def test_a_copy_has_bytes_direction_and_its_gpu_end(
    path: Path, source: int, target: int, name: str, direction: str, device: int
) -> None:
    with rocpd(path, gpus=2) as file:
        file.copy(name, source, target, T, T + 9, size=2**33, stack=5, stream_id=3)
    trace = read(path)
    columns = ("kind", "name", "direction", "bytes", "dur_ns", "correlation", "stream")
    assert rows(trace, "activities", *columns) == [("memcpy", name, direction, 2**33, 9, 5, None)]
    assert rows(trace, "devices", "local_id") == [device]


def test_a_copy_within_the_host_is_no_work_of_a_device(path: Path) -> None:
    with rocpd(path) as file:
        file.copy("MEMORY_COPY_HOST_TO_HOST", 0, 0, T, T + 9)
        file.dispatch(file.symbol("k"), T, T + 1)
    trace = read(path)
    assert rows(trace, "activities", "kind") == ["kernel"]
    (note,) = [note for note in trace.notes if note.code == "host-copies"]
    assert (note.kind, note.count, note.file) == ("dropped", 1, path.name)


def test_regions_are_calls_by_their_category(path: Path) -> None:
    categories = {
        "HIP_RUNTIME_API_EXT": "hip",
        "HIP_COMPILER_API": "hip",
        "HSA_CORE_API": "hsa",
        "RCCL_API": "rccl",
        "ROCDECODE_API": "rocdecode",
        "rocm_hip_api": "hip",
        "rocm_rccl_api": "rccl",
    }
    with rocpd(path) as file:
        for place, category in enumerate(categories):
            file.region(category, f"call{place}", T + place, T + place + 5, stack=place + 1)
    trace = read(path)
    columns = ("name", "api", "start_ns", "dur_ns", "correlation", "thread", "process")
    assert rows(trace, "calls", *columns) == [
        (f"call{place}", api, T + place, 5, place + 1, TID, 0)
        for place, api in enumerate(categories.values())
    ]


def test_marks_bear_the_text_that_the_program_gave(path: Path) -> None:
    message = 'step {"loss": 1}, "a"'
    with rocpd(path) as file:
        told = json.dumps({"message": message})
        file.region("MARKER_CORE_RANGE_API", "roctxRangePushA", T, T + 50, text=told)
        file.sample("MARKER_CORE_RANGE_API", T + 3, text=json.dumps({"message": "here"}))
        file.region("MARKER_CONTROL_API", "roctxProfilerPause", T + 4, T + 5)
        file.region("MARKER_CORE_RANGE_API", "roctxRangePushA", T + 6, T + 7, text="{broken")
        file.region("user", "forward", T + 8, T + 9)
        file.region("host", "main", T + 10, T + 90)
    trace = read(path)
    assert rows(trace, "marks", "kind", "name", "start_ns", "dur_ns", "thread") == [
        ("annotation", message, T, 50, TID),
        ("instant", "here", T + 3, 0, TID),
        ("annotation", "roctxProfilerPause", T + 4, 1, TID),
        ("annotation", "roctxRangePushA", T + 6, 1, TID),
        ("annotation", "forward", T + 8, 1, TID),
        ("annotation", "main", T + 10, 80, TID),
    ]
    assert trace.calls.num_rows == 0


def test_a_call_that_took_no_time_is_a_call(path: Path) -> None:
    """rocprofv3 writes it as a sample, whose name is that of its category."""
    with rocpd(path) as file:
        file.sample("HIP_RUNTIME_API_EXT", T)
    trace = read(path)
    assert rows(trace, "calls", "name", "api", "dur_ns") == [("HIP_RUNTIME_API_EXT", "hip", 0)]


def test_without_events_a_name_says_what_a_region_is(path: Path) -> None:
    names = {"hipMalloc": "hip", "hsa_init": "hsa", "ncclAllReduce": "rccl"}
    with rocpd(path) as file:
        for name in (*names, "roctxRangePushA", "epoch"):
            file.region("X", name, T, T + 1)
        file.connection.execute(f'DELETE FROM "rocpd_event{ENDING}"')
    trace = read(path)
    assert dict(rows(trace, "calls", "name", "api")) == names
    assert sorted(rows(trace, "marks", "name")) == ["epoch", "roctxRangePushA"]


def test_a_kernel_is_linked_to_its_call_by_the_stack_id(path: Path) -> None:
    with rocpd(path) as file:
        kernel = file.symbol("k")
        for stack in (9, 5, 7):
            file.region("HIP_RUNTIME_API", f"launch{stack}", T + stack, T + stack + 1, stack=stack)
            file.dispatch(kernel, T + 100 + stack, T + 101 + stack, stack=stack)
    trace = read(path)
    assert rows(trace, "activities", "correlation") == [5, 7, 9]
    assert rows(trace, "calls", "name", "correlation") == [
        ("launch5", 5),
        ("launch7", 7),
        ("launch9", 9),
    ]
    assert "no-calls" not in codes_of(trace)


def test_many_dispatches_of_one_graph_launch(path: Path) -> None:
    """Quirk 44; the ids of graph and node are in schema 3.0.2 and later."""
    with rocpd(path, version="3.0.4", newer=True) as file:
        kernel = file.symbol("k")
        file.region("HIP_RUNTIME_API_EXT", "hipGraphLaunch", T, T + 5, stack=3)
        for node in (1, 2, 3):
            start = T + 10 * node
            file.dispatch(kernel, start, start + 5, stack=3, graph_exec_id=8, graph_node_id=node)
        launch = file.event("HIP_GRAPH", 3)
        file.add(
            "graph_launch",
            pid=PID,
            agent_id=1,
            start=T,
            end=T + 40,
            graph_exec_id=8,
            event_id=launch,
        )
    trace = read(path)
    assert rows(trace, "activities", "kind", "correlation", "graph", "graph_node") == [
        ("kernel", 3, 8, 1),
        ("kernel", 3, 8, 2),
        ("kernel", 3, 8, 3),
    ]
    assert trace.calls.num_rows == 1
    assert trace.source.event_counts["graph_launch"] == 1


def test_a_graph_whose_kernels_were_not_recorded_is_one_activity(path: Path) -> None:
    with rocpd(path, version="3.0.4", newer=True) as file:
        for place, agent in enumerate((1, None)):
            file.add(
                "graph_launch",
                pid=PID,
                agent_id=agent,
                queue_id=4,
                start=T,
                end=T + 40,
                graph_exec_id=8,
                event_id=file.event("HIP_GRAPH", place + 1),
            )
    trace = read(path)
    columns = ("kind", "name", "dur_ns", "graph", "stream", "correlation")
    assert rows(trace, "activities", *columns) == [("graph", "graph 8", 40, 8, 4, 1)]
    assert "graph-without-device" in codes_of(trace)


def test_allocations_are_counted_and_scratch_memory_is_overhead(path: Path) -> None:
    with rocpd(path) as file:
        file.dispatch(file.symbol("k"), T, T + 9)
        for level in ("REAL", "VIRTUAL", "SCRATCH"):
            file.add(
                "memory_allocate", pid=PID, type="ALLOC", level=level, start=T, end=T + 4, size=64
            )
    trace = read(path)
    assert trace.source.event_counts["memory_allocate"] == 3
    assert rows(trace, "marks", "name", "kind", "dur_ns", "device") == [
        ("SCRATCH_MEMORY_ALLOC", "overhead", 4, None)
    ]


# Counters


def test_counters_are_summed_over_instances_and_of_grbm_the_largest_counts(path: Path) -> None:
    with rocpd(path, version="3.0.3", newer=True) as file:
        file.region("HIP_RUNTIME_API_EXT", "hipLaunchKernel", T - 5, T - 2, stack=4)
        event = file.dispatch(
            file.symbol("k"), T, T + 9, stack=4, dispatch_id=11, grid=(512, 2, 1), block=(64, 1, 1)
        )
        file.counter(event, "SQ_WAVES", 1, 2, 3)
        file.counter(event, "GRBM_GUI_ACTIVE", 70, 90, 80)
        file.counter(event, "SQ_WAVES", 1000, sample_id=5)
        file.counter(event, "TCC_HIT", float("nan"))
    trace = read(path)
    columns = ("name", "dispatch", "correlation", "threads", "block_threads", "counter", "value")
    assert sorted(rows(trace, "kernel_counters", *columns)) == [
        ("k", 11, 4, 1024, 64, "GRBM_GUI_ACTIVE", 90.0),
        ("k", 11, 4, 1024, 64, "SQ_WAVES", 6.0),
    ]
    assert rows(trace, "activities", "name") == ["k"]
    expected = {"counted-while-timed", "streamed-counter", "no-value", "instances-summed"}
    assert codes_of(trace) >= expected


@pytest.mark.parametrize("counted", [2, 1])
def test_a_run_that_only_counted_has_no_times(counted: int, path: Path) -> None:
    """rocprofv3 --pmc alone writes what it counted as dispatches; its JSON has counters only."""
    with rocpd(path) as file:
        kernel = file.symbol("k")
        events = [
            file.dispatch(kernel, T + 20 * n, T + 20 * n + 9, stack=n + 1, dispatch_id=n + 1)
            for n in range(2)
        ]
        for event in events[:counted]:
            file.counter(event, "SQ_WAVES", 7)
    trace = read(path)
    only_counted = counted == 2
    assert trace.activities.num_rows == (0 if only_counted else 2)
    assert trace.kernel_counters.num_rows == counted
    assert trace.devices.num_rows == 1
    assert ("no-timeline" in codes_of(trace)) == only_counted
    assert ("counted-while-timed" in codes_of(trace)) == (not only_counted)


def test_measurements_over_time_are_counters_and_no_marks(path: Path) -> None:
    """rocprof-sys samples clocks, power and memory so."""
    with rocpd(path) as file:
        file.dispatch(file.symbol("k"), T, T + 9)
        event = file.sample("amd_smi", T + 5, track="GPU Power [1]")
        file.counter(event, "device_power", 310.5)
        file.counter(event, "device_memory_usage", 2.5)
        file.counter(event, "device_vcn_activity_0", 7)
    trace = read(path)
    assert rows(trace, "counters", "name", "time_ns", "value", "device", "process") == [
        ("gpu.power_w", T + 5, 310.5, 0, 0),
        ("gpu.memory_used_bytes", T + 5, 2_500_000, 0, 0),
        ("device_vcn_activity_0", T + 5, 7, 0, 0),
    ]
    assert trace.marks.num_rows == 0
    assert trace.kernel_counters.num_rows == 0


# rocprof-sys


def test_what_rocprof_sys_writes(path: Path) -> None:
    """Its ids of agents and threads are not their numbers; a region can have a sample, too."""
    with rocpd(path, machine=False, ending="_a1_b2", version=None) as file:
        file.add("info_node", id=1, machine_id="m", hostname="h")
        file.add("info_process", id=9, nid=1, pid=9)
        thread = file.add("info_thread", id=31, nid=1, pid=9, tid=90)
        file.add("info_agent", id=6, type="CPU", absolute_index=0)
        file.add("info_agent", id=7, type="GPU", absolute_index=1, name="gfx90a")
        kernel = file.symbol("k")
        file.string("rocm_kernel_dispatch")
        file.dispatch(kernel, T, T + 9, pid=9, tid=thread, agent_id=7, queue_id=94_000)
        event = file.region("rocm_marker_api", "forward", T, T + 20)
        file.connection.execute("UPDATE rocpd_region_a1_b2 SET pid = 9, tid = 31")
        track = file.add("track", pid=9, tid=thread, name_id=file.string("Thread 90"))
        file.add("sample", track_id=track, timestamp=T, event_id=event)
        file.region("timer_sampling", "main", T, T + 20)
        file.region("rocm_kfd_page_fault", "fault", T, T + 20)
    trace = read(path)
    assert trace.source.tool == "rocprof-sys"
    assert rows(trace, "devices", "local_id", "architecture") == [(1, "gfx90a")]
    assert rows(trace, "activities", "stream") == [94_000]
    assert rows(trace, "marks", "name", "kind", "thread") == [("forward", "annotation", 90)]
    assert codes_of(trace) >= {"sampled", "system"}


# Arguments


def test_arguments_of_rccl_fill_in_the_collective(path: Path) -> None:
    with rocpd(path) as file:
        kernel = file.symbol("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)")
        init = file.region("RCCL_API", "ncclCommInitRank", T, T + 5, stack=1)
        for name, value in {"comm": "0x1", "nranks": "8"}.items():
            file.add("arg", event_id=init, name=name, value=value)
        call = file.region("RCCL_API", "ncclAllReduce", T + 10, T + 50, stack=2)
        for name, value in {"count": "1048576", "datatype": "9", "comm": "0x1"}.items():
            file.add("arg", event_id=call, name=name, value=value)
        launch = file.region("HIP_RUNTIME_API", "hipExtLaunchKernel", T + 20, T + 30, stack=3)
        file.add("arg", event_id=launch, name="count", value="5")
        file.dispatch(kernel, T + 60, T + 99, stack=3)
    trace = read(path)
    columns = ("collective", "collective_dtype", "collective_in_elements", "collective_group_size")
    assert rows(trace, "activities", *columns) == [("allreduce", "BFloat16", 1048576, 8)]


def test_a_copy_done_by_a_kernel_has_the_size_of_its_call_and_counts_once(path: Path) -> None:
    """Quirk 43: there is no record of a copy, only the kernel that did it."""
    with rocpd(path) as file:
        blit = file.symbol("__amd_rocclr_copyBuffer")
        for stack, kernels in ((1, 1), (2, 2)):
            call = file.region("HIP_RUNTIME_API", "hipMemcpy", T, T + 5, stack=stack)
            file.add("arg", event_id=call, name="sizeBytes", value="65536")
            for place in range(kernels):
                at = T + 100 * stack + 10 * place
                file.dispatch(blit, at, at + 5, stack=stack)
    trace = read(path)
    assert rows(trace, "activities", "kind", "bytes") == [
        ("kernel", 65536),
        ("kernel", None),
        ("kernel", None),
    ]


# Quirks 36 and 37: schemas


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize(
    "without",
    [
        ("region", "sample", "arg"),
        ("memory_copy",),
        ("pmc_event", "info_pmc"),
        ("memory_allocate", "track"),
        ("event",),
        ("info_agent",),
        ("info_process", "info_node", "info_thread"),
        ("info_kernel_symbol",),
        ("string",),
        ("metadata",),
    ],
    ids="-".join,
)
def test_tables_may_be_absent(path: Path, without: tuple[str, ...], newer: bool) -> None:
    with rocpd(path, newer=newer) as file:
        file.dispatch(file.symbol("k"), T, T + 7, stack=1)
        for table in without:
            file.connection.execute(f'DROP TABLE "rocpd_{table}{ENDING}"')
    trace = read(path)
    assert rows(trace, "activities", "dur_ns") == [7]
    known = "info_kernel_symbol" not in without
    assert rows(trace, "activities", "name") == ["k" if known else "(unnamed kernel)"]
    assert rows(trace, "devices", "local_id") == [1]


@pytest.mark.parametrize(
    ("ending", "views"), [(ENDING, True), (ENDING, False), ("_1", True), ("_1", False), ("", False)]
)
def test_base_tables_are_read_with_and_without_views(path: Path, ending: str, views: bool) -> None:
    with rocpd(path, ending=ending, views=views) as file:
        file.dispatch(file.symbol("k"), T, T + 7)
    assert rows(read(path), "activities", "name") == ["k"]


def test_a_minor_schema_newer_than_known_is_read_by_the_names_of_columns(path: Path) -> None:
    with rocpd(path, version="3.7.1", newer=True) as file:
        file.dispatch(file.symbol("k"), T, T + 7)
        file.connection.execute(
            f'ALTER TABLE "rocpd_kernel_dispatch{ENDING}" ADD COLUMN novel TEXT'
        )
    trace = read(path)
    assert rows(trace, "activities", "name") == ["k"]
    assert "schema-newer" in codes_of(trace)


@pytest.mark.parametrize("version", ["4", "4.1.0", "5.0"])
def test_schema_4_is_refused_with_the_version_found_and_understood(
    path: Path, version: str
) -> None:
    with rocpd(path, version=version) as file:
        file.dispatch(file.symbol("k"), T, T + 7)
    with pytest.raises(InputError, match=rf"schema {version}: .*supported: schema 3") as caught:
        read(path)
    assert path.name in caught.value.message


def test_schema_4_is_known_by_its_columns_where_it_does_not_say_so(path: Path) -> None:
    with rocpd(path, version=None) as file:
        table = f'"rocpd_kernel_dispatch{ENDING}"'
        file.connection.execute(f"DROP TABLE {table}")
        file.connection.execute(
            f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, track_id INTEGER, start BIGINT)"
        )
    with pytest.raises(InputError, match=r"4 \(from its columns\)"):
        read(path)


def test_a_compressed_database_is_refused(path: Path) -> None:
    with rocpd(path, version="3") as file:
        file.add("metadata", tag="compression", value="lz4-frame-v1")
        file.dispatch(file.symbol("k"), T, T + 7)
    with pytest.raises(InputError, match="rocpd schema 3"):
        read(path)


def test_a_database_without_tables_of_work_says_so(path: Path) -> None:
    with rocpd(path, without=("kernel_dispatch", "memory_copy", "region", "pmc_event")):
        pass
    with pytest.raises(InputError, match="without records of GPU operations"):
        read(path)


def test_an_empty_database_is_a_trace_without_work(path: Path) -> None:
    with rocpd(path):
        pass
    trace = read(path)
    assert trace.activities.num_rows == 0
    assert rows(trace, "processes", "pid") == [PID]
    assert "no-device-work" in codes_of(trace)


# Several processes and files


def test_more_than_ten_files_in_a_folder(tmp_path: Path) -> None:
    """Quirk 38: each is read by itself; SQLite attaches no more than ten."""
    for rank in range(13):
        with rocpd(tmp_path / f"{rank}_results.db") as file:
            file.dispatch(file.symbol("k"), T + rank, T + rank + 5)
    trace = read(tmp_path)
    assert trace.processes.num_rows == 13
    assert sorted(rows(trace, "activities", "start_ns")) == [T + rank for rank in range(13)]
    assert trace.source.clock is not None
    assert "clocks-not-aligned" not in codes_of(trace)


def test_passes_are_repetitions_of_one_run_and_not_ranks(tmp_path: Path) -> None:
    """Quirk 18: times of one pass only, counters of all."""
    for number, counter in ((1, "SQ_WAVES"), (2, "GRBM_COUNT"), (3, None)):
        for process in range(2):
            folder = tmp_path / "host" / f"pass_{number}"
            folder.mkdir(parents=True, exist_ok=True)
            with rocpd(folder / f"{100 * number + process}_results.db", gpus=2) as file:
                kernel = file.symbol("k")
                start = T + 1000 * number + 100 * process
                event = file.dispatch(
                    kernel, start, start + 50, stack=5, agent_id=process + 1, dispatch_id=1
                )
                if counter:
                    file.counter(event, counter, 10 * number + process)
    trace = read(tmp_path)
    assert rows(trace, "activities", "start_ns") == [T + 3000, T + 3100]
    assert trace.processes.num_rows == 2
    columns = ("process", "device", "counter", "value", "repetition", "correlation")
    assert sorted(rows(trace, "kernel_counters", *columns)) == [
        (0, 0, "GRBM_COUNT", 20.0, 2, None),
        (0, 0, "SQ_WAVES", 10.0, 1, None),
        (1, 1, "GRBM_COUNT", 21.0, 2, None),
        (1, 1, "SQ_WAVES", 11.0, 1, None),
    ]
    codes = codes_of(trace)
    assert "repeated-passes" in codes
    assert "counted-while-timed" not in codes
    assert len(trace.source.files) == 6


def test_of_passes_that_all_counted_the_first_has_the_times(tmp_path: Path) -> None:
    for number in (2, 1):
        folder = tmp_path / f"pmc_{number}"
        folder.mkdir()
        with rocpd(folder / "7_results.db") as file:
            file.region("HIP_RUNTIME_API_EXT", "hipLaunchKernel", T - 5, T - 2, stack=5)
            event = file.dispatch(file.symbol("k"), T + number, T + number + 5, stack=5)
            file.counter(event, f"COUNTER_{number}", 1)
    trace = read(tmp_path)
    assert rows(trace, "activities", "start_ns") == [T + 1]
    columns = ("counter", "repetition", "correlation", "device")
    assert rows(trace, "kernel_counters", *columns) == [
        ("COUNTER_1", 1, 5, 0),
        ("COUNTER_2", 2, None, 0),
    ]
    assert "counted-while-timed" in codes_of(trace)


def test_a_single_pass_is_a_run_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "pass_1").mkdir()
    with rocpd(tmp_path / "pass_1" / "7_results.db") as file:
        event = file.dispatch(file.symbol("k"), T, T + 5)
        file.counter(event, "SQ_WAVES", 1)
    trace = read(tmp_path)
    assert rows(trace, "kernel_counters", "repetition") == [None]
    assert "repeated-passes" not in codes_of(trace)


def test_a_rank_in_the_name_is_the_rank(tmp_path: Path) -> None:
    for rank in range(2):
        with rocpd(tmp_path / f"rank{rank}_results.db") as file:
            file.dispatch(file.symbol("k"), T + rank, T + rank + 5)
    trace = read(tmp_path)
    assert trace.ranks == (0, 1)
    assert "rank-from-name" in codes_of(trace)


def test_a_database_that_cannot_be_read_does_not_keep_others_from_it(tmp_path: Path) -> None:
    with rocpd(tmp_path / "a.db") as file:
        file.dispatch(file.symbol("k"), T, T + 5)
    (tmp_path / "b.db").write_bytes((tmp_path / "a.db").read_bytes()[:600])
    with rocpd(
        tmp_path / "c.db", without=("kernel_dispatch", "memory_copy", "region", "pmc_event")
    ):
        pass
    trace = read(tmp_path)
    assert trace.activities.num_rows == 1
    files = {note.code: note.file for note in trace.notes}
    assert (files["file-not-read"], files["not-a-trace"]) == ("b.db", "c.db")
    assert not any(str(tmp_path) in note.text for note in trace.notes)
    with pytest.raises(InputError):
        read(tmp_path, strict=True)


def test_machines_of_their_own_have_clocks_of_their_own(tmp_path: Path) -> None:
    for rank in range(2):
        with rocpd(tmp_path / f"{rank}_results.db") as file:
            file.dispatch(file.symbol("k"), T + rank, T + rank + 5)
            file.connection.execute(
                f'UPDATE "rocpd_info_node{ENDING}" SET machine_id = ?', (f"machine{rank}",)
            )
    trace = read(tmp_path)
    assert trace.source.clock is None
    assert "clocks-not-aligned" in codes_of(trace)


def test_a_database_of_merged_runs_holds_them_all(path: Path) -> None:
    """Each run has tables of its own, with ids of its own."""
    second = RocpdFile(path, ending="_second", views=False)
    second.machine()
    second.dispatch(second.symbol("other"), T + 50, T + 60)
    second.close()
    with rocpd(path, views=False) as file:
        file.dispatch(file.symbol("k"), T, T + 7)
    trace = read(path)
    assert rows(trace, "activities", "name", "process") == [("k", 0), ("other", 1)]
    assert [file.name for file in trace.source.files] == [path.name]


def test_agents_that_are_listed_and_unused_are_no_devices(path: Path) -> None:
    """Quirks 20 and 46: eight are listed, two dies of one MI250X are used."""
    with rocpd(path, gpus=8) as file:
        kernel = file.symbol("k")
        for agent in (5, 4):
            file.dispatch(kernel, T, T + 7, agent_id=agent)
    assert sorted(rows(read(path), "devices", "local_id")) == [4, 5]


# Odd values


def test_odd_times_are_kept_and_said(path: Path) -> None:
    """Quirk 16, and ends that were never written."""
    with rocpd(path) as file:
        kernel = file.symbol("k")
        file.dispatch(kernel, T, T)
        file.dispatch(kernel, T + 10, T + 5)
        file.dispatch(kernel, T + 20, 0)
        file.dispatch(kernel, T + 30, 2.0**63)
        file.dispatch(kernel, "no time", T + 40)
        file.dispatch(kernel, T + 50, T + 51)
    trace = read(path)
    assert rows(trace, "activities", "start_ns", "dur_ns") == [
        (T, 0),
        (T + 10, 0),
        (T + 20, 0),
        (T + 30, 0),
        (T + 50, 1),
    ]
    counts = {note.code: note.count for note in trace.notes}
    assert (counts["negative-duration"], counts["no-duration"], counts["no-time"]) == (1, 2, 1)


def test_times_beyond_doubles_stay_exact(path: Path) -> None:
    """Quirk 13."""
    with rocpd(path) as file:
        kernel = file.symbol("k")
        for offset in (0, 1, 2, 3):
            start = 2**53 + offset
            file.dispatch(kernel, start, start + 1, stream_id=None)
    starts = rows(read(path), "activities", "start_ns")
    assert starts == [2**53, 2**53 + 1, 2**53 + 2, 2**53 + 3]


def test_a_kernel_of_331_seconds_is_shown_and_flagged(path: Path) -> None:
    """Quirk 45."""
    with rocpd(path) as file:
        kernel = file.symbol("k")
        file.dispatch(kernel, T, T + 331 * 10**9)
        file.dispatch(kernel, T + 332 * 10**9, T + 333 * 10**9)
    trace = read(path)
    assert rows(trace, "activities", "dur_ns") == [331 * 10**9, 10**9]
    (note,) = [note for note in trace.notes if note.code == "very-long"]
    assert note.count == 1


def test_the_part_of_the_process_that_the_device_worked_is_stated(path: Path) -> None:
    """Quirk 22."""
    with rocpd(path) as file:
        file.dispatch(file.symbol("k"), T, T + 10**9)
        file.connection.execute(
            f'UPDATE "rocpd_info_process{ENDING}" SET start = ?, "end" = ?',
            (T - 8 * 10**9, T + 2 * 10**9),
        )
    (note,) = [note for note in read(path).notes if note.code == "window"]
    assert "ran for 10.000 s" in note.text
    assert "start after 8.000 s and span 1.000 s" in note.text


def test_the_share_of_work_without_its_call_is_said(path: Path) -> None:
    """Quirks 41 and 42."""
    with rocpd(path) as file:
        kernel = file.symbol("k")
        for stack in range(1, 5):
            file.dispatch(kernel, T + stack, T + stack + 1, stack=stack)
        file.region("HIP_RUNTIME_API", "hipLaunchKernel", T, T + 1, stack=2)
    (note,) = [note for note in read(path).notes if note.code == "calls-missing"]
    assert note.count == 3


def test_names_with_invalid_utf8_are_repaired_and_said(path: Path) -> None:
    """Quirk 12."""
    with rocpd(path) as file:
        kernel = file.symbol("k")
        file.connection.execute(
            f'UPDATE "rocpd_info_kernel_symbol{ENDING}" SET display_name = CAST(? AS TEXT)',
            (b"ker\xffnel\x00end",),
        )
        file.dispatch(kernel, T, T + 1)
    trace = read(path)
    assert rows(trace, "activities", "name") == ["ker�nel\x00end"]
    assert "invalid-utf8" in codes_of(trace)


def test_rows_need_no_order(path: Path) -> None:
    """Quirk 14."""
    with rocpd(path) as file:
        kernel = file.symbol("k")
        for place in (3, 1, 2, 0):
            file.dispatch(kernel, T + 10 * place, T + 10 * place + 5)
    starts = rows(read(path), "activities", "start_ns")
    assert starts == [T, T + 10, T + 20, T + 30]


def test_a_kernel_without_display_name_has_its_mangled_one(path: Path) -> None:
    with rocpd(path) as file:
        file.dispatch(file.symbol("", mangled="_Z3addPf.kd"), T, T + 1)
        file.dispatch(999, T + 2, T + 3)
    names = rows(read(path), "activities", "name")
    assert names == ["_Z3addPf.kd", "(unnamed kernel)"]


def test_what_a_report_needs_of_it_is_there(path: Path) -> None:
    with rocpd(path) as file:
        kernel = file.symbol("Cijk_Ailk_Bljk_HHS_BH_MT128x128x32")
        for place in range(20):
            stack = place + 1
            file.region(
                "HIP_RUNTIME_API",
                "hipLaunchKernel",
                T + 10 * place,
                T + 10 * place + 2,
                stack=stack,
            )
            file.dispatch(kernel, T + 10 * place + 3, T + 10 * place + 9, stack=stack)
    analysis = tf.analyze(read(path))
    (device,) = analysis.devices
    assert device.whole.busy_ns == 20 * 6
    assert device.whole.unlinked == {"kernel": 0}


# Several processes


def of_process(path: Path, start: int, *, host: str = "node-a", ending: str = ENDING) -> None:
    with rocpd(path, machine=False, ending=ending) as file:
        file.add("info_node", id=1, machine_id="m", hostname=host)
        file.add("info_process", id=PID, nid=1, pid=PID)
        file.add("info_agent", id=5, type="GPU", absolute_index=2, name="gfx942")
        file.dispatch(file.symbol("k"), start, start + 100, agent_id=5)


def test_a_gpu_that_processes_share_is_one_though_each_has_a_file(tmp_path: Path) -> None:
    of_process(tmp_path / "1_results.db", T)
    of_process(tmp_path / "2_results.db", T + 40)
    trace = read(tmp_path)
    assert rows(trace, "devices", "local_id") == [2]
    assert rows(trace, "activities", "device", "process") == [(0, 0), (0, 1)]
    assert "device-shared" in codes_of(trace)


def test_gpus_of_two_machines_are_two_though_their_machine_ids_are_copies(tmp_path: Path) -> None:
    of_process(tmp_path / "1_results.db", T)
    of_process(tmp_path / "2_results.db", T + 40, host="node-b")
    trace = read(tmp_path)
    assert rows(trace, "devices", "local_id") == [2, 2]
    assert "clocks-not-aligned" in codes_of(trace)


def test_runs_that_share_their_tables_are_told_apart_by_their_id(path: Path) -> None:
    """A database without endings: ids of rows count from 1 in each run."""
    own = ("string", "event", "info_kernel_symbol", "kernel_dispatch", "info_process", "info_agent")
    with rocpd(path, machine=False, ending="", views=False, without=own) as file:
        make = file.connection.execute
        make("CREATE TABLE rocpd_string (id INTEGER, guid TEXT, string TEXT)")
        make("CREATE TABLE rocpd_event (id INTEGER, guid TEXT, category_id INTEGER, stack_id)")
        make("CREATE TABLE rocpd_info_process (id INTEGER, guid TEXT, nid, pid INTEGER)")
        make("CREATE TABLE rocpd_info_agent (id INTEGER, guid TEXT, type, absolute_index INTEGER)")
        make("CREATE TABLE rocpd_info_kernel_symbol (id INTEGER, guid TEXT, display_name TEXT)")
        make(
            "CREATE TABLE rocpd_kernel_dispatch (id INTEGER, guid TEXT, pid INTEGER,"
            ' agent_id INTEGER, kernel_id INTEGER, start BIGINT, "end" BIGINT, event_id INTEGER)'
        )
        for number, guid in enumerate(("a-1", "b-2")):
            file.add("info_process", id=1, guid=guid, pid=70 + number)
            file.add("info_agent", id=1, guid=guid, type="GPU", absolute_index=number + 2)
            file.add("info_kernel_symbol", id=1, guid=guid, display_name=f"k{number}")
            file.add("event", id=1, guid=guid, stack_id=5 + number)
            times = {"start": T + 100 * number, "end": T + 100 * number + 10 + number}
            file.add(
                "kernel_dispatch", id=1, guid=guid, pid=1, agent_id=1, kernel_id=1, event_id=1,
                **times,
            )  # fmt: skip
    trace = read(path)
    assert rows(trace, "processes", "pid") == [70, 71]
    columns = ("process", "name", "dur_ns", "correlation", "device")
    assert rows(trace, "activities", *columns) == [(0, "k0", 10, 5, 0), (1, "k1", 11, 6, 1)]
    assert rows(trace, "devices", "local_id") == [2, 3]
    assert "rank-unknown" in codes_of(trace)


def test_the_window_is_that_of_the_records_that_count(path: Path) -> None:
    with rocpd(path) as file:
        file.connection.execute(
            f'UPDATE "rocpd_info_process{ENDING}" SET start = ?, "end" = ?', (T - 900, T + 1100)
        )
        kernel = file.symbol("k")
        for number in range(20):
            file.dispatch(kernel, T + 10 * number, T + 10 * number + 5)
        file.dispatch(kernel, 5, 6)  # a time that was not set
    trace = read(path)
    assert trace.activities.num_rows == 20
    (note,) = [note for note in trace.notes if note.code == "window"]
    assert "900 ns and span 195 ns" in note.text
