"""Simulated runs: every figure of the analysis equals the simulator's exact truth."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import traceflops as tf
from sample_traces.config import RunConfig
from sample_traces.emit_pytorch import write_pytorch
from sample_traces.kineto_text import KinetoOptions
from sample_traces.simulate import simulate
from sample_traces.truth import DeviceTruth, WindowTruth, truth
from tests.conftest import examples
from tests.samples.strategies import run_configs
from traceflops.timeline.records import Window
from traceflops.windows.records import DeviceReport

pytestmark = pytest.mark.slow


def analysis_of(config: RunConfig, options: KinetoOptions) -> tuple[tf.Analysis, int]:
    """Return the analysis of a run as written, and what was added to the run's own times."""
    run = simulate(config)
    with TemporaryDirectory() as folder:
        write_pytorch(run, Path(folder), options=options)
        trace = tf.read(folder)
    return tf.analyze(trace), run.ranks[0].origin_unix_ns - (trace.source.origin_unix_ns or 0)


def assert_window(found: Window, expected: WindowTruth, shift: int) -> None:
    assert (found.start_ns, found.end_ns) == (expected.start_ns + shift, expected.end_ns + shift)
    assert found.account.components.parts() == dict(expected.components)
    assert found.account.components.window_ns == found.dur_ns
    assert found.account.hidden_communication_ns == expected.hidden_communication_ns
    assert found.account.idle_causes.parts() == dict(expected.idle_causes)
    if found.role == "step":
        assert found.step == expected.step
        assert found.launched == expected.launched


def assert_device(found: DeviceReport, expected: DeviceTruth, shift: int) -> None:
    whole = found.whole
    assert found.rank == expected.rank
    assert (whole.start_ns, whole.end_ns) == (expected.start_ns + shift, expected.end_ns + shift)
    assert (whole.span_ns, whole.busy_ns, whole.idle_ns) == (
        expected.span_ns,
        expected.busy_ns,
        expected.idle_ns,
    )
    assert whole.account.components.parts() == dict(expected.components)
    assert whole.account.idle_causes.parts() == dict(expected.idle_causes)
    assert whole.hidden_communication_ns == expected.hidden_communication_ns
    assert whole.account.activities == expected.count
    seen = [kind for kind, count in expected.count_by_kind.items() if count]
    assert sorted(whole.kinds) == sorted(seen)
    for kind, sums in whole.kinds.items():
        assert sums.count == expected.count_by_kind[kind]
        assert sums.sum_ns == expected.sum_by_kind[kind]
        assert sums.union_ns == expected.union_by_kind[kind]
    assert sum((whole.unlinked or {}).values()) == expected.unlinked
    windows = [w for w in expected.windows if w.step is not None or w.length_ns]
    assert len(found.windows) == len(windows)
    for window, window_truth in zip(found.windows, windows, strict=True):
        assert_window(window, window_truth, shift)


def tops(expected: DeviceTruth) -> dict[str, int]:
    """Return the true time of each top category."""
    sums: dict[str, int] = {}
    for (top, _), ns in expected.sum_by_category.items():
        sums[top] = sums.get(top, 0) + ns
    return sums


# Runs are too slow to be made smaller by trial: a failing one is shown as it was drawn.
UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)


@settings(max_examples=examples(50), phases=UNSHRUNK, suppress_health_check=list(HealthCheck))
@given(config=run_configs())
def test_components_equal_the_truth_of_random_runs(config: RunConfig) -> None:
    analysis, shift = analysis_of(config, KinetoOptions(compression="none"))
    run = simulate(config)
    expected = truth(run)
    assert len(analysis.devices) == len(expected.ranks)
    for found, device_truth in zip(analysis.devices, expected.ranks, strict=True):
        # Each rank's truth is on its own clock, which the files tie to the calendar.
        rank_shift = run.ranks[found.process].origin_unix_ns - run.ranks[0].origin_unix_ns
        assert_device(found, device_truth, shift + rank_shift)
        found_tops = {
            name: sums.sum_ns for name, sums in found.whole.categories.items() if "/" not in name
        }
        assert found_tops == tops(device_truth)


@settings(max_examples=examples(30), phases=UNSHRUNK, suppress_health_check=list(HealthCheck))
@given(
    config=run_configs(),
    style=st.sampled_from(["pretty", "compact", "list"]),
    metadata=st.sampled_from(["before", "after"]),
    ids=st.sampled_from(["number", "string"]),
    legacy=st.booleans(),
    flows=st.booleans(),
    compression=st.sampled_from(["none", "gzip", "zip"]),
)
def test_the_way_it_is_written_changes_nothing(config: RunConfig, **ways: str | bool) -> None:
    plain, _ = analysis_of(config, KinetoOptions(compression="none"))
    if ways["style"] == "list":
        ways["metadata"] = "before"
    other, _ = analysis_of(config, KinetoOptions(**ways))  # type: ignore[arg-type]
    assert [d.whole.account for d in other.devices] == [d.whole.account for d in plain.devices]
    assert [[w.account for w in d.windows] for d in other.devices] == [
        [w.account for w in d.windows] for d in plain.devices
    ]
    assert other.kernels.equals(plain.kernels)
