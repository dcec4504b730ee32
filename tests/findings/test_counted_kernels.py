"""Rule `counted-kernel`: what holds a counted kernel back, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import traceflops as tf
from tests.build import launched, trace_of
from tests.conftest import shared_file
from tests.mfu.test_kernel_speeds import CYCLES, ISSUE, LATENCY, MI210, NAMES, launch, rule
from traceflops.devices.counter_formulas import LIMIT, speed_table
from traceflops.findings.counted_estimates import COUNTED_KERNEL
from traceflops.findings.counted_kernels import _LIMITERS, _STALLS
from traceflops.findings.finding import Finding
from traceflops.mfu.counted.kernel_speeds import ROOFS
from traceflops.reports.view.counted import rules_said
from traceflops.reports.view.findings import title_sentence
from traceflops.reports.view.texts import all_texts
from traceflops.reports.view.wording import time_shared
from traceflops.table.trace import DEBUG_BUILD, Note

SM, MEMORY, L1, L2, DRAM, TIME, ELAPSED, ACTIVE, FITS, RUNS = list(NAMES)[:10]
WAVES = "launch__waves_per_multiprocessor"
BUSY = NAMES | {ACTIVE: 13_000.0, WAVES: 8.0}
TOO_FEW = "the grid has too few blocks to fill the GPU"
PIPE = "sm__pipe_{}_cycles_active.avg.pct_of_peak_sustained_elapsed"
FP64, ALU, TENSOR = (PIPE.format(name) for name in ("fp64", "alu", "tensor"))
LONGEST = "sm__cycles_active.max"
LANES = "smsp__thread_inst_executed_per_inst_executed.ratio"
SHARED = {f"launch__shared_mem_per_block_{kind}": 1024.0 for kind in ("static", "dynamic")}
SECTORS = "memory_l2_theoretical_sectors_global"
REGISTERS, SPILLS = "launch__registers_per_thread", "derived__local_spilling_requests"
SPILLING = BUSY | {REGISTERS: 255.0, SPILLS: 9.0}
FULL = BUSY | {FITS: 100.0, RUNS: 90.0}
FROM_L2 = {"l1tex__t_sectors_pipe_lsu_mem_local_op_ld_lookup_miss.sum": 90.0}
FROM_L2 |= {"lts__t_sectors_srcunit_tex_op_read.sum": 100.0}
LOCAL = (
    "90.0 % of what L2 is read for is local memory: spilled registers or arrays of threads "
    "(168 registers a thread)."
)
L2_SECTORS = "lts__t_sectors_srcunit_tex"
ATOMIC = {f"{L2_SECTORS}.sum": 80.0, f"{L2_SECTORS}_op_red.sum": 40.0}
ATOMIC |= {f"{L2_SECTORS}_op_atom_dot_alu.sum": 24.0}
DRAINED = LATENCY | {ISSUE.format("drain"): 12.0}
SLICE, INSTRUCTIONS = "lts__throughput.max.pct_of_peak_sustained_elapsed", "smsp__inst_executed.sum"


def told(finding: Finding) -> str:
    """Return what a finding says, and what to do."""
    return f"{finding.sentence} {finding.remedy}".rstrip()


def analysis_of(*launches: Any, rules: Path | None = None, **device: Any) -> tf.Analysis:
    rows = [{**row, "device": 0} if device else row for rows in launches for row in rows]
    trace = trace_of(kernel_counters=rows, devices=[device] if device else [])
    trace = replace(trace, source=replace(trace.source, format="ncu"))
    return tf.analyze(trace, finding_rules=rules)


def found(*launches: Any, **more: Any) -> list[Finding]:
    every = analysis_of(*launches, **more).findings
    return [one for one in every if one.rule == COUNTED_KERNEL]


def said(values: Mapping[str, float]) -> str:
    """Return what is said behind the name, without the remedy."""
    (one,) = found(launch(1, values, name="some_kernel"))
    return one.sentence.removeprefix("some_kernel: ")


def test_a_kernel_of_which_nothing_was_counted_comes_first() -> None:
    """Its launch has facts of the device alone; another is set-up of a few microseconds."""
    attribute = {"device__attribute_chip": 360.0}
    lost = launch(2, attribute, name="trace_rays", threads=None, block_threads=None)
    long = launch(3, BUSY | {TIME: 90_000.0}, name="shade")
    first, second = found(launch(1, BUSY, name="build_meshes"), lost, long)
    assert first.sentence.startswith("Nothing was counted of trace_rays: 1 launch has neither")
    assert first.remedy.startswith("Record it again")
    assert second.sentence.startswith("shade (93.0 % of the measured time): ")
    assert found(launch(1, BUSY, name="build_meshes"), lost) == [first]


def test_small_grids_are_one_finding_and_short_launches_are_to_do_more() -> None:
    """Grids of 9 blocks; of two kernels a launch takes 3 and 2 us, of the third 100."""
    small = BUSY | {WAVES: 0.2}

    def one(at: int, name: str, ns: float) -> Any:
        return launch(at, small | {TIME: ns}, name=name, grid=[9, 1, 1], block=[64, 1, 1])

    launches = [one(0, "sweep", 3_000), one(1, "sweep", 3_000), one(2, "relax", 2_000)]
    (both,) = found(*launches)
    assert told(both) == (
        "sweep (75.0 % of the measured time): 9 blocks of 64 threads, 0.2 waves: "
        f"{TOO_FEW}; the same holds for relax. Give each launch more work, or fuse it with others: "
        "at 3.00 µs it takes about as long as launching it."
    )
    (long,) = found(one(0, "sweep", 100_000))
    assert "Launch more blocks: a larger problem" in told(long)


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (
            "0001",
            "224 blocks of 128 threads, 0.7 waves: the grid has too few blocks to fill the GPU",
        ),
        (
            "0004",
            "2 blocks of 128 threads, less than 0.1 waves: the grid has too few blocks to fill "
            "the GPU",
        ),
    ],
)
@pytest.mark.parametrize("redact", [False, True])
def test_real_pages_begin_with_what_holds_their_kernel_back(
    number: str, sentence: str, redact: bool
) -> None:
    path = shared_file(f"traces/nsight/ncu_rtx5090_kernel{number}_details.csv")
    title = title_sentence(tf.analyze(tf.read(path), redact=redact))
    assert title.partition(". ")[0].endswith(sentence)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (FULL | {DRAM: 85.0, MEMORY: 85.0, RUNS: 20.0}, "85.0 % of DRAM peak."),
        (FULL | {SM: 65.0}, "65.0 % of SM peak."),
        (FULL, "19.7 % of DRAM peak, no limit is near."),
        (
            BUSY,
            "19.7 % of DRAM peak, theoretical occupancy 16.7 %, limited by registers.",
        ),
        (
            {name: value for name, value in BUSY.items() if "limit" not in name},
            "19.7 % of DRAM peak, theoretical occupancy 16.7 %.",
        ),
        (
            FULL | {RUNS: 40.0},
            "19.7 % of DRAM peak, achieved occupancy 40.0 % of theoretical 100.0 %.",
        ),
        (FULL | {SM: 65.0, FP64: 65.0, ALU: 3.0}, "65.0 % of SM peak (FP64 pipe)."),
        (
            FULL | {SM: 65.0, FP64: 60.0, ALU: 65.0},
            "65.0 % of SM peak (ALU pipe; FP64 pipe 60.0 %).",
        ),
        (FULL | {SM: 65.0, FP64: 60.0}, "65.0 % of SM peak."),  # another unit is behind it
        (FULL | {SM: 85.0, MEMORY: 95.0, L2: 95.0}, "95.0 % of L2 peak, 85.0 % of SM peak."),
        (FULL | {SM: 65.0, LANES: 8.0}, "65.0 % of SM peak, 8 of 32 threads of a warp active."),
        (FULL | {SM: 65.0, LANES: 24.0}, "65.0 % of SM peak."),
        (
            FULL | {DRAM: 65.0, SECTORS: 400.0, f"{SECTORS}_ideal": 100.0},
            "65.0 % of DRAM peak, 75.0 % of the sectors of global memory uncoalesced.",
        ),
        (FULL | {DRAM: 65.0, SECTORS: 400.0, f"{SECTORS}_ideal": 201.0}, "65.0 % of DRAM peak."),
        (BUSY | {WAVES: 0.66}, f"0.66 waves: {TOO_FEW}."),
        (BUSY | {WAVES: 0.04}, f"less than 0.1 waves: {TOO_FEW}."),
        (BUSY | {WAVES: 0.66, DRAM: 85.0, MEMORY: 85.0}, "85.0 % of DRAM peak."),
        (BUSY | {WAVES: 0.66, SM: 65.0}, "65.0 % of SM peak."),
        (FULL | FROM_L2 | {DRAM: 65.0, WAVES: 0.5}, f"65.0 % of DRAM peak, {LOCAL}"),
        (FULL | FROM_L2 | {SM: 65.0}, "65.0 % of SM peak."),  # the SMs have enough data
        (FULL | FROM_L2 | DRAINED, f"19.7 % of DRAM peak, {LOCAL}"),
        (FULL | FROM_L2, "19.7 % of DRAM peak, no limit is near."),
        (FULL | ATOMIC | DRAINED, "19.7 % of DRAM peak, 80.0 % of the traffic in L2 is atomics."),
        (
            BUSY | ATOMIC | {SLICE: 65.0},
            "19.7 % of DRAM peak, 80.0 % of the traffic in L2 is atomics, at few addresses: one "
            "slice of L2 is at 65.0 % of its peak.",
        ),
        (
            FULL | ATOMIC | {f"{L2_SECTORS}.sum": 200.0, SLICE: 65.0},
            "19.7 % of DRAM peak, no limit is near.",
        ),
        (FULL | {ACTIVE: 1_348.5}, "19.7 % of DRAM peak, SMs have work 10.0 % of the time."),
        (
            FULL | {ACTIVE: 1_348.5, LONGEST: 10_788.0},
            "19.7 % of DRAM peak, SMs have work 10.0 % of the time, the busiest one 80.0 %.",
        ),
        (
            FULL | LATENCY | {ISSUE.format("long_scoreboard"): 12.0},
            "19.7 % of DRAM peak, warps wait 60.0 % of their cycles for data from global or local "
            "memory (long scoreboard).",
        ),
        (
            FULL | LATENCY | {ISSUE.format("no_instructions"): 12.0},
            "19.7 % of DRAM peak, warps wait 60.0 % of their cycles for instructions "
            "(no instruction).",
        ),
        (
            FULL | LATENCY | {ISSUE.format("imc_miss"): 12.0},
            "19.7 % of DRAM peak, warps wait 60.0 % of their cycles for constants (imc miss).",
        ),
        (
            FULL | LATENCY | {ISSUE.format("new_reason"): 12.0},
            "19.7 % of DRAM peak, warps wait 60.0 % of their cycles for new reason.",
        ),
    ],
)
def test_the_first_thing_that_holds_a_kernel_back_is_named(
    values: dict[str, float], words: str
) -> None:
    assert said(values) == words


@pytest.mark.parametrize(
    ("lanes", "sm", "is_told"), [(13, 52, True), (13, 40, False), (30, 52, False)]
)
def test_idle_threads_of_warps_are_told_if_sms_are_near_their_peak_while_they_work(
    lanes: float, sm: float, is_told: bool
) -> None:
    """SMs have work for 9,439.5 of 13,485 cycles: 52 % of the peak is 74 % of that time."""
    (one,) = found(launch(1, FULL | {ACTIVE: 9_439.5, SM: sm, LANES: lanes}, name="some_kernel"))
    assert ("SMs have work 70.0 % of the time" in one.sentence) == is_told
    assert ("the same branches" in (one.remedy or "")) == is_told


@pytest.mark.parametrize(
    ("longest", "waves", "remedy"),
    [
        (10_788.0, 8.0, "Few blocks take most of the time"),
        (10_788.0, 0.9, "Give the launch more work"),
        (2_000.0, 8.0, "Give the launch more work"),
    ],
)
def test_long_blocks_on_few_sms_are_to_be_split(longest: float, waves: float, remedy: str) -> None:
    """The average SM has work for 1,348.5 of 13,485 cycles."""
    values = FULL | {ACTIVE: 1_348.5, LONGEST: longest, WAVES: waves}
    (one,) = found(launch(1, values, name="some_kernel"))
    assert (one.remedy or "").startswith(remedy)


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("some_gemm", {SM: 65.0}, "ncu --set full"),
        ("some_gemm", {SM: 85.0}, "tensor cores"),
        ("some_gemma_gemm", {SM: 85.0}, "tensor cores"),
        ("gemm_mma_opt", {SM: 85.0}, "cheaper functions"),
        ("some_gemm", {SM: 85.0, TENSOR: 20.0}, "cheaper functions"),
        ("some_gemm", {SM: 85.0, TENSOR: 85.0}, "Use lower precision or fewer products"),
        ("some_random_fill", {SM: 85.0}, "cheaper functions"),
        ("some_gemm", {SM: 65.0, FP64: 65.0}, "powf"),
        ("some_kernel", {SM: 65.0, FP64: 60.0, ALU: 65.0}, "index arithmetic. Compute in FP32"),
        ("some_copy", {DRAM: 85.0}, "or use lower precision."),
        ("some_kernel", {DRAM: 85.0}, "tile for reuse"),
        ("some_kernel", {DRAM: 65.0, ISSUE.format("wait"): 1.0, **LATENCY}, "tile for reuse"),
        ("some_kernel", {DRAM: 65.0, SECTORS: 4.0, f"{SECTORS}_ideal": 1.0}, "Coalesce:"),
        ("some_kernel", {L1: 95.0, ACTIVE: 13_485.0, **SHARED}, "L1 and shared"),
        ("some_kernel", {L1: 95.0, ACTIVE: 13_485.0, **dict.fromkeys(SHARED, 0)}, "or shared"),
    ],
)
def test_the_remedy_of_a_roof_fits_the_kernel(
    name: str, values: dict[str, float], words: str
) -> None:
    (one,) = found(launch(1, FULL | values, name=name))
    assert words in (one.remedy or "")


@pytest.mark.parametrize(("instructions", "sectors"), [(32, 0), (160, 0), (32, 1)])
def test_a_kernel_whose_warps_end_at_once_does_no_work(instructions: int, sectors: int) -> None:
    """Launches of 16 warps; a library's dummy kernel is as it should be."""
    counts = {INSTRUCTIONS: instructions, f"{L2_SECTORS}.sum": sectors}
    long = launch(1, BUSY | {TIME: 1e6}, name="long_kernel")
    short = launch(2, BUSY | {TIME: 9.0} | counts, name="some_kernel")
    dummy = launch(3, BUSY | {TIME: 9.0} | counts, name="void cub::EmptyKernel<void>()")
    names = [told(one).partition(" (")[0] for one in found(long, dummy, short)]
    is_empty = (instructions, sectors) == (32, 0)
    assert names == ["long_kernel", *(["some_kernel"] if is_empty else [])]
    text = told(found(launch(2, BUSY | counts, name="some_kernel"))[0])
    words = "some_kernel: each warp executes 2 instructions and accesses no memory: it does no work"
    assert text.startswith(words) == is_empty


