"""The table: which ops are modelled, of what kind they are, and where their arguments stand.

To model another op, add its name to the row of a formula with the same places of arguments, or add
a row. A name without a namespace is one of `aten`, in capitals a Python class. Places count from 0
and are those of torch 2.13's schemas, which hold for older versions unless a row says otherwise.
An op that runs another one of the table below itself is a wrapper.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from traceflops.flops.ops.arguments import INT32
from traceflops.flops.ops.attention import DENSE, Attention, Masking, Packing
from traceflops.flops.ops.convolution import Convolution, ConvolutionBackward, OneGradient
from traceflops.flops.ops.gemm import GroupedProduct, MatrixProduct, PackedWeight, fused_experts
from traceflops.flops.ops.vector_table import CHILDREN, VECTOR_OPS, VECTOR_WRAPPERS
from traceflops.flops.ops.work import Formula, Kind, NeverCounted, Role, Rule

Rows = Mapping[Kind, Mapping[str, Formula]]


def _flash(*causal: int) -> Masking:
    """Return the mask of the flash family: aligned at the bottom right, a window behind the flag.

    Several places: the schema moved, the first one that holds a truth value counts.
    """
    window = (causal[0] + 1, causal[0] + 2)
    return Masking(causal, window=window, bottom_right=True)


def _tokens_first(masking: Masking, packing: Packing = DENSE) -> Attention:
    return Attention("tokens-first", masking, packing)


def _sdpa(causal: int, bias: int | None = None, statistics: int | None = None) -> Attention:
    return Attention("heads-first", Masking((causal,), tensor=bias), statistics=statistics)


def _before_1_11(groups: int, mask: int) -> ConvolutionBackward:
    return ConvolutionBackward(1, 0, 2, transposed=False, groups=groups, mask=mask)


_PAGED: Final = NeverCounted("not-in-trace")
"""Attention over cached keys: their length is in no argument that is recorded."""

_CUDNN, _MIOPEN, _MKLDNN = (_before_1_11(6, mask) for mask in (10, 9, 7))
"""Older torch had a backward op per library, around one op per gradient."""

_EFFICIENT: Final = Masking(kind=9, window=(13,), tensor=3)
_EFFICIENT_BACKWARD: Final = Masking(kind=14, window=(18,), tensor=4)

_OPS: Final[Rows] = {
    "gemm": {
        "mm": MatrixProduct("mm", out_type=2, out=2, most=3),
        "bmm": MatrixProduct("bmm", out_type=2, out=2, most=3),
        "_int_mm": MatrixProduct("mm", result=INT32),
        "addmm addmm_ _addmm_activation": MatrixProduct("mm", 1, 2, added=0, beta=3),
        "baddbmm baddbmm_": MatrixProduct("bmm", 1, 2, added=0, beta=3),
        "addmv addmv_": MatrixProduct("mv", 1, 2, added=0, beta=3),
        "_scaled_mm": MatrixProduct("mm", added=4, out_type=6, others=(2, 3)),
        "_scaled_mm_v2": MatrixProduct("mm", added=8, out_type=9),
        "_weight_int8pack_mm": PackedWeight(columns=(1, 0)),
        "_weight_int4pack_mm _weight_int4pack_mm_for_cpu": PackedWeight(columns=(3, 1)),
        "mkldnn_linear mkldnn::_linear_pointwise": MatrixProduct("linear", added=2),
        "mkl::_mkl_linear": MatrixProduct("linear", right=2, added=3),
        "_C::cutlass_scaled_mm": MatrixProduct("mm", 1, 2, added=5, out=0, others=(3, 4)),
    },
    "grouped_gemm": {
        "_grouped_mm": GroupedProduct(out_type=4),
        "_scaled_grouped_mm": GroupedProduct(out_type=7, others=(2, 3), offsets=4),
        "_scaled_grouped_mm_v2": GroupedProduct(out_type=10, offsets=8),
        "vllm::inplace_fused_experts vllm::outplace_fused_experts": fused_experts,
        "sglang::inplace_fused_experts sglang::outplace_fused_experts": fused_experts,
        "aiter::fused_moe_": fused_experts,
    },
    "convolution": {
        "convolution_overrideable": Convolution(3, 4, 5, 8, transposed=6, output_padding=7),
        "cudnn_convolution": Convolution(3, 2, 4, 5, bias=None),
        "cudnn_convolution_relu miopen_convolution_relu": Convolution(3, 4, 5, 6),
        "cudnn_convolution_add_relu miopen_convolution_add_relu": Convolution(5, 6, 7, 8, bias=4),
        "miopen_convolution miopen_depthwise_convolution": Convolution(4, 3, 5, 6),
        "mkldnn_convolution mkldnn::_convolution_pointwise": Convolution(4, 3, 5, 6),
        "_mps_convolution": Convolution(4, 3, 5, 6),
        "cudnn_convolution_transpose": Convolution(4, 2, 5, 6, True, 3, bias=None),
        "miopen_convolution_transpose": Convolution(5, 3, 6, 7, True, 4),
        "_slow_conv2d_forward slow_conv3d_forward": Convolution(4, 5, None, None, bias=3),
        "thnn_conv2d_forward": Convolution(4, 5, None, None, bias=3),
        "_conv_depthwise2d conv_depthwise3d": Convolution(4, 5, 6, None, bias=3),
        "slow_conv_dilated2d slow_conv_dilated3d": Convolution(4, 5, 6, None, bias=3),
        "slow_conv_transpose2d slow_conv_transpose3d": Convolution(4, 5, 7, None, True, 6, bias=3),
    },
    "convolution_backward": {
        "convolution_backward": ConvolutionBackward(),
        "convolution_backward_overrideable": ConvolutionBackward(transposed=6, groups=8, mask=9),
        "cudnn_convolution_backward_input": OneGradient(_CUDNN, input=True),
        "cudnn_convolution_backward_weight": OneGradient(_CUDNN, input=False),
        "miopen_convolution_backward_input": OneGradient(_MIOPEN, input=True),
        "miopen_convolution_backward_weight": OneGradient(_MIOPEN, input=False),
        "mkldnn_convolution_backward_input": OneGradient(_MKLDNN, input=True),
        "mkldnn_convolution_backward_weights": OneGradient(_MKLDNN, input=False),
    },
    "attention": {
        "_scaled_dot_product_flash_attention": Attention(
            "heads-first", Masking((4, 7), bottom_right=True)
        ),
        "_scaled_dot_product_efficient_attention": _sdpa(6, bias=3, statistics=4),
        "_scaled_dot_product_cudnn_attention": _sdpa(6, bias=3, statistics=4),
        "_scaled_dot_product_fused_attention_overrideable": _sdpa(5, bias=3),
        "_scaled_dot_product_flash_attention_for_cpu": _sdpa(4, bias=5),
        "_flash_attention_forward": _tokens_first(
            Masking((8,), window=(11, 12), bottom_right=True),
            Packing((3, 4), (5, 6), used=(13,), paged=(15,)),
        ),
        "_efficient_attention_forward": Attention(
            "tokens-first", _EFFICIENT, Packing((4, 5), (6, 7), used=(12,)), statistics=10
        ),
        "_cudnn_attention_forward": Attention(
            "heads-first", Masking((10,), tensor=3), Packing((4, 5), (6, 7)), statistics=8
        ),
        "flash_attn::_flash_attn_forward": _tokens_first(_flash(5)),
        "flash_attn::_flash_attn_varlen_forward": _tokens_first(
            _flash(9), Packing((3, 4), (5, 6), used=(17,), paged=(15,))
        ),
        "flash_attn_3::fwd": _tokens_first(
            _flash(24), Packing((7, 8), (12, 13), used=(3, 10, 11), paged=(14,))
        ),
        "aiter::mha_fwd aiter::fmha_v3_fwd": _tokens_first(_flash(5)),
        "aiter::mha_varlen_fwd aiter::fmha_v3_varlen_fwd": _tokens_first(
            _flash(12, 11, 10), Packing((3, 4), (5, 6))
        ),
        "aiter::mha_batch_prefill": _PAGED,
        "vllm::unified_attention vllm::unified_attention_with_output": _PAGED,
        "_vllm_fa2_C::varlen_fwd _vllm_fa3_C::fwd": _PAGED,
    },
    "attention_backward": {
        "_scaled_dot_product_flash_attention_backward": Attention(
            "heads-first", Masking((11,), bottom_right=True)
        ),
        "_scaled_dot_product_efficient_attention_backward": _sdpa(11, bias=4),
        "_scaled_dot_product_cudnn_attention_backward": _sdpa(14, bias=8),
        "_scaled_dot_product_fused_attention_overrideable_backward": _sdpa(13, bias=4),
        "_scaled_dot_product_flash_attention_for_cpu_backward": _sdpa(7, bias=8),
        "_flash_attention_backward": _tokens_first(
            Masking((11,), window=(15, 16), bottom_right=True), Packing((6, 7), (8, 9))
        ),
        "_efficient_attention_backward": _tokens_first(
            _EFFICIENT_BACKWARD, Packing((6, 7), (8, 9))
        ),
        "_cudnn_attention_backward": Attention(
            "heads-first", Masking((14,), tensor=8), Packing((9, 10), (11, 12))
        ),
        "flash_attn::_flash_attn_backward": _tokens_first(_flash(11)),
        "flash_attn::_flash_attn_varlen_backward": _tokens_first(
            _flash(15), Packing((9, 10), (11, 12))
        ),
        "flash_attn_3::bwd": _tokens_first(_flash(16), Packing((9, 10), (13, 14), used=(11, 12))),
        "aiter::mha_bwd aiter::fmha_v3_bwd": _tokens_first(_flash(8)),
        "aiter::mha_varlen_bwd aiter::fmha_v3_varlen_bwd": _tokens_first(
            _flash(13), Packing((6, 7), (8, 9))
        ),
    },
}

_WRAPPERS: Final[Rows] = {
    "gemm": {
        "linear": MatrixProduct("linear", added=2, most=4),
        "matmul linalg_matmul": MatrixProduct("matmul", most=3),
        "mv": MatrixProduct("mv"),
        "einsum tensordot inner bilinear _trilinear addbmm addbmm_ kron": CHILDREN,
        "chain_matmul linalg_multi_dot lstm gru rnn_tanh rnn_relu": CHILDREN,
    },
    "grouped_gemm": {"vllm::rocm_aiter_fused_moe": fused_experts},
    "convolution": {
        "conv1d conv2d conv3d": Convolution(3, 4, 5, 6),
        "conv_transpose1d conv_transpose2d conv_transpose3d": Convolution(3, 4, 7, 6, True, 5),
        "convolution _convolution": Convolution(3, 4, 5, 8, transposed=6, output_padding=7),
        "thnn_conv2d slow_conv3d": Convolution(4, 5, None, None, bias=3),
        "_convolution_mode": CHILDREN,
    },
    "convolution_backward": {
        "cudnn_convolution_backward": _CUDNN,
        "miopen_convolution_backward": _MIOPEN,
        "mkldnn_convolution_backward": _MKLDNN,
    },
    "attention": {
        "scaled_dot_product_attention": _sdpa(5, bias=3),
        "_scaled_dot_product_attention_math": Attention(
            "heads-first", Masking((5,), tensor=3), unfused=True
        ),
        "FlashAttnFunc aiter::_flash_attn_forward": _tokens_first(Masking((5,), bottom_right=True)),
        "FlashAttnVarlenFunc": _tokens_first(
            Masking((9,), bottom_right=True), Packing((3, 4), (5, 6))
        ),
    },
    "attention_backward": {
        "aiter::_flash_attn_backward": _tokens_first(_flash(12, 11)),
    },
}

ENCLOSING: Final[Mapping[str, str]] = MappingProxyType(
    {
        f"aten::{library}_convolution_backward_{gradient}": f"aten::{library}_convolution_backward"
        for library in ("cudnn", "miopen", "mkldnn")
        for gradient in ("input", "weight", "weights")
    }
)
"""Ops whose shapes are partly those of the op around them, and that op."""


def _named(rows: Rows, role: Role) -> Iterator[tuple[str, Rule]]:
    for kind, formulas in rows.items():
        for names, formula in formulas.items():
            if isinstance(formula, Attention):
                formula = replace(formula, backward=kind == "attention_backward")
            for name in names.split():
                yield full_name(name), Rule(kind, formula, role)


def full_name(name: str) -> str:
    """Return a name of the table as the profiler writes it; capitals begin a Python class."""
    return name if "::" in name or name[0].isupper() else f"aten::{name}"


RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    dict(
        [
            *_named(_OPS, "op"),
            *_named(VECTOR_OPS, "op"),
            *_named(_WRAPPERS, "wrapper"),
            *_named(VECTOR_WRAPPERS, "wrapper"),
        ]
    )
)
"""The rule of each op by its name."""
