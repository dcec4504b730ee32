"""Which gradient a product is, by its shapes and by how its operands lie."""

from __future__ import annotations

from collections import Counter

import pytest

from traceflops.attribution.products import Forwards, surplus, usual_role
from traceflops.flops.ops.work import Product

LINEAR = Product(1, 120, 64, 256, "row", "column")
"""x [120, 256] times a weight stored as [64, 256]."""


@pytest.mark.parametrize(
    ("product", "role"),
    [
        (Product(1, 120, 256, 64, "row", "row"), "input_grad"),
        (Product(1, 120, 256, 64, None, None), "input_grad"),
        (Product(1, 64, 256, 120, "column", "row"), "weight_grad"),
        (Product(1, 256, 64, 120, "column", "row"), "weight_grad"),
        (Product(1, 120, 64, 256, "row", "column"), "recompute"),
        (Product(1, 120, 64, 256, "row", "row"), None),
        (Product(1, 120, 64, 255, "row", "column"), None),
        (Product(2, 120, 64, 256, "row", "column"), None),
    ],
)
def test_one_forward_product(product: Product, role: str | None) -> None:
    assert Forwards([LINEAR]).verdict(product).role == role


SQUARE = Product(1, 64, 64, 64, "row", "column")


@pytest.mark.parametrize(
    ("left", "right", "role"),
    [
        ("row", "column", "recompute"),
        ("row", "row", "input_grad"),
        ("column", "row", "weight_grad"),
    ],
)
def test_strides_tell_where_shapes_do_not(left: str, right: str, role: str) -> None:
    product = Product(1, 64, 64, 64, left, right)  # type: ignore[arg-type]
    found = Forwards([SQUARE]).verdict(product)
    assert found.role == role
    assert len(found.by_shape) == 3


def test_a_weight_stored_the_other_way_round() -> None:
    """x @ W of a row-major W: its input gradient has a transposed right operand."""
    forward = Product(1, 64, 64, 64, "row", "row")
    judge = Forwards([forward])
    assert judge.verdict(Product(1, 64, 64, 64, "row", "column")).role == "input_grad"
    assert judge.verdict(Product(1, 64, 64, 64, "row", "row")).role == "recompute"
    assert judge.verdict(Product(1, 64, 64, 64, "column", "row")).role == "weight_grad"


def test_without_strides_all_readings_stay() -> None:
    found = Forwards([SQUARE]).verdict(Product(1, 64, 64, 64))
    assert found.roles == {"recompute", "input_grad", "weight_grad"}
    assert found.role is None
    assert usual_role(Product(1, 64, 64, 64)) is None


def test_more_products_than_gradients_are_computed_again() -> None:
    plain = Product(1, 64, 64, 64)
    forward = Counter({plain: 3})
    assert surplus(plain, 6, forward) == 0
    assert surplus(plain, 9, forward) == 3
    assert surplus(plain, 2, Counter()) == 2