def test_without_times_each_kernel_is_ranked_by_bytes_and_throughput_of_dram() -> None:
    """Of what 5 MB at 5 % take, 10 MB at 50 % take 20 %, 20 MB 40 %, 1 MB 2 %: 62 of 162 in all."""
    works = [
        ("even", 10, 50.0, 9),
        ("even", 20, 50.0, 8),
        ("uneven", 5, 5.0, 7),
        ("even", 1, 50.0, 6),
    ]
    launches = [
        launch(
            at, {SM: 9.0, DRAM: share, "dram__bytes.sum": mega * 1e6}, name=name, grid=[at, 1, 1]
        )
        for name, mega, share, at in works
    ]
    sentences = [one.sentence.partition(":")[0] for one in found(*launches)]
    assert sentences == [
        "uneven (about 61.7 % of the time, by other counters)",
        "even (about 38.3 % of the time, by other counters)",
    ]
    unknown = launch(1, {SM: 9.0, DRAM: 9.0}, name="unknown")
    assert "about" not in " ".join(told(one) for one in found(*launches, unknown))


@pytest.mark.parametrize(("threads", "idle"), [(1, "31 of 32"), (33, "31 of 64")])
def test_blocks_that_leave_lanes_of_warps_idle_come_first(threads: int, idle: str) -> None:
    near = FULL | {DRAM: 85.0, MEMORY: 85.0}
    sized = {"grid": [9, 1, 1], "block": [threads, 1, 1]}
    (one,) = found(launch(1, near, name="some_kernel", **sized))
    assert f" leave {idle} lanes of their warps idle. Use blocks of 128" in told(one)
    (one,) = found(launch(1, near, name="some_kernel", **{**sized, "block": [24, 1, 1]}))
    assert told(one).startswith("some_kernel: 85.0 % of DRAM peak. Move fewer bytes")
    (one,) = found(launch(1, near | {f"{SECTORS}_ideal": 1.0, SECTORS: 4.0}, name="some", **sized))
    assert one.remedy.startswith("Coalesce: ")


