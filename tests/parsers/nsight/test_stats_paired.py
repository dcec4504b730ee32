"""A timed run and counters of Nsight Compute: measured utilisation through the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

import traceflops as tf
from tests.cli.test_commands import run
from tests.parsers.nsight.nsysfile import NsysFile
from tests.parsers.nsight.test_ncu import NEW, header, launched, line
from tests.parsers.nsight.test_stats import CALLS, TRACE, call, kernel
from traceflops.analysis.recipe import analyze
from traceflops.mfu.measurement import Measurement

H100 = "NVIDIA H100 80GB HBM3 (0)"
BF16 = 989_400
"""FLOP per ns of an H100 SXM: 989.4 TFLOP/s dense on NVIDIA's data sheet."""
GEMM, ADD = "void ns::gemm<(int)4>(T1::Params)", "void ns::add<(int)2>(int)"
BARE_GEMM, BARE_ADD = "void gemm<4>(T1::Params)", "void add<2>(int)"
GEMM_NS, ADD_NS, EVERY_NS, PAIRS = 100_000, 20_000, 121_000, 10
FLOPS = 50_000_000_000
PATH = "sm__ops_path_tensor_src_"
MATRIX = [
    *(f"{PATH}{kind}.sum" for kind in ("fp16_dst_fp16", "fp16_dst_fp32", "bf16_dst_fp32")),
    *(f"{PATH}{kind}.sum" for kind in ("tf32_dst_fp32", "fp64", "fp8")),
]


def timed(folder: Path) -> Path:
    """Write a run: a product and an element-wise kernel, ten times."""
    rows = []
    for at in range(PAIRS):
        start = at * EVERY_NS
        rows.append(
            kernel(start, GEMM_NS, 2 * at + 1, f'"{GEMM}"', H100).replace("8,2,1", "33,4,1")
        )
        rows.append(kernel(start + GEMM_NS, ADD_NS, 2 * at + 2, f'"{ADD}"', H100))
    made = folder / "run"
    made.mkdir()
    text = "\n".join([TRACE, *rows]).replace("128,1,1,32", "384,1,1,32")
    (made / "run_cuda_gpu_trace.csv").write_text(text + "\n")
    calls = (call(10 * n, "cudaLaunchKernel", n) for n in range(1, 2 * PAIRS + 1))
    (made / "run_cuda_api_trace.csv").write_text("\n".join([CALLS, *calls]) + "\n")
    return made


def counted(folder: Path, metrics: dict[str, tuple[str, str, str]]) -> Path:
    """Write a raw page: unit, value of the product and of the other kernel, by metric."""
    path = folder / "kernels.ncu.csv"
    other = launched(1, BARE_ADD)
    other[7:9] = ["(384, 1, 1)", "(8, 2, 1)"]
    columns = list(zip(*metrics.values(), strict=True))
    path.write_text(
        "\n".join(
            [
                "==PROF== Connected to process 77",
                header(NEW, "|".join(metrics)),
                line(*[""] * 11, *columns[0]),
                line(*launched(0, BARE_GEMM), *columns[1]),
                line(*other, *columns[2]),
            ]
        )
    )
    return path


TENSORS = {name: ("", f"{FLOPS:,}" if "bf16" in name else "0", "0") for name in MATRIX}
BYTES = {
    "dram__bytes_read.sum": ("byte", "96,000,000", "8,000,000"),
    "dram__bytes_write.sum": ("Mbyte", "33.5", "8"),
}


def measured(folder: Path, metrics: dict[str, tuple[str, str, str]]) -> Measurement:
    return analyze(tf.read(timed(folder)), pair=tf.read(counted(folder, metrics))).measured


def test_counters_tell_what_was_executed(tmp_path: Path) -> None:
    found = measured(tmp_path, TENSORS | BYTES)
    window = PAIRS * EVERY_NS - (EVERY_NS - GEMM_NS - ADD_NS)
    assert found.executed.executed_flops == PAIRS * FLOPS
    assert found.hfu == Fraction(PAIRS * FLOPS, window * BF16)
    assert found.mfu is None
    assert found.executed.work is not None
    (join,) = found.executed.work.joins
    assert (join.known, join.launches) == (PAIRS, PAIRS), "of compute kernels"
    by_name = {row.name: row for row in found.kernels}
    assert by_name[GEMM].basis == "counters"
    assert by_name[GEMM].measured.min_bytes == PAIRS * 129_500_000
    assert "memory-bytes" in {note.code for note in found.notes}


