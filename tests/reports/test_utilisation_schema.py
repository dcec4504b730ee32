"""`traceflops mfu TRACE --json` keeps to its published schema, with and without a description."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_commands import run
from tests.conftest import SAMPLES, shared_file, some
from tests.schemas import VALIDATORS

VALIDATOR = VALIDATORS["traceflops.utilisation/1"]
CARD = """
name = "sample"
hidden = 1024
layers = 3
heads = 16
ffn = 4096
glu = false
vocab = 16384
"""
DESCRIBED = (
    "--batch 4",
    "--batch 9",
    "--batch 4 --gpus 8 --convention 6N",
    "--batch 4 --reported 31.1%",
    "--batch 4 --from 1ms --to 3ms",
    "--batch 4 --peak 1",
    "--batch 4 --convention flopcounter",
)


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("card") / "card.toml"
    path.write_text(CARD)
    return path


def printed(trace: Path, *options: str | Path) -> Any:
    done = run("mfu", trace, *options, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def errors(found: Any) -> list[str]:
    return [f"{e.json_path}: {e.message}" for e in VALIDATOR.iter_errors(found)]


@pytest.mark.parametrize("options", DESCRIBED)
def test_described_traces_follow_the_schema(card: Path, options: str) -> None:
    found = printed(
        SAMPLES / "gpt_1rank.json.gz", "--model", card, "--seq", "1024", *options.split()
    )
    assert errors(found) == []
    assert found["described"] is not None


@pytest.mark.parametrize(
    "name", some(["gpt_1rank.json.gz", "gpt_ddp_4rank", "torch_cpu_train.json.gz"], 2)
)
def test_samples_follow_the_schema(card: Path, name: str) -> None:
    alone = printed(SAMPLES / name)
    assert errors(alone) == []
    assert alone["described"] is None
    described = printed(SAMPLES / name, "--model", card, "--batch", "4", "--seq", "1024")
    assert errors(described) == []
    assert described["utilisation"] == alone["utilisation"]
    assert errors(printed(SAMPLES / name, "--params", "8e9", "--tokens", "4096")) == []


def test_real_traces_follow_the_schema(card: Path) -> None:
    for path in sorted(shared_file("traces/pytorch").glob("mi300x*.json.gz")):
        options = ("--model", card, "--batch", "8", "--seq", "1024", "--dtype", "bf16")
        assert errors(printed(path, *options)) == [], path.name


def test_the_schema_would_notice(card: Path) -> None:
    good = printed(SAMPLES / "gpt_1rank.json.gz", "--model", card, "--batch", "9", "--seq", "1024")
    changes: list[tuple[tuple[str | int, ...], object]] = [
        (("schema",), "traceflops.report/1"),
        (("described", "counted_flops_text"), "1.5e3"),
        (("described", "agree"), "yes"),
        (("described", "more"), 1),
        (("described", "recomputation", "mismatch"), "Wrong"),
        (("described", "window_ns"), 1.5),
        (("described", "mfu"), 1.2),
        (("utilisation", "mfu"), "much"),
        (("steps", "source"), "guess"),
    ]
    for where, value in changes:
        broken = copy.deepcopy(good)
        parent = broken
        for key in where[:-1]:
            parent = parent[key]
        parent[where[-1]] = value
        assert errors(broken), where
