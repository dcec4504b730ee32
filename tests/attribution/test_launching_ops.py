"""What launched each kernel, and operators by device time: sums, names, modules, limits."""

from collections.abc import Sequence
from typing import Any

import pytest

import traceflops as tf
from tests.build import launched, step_marks, trace_of
from tests.conftest import analysis_of_sample
from traceflops.analysis.preparation import prepare
from traceflops.attribution.kernels import operators
from traceflops.attribution.launching_ops import launchers
from traceflops.table.trace import Trace

SAMPLE_NAMES = ("gpt_1rank.json.gz", "gpt_ddp_4rank", "torch_cpu_train.json.gz", "rocprofv3_json")
KERNEL = ("name", "kind", "top", "sub", "rule")


def ways(trace: Trace, **limits: int) -> list[dict[str, Any]]:
    return list(launchers(prepare(trace), **limits).to_pylist())


def module(name: str, start: int, dur: int) -> dict[str, Any]:
    return {"kind": "module", "name": f"nn.Module: {name}", "start_ns": start, "dur_ns": dur}


def op(name: str, start: int, dur: int, dims: str | None = None, **more: Any) -> dict[str, Any]:
    types = '["float"]' if dims else None
    found = {"name": name, "start_ns": start, "dur_ns": dur, "input_dims": dims}
    return found | {"input_types": types} | more


@pytest.mark.parametrize("sample", SAMPLE_NAMES)
def test_every_kernel_and_its_ways_add_up(sample: str) -> None:
    analysis = analysis_of_sample(sample)
    sums: dict[tuple[str, ...], list[int]] = {}
    for row in launchers(analysis.prepared, most=2).to_pylist():
        total = sums.setdefault(tuple(row[column] for column in KERNEL), [0, 0])
        total[0] += row["count"]
        total[1] += row["sum_ns"]
    expected = {
        tuple(row[column] for column in KERNEL): [row["count"], row["sum_ns"]]
        for row in analysis.kernels.to_pylist()
    }
    assert sums == expected


@pytest.mark.parametrize("sample", SAMPLE_NAMES)
def test_operators_and_what_no_operator_launched_add_up_to_the_kernels(sample: str) -> None:
    analysis = analysis_of_sample(sample)
    for most in (1_000, 3):
        found = operators(analysis.prepared, most)
        own = sum(found.table["sum_ns"].to_pylist())
        assert own + found.left_ns + found.unknown_ns == sum(analysis.kernels["sum_ns"].to_pylist())
    whole = operators(analysis.prepared)
    activities = sum(whole.table["activities"].to_pylist()) + whole.unknown_activities
    assert activities == sum(analysis.kernels["count"].to_pylist())


def nested(works: Sequence[tuple[str, int, int, int]]) -> Trace:
    """Return work launched by aten::mm inside aten::linear, and by a second aten::mm alone."""
    ops = [
        op("aten::linear", 0, 20),
        op("aten::mm", 5, 10, "[[2,3],[3,4]]"),
        op("aten::mm", 30, 10, "[[8,8],[8,8]]"),
    ]
    return trace_of(**launched(*works), ops=ops)


def test_operators_without_a_recorded_time_have_none() -> None:
    work = [{"name": "k", "start_ns": 50, "dur_ns": 10, "external_id": at} for at in (1, 2)]
    ops = [op("aten::add", 0, 5, external_id=1), op("aten::mul", 10, 0, external_id=2)]
    rows = operators(prepare(trace_of(activities=work, ops=ops))).table.to_pylist()
    assert {row["name"]: row["host_ns"] for row in rows} == {"aten::add": 5, "aten::mul": None}


def test_a_kernel_names_op_shapes_and_types_of_each_way() -> None:
    trace = nested([("gemm", 6, 100, 10), ("gemm", 31, 200, 30), ("gemm", 50, 300, 5)])
    first, second, third = ways(trace)
    assert (first["op"], first["shapes"], first["dtypes"]) == (
        "aten::mm",
        "[[8,8],[8,8]]",
        '["float"]',
    )
    assert (first["count"], first["sum_ns"], first["others"]) == (1, 30, 0)
    assert (second["shapes"], second["sum_ns"]) == ("[[2,3],[3,4]]", 10)
    # The last was launched outside all ops: only the call is known.
    assert (third["op"], third["call"], third["shapes"]) == (None, "launch", None)


def test_shapes_are_told_whole_however_many_there_are() -> None:
    dims = f"[[{','.join(f'[{1000 + i},1024]' for i in range(400))}]]"
    trace = trace_of(**launched(("adam", 2, 10, 5)), ops=[op("aten::_fused_adam_", 0, 5, dims)])
    assert [row["shapes"] for row in ways(trace)] == [dims]


def test_ways_beyond_the_limit_are_one_row_that_keeps_the_sums() -> None:
    works = [("gemm", 10 * i, 1_000 + 100 * i, 10 + i) for i in range(5)]
    ops = [op("aten::mm", 10 * i, 5, f"[[{i}]]") for i in range(5)]
    rows = ways(trace_of(**launched(*works), ops=ops), most=2)
    assert [row["sum_ns"] for row in rows] == [14, 13, 12 + 11 + 10]
    assert [row["others"] for row in rows] == [0, 0, 3]
    assert rows[2]["op"] is None
    assert rows[2]["count"] == 3


def test_kernels_beyond_the_limit_are_left_out() -> None:
    works = [(f"kernel{i}", 10 * i, 1_000 + 100 * i, 10 + i) for i in range(5)]
    found = launchers(prepare(trace_of(**launched(*works))), most_kernels=2)
    assert found["name"].to_pylist() == ["kernel4", "kernel3"]


