"""The report as Markdown: what a renderer makes of it, whatever the trace is called."""

from __future__ import annotations

import io
import zipfile
from html import unescape
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from msgspec.structs import replace

import traceflops as tf
from tests.build import launched, trace_of
from tests.conftest import ROOT
from tests.reports.factory import HOSTILE
from traceflops.analysis.recipe import analyze
from traceflops.analysis.result import Analysis
from traceflops.facts import quoted
from traceflops.reports.markdown import code, plain, render_markdown
from traceflops.reports.view.figures import percent, visible
from traceflops.reports.write import RENDERED, save
from traceflops.table.trace import Note

SAMPLE = ROOT / "sample_traces" / "gpt_ddp_4rank"
NO_WIDTH = "\u200b"
PARSER = MarkdownIt("commonmark").enable("table")


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return analyze(tf.read(SAMPLE))


def test_bandwidth_is_beside_the_peak_of_the_link() -> None:
    """The 900 GB/s of an H100 are both directions together."""
    analysis = tf.analyze(tf.read(ROOT / "sample_traces" / "gpt_ddp_4rank"))
    head, _, first, *_ = (
        render_markdown(analysis).partition("| Collective | Group |")[2].split("\n")
    )
    assert head.split(" | ")[-2:] == ["5th to 95th", "Of link peak |"]
    *_, bus, spread, share = first.strip(" |").split(" | ")
    assert (bus, spread, share) == ("310", "302 to 313", "69.0 %")


def inline(text: str) -> list[Token]:
    """Return the pieces of a text that stands in a cell of a table."""
    tokens = PARSER.parse(f"| head | head |\n| --- | --- |\n| {text} | b |")
    cells = [token for token in tokens if token.type == "inline"]
    assert len(cells) == 4, "the text stays in its cell"
    return cells[2].children or []


@pytest.mark.parametrize("text", [*HOSTILE, "a|b", "`", "``x`", "*a*", "#12", "@you", "[a](b)"])
def test_hostile_text_is_text(text: str) -> None:
    shown = inline(plain(text))
    assert {token.type for token in shown} <= {"text", "text_special"}
    plain_text = "".join(token.content for token in shown).replace(NO_WIDTH, "")
    assert plain_text == visible(text[:2_000]).strip()


@pytest.mark.parametrize("text", [*HOSTILE, "a|b", "`", "``x`", " ", "x\ny"])
def test_hostile_names_are_one_code_span(text: str) -> None:
    shown = [token for token in inline(code(text)) if token.content]
    assert [token.type for token in shown] == ["code_inline"]


@given(st.text(max_size=40))
def test_any_text_is_text_and_any_name_is_code(text: str) -> None:
    if visible(text).strip():
        assert {token.type for token in inline(plain(text))} <= {"text", "text_special"}
    assert [token.type for token in inline(code(text)) if token.content] == ["code_inline"]


def test_nothing_of_a_trace_acts_for_a_reader_of_tickets() -> None:
    for sign in ("@team", "#123", ":smile:", "https://x.org", "$x$"):
        assert sign not in plain(f"see {sign} now")
        shown = unescape(plain(sign))
        assert shown.replace(NO_WIDTH, "") == sign
        # What looks for them in the finished page does not find them either.
        assert sign not in shown or sign == "$x$"


def test_the_tables_hold_the_figures_of_the_analysis(analysis: Analysis) -> None:
    text = render_markdown(analysis)
    tokens = PARSER.parse(text)
    cells = [token.content for token in tokens if token.type == "inline"]
    for name in ("compute", "memory", "idle"):
        assert percent(analysis.components.share(name)) in cells
    assert "## Rank 2 is late: 1.18 to 1.21 ms of each 10.1 ms step can be saved." in text
    assert text.count("<details>") == text.count("</details>") > 3


def test_a_finding_without_a_cause_says_what_to_do(analysis: Analysis) -> None:
    first, *more = analysis.losses
    told = replace(first, confidence=None, advice=quoted("Fuse its *kernels*."))
    text = render_markdown(replace(analysis, losses=(told, *more)))
    assert f": {plain(told.sentence)} Fuse its &#42;kernels&#42;.\n" in text


def test_a_report_of_nothing_has_no_tables(analysis: Analysis) -> None:
    empty = replace(analysis, devices=(), notes=(Note("missing", "x", "Nothing | is here."),))
    text = render_markdown(empty)
    assert "Nothing &#124; is here." in text


def test_every_form_is_written_and_ours(analysis: Analysis, tmp_path: Path) -> None:
    for suffix in RENDERED:
        target = tmp_path / f"a{suffix}"
        save(analysis, target)
        before = target.read_bytes()
        save(analysis, target, command="traceflops report /home/me/secret/x.json")
        assert target.stat().st_size
        assert suffix in (".html", ".zip") or save(analysis, target).read_bytes() == before
    assert b"/home/me" not in (tmp_path / "a.md").read_bytes()


def test_the_archive_holds_the_other_forms(analysis: Analysis, tmp_path: Path) -> None:
    target = save(analysis, tmp_path / "a.zip")
    with zipfile.ZipFile(io.BytesIO(target.read_bytes())) as archive:
        assert sorted(archive.namelist()) == [
            "recording.tfpack",
            "report.html",
            "report.json",
            "report.md",
        ]
        assert archive.read("report.md").decode() == render_markdown(analysis)


def test_a_foreign_file_is_not_overwritten(analysis: Analysis, tmp_path: Path) -> None:
    for suffix in RENDERED:
        target = tmp_path / f"mine{suffix}"
        target.write_text("my own words")
        with pytest.raises(tf.errors.UsageError, match="did not write"):
            save(analysis, target)


def test_what_the_gpu_waits_on_comes_first_where_it_is_the_largest_loss() -> None:
    """980 of 1,020 us are idle in one function."""
    us = 1_000
    run = launched(("first", 0, 10 * us, 10 * us), ("second", 1_000 * us, 1_010 * us, 10 * us))
    run["marks"] = [
        {"name": "a/x.py(7): zoom", "start_ns": 15 * us, "dur_ns": 985 * us, "kind": "python"}
    ]
    text = render_markdown(tf.analyze(trace_of(**run)))
    row = "| host code | `zoom (x.py:7)` | 980 µs | 99.0 % | 1 |"
    assert row in text
    assert text.index(row) < text.index("| Component |") < text.index("Gaps by length")
    assert "| 100 µs to 1 ms | 1 | 990 µs |" in text
