"""Reports of `nsys stats`: CSV and console text, of all releases."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

import traceflops as tf
from tests.conftest import shared_file
from traceflops.errors import NotATrace

SUMS = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name"
TRACE = (
    "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),"
    "DymSMem (MB),Bytes (MB),Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name"
)
CALLS = "Start (ns),Duration (ns),Name,Result,CorrID,Pid,Tid,T-Pri,Thread Name"
RANGES = (
    "Start (ns),End (ns),Duration (ns),DurChild (ns),DurNonChild (ns),Name,PID,TID,Lvl,NumChild,"
    "RangeId,ParentId,RangeStack,NameTree"
)
A100 = "NVIDIA A100-SXM4-40GB (0)"


def kernel(start: int, dur: int, correlation: int, name: str, device: str = A100) -> str:
    return f"{start},{dur},{correlation},8,2,1,128,1,1,32,0.000,0.016,,,,,{device},1,,7,{name}"


def copy(start: int, dur: int, correlation: int, size: str, way: str) -> str:
    row = f"{start},{dur},{correlation},,,,,,,,,,{size},0.000,Pageable,Device,{A100},1,,7,"
    return f"{row}[CUDA memcpy {way}]"


def call(start: int, name: str, correlation: int, pid: int = 42) -> str:
    return f"{start},90,{name},0,{correlation},{pid},{pid + 1},,python"


def read(folder: Path, name: str, *lines: str) -> tf.Trace:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tf.read(path)


def rows(trace: tf.Trace, table: str, *columns: str) -> list[tuple[Any, ...]]:
    found = trace.table(table)
    return list(zip(*(found[column].to_pylist() for column in columns), strict=True))


def noted(trace: tf.Trace) -> set[str]:
    return {note.code for note in trace.notes}


def totals(trace: tf.Trace) -> list[tuple[Any, ...]]:
    return rows(trace, "totals", "kind", "name", "count", "total_ns", "min_ns", "max_ns")


def test_the_real_sums_meet_their_figures() -> None:
    name = "nsys_stats_rtx5090_prefill_cuda_gpu_kern_sum.csv"
    expected = json.loads(shared_file("traces/expected.json").read_text())["traces"]
    figures = expected[f"nsight/{name}"]
    trace = tf.read(shared_file(f"traces/nsight/{name}"))
    table = trace.totals
    assert table.num_rows == figures["rows"] == 97
    assert sum(table["total_ns"].to_pylist()) == int(figures["sum Total Time (ns)"]) == 65_691_733
    assert sum(table["count"].to_pylist()) == int(figures["sum Instances"]) == 6_660
    assert set(table["kind"].to_pylist()) == {"kernel"}
    assert noted(trace) == {"no-timeline"}


def test_sums_have_no_timeline(tmp_path: Path) -> None:
    trace = read(tmp_path, "x_cuda_gpu_kern_sum.csv", SUMS, "100.0,90,3,30.0,30.0,20,40,1.0,k")
    assert totals(trace) == [("kernel", "k", 3, 90, 20, 40)]
    assert trace.activities.num_rows == 0
    assert noted(trace) == {"no-timeline"}


def test_lines_before_the_header_and_several_reports_in_one_file(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "out.csv",
        "Generating SQLite file run.sqlite from run.nsys-rep",
        "NOTICE: Existing SQLite export found: run.sqlite",
        "        It is assumed file was previously exported from: run.nsys-rep",
        "Processing [run.sqlite] with [/opt/reports/cuda_gpu_kern_sum.py]... ",
        "",
        " ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):",
        "",
        SUMS,
        "60.0,60,2,30.0,30.0,20,40,1.0,a",
        '40.0,40,1,40.0,40.0,40,40,0.0,"b<1, ""x"">(int, int)"',
        "",
        "Processing [run.sqlite] with [/opt/reports/cuda_gpu_mem_time_sum.py]... ",
        SUMS.replace("Instances", "Count").replace("Name", "Operation"),
        "100.0,7,1,7.0,7.0,7,7,0.0,[CUDA memcpy Host-to-Device]",
        "SKIPPED: run.sqlite does not contain NV Tools Extension (NVTX) data.",
        SUMS.replace("Instances", "Num Calls"),
        "100.0,9,1,9.0,9.0,9,9,0.0,cudaLaunchKernel",
        "100.0,9,1,9.0,9.0,9,9,0.0,poll",
    )
    assert totals(trace) == [
        ("kernel", "a", 2, 60, 20, 40),
        ("kernel", 'b<1, "x">(int, int)', 1, 40, 40, 40),
        ("memcpy", "[CUDA memcpy Host-to-Device]", 1, 7, 7, 7),
        ("call", "cudaLaunchKernel", 1, 9, 9, 9),
    ]
    assert "rows-dropped" not in noted(trace)
    assert "other-calls" in noted(trace)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("SKIPPED: run.sqlite does not contain CUDA trace data.", "the profile has no CUDA data"),
        ("SKIPPED: run.sqlite does not contain NVTX data.", "API calls, but not CUDA's"),
    ],
)
def test_no_report_is_asked_for_of_what_the_profile_lacks(
    tmp_path: Path, line: str, said: str
) -> None:
    header = SUMS.replace("Instances", "Num Calls")
    with pytest.raises(NotATrace, match=said) as caught:
        read(tmp_path, "out.csv", header, "100.0,9,1,9.0,9.0,9,9,0.0,poll", "", line)
    assert ("give cuda_gpu_trace" in caught.value.hint) == ("not CUDA's" in said)


@pytest.mark.parametrize(
    ("unit", "text", "ns"),
    [
        ("ns", "16214877", 16_214_877),
        ("us", "16214.877", 16_214_877),
        ("ms", "16.214877", 16_214_877),
        ("sec", "0.016214877", 16_214_877),
        ("us", "1500000000000.001", 1_500_000_000_000_001),
    ],
)
def test_the_unit_of_the_header_is_honoured(tmp_path: Path, unit: str, text: str, ns: int) -> None:
    header = SUMS.replace("(ns)", f"({unit})")
    trace = read(tmp_path, "x.csv", header, f"100.0,{text},1,{text},{text},{text},{text},0,k")
    assert totals(trace) == [("kernel", "k", 1, ns, ns, ns)]


def test_names_of_2021(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "x_gpukernsum.csv",
        "Time(%),Total Time (ns),Instances,Average,Minimum,Maximum,Name",
        "100.0,90,3,30.0,20,40,k",
    )
    assert totals(trace) == [("kernel", "k", 3, 90, 20, 40)]
    assert "unit-assumed" in noted(trace)


def test_console_text_with_local_marks(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "log.txt",
        "Processing [x.sqlite] with [cuda_gpu_kern_sum.py]...",
        "",
        " ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):",
        "",
        " Time (%)  Total Time (us)  Instances   Avg (us)   Min (us)  Max (us)      Name      ",
        " --------  ---------------  ---------  ---------  ---------  --------  --------------",
        "     98,7    1.355.463,125      1.024  1.323,694    0,500     2.000,0  a<int, 2>(int)",
        "      1,3       17.853,000         10  1.785,300    1,000     3.000,0  b",
        "",
    )
    assert totals(trace) == [
        ("kernel", "a<int, 2>(int)", 1024, 1_355_463_125, 500, 2_000_000),
        ("kernel", "b", 10, 17_853_000, 1_000, 3_000_000),
    ]


def console(columns: Mapping[str, int], *lines: Mapping[str, str]) -> list[str]:
    """Return a table as the console shows it: names in the middle, a rule, numbers to the right."""
    return [
        " " + "  ".join(name.center(width) for name, width in columns.items()),
        " " + "  ".join("-" * width for width in columns.values()),
        *(
            " " + "  ".join(line.get(name, "").rjust(width) for name, width in columns.items())
            for line in lines
        ),
        "",
    ]


def test_console_table_of_device_work(tmp_path: Path) -> None:
    columns = {"Start (ns)": 13, "Duration (ns)": 13, "CorrId": 6, "GrdX": 4, "GrdY": 4, "GrdZ": 4}
    columns |= {"Bytes (MB)": 10, "Throughput (MB/s)": 17, "Device": 27, "Strm": 4, "Name": 20}
    device = {"Device": "NVIDIA GeForce RTX 3060 (1)", "Strm": "7"}
    launch = {"Start (ns)": "1,000,000", "Duration (ns)": "2,500", "CorrId": "121"}
    copied = {"Start (ns)": "1,010,000", "Duration (ns)": "672", "Bytes (MB)": "0.004"}
    grid = {"GrdX": "8", "GrdY": "2", "GrdZ": "1"}
    trace = read(
        tmp_path,
        "log.txt",
        *console(
            columns,
            device | launch | grid | {"Name": "f(int)"},
            device | copied | {"Name": "[CUDA memcpy HtoD]", "Throughput (MB/s)": "6.000"},
        ),
    )
    assert rows(trace, "activities", "kind", "name", "start_ns", "dur_ns", "grid", "direction") == [
        ("kernel", "f(int)", 1_000_000, 2_500, [8, 2, 1], None),
        ("memcpy", "[CUDA memcpy HtoD]", 1_010_000, 672, None, "HtoD"),
    ]
    assert rows(trace, "devices", "product", "local_id") == [("NVIDIA GeForce RTX 3060", 1)]


def test_device_work_has_a_timeline(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "run_cuda_gpu_trace.csv",
        TRACE,
        kernel(1_000, 500, 3, '"void f<1, 2>(int, int)"'),
        kernel(-200, 100, 1, "early", "NVIDIA A100-SXM4-40GB (1)"),
        copy(1_700, 10, 6, "0.000", "DtoD"),
        copy(1_800, 10, 7, "0.001", "Peer-to-Peer"),
        f"1900,9,8,,,,,,,,,,0.001,,Device,,{A100},1,,7,[CUDA memset]",
        copy(2_000, 2_000_000_000, 5, "24.000", "Host-to-Device"),
    )
    columns = ("kind", "name", "start_ns", "dur_ns", "correlation", "bytes", "direction", "stream")
    assert rows(trace, "activities", *columns) == [
        ("kernel", "early", -200, 100, 1, None, None, 7),
        ("kernel", "void f<1, 2>(int, int)", 1_000, 500, 3, None, None, 7),
        ("memcpy", "[CUDA memcpy DtoD]", 1_700, 10, 6, None, "DtoD", 7),
        ("memcpy", "[CUDA memcpy Peer-to-Peer]", 1_800, 10, 7, 1_000, "PtoP", 7),
        ("memset", "[CUDA memset]", 1_900, 9, 8, 1_000, None, 7),
        # What the column Throughput says (0) is not read: bytes and duration tell it.
        ("memcpy", "[CUDA memcpy Host-to-Device]", 2_000, 2 * 10**9, 5, 24 * 10**6, "HtoD", 7),
    ]
    assert rows(trace, "devices", "product", "local_id") == [
        ("NVIDIA A100-SXM4-40GB", 0),
        ("NVIDIA A100-SXM4-40GB", 1),
    ]
    assert {"sizes-rounded", "no-calls"} <= noted(trace)


def files(folder: Path, **texts: Iterable[str]) -> tf.Trace:
    for name, lines in texts.items():
        (folder / f"run_{name}.csv").write_text("\n".join(lines) + "\n")
    return tf.read(folder)


def test_reports_of_one_profile_are_one_trace(tmp_path: Path) -> None:
    trace = files(
        tmp_path,
        cuda_gpu_trace=[TRACE, kernel(1_000, 500, 3, "f")],
        cuda_api_trace=[CALLS, call(900, "cudaLaunchKernel_v7000", 3), call(950, "poll", 0)],
        nvtx_pushpop_trace=[RANGES, "800,1600,800,0,800,step 1,42,43,0,0,1,,:1,step 1"],
        cuda_gpu_kern_sum=[SUMS, "100.0,500,1,500,500,500,500,0,f"],
        nvtx_sum=[SUMS.replace("Name", "Range"), "100.0,800,1,800,800,800,800,0,step 1"],
    )
    assert rows(trace, "processes", "pid") == [(42,)]
    assert rows(trace, "activities", "process", "correlation") == [(0, 3)]
    columns = ("process", "name", "correlation", "api", "thread", "error_code")
    assert rows(trace, "calls", *columns) == [(0, "cudaLaunchKernel_v7000", 3, "runtime", 43, 0)]
    assert rows(trace, "marks", "kind", "name", "start_ns", "dur_ns") == [
        ("annotation", "step 1", 800, 800)
    ]
    assert trace.totals.num_rows == 0
    assert trace.source.event_counts["cuda_gpu_kern_sum"] == 1


def test_work_of_several_processes_is_not_linked_by_chance(tmp_path: Path) -> None:
    trace = files(
        tmp_path,
        cuda_gpu_trace=[TRACE, kernel(1_000, 500, 3, "f")],
        cuda_api_trace=[CALLS, call(900, "cudaLaunchKernel", 3), call(910, "cuLaunchKernel", 3, 7)],
    )
    (process,) = trace.activities["process"].to_pylist()
    assert process not in trace.calls["process"].to_pylist()
    assert "process-unknown" in noted(trace)


def test_launches_with_their_calls(tmp_path: Path) -> None:
    header = (
        "API Start (ns),API Dur (ns),Queue Start (ns),Queue Dur (ns),Kernel Start (ns),"
        "Kernel Dur (ns),Total Dur (ns),PID,TID,DevId,API Function,GridXYZ,BlockXYZ,Kernel Name"
    )
    trace = read(
        tmp_path,
        "x_cuda_kern_exec_trace.csv",
        header,
        "100,10,110,5,120,50,70,42,43,1,cudaLaunchKernel,   4    2    1, 128    1    1,f",
        "200,10,210,5,220,50,70,42,43,1,cudaGraphLaunch,   1    1    1,  32    1    1,g",
        "200,10,210,5,280,50,70,42,43,1,cudaGraphLaunch,   1    1    1,  32    1    1,h",
    )
    assert rows(trace, "activities", "name", "start_ns", "grid", "block", "correlation") == [
        ("f", 120, [4, 2, 1], [128, 1, 1], 1),
        ("g", 220, [1, 1, 1], [32, 1, 1], 2),
        ("h", 280, [1, 1, 1], [32, 1, 1], 2),
    ]
    assert rows(trace, "calls", "name", "start_ns", "correlation") == [
        ("cudaLaunchKernel", 100, 1),
        ("cudaGraphLaunch", 200, 2),
    ]
    assert rows(trace, "devices", "local_id") == [(1,)]


def test_projected_ranges(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "x_nvtx_gpu_proj_trace.csv",
        "Name,Projected Start (ns),Projected Duration (ns),Orig Start (ns),Orig Duration (ns),"
        "Style,PID,TID,NumGPUOps,Lvl,NumChild,RangeId,ParentId,RangeStack",
        "Processing batch,100,50,90,70,PushPop,42,43,3,0,0,1,,:1",
    )
    assert rows(trace, "marks", "kind", "name", "start_ns", "dur_ns", "thread") == [
        ("gpu_annotation", "Processing batch", 100, 50, 43)
    ]


def test_sums_of_several_kinds_in_one_report(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "x_cuda_api_gpu_sum.csv",
        SUMS.replace("Name", "Category,Operation"),
        "50.0,50,5,10.0,10,9,11,1,CUDA_API,cudaMemcpyAsync",
        "40.0,40,4,10.0,10,9,11,1,CUDA_KERNEL,k",
        "10.0,10,1,10.0,10,9,11,1,MEMORY_OPER,[CUDA memset]",
    )
    assert totals(trace) == [
        ("call", "cudaMemcpyAsync", 5, 50, 9, 11),
        ("kernel", "k", 4, 40, 9, 11),
        ("memset", "[CUDA memset]", 1, 10, 9, 11),
    ]


def test_sizes_alone_tell_how_many(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "x_cuda_gpu_mem_size_sum.csv",
        "Total (MB),Count,Avg (MB),Med (MB),Min (MB),Max (MB),StdDev (MB),Operation",
        "1.5,3,0.5,0.5,0.5,0.5,0,[CUDA memcpy Device-to-Host]",
    )
    name = "[CUDA memcpy Device-to-Host]"
    assert totals(trace) == [("memcpy", name, 3, None, None, None)]


@pytest.mark.parametrize(
    ("header", "row"),
    [
        (
            "NVTX Range,Style,PID,TID,NVTX Inst,Kern Inst,Total Time (ns),Avg (ns),Med (ns),"
            "Min (ns),Max (ns),StdDev (ns),Kernel Name",
            "r,PushPop,1,2,1,1,50,50,50,50,50,0,k",
        ),
        (SUMS.replace("Instances", "Num Calls"), "100.0,9,1,9.0,9.0,9,9,0.0,sem_wait"),
        ("Time (%),Total Time (ns),Num Frames,Name", "1,2,3,x"),
    ],
)
def test_what_tells_nothing_of_device_work_says_what_to_give(
    tmp_path: Path, header: str, row: str
) -> None:
    with pytest.raises(NotATrace) as caught:
        read(tmp_path, "x.csv", header, row)
    assert "cuda_gpu_trace" in caught.value.hint or "cuda_gpu_kern_sum" in caught.value.hint


def test_long_names_and_markup(tmp_path: Path) -> None:
    long = "void f<" + "x" * 5_000 + ">(int)"
    trace = read(
        tmp_path,
        "x.csv",
        SUMS,
        f"1,1,1,1,1,1,1,0,{long}",
        "1,1,1,1,1,1,1,0,<script>alert(1)</script>",
    )
    assert trace.totals["name"].to_pylist() == [long, "<script>alert(1)</script>"]


def test_the_rank_is_from_the_name(tmp_path: Path) -> None:
    trace = read(tmp_path, "rank3_cuda_gpu_trace.csv", TRACE, kernel(1, 2, 3, "f"))
    assert trace.ranks == (3,)
    assert "rank-from-name" in noted(trace)


def test_tabs_separate_too(tmp_path: Path) -> None:
    row = "100.0,90,3,30.0,30.0,20,40,1.0,k"
    trace = read(tmp_path, "x.tsv", SUMS.replace(",", "\t"), row.replace(",", "\t"))
    assert totals(trace) == [("kernel", "k", 3, 90, 20, 40)]


def test_a_report_in_json_is_read_like_its_csv(tmp_path: Path) -> None:
    """The values are texts or numbers; names may have quotes, commas, and braces of lambdas."""
    name = 'void f<{lambda(int)#1}>(char, "x")'
    one: dict[str, Any] = {
        "Start(sec)": 3.5,
        "Duration(nsec)": 92,
        "CorrId": 7,
        "GrdX": 2,
        "GrdY": 1,
        "GrdZ": 1,
    }
    one |= {"BlkX": 64, "BlkY": 1, "BlkZ": 1, "Device": A100, "Ctx": 1, "Strm": 7, "Name": name}
    path = tmp_path / "gputrace.json"
    path.write_text(json.dumps([one, {**one, "Start(sec)": 3.75, "GrdX": ""}], indent=1))
    trace = tf.read(path)
    expected = [(name, 3_500_000_000, 92), (name, 3_750_000_000, 92)]
    assert rows(trace, "activities", "name", "start_ns", "dur_ns") == expected
    assert rows(trace, "activities", "grid") == [([2, 1, 1],), (None,)]
    path.write_text(json.dumps([one]), encoding="utf-8-sig")
    assert rows(tf.read(path), "activities", "name", "start_ns", "dur_ns") == expected[:1]
    for damaged in (json.dumps([one])[:-1], json.dumps([{"\ud800": 1, **one}])):
        path.write_text(damaged)
        with pytest.raises(tf.InputError, match="damaged or cut off"):
            tf.read(path)