def test_the_worst_kernel_is_the_title_and_three_are_named() -> None:
    def one(number: int, name: str, ns: float) -> Any:
        return launch(number, BUSY | {TIME: ns}, name=name)

    names = ["slight_kernel", "worst_kernel", "second_kernel", "third_kernel"]
    launches = [
        one(at, name, ns) for at, (name, ns) in enumerate(zip(names, (1, 9, 5, 3), strict=True))
    ]
    analysis = analysis_of(*launches)
    kernels = [told(one).partition(" (")[0] for one in found(*launches)]
    assert kernels == ["worst_kernel", "second_kernel", "third_kernel"]
    title = title_sentence(analysis)
    assert title.startswith("worst_kernel (50.0 % of the measured time): 19.7 % of DRAM peak")
    assert [one.share for one in found(*launches)] == [9 / 18, 5 / 18, 3 / 18]


def test_a_kernel_of_little_time_is_never_told_before_or_after_that_of_most() -> None:
    near = BUSY | {TIME: 951.0, L1: 99.9, ACTIVE: 13_485.0}
    most, little = launch(1, near, name="long_kernel"), launch(2, BUSY | {TIME: 49.0}, name="short")
    (one,) = found(little, most)
    assert one.sentence == "long_kernel (95.1 % of the measured time): 99.9 % of L1 peak."
    no_roof = launch(1, {TIME: 951.0, SM: 9.0}, name="long_kernel")
    assert [told(one).partition(" (")[0] for one in found(little, no_roof)] == ["long_kernel"]


