"""Records a genuine torch.profiler CPU profile: `python -m sample_traces.record_torch_cpu`.

Unlike the simulated samples this is what a profiler really wrote, on a machine without a GPU.
Every recording differs in its times, so the committed file is not remade by tests.
"""

from __future__ import annotations

import getpass
import gzip
import json
import re
import socket
import sys
import tempfile
from pathlib import Path
from typing import Final

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

HERE: Final = Path(__file__).parent
NAME: Final = "torch_cpu_train.json.gz"
STEPS: Final = 4
WAIT: Final = 2
VOCAB, WIDTH, HEADS, TOKENS, BATCH = 256, 64, 4, 32, 8


class Block(nn.Module):
    """One transformer block with causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output for (batch, tokens, width)."""
        q, k, v = (
            part.view(BATCH, TOKENS, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in self.qkv(self.ln_1(x)).chunk(3, dim=-1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(BATCH, TOKENS, WIDTH))
        out: torch.Tensor = x + self.mlp(self.ln_2(x))
        return out


def record() -> str:
    """Return the text of a profile of a tiny transformer's training steps."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Embedding(VOCAB, WIDTH), Block(), Block(), nn.Linear(WIDTH, VOCAB))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        with profile(
            activities=[ProfilerActivity.CPU],
            record_shapes=True,
            schedule=schedule(wait=WAIT, warmup=1, active=STEPS),
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        ) as profiler:
            for _ in range(WAIT + 1 + STEPS):
                train_step(model, optimizer)
                profiler.step()
        return path.read_text(encoding="utf-8")


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Run one training step on random tokens."""
    tokens = torch.randint(VOCAB, (BATCH, TOKENS))
    logits = model(tokens)
    loss = nn.functional.cross_entropy(logits.view(-1, VOCAB), tokens.view(-1))
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    optimizer.step()


def scrub(text: str) -> str:
    """Return the text without names of this machine, its user and its folders."""
    text = re.sub(r'("traceName": )"[^"]*"', r'\1"trace.json"', text)
    text = re.sub(r'("(?:host_name|username|user_name)": )"[^"]*"', r'\1""', text)
    for private in (str(Path.home()), socket.gethostname()):
        if len(private) > 1:
            text = text.replace(private, "redacted")
    return re.sub(rf'(?<=[/"]){re.escape(getpass.getuser())}(?=[/"])', "redacted", text)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / NAME
    recorded = scrub(record())
    events = len(json.loads(recorded)["traceEvents"])
    target.write_bytes(gzip.compress(recorded.encode(), mtime=0))
    print(f"{target}: {events:,} events, {target.stat().st_size:,} bytes")
