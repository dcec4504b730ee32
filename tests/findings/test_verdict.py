"""What the verdict leads with, and what it says of work that it cannot judge."""

from typing import Any

import pytest

import traceflops as tf
from tests.build import launched, trace_of
from tests.findings.test_losses import of
from tests.mfu.test_measurement import GEMM, matmul
from traceflops.mfu.budget import PeakOptions
from traceflops.reports.view.utilisation import parts


def said(analysis: tf.Analysis) -> tuple[Any, ...]:
    verdict = analysis.verdict
    return verdict.sentence, verdict.loss, verdict.share


def test_a_busy_gpu_whose_kernels_no_rule_knows() -> None:
    assert said(of(odd=985, idle=14, gemm=1)) == (
        "The GPU is busy 98.6 % of the total time. Uncategorized kernels take 98.5 %; how much of "
        "that is useful is unknown.",
        None,
        None,
    )


def test_a_window_that_is_less_than_half_of_the_recording_is_not_the_total_time() -> None:
    tables = launched(*(("odd", at, at + 5, 100) for at in range(0, 1_000, 100)))
    for after_ns, basis in ((900, "the total time"), (1_100, "the 1.00 µs window")):
        tables["calls"][10:] = [{"name": "exit", "start_ns": 1_005 + after_ns, "dur_ns": 0}]
        assert f"of {basis}." in tf.analyze(trace_of(**tables)).verdict.sentence


def test_graph_launches_without_kernels_are_no_loss() -> None:
    tables = launched(("graph", 0, 100, 990), ("sm90_gemm_bf16", 1, 1_090, 10))
    tables["activities"][0]["kind"] = "graph"
    assert said(tf.analyze(trace_of(**tables))) == (
        "The GPU is busy 100.0 % of the total time. Graph launches (GPU time of whole graphs, "
        "no kernel records) take 99.0 %; how much of that is useful is unknown.",
        None,
        None,
    )


@pytest.mark.parametrize(("gemm", "least"), [(1, "at least "), (0, "")])
def test_gemms_may_be_of_the_convolutions_that_lead(gemm: int, least: str) -> None:
    works = {"conv": 400 - gemm, "norm": 300, "fill": 300, **({"gemm": gemm} if gemm else {})}
    led = f", {least}{40 - gemm / 10} % with convolutions."
    assert said(of(**works))[0].startswith(f"The GPU is busy 100.0 % of the total time{led}")


@pytest.mark.parametrize("idle", [1, 29])
def test_a_busy_gpu_without_flops_is_not_judged(idle: int) -> None:
    """0.1 % and 2.9 % of idle time are not worth saying, nor are 2 % of norms."""
    busy, compute = 100 - idle / 10, 98 - idle / 10
    assert said(of(gemm=980 - idle, idle=idle, norm=20)) == (
        f"The GPU is busy {busy} % of the total time. Compute takes {compute} %; its FLOPs and "
        "efficiency are unknown.",
        None,
        None,
    )


UNKNOWN = "its FLOPs and efficiency are unknown."
NORMS = "emory work (norm kernels) takes"


def test_the_largest_loss_stands_first_where_nothing_larger_is_unknown() -> None:
    assert said(of(gemm=200, idle=500, odd=100, norm=200)) == (
        f"Idle time (mostly launch latency) takes 50.0 % of the total time. M{NORMS} 20.0 %. "
        f"Compute takes 20.0 %; {UNKNOWN} Uncategorized kernels (my_kernel) take 10.0 %; how "
        "much of that is useful is unknown.",
        "idle",
        0.5,
    )


@pytest.mark.parametrize(("idle", "is_busy"), [(50, True), (51, False)])
def test_a_gpu_that_is_hardly_idle_is_called_busy_with_what_leads(idle: int, is_busy: bool) -> None:
    sentence = said(of(gemm=300, idle=idle, norm=700 - idle))[0]
    busy = "The GPU is busy 95.0 % of the total time, 65.0 % with norm kernels. Memory work (norm "
    assert sentence.startswith(busy) == is_busy
    assert ("The GPU is busy" in sentence) == is_busy


@pytest.mark.parametrize("idle", [199, 200])
def test_much_idle_time_stands_before_what_cannot_be_judged(idle: int) -> None:
    unknown = "how much of that is useful is unknown."
    share = f"{100 - idle / 10} %"
    leads = {
        200: "Idle time (mostly launch latency) takes 20.0 % of the total time. Uncategorized "
        f"kernels take {share}; {unknown}",
        199: f"The GPU is busy {share} of the total time. Uncategorized kernels take {share}; "
        f"{unknown} Idle time (mostly launch latency) takes 19.9 %.",
    }
    loss = ("idle", 0.2) if idle == 200 else (None, None)
    assert said(of(odd=999 - idle, idle=idle, odd2=1)) == (leads[idle], *loss)