def test_a_kernel_whose_own_word_says_little_is_told_by_its_template() -> None:
    name = "enable_if<!T7, void>::type kernel<int, float>(T13)"
    (one,) = found(launch(1, BUSY, name=name))
    assert told(one).startswith("kernel<int, float>: 19.7 %")
    (one,) = found(launch(1, BUSY, name="kernel(int const*, int*)"))
    assert told(one).startswith("kernel: 19.7 %")
    both = found(
        launch(1, BUSY, name="void gemm_kernel<float>(int)"),
        launch(2, BUSY, name="void gemm_kernel<half>(int)"),
    )
    assert {told(one).partition(" (")[0] for one in both} == {
        "gemm_kernel<float>",
        "gemm_kernel<half>",
    }


@pytest.mark.parametrize(
    "name", ["a. b; c", "<script>alert(1)</script>", "k" * 5000, "\x1b[31m", ""]
)
def test_a_name_ends_no_sentence(name: str) -> None:
    title = title_sentence(analysis_of(launch(1, BUSY, name=name))).partition(". ")[0]
    assert "of DRAM peak, theoretical occupancy 16.7 %, limited by registers" in title
    assert len(title) < 200


def test_amd_kernels_without_a_time_say_what_was_busy() -> None:
    (one,) = found(launch(1, CYCLES, name="some_kernel"), **MI210)
    assert told(one).startswith("some_kernel: MFMA busy 25.0 %, VALU busy 50.0 %, LDS busy 10.0 %")
    assert "--pair" in one.remedy
    (one,) = found(
        launch(1, CYCLES | {"SQ_ACTIVE_INST_VALU": 98_800.0}, name="some_kernel"), **MI210
    )
    assert told(one).startswith("some_kernel: VALU busy 95.0 %.")


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([("TheoreticalOccupancy", 0.38, "local")], "estimated local speedup 38.0 %"),
        (
            [("UncoalescedGlobalAccess", 0.9, "global"), ("TheoreticalOccupancy", 0.1, "global")],
            "estimated speedup 90.0 % by uncoalesced global access",
        ),
        (
            [("CPIStall_Wait", 0.2, "local"), ("UncoalescedGlobalAccess", 0.1, "global")],
            "estimated speedup 10.0 % by uncoalesced global access",
        ),
        ([("CPIStall", 0.2, "local")], "estimated local speedup 20.0 % by CPI stall"),
    ],
)
def test_of_estimates_of_the_profiler_the_largest_is_told(
    rules: list[tuple[str, float, str]], words: str
) -> None:
    made = [
        {**rule(1, name, "text", share, speedup_kind=kind), "name": "some_kernel"}
        for name, share, kind in rules
    ]
    trace = trace_of(kernel_counters=launch(1, BUSY, name="some_kernel"), kernel_rules=made)
    (one,) = [one for one in tf.analyze(trace).findings if one.rule == COUNTED_KERNEL]
    advice = "Coalesce" if "90.0" in words else "Use fewer"
    assert f"limited by registers. Nsight Compute: {words}. {advice}" in told(one)


