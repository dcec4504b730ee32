"""The skill: it is installed whole, and what it tells agents to run works."""

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.agents.conftest import Session
from tests.conftest import ROOT, SAMPLES
from traceflops.cli import app

TEXT = (ROOT / "traceflops" / "agents" / "SKILL.md").read_text(encoding="utf-8")
ONE, FOUR = "gpt_1rank.json.gz", "gpt_ddp_4rank"
TRACE = str(SAMPLES / ONE)
QUERIES = re.findall(r"(?m)^select .*$", TEXT)
COMMANDS: dict[str, tuple[str, ...]] = {
    "summary": ("summary", TRACE, "--json", "--only", "findings"),
    "info": ("info", TRACE, "--brief"),
    "what-if": ("what-if", TRACE, "data_input=0", "--brief"),
    "query": ("query", TRACE, QUERIES[0], "--brief"),
    "why": ("why", "ampere_sgemm_128x64_nt", "--brief"),
    "repro": ("repro", TRACE, "--finding", "data-input", "--brief"),
    "compare": ("compare", TRACE, str(SAMPLES / FOUR), "--brief"),
}
"""A call of each command that the skill names."""
TOOL_OF = {"summary": "findings"}
GIVEN: dict[str, dict[str, Any]] = {
    "what-if": {"scenario": ["data_input=0"]},
    "query": {"sql": QUERIES[0]},
    "why": {"name": "ampere_sgemm_128x64_nt"},
    "repro": {"finding": "data-input"},
}
LIMIT_BYTES = 20_000
"""What the answers of all calls together may have."""


def run(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def test_the_skill_is_printed_and_installed_whole(tmp_path: Path) -> None:
    assert run("skill").stdout.strip() == TEXT.strip()
    target = tmp_path / "traceflops" / "SKILL.md"
    assert run("skill", "--install", str(tmp_path)).exit_code == 0
    assert target.read_text(encoding="utf-8") == TEXT
    target.write_text("mine", encoding="utf-8")
    assert run("skill", "--install", str(tmp_path)).exit_code == 2
    assert target.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("query", QUERIES)
def test_a_question_of_the_skill_is_answered(query: str) -> None:
    assert run("query", TRACE, query, "--format", "json").exit_code == 0


def test_four_calls_fit_into_what_an_agent_reads_and_give_the_same_again() -> None:
    calls = [words for words in COMMANDS.values() if words[0] != "compare"]
    answers = [run(*words).stdout for words in calls]
    assert max(map(len, answers)) <= 8_192
    first, info, what_if, *_ = answers
    assert len(first + info + what_if + answers[-1]) <= LIMIT_BYTES
    assert answers == [run(*words).stdout for words in calls]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_of_the_skill_has_a_tool_that_answers_the_same(
    name: str, served: Session
) -> None:
    pytest.importorskip("duckdb")
    asked = {path: served.ask("open_trace", path=path)["trace"] for path in (ONE, FOUR)}
    words, tool = list(COMMANDS[name]), TOOL_OF.get(name, name.replace("-", "_"))
    of_trace = {"trace": asked[ONE]} if TRACE in words else {}
    if name == "compare":
        of_trace = {"before": asked[ONE], "after": asked[FOUR]}
        words += ["--names", ",".join(asked.values())]
    assert run(*words).stdout == served.text(tool, **of_trace, **GIVEN.get(name, {})) + "\n"


def test_the_skill_names_the_commands_that_are_tried() -> None:
    said = set(re.findall(r"`traceflops ([a-z-]+) ", TEXT))
    assert said == {*COMMANDS, "mcp"}
    for words in COMMANDS.values():
        options = {word for word in words if word.startswith("--")}
        (line,) = [line for line in TEXT.splitlines() if f"`traceflops {words[0]} " in line]
        assert all(option in line for option in options)
