"""Names that would act on a terminal, in every field, through every command."""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from tests.cli.test_commands import run
from tests.conftest import ROOT
from traceflops.characters import visible_json
from traceflops.cli.common import print_lines, say

FILLERS = "".join(
    map(
        chr,
        (
            *(0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x2065),
            *(0x2800, 0x3164, *range(0xFE00, 0xFE10), 0xFEFF, 0xFFA0, *range(0xFFF0, 0xFFF9)),
            *(0xE000, 0x1BCA0, 0x1D159, 0x1D173, 0x1D17A, 0xE0001, 0xE0041, 0xE0100, 0xE01EF),
            *(0xE0FFF, 0x10FFFD),
        ),
    )
)
"""Signs without a glyph: soft hyphen, joiners, Hangul fillers, variation selectors, tags, ..."""
ACTS = f"\x1b[31mX\x1b]0;owned\x07\x9b2J\u202eQ\r\x08\x7f{FILLERS}"
"""Colours, a title, a cleared screen, a turned direction, a line begun again, a deleted sign."""
UNSEEN = {chr(code) for code in (*range(32), *range(0x7F, 0xA0), 0x202E)} - {"\n"} | {*FILLERS}


def event(category: str, name: str, ts: int, dur: int, **args: Any) -> dict[str, Any]:
    place = {"pid": 0, "tid": 7} if category == "kernel" else {"pid": 9, "tid": 9}
    return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "args": args, **place}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a trace with such a name in every text, in a file of such a name."""
    events: list[dict[str, Any]] = []
    for step in range(3):
        at = 1_000 * step
        texts = {"Collective name": ACTS, "Process Group Name": ACTS, "dtype": ACTS}
        events += [
            event("user_annotation", f"ProfilerStep#{step}", at, 990),
            event("user_annotation", ACTS, at + 1, 900),
            event("python_function", f"nn.Module: {ACTS}", at + 2, 800),
            event("cpu_op", ACTS, at + 3, 300, **{"Input Dims": [[ACTS]], "Input type": [ACTS]}),
            event("cuda_runtime", ACTS, at + 5, 2, correlation=2 * step + 1),
            event("cuda_runtime", "cudaLaunchKernel", at + 8, 2, correlation=2 * step + 2),
            event("kernel", ACTS, at + 10, 400, correlation=2 * step + 1, device=0, stream=7),
            event(
                "kernel",
                f"ncclDevKernel_AllReduce_Sum_bf16_RING_LL {ACTS}",
                at + 500,
                300,
                **{"correlation": 2 * step + 2, "device": 0, "stream": 8, **texts},
            ),
            event(ACTS, ACTS, at + 20, 3),
        ]
    content = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": f"NVIDIA H100 {ACTS}"}],
        "distributedInfo": {"backend": ACTS, "rank": 0, "world_size": 1},
        "trace_id": ACTS,
        "cuda_driver_version": ACTS,
        "traceflops": {"model": {"name": ACTS, "hidden": 64}, ACTS: 1, "batch": ACTS},
        "traceEvents": events,
    }
    target = tmp_path_factory.mktemp("acts") / "a\x1b[31m\u202eb.json"
    target.write_text(json.dumps(content))
    return target


COMMANDS = {
    "summary": ("summary",),
    "summary --json": ("summary", "--json"),
    "summary -v": ("summary", "-v"),
    "summary --redact": ("summary", "--redact"),
    "info": ("info",),
    "info --json": ("info", "--json"),
    "mfu": ("mfu",),
    "mfu --json": ("mfu", "--json"),
    "mfu --batch": ("mfu", "--model", "gpt2", "--batch", "8", "--seq", "1024"),
    "devices": ("devices", "--trace"),
    "devices --json": ("devices", "--json", "--trace"),
    "perfetto": ("perfetto", "-f", "-o", "{}/p\x1b[31m.json"),
    "export": ("export", "-f", "-o", "{}/t\x1b[31m"),
    "report": ("report", "-f", "-o", "{}/r\x1b[31m.html"),
    "report -q": ("report", "-f", "-q", "-o", "{}/r\x1b[31m.html"),
    "report as": ("report", "-o", "{}/r.\x1b[31m"),
    "report tables": ("report", "-f", "--format", "csv", "-o", "{}/q\x1b[31m"),
    "no such step": ("summary", "--step-mark", "\x1b[31m("),
    "no such rules": ("summary", "--rules", "\x1b[31m.toml"),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_nothing_in_a_trace_acts_on_the_terminal(
    command: tuple[str, ...], path: Path, tmp_path: Path
) -> None:
    done = run(*(word.replace("{}", str(tmp_path)) for word in command), path)
    assert "Traceback" not in done.output
    assert not UNSEEN & set(done.stdout), f"stdout of {command}"
    assert not UNSEEN & set(done.stderr), f"stderr of {command}"
    for file in tmp_path.rglob("*"):
        if file.suffix in (".html", ".csv"):
            assert not UNSEEN & set(file.read_text(encoding="utf-8")), file.name


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_nothing_in_a_row_acts_on_the_terminal(form: str, path: Path) -> None:
    pytest.importorskip("duckdb")
    done = run("query", "--format", form, path, "select name, name as n from activities")
    assert done.exit_code == 0
    assert "[31mX" in done.stdout and not UNSEEN & set(done.stdout)


@pytest.mark.skipif(sys.platform == "darwin", reason="all names are UTF-8 there")
@pytest.mark.parametrize("place", ["trace\udcff.json.gz", "folder\udcfe"])
@pytest.mark.parametrize(
    "words",
    [
        *(("report", "-q", "-o", f"a\udcff.{suffix}") for suffix in ("html", "json", "md", "zip")),
        ("report", "-q"),
        ("report", "-q", "--format", "csv"),
        ("report", "-q", "--title", "t\udcff", "-o", "b.html"),
        ("perfetto",),
        ("export", "--table", "calls", "--format", "csv", "-o", "e\udcff"),
        ("export", "--table", "calls", "--json", "-o", "e\udcff"),
        *((command, "--json") for command in ("summary", "info", "mfu")),
        *((command,) for command in ("summary", "info", "mfu")),
    ],
)
def test_a_name_need_not_be_utf_8(
    words: tuple[str, ...], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    target = Path(place) / "r\udcffnk0.json.gz" if "folder" in place else Path(place)
    target.parent.mkdir(exist_ok=True)
    kernel = event("kernel", "k", 10, 400, device=0, stream=7)
    content = {"schemaVersion": 1, "traceEvents": [kernel]}
    target.write_bytes(gzip.compress(json.dumps(content).encode()))
    done = run(*words, place)
    assert (done.exit_code, done.stderr) == (0, "")
    for file in tmp_path.rglob("*"):
        if file.suffix in (".html", ".json", ".md", ".csv"):
            file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "words",
    [("why", ACTS), ("why", ACTS, "--json"), ("devices", ACTS), (ACTS,), ("mfu", f"-{ACTS}")],
)
def test_nothing_that_is_typed_acts_on_the_terminal(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert not UNSEEN & set(done.stdout + done.stderr)


def test_json_says_the_same_in_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    say(visible_json(json.dumps({"name": ACTS}, ensure_ascii=False)))
    printed = capsys.readouterr().out
    assert not UNSEEN & set(printed)
    assert json.loads(printed) == {"name": ACTS}


def test_lines_stay_lines(capsys: pytest.CaptureFixture[str]) -> None:
    say("a\n  b\x1b[2J\n\n   ")
    assert capsys.readouterr().out == "a\n  b\\x1b[2J\n\n   \n"


@pytest.mark.parametrize("command", ["report", "pack", "perfetto"])
def test_the_name_of_a_written_file_stays_in_its_line(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a\nb.json").write_text(json.dumps({"traceEvents": [event("kernel", "k", 1, 2)]}))
    done = run(command, "a\nb.json")
    assert done.exit_code == 0
    assert "a b." in done.stdout.splitlines()[-1]


def test_a_style_stays_on_what_is_escaped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    print_lines([Text.assemble("a", ("b\x1bc", "bold"), "d")])
    printed = capsys.readouterr().out
    assert printed.replace("\x1b[1m", "<").replace("\x1b[0m", ">").replace("><", "") == (
        "a<b\\x1bc>d\n"
    )


def test_there_is_one_place_that_prints() -> None:
    prints = re.compile(r"typer\.echo\(|(?<!\w)print\(|stdout\.write\(|print_exc\(")
    files = sorted((ROOT / "traceflops" / "cli").glob("*.py"))
    assert [one.name for one in files if prints.search(one.read_text())] == ["common.py"]
