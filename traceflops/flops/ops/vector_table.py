"""The rows of the table for ops that multiply no matrices.

The first number of a formula is its operations per element (`traceflops.flops.ops.vector` says what
is one). `_each` gives a row for an op and for its in-place form, which ends in `_`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from traceflops.flops.ops.arguments import BOOL, INT64
from traceflops.flops.ops.vector import (
    EachOfList,
    Elementwise,
    LookupBackward,
    OptimizerStep,
    Pass,
    Reduction,
    into_cache,
    lookup,
    rotary,
    rows_of_layer_norm,
    selection,
    two_per_channel,
    two_per_group,
    two_rows_of_layer_norm,
    view,
)
from traceflops.flops.ops.work import Formula, Kind, NeverCounted

Rows = Mapping[Kind, Mapping[str, Formula]]

CHILDREN: Final = NeverCounted("children")
"""A wrapper: the ops below it tell its work."""

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
        "_C::rotary_embedding sgl_kernel::rotary_embedding": rotary,
        "native_dropout_backward": Elementwise(2, _TWO),
    },
    "copy": {
        "copy_": _into(0),
        "fill_ zero_ normal_ uniform_ bernoulli_ random_ exponential_": _into(0, _ONE),
        "cat _foreach_copy_ _foreach_zero_": EachOfList(0),
        "_C_cache_ops::reshape_and_cache _C_cache_ops::reshape_and_cache_flash": into_cache,
        "sglang::store_cache": into_cache,
    },
    "norm": {
        "native_layer_norm": Pass(8, (0, 2, 3), statistics=two_rows_of_layer_norm),
        "native_layer_norm_backward": Pass(13, (0, 1, 3, 4, 5), (1, 5, 6), mask=7),
        "_fused_rms_norm": Pass(4, (0, 2), statistics=rows_of_layer_norm),
        "_fused_rms_norm_backward": Pass(9, (0, 1, 3, 4), (1, 4), mask=5),
        "native_group_norm": Pass(8, (0, 1, 2), statistics=two_per_group),
        "native_group_norm_backward": Pass(13, (0, 1, 2, 3, 4), (1, 4, 4), mask=9),
        "native_batch_norm cudnn_batch_norm miopen_batch_norm": Pass(
            8, (0, 1, 2), statistics=two_per_channel
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
        "index_select": selection,
        "embedding_dense_backward": LookupBackward(),
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
        "view as_strided as_strided_ transpose t permute expand slice select narrow": view,
        "unsqueeze unsqueeze_ squeeze squeeze_ split split_with_sizes chunk unbind": view,
        "detach detach_ alias view_as _reshape_alias _unsafe_view transpose_": view,
        "empty empty_like empty_strided new_empty resize_ set_ result_type": view,
        "resolve_conj resolve_neg movedim lift_fresh is_pinned": view,
    },
}

VECTOR_WRAPPERS: Final[Rows] = {
    "gather": {"embedding": lookup},
    "norm": {"layer_norm rms_norm group_norm batch_norm _batch_norm_impl_index": CHILDREN},
    "softmax": {"softmax log_softmax _safe_softmax cross_entropy_loss": CHILDREN},
    "copy": {
        "to _to_copy contiguous clone reshape flatten type_as stack": CHILDREN,
        "zeros ones full zeros_like ones_like full_like new_zeros": CHILDREN,
    },
}
