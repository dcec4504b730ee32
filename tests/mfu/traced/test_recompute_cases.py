"""The recompute cases, really run: every line by hand from shapes, not from the code."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import torch._inductor.config
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from tests.conftest import by_night
from tests.mfu.counting import part_of
from tests.mfu.traced.recording import lines, recorded, tiny_step
from traceflops.mfu.traced.executed import Executed, Outside

# torch itself uses what it deprecates as soon as it compiles.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:torch")

# One process compiles as fast, and imports torch once.
torch._inductor.config.compile_threads = 1

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile needs g++, which is not here"
)

WEIGHTS = 2 * (64 * 192 + 64 * 64 + 2 * 64 * 256) + 64 * 100
DOWN = 64 * 256
"""The last linear of a block: a recomputation that stops early does not form it."""


@dataclass(frozen=True)
class Case:
    """A mode, and what of a block's weights (of both) and of the attention is computed again."""

    mode: str
    again: int = 0
    attention_again: bool = False
    compiled: bool = False
    early_stop: bool = True
    cached: tuple[int, int] = (0, 0)
    """ghosts that were cached, and their weights"""
    stopped: tuple[int, int] = (0, 0)
    duplicates: int = 0


BLOCKS = WEIGHTS - 6400
CASES = {
    "none": Case("none"),
    "reentrant": Case("reentrant", BLOCKS, True),
    "nonreentrant": Case("nonreentrant", BLOCKS - 2 * DOWN, True, stopped=(2, 2 * DOWN)),
    "nonreentrant to the end": Case("nonreentrant", BLOCKS, True, early_stop=False),
    "sac": Case("sac", 0, True, cached=(6, BLOCKS - 2 * DOWN), stopped=(2, 2 * DOWN), duplicates=8),
    "compiled none": Case("none", compiled=True),
    "compiled nonreentrant": Case("nonreentrant", BLOCKS - DOWN, True, compiled=True),
}


PLAIN, TOKENS_AS_WIDE = SIZES = (3, 40), (2, 32)
"""Sequences and their length; 64 tokens and width 64 make shapes ambiguous."""


def marks(case: Case, size: tuple[int, int]) -> list[pytest.MarkDecorator]:
    """Return the marks of a case: compiling is dear, so by day it is done of the hardest one."""
    if not case.compiled:
        return [] if size == TOKENS_AS_WIDE or case.mode == "sac" else [by_night()]
    is_hardest = size == TOKENS_AS_WIDE and case.mode != "none"
    return [needs_compiler, pytest.mark.slow, *([] if is_hardest else [by_night()])]


@cache
def run(case: Case, batch: int, tokens: int) -> Executed:
    torch._dynamo.reset()
    step = tiny_step(case.mode, batch, tokens, compiled=case.compiled, early_stop=case.early_stop)
    with TemporaryDirectory() as folder:
        return recorded(step, Path(folder) / "trace.json", warm_up=2 if case.compiled else 1)


def expected(case: Case, batch: int, tokens: int) -> dict[str, int]:
    forward = 2 * WEIGHTS * batch * tokens
    pairs = batch * 4 * tokens * (tokens + 1) // 2
    attention = 2 * 2 * pairs * 32  # two layers of 2 pairs (d_qk + d_v)
    sums = {
        "model.attention.backward": 2 * attention,
        "model.attention.forward": attention,
        "model.matmul.forward": forward,
        "model.matmul.input_grad": forward,
        "model.matmul.weight_grad": forward,
        "recompute.attention": attention if case.attention_again else 0,
        "recompute.matmul": 2 * case.again * batch * tokens,
        "algorithmic.attention": 2 * 2 * pairs * 16,
    }
    return {name: flops for name, flops in sums.items() if flops}


TABLE = {
    "none": 79_795_200,
    "reentrant": 104_647_680,
    "nonreentrant": 96_783_360,
    "nonreentrant to the end": 104_647_680,
    "sac": 81_054_720,
    "compiled none": 79_795_200,
    "compiled nonreentrant": 100_715_520,
}
"""Executed FLOPs for 3 sequences of 40, as counted where the ops are dispatched."""


