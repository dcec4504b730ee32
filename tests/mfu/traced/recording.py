"""Small training steps, really run by torch on the CPU, and what their traces say was executed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

import traceflops as tf
from tests.mfu.counting import added
from tests.mfu.reference_block import Block
from traceflops.analysis.preparation import prepare
from traceflops.mfu.traced.executed import Executed, executed

_SAVED = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


def _policy(_context: object, op: object, *_args: object, **_kwargs: object) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in _SAVED else CheckpointPolicy.PREFER_RECOMPUTE


CHECKPOINTS: dict[str, Callable[[nn.Module, torch.Tensor], Any]] = {
    "none": lambda block, x: block(x),
    "reentrant": lambda block, x: checkpoint(block, x, use_reentrant=True),
    "nonreentrant": lambda block, x: checkpoint(block, x, use_reentrant=False),
    "sac": lambda block, x: checkpoint(
        block,
        x,
        use_reentrant=False,
        context_fn=partial(create_selective_checkpoint_contexts, _policy),
    ),
}


class Tiny(nn.Module):
    """The reference transformer of two blocks, checkpointed in one of the ways above."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 64)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(64, 100, bias=False)
        self.mode = mode

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = CHECKPOINTS[self.mode](block, x)
        out: torch.Tensor = self.head(x)
        return out


def recorded(
    step: Callable[[], object], path: Path, *, warm_up: int = 1, steps: int = 1
) -> Executed:
    """Return what the trace of a step says was executed, after steps that are not recorded."""
    for _ in range(warm_up):
        step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recording:
        for number in range(steps):
            with record_function(f"ProfilerStep#{number}"):
                step()
    recording.export_chrome_trace(str(path))
    return executed(prepare(tf.read(str(path))))


def tiny_step(
    mode: str, batch: int, tokens: int, *, compiled: bool = False, early_stop: bool = True
) -> Callable[[], object]:
    """Return a training step of the reference transformer."""
    model = Tiny(mode)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 100, (batch, tokens))
    run: Any = torch.compile(model, backend="inductor") if compiled else model

    def step() -> None:
        optimizer.zero_grad()
        with set_checkpoint_early_stop(early_stop):
            logits = run(ids).view(batch * tokens, 100)
            loss: Any = F.cross_entropy(logits, ids.view(batch * tokens))
            loss.backward()
        optimizer.step()

    return step


def lines(executed: Executed, depth: int = 3) -> dict[str, int]:
    """Return the ledger of the chosen windows, added up by the first words of the names."""
    return added(executed.ledger(), depth)
