"""What a module says of itself: only what is certain, and nothing that is private."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traceflops as tf
from tests.conftest import examples
from traceflops.recording.module_card import plain, words_of
from traceflops.recording.recorder import file_of_rank

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

CONFIG = {
    "model_type": "llama",
    "_name_or_path": "/home/somebody/checkpoints/small",
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 50,
    "tie_word_embeddings": False,
    "rope_theta": 1e4,
    "id2label": {"0": "a word of the data", "1": "another"},
    "quantization_config": {"path": "/home/somebody"},
}
PARAMS = 2 * 50 * 32 + 4 * 32 * 32 + 3 * 32 * 48 + 3 * 32
"""Of that llama: embedding and head, attention, gated feed-forward, norms."""


def llama() -> Any:
    """Return a module with the parameters and the config of a small llama."""
    model: Any = nn.Module()
    model.weight = nn.Parameter(torch.empty(PARAMS))
    model.config = SimpleNamespace(to_dict=lambda: CONFIG)
    return model


def wrapped(model: nn.Module, *names: str) -> nn.Module:
    for name in names:
        outer = nn.Module()
        outer.add_module(name, model)
        model = outer
    return model


@pytest.mark.parametrize("names", [(), ("module",), ("module", "_orig_mod")])
def test_a_config_is_found_in_wrappers_without_what_is_private(names: tuple[str, ...]) -> None:
    said = words_of(wrapped(llama(), *names), 4, {})
    kept = {key: value for key, value in CONFIG.items() if isinstance(value, int)}
    named = {"model_type": "llama", "_name_or_path": "small", "num_labels": 2}
    assert said == {"gpus": 4, "model": {**kept, **named}}


def test_what_cannot_be_known_of_a_module_is_not_said() -> None:
    model = llama()
    model.extra = nn.Parameter(torch.empty(2 * PARAMS))
    assert words_of(model, 1, {}) == {"gpus": 1, "params": 3 * PARAMS}  # of another model
    model.config = SimpleNamespace(to_dict=lambda: {"model_type": "unknown"})
    assert words_of(model, 1, {}) == {"gpus": 1, "params": 3 * PARAMS}
    assert words_of(wrapped(model, "_fsdp_wrapped_module"), 2, {}) == {"gpus": 2}
    model.extra.tensor_model_parallel = True
    assert words_of(model, 1, {}) == {"gpus": 1}
    assert words_of(nn.Linear(2, 2), 1, {}) == {"gpus": 1}  # too small for a model
    spread = nn.ModuleList([nn.Linear(64, 64), nn.Linear(64, 64, device="meta")])
    assert words_of(spread, 1, {}) == {"params": 2 * (64 * 64 + 64)}


def test_full_checkpointing_belongs_to_training() -> None:
    model = llama()
    model.is_gradient_checkpointing = True
    assert words_of(model, 1, {})["checkpointing"] == "full"
    assert "checkpointing" not in words_of(model, 1, {"forward_only": True})


def test_adapters_and_frozen_parts() -> None:
    model = nn.Linear(64, 64).requires_grad_(False)
    with pytest.raises(tf.UsageError, match="frozen"):
        words_of(model, 1, {})
    assert "params" in words_of(model, 1, {"forward_only": True})
    model.add_module("lora_A", nn.Linear(32, 4, bias=False))
    assert words_of(model, 1, {})["lora"] == {"params": 128}


def test_files_of_ranks(tmp_path: Path) -> None:
    assert file_of_rank("a/trace.json.gz", 0, 1) == Path("a/trace.json.gz")
    assert file_of_rank("a/trace.json.gz", 3, 8) == Path("a/trace.rank3.json.gz")
    assert file_of_rank("a.b/", 3, 8) == Path("a.b/rank3.json.gz")
    assert file_of_rank(str(tmp_path), 0, 1) == tmp_path / "rank0.json.gz"


TEXTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@settings(max_examples=examples(100))
@given(st.dictionaries(st.text(max_size=8), TEXTS, max_size=4))
def test_what_is_written_has_no_escapes(words: Mapping[str, object]) -> None:
    text = json.dumps(plain(words))
    assert "\\" not in text
    assert text.isascii()
    assert len(json.loads(text)) <= len(words)
