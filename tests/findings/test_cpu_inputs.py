"""Inputs of CPU operators tell of work that better code would not do."""

from typing import Any

import pytest

from tests.findings.test_cpu_program import MS, op, said


def calls(*rows: tuple[str, str, str], each_ns: int = 5 * MS) -> list[dict[str, Any]]:
    """Return calls one after the other, from their names, sizes and types of inputs."""
    return [
        op(name, at * each_ns, each_ns, input_dims=dims, input_types=types)
        for at, (name, dims, types) in enumerate(rows)
    ]


@pytest.mark.parametrize("grows", [True, False])
def test_a_tensor_that_grows_by_concatenation_is_copied_again_and_again(*, grows: bool) -> None:
    sizes = [64 * (number if grows else 1) for number in range(1, 12)]
    work = calls(*(("cat", f"[[[{rows}, 8], [64, 8]], []]", "") for rows in sizes))
    assert ("appends to a tensor that grows" in said(*work)) == grows


@pytest.mark.parametrize(("more", "power"), [(1, 1), (1, 2), (32, 1), (0, 1)])
def test_text_that_is_computed_again_for_each_token_needs_a_cache(more: int, power: int) -> None:
    work = calls(
        *(
            row
            for turn in range(10)
            for row in (
                ("embedding", f"[[100, 8], [2, {96 + more * turn**power}], [], []]", ""),
                ("mm", "[[2, 8], [8, 8]]", ""),
                ("mm", "[[2, 8], [8, 8]]", ""),
            )
        )
    )
    assert ("KV cache" in said(*work)) == (more == power == 1)


@pytest.mark.parametrize(("columns", "is_told"), [(64, True), (8, False)])
def test_products_around_a_softmax_are_attention(columns: int, *, is_told: bool) -> None:
    scores = "[[4, 64, 32], [4, 32, 64]]"
    work = calls(
        ("bmm", scores, ""),
        ("_softmax", "[[4, 64, 64], [], []]", ""),
        ("bmm", f"[[4, 64, {columns}], [4, {columns}, 32]]", ""),
    )
    assert ("scaled_dot_product_attention" in said(*work)) == is_told


@pytest.mark.parametrize("around", ["scaled_dot_product_attention", "linear", None])
def test_products_of_pytorch_itself_are_not_attention_by_hand(around: str | None) -> None:
    work = calls(
        ("bmm", "[[4, 64, 32], [4, 32, 64]]", ""),
        ("_softmax", "[[4, 64, 64], [], []]", ""),
        ("bmm", "[[4, 64, 64], [4, 64, 32]]", ""),
    )
    outer = [op(around, 0, 15 * MS)] if around else []
    assert ("around a softmax" in said(*outer, *work)) == (around is None)


@pytest.mark.parametrize(
    ("name", "types", "told", "never"),
    [
        ("mm", '["c10::BFloat16","c10::BFloat16"]', "torch.set_num_threads", "bfloat16"),
        ("mm", '["float","float"]', "bfloat16", "float64"),
        ("exp", '["double"]', "float64", "bfloat16"),
        ("exp", '["float"]', "aten::exp", "float64"),
        ("copy_", '["c10::BFloat16","float","Scalar"]', "convert data types", "layout"),
        ("copy_", '["float","float","Scalar"]', "aten::copy_", "convert data types"),
    ],
)
def test_types_of_inputs_choose_the_remedy(name: str, types: str, told: str, never: str) -> None:
    sentence = said(*calls(*((name, "[[64, 64], [64, 64]]", types),) * 4))
    assert told in sentence
    assert never not in sentence


@pytest.mark.parametrize(
    ("outer", "told"),
    [
        ("select_backward", "gradients of slices"),
        ("one_hot", "one-hot vectors"),
        ("zeros", "fill_ takes 100.0 % of the time. This trace"),
    ],
)
def test_what_zeros_are_filled_in_for_is_told(outer: str, told: str) -> None:
    around = [op(outer, at * 5 * MS, 5 * MS) for at in range(3)]
    fills = [op("fill_", at * 5 * MS + 1, 5 * MS - 1) for at in range(3)]
    assert told in said(*around, *fills)


@pytest.mark.parametrize(
    ("name", "dims"), [("cat", "[[[{0}, 8], [64, 8]], []]"), ("embedding", "[[100, 8], [2, {0}]]")]
)
def test_sizes_of_thousands_of_digits_are_read(name: str, dims: str) -> None:
    assert f"aten::{name}" in said(*calls(*[(name, dims.format("9" * 5_000), "")] * 12))
