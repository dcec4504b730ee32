"""Kernels of hipBLASLt, Composable Kernel, AITER, AOTriton and RCCL as on a CDNA 3 GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sample_traces.config import Dtype, RunConfig
from sample_traces.library import Exchange, Form, Helper, Layout, ceil_divide
from sample_traces.records import Triple

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


@dataclass(frozen=True, slots=True)
class AmdLibrary:
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
