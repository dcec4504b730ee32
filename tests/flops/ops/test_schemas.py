"""The places in the table are those of torch's own schemas."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from traceflops.flops.ops.attention import Attention
from traceflops.flops.ops.convolution import Convolution, ConvolutionBackward
from traceflops.flops.ops.gemm import GroupedProduct, MatrixProduct
from traceflops.flops.ops.table import RULES
from traceflops.flops.ops.vector import OptimizerStep, Pass, lookup_backward

GONE = {"thnn_conv2d_forward"} | {
    f"{library}_convolution_backward{gradient}"
    for library in ("cudnn", "miopen", "mkldnn")
    for gradient in ("", "_input", "_weight", "_weights")
}
"""Ops that torch 2.13 no longer has, or has under the same name with other arguments."""


def schemas(name: str) -> list[list[str]]:
    """Return the names of the arguments of each overload that has no output argument."""
    packet = getattr(torch.ops.aten, name)
    found = [getattr(packet, overload)._schema for overload in packet.overloads()]
    return [
        [argument.name for argument in schema.arguments]
        for schema in found
        if not any(argument.is_out for argument in schema.arguments)
    ] or [[argument.name for argument in found[0].arguments]]


def expected(formula: Any) -> dict[int | None, set[str]]:
    """Return what the arguments at the places of a formula may be called."""
    if isinstance(formula, MatrixProduct):
        return {
            formula.left: {"self", "input", "mat1", "batch1", "mat", "X"},
            formula.right: {"mat2", "batch2", "weight", "other", "vec"},
            formula.added: {"self", "bias"},
            formula.beta: {"beta"},
            formula.out_type: {"out_dtype"},
        }
    if isinstance(formula, GroupedProduct):
        return {
            0: {"self"},
            1: {"mat2"},
            formula.offsets: {"offs"},
            formula.out_type: {"out_dtype"},
        }
    if isinstance(formula, Convolution):
        transposed = None if isinstance(formula.transposed, bool) else formula.transposed
        return {
            0: {"input", "self"},
            1: {"weight"},
            formula.bias: {"bias"},
            formula.stride: {"stride"},
            formula.padding: {"padding"},
            formula.dilation: {"dilation"},
            formula.groups: {"groups"},
            formula.output_padding: {"output_padding"},
            transposed: {"transposed"},
        }
    if isinstance(formula, ConvolutionBackward):
        transposed = None if isinstance(formula.transposed, bool) else formula.transposed
        return {
            formula.gradient: {"grad_output"},
            formula.input: {"input"},
            formula.weight: {"weight"},
            formula.groups: {"groups"},
            formula.mask: {"output_mask"},
            transposed: {"transposed"},
        }
    return _expected_attention(formula) if isinstance(formula, Attention) else {}


def _expected_attention(formula: Attention) -> dict[int | None, set[str]]:
    masking, packing = formula.masking, formula.packing
    first = int(formula.backward)
    found: dict[int | None, set[str]] = {
        first: {"query"},
        first + 1: {"key"},
        first + 2: {"value"},
        masking.tensor: {"attn_bias", "attn_mask", "bias"},
        masking.kind: {"custom_mask_type"},
        formula.statistics: {"compute_log_sumexp"},
    }
    several: list[tuple[tuple[int, ...], set[str]]] = [
        (masking.causal[:1], {"is_causal"}),
        (masking.window, {"window_size_left", "window_size_right", "window_size"}),
        (packing.offsets or (), {"cum_seq_q", "cum_seq_k"}),
        (packing.longest or (), {"max_q", "max_k"}),
        (packing.used, {"seqused_k", "seqlen_k"}),
        (packing.paged, {"block_table"}),
    ]
    for places, names in several:
        found |= dict.fromkeys(places, names)
    return found


OTHER_NAMES = {
    "cu_seqlens_q": "cum_seq_q",
    "cu_seqlens_k": "cum_seq_k",
    "max_seqlen_q": "max_q",
    "max_seqlen_k": "max_k",
}
MODELLED = [name.removeprefix("aten::") for name in RULES if name.startswith("aten::")]


MATRIX = [name for name in MODELLED if RULES[f"aten::{name}"].matrix and name not in GONE]


def test_places_are_those_of_the_schema() -> None:
    for name in MATRIX:
        formula = RULES[f"aten::{name}"].formula
        arguments = [OTHER_NAMES.get(one, one) for one in schemas(name)[0]]
        for place, names in expected(formula).items():
            if place is not None and not (isinstance(formula, MatrixProduct) and place == 2):
                assert arguments[place] in names, (name, place)


@pytest.mark.parametrize("name", ["mm", "bmm"])
def test_the_overload_with_a_type_of_the_result(name: str) -> None:
    assert ["self", "mat2", "out_dtype"] in schemas(name)


def test_the_quantized_flash_overload_has_its_flag_behind_the_scales() -> None:
    formula = RULES["aten::_scaled_dot_product_flash_attention"].formula
    assert isinstance(formula, Attention)
    flags = [
        arguments.index("is_causal") for arguments in schemas("_scaled_dot_product_flash_attention")
    ]
    assert sorted(flags) == sorted(formula.masking.causal)


PASSES = [
    ("native_layer_norm", "input weight bias", "input"),
    ("native_layer_norm_backward", "grad_out input mean rstd weight", "input weight bias"),
    ("_fused_rms_norm", "input weight", "input"),
    ("_fused_rms_norm_backward", "grad_out input rstd weight", "input weight"),
    ("native_group_norm", "input weight bias", "input"),
    ("native_group_norm_backward", "grad_out input mean rstd weight", "input weight weight"),
    ("native_batch_norm", "input weight bias", "input"),
    (
        "native_batch_norm_backward",
        "grad_out input weight save_mean save_invstd",
        "input weight weight",
    ),
    (
        "cudnn_batch_norm_backward",
        "input grad_output weight save_mean save_var",
        "input weight weight",
    ),
    ("_softmax", "self", "self"),
    ("_softmax_backward_data", "grad_output output", "grad_output"),
]


@pytest.mark.parametrize(("name", "reads", "writes"), PASSES)
def test_what_norms_and_softmaxes_read_and_write(name: str, reads: str, writes: str) -> None:
    formula, arguments = RULES[f"aten::{name}"].formula, schemas(name)[0]
    assert isinstance(formula, Pass)
    assert [arguments[place] for place in formula.reads] == reads.split()
    assert [arguments[place] for place in formula.writes] == writes.split()
    if formula.mask is not None:
        assert arguments[formula.mask] == "output_mask"
    if formula.out_type is not None:
        assert arguments[formula.out_type] == "input_dtype"
    if formula.widened is not None:
        assert arguments[formula.widened] == "half_to_float"


def test_what_optimizers_update() -> None:
    for name, updated in (
        ("_fused_adamw_", ["self", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"]),
        ("_fused_sgd_", ["self", "momentum_buffer_list"]),
        ("_fused_adagrad_", ["self", "state_sums"]),
    ):
        formula, arguments = RULES[f"aten::{name}"].formula, schemas(name)[0]
        assert isinstance(formula, OptimizerStep)
        assert [arguments[place] for place in formula.updated] == updated
        assert [arguments[place] for place in formula.reads] == ["grads"]


def test_the_rows_of_an_embedding() -> None:
    assert RULES["aten::embedding_dense_backward"].formula is lookup_backward
    read = schemas("embedding_dense_backward")[0][:3]
    assert read == ["grad_output", "indices", "num_weights"]


def test_every_name_of_the_table_is_an_op_of_torch() -> None:
    missing = [name for name in MODELLED if name not in GONE and not hasattr(torch.ops.aten, name)]
    assert missing == []
