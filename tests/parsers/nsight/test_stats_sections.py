"""Several reports of `nsys stats` together: of one file, of several profiles, of equal records."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import traceflops as tf
from tests.cli.test_commands import run
from tests.parsers.nsight.test_stats import (
    CALLS,
    RANGES,
    SUMS,
    TRACE,
    call,
    kernel,
    noted,
    read,
    rows,
    totals,
)
from traceflops.analysis.recipe import analyze
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.nsight.stats_read import read_stats
from traceflops.parsers.nsight.stats_text import Filtered

BY_SIZE = SUMS.replace("Name", "GridXYZ,BlockXYZ,Name")
NVTX = SUMS.replace("Name", "Style,Range")
PUSHPOP = SUMS.replace("Name", "Range")
SIZES = "Total (MB),Count,Avg (MB),Med (MB),Min (MB),Max (MB),StdDev (MB),Operation"
EXEC = (
    "API Start (ns),API Dur (ns),Queue Start (ns),Queue Dur (ns),Kernel Start (ns),"
    "Kernel Dur (ns),Total Dur (ns),PID,TID,DevId,API Function,GridXYZ,BlockXYZ,Kernel Name"
)
PROJECTED = (
    "Range,Style,Total Proj Time (ns),Total Range Time (ns),Range Instances,Proj Avg (ns),"
    "Proj Med (ns),Proj Min (ns),Proj Max (ns),Proj StdDev (ns),Total GPU Ops,Avg GPU Ops,"
    "Avg Range Lvl,Avg Num Child"
)


def said(profile: str, report: str) -> str:
    return f"Processing [{profile}] with [/opt/nvidia/reports/{report}.py]... "


def total(name: str, count: int, each: int) -> str:
    return f"50.0,{count * each},{count},{each},{each},{each},{each},0.0,{name}"


def by_rank(trace: tf.Trace) -> dict[Any, int]:
    ranks = dict(rows(trace, "processes", "process", "rank"))
    found: dict[Any, int] = {}
    for (process,) in rows(trace, "activities", "process"):
        found[ranks[process]] = found.get(ranks[process], 0) + 1
    return found


@pytest.mark.parametrize("are_named", [True, False])
@pytest.mark.parametrize("is_reversed", [True, False])
def test_sums_by_size_and_by_name_count_once(
    tmp_path: Path, are_named: bool, is_reversed: bool
) -> None:
    one = [SUMS, total("f", 3, 100)]
    two = [BY_SIZE, total("  64    8    1, 256    1    1,f", 2, 100)]
    two.append(total("  32    8    1, 256    1    1,f", 1, 100))
    parts = [("cuda_gpu_kern_sum", one), ("cuda_gpu_kern_gb_sum", two)]
    lines = []
    for name, part in parts[::-1] if is_reversed else parts:
        lines += [*([said("run.sqlite", name)] if are_named else []), *part, ""]
    trace = read(tmp_path, "all.csv", *lines)
    found = rows(trace, "totals", "kind", "name", "count", "total_ns", "grid", "block")
    assert found == [
        ("kernel", "f", 2, 200, [64, 8, 1], [256, 1, 1]),
        ("kernel", "f", 1, 100, [32, 8, 1], [256, 1, 1]),
    ]
    assert "report-repeated" in noted(trace)


def test_sums_of_all_ranges_and_of_some_count_once(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "all.csv",
        said("run.sqlite", "nvtx_pushpop_sum"),
        PUSHPOP,
        total(":step", 10, 500),
        said("run.sqlite", "nvtx_sum"),
        NVTX,
        total("PushPop,:step", 10, 500),
        total("StartEnd,NCCL:wait", 2, 100),
    )
    assert totals(trace) == [
        ("mark", "step", 10, 5_000, 500, 500),
        ("mark", "NCCL:wait", 2, 200, 100, 100),
    ]


def test_the_two_kinds_of_ranges_are_added(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run_nvtx_pushpop_sum.csv").write_text(f"{PUSHPOP}\n{total(':a', 2, 10)}\n")
    (folder / "run_nvtx_startend_sum.csv").write_text(f"{PUSHPOP}\n{total(':a', 3, 10)}\n")
    trace = tf.read(folder)
    assert sorted(totals(trace)) == [("mark", "a", 2, 20, 10, 10), ("mark", "a", 3, 30, 10, 10)]
    assert "report-repeated" not in noted(trace)


def test_in_a_folder_what_is_told_again_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run_cuda_gpu_kern_sum.csv").write_text(f"{SUMS}\n{total('f', 3, 100)}\n")
    again = total("  64    8    1, 256    1    1,f", 3, 100)
    (folder / "run_cuda_gpu_kern_gb_sum.csv").write_text(f"{BY_SIZE}\n{again}\n")
    trace = tf.read(folder)
    assert totals(trace) == [("kernel", "f", 3, 300, 100, 100)]
    assert "report-repeated" in noted(trace)


def test_calls_of_the_operating_system_are_counted_as_calls(tmp_path: Path) -> None:
    calls = SUMS.replace("Instances", "Num Calls")
    trace = read(
        tmp_path,
        "all.csv",
        said("run.sqlite", "osrt_sum"),
        calls,
        total("poll", 130, 7),
        total("futex", 10, 7),
        said("run.sqlite", "cuda_api_sum"),
        calls,
        total("cudaLaunchKernel", 4, 9),
    )
    assert totals(trace) == [("call", "cudaLaunchKernel", 4, 36, 9, 9)]
    (note,) = [note for note in trace.notes if note.code == "other-calls"]
    assert note.count == 140
    assert "header-repeated" not in noted(trace)


@pytest.mark.parametrize("are_named", [True, False])
def test_profiles_in_one_file_are_not_one_device(tmp_path: Path, are_named: bool) -> None:
    """Times of both begin at the start of their own session."""
    lines = []
    for rank in (0, 1):
        lines += [said(f"/tmp/rank{rank}.sqlite", "cuda_gpu_trace")] if are_named else []
        lines += [TRACE, *(kernel(100 * n, 50, n + 1, "k") for n in range(3 + rank))]
    trace = read(tmp_path, "all.csv", *lines)
    assert trace.devices.num_rows == 2
    assert "several-profiles" in noted(trace)
    if are_named:
        assert by_rank(trace) == {0: 3, 1: 4}
    else:
        assert sorted(by_rank(trace).values()) == [7]
        assert len({process for (process,) in rows(trace, "activities", "process")}) == 2


def test_sums_of_two_profiles_of_one_name_stay_apart(tmp_path: Path) -> None:
    lines = []
    for count in (3, 5):
        lines += [said("report1.sqlite", "cuda_gpu_kern_sum"), SUMS, total("f", count, 100)]
        lines += [said("report1.sqlite", "cuda_api_sum"), SUMS.replace("Instances", "Num Calls")]
        lines += [total("cudaLaunchKernel", count, 10)]
    trace = read(tmp_path, "all.csv", *lines)
    found = rows(trace, "totals", "process", "name", "count")
    first, second = (dict(r[1:] for r in found if r[0] == process) for process in (0, 1))
    assert [first, second] == [
        {"f": 3, "cudaLaunchKernel": 3},
        {"f": 5, "cudaLaunchKernel": 5},
    ]


def test_a_table_written_twice_counts_once_and_one_that_goes_on_is_one(tmp_path: Path) -> None:
    first = [kernel(100 * n, 50, n + 1, "k") for n in range(3)]
    later = [kernel(100 * n, 50, n + 1, "k") for n in range(3, 5)]
    twice = read(tmp_path, "twice.csv", TRACE, *first, TRACE, *first)
    assert twice.activities.num_rows == 3
    assert "table-repeated" in noted(twice)
    whole = read(tmp_path, "whole.csv", TRACE, *first, TRACE, *later)
    assert [start for (start,) in rows(whole, "activities", "start_ns")] == [0, 100, 200, 300, 400]
    assert whole.devices.num_rows == 1


def execution(start: int, dur: int, call_start: int, name: str = "k") -> str:
    """Return a kernel with the call that launched it."""
    grid = "   8    2    1, 128    1    1"
    return (
        f"{call_start},9,{call_start + 9},1,{start},{dur},{start + dur - call_start},42,43,0,"
        f"cudaLaunchKernel,{grid},{name}"
    )


def test_calls_beside_kernels_of_another_report_are_linked_by_the_times_of_kernels(
    tmp_path: Path,
) -> None:
    """Numbers of one report mean nothing in another."""
    folder = tmp_path / "run"
    folder.mkdir()
    starts = [1_000, 2_000, 3_000, 4_000]
    work = [kernel(start, 50 + n, 4 - n, "k") for n, start in enumerate(starts)]
    work.append(kernel(6_000, 50, 9, "k"))
    (folder / "run_cuda_gpu_trace.csv").write_text("\n".join([TRACE, *work]))
    told = [execution(start, 50 + n, start - 100) for n, start in enumerate(starts)]
    (folder / "run_cuda_kern_exec_trace.csv").write_text("\n".join([EXEC, *told]))
    trace = tf.read(folder)
    assert trace.activities.num_rows == 5
    assert rows(trace, "calls", "start_ns", "correlation") == [
        (start - 100, 4 - n) for n, start in enumerate(starts)
    ]
    assert not {"no-calls", "report-repeated"} & set(noted(trace))
    other = [line.replace("(0)", "(1)") for line in work]
    for unlike in (other, [line.replace(",k", ",[CUDA memcpy DtoD]") for line in work]):
        (folder / "run_cuda_gpu_trace.csv").write_text("\n".join([TRACE, *unlike]))
        notes = {note.code: note.text for note in tf.read(folder).notes}
        assert "4 calls of cuda_kern_exec_trace not used" in notes["calls-unlinked"]
        assert not {"no-calls", "report-repeated"} & notes.keys()
    doubled = folder / "run_cuda_gpu_trace.csv"
    doubled.write_text("\n".join([TRACE, *work, work[0]]))  # which of two is not known
    assert tf.read(folder).calls.num_rows == 3
    doubled.write_text("\n".join([TRACE, *work]))
    calls = [call(start - 100, "cudaLaunchKernel", 4 - n) for n, start in enumerate(starts)]
    (folder / "run_cuda_api_trace.csv").write_text("\n".join([CALLS, *calls]))
    whole = tf.read(folder)
    assert whole.calls.num_rows == 4
    assert "report-repeated" in noted(whole)


def test_names_that_read_like_messages_are_names(tmp_path: Path) -> None:
    header = (
        "Name,Projected Start (ns),Projected Duration (ns),Orig Start (ns),Orig Duration (ns),"
        "Style,PID,TID,NumGPUOps,Lvl,NumChild,RangeId,ParentId,RangeStack"
    )
    names = ["Generating tokens", "Running [eval]", "NOTE: x", "Processing [a] with [b]", "Try"]
    lines = [f"{name},{n},5,{n},5,PushPop,7,7,2,0,0,{n},,:{n}" for n, name in enumerate(names)]
    trace = read(tmp_path, "x.csv", "Processing [x.sqlite] with [y.py]... ", header, *lines)
    assert [name for (name,) in rows(trace, "marks", "name")] == names


def test_ranges_of_the_default_domain_have_no_colon(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "x_nvtx_pushpop_trace.csv",
        RANGES,
        "10,20,10,0,10,:step 0,7,7,0,0,1,,:1,:step 0",
        "30,40,10,0,10,NCCL:ncclAllReduce,7,7,0,0,2,,:2,NCCL:ncclAllReduce",
    )
    assert [name for (name,) in rows(trace, "marks", "name")] == ["step 0", "NCCL:ncclAllReduce"]


def test_steps_are_found_by_their_ranges(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    times = range(0, 4_000, 1_000)
    work = [kernel(at + 300, 200, n + 1, "k") for n, at in enumerate(times)]
    calls = [call(at + 100, "cudaLaunchKernel", n + 1) for n, at in enumerate(times)]
    ranges = [
        f"{at},{at + 900},900,0,900,:step {n},42,43,0,0,{n},,:{n},:step {n}"
        for n, at in enumerate(times)
    ]
    (folder / "run_cuda_gpu_trace.csv").write_text("\n".join([TRACE, *work]))
    (folder / "run_cuda_api_trace.csv").write_text("\n".join([CALLS, *calls]))
    (folder / "run_nvtx_pushpop_trace.csv").write_text("\n".join([RANGES, *ranges]))
    steps = analyze(tf.read(folder)).steps
    assert steps.source == "annotation"


def test_time_on_the_device_by_range(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "x.csv",
        SUMS,
        total("f", 3, 100),
        PROJECTED,
        ":fwd,PushPop,900,100,9,100.0,100.0,90,110,0.0,45,5.0,0.0,0.0",
    )
    assert totals(trace) == [
        ("kernel", "f", 3, 300, 100, 100),
        ("gpu_mark", "fwd", 9, 900, 90, 110),
    ]
    alone = read(tmp_path, "y.csv", PROJECTED, ":f,PushPop,9,1,9,1,1,1,1,0,4,5.0,0.0,0.0")
    assert "only GPU annotations" in analyze(alone).verdict.sentence


def test_recipe_output_as_csv(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "trace.csv",
        "Name,Projected Start,Projected Duration,Orig Start,Orig Duration,Style,PID,TID,"
        "NumGPUOps,Lvl,NumChild,RangeId,ParentId,RangeStack,Rank",
        ":step 0,1000,80,990.0,70.0,PushPop,100,100,3,0.0,0,1.0,,:1,0",
        ":step 0,1100,80,1090.0,70.0,PushPop,200,200,3,0.0,0,1.0,,:1,1",
    )
    assert rows(trace, "marks", "kind", "name", "start_ns", "dur_ns") == [
        ("gpu_annotation", "step 0", 1_000, 80),
        ("gpu_annotation", "step 0", 1_100, 80),
    ]
    assert rows(trace, "processes", "pid", "rank") == [(100, 0), (200, 1)]


def test_sizes_of_copies_are_kept(tmp_path: Path) -> None:
    times = SUMS.replace("Instances", "Count").replace("Name", "Operation")
    copied = "[CUDA memcpy Host-to-Device]"
    sizes = [SIZES, f"41.943,10,4.194,4.194,4.194,4.194,0.000,{copied}"]
    alone = read(tmp_path, "a.csv", *sizes)
    both = read(tmp_path, "b.csv", times, total(copied, 10, 80), *sizes)
    columns = ("kind", "name", "count", "total_ns", "bytes")
    assert rows(alone, "totals", *columns) == [("memcpy", copied, 10, None, 41_943_000)]
    assert rows(both, "totals", *columns) == [("memcpy", copied, 10, 800, 41_943_000)]
    few = read(tmp_path, "f.csv", SIZES, f"0.000,5,0.000,0.000,0.000,0.000,0.000,{copied}")
    assert rows(few, "totals", *columns) == [("memcpy", copied, 5, None, None)]
    old = read(
        tmp_path,
        "c.csv",
        "Total,Operations,Average,Minimum,Maximum,Operation",
        f"4,1,4,4,4,{copied}",
    )
    assert rows(old, "totals", *columns) == [("memcpy", copied, 1, None, None)]
    assert "sizes-without-unit" in noted(old)
    assert "unit-assumed" not in noted(old)


def test_progress_of_nsys_profile_names_the_tables_below(tmp_path: Path) -> None:
    """The tables of system calls and of CUDA calls have one header, and are of one profile."""
    calls = SUMS.replace("Instances", "Num Calls").split(",")
    tables = {
        "osrt_sum": (calls, total("poll", 2, 500)),
        "cuda_api_sum": (calls, total("cudaLaunchKernel", 3, 100)),
        "cuda_gpu_kern_sum": (SUMS.split(","), total("f", 3, 70)),
    }
    lines: list[str] = []
    for number, (report, (header, row)) in enumerate(tables.items(), 3):
        lines += [f"[{number}/8] Executing '{report}' stats report", ""]
        lines += [*_console(header, row.split(",")), ""]
    trace = read(tmp_path, "log.txt", *lines)
    assert rows(trace, "totals", "name", "total_ns") == [("f", 210), ("cudaLaunchKernel", 300)]
    assert len(trace.source.files) == 1


def test_text_of_2019_has_copies_and_calls_too(tmp_path: Path) -> None:
    """Its titles state the unit alone, and those of copies and of system calls are CUDA's."""
    header = "Time(%)|Total Time|{}|Average|Minimum|Maximum|Name"
    tables = (
        ("CUDA API Statistics (nanoseconds)", "Calls", ("60.0|900|3|300|100|500|cudaMemcpy",)),
        ("CUDA Kernel Statistics (nanoseconds)", "Instances", ("100.0|40|2|20|20|20|f",)),
        (
            "CUDA Memory Operation Statistics (nanoseconds)",
            "Operations",
            (f"9|800|2|4|4|4|{COPIED}",),
        ),
        ("Operating System Runtime API Statistics (nanoseconds)", "Calls", ("9|7|1|7|7|7|poll",)),
    )
    lines: list[str] = []
    for title, counted, cells in tables:
        table = _console(header.format(counted).split("|"), *(row.split("|") for row in cells))
        lines += [f"Generating {title.partition(' (')[0]}...", title, "", *table, "", ""]
    sizes = ["Total", "Operations", "Average", "Minimum", "Maximum", "Name"]
    at = lines.index("Generating Operating System Runtime API Statistics...")
    table = _console(sizes, ["4", "2", "2", "2", "2", COPIED])
    lines[at:at] = ["CUDA Memory Operation Statistics (KiB)", "", *table, ""]
    trace = read(tmp_path, "log.txt", *lines)
    assert sorted(rows(trace, "totals", "name", "count", "total_ns", "bytes")) == [
        (COPIED, 2, 800, 4_096),
        ("cudaMemcpy", 3, 900, None),
        ("f", 2, 40, None),
    ]
    assert {"unit-assumed", "sizes-without-unit"}.isdisjoint(noted(trace))


