"""Totals by name: many kernels as short as a launch, and elementwise ones with much time."""

from typing import Any

import pytest

import traceflops as tf
from tests.build import trace_of

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >"


def found(*rows: tuple[str, int, int]) -> list[Any]:
    """Return the findings of kernels by name, number of launches, and mean time in ns."""
    totals = [
        {"name": name, "count": count, "total_ns": count * mean_ns} for name, count, mean_ns in rows
    ]
    findings = tf.analyze(trace_of(devices=[], totals=totals)).findings
    return [one for one in findings if one.rule in ("tiny-kernels", "elementwise-kernels")]


def test_most_launches_as_short_as_launching_are_told_by_what_they_do() -> None:
    [told] = found((GEMM, 1_000, 60_000), (ADD, 9_000, 4_000), ("odd_kernel", 1_000, 4_000))
    assert told.sentence == (
        "10,000 launches (90.9 % of all) take 4.00 µs on average, hardly longer than launching "
        "them. They have 40.0 % of the GPU time, mostly elementwise kernels (36.0 %). The gaps "
        "between them are not recorded."
    )
    assert "torch.compile" in told.remedy
    [products] = found((GEMM, 2_000, 6_000))
    assert products.remedy.startswith("Batch them")


def test_what_is_less_than_half_is_not_what_they_mostly_do() -> None:
    [told] = found(("odd_kernel", 8_500, 4_000), (GEMM, 1_500, 4_000))
    assert "mostly" not in told.sentence
    assert "one call for many small products" not in told.remedy


@pytest.mark.parametrize(
    ("launches", "mean_ns", "rules"),
    [
        (900, 4_000, []),  # few
        (2_000, 10_000, ["elementwise-kernels"]),
        (2_000, 1_000, []),  # little time
    ],
)
def test_others_are_told_only_where_elementwise_work_has_much_time(
    launches: int, mean_ns: int, rules: list[str]
) -> None:
    told = found((GEMM, 100, 300_000), (ADD, launches, mean_ns))
    assert [one.rule for one in told] == rules
