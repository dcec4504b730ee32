"""What a counted kernel wastes: lanes, and multiprocessors that have no work."""

from __future__ import annotations

import pytest

import traceflops as tf
from tests.build import trace_of
from tests.findings.test_counted_kernels import (
    ACTIVE,
    BUSY,
    DRAM,
    ELAPSED,
    FITS,
    FP64,
    FULL,
    L1,
    L2,
    MEMORY,
    SECTORS,
    SM,
    TIME,
    TOO_FEW,
    WAVES,
    analysis_of,
    found,
    found_with,
    told,
)
from tests.mfu.test_kernel_speeds import ISSUE, LATENCY, launch, rule
from traceflops.findings.counted_estimates import COUNTED_KERNEL
from traceflops.reports.terminal.lines import Style
from traceflops.reports.terminal.summary import render_terminal

UNEVEN = FULL | {TIME: 1e6, FITS: 40.0, ACTIVE: 9_439.5}  # SMs have work for 70 % of 13,485 cycles


@pytest.mark.parametrize("threads", [1, 8])
def test_a_launch_of_few_threads_is_not_to_have_larger_blocks(threads: int) -> None:
    few = {"grid": [2, 1, 1], "block": [threads, 1, 1]}
    (one,) = found(launch(1, FULL | {WAVES: 0.01}, name="some_kernel", **few))
    assert f"less than 0.1 waves: {TOO_FEW}" in told(one)
    assert "lanes" not in told(one)
    assert "Use blocks of 128" not in told(one)


def test_idle_lanes_of_few_blocks_matter_where_a_unit_is_busy() -> None:
    busy = BUSY | {L1: 85.0, MEMORY: 85.0, ACTIVE: BUSY[ELAPSED], WAVES: 0.6}
    estimate = {**rule(1, "LaunchConfiguration", "text", 0.7, speedup_kind="global"), "name": "k"}
    counted = launch(1, busy, name="k", grid=[64, 1, 1], block=[9, 1, 1])
    (one,) = [
        one
        for one in tf.analyze(trace_of(kernel_counters=counted, kernel_rules=[estimate])).findings
        if one.rule == COUNTED_KERNEL
    ]
    assert told(one).startswith(
        "k: 85.0 % of L1 peak, blocks of 9 threads leave 23 of 32 lanes of their warps idle. "
        "Nsight Compute: estimated speedup 70.0 %. Use blocks of 128 or 256 threads: a warp takes "
        "as long for one thread as for all. Launch more blocks"
    )


def test_the_pipe_of_branches_is_no_arithmetic() -> None:
    adu = "sm__inst_executed_pipe_adu.avg.pct_of_peak_sustained_elapsed"
    (one,) = found(launch(1, FULL | {SM: 88.0, adu: 88.0, FP64: 2.0}, name="some_kernel"))
    assert one.sentence == "some_kernel: 88.0 % of SM peak (ADU pipe)."
    assert (one.remedy or "").startswith("Use fewer branches, barriers and accesses to constants")


@pytest.mark.parametrize(("share", "is_told"), [(10.0, False), (70.0, True)])
def test_fewer_floating_point_instructions_matter_where_their_pipes_are_busy(
    share: float, *, is_told: bool
) -> None:
    estimate = rule(1, "FPInstructions", "text", 0.4, speedup_kind="local")
    (one,) = found_with({**estimate, "name": "some_kernel"}, FULL | {SM: 85.0, FP64: share})
    assert ("by FP instructions" in told(one)) == is_told


def test_a_grid_of_nearly_one_wave_is_told_if_nothing_else_holds_the_kernel_back() -> None:
    (one,) = found(launch(1, FULL | {WAVES: 0.9}, name="some_kernel"))
    assert f"0.9 waves: {TOO_FEW}" in one.sentence
    (one,) = found(launch(1, FULL | {WAVES: 1.5}, name="some_kernel"))
    assert one.sentence.endswith("no limit is near.")


def test_idle_sms_are_told_beside_what_limits_the_kernel() -> None:
    (one,) = found(launch(1, UNEVEN, name="some_kernel"))
    assert "SMs have work 70.0 % of the time, theoretical occupancy 40.0 %" in one.sentence
    assert (one.remedy or "").endswith("so that the last wave matters less.")


@pytest.mark.parametrize("values", [{TIME: 2e4}, {WAVES: 0.9}, {ACTIVE: 11_000.0}])
def test_idle_sms_of_short_launches_and_small_grids_are_not_told(values: dict[str, float]) -> None:
    (one,) = found(launch(1, UNEVEN | values, name="some_kernel"))
    assert "SMs have work" not in told(one)


def test_idle_sms_do_not_matter_where_memory_is_nearly_full() -> None:
    (one,) = found(launch(1, UNEVEN | {DRAM: 90.0, FITS: 100.0}, name="some_kernel"))
    assert one.sentence == "some_kernel: 90.0 % of DRAM peak."
    assert "Balance" not in (one.remedy or "")


