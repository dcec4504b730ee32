"""Rates, intensity and verdicts; peaks by data type; kernels with float operands."""

from __future__ import annotations

from fractions import Fraction

import pytest

from traceflops.attribution.datatypes import float_type, without_tf32
from traceflops.categories.rules import Category
from traceflops.devices.device_facts import SeenDevice
from traceflops.devices.matching import chosen
from traceflops.mfu.budget import peaks_of
from traceflops.mfu.roof_times import Measured, NearerRoof, verdict

PEAK, BANDWIDTH = 989_400, 3_350
"""An H100 in bf16: its balance is 295 FLOP per byte."""


def test_figures_of_a_product() -> None:
    one = Measured(flops=2 * 4096**3, min_bytes=3 * 2 * 4096**2, time_ns=250_000)
    assert one.flops_per_ns == Fraction(2 * 4096**3, 250_000)
    assert one.bytes_per_ns == Fraction(6 * 4096**2, 250_000)
    assert one.intensity == Fraction(4096, 3)
    assert one.share_of_peak(PEAK) == Fraction(2 * 4096**3, 250_000 * PEAK)
    assert one.share_of_bandwidth(BANDWIDTH) == Fraction(6 * 4096**2, 250_000 * BANDWIDTH)
    assert verdict(one, PEAK, BANDWIDTH) == NearerRoof("compute", "shapes")


def test_a_thin_product_is_bound_by_memory() -> None:
    one = Measured(flops=2 * 4096 * 4096, min_bytes=2 * (4096 * 4096 + 8192), time_ns=12_000)
    assert verdict(one, PEAK, BANDWIDTH) == NearerRoof("memory", "shapes")
    assert one.intensity is not None
    assert one.flops_per_ns is not None


def test_without_figures_the_category_tells_or_nothing() -> None:
    unknown = Measured(None, None, 100)
    assert verdict(unknown, PEAK, BANDWIDTH, Category("memory", "copy")) == NearerRoof(
        "memory", "category"
    )
    known = Measured(10, 10, 100)
    assert verdict(known, None, None, Category("compute", "gemm")) == NearerRoof(
        "compute", "category"
    )
    assert verdict(unknown, PEAK, BANDWIDTH, Category("other", "other")) is None
    assert verdict(unknown, PEAK, BANDWIDTH) is None
    assert (unknown.flops_per_ns, unknown.bytes_per_ns, unknown.intensity) == (None, None, None)
    assert Measured(5, 5, 0).flops_per_ns is None
    assert unknown.share_of_peak(PEAK) is None
    assert unknown.share_of_bandwidth(None) is None


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        ("ampere_sgemm_128x64_nn", "fp32"),
        ("volta_scudnn_128x64_relu_xregs_large_nn_v1", "fp32"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_ffma", "fp32"),
        ("void cutlass::Kernel<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>", "fp32"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize64x64x32_stage3", "tf32"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x10_nt_align4>", "tf32"),
        ("sm90_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc", "tf32"),
        ("Cijk_Ailk_Bljk_SB_MT128x128x16_SN_1LDSB0", "fp32"),
        ("nobody_knows", "tf32-or-fp32"),
        ("", "tf32-or-fp32"),
    ],
)
def test_the_name_of_a_kernel_tells_tf32_from_fp32(kernel: str, dtype: str) -> None:
    assert float_type(kernel) == dtype


def test_devices_before_ampere_have_no_tf32() -> None:
    volta = {"type": "gpu", "compute_major": 7, "warp_size": 32}
    assert without_tf32(volta)
    assert not without_tf32({**volta, "compute_major": 9})
    assert not without_tf32({**volta, "warp_size": 64, "compute_major": 9})
    assert not without_tf32({**volta, "compute_major": None})
    assert without_tf32({**volta, "type": "cpu"})


def test_peaks_are_those_of_matrix_units() -> None:
    instinct = peaks_of(chosen("mi300x", None, SeenDevice()))
    assert (instinct["bf16"], instinct["fp32"], instinct["fp64"]) == (1_307_400, 163_400, 163_400)
    nvidia = peaks_of(chosen("a100-sxm-80", None, SeenDevice()))
    assert (nvidia["fp32"], nvidia["tf32"]) == (19_500, 156_000)
    assert nvidia["tf32-or-fp32"] == 156_000
