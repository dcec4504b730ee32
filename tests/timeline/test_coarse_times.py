"""Times that tell no idle time give sums by name: copies alone, and starts written too coarsely."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

import traceflops as tf
from tests.build import trace_of
from tests.parsers.nsight.nsysfile import small
from tests.parsers.nsight.test_stats import TRACE
from tests.parsers.nsight.test_stats import read as read_stats
from tests.parsers.rocprof import tablefiles as rocprof
from traceflops.timeline.host_work import with_known_idle


def sums(trace: tf.Trace) -> list[tuple[str, str, int, int]]:
    """Return the sums that are shown in place of an account, which is empty."""
    analysis = tf.analyze(trace)
    assert analysis.untimed is not None
    assert analysis.devices == ()
    assert analysis.total.components.window_ns == 0
    assert "idle time and MFU are unknown" in analysis.verdict.sentence
    table = analysis.untimed.of_kind("kernel", "memcpy")
    columns = ("kind", "name", "count", "sum_ns")
    return list(zip(*(table[column].to_pylist() for column in columns), strict=True))


def is_timed(trace: tf.Trace) -> bool:
    return bool(tf.analyze(trace).total.components.window_ns)


def codes(trace: tf.Trace) -> set[str]:
    return {note.code for note in tf.analyze(trace).notes}


COPIES = rocprof.copies(
    rocprof.copy(1_000, 1_400, "Agent 0", "Agent 1", "HOST_TO_DEVICE"),
    rocprof.copy(9_000, 9_100, "Agent 0", "Agent 1", "HOST_TO_DEVICE"),
)


def test_copies_alone_have_no_idle_time(tmp_path: Path) -> None:
    trace = rocprof.read(tmp_path, {"1_memory_copy_trace.csv": COPIES})
    assert [(kind, count, ns) for kind, _, count, ns in sums(trace)] == [("memcpy", 2, 500)]
    assert "copies-only" in codes(trace)


def test_copies_beside_kernels_have_a_timeline(tmp_path: Path) -> None:
    kernels = rocprof.kernels(rocprof.kernel(2_000, 3_000))
    files = {"1_memory_copy_trace.csv": COPIES, "1_kernel_trace.csv": kernels}
    trace = rocprof.read(tmp_path, files)
    assert is_timed(trace)
    assert "copies-only" not in codes(trace)


@pytest.mark.parametrize(
    ("function", "is_known"), [("hipMemcpy", True), ("hipLaunchKernel", False)]
)
def test_calls_show_whether_kernels_are_missing(
    tmp_path: Path, function: str, is_known: bool
) -> None:
    calls = rocprof.calls(rocprof.call(900, 950, Function=function))
    files = {"1_memory_copy_trace.csv": COPIES, "1_hip_api_trace.csv": calls}
    trace = rocprof.read(tmp_path, files)
    assert is_timed(trace) == is_known
    assert ("copies-only" in codes(trace)) != is_known


KERNELS = rocprof.kernels(
    rocprof.kernel(2_000, 3_000, Correlation_Id=1), rocprof.kernel(6_000, 7_000, Correlation_Id=2)
)


@pytest.mark.parametrize(
    ("functions", "lacks_copies"),
    [
        ((), True),
        (("hipLaunchKernel",), False),
        (("hipLaunchKernel", "hipMemcpyAsync"), True),
        (("hipFree",), True),
    ],
)
def test_idle_time_between_kernels_alone_may_include_copies(
    tmp_path: Path, functions: tuple[str, ...], lacks_copies: bool
) -> None:
    calls = [rocprof.call(900 + n, 901 + n, n, Function=f) for n, f in enumerate(functions, 1)]
    files = {"77_kernel_trace.csv": KERNELS, "77_hip_api_trace.csv": rocprof.calls(*calls)}
    trace = rocprof.read(tmp_path, files)
    analysis = tf.analyze(trace)
    assert analysis.total.components.idle_ns == 3_000
    assert ("copies-missing" in codes(trace)) == lacks_copies
    assert (analysis.verdict.loss == "idle") != lacks_copies
    doubt = "60.0 %; it may include copies, whose times the trace lacks."
    assert (doubt in analysis.verdict.sentence) == lacks_copies
    assert ("loss-idle" in {one.rule for one in analysis.losses}) != lacks_copies


def test_uncategorized_kernels_with_missing_copies_have_both_said(tmp_path: Path) -> None:
    kernels = KERNELS.replace("gemm(float*)", "mystery")
    trace = rocprof.read(tmp_path, {"1_kernel_trace.csv": kernels})
    assert tf.analyze(trace).verdict.sentence == (
        "The GPU is busy 40.0 % of the total time. Idle time takes 60.0 %; it may include copies, "
        "whose times the trace lacks. Uncategorized kernels take 40.0 %; how much of that is "
        "useful is unknown."
    )


def test_copies_beside_kernels_leave_no_doubt_of_idle_time(tmp_path: Path) -> None:
    files = {"1_memory_copy_trace.csv": COPIES, "1_kernel_trace.csv": KERNELS}
    analysis = tf.analyze(rocprof.read(tmp_path, files))
    assert analysis.verdict.loss == "idle"
    assert "copies-missing" not in [note.code for note in analysis.notes]


def test_copies_of_which_only_totals_are_recorded_are_not_said_to_be_missing() -> None:
    copies = {"kind": "memcpy", "name": "async-copy", "count": 6, "total_ns": 3_000}
    works = [{"name": "k", "start_ns": at, "dur_ns": 1_000} for at in (2_000, 6_000)]
    trace = trace_of(activities=works, totals=[copies])
    of_kernels = replace(trace, source=replace(trace.source, kinds_apart=True))
    [note] = with_known_idle(of_kernels).notes
    assert note.code == "copies-missing"
    assert note.statement.startswith("Of 6 memory copies only the total time is recorded (3.000 µs")


def test_one_table_of_an_export_of_nsys_is_not_all_work(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    small().save_parquet(folder)
    for path in folder.glob("*.parquet"):
        if not path.stem.startswith(("CUPTI_ACTIVITY_KIND_MEMCPY", "StringIds", "ENUM")):
            path.unlink()
    trace = tf.read(folder)
    assert {kind for kind, *_ in sums(trace)} == {"memcpy"}


def test_the_kernel_table_of_an_export_of_nsys_lacks_copies(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    small().save_parquet(folder)
    assert "copies-missing" not in codes(tf.read(folder))
    for path in folder.glob("*.parquet"):
        if not path.stem.startswith(("CUPTI_ACTIVITY_KIND_KERNEL", "StringIds", "ENUM")):
            path.unlink()
    assert "copies-missing" in codes(tf.read(folder))


def page(folder: Path, unit: str, *rows: tuple[str, str]) -> tf.Trace:
    lines = [
        f"{start},{length},{n},8,2,1,128,1,1,32,0,0,,,,,GPU (0),1,,7,k"
        for n, (start, length) in enumerate(rows, 1)
    ]
    return read_stats(folder, "x.csv", TRACE.replace("(ns)", f"({unit})"), *lines)


@pytest.mark.parametrize(
    ("unit", "lengths", "total_ns", "step"),
    [
        ("sec", ("0.000002", "0.000003", "0.000002"), 7_000, "1 s"),
        ("ms", ("0", "0", "1"), 1_000_000, "1 ms"),
    ],
)
def test_whole_seconds_carry_no_timeline(
    tmp_path: Path, unit: str, lengths: tuple[str, ...], total_ns: int, step: str
) -> None:
    trace = page(tmp_path, unit, *zip(("1", "1", "4"), lengths, strict=True))
    assert sums(trace) == [("kernel", "k", 3, total_ns)]
    (note,) = [note for note in tf.analyze(trace).notes if note.code == "times-too-coarse"]
    assert note.text.startswith(
        f"Start times have a resolution of {step}, longer than the median GPU operation: "
    )


@pytest.mark.parametrize(
    ("unit", "rows"),
    [
        ("sec", (("1.000000001", "0.000002"), ("1.5", "0.000003"))),
        ("us", (("1000.125", "2.5"), ("1003", "2.5"))),
        ("sec", (("1", "20"), ("31", "40"))),
        ("ns", (("1000000000", "2000"), ("2000000000", "2000"))),
        ("sec", (("1", "0.000002"),)),
    ],
    ids=["ns in seconds", "us", "as long as they are coarse", "ns", "one alone"],
)
def test_times_as_fine_as_the_work_carry_one(
    tmp_path: Path, unit: str, rows: tuple[tuple[str, str], ...]
) -> None:
    trace = page(tmp_path, unit, *rows)
    assert is_timed(trace)
    assert "times-too-coarse" not in codes(trace)


def test_runs_of_one_page_are_no_devices_of_one_job(tmp_path: Path) -> None:
    row = "{},50,{},8,2,1,128,1,1,32,0,0,,,,,GPU (0),1,,7,k"
    pages = [[TRACE, *(row.format(100 * n, n) for n in range(1, 3 + run))] for run in range(6)]
    trace = read_stats(tmp_path, "x.csv", *(line for lines in pages for line in lines))
    assert len(trace.jobs) == 6
    assert tf.analyze(trace).devices == ()
    assert len(tf.analyze(trace, tf.Selection(job=1)).devices) == 1
