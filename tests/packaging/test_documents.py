"""README and documents: their commands, options, links, blocks of output and examples hold."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from docs import manual, pictures
from docs.refresh import documents, refreshed
from tests.conftest import ROOT
from traceflops.cli import app

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("[a-z]*/README.md")])
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]
GROUP = typer.main.get_command(app)
COMMANDS: dict[str, Any] = GROUP.commands  # type: ignore[attr-defined]

TO_TYPE = ["README.md", "docs/index.md", *(name for name in NAMES if "/tutorials/" in name)]
OF_TOOLS = {
    *("--check", "--count", "--seed", "--enforce-eager", "--compile"),
    *("--rccl-trace", "--cuda-graph-trace", "--python-functions-trace", "--print-summary"),
}
"""Options of docs/refresh.py, of the scoreboards, of scripts of `repro` and of what records."""
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_ROOMS = [path.name for path in (ROOT / "traceflops").iterdir() if path.is_dir()]
_OF_ROOMS = re.compile(
    rf"(?<![\w./-])(?:{'|'.join((*_ROOMS, 'parsers', 'reports', 'tests', 'traceflops'))})"
    r"/[\w./-]+\.(?:py|toml|j2)\b"
)
"""Files of rooms; those of the core are also named without its folder."""
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return [body for found, body in _FENCE.findall(text) if found == language]


def commands_in(line: str) -> Iterator[list[str]]:
    """Yield the arguments of each call of traceflops in a line of shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("|&;>"):
            if words and Path(words[0]).name == "traceflops":
                yield words[1:]
            words = []
        else:
            words.append(word)


def shell_commands(name: str) -> list[list[str]]:
    lines = [line for body in blocks(text_of(name), "sh") for line in body.splitlines()]
    return [arguments for line in lines for arguments in commands_in(line)]


def test_every_command_is_shown() -> None:
    assert {arguments[0] for arguments in shell_commands("docs/commands.md")} == set(COMMANDS)


@pytest.mark.parametrize("name", TO_TYPE)
def test_few_words_stand_before_the_first_thing_to_type(name: str) -> None:
    before, fence, _ = text_of(name).partition("\n```")
    assert fence
    assert len(before.split()) <= 250


def test_nothing_is_said_to_be_not_there_yet() -> None:
    for name in NAMES:
        assert re.findall(r"^.*\byet[.:].*$", _FENCE.sub("", text_of(name)), re.M) == [], name


def test_every_command_named_in_the_documents_exists() -> None:
    for name in [name for name in NAMES if name != "CHANGELOG.md"]:
        spans = set(re.findall(r"`traceflops ([a-z]+)[` ]", _FENCE.sub("", text_of(name))))
        assert spans <= set(COMMANDS), name


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_has_an_example_per_line(name: str) -> None:
    printed = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "80"}).stdout
    _, _, shown = printed.partition("\nExamples:\n")
    assert max(map(len, shown.splitlines())) <= 80
    examples = shown.replace("\\\n", "").splitlines()
    assert len(examples) > 1
    assert [words[0] for line in examples for words in commands_in(line)] == [name] * len(examples)


def test_every_option_named_in_the_documents_exists() -> None:
    for name in NAMES:
        spans = re.findall(r"`([^`\n]+)`", _FENCE.sub("", text_of(name)))
        named = {option for span in spans for option in options_in(span)}
        assert named <= known_options() | OF_TOOLS, name


def options_in(span: str) -> list[str]:
    """Return the options of traceflops in a span of code; other programs have their own."""
    first = span.split(maxsplit=1)[0] if span.split() else ""
    return _OPTION.findall(span) if first.startswith("--") or first == "traceflops" else []


def known_options() -> set[str]:
    commands = [GROUP, *COMMANDS.values()]
    return {"--help", *(o for c in commands for p in c.params for o in names_of(p))}


def names_of(parameter: Any) -> list[str]:
    """Return the names of an option, those that switch it off among them."""
    return [*parameter.opts, *parameter.secondary_opts]


def test_every_option_that_chooses_what_to_analyse_is_listed() -> None:
    text = text_of("docs/commands.md")
    options = {o for p in COMMANDS["summary"].params for o in names_of(p) if o.startswith("--")}
    assert [option for option in sorted(options) if option not in text] == []