def flops_of(outside: Outside, why: str) -> int:
    """Return the FLOPs that the shapes of ops of this fate say and nobody executed."""
    return sum(row.flops for row in outside.not_counted if row.why == why)


def test_the_expected_lines_are_those_of_the_table() -> None:
    for name, case in CASES.items():
        assert sum(expected(case, 3, 40).values()) == TABLE[name]


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param(name, size, marks=marks(case, size), id=f"{name}-{size}")
        for name, case in CASES.items()
        for size in SIZES
    ],
)
def test_a_step(name: str, size: tuple[int, int]) -> None:
    case, (batch, tokens) = CASES[name], size
    found = run(case, batch, tokens)
    assert lines(found) == expected(case, batch, tokens)
    assert found.executed_flops == sum(expected(case, batch, tokens).values())
    assert found.executed_at_least == found.executed_flops
    assert found.model_flops == sum(
        flops for line, flops in expected(case, batch, tokens).items() if line.startswith("model")
    )
    rule = "R3" if case.compiled else "R1"
    assert set(found.rules("recompute")) == ({rule} if case.attention_again else set())
    outside = found.outside
    per_weight = 2 * batch * tokens
    assert (outside.count("cached"), flops_of(outside, "cached")) == (
        case.cached[0],
        case.cached[1] * per_weight,
    )
    assert (outside.count("ghost"), flops_of(outside, "ghost")) == (
        case.stopped[0],
        case.stopped[1] * per_weight,
    )
    doubled = [one for one in outside.not_counted if one.why == "duplicate"]
    assert sum(one.count for one in doubled if one.op.endswith("mm")) == case.duplicates
    assert sum(one.count for one in doubled if "attention" in one.op) == case.duplicates // 2
    assert found.coverage is None, "a CPU has no kernels"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=marks(CASES[name], TOKENS_AS_WIDE))
        for name in ("compiled none", "compiled nonreentrant")
    ],
)
def test_shapes_alone_leave_the_gradients_of_a_compiled_graph_open(name: str) -> None:
    """64 tokens and width 64: what is M x N by N x K is as much N x M by M x K."""
    found = run(CASES[name], *TOKENS_AS_WIDE)
    forward = 2 * WEIGHTS * 64
    square = 2 * 2 * 64 * 64 * (64 + 256)  # of attention's out and the FFN's down, both blocks
    for line in ("model.matmul.input_grad", "model.matmul.weight_grad"):
        cells = [cell for cell in found.used_cells if f"{cell.line}.".startswith(f"{line}.")]
        assert sum(cell.flops for cell in cells) == forward
        assert sum(cell.open_flops for cell in cells) == square


def test_several_steps_are_told_apart(tmp_path: Path) -> None:
    step = tiny_step("nonreentrant", 3, 40)
    found = recorded(step, tmp_path / "trace.json", steps=3)
    windows = sorted({cell.window for cell in found.cells}, key=str)
    sums = [part_of(found, 0, window, used=False).ledger().executed for window in windows]
    assert sums == [96_783_360] * 3