def test_instances_of_a_module_are_one_way_and_steps_are_no_scope() -> None:
    works = [("gemm", 12, 100, 10), ("gemm", 32, 200, 10), ("gemm", 52, 300, 10)]
    marks = [
        *step_marks(("ProfilerStep#3", 0, 90), ("forward", 45, 20)),
        module("Net_0", 5, 38),
        module("Linear_1", 10, 10),
        module("Linear_2", 30, 10),
    ]
    rows = ways(trace_of(**launched(*works), marks=marks))
    told = {(row["scope"], row["is_module"], row["modules"], row["count"]) for row in rows}
    assert told == {("Net/Linear", True, 2, 2), ("forward", False, None, 1)}


def test_the_backward_pass_belongs_to_the_module_of_its_forward_op() -> None:
    ops = [
        op("aten::linear", 12, 6, sequence=7),
        op("MmBackward0", 60, 20, sequence=7, forward_thread=1, thread=2),
        op("aten::mm", 65, 10, thread=2),
    ]
    tables = launched(("forward_gemm", 13, 100, 10), ("backward_gemm", 66, 200, 30))
    tables["calls"][1]["thread"] = 2
    rows = ways(trace_of(**tables, ops=ops, marks=[module("Linear_0", 10, 10)]))
    told = {row["name"]: (row["scope"], row["backward"]) for row in rows}
    assert told == {"forward_gemm": ("Linear", False), "backward_gemm": ("Linear", True)}


def test_what_a_backward_node_computes_again_belongs_to_the_module_it_ran_in() -> None:
    ops = [
        op("aten::relu", 12, 2, sequence=7),
        op("ReluBackward0", 60, 20, sequence=7, forward_thread=1, thread=2),
        op("aten::conv2d", 65, 4, sequence=9, thread=2),
    ]
    tables = launched(("again", 66, 200, 10), ("backward", 75, 220, 30))
    for call in tables["calls"]:
        call["thread"] = 2
    marks = [module("ReLU_0", 10, 10), module("Conv2d_0", 62, 8) | {"thread": 2}]
    trace = trace_of(**tables, ops=ops, marks=marks)
    told = {row["name"]: (row["scope"], row["backward"]) for row in ways(trace)}
    assert told == {"again": ("Conv2d", False), "backward": ("ReLU", True)}
    asked = tf.analyze(trace).tables["activities"].select(["name", "module"]).to_pylist()
    assert {row["name"]: row["module"] for row in asked} == {"again": "Conv2d", "backward": "ReLU"}


def test_operators_count_themselves_once_and_what_is_inside_apart() -> None:
    trace = nested([("gemm", 6, 100, 10), ("gemm", 31, 200, 30), ("copy", 50, 300, 5)])
    found = operators(prepare(trace))
    rows = {row["name"]: row for row in found.table.to_pylist()}
    assert list(rows) == ["aten::mm", "aten::linear"]
    mm, linear = rows["aten::mm"], rows["aten::linear"]
    assert (mm["sum_ns"], mm["total_ns"], mm["activities"], mm["calls"]) == (40, 40, 2, 2)
    assert (linear["sum_ns"], linear["total_ns"], linear["activities"]) == (0, 10, 0)
    assert (mm["host_ns"], linear["host_ns"], linear["calls"]) == (20, 20, 1)
    assert (found.unknown_ns, found.unknown_activities) == (5, 1)
    span = 305 - 100
    assert mm["share"] == 40 / span


def test_an_operator_inside_one_of_its_name_does_not_count_twice() -> None:
    ops = [op("aten::mm", 0, 20), op("aten::mm", 5, 10), op("aten::mm", 30, 10)]
    works = [("gemm", 6, 100, 10), ("gemm", 31, 200, 30)]
    (row,) = operators(prepare(trace_of(**launched(*works), ops=ops))).table.to_pylist()
    assert (row["sum_ns"], row["total_ns"], row["host_ns"]) == (40, 40, 30)


def test_long_texts_are_cut_and_kernel_names_are_whole() -> None:
    name, dims = "k" * 9_000, "[[" + "1," * 5_000 + "1]]"
    trace = trace_of(**launched((name, 6, 100, 10)), ops=[op("o" * 9_000, 5, 10, dims)])
    (row,) = ways(trace)
    assert row["name"] == name
    assert len(row["op"]) == 300
    # Shapes are JSON, which half of is none: what shows them cuts them by whole shapes.
    assert row["shapes"] == dims
    assert row["op"].endswith("…")


def test_without_calls_and_without_anything() -> None:
    activities = [{"name": "gemm", "start_ns": 100, "dur_ns": 10}]
    (row,) = ways(trace_of(activities=activities))
    assert (row["op"], row["call"], row["scope"], row["sum_ns"]) == (None, None, None, 10)
    assert ways(trace_of()) == []
    assert operators(prepare(trace_of())).table.num_rows == 0


@pytest.mark.parametrize(("longest", "mean"), [(11, 10), (12, 11), (14, 11)])
def test_the_mean_of_kernels_is_rounded(longest: int, mean: int) -> None:
    """Three kernels of 31, 32 and 34 ns."""
    works = [("k", 100 * at, 100 * at + 50, ns) for at, ns in enumerate((10, 10, longest))]
    (row,) = tf.analyze(trace_of(**launched(*works))).kernels.to_pylist()
    assert (row["mean_ns"], row["min_ns"], row["max_ns"]) == (mean, 10, longest)
