"""One simulated run in every format of rocprof and in PyTorch's: the reports say the same.

What a format has no place for stands in `CARRIES`; everything else has to be identical, to the
PyTorch trace of the same part of the run and to the truth about it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sample_traces.config import RunConfig, on_mi300x
from sample_traces.records import Run
from sample_traces.rocprof.formats import CARRIES, WRITERS, Carries, part_of
from sample_traces.rocprof.options import RocprofOptions
from sample_traces.simulate import simulate
from sample_traces.truth import DeviceTruth, truth
from tests.conftest import examples, some
from tests.parsers.figures import RICH, TWO_RANKS, waits_on
from tests.parsers.rocprof.same import (
    all_in_streams,
    differences,
    figures,
    in_order,
    pytorch_report,
    rocprof_report,
)
from tests.samples.strategies import run_configs
from tests.timeline.test_truth import tops
from traceflops.windows.records import DeviceReport

pytestmark = pytest.mark.slow

FORMATS = sorted(WRITERS)
ONE_RANK = {"ranks": 1, "straggler_rank": None}
UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)


@cache
def rich_run(name: str, **changes: Any) -> Run:
    """Return a run with a bit of everything; of the names that truncation leaves of it enough."""
    dtype = "fp32" if CARRIES[name].names == "truncated" else "bf16"
    return simulate(on_mi300x(**(RICH | TWO_RANKS | {"dtype": dtype} | changes)))


def assert_same(name: str, run: Run) -> None:
    carries = CARRIES[name]
    part = part_of(run, carries)
    found = rocprof_report(name, run)
    ours, expected = (figures(one, carries, part) for one in (found, pytorch_report(part)))
    if any(note.code == "copies-missing" for note in found.notes):  # idle time is not judged
        assert not any(one.work.kind == "memcpy" for rank in part.ranks for one in rank.activities)
        assert (ours.pop("verdict")[0], expected.pop("verdict")[0]) != ("idle", "idle")
    assert differences(ours, expected) == []
    for one, true in zip(in_order(found), truth(part).ranks, strict=True):
        assert_true(one, true, carries)
        if carries.links and all_in_streams(carries, part):
            assert one.whole.account.idle_causes.parts() == dict(true.idle_causes)


def assert_true(found: DeviceReport, expected: DeviceTruth, carries: Carries) -> None:
    """Compare with the truth what does not hang on how steps were found."""
    whole, account = found.whole, found.whole.account
    assert (whole.span_ns, whole.busy_ns) == (expected.span_ns, expected.busy_ns)
    assert account.activities == expected.count
    seen = {kind: count for kind, count in expected.count_by_kind.items() if count}
    assert {kind: sums.count for kind, sums in whole.kinds.items()} == seen
    for kind, sums in whole.kinds.items():
        assert sums.sum_ns == expected.sum_by_kind[kind]
        assert sums.union_ns == expected.union_by_kind[kind]
    if carries.names != "truncated":
        assert account.components.parts() == dict(expected.components)
        assert whole.hidden_communication_ns == expected.hidden_communication_ns
        by_category = {f"{top}/{sub}": ns for (top, sub), ns in expected.sum_by_category.items()}
        categories = {n: sums.sum_ns for n, sums in whole.categories.items() if "/" in n}
        assert categories == by_category
    if carries.links:
        assert sum((whole.unlinked or {}).values()) == expected.unlinked


@pytest.mark.parametrize("name", some(FORMATS, 3))
def test_a_rich_run(name: str) -> None:
    assert_same(name, rich_run(name))


@pytest.mark.parametrize(
    "name", some([name for name in FORMATS if CARRIES[name].steps and CARRIES[name].threads], 5)
)
def test_what_the_gpu_waits_on(name: str) -> None:
    run = rich_run(name)
    found = rocprof_report(name, run, RocprofOptions(markers="all"))
    assert waits_on(found) == waits_on(pytorch_report(part_of(run, CARRIES[name])))


@pytest.mark.parametrize("name", some(FORMATS, 5))
def test_a_run_whose_copies_are_kernels(name: str) -> None:
    assert_same(name, rich_run(name, blit_copies=True, **ONE_RANK))


@pytest.mark.parametrize("name", some(FORMATS, 6))
def test_a_run_that_replays_graphs(name: str) -> None:
    assert_same(name, rich_run(name, cuda_graph=True, steps=4, **ONE_RANK))


@pytest.mark.parametrize("name", some([name for name in FORMATS if CARRIES[name].steps], 5))
def test_steps_of_markers_are_the_true_windows(name: str) -> None:
    run = rich_run(name)
    carries = CARRIES[name]
    found = rocprof_report(name, run)
    assert found.steps.source == "markers"
    for one, expected in zip(in_order(found), truth(part_of(run, carries)).ranks, strict=True):
        windows = [window for window in one.windows if window.role == "step"]
        zero_ns = one.whole.start_ns - expected.start_ns
        assert [
            (w.step, w.start_ns - zero_ns, w.end_ns - zero_ns, w.launched) for w in windows
        ] == [(w.step, w.start_ns, w.end_ns, w.launched) for w in expected.steps()]
        if carries.names != "truncated":
            assert [w.account.components.parts() for w in windows] == [
                dict(w.components) for w in expected.steps()
            ]
            assert tops(expected) == {
                top: sums.sum_ns for top, sums in one.whole.categories.items() if "/" not in top
            }


@settings(max_examples=examples(10), phases=UNSHRUNK, suppress_health_check=list(HealthCheck))
@given(config=run_configs(machine="mi300x", opaque_graph=False))
@pytest.mark.parametrize("name", some(FORMATS, 8))
def test_random_runs(name: str, config: RunConfig) -> None:
    # Without streams nothing tells that a copy runs ahead on one of its own.
    ahead = config.copy_stream and CARRIES[name].streams
    assert_same(name, simulate(replace(config, copy_stream=ahead)))


@settings(max_examples=examples(30), phases=UNSHRUNK, suppress_health_check=list(HealthCheck))
@given(config=run_configs(machine="mi300x", opaque_graph=False), data=st.data())
def test_formats_that_carry_the_same_say_the_same(config: RunConfig, data: st.DataObject) -> None:
    one = data.draw(st.sampled_from(FORMATS))
    like = [name for name in FORMATS if CARRIES[name] == CARRIES[one] and name != one]
    run = simulate(config)
    for other in like:
        carries = CARRIES[one]
        reports = rocprof_report(one, run), rocprof_report(other, run)
        first, second = (figures(report, carries, run) for report in reports)
        assert differences(first, second) == []
