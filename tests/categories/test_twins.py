"""Names that differ only in the form of one word are one category: add, adding, addition."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from traceflops.categories.classify import load

FAMILIES = (
    ("add", "adds", "adding", "addition"),
    ("sub", "subtract", "subtracts", "subtracting", "subtraction"),
    ("mul", "mult", "multiply", "multiplies", "multiplying", "multiplication"),
    ("div", "divide", "divides", "dividing", "division"),
    ("neg", "negate", "negating", "negation"),
    ("abs", "absolute", "absolute_value"),
    ("pow", "power"),
    ("exp", "exponent", "exponential", "exponentiation"),
    ("log", "logarithm"),
    ("sqrt", "square_root"),
    ("sin", "sine"),
    ("cos", "cosine"),
    ("square", "squared", "squaring"),
    ("floor", "flooring"),
    ("ceil", "ceiling"),
    ("round", "rounding"),
    ("clamp", "clamping"),
    ("clip", "clipping"),
    ("compare", "comparing", "comparison"),
    ("scale", "scaling", "rescale", "rescaling"),
)
BEFORE = ("", "fused_", "vectorized_", "my_", "triton_", "cuda_")
AFTER = ("", "_kernel", "_fwd", "_bwd", "_forward", "_backward", "_op", "_kernel_v2", "_f32", "2")
TRANSFORMS = ("hadamard", "fast_hadamard", "fwht", "walsh", "walsh_hadamard", "block_hadamard")
MATRIX = ("matrix_multiplication", "matrix_multiply", "matmul", "mat_mul", "matrix_vector_product")


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


@settings(max_examples=examples(300))
@given(st.sampled_from(FAMILIES), st.sampled_from(BEFORE), st.sampled_from(AFTER))
def test_forms_of_one_word_are_one_category(
    family: tuple[str, ...], before: str, after: str
) -> None:
    kernel = load().kernel
    names = [f"{before}{word}{after}" for word in family]
    spelled = [*names, *map(camel, names), *(camel(f"_{name}") for name in names if name[0] != "_")]
    found = {name: kernel(name).category.sub for name in spelled}
    assert set(found.values()) == {"elementwise"}, found


@pytest.mark.parametrize("word", TRANSFORMS)
@pytest.mark.parametrize("after", ["", "_kernel", "_transform_kernel", "_transform_fwd", "_rotate"])
def test_hadamard_transforms_are_transforms_unless_they_quantise(word: str, after: str) -> None:
    for name in (f"{word}{after}", camel(f"{word}{after}"), f"void {word}{after}<float>(float*)"):
        assert load().kernel(name).category.sub == "fft", name
    assert load().kernel(f"quantize_{word}{after}").category.sub == "quantize"


@pytest.mark.parametrize("name", ["hadamard_product_kernel", "hadamardMulKernel", "addkernel"])
def test_products_per_element_are_elementwise(name: str) -> None:
    assert load().kernel(name).category.sub == "elementwise"


@pytest.mark.parametrize("word", MATRIX)
@pytest.mark.parametrize("after", ["", "_kernel", "_tiled", "_shared_memory"])
def test_a_product_of_matrices_is_none_per_element(word: str, after: str) -> None:
    for name in (f"{word}{after}", camel(f"{word}{after}")):
        assert load().kernel(name).category.sub == "gemm", name
