"""Matrix products: FLOPs, bytes, data types and how operands lie, computed by hand."""

from typing import Any

import pytest

from tests.flops.ops.made import (
    BF16,
    FP4,
    FP8,
    HALF,
    parts,
    product,
    result_of,
    why_unknown,
    work_of,
)
from traceflops.flops.ops.work import Product, Work

A, B = [4, 5], [5, 6]
MM = 2 * 4 * 6 * 5  # 240


@pytest.mark.parametrize(
    ("name", "dims", "flops"),
    [
        ("mm", [A, B], MM),
        ("mm", [A, B, [4, 6]], MM),  # out=
        ("_int_mm", [A, B], MM),
        ("addmm", [[6], A, B, [], []], MM),
        ("addmm_", [[4, 6], A, B, [], []], MM),
        ("_addmm_activation", [[6], A, B, [], [], []], MM),
        ("bmm", [[3, *A], [3, *B]], 3 * MM),
        ("baddbmm", [[3, 4, 6], [3, *A], [3, *B], [], []], 3 * MM),
        ("mv", [A, [5]], 2 * 4 * 5),
        ("addmv", [[4], A, [5], [], []], 2 * 4 * 5),
        ("linear", [A, [6, 5]], MM),
        ("linear", [[2, 3, 5], [6, 5], [6]], 2 * (2 * 3) * 6 * 5),
        ("linear", [[5], [6, 5]], 2 * 6 * 5),
        ("linear", [A, [5]], 2 * 4 * 5),  # a weight of one row
        ("matmul", [A, B], MM),
        ("matmul", [[5], [5]], 2 * 5),
        ("matmul", [[2, 3, *A], B], 2 * (2 * 3 * 4) * 6 * 5),
        ("matmul", [[5], B], 2 * 6 * 5),
        ("matmul", [[2, 1, *A], [3, *B]], 2 * 3 * MM),  # batches 2 x 1 and 3 broadcast to 6
        ("_scaled_mm", [A, B, [], [], [], [], [], []], MM),
        ("_weight_int8pack_mm", [A, [6, 5], [6]], MM),
        ("_weight_int4pack_mm", [[4, 64], [2, 1, 32, 4], [], [2, 16, 2]], 2 * 4 * 16 * 64),
        ("mkldnn::_linear_pointwise", [A, [6, 5], [6]], MM),
        ("mkl::_mkl_linear", [A, [99], [6, 5], [6]], MM),
        ("_C::cutlass_scaled_mm", [[4, 6], A, B, [], [], []], MM),
        ("mm", [[0, 5], B], 0),
        ("mm", [[4, 0], [0, 6]], 0),
    ],
)
def test_flops(name: str, dims: Any, flops: int) -> None:
    work = work_of(name, dims)
    assert parts(work) == {"product": flops}
    assert work.at_least == work.flops == flops
    assert work.kind == "gemm"


def test_the_flops_of_a_product_are_those_of_its_sizes() -> None:
    work = work_of("baddbmm", [[3, 4, 6], [3, *A], [3, *B], [], []])
    assert product(work) == Product(3, 4, 6, 5)
    assert product(work).flops == work.flops == 720


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("mm", [A, [6, 5]]),
        ("mm", [[3, *A], [3, *B]]),
        ("mm", [A, B, [4, 6], [1]]),
        ("bmm", [[3, *A], [2, *B]]),
        ("bmm", [A, B]),
        ("addmm", [[6], A, [4, 6], [], []]),
        ("linear", [A, B]),
        ("linear", [[1, 5], [10, 267], [2048, 160, 267], [10, 267], [10]]),  # a whole stack
        ("matmul", [[2, *A], [3, *B]]),
        ("mv", [A, B]),
        ("_weight_int4pack_mm", [A, [1], [], [2]]),
    ],
)
def test_shapes_of_no_product_are_odd(name: str, dims: Any) -> None:
    assert why_unknown(name, dims) == "odd-shapes"


