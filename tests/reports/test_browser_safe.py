"""The page under hostile texts in every field of a trace, in frames, in old browsers, bare."""

from __future__ import annotations

import csv
import json
import random
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from typer.testing import CliRunner

import traceflops as tf
from tests.build import trace_of
from tests.conftest import analysis_of_sample
from tests.mfu.test_kernel_speeds import NAMES, launch, rule
from tests.privacy.secrets_in_traces import document_of, write
from tests.ranks.test_slow_rank import Made
from tests.reports import factory
from tests.reports.test_browser import Opened, opened, until
from traceflops.analysis.result import Analysis
from traceflops.cli import app
from traceflops.reports.page.html import framed as page_in_a_frame
from traceflops.reports.page.html import render_html
from traceflops.reports.terminal.lines import Style
from traceflops.reports.terminal.summary import render_terminal
from traceflops.reports.view.findings import headline

if TYPE_CHECKING:
    from playwright.sync_api import Browser

OWNED: Final = "<b class=owned>owned</b>"
HOSTILE: Final = (
    f"</script><script>window.owned = 1</script>{OWNED}",
    f"<!-- <script> {OWNED}",
    f"]]> {OWNED}",
    "line\u2028separator\u2029end",
    "nul \x00 end",
    "lone \ud800 surrogate",
    "right \u202e to left \u2066 isolate",
    "javascript:window.owned=1",
    "=cmd|' /C calc'!A1",
    "a|b | c `code` </details><details>",
    "[red]not red[/red] [link=https://example.org]x[/link]",
    "\x1b[31mred\x1b]0;title\x07\x9b31m bell \x07 back \x08\r over",
    f"<img src=x onerror=window.owned=1> {OWNED}",
    '" onmouseover="window.owned=1" autofocus onfocus="window.owned=1',
    "' onmouseover='window.owned=1",
    "{{7*7}} {%raw%} ${7*7} #{7*7} $$x$$ \\(x\\) @name{custom}",
    "__proto__",
    "constructor",
    "hasOwnProperty",
    "</title><base href=https://example.org/>",
    "</style><style>*{display:none}</style>",
    "&lt;b class=owned&gt;&#60;b&#62; %3Cb%3E",
    "url(https://example.org/x.png)",
    "\u00ad\u200b\u200d\ufeff soft",
    "![x](https://example.org/x.png) @team #1 https://example.org",
    "\u05d0\u05d1\u05d2 \u0627\u0644\u0639",
    "a" * 5_000,
)
"""Texts that would act somewhere: in HTML, scripts, styles, terminals, Markdown, spreadsheets."""

STRANGE: Final = """() => document.querySelectorAll(
    '.owned, img, iframe, object, embed, base, form, [onerror], [onfocus], [onmouseover], ' +
    '[onclick], a[href]:not([href^="#"]), script[src], link:not([rel=icon]), style ~ style, ' +
    'meta[http-equiv=refresh]'
).length"""
"""How many elements there are that the page never has."""


class Hostile:
    """Gives hostile texts, all of them equally often, in an order that is mixed."""

    def __init__(self) -> None:
        self._random = random.Random(7)
        self._left: list[str] = []

    def __call__(self) -> str:
        """Return the next hostile text."""
        if not self._left:
            self._left = self._random.sample(HOSTILE, len(HOSTILE))
        return self._left.pop()

    word = no_number = __call__


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("x") / "<b class=owned>[red] =x|y`.json"
    write(path, document_of(Hostile()))
    return path


@pytest.fixture(scope="module")
def hostile(trace: Path) -> Analysis:
    return tf.analyze(tf.read(trace))


def test_the_trace_is_hostile_in_all_that_is_shown(hostile: Analysis) -> None:
    text = hostile.to_json()
    unseen = [one for one in HOSTILE if json.dumps(one)[1:-1] not in text and one not in text]
    assert len(unseen) <= 4, "those that JSON writes in another way"
    assert len(hostile.kernels) >= 20


