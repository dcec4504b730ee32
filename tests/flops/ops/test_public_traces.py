"""The public traces: what the ops of real recordings add up to."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest

import traceflops as tf
from tests.conftest import shared_file
from traceflops.flops.ops.count import OpWork, count_ops
from traceflops.flops.ops.work import Unknown, Work
from traceflops.table.columns import codes, names


@cache
def counted(name: str) -> tuple[OpWork, tuple[str, ...]]:
    """Return the work of a public trace's ops and their names."""
    ops = tf.read(str(shared_file(f"traces/pytorch/{name}.json.gz"))).ops
    labels = names(ops["name"])
    return count_ops(ops), tuple(labels[code] for code in codes(ops["name"]))


def sums(name: str) -> dict[tuple[str, str], tuple[int, int]]:
    """Return the FLOPs and the ops of each part of the ops that are no wrappers."""
    work, labels = counted(name)
    flops: Counter[tuple[str, str]] = Counter()
    times: Counter[tuple[str, str]] = Counter()
    for row in np.flatnonzero(work.matrix & ~work.wrapper).tolist():
        one = work.works[int(work.place[row])]
        if isinstance(one, Work):
            for part in one.parts:
                key = (labels[row].removeprefix("aten::"), part.name)
                flops[key] += part.flops
                times[key] += 1
    return {key: (flops[key], times[key]) for key in flops}


def test_resnet18_with_checkpointing() -> None:
    """60 convolutions forward and 57 again, 57 input gradients and 60 of weights."""
    assert sums("mi300x_resnet18_ddp_train") == {
        ("miopen_convolution", "forward"): (108_813_680_640 + 101_732_843_520, 60 + 57),
        ("convolution_backward", "input_grad"): (101_732_843_520, 57),
        ("convolution_backward", "weight_grad"): (108_813_680_640, 60),
        ("addmm", "product"): (30_720_000, 3),
        ("mm", "product"): (61_440_000, 6),
    }


def test_resnet50_of_2021_without_recorded_values() -> None:
    """6 steps of 32 images; stride and padding are not recorded, gradients tell the sizes."""
    found = sums("v100_kineto_resnet50_nw4")
    images = 6 * 32
    # 4.087 G multiply-adds an image, the stem's 7 x 7 has no input gradient
    forward = 8_174_272_512 * images
    stem = 2 * 112 * 112 * 64 * 3 * 49 * images
    dense = 2 * 2048 * 1000 * images
    assert found == {
        ("cudnn_convolution", "forward"): (forward, 318),
        ("cudnn_convolution_backward_weight", "weight_grad"): (forward, 318),
        ("cudnn_convolution_backward_input", "input_grad"): (forward - stem, 312),
        ("addmm", "product"): (dense, 6),
        ("mm", "product"): (2 * dense, 12),
    }


def test_inference_of_a_small_language_model() -> None:
    """16 prompts of 559 tokens: 24 layers of width 1024 with a bias, FFN 2816, 16 heads of 64."""
    tokens, layers = 16 * 559, 24
    found = sums("h100_qwen15_infer")
    assert found["addmm", "product"] == (layers * 3 * 2 * tokens * 1024**2, 72)
    assert found["mm", "product"][0] == layers * (
        2 * tokens * 1024**2 + 3 * 2 * tokens * 1024 * 2816
    )
    pairs = 16 * 559 * 560 // 2
    core = layers * 2 * pairs * 16 * (64 + 64)
    assert found["_scaled_dot_product_flash_attention", "forward"] == (core, layers)
    assert found["_flash_attention_forward", "forward"] == (core, layers)


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("a100_hta_control_rank3", {}),
        ("hta_rank_non_gpu", {}),
        ("hta_sampled_rank0", {}),
        ("hta_sampled_rank1", {}),
        ("mi300x_resnet18_ddp_train", {}),
        ("mi300x_torch_compile", {}),
        ("v100_kineto_resnet50_nw4", {}),
        ("h100_qwen15_infer", {}),
        ("b200_vllm_gptoss_prefill", {"not-in-trace": 36}),  # cached keys
        ("a100_hta_nccl_rank0", {"no-shapes": 327}),  # recorded without shapes
    ],
)
def test_all_matrix_work_with_shapes_is_known(name: str, reasons: dict[str, int]) -> None:
    """Only wrappers may be unknown: what TorchScript records of them is a whole stack."""
    work, _ = counted(name)
    inner = work.place[work.matrix & ~work.wrapper].tolist()
    unknown = [one for one in map(work.works.__getitem__, inner) if isinstance(one, Unknown)]
    assert Counter(one.reason for one in unknown) == reasons
