"""Recorded arguments of any JSON type: what is no list of that kind is unknown, in all rooms."""

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SAMPLES, shared_file
from traceflops import analyze, read
from traceflops.findings.memory_kernels import _converts

ODD: tuple[Any, ...] = (
    *(7, -1, 0.5, True, "x", "", {}, {"a": [1]}, [], [1, 2], [[]], [[1, 2], 3], [True, None]),
    *([[2, 3], "x"], ["float", 7], [["float"], {"a": 1}], "[[2, 3], [3, 4]]", [[[[1]]]]),
    *([[-5, 2**62]], [[2**62, 2**62], [2**62, 2**62]], [10**40], ["9" * 5000, "9" * 30]),
)
ARGUMENTS = (
    *("Input Dims", "Input type", "Input Strides", "Concrete Inputs"),
    *("Collective name", "In msg nelems", "dtype", "Group size", "Process Group Name"),
    *("Process Group Ranks", "Process Group Description", "Seq", "grid", "block", "stream"),
    *("bytes", "correlation", "External id", "Sequence number", "kernel_file", "Python id"),
)


def document() -> dict[str, Any]:
    path = SAMPLES / "gpt_ddp_4rank" / "rank0.json.gz"
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def test_arguments_of_other_types_are_unknown(tmp_path: Path) -> None:
    found, pairs = document(), itertools.cycle(itertools.product(ODD, ARGUMENTS))
    for event in found["traceEvents"]:
        if isinstance(event.get("args"), dict):
            value, name = next(pairs)
            event["args"][name] = value
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(found), encoding="utf-8")
    trace = read(path)
    lists = (json.loads(text) for text in trace.ops["input_dims"].unique().to_pylist() if text)
    assert {type(one) for one in lists} == {list}
    analyze(trace).save(tmp_path / "page.html")
    assert (tmp_path / "page.html").exists()


@pytest.mark.parametrize("types", ODD)
def test_types_of_a_copy_that_are_none_convert_nothing(types: Any) -> None:
    assert not _converts(json.dumps(types))


def test_types_of_a_copy_that_differ_convert() -> None:
    assert _converts('["float", "c10::Half", "Scalar"]')


def test_types_that_are_no_list_are_not_recorded() -> None:
    path = shared_file("cases/hostile/input-type-not-a-list/f1.json")
    trace = read(path)
    assert trace.ops["input_types"].null_count == trace.ops.num_rows
    assert analyze(trace).total.activities > 0
