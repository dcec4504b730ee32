"""Kernels whose blocks leave most of the multiprocessors without work."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.build import launched, trace_of
from traceflops import analyze
from traceflops.facts import fact
from traceflops.findings.launch_geometry import few_blocks

US = 1_000


def said(
    blocks: int,
    dur_us: int = 1_000,
    name: str = "saxpy",
    units: int | None = 100,
    threads: int = 256,
    last_blocks: int | None = None,
    first_blocks: int | None = None,
    count: int = 10,
) -> Any:
    """Return the finding on the grid of so many kernels, None where there is none."""
    works = launched(
        *((name, 1_100 * US * n, (1_100 * n + 5) * US, dur_us * US) for n in range(count))
    )
    for row in works["activities"]:
        row |= {"grid": [blocks, 1, 1], "block": [threads, 1, 1]}
    works["activities"][0]["grid"] = [first_blocks or blocks, 1, 1]
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
    found = said(1, threads=1)
    assert found.remedy.endswith("spread its loops over threads and blocks.")
    assert fact("doubt.inferred") not in found.confidence.reasons
    assert fact("doubt.no-steps") not in found.confidence.reasons


@pytest.mark.parametrize(("last", "is_latency"), [(39, False), (40, True)])
def test_a_kernel_that_takes_as_long_for_more_blocks_is_to_run_beside_others(
    last: int, *, is_latency: bool
) -> None:
    found = said(10, last_blocks=last)
    assert found.remedy.startswith("It takes as long for many blocks") == is_latency


def test_blocks_that_differ_are_told_as_a_range() -> None:
    """Nine launches in ten have 10 blocks, then eight in ten: with 12 and 40 the median is 10."""
    assert "saxpy launches 10 blocks of 256" in said(10, last_blocks=40).sentence
    assert (
        "saxpy launches 10 to 40 blocks (median 10) of 256"
        in said(10, 1_000, first_blocks=12, last_blocks=40).sentence
    )


def test_host_code_without_records_may_wait_for_the_kernels() -> None:
    found = said(10, count=100)  # only the last of them is on the critical path
    assert found.gain.low_ns == 0
    assert found.gain.high_ns == 90_000 * US  # what the grid may save
    assert found.confidence.reasons[0] == fact("doubt.beside-host")


def main_kernel(
    *grids: list[int],
    threads: int = 256,
    registers: int | None = 192,
    shared: int = 0,
    dur_us: int = 1_000,
    name: str = "diverge",
    **device: Any,
) -> Any:
    """Return what is said of a kernel of an RTX 3060 that takes nearly all of the time."""
    count = len(grids)
    works = launched(
        *((name, 0, (dur_us * n + 5) * US, dur_us * US) for n in range(count)),
        ("other", 0, (dur_us * count + 5) * US, 10 * US),
    )
    for row, grid in zip(works["activities"], grids, strict=False):
        row |= {"grid": grid, "block": [threads, 1, 1], "shared_memory_bytes": shared}
        row |= {"registers_per_thread": registers} if registers else {}
    gpu = {"compute_major": 8, "compute_minor": 6, "sm_count": 28, "warp_size": 32, **device}
    trace = trace_of(**works, devices=[gpu])
    trace = replace(trace, source=replace(trace.source, format="nsys"))
    return next(one for one in analyze(trace).losses if one.rule == "main-kernel")


def test_what_a_launch_leaves_room_for_is_told_of_the_main_kernel() -> None:
    found = main_kernel([40, 1, 1])
    assert found.sentence.endswith(
        "in 1 launch (1.00 ms) of 40 blocks of 256 threads. A multiprocessor has room for "
        "at most 8 of 48 warps (registers). 28 blocks run at once, and the last 12 alone."
    )
    assert found.remedy.startswith("Too few warps may limit it: use fewer registers per thread")
    wide = main_kernel([999, 1, 1], registers=40)  # six blocks at once
    assert wide.sentence.endswith("of 999 blocks of 256 threads.")
    assert "(ncu --set full)" in wide.remedy
    old = main_kernel([999, 1, 1], registers=40, compute_major=6, compute_minor=1)
    assert "nvprof" in old.remedy and "ncu" not in old.remedy


def test_a_grid_with_fewer_warps_than_there_is_room_for_is_told_with_them() -> None:
    found = main_kernel([21, 1, 1], registers=40)  # 168 warps on 28 multiprocessors
    assert found.sentence.endswith(
        "of 21 blocks of 256 threads on 28 multiprocessors. That is 6 of 48 warps for each "
        "multiprocessor."
    )
    assert found.remedy.startswith("Too few warps may limit it: use more threads and blocks")
    half = main_kernel([100, 1, 1], registers=40)
    assert "That is" not in half.sentence


@pytest.mark.parametrize(
    ("blocks", "threads", "is_told"),
    [(21, 1_024, True), (22, 1_024, False), (20, 512, False), (14, 768, True)],
)
def test_large_blocks_that_leave_multiprocessors_without_any_are_to_be_split(
    blocks: int, threads: int, *, is_told: bool
) -> None:
    """There are 28 multiprocessors. With 20 blocks of 512 threads, too few warps come first."""
    found = main_kernel([blocks, 1, 1], threads=threads, registers=40)
    told = f"{28 - blocks} multiprocessors have no block: use smaller blocks, and so more of them"
    assert found.remedy.startswith(told) == is_told


@pytest.mark.parametrize(
    ("blocks", "is_told"),
    [(28, False), (42, True), (43, False), (57, True), (84, False), (85, False)],
)
def test_the_last_wave_is_told_where_it_is_half_empty_and_few_come_before(
    blocks: int, *, is_told: bool
) -> None:
    assert ("and the last" in main_kernel([blocks, 1, 1]).sentence) == is_told


@pytest.mark.parametrize(
    "launch",
    [
        {"registers": None},
        {"shared": 1_000},  # how much of L1 it may take is not recorded
        {"compute_major": None},
        {"architecture": "gfx90a", "warp_size": 64},
        {"sm_count": None},
    ],
)
def test_waves_are_not_told_of_launches_that_are_not_known(launch: dict[str, Any]) -> None:
    assert "run at once" not in main_kernel([40, 1, 1], **launch).sentence


def test_launches_that_differ_have_no_one_shape() -> None:
    found = main_kernel([40, 1, 1], [50, 1, 1])
    assert (
        "in 2 launches (mean 1.00 ms). A multiprocessor has room for at most 8 of" in found.sentence
    )


@pytest.mark.parametrize(
    ("blocks", "told"),
    [((8, 16, 500), 16), ((8, 500, 16), 500), ((8, 51, 51), 51), ((8, 0, 0), 0)],
)
def test_few_blocks_are_those_of_half_of_the_time_or_more(
    blocks: tuple[int, ...], told: int
) -> None:
    """Launches of 1, 4 and 2 ms, on 100 multiprocessors."""
    works = launched(*(("gemm", 0, 9_000 * US * n, ms * 1_000 * US) for n, ms in [(0, 1), (1, 4)]))
    works["activities"].append({"name": "gemm", "start_ns": 50_000 * US, "dur_ns": 2_000 * US})
    for row, count in zip(works["activities"], blocks, strict=True):
        row |= {"grid": [count, 1, 1]} if count else {}
    found = few_blocks(trace_of(**works, devices=[{"sm_count": 100}]), "gemm")
    assert (found is not None) == (0 < told <= 50)
    assert found is None or found.values == {"share": 5 / 7, "blocks": told, "units": 100}


def test_small_blocks_are_told_where_they_halve_the_warps() -> None:
    small = main_kernel([9_999, 1, 1], threads=32, registers=64, compute_major=7, compute_minor=5)
    assert "room for at most 16 of 32 warps (blocks)." in small.sentence


def test_long_kernels_are_to_be_profiled_in_a_smaller_problem() -> None:
    found = main_kernel([9_999, 4, 1], registers=40, dur_us=5_000_000)
    assert "of 9,999 × 4 blocks" in found.sentence
    assert "is unknown: profile a smaller problem with Nsight Compute" in found.remedy


def test_of_products_only_few_blocks_are_told() -> None:
    for blocks, is_told in ((14, True), (15, False)):
        sentence = main_kernel([blocks, 1, 1], name="sm80_gemm_f16").sentence
        assert (f"of {blocks} blocks of 256 threads on 28 multi" in sentence) == is_told
        assert "room" not in sentence


@pytest.mark.parametrize(
    ("took_us", "told"),
    [
        ([10, 900, 10, 800, 10, 10, 10, 10], "(mean 220 µs; 2 of these take 96.6 %)"),
        ([900, 1, 1, 1, 1, 1, 1, 1], "(mean 113 µs; 1 of these takes 99.2 %)"),
        ([1, 999], "(mean 500 µs; 1 of these takes 99.9 %)"),
        ([900, 800, 700, 650, 600, 1, 1, 1], "(mean 457 µs)"),  # more than half
        ([100] * 8, "(mean 100 µs)"),
    ],
)
def test_few_launches_with_nearly_all_time_are_told_beside_the_mean(
    took_us: list[int], told: str
) -> None:
    works, at = [("other", 0, 10, US)], 2 * US
    for us in took_us:
        works.append(("merge", at - 10, at, us * US))
        at += us * US
    sentences = [one.sentence for one in analyze(trace_of(**launched(*works))).losses]
    claim = f"in {len(took_us)} launches {told}."
    assert any(claim in sentence for sentence in sentences)
