"""Ops without matrix work: bytes and operations, computed by hand."""

from typing import Any

import pytest

from tests.flops.ops.made import BF16, FP8, HALF, why_unknown, work_of

N = [4, 6]  # 24 elements


@pytest.mark.parametrize(
    ("name", "dims", "types", "values", "moved", "operations"),
    [
        # two operands and a result
        ("add", [N, N, []], "float", None, 4 * 72, 24),
        ("add", [N, [6], []], "float", None, 4 * (24 + 6 + 24), 24),
        ("mul", [N, []], ["float", "Scalar"], None, 4 * 48, 24),
        (
            "mul",
            [N, []],
            [BF16, "float"],
            None,
            2 * 24 + 4 + 2 * 24,
            24,
        ),  # no dimensions: gives way
        ("add", [[4, 1], [6], []], "float", None, 4 * (4 + 6 + 24), 24),
        ("add", [[4, 6], [6], []], [BF16, "float", ""], None, 2 * 24 + 4 * 6 + 4 * 24, 24),
        ("div", [N, N], ["long int", HALF], None, 8 * 24 + 2 * 48, 24),
        ("add_", [N, N, []], HALF, None, 2 * 72, 24),
        ("add_", [N, [6], []], HALF, None, 2 * (24 + 6 + 24), 24),
        ("relu", [N], "float", None, 4 * 48, 24),
        ("gelu", [N, []], BF16, None, 2 * 48, 120),
        ("silu", [N], BF16, None, 2 * 48, 96),
        ("gt", [N, []], "float", None, 4 * 24 + 24, 24),
        ("where", [N, N, N], ["bool", "float", "float"], None, 24 + 4 * 72, 0),
        ("addcmul", [N, N, N, []], "float", None, 4 * 96, 72),
        ("threshold_backward", [N, N, []], "float", None, 4 * 72, 24),
        # written without being read
        ("copy_", [N, N, []], [BF16, "float", ""], None, 2 * 24 + 4 * 24, 0),
        ("copy_", [N, [6], []], "float", None, 4 * 30, 0),
        ("fill_", [N, []], "float", None, 4 * 24, 0),
        ("zero_", [[0, 4]], "float", None, 0, 0),
        # norms: read, written, statistics of four rows
        (
            "native_layer_norm",
            [N, [], [6], [6], []],
            "float",
            [None, [6], None, None, 1e-5],
            4 * (24 + 6 + 6 + 24 + 2 * 4),
            8 * 24,
        ),
        (
            "native_layer_norm",
            [N, [], [], [], []],
            "float",
            [None, [6], None, None, 1e-5],
            4 * (48 + 8),
            8 * 24,
        ),
        (
            "native_layer_norm_backward",
            [N, N, [], [4, 1], [4, 1], [6], [6], []],
            "float",
            [None] * 7 + [[True, True, True]],
            4 * (24 * 2 + 8 + 6 + 24 + 6 + 6),
            13 * 24,
        ),
        (
            "native_layer_norm_backward",
            [N, N, [], [4, 1], [4, 1], [6], [6], []],
            "float",
            [None] * 7 + [[True, False, False]],
            4 * (24 * 2 + 8 + 6 + 24),
            13 * 24,
        ),
        (
            "_fused_rms_norm",
            [N, [], [6], []],
            BF16,
            [None, [6], None, None],
            2 * (24 + 6 + 24 + 4),
            4 * 24,
        ),
        (
            "native_batch_norm",
            [[2, 3, 4], [3], [3], [3], [3], [], [], []],
            "float",
            [None] * 5 + [True, 0.1, 1e-5],
            4 * (24 + 3 + 3 + 24 + 2 * 3),
            8 * 24,
        ),
        (
            "native_batch_norm",
            [[2, 3, 4], [3], [3], [3], [3], [], [], []],
            "float",
            [None] * 5 + [False, 0.1, 1e-5],
            4 * (24 + 3 + 3 + 24),
            8 * 24,
        ),
        (
            "native_batch_norm_backward",
            [[2, 3, 4], [2, 3, 4], [3], [3], [3], [3], [3], [], [], []],
            "float",
            [None] * 9 + [[True, True, True]],
            4 * (24 * 2 + 9 + 24 + 6),
            13 * 24,
        ),
        (
            "cudnn_batch_norm_backward",
            [[2, 3, 4], [2, 3, 4], [3], [3], [3], [3], [3]],
            "float",
            None,
            4 * (24 * 2 + 9 + 24 + 6),
            13 * 24,
        ),
        (
            "native_group_norm",
            [[2, 4, 3], [4], [4], [], [], [], [], []],
            "float",
            [None] * 3 + [2, 4, 3, 2, 1e-5],
            4 * (24 + 8 + 24 + 2 * 2 * 2),
            8 * 24,
        ),
        ("_C::rms_norm", [N, N, [6], []], BF16, None, 2 * (24 + 6 + 24), 4 * 24),
        ("aiter::rms_norm", [N, [6], []], BF16, None, 2 * (24 + 6 + 24), 4 * 24),
        ("aiter::add_rmsnorm", [N, N, N, N, [6], []], BF16, None, 2 * (4 * 24 + 6), 5 * 24),
        ("_C::fused_add_rms_norm", [N, N, [6], []], BF16, None, 2 * (4 * 24 + 6), 5 * 24),
        ("_C::silu_and_mul", [N, [4, 12]], BF16, None, 2 * 3 * 24, 5 * 24),
        ("_C::gelu_and_mul", [N, [4, 12]], BF16, None, 2 * 3 * 24, 6 * 24),
        ("_C::static_scaled_fp8_quant", [N, N, []], [FP8, BF16, "float"], None, 76, 48),
        # 4 positions; query 4 x 16 and key 4 x 8, half of each head of 8 turned
        (
            "_C::rotary_embedding",
            [[4], [4, 16], [4, 8], [], [99, 4], []],
            ["long int", BF16, BF16, "Scalar", BF16, "Scalar"],
            [None, None, None, 8, None, True],
            4 * 8 + 2 * 4 * 4 + 2 * 2 * (64 + 32),
            3 * (64 + 32) // 2,
        ),
        # 3 of 4 rows have a slot
        (
            "_C_cache_ops::reshape_and_cache_flash",
            [[4, 1, 6], [4, 1, 6], [9, 16, 1, 6], [9, 16, 1, 6], [3]],
            [BF16, BF16, "unsigned char", "unsigned char", "long int"],
            None,
            3 * 8 + 2 * 18 * (2 + 1),
            0,
        ),
        # softmax
        ("_softmax", [N, [], []], HALF, [None, -1, False], 2 * 48, 120),
        ("_softmax", [N, [], []], HALF, [None, -1, True], 2 * 24 + 4 * 24, 120),
        ("_softmax_backward_data", [N, N, [], []], HALF, [None, None, -1, 5], 2 * 72, 96),
        ("_log_softmax_backward_data", [N, N], "float", [None, None, 1, 5], 4 * 48 + 2 * 24, 96),
        # reductions
        ("sum", [N, []], "float", [None, None], 4 * 25, 24),
        ("sum", [N, []], "float", [None, 6], 4 * 25, 24),  # a type, not a dimension
        ("sum", [N, [], [], []], "float", [None, [0], True, None], 4 * 30, 24),
        ("sum", [N, [], [], []], "float", [None, [-1], True, None], 4 * 28, 24),
        ("sum", [N, [], [], []], "float", [None, [], False, None], 4 * 25, 24),
        ("sum", [N, [], [], []], "float", None, 4 * 25, 24),
        ("mean", [[2, 3, 4], [], [], []], "float", [None, [0, 2], True, None], 4 * 27, 24),
        ("argmax", [N, [], []], "float", [None, 1, False], 4 * 24 + 8 * 4, 24),
        ("any", [N, [], []], "bool", [None, 0, False], 24 + 6, 24),
        ("linalg_vector_norm", [N], "float", [None, 2, None, False, None], 4 * 25, 48),
        ("var_mean", [N, [], [], []], "float", [None, [0], 0, False], 4 * (24 + 12), 96),
        ("dot", [[5], [5]], "float", None, 4 * 10, 10),
        # tables of 10 rows of 6
        ("embedding", [[10, 6], [4], []], [BF16, "long int", ""], None, 2 * 48 + 32, 0),
        ("embedding", [[3, 6], [4], []], [BF16, "long int", ""], None, 2 * (18 + 24) + 32, 0),
        (
            "embedding_dense_backward",
            [N, [4], [], [], []],
            ["float", "long int", "", "", ""],
            [None, None, 10, -1, False],
            4 * 48 + 32,
            24,
        ),
        (
            "embedding_dense_backward",
            [N, [4], [], [], []],
            ["float", "long int", "", "", ""],
            [None, None, 3, -1, False],
            4 * (24 + 18) + 32,
            24,
        ),
        (
            "index_select",
            [[10, 6], [], [4]],
            ["float", "", "long int"],
            [None, 0, None],
            4 * (24 + 24) + 32,
            0,
        ),
        # nothing at all
        ("view", [N, []], "float", None, 0, 0),
        ("empty", None, None, None, 0, 0),
    ],
)
def test_bytes_and_operations(
    name: str, dims: Any, types: Any, values: Any, moved: int, operations: int
) -> None:
    work = work_of(name, dims, types, values)
    assert (work.min_bytes, work.vector_flops) == (moved, operations)
    assert work.parts == ()
    assert (work.flops, work.dtype, work.signature) == (0, None, None)


