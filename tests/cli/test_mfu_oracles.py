"""Published figures through the command line: card file and options in, the printed figure out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path

from tests.cli.test_commands import run
from tests.flops.oracles import Oracle, oracles

EVERY = 6
"""Each row takes about 40 ms; the library's tests have all of them."""

OPTIONS = {
    "batch": "--batch",
    "seq": "--seq",
    "tokens_per_step": "--tokens",
    "n_devices": "--gpus",
    "peak_tflops": "--peak",
    "step_time_s": "--step-time",
    "tokens_per_s": "--tokens-per-s",
    "tokens_per_s_per_device": "--tokens-per-s-per-gpu",
    "achieved_tflops_per_device": "--achieved",
    "achieved_basis": "--achieved-convention",
    "lora_params": "--lora-params",
    "convention": "--convention",
}


def toml(values: Mapping[str, object], table: str = "") -> Iterator[str]:
    """Yield the lines of a TOML text."""
    if table:
        yield f"[{table}]"
    inner = {key: value for key, value in values.items() if isinstance(value, dict)}
    for key, value in values.items():
        if value is not None and key not in inner:
            yield f"{key} = {json.dumps(value)}"
    for key, value in inner.items():
        yield from toml(value, key)


def words(one: Oracle, folder: Path) -> Iterator[str]:
    """Yield the command line that a row describes."""
    card = folder / "card.toml"
    card.write_text("\n".join(toml(one.values)), encoding="utf-8")
    yield from ("--model", str(card), "--json")
    for column, option in OPTIONS.items():
        if one[column]:
            yield from (option, one[column])
    if one["recompute_linear"]:
        yield from ("--checkpointing", f"{one['recompute_linear']},{one['recompute_attention']}")
    if one["seqlens"]:
        yield from ("--documents", one["seqlens"])
    if one["frozen"] == "true":
        yield from ("--frozen", "all")
    if one["passes"] == "forward":
        yield "--forward-only"


def test_published_figures_come_out_within_their_digits(tmp_path: Path) -> None:
    rows = [
        one
        for one in oracles()
        if one["status"] == "matches"
        and one["kind"] in ("mfu", "hfu", "tflops_per_gpu")
        and one["component"] == "total"
    ]
    assert len(rows) > 300
    keys = {"mfu": ("mfu", 100), "hfu": ("hfu", 100), "tflops_per_gpu": ("tflops_per_device", 1)}
    wrong = []
    for one in rows[::EVERY]:
        result = run("mfu", *words(one, tmp_path))
        assert result.exit_code == 0, (one["id"], result.output)
        key, scale = keys[one["kind"]]
        value = json.loads(result.stdout)[key]
        if value is None or not one.agrees(Fraction(value) * scale):
            wrong.append((one["id"], value, one["expected"]))
    assert wrong == []
