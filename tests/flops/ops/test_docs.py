"""docs/flops.md names every op of the table, every reason and every part."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from tests.conftest import ROOT
from traceflops.flops.ops.table import RULES
from traceflops.flops.ops.vector import Elementwise
from traceflops.flops.ops.work import PartName, Reason

PAGE = (ROOT / "docs" / "flops.md").read_text(encoding="utf-8")
SHOWN = set(re.findall(r"`([^`\n]+)`", PAGE))
GRADIENT = re.compile(r"(?<=convolution_backward)_(input|weights?)$")


def test_every_op_is_named() -> None:
    names = [GRADIENT.sub("", name.removeprefix("aten::")) for name in RULES]
    assert [one for one in names if not {one, one.removesuffix("_")} & SHOWN] == []


def test_every_reason_is_explained() -> None:
    for reason in get_args(Reason):
        assert re.search(rf"^\| `{reason}` \|", PAGE, re.MULTILINE), reason


def test_every_part_is_mentioned() -> None:
    words = set(re.findall(r"[a-z_]+", PAGE))
    assert set(get_args(PartName)) - {"product", "input_grad", "weight_grad"} <= words


def test_no_op_is_named_that_the_table_lacks() -> None:
    known = {name.removeprefix("aten::") for name in RULES}
    known |= {name.removesuffix("_") for name in known}
    ops = {name for name in SHOWN if re.fullmatch(r"[A-Za-z_0-9]+(::[A-Za-z_0-9]+)?", name)}
    others = {*get_args(PartName), "groups", "_input", "_weight", "_weights", "_", "children"}
    others |= {"bf16", "fp16", "fp64", "fp8", "fp4", "int8"}
    assert ops - known - others == set()


@pytest.mark.parametrize("name", ["add", "gelu", "silu_backward", "addcmul", "where", "gt"])
def test_the_operations_per_element_are_those_of_the_table(name: str) -> None:
    formula = RULES[f"aten::{name}"].formula
    assert isinstance(formula, Elementwise)
    [row] = [line for line in PAGE.splitlines() if f"`{name}`" in line]
    _, names, counts, *_ = row.split("|")
    groups = [re.findall(r"`([^`]+)`", group) for group in names.split(";")]
    [place] = [at for at, group in enumerate(groups) if name in group]
    assert int(counts.split(";")[place]) == formula.per_element
