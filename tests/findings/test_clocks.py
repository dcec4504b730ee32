"""The same kernels slower in later steps: when that is a finding, and what mending it gains."""

from collections.abc import Callable

import pytest

import traceflops as tf
from tests.build import launched, step_marks, trace_of
from traceflops.findings.finding import Finding

KERNELS = {"sm90_gemm_bf16_a": 200_000, "sm90_gemm_bf16_b": 300_000, "sm90_gemm_bf16_c": 500_000}
STEPS = 8


def run(
    times: Callable[[int, str], float], grid: Callable[[int], int] = lambda _: 8
) -> tf.Analysis:
    """Return steps of three products of 1 ms, each so many times as long; one more is not used."""
    works, marks, sizes, at = [], [], [], 1_000_000
    for step in range(STEPS + 1):
        marks.append((f"ProfilerStep#{step}", 10_000 * step, 9_000))  # the host is far ahead
        for place, (name, ns) in enumerate(KERNELS.items()):
            dur = round(ns * times(step, name))
            works.append((name, marks[-1][1] + 100 * (place + 1), at, dur))
            sizes.append([grid(step), 1, 1])
            at += dur
    rows = launched(*works)
    rows["activities"] = [
        {**one, "grid": size} for one, size in zip(rows["activities"], sizes, strict=True)
    ]
    return tf.analyze(trace_of(**rows, marks=step_marks(*marks)))


def clocks(analysis: tf.Analysis) -> list[Finding]:
    return [one for one in analysis.diagnosis if one.rule == "clocks"]


def test_products_that_get_slower_are_told_with_the_gain_of_the_first_speed() -> None:
    """The last four of eight steps take 1.2 ms instead of 1 ms: 0.1 ms more per step."""
    (found,) = clocks(run(lambda step, _: 1.2 if step >= 4 else 1.0))
    assert found.sentence == (
        "The same matrix products take 20.0 % longer in the third quarter of the steps than in the "
        "first."
    )
    assert found.share == pytest.approx(0.1 / 1.1)
    assert found.gain is not None
    assert found.gain.low_ns <= 100_000 <= found.gain.high_ns + 200  # of four digits
    assert "nvidia-smi" in found.remedy
    assert found.owner == "cluster"
    assert [(row.name, row.count) for row in found.rows] == [("sm90_gemm_bf16_c", 8)]


@pytest.mark.parametrize(
    "times",
    [
        lambda step, _: 1.02 if step >= 4 else 1.0,  # less than 5 %
        lambda step, _: 1.2 if step < 2 else 1.0,  # faster, not slower
        lambda step, name: 1.5 if step >= 4 and name.endswith("a") else 1.0,  # one kernel alone
        lambda step, _: 1.2 if step % 2 else 1.0,  # as often early as late
    ],
)
def test_other_changes_of_speed_are_no_clocks(times: Callable[[int, str], float]) -> None:
    assert clocks(run(times)) == []


def test_other_shapes_are_other_kernels() -> None:
    assert clocks(run(lambda step, _: 1.2 if step >= 4 else 1.0, lambda step: 8 + step // 4)) == []
