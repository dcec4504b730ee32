"""What the vendors' libraries bring: kernels whose name and geometry differ from GPU to GPU."""

from __future__ import annotations

from typing import Final, Literal, Protocol

from msgspec import Struct

from sample_traces.config import Dtype, RunConfig
from sample_traces.records import Collective, Triple

Layout = Literal["TN", "NN", "NT"]
Helper = Literal["dot_do_o", "convert_dq"]
Exchange = Literal["allreduce", "all_to_allv", "send", "recv"]


class Form(Struct, frozen=True):
    """How a kernel is called and launched."""

    name: str
    grid: Triple = (1, 1, 1)
    block: Triple = (128, 1, 1)
    registers: int = 32
    shared_bytes: int = 0


class Library(Protocol):
    """The kernels of one vendor, for the data type and sizes of one run."""

    def gemm(self, m: int, n: int, layout: Layout, bias: bool, aligned: bool) -> Form:
        """Return a product of matrices with an m x n result."""

    def attention_forward(self) -> Form:
        """Return fused attention."""

    def attention_backward(self) -> Form:
        """Return its gradient."""

    def attention_helper(self, which: Helper) -> str:
        """Return the name of a small kernel before or after the gradient."""

    def exchange(self, kind: Exchange) -> Form:
        """Return the kernel of a collective."""


def nccl_function(collective: Collective) -> str:
    """Return the function of NCCL that a framework calls."""
    return _FUNCTIONS[collective.name]


_FUNCTIONS: Final = {
    "allreduce": "ncclAllReduce",
    "all_to_allv": "ncclAllToAllv",
    "send": "ncclSend",
    "recv": "ncclRecv",
}


def ceil_divide(amount: int, unit: int) -> int:
    """Return how many units hold the amount."""
    return -(-amount // unit)


FILL: Final = "__amd_rocclr_fillBufferAligned"
COPY: Final = "__amd_rocclr_copyBuffer"
"""Kernels with which the HIP runtime fills and copies memory."""

_TENSILE_TYPES: Final[dict[Dtype, str]] = {"bf16": "BBS_BH", "fp16": "HHS_BH", "fp32": "S_B"}
_TENSILE_LAYOUT: Final[dict[Layout, str]] = {
    "TN": "Alik_Bljk",
    "NN": "Ailk_Bljk",
    "NT": "Ailk_Bjlk",
}
_AITER_TYPES: Final[dict[Dtype, str]] = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}
_CK_TYPES: Final[dict[Dtype, str]] = {"bf16": "unsigned short", "fp16": "_Float16", "fp32": "float"}
_CK_HELPER: Final[dict[Helper, str]] = {
    "dot_do_o": "FmhaBwdOGradDotOKernel<ck_tile::BlockFmhaBwdOGradDotO",
    "convert_dq": "FmhaBwdConvertQGradKernel<ck_tile::BlockFmhaBwdConvertQGrad",
}


class AmdLibrary(Struct, frozen=True):
    """Makes the forms of one run's library kernels."""

    config: RunConfig

    def gemm(self, m: int, n: int, layout: Layout, bias: bool, aligned: bool) -> Form:
        """Return a product of matrices with an m x n result."""
        tile, depth = (256, 64) if n >= 256 else (64, 128)
        name = (
            f"Cijk_{_TENSILE_LAYOUT[layout]}_{_TENSILE_TYPES[self.config.dtype]}"
            f"{'_Bias' if bias else ''}_HA_S_SAV_UserArgs_MT{tile}x{tile}x{depth}_MI16x16x1_SN_"
            "LDSB0_AFC1_AFEM1_AFEM1_ASEM1_CLR1_CADS0_GSU0_ISA942_IU1_K1_PGR2_PLR1_SK3_WS64_"
            f"WG{tile // 8}_8_1"
        )
        tiles = ceil_divide(m, tile) * ceil_divide(n, tile)
        return Form(name, (tiles, 1, 1), (256, 1, 1), registers=128, shared_bytes=65_536)

    def attention_forward(self) -> Form:
        """Return fused attention."""
        if self.config.dtype == "fp32":
            return self._attention("attn_fwd")
        type_ = _CK_TYPES[self.config.dtype]
        name = (
            "void ck_tile::kentry<256, 2, ck_tile::FmhaFwdKernel<"
            "ck_tile::BlockFmhaPipelineQRKSVSAsync<ck_tile::BlockFmhaPipelineProblem<"
            f"{type_}, {type_}, {type_}, float, float, ck_tile::sequence<128, 128, 32, "
            f"{self.config.head_size}, 32, {self.config.head_size}>, true> >, "
            "ck_tile::Default2DEpilogue<float> >, ck_tile::FmhaFwdBatchModeKargs>"
            "(ck_tile::FmhaFwdBatchModeKargs)"
        )
        return self._attention(name)

    def attention_backward(self) -> Form:
        """Return its gradient."""
        if self.config.dtype == "fp32":
            return self._attention("bwd_kernel_fuse")
        type_ = _AITER_TYPES[self.config.dtype]
        inner = f"fmha_bwd_hd{self.config.head_size}_{type_}_causal_a32_rtne_psskddv"
        return self._attention(f"_ZN5aiter{len(inner)}{inner}E")

    def attention_helper(self, which: Helper) -> str:
        """Return the name of a small kernel before or after the gradient."""
        type_ = _CK_TYPES[self.config.dtype]
        return (
            f"void ck_tile::kentry<64, 2, ck_tile::{_CK_HELPER[which]}<{type_}, "
            f"{self.config.head_size}> >, ck_tile::FmhaBwdKargs>(ck_tile::FmhaBwdKargs)"
        )

    def exchange(self, kind: Exchange) -> Form:
        """Return the kernel of a collective; its name does not say which."""
        name = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
        return Form(name, (28, 1, 1), (256, 1, 1), registers=96, shared_bytes=40_960)

    def _attention(self, name: str) -> Form:
        config = self.config
        grid: Triple = (ceil_divide(config.sequence, 128), config.heads, config.batch)
        return Form(name, grid, (256, 1, 1), registers=128, shared_bytes=32_768)


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


class NvidiaLibrary(Struct, frozen=True):
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