def test_idle_sms_are_a_limit_of_their_own() -> None:
    (one,) = found(launch(1, UNEVEN | {FITS: 100.0}, name="some_kernel"))
    assert one.sentence.endswith("of DRAM peak, SMs have work 70.0 % of the time.")
    assert (one.remedy or "").startswith("Balance the work of blocks")


@pytest.mark.parametrize(("cycles", "is_told"), [(12.0, True), (8.0, False)])
def test_beside_too_few_warps_stands_what_they_wait_for(cycles: float, is_told: bool) -> None:
    waits = LATENCY | {ISSUE.format("long_scoreboard"): cycles}  # of 20 cycles
    (one,) = found(launch(1, FULL | waits | {FITS: 40.0}, name="some_kernel"))
    assert ("warps wait 60.0 % of their cycles for data" in one.sentence) == is_told
    assert "theoretical occupancy 40.0 %" in one.sentence
    assert (one.remedy or "").startswith("Use fewer registers")


def test_rows_of_one_kernel_keep_their_sizes_in_a_narrow_table() -> None:
    blocks = {f"launch__occupancy_limit_{name}": 2.0 for name in ("registers", "warps", "blocks")}
    sizes = [[4_096, 1, 1], [1_024, 1, 1]]
    launches = [
        launch(at, FULL | blocks | {FITS: 50.0}, name="some_kernel", grid=grid, block=[256, 1, 1])
        for at, grid in enumerate(sizes)
    ]
    style = Style(width=100, unicode=True, colour=False)
    both, one = (
        "\n".join(line.plain for line in render_terminal(analysis_of(*some), style))
        for some in (launches, launches[:1])
    )
    assert " 4,096 x 256 " in both
    assert " 1,024 x 256 " in both
    assert "Blocks x" not in one


@pytest.mark.parametrize(
    ("sides", "shown"),
    [
        ([16, 32, 1], "2,048 x 16×32 "),
        ([32, 16, 1], "2,048 x 512 "),
        ([512, 1, 1], "2,048 x 512 "),
        ([1, 512, 1], "2,048 x 1×512 "),
    ],
)
def test_blocks_of_as_many_threads_are_told_apart_by_their_shapes(
    sides: list[int], shown: str
) -> None:
    launches = [
        launch(at, FULL, name="some_kernel", grid=grid, block=block)
        for at, (grid, block) in enumerate([([2_048, 1, 1], [32, 16, 1]), ([64, 32, 1], sides)])
    ]
    style = Style(width=100, unicode=True, colour=False)
    text = "\n".join(line.plain for line in render_terminal(analysis_of(*launches), style))
    assert shown in text


FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int> >(int, T2)"


@pytest.mark.parametrize(
    ("name", "is_told"), [(FILL, True), ("my_kernel", False), ("ampere_sgemm_64x64_nn", False)]
)
def test_where_only_a_library_sets_up_memory_other_kernels_are_to_be_counted(
    name: str, is_told: bool
) -> None:
    one, *_ = found(launch(1, FULL, name="__pgi_uacc_cuda_fill"), launch(2, FULL, name=name))
    assert ((one.remedy or "").startswith("Count other kernels (ncu -k regex:NAME")) == is_told


@pytest.mark.parametrize(("share", "is_told"), [(49.0, False), (51.0, True)])
def test_uncoalesced_sectors_are_told_only_if_memory_has_much_to_do(
    share: float, *, is_told: bool
) -> None:
    moved = {SECTORS: 4.0, f"{SECTORS}_ideal": 1.0}
    computes = FULL | {SM: 70.0, L2: 20.0, DRAM: share}
    (one,) = found(launch(1, computes | moved, name="some_kernel"))
    assert ("uncoalesced" in told(one)) == is_told


@pytest.mark.parametrize(
    ("share", "product", "is_told"),
    [
        (41.0, "NVIDIA GeForce RTX 2080 Ti", True),
        (29.0, "NVIDIA GeForce RTX 2080 Ti", False),
        (41.0, "NVIDIA A100-SXM4-40GB", False),
        (41.0, None, False),
    ],
)
def test_fp64_is_named_below_its_limit_on_gpus_that_are_slow_at_it(
    share: float, product: str | None, *, is_told: bool
) -> None:
    doubles = launch(1, FULL | {SM: share, FP64: share, DRAM: 5.0, L2: 5.0}, name="some_kernel")
    (one,) = found(doubles, **({"product": product} if product else {}))
    assert ("Compute in FP32 where it is accurate enough" in told(one)) == is_told
    assert ("no limit is near" in told(one)) != is_told


@pytest.mark.parametrize(
    ("name", "is_told"),
    [
        ("ReferenceGemm_kernel", True),
        ("void cutlass::reference::device::kernel::Gemm<int>(int)", True),
        ("gemmReference", True),
        ("dereference_kernel", False),
        ("gather_references", False),
    ],
)
def test_a_kernel_that_checks_others_is_not_to_be_tuned(name: str, *, is_told: bool) -> None:
    (one,) = found(launch(1, FULL, name=name))
    assert ("what their results are checked by" in told(one)) == is_told
    assert ("Record what holds it back" in told(one)) != is_told