def test_much_memory_work_does_not_stand_before_more_that_cannot_be_judged() -> None:
    sentence, loss, _ = said(of(gemm=600, norm=400))
    assert (sentence.startswith("The GPU is busy 100.0 % of the total time. "), loss) == (
        True,
        None,
    )


def test_what_cannot_be_judged_stands_before_a_smaller_loss() -> None:
    assert said(of(gemm=837, norm=163)) == (
        f"The GPU is busy 100.0 % of the total time. Compute takes 83.7 %; {UNKNOWN} M{NORMS} "
        "16.3 %.",
        None,
        None,
    )


def without_calls(*works: tuple[str, int, int, int]) -> tf.Analysis:
    """Return the analysis of kernels (name, launch, start, duration) without their launch calls."""
    return tf.analyze(trace_of(activities=launched(*works)["activities"]))


def test_idle_time_is_a_loss_where_only_its_cause_is_unknown() -> None:
    """20 ns of compute and 5 of norms, and 975 of which nothing says what the GPU waited for."""
    analysis = without_calls(("sm90_gemm_bf16", 0, 100, 20), ("vectorized_layer_norm", 0, 1_095, 5))
    assert said(analysis) == ("Idle time takes 97.5 % of the total time.", "idle", 0.975)


def test_several_kinds_of_unknown_work_are_each_said() -> None:
    assert said(of(gemm=500, odd=500))[0] == (
        "The GPU is busy 100.0 % of the total time. Uncategorized kernels take 50.0 %; how much "
        "of that is useful is unknown. Compute takes 50.0 %; its FLOPs and efficiency are unknown."
    )


def test_where_nothing_is_wrong_it_says_so() -> None:
    """2 x 10^9 FLOPs take 2,000 ns at the peak; these take 2,020."""
    analysis = tf.analyze(matmul(2_020), peaks=PeakOptions(tflops=1000))
    assert said(analysis) == (
        "MFU 99.0 %. The GPU is busy 100.0 % of the total time, and no loss reaches 3.0 %.",
        None,
        None,
    )
    assert analysis.losses == ()


def test_a_single_loss_stands_alone() -> None:
    analysis = tf.analyze(matmul(4_000), peaks=PeakOptions(tflops=1000))
    assert said(analysis)[0] == (
        "MFU 50.0 %. The GPU is busy 100.0 % of the total time, 100.0 % with GEMMs. The largest "
        "loss is compute below peak (50.0 % of the total time)."
    )


def test_known_work_without_a_peak_is_not_said_to_lack_flops() -> None:
    analysis = tf.analyze(matmul(4_000, device={"product": "Quantum 9000"}))
    assert said(analysis)[0] == (
        "The GPU is busy 100.0 % of the total time. Compute takes 100.0 %; its efficiency is "
        "unknown (no MFU)."
    )


def test_several_gpus_are_several() -> None:
    tables = launched(("my_kernel", 0, 100, 990), ("my_kernel", 1, 100, 990))
    tables["activities"][1]["device"] = 1
    devices = [{}, {"device": 1, "local_id": 1}]
    sentence, *_ = said(tf.analyze(trace_of(**tables, devices=devices)))
    assert sentence.startswith(
        "The GPUs are busy 100.0 % of the total time. Uncategorized kernels take"
    )


def test_flops_known_of_too_little_are_said_to_be() -> None:
    """A product of 1,000 ns whose FLOPs are known, of 4,000 ns of compute."""
    tables = launched((GEMM, 5, 100, 1_000), (GEMM, 2_000, 2_100, 3_000))
    op = {
        "name": "aten::mm",
        "start_ns": 0,
        "dur_ns": 50,
        "input_dims": "[[1000,1000],[1000,1000]]",
    }
    op["input_types"] = '["c10::BFloat16","c10::BFloat16"]'
    sentence = said(tf.analyze(trace_of(**tables, ops=[op])))[0]
    assert "; FLOPs are known for only 25.0 % of it." in sentence


def test_the_bar_of_mfu_and_the_verdict_name_a_loss_alike() -> None:
    analysis = tf.analyze(matmul(4_000), peaks=PeakOptions(tflops=1000))
    assert analysis.measured.waterfall is not None
    labels = [part.label for part in parts(analysis.measured.waterfall)]
    assert labels == ["useful work", "compute below peak"]
    assert labels[1] in analysis.verdict.sentence


@pytest.mark.parametrize(("kind", "is_told"), [("memset", True), ("kernel", False)])
def test_fills_alone_are_no_work_to_judge(kind: str, is_told: bool) -> None:
    tables = launched(("Memset (Device)", 0, 100, 500), ("sm90_gemm", 1, 700, 100))
    for row, own in zip(tables["activities"], ("memset", kind), strict=True):
        row |= {"kind": own, "bytes": 4_096}
    sentence = tf.analyze(trace_of(**tables)).verdict.sentence
    assert (sentence == "The GPU only filled memory, for 600 ns.") == is_told