def test_an_expanded_operand_is_read_once() -> None:
    work = work_of("add", [N, N, []], "float", None, [[6, 1], [0, 1], []])
    assert work.min_bytes == 4 * (24 + 6 + 24)


def test_without_types_there_are_no_bytes() -> None:
    assert work_of("add", [N, N, []]).min_bytes is None
    assert work_of("add", [N, N, []], ["float", "what", ""]).min_bytes is None
    assert work_of("add", [N, N, []]).vector_flops == 24


# Lists: two tensors of 24 and 6 elements
LIST = [N, [6]]


def test_a_fused_optimizer_moves_at_least_seven_times_two_bytes_a_parameter() -> None:
    dims = [LIST, LIST, LIST, LIST, [], [[], []]]
    work = work_of("_fused_adamw_", dims, ["TensorList"] * 6)
    assert work.min_bytes == 7 * 2 * 30
    assert work.notes == ("list-types-not-recorded",)
    with_maximum = work_of("_fused_adam_", [LIST] * 5, ["TensorList"] * 5)
    assert with_maximum.min_bytes == 9 * 2 * 30
    assert work_of("_fused_sgd_", [LIST, LIST, []]).min_bytes == 3 * 2 * 30
    assert work_of("_fused_sgd_", [LIST, LIST, LIST]).min_bytes == 5 * 2 * 30


