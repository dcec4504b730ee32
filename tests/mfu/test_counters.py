"""Counters of one run and times of another: HFU, coverage, roofline, and what stays unknown."""

from __future__ import annotations

import csv
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.build import trace_of
from tests.conftest import shared_file
from tests.mfu.counting import (
    ADD,
    ADD_NS,
    BF16,
    FLOPS,
    GAP_NS,
    GEMM,
    GEMM_NS,
    MI300X,
    MOPS,
    TYPES,
    UNITS,
    counted,
    launch,
    matrix,
    part_of,
    rocprof,
    timed,
)
from traceflops.analysis.recipe import analyze
from traceflops.mfu.budget import PeakOptions
from traceflops.mfu.measurement import Measurement
from traceflops.parsers.reading import read
from traceflops.table.trace import Note, Trace

BYTES = {"FETCH_SIZE": 24.0, "WRITE_SIZE": 8.0}


def measured(trace: Trace, pair: Trace | None = None, **peaks: Any) -> Measurement:
    return analyze(trace, pair=pair, peaks=PeakOptions(**peaks)).measured


def ways(found: Measurement, place: int = 0) -> dict[str, int]:
    """Return how many launches were joined in each way."""
    assert found.executed.work is not None
    return {part.how: part.launches for part in found.executed.work.joins[place].parts}


def codes(found: Measurement) -> set[str]:
    return {note.code for note in found.notes}


def window_ns(pairs: int) -> int:
    """Return how long a timed run takes: no gap behind the last kernel."""
    return pairs * (GEMM_NS + ADD_NS + 2 * GAP_NS) - GAP_NS


def test_hfu_is_what_was_counted_over_what_the_device_could_do() -> None:
    found = measured(rocprof(timed(50), counted(50)))
    assert found.hfu == Fraction(50 * FLOPS, window_ns(50) * BF16)
    assert found.executed.executed_flops == 50 * FLOPS
    assert found.executed.coverage == 1
    assert (found.figure, found.basis) == (
        "HFU 27.4 %",
        "from counters, bf16 dense 1,307.4 TFLOP/s",
    )
    assert ways(found) == {"order": 50}


def test_mfu_is_not_claimed_from_counters() -> None:
    """They do not tell recomputation and padding from what the model needs."""
    found = measured(rocprof(timed(50), counted(50)))
    assert (found.mfu, found.mfu_range, found.busy_mfu) == (None, None, None)
    (lack,) = found.lacks
    assert "recomputation and padding" in lack.problem
    assert "--model" in lack.remedy
    assert "--pair" in lack.remedy
    assert found.waterfall is not None
    amounts = {line.name: line.amount for line in found.waterfall.lines}
    budget = window_ns(50) * BF16
    assert amounts.pop("executed") == 50 * FLOPS
    assert amounts.pop("inefficiency") == 50 * (GEMM_NS * BF16 - FLOPS)
    assert amounts.pop("memory") == 50 * ADD_NS * BF16
    assert amounts.pop("idle") == (2 * 50 - 1) * GAP_NS * BF16
    assert not any(amounts.values())
    assert sum(line.amount for line in found.waterfall.lines) == budget


def test_a_run_of_other_length_is_joined_by_name_and_size() -> None:
    """All counted launches of a kernel in a size did the same, so the timed ones did, too."""
    found = measured(rocprof(timed(50), counted(7)))
    assert ways(found) == {"alike": 50}
    assert found.executed.executed_flops == 50 * FLOPS