def test_versions_in_a_programs_output_do_not_tell_the_decimal_mark(tmp_path: Path) -> None:
    """A comma after a number in a sentence made sizes of three decimals 1,000 times too large."""
    times = _console(
        ["Time(%)", "Total Time", "Operations", "Average", "Minimum", "Maximum", "Name"],
        f"9|800|2|400.0|4|4|{COPIED}".split("|"),
    )
    sizes = _console(
        ["Total", "Operations", "Average", "Minimum", "Maximum", "Name"],
        f"1.500|2|0.750|0.750|0.750|{COPIED}".split("|"),
    )
    lines = ["Please note: compute capability 8.6, driver 11.4, step 0, cuDNN 6.0.", ""]
    lines += ["CUDA Memory Operation Statistics (nanoseconds)", "", *times, ""]
    lines += ["CUDA Memory Operation Statistics (KiB)", "", *sizes, ""]
    trace = read(tmp_path, "log.txt", *lines)
    assert rows(trace, "totals", "name", "total_ns", "bytes") == [(COPIED, 800, 1_536)]


def test_names_of_runs_that_read_like_titles_of_2019_are_names(tmp_path: Path) -> None:
    lines: list[str] = []
    for name in ("Statistics (1)", "Statistics (2)"):
        lines += [said(f"{name}.sqlite", "cuda_gpu_kern_sum"), SUMS]
        lines += [total(f"of {name}", 3, 100), ""]
    trace = read(tmp_path, "all.csv", *lines)
    assert rows(trace, "totals", "process", "name") == [
        (0, "of Statistics (1)"),
        (1, "of Statistics (2)"),
    ]


