"""`traceflops recipe`: what is promised is there, and what is printed can be pasted."""

from __future__ import annotations

import ast
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.packaging.test_documents import known_options
from traceflops.cli import app
from traceflops.cli.recipe import known_recipes

PROMISED = ("pytorch", "nsys", "rocprof", "ncu", "vllm", "sglang", "jax", "megatron", "torchtitan")


@pytest.mark.parametrize("name", PROMISED)
def test_a_recipe_ends_in_a_report(name: str) -> None:
    result = CliRunner().invoke(app, ["recipe", name])
    assert result.exit_code == 0
    assert result.stdout.startswith(f"# {known_recipes()[name].title}: ")
    lines = re.findall(r"^traceflops report .*$", result.stdout, re.M)
    assert lines
    assert set(re.findall(r"--[a-z-]+", " ".join(lines))) <= known_options()


@pytest.mark.parametrize("name", ["pytorch", "jax"])
def test_python_in_a_recipe_is_python(name: str) -> None:
    code = known_recipes()[name].commands.split("traceflops report")[0]
    assert any(isinstance(one, ast.With) for one in ast.parse(code).body)


def test_the_recipe_of_a_peak_prints_tflops(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fastest of some products of 2 n^3 FLOP with n = 8192, in 2 ms: 549.8 TFLOP/s."""
    times = iter([9.0, 2.0, *[3.0] * 98])
    event = SimpleNamespace(record=lambda: None, elapsed_time=lambda _: next(times))
    torch = SimpleNamespace(
        bfloat16="bf16",
        randn=lambda *_, **__: np.eye(1),
        cuda=SimpleNamespace(Event=lambda **_: event, synchronize=lambda: None),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    exec(known_recipes()["peak"].commands, {})
    assert capsys.readouterr().out == "traceflops report TRACE --peak 549.8\n"


def test_all_are_listed_and_others_refused() -> None:
    said = CliRunner().invoke(app, ["recipe"]).stdout
    assert [line.split()[0] for line in said.splitlines()] == list(known_recipes())
    result = CliRunner().invoke(app, ["recipe", "tensorrt"])
    assert result.exit_code == 2
    assert "choose from pytorch" in result.stderr
