"""Defaults of options from a file: what counts, what is said, what a file may not set."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cli.test_commands import SAMPLE, assert_refused, run
from tests.conftest import ROOT, examples

HERE = "traceflops.toml"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str, name: str = HERE) -> None:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(text)


def steps_of(*words: str) -> tuple[Any, str]:
    """Return which steps a summary is of, and what is said on stderr."""
    result = run("summary", SAMPLE, "--json", *words)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["selection"]["steps"], result.stderr


@pytest.mark.parametrize(
    ("name", "table"), [(HERE, ""), ("pyproject.toml", "tool.traceflops."), ("ci/my.toml", "")]
)
def test_a_commands_table_comes_before_all_and_the_command_line_before_both(
    name: str, table: str
) -> None:
    write(f"[{table}defaults]\nsteps = 11\njobs = 1\n[{table}summary]\nsteps = '12:13'\n", name)
    words = ("--config", name) if "/" in name else ()
    assert steps_of(*words) == ([12, 13], f"defaults from {name}: steps, jobs\n")
    assert steps_of(*words, "--steps", "14") == ([14, 14], f"defaults from {name}: jobs\n")
    assert steps_of(*words, "--steps", "14", "--jobs", "1") == ([14, 14], "")


def test_a_table_for_all_is_for_those_that_have_the_option() -> None:
    write("[defaults]\nsteps = 12\nby = 'layer'\n")
    assert steps_of()[0] == [12, 12]
    result = run("why", "a")
    assert (result.exit_code, result.stderr) == (0, "")


def test_nothing_is_said_without_a_file_and_one_of_others_is_no_matter() -> None:
    write("[tool.other", "pyproject.toml")
    assert steps_of() == (None, "")
    write("", HERE)
    assert steps_of() == (None, "")


def test_the_folder_of_a_trace_has_no_say(tmp_path: Path) -> None:
    write("[defaults]\nsteps = 11\n", "theirs/traceflops.toml")
    trace = tmp_path / "theirs" / "trace.json.gz"
    trace.write_bytes(SAMPLE.read_bytes())
    assert run("summary", trace).stderr == ""


def test_rules_lie_where_the_file_says_and_flags_are_on_or_off() -> None:
    rule = "id = 'mine'\nhead = 'mykernel'\ntop = 'compute'\nsub = 'gemm'\nbecause = 'mine'"
    write(f"[[rule]]\n{rule}\n", "ci/rules.toml")
    write("[why]\nrules = 'rules.toml'\njson = true\n", "ci/my.toml")
    result = run("why", "mykernel", "--config", "ci/my.toml")
    assert json.loads(result.stdout)["rule"] == "mine"
    write("[summary]\nredact = true\npython_stacks = false\n")
    assert steps_of()[1] == f"defaults from {HERE}: redact, python-stacks\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[defaults]\ndevise = 'h100-sxm'", "traceflops.toml: no option 'devise'"),
        ("[defaults]\ndevise = 'h100-sxm'", "did you mean device?"),
        ("[sumary]\nby = 'op'", "did you mean summary?"),
        ("[pack]\nby = 'op'", "no option 'by'"),
        ("steps = 3", "no table 'steps'"),
        ("summary = 3", "summary is no table"),
        ("[summary]\njobs = 'x'", "traceflops.toml: jobs: "),
        ("[summary]\njobs = 1000", "traceflops.toml: jobs: "),
        ("[summary]\njobs = true", "jobs cannot be 'True'"),
        ("[summary]\njson = 1", "json cannot be '1'"),
        ("[summary]\nsteps = [1, 2]", "steps cannot be '[1, 2]'"),
        ("[summary]\nby = 1979-05-27", "by cannot be '1979-05-27'"),
        ("[export]\ntable = 'calls'", "table cannot be 'calls'"),
        ("[summary", "bad TOML"),
        ("[defaults]\nforce = true", "force is for the command line alone"),
        ("[report]\noutput = '/tmp/x.html'", "output is for the command line alone"),
        ("[report]\npost_mortem = 'x.md'", "post-mortem is for the command line alone"),
        ("[report]\nnotes = '/etc/passwd'", "notes is for the command line alone"),
        ("[summary]\npair = ['s3://bucket/x']", "pair is for the command line alone"),
        ("[summary]\ndask = 'tcp://host:1'", "dask is for the command line alone"),
        ("[summary]\ninclude-environment = true", "is for the command line alone"),
        ("[summary]\nno_limits = true", "is for the command line alone"),
        ("[summary]\nconfig = 'x'", "config is for the command line alone"),
    ],
)
def test_what_a_file_cannot_say_is_refused(text: str, why: str) -> None:
    write(text)
    assert_refused(run("summary", SAMPLE), 2, why)


VALUES = st.recursive(
    st.booleans() | st.integers(-9, 9) | st.text("abc-é\n", max_size=5) | st.floats(0, 9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["rules", "jobs", "x"]), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["defaults", "why", "summary", "y"]),
    st.sampled_from(["rules", "json", "op", "jobs", "max_share", "config", "é"]),
    VALUES,
)
def test_any_file_is_taken_or_refused_in_words(table: str, key: str, value: Any) -> None:
    write(f"[{table}]\n{json.dumps(key)} = {toml(value)}\n")
    result = run("why", "a")
    assert result.exit_code in (0, 2)
    if result.exit_code == 2:
        *said, error, hint = result.stderr.splitlines()
        assert said in ([], [f"defaults from traceflops.toml: {key}"])
        assert error.startswith("error: ")
        assert hint.startswith("hint: ")
    os.unlink(HERE)


def toml(value: Any) -> str:
    """Return a value as TOML: a table in braces is what differs from JSON."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(k)} = {toml(v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value)


EXAMPLE = (
    (ROOT / "docs" / "config.md")
    .read_text(encoding="utf-8")
    .partition("```toml\n")[2]
    .partition("```")[0]
)
DESCRIBED = ("mfu", "--model", "llama-3-8b", "--seq", "8192", "--batch", "8", "--step-time", "99")


def test_the_example_of_the_documents_works_for_every_command() -> None:
    write(EXAMPLE)
    alone = run(*DESCRIBED, "--gpus", "8", "--dtype", "bf16")
    assert alone.exit_code == 0, alone.stderr
    for words in (("summary", SAMPLE), ("mfu", SAMPLE), ("check", SAMPLE, "--max-share", "idle=1")):
        result = run(*words)
        assert "error" not in result.stderr, result.stderr
        assert "palm" not in result.stdout + result.stderr
    assert "palm" in run("mfu", SAMPLE, "--batch", "8", "--seq", "64").stdout


def test_a_typed_option_that_does_not_apply_is_refused() -> None:
    write("[defaults]\nsteps = 12\nredact = true\n")
    assert run(*DESCRIBED, "--device", "h100-sxm", "--dtype", "bf16").exit_code == 0
    for words, said in ((("--redact",), "--redact needs a trace"), (("--steps", "1"), "no trace")):
        refused = run(*DESCRIBED, *words)
        assert refused.exit_code == 2
        assert f"error: {said}" in refused.stderr


def test_a_file_that_is_not_there_is_named_as_it_was_written() -> None:
    write('[defaults]\nfinding-rules = "ci/findings.toml"\n')
    result = run("summary", SAMPLE)
    assert result.exit_code == 2
    assert repr(str(Path("ci/findings.toml"))) in result.stderr
