"""Traces without a timeline: sums by name and counted launches, and nothing that needs times."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.build import trace_of
from traceflops import Analysis, analyze
from traceflops.table.trace import Trace
from traceflops.timeline.aggregates import Untimed

GEMM, COPY = "Cijk_Alik_Bljk_BBS_BH_MT64x32x64", "__amd_rocclr_copyBuffer.kd"


def of_rocprof(**tables: Any) -> Trace:
    made = trace_of(devices=[], **tables)
    return replace(made, source=replace(made.source, format="rocprof"))


def untimed_of(**tables: Any) -> Untimed:
    found = analyze(of_rocprof(**tables)).untimed
    assert found is not None
    return found


STATISTICS: list[dict[str, Any]] = [
    {"name": GEMM, "count": 3, "total_ns": 900, "min_ns": 100, "max_ns": 600},
    {"name": COPY, "count": 1, "total_ns": 60},
    {"name": "CopyHostToDevice", "kind": "memcpy", "count": 2, "total_ns": 40},
    {"name": "hipLaunchKernel", "kind": "call", "count": 4, "total_ns": 50},
]


def assert_nothing_timed(analysis: Analysis) -> None:
    assert analysis.devices == ()
    assert analysis.components.window_ns == 0
    assert analysis.total.launches == 0
    assert analysis.kernels.num_rows == 0
    assert analysis.steps.seen == ()
    assert analysis.measured.mfu is None


def test_totals_get_the_categories_of_their_names() -> None:
    found = untimed_of(totals=STATISTICS)
    assert found.rows.select(["kind", "name", "top", "sub", "count", "sum_ns"]).to_pylist() == [
        {"kind": k, "name": n, "top": t, "sub": s, "count": c, "sum_ns": ns}
        for k, n, t, s, c, ns in [
            ("kernel", GEMM, "compute", "gemm", 3, 900),
            ("kernel", COPY, "memory", "copy", 1, 60),
            ("memcpy", "CopyHostToDevice", "memory", "copy", 2, 40),
            ("call", "hipLaunchKernel", None, None, 4, 50),
        ]
    ]
    assert found.rows["share"].to_pylist() == [0.9, 0.06, 0.04, 1.0]
    assert found.rows["mean_ns"].to_pylist() == [300, 60, 20, 13]
    assert found.rows["max_ns"].to_pylist() == [600, None, None, None]
    assert found.categories.to_pylist() == [
        {"top": "compute", "sub": "gemm", "count": 3, "sum_ns": 900, "share": 0.9},
        {"top": "memory", "sub": "copy", "count": 3, "sum_ns": 100, "share": 0.1},
    ]
    assert found.device_ns == 1000


def test_totals_have_no_timeline_and_say_so() -> None:
    analysis = analyze(of_rocprof(totals=STATISTICS))
    assert_nothing_timed(analysis)
    assert analysis.verdict.sentence == (
        "This trace has no timeline, so idle time and MFU are unknown. It has totals by name: "
        "1.00 µs of GPU time in 6 operations of 167 ns on average, "
        "90.0 % in Cijk_Alik_Bljk_BBS_BH_MT64x32x64 (gemm)."
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("void cutlass::device_kernel<cutlass::gemm::Universal>()", "in device_kernel (gemm)."),
        ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "in nvjet_tst_64x8_64x16_4x1_v_bz_TNT (gemm)."),
        ("conv_forward_kernel", "in conv_forward_kernel."),
        ("main_kernel", "in main_kernel."),
    ],
)
def test_the_category_of_the_largest_kernel_is_told_if_its_name_does_not(
    name: str, said: str
) -> None:
    rows = [{"name": name, "count": 3, "total_ns": 900}]
    assert analyze(of_rocprof(totals=rows)).verdict.sentence.endswith(f"100.0 % {said}")


@pytest.mark.parametrize(("launches", "is_missing"), [(4, True), (0, False)])
def test_totals_of_copies_alone_are_not_the_work_of_a_program_that_launches(
    launches: int, *, is_missing: bool
) -> None:
    calls = [
        {"name": "cudaLaunchKernel", "kind": "call", "count": launches, "total_ns": 800},
        {"name": "cudaMemcpy", "kind": "call", "count": 2, "total_ns": 200},
    ]
    rows = [STATISTICS[2], *calls[not launches :]]
    sentence = analyze(of_rocprof(totals=rows)).verdict.sentence
    said = (
        "This trace has no timeline and no totals of kernels, only of copies and fills (40 ns), "
        "though 4 launches were made: what takes the time of the GPU is unknown. Add the summary "
        "of kernels. cudaLaunchKernel takes 80.0 % of the time of calls."
    )
    assert (sentence == said) == is_missing
    assert ("100.0 % copy" in sentence) != is_missing


@pytest.mark.parametrize(("total_ns", "is_told"), [(500, True), (50, False)])
def test_much_communication_is_told_beside_the_largest_category(
    total_ns: int, *, is_told: bool
) -> None:
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
    rows = [*STATISTICS[:3], {"name": name, "count": 5, "total_ns": total_ns}]
    sentence = analyze(of_rocprof(totals=rows)).verdict.sentence
    said = f"Communication takes 33.3 % of it, mostly {name} (5 times, 100 ns on average), waiting"
    assert (said in sentence) == is_told
    assert ("Communication" in sentence) == is_told


@pytest.mark.parametrize(("tool", "is_named"), [("nsys stats", True), ("nvprof", False)])
def test_only_nsys_has_a_report_of_the_missing_kernels(tool: str, *, is_named: bool) -> None:
    rows = [
        {"kind": "memcpy", "name": "HtoD", "count": 3, "total_ns": 90},
        {"kind": "call", "name": "cudaLaunchKernel", "count": 5, "total_ns": 10},
    ]
    trace = trace_of(totals=rows, devices=[])
    sentence = analyze(replace(trace, source=replace(trace.source, format=tool))).verdict.sentence
    assert "though 5 launches were made" in sentence
    assert ("cuda_gpu_kern_sum" in sentence) == is_named


@pytest.mark.parametrize(("processes", "is_said"), [(1, False), (2, True)])
def test_sums_over_several_processes_are_called_that(processes: int, *, is_said: bool) -> None:
    rows = [{**row, "process": n} for n in range(processes) for row in STATISTICS]
    files = [{"process": n, "file": f"run{n}.stats.csv"} for n in range(processes)]
    sentence = analyze(of_rocprof(totals=rows, processes=files)).verdict.sentence
    assert (
        "The totals are sums over 2 processes (ranks of a job, or separate" in sentence
    ) is is_said


@pytest.mark.parametrize(("ns", "is_said"), [(100, False), (500, True)])
def test_a_kernel_with_much_of_the_time_is_named_beside_the_largest_category(
    ns: int, *, is_said: bool
) -> None:
    """GEMMs of several names take most; one kernel of another category takes more than any."""
    gemms = [{**STATISTICS[0], "name": f"{GEMM}_{n}", "total_ns": 400} for n in range(3)]
    one = {**STATISTICS[0], "name": "indexFuncLargeIndex", "total_ns": ns}
    sentence = analyze(of_rocprof(totals=[*gemms, one])).verdict.sentence
    assert " gemm" in sentence
    assert sentence.endswith("29.4 % in indexFuncLargeIndex (embedding index).") is is_said


@pytest.mark.parametrize(("once_ns", "is_said"), [(900, False), (5_000, True)])
def test_single_calls_longer_than_all_gpu_work_are_start_up(once_ns: int, *, is_said: bool) -> None:
    """The GPU works 1,000 ns; copies and waits last as long as that, so they do not count."""
    calls = [
        {"name": "hipMalloc", "count": 9, "total_ns": once_ns + 80, "max_ns": once_ns},
        {"name": "hipDeviceSynchronize", "count": 1, "total_ns": 9_000, "max_ns": 9_000},
        {"name": "hipMemcpy", "count": 1, "total_ns": 9_000, "max_ns": 9_000},
        {"name": "hipLaunchKernel", "count": 99, "total_ns": 9_000, "max_ns": 100},
    ]
    rows = [*STATISTICS[:3], *({"kind": "call", **one} for one in calls)]
    sentence = analyze(of_rocprof(totals=rows)).verdict.sentence
    said = "Single calls take 5.00 µs, mostly one hipMalloc of 5.00 µs: start-up."
    assert (said in sentence) == is_said
    assert ("start-up" in sentence) == is_said


def test_the_command_that_records_a_timeline_is_there() -> None:
    found = untimed_of(totals=STATISTICS)
    assert found.record == (
        "rocprofv3 --runtime-trace --rccl-trace --output-format rocpd -d run -- COMMAND"
    )


def test_the_same_name_in_several_processes_is_one_total() -> None:
    rows = [{**row, "process": process} for row in STATISTICS for process in (0, 1)]
    found = untimed_of(processes=[{}, {"process": 1}], totals=rows)
    first = found.rows.to_pylist()[0]
    assert (first["count"], first["sum_ns"], first["min_ns"]) == (6, 1800, 100)


def test_what_one_total_does_not_say_is_not_made_up() -> None:
    found = untimed_of(totals=[*STATISTICS, {"name": "odd", "count": 1}])
    assert found.device_ns is None
    assert found.rows["share"].to_pylist() == [None, None, None, None, 1.0]
    assert [row["sum_ns"] for row in found.categories.to_pylist()] == [900, 100, None]


def test_sums_too_large_for_a_column_are_unknown() -> None:
    rows = [{"name": "a", "total_ns": 2**62, "count": 1, "process": n} for n in range(3)]
    found = untimed_of(processes=[{"process": n} for n in range(3)], totals=rows)
    assert found.rows["sum_ns"].to_pylist() == [None]


COUNTED = [
    {"name": name, "dispatch": dispatch, "counter": counter, "value": 1.5, "repetition": pass_}
    for pass_, counter in enumerate(["SQ_WAVES", "FETCH_SIZE"])
    for dispatch, name in [(1, GEMM), (2, COPY), (3, GEMM)]
]


def test_counters_alone_say_what_was_counted_and_no_time() -> None:
    analysis = analyze(of_rocprof(kernel_counters=COUNTED))
    assert_nothing_timed(analysis)
    found = analysis.untimed
    assert found is not None
    assert found.counters == ("FETCH_SIZE", "SQ_WAVES")
    assert found.launches == 3
    assert found.counted.select(["name", "sub", "launches"]).to_pylist() == [
        {"name": GEMM, "sub": "gemm", "launches": 2},
        {"name": COPY, "sub": "copy", "launches": 1},
    ]
    assert "counters of 3 launches of 2 kernels" in analysis.verdict.sentence


def test_counters_without_any_time_tell_what_a_launch_moves() -> None:
    """Two launches read 6 KiB and 2 KiB, and write as much; another kernel moves less."""
    moved = [(1, GEMM, 6.0), (2, COPY, 1.0), (3, GEMM, 2.0)]
    rows = [
        {"name": name, "dispatch": dispatch, "counter": counter, "value": kib}
        for dispatch, name, kib in moved
        for counter in ("FETCH_SIZE", "WRITE_SIZE")
    ]
    sentence = analyze(of_rocprof(kernel_counters=rows)).verdict.sentence
    told = "reads 4.10 kB and writes 4.10 kB per launch; its times are not known"
    assert sentence.startswith(GEMM[:20]) and told in sentence


def test_of_counted_kernels_that_with_most_time_is_told_and_comes_first() -> None:
    """Launches of 10, 70 and 20 ns: 30 of 100 ns are the GEMM's; in 70 ns 1.5 KiB are read.

    That is 1,536 / 70 = 21.9 GB/s, 0.41 % of the 5,325 of an MI300X.
    """
    times = {1: 10, 2: 70, 3: 20}
    rows = [row | {"dur_ns": times[int(str(row["dispatch"]))]} for row in COUNTED]
    analysis = analyze(of_rocprof(kernel_counters=rows))
    said = "__amd_rocclr_copyBuffer takes 70.0 % of the 100 ns of kernel time: reads 21.9 GB/s"
    lack = "The GPU is not recorded, so its share of the peak is unknown: give agent_info.csv"
    assert analysis.verdict.sentence.startswith(f"{said}. {lack}")
    named = analyze(of_rocprof(kernel_counters=rows), device="mi300x").verdict.sentence
    assert named.startswith(f"{said} (0.4 % of the memory's peak). This")
    work = analysis.measured.executed.work
    assert work is not None and [row.name for row in work.counted] == [COPY, GEMM]


@pytest.mark.parametrize("number", ["correlation", None])
def test_launches_without_a_number_of_their_own(number: str | None) -> None:
    rows = [
        {key: value for key, value in row.items() if key != "dispatch"}
        | ({number: row["dispatch"]} if number else {})
        for row in COUNTED
    ]
    assert untimed_of(kernel_counters=rows).launches == 3


def test_calls_and_marks_alone_are_added_up() -> None:
    calls = [{"name": name, "start_ns": n, "dur_ns": 5} for n, name in enumerate("aab")]
    marks = [{"name": "epoch", "start_ns": 0, "dur_ns": 70}]
    analysis = analyze(of_rocprof(calls=calls, marks=marks))
    assert analysis.untimed is not None
    assert [
        (row["kind"], row["name"], row["count"], row["sum_ns"])
        for row in analysis.untimed.rows.to_pylist()
    ] == [("call", "a", 2, 10), ("call", "b", 1, 5), ("mark", "epoch", 1, 70)]
    assert analysis.verdict.sentence == (
        "This trace has no GPU operations, only API calls and annotations."
    )


def test_annotations_have_shares_of_the_time_in_outermost_ones() -> None:
    """On one thread 60 of 100 ns, 40 of them nested, on another 20 ns at the same moment."""
    marks = [
        {"name": "frame", "start_ns": 0, "dur_ns": 60, "thread": 1},
        {"name": "layer", "start_ns": 10, "dur_ns": 40, "thread": 1},
        {"name": "read", "start_ns": 20, "dur_ns": 20, "thread": 2},
    ]
    found = untimed_of(marks=marks)
    shares = {row["name"]: row["share"] for row in found.rows.to_pylist()}
    assert shares == {"frame": 60 / 80, "layer": 40 / 80, "read": 20 / 80}


def test_system_calls_and_waits_are_no_annotations() -> None:
    """The range has all the time of annotations; what waits inside it has a table of its own."""
    marks = [
        {"name": "solve", "start_ns": 0, "dur_ns": 60, "thread": 1},
        {"name": "ioctl", "start_ns": 10, "dur_ns": 20, "thread": 1, "kind": "system"},
        {"name": "Stream Synchronize", "start_ns": 40, "dur_ns": 5, "thread": 1, "kind": "sync"},
    ]
    rows = untimed_of(marks=marks).rows.to_pylist()
    assert [(row["kind"], row["name"], row["share"]) for row in rows] == [
        ("mark", "solve", 1),
        ("system", "ioctl", 20 / 25),
        ("system", "Stream Synchronize", 5 / 25),
    ]
    alone = analyze(of_rocprof(marks=marks[1:])).verdict.sentence
    assert alone == "This trace has no GPU operations, only system calls."


def test_the_share_of_a_range_that_calls_itself_is_unknown() -> None:
    """It is open for 60 ns, and its two records sum to 100 ns."""
    spans = ((0, 60), (10, 40))
    marks = [{"name": "solve", "start_ns": at, "dur_ns": ns, "thread": 1} for at, ns in spans]
    (row,) = untimed_of(marks=marks).rows.to_pylist()
    assert (row["sum_ns"], row["share"]) == (100, None)


def test_a_trace_with_device_work_or_operators_has_a_timeline() -> None:
    work = [{"name": GEMM, "start_ns": 0}]
    assert analyze(trace_of(activities=work, totals=STATISTICS)).untimed is None
    ops = [{"name": "aten::mm", "start_ns": 0, "dur_ns": 5}]
    assert analyze(trace_of(ops=ops)).untimed is None
    assert analyze(trace_of()).untimed is None