def test_missing_operands() -> None:
    assert why_unknown("mm", [A]) == "no-shapes"
    assert why_unknown("mm", [A, []]) == "no-shapes"
    assert why_unknown("mm", None) == "no-shapes"
    assert why_unknown("mm", [A, "B"]) == "odd-shapes"
    assert why_unknown("mm", [[2**40, 2**40], [2**40, 2**40]]) == "too-large"
    assert why_unknown("einsum", [[], [A, B], []]) == "children"
    assert why_unknown("some_op", [A, B]) == "not-modelled"
    assert why_unknown("_weight_int4pack_mm", [A, B, [], []]) == "no-shapes"
    assert why_unknown("matmul", [[], B], ["float", "float"]) == "odd-shapes"


@pytest.mark.parametrize(
    ("name", "dims", "types", "values", "moved"),
    [
        # a + b + out
        ("mm", [A, B], "float", None, 4 * (20 + 30 + 24)),
        ("mm", [A, B], BF16, None, 2 * (20 + 30 + 24)),
        ("mm", [A, B, []], [BF16, BF16, ""], [None, None, 6], 2 * (20 + 30) + 4 * 24),
        ("mm", [A, B, [4, 6]], [BF16, BF16, "float"], None, 2 * (20 + 30) + 4 * 24),
        ("_int_mm", [A, B], "signed char", None, 20 + 30 + 4 * 24),
        # a bias is read where beta is not 0
        ("addmm", [[6], A, B, [], []], "float", [None] * 3 + [1, 1], 4 * (20 + 30 + 24 + 6)),
        ("addmm", [[6], A, B, [], []], "float", [None] * 3 + [0, 1], 4 * (20 + 30 + 24)),
        ("addmm", [[6], A, B, [], []], "float", None, 4 * (20 + 30 + 24)),
        ("linear", [A, [6, 5], [6]], HALF, None, 2 * (20 + 30 + 24 + 6)),
        ("linear", [A, [6, 5]], [HALF, ""], None, None),  # a type is missing
    ],
)
def test_bytes(name: str, dims: Any, types: Any, values: Any, moved: int | None) -> None:
    assert work_of(name, dims, types, values).min_bytes == moved


def test_scales_and_the_type_of_the_result_of_a_scaled_product() -> None:
    dims = [[16, 32], [32, 64], [16, 1], [1, 64], [64], [], [], []]
    types = [FP8, FP8, "float", "float", BF16, "", "Scalar", "Scalar"]
    values = [None] * 6 + [15, False]
    work = work_of("_scaled_mm", dims, types, values)
    assert work.flops == 2 * 16 * 64 * 32
    assert work.min_bytes == 16 * 32 + 32 * 64 + 2 * 16 * 64 + 4 * 16 + 4 * 64 + 2 * 64
    assert work.dtype == "fp8"


def test_an_expanded_operand_is_read_once() -> None:
    dims = [[3, 4, 5], [3, 5, 6]]
    work = work_of("bmm", dims, "float", None, [[0, 5, 1], [30, 6, 1]])
    assert work.min_bytes == 4 * (20 + 3 * 30 + 3 * 24)
    assert work.flops == 3 * MM


@pytest.mark.parametrize(
    ("types", "dtype"),
    [
        (["float", "float"], "tf32-or-fp32"),
        (["double", "double"], "fp64"),
        ([HALF, HALF], "fp16"),
        ([BF16, BF16], "bf16"),
        ([FP8, "c10::Float8_e5m2"], "fp8"),
        (["signed char", "signed char"], "int8"),
        (["unsigned char", "signed char"], "int8"),
        ([BF16, "float"], None),
        (["long int", "long int"], None),
        (["", ""], None),
        (["what", "what"], None),
    ],
)
def test_data_types(types: list[str], dtype: str | None) -> None:
    work = work_of("mm", [A, B], types)
    assert (work.dtype, work.flops) == (dtype, MM)


