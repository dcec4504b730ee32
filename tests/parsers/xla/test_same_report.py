"""One simulated run as XPlane files and in PyTorch's format: the reports say the same.

What the format has no place for stands in `CARRIES` and `part_of`; everything else has to be
identical, to the PyTorch trace of the same part of the run and to the truth about it.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

import traceflops as tf
from sample_traces.config import RunConfig, on_mi300x
from sample_traces.records import Run
from sample_traces.simulate import simulate
from sample_traces.truth import truth
from sample_traces.xplane import CARRIES, part_of, write_xplane
from tests.conftest import examples
from tests.parsers.figures import (
    RICH,
    TWO_RANKS,
    Figures,
    differences,
    in_order,
    pytorch_report,
    waits_on,
)
from tests.parsers.nsight.test_same_report import assert_true
from tests.samples.strategies import run_configs

pytestmark = pytest.mark.slow


def xplane_report(run: Run) -> tf.Analysis:
    with TemporaryDirectory() as folder:
        write_xplane(run, Path(folder))
        return tf.analyze(tf.read(folder))


def assert_same(run: Run) -> None:
    found, expected = xplane_report(run), pytorch_report(part_of(run))
    figures = Figures(CARRIES, CARRIES.streams)
    assert differences(figures.of(found), figures.of(expected)) == []
    assert waits_on(found) == waits_on(expected)
    for one, true in zip(in_order(found), truth(part_of(run)).ranks, strict=True):
        assert_true(one, true, CARRIES)


@pytest.mark.parametrize("machine", [RunConfig, on_mi300x])
@pytest.mark.parametrize("more", [TWO_RANKS, {"cuda_graph": True}], ids=["ranks", "graph"])
def test_a_rich_run(machine: Any, more: dict[str, Any]) -> None:
    assert_same(simulate(machine(**(RICH | more))))


def test_replays_whose_kernels_were_not_recorded() -> None:
    run = simulate(RunConfig(**RICH, cuda_graph=True, opaque_graph=True))
    (found,), (true,) = in_order(xplane_report(run)), truth(run).ranks
    assert_true(found, true, CARRIES)
    assert found.whole.kinds["graph"].count == RICH["steps"]


@settings(
    max_examples=examples(15),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(config=run_configs(opaque_graph=False) | run_configs(opaque_graph=False, machine="mi300x"))
def test_random_runs(config: RunConfig) -> None:
    assert_same(simulate(config))
