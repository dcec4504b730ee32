"""`traceflops mfu TRACE --redact`: no word of the author's, and the same figures."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_commands import assert_refused, run
from tests.conftest import SAMPLES

SAMPLE = SAMPLES / "gpt_1rank.json.gz"
SECRETS = ("zebrafish", "Zebrafish", "anna")
SIZES = {"hidden": 1024, "layers": 3, "ffn": 4096, "heads": 16, "glu": False, "vocab": 16_384}


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a trace with secret names of kernels, marks, the model and the file."""
    trace: dict[str, Any] = json.loads(gzip.decompress(SAMPLE.read_bytes()))
    kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    longest = max(kernels, key=lambda event: float(event["dur"]))["name"]
    for event in trace["traceEvents"]:
        if event.get("name") == longest:
            event["name"] = f"{longest}_ZebrafishKernel"
    card = {**SIZES, "name": "zebrafish-7b of anna"}
    trace["traceflops"] = {"model": card, "batch": 8, "seq": 1024}
    path = tmp_path_factory.mktemp("secret") / "zebrafish_of_anna.json"
    path.write_text(json.dumps(trace))
    return path


def printed(*words: str | Path) -> str:
    done = run("mfu", *words)
    assert done.exit_code == 0, done.output
    return done.stdout


def figures(value: Any) -> Any:
    """Return the numbers of an object, without its texts."""
    if isinstance(value, dict):
        return {key: figures(one) for key, one in value.items() if key != "notes"}
    if isinstance(value, list):
        return [figures(one) for one in value]
    return None if isinstance(value, str) else value


@pytest.mark.parametrize("more", [(), ("--json",), ("--all-conventions",)])
def test_words_of_the_author_are_not_printed(more: tuple[str, ...], secret: Path) -> None:
    plain, redacted = printed(secret, *more), printed(secret, *more, "--redact")
    assert any(word in plain for word in SECRETS)
    assert not any(word in redacted for word in SECRETS)


def test_the_figures_stay_and_the_removals_are_counted(secret: Path) -> None:
    plain = json.loads(printed(secret, "--json"))
    redacted = json.loads(printed(secret, "--json", "--redact"))
    for part in ("utilisation", "described"):
        assert figures(redacted[part]) == figures(plain[part])
    assert plain["described"]["needed_flops"] is not None
    (note,) = [note for note in redacted["notes"] if note["code"] == "redacted"]
    assert "1 file" in note["text"]


def test_names_of_a_pair_are_replaced_too(secret: Path) -> None:
    text = printed(SAMPLE, "--pair", secret, "--json", "--redact")
    assert not any(word in text for word in SECRETS)


def test_there_must_be_a_trace_to_take_names_from() -> None:
    assert_refused(run("mfu", "--params", "8e9", "--redact"), 2, "--redact needs a trace")
    refused = run("mfu", SAMPLE, "--redact", "--include-environment")
    assert_refused(refused, 2, "mutually exclusive")


@pytest.mark.parametrize("more", [("--json",), ("--all-conventions", "--reported", "40%")])
def test_a_model_of_the_authors_has_a_placeholder(more: tuple[str, ...], tmp_path: Path) -> None:
    config = tmp_path / "zebrafish.json"
    sizes = {"hidden_size": 1024, "num_hidden_layers": 3, "intermediate_size": 4096}
    heads = {"num_attention_heads": 16, "vocab_size": 16_384, "model_type": "llama"}
    config.write_text(json.dumps({**sizes, **heads, "_name_or_path": "anna/zebrafish-7b"}))
    words: tuple[str | Path, ...] = (
        SAMPLE,
        "--model",
        config,
        "--batch",
        "8",
        "--seq",
        "1024",
        *more,
    )
    assert "zebrafish" in printed(*words)
    shown = printed(*words, "--redact")
    assert "zebrafish" not in shown
    assert "model 1" in shown


def test_a_model_that_all_know_keeps_its_name() -> None:
    words = (SAMPLE, "--model", "gpt2", "--batch", "1", "--seq", "128", "--redact", "--json")
    assert '"name": "GPT-2 124M"' in printed(*words)
