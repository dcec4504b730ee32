"""Kernels of cuBLASLt, flash attention and NCCL as on a Hopper GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sample_traces.config import Dtype, RunConfig
from sample_traces.library import Exchange, Form, Helper, Layout, ceil_divide
from sample_traces.records import Triple

_CUTLASS: Final[dict[Dtype, str]] = {
    "bf16": "cutlass::bfloat16_t",
    "fp16": "cutlass::half_t",
    "fp32": "float",
}
_NCCL: Final[dict[Dtype, str]] = {"bf16": "bf16", "fp16": "f16", "fp32": "f32"}
_GEMM_HEAD: Final[dict[Dtype, str]] = {
    "bf16": "nvjet_tst_{tile}_64x4_2x1_v_bz_coopA{bias}_{layout}",
    "fp16": "nvjet_hsh_{tile}_64x4_2x1_v_bz_coopA{bias}_{layout}",
    "fp32": "sm80_xmma_gemm_f32f32_f32f32_f32_{lower}_n_tilesize{tile}x8_stage3_warpsize2x4x1_"
    "ffma_aligna4_alignc4_execute_kernel__5x_cublas",
}
_TF32: Final = (
    "sm90_xmma_gemm_f32f32_tf32f32_f32_{lower}_n_tilesize128x128x32_warpgroupsize1x1x1_"
    "execute_segment_k_off_kernel__5x_cublas"
)
_MISALIGNED: Final[dict[Dtype, str]] = {
    "bf16": "cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_128x64_32x2_{lower}_align1",
    "fp16": "cutlass_80_wmma_tensorop_f16_s161616gemm_f16_128x64_32x2_{lower}_align1",
    "fp32": "cutlass_80_simt_sgemm_128x64_8x5_{lower}_align1",
}


@dataclass(frozen=True, slots=True)
class NvidiaLibrary:
    """Makes the forms of one run's library kernels."""

    config: RunConfig

    def gemm(self, m: int, n: int, layout: Layout, bias: bool, aligned: bool) -> Form:
        """Return a product of matrices with an m x n result."""
        tile = "128x256" if n >= 256 else "64x64"
        name = self._gemm(aligned).format(
            tile=tile, bias="_bias" if bias else "", layout=layout + "T", lower=layout.lower()
        )
        grid = (ceil_divide(m, 128), ceil_divide(n, 256), 1)
        return Form(name, grid, (384, 1, 1), registers=168, shared_bytes=213_248)

    def _gemm(self, aligned: bool) -> str:
        dtype = self.config.dtype
        if not aligned:
            return f"void cutlass::Kernel2<{_MISALIGNED[dtype]}>({_MISALIGNED[dtype]}::Params)"
        return _TF32 if dtype == "fp32" and self.config.tf32 else _GEMM_HEAD[dtype]

    def attention_forward(self) -> Form:
        """Return fused attention."""
        if self.config.dtype == "fp32":
            name = (
                "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::"
                "AttentionKernel<float, cutlass::arch::Sm80, true, 64, 64, 64, true, true>::Params)"
            )
        else:
            name = self._flash("fwd", "flash_fwd_kernel", "128, 128, 4, false, false")
        return self._attention(name)

    def attention_backward(self) -> Form:
        """Return its gradient."""
        if self.config.dtype == "fp32":
            name = (
                "fmha_cutlassB_f32_aligned_64x64_k64_sm80(PyTorchMemEffAttention::"
                "AttentionBackwardKernel<cutlass::arch::Sm80, float, true, true, false, 64, 64, "
                "64, false>::Params)"
            )
        else:
            name = self._flash(
                "bwd",
                "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel",
                "64, 128, 8, 2, 4, 4, false, false",
            )
        return self._attention(name)

    def attention_helper(self, which: Helper) -> str:
        """Return the name of a small kernel before or after the gradient."""
        return self._flash("bwd", f"flash_bwd_{which}_kernel", "64, 128, 8, 2, 4, 4, false, false")

    def exchange(self, kind: Exchange) -> Form:
        """Return the kernel of a collective; many are made of sends and receives."""
        sums = f"AllReduce_Sum_{_NCCL[self.config.dtype]}_RING_LL"
        function = sums if kind == "allreduce" else "SendRecv"
        name = f"ncclDevKernel_{function}(ncclDevKernelArgsStorage<4096ul>)"
        return Form(name, (24, 1, 1), (544, 1, 1), registers=96, shared_bytes=82_240)

    def _attention(self, name: str) -> Form:
        config = self.config
        grid: Triple = (ceil_divide(config.sequence, 128), config.batch, config.heads)
        return Form(name, grid, registers=255, shared_bytes=65_536)

    def _flash(self, direction: str, function: str, traits: str) -> str:
        cutlass = _CUTLASS[self.config.dtype]
        return (
            f"void pytorch_flash::{function}<pytorch_flash::Flash_{direction}_kernel_traits<"
            f"{self.config.head_size}, {traits}, {cutlass}>, false, true, false, false, true, "
            f"true, false>(pytorch_flash::Flash_{direction}_params)"
        )
