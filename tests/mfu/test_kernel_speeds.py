"""How near counted kernels came to their limits: figures read by eye, spellings, hostile values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import traceflops as tf
from tests.build import trace_of
from tests.conftest import shared_file
from traceflops.analysis.recipe import analyze
from traceflops.mfu.counted.kernel_speeds import KernelSpeed

SOL = "GPU Speed Of Light Throughput|"
LABELS = {
    f"{SOL}Compute (SM) Throughput|%": 9.15,
    f"{SOL}Memory Throughput|%": 19.66,
    f"{SOL}L1/TEX Cache Throughput|%": 11.55,
    f"{SOL}L2 Cache Throughput|%": 8.59,
    f"{SOL}DRAM Throughput|%": 19.66,
    f"{SOL}Duration|ns": 6750.0,
    f"{SOL}Elapsed Cycles|cycle": 13_485.0,
    f"{SOL}SM Active Cycles|cycle": 9_495.42,
    "Occupancy|Theoretical Occupancy|%": 16.67,
    "Occupancy|Achieved Occupancy|%": 11.32,
    "Occupancy|Block Limit Registers|block": 2.0,
    "Occupancy|Block Limit Shared Mem|block": 4.0,
    "Occupancy|Block Limit SM|block": 24.0,
    "Occupancy|Block Limit Warps|block": 12.0,
    "Launch Statistics|Registers Per Thread|register/thread": 168.0,
    "Launch Statistics|Waves Per SM|": 0.66,
}
NAMES = {
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": 9.15,
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": 19.66,
    "l1tex__throughput.avg.pct_of_peak_sustained_active": 11.55,
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": 8.59,
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": 19.66,
    "gpu__time_duration.sum": 6750.0,
    "gpc__cycles_elapsed.max": 13_485.0,
    "sm__cycles_active.avg": 9_495.42,
    "sm__maximum_warps_per_active_cycle_pct": 16.67,
    "sm__warps_active.avg.pct_of_peak_sustained_active": 11.32,
    "launch__occupancy_limit_registers": 2.0,
    "launch__occupancy_limit_shared_mem": 4.0,
    "launch__occupancy_limit_blocks": 24.0,
    "launch__occupancy_limit_warps": 12.0,
    "launch__registers_per_thread": 168.0,
    "launch__waves_per_multiprocessor": 0.66,
}
OLD = {  # Nsight Compute 2018 and 2019
    "sm__sol_pct": 9.15,
    "gpu__compute_memory_sol_pct": 19.66,
    "tex__sol_pct": 11.55,
    "ltc__sol_pct": 8.59,
    "fbpa__sol_pct": 19.66,
    "gpu__time_duration": 6750.0,
    "gpc__elapsed_cycles_max": 13_485.0,
    "sm__active_cycles_avg": 9_495.42,
    "sm__active_warps_avg_per_active_cycle_pct": 11.32,
} | {name: value for name, value in NAMES.items() if name.startswith(("launch", "sm__max"))}


def launch(number: int, values: Mapping[str, float], name: str = "k", **more: Any) -> Any:
    one = {"name": name, "dispatch": number, "threads": 512, "block_threads": 256, **more}
    return [{**one, "counter": counter, "value": float(v)} for counter, v in values.items()]


def speeds_of(*launches: Any, **device: Any) -> tuple[KernelSpeed, ...]:
    rows = [{"device": 0, **row} if device else row for rows in launches for row in rows]
    trace = trace_of(kernel_counters=rows, devices=[device] if device else [])
    work = analyze(trace).measured.executed.work
    assert work is not None
    return work.speeds


def only(values: Mapping[str, float], **device: Any) -> KernelSpeed:
    (speed,) = speeds_of(launch(1, values), **device)
    return speed


def test_a_real_page_meets_the_figures_that_stand_in_it() -> None:
    path = shared_file("traces/nsight/ncu_rtx5090_kernel0001_details.csv")
    work = analyze(tf.read(path)).measured.executed.work
    assert work is not None
    (found,) = work.speeds
    assert found.name.startswith("enable_if<!T7, void>::type kernel<int, int, __nv_bfloat16")
    assert (found.grid, found.block, found.duration_ns) == ((224, 1, 1), (32, 4, 1), 6750)
    shares = {"sm": 0.0915, "memory": 0.1966, "l1": 0.1155, "l2": 0.0859, "dram": 0.1966}
    assert dict(found.throughputs) == shares
    assert (found.achieved_occupancy, found.theoretical_occupancy) == (0.1132, 0.1667)
    assert found.limiters == ("registers",)
    assert found.roof == ("dram", 0.1966)
    assert found.active == pytest.approx(9495.42 / 13485)
    assert (found.registers, found.waves, found.stalls) == (None, 0.7, ())


def test_a_tiny_grid_is_far_from_the_roof_of_l1_though_its_sms_use_l1() -> None:
    """14.2 % of L1 is of the 0.7 % of the time in which SMs were active: no roof is near."""
    path = shared_file("traces/nsight/ncu_rtx5090_kernel0004_details.csv")
    work = analyze(tf.read(path)).measured.executed.work
    assert work is not None
    (found,) = work.speeds
    assert found.throughputs["l1"] == 0.142
    assert found.active == pytest.approx(63.37 / 9357)
    assert found.roof == ("memory", 0.0632)
    assert (found.theoretical_occupancy, found.limiters) == (1.0, ())


def test_waves_that_were_not_counted_follow_from_the_size_of_the_grid() -> None:
    """224 blocks of 256 threads, of which two fit on each of 170 SMs."""
    values = {name: value for name, value in NAMES.items() if "waves" not in name}
    sized = launch(1, values, threads=224 * 256)
    (found,) = speeds_of(sized, device=0, sm_count=170)
    assert found.waves == pytest.approx(224 / 340)
    assert found.is_small
    for unknown in (speeds_of(sized), speeds_of(launch(1, values, threads=None), sm_count=170)):
        assert (unknown[0].waves, unknown[0].is_small) == (None, False)


def test_a_roofline_alone_tells_the_share_of_the_bandwidth() -> None:
    chart = "GPU Speed Of Light Roofline Chart|"
    rate, clock = f"{chart}DRAM Bandwidth|byte/s", f"{chart}DRAM Frequency|Hz"
    width = f"{chart}Theoretical DRAM Bytes Accessible|byte/cycle"
    values = {rate: 98.56e9, clock: 13.79e9, width: 32.0}
    assert only(values).throughputs == {"dram": pytest.approx(0.22335, abs=1e-5)}
    counted = values | {"gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": 30.0}
    assert only(counted).throughputs == {"dram": 0.3}


@pytest.mark.parametrize("values", [LABELS, NAMES, OLD], ids=["labels", "names", "old"])
def test_every_spelling_says_the_same(values: Mapping[str, float]) -> None:
    found = only(values)
    assert dict(found.throughputs) == {
        "sm": 0.0915,
        "memory": 0.1966,
        "l1": 0.1155,
        "l2": 0.0859,
        "dram": 0.1966,
    }
    assert (found.duration_ns, found.limiters) == (6750, ("registers",))
    assert (found.achieved_occupancy, found.theoretical_occupancy) == (0.1132, 0.1667)
    assert found.active == pytest.approx(9495.42 / 13485)
    assert found.registers == 168
    assert found.waves == 0.66


def test_labels_of_2020() -> None:
    section = "GPU Speed Of Light|"
    labels = {"SM [%]|%": 22.48, "Memory [%]|%": 46.47, "SOL TEX|%": 11.33, "SOL L2|%": 13.61}
    found = only(
        {section + label: v for label, v in (labels | {"SOL FB|%": 46.47}).items()}
        | {section + "Duration|ns": 8992.0}
    )
    assert found.roof == ("dram", 0.4647)
    assert found.throughputs["l2"] == 0.1361
    assert found.duration_ns == 8992


def test_a_label_of_another_section_or_unit_is_something_else() -> None:
    values = {
        "Memory Workload Analysis|Memory Throughput|byte/s": 3.0,
        "GPU Speed Of Light Throughput|Memory Throughput|byte/s": 3.0,
        "Occupancy|Duration|ns": 9.0,
        "GPU Speed Of Light Throughput|Compute (SM) Throughput|%": 50.0,
    }
    found = only(values)
    assert dict(found.throughputs) == {"sm": 0.5}
    assert (found.roof, found.duration_ns) == (None, None)


def test_of_the_memory_system_the_part_is_named_that_is_as_busy() -> None:
    def roof(**shares: float) -> Any:
        ids = {"sm": 0, "memory": 1, "l1": 2, "l2": 3, "dram": 4}
        spelled = list(NAMES)
        return only({spelled[ids[name]]: share for name, share in shares.items()}).roof

    assert roof(sm=20, memory=60, l2=60, dram=10) == ("l2", 0.6)
    assert roof(sm=20, memory=60, l2=30, dram=10) == ("memory", 0.6)
    assert roof(sm=80, memory=60, dram=60) == ("sm", 0.8)
    assert roof(sm=20, dram=61.8, l1=90) == ("dram", 0.618)  # of L1 nothing tells the active time
    assert roof(memory=60, dram=60) is None
    assert roof(sm=60, l2=60) is None


def test_all_that_leaves_room_for_as_few_blocks_is_named() -> None:
    both = NAMES | {"launch__occupancy_limit_shared_mem": 2.0}
    assert only(both).limiters == ("registers", "shared memory")
    names = "launch__shared_mem_per_block_static", "launch__shared_mem_per_block_dynamic"
    page = "Launch Statistics|{} Shared Memory Per Block|byte/block"
    for asked in (names, (page.format("Static"), page.format("Dynamic"))):
        for bytes_asked, limiters in ((0.0, ()), (64.0, ("shared memory",))):
            own = dict(zip(asked, (0.0, bytes_asked), strict=True))
            assert only(both | own).limiters == ("registers", *limiters)
    for percent, limiters in ((99.4, ("registers",)), (99.5, ()), (100.0, ())):
        full = NAMES | {"sm__maximum_warps_per_active_cycle_pct": percent}
        assert only(full).limiters == limiters


def test_launches_of_one_size_are_one_row_and_shares_are_means_by_time() -> None:
    shares = ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "gpu__time_duration.sum")
    dram = "dram__throughput.avg.pct_of_peak_sustained_elapsed"

    def one(number: int, sm: float, ns: float, **more: Any) -> Any:
        return launch(number, {shares[0]: sm, shares[1]: ns, dram: 1.0}, **more)

    found = speeds_of(
        one(1, 10, 1000),
        one(2, 40, 3000),
        one(3, 90, 100_000, name="near"),
        one(4, 10, 2000, threads=1024),
        one(5, 50, 10_000, name="half"),
    )
    assert [(row.name, row.launches, row.duration_ns) for row in found] == [
        ("near", 1, 100_000),
        ("half", 1, 10_000),
        ("k", 2, 4000),
        ("k", 1, 2000),
    ]
    assert found[2].throughputs["sm"] == (0.1 * 1000 + 0.4 * 3000) / 4000


def test_what_is_not_known_of_one_launch_is_not_known_of_all() -> None:
    less = {name: value for name, value in NAMES.items() if "lts" not in name}
    (found,) = speeds_of(launch(1, NAMES), launch(2, less | {"launch__registers_per_thread": 64}))
    assert "l2" not in found.throughputs
    assert found.registers is None
    assert found.duration_ns == 13_500


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 105.5, 1e300])
def test_impossible_values_are_unknown(value: float) -> None:
    found = only(NAMES | {"sm__throughput.avg.pct_of_peak_sustained_elapsed": value})
    assert "sm" not in found.throughputs
    assert found.roof is None
    assert found.duration_ns == 6750


def test_shares_above_105_percent_are_counted_in_a_note() -> None:
    rows = launch(1, NAMES | {"sm__throughput.avg.pct_of_peak_sustained_elapsed": 250.0})
    notes = {note.code: note.count for note in analyze(trace_of(kernel_counters=rows)).notes}
    assert notes["shares-impossible"] == 1
    rows = launch(1, NAMES | {"sm__throughput.avg.pct_of_peak_sustained_elapsed": 100.4})
    notes = {note.code: note.count for note in analyze(trace_of(kernel_counters=rows)).notes}
    assert "shares-impossible" not in notes


LATENCY = {"smsp__average_warp_latency_per_inst_issued.ratio": 20.0}
ISSUE = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"


@pytest.mark.parametrize(
    "spelling",
    [
        ISSUE,
        "smsp__average_warp_latency_issue_stalled_{}.ratio",
        "Warp State Statistics|Stall {}|inst",
    ],
)
def test_stalls_are_parts_of_the_cycles_of_a_warp(spelling: str) -> None:
    reasons = {"long_scoreboard": 12.0, "barrier": 3.0, "selected": 1.0}
    if "|" in spelling:
        reasons = {name.replace("_", " ").title(): value for name, value in reasons.items()}
    values = {spelling.format(name): value for name, value in reasons.items()}
    more = {ISSUE.format("barrier_not_issued"): 2.0} if spelling == ISSUE else {}
    found = only(NAMES | values | LATENCY | more)
    assert found.stalls == (("long_scoreboard", 0.6), ("barrier", 0.15))


def test_without_the_whole_stalls_are_parts_of_all_reasons_if_all_were_counted() -> None:
    values = {ISSUE.format("wait"): 3.0, ISSUE.format("selected"): 1.0}
    assert only(NAMES | values).stalls == (("wait", 0.75),)
    assert only(NAMES | {ISSUE.format("wait"): 3.0}).stalls == ()
    of_2019 = "smsp__warp_cycles_per_issue_stall_{}"
    values = {of_2019.format("selected"): 1.0, of_2019.format("wait"): 3.0}
    assert only(NAMES | values).stalls == (("wait", 0.75),)
    samples = {
        "smsp__pcsamp_warps_issue_stalled_wait": 75.0,
        "smsp__pcsamp_warps_issue_stalled_selected": 25.0,
        "smsp__pcsamp_warps_issue_stalled_wait_not_issued": 25.0,
    }
    assert only(NAMES | samples).stalls == (("wait", 0.75),)
    few = samples | {"smsp__pcsamp_warps_issue_stalled_selected": 24.0}
    assert only(NAMES | few).stalls == ()


def rule(dispatch: int, name: str, text: str, share: float | None, **more: Any) -> dict[str, Any]:
    one = {"name": "k", "dispatch": dispatch, "section": "Occupancy", "rule": name, "kind": "OPT"}
    return {**one, "text": text, "speedup_share": share, "speedup_kind": "local", **more}


def test_what_rules_say_of_launches_stands_once_by_its_estimate() -> None:
    rules = [
        rule(1, "Local", "a little", 0.9),
        rule(1, "Slots", "some", 0.2, speedup_kind="global"),
        rule(2, "Slots", "more", 0.4, speedup_kind="global"),
        rule(2, "Slots", "and another thing", None, speedup_kind=None),
        rule(2, "Odd", "no number", math.nan),
        rule(3, "Slots", "of a launch that was not counted", 0.99),
        rule(1, "Slots", "of another kernel", 0.99) | {"name": "other"},
    ]
    rows = [*launch(1, NAMES), *launch(2, NAMES)]
    work = analyze(trace_of(kernel_counters=rows, kernel_rules=rules)).measured.executed.work
    assert work is not None
    (found,) = work.speeds
    told = [(one.rule, one.text, one.launches, one.speedup_share) for one in found.rules]
    assert told == [
        ("Slots", "more", 2, 0.4),
        ("Local", "a little", 1, 0.9),
        ("Slots", "and another thing", 1, None),
        ("Odd", "no number", 1, None),
    ]


MI210 = {"sm_count": 104, "architecture": "gfx90a", "warp_size": 64}
CYCLES = {
    "GRBM_GUI_ACTIVE": 1_000.0,
    "SQ_VALU_MFMA_BUSY_CYCLES": 104_000.0,
    "SQ_ACTIVE_INST_VALU": 52_000.0,
    "SQ_LDS_IDX_ACTIVE": 10_400.0,
    "SQ_BUSY_CU_CYCLES": 98_800.0,
    "SQ_WAVE_CYCLES": 416_000.0,
}


def test_amd_shares_are_of_the_cycles_of_all_cus() -> None:
    """104 CUs with 4 SIMDs and room for 32 waves; waves are counted every fourth cycle."""
    found = only(CYCLES, **MI210)
    assert dict(found.throughputs) == {"matrix": 0.25, "vector": 0.5, "lds": 0.1}
    assert (found.active, found.achieved_occupancy) == (0.95, 0.5)
    assert found.roof is None  # nothing tells what the memory did


@pytest.mark.parametrize(
    "device",
    [{**MI210, "architecture": "gfx942"}, {**MI210, "sm_count": None}, {**MI210, "sm_count": 0}],
)
def test_amd_shares_need_the_cus_and_a_single_die(device: dict[str, Any]) -> None:
    assert speeds_of(launch(1, CYCLES), **device) == ()


@pytest.mark.parametrize("values", [LABELS, NAMES, OLD, CYCLES], ids=range(4))
def test_redacted_reports_say_the_same_and_keep_no_words_of_a_stranger(
    values: Mapping[str, float],
) -> None:
    strange = {
        f"{section}|{label}|{unit}": 1.0
        for section, label, unit in (
            ("GPU Speed Of Light SECRET", "SOL DRAM", "%"),
            ("Occupancy", "Block Limit SECRET", "block"),
            ("Occupancy", "Block Limit SM", "SECRET"),
        )
    }
    rows = [row | {"device": 0} for row in launch(1, dict(values) | strange)]
    trace = trace_of(kernel_counters=rows, devices=[MI210])
    plain, redacted = analyze(trace), analyze(trace, redact=True)
    ours, theirs = plain.measured.executed.work, redacted.measured.executed.work
    assert ours is not None
    assert theirs is not None
    assert [replace(row, name="") for row in theirs.speeds] == [
        replace(row, name="") for row in ours.speeds
    ]
    assert "SECRET" not in redacted.to_json()


@given(
    st.dictionaries(
        st.sampled_from([*LABELS, *NAMES, *OLD, *CYCLES, *LATENCY, ISSUE.format("wait")]),
        st.floats(allow_nan=True, allow_infinity=True),
        min_size=1,
    ),
    st.integers(1, 3),
)
def test_any_values_give_shares_in_bounds(values: dict[str, float], launches: int) -> None:
    trace = trace_of(
        kernel_counters=[row for at in range(launches) for row in launch(at, values)],
        devices=[MI210],
    )
    work = analyze(trace).measured.executed.work
    for row in work.speeds if work is not None else ():
        assert row.launches == launches
        shares = [*row.throughputs.values(), row.active, row.achieved_occupancy]
        shares += [row.theoretical_occupancy, *(share for _, share in row.stalls)]
        assert all(share is None or 0 <= share <= 1.05 for share in shares)


def test_the_launches_of_a_paired_page_stand_beside_a_timeline() -> None:
    timed = trace_of(activities=[{"name": "k", "start_ns": 0, "dur_ns": 5_000}])
    page = trace_of(kernel_counters=launch(1, NAMES))
    page = replace(page, source=replace(page.source, format="ncu"))
    work = analyze(timed, pair=page).measured.executed.work
    assert work is not None
    (found,) = work.speeds
    assert found.limiters == ("registers",)
