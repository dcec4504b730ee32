"""Finding a model by name, file or folder, and adjusting its card."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from traceflops.errors import InputError, UsageError
from traceflops.flops.model.models import (
    bare_model,
    find_model,
    listed_models,
    preset,
    preset_names,
)
from traceflops.mfu.checked.run_options import Words, adjusted

CARD = 'name = "mine"\nhidden = 64\nlayers = 2\nheads = 4\nffn = 128\nglu = true\nvocab = 100\n'


def test_names_as_people_write_them() -> None:
    for name in ("llama-3-8b", "Llama 3 8B", "meta-llama/Meta-Llama-3-8B", "LLAMA_3_8B"):
        assert find_model(name) == preset("llama-3-8b")


def test_a_path_is_a_file_and_a_name_is_a_preset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("gpt2", "mine", "x.toml"):
        Path(name).write_text(CARD, encoding="utf-8")
    Path("models").mkdir()
    Path("models/gpt2").write_text(CARD, encoding="utf-8")
    assert find_model("gpt2").name == "GPT-2 124M"
    for path in ("./gpt2", "mine", "x.toml", "models/gpt2", str(tmp_path / "gpt2")):
        assert find_model(path).name == "mine"


def test_what_is_wrong_in_a_file_is_wrong_input(tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    path.write_text(CARD + "heads2 = 4", encoding="utf-8")
    with pytest.raises(InputError, match="unknown key 'heads2'"):
        find_model(str(path))
    with pytest.raises(InputError, match="unknown model"):
        find_model("nothing-like-it")


def test_adjusting_a_card() -> None:
    assert bare_model(8 * 10**9).total == 8 * 10**9
    noted = preset("deepseek-v3")
    assert adjusted(noted, Words({"mtp": "1"})).mtp == 1
    for card, modules in ((bare_model(10**9), "1"), (noted, "101")):
        with pytest.raises(UsageError, match="MTP module"):
            adjusted(card, Words({"mtp": modules}))
    roomy = adjusted(noted, Words({"expert_capacity": "1.5"}))
    capacities = [getattr(block.feed_forward, "capacity", 1) for _, block in roomy.blocks]
    assert capacities == [1, Fraction(3, 2)]


def test_every_preset_is_listed() -> None:
    assert tuple(name for name, _ in listed_models()) == preset_names()
