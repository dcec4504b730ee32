"""The callbacks of docs/recording.md: with stand-ins, and the real libraries where they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import traceflops as tf
from tests.conftest import ROOT
from traceflops.recording.inventory import take_inventory

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


def recorded(title: str, tmp_path: Path, **names: Any) -> tf.Trace:
    """Return what the example under a title of the page records."""
    page = (ROOT / "docs" / "recording.md").read_text(encoding="utf-8")
    (code,) = re.findall(rf"^## {title}\n\n```python\n(.*?)^```$", page, re.M | re.S)
    exec(code.replace('"traces/"', repr(f"{tmp_path}/")), {"tf": tf, **names})
    return tf.read(tmp_path / "rank0.json.gz")


class Callback:
    """As that of both libraries: it hears of nothing unless told."""

    def on_step_end(
        self, args: object, state: object, control: object, **named: object
    ) -> None: ...

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None: ...


class Trainer:
    """Calls as both libraries do: by name or by place, and after each micro-batch."""

    accumulate_grad_batches = 2

    def __init__(self, model: Any = None, callbacks: Any = ()) -> None:
        self.model, self.callbacks = model, list(callbacks)

    def add_callback(self, callback: Callback) -> None:
        self.callbacks.append(callback)

    def train(self) -> None:
        for _ in self._steps():
            self.callbacks[0].on_step_end(self, self, self, model=self.model)

    def fit(self, model: Any, batches: Any) -> None:
        for number in self._steps():
            self.callbacks[0].on_train_batch_end(self, model, None, None, number)

    def _steps(self) -> Iterator[int]:
        for number in range(30):
            torch.ones(2) + 1
            yield number


def test_trainer_as_on_the_page(tmp_path: Path) -> None:
    names = {"TrainerCallback": Callback, "trainer": Trainer(nn.Linear(64, 64))}
    trace = recorded("Hugging Face Trainer", tmp_path, **names)
    assert take_inventory(trace).steps == tuple(range(7, 13))


def test_lightning_as_on_the_page_counts_steps_of_the_optimizer(tmp_path: Path) -> None:
    names = {"Callback": Callback, "Trainer": Trainer, "model": nn.Linear(64, 64), "loader": None}
    trace = recorded("Lightning", tmp_path, **names)
    assert take_inventory(trace).steps == tuple(range(7, 13))
    assert sum(name == "aten::ones" for name in trace.ops["name"].to_pylist()) == 12


@pytest.mark.filterwarnings("ignore")
def test_the_real_trainer(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.LlamaConfig(intermediate_size=96, vocab_size=50, **sizes)
    ids = torch.randint(50, (16,))
    trainer = transformers.Trainer(
        transformers.LlamaForCausalLM(config),
        transformers.TrainingArguments(
            str(tmp_path / "out"), max_steps=15, use_cpu=True, report_to=[], save_strategy="no"
        ),
        train_dataset=[{"input_ids": ids, "labels": ids}] * 120,
    )
    names = {"TrainerCallback": transformers.TrainerCallback, "trainer": trainer}
    trace = recorded("Hugging Face Trainer", tmp_path, **names)
    assert take_inventory(trace).steps == tuple(range(7, 13))
    model: Any = (trace.source.description or {})["model"]
    assert model["model_type"] == "llama"
    assert model["intermediate_size"] == 96


@pytest.mark.filterwarnings("ignore")
def test_the_real_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(64, 64)

        def training_step(self, batch: Any, _number: int) -> Any:
            return F.mse_loss(self.net(batch), batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def trainer(callbacks: Any) -> Any:
        off = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
        return lightning.Trainer(
            max_steps=15, accelerator="cpu", callbacks=callbacks, accumulate_grad_batches=2, **off
        )

    loader = torch.utils.data.DataLoader(torch.rand(40, 64))
    names = {"Callback": lightning.Callback, "Trainer": trainer}
    trace = recorded("Lightning", tmp_path, model=Module(), loader=loader, **names)
    assert take_inventory(trace).steps == tuple(range(7, 13))
