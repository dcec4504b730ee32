"""The tables of every generation of rocprof: each column ends where it should."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parsers.rocprof.tablefiles import (
    COUNTERS,
    SIZES,
    V1_NEW,
    V1_OLD,
    V1_TIMES,
    V2_57,
    V2_60,
    V3_KERNELS,
    call,
    calls,
    codes,
    counter,
    kernel,
    kernels,
    read,
    rows,
    table,
    v1_row,
)
from traceflops.parsers.rocprof.layouts import LAYOUTS, counters_in, layout_of

RELEASES = {
    "6.2": "ROCm 6.2",
    "6.3": "ROCm 6.3 or 6.4",
    "7.0": "ROCm 7.0 or later",
    "converted": "ROCm 7 (rocpd convert)",
}


def test_every_layout_is_found_by_the_columns_that_it_needs() -> None:
    for layout in LAYOUTS:
        found = layout_of(sorted(layout.needs.split()))
        assert found is not None
        assert found.what == layout.what


@pytest.mark.parametrize("release", V3_KERNELS)
def test_kernels_of_each_release_of_rocprofv3(release: str, tmp_path: Path) -> None:
    first = kernel(
        1000,
        1500,
        Correlation_Id=5,
        Queue_Id=3,
        LDS_Block_Size=512,
        Group_Segment_Size=512,
        Graph_Exec_Id=9,
        Graph_Node_Id=2,
    )
    trace = read(tmp_path, {"7_kernel_trace.csv": kernels(first, release=release)})
    (row,) = trace.activities.to_pylist()
    converted = release == "converted"
    registers = None if release.startswith("6") else 32
    assert {key: value for key, value in row.items() if value is not None} == {
        "process": 0,
        "device": 0,
        "stream": 3,
        "kind": "kernel",
        "name": "gemm(float*)",
        "start_ns": 1000,
        "dur_ns": 500,
        "correlation": 5,
        "grid": [16, 4, 1],
        "block": [64, 2, 1],
        "shared_memory_bytes": 512,
        "scratch_bytes": 0,
        **({"registers_per_thread": registers} if registers else {}),
        **({"graph": 9, "graph_node": 2} if converted else {}),
    }
    assert trace.source.facts == {
        "generation": "v3",
        "layout": RELEASES[release],
        "recorded": "kernel_trace",
    }
    assert trace.source.tool == f"rocprofv3 CSV (columns of {RELEASES[release]})"
    assert trace.source.event_counts == {"kernel_trace": 1}


@pytest.mark.parametrize("release", V3_KERNELS)
def test_all_releases_say_the_same_of_one_run(release: str, tmp_path: Path) -> None:
    run = [kernel(10 * i, 10 * i + 5, Correlation_Id=i, VGPR_Count=0) for i in range(1, 9)]
    trace = read(tmp_path / release, {"7_kernel_trace.csv": kernels(*run, release=release)})
    other = read(tmp_path / "7.0", {"7_kernel_trace.csv": kernels(*run)})
    assert trace.activities.to_pylist() == other.activities.to_pylist()
    assert trace.devices.to_pylist() == other.devices.to_pylist()


@pytest.mark.parametrize("columns", [V1_OLD, V1_NEW])
@pytest.mark.parametrize("more", ["", " DurationNs"])
def test_kernels_of_rocprof_v1(columns: str, more: str, tmp_path: Path) -> None:
    one = v1_row(3, 500, 600, vgpr=40, arch_vgpr=40, lds=256, **{"queue-id": 2})
    trace = read(tmp_path, {"results.csv": table(columns + V1_TIMES + more, [one], quoted=False)})
    (row,) = trace.activities.to_pylist()
    assert {key: value for key, value in row.items() if value is not None} == {
        "process": 0,
        "device": 0,
        "stream": 2,
        "kind": "kernel",
        "name": "gemm(float*) [clone .kd]",
        "start_ns": 500,
        "dur_ns": 100,
        "correlation": 3,
        "registers_per_thread": 40,
        "shared_memory_bytes": 256,
        "scratch_bytes": 0,
    }
    assert rows(trace, "processes", "pid") == [77]
    assert trace.source.facts["generation"] == "v1"
    assert ("5.2" in trace.source.facts["layout"]) == (columns == V1_OLD)


def test_counters_of_v1_may_stand_before_its_times(tmp_path: Path) -> None:
    file = table(
        f"{V1_NEW} Wavefronts L2CacheHit{V1_TIMES}",
        [v1_row(0, 5, 9, Wavefronts="2048.0000000000", L2CacheHit="None")],
    )
    trace = read(tmp_path, {"results.csv": file})
    assert rows(trace, "kernel_counters", "counter", "value", "threads", "block_threads") == [
        ("Wavefronts", 2048.0, 1024, 64)
    ]


V2_ROW = {
    "Dispatch_ID": 1,
    "GPU_ID": 64700,
    "Queue_ID": 3,
    "PID": 77,
    "TID": 77,
    "GRD": 1024,
    "WGR": 64,
    "Grid_Size": 1024,
    "Workgroup_Size": 64,
    "Arch_VGPR": 8,
    "LDS": 512,
    "LDS_Per_Workgroup": 512,
    "Kernel_Name": "matrixTranspose(float*, float*, int) (.kd)",
    "Start_Timestamp": 1000,
    "End_Timestamp": 1200,
    "Correlation_ID": 9,
}


@pytest.mark.parametrize("columns", [V2_57, V2_60])
def test_kernels_and_calls_of_rocprofv2(columns: str, tmp_path: Path) -> None:
    api = "Domain Function Kernel_Name Start_Timestamp End_Timestamp Correlation_ID"
    if columns == V2_60:
        api = api.replace(" Kernel_Name", "")
    launch = {
        "Domain": "HIP_API_DOMAIN",
        "Function": "hipLaunchKernel",
        "Kernel_Name": "",
        "Start_Timestamp": 900,
        "End_Timestamp": 950,
        "Correlation_ID": 9,
    }
    files = {
        "results_77.csv": table(columns, [V2_ROW], quoted=False).replace("\n", "\n\n", 1),
        "hip_api_trace_77.csv": table(api, [launch], quoted=False).replace("\n", "\n\n", 1),
    }
    trace = read(tmp_path, files)
    (row,) = trace.activities.to_pylist()
    assert row["name"] == V2_ROW["Kernel_Name"]
    assert (row["start_ns"], row["dur_ns"], row["stream"], row["correlation"]) == (1000, 200, 3, 9)
    assert (row["registers_per_thread"], row["shared_memory_bytes"]) == (8, 512)
    assert rows(trace, "devices", "local_id") == [64700]
    assert rows(trace, "processes", "pid") == [77]
    assert rows(trace, "calls", "name", "api", "correlation") == [("hipLaunchKernel", "hip", 9)]
    assert "calls-missing" not in codes(trace)
    assert trace.source.facts["generation"] == "v2"


def test_operations_of_rocprofv2(tmp_path: Path) -> None:
    columns = "Domain Operation Kernel_Name Start_Timestamp Stop_Timestamp Correlation_ID"

    def operation(name: str, start: int, kernel_name: str = "") -> dict[str, object]:
        return {
            "Domain": "HIP_OPS_DOMAIN",
            "Operation": name,
            "Kernel_Name": kernel_name,
            "Start_Timestamp": start,
            "Stop_Timestamp": start + 5,
            "Correlation_ID": start,
        }

    file = table(
        columns,
        [operation("DISPATCH_OP", 10, "k"), operation("COPY_OP", 20), operation("BARRIER_OP", 30)],
    )
    trace = read(tmp_path, {"hcc_ops_trace_77.csv": file})
    assert rows(trace, "activities", "kind", "name", "start_ns", "dur_ns", "correlation") == [
        ("kernel", "k", 10, 5, 10),
        ("memcpy", "COPY_OP", 20, 5, 20),
    ]
    assert rows(trace, "devices", "local_id") == [0]
    assert "device-unknown" in codes(trace)


def test_ranges_of_rocprofv2_are_pushed_and_popped_by_id(tmp_path: Path) -> None:
    def mark(marker: int, time: int, message: str = "") -> dict[str, object]:
        return {
            "Domain": "ROCTX_DOMAIN",
            "ROCTX_ID": marker,
            "Message": message,
            "Timestamp": time,
        }

    file = table(
        "Domain ROCTX_ID Message Timestamp",
        [
            mark(1, 10, "outer"),
            mark(2, 20, "inner"),
            mark(2, 30),
            mark(1, 40),
            mark(3, 50, "a mark"),
            mark(4, 60, "twice"),
            mark(4, 70, "twice"),
            mark(4, 80, "twice"),
            mark(4, 90, "twice"),
            mark(5, 95),
        ],
    )
    trace = read(tmp_path, {"roctx_trace_77.csv": file})
    assert rows(trace, "marks", "name", "kind", "start_ns", "dur_ns") == [
        ("outer", "annotation", 10, 30),
        ("inner", "annotation", 20, 10),
        ("a mark", "instant", 50, 0),
        ("twice", "annotation", 60, 10),
        ("twice", "annotation", 80, 10),
    ]
    (note,) = [note for note in trace.notes if note.code == "unpaired-ranges"]
    assert note.count == 1


def test_launches_of_graphs_count_where_their_kernels_are_missing(tmp_path: Path) -> None:
    columns = (
        "Guid Kind Agent_Id Queue_Id Thread_Id Correlation_Id Start_Timestamp End_Timestamp"
        " Duration Graph_Exec_Id Kernel_Dispatch_Count"
    )
    launches = [
        {
            "Guid": "0000ddb5-1",
            "Kind": "Graph Launch",
            "Agent_Id": "Agent 4",
            "Correlation_Id": number,
            "Start_Timestamp": 100 * number,
            "End_Timestamp": 100 * number + 50,
            "Graph_Exec_Id": 6,
        }
        for number in (1, 2)
    ]
    work = kernel(110, 120, Correlation_Id=1)
    trace = read(
        tmp_path,
        {
            "kernel_trace.csv": kernels(work, release="converted"),
            "graph_launch_trace.csv": table(columns, launches),
        },
    )
    assert rows(trace, "activities", "kind", "name", "start_ns", "dur_ns") == [
        ("kernel", "gemm(float*)", 110, 10),
        ("graph", "graph 6", 200, 50),
    ]


# rocprof-compute

SYSTEM = (
    "workload_name,command,hostname,rocm_version,compute_partition,memory_partition,gpu_model,"
    "gpu_arch,cu_per_gpu,wave_size,max_sclk,num_xcd\n"
    'vcopy,"./secret --token 1",node-17,6.1.2-110,SPX,NPS1,MI300A_A1,gfx942,228,64,2100,6\n'
)
PERF = (
    "Dispatch_ID GPU_ID Grid_Size Workgroup_Size LDS_Per_Workgroup Scratch_Per_Workitem Arch_VGPR"
    " Accum_VGPR SGPR Wave_Size Kernel_Name Correlation_ID Kernel_ID SQ_WAVES TCC_HIT[0] TCC_HIT[1]"
    " Wave_Size_1 Correlation_ID_1 GRBM_GUI_ACTIVE Start_Timestamp End_Timestamp"
)
PERF_ROW = {
    "Dispatch_ID": 0,
    "GPU_ID": 2,
    "Grid_Size": 1048576,
    "Workgroup_Size": 256,
    "Kernel_Name": "vecCopy(double*, double*) (.kd)",
    "SQ_WAVES": 16384,
    "TCC_HIT[0]": 1024,
    "TCC_HIT[1]": 512,
    "GRBM_GUI_ACTIVE": 70335,
    "Wave_Size_1": 64,
    "Start_Timestamp": "17250653618423.5",
    "End_Timestamp": "17250653858583.25",
}


def test_a_workload_of_rocprof_compute(tmp_path: Path) -> None:
    name = "vecCopy(double*, double*) [clone .kd]"
    stamps = table(V1_NEW + V1_TIMES, [v1_row(0, 500, 600, KernelName=name)])
    files = {
        "sysinfo.csv": SYSTEM,
        "pmc_perf.csv": table(PERF, [PERF_ROW]),
        "timestamps.csv": stamps,
        "roofline.csv": "device,HBMBw,L2Bw\n0,1,2\n",
    }
    trace = read(tmp_path, files)
    (device,) = trace.devices.to_pylist()
    assert {key: value for key, value in device.items() if value is not None} == {
        "device": 0,
        "process": 0,
        "local_id": 2,
        "type": "gpu",
        "product": "MI300A",
        "compute_major": 9,
        "compute_minor": 4,
        "sm_count": 228,
        "warp_size": 64,
        "architecture": "gfx942",
        "clock_hz": 2_100_000_000,
        "dies": 6,
    }
    assert trace.processes.num_rows == 1
    assert set(rows(trace, "kernel_counters", "counter", "value", "device")) == {
        ("SQ_WAVES", 16384.0, 0),
        ("TCC_HIT", 1536.0, 0),
        ("GRBM_GUI_ACTIVE", 70335.0, 0),
    }
    facts = dict(trace.source.facts)
    assert facts["generation"] == "compute"
    assert (facts["rocm_version"], facts["compute_partition"]) == ("6.1.2-110", "SPX")
    assert trace.source.identities == ("node-17",)
    assert "timed-one-by-one" in codes(trace)
    assert "secret" not in repr(trace.source) + repr(trace.notes)


@pytest.mark.parametrize(
    ("mode", "dies", "found"),
    [("SPX", 1, None), ("CPX", 1, 1), ("CPX", 6, None), ("", 1, None), ("", 6, 6), ("TPX", 2, 2)],
)
def test_dies_of_a_workload_are_those_of_its_partition(
    mode: str, dies: int, found: int | None, tmp_path: Path
) -> None:
    system = SYSTEM.replace(",SPX,", f",{mode},").replace(",6\n", f",{dies}\n")
    stamps = table(V1_NEW + V1_TIMES, [v1_row(0, 500, 600)])
    trace = read(tmp_path, {"sysinfo.csv": system, "timestamps.csv": stamps})
    assert rows(trace, "devices", "dies") == [found]


def test_the_chip_of_a_workload_is_its_product(tmp_path: Path) -> None:
    system = "workload_name,gpu_model,gpu_arch,chip_id\nx,MI300,gfx942,MI308X\n"
    stamps = table(V1_NEW + V1_TIMES, [v1_row(0, 500, 600)])
    for chip, product in (("MI308X", "MI308X"), ("29857", "MI300")):
        files = {"sysinfo.csv": system.replace("MI308X", chip), "timestamps.csv": stamps}
        assert rows(read(tmp_path / chip, files), "devices", "product") == [product]


def test_counters_of_rocprof_compute_alone(tmp_path: Path) -> None:
    files = {"sysinfo.csv": SYSTEM, "pmc_perf.csv": table(PERF, [PERF_ROW])}
    trace = read(tmp_path, files)
    found = dict(rows(trace, "kernel_counters", "counter", "value"))
    assert found == {"SQ_WAVES": 16384.0, "TCC_HIT": 1536.0, "GRBM_GUI_ACTIVE": 70335.0}
    assert trace.activities.num_rows == 0
    assert "no-timeline" in codes(trace)


@pytest.mark.parametrize(
    ("start", "end", "dur_ns"),
    [
        ("1000", "3000", 2000),
        ("1000.5", "3001.25", 2001),  # means over passes
        ("3000", "1000", None),
        ("", "1000", None),
        ("20000000000000000", "20000000000002000", None),  # a double holds only even ones
    ],
)
@pytest.mark.parametrize("is_long", [False, True])
def test_times_beside_counters_are_how_long_a_launch_was_counted(
    tmp_path: Path, is_long: bool, start: str, end: str, dur_ns: int | None
) -> None:
    times = {"Start_Timestamp": start, "End_Timestamp": end}
    long = [counter(1, name, 3, **times) for name in ("SQ_WAVES", "TCC_HIT")]
    wide = table(PERF, [PERF_ROW | times])
    files = {"7_counter_collection.csv": table(COUNTERS, long)}
    trace = read(tmp_path, files if is_long else {"pmc_perf.csv": wide})
    assert set(rows(trace, "kernel_counters", "dur_ns")) == {dur_ns}
    assert trace.activities.num_rows == 0


def test_an_older_sysinfo_has_other_words(tmp_path: Path) -> None:
    system = (
        "workload_name,host_name,gpu_soc,numCU,waveSize,sclk,name\n"
        "Axes1,06fa5f860366,gfx90a,104,64,1700,mi200\n"
    )
    stamps = table(V1_NEW + V1_TIMES, [v1_row(0, 500, 600)])
    trace = read(tmp_path, {"sysinfo.csv": system, "timestamps.csv": stamps})
    assert rows(trace, "devices", "product", "architecture", "sm_count", "clock_hz") == [
        ("mi200", "gfx90a", 104, 1_700_000_000)
    ]
    assert trace.source.identities == ("06fa5f860366",)


def test_long_counters_of_rocprof_compute(tmp_path: Path) -> None:
    columns = (
        "GPU_ID GUID Correlation_Id Dispatch_ID Grid_Size Workgroup_Size LDS_Per_Workgroup"
        " Scratch_Per_Workitem Arch_VGPR Accum_VGPR SGPR Kernel_Name Start_Timestamp End_Timestamp"
        " Kernel_ID Counter_Name Counter_Value"
    )
    files = {
        f"results_pmc_perf_{n}.csv": table(
            columns, [counter(1, f"C{n}", n, GUID=f"00-{n}", GPU_ID=1, Dispatch_ID=1)]
        )
        for n in (0, 1)
    }
    trace = read(tmp_path, files)
    assert trace.processes.num_rows == 1
    assert sorted(rows(trace, "kernel_counters", "repetition", "counter", "value")) == [
        (1, "C0", 0.0),
        (2, "C1", 1.0),
    ]
    assert trace.source.facts["generation"] == "compute"


def test_counter_columns_are_told_from_the_others() -> None:
    assert counters_in(PERF.split()) == {
        "SQ_WAVES": [13],
        "TCC_HIT": [14, 15],
        "GRBM_GUI_ACTIVE": [18],
    }
    assert counters_in(["TCC_HIT[0]", "TCC_HIT", "lower", "X Y", "SQ_WAVES", "SQ_WAVES_2"]) == {
        "TCC_HIT": [1],
        "SQ_WAVES": [4],
    }
    # Instances of another pass, merged beside their sum
    assert counters_in(["TCC_HIT[0]", "TCC_HIT_sum", "TCC_MISS[0]"]) == {
        "TCC_HIT_sum": [1],
        "TCC_MISS": [2],
    }


def test_two_thousand_counters(tmp_path: Path) -> None:
    names = [f"TCC_{part}[{n}]" for n in range(128) for part in ("HIT", "MISS", "REQ", "READ")]
    names += [f"SQ_C{n}" for n in range(1_500)]
    columns = (
        f"Dispatch_ID GPU_ID Grid_Size Kernel_Name Start_Timestamp End_Timestamp {' '.join(names)}"
    )
    one = {"Kernel_Name": "k", "GPU_ID": 1} | dict.fromkeys(names, 2)
    file = table(columns, [one | {"Dispatch_ID": d} for d in range(30)], quoted=False)
    trace = read(tmp_path, {"pmc_perf.csv": file})
    found = rows(trace, "kernel_counters", "counter", "value")
    assert len(found) == 30 * (4 + 1_500)
    assert {value for name, value in found if name.startswith("TCC")} == {256.0}


@pytest.mark.parametrize("rows_of_kernels", [0, 1])
def test_facts_name_what_was_recorded(rows_of_kernels: int, tmp_path: Path) -> None:
    files = {"7_api_trace.csv": calls(call(1, 2), call(3, 4, Domain="RCCL_API"))}
    if rows_of_kernels:
        files["7_kernel_trace.csv"] = table(f"{V3_KERNELS['7.0']} {SIZES}", [kernel(1, 2)])
    recorded = read(tmp_path, files).source.facts["recorded"]
    assert set(recorded.split(", ")) == {
        "hip_api",
        "rccl_api",
        *(["kernel_trace"] if rows_of_kernels else []),
    }
