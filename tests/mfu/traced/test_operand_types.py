"""The data type of a product whose operands were not recorded: its kernel's name tells."""

from __future__ import annotations

from pathlib import Path

import pytest

import traceflops as tf
from tests.parsers.nsight.nsysfile import NsysFile
from traceflops.attribution.datatypes import UNKNOWN_TYPE, operand_type
from traceflops.flops.ops.arguments import TF32_OR_FP32


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_cublas", "bf16"),
        ("nvjet_tst_192x8_64x8_4x1_v_bz_TNT", "bf16"),
        ("nvjet_sm100_tst_64x16_64x16_2x4_2cta_h_bz_bias_TNT", "bf16"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_tn>", "bf16"),
        ("void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, float, 128>", "bf16"),
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT", "fp16"),
        ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn", "fp16"),
        ("volta_h884gemm_128x64_ldg8_nn", "fp16"),
        ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn", "fp16"),
        ("void cutlass::Kernel<cutlass_70_wmma_tensorop_f16_s161616gemm_f16_32x32_tn>", "fp16"),
        ("nvjet_qqtst_128x128_128x6_1x2_h_bz_TNT", "fp8"),
        ("cutlass3x_sm90_tensorop_s64x256x32gemm_e4m3_e4m3_f32_bf16_bf16_128x256x128", "fp8"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x10_nt_align4>", "tf32"),
        ("sm80_xmma_gemm_tf32f32_tf32f32_f32_tn_n_tilesize128x128x16", "tf32"),
        ("ampere_sgemm_128x64_nn", "fp32"),
        ("void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16>", "fp32"),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(Attention<float, Sm80>::Params)", TF32_OR_FP32),
        ("fmha_cutlassB_f32_aligned_64x64_k64_sm80(Attention<Sm80, float>)", TF32_OR_FP32),
        ("volta_dgemm_128x64_nn", "fp64"),
        ("void gemv2T_kernel_val<int, int, double, double, double, double, 128>", "fp64"),
        ("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3", UNKNOWN_TYPE),
        ("triton_tem_fused_mm_0", UNKNOWN_TYPE),
        ("nvjet_sss_128x64", UNKNOWN_TYPE),
        ("", UNKNOWN_TYPE),
    ],
)
def test_names_of_kernels(kernel: str, dtype: str) -> None:
    assert operand_type(kernel) == dtype


def test_products_of_ranges_without_types_have_the_peak_of_their_kernels(tmp_path: Path) -> None:
    export = NsysFile()
    export.gpu()
    for step in range(4):
        at = step * 100_000
        text = f"aten::mm, seq = {step}, op_id = {step + 1}, sizes = [[1024, 2048], [2048, 4096]]"
        export.range(at, at + 900, text)
        export.call(at + 10, at + 20, step + 1)
        name = "nvjet_tst_192x8_64x8_4x1_v_bz_TNT"
        export.kernel(at + 50, at + 90_000, name, correlationId=step + 1)
    analysis = tf.analyze(tf.read(export.save(tmp_path / "run.sqlite")))
    assert analysis.measured is not None
    (row,) = [one for one in analysis.measured.ops if one.name == "aten::mm"]
    assert row.dtypes == ("bf16",)
    assert row.measured.flops == 4 * 2 * 1024 * 2048 * 4096
    assert analysis.measured.hfu is not None
    assert "types-by-name" in {note.code for note in analysis.notes}