COPIED = "[CUDA memcpy HtoD]"
OLD_SIZES = "Total,Operations,Average,Minimum,Maximum,Operation"


@pytest.mark.parametrize(
    ("title", "header", "bytes_"),
    [
        ("CUDA Memory Operation Statistics (by size in KiB):", OLD_SIZES, 4_096),
        ("CUDA Memory Operation Statistics (by size in bytes):", OLD_SIZES, 4),
        (" ** GPU MemOps Summary (by Size in MiB) (gpumemsizesum):", OLD_SIZES, 4 << 20),
        ("CUDA Memory Operation Statistics (by size in KiB):", SIZES, 4_000_000),
        ("", SIZES.replace("MB", "MiB"), 4 << 20),
    ],
)
def test_a_unit_that_stands_in_a_title_is_used(
    tmp_path: Path, title: str, header: str, bytes_: int
) -> None:
    cells = ["4", "1", *("4" for _ in header.split(",")[3:]), COPIED]
    printed = _console(header.split(","), cells)
    for name, lines in (("a.csv", [header, ",".join(cells)]), ("a.txt", printed)):
        for between in ((), ("",)):
            trace = read(tmp_path, name, title, *between, *lines)
            assert rows(trace, "totals", "name", "count", "bytes") == [(COPIED, 1, bytes_)]
            assert "sizes-without-unit" not in noted(trace)