def test_no_text_of_a_trace_acts_in_the_page(browser: Browser, tmp_path: Path, trace: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("\n\n".join(HOSTILE).replace("\ud800", "?"), encoding="utf-8")
    page = tmp_path / "o.html"
    words = ["--title", f"{OWNED} [red] </title>", "--notes", str(notes), "-o", str(page), "-q"]
    result = CliRunner().invoke(app, ["report", str(trace), *words])
    assert result.exit_code == 0, result.output
    found = opened(browser, tmp_path / "o2.html", page.read_text(encoding="utf-8"))
    found.page.evaluate(
        "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
    )
    for button in found.page.locator("button.unfold").all()[:10]:
        button.click()
    until(found.page.main_frame, "document.querySelector('#timeline.live') !== null")
    box = found.page.locator("#timeline-view").bounding_box()
    assert box
    for share in (0.2, 0.4, 0.6, 0.8):
        found.page.mouse.move(box["x"] + box["width"] * share, box["y"] + 60)
        found.page.wait_for_timeout(60)
    for link in ("kernel=__proto__", "constructor=x", "__proto__=x", "step=%E0%A4%A", "t=1-<b>"):
        found.page.evaluate("(link) => { location.hash = link; }", link)
        found.page.wait_for_timeout(60)
    assert found.page.evaluate(STRANGE) == 0
    assert found.page.evaluate("window.owned") is None
    assert found.page.evaluate("Object.keys(Object.prototype).length + Object.keys([]).length") == 0
    assert found.requests == [(tmp_path / "o2.html").as_uri()]
    assert found.complaints == []
    assert "not red" in found.page.locator("#kernel-table").inner_text()
    found.page.context.close()


def test_what_rules_say_of_hostile_kernels_unfolds_and_does_not_act(
    browser: Browser, tmp_path: Path
) -> None:
    texts = [text.encode("utf-8", "replace").decode() for text in HOSTILE]
    rows, rules = [], []
    for at, text in enumerate(texts):
        rows += launch(at, NAMES, name=text)
        rules.append(rule(at, text, text, 0.5, kind="OPT", section=text) | {"name": text})
    trace = trace_of(kernel_counters=rows, kernel_rules=rules)
    found = opened(browser, tmp_path / "o.html", render_html(tf.analyze(trace)))
    section = found.page.locator("#speed-of-light")
    said = section.locator("details", has_text="Nsight Compute says")
    assert said.count() == len(texts)
    assert not said.first.locator("dd").is_visible()
    said.first.locator("summary").click()
    assert said.first.locator("dd").is_visible()
    assert found.page.evaluate(STRANGE) == 0
    assert found.page.evaluate("window.owned") is None
    assert found.complaints == []
    found.page.context.close()


def test_no_text_of_a_trace_acts_on_the_terminal(trace: Path) -> None:
    for words in (["summary"], ["info"], ["report", "-o", str(trace.parent / "t.md"), "--force"]):
        result = CliRunner().invoke(app, [words[0], str(trace), *words[1:]])
        assert result.exit_code == 0, result.output
        shown = result.output.replace("\n", "")
        acting = {c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
        assert acting == set(), words
    shown = CliRunner().invoke(app, ["summary", str(trace)]).output
    assert "[red]" in shown, "what looks like markup is text"
    missing = CliRunner().invoke(app, ["summary", str(trace.parent / "no\x1b[31m\u202e[red].json")])
    assert missing.exit_code == 3
    assert all(char.isprintable() for char in missing.stderr.replace("\n", ""))
    assert "[red]" in missing.stderr


def test_a_hostile_name_of_what_makes_a_rank_late_neither_acts_nor_fills_the_screen() -> None:
    name = f"[red]</script><script>window.owned\x1b[31m {'L' * 10_000}"
    made = Made(pause=[("marks", name, "python")], pause_us=300)
    analysis = tf.analyze(trace_of(**made.tables))
    (late,) = (one.sentence for one in analysis.losses if one.rule == "late-rank")
    assert "[red]" in late
    assert len(late) < 400
    text = "\n".join(line.plain for line in render_terminal(analysis, Style(width=80)))
    assert "[red]" in text and "\x1b" not in text
    assert len(text) < 4_000
    page = render_html(analysis)
    assert "<script>window.owned" not in page and "\x1b" not in page


def test_no_text_of_a_trace_acts_in_markdown(trace: Path, tmp_path: Path) -> None:
    target = tmp_path / "o.md"
    assert CliRunner().invoke(app, ["report", str(trace), "-o", str(target), "-q"]).exit_code == 0
    text = target.read_text(encoding="utf-8")
    ours = re.compile(r"</?(?:details|summary|br|sub)>|<!-- traceflops[^>]*-->")
    without_code = re.sub(r"(`+).*?\1", "", ours.sub("", text))
    assert "<" not in without_code
    assert "](http" not in without_code
    assert text.count("<details>") == text.count("</details>") > 0
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        cells = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
        assert len(cells) == 1, table[:300]


def test_no_text_of_a_trace_is_a_formula(trace: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["report", str(trace), "--format", "csv", "-o", f"{tmp_path}/"]
    )
    assert result.exit_code == 0
    cells = [cell for file in tmp_path.glob("*.csv") for cell in _cells(file)]
    assert any(cell.startswith("'=cmd|") for cell in cells), "it is told from a formula, and whole"
    acting = [one for one in cells if one[:1] in ("=", "+", "-", "@") and not _is_number(one)]
    assert acting == []


def _cells(file: Path) -> Iterator[str]:
    with file.open(newline="", encoding="utf-8") as text:
        rows = list(csv.reader(text))
    assert len({len(row) for row in rows}) == 1, "it is a CSV that all can read"
    for row in rows:
        yield from row


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# ------------------------------------------------------------------------------- in a frame


@pytest.fixture(scope="module")
def framed(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    frame = page_in_a_frame(analysis_of_sample("gpt_1rank.json.gz"))
    host = f"<!doctype html><title>Notebook</title><h1 id='kernels'>Mine</h1>{frame}"
    found = opened(browser, tmp_path_factory.mktemp("n") / "host.html", host)
    yield found
    found.page.context.close()


def test_links_of_a_page_in_a_frame_stay_in_it(framed: Opened) -> None:
    inner = framed.page.frames[1]
    for name in ("kernels", "timeline", "peak", "kernels"):  # the peak is folded away
        inner.locator(f":is(nav a, .tiles a)[href='#{name}']").first.click()
        until(
            inner, f"Math.abs(document.getElementById('{name}').getBoundingClientRect().top) < 200"
        )
        assert inner.url.startswith("about:srcdoc")
        assert inner.locator("h1").count() == 1, "it is the report, and not the page around it"
    assert framed.page.url.endswith("host.html")
    assert framed.complaints == []


def test_a_second_click_on_a_link_leads_there_again(framed: Opened) -> None:
    inner = framed.page.frames[1]
    near = "Math.abs(document.getElementById('kernels').getBoundingClientRect().top) < 200"
    link = inner.locator("nav a[href='#kernels']")
    link.click()
    until(inner, near)
    inner.evaluate("document.getElementById('main').scrollIntoView()")
    until(inner, f"!({near})")
    link.click()
    until(inner, near)


def test_deep_links_of_a_page_in_a_frame_lead_to_rows(framed: Opened) -> None:
    inner = framed.page.frames[1]
    row = inner.locator("#kernel-table tbody tr[id^='kernel=']").nth(2)
    name = row.get_attribute("id")
    inner.evaluate("(name) => { location.hash = name; }", name)
    until(inner, "document.querySelector('tr.wanted') !== null")
    assert row.evaluate("(one) => one.classList.contains('wanted')")
    link = inner.locator("tr.unfolded a", has_text="Link to this row").first
    link.click()
    assert inner.url.startswith("about:srcdoc")
    assert row.evaluate("(one) => one.classList.contains('wanted')")
    assert framed.complaints == []


# ----------------------------------------------------------------- in old browsers, and bare


def without(browser: Browser, path: Path, text: str, taken: str) -> Opened:
    """Open a page in a browser that lacks something."""
    path.write_text(text, encoding="utf-8")
    context = browser.new_context(offline=True)
    context.add_init_script(f"delete globalThis.{taken};")
    found = Opened(context.new_page())
    found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
    found.page.goto(path.as_uri())
    found.page.wait_for_timeout(300)
    return found


def test_a_browser_that_cannot_unpack_says_so(browser: Browser, tmp_path: Path) -> None:
    text = render_html(factory.analysis())
    found = without(browser, tmp_path / "old.html", text, "DecompressionStream")
    assert found.page.get_by_role("button", name="Download data").is_disabled()
    assert "This browser cannot unpack the data" in found.page.locator("footer").inner_text()
    found.page.click("#theme")
    assert found.page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert found.complaints == []
    found.page.context.close()


def test_damaged_data_is_said(browser: Browser, tmp_path: Path) -> None:
    text = re.sub(r'(id="report-data">).{40}', r"\1", render_html(factory.analysis()))
    found = opened(browser, tmp_path / "damaged.html", text)
    found.page.get_by_role("button", name="Download data").click()
    until(
        found.page.main_frame, "document.querySelector('.download').innerText.includes('damaged')"
    )
    assert found.complaints == []
    found.page.context.close()


def test_without_scripts_all_that_matters_is_there(browser: Browser, tmp_path: Path) -> None:
    analysis = analysis_of_sample("gpt_ddp_4rank")
    path = tmp_path / "bare.html"
    found = opened(browser, path, render_html(analysis, "traceflops report x"), scripts=False)
    page = found.page
    assert page.locator("h1").inner_text().replace("\xa0", " ") == headline(analysis).sentence
    for heading in page.locator("main > section > h2").all():
        assert heading.is_visible()
    page.locator("summary", has_text="Method and notes").click()
    assert page.locator("#method > h2").is_visible()
    names = {one.get_attribute("id") for one in page.locator("main section").all()}
    assert {"findings", "peak", "steps", "kernels", "operators", "ranks", "timeline"} <= names
    assert {"recording", "notes", "method"} <= names
    shown = page.locator("#kernel-table tbody tr").count()
    assert shown >= min(len(analysis.kernels), 10)
    for row in page.locator("#step-table tbody tr").all()[:2]:
        assert row.text_content()
    assert page.locator("#timeline svg, #timeline img, #timeline table").count() > 0
    hidden = page.locator(".js-only:visible, button:visible, canvas:visible, .plot:visible")
    assert hidden.count() == 0, "nothing that needs scripts is offered"
    # What is folded opens without scripts.
    folded = page.locator("main details:not([open])").first
    folded.locator("summary").first.click()
    assert folded.get_attribute("open") is not None or page.locator("details[open]").count()
    page.locator("nav a[href='#kernels']").click()
    assert page.url.endswith("#kernels")
    assert set(found.requests) == {path.as_uri()}
    assert found.complaints == []
    page.context.close()
