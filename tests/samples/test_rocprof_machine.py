"""The simulated MI300X: AMD's names for kernels and calls, the same program and exact costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import traceflops as tf
from sample_traces.config import RunConfig, on_mi300x
from sample_traces.emit_pytorch import kineto_document, write_pytorch
from sample_traces.kineto_text import KinetoOptions
from sample_traces.records import Run
from sample_traces.simulate import simulate
from sample_traces.truth import model_flops, truth
from tests.timeline.test_truth import assert_device

SETTINGS: dict[str, Any] = {"layers": 1, "ranks": 2, "steps": 3, "sync_each_step": True}


def names_of(run: Run, sub: str) -> set[str]:
    return {a.work.name for r in run.ranks for a in r.activities if a.work.sub == sub}


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("blit_copies", [False, True])
def test_its_pytorch_trace_gives_the_truth(dtype: Any, blit_copies: bool, tmp_path: Path) -> None:
    run = simulate(
        on_mi300x(dtype=dtype, blit_copies=blit_copies, lead_in=True, copy_stream=True, **SETTINGS)
    )
    write_pytorch(run, tmp_path, KinetoOptions(compression="none"))
    analysis = tf.analyze(tf.read(tmp_path))
    shift = run.ranks[0].origin_unix_ns - (analysis.source.origin_unix_ns or 0)
    for found, expected in zip(analysis.devices, truth(run).ranks, strict=True):
        assert_device(found, expected, shift)
        assert found.product == "AMD Instinct MI300X"
        categories = {n: s.sum_ns for n, s in found.whole.categories.items() if "/" in n}
        by_category = {f"{top}/{sub}": ns for (top, sub), ns in expected.sum_by_category.items()}
        assert categories == by_category


def test_libraries_go_by_their_names() -> None:
    run = simulate(on_mi300x(**SETTINGS))
    assert all(name.startswith("Cijk_") for name in names_of(run, "gemm"))
    assert len(names_of(run, "gemm")) == 4  # TN with bias and without, NN, NT
    heads = ("void ck_tile::kentry<", "_ZN5aiter")
    assert all(name.startswith(heads) for name in names_of(run, "attention"))
    assert names_of(run, "memset") == {"__amd_rocclr_fillBufferAligned"}
    (collective,) = names_of(run, "collective")
    assert collective.startswith("ncclDevKernel_Generic")
    calls = {call.name for rank in run.ranks for call in rank.calls}
    assert {"hipExtModuleLaunchKernel", "hipLaunchKernel", "hipStreamSynchronize"} < calls
    assert all(name.startswith("hip") for name in calls)


def test_copies_may_be_kernels_too() -> None:
    run = simulate(on_mi300x(blit_copies=True, **SETTINGS))
    assert {a.work.kind for r in run.ranks for a in r.activities} == {"kernel"}
    assert names_of(run, "copy") == {"__amd_rocclr_copyBuffer"}


def test_the_program_does_not_depend_on_the_machine() -> None:
    config = RunConfig(machine="mi300x", lead_in=False, **SETTINGS)
    amd, nvidia = simulate(config), simulate(RunConfig(lead_in=False, **SETTINGS))
    for here, there in zip(amd.ranks, nvidia.ranks, strict=True):
        assert [op.name for op in here.ops] == [op.name for op in there.ops]
        assert [(c.start_ns, c.dur_ns) for c in here.calls] == [
            (c.start_ns, c.dur_ns) for c in there.calls
        ]
        assert sum(a.work.flops for a in here.activities) == sum(
            a.work.flops for a in there.activities
        )
    assert model_flops(config) == model_flops(RunConfig(**SETTINGS))


def test_the_trace_describes_the_machine() -> None:
    document = kineto_document(simulate(on_mi300x(**SETTINGS)), 0)
    (device, _) = document["deviceProperties"]
    assert (device["numSms"], device["warpSize"], device["computeMajor"]) == (304, 64, 9)
    assert "cupti_version" not in document
    assert "hip_runtime_version" in document


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"machine": "tpu"}, "machine must be one of"), ({"blit_copies": True}, "needs mi300x")],
)
def test_config_refuses_nonsense(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RunConfig(**changes)
