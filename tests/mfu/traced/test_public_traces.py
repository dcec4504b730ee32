"""Recordings of real runs: what they executed, by independent counts."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import pytest

import traceflops as tf
from tests.conftest import shared_file
from tests.mfu.counting import added, part_of
from tests.mfu.traced.recording import lines
from traceflops.analysis.preparation import prepare
from traceflops.flops.mfu_waterfall import waterfall
from traceflops.mfu.budget import device_budgets
from traceflops.mfu.checked.passes import unknown_flops
from traceflops.mfu.roof_times import moved_bytes
from traceflops.mfu.traced.executed import Executed, executed
from traceflops.mfu.traced.work_tables import kernel_rows, op_rows
from traceflops.windows.prepared import Prepared

MI300X = 1_307_400
"""Dense bf16, FLOP per ns."""


@cache
def read(name: str, first: int | None = None, last: int | None = None) -> tuple[Prepared, Executed]:
    trace = tf.read(str(shared_file(f"traces/pytorch/{name}.json.gz")))
    steps = None if first is None else (first, last)
    prepared = prepare(trace, tf.Selection(steps=steps))
    return prepared, executed(prepared)


ONE_STEP = {
    "model.conv.forward": 36_271_226_880,
    "model.conv.input_grad": 33_910_947_840,
    "model.conv.weight_grad": 36_271_226_880,
    "model.matmul.forward": 10_240_000,
    "model.matmul.input_grad": 10_240_000,
    "model.matmul.weight_grad": 10_240_000,
    "recompute.conv": 33_910_947_840,
}


def test_resnet18_with_checkpointing() -> None:
    """57 of 60 convolutions are computed again: all but the stem's, in three steps."""
    _, found = read("mi300x_resnet18_ddp_train", 15, 17)
    assert lines(found) == {name: 3 * flops for name, flops in ONE_STEP.items()}
    assert (found.model_flops, found.executed_flops) == (319_452_364_800, 421_185_208_320)
    assert found.rules("recompute") == {"R1": (57, 101_732_843_520)}
    assert found.rules("model.conv.forward") == {"": (60, 108_813_680_640)}
    assert found.rules("model.conv.input_grad")[""][0] == 57
    assert found.rules("model.conv.weight_grad")[""][0] == 60
    assert [found.outside.count(why) for why in ("ghost", "cached", "duplicate", "lost")] == [0] * 4
    assert {cell.dtype for cell in found.cells} == {"bf16"}
    assert not [note for note in found.notes if note.code == "recompute-rules-disagree"]


@pytest.mark.parametrize("step", [15, 16, 17])
def test_resnet18_by_step(step: int) -> None:
    prepared, found = read("mi300x_resnet18_ddp_train", step, step)
    assert lines(found) == ONE_STEP
    split = waterfall(device_budgets(prepared, found, {0: {"bf16": MI300X}}))
    assert split.amount("useful") == 106_484_121_600
    assert split.amount("recompute") == 33_910_947_840
    [used] = [window for window in prepared.windows[0] if window.used]
    assert split.budget == MI300X * used.dur_ns == sum(line.amount for line in split.lines)
    assert split.errors == ()
    assert split.hfu == Fraction(140_395_069_440, split.budget)
    assert unknown_flops(found, {0: {"bf16": MI300X}}) == 0
    assert found.executed_at_least == found.executed_flops


def test_resnet18_windows_sum_to_the_device() -> None:
    prepared, found = read("mi300x_resnet18_ddp_train")
    windows = range(len(prepared.windows[0]))
    parts = [part_of(found, 0, place, used=False).ledger().executed for place in windows]
    assert sum(parts) == 421_185_208_320


def test_resnet18_tables() -> None:
    prepared, found = read("mi300x_resnet18_ddp_train", 15, 17)
    moved = moved_bytes(prepared, found.attribution)
    kernels, ops = kernel_rows(prepared, moved), op_rows(prepared, moved)
    assert sum(row.measured.flops or 0 for row in kernels) == found.executed_flops
    assert sum(row.measured.flops or 0 for row in ops) == found.executed_flops
    by_name = {row.name: row for row in ops}
    assert by_name["aten::miopen_convolution"].count == 117
    assert by_name["aten::convolution_backward"].count == 60
    for row in kernels:
        share = row.measured.share_of_peak(MI300X)
        assert share is None or 0 <= share < 1


def test_resnet50_of_2021_on_a_device_without_tf32() -> None:
    _, found = read("v100_kineto_resnet50_nw4")
    images = 32 * 6
    forward = 8_174_272_512 * images
    stem = 2 * 112 * 112 * 64 * 3 * 49 * images
    dense = 2 * 2048 * 1000 * images
    grouped = added(part_of(found, used=False).ledger(), 3)
    assert grouped == {
        "model.conv.forward": forward,
        "model.conv.input_grad": forward - stem,
        "model.conv.weight_grad": forward,
        "model.matmul.forward": dense,
        "model.matmul.input_grad": dense,
        "model.matmul.weight_grad": dense,
    }
    assert {cell.dtype for cell in found.cells} == {"fp32"}


def test_inference_has_a_forward_pass_only() -> None:
    _, found = read("h100_qwen15_infer")
    pairs = 16 * 559 * 560 // 2
    assert lines(found) == {
        "model.attention.forward": 24 * 2 * pairs * 16 * 128,
        # mm and addmm as two other programs count them, and the rotary embedding's table
        "model.matmul.forward": 4_164_037_902_336 + 1_350_498_779_136 + 2 * 32 * 559,
    }
    assert not found.outside.count("ghost", "cached", "lost", "duplicate")


def test_kernels_that_no_known_op_launched_are_unattributed() -> None:
    """A mixture of experts of a library of its own: the trace does not say what it does."""
    prepared, found = read("b200_vllm_gptoss_prefill")
    assert found.coverage is not None
    assert found.coverage < Fraction(1, 2)
    assert unknown_flops(found, {0: {"bf16": 2_250_000}}) is None
    assert {"no-modelled-op", "not-in-trace"} <= {one.why for one in found.outside.unattributed}
    split = waterfall(device_budgets(prepared, found, {0: {"bf16": 2_250_000}}))
    unattributed_ns = sum(time.uncounted_ns for time in found.times if time.used)
    assert split.amount("unattributed") == 2_250_000 * unattributed_ns
    assert sum(line.amount for line in split.lines) == split.budget


def test_without_device_records_ghosts_cannot_be_told() -> None:
    """The host's side of a run on a device: products leave nothing below themselves."""
    _, found = read("hta_rank_non_gpu")
    assert [note.code for note in found.notes] == ["ghosts-not-told"]
    assert found.outside.count("ghost") == 0
    assert part_of(found, used=False).ledger().executed > 0
    assert found.coverage is None


def test_float_products_are_told_by_their_kernels() -> None:
    """A recording without strides: equal gradients of one node need not be told apart."""
    _, found = read("a100_hta_control_rank3")
    whole = part_of(found, used=False).ledger()
    forward, of_input, of_weight = (
        int(whole.total(f"model.matmul.{part}"))
        for part in ("forward", "input_grad", "weight_grad")
    )
    assert forward == of_weight
    assert of_input < forward, "the input of the first layer needs none"
    types = {cell.dtype for cell in found.cells}
    assert {"tf32", "fp32"} <= types