def test_two_values_of_fp4_share_an_element() -> None:
    # [16, K / 2] x [K / 2, 8] with K = 64
    work = work_of("_scaled_mm", [[16, 32], [32, 8], [], [], [], [], [], []], FP4)
    assert product(work) == Product(1, 16, 8, 64)
    assert (work.flops, work.dtype) == (2 * 16 * 8 * 64, "fp4")


def test_a_complex_product_takes_four_real_ones() -> None:
    work = work_of("mm", [A, B], "c10::complex<float>")
    assert (work.flops, work.dtype) == (4 * MM, "tf32-or-fp32")
    assert work.min_bytes == 8 * (20 + 30 + 24)


@pytest.mark.parametrize(
    ("name", "dims", "strides", "layouts"),
    [
        ("mm", [A, B], [[5, 1], [6, 1]], ("row", "row")),
        ("mm", [A, B], [[5, 1], [1, 5]], ("row", "column")),
        ("mm", [A, B], [[1, 4], [6, 1]], ("column", "row")),
        ("mm", [A, B], [[9, 1], [1, 7]], ("row", "column")),  # parts of larger matrices
        ("mm", [A, B], [[0, 1], [6, 0]], (None, None)),
        ("mm", [A, B], None, (None, None)),
        ("mm", [[4, 1], [1, 6]], [[1, 1], [1, 1]], ("row", "column")),
        ("mm", [[1, 1], [1, 1]], [[1, 1], [1, 1]], (None, None)),
        ("addmm", [[6], A, B], [[1], [5, 1], [1, 5]], ("row", "column")),
        ("linear", [A, [6, 5]], [[5, 1], [5, 1]], ("row", "column")),
        ("linear", [A, [6, 5]], [[5, 1], [1, 6]], ("row", "row")),
    ],
)
def test_layouts(name: str, dims: Any, strides: Any, layouts: Any) -> None:
    sizes = product(work_of(name, dims, strides=strides))
    assert (sizes.left, sizes.right) == layouts


# Groups of rows: 7 rows in all, 3 experts of 4 x 5.
@pytest.mark.parametrize(
    ("left", "right", "sizes", "moved"),
    [
        # tokens by experts: every expert may have rows
        ([7, 4], [3, 4, 5], (1, 7, 5, 4), 28 + 60 + 35),
        # two rows are of two experts at most
        ([2, 4], [3, 4, 5], (1, 2, 5, 4), 8 + 40 + 10),
        # weight gradient: rows are summed over, one result per group
        ([4, 7], [7, 5], (1, 4, 5, 7), 28 + 35 + 3 * 20),
        # input side stacked
        ([3, 6, 4], [4, 7], (1, 6, 7, 4), 72 + 28 + 42),
        # one product per group
        ([3, 6, 4], [3, 4, 5], (3, 6, 5, 4), 72 + 60 + 90),
    ],
)
def test_grouped_products(left: Any, right: Any, sizes: Any, moved: int) -> None:
    types = [BF16, BF16, "int", "", ""]
    work = work_of("_grouped_mm", [left, right, [3], [], []], types)
    batch, m, n, k = sizes
    assert parts(work) == {"product": 2 * batch * m * n * k}
    assert work.min_bytes == 2 * moved
    assert work.dtype == "bf16"
    ragged = len(left) == 2 or len(right) == 2
    assert work.notes == (("rows-of-groups-not-recorded",) if ragged else ())


def test_a_scaled_grouped_product() -> None:
    dims = [[7, 4], [3, 4, 5], [7], [3, 5], [3], [], [], [], []]
    types = [FP8, FP8, "float", "float", "int", "", "", "Scalar", "Scalar"]
    work = work_of("_scaled_grouped_mm", dims, types, [None] * 7 + [15, True])
    assert work.flops == 2 * 7 * 5 * 4
    assert work.min_bytes == 28 + 60 + 2 * 35 + 4 * 7 + 4 * 15


