"""What the verdict leads with, and what it says of work that it cannot judge."""

from typing import Any

import pytest

import traceflops as tf
from tests.core.build import launched, trace_of
from tests.findings.test_losses import of
from tests.mfu.test_measurement import matmul
from traceflops.mfu.peak.tracepeaks import PeakOptions


def said(analysis: tf.Analysis) -> tuple[Any, ...]:
    verdict = analysis.verdict
    return verdict.sentence, verdict.loss, verdict.share


def test_a_busy_gpu_whose_kernels_no_rule_knows() -> None:
    assert said(of(odd=985, idle=14, gemm=1)) == (
        "The GPU is busy 98.6 % of the time. Its kernels are uncategorized, so efficiency is "
        "unknown.",
        None,
        None,
    )


def test_graph_launches_without_kernels_are_no_loss() -> None:
    tables = launched(("graph", 0, 100, 990), ("sm90_gemm_bf16", 1, 1_090, 10))
    tables["activities"][0]["kind"] = "graph"
    assert said(tf.analyze(trace_of(**tables))) == (
        "The GPU is busy 100.0 % of the time. The trace lacks the kernels of graph launches, "
        "so efficiency is unknown.",
        None,
        None,
    )


@pytest.mark.parametrize("idle", [1, 29])
def test_a_busy_gpu_without_flops_is_not_judged(idle: int) -> None:
    """0.1 % and 2.9 % of idle time are not worth saying, nor are 2 % of norms."""
    busy, compute = 100 - idle / 10, 98 - idle / 10
    assert said(of(gemm=980 - idle, idle=idle, norm=20)) == (
        f"The GPU is busy {busy} % of the time. Compute takes {compute} %; its FLOPs and "
        "efficiency are unknown.",
        None,
        None,
    )


def test_what_is_lost_stands_before_what_cannot_be_judged() -> None:
    assert said(of(gemm=300, idle=200, odd=400, norm=100)) == (
        "Idle time takes 20.0 % of the total time; elementwise, norm and copy kernels take "
        "10.0 %. Uncategorized kernels take 40.0 %; how much of that is useful is unknown. Compute "
        "takes 30.0 %; its FLOPs and efficiency are unknown.",
        "idle",
        0.2,
    )


def test_several_kinds_of_unknown_work_are_each_said() -> None:
    assert said(of(gemm=500, odd=500))[0] == (
        "The GPU is busy 100.0 % of the time. Uncategorized kernels take 50.0 %; how much of "
        "that is useful is unknown. Compute takes 50.0 %; its FLOPs and efficiency are unknown."
    )


def test_where_nothing_is_wrong_it_says_so() -> None:
    """2 x 10^9 FLOPs take 2,000 ns at the peak; these take 2,020."""
    analysis = tf.analyze(matmul(2_020), peaks=PeakOptions(tflops=1000))
    assert said(analysis) == (
        "MFU 99.0 %. The GPU is busy 100.0 % of the time, and no loss reaches 3.0 %.",
        None,
        None,
    )
    assert analysis.findings == ()


def test_a_single_loss_stands_alone() -> None:
    analysis = tf.analyze(matmul(4_000), peaks=PeakOptions(tflops=1000))
    assert said(analysis)[0] == (
        "MFU 50.0 %. The largest loss is slow compute kernels (50.0 % of the total time)."
    )


def test_known_work_without_a_peak_is_not_said_to_lack_flops() -> None:
    analysis = tf.analyze(matmul(4_000, device={"product": "Quantum 9000"}))
    assert said(analysis)[0] == (
        "The GPU is busy 100.0 % of the time. Compute takes 100.0 %; its efficiency is unknown "
        "(no MFU)."
    )


def test_several_gpus_are_several() -> None:
    tables = launched(("my_kernel", 0, 100, 990), ("my_kernel", 1, 100, 990))
    tables["activities"][1]["device"] = 1
    devices = [{}, {"device": 1, "local_id": 1}]
    sentence, *_ = said(tf.analyze(trace_of(**tables, devices=devices)))
    assert sentence.startswith(
        "The GPUs are busy 100.0 % of the time. Their kernels are uncategorized"
    )
