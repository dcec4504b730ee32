"""MFU of a trace: its model FLOPs over devices x window x peak, or why there is none."""

import json
from fractions import Fraction
from typing import Any

import pytest

from tests.build import launched, trace_of
from tests.cli.test_commands import run
from tests.conftest import SAMPLES
from traceflops.analysis.recipe import analyze
from traceflops.errors import UsageError
from traceflops.mfu.budget import PeakOptions, ShareRange
from traceflops.mfu.measurement import Measurement
from traceflops.parsers.reading import read
from traceflops.reports.view.utilisation import parts
from traceflops.reports.view.wording import doubts
from traceflops.table.trace import Trace

SAMPLE = SAMPLES / "gpt_1rank.json.gz"
H100_BF16 = 989_400
"""FLOP per ns: the dense bf16 rate of the data sheet, 989.4 TFLOP/s."""

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n"
H100 = {
    "product": "NVIDIA H100 80GB HBM3",
    "compute_major": 9,
    "compute_minor": 0,
    "sm_count": 132,
    "memory_bytes": 84_942_979_072,
}


MATMUL = {
    "name": "aten::mm",
    "start_ns": 0,
    "dur_ns": 50,
    "input_dims": "[[1000,1000],[1000,1000]]",
    "input_types": '["c10::BFloat16","c10::BFloat16"]',
}


def matmul(
    dur_ns: int,
    *more: dict[str, Any],
    device: dict[str, Any] | None = None,
    op: dict[str, Any] | None = None,
) -> Trace:
    """Return a trace of one bf16 product of square matrices, and more kernels behind it."""
    tables = launched((GEMM, 10, 100, dur_ns))
    tables["activities"] += more
    return trace_of(**tables, ops=[op or MATMUL], devices=[device or H100])


def measured(trace: Trace, **options: Any) -> Measurement:
    return analyze(trace, peaks=PeakOptions(**options)).measured


def test_float_products_of_a_mute_kernel_lie_between_two_peaks() -> None:
    """2 x 1000^3 FLOPs in 100 us are 20 TFLOP/s: of 494.7 (TF32) or of 67 (FP32)."""
    op = MATMUL | {"input_types": '["float","float"]'}
    tables = launched(("splitKreduce_kernel", 10, 100, 100_000))
    found = measured(trace_of(**tables, ops=[op], devices=[H100]))
    assert found.mfu_range is not None
    assert found.mfu_range.least == Fraction(2 * 10**9, 100_000 * 494_700)
    assert found.mfu_range.most == Fraction(2 * 10**9, 100_000 * 67_000)
    (note,) = [note for note in found.notes if note.code == "tf32-or-fp32"]
    assert "100.0 %" in note.text


def test_a_product_at_a_known_rate() -> None:
    """2 x 1000^3 FLOPs in 4,000 ns are 500 TFLOP/s."""
    found = measured(matmul(4_000))
    assert found.mfu == found.hfu == Fraction(2 * 1000**3, 4_000 * H100_BF16)
    assert found.mfu is not None
    assert found.mfu_range == ShareRange(found.mfu, found.mfu)
    assert (found.figure, found.basis) == ("MFU 50.5 %", "from trace, bf16 dense 989.4 TFLOP/s")
    (row,) = found.ops
    assert row.measured.flops_per_ns == 500_000
    assert (row.measured.flops, row.measured.min_bytes) == (2 * 1000**3, 3 * 2 * 1000**2)


def test_the_sample_is_its_flops_over_its_windows() -> None:
    analysis = analyze(read([SAMPLES / "gpt_ddp_4rank"]))
    found = analysis.measured
    budget = analysis.total.components.window_ns * H100_BF16
    assert found.mfu == Fraction(found.executed.model_flops, budget)
    assert found.hfu == Fraction(found.executed.executed_flops, budget)
    assert found.waterfall is not None
    assert sum(line.amount for line in found.waterfall.lines) == budget
    assert sum(part.thousandths for part in parts(found.waterfall)) == 1000
    assert analysis.verdict.sentence.startswith(
        f"{found.figure}. The other ranks wait for rank 2: "
    )


def test_an_unknown_device_needs_a_peak() -> None:
    trace = matmul(4_000, device={"product": "Quantum 9000"})
    found = measured(trace)
    assert (found.mfu, found.waterfall, found.figure) == (None, None, None)
    assert "no row of the table has the name 'Quantum 9000'" in found.lacks[0].problem
    assert "--peak" in found.lacks[0].remedy
    assert found.executed.executed_flops == 2 * 1000**3
    given = measured(trace, tflops=1000)
    assert given.mfu == Fraction(1, 2)
    assert given.basis == "from trace, given 1,000 TFLOP/s"
    assert measured(trace, device="h100-sxm").mfu == Fraction(500_000, H100_BF16)
    for wrong in ({"device": "h100-sxn"}, {"tflops": 1e9}):
        with pytest.raises(UsageError):
            measured(trace, **wrong)


def test_more_than_the_peak_is_refused() -> None:
    """2 TFLOP/s per ns would be twice the peak."""
    found = measured(matmul(1_000))
    assert (found.mfu, found.waterfall) == (None, None)
    (lack,) = found.lacks
    assert "above peak" in lack.problem
    assert lack.remedy.startswith("likely: the peak of another GPU")


