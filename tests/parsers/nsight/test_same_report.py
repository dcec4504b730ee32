"""One simulated run in every timeline of Nsight and in PyTorch's: the reports say the same.

What a format has no place for stands in `CARRIES`; everything else has to be identical, to the
PyTorch trace of the same part of the run and to the truth about it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import traceflops as tf
from sample_traces.config import RunConfig
from sample_traces.nsight.formats import CARRIES, WRITERS, Carries, carries_of, part_of
from sample_traces.nsight.session import NsightOptions
from sample_traces.records import Run
from sample_traces.simulate import simulate
from sample_traces.truth import DeviceTruth, truth
from tests.conftest import examples, some
from tests.parsers.figures import (
    RICH,
    TWO_RANKS,
    Figures,
    Held,
    differences,
    in_order,
    pytorch_report,
    waits_on,
)
from tests.samples.strategies import run_configs
from tests.timeline.test_truth import tops
from traceflops.windows.records import DeviceReport

pytestmark = pytest.mark.slow

FORMATS = sorted(WRITERS)
ONE_RANK = {"ranks": 1, "straggler_rank": None}
UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)


@cache
def rich_run(**changes: Any) -> Run:
    """Return a run with a bit of everything."""
    return simulate(RunConfig(**(RICH | TWO_RANKS | {"trailing_copy": True} | changes)))


def nsight_report(name: str, run: Run, options: NsightOptions | None = None) -> tf.Analysis:
    """Return the analysis of a run that was written in one of Nsight's formats."""
    with TemporaryDirectory() as folder:
        WRITERS[name](run, Path(folder), options or NsightOptions())
        return tf.analyze(tf.read(folder))


def figures(report: tf.Analysis, carries: Carries) -> dict[str, Any]:
    return Figures(carries, carries.streams).of(report)


def assert_same(name: str, run: Run, options: NsightOptions | None = None) -> None:
    carries = carries_of(name, run)
    part = part_of(run, carries)
    found = nsight_report(name, run, options)
    assert differences(figures(found, carries), figures(pytorch_report(part), carries)) == []
    for one, true in zip(in_order(found), truth(part).ranks, strict=True):
        assert_true(one, true, carries)


def assert_true(found: DeviceReport, expected: DeviceTruth, carries: Held) -> None:
    """Compare with the truth what does not hang on how steps were found."""
    whole, account = found.whole, found.whole.account
    assert (whole.span_ns, whole.busy_ns) == (expected.span_ns, expected.busy_ns)
    assert account.activities == expected.count
    seen = {kind: count for kind, count in expected.count_by_kind.items() if count}
    assert {kind: sums.count for kind, sums in whole.kinds.items()} == seen
    for kind, one in whole.kinds.items():
        assert one.sum_ns == expected.sum_by_kind[kind]
        assert one.union_ns == expected.union_by_kind[kind]
    assert account.components.parts() == dict(expected.components)
    assert whole.hidden_communication_ns == expected.hidden_communication_ns
    sums = expected.sum_by_category.items()
    by_category = {f"{top}/{sub}": ns for (top, sub), ns in sums if top != "graph"}
    assert {n: one.sum_ns for n, one in whole.categories.items() if "/" in n} == by_category
    if carries.links:
        assert account.idle_causes.parts() == dict(expected.idle_causes)
        assert sum((whole.unlinked or {}).values()) == expected.unlinked


def test_what_the_table_describes_is_what_can_be_written() -> None:
    assert sorted(CARRIES) == FORMATS


@pytest.mark.parametrize("name", some(FORMATS, 5))
def test_what_the_gpu_waits_on(name: str) -> None:
    run = rich_run()
    found = nsight_report(name, run, NsightOptions(markers="all"))
    part = part_of(run, carries_of(name, run))
    assert waits_on(found) == waits_on(pytorch_report(part))


@pytest.mark.parametrize("name", some(FORMATS, 2))
def test_a_rich_run(name: str) -> None:
    assert_same(name, rich_run())


@pytest.mark.parametrize("name", some(FORMATS, 4))
def test_a_run_that_replays_graphs(name: str) -> None:
    assert_same(name, rich_run(cuda_graph=True, steps=4, **ONE_RANK))


