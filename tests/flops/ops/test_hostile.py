"""Texts of anybody's making: nothing raises, and what is known keeps its promises."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.build import table_of
from tests.conftest import examples
from tests.flops.ops.made import op
from traceflops.flops.ops.count import count_ops
from traceflops.flops.ops.table import RULES
from traceflops.flops.ops.work import NoteCode, Unknown

SIZES: st.SearchStrategy[object] = st.one_of(
    st.integers(0, 9),
    st.sampled_from([-1, 2**31, 2**62, 2**63 - 1, 2**63, 10**30, 1.5, True, None, "3", [], {}]),
)
SHAPES = st.lists(SIZES, max_size=6)
DIMS = st.lists(SHAPES | st.lists(SHAPES, max_size=3) | SIZES, max_size=12)
TYPES: st.SearchStrategy[Any] = st.lists(
    st.sampled_from(["float", "c10::BFloat16", "", "Scalar", "TensorList", "long int", "?", None]),
    max_size=12,
)
NUMBERS = st.integers(-(2**70), 2**70) | st.floats() | st.booleans() | st.none()
VALUES = st.lists(
    st.sampled_from(
        ["", "True", "False", "1", "0", "-1", "[1, 1]", "[2]", "[0, 0]", "[True, False]"]
    )
    | NUMBERS.map(str)
    | st.lists(NUMBERS, max_size=3).map(str)
    | st.text(max_size=9),
    max_size=18,
)


@settings(max_examples=examples(300))
@given(st.data())
def test_no_arguments_whatever_raise(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(RULES)))
    row = op(
        name,
        data.draw(DIMS),
        data.draw(TYPES),
        data.draw(VALUES),
        data.draw(DIMS),
    )
    check(row)


@settings(max_examples=examples(100))
@given(st.sampled_from(sorted(RULES)), st.lists(st.text(max_size=40), min_size=4, max_size=4))
def test_no_texts_whatever_raise(name: str, texts: list[str]) -> None:
    columns = ("input_dims", "input_types", "input_strides", "concrete_inputs")
    check({**op(name, None), **dict(zip(columns, texts, strict=True))})


@pytest.mark.parametrize(
    "dims",
    [
        "[" * 50_000,
        "[[" + "9" * 30_000 + "]]",
        "[[" + ",".join(["2"] * 30_000) + "]]",
        "[" + ",".join(["[3,3]"] * 30_000) + "]",
        "[[" + ",".join(["[3,3]"] * 30_000) + "],[]]",
        '[{"a":' * 1000,
    ],
)
def test_long_and_deep_texts(dims: str) -> None:
    for name in ("aten::mm", "aten::add", "aten::cat", "aten::_fused_adam_", "aten::convolution"):
        check({**op(name, None), "input_dims": dims, "concrete_inputs": dims})


@settings(max_examples=examples(300))
@given(st.data())
def test_plausible_arguments_keep_the_promises(data: st.DataObject) -> None:
    """Small shapes in every place: whatever is known, bounds and counts are in order."""
    name = data.draw(st.sampled_from(sorted(RULES)))
    rank = data.draw(st.integers(1, 5))
    shape = st.lists(st.integers(0, 4), min_size=rank, max_size=rank)
    dims = data.draw(st.lists(shape | st.just([]), min_size=3, max_size=12))
    values = data.draw(
        st.lists(
            st.sampled_from(["", "True", "False", "1", "2", "[1, 1]", "[0]", "[True, True, True]"]),
            min_size=12,
            max_size=18,
        )
    )
    check(op(name, dims, "float", values))


def check(row: dict[str, Any]) -> None:
    """Check what holds for the result of every op."""
    work = count_ops(table_of("ops", [row]))
    for one in work.works[1:]:
        if isinstance(one, Unknown):
            continue
        assert 0 <= one.at_least <= one.flops < 2**63
        assert all(0 <= part.at_least <= part.flops for part in one.parts)
        assert one.min_bytes is None or 0 <= one.min_bytes < 2**63
        assert one.vector_flops is None or 0 <= one.vector_flops < 2**63
        assert set(one.notes) <= {*get_args(NoteCode)}
    assert len(work.works) == len(work.rules) == len(work.flops) == len(work.min_bytes)