@pytest.mark.parametrize("name", ["TheoreticalOccupancy", "LaunchConfiguration"])
def test_where_the_grid_is_too_small_no_estimate_is_told(name: str) -> None:
    counts = rule(1, name, "text", 0.8, speedup_kind="global")
    (one,) = found_with({**counts, "name": "some_kernel"}, BUSY | {WAVES: 0.66})
    assert f"{TOO_FEW}. Launch more blocks" in told(one)
    assert "registers" not in told(one)


@pytest.mark.parametrize(
    ("name", "values", "is_told"),
    [
        ("TheoreticalOccupancy", {WAVES: 1.0}, False),
        ("TheoreticalOccupancy", {WAVES: 1.1}, True),
        ("CPIStall", {L1: 95.0, ISSUE.format("mio_throttle"): 12.0}, True),
        ("CPIStall", {L1: 95.0, ISSUE.format("wait"): 12.0}, False),
        ("CPIStall", {DRAM: 95.0, ISSUE.format("mio_throttle"): 12.0}, False),
        ("CPIStall", {SM: 70.0, ISSUE.format("wait"): 12.0}, True),
        ("CPIStall", {SM: 70.0, ISSUE.format("not_selected"): 12.0}, False),
        ("UncoalescedGlobalAccess", {SM: 70.0, L2: 20.0, DRAM: 49.0}, False),
        ("UncoalescedGlobalAccess", {SM: 70.0, L2: 20.0, DRAM: 51.0}, True),
        ("UncoalescedGlobalAccess", {SM: 50.0, L2: 20.0, DRAM: 30.0}, True),
    ],
)
def test_an_estimate_is_told_only_of_what_can_be_gained(
    name: str, values: dict[str, float], is_told: bool
) -> None:
    """Of one wave the grid has no more blocks; queues of L1 are of the unit that is at its peak.

    Warps that are ready lose nothing, nor does memory that waits for computing.
    """
    counts = rule(1, name, "text", 0.3, speedup_kind="global")
    full = FULL | LATENCY | {ACTIVE: 13_485.0} | values
    (one,) = found_with({**counts, "name": "some_kernel"}, full)
    assert ("estimated speedup 30.0 %" in told(one)) == is_told


@pytest.mark.parametrize(
    ("ideal", "share", "is_told"), [(2.0, 95.0, False), (2.0, 85.0, False), (1.0, 95.0, True)]
)
def test_at_the_peak_of_dram_accesses_matter_only_if_it_moves_more_than_they_ask_for(
    ideal: float, share: float, *, is_told: bool
) -> None:
    """DRAM moves 64 bytes: two sectors of 32."""
    moved = {"dram__bytes_read.sum": 40.0, "dram__bytes_write.sum": 24.0}
    sectors = {SECTORS: 4.0, f"{SECTORS}_ideal": ideal}
    counts = rule(1, "UncoalescedGlobalAccess", "text", 0.5, speedup_kind="global")
    (one,) = found_with({**counts, "name": "some_kernel"}, FULL | {DRAM: share} | moved | sectors)
    assert ("uncoalesced" in told(one)) == is_told
    assert ("Coalesce" in told(one)) == is_told


@pytest.mark.parametrize(("active", "is_told"), [(0.49, False), (0.51, True)])
def test_while_sms_have_no_work_no_estimate_is_told(active: float, *, is_told: bool) -> None:
    counts = rule(1, "CPIStall", "text", 0.4, speedup_kind="global")
    busy = FULL | LATENCY | {ACTIVE: active * FULL[ELAPSED]}
    (one,) = found_with({**counts, "name": "some_kernel"}, busy)
    assert ("SMs have work 49.0 % of the time" in told(one)) != is_told
    assert ("estimated speedup" in told(one)) == is_told