class Adapted(nn.Module):
    """A frozen layer and an adapter of rank 4 on it."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.weight = nn.Linear(fan_in, fan_out, bias=False).requires_grad_(False)
        self.down = nn.Linear(fan_in, 4, bias=False)
        self.up = nn.Linear(4, fan_out, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.weight(x) + self.up(self.down(x))
        return out


def test_lora(tmp_path: Path) -> None:
    model = nn.Sequential(Adapted(64, 96), nn.ReLU(), Adapted(96, 64))
    x = torch.randn(120, 64)
    found = recorded(lambda: model(x).square().sum().backward(), tmp_path / "trace.json")
    assert lines(found) == {
        "model.matmul.forward": 2_949_120 + 307_200,
        "model.matmul.input_grad": 1_474_560 + 245_760,
        "model.matmul.weight_grad": 307_200,
    }
    assert found.executed_flops == 3_256_320 + 2_027_520


@needs_compiler
def test_lora_compiled(tmp_path: Path) -> None:
    """The same by shapes alone: the second frozen layer's input gradient is a forward's shape."""
    torch._dynamo.reset()
    model: Any = torch.compile(nn.Sequential(Adapted(64, 96), nn.ReLU(), Adapted(96, 64)))
    x = torch.randn(120, 64)
    found = recorded(lambda: model(x).square().sum().backward(), tmp_path / "t.json", warm_up=2)
    assert lines(found) == {
        "model.matmul.forward": 3_256_320,
        "model.matmul.input_grad": 1_474_560 + 245_760,
        "model.matmul.weight_grad": 307_200,
    }


class AsStored(nn.Module):
    """A linear layer whose weight is stored input by output, as GPT-2 has it."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(fan_in, fan_out) / 8)
        self.bias = nn.Parameter(torch.zeros(fan_out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x, self.weight)


class Mixed(nn.Module):
    """Layers of one shape, stored both ways: what looks like a gradient may be a forward again."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(AsStored(64, 64) for _ in range(4))
        self.head = nn.Linear(64, 64)
        self.again = again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:

            def run(y: torch.Tensor, layer: nn.Module = layer) -> torch.Tensor:
                out: torch.Tensor = layer(F.gelu(layer(y))).sin()
                return out

            x = checkpoint(run, x, use_reentrant=False) if self.again else run(x)
        out: torch.Tensor = self.head(x)
        return out


def backward_step(model: Any, x: torch.Tensor) -> Callable[[], object]:
    return lambda: model(x).sum().backward()


@by_night()
@needs_compiler
def test_what_strides_leave_open_is_told_by_counting(tmp_path: Path) -> None:
    """What a run with recomputation executes more than one without is the recomputation."""
    x = torch.randn(120, 64)
    runs = []
    for again in (False, True):
        torch._dynamo.reset()
        step = backward_step(torch.compile(Mixed(again)), x)
        runs.append(recorded(step, tmp_path / f"{again}.json", warm_up=2))
    plain, checkpointed = runs
    more = checkpointed.executed_flops - plain.executed_flops
    assert more > 0
    assert checkpointed.ledger().total("recompute") == more
    assert checkpointed.model_flops == plain.model_flops == plain.executed_flops


def test_products_of_the_loss_are_told_apart(tmp_path: Path) -> None:
    found = recorded(tiny_step("none", 3, 40), tmp_path / "trace.json")
    assert {line for line in lines(found, 4) if line.count(".") == 3} == {
        f"model.matmul.{part}.logits" for part in ("forward", "input_grad", "weight_grad")
    }
    assert lines(found, 4)["model.matmul.forward.logits"] == 2 * 120 * 64 * 100


CONVOLUTIONS: list[tuple[Any, Any, int, int]] = [
    # module, input, FLOPs forward, FLOPs of the input's gradient
    (nn.Conv2d(8, 16, 3, padding=1, bias=False), (2, 8, 10, 10), 460_800, 460_800),
    (nn.ConvTranspose2d(8, 16, 3, padding=1, bias=False), (2, 8, 10, 10), 460_800, 460_800),
    (nn.Conv2d(8, 16, 3, padding=1, bias=False, groups=4), (2, 8, 10, 10), 115_200, 115_200),
    (
        nn.ConvTranspose2d(8, 16, 3, padding=1, bias=False, groups=4),
        (2, 8, 10, 10),
        115_200,
        115_200,
    ),
    (
        nn.ConvTranspose2d(16, 8, 3, stride=2, padding=1, output_padding=1, bias=False),
        (2, 16, 10, 10),
        460_800,
        460_800,
    ),
    (
        nn.Conv3d(
            4, 6, (3, 3, 2), stride=(2, 1, 1), padding=(1, 0, 1), dilation=(1, 2, 1), bias=False
        ),
        (2, 4, 9, 9, 9),
        432_000,
        0,
    ),
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=[str(case[0]) for case in CONVOLUTIONS])
def test_convolutions(case: tuple[Any, Any, int, int], tmp_path: Path) -> None:
    module, shape, forward, of_input = case
    x = torch.randn(shape, requires_grad=of_input > 0)
    found = recorded(lambda: module(x).sum().backward(), tmp_path / "trace.json")
    wanted = {
        "model.conv.forward": forward,
        "model.conv.input_grad": of_input,
        "model.conv.weight_grad": forward,
    }
    assert lines(found) == {name: flops for name, flops in wanted.items() if flops}


def test_a_convolution_that_a_recomputation_does_not_reach(tmp_path: Path) -> None:
    convolution = nn.Conv2d(8, 16, 3, padding=1, bias=False)
    x = torch.randn(2, 8, 10, 10, requires_grad=True)

    def step() -> None:
        inner: Any = checkpoint(lambda y: convolution(y.relu()), x, use_reentrant=False)
        inner.sum().backward()

    found = recorded(step, tmp_path / "trace.json")
    assert "recompute.conv" not in lines(found)
    assert (found.outside.count("ghost"), flops_of(found.outside, "ghost")) == (1, 460_800)


def test_attention_without_a_fused_kernel(tmp_path: Path) -> None:
    """All pairs are multiplied, those that the mask hides are overcompute."""
    q, k, v = (torch.randn(2, 4, 8, 16, requires_grad=True) for _ in range(3))

    def step() -> None:
        with sdpa_kernel(SDPBackend.MATH):
            out: Any = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            out.sum().backward()

    pairs, full = 2 * 4 * (8 * 9 // 2), 2 * 4 * 64
    forward = 2 * pairs * 32
    assert lines(recorded(step, tmp_path / "trace.json")) == {
        "model.attention.backward": 2 * forward,
        "model.attention.forward": forward,
        "overcompute.mask": 3 * 2 * (full - pairs) * 32,
    }


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_gradients_of_a_scripted_function_are_no_recomputation(tmp_path: Path) -> None:
    """Their node is of the whole function: its products carry no sequence numbers."""

    class Scripted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(64, 96), nn.Linear(96, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sigmoid(self.second(torch.relu(self.first(x)) * 2.0))

    model = torch.jit.script(Scripted())
    x = torch.randn(120, 64, requires_grad=True)
    found = recorded(lambda: model(x).sum().backward(), tmp_path / "trace.json", warm_up=4)
    once = 2 * 120 * 96 * (64 + 32)
    assert lines(found) == {
        "model.matmul.forward": once,
        "model.matmul.input_grad": once,
        "model.matmul.weight_grad": once,
    }


def test_grouped_products_are_counted_once(tmp_path: Path) -> None:
    x, w = torch.randn(6, 16).bfloat16(), torch.randn(2, 16, 8).bfloat16()
    ends = torch.tensor([2, 6], dtype=torch.int32)
    found = recorded(lambda: torch._grouped_mm(x, w, offs=ends), tmp_path / "trace.json")
    assert lines(found) == {"model.matmul.forward": 2 * 6 * 16 * 8}


def test_scaled_products_are_counted_once(tmp_path: Path) -> None:
    x, one = torch.randn(16, 32).to(torch.float8_e4m3fn), torch.tensor(1.0)

    def step() -> None:
        torch._scaled_mm(x, x.t(), one, one, out_dtype=torch.bfloat16)

    assert lines(recorded(step, tmp_path / "trace.json")) == {
        "model.matmul.forward": 2 * 16 * 16 * 32
    }


def test_products_of_an_optimizer_are_no_part_of_the_model(tmp_path: Path) -> None:
    layer = nn.Linear(8, 8, bias=False)
    x = torch.randn(4, 8)

    class Orthogonal(torch.optim.SGD):
        """Multiplies gradients with each other, as Muon does."""

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for parameter in self.param_groups[0]["params"]:
                parameter -= 0.01 * (parameter.grad @ parameter.grad)

    optimizer = Orthogonal(layer.parameters(), lr=0.1)

    def step() -> None:
        layer(x).sum().backward()
        optimizer.step()

    assert lines(recorded(step, tmp_path / "trace.json")) == {
        "model.matmul.forward": 2 * 4 * 8 * 8,
        "model.matmul.weight_grad": 2 * 4 * 8 * 8,
        "overcompute.optimizer": 2 * 8 * 8 * 8,
    }
