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