def test_launches_of_one_size_that_differ_are_a_range() -> None:
    units = [UNITS, UNITS // 2, UNITS // 4]
    found = measured(rocprof(timed(50), counted(51, units * 17)))
    assert ways(found) == {"between": 50}
    assert found.executed.executed_flops == 50 * FLOPS
    assert found.executed.executed_at_least == 50 * FLOPS // 4
    assert found.hfu_range is not None
    assert found.hfu_range.least == found.hfu_range.most / 4
    assert found.figure == "HFU 6.86 % to 27.4 %"


def test_some_launches_that_differ_bound_nothing() -> None:
    """Three of fifty were counted: the others may have done less or more than any of them."""
    found = measured(rocprof(timed(50), counted(3, [UNITS, UNITS // 2, UNITS // 4])))
    assert ways(found) == {"ambiguous": 50}
    assert found.executed.executed_flops == 0
    assert found.hfu is None
    assert found.hfu_range is None
    assert any("only in part" in note.text for note in found.notes)


def test_in_equal_numbers_each_launch_has_its_own_counters() -> None:
    units = [UNITS, UNITS // 2, UNITS // 4]
    found = measured(rocprof(timed(3), counted(3, units)))
    assert ways(found) == {"order": 3}
    assert found.executed.executed_flops == found.executed.executed_at_least == FLOPS * 7 // 4


def test_launches_in_another_size_are_not_the_same() -> None:
    other = [{**row, "threads": row["threads"] * 2} for row in counted(50)]
    found = measured(rocprof(timed(50), other))
    assert ways(found) == {"absent": 50}
    assert found.hfu is None
    assert "no launch with its name and size" in found.lacks[0].remedy


def test_the_order_of_dispatch_counts_not_that_of_the_rows() -> None:
    rows = counted(3, [UNITS, UNITS // 2, UNITS // 4])
    straight, shuffled = rocprof(timed(3), rows), rocprof(timed(3), rows[::-1])
    first, second = (measured(one).executed.work for one in (straight, shuffled))
    assert first is not None
    assert second is not None

    def flops(work: Any) -> list[int]:
        return [sum(p.flops for p in work.kinds[kind]) for kind in work.kind.tolist() if kind >= 0]

    assert flops(first) == flops(second) == [FLOPS, 0, FLOPS // 2, 0, FLOPS // 4, 0]


def test_passes_are_one_run() -> None:
    """Each pass is a process of its own and has a part of the counters."""
    half = [name for name in TYPES if name != "F8"]
    rows = [
        *counted(5, types=half, repetition=1, process=1),
        *(
            row
            for place in range(1, 11)
            for row in launch(
                place,
                GEMM if place % 2 else ADD,
                256 if place % 2 else 512,
                {f"{MOPS}F8": 0.0, **BYTES},
                repetition=2,
                process=2,
            )
        ),
    ]
    processes = [{"process": n} for n in range(3)]
    found = measured(rocprof(timed(5), rows, processes=processes))
    assert found.executed.executed_flops == 5 * FLOPS
    (row,) = [row for row in found.kernels if row.name == GEMM]
    assert row.measured.min_bytes == 5 * 32 * 1024
    assert "passes-uneven" not in codes(found)


def test_passes_that_launch_another_number_of_times_are_not_put_together() -> None:
    half = [name for name in TYPES if name != "F8"]
    rows = [
        *counted(5, types=half, repetition=1),
        *counted(4, types=["F8"], repetition=2),
    ]
    found = measured(rocprof(timed(5), rows))
    assert found.hfu is None
    assert {"passes-uneven", "counters-partial"} <= codes(found)


def test_a_counter_read_twice_with_other_values_is_not_taken() -> None:
    rows = [*counted(5, repetition=1), *counted(5, [UNITS + 1] * 5, repetition=2)]
    found = measured(rocprof(timed(5), rows))
    assert found.hfu is None
    assert "counters-disagree" in codes(found)
    same = measured(rocprof(timed(5), [*counted(5, repetition=1), *counted(5, repetition=2)]))
    assert same.executed.executed_flops == 5 * FLOPS


def test_bytes_of_passes_may_differ_a_little() -> None:
    """What caches hold differs from run to run: up to 2 % the mean counts."""
    for other, expected in ((24.25, 5 * (24.125 + 8) * 1024), (30.0, None)):
        rows = [
            *counted(5, more=BYTES, repetition=1),
            *counted(5, more={"FETCH_SIZE": other}, repetition=2),
        ]
        found = measured(rocprof(timed(5), rows))
        (row,) = [row for row in found.kernels if row.name == GEMM]
        assert row.measured.min_bytes == expected


def test_the_same_dispatch_of_the_same_run() -> None:
    """Both of one run: the correlation tells which launch is which, however many there are."""
    units = [UNITS, UNITS // 2, UNITS // 4]
    rows = [{**row, "correlation": row["dispatch"]} for row in counted(3, units)][:-10]
    found = measured(rocprof(timed(3), rows))
    assert ways(found) == {"dispatch": 2, "ambiguous": 1}
    assert "counted-while-timed" in codes(found)


def test_that_counters_are_of_the_timed_run_is_said_once() -> None:
    rows = [{**row, "correlation": row["dispatch"]} for row in counted(3, [UNITS])]
    trace = rocprof(timed(3), rows)
    said = replace(trace, notes=(Note("assumed", "counted-while-timed", "Said by the reader."),))
    for one in (said, trace):
        notes = [note.text for note in analyze(one).notes if note.code == "counted-while-timed"]
        assert len(notes) == 1


def test_times_of_a_counted_run_are_never_used() -> None:
    """The pair's own times are ten times as long, and nothing changes."""
    slow = [{**row, "dur_ns": 10 * row["dur_ns"]} for row in timed(50)]
    slow = [{**row, "start_ns": 10 * row["start_ns"]} for row in slow]
    pair = rocprof(slow, counted(50), file="counted.csv")
    found = measured(rocprof(timed(50)), pair)
    assert found.hfu == Fraction(50 * FLOPS, window_ns(50) * BF16)
    assert found.executed.work is not None
    (join,) = found.executed.work.joins
    assert (join.origin, join.file) == ("counters", "counted.csv")
    assert join.share == 1


def test_counters_as_a_pair_need_no_device_of_their_own() -> None:
    found = measured(rocprof(timed(50)), rocprof((), counted(50), file="counters.csv"))
    assert found.hfu == Fraction(50 * FLOPS, window_ns(50) * BF16)


@pytest.mark.parametrize("strange_ns", [20, 200, 2_000, 5_000])
def test_coverage_is_that_of_shapes(strange_ns: int) -> None:
    """From 95 % of the FLOPs on one figure; below 50 % of the time none; else a range."""
    more = {"name": "Cijk_of_nobody", "start_ns": window_ns(1), "dur_ns": strange_ns}
    found = measured(rocprof([*timed(1), more], counted(1)))
    known = found.executed.coverage
    assert known == Fraction(GEMM_NS, GEMM_NS + strange_ns)
    if known < Fraction(1, 2):
        assert found.hfu is None
        assert "too little" in found.lacks[0].problem
        return
    budget = (window_ns(1) + strange_ns) * BF16
    unknown = strange_ns * BF16
    open_share = unknown if 95 * (FLOPS + unknown) > 100 * FLOPS else 0
    assert found.hfu_range is not None
    assert found.hfu == found.hfu_range.least == Fraction(FLOPS, budget)
    assert found.hfu_range.most == Fraction(FLOPS + open_share, budget)


def test_some_counters_of_a_formula_are_none() -> None:
    """Only bf16 was counted: that other types did nothing is not known."""
    found = measured(rocprof(timed(50), counted(50, types=["BF16"])))
    assert (found.hfu, found.executed.executed_flops) == (None, 0)
    (lack,) = found.lacks
    for name in ("F16", "F32", "F64", "F8"):
        assert MOPS + name in lack.problem
        assert MOPS + name in lack.remedy
    assert lack.remedy.startswith("rocprofv3 --pmc ")
    assert found.executed.work is not None
    row = next(row for row in found.executed.work.counted if row.name == GEMM)
    assert (row.flops, row.by_type["bf16"], row.by_type["fp16"]) == (None, 50 * FLOPS, None)


def test_hardware_without_counters_of_matrix_work_says_so() -> None:
    radeon = {"architecture": "gfx1100", "product": "AMD Radeon RX 7900 XTX"}
    found = measured(rocprof(timed(5), counted(5, more=BYTES), device=radeon))
    assert found.hfu is None
    assert "RDNA 1 to 3 (gfx10, gfx11) do not count matrix work" in found.lacks[0].problem
    row = next(row for row in found.kernels if row.name == GEMM)
    assert (row.measured.flops, row.measured.min_bytes) == (None, 5 * 32 * 1024)
    assert row.measured.time_ns == 5 * GEMM_NS


def test_counters_of_an_unknown_device_make_no_total() -> None:
    nameless = {"product": None, "architecture": None}
    trace = rocprof(timed(5), counted(5), device=nameless)
    found = measured(trace)
    assert found.hfu is None
    assert "unknown GPU" in found.lacks[0].problem
    assert measured(trace, device="mi300x").executed.executed_flops == 5 * FLOPS


def test_an_export_without_counters_says_what_would_tell() -> None:
    found = measured(rocprof(timed(5)))
    (lack,) = found.lacks
    assert lack.problem == "rocprof records no shapes, so FLOPs are unknown"
    for words in ("--model", "--batch", "--pair", "docs/counters.md"):
        assert words in lack.remedy
    old = measured(rocprof(timed(5), device={**MI300X, "architecture": "gfx908"}))
    assert "gfx908 (MI100) do not count matrix work" in old.lacks[0].problem
    assert "counters" not in old.lacks[0].remedy


def test_other_counters_are_no_flops() -> None:
    rows = [row for n in range(1, 11) for row in launch(n, GEMM, 256, {"SQ_WAVES": 4.0})]
    found = measured(rocprof(timed(5), rows))
    assert found.lacks[0].problem == "none of the recorded counters counts matrix work"


def test_a_program_without_matrix_work_has_no_utilisation_of_it() -> None:
    found = measured(rocprof(timed(5), counted(5, [0] * 5)))
    assert found.executed.coverage == 1
    assert found.hfu is None
    assert "no kernel used matrix units" in found.lacks[0].problem


def test_counters_alone_have_no_utilisation() -> None:
    found = measured(rocprof((), counted(5, more=BYTES)))
    (lack,) = found.lacks
    assert "10 launches with counters ran one by one" in lack.problem
    assert "--pair" in lack.remedy
    assert found.executed.work is not None
    counts = {row.name: (row.launches, row.read) for row in found.executed.work.counted}
    assert counts == {GEMM: (5, 5 * 24 * 1024), ADD: (5, 5 * 24 * 1024)}


def test_matrix_units_busy() -> None:
    cycles = {"SQ_VALU_MFMA_BUSY_CYCLES": 608.0 * 4, "GRBM_GUI_ACTIVE": 10.0}
    rows = [{**row, "device": 0} for row in counted(5, more=cycles)]
    found = measured(rocprof(timed(5), rows))
    assert found.executed.work is not None
    assert {row.busy for row in found.executed.work.counted} == {Fraction(2, 10)}


def test_a_roofline_by_counters_says_so() -> None:
    """537 TFLOP/s at 655 FLOP per byte: above the balance of 245.5."""
    analysis = analyze(
        rocprof(timed(50), counted(50, more={"FETCH_SIZE": 3000, "WRITE_SIZE": 200}))
    )
    rows = {row["name"]: row for row in _json(analysis)["utilisation"]["kernels"]}
    assert (rows[GEMM]["bound"], rows[GEMM]["bound_by"]) == ("compute", "counters")
    assert rows[GEMM]["intensity"] == pytest.approx(FLOPS / (3200 * 1024))
    assert (rows[ADD]["bound"], rows[ADD]["bound_by"]) == ("memory", "counters")
    assert {rows[name]["basis"] for name in rows} == {"counters"}


def _json(analysis: Any) -> Any:
    return json.loads(analysis.to_json())


def test_ranks_have_counters_of_their_own() -> None:
    """Rank 1 does half of the work of rank 0, and its counters say so."""
    both = {
        "processes": [{"process": 0, "rank": 0}, {"process": 1, "rank": 1}],
        "devices": [{**MI300X, "device": n, "process": n} for n in range(2)],
    }
    work = [*timed(4), *timed(4, process=1)]
    rows = [*counted(4), *counted(4, [UNITS // 2] * 4, process=1)]
    trace = trace_of(activities=work, kernel_counters=rows, **both)
    found = measured(trace)
    by_device = {
        device: sum(cell.flops for cell in part_of(found.executed, device).used_cells)
        for device in (0, 1)
    }
    assert by_device == {0: 4 * FLOPS, 1: 4 * FLOPS // 2}


def test_processes_of_one_trace_are_the_same_without_ranks() -> None:
    both = {
        "processes": [{"process": 0}, {"process": 1}],
        "devices": [{**MI300X, "device": n, "process": n} for n in range(2)],
    }
    work = [*timed(4), *timed(4, process=1)]
    rows = [*counted(4), *counted(4, [UNITS // 2] * 4, process=1)]
    timed_run = trace_of(activities=work, kernel_counters=rows, **both)
    assert ways(measured(timed_run)) == {"order": 8}
    pair = trace_of(kernel_counters=rows, **both)
    apart = measured(trace_of(activities=work, **both), pair)
    assert ways(apart) == {"order": 8}, "the first process is the first of as many"
    alone = {**both, "processes": [{"process": 0}], "devices": both["devices"][:1]}
    less = measured(trace_of(activities=timed(4), **alone), pair)
    assert ways(less) == {"between": 4}, "which of two processes is the only one is not known"


def test_counters_of_one_rank_are_those_of_all_by_name_and_size() -> None:
    both = {
        "processes": [{"process": 0, "rank": 0}, {"process": 1, "rank": 1}],
        "devices": [{**MI300X, "device": n, "process": n} for n in range(2)],
    }
    trace = trace_of(
        activities=[*timed(4), *timed(4, process=1)], kernel_counters=counted(4), **both
    )
    found = measured(trace)
    assert ways(found) == {"order": 4, "alike": 4}
    assert found.executed.executed_flops == 8 * FLOPS


def test_endings_of_names_do_not_tell_kernels_apart() -> None:
    rows = [{**row, "name": f"{row['name']}.kd"} for row in counted(5)]
    assert measured(rocprof(timed(5), rows)).executed.executed_flops == 5 * FLOPS


def test_dtypes_make_a_waterfall_of_time() -> None:
    rows = [
        row
        for n in range(1, 5)
        for row in launch(n, GEMM, 256, {**matrix(UNITS), f"{MOPS}F8": 2.0 * UNITS})
    ]
    found = measured(rocprof([row for row in timed(4) if row["name"] == GEMM], rows))
    assert found.waterfall is not None
    assert found.waterfall.dtypes == ("bf16", "fp8")
    window = 4 * GEMM_NS + 3 * (ADD_NS + 2 * GAP_NS)
    assert found.hfu == 4 * Fraction(FLOPS, BF16 * window) + 4 * Fraction(
        2 * FLOPS, 2_614_900 * window
    )


def test_files_of_rocprofv3_are_joined(tmp_path: Path) -> None:
    """A timed run, two counted ones and the agents in a folder, as the tool writes them."""
    write(tmp_path / "1_agent_info.csv", [AGENT])
    times: list[dict[str, Any]] = []
    first: list[dict[str, Any]] = []
    second: list[dict[str, Any]] = []
    for row in timed(6):
        number, blocks = row["correlation"], row["grid"][0]
        start, size = row["start_ns"] + 10**15, 256 * blocks
        times.append(
            {
                "Kind": "KERNEL_DISPATCH",
                "Agent_Id": "Agent 4",
                "Queue_Id": 1,
                "Stream_Id": 1,
                "Thread_Id": 7,
                "Dispatch_Id": number,
                "Kernel_Id": 1,
                "Kernel_Name": row["name"],
                "Correlation_Id": number,
                "Start_Timestamp": start,
                "End_Timestamp": start + row["dur_ns"],
                "LDS_Block_Size": 0,
                "Scratch_Size": 0,
                "VGPR_Count": 8,
                "Accum_VGPR_Count": 0,
                "SGPR_Count": 16,
                "Workgroup_Size_X": 256,
                "Workgroup_Size_Y": 1,
                "Workgroup_Size_Z": 1,
                "Grid_Size_X": size,
                "Grid_Size_Y": 1,
                "Grid_Size_Z": 1,
            }
        )
        values = matrix(UNITS if row["name"] == GEMM else 0)
        for rows, counters in ((first, values), (second, BYTES)):
            rows += [
                {
                    "Correlation_Id": number,
                    "Dispatch_Id": number,
                    "Agent_Id": "Agent 4",
                    "Queue_Id": 1,
                    "Process_Id": 9,
                    "Thread_Id": 9,
                    "Grid_Size": size,
                    "Kernel_Id": 1,
                    "Kernel_Name": row["name"],
                    "Workgroup_Size": 256,
                    "LDS_Block_Size": 0,
                    "Scratch_Size": 0,
                    "VGPR_Count": 8,
                    "Accum_VGPR_Count": 0,
                    "SGPR_Count": 16,
                    "Counter_Name": counter,
                    "Counter_Value": f"{value:.6f}",
                    "Start_Timestamp": 1,
                    "End_Timestamp": 2,
                }
                for counter, value in counters.items()
            ]
    write(tmp_path / "1_kernel_trace.csv", times)
    write(tmp_path / "pmc_1" / "2_counter_collection.csv", first)
    write(tmp_path / "pmc_2" / "3_counter_collection.csv", second)
    found = measured(read([tmp_path]))
    assert found.hfu == Fraction(6 * FLOPS, window_ns(6) * BF16)
    assert ways(found) == {"order": 6}
    (gemm,) = [one for one in found.kernels if one.name == GEMM]
    assert gemm.measured.min_bytes == 6 * 32 * 1024
    alone = tmp_path / "pmc_1"
    write(alone / "2_agent_info.csv", [AGENT])
    counts = measured(read([alone])).executed.work
    assert counts is not None
    assert {row.name: row.flops for row in counts.counted} == {GEMM: 6 * FLOPS, ADD: 0}


AGENT: dict[str, Any] = {
    "Node_Id": 4,
    "Logical_Node_Id": 4,
    "Agent_Type": "GPU",
    "Simd_Count": 1216,
    "Wave_Front_Size": 64,
    "Num_Xcc": 8,
    "Cu_Count": 304,
    "Gfx_Target_Version": 90402,
    "Max_Engine_Clk_Fcompute": 2100,
    "Local_Mem_Size": 205_822_885_888,
    "Name": "gfx942",
    "Vendor_Name": "AMD",
    "Product_Name": "AMD Instinct MI300X",
}


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), quoting=csv.QUOTE_NONNUMERIC)
        writer.writeheader()
        writer.writerows(rows)


def test_a_public_run_on_rdna_has_bytes_read_and_no_flops() -> None:
    trace = read([shared_file("traces/rocprof/v3_csv_rdna35_llamacpp")])
    found = measured(trace)
    assert found.hfu is None
    assert found.lacks[0].problem == "GPU records are incomplete"  # most were cut out
    assert found.executed.work is not None
    rows = {row.name: row for row in found.executed.work.counted}
    copy = rows["__amd_rocclr_copyBuffer"]
    assert (copy.launches, copy.read, copy.written) == (2, 10_880 + 10_752, None)
    assert all(row.flops is None for row in rows.values())
    assert sum(row.launches for row in rows.values()) == 34


def test_nothing_of_it_is_there_without_counters() -> None:
    found = measured(replace(rocprof(timed(5)), notes=()))
    assert found.executed.work is None
    assert found.sources == ("trace",)