def test_arithmetic_on_lists() -> None:
    work = work_of("_foreach_addcdiv_", [LIST, LIST, LIST, []], ["TensorList"] * 3 + ["Scalar"])
    assert (work.min_bytes, work.vector_flops, work.kind) == (None, 90, "optimizer")


@pytest.mark.parametrize(
    ("name", "dims", "reason"),
    [
        ("add", [[], []], "no-shapes"),
        ("add", [N, [5]], "odd-shapes"),
        ("add_", [[], N], "no-shapes"),
        ("native_layer_norm", [[], N], "no-shapes"),
        ("sum", [[]], "no-shapes"),
        ("embedding", [N], "no-shapes"),
        ("embedding", [[4, 5, 6], [2]], "odd-shapes"),
        ("embedding_dense_backward", [N], "no-shapes"),
        ("index_select", [N, [], [4]], "no-values"),
        ("index_select", [N], "no-shapes"),
        ("_fused_adam_", [[], [], []], "no-shapes"),
        ("_foreach_mul_", [[], []], "no-shapes"),
        ("contiguous", [N], "children"),
        ("add", [[2**62, 2**62], [1]], "too-large"),
    ],
)
def test_unknown_work(name: str, dims: Any, reason: str) -> None:
    assert why_unknown(name, dims) == reason


def test_a_gradient_without_dimensions() -> None:
    types = ["float", "long int"]
    assert why_unknown("embedding_dense_backward", [[], [4]], types) == "odd-shapes"


def test_selection_along_a_dimension_that_is_not_there() -> None:
    values = [None, 2, None]
    assert why_unknown("index_select", [N, [], [4]], values=values) == "odd-shapes"
