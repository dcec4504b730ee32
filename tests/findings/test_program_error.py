"""A program whose output ends with an error: that is said first."""

import pytest
from msgspec.structs import replace

import traceflops as tf
from tests.build import launched, trace_of
from traceflops.recording.inventory import how_to_record
from traceflops.reports.view.findings import headline, opening
from traceflops.table.trace import CUPTI_ERROR, PROGRAM_ERROR, Trace

MS = 1_000_000


def stopped(kernels: int, error: str) -> Trace:
    """Return a trace of so many kernels of 5 ms, 1 s after its first call."""
    starts = [1_000 * MS + 6 * MS * number for number in range(kernels)]
    rows = launched(*(("saxpy", at - MS, at, 5 * MS if kernels > 1 else 100) for at in starts))
    rows["calls"].append({"name": "cudaMalloc", "start_ns": 0, "dur_ns": 900 * MS})
    trace = trace_of(**rows)
    return replace(
        trace, source=replace(trace.source, format="nsys-sqlite", facts={PROGRAM_ERROR: error})
    )


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("file", "The program's output ends with an error: a file was not found."),
        ("ImportError", "The program's output ends with an error: ImportError in Python."),
        ("of another version", "The program's output ends with an error."),
    ],
)
@pytest.mark.parametrize("kernels", [0, 1, 100])
def test_an_error_is_said_first_and_mended_where_little_is_recorded(
    kernels: int, error: str, said: str
) -> None:
    trace = stopped(kernels, error)
    analysis = tf.analyze(trace)
    assert headline(analysis).sentence.startswith(said)
    sentence = analysis.verdict.sentence
    assert sentence.startswith(said)
    assert ("Read it, correct the error" in sentence) == (kernels < 2)
    assert "Record longer" not in sentence
    assert how_to_record(trace) is None


@pytest.mark.parametrize(("kernels", "is_said"), [(0, True), (100, False)])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("interrupted", "it was interrupted"),
        ("not-found", "a command or file was not found"),
        ("arguments", "its command line was not understood. Correct its command line"),
    ],
)
def test_a_program_that_worked_may_have_ended_on_purpose(
    error: str, told: str, kernels: int, *, is_said: bool
) -> None:
    assert (told in headline(tf.analyze(stopped(kernels, error))).sentence) == is_said


def test_a_profiler_that_does_not_fit_is_to_be_replaced() -> None:
    sentence = tf.analyze(stopped(0, "profiler")).verdict.sentence
    assert "Record with a newer version of the profiler" in sentence
    assert "correct the error" not in sentence


def test_a_profiler_without_a_gpu_is_not_to_be_replaced() -> None:
    trace = stopped(0, "no-gpu")
    facts = {**trace.source.facts, CUPTI_ERROR: "CUPTI_ERROR_NOT_INITIALIZED"}
    trace = replace(trace, source=replace(trace.source, facts=facts))
    sentence = tf.analyze(trace).verdict.sentence
    assert "no GPU was found. Read it" in sentence
    assert "newest Nsight Systems" not in sentence


def test_a_program_that_was_interrupted_is_to_run_longer() -> None:
    sentence = tf.analyze(stopped(0, "interrupted")).verdict.sentence
    assert "Let it run longer before it is stopped, then record again." in sentence
    assert "launch no kernel" not in sentence  # it may have done so later


@pytest.mark.parametrize("error", ["access", "memory"])
def test_where_memory_ran_out_the_help_is_to_need_less_and_not_to_warm_up(error: str) -> None:
    """40 of 100 ms are the first launch of a kernel, and 30 ms idle: start-up is the title."""
    starts = [*range(16), *(at + n for at in (71, 93) for n in range(7))]
    rows = launched(
        *(
            ("new" if at == 15 else "k", at * MS, (55 if at == 15 else at) * MS + 9_000, MS - 9_000)
            for at in starts
        )
    )
    rows["calls"][15]["dur_ns"] = 40 * MS
    trace = trace_of(**rows)
    trace = replace(trace, source=replace(trace.source, facts={PROGRAM_ERROR: error}))
    found = opening(tf.analyze(trace))
    assert (found.tells is None) == (error == "memory")
    assert ("Make it need less memory" in found.title) == (error == "memory")


def test_memory_that_ran_out_has_its_figures() -> None:
    trace = stopped(100, "memory")
    facts = {**trace.source.facts, "memory_held": f"{3 << 30} {2 << 30}"}
    said = headline(tf.analyze(replace(trace, source=replace(trace.source, facts=facts)))).sentence
    assert "memory ran out (PyTorch held 3 GiB, on a GPU of 2 GiB)." in said


@pytest.mark.parametrize("held", ["", "much", "5", "1 2 3", "-1 5", "9" * 5_000 + " 1"])
def test_figures_of_memory_that_no_reader_writes_are_not_told(held: str) -> None:
    trace = stopped(100, "memory")
    facts = {**trace.source.facts, "memory_held": held}
    said = headline(tf.analyze(replace(trace, source=replace(trace.source, facts=facts)))).sentence
    assert "memory ran out. " in said
