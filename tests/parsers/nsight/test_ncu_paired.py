"""Pages of Nsight Compute beside timed runs: what is of the same launch, and what is not told."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

import traceflops as tf
from tests.conftest import SAMPLES
from tests.parsers.nsight.test_ncu import NEW, header, launched, line
from tests.parsers.nsight.test_stats import CALLS, RANGES, TRACE, call, kernel
from traceflops.analysis.recipe import analyze
from traceflops.mfu.measurement import Measurement

H100 = "NVIDIA H100 80GB HBM3 (0)"
PATH = "sm__ops_path_tensor_src_"
MATRIX = tuple(
    f"{PATH}{kind}.sum"
    for kind in (
        *("fp16_dst_fp16", "fp16_dst_fp32", "bf16_dst_fp32", "tf32_dst_fp32", "fp64", "fp8"),
    )
)
BYTES = ("dram__bytes_read.sum", "dram__bytes_write.sum")
GEMM = "gemm_kernel"
STEPS, EVERY_NS = 6, 100_000


def page(folder: Path, *launches: tuple[str, int], moved: int = 4_000_000, cc: str = "9.0") -> Path:
    """Write a page: the grid of each launch of a product and its operations in bf16."""
    rows = [header(NEW, *MATRIX, *BYTES), line(*[""] * 17, "byte", "byte")]
    for number, (grid, operations) in enumerate(launches):
        row = launched(number, GEMM)
        row[7:] = ["(128, 1, 1)", grid, "0", cc]
        values = [str(operations) if "bf16" in name else "0" for name in MATRIX]
        rows.append(line(*row, *values, str(moved), str(moved)))
    path = folder / "k.ncu.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def timed(folder: Path, *, per_step: int = 2, grid: str = "8,2,1") -> tf.Trace:
    """Return a run of some steps, in each so many launches of one product in one size."""
    work, calls, ranges = [], [], []
    for step in range(STEPS):
        begin = step * EVERY_NS
        ranges.append(f"{begin},{begin + 90_000},90000,0,0,:step {step},42,43,0,0,1,,:1,s")
        for nth in range(per_step):
            at, number = begin + 10_000 * (nth + 1), step * per_step + nth + 1
            work.append(kernel(at + 1_000, 8_000, number, GEMM, H100).replace("8,2,1", grid))
            calls.append(call(at, "cudaLaunchKernel", number))
    made = folder / "run"
    made.mkdir()
    tables = {"cuda_gpu_trace": (TRACE, work), "cuda_api_trace": (CALLS, calls)}
    tables["nvtx_pushpop_trace"] = (RANGES, ranges)
    for name, (head, lines) in tables.items():
        (made / f"run_{name}.csv").write_text("\n".join([head, *lines]) + "\n")
    return tf.read(made)


def ways(found: Measurement) -> dict[str, int]:
    assert found.executed.work is not None
    (join,) = found.executed.work.joins
    return {part.how: part.launches for part in join.parts}


def codes(found: Measurement) -> set[str]:
    return {note.code for note in found.notes}


@pytest.mark.parametrize(
    ("grid", "way"), [("(8, 2, 1)", "alike"), ("(16, 1, 1)", "absent"), ("(2, 8, 1)", "absent")]
)
def test_a_grid_of_other_sides_is_another_launch(tmp_path: Path, grid: str, way: str) -> None:
    pair = tf.read(page(tmp_path, (grid, 10**9)))
    assert ways(analyze(timed(tmp_path), pair=pair).measured).keys() == {way}


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_page_of_whole_steps_tells_each_launch_of_a_step(tmp_path: Path, rounds: int) -> None:
    """Two products of one size in each step, of which one is deeper."""
    pair = tf.read(page(tmp_path, *[("(8, 2, 1)", 10**9), ("(8, 2, 1)", 4 * 10**9)] * rounds))
    found = analyze(timed(tmp_path), pair=pair).measured
    assert ways(found).keys() == {"step"}
    used = ways(found)["step"] // 2
    assert found.executed.executed_flops == found.executed.executed_at_least == used * 5 * 10**9


def test_part_of_a_step_bounds_nothing(tmp_path: Path) -> None:
    three = [("(8, 2, 1)", 10**9), ("(8, 2, 1)", 4 * 10**9), ("(8, 2, 1)", 2 * 10**9)]
    found = analyze(timed(tmp_path), pair=tf.read(page(tmp_path, *three))).measured
    assert ways(found).keys() == {"ambiguous"}
    assert found.hfu is None


def test_steps_that_differ_are_no_rounds(tmp_path: Path) -> None:
    """One launch a step, of which two were counted: the third may be anything."""
    pair = tf.read(page(tmp_path, ("(8, 2, 1)", 10**9), ("(8, 2, 1)", 4 * 10**9)))
    found = analyze(timed(tmp_path, per_step=1), pair=pair).measured
    assert ways(found).keys() == {"ambiguous"}


def test_bytes_that_no_memory_can_move_are_left_out(tmp_path: Path) -> None:
    """8 us at 3,350 GB/s are 26.8 MB."""
    for moved, known in ((13_000_000, True), (14_000_000, False)):
        folder = tmp_path / str(moved)
        folder.mkdir()
        pair = tf.read(page(folder, ("(8, 2, 1)", 10**9), moved=moved))
        found = analyze(timed(folder), pair=pair).measured
        (row,) = found.kernels
        assert (row.measured.min_bytes is not None) == known
        assert ("bytes-beyond-bandwidth" in codes(found)) != known
        assert row.measured.flops == row.counted * 10**9


def test_a_page_of_another_device_is_said(tmp_path: Path) -> None:
    run, path = timed(tmp_path), page(tmp_path, ("(8, 2, 1)", 10**9))
    assert "paired-other-device" not in codes(analyze(run, pair=tf.read(path)).measured)
    path = page(tmp_path, ("(8, 2, 1)", 10**9), cc="8.0")
    found = analyze(run, pair=tf.read(path)).measured
    (note,) = [note for note in found.notes if note.code == "paired-other-device"]
    assert "sm80" in note.text
    assert "H100" in note.text


def test_how_the_page_was_read_is_said_as_of_the_pair(tmp_path: Path) -> None:
    path = page(tmp_path, ("(8, 2, 1)", 10**9), ("(8, 2, 1)", 10**9))
    path.write_text(path.read_text()[:-30])
    found = analyze(timed(tmp_path), pair=tf.read(path)).measured
    (note,) = [note for note in found.notes if note.code == "paired-text-cut"]
    assert note.text.startswith("Paired recording: ")
    assert "paired-no-timeline" not in codes(found)


def test_a_page_that_lies_beside_its_run_is_not_told_to_be_combined() -> None:
    folder = SAMPLES / "tutorials" / "cuda" / "before"
    untold = {"no-timeline", "clocks-not-aligned"}
    assert "no-timeline" in {note.code for note in tf.read(folder / "kernels.csv").notes}
    joined = tf.read(folder)
    assert joined.kernel_counters.num_rows
    assert not untold & {note.code for note in joined.notes}


def test_hfu_of_a_page(tmp_path: Path) -> None:
    """Two launches of 1 GFLOP in each step of 100 us; an H100 does 989.4 TFLOP/s."""
    pair = tf.read(page(tmp_path, ("(8, 2, 1)", 10**9)))
    found = analyze(timed(tmp_path), pair=pair).measured
    # The last step ends with its work, 29 us after its mark.
    time_ns = (STEPS - 1) * EVERY_NS + 29_000
    assert found.hfu == Fraction(STEPS * 2 * 10**9, time_ns * 989_400)
