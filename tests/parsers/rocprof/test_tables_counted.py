"""Counters in rocprof's CSV: what was written again, single passes, whose run they are of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import traceflops as tf
from tests.parsers.rocprof.tablefiles import (
    COUNTERS,
    V1_NEW,
    V1_TIMES,
    V2_60,
    V3_KERNELS,
    agent,
    agents,
    codes,
    counter,
    counters,
    kernel,
    kernels,
    read,
    rows,
    table,
    v1_row,
)
from traceflops.parsers.io.places import find_inputs
from traceflops.parsers.rocprof.tables.counters import counted_once
from traceflops.parsers.rocprof.tables.read import read_table
from traceflops.reports.view.findings import opening

WAVES = {"SQ_WAVES": 16.0, "SQ_INSTS_VALU": 400.0}


def counted(launches: int = 3, values: Mapping[str, float] = WAVES, **more: Any) -> str:
    """Return counters of several launches of which each has its own values."""
    return counters(
        *(
            counter(n, name, n * value, **more)
            for n in range(1, launches + 1)
            for name, value in values.items()
        )
    )


def sums(trace: tf.Trace) -> dict[str, float]:
    """Return the sum of each counter over all rows."""
    found: dict[str, float] = {}
    for name, value in rows(trace, "kernel_counters", "counter", "value"):
        found[name] = found.get(name, 0.0) + value
    return found


ONCE = {"SQ_WAVES": 96.0, "SQ_INSTS_VALU": 2400.0}
"""Of three launches with once, twice and three times as much."""


def again() -> dict[str, dict[str, str]]:
    """Return files in which the counters of one run stand twice."""
    text = counted()
    half = "\n".join(text.split("\n")[:4]) + "\n"
    return {
        "behind a header": {"77_counter_collection.csv": text + text},
        "in part": {"77_counter_collection.csv": text + half},
        "copied": {"77_counter_collection.csv": text, "77_counter_collection (1).csv": text},
        "under another name": {"77_counter_collection.csv": text, "old.csv": text},
        "saved again": {
            "77_counter_collection.csv": text,
            "saved.csv": text.replace(".000000", "").replace(",", ";"),
        },
    }


@pytest.mark.parametrize("how", again())
def test_counters_that_stand_twice_count_once(how: str, tmp_path: Path) -> None:
    trace = read(tmp_path, again()[how])
    assert sums(trace) == ONCE
    assert trace.kernel_counters.num_rows == 6
    assert "instances-summed" not in codes(trace)
    assert ignored(trace) == (3 if how == "in part" else 6)


def test_one_launch_that_stands_twice_behind_a_header(tmp_path: Path) -> None:
    text = counted(1, {"SQ_WAVES": 16.0})
    trace = read(tmp_path, {"77_counter_collection.csv": text + text})
    assert sums(trace) == {"SQ_WAVES": 16.0}


def test_columns_that_stand_twice_count_once(tmp_path: Path) -> None:
    text = table(f"{V1_NEW} SQ_WAVES", [v1_row(n, 1, 2, SQ_WAVES=4 + n) for n in range(3)])
    trace = read(tmp_path, {"results.csv": text + text})
    assert sums(trace) == {"SQ_WAVES": 15.0}
    assert trace.kernel_counters.num_rows == 3


def ignored(trace: tf.Trace) -> int | None:
    """Return how many values are said to stand in the files before."""
    (note,) = [note for note in trace.notes if note.code == "counters-written-twice"]
    return note.count


@pytest.mark.parametrize("rows_again", [1, 3, 6, 18])
def test_equal_rows_apart_in_one_table_count_once(rows_again: int, tmp_path: Path) -> None:
    """Written again without its header, or each part of the chip in turn: the text is the same."""
    counts = {"SQ_WAVES": 16.0, "GRBM_COUNT": 7.0}
    head, *lines = counted(3, counts).splitlines()
    file = "\n".join([head, *lines, *(lines * 3)[:rows_again]]) + "\n"
    trace = read(tmp_path, {"77_counter_collection.csv": file})
    assert sums(trace) == {"SQ_WAVES": 96.0, "GRBM_COUNT": 42.0}
    assert ignored(trace) == rows_again


def test_instances_side_by_side_show_that_rows_apart_are_copies(tmp_path: Path) -> None:
    head, *lines = counters(
        *(counter(n, "SQ_WAVES", 8.0 * n) for n in (1, 2) for _ in range(4))
    ).splitlines()
    trace = read(tmp_path, {"77_counter_collection.csv": "\n".join([head, *lines, *lines, ""])})
    assert rows(trace, "kernel_counters", "dispatch", "value") == [(1, 32.0), (2, 64.0)]
    assert ignored(trace) == 8


def test_a_part_of_the_chip_that_comes_again_with_other_values_is_left_out(tmp_path: Path) -> None:
    each = [
        {"Dispatch_ID": n, "PID": 7, "Kernel_Name": "f", "XCC_Index": x, "SQ_WAVES": value}
        for value in (5, 6)
        for n in (1, 2)
        for x in range(2)
    ]
    trace = read(tmp_path, {"results_a.csv": table(f"{V2_60} XCC_Index SQ_WAVES", each)})
    assert rows(trace, "kernel_counters", "dispatch", "value") == [(1, 10.0), (2, 10.0)]
    assert ignored(trace) == 4


@pytest.mark.parametrize("values", [(4.0, 12.0), (8.0, 8.0), (0.0, 16.0)])
def test_instances_are_added_even_where_they_count_the_same(
    values: tuple[float, float], tmp_path: Path
) -> None:
    each = [counter(n, "SQ_WAVES", value) for n in (1, 2, 3) for value in values]
    trace = read(tmp_path, {"77_counter_collection.csv": counters(*each)})
    assert rows(trace, "kernel_counters", "dispatch", "value") == [(1, 16.0), (2, 16.0), (3, 16.0)]
    assert "counters-written-twice" not in codes(trace)
    (note,) = [note for note in trace.notes if note.code == "instances-summed"]
    assert note.count == 3


def test_instances_that_stand_twice_are_added_once(tmp_path: Path) -> None:
    text = counters(*(counter(n, "SQ_WAVES", v) for n in (1, 2) for v in (4, 12)))
    trace = read(tmp_path, {"77_counter_collection.csv": text + text})
    assert rows(trace, "kernel_counters", "dispatch", "value") == [(1, 16.0), (2, 16.0)]


def test_other_values_apart_from_the_first_are_left_out(tmp_path: Path) -> None:
    each = [counter(n, "SQ_WAVES", value) for value in (4, 12) for n in (1, 2)]
    trace = read(tmp_path, {"77_counter_collection.csv": counters(*each)})
    assert rows(trace, "kernel_counters", "dispatch", "value") == [(1, 4.0), (2, 4.0)]
    assert ignored(trace) == 2


@pytest.mark.parametrize("by_part", [False, True])
def test_parts_of_the_chip_are_told_by_their_number(by_part: bool, tmp_path: Path) -> None:
    """Each of eight counts the same, so nothing but the number shows that they are eight."""
    each = [
        {"Dispatch_ID": n, "PID": 7, "Kernel_Name": "f", "XCC_Index": x, "SQ_WAVES": 5}
        for n in (1, 2)
        for x in range(8)
    ]
    each.sort(key=lambda row: row["XCC_Index"] if by_part else 0)
    file = table(f"{V2_60} XCC_Index SQ_WAVES", each)
    trace = read(tmp_path, {"results_a.csv": file})
    assert rows(trace, "kernel_counters", "dispatch", "value") == [(1, 40.0), (2, 40.0)]
    assert "counters-written-twice" not in codes(trace)


def test_another_file_of_the_same_launches_adds_only_other_counters(tmp_path: Path) -> None:
    more = {"SQ_WAVES": 16.0, "SQ_INSTS_VALU": 401.0, "FETCH_SIZE": 3.0}
    files = {
        "a_counter_collection.csv": counted(2),
        "b_counter_collection.csv": counted(2, more),
    }
    trace = read(tmp_path, files)
    assert sums(trace) == {"SQ_WAVES": 48.0, "SQ_INSTS_VALU": 1200.0, "FETCH_SIZE": 9.0}
    assert ignored(trace) == 4


def test_instances_of_a_wide_table_are_added_across_blocks(tmp_path: Path) -> None:
    each = [
        {"Dispatch_ID": n, "PID": 7, "Kernel_Name": "f", "SQ_WAVES": 1, "FETCH_SIZE": 2}
        for n in range(9_000)
        for _ in range(4)
    ]
    path = tmp_path / "results_a.csv"
    path.write_text(table(f"{V2_60} SQ_WAVES FETCH_SIZE", each))
    (source,) = find_inputs(str(path))[0]
    file = read_table(source, block_bytes=1)
    (part,) = file.parts.values()
    assert len(part["kernel_counters"].pieces) > 2
    once = counted_once([part], Counter())
    assert sorted(once.column("value").tolist()) == [4.0] * 9_000 + [8.0] * 9_000


PERF = "Dispatch_ID GPU_ID PID Grid_Size Workgroup_Size Kernel_Name Start_Timestamp End_Timestamp"
SYSTEM = "workload_name,gpu_arch,gpu_model\nwl,gfx942,MI300X_A1\n"


def perf(values: Mapping[str, int], pid: int = 7) -> str:
    """Return a table of rocprof-compute with some counters of two launches."""
    each = [
        {"Dispatch_ID": n, "PID": pid, "GPU_ID": 0, "Kernel_Name": "f", **values} for n in (0, 1)
    ]
    return table(f"{PERF} {' '.join(values)}", each, quoted=False)


@pytest.mark.parametrize("pid", [7, 8])
def test_single_passes_add_what_the_merged_table_lacks(pid: int, tmp_path: Path) -> None:
    files = {
        "sysinfo.csv": SYSTEM,
        "pmc_perf.csv": perf({"SQ_WAVES": 3, "FETCH_SIZE": 5, "GRBM_COUNT": 9}),
        "pmc_perf_0.csv": perf({"SQ_WAVES": 3, "GRBM_COUNT": 8}, pid),
        "SQ_LEVEL_WAVES.csv": perf({"GRBM_COUNT": 7, "SQ_LEVEL_WAVES": 11}, pid + 1),
    }
    trace = read(tmp_path, files)
    assert trace.processes.num_rows == 1
    assert sums(trace) == {
        "SQ_WAVES": 6.0,
        "FETCH_SIZE": 10.0,
        "GRBM_COUNT": 18.0,
        "SQ_LEVEL_WAVES": 22.0,
    }
    (note,) = [note for note in trace.notes if note.code == "merged-passes"]
    assert note.count == 2
    assert "instances-summed" not in codes(trace)


@pytest.mark.parametrize("below", ["out/pmc_1/x", "out/pmc_1", "raw"])
def test_single_passes_in_a_folder_of_the_workload_are_put_to_it(
    below: str, tmp_path: Path
) -> None:
    files = {
        "wl/sysinfo.csv": SYSTEM,
        "wl/pmc_perf.csv": perf({"SQ_WAVES": 3, "FETCH_SIZE": 5, "GRBM_COUNT": 9}),
        f"wl/{below}/pmc_perf_1.csv": perf({"SQ_WAVES": 3, "GRBM_COUNT": 8, "SQ_INSTS": 4}, 8),
        "other/sysinfo.csv": SYSTEM,
        "other/pmc_perf.csv": perf({"SQ_WAVES": 100}, 9),
    }
    trace = read(tmp_path, files)
    assert trace.processes.num_rows == 2
    assert sums(trace) == {
        "SQ_WAVES": 206.0,
        "FETCH_SIZE": 10.0,
        "GRBM_COUNT": 18.0,
        "SQ_INSTS": 8.0,
    }
    (note,) = [note for note in trace.notes if note.code == "merged-passes"]
    assert note.count == 1


def test_a_timeline_below_a_workload_is_a_run_of_its_own(tmp_path: Path) -> None:
    files = {
        "sysinfo.csv": SYSTEM,
        "pmc_perf.csv": perf({"SQ_WAVES": 3}),
        "traced/77_kernel_trace.csv": kernels(kernel(10, 20)),
        "traced/77_agent_info.csv": agents(agent(0, "CPU"), agent(2)),
    }
    assert read(tmp_path, files).processes.num_rows == 2


def test_tables_of_several_processes_are_no_passes_of_one_without_a_workload(
    tmp_path: Path,
) -> None:
    files = {"a.csv": perf({"SQ_WAVES": 3, "FETCH_SIZE": 5}), "b.csv": perf({"SQ_WAVES": 3}, 8)}
    trace = read(tmp_path, files)
    assert trace.processes.num_rows == 2
    assert sums(trace) == {"SQ_WAVES": 12.0, "FETCH_SIZE": 10.0}


def own_gpu(node: int, **more: Any) -> str:
    """Return the list of a process that may use one GPU."""
    return agents(agent(0, "CPU"), agent(node, Logical_Node_Id=1, **more))


def test_each_process_has_its_own_list_of_agents(tmp_path: Path) -> None:
    files = {
        "70_kernel_trace.csv": kernels(kernel(10, 20, Agent_Id="Agent 1")),
        "70_agent_info.csv": own_gpu(2),
        "71_kernel_trace.csv": kernels(kernel(11, 21, Agent_Id="Agent 1")),
        "71_agent_info.csv": own_gpu(3, Product_Name="AMD Instinct MI210", Cu_Count=104),
        "72_kernel_trace.csv": kernels(kernel(12, 22, Agent_Id="Agent 1")),
        "72_agent_info.csv": own_gpu(3, Product_Name="AMD Instinct MI210", Cu_Count=104),
    }
    trace = read(tmp_path, files)
    assert rows(trace, "devices", "product", "sm_count", "process", "local_id") == [
        ("AMD Instinct MI300X", 304, 0, 1),
        ("AMD Instinct MI210", 104, 1, 1),
    ]
    assert rows(trace, "activities", "process", "device") == [(0, 0), (1, 1), (2, 1)]
    labels = [device.label for device in tf.analyze(trace).devices]
    assert len(set(labels)) == 2


def test_each_run_of_a_converted_table_has_its_own_list_of_agents(tmp_path: Path) -> None:
    work = kernels(
        *(kernel(n, n + 5, Agent_Id="Agent 1", Guid=f"id-{n}") for n in (1, 2)),
        release="converted",
    )
    lists = [own_gpu(node).split("\n") for node in (2, 3)]
    text = [f'"Guid",{lists[0][0]}']
    text += [f'"id-{n}",{line}' for n, one in enumerate(lists, 1) for line in one[1:] if line]
    trace = read(tmp_path, {"o_kernel_trace.csv": work, "o_agent_info.csv": "\n".join(text)})
    assert rows(trace, "activities", "process", "device") == [(0, 0), (1, 1)]


@pytest.mark.parametrize("first", ["Pid", "Guid"])
def test_counters_of_a_converted_run_are_of_its_process(first: str, tmp_path: Path) -> None:
    assert V3_KERNELS["converted"].startswith("Guid ")
    work = kernels(
        *(kernel(n, n + 5, Guid=f"id-{n}", Correlation_Id=4) for n in (1, 2)), release="converted"
    )
    each = [counter(4, "SQ_WAVES", n, **{first: f"id-{n}", "Process_Id": 70 + n}) for n in (1, 2)]
    files = {
        "o_kernel_trace.csv": work,
        "o_counter_collection.csv": table(f"{first} {COUNTERS}", each),
    }
    trace = read(tmp_path, files)
    assert rows(trace, "processes", "pid") == [71, 72]
    columns = ("process", "correlation", "value")
    assert rows(trace, "kernel_counters", *columns) == [(0, 4, 1.0), (1, 4, 2.0)]
    assert "counted-while-timed" in codes(trace)


def test_a_number_in_the_first_column_of_counters_is_a_process(tmp_path: Path) -> None:
    columns = "Pid " + COUNTERS.replace(" Process_Id", "")
    file = table(columns, [counter(1, "SQ_WAVES", 3, Pid=78)])
    trace = read(tmp_path, {"o_counter_collection.csv": file})
    assert rows(trace, "processes", "pid") == [78]


def test_a_process_that_one_table_calls_by_its_id_is_that_of_the_run_of_that_id(
    tmp_path: Path,
) -> None:
    work = kernels(kernel(9, 20, Guid="id-1", Correlation_Id=1), release="converted")
    api = "Guid Domain Function Process_Id Thread_Id Correlation_Id Start_Timestamp End_Timestamp"
    row = {"Guid": "id-1", "Domain": "HIP_API", "Function": "hipX", "Process_Id": 77}
    files = {
        "o_kernel_trace.csv": work,
        "o_hip_api_trace.csv": table(api, [row]),
        "o_counter_collection.csv": counters(counter(1, "SQ_WAVES", 3)),
    }
    trace = read(tmp_path, files)
    assert rows(trace, "processes", "pid") == [77]
    assert rows(trace, "kernel_counters", "process", "correlation") == [(0, 1)]


def test_runs_of_several_processes_that_only_counted_are_repetitions(tmp_path: Path) -> None:
    files = {f"{pid}_kernel_trace.csv": kernels(kernel(10, 20, Agent_Id=f"Agent {gpu}"))
             for pid, gpu in ((70, 2), (71, 3))}  # fmt: skip
    for first, name in ((80, "SQ_WAVES"), (90, "FETCH_SIZE")):
        for pid, gpu in ((first, 3), (first + 1, 2)):  # the processes started the other way round
            one = counter(1, name, 100 * gpu, Process_Id=pid, Agent_Id=f"Agent {gpu}")
            files[f"{pid}_counter_collection.csv"] = counters(one)
    trace = read(tmp_path, files)
    assert rows(trace, "processes", "pid") == [70, 71]
    columns = ("process", "repetition", "counter", "value", "correlation")
    assert sorted(rows(trace, "kernel_counters", *columns)) == [
        (0, 1, "SQ_WAVES", 200.0, None),
        (0, 2, "FETCH_SIZE", 200.0, None),
        (1, 1, "SQ_WAVES", 300.0, None),
        (1, 2, "FETCH_SIZE", 300.0, None),
    ]
    assert "counted-while-timed" not in codes(trace)


def test_an_id_that_came_again_does_not_make_two_runs_one(tmp_path: Path) -> None:
    """In a container every run may have the same process id."""
    later = 10**9
    files = {
        "timed_kernel_trace.csv": kernels(kernel(10, 20, Correlation_Id=1)),
        "timed_hip_api_trace.csv": table(
            "Domain Function Process_Id Thread_Id Correlation_Id Start_Timestamp End_Timestamp",
            [{"Domain": "HIP_API", "Function": "hipFree", "Process_Id": 77, "Start_Timestamp": 5}],
        ),
        "counted_counter_collection.csv": counters(
            counter(1, "SQ_WAVES", 7, Start_Timestamp=later, End_Timestamp=later + 5)
        ),
    }
    trace = read(tmp_path, files)
    assert rows(trace, "kernel_counters", "process", "correlation") == [(0, None)]
    assert "counted-while-timed" not in codes(trace)


def test_v1_counts_and_times_of_passes(tmp_path: Path) -> None:
    """Each pass counted something else and has times: those of the first are shown."""
    files = {
        f"pmc_{n}/results.csv": table(
            f"{V1_NEW} {name}{V1_TIMES}", [v1_row(0, 1000 * n, 1000 * n + 50 * n, **{name: n})]
        )
        for n, name in ((1, "SQ_WAVES"), (2, "FETCH_SIZE"))
    }
    trace = read(tmp_path, files)
    assert rows(trace, "activities", "start_ns", "dur_ns") == [(1000, 50)]
    assert sorted(rows(trace, "kernel_counters", "repetition", "counter", "correlation")) == [
        (1, "SQ_WAVES", 0),
        (2, "FETCH_SIZE", None),
    ]
    assert {"repeated-passes", "counted-while-timed"} <= set(codes(trace))


@pytest.mark.parametrize(("names", "said"), [("ABC", True), ("AB", False)])
def test_counters_that_are_all_0_were_not_counted(tmp_path: Path, names: str, said: bool) -> None:
    """Two counters can be 0 of a launch, such as bank conflicts; three, of different parts, not."""
    values = {f"SQ_INSTS_{name}": 0.0 for name in names}
    trace = read(tmp_path, {"1_counter_collection.csv": counted(values=values)})
    assert ("nothing-counted" in codes(trace)) == said


@pytest.mark.parametrize(("completed", "launches"), [(11_000, 1), (9_000, 0)])
def test_times_of_another_run_are_no_launches(
    tmp_path: Path, completed: int, launches: int
) -> None:
    """A kernel that completes before it begins has times of queueing of another run."""
    row = v1_row(0, 10_000, 10_500, CompleteNs=completed, DispatchNs=8_000)
    trace = read(tmp_path, {"out.csv": table(f"{V1_NEW}{V1_TIMES}", [row])})
    assert trace.calls.num_rows == launches


def test_no_start_up_is_told_of_kernels_that_ran_one_by_one(tmp_path: Path) -> None:
    """The profiler fills the 9 ms between the first two of 20 kernels of 1 ms."""
    ms = 1_000_000
    starts = [0, *range(10 * ms, 29 * ms, ms)]
    launched = [v1_row(n, at + ms, at + 2 * ms, TCC_HIT_sum=3) for n, at in enumerate(starts)]
    head = f"{V1_NEW} TCC_HIT_sum{V1_TIMES}"
    analysis = tf.analyze(read(tmp_path, {"out.csv": table(head, launched)}))
    assert analysis.recorded == "serialized"
    assert "start-up" not in {finding.rule for finding in analysis.findings}


def test_a_run_for_counters_begins_with_its_kernel(tmp_path: Path) -> None:
    """The only launch waits 9 of 10 ms in its queue, while the profiler prepares to count."""
    ms = 1_000_000
    counters = {"TCC_HIT_sum": 30, "TCC_MISS_sum": 90}
    row = v1_row(0, 10 * ms, 11 * ms, DispatchNs=1 * ms, **counters)
    head = f"{V1_NEW} {' '.join(counters)}{V1_TIMES}"
    analysis = tf.analyze(read(tmp_path, {"out.csv": table(head, [row])}))
    title = "gemm takes 100.0 % of the 1.00 ms of kernel time: L2 hit rate 25.0 %."
    assert opening(analysis).title == title


@pytest.mark.parametrize(
    ("waiting", "told"), [(84, ", waves wait 84.0 % of their cycles"), (40, "")]
)
def test_waves_that_mostly_wait_are_told_of_the_kernel_with_most_time(
    tmp_path: Path, waiting: int, told: str
) -> None:
    ms = 1_000_000
    counters = {"TCC_HIT_sum": 30, "TCC_MISS_sum": 90, "SQ_WAIT_ANY": waiting}
    counters["SQ_WAVE_CYCLES"] = 100
    row = v1_row(0, 10 * ms, 11 * ms, DispatchNs=1 * ms, **counters)
    head = f"{V1_NEW} {' '.join(counters)}{V1_TIMES}"
    analysis = tf.analyze(read(tmp_path, {"out.csv": table(head, [row])}))
    title = f"gemm takes 100.0 % of the 1.00 ms of kernel time: L2 hit rate 25.0 %{told}."
    assert opening(analysis).title == title
