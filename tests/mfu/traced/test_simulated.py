"""Simulated runs: the ledger of every step equals what the simulator put into its kernels."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from msgspec.structs import replace

import traceflops as tf
from sample_traces.config import RunConfig
from sample_traces.emit_pytorch import write_pytorch
from sample_traces.kineto_text import KinetoOptions
from sample_traces.records import Run
from sample_traces.simulate import simulate
from sample_traces.truth import truth
from tests.conftest import examples
from tests.mfu.counting import added, part_of
from tests.mfu.traced.recording import lines
from tests.samples.strategies import run_configs
from traceflops.analysis.preparation import prepare
from traceflops.flops.mfu_waterfall import waterfall
from traceflops.mfu.budget import device_budgets
from traceflops.mfu.checked.passes import unknown_flops
from traceflops.mfu.traced.executed import Executed, executed
from traceflops.windows.prepared import Prepared

pytestmark = pytest.mark.slow

UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)


def read(run: Run) -> tuple[Prepared, Executed]:
    with TemporaryDirectory() as folder:
        write_pytorch(run, Path(folder), options=KinetoOptions(compression="none"))
        prepared = prepare(tf.read(folder))
    return prepared, executed(prepared)


def step_lines(config: RunConfig) -> dict[str, int]:
    """Return the lines of one step by the formulas of a transformer, not by the trace."""
    products = 2 * config.tokens * (12 * config.layers * config.hidden**2)
    logits = 2 * config.tokens * config.vocab * config.hidden
    pairs = config.batch * config.sequence * (config.sequence + 1) // 2
    core = 4 * config.layers * config.hidden * pairs
    return {
        "model.attention.backward": 2 * core,
        "model.attention.forward": core,
        "model.matmul.forward": products + logits,
        "model.matmul.input_grad": products + logits,
        "model.matmul.weight_grad": products + logits,
        "algorithmic.attention": core // 2,
    }


@settings(max_examples=examples(40), phases=UNSHRUNK, suppress_health_check=list(HealthCheck))
@given(config=run_configs(cuda_graph=False))
def test_every_step_equals_the_truth(config: RunConfig) -> None:
    run = simulate(config)
    prepared, found = read(run)
    for device, expected in enumerate(truth(run).ranks):
        windows = prepared.windows[device]
        for step in expected.steps():
            place = next(at for at, one in enumerate(windows) if one.step == step.step)
            ledger = part_of(found, device, place, used=False).ledger()
            assert ledger.executed == step.flops
            assert added(ledger, 3) == step_lines(config)
        launched = sum(window.flops for window in expected.steps())
        assert part_of(found, device, used=False).ledger().executed == launched


@settings(max_examples=examples(20), phases=UNSHRUNK, suppress_health_check=list(HealthCheck))
@given(
    # Kernels that run at once, each at 62 % of the peak, would be above it together. A copy that
    # fetches ahead begins the window of its step before the work of the step begins.
    config=run_configs(
        cuda_graph=False,
        lead_in=False,
        dtype="bf16",
        noise_permille=0,
        twin_kernels=False,
        programmatic_launch=False,
        copy_stream=False,
    )
)
def test_the_waterfall_of_a_simulated_run(config: RunConfig) -> None:
    run = simulate(config)
    prepared, found = read(run)
    peak = config.peak_flops_per_s // 10**9
    peaks = {device: {"bf16": peak} for device in prepared.windows}
    split = waterfall(device_budgets(prepared, found, peaks))
    time_ns = sum(w.dur_ns for windows in prepared.windows.values() for w in windows if w.used)
    assert split.budget == peak * time_ns == sum(line.amount for line in split.lines)
    assert split.amount("useful") == found.model_flops
    assert split.amount("recompute") == split.amount("overcompute") == 0
    assert split.amount("unattributed") == 0
    assert split.errors == ()
    idle = sum(
        window.account.components.idle_ns
        for windows in prepared.windows.values()
        for window in windows
        if window.used
    )
    assert split.amount("idle") == peak * idle
    assert unknown_flops(found, peaks) == 0
    assert found.executed_at_least == found.executed_flops


def test_a_replayed_graph_has_no_ops_to_count() -> None:
    config = RunConfig(ranks=1, steps=3, layers=1, cuda_graph=True)
    _, found = read(simulate(config))
    assert found.executed_flops == 0
    assert found.coverage == 0
    assert {one.why for one in found.outside.unattributed} == {"replayed"}
    peaks = {0: {"bf16": config.peak_flops_per_s // 10**9}}
    assert unknown_flops(found, peaks) is None


def test_work_launched_before_the_trace_began_is_shown_as_such() -> None:
    plain = RunConfig(ranks=1, steps=4, layers=1, lead_in=True)
    prepared, found = read(simulate(plain))
    (before,) = [time for time in found.times if time.window == 0]
    assert before.uncounted_ns == before.kernels_ns > 0
    assert found.outside.unattributed == ()
    peaks = {0: {"bf16": plain.peak_flops_per_s // 10**9}}
    windows = tuple(replace(w, used=w.role == "before") for w in prepared.windows[0])
    chosen = replace(prepared, windows={0: windows})
    first = waterfall(device_budgets(chosen, found, peaks), "bf16")
    assert prepared.windows[0][0].role == "before"
    assert first.amount("useful") == 0
    assert sum(line.amount for line in first.lines) == first.budget


def test_ranks_and_devices_can_be_chosen() -> None:
    config = RunConfig(ranks=2, steps=3, layers=1)
    with TemporaryDirectory() as folder:
        write_pytorch(simulate(config), Path(folder), options=KinetoOptions(compression="none"))
        trace = tf.read(folder)
    both = executed(prepare(trace))
    alone = executed(prepare(trace, tf.Selection(ranks=frozenset({1}))))
    assert (
        part_of(alone, 1).ledger().executed
        == part_of(both, 1).ledger().executed
        == alone.executed_flops
    )
    assert 2 * alone.executed_flops == both.executed_flops
    first = executed(prepare(trace, tf.Selection(steps=(0, 0))))
    assert lines(first) == {name: 2 * flops for name, flops in step_lines(config).items()}


def test_a_stretch_of_time_has_the_work_that_starts_in_it() -> None:
    config = replace(RunConfig(ranks=1, steps=3, layers=1), noise_permille=0)
    with TemporaryDirectory() as folder:
        write_pytorch(simulate(config), Path(folder), options=KinetoOptions(compression="none"))
        trace = tf.read(folder)
    whole = part_of(executed(prepare(trace)), used=False).ledger().executed
    middle = prepare(trace).windows[0][1].dur_ns
    early = executed(prepare(trace, tf.Selection(to_ns=middle)))
    late = executed(prepare(trace, tf.Selection(from_ns=middle)))
    assert early.executed_flops + late.executed_flops == whole
    assert 0 < early.executed_flops < whole