def test_a_sort_is_not_told_to_use_lower_precision() -> None:
    name = "void cub::DeviceMergeSortMergeKernel<int>(int*)"
    rows = launch(1, FULL | {DRAM: 95.0}, name=name)
    findings = tf.analyze(trace_of(kernel_counters=rows)).findings
    (one,) = [one for one in findings if one.rule == COUNTED_KERNEL]
    assert "fewer passes" in one.remedy


@pytest.mark.parametrize(("share", "is_told"), [(0.2, False), (0.5, True)])
def test_far_below_all_roofs_no_small_estimate_is_told(share: float, is_told: bool) -> None:
    counts = rule(1, "TheoreticalOccupancy", "text", share, speedup_kind="global")
    far = BUSY | dict.fromkeys((SM, MEMORY, L1, L2, DRAM), 5.0)
    (one,) = found_with({**counts, "name": "some_kernel"}, far)
    assert ("estimated speedup" in told(one)) == is_told


@pytest.mark.parametrize(("share", "is_told"), [(0.29, False), (0.3, True)])
def test_bank_conflicts_are_told_with_their_remedy(share: float, is_told: bool) -> None:
    text = "causes on average a 32.0 - way bank conflict across all 32 shared load requests."
    conflicts = rule(1, "SharedMemoryConflicts", text, share, speedup_kind="global")
    (one,) = found_with({**conflicts, "name": "some_kernel"}, BUSY)
    assert ("19.7 % of DRAM peak, 32-way bank conflicts in shared" in told(one)) == is_told
    assert ("Pad rows of shared arrays" in told(one)) == is_told


def found_with(rule_of_kernel: dict[str, Any], values: Mapping[str, float]) -> list[Finding]:
    counters = launch(1, values, name="some_kernel")
    trace = trace_of(kernel_counters=counters, kernel_rules=[rule_of_kernel])
    return [one for one in tf.analyze(trace).findings if one.rule == COUNTED_KERNEL]


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("some_gemm", BUSY | {WAVES: 0.66}, "split-K"),
        ("some_kernel", BUSY | {WAVES: 0.66}, "or less work per thread"),
        ("some_gemm", BUSY, "smaller tiles"),
        ("some_kernel", BUSY, "-maxrregcount); compare"),
        ("some_kernel", SPILLING, "255 registers a thread"),
        ("some_kernel", SPILLING, "Split the kernel"),
        ("some_kernel", SPILLING | {DRAM: 85.0}, "Move fewer"),
        ("some_kernel", SPILLING | {REGISTERS: 254.0}, "-maxrregcount"),
        ("some_kernel", SPILLING | {SPILLS: 0.0}, "-maxrregcount"),
        ("some_kernel", BUSY | {WAVES: 1.0}, "no limit is near"),
        ("initRNG(curandStateXORWOW*, unsigned int)", BUSY, "curandStatePhilox4_32_10_t"),
        ("void walk<float>(float*, curandStateXORWOW*)", BUSY, "-maxrregcount"),
        ("void at::native::sort<float>(float*)", BUSY, "ncu -k regex:NAME"),
        ("volta_sgemm_32x128_nn", BUSY, "is a framework's or library's"),
        ("volta_sgemm_32x128_nn", BUSY | {WAVES: 0.66}, "split-K"),
        ("walk<at::native::Sum>", BUSY, "-maxrregcount"),
        ("nvkernel__Z4walkIdEvPKT_PS0_mm_F1L5_14", BUSY | {WAVES: 0.66}, "walk_L5: 0.66 waves"),
        ("nvkernel__Z4walkIdEvPKT_PS0_mm_F1L5_14", BUSY | {WAVES: 0.66}, "collapse(n)"),
    ],
)
def test_the_remedy_of_a_limiter_fits_the_kernel(
    name: str, values: dict[str, float], words: str
) -> None:
    (one,) = found(launch(1, values, name=name))
    assert words in told(one)


UNEVEN = "One or more {} have a much higher number of active cycles than the average."


@pytest.mark.parametrize(
    ("name", "text", "share", "peak", "is_told"),
    [
        ("WorkloadImbalance", UNEVEN.format("L2 Slices"), 7.4, 75.0, False),
        ("WorkloadImbalance", "Slices of L2 work for different numbers of cycles.", 7, 75, False),
        ("DRAMImbalance", "Channels differ.", 7.4, 75.0, False),
        ("WorkloadImbalance", UNEVEN.format("L2 Slices"), 70.0, 75.0, True),
        ("WorkloadImbalance", UNEVEN.format("SMs"), 7.4, 75.0, True),
        ("WorkloadImbalance", UNEVEN.format("SMs"), 7.4, 95.0, False),
        ("UncoalescedGlobalAccess", "See the L2 Theoretical Sectors table.", 7.4, 95.0, True),
        ("MemoryAccess", "9 sectors to be read, which is 1.0x of the 9 missed.", 7, 95, False),
        ("TheoreticalOccupancy", "Limited by registers.", 7.4, 95.0, False),
        ("CPIStall", "Waits for data.", 70.0, 95.0, False),
        ("FPInstructions", "Fuse them.", 70.0, 95.0, False),
        ("MemoryL2Compression", "Only 0.00% were compressed.", 70.0, 95.0, False),
    ],
)
def test_no_gain_is_told_of_an_idle_part_or_at_the_peak_but_by_less_work(
    name: str, text: str, share: float, peak: float, is_told: bool
) -> None:
    made = [{**rule(1, name, text, 0.14, speedup_kind="global"), "name": "some_kernel"}]
    values = FULL | {L2: share, DRAM: share, MEMORY: peak}
    counters = launch(1, values, name="some_kernel")
    found = tf.analyze(trace_of(kernel_counters=counters, kernel_rules=made))
    (one,) = [one for one in found.findings if one.rule == COUNTED_KERNEL]
    assert ("estimated speedup 14.0 %" in told(one)) == is_told
    assert bool(rules_said(found.measured, 1)) == is_told


