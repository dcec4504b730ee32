"""Nested operators and ranges of CPU programs tell of broken graphs and of work done again."""

from typing import Any

import pytest

from tests.findings.test_cpu_program import MS, op, said


def region(name: str, start: int, dur: int) -> dict[str, Any]:
    return {"name": f"Torch-Compiled Region: {name}", "start_ns": start, "dur_ns": dur}


@pytest.mark.parametrize("is_broken", [True, False])
def test_compiled_regions_inside_others_follow_graph_breaks(*, is_broken: bool) -> None:
    inner = [region("1/0", MS, MS), region("1/0", 3 * MS, MS)] * is_broken
    sentence = said(
        op("mm", MS, MS), op("mm", 3 * MS, MS), marks=[region("0/0", 0, 5 * MS), *inner]
    )
    assert ("1 call of it runs 2 more graphs" in sentence) == is_broken


@pytest.mark.parametrize(
    ("outer", "dims", "is_told"),
    [
        ("linear", "[[8, 4], [2, 4]]", True),
        ("linear", "[[8, 2], [4, 2]]", False),  # of a gradient
        ("mm", "[[8, 4], [2, 4]]", False),
    ],
)
def test_a_forward_pass_inside_the_backward_pass_is_computed_again(
    outer: str, dims: str, *, is_told: bool
) -> None:
    node = {**op("", 5 * MS, 5 * MS), "name": "autograd::engine::evaluate_function: MulBackward0"}
    forward = [op(outer, 0, 5 * MS, input_dims="[[8, 4], [2, 4]]"), op("addmm", 1, 5 * MS - 1)]
    inside = [op(outer, 6 * MS, 2 * MS, input_dims=dims), op("addmm", 6 * MS + 1, 2 * MS - 1)]
    sentence = said(*forward, node, *inside)
    assert ("computes the forward pass again, in 20.0 %" in sentence) == is_told


@pytest.mark.parametrize(("every", "is_told"), [(2, True), (1, False)])
def test_a_range_with_most_of_the_time_in_some_steps_is_told(every: int, *, is_told: bool) -> None:
    marks: list[dict[str, Any]] = []
    for step in range(6):
        row = {"start_ns": 10 * step * MS, "dur_ns": 10 * MS}
        marks.append({"name": f"ProfilerStep#{step}", **row})
        if step % every == 0:
            held = {"start_ns": row["start_ns"] + 1, "dur_ns": 9 * MS}
            marks.append({"name": "validate", "kind": "annotation", **held})
    work = [op("mm", 10 * step * MS + 2, 8 * MS) for step in range(6)]
    sentence = said(*work, marks=marks)
    assert ("validate, which runs in" in sentence) == is_told


@pytest.mark.parametrize(
    ("name", "by", "told"),
    [
        ("pure_callback.3", "xplane", "leaves the compiled code for Python"),
        ("fusion.3", "xplane", "fusion.3 takes 100.0 % of the time. This trace"),
        ("quantized::linear_prepack", "pytorch", "Packing weights is set-up"),
        ("aten::sort", "pytorch", "torch.topk"),
        ("aten::im2col", "pytorch", "conv2d"),
    ],
)
def test_programs_can_do_without_some_operators(name: str, by: str, told: str) -> None:
    assert told in said(*({**op("", at * MS, MS), "name": name} for at in range(4)), by=by)
