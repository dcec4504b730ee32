"""Each nanosecond of work is charged to one activity, and the sums are the components."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traceflops as tf
from tests.build import launched, step_marks, trace_of
from tests.conftest import SAMPLES, analysis_of_sample, examples, shared_file
from traceflops.attribution import charged
from traceflops.attribution.charged import ChargedKernel

ORDER = ("sgemm", "vectorized_elementwise_kernel", "ncclDevKernel_AllReduce_Sum")
"""A kernel of each component, in the order of the components."""
Work = tuple[int, int, int]
"""A place in ORDER, a start and a length."""


def of(analysis: tf.Analysis) -> tuple[ChargedKernel, ...]:
    assert analysis.charged is not None
    return analysis.charged


def painted(works: Sequence[Work], edges: Sequence[int]) -> dict[str, list[int]]:
    """Return by name the time of each window, ns by ns: the least component, the first to begin."""
    found = {name: [0] * (len(edges) - 1) for name in ORDER}
    for window, (low, high) in enumerate(pairwise(edges)):
        for ns in range(low, high):
            running = [kind for kind, start, length in works if start <= ns < start + length]
            if running:
                found[ORDER[min(running)]][window] += 1
    return found


@given(
    works=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=9
    )
)
@settings(max_examples=examples(100))
def test_each_nanosecond_is_charged_to_the_first_component_that_runs(works: list[Work]) -> None:
    activities = [
        {"name": ORDER[kind], "start_ns": start, "dur_ns": length, "stream": at}
        for at, (kind, start, length) in enumerate(works)
    ]
    analysis = tf.analyze(trace_of(activities=activities))
    edges = [min(start for _, start, _ in works), max(a + b for _, a, b in works)]
    assert {one.name: one.charged_ns for one in of(analysis)} == {
        name: sum(ns) for name, ns in painted(works, edges).items() if name in _names(works)
    }
    assert sum(one.count for one in of(analysis)) == len(works)


def _names(works: Sequence[Work]) -> set[str]:
    return {ORDER[kind] for kind, _, _ in works}


def test_what_crosses_the_end_of_a_step_is_charged_to_both_with_its_place() -> None:
    works = [("sgemm", 10, 100, 30), ("sgemm", 60, 130, 90), ("sgemm", 210, 250, 10)]
    marks = step_marks(("ProfilerStep#1", 0, 50), ("ProfilerStep#2", 200, 50))
    analysis = tf.analyze(trace_of(**launched(*works), marks=marks), tf.Selection(steps=(1, 2)))
    assert [(w.start_ns, w.end_ns) for w in analysis.devices[0].windows if w.used] == [
        (0, 220),
        (220, 260),
    ]
    (kernel,) = of(analysis)
    assert (kernel.count, kernel.charged_ns, kernel.steps_ns) == (3, 130, (120, 10))
    assert kernel.at_ns == (100 + 130 + 30) // 3


@pytest.mark.parametrize(
    "path",
    [
        *("gpt_1rank.json.gz", "gpt_ddp_4rank", "torch_cpu_train.json.gz", "rocprofv3_json"),
        "traces/pytorch/v100_kineto_resnet50_nw0.json.gz",
        "traces/pytorch/mi300x_resnet18_ddp_train.json.gz",
        "traces/rocprof/v3_json_mi350x_ddp_train.json.gz",
    ],
)
def test_what_kernels_are_charged_sums_to_the_components(path: str) -> None:
    analysis = tf.analyze(tf.read(shared_file(path) if "/" in path else SAMPLES / path))
    found, parts = Counter[str](), analysis.components.parts()
    for one in of(analysis):
        found[one.top] += one.charged_ns
        assert one.steps_ns is None or sum(one.steps_ns) == one.charged_ns
        assert one.wait_ns is None or 0 <= one.wait_ns <= one.charged_ns
    assert {name: found[name] for name in parts} == parts | {"idle": 0}
    assert sum(one.count for one in of(analysis)) == analysis.total.activities


def test_a_collective_of_several_ranks_says_how_much_of_it_is_waiting() -> None:
    analysis = analysis_of_sample("gpt_ddp_4rank")
    waits = [one.wait_ns for one in of(analysis) if one.wait_ns is not None]
    assert {one.group for one in of(analysis)} == {"0", None}
    exposed = sum(one.exposed_wait_ns for one in analysis.ranks.by_rank())
    assert 0 < sum(waits) <= exposed  # that of all steps


def test_of_very_many_ways_the_rare_ones_are_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    analysis = tf.analyze(tf.read(SAMPLES / "gpt_1rank.json.gz"))
    every = of(analysis)
    monkeypatch.setattr(charged, "MOST_ROWS", 5)
    monkeypatch.setattr(charged, "MOST_FIGURES", 2 * len(analysis.steps.used))
    few = charged.charged_kernels(analysis.prepared)
    assert next(one for one in few if not one.others).charged_ns == every[0].charged_ns
    assert sum(one.others for one in few) == len(every) - 5
    assert sum(one.steps_ns is not None for one in few) == 2
    for column in ("charged_ns", "count"):
        assert sum(getattr(one, column) for one in few) == sum(getattr(o, column) for o in every)
    assert {type(one.backward) for one in few} == {bool}
    monkeypatch.setattr(charged, "LEAST_SHARE", 25)
    monkeypatch.setattr(charged, "MOST_ROWS", 2_000)
    fewer = charged.charged_kernels(analysis.prepared)
    whole = sum(one.charged_ns for one in every)
    assert all(25 * one.charged_ns >= whole for one in fewer if not one.others)
    assert sum(one.charged_ns for one in fewer) == whole and len(fewer) < len(every)