def test_grouped_shapes_that_do_not_fit() -> None:
    assert why_unknown("_grouped_mm", [[7, 4], [3, 5, 4]]) == "odd-shapes"
    assert why_unknown("_grouped_mm", [[2, 7, 4], [3, 4, 5]]) == "odd-shapes"
    assert why_unknown("_grouped_mm", [[7], [3, 4, 5]]) == "odd-shapes"
    assert why_unknown("_grouped_mm", [[7, 4], []]) == "no-shapes"
    summed = work_of("_grouped_mm", [[4, 7], [7, 5], []], BF16)
    assert (summed.flops, summed.min_bytes) == (2 * 4 * 5 * 7, None)  # number of groups unknown


TOKENS, CHOSEN, UP, DOWN = [5, 8], [5, 2], [3, 12, 8], [3, 8, 6]
"""Five tokens of 8, each to 2 of 3 experts of width 6 with a gate."""


@pytest.mark.parametrize(
    ("types", "up", "down", "dtype"),
    [
        pytest.param(BF16, UP, DOWN, "bf16", id="gated"),
        pytest.param(FP8, UP, DOWN, "fp8", id="quantised on the way"),
        pytest.param("signed char", UP, DOWN, None, id="weights alone of eight bits, or both"),
        pytest.param("unsigned char", [3, 12, 4], [3, 8, 3], None, id="two values in a byte"),
    ],
)
def test_fused_experts(types: str, up: Any, down: Any, dtype: str | None) -> None:
    """A row is multiplied by all weights of an expert: 8 x 12 and 6 x 8."""
    dims = [TOKENS, up, down, CHOSEN, CHOSEN]
    named = [BF16, types, types, "float", "int"]
    for name in ("vllm::outplace_fused_experts", "aiter::fused_moe_"):
        work = work_of(name, dims, named)
        assert work.flops == work.at_least == 2 * (5 * 2) * (8 * 12 + 6 * 8)
        assert (work.kind, work.dtype) == ("grouped_gemm", dtype)
    sizes = {BF16: 2 * 3 * (8 * 12 + 6 * 8), FP8: 3 * (8 * 12 + 6 * 8)}
    if types in sizes:
        assert work.min_bytes == 2 * 2 * (5 * 8) + sizes[types]


def test_fused_experts_without_a_gate() -> None:
    dims = [TOKENS, [3, 6, 8], DOWN, CHOSEN, CHOSEN]
    assert work_of("sglang::inplace_fused_experts", dims, BF16).flops == 2 * 10 * 2 * 6 * 8


def test_a_map_of_experts_leaves_open_how_many_rows_are_here() -> None:
    dims = [TOKENS, UP, DOWN, CHOSEN, CHOSEN, [6]]
    work = work_of("aiter::fused_moe_", dims, [BF16, BF16, BF16, "float", "int", "int"])
    assert (work.flops, work.at_least) == (2 * 10 * (8 * 12 + 6 * 8), 0)


@pytest.mark.parametrize(
    ("up", "down"),
    [
        ([3, 12, 7], DOWN),
        ([3, 13, 8], DOWN),
        (UP, [3, 9, 6]),
        (UP, [4, 8, 6]),
        ([3, 12], DOWN),
        ([3, 12, 0], DOWN),
    ],
)
def test_experts_that_do_not_fit_their_tokens_are_unknown(up: Any, down: Any) -> None:
    name, dims = "vllm::inplace_fused_experts", [TOKENS, up, down, CHOSEN, CHOSEN]
    assert why_unknown(name, dims, BF16) == "odd-shapes"


def test_in_the_reference_layers_of_a_llama_the_sum_is_two_flops_per_weight_and_token() -> None:
    # Llama 3 8B: h 4096, 32 heads of 128, 8 of keys, f 14336; 8192 tokens, per layer
    tokens, weights = 8192, 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336
    sides = [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096)]
    sides += [(14336, 4096), (14336, 4096), (4096, 14336)]
    done = [result_of("linear", [[1, tokens, k], [n, k]], BF16) for n, k in sides]
    assert all(isinstance(work, Work) for work in done)
    assert sum(work.flops for work in done if isinstance(work, Work)) == 2 * tokens * weights
