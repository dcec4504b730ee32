"""Totals by name: many kernels as short as a launch, and elementwise ones with much time."""

from typing import Any

import pytest
from msgspec.structs import replace

import traceflops as tf
from tests.build import trace_of

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >"


RULES = ("tiny-kernels", "elementwise-kernels", "main-kernel")


def analysed(*rows: tuple[str, int, int], tool: str = "made", **others: Any) -> Any:
    """Return the analysis of kernels by name, number of launches, and mean time in ns."""
    totals = [
        {"name": name, "count": count, "total_ns": count * mean_ns} for name, count, mean_ns in rows
    ]
    totals += others.get("totals", [])
    trace = trace_of(devices=[], totals=totals)
    return tf.analyze(replace(trace, source=replace(trace.source, format=tool)))


def found(*rows: tuple[str, int, int]) -> list[Any]:
    """Return the findings of kernels by name, number of launches, and mean time in ns."""
    return [one for one in analysed(*rows).findings if one.rule in RULES]


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
        (900, 4_000, ["main-kernel"]),  # few
        (2_000, 10_000, ["elementwise-kernels"]),
        (2_000, 1_000, ["main-kernel"]),  # little time
    ],
)
def test_others_are_told_only_where_elementwise_work_has_much_time(
    launches: int, mean_ns: int, rules: list[str]
) -> None:
    told = found((GEMM, 100, 300_000), (ADD, launches, mean_ns))
    assert [one.rule for one in told] == rules


@pytest.mark.parametrize("alone", [4_999, 5_000])
def test_kernels_that_graphs_replay_are_not_launched_one_by_one(alone: int) -> None:
    """Half of the kernels at least are not launched alone: then the remedy is in place."""
    calls = [
        {"kind": "call", "name": name, "count": count, "total_ns": count * 9_000}
        for name, count in (("cudaGraphLaunch_v10000", 100), ("cudaLaunchKernel", alone))
    ]
    analysis = analysed((ADD, 10_000, 4_000), totals=calls)
    are_replayed = alone < 5_000
    codes = [part.code for part in analysis.verdict.parts]
    assert ("verdict.replayed-totals" in codes) is are_replayed
    assert ("tiny-kernels" in [one.rule for one in analysis.findings]) is not are_replayed


LOOP = "nvkernel__ZN16_INTERNAL_2_cg_c5solveEPiS0__F1L{}_22"


@pytest.mark.parametrize(
    ("tool", "profiler"),
    [("nsys-stats", "Nsight Compute (ncu --set full)."), ("rocprof-v3", "rocprof-compute.")],
)
def test_a_kernel_with_much_of_the_time_is_to_be_profiled(tool: str, profiler: str) -> None:
    rows = [(LOOP.format(line), 1_000, us * 1_000) for line, us in ((357, 900), (401, 100))]
    analysis = analysed(*rows, tool=tool)
    told = analysis.findings[0]
    assert told.sentence == (
        "solve_L357 takes 90.0 % of the GPU time, in 1,000 launches (mean 900 µs)."
    )
    assert told.remedy == f"What limits it is unknown: profile with {profiler}"


ALLOCATION = {"kind": "call", "name": "cudaMalloc", "count": 1, "total_ns": 2_000_000_000}


@pytest.mark.parametrize(
    ("name", "mean_ns", "totals"),
    [
        ("solve", 9_000, []),  # hardly longer than a launch
        ("solve", 900_000, [{"name": "other", "count": 900, "total_ns": 900 * 900_000}]),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 900_000, []),  # it waits for other ranks
        ("void at::native::reduce_kernel<512, 1>(float*)", 900_000, []),  # a library's
        ("solve", 900_000, [ALLOCATION]),  # start-up takes longer
        ("", 900_000, []),  # of unknown name
    ],
)
def test_others_are_not(name: str, mean_ns: int, totals: list[Any]) -> None:
    assert "main-kernel" not in {
        one.rule for one in analysed((name, 900, mean_ns), totals=totals).findings
    }