@pytest.mark.parametrize(
    ("name", "lead_ns"),
    [
        *(("nsys 2020", -40_000_000), ("nsys 2023 together", 0)),
        *(("nsys 2026", -40_000_000), ("nsys 2026", 0), ("stats", -40_000_000)),
    ],
)
def test_times_before_the_session(name: str, lead_ns: int) -> None:
    assert_same(name, rich_run(), NsightOptions(lead_ns=lead_ns))


@pytest.mark.parametrize("name", some([name for name in FORMATS if name.startswith("nsys")], 5))
def test_launches_of_the_driver_within_those_of_the_runtime(name: str) -> None:
    assert_same(name, rich_run(), NsightOptions(driver_calls=True))


@pytest.mark.parametrize("name", some([name for name in FORMATS if CARRIES[name].graphs], 3))
def test_replays_whose_kernels_were_not_recorded(name: str) -> None:
    """PyTorch has no record of a whole graph, so only the truth is to be met."""
    run = rich_run(cuda_graph=True, opaque_graph=True, steps=4)
    found = nsight_report(name, run)
    for one, true in zip(in_order(found), truth(run).ranks, strict=True):
        assert_true(one, true, CARRIES[name])
        assert one.whole.account.components.graph_ns > one.whole.busy_ns // 3
        assert one.whole.kinds["graph"].count == 4
    notes = {note.code: note.text for note in found.notes}
    assert "--cuda-graph-trace=node" in notes["graphs-opaque"]


@pytest.mark.parametrize("name", some([name for name in FORMATS if CARRIES[name].steps], 4))
def test_steps_of_ranges_are_the_true_windows(name: str) -> None:
    run = rich_run()
    found = nsight_report(name, run)
    assert found.steps.source == "markers"
    for one, expected in zip(
        in_order(found), truth(part_of(run, CARRIES[name])).ranks, strict=True
    ):
        windows = [window for window in one.windows if window.role == "step"]
        zero_ns = one.whole.start_ns - expected.start_ns
        assert [
            (w.step, w.start_ns - zero_ns, w.end_ns - zero_ns, w.launched) for w in windows
        ] == [(w.step, w.start_ns, w.end_ns, w.launched) for w in expected.steps()]
        assert [w.account.components.parts() for w in windows] == [
            dict(w.components) for w in expected.steps()
        ]
        assert [w.account.idle_causes.parts() for w in windows] == [
            dict(w.idle_causes) for w in expected.steps()
        ]
        assert tops(expected) == {
            top: sums.sum_ns for top, sums in one.whole.categories.items() if "/" not in top
        }


@settings(max_examples=examples(15), phases=UNSHRUNK, suppress_health_check=list(HealthCheck))
@given(config=run_configs(opaque_graph=False))
@pytest.mark.parametrize("name", some(FORMATS, 7))
def test_random_runs(name: str, config: RunConfig) -> None:
    assert_same(name, simulate(config))


@settings(max_examples=examples(30), phases=UNSHRUNK, suppress_health_check=list(HealthCheck))
@given(config=run_configs(opaque_graphs=True, cuda_graph=True))
@pytest.mark.parametrize("name", ["nsys 2023", "nsys 2026 of own GPUs", "nsys arrowdir"])
def test_random_runs_of_graphs(name: str, config: RunConfig) -> None:
    run = simulate(config)
    for one, true in zip(in_order(nsight_report(name, run)), truth(run).ranks, strict=True):
        assert_true(one, true, CARRIES[name])


@settings(max_examples=examples(30), phases=UNSHRUNK, suppress_health_check=list(HealthCheck))
@given(config=run_configs(opaque_graph=False), data=st.data())
def test_formats_that_carry_the_same_say_the_same(config: RunConfig, data: st.DataObject) -> None:
    one = data.draw(st.sampled_from(FORMATS))
    run = simulate(config)
    carries = carries_of(one, run)
    first = figures(nsight_report(one, run), carries)
    for other in (name for name in FORMATS if carries_of(name, run) == carries and name != one):
        assert differences(figures(nsight_report(other, run), carries), first) == []