@pytest.mark.parametrize("unit", ["us", "usec"])
def test_a_unit_of_times_in_a_title_is_used(tmp_path: Path, unit: str) -> None:
    header = "Time(%),Total Time,Operations,Average,Minimum,Maximum,Operation"
    title = f"CUDA Memory Operation Statistics (by time in {unit}):"
    trace = read(tmp_path, "a.csv", title, "", header, f"100.0,7,1,7,7,7,{COPIED}")
    assert rows(trace, "totals", "count", "total_ns") == [(1, 7_000)]
    assert "unit-assumed" not in noted(trace)


def _console(*table: list[str]) -> list[str]:
    """Return a table as the console shows it: columns, a rule of dashes, rows."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    first, *others = [
        "  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in table
    ]
    return [first, "  ".join("-" * width for width in widths), *others]


def test_migrations_of_unified_memory_are_no_copies(tmp_path: Path) -> None:
    ways = {
        "[CUDA memcpy Unified Host-to-Device]": "migration HtoD",
        "[CUDA Unified Memory memcpy DtoH]": "migration DtoH",
        "[CUDA memcpy Host-to-Device]": "HtoD",
    }
    lines = [
        f"{100 * n},50,{n},,,,,,,,,,0.065,1.0,Managed,Managed,GPU (0),1,,7,{name}"
        for n, name in enumerate(ways)
    ]
    trace = read(tmp_path, "x.csv", TRACE, *lines)
    assert rows(trace, "activities", "name", "direction") == list(ways.items())
    times = SUMS.replace("Instances", "Count").replace("Name", "Operation")
    sums = read(tmp_path, "s.csv", times, *(total(name, 1, 10) for name in ways))
    untimed = analyze(sums).untimed
    assert untimed is not None
    found = dict(
        zip(untimed.rows["name"].to_pylist(), untimed.rows["sub"].to_pylist(), strict=True)
    )
    assert list(map(found.get, ways)) == ["migration", "migration", "copy"]


def test_a_table_whose_rule_is_damaged_is_missed(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "log.txt",
        " ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):",
        "",
        " Time (%)  Total Time (ns)  Instances   Name",
        " --------  ------x--------  ---------  ------",
        "    100.0              300          3  gemm_k",
        "",
        " ** CUDA API Summary (cuda_api_sum):",
        "",
        " Time (%)  Total Time (ns)  Num Calls   Name",
        " --------  ---------------  ---------  ----------------",
        "    100.0              300          3  cudaLaunchKernel",
        "",
        " ** OpenMP Summary (openmp_sum):",
        "",
        "SKIPPED: no data",
    )
    assert [row[1] for row in totals(trace)] == ["cudaLaunchKernel"]
    (note,) = [note for note in trace.notes if note.code == "tables-unread"]
    assert note.count == 1
    assert "cuda_gpu_kern_sum" in note.text


US = TRACE.replace("(ns)", "(us)")
REST = "1,1,1,1,32,1,1,16,0.0,0.0,,,,,GPU (0),1,,7,k"


@pytest.mark.parametrize(
    ("header", "cells", "times"),
    [
        (TRACE, '"1,000,000","20,000"', (1_000_000, 20_000)),
        (TRACE, '"1.000.000",20', (1_000_000, 20)),
        (US, '"1,000.500",20.000', (1_000_500, 20_000)),
        (US, '"1000,500","20,000"', (1_000_500, 20_000)),
        (US, '"1.000,500",20.000', (1_000_500, 20_000_000)),
    ],
)
def test_numbers_printed_for_people(
    tmp_path: Path, header: str, cells: str, times: tuple[int, int]
) -> None:
    trace = read(tmp_path, "x.csv", header, f"{cells},{REST}")
    assert rows(trace, "activities", "start_ns", "dur_ns") == [times]


def test_a_mark_that_may_be_either_is_not_guessed(tmp_path: Path) -> None:
    """2,000 us alone are 2 ms or 2 us; beside 1.5 they are 2 ms."""
    trace = read(tmp_path, "x.csv", US, f'100,"2,000",{REST}')
    assert rows(trace, "activities", "start_ns", "dur_ns") == [(100_000, 0)]
    assert {"bad-cells", "no-duration"} <= noted(trace)
    told = read(tmp_path, "y.csv", US, f'100,"2,000",{REST}', f"5000,1.5,{REST}")
    assert rows(told, "activities", "dur_ns") == [(2_000_000,), (1_500,)]


def test_counts_and_sums_below_0_are_unknown(tmp_path: Path) -> None:
    trace = read(tmp_path, "x.csv", SUMS, total("f", 1, 10), "1,-5,-2,1,1,1,1,0,g")
    assert rows(trace, "totals", "count", "total_ns")[1] == (None, None)
    (note,) = [note for note in trace.notes if note.code == "impossible-amounts"]
    assert note.text.endswith("(negative or too large): 1 count of totals, 1 total_ns of totals.")


def test_sums_alone_have_device_work_and_no_times(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"{SUMS}\n{total('f', 1, 10)}\n")
    shown = run("mfu", str(path))
    assert "only sums by name" in shown.stdout
    assert "no device work" not in shown.stdout


def test_a_header_behind_the_end_of_a_block_is_found() -> None:
    """The content comes in pieces that may end behind the line that names a profile."""
    lines = [said("a.sqlite", "cuda_gpu_kern_sum"), SUMS, total("f", 3, 100), ""]
    text = "\n".join(lines).encode()
    for cut in range(1, len(text)):
        pieces = Filtered(ByteSource("x.csv", io.BytesIO), partial(_pieces, text, cut))
        (file,) = read_stats(pieces)
        assert [part.rows for part in file.parts] == [1]


def _pieces(text: bytes, cut: int, _: ByteSource) -> Iterator[bytes]:
    yield text[:cut]
    yield text[cut:]