def test_who_has_recorded_all_is_not_told_to_record_more() -> None:
    small = {ISSUE.format(f"reason_{number}"): 2.0 for number in range(10)}
    (one,) = found(launch(1, FULL | LATENCY | small))
    assert "no limit is near. No single cause stands out" in told(one)
    (one,) = found(launch(1, FULL))
    assert "ncu --set full" in one.remedy


def test_users_change_its_thresholds_and_silence_it(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text("[counted-kernel]\ntheoretical = 0.1\nachieved = 0.1\n", encoding="utf-8")
    (one,) = found(launch(1, BUSY), rules=path)
    assert "no limit is near" in told(one)
    path.write_text('silent = ["counted-kernel"]\n', encoding="utf-8")
    assert found(launch(1, BUSY), rules=path) == []


@pytest.mark.parametrize("label", [ISSUE, "Warp State Statistics|Stall {}|inst"])
def test_redaction_leaves_known_reasons_and_hides_others(label: str) -> None:
    reason = "long_scoreboard" if label is ISSUE else "Long Scoreboard"
    known, secret = label.format(reason), label.format(f"{reason}_acme")
    for name, is_told in ((known, True), (secret, False), (known + "_acme", False)):
        trace = trace_of(kernel_counters=launch(1, FULL | LATENCY | {name: 12.0}))
        text = tf.analyze(trace, redact=True).to_json()
        assert ("data from global or local memory" in text) == is_told
        assert "acme" not in text


def test_with_a_timeline_the_step_decides_and_not_counted_times() -> None:
    trace = trace_of(
        activities=[
            {"name": "k", "start_ns": 0, "dur_ns": 9},
            {"name": "other", "start_ns": 9, "dur_ns": 3},
        ],
        kernel_counters=[*launch(1, BUSY, name="k"), *launch(2, BUSY, name="other")],
    )
    (found,) = [one for one in tf.analyze(trace).findings if one.rule == COUNTED_KERNEL]
    assert (found.rows[0].name, found.share) == ("k", 9 / 12)


def test_every_roof_and_limiter_has_a_remedy() -> None:
    limiters = {
        row.id.removeprefix(LIMIT) for row in speed_table().quantity if row.id.startswith(LIMIT)
    }
    assert limiters == _LIMITERS
    kinds = {"limiter": {*(one.replace(" ", "-") for one in limiters), "grid"}, "roof": {*ROOFS}}
    for kind, names in (kinds | {"stall": {*_STALLS}}).items():
        start = f"{COUNTED_KERNEL}.remedy.{kind}."
        codes = {code.removeprefix(start) for code in all_texts() if code.startswith(start)}
        assert codes == names


@pytest.mark.parametrize(
    ("timed", "kernel_ns", "is_first"),
    [
        ("some_kernel(float*, int)", 990_000, True),
        ("some_kernel", 990_000, True),
        ("other_kernel(int)", 990_000, False),
        ("some_kernel(float*, int)", 10_000, False),
    ],
)
def test_counters_of_a_pair_say_first_what_holds_the_main_kernel_back(
    timed: str, kernel_ns: int, *, is_first: bool
) -> None:
    """The kernel fills the time with all memory, or the rest is idle: then that comes first."""
    counters = trace_of(
        kernel_counters=launch(1, BUSY | {FITS: 33.3, RUNS: 32.5}, name="some_kernel(float*, int)")
    )
    counters = replace(counters, source=replace(counters.source, format="ncu"))
    works = [(timed, 0, 100, kernel_ns), ("last(int)", 1_000, 1_000_000, 1_000)]
    run = trace_of(**launched(*works))
    analysis = tf.analyze(run, pair=counters)
    rules = [one.rule for one in analysis.findings if one.rule != "trace-health"]
    assert (rules[0] == COUNTED_KERNEL) == is_first
    assert ("theoretical occupancy 33.3 %" in title_sentence(analysis)) == is_first
    assert not is_first or "nothing-stands-out" not in rules


@pytest.mark.parametrize("code", ["counted-while-timed", "timed-one-by-one"])
def test_a_run_for_counters_leads_with_them_and_blames_no_idle_time(code: str) -> None:
    """Kernels of 60 and 20 us, each launched 200 us before it starts: one by one.

    That which is named after a copy is a kernel all the same.
    """
    name = "_Z8mainworkv"
    works = [(name, 0, 200_000, 60_000), ("cupy_copy", 300_000, 500_000, 20_000)]
    moved = {"FETCH_SIZE": 4_000.0, "WRITE_SIZE": 2_000.0}
    counted = [
        {**row, "device": 0, "correlation": 1} for row in launch(1, CYCLES | moved, name=name)
    ]
    trace = trace_of(**launched(*works), kernel_counters=counted, devices=[MI210])
    note = Note("assumed", code, "One by one.")
    source = replace(trace.source, format="rocprof")
    analysis = tf.analyze(replace(trace, notes=(note,), source=source))
    assert analysis.recorded == "serialized"
    assert title_sentence(analysis).startswith(
        "mainwork takes 75.0 % of the 80.0 µs of kernel time: "
        "102 GB/s (6.3 % of the memory's peak), "
    )
    assert "Kernels ran one by one" in title_sentence(analysis)
    assert not [one for one in analysis.findings if one.confidence is not None]
    assert analysis.kernels["share"].to_pylist() == [0.75, 0.25]
    assert time_shared(analysis) == "time of GPU work"
    assert not analysis.idle.culprits


@pytest.mark.parametrize(
    ("name", "remedy"), [("some_gemm", "split-K"), ("other", "larger problem")]
)
def test_small_grids_of_a_run_for_counters_are_to_grow(name: str, remedy: str) -> None:
    """Two launches of 8 blocks take three times as long as one of 512, on 100 multiprocessors."""
    works = launched(*((name, 0, at * 1_000_000, 60_000) for at in (1, 2, 3)))
    for row, blocks in zip(works["activities"], (8, 8, 512), strict=True):
        row |= {"grid": [blocks, 1, 1], "dur_ns": 40_000 if blocks == 512 else 60_000}
    trace = trace_of(**works, devices=[{"sm_count": 100}])
    note = Note("assumed", "timed-one-by-one", "One by one.")
    said = tf.analyze(replace(trace, notes=(note,))).verdict.sentence
    assert f"{name} takes 100.0 % of the 160 µs of kernel time: 75.0 % of that in launches" in said
    assert remedy in said


def test_the_share_of_a_kernel_is_that_of_all_its_sizes() -> None:
    """Of 100 us, three sizes of one kernel take 30, 20 and 10, and another one takes 40."""
    works = [("resized", 30, 9), ("resized", 20, 8), ("resized", 10, 7), ("other", 40, 6)]
    launches = [
        launch(at, BUSY | {TIME: 1_000.0 * length}, name=name, grid=[at, 1, 1])
        for name, length, at in works
    ]
    sentences = [one.sentence.partition(":")[0] for one in found(*launches)]
    assert "resized (60.0 % of the measured time in 3 sizes; that with most time)" in sentences
    assert "other (40.0 % of the measured time)" in sentences


@pytest.mark.parametrize(("nanoseconds", "is_told"), [(100_000.0, True), (99_000.0, False)])
def test_a_long_kernel_that_reads_the_memory_of_the_host_is_to_have_its_data_copied(
    nanoseconds: float, *, is_told: bool
) -> None:
    """L2 takes in 0.3 % of its peak from the host, and 0.1 % from the GPU: three quarters."""
    fill = "lts__d_sectors_fill_{}.avg.pct_of_peak_sustained_elapsed"
    taken = {fill.format("sysmem"): 0.3, fill.format("device"): 0.1}
    timed = {"gpu__time_duration.sum": nanoseconds}
    (one,) = found(launch(1, FULL | taken | timed, name="some_kernel"))
    assert ("75.0 % of what L2 takes in comes from the memory of the host" in told(one)) == is_told
    assert ("Copy the data to the memory of the GPU" in told(one)) == is_told


@pytest.mark.parametrize("sizes", [1, 3])
def test_the_main_kernel_is_the_one_with_most_time_in_all_sizes(sizes: int) -> None:
    """One in FP64 takes 50 us, the other one 40 us in each size; both are built for debugging."""
    gpu = {"product": "NVIDIA GeForce RTX 2080 Ti", "compute_major": 7, "compute_minor": 5}
    in_fp64 = launch(9, BUSY | {SM: 76.0, FP64: 76.0, TIME: 50_000.0}, name="slow")
    sized = [
        launch(at, BUSY | {TIME: 40_000.0}, name="other", grid=[90 * (at + 1), 1, 1])
        for at in range(sizes)
    ]
    rows = [row | {"device": 0} for rows in (in_fp64, *sized) for row in rows]
    trace = trace_of(kernel_counters=rows, devices=[gpu])
    counts = {DEBUG_BUILD: 1 + sizes, "kernels": 1 + sizes}
    trace = replace(trace, source=replace(trace.source, format="ncu", event_counts=counts))
    analysis = tf.analyze(trace)
    first = next(one for one in analysis.findings if one.rule == COUNTED_KERNEL)
    assert first.sentence.startswith("slow" if sizes == 1 else "other")
    assert ("also built for the debugger" in analysis.verdict.sentence) == (sizes == 1)
