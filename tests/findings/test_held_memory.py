"""What a memory snapshot says of forward passes, gradients and the allocator, and what to do."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Final

import pytest

import traceflops as tf
from traceflops.analysis.preparation import prepare
from traceflops.privacy.placeholders import Placeholders


def verdict_of(snapshot: object, folder: Path) -> str:
    (folder / "s.pickle").write_bytes(pickle.dumps(snapshot))
    return tf.analyze(tf.read(folder / "s.pickle")).verdict.sentence


NO_GRAD: Final = ("/x/torch/utils/_contextlib.py", "decorate_context")


def place(op: str, line: int, *outer: tuple[str, str]) -> list[dict[str, Any]]:
    """Return the frames of an operator in a line of a layer that a model calls."""
    frames = [("", f"at::_ops::{op}::call("), ("net.py", "forward"), ("model.py", "forward")]
    stack = [{"filename": file, "line": 1, "name": name} for file, name in (*frames, *outer)]
    stack[1]["line"] = line
    return stack


def said_of(tmp_path: Path, *blocks: tuple[int, list[dict[str, Any]]]) -> str:
    """Return the verdict on blocks (MiB, frames), all of which are held."""
    events = [
        {"action": "alloc", "addr": at << 40, "size": mib << 20, "time_us": at, "frames": frames}
        for at, (mib, frames) in enumerate(blocks, 1)
    ]
    return verdict_of({"segments": [], "device_traces": [events]}, tmp_path)


def test_activations_are_stored_if_those_of_several_layers_are_held(tmp_path: Path) -> None:
    main, ops = ("main.py", "main"), ("linear", "silu", "mul_Tensor")
    layer = [(9, place(op, line, main)) for line, op in enumerate(ops, 1)]
    assert "If nothing is trained, run it under torch.no_grad()" in said_of(tmp_path, *layer * 3)
    cache = said_of(tmp_path, *layer[:2] * 3)
    assert "fewer samples or tokens at once" in cache and "no_grad" not in cache
    alone = said_of(tmp_path, *layer)
    assert "To need less, process fewer samples" in alone and "no_grad" not in alone
    backward = [{"filename": "", "line": 0, "name": "torch::autograd::MmBackward0::apply("}]
    trained = said_of(tmp_path, *layer[:1] * 3, (1, backward))
    assert "compute activations again in the backward pass" in trained
    assert "To need less, process fewer samples" in said_of(tmp_path, *layer, (1, backward))
    # Without gradients nothing is stored, whatever is held; the wrapper may be far out.
    for outer in ((NO_GRAD, main), (*((f"f{n}.py", "run") for n in range(9)), NO_GRAD, main)):
        layer = [(9, place(op, line, *outer)) for line, op in enumerate(ops, 1)]
        text = said_of(tmp_path, *layer * 3)
        assert "Gradients are off" in text and "If nothing is trained" not in text
    inner = [(9, place(op, line, main)) for line, op in enumerate(ops, 1)]
    rotary = (1, place("cos", 9, NO_GRAD, main))
    assert "If nothing is trained" in said_of(tmp_path, *[*inner, rotary] * 3)


CHECKPOINT: Final = ("/x/torch/utils/checkpoint.py", "unpack_hook")


@pytest.mark.parametrize("wrapper", [NO_GRAD, CHECKPOINT])
def test_wrappers_of_pytorch_stay_when_names_are_redacted(
    wrapper: tuple[str, str], tmp_path: Path
) -> None:
    event = {"action": "alloc", "addr": 512, "size": 512, "time_us": 1}
    events = [event | {"frames": place("linear", 1, wrapper, ("main.py", "main"))}]
    (tmp_path / "s.pickle").write_bytes(pickle.dumps({"segments": [], "device_traces": [events]}))
    hidden = prepare(tf.read(tmp_path / "s.pickle"), placeholders=Placeholders()).trace
    (stack,) = {row["stack"] for row in hidden.counters.to_pylist()} - {None}
    file, function = wrapper[0].rsplit("/", 1)[1], wrapper[1]
    assert f"< {file}(1): {function} <" in stack and "main" not in stack


def test_scores_without_a_name_are_known_by_the_softmax_of_their_function(tmp_path: Path) -> None:
    main = ("main.py", "main")
    product, scaled = (9, place("matmul", 3, main)), (9, place("div_Tensor", 3, main))
    for size, is_told in ((9, True), (18, True), (5, False)):  # 18: in 32 bits
        text = said_of(tmp_path, product, scaled, (size, place("softmax_int", 5, main)))
        assert ("Attention stores its scores" in text) == is_told
    router = (9, place("linear", 3, main)), (9, place("softmax_int", 5, main))
    assert "Attention" not in said_of(tmp_path, *router)


def test_what_a_model_returns_may_be_logits(tmp_path: Path) -> None:
    main = {"filename": "main.py", "line": 1, "name": "main"}
    head = [*place("linear", 1)[:1], *place("linear", 1)[2:], main]
    layer = (9, place("mul_Tensor", 1, ("main.py", "main")))
    text = "aten::linear in forward (model.py:1) holds 5 MiB: if these are logits"
    one, two = said_of(tmp_path, layer, (5, head)), said_of(tmp_path, layer, *[(5, head)] * 2)
    assert text in one and "earlier passes" not in one
    assert "holds 10 MiB" in two and "free those of earlier passes" in two
    assert "logits" not in said_of(tmp_path, (9, head))  # a layer, for all that is known


def test_gradients_are_called_so(tmp_path: Path) -> None:
    accumulated = [
        {"filename": "", "line": 0, "name": name}
        for name in (
            "at::_ops::empty_strided::call(",
            "at::_ops::new_empty_strided::call(",
            "torch::autograd::AccumulateGrad::apply(",
        )
    ]
    text = said_of(tmp_path, (1, place("linear", 1, ("main.py", "main"))), *[(9, accumulated)] * 2)
    assert "19 MiB allocated at its peak, 18 MiB of gradients." in text
    assert "weights and gradients in 16 bits" in text and "zero_grad" not in text
    late = said_of(tmp_path, *[(9, accumulated)] * 2, (1, place("linear", 1, ("main.py", "main"))))
    assert "free them before with zero_grad(set_to_none=True)" in late
    # Checkpointing runs forward passes again, while gradients are made.
    again = place("linear", 1, CHECKPOINT)
    assert "zero_grad" not in said_of(tmp_path, *[(9, accumulated)] * 2, (1, again))


def test_activations_that_are_computed_again_are_of_the_backward_pass(tmp_path: Path) -> None:
    backward = [{"filename": "", "line": 0, "name": "torch::autograd::MmBackward0::apply("}]
    for outer in ([], [(f"f{n}.py", "run") for n in range(9)]):
        for name in ("unpack_hook", "backward"):
            again = place("linear", 1, *outer, ("/x/torch/utils/checkpoint.py", name))
            text = said_of(tmp_path, *[(9, again)] * 3, (1, backward))
            assert "backward passes hold 28 MiB" in text
            assert "torch.utils.checkpoint" not in text


def takes(count: int, given: int, *, at_once: bool = False) -> list[dict[str, Any]]:
    """Return events that take memory `count` times, and give it back in turn or at the end."""
    calls: list[dict[str, Any]] = [
        {"action": action, "addr": 0, "size": 4096, "time_us": 2 * at + later}
        for later, action in enumerate(("segment_alloc", "segment_free"))
        for at in range((count, given)[later])
    ]
    if not at_once:
        calls.sort(key=lambda call: call["time_us"])
    calls = [call | {"time_us": at} for at, call in enumerate(calls)]
    return [*calls, {"action": "alloc", "addr": 512, "size": 512, "time_us": 2 * count}]


def test_a_cache_that_is_emptied_again_and_again_is_told(tmp_path: Path) -> None:
    def said(*devices: list[dict[str, Any]]) -> str:
        whole = {"segments": [], "device_traces": [*devices]}
        return verdict_of(whole, tmp_path)

    text = "The allocator took memory from the GPU 20 times and gave it back 19 times"
    assert text in said(takes(20, 19))
    assert "torch.cuda.empty_cache(), call it less often" in said(takes(20, 19))
    assert "its GPUs 24 times" in said(takes(20, 19), takes(4, 4))
    assert "else memory ran short" in said(takes(20, 19))
    # Growth; a few rounds; emptied once, at the end
    for calls in (takes(90, 2), takes(8, 8), takes(90, 90, at_once=True)):
        assert "took memory" not in said(calls)