def test_a_device_against_the_trace_is_said_and_comes_first_where_figures_are_impossible() -> None:
    """2 x 1,000^3 FLOP in 8 us are 250 TFLOP/s: more than an RTX 4090 can, less than an MI300X."""
    trace = matmul(8_000)
    against = "--device selects {}, although the trace says 'NVIDIA H100 80GB HBM3'"
    (lack,) = measured(trace, device="rtx-4090").lacks
    assert lack.problem.startswith(against.format("rtx-4090 (GeForce RTX 4090)") + "; the figures")
    other = measured(trace, device="mi300x")
    assert other.mfu is not None
    note = f"{against.format('mi300x (Instinct MI300X)')}."
    assert [one.text for one in other.notes if one.code == "device-contradicts-trace"] == [note]
    assert doubts(analyze(trace, peaks=PeakOptions(device="mi300x"))) == [note]
    codes = {one.code for one in measured(trace, device="h100-sxm").notes}
    assert "device-contradicts-trace" not in codes


def test_without_shapes_there_is_no_figure() -> None:
    op = {name: value for name, value in MATMUL.items() if not name.startswith("input")}
    found = measured(matmul(4_000, op=op))
    assert found.mfu is None
    assert "no shapes" in found.lacks[0].problem
    assert measured(trace_of()).lacks[0].problem == "the trace has no GPU operations"


@pytest.mark.parametrize(
    ("unknown_ns", "least", "most"),
    [
        (0, "50.5", None),
        (100, "49.3", None),
        (200, "48.1", "52.9"),
        (1_000, "40.4", "60.4"),
        (3_999, "25.3", "75.3"),
        (4_001, None, None),
    ],
)
def test_compute_of_unknown_flops_widens_the_figure(
    unknown_ns: int, least: str | None, most: str | None
) -> None:
    """Unknown compute may be at the peak: 200 ns of it are 9 % of 2,021 ns + 200 ns of FLOPs.

    From half of the compute time on there is no figure.
    """
    strange = {"name": "cutlass_gemm_of_nobody", "start_ns": 4_100, "dur_ns": unknown_ns}
    both = matmul(4_000, *([strange] if unknown_ns else []))
    figure = measured(both).figure
    if least is None:
        assert figure is None
    else:
        assert figure == f"MFU {least} %" + (f" to {most} %" if most else "")


def test_an_attention_without_flops_is_named_as_what_is_missing() -> None:
    """It takes 167 of 4,167 ns, and may do the FLOPs of 167 of 2,188.4 ns at the peak."""
    attention = {"name": "flash_fwd_of_nobody", "start_ns": 4_100, "dur_ns": 167}
    (note,) = [n for n in measured(matmul(4_000, attention)).notes if n.code == "flops-unknown"]
    assert "4.01 % of the compute time" in note.text
    assert "7.63 % of all FLOPs" in note.text
    assert "flash_fwd_of_nobody (launching operator unknown)" in note.text
    known = measured(matmul(4_000))
    assert "flops-unknown" not in {one.code for one in known.notes}


def test_a_count_between_two_bounds_is_a_range() -> None:
    """Lengths of packed sequences are in no trace: from one token each to all in one sequence."""
    shape = [512, 8, 64]
    op = {
        "name": "aten::_flash_attention_forward",
        "start_ns": 0,
        "dur_ns": 50,
        "input_dims": json.dumps([shape, shape, shape, [5], [5], [], [], [], []]),
        "input_types": json.dumps(["c10::BFloat16"] * 3 + ["int", "int", *["Scalar"] * 4]),
        "concrete_inputs": json.dumps(["", "", "", "", "", "512", "512", "0.", "False"]),
    }
    found = measured(matmul(4_000, op=op))
    assert found.mfu_range is not None
    assert found.mfu is not None
    assert found.mfu_range.least < found.mfu == found.mfu_range.most
    (row,) = found.ops
    assert (
        found.mfu
        == Fraction(4 * 512 * 512 * 8 * 64, 4_000 * H100_BF16)
        == Fraction(row.measured.flops or 0, 4_000 * H100_BF16)
    )
    done = found.executed
    certain = Fraction(done.executed_at_least, done.executed_flops)
    assert found.mfu_range.least == found.mfu * certain
    assert " to " in (found.figure or "")


def test_the_command_prints_it() -> None:
    text = run("mfu", str(SAMPLE)).stdout
    assert text.splitlines()[0] == "MFU 30.4 % (from trace, bf16 dense 989.4 TFLOP/s)"
    for words in ("useful work", "memory work", "idle", "weight grad", "aten::mm"):
        assert words in text
    found = json.loads(run("mfu", str(SAMPLE), "--json").stdout)
    assert found["schema"] == "traceflops.utilisation/1"
    lines = found["utilisation"]["waterfall"]["lines"]
    budget = int(found["utilisation"]["waterfall"]["budget_text"])
    assert sum(int(line["amount_text"]) for line in lines) == budget
    ledger = found["utilisation"]["ledger"]
    total = int(found["utilisation"]["executed_flops_text"])
    assert sum(int(line["flops_text"]) for line in ledger) == total
