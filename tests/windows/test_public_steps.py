"""Steps, categories and links of public captures of rocprof: kernels alone, without any marker."""

from functools import cache

import numpy as np
import pytest

import traceflops as tf
from tests.conftest import shared_file
from traceflops.table.columns import codes, numbers
from traceflops.windows.repetition import Order, repeated_signature

TRAINING = "v3_json_mi350x_ddp_train.json.gz"
DECODING = "rocpd_r9700_llamacpp.db"
TWO_PASSES = "v1_r9700_llamacpp/results.csv"


@cache
def trace_of(name: str) -> tf.Trace:
    return tf.read(shared_file(f"traces/rocprof/{name}"))


@cache
def analysis_of(name: str) -> tf.Analysis:
    return tf.analyze(trace_of(name))


def order_of(name: str) -> Order:
    activities = trace_of(name).activities
    start = numbers(activities["start_ns"])
    return Order(codes(activities["name"]), start, start + numbers(activities["dur_ns"]))


def test_fifty_training_steps_end_with_their_optimizer() -> None:
    """The first begins with the setup, so 49 are whole; each has 822 dispatches."""
    found = analysis_of(TRAINING)
    assert found.steps.source == "optimizer"
    assert found.steps.seen == tuple(range(49))
    assert {w.launched for w in found.devices[0].steps} == {822}


def test_the_signature_alone_finds_the_same_training_steps() -> None:
    rounds = repeated_signature(order_of(TRAINING))
    assert rounds is not None
    assert len(rounds) == 49
    assert set(np.diff(rounds.begin).tolist()) == {822}


def test_decoding_steps_are_found_by_what_repeats() -> None:
    """The first of nine tokens begins with the setup; 621 dispatches each, and 32 layers inside."""
    found = analysis_of(DECODING)
    assert found.steps.source == "signature"
    assert len(found.steps.seen) == 8
    counts = [w.launched or 0 for w in found.devices[0].steps]
    assert sorted(counts)[len(counts) // 2] == 621


def test_the_layers_of_two_passes_are_no_steps() -> None:
    found = analysis_of(TWO_PASSES)
    assert found.steps.source == "none"
    assert any(note.code == "no-steps" for note in found.notes)  # of llama.cpp: no advice on steps


@pytest.mark.parametrize(
    ("name", "category", "expected_ns"),
    [
        (TRAINING, "compute/gemm", 65_590_500),
        (TRAINING, "communication/collective", 4_158_756_678),
        (TWO_PASSES, "memory/softmax", 9_384_759),
    ],
)
def test_sums_of_categories(name: str, category: str, expected_ns: int) -> None:
    (device,) = analysis_of(name).devices
    assert device.whole.categories[category].sum_ns == expected_ns


@pytest.mark.parametrize("name", [TRAINING, DECODING])
def test_without_calls_links_are_unknown_and_not_zero(name: str) -> None:
    found = analysis_of(name)
    assert found.total.launches is None
    assert found.total.activities_per_launch is None
    assert all(device.whole.unlinked is None for device in found.devices)
    assert found.total.idle_causes.unknown_ns == found.components.idle_ns
    assert [note.code for note in found.notes].count("no-calls") == 1


def pytorch_order_of(name: str) -> Order:
    activities = tf.read(shared_file(f"traces/pytorch/{name}.json.gz")).activities
    start = numbers(activities["start_ns"])
    return Order(codes(activities["name"]), start, start + numbers(activities["dur_ns"]))


@pytest.mark.parametrize("name", ["v100_kineto_resnet50_nw4", "a100_hta_control_rank3"])
def test_the_signature_finds_what_markers_say(name: str) -> None:
    marked = tf.analyze(tf.read(shared_file(f"traces/pytorch/{name}.json.gz"))).devices[0].steps
    counts = sorted(window.account.activities for window in marked)
    rounds = repeated_signature(pytorch_order_of(name))
    assert rounds is not None
    assert abs(rounds.length - counts[len(counts) // 2]) <= 0.01 * rounds.length
    assert len(marked) - 2 <= len(rounds) <= len(marked)


def test_an_annotated_pass_of_24_layers_is_one_step() -> None:
    """A decode of 32 sequences: 2,980 tokens per second, whatever repeats in its graph."""
    path = shared_file("traces/pytorch/mi300x_vllm_gptoss_decode_graph.json.gz")
    found = tf.analyze(tf.read(path))
    (step,) = found.devices[0].steps
    assert step.used
    assert round(32 * 10**9 / step.dur_ns, -1) == 2980


@pytest.mark.parametrize(
    "name",
    [
        "h100_qwen15_infer",
        "b200_vllm_gptoss_prefill",
        "mi300x_sglang_qwen3_decode_graph",
        "mi300x_vllm_gptoss_decode_graph",
        "mi210_gpu_only",
    ],
)
def test_the_layers_of_one_pass_are_no_steps(name: str) -> None:
    assert repeated_signature(pytorch_order_of(name)) is None


@pytest.mark.parametrize(
    ("name", "expected_ns", "records"),
    [
        ("v1_r9700_llamacpp/results.stats.csv", 662_138_329, 1_963),
        ("v3_csv_docs_rocm7/hip_api_stats.csv", 308_269_675, 155),
    ],
)
def test_statistics_alone_keep_their_sums(name: str, expected_ns: int, records: int) -> None:
    found = analysis_of(name).untimed
    assert found is not None
    assert sum(found.rows["sum_ns"].to_pylist()) == expected_ns
    assert sum(found.rows["count"].to_pylist()) == records