def test_the_files_of_ours_that_documents_and_code_name_are_there() -> None:
    folders = ("parsers", "reports", "traceflops")
    code = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    gone = [
        f"{path.relative_to(ROOT)}: {named}"
        for path in (*DOCUMENTS, *code)
        for named in _OF_ROOMS.findall(path.read_text(encoding="utf-8"))
        if not any((root / named).exists() for root in (ROOT, ROOT / "traceflops"))
    ]
    assert gone == []


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    folder = (ROOT / name).parent
    broken = []
    for link in _LINK.findall(_FENCE.sub("", text_of(name))):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (folder / path).resolve() if path else ROOT / name
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-") for h in headings}


def test_every_document_is_on_the_map() -> None:
    text = text_of("docs/index.md")
    pages = [p.relative_to(ROOT / "docs").as_posix() for p in ROOT.glob("docs/**/*.md")]
    assert [page for page in pages if page != "index.md" and f"({page})" not in text] == []


@pytest.mark.parametrize("name", [name for name in NAMES if "<!-- output: " in text_of(name)])
def test_blocks_of_output_are_what_the_commands_print(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    text = text_of(name)
    assert refreshed(text) == text, "run docs/refresh.py"


def test_the_documents_that_are_refreshed_are_those_with_output() -> None:
    with_output = {ROOT / name for name in NAMES if "<!-- output: traceflops" in text_of(name)}
    assert with_output <= {*documents()}


def test_the_manual_page_is_what_the_help_says_and_has_no_fault() -> None:
    assert manual.PAGE.read_text(encoding="utf-8") == manual.page(), "run python -m docs.manual"
    if shutil.which("man") is None:
        pytest.skip("needs man")
    done = subprocess.run(
        ["man", "--warnings", "-l", "docs/traceflops.1"],
        cwd=ROOT,
        env=os.environ | {"LC_ALL": "C.UTF-8", "MANWIDTH": "80", "MAN_KEEP_FORMATTING": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    headings = re.findall(r"^   (\S.*)$", done.stdout, re.M)
    assert headings == [*COMMANDS]
    options = {one for one in known_options() if one.startswith("--")}
    assert options - {*_OPTION.findall(done.stdout)} == set()


def test_pictures_show_what_pages_say_today(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of samples, and where the public traces are all; together they stay small."""
    monkeypatch.setattr(sys, "argv", ["pictures", "--check"])
    code = pictures.main()
    stale = capsys.readouterr().out
    assert (code, stale) == (0, ""), f"run python -m docs.pictures: {stale}"
    assert sum(path.stat().st_size for path in ROOT.glob("docs/images/*")) < 1_000_000


def test_every_picture_of_a_document_is_there_and_each_is_in_one() -> None:
    linked = {
        (ROOT / name).parent / path
        for name in NAMES
        for path in re.findall(r"!\[[^\]]+\]\(([^)\s]+)\)", text_of(name))
    }
    assert linked == {*ROOT.glob("docs/images/*")}


def test_there_are_blocks_of_output() -> None:
    filled = r"<!-- output: traceflops summary .+ -->\n```text\n.+\n.+\n"
    assert re.search(filled, text_of("README.md"))


@pytest.mark.parametrize("mark", ["first", "test"])
def test_the_readme_has_the_commands_that_ci_runs(mark: str) -> None:
    (body,) = re.findall(
        rf"^<!-- ci: {mark} -->\n```sh\n(.*?)^```$", text_of("README.md"), re.M | re.S
    )
    (command,) = body.splitlines()
    assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")


def python_examples() -> list[tuple[str, str]]:
    marked = r"^<!-- runs -->\n```python\n(.*?)^```$"
    return [(n, code) for n in NAMES for code in re.findall(marked, text_of(n), re.M | re.S)]


@pytest.mark.parametrize(("name", "code"), python_examples(), ids=[n for n, _ in python_examples()])
def test_python_examples_run(
    name: str,
    code: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "import torch" in code:
        pytest.importorskip("torch")
    (tmp_path / "sample_traces").symlink_to(ROOT / "sample_traces")
    monkeypatch.chdir(tmp_path)
    for arguments in shell_commands(name):
        if arguments[-1] == "--json" and arguments[1].startswith("sample_traces/"):
            Path("report.json").write_text(CliRunner().invoke(app, arguments).stdout)
    exec(compile(code, name, "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out


def test_other_python_in_the_documents_is_python() -> None:
    for name in NAMES:
        for code in blocks(text_of(name), "python"):
            compile(code, name, "exec")
