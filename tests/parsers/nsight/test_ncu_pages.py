"""Several pages of Nsight Compute together, their marks and units."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import traceflops as tf
from tests.parsers.nsight.test_ncu import NEW, header, launched, line, noted, read
from traceflops.errors import InputError

FADD = "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum"
FMUL = "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum"
READ, TIME = "dram__bytes_read.sum", "gpu__time_duration.sum"


def page(units: list[str] | None, *kernels: list[str], metrics: tuple[str, ...]) -> list[str]:
    """Return a raw page; without `units` it lacks their row."""
    lines = [header(NEW, *metrics)]
    if units is not None:
        lines.append(line(*[""] * 11, *units))
    return [*lines, *(line(*kernel) for kernel in kernels)]


def of(pid: int, number: int, *values: str, name: str = "f", grid: str = "(8, 2, 1)") -> list[str]:
    row = launched(number, name)
    row[1], row[8] = str(pid), grid
    return [*row, *values]


def table(trace: tf.Trace, *columns: str) -> list[tuple[Any, ...]]:
    found = trace.kernel_counters
    return list(zip(*(found[column].to_pylist() for column in columns), strict=True))


def test_each_axis_of_a_launch_is_kept(tmp_path: Path) -> None:
    trace = read(tmp_path, *page(["inst"], of(7, 0, "5"), metrics=(FADD,)))
    assert table(trace, "grid", "block", "threads", "block_threads") == [
        ([8, 2, 1], [384, 1, 1], 8 * 2 * 384, 384)
    ]


def test_a_mark_that_stands_twice_is_that_of_thousands_in_the_whole_file(tmp_path: Path) -> None:
    """The numbers that tell may come behind those that do not."""
    rows = [of(7, 0, "524.288"), of(7, 1, "8.000.000.000")]
    trace = read(tmp_path, *page(["byte"], *rows, metrics=(READ,)))
    assert table(trace, "value") == [(524_288,), (8_000_000_000,)]
    assert "decimal-commas" in noted(trace)
    mixed = [of(7, 0, "524,288"), of(7, 1, "1.5")]
    assert table(read(tmp_path, *page(["byte"], *mixed, metrics=(READ,))), "value") == [
        (524_288,),
        (1.5,),
    ]


def test_a_mark_of_which_nothing_tells_is_said(tmp_path: Path) -> None:
    trace = read(tmp_path, *page(["byte"], of(7, 0, "524.288"), metrics=(READ,)))
    assert table(trace, "value") == [(524.288,)]
    (note,) = [note for note in trace.notes if note.code == "marks-ambiguous"]
    assert "524.288" in note.text


def test_each_row_of_units_counts_for_what_is_behind_it(tmp_path: Path) -> None:
    first = page(["Mbyte"], of(7, 0, "16.00"), metrics=(READ,))
    second = [line(*[""] * 11, "Kbyte"), line(*of(8, 0, "16.00"))]
    trace = read(tmp_path, *first, "==PROF== Connected to process 8", *second)
    assert table(trace, "value") == [(16_000_000,), (16_000,)]
    assert trace.processes["pid"].to_pylist() == [7, 8]


def test_processes_are_in_the_order_of_the_page(tmp_path: Path) -> None:
    trace = read(tmp_path, *page(["inst"], of(9, 0, "5"), of(3, 1, "6"), metrics=(FADD,)))
    assert trace.processes["pid"].to_pylist() == [9, 3]
    assert table(trace, "process", "value") == [(0, 5), (1, 6)]


@pytest.mark.parametrize("units", [None, ["inst", "Kibyte", "fortnight"]])
def test_bytes_and_times_without_a_known_unit_are_unknown(
    tmp_path: Path, units: list[str] | None
) -> None:
    """Counts of instructions have no scale, so that they can be told."""
    trace = read(tmp_path, *page(units, of(7, 0, "5", "16.00", "2"), metrics=(FADD, READ, TIME)))
    assert table(trace, "counter", "value") == [(FADD, 5)]
    assert noted(trace)["unit-unknown"] == 2


def test_pages_with_other_counters_are_passes(tmp_path: Path) -> None:
    """Each call of ncu is a process of its own."""
    kernels = [of(7, 0, "5"), of(7, 1, "6", name="g")]
    other = [of(9, 0, "50"), of(9, 1, "60", name="g")]
    pages = (page(["inst"], *kernels, metrics=(FADD,)), page(["byte"], *other, metrics=(READ,)))
    expected = [(0, 0, FADD, 5), (0, 0, FADD, 6), (0, 1, READ, 50), (0, 1, READ, 60)]
    columns = ("process", "repetition", "counter", "value")
    one = read(tmp_path, *pages[0], *pages[1])
    assert table(one, *columns) == expected
    assert noted(one)["pages-together"] == 2
    assert one.source.event_counts["launches"] == 2
    folder = tmp_path / "passes"
    folder.mkdir()
    for number, lines in enumerate(pages):
        (folder / f"p{number}.csv").write_text("\n".join(lines))
    assert table(tf.read(folder), *columns) == expected


def test_pages_with_the_same_counters_are_of_other_processes(tmp_path: Path) -> None:
    """In containers all processes may have one id; their first launches are not the same."""
    metrics = (FADD, FMUL)
    first = [of(53, 0, "5", "0"), of(53, 1, "6", "0", name="g")]
    second = [of(53, 0, "7", "0", name="g"), of(53, 1, "8", "0")]
    pages = (page(["inst", "inst"], *kernels, metrics=metrics) for kernels in (first, second))
    trace = read(tmp_path, *(row for lines in pages for row in lines))
    found = table(trace, "process", "repetition", "name", "counter", "value")
    assert [row for row in found if row[3] == FADD] == [
        (0, 0, "f", FADD, 5),
        (0, 0, "g", FADD, 6),
        (1, 0, "g", FADD, 7),
        (1, 0, "f", FADD, 8),
    ]


def test_a_page_written_twice_counts_once(tmp_path: Path) -> None:
    lines = page(["inst"], of(7, 0, "5"), metrics=(FADD,))
    trace = read(tmp_path, *lines, *lines)
    assert table(trace, "value") == [(5,)]
    assert "page-repeated" in noted(trace)
    longer = page(["inst"], of(7, 1, "6"), metrics=(FADD,))
    whole = read(tmp_path, *lines, *longer)
    assert table(whole, "process", "dispatch", "value") == [(0, 0, 5), (0, 1, 6)]


OF_2021 = """\
==PROF== Profiling "sum" - 1: 0%....50%....100% - 8 passes
loss 0.2694
==PROF== Disconnected from process 7
[7] app@127.0.0.1
  sum(float *, int), 2024-Jul-13 20:38:33, Context 1, Stream 7
    NVTX Start/End Ranges:
      <default domain>
        <0,layer>
    Section: Command line profiler metrics
    ---------------------------------------- --------------- ---------
    dram__bytes_read.sum                               Mbyte      1.50
    gpu__time_duration.sum                           usecond      5.98
    launch__grid_size                                            1,117
    ---------------------------------------- --------------- ---------
    WRN   The grid of this launch is smaller than the GPU, which has 84 multiprocessors.

