"""The table: which ops are modelled, of which kind they are, and the positions of their arguments.

To model another op, add its name to a row with the same positions, or add a row. Names without a
namespace are of `aten`, capitalised ones Python classes. Positions count from 0, as in the schemas
of torch 2.13, which older versions share unless a row says otherwise. A wrapper runs other ops of
the table. The first number of a vector formula is its operations per element.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from traceflops.flops.ops import vector
from traceflops.flops.ops.arguments import BOOL, INT32, INT64
from traceflops.flops.ops.attention import DENSE, Attention, Masking, Packing
from traceflops.flops.ops.convolution import Convolution, ConvolutionBackward, OneGradient
from traceflops.flops.ops.gemm import GroupedProduct, MatrixProduct, PackedWeight, fused_experts
from traceflops.flops.ops.vector import EachOfList, Elementwise, OptimizerStep, Pass, Reduction
from traceflops.flops.ops.work import Formula, Kind, NeverCounted, Role, Rule

Rows = Mapping[Kind, Mapping[str, Formula]]
CHILDREN: Final = NeverCounted("children")  # a wrapper: the ops below it tell its work
_ONE, _TWO, _THREE = (0,), (0, 1), (0, 1, 2)
_UNARY: Final = (
    "abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal square sin cos tan tanh erf "
    "floor ceil round trunc sign relu clamp_min clamp_max clamp bitwise_not"
)
_BINARY: Final = (
    "add sub mul div pow fmod remainder floor_divide atan2 bitwise_and bitwise_or bitwise_xor"
)
_COMPARED: Final = (
    "eq ne lt le gt ge isnan isinf isfinite logical_and logical_or logical_xor logical_not"
)


def _each(per_element: int, names: str, operands: tuple[int, ...]) -> dict[str, Formula]:
    """Return the formulas of elementwise ops, and of their in-place forms (name_)."""
    in_place = " ".join(f"{name}_" for name in names.split())
    return {
        names: Elementwise(per_element, operands),
        in_place: Elementwise(per_element, operands, in_place=True),
    }


def _into(per_element: int, operands: tuple[int, ...] = _TWO) -> Elementwise:
    """Return an op that writes its first operand without reading it."""
    return Elementwise(per_element, operands, in_place=True, reads_first=False)


VECTOR_OPS: Final[Rows] = {
    "elementwise": {
        **_each(1, _UNARY, _ONE),
        **_each(1, _BINARY, _TWO),
        **_each(2, "leaky_relu hardtanh", _ONE),
        **_each(3, "addcmul addcdiv lerp", _THREE),
        **_each(3, "nan_to_num", _ONE),
        **_each(4, "sigmoid silu", _ONE),
        **_each(5, "gelu", _ONE),
        **_each(0, "masked_fill", _TWO),
        "rsub maximum minimum": Elementwise(1, _TWO),
        _COMPARED: Elementwise(1, _TWO, result="bool"),
        "where": Elementwise(0, _THREE),
        "threshold_backward": Elementwise(1, _TWO),
        "sigmoid_backward tanh_backward": Elementwise(3, _TWO),
        "silu_backward": Elementwise(9, _TWO),
        "gelu_backward": Elementwise(11, _TWO),
        "mse_loss_backward": Elementwise(3, _THREE),
        "native_dropout": Pass(2),
        "_C::silu_and_mul sgl_kernel::silu_and_mul": _into(5),
        "_C::gelu_and_mul _C::gelu_tanh_and_mul": _into(6),
        "_C::static_scaled_fp8_quant": _into(2, _THREE),
        "_C::rotary_embedding sgl_kernel::rotary_embedding": vector.rotary,
        "native_dropout_backward": Elementwise(2, _TWO),
    },
    "copy": {
        "copy_": _into(0),
        "fill_ zero_ normal_ uniform_ bernoulli_ random_ exponential_": _into(0, _ONE),
        "cat _foreach_copy_ _foreach_zero_": EachOfList(0),
        "_C_cache_ops::reshape_and_cache _C_cache_ops::reshape_and_cache_flash": vector.into_cache,
        "sglang::store_cache": vector.into_cache,
    },
    "norm": {
        "native_layer_norm": Pass(
            8, (0, 2, 3), statistics=lambda args: 2 * vector.rows_of_layer_norm(args)
        ),
        "native_layer_norm_backward": Pass(13, (0, 1, 3, 4, 5), (1, 5, 6), mask=7),
        "_fused_rms_norm": Pass(4, (0, 2), statistics=vector.rows_of_layer_norm),
        "_fused_rms_norm_backward": Pass(9, (0, 1, 3, 4), (1, 4), mask=5),
        "native_group_norm": Pass(8, (0, 1, 2), statistics=vector.two_per_group),
        "native_group_norm_backward": Pass(13, (0, 1, 2, 3, 4), (1, 4, 4), mask=9),
        "native_batch_norm cudnn_batch_norm miopen_batch_norm": Pass(
            8, (0, 1, 2), statistics=vector.two_per_channel
        ),
        "native_batch_norm_backward": Pass(13, (0, 1, 2, 5, 6), (1, 2, 2), mask=9),
        "cudnn_batch_norm_backward miopen_batch_norm_backward": Pass(
            13, (0, 1, 2, 5, 6), (0, 2, 2)
        ),
        "_C::rms_norm aiter::rmsnorm": Pass(4, (1, 2), (0,)),
        "aiter::rms_norm": Pass(4, (0, 1)),
        "aiter::add_rmsnorm aiter::rmsnorm2d_fwd_with_add_ck": Pass(5, (1, 2, 4), (0, 3)),
        "_C::fused_add_rms_norm": Pass(5, (0, 1, 2), (0, 1)),
    },
    "softmax": {
        "_softmax _log_softmax": Pass(5, widened=2),
        "_softmax_backward_data _log_softmax_backward_data": Pass(4, (0, 1), out_type=3),
    },
    "reduction": {
        "sum nansum mean prod amax amin max min": Reduction(1),
        "logsumexp": Reduction(3),
        "var std": Reduction(4),
        "var_mean std_mean": Reduction(4, results=2),
        "norm linalg_vector_norm": Reduction(2, over=2),
        "argmax argmin": Reduction(1, result=INT64),
        "any all": Reduction(1, result=BOOL),
        "dot vdot": Pass(2, (0, 1), ()),
        "cumsum cumprod": Pass(1),
    },
    "gather": {
        "index_select": vector.selection,
        "embedding_dense_backward": vector.lookup_backward,
    },
    "optimizer": {
        "_fused_adam_ _fused_adamw_": OptimizerStep(14, updated=(0, 2, 3, 4), reads=(1,)),
        "_fused_sgd_": OptimizerStep(5, updated=(0, 2), reads=(1,)),
        "_fused_adagrad_": OptimizerStep(8, updated=(0, 2), reads=(1,)),
        "_foreach_add _foreach_add_ _foreach_sub _foreach_sub_": EachOfList(1),
        "_foreach_mul _foreach_mul_ _foreach_div _foreach_div_": EachOfList(1),
        "_foreach_sqrt _foreach_sqrt_ _foreach_neg _foreach_neg_": EachOfList(1),
        "_foreach_reciprocal _foreach_reciprocal_ _foreach_pow": EachOfList(1),
        "_foreach_maximum _foreach_maximum_ _foreach_abs": EachOfList(1),
        "_foreach_norm": EachOfList(2),
        "_foreach_addcmul _foreach_addcmul_ _foreach_addcdiv _foreach_addcdiv_": EachOfList(3),
        "_foreach_lerp _foreach_lerp_": EachOfList(3),
    },
    "view": {
        "view as_strided as_strided_ transpose t permute expand slice select narrow": vector.view,
        "unsqueeze unsqueeze_ squeeze squeeze_ split split_with_sizes chunk unbind": vector.view,
        "detach detach_ alias view_as _reshape_alias _unsafe_view transpose_": vector.view,
        "empty empty_like empty_strided new_empty resize_ set_ result_type": vector.view,
        "resolve_conj resolve_neg movedim lift_fresh is_pinned": vector.view,
    },
}
VECTOR_WRAPPERS: Final[Rows] = {
    "gather": {"embedding": vector.lookup},
    "norm": {"layer_norm rms_norm group_norm batch_norm _batch_norm_impl_index": CHILDREN},
    "softmax": {"softmax log_softmax _safe_softmax cross_entropy_loss": CHILDREN},
    "copy": {
        "to _to_copy contiguous clone reshape flatten type_as stack": CHILDREN,
        "zeros ones full zeros_like ones_like full_like new_zeros": CHILDREN,
    },
}


def _flash(*causal: int) -> Masking:
    """Return the mask of the flash family: aligned at the bottom right, a window after the flag.

    Several positions are those of several versions: the first one that has a flag counts.
    """
    window = (causal[0] + 1, causal[0] + 2)
    return Masking(causal, window=window, bottom_right=True)


def _tokens_first(masking: Masking, packing: Packing = DENSE) -> Attention:
    return Attention("tokens-first", masking, packing)


def _sdpa(
    *causal: int, bias: int | None = None, statistics: int | None = None, bottom_right: bool = False
) -> Attention:
    masking = Masking(causal, tensor=bias, bottom_right=bottom_right)
    return Attention("heads-first", masking, statistics=statistics)


_CUDNN, _MIOPEN, _MKLDNN = (
    ConvolutionBackward(1, 0, 2, transposed=False, groups=6, mask=mask) for mask in (10, 9, 7)
)
"""Torch before 1.11 had a backward op per library, around one op per gradient."""
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
        "_scaled_dot_product_flash_attention": _sdpa(4, 7, bottom_right=True),
        "_scaled_dot_product_efficient_attention": _sdpa(6, bias=3, statistics=4),
        "_scaled_dot_product_cudnn_attention": _sdpa(6, bias=3, statistics=4),
        "_scaled_dot_product_fused_attention_overrideable": _sdpa(5, bias=3),
        "_scaled_dot_product_flash_attention_for_cpu": _sdpa(4, bias=5),
        "_flash_attention_forward": _tokens_first(
            Masking((8,), window=(11, 12), bottom_right=True),
            Packing((3, 4), (5, 6), used=(13,), paged=(15,)),
        ),
        "_efficient_attention_forward": replace(
            _tokens_first(
                Masking(kind=9, window=(13,), tensor=3), Packing((4, 5), (6, 7), used=(12,))
            ),
            statistics=10,
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
        # Attention on cached keys: no recorded argument has their length.
        "aiter::mha_batch_prefill": NeverCounted("not-in-trace"),
        "vllm::unified_attention vllm::unified_attention_with_output": NeverCounted("not-in-trace"),
        "_vllm_fa2_C::varlen_fwd _vllm_fa3_C::fwd": NeverCounted("not-in-trace"),
    },
    "attention_backward": {
        "_scaled_dot_product_flash_attention_backward": _sdpa(11, bottom_right=True),
        "_scaled_dot_product_efficient_attention_backward": _sdpa(11, bias=4),
        "_scaled_dot_product_cudnn_attention_backward": _sdpa(14, bias=8),
        "_scaled_dot_product_fused_attention_overrideable_backward": _sdpa(13, bias=4),
        "_scaled_dot_product_flash_attention_for_cpu_backward": _sdpa(7, bias=8),
        "_flash_attention_backward": _tokens_first(
            Masking((11,), window=(15, 16), bottom_right=True), Packing((6, 7), (8, 9))
        ),
        "_efficient_attention_backward": _tokens_first(
            Masking(kind=14, window=(18,), tensor=4), Packing((6, 7), (8, 9))
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
        "_scaled_dot_product_attention_math": replace(_sdpa(5, bias=3), unfused=True),
        "FlashAttnFunc aiter::_flash_attn_forward": _tokens_first(Masking((5,), bottom_right=True)),
        "FlashAttnVarlenFunc": _tokens_first(
            Masking((9,), bottom_right=True), Packing((3, 4), (5, 6))
        ),
    },
    "attention_backward": {"aiter::_flash_attn_backward": _tokens_first(_flash(12, 11))},
}
ENCLOSING: Final[Mapping[str, str]] = {
    f"aten::{library}_convolution_backward_{gradient}": f"aten::{library}_convolution_backward"
    for library in ("cudnn", "miopen", "mkldnn")
    for gradient in ("input", "weight", "weights")
}
"""Ops that need shapes of the op around them, and the name of that op."""


def _named(rows: Rows, role: Role) -> Iterator[tuple[str, Rule]]:
    """Yield the name and rule of each op; `names` of a row are separated by spaces."""
    for kind, formulas in rows.items():
        for names, formula in formulas.items():
            if isinstance(formula, Attention):
                formula = replace(formula, backward=kind == "attention_backward")
            for name in names.split():
                is_full = "::" in name or name[0].isupper()  # capitals begin a Python class
                yield name if is_full else f"aten::{name}", Rule(kind, formula, role)


_OF_OPS: Final = (*_named(_OPS, "op"), *_named(VECTOR_OPS, "op"))
_OF_WRAPPERS: Final = (*_named(_WRAPPERS, "wrapper"), *_named(VECTOR_WRAPPERS, "wrapper"))
RULES: Final[Mapping[str, Rule]] = MappingProxyType(dict((*_OF_OPS, *_OF_WRAPPERS)))
"""The rule of each op by its name."""


def is_view(op: str) -> bool:
    """Return whether an op only allocates or makes a view of a tensor."""
    return op in RULES and RULES[op].kind == "view"


def computes(op: str) -> bool:
    """Return whether an op is known to compute or to move data."""
    return op in RULES and RULES[op].kind != "view"
