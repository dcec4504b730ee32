"""The skill: it is installed whole, and what it tells agents to run works."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.conftest import ROOT, SAMPLES
from traceflops.cli import app

TEXT = (ROOT / "traceflops" / "agents" / "SKILL.md").read_text(encoding="utf-8")
TRACE = str(SAMPLES / "gpt_1rank.json.gz")
QUERIES = re.findall(r"(?m)^select .*$", TEXT)
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
    calls = [
        ("summary", TRACE, "--json", "--only", "findings"),
        ("info", TRACE),
        ("what-if", TRACE, "data_input=0"),
        ("query", TRACE, QUERIES[0], "--format", "json"),
    ]
    answers = [run(*words).stdout for words in calls]
    assert sum(map(len, answers)) <= LIMIT_BYTES
    assert answers == [run(*words).stdout for words in calls]