"""
OF_2024 = """\
[9] app@host
  void axpy<4>(float, float *) (64, 2, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 8.6
    Section: GPU Speed Of Light Throughput
    ----------------------- ----------- ------------
    Metric Name             Metric Unit Metric Value
    ----------------------- ----------- ------------
    Compute (SM) Throughput           %        41.25
    Duration                         us         2.00
    ----------------------- ----------- ------------

    OPT   This kernel grid is too small to fill the available resources on this device, resulting
          in only 0.4 full waves across all SMs.

    Section: Compute Workload Analysis
    ----------------------- ----------- ------------
    Metric Name             Metric Unit Metric Value
    ----------------------- ----------- ------------
    SM Busy                           %        41.25
    ----------------------- ----------- ------------

    INF   FMA is the highest-utilized pipeline (32.6%) based on elapsed cycles in the workload. It's
          dominated by its FMA Lite sub-pipeline. Based on the number of executed instructions, the
          highest utilized pipeline (41.2%) is LSU. It executes load/store memory operations.
"""


def test_what_ncu_prints_is_read_launch_by_launch(tmp_path: Path) -> None:
    trace = read(tmp_path, *(OF_2021 + OF_2024).splitlines())
    assert table(trace, "name", "dispatch", "counter", "value") == [
        ("sum(float *, int)", 0, READ, 1_500_000.0),
        ("sum(float *, int)", 0, TIME, 5_980.0),
        ("sum(float *, int)", 0, "launch__grid_size", 1_117.0),
        (
            "void axpy<4>(float, float *)",
            1,
            "GPU Speed Of Light Throughput|Compute (SM) Throughput|%",
            41.25,
        ),
        ("void axpy<4>(float, float *)", 1, "GPU Speed Of Light Throughput|Duration|ns", 2_000.0),
        *(
            ("void axpy<4>(float, float *)", 1, f"Compute Workload Analysis|{name}|%", value)
            for name, value in (("SM Busy", 41.25), ("FMA", 32.6), ("LSU", 41.2))
        ),
    ]
    assert table(trace, "grid", "block")[-1] == ([64, 2, 1], [256, 1, 1])
    assert "no-number" not in {note.code for note in trace.notes}  # messages are no metrics
    assert [one["pid"] for one in trace.processes.to_pylist()] == [7, 9]


def test_a_kernel_that_failed_under_ncu_is_said_to_have_failed(tmp_path: Path) -> None:
    lost = OF_2021.replace("1.50", "(!) nan").replace("5.98", "(!) nan").replace("1,117", "(!) nan")
    path = tmp_path / "ncu.txt"
    path.write_text(f"==ERROR== LaunchFailed\n{lost}")
    with pytest.raises(InputError, match="no metric has a value") as caught:
        tf.read(path)
    assert "a kernel failed under ncu (LaunchFailed)" in caught.value.hint
