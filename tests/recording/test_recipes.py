"""`traceflops recipe`: what is promised is there, and what is printed can be pasted."""

from __future__ import annotations

import ast
import re

import pytest
from typer.testing import CliRunner

from tests.packaging.test_documents import known_options
from traceflops.cli import app
from traceflops.recording.recipes import known_recipes

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


def test_all_are_listed_and_others_refused() -> None:
    said = CliRunner().invoke(app, ["recipe"]).stdout
    assert [line.split()[0] for line in said.splitlines()] == list(known_recipes())
    result = CliRunner().invoke(app, ["recipe", "tensorrt"])
    assert result.exit_code == 2
    assert "choose from pytorch" in result.stderr
