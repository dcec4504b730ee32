"""Training mode where nothing trains: told of dropout that draws and of norms with statistics."""

from typing import Any

import pytest

import traceflops as tf
from tests.build import trace_of
from traceflops.reports.view.findings import opening

DIMS = "[[8,64,9,9],[64],[64],[64],[64],[],[],[]]"
TYPES = '["float","float","float","float","float","Scalar","Scalar","Scalar"]'


def op(name: str, start: int, dur: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "start_ns": start, "dur_ns": dur, **more}


def norm(training: str, dims: str = DIMS, name: str = "aten::native_batch_norm") -> dict[str, Any]:
    values = f'["","","","","","{training}","0.1","1e-05"]'
    return op(name, 600, 100, input_dims=dims, input_types=TYPES, concrete_inputs=values)


DROPOUT = [op("aten::dropout", 700, 300), op("aten::bernoulli_", 750, 100)]
NO_STATISTICS = DIMS.replace("[64],[64],[],", "[],[],[],")


def found(*ops: dict[str, Any]) -> list[Any]:
    analysis = tf.analyze(trace_of(devices=[], ops=[op("aten::mm", 0, 600), *ops]))
    return [one for one in analysis.findings if one.rule == "training-mode"]


def test_dropout_and_statistics_cost_at_most_their_time() -> None:
    [told] = found(norm("True"), *DROPOUT)
    assert told.gain is not None and (told.gain.low_ns, told.gain.high_ns) == (0, 400)
    assert told.confidence is not None and told.confidence.level == "medium"
    assert told.sentence == (
        "No backward pass is recorded, but dropout that draws random numbers and batch norm that "
        "computes the statistics of each batch take 40.0 % of the time."
    )
    assert "F.dropout" in told.remedy and "F.dropout" not in found(norm("True"))[0].remedy


def test_a_larger_part_with_a_remedy_of_its_own_comes_first() -> None:
    ms = 1_000_000
    work = [op("aten::_slow_conv2d_forward", at * ms, 3 * ms) for at in (0, 3)]
    work.append({**norm("True"), "start_ns": 6 * ms, "dur_ns": 2 * ms})
    analysis = tf.analyze(trace_of(devices=[], ops=work))
    opened = opening(analysis)
    assert opened.title.startswith("On the CPU, aten::_slow_conv2d_forward takes 75.0 %")
    assert opened.rest.endswith(
        "Also: the model runs in training mode (saves at most 2.00 ms of 8.00 ms)."
    )


@pytest.mark.parametrize(
    "others",
    [
        [norm("False")],
        [norm("True", NO_STATISTICS)],  # it has no others to use
        DROPOUT[:1],
        [norm("True"), op("autograd::engine::evaluate_function: AddBackward0", 900, 9)],
    ],
)
def test_what_is_of_inference_or_trains_is_not_told(others: list[dict[str, Any]]) -> None:
    assert not found(*others)


@pytest.mark.parametrize(
    ("counted", "is_told"),
    [
        ('["__int64","__int64","Scalar"]', True),
        ('["long long","long long","Scalar"]', True),
        ('["float","float","Scalar"]', False),
    ],
)
def test_a_count_of_batches_before_each_norm_tells_training_mode(
    counted: str, *, is_told: bool
) -> None:
    """The arguments of the norm are not recorded, only their shapes."""
    add = op("aten::add_", 590, 5, input_dims="[[],[],[]]", input_types=counted)
    outer = op("aten::batch_norm", 600, 100, input_dims=DIMS, input_types=TYPES)
    inner = op("aten::native_batch_norm", 610, 80, input_dims=DIMS, input_types=TYPES)
    told = found(add, outer, inner)
    assert [(one.rule, one.gain) for one in told] == [("training-mode", None)] * is_told


@pytest.mark.parametrize(("of_skip", "is_told"), [(560, True), (300, False)])
def test_without_shapes_an_addition_before_each_norm_counts_its_batches(
    of_skip: int, *, is_told: bool
) -> None:
    """Two norms: an addition in place is right before each, or elsewhere (a skip connection)."""
    add = op("aten::add_", 500, 5)
    skip = op("aten::add_", of_skip, 9)
    norms = [op("aten::batch_norm", at, 40) for at in (510, 570)]
    inner = [op("aten::native_batch_norm", at, 36) for at in (512, 572)]
    told = found(op("aten::conv2d", 250, 40), add, skip, *norms, *inner)
    assert bool(told) == is_told


def test_operators_that_launch_work_of_a_gpu_tell_no_gain() -> None:
    [told] = found(norm("True", name="aten::cudnn_batch_norm"))
    assert (told.gain, told.severity) == (None, "low")
