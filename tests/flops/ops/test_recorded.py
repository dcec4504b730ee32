"""Events as the profiler of torch records them, on the CPU, against counts by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

import traceflops as tf
from tests.mfu.reference_block import Block
from traceflops.flops.ops.count import OpWork, count_ops
from traceflops.flops.ops.work import Unknown, Work
from traceflops.table.columns import codes, names


class Recorded:
    """A recorded trace and the work of its ops."""

    def __init__(self, path: Path, run: Callable[[], object]) -> None:
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recording:
            run()
        recording.export_chrome_trace(str(path))
        self.ops = tf.read(str(path)).ops
        self.work: OpWork = count_ops(self.ops)
        labels = names(self.ops["name"])
        self.names = [labels[code] for code in codes(self.ops["name"])]

    def of(self, name: str) -> list[Work]:
        """Return the known works of the ops with this name, in order."""
        found = [
            self.work.works[place]
            for label, place in zip(self.names, self.work.place.tolist(), strict=True)
            if label == f"aten::{name}"
        ]
        assert found, f"{name} was not recorded"
        unknown = [work for work in found if isinstance(work, Unknown)]
        assert not unknown, (name, unknown)
        return [work for work in found if isinstance(work, Work)]

    def flops(self) -> dict[tuple[str, str], int]:
        """Return the FLOPs of each op that is no wrapper, by its name and part."""
        found: Counter[tuple[str, str]] = Counter()
        for label, place, wraps in zip(
            self.names, self.work.place.tolist(), self.work.wrapper.tolist(), strict=True
        ):
            work = self.work.works[place]
            if isinstance(work, Work) and not wraps:
                found.update({(label.removeprefix("aten::"), p.name): p.flops for p in work.parts})
        return dict(found)


@pytest.fixture
def record(tmp_path: Path) -> Callable[[Callable[[], object]], Recorded]:
    return lambda run: Recorded(tmp_path / "trace.json", run)


Record = Callable[[Callable[[], object]], Recorded]


def test_a_step_of_the_reference_transformer(record: Record) -> None:
    model = nn.Sequential(nn.Embedding(100, 64), Block(), Block(), nn.Linear(64, 100, bias=False))
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 100, (3, 40))

    def step() -> None:
        optimizer.zero_grad()
        loss: Any = F.cross_entropy(model(ids).view(120, 100), ids.view(120))
        loss.backward()
        optimizer.step()

    step()
    recorded = record(step)
    # 104,704 weights per token, 120 tokens; forward, input and weight gradient alike
    forward = 2 * 104_704 * 120
    biased = 2 * 2 * 120 * (64 * 256 + 256 * 64)  # two layers with a bias, in two blocks
    assert recorded.flops() == {
        ("addmm", "product"): biased,
        ("mm", "product"): 3 * forward - biased,
        ("_scaled_dot_product_flash_attention_for_cpu", "forward"): 1_259_520,
        ("_scaled_dot_product_flash_attention_for_cpu_backward", "backward"): 2_519_040,
        ("_scaled_dot_product_flash_attention_for_cpu_backward", "algorithmic"): 629_760,
    }
    assert 3 * forward == 75_386_880
    assert {work.dtype for work in recorded.of("mm")} == {"tf32-or-fp32"}
    tokens = 120 * 64
    assert [work.min_bytes for work in recorded.of("native_layer_norm")] == [
        4 * (2 * tokens + 2 * 64 + 2 * 120)
    ] * 2
    assert recorded.of("embedding")[0].min_bytes == 4 * 64 * (100 + 120) + 8 * 120
    assert all(work.min_bytes for work in recorded.of("native_layer_norm_backward"))


def test_forward_and_gradients_of_a_linear_layer(record: Record) -> None:
    layer = nn.Linear(5, 7, bias=False)
    x = torch.randn(4, 5, requires_grad=True)
    recorded = record(lambda: layer(x).sum().backward())
    found = [work.signature for work in recorded.of("mm")]
    sizes = sorted((one.m, one.n, one.k) for one in found)  # type: ignore[union-attr]
    # M K N forward; the input's gradient M N K; the weight's N M K (or K M N)
    assert sizes == sorted([(4, 7, 5), (4, 5, 7), (7, 5, 4)])
    forward = next(one for one in found if (one.m, one.n, one.k) == (4, 7, 5))  # type: ignore[union-attr]
    assert forward.right == "column"  # type: ignore[union-attr]
    given = next(one for one in found if (one.m, one.n, one.k) == (4, 5, 7))  # type: ignore[union-attr]
    assert given.right == "row"  # type: ignore[union-attr]


CONVOLUTIONS: list[tuple[Any, Any, int, bool]] = [
    # module, input, FLOPs forward, whether the input has a gradient
    (nn.Conv2d(8, 16, 3, padding=1, bias=False), (2, 8, 10, 10), 460_800, True),
    (nn.ConvTranspose2d(8, 16, 3, padding=1, bias=False), (2, 8, 10, 10), 460_800, True),
    (nn.Conv2d(8, 16, 3, padding=1, bias=False, groups=4), (2, 8, 10, 10), 115_200, True),
    (nn.ConvTranspose2d(8, 16, 3, padding=1, bias=False, groups=4), (2, 8, 10, 10), 115_200, True),
    (
        nn.ConvTranspose2d(16, 8, 3, 2, 1, output_padding=1, bias=False),
        (2, 16, 10, 10),
        460_800,
        True,
    ),
    (
        nn.Conv3d(4, 6, (3, 3, 2), (2, 1, 1), (1, 0, 1), (1, 2, 1), bias=False),
        (2, 4, 9, 9, 9),
        432_000,
        False,
    ),
    (nn.Conv1d(4, 6, 3, padding="same"), (2, 4, 9), 2 * 2 * 9 * 6 * 4 * 3, True),
    (nn.Conv2d(3, 5, 3), (3, 6, 6), 2 * 16 * 5 * 3 * 9, True),
    (nn.Conv2d(6, 6, 3, groups=6), (2, 6, 6, 6), 2 * 2 * 16 * 6 * 9, True),
]


@pytest.mark.parametrize(("module", "shape", "flops", "wanted"), CONVOLUTIONS, ids=str)
def test_convolutions(
    record: Record, module: nn.Module, shape: Any, flops: int, wanted: bool
) -> None:
    if isinstance(module, nn.ConvTranspose2d) and module.stride == (2, 2):
        shape, flops = (2, 16, 5, 5), 2 * 2 * 25 * 16 * 8 * 9
    x = torch.randn(*shape, requires_grad=wanted)
    recorded = record(lambda: module(x).sum().backward())
    assert [work.flops for work in recorded.of("convolution")] == [flops]
    [backward] = recorded.of("convolution_backward")
    parts = ("input_grad", "weight_grad")[not wanted :]
    assert {part.name: part.flops for part in backward.parts} == dict.fromkeys(parts, flops)
    inner = [
        work
        for name in ("mkldnn_convolution", "_slow_conv2d_forward", "slow_conv_transpose2d")
        if f"aten::{name}" in recorded.names
        for work in recorded.of(name)
    ]
    if inner:  # one per group where a library cannot do groups
        assert sum(work.flops for work in inner) == flops


def test_attention_without_a_fused_kernel(record: Record) -> None:
    q, kv = torch.randn(2, 4, 8, 16), torch.randn(2, 2, 8, 16)

    def run() -> None:
        with sdpa_kernel(SDPBackend.MATH):
            F.scaled_dot_product_attention(q, kv, kv, is_causal=True, enable_gqa=True)

    recorded = record(run)
    [whole] = recorded.of("_scaled_dot_product_attention_math")
    pairs, full = 2 * 8 * 9 // 2, 2 * 64
    assert {part.name: part.flops for part in whole.parts} == {
        "forward": 2 * pairs * 4 * 32,
        "mask": 2 * (full - pairs) * 4 * 32,
    }
    below = recorded.of("bmm")
    assert sum(work.flops for work in below) == whole.flops
    [outer] = recorded.of("scaled_dot_product_attention")
    assert outer.flops == 2 * pairs * 4 * 32


def test_other_products(record: Record) -> None:
    a, b = torch.randn(4, 5), torch.randn(5, 6)
    whole = torch.ones(32, 16, dtype=torch.int8)

    def run() -> None:
        torch.baddbmm(a.expand(2, 4, 5)[:, :, :1], a.expand(2, 4, 5), b.expand(2, 5, 6), beta=0.5)
        torch.mv(a, b[:, 0])
        torch.einsum("ij,jk->ik", a, b)
        torch._int_mm(whole, whole[:16])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            F.linear(a, b.t())

    recorded = record(run)
    [batched] = recorded.of("baddbmm")
    assert batched.flops == 2 * 2 * 4 * 6 * 5
    assert batched.min_bytes == 4 * (20 + 30 + 48 + 4)  # all operands are expanded
    assert [work.flops for work in recorded.of("mv")] == [2 * 4 * 5]
    assert [work.flops for work in recorded.of("addmv_")] == [2 * 4 * 5]
    assert [work.flops for work in recorded.of("bmm")] == [2 * 4 * 6 * 5]
    [integers] = recorded.of("_int_mm")
    assert (integers.flops, integers.dtype) == (2 * 32 * 16 * 16, "int8")
    assert integers.min_bytes == 512 + 256 + 4 * 512
    assert [work.dtype for work in recorded.of("mm")] == ["bf16"]


def test_a_grouped_product_runs_one_per_group_on_the_cpu(record: Record) -> None:
    x, w = torch.randn(6, 16).bfloat16(), torch.randn(2, 16, 8).bfloat16()
    ends = torch.tensor([2, 6], dtype=torch.int32)
    recorded = record(lambda: torch._grouped_mm(x, w, offs=ends))
    [grouped] = recorded.of("_grouped_mm")
    assert (grouped.flops, grouped.dtype) == (2 * 6 * 16 * 8, "bf16")
    assert grouped.min_bytes == 2 * (96 + 256 + 48)
    assert sum(work.flops for work in recorded.of("mm")) == grouped.flops


def test_a_scaled_product_and_the_plain_one_within_it(record: Record) -> None:
    x, scale = torch.randn(16, 32).to(torch.float8_e4m3fn), torch.tensor(1.0)
    recorded = record(lambda: torch._scaled_mm(x, x.t(), scale, scale, out_dtype=torch.bfloat16))
    [scaled] = recorded.of("_scaled_mm")
    assert (scaled.flops, scaled.dtype) == (2 * 16 * 16 * 32, "fp8")
    assert scaled.min_bytes == 2 * 512 + 2 * 256 + 4 + 4
    if "aten::mm" in recorded.names:  # CPUs with instructions for fp8 and bf16 run no plain one
        assert [work.flops for work in recorded.of("mm")] == [scaled.flops]


def test_optimizers(record: Record) -> None:
    layer = nn.Linear(5, 7)
    layer(torch.randn(2, 5)).sum().backward()
    fused = torch.optim.AdamW(layer.parameters(), fused=True)
    fused.step()
    listed = torch.optim.SGD(layer.parameters(), lr=0.1, foreach=True)
    recorded = record(lambda: (fused.step(), listed.step()))
    [step] = recorded.of("_fused_adamw_")
    assert (step.min_bytes, step.vector_flops) == (7 * 2 * 42, 14 * 42)
    assert recorded.of("_foreach_add_")[-1].vector_flops == 42


class FlashAttnFunc(torch.autograd.Function):
    """A stand-in for the function of that name: only what is recorded of it matters."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        return args[0].clone()


def test_a_python_function_is_recorded_with_all_its_arguments(record: Record) -> None:
    q, kv = torch.randn(3, 40, 4, 16), torch.randn(3, 40, 2, 16)
    arguments = (q, kv, kv, 0.0, None, True, (-1, -1), 0.0, None, False, False, True)
    recorded = record(lambda: FlashAttnFunc.apply(*arguments))  # type: ignore[no-untyped-call]
    work = recorded.work.works[recorded.work.place.tolist()[recorded.names.index("FlashAttnFunc")]]
    assert isinstance(work, Work)
    assert work.exact
    assert work.flops == 629_760
