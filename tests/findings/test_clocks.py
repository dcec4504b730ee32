"""The same kernels slower in later steps: when that is a finding, and what mending it gains."""

import re
from collections.abc import Callable

import pytest
from msgspec.structs import replace

import traceflops as tf
from sample_traces.config import RunConfig
from tests.build import launched, step_marks, trace_of
from tests.conftest import some
from tests.findings.test_diagnosis import analysis_of, step_ns
from traceflops.findings.finding import Finding

KERNELS = {"sm90_gemm_bf16_a": 200_000, "sm90_gemm_bf16_b": 300_000, "sm90_gemm_bf16_c": 500_000}
STEPS = 8


def run(
    times: Callable[[int, str], float],
    grid: Callable[[int], int] = lambda _: 8,
    own_ns: int = 0,
    **device: int,
) -> tf.Analysis:
    """Return steps of three products of 1 ms, each so many times as long; one more is not used.

    Each step may have one more product, of a name that no other step has.
    """
    works, marks, sizes, at = [], [], [], 2_000_000
    for step in range(STEPS + 1):
        marks.append((f"ProfilerStep#{step}", 10_000 * step, 9_000))  # the host is far ahead
        own = {f"sm90_gemm_bf16_of_{step}": own_ns} if own_ns else {}
        for place, (name, ns) in enumerate((KERNELS | own).items()):
            dur = round(ns * times(step, name))
            works.append((name, marks[-1][1] + 100 * (place + 1), at, dur))
            sizes.append([grid(step), 1, 1])
            at += dur
    rows = launched(*works)
    rows["activities"] = [
        {**one, "grid": size} for one, size in zip(rows["activities"], sizes, strict=True)
    ]
    return tf.analyze(trace_of(**rows, marks=step_marks(*marks), devices=[device]))


def clocks(analysis: tf.Analysis) -> list[Finding]:
    return [one for one in analysis.findings if one.rule == "clocks"]


def test_products_that_get_slower_are_told_with_the_gain_of_the_first_speed() -> None:
    """The last four of eight steps take 1.2 ms instead of 1 ms: 0.1 ms more per step."""
    (found,) = clocks(run(lambda step, _: 1.2 if step >= 4 else 1.0))
    assert found.sentence == (
        "The same GEMMs and convolutions take 20.0 % longer in the third quarter of the steps "
        "than in the first."
    )
    assert found.share == pytest.approx(0.1 / 1.1)
    assert found.gain is not None
    assert found.gain.low_ns <= 100_000 <= found.gain.high_ns + 200  # of four digits
    assert "nvidia-smi" in found.remedy
    assert found.owner == "cluster"
    assert [(row.name, row.count) for row in found.rows] == [("sm90_gemm_bf16_c", 8)]
    (of_amd,) = clocks(run(lambda step, _: 1.2 if step >= 4 else 1.0, warp_size=64))
    assert "amd-smi" in of_amd.remedy


def test_inputs_of_several_sizes_count_by_their_time() -> None:
    """Every second step has a fifth of the work: 4.8 ms in all, of which half takes 1.2 times."""
    (found,) = clocks(run(lambda step, _: (1.2 if step >= 4 else 1.0) * (0.2 if step % 2 else 1.0)))
    assert found.share == pytest.approx(0.48 / 5.28)


@pytest.mark.parametrize(
    "times",
    [
        lambda step, _: 1.02 if step >= 4 else 1.0,  # less than 5 %
        lambda step, _: 1.2 if step < 2 else 1.0,  # faster, not slower
        lambda step, name: 1.5 if step >= 4 and name.endswith("a") else 1.0,  # one kernel alone
        lambda step, _: 1.2 if step % 2 else 1.0,  # as often early as late
        lambda step, name: 1.2 if step >= 4 and not name.endswith("b") else 1.0,  # 72 % of the time
    ],
)
def test_other_changes_of_speed_are_no_clocks(times: Callable[[int, str], float]) -> None:
    assert clocks(run(times)) == []


@pytest.mark.parametrize(("own_ns", "found"), [(400_000, True), (1_500_000, False)])
def test_half_of_the_time_must_be_of_kernels_that_run_in_all_quarters(
    own_ns: int, found: bool
) -> None:
    slower = run(lambda step, name: 1.2 if step >= 4 and name in KERNELS else 1.0, own_ns=own_ns)
    assert bool(clocks(slower)) is found


def test_other_shapes_are_other_kernels() -> None:
    assert clocks(run(lambda step, _: 1.2 if step >= 4 else 1.0, lambda step: 8 + step // 4)) == []


@pytest.mark.parametrize(("percent", "buckets"), some([(115, 3), (100, 3), (150, 16)], 2))
def test_kernels_that_communication_slows_gain_what_they_take_alone(
    percent: int, buckets: int
) -> None:
    """The gain ends at what the same run is longer than without the slow-down.

    With many buckets mostly short products run wholly beside communication, and long ones alone.
    """
    config = RunConfig(
        seed=3,
        ranks=2,
        steps=6,
        layers=4,
        hidden=2048,
        vocab=4096,
        noise_permille=0,
        gradient_buckets=buckets,
        link_bytes_per_s=100_000_000_000,
    )
    plain, slowed = (
        analysis_of(replace(config, contention_percent=one), "1:4") for one in (100, percent)
    )
    found = [one for one in slowed.findings if one.rule == "beside-communication"]
    assert len(found) == (percent > 100)
    for one in found:
        told = re.search(r"take ([\d.]+) % longer", one.sentence)
        assert told is not None
        assert float(told[1]) == pytest.approx(percent - 100, abs=2)
        assert one.gain is not None
        truth = step_ns(slowed) - step_ns(plain)
        assert one.gain.low_ns == 0
        assert one.gain.high_ns == pytest.approx(truth, rel=0.03)
