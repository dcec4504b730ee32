"""What bash and zsh are offered, and that a shell is never shown an error."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_commands import SAMPLE
from tests.conftest import some
from traceflops.devices.peaks import load_devices
from traceflops.flops.model.models import preset_names

PROGRAM = "from traceflops.cli import app; app(prog_name='traceflops')"


def answer(environment: dict[str, str], cwd: Path | None = None) -> str:
    """Return what the program tells a shell, and nothing else; it must end well."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
        cwd=cwd,
    )
    assert done.stderr == ""
    return done.stdout


def in_bash(line: str, cwd: Path | None = None) -> list[str]:
    """Return the words that bash is offered for the last one of a line."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    return answer({"_TRACEFLOPS_COMPLETE": "complete_bash", **words}, cwd).split()


def in_zsh(line: str) -> list[str]:
    words = {"_TYPER_COMPLETE_ARGS": line}
    text = answer({"_TRACEFLOPS_COMPLETE": "complete_zsh", **words})
    return re.findall(r'"([^":]+)(?::[^"]*)?"', text)


def test_names_of_the_tables_are_offered() -> None:
    h100 = [spec.id for spec in load_devices() if spec.id.startswith("h100-")]
    assert len(h100) > 1
    assert in_bash("traceflops summary --device h100-") == h100
    llama = [name for name in preset_names() if name.startswith("llama-3-")]
    assert len(llama) > 1
    assert in_zsh("traceflops mfu --model llama-3-") == llama


def test_steps_are_offered_of_a_small_trace_alone(tmp_path: Path) -> None:
    steps = ["10", "11", "12", "13", "14", "15"]
    assert in_bash(f"traceflops summary --ranks 0 {SAMPLE} --steps 1") == steps
    (tmp_path / "traceflops.toml").write_text("[broken")
    (tmp_path / "large.json").write_bytes(b"[" + b" " * 20_000_000)
    (tmp_path / "broken.json").write_bytes(b"[{")
    for given in some(("large.json", "broken.json", "s3://bucket/x", ""), 3):
        assert in_bash(f"traceflops summary {given} --steps 1", tmp_path) == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_each_shell_has_a_script(shell: str) -> None:
    script = answer({"_TRACEFLOPS_COMPLETE": f"source_{shell}"})
    assert f"_TRACEFLOPS_COMPLETE=complete_{shell}" in script


def test_the_script_of_bash_completes_in_bash(tmp_path: Path) -> None:
    program = tmp_path / "traceflops"
    program.write_text(f"#!{sys.executable}\n{PROGRAM}\n")
    program.chmod(0o755)
    typed = "COMP_WORDS=(traceflops mfu --model llama-3-8); COMP_CWORD=3"
    script = answer({"_TRACEFLOPS_COMPLETE": "source_bash"})
    asked = f"{script}\n{typed}\n_traceflops_completion {program}\necho ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    assert "llama-3-8b" in done.stdout.split()
