"""Traces of a profiler that recorded nothing but itself."""

import pytest

import traceflops as tf
from tests.build import trace_of


@pytest.mark.parametrize(("own_ns", "is_alone"), [(950, True), (500, False)])
def test_a_profiler_alone_is_said_where_its_functions_take_nearly_all(
    own_ns: int, is_alone: bool
) -> None:
    functions = [("train.py(3): <module>", 1_000), ("torch/profiler/profiler.py(9): stop", own_ns)]
    marks = [
        {"name": name, "kind": "python", "start_ns": 100, "dur_ns": dur_ns}
        for name, dur_ns in functions
    ]
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
