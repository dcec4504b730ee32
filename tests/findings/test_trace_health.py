"""What a recording is not fit for: each lack is said once, with how to record better."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

import traceflops as tf
from tests.build import launched, step_marks, trace_of
from traceflops.findings.finding import Finding
from traceflops.table.trace import Note, Trace

MS = 1_000_000


def recording(idle: int = 0, **tables: Sequence[dict[str, Any]]) -> Trace:
    """Return four steps that compute for 1 ms and are then idle."""
    starts = [MS + at * (MS + idle) for at in range(4)]
    rows = launched(*(("sm90_gemm", at - 5_000, at, MS) for at in starts))
    marks = step_marks(*((f"ProfilerStep#{n}", at - 9_000, 8_000) for n, at in enumerate(starts)))
    ops = [{"name": "aten::mm", "start_ns": at - 6_000, "dur_ns": 3_000} for at in starts]
    rows = {**rows, "ops": ops, "marks": marks}
    return trace_of(**{**rows, **{name: [*rows[name], *more] for name, more in tables.items()}})


def health(trace: Trace, format_: str = "pytorch") -> dict[str, Finding]:
    source = replace(trace.source, format=format_)
    found = tf.analyze(replace(trace, source=source)).findings
    return {one.title: one for one in found if one.rule == "trace-health"}


def noted(code: str, count: int | None = None, files: str = "", **tables: Any) -> Trace:
    trace = trace_of(**tables) if tables else recording()
    note = Note(
        "missing", code, "Something is odd.", count, advice="Do this about it.", scope=files
    )
    return replace(trace, notes=(note,))


def test_a_trace_without_shapes_is_told_the_option_of_its_profiler() -> None:
    found = health(recording())
    assert [*found] == ["Operator shapes are missing"]
    assert found["Operator shapes are missing"].remedy == "Record with record_shapes=True."
    assert (
        "emit_nvtx(record_shapes=True)"
        in health(recording(), "nsight")["Operator shapes are missing"].remedy
    )


def test_python_stacks_matter_where_the_gpu_is_idle() -> None:
    assert "Python stacks are missing" not in health(recording())
    found = health(recording(idle=MS))["Python stacks are missing"]
    assert found.remedy == "Record with with_stack=True (large traces)."
    python = {"kind": "python", "name": "train.py(3): main", "start_ns": 0, "dur_ns": MS}
    assert "Python stacks are missing" not in health(recording(idle=MS, marks=[python]))


@pytest.mark.parametrize(
    ("code", "title", "format_", "option"),
    [
        ("rows-lost", "Records were lost", "pytorch", "active=1"),
        ("earlier-work-missing", "Recording began amid work", "nsight", "--capture-range"),
        ("earlier-work-missing", "Recording began amid work", "pytorch", "schedule(wait=1"),
        ("late-starts", "What delays queued work is not recorded", "nsight", "no other beside it"),
        ("graphs-opaque", "Graphs hide their kernels", "nsight", "--cuda-graph-trace=node"),
        ("no-calls", "CPU calls are missing", "rocprofv3", "--runtime-trace"),
        ("calls-missing", "CPU calls are missing", "rocprofv3", "Keep the calls of all work"),
        ("rank-clash", "Ranks overwrite each other", "rocprofv3", "rank%rank%"),
        ("no-device-work", "GPU records are missing", "pytorch", "Do this about it."),
        ("counted-while-timed", "Counters slowed the run", "rocprofv3", "without --pmc"),
    ],
)
def test_a_note_says_what_the_recording_is_unfit_for(
    code: str, title: str, format_: str, option: str
) -> None:
    found = health(noted(code), format_)[title]
    assert found.sentence.startswith("Something is odd. ")
    assert "Do this" not in found.sentence
    assert option in found.remedy
    assert title not in health(recording(), format_)


def test_a_note_on_some_files_says_how_many() -> None:
    found = health(noted("file-not-read", files="in 1 of 8 files"))["A file was not read"]
    assert found.sentence.startswith("Something is odd (in 1 of 8 files). ")


def test_what_was_not_recorded_at_all_was_not_lost() -> None:
    calls = [{"name": "hipLaunchKernel", "start_ns": 5, "dur_ns": 9, "correlation": 1}]
    found = health(noted("device-records-missing", 1, calls=calls), "rocprofv3")
    assert "Records were lost" not in found
    assert "--runtime-trace" in found["GPU records are missing"].remedy


def test_moments_of_queueing_do_not_tell_what_the_host_did() -> None:
    """A GPU that is idle for half of the time is told once; with calls, as time without record."""
    rows = launched(*(("saxpy", at - 5_000, at, MS) for at in range(MS, 9 * MS, 2 * MS)))
    for name, title in (
        ("dispatch", "CPU calls are missing"),
        ("hipLaunchKernel", "Much of the window has no record"),
    ):
        calls = [{**one, "name": name} for one in rows["calls"]]
        found = health(trace_of(activities=rows["activities"], calls=calls), "rocprof")
        assert {"CPU calls are missing", "Much of the window has no record"} & {*found} == {title}


def test_clocks_matter_for_several_ranks_and_totals_without_a_timeline() -> None:
    """One GPU with a timeline has neither; its own figures stand."""
    assert "Clocks are not aligned" not in health(noted("clocks-not-aligned"))
    assert "There is no timeline" not in health(noted("no-timeline"))
    note = Note("missing", "clocks-not-aligned", "Something is odd.")
    two = trace_of(
        processes=[{"process": at, "rank": at, "file": f"{at}.json"} for at in range(2)],
        devices=[{"device": at, "process": at} for at in range(2)],
        activities=[
            {"process": at, "device": at, "name": "add", "start_ns": 10, "dur_ns": 90}
            for at in range(2)
        ],
    )
    found = health(replace(two, notes=(note,)))["Clocks are not aligned"]
    assert "synchronised clocks" in found.remedy
    reduce = [
        {"process": n, "device": n, "name": "ncclAllReduce", "start_ns": at + 10**9 * n}
        | {"dur_ns": 50, "stream": 20}
        for n in range(2)
        for at in range(0, 400, 100)
    ]
    aligned = replace(
        two, tables={**two.tables, "activities": trace_of(activities=reduce).activities}
    )
    assert "Clocks are not aligned" not in health(replace(aligned, notes=(note,)))


def test_few_records_without_a_launch_are_not_said() -> None:
    """There are four of them: 5 % are less than one."""
    assert "Launches are missing" not in health(noted("unlinked", 0))
    assert "Launches are missing" in health(noted("unlinked", 1))


@pytest.mark.parametrize(("name", "is_said"), [("Buffer Flush", True), ("Lazy Loading", False)])
def test_the_profiler_is_blamed_for_its_own_idle_time(name: str, *, is_said: bool) -> None:
    """Every step idles for 1 of 2 ms; in one of them the profiler works for half of that."""
    mark = {"kind": "overhead", "name": name, "start_ns": 2 * MS, "dur_ns": MS // 2}
    found = health(recording(idle=MS, marks=[mark]))
    assert ("The profiler slows the run" in found) == is_said
    if is_said:  # 0.5 ms of the three steps used, 2 ms each
        claim = found["The profiler slows the run"].claim
        assert claim.code == "trace-health.profiler.claim-idle"
        assert claim.values["share"] == pytest.approx(0.25 / 3)


@pytest.mark.parametrize(("call_ns", "is_said"), [(40_000, True), (8_000, False)])
def test_long_launch_calls_of_an_idle_gpu_are_the_profilers(call_ns: int, *, is_said: bool) -> None:
    rows = launched(*(("add", at, at + 50_000, 9_000) for at in range(0, 9 * MS, 100_000)))
    calls = [{**one, "name": "cudaLaunchKernel", "dur_ns": call_ns} for one in rows["calls"]]
    trace = trace_of(activities=rows["activities"], calls=calls)
    assert ("The profiler slows the run" in health(trace)) == is_said