def test_bytes_may_be_a_rate_or_one_sum(tmp_path: Path) -> None:
    times = {"gpu__time_duration.sum": ("us", "200", "40")}
    rate = {"dram__bytes.sum.per_second": ("Gbyte/second", "1000", "500")}
    found = measured(tmp_path, TENSORS | times | rate)
    by_name = {row.name: row for row in found.kernels}
    assert by_name[GEMM].measured.min_bytes == PAIRS * 200_000_000


def test_counts_per_cycle_are_counts_again(tmp_path: Path) -> None:
    rates = {
        f"{name}.per_cycle_elapsed": ("", "500" if "bf16" in name else "0", "0") for name in MATRIX
    }
    more = {
        "smsp__cycles_elapsed.avg.per_second": ("cycle/nsecond", "2", "2"),
        "gpu__time_duration.sum": ("us", "100", "10"),
    }
    found = measured(tmp_path, rates | more)
    assert found.executed.executed_flops == PAIRS * 500 * 200_000


def test_instructions_of_tensor_cores_are_no_operations(tmp_path: Path) -> None:
    found = measured(tmp_path, {"sm__inst_executed_pipe_tensor.sum": ("inst", "1,024", "0")})
    assert found.hfu is None
    by_kernel = {row.name: row.flops for row in found.executed.work.counted}  # type: ignore[union-attr]
    assert by_kernel == {BARE_GEMM: None, BARE_ADD: 0}


def test_a_type_that_was_not_counted_leaves_flops_unknown(tmp_path: Path) -> None:
    some = {name: value for name, value in TENSORS.items() if "fp8" not in name}
    found = measured(tmp_path, some)
    assert found.hfu is None
    assert any("sm__ops_path_tensor_src_fp8.sum" in lack.problem for lack in found.lacks)
    assert any(lack.remedy.startswith("ncu --csv --page raw") for lack in found.lacks)


def database(folder: Path) -> Path:
    """Write the same run as Nsight Systems exports it."""
    made = NsysFile()
    made.gpu()
    for at in range(PAIRS):
        start, number = at * EVERY_NS, 2 * at + 1
        size = {"gridX": 33, "gridY": 4, "blockX": 384, "correlationId": number}
        made.kernel(start, start + GEMM_NS, GEMM, **size)
        start += GEMM_NS
        size = {"gridX": 8, "gridY": 2, "blockX": 384, "correlationId": number + 1}
        made.kernel(start, start + ADD_NS, ADD, **size)
        made.call(10 * number, 10 * number + 5, number)
        made.call(10 * number + 10, 10 * number + 15, number + 1)
    return made.save(folder / "run.sqlite")


@pytest.mark.parametrize("export", [timed, database])
def test_the_command_shows_it(tmp_path: Path, export: Callable[[Path], Path]) -> None:
    pair = counted(tmp_path, TENSORS | BYTES)
    page, given = tmp_path / "report.html", str(export(tmp_path))
    done = run("report", given, "--pair", str(pair), "-o", str(page))
    assert done.exit_code == 0, done.output
    window = PAIRS * EVERY_NS - 1_000
    percent = 100 * PAIRS * FLOPS / (window * BF16)
    assert f"HFU {percent:.1f} %" in done.output
    text = page.read_text()
    assert "10 of 10 launches" in text
    assert "some-host" not in text
    shown = run("mfu", given, "--pair", str(pair), "--json")
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.output)


def test_a_page_without_counters_that_tell_anything(tmp_path: Path) -> None:
    found = measured(
        tmp_path, {"sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "1", "2")}
    )
    assert found.hfu is None
    assert found.lacks


@pytest.mark.parametrize("label", ["Duration", "SM Frequency"])
def test_labels_stand_for_counters(label: str) -> None:
    from traceflops.devices.counter_formulas import plain_counter

    unit = {"Duration": "ns", "SM Frequency": "Hz"}[label]
    name = plain_counter(f"GPU Speed Of Light Throughput|{label}|{unit}")
    assert name in ("gpu__time_duration.sum", "smsp__cycles_elapsed.avg.per_second")
