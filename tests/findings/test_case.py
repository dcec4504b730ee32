"""Figures that rules share, of cases made by hand."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.build import launched, trace_of
from traceflops import analyze
from traceflops.findings.case import NO_RULES, program_of, program_of_trace, without_work_ns
from traceflops.findings.late_rank import rank_balance
from traceflops.findings.slow_links import slow_link_findings
from traceflops.ranks.link_rates import LinkRate


def test_time_without_work_is_that_of_the_busiest_stream() -> None:
    """Of 1,000 ns one stream works 500, another 300, and communication is no work."""
    run = launched(
        ("gemm", 0, 1_000, 400),
        ("ncclDevKernel_AllReduce_Sum", 10, 1_200, 700),
        ("gemm", 20, 1_900, 100),
        ("gemm", 30, 1_500, 300),
    )
    for row, stream in zip(run["activities"], (7, 20, 7, 8), strict=True):
        row["stream"] = stream
    analysis: Any = analyze(trace_of(**run))
    assert analysis.total.components.window_ns == 1_000
    assert without_work_ns(analysis) == 500


@pytest.mark.parametrize(("bubble_ns", "gain"), [(300, (67, 225)), (150, (50, 112))])
def test_of_a_pipeline_no_more_is_gained_than_its_bubble(
    bubble_ns: int, gain: tuple[int, int]
) -> None:
    """Two stages of 1,000 ns of work, whose schedule allows a bubble of a fifth of it.

    With 4 times as many microbatches a quarter of the bubble is left, with 2 times two thirds of
    what is inherent.
    """
    ranks = [SimpleNamespace(rank=at, bubble_ns=bubble_ns, busy_ns=1_000) for at in (0, 1)]
    pipeline = SimpleNamespace(
        ideal=0.2, steps=1, ranks=ranks, micro_batches=4, bubble=0.3, stages=2
    )
    case: Any = SimpleNamespace(
        ranks=SimpleNamespace(pipeline=pipeline, experts=list, span_ns=1),
        windows_used=2,
        program=frozenset(),
        total=SimpleNamespace(components=SimpleNamespace(window_ns=2 * (1_000 + bubble_ns))),
        finding_rules=NO_RULES,
    )
    (found,) = rank_balance(case)
    assert found.gain is not None
    assert (found.gain.low_ns, found.gain.high_ns) == gain
    assert found.share == pytest.approx(bubble_ns / (1_000 + bubble_ns))


def test_of_slow_links_that_which_costs_most_is_named() -> None:
    def slow(first: int, bus: float, lost_ns: int) -> LinkRate:
        members, at = (first, first + 1), bus
        return LinkRate(
            *("allreduce", "dp", None, 2, members, 10**6, 20, at, at, at, at, None, None),
            slow=True,
            usual=100.0,
            lost_ns=lost_ns,
        )

    rates = [slow(0, 20.0, 100), slow(2, 40.0, 200), slow(2, 50.0, 150), slow(4, 10.0, 250)]
    ranks: Any = SimpleNamespace(
        rates=lambda: rates,
        span_ns=1_000,
        comparable=True,
        alignment=SimpleNamespace(residual_p95_ns=0),
    )
    (found,) = slow_link_findings(ranks, frozenset())
    assert found.share == pytest.approx(0.35)
    assert found.sentence.startswith("The link of ranks 2, 3 is slow: allreduce runs at 40 GB/s")


@pytest.mark.parametrize(
    ("format_", "category", "known"),
    [
        ("pytorch", "xpu_runtime", {"torch", "ml", "other-gpu"}),
        ("pytorch", "cuda_runtime", {"torch", "ml"}),
        ("rocprof", "", {"amd"}),
    ],
)
def test_of_a_summary_the_accelerator_is_known_too(
    format_: str, category: str, known: set[str]
) -> None:
    source = SimpleNamespace(format=format_, event_counts={category: 3})
    case: Any = SimpleNamespace(has_events=False, source=source)
    assert program_of(case) == known


@pytest.mark.parametrize(
    ("device", "is_radeon"),
    [
        ({"compute_major": 11}, True),
        ({"architecture": "gfx1201"}, True),
        ({"compute_major": 9, "architecture": "gfx942"}, False),
        ({}, False),
    ],
)
def test_a_radeon_is_told_from_what_rocprof_compute_profiles(
    device: dict[str, Any], is_radeon: bool
) -> None:
    run = launched(("kernel", 0, 100, 400))
    for call in run["calls"]:
        call["name"] = "hipLaunchKernel"
    trace = trace_of(**run, devices=[{"process": 0, "local_id": 0, **device}])
    assert ("radeon" in program_of_trace(trace)) == is_radeon
