"""Traces of a profiler that recorded nothing but itself."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import traceflops as tf
from tests.build import trace_of
from tests.parsers.nsight.nsysfile import nsys, thread
from traceflops.recording.inventory import how_to_record
from traceflops.table.trace import CUDA_END, Note

ACQUIRE = "<built-in method acquire of _thread.lock object at 0x7f>"


@pytest.mark.parametrize(
    ("own_ns", "inside", "is_alone"),
    [(950, ACQUIRE, True), (500, ACQUIRE, False), (950, "a.py(1): serve", False)],
)
def test_a_profiler_alone_is_said_where_its_functions_take_nearly_all(
    own_ns: int, inside: str, is_alone: bool
) -> None:
    """Another thread waits, as that of a data loader, or works."""
    functions = [("train.py(3): <module>", 1_000), ("torch/profiler/profiler.py(9): stop", own_ns)]
    marks = [
        {"name": name, "kind": "python", "start_ns": 100, "dur_ns": dur_ns}
        for name, dur_ns in functions
    ]
    other = {"kind": "python", "thread": 9}
    marks.append({**other, "name": "threading.py(9): wait", "start_ns": 0, "dur_ns": 9_000})
    marks.append({**other, "name": inside, "start_ns": 100, "dur_ns": 8_800})
    said = tf.analyze(trace_of(marks=marks)).verdict.sentence
    assert said.startswith("Nothing but the profiler's own calls was recorded") == is_alone


@pytest.mark.parametrize(("more", "is_alone"), [((), True), (("train",), False)])
def test_what_the_profiler_does_at_its_start_is_nothing_of_the_program(
    more: tuple[str, ...], *, is_alone: bool
) -> None:
    """Two overheads of the profiler lie within 50 us; a range of the program says it ran."""
    marks = [
        {"name": "profiler: dlopen", "kind": "overhead", "start_ns": 10_000, "dur_ns": 20_000},
        {"name": "profiler: NVTX", "kind": "overhead", "start_ns": 40_000, "dur_ns": 20_000},
        *({"name": name, "start_ns": 70_000, "dur_ns": 1_000} for name in more),
    ]
    said = tf.analyze(trace_of(marks=marks)).verdict.sentence
    told = "No GPU operation, GPU call or named range of the program is recorded"
    assert said.startswith(f"{told}; the profiler's own ranges lie within 50.0 µs") == is_alone
    assert ("annotations" in said) != is_alone


def test_what_a_queue_waits_for_is_nothing_of_the_profiler() -> None:
    """Scratch memory is allocated for a kernel: the program used the GPU."""
    mark = {"name": "SCRATCH_MEMORY_ALLOC", "kind": "overhead", "start_ns": 10, "dur_ns": 20}
    said = tf.analyze(trace_of(marks=[{**mark, "stream": 1}])).verdict.sentence
    assert said.startswith("This trace has no GPU operations")


@pytest.mark.parametrize(
    ("last", "is_told"),
    [
        ("hipFree", True),
        ("hipModuleLaunchKernel", False),
        ("hsa_queue_create", False),
        ("hipCtxSynchronize", False),  # it waits for work of which nothing is recorded
        ("hipStreamSynchronize", False),  # of a stream that no recorded call has made
    ],
)
def test_calls_that_launch_no_kernel_are_not_to_be_recorded_again(
    last: str, *, is_told: bool
) -> None:
    calls = [
        {"name": name, "start_ns": 100 * number, "dur_ns": 50}
        for number, name in enumerate(("hipInit", "hipMemcpy", last))
    ]
    trace = trace_of(calls=calls)
    trace = replace(trace, source=replace(trace.source, format="rocprof pftrace"))
    said = tf.analyze(trace).verdict.sentence
    assert ("check that the program was built for the GPU" in said) == is_told
    assert (how_to_record(trace) is None) == is_told


def test_a_program_whose_kernels_were_compiled_was_built_for_the_gpu() -> None:
    mark = {"name": "dlopen(libnvidia-ptxjitcompiler.so.1)", "kind": "overhead"}
    trace = trace_of(
        calls=[{"name": "cudaFree", "start_ns": 10, "dur_ns": 50}],
        marks=[{**mark, "start_ns": 10, "dur_ns": 20}],
    )
    assert "built for the GPU" not in tf.analyze(trace).verdict.sentence


OP = {"name": "aten::mm", "start_ns": 0, "dur_ns": 100}


@pytest.mark.parametrize(
    ("tables", "what", "only"),
    [
        ({}, "No GPU operation could be read ({})", "This trace has no GPU operations"),
        (
            {"ops": [OP]},
            "No GPU operation could be read ({}), only CPU operators",
            "This trace has no GPU operations, only CPU operators",
        ),
        (
            {"marks": [OP]},
            "No GPU operation could be read ({}), only annotations",
            "This trace has no GPU operations, only annotations",
        ),
    ],
)
@pytest.mark.parametrize(
    ("codes", "why"),
    [
        (("no-time",), "7 records were skipped"),
        (("no-time", "odd-phase"), "14 records were skipped"),
        (("rows-lost",), "records were skipped"),
        (("python-stacks-left-out",), ""),
    ],
)
def test_skipped_records_may_have_been_the_work_of_the_gpu(
    tables: Any, what: str, only: str, codes: tuple[str, ...], why: str
) -> None:
    made = trace_of(devices=[], **tables)
    notes = tuple(Note("dropped", code, "", 7) for code in codes)
    said = tf.analyze(replace(made, notes=notes)).verdict.sentence
    assert (f"{what.format(why)}." if why else f"{only}.") in said
    assert ("no GPU operations" in said) != bool(why)


@pytest.mark.parametrize(("skipped", "is_told"), [(2, True), (1, False)])
def test_launches_whose_records_were_skipped_did_not_lose_them(
    skipped: int, *, is_told: bool
) -> None:
    """Only as many skipped records as there are launches can be all of theirs."""
    calls = [{"name": "cudaLaunchKernel", "start_ns": at} for at in (0, 10)]
    made = replace(
        trace_of(devices=[], calls=calls), notes=(Note("dropped", "no-time", "", skipped),)
    )
    said = tf.analyze(made).verdict.sentence
    assert said.startswith("GPU records are missing: the trace has 2 launch calls")
    assert ("(2 records were skipped)" in said) == is_told


def test_samples_of_the_cpu_alone_are_told(tmp_path: Path) -> None:
    with nsys(tmp_path / "samples.sqlite") as file:
        file.gpu()
        for number in range(3):
            file.row("COMPOSITE_EVENTS", id=number, start=1_000 * number, globalTid=thread())
            name = {"symbol": file.string("main"), "module": file.string("a.out")}
            file.row("SAMPLING_CALLCHAINS", id=number, stackDepth=0, **name)
    said = tf.analyze(tf.read(tmp_path / "samples.sqlite")).verdict.sentence
    assert said == "This trace has no GPU operations, only 3 CPU samples."


@pytest.mark.parametrize(("operators", "is_told"), [(100, True), (101, False)])
def test_one_skipped_event_is_not_the_gpu_work_of_many_operators(
    operators: int, *, is_told: bool
) -> None:
    ops = [{"name": "aten::mm", "start_ns": 10 * at, "dur_ns": 5} for at in range(operators)]
    made = replace(trace_of(devices=[], ops=ops), notes=(Note("dropped", "no-time", "", 1),))
    assert ("could be read" in tf.analyze(made).verdict.sentence) == is_told


@pytest.mark.parametrize("others", [0, 1])
def test_an_empty_file_beside_others_is_no_empty_recording(others: int) -> None:
    totals = [{"name": "k", "count": 3, "total_ns": 9_000_000}] * others
    trace = trace_of(totals=totals)
    trace = replace(trace, source=replace(trace.source, facts={CUDA_END: "empty"}))
    assert ("The recording is empty" in tf.analyze(trace).verdict.sentence) == (not others)
