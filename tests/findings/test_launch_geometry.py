"""Kernels whose blocks leave most of the multiprocessors without work."""

from typing import Any

import pytest

from tests.build import launched, trace_of
from traceflops import analyze
from traceflops.facts import fact

US = 1_000


def said(
    blocks: int,
    dur_us: int = 1_000,
    name: str = "saxpy",
    units: int | None = 100,
    threads: int = 256,
    last_blocks: int | None = None,
    count: int = 10,
) -> Any:
    """Return the finding on the grid of so many kernels, None where there is none."""
    works = launched(
        *((name, 1_100 * US * n, (1_100 * n + 5) * US, dur_us * US) for n in range(count))
    )
    for row in works["activities"]:
        row |= {"grid": [blocks, 1, 1], "block": [threads, 1, 1]}
    works["activities"][-1]["grid"] = [last_blocks or blocks, 1, 1]
    trace = trace_of(**works, devices=[{"sm_count": units}])
    return next((one for one in analyze(trace).findings if one.rule == "small-grid"), None)


def test_a_small_grid_is_told_with_its_blocks_and_multiprocessors() -> None:
    found = said(10)
    assert found.sentence.startswith(
        "saxpy launches 10 blocks of 256 threads on 100 multiprocessors;"
    )
    assert found.share == pytest.approx(10_000 / 10_900)
    assert found.gain is not None and found.gain.low_ns > 0
    assert found.gain.high_ns <= 9_000 * US  # a tenth of the time is left where all are busy


@pytest.mark.parametrize(
    ("blocks", "more"),
    [
        (51, {}),  # more than half
        (10, {"dur_us": 49}),  # too short for a wave to matter
        (10, {"units": None}),
        (10, {"name": "ncclDevKernel_AllReduce_Sum_f32"}),  # leaves room on purpose
    ],
)
def test_others_are_not_told(blocks: int, more: dict[str, Any]) -> None:
    assert said(blocks, **more) is None
    assert said(50) is not None


def test_threads_that_leave_lanes_of_their_warps_idle_are_told_of_any_grid() -> None:
    found = said(1_000_000, threads=4, units=None)
    assert "launches 1,000,000 blocks of 4 threads (12.5 % of a warp); such" in found.sentence
    assert found.remedy.startswith("Use blocks of 128 or 256 threads")
    assert found.gain.high_ns <= 10_000 * US * 7 / 8
    assert said(1_000_000, threads=32, units=None) is None
    assert said(1_000_000, threads=33, units=None) is None  # 33 of 64 lanes


def test_blocks_of_one_warp_fill_one_scheduler_of_four() -> None:
    assert said(200, threads=32) is not None
    assert said(201, threads=32) is None
    assert said(200, threads=64) is None


def test_a_kernel_of_one_thread_is_told_to_be_serial() -> None:
    assert said(1, threads=1).remedy.endswith("spread its loops over threads and blocks.")


@pytest.mark.parametrize(("last", "is_latency"), [(39, False), (40, True)])
def test_a_kernel_that_takes_as_long_for_more_blocks_is_to_run_beside_others(
    last: int, *, is_latency: bool
) -> None:
    found = said(10, last_blocks=last)
    assert found.remedy.startswith("It takes as long for many blocks") == is_latency


def test_host_code_without_records_may_wait_for_the_kernels() -> None:
    found = said(10, count=100)  # only the last of them is on the critical path
    assert found.gain.low_ns == 0
    assert found.gain.high_ns == 90_000 * US  # what the grid may save
    assert found.confidence.reasons[0] == fact("doubt.beside-host")
