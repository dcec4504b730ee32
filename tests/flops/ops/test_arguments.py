"""Recorded arguments: what is read, and that nothing else is ever taken for a number."""

import math
from typing import Any

import pytest

from traceflops.flops.ops.arguments import (
    READERS,
    UNREADABLE,
    Arguments,
    Shapes,
    Tensor,
    element_type,
    promoted,
    read_shapes,
    read_types,
    read_value,
    read_values,
)

FLOAT = element_type("float")


def test_shapes_of_tensors_and_lists() -> None:
    read = read_shapes("[[2,3],[],[[4],[5,6],[]]]")
    assert read == ((2, 3), (), ((4,), (5, 6), ()))
    assert [isinstance(entry, Shapes) for entry in read] == [False, False, True]


@pytest.mark.parametrize(
    "text",
    [
        *("", "null", "{}", "7", '"[]"', "[1,2]", "[[1.5]]", "[[true]]", "[[null]]", '[["2"]]'),
        *("[[-1]]", "[[1,[2]]]", "[[[[1]]]]", "[[1", "[[9223372036854775808]]", "[[1e3]]"),
        *("[" * 100_000, "[[" + "1," * 64 + "1]]", "[[[" + "1," * 64 + "1]]]", "\ud800"),
    ],
)
def test_what_is_no_list_of_shapes_is_unknown(text: str) -> None:
    assert read_shapes(text) is None


def test_the_largest_size_is_read() -> None:
    assert read_shapes("[[9223372036854775807]]") == ((2**63 - 1,),)


def test_strides_and_types() -> None:
    read_strides = READERS["input_strides"]
    assert read_strides("[[3,1],[],[[0]]]") == ((3, 1), (), ((0,),))
    assert read_strides("[3,1]") == ()
    assert read_types('["float","",7,null,["float"]]') == ("float", "", "", "", "")
    assert read_types("float") == ()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("None", None),
        ("True", True),
        ("False", False),
        ("7", 7),
        ("-1", -1),
        ("0.", 0.0),
        ("0.125", 0.125),
        ("1.0000000000000001e-05", 1e-05),
        ("-inf", -math.inf),
        ("[]", ()),
        ("[1, 1]", (1, 1)),
        ("[True, False, True]", (True, False, True)),
        ("[0.5, 2]", (0.5, 2)),
    ],
)
def test_values(text: str, value: object) -> None:
    assert read_value(text) == value
    assert type(read_value(text)) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "__import__('os')",
            "1+1",
            "[1, [2]]",
            "[1",
            "1]",
            "(1,)",
            "1_0",
            "0x10",
            "\uff11",
            "true",
        ),
        *("[" * 50, "9" * 20, "1e99999", "[" + "1, " * 2000 + "1]", "[" + "1, " * 300 + "1]"),
        *("x" * 5000, "[,]x", "[one]"),
    ],
)
def test_other_texts_are_not_read(text: str) -> None:
    assert read_value(text) is UNREADABLE


def test_values_that_are_no_text_are_not_read() -> None:
    assert read_values('[1,null,{"a":2},["3"],"4"]') == (*[UNREADABLE] * 4, 4)
    assert read_values("7") == ()


def test_an_empty_shape_is_a_tensor_only_if_it_has_a_type() -> None:
    args = Arguments(((), (), ()), ("float", "", "Scalar"))
    assert args.tensor(0) == Tensor((), None, FLOAT)
    assert [args.tensor(place) for place in (1, 2, 3, None)] == [None] * 4


def test_places_that_are_not_there_hold_nothing() -> None:
    args = Arguments()
    found = [args.tensor(0), args.tensors(0), args.boolean(0), args.integer(0), args.type_at(0)]
    assert found == [None] * 5
    assert args.value(0) is args.value(None) is UNREADABLE


def test_integers_are_repeated_or_counted() -> None:
    args = Arguments(values=((2, 3), (4,), 5, (True, True), "x", (1, 2.0)))  # type: ignore[arg-type]
    assert args.integers(0, 2) == (2, 3)
    assert args.integers(0, 3) is None
    assert args.integers(1, 3) == (4, 4, 4)
    assert args.integers(2, 2) == (5, 5)
    assert [args.integers(place, 2) for place in (3, 4, 5, 6)] == [None] * 4


def test_a_truth_value_is_no_integer() -> None:
    args = Arguments(values=(True, 1))
    assert (args.integer(0), args.integer(1)) == (None, 1)
    assert (args.boolean(0), args.boolean(1)) == (True, None)


@pytest.mark.parametrize(
    ("shape", "strides", "stored"),
    [
        ((4, 5), (5, 1), 20),
        ((4, 5), (0, 1), 5),  # expanded rows
        ((4, 5), (0, 0), 1),
        ((4, 5), None, 20),
        ((4, 5), (1, 1), 8),  # windows that overlap: 1 + 3 + 4
        ((4, 0), (0, 1), 0),
        ((), (), 1),
    ],
)
def test_stored_elements(shape: Any, strides: Any, stored: int) -> None:
    assert Tensor(shape, strides, FLOAT).stored == stored
    assert Tensor(shape, strides, FLOAT).bytes == 4 * stored
    assert Tensor(shape, strides).bytes is None


def test_strides_that_do_not_fit_the_shape_are_not_used() -> None:
    args = Arguments(((2, 3),), ("float",), ((3,),))
    assert args.tensor(0) == Tensor((2, 3), None, FLOAT)


@pytest.mark.parametrize(
    ("operands", "result"),
    [
        (["c10::BFloat16", "float"], "float"),
        (["c10::BFloat16", "c10::Half"], "float"),
        (["long int", "c10::Half"], "c10::Half"),
        (["bool", "int", "long int"], "long int"),
        (["double", "c10::complex<float>"], "c10::complex<float>"),
        (["long"], "long int"),
    ],
)
def test_promotion(operands: list[str], result: str) -> None:
    types = [element_type(name) for name in operands]
    assert promoted([one for one in types if one]) == element_type(result)
    assert promoted([]) is None


def test_unknown_types_are_unknown() -> None:
    assert [element_type(name) for name in ("", "Scalar", "TensorList", "Float")] == [None] * 4
    numbered = Arguments(values=(99, -1))
    assert numbered.type_at(0) is numbered.type_at(1) is None
