"""The end of the page: its data to take along, and what made it; in a browser without a network."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

import traceflops as tf
from tests.conftest import analysis_of_sample, some
from tests.memory.test_usage import totals
from tests.reports import factory
from tests.reports.test_memory import MIB, trace
from traceflops.reports.page.html import PAGE_BYTES, closing, render_html
from traceflops.reports.view.author_notes import Authored, blocks
from traceflops.table.trace import Note

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}
NOTES = "# Findings of mine\nIt is slow.\n- one\n- two\n```\nnvidia-smi --query-gpu=name\n```\n"


def opened(browser: Browser, path: Path, text: str, **settings: Any) -> tuple[Page, list[str]]:
    path.write_text(text, encoding="utf-8")
    context = browser.new_context(offline=True, **settings)
    page, complaints = context.new_page(), []
    page.on("console", lambda each: complaints.append(f"{each.type}: {each.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_timeout(500)
    return page, [each for each in complaints if not each.startswith(("info", "log"))]


def test_the_data_can_be_taken_along(browser: Browser, tmp_path: Path) -> None:
    analysis = analysis_of_sample("gpt_1rank.json.gz")
    page, complaints = opened(browser, tmp_path / "my run#1.html", render_html(analysis))
    with page.expect_download() as download:
        page.get_by_role("button", name="Download data (JSON)").click()
    assert download.value.suggested_filename == "my run#1.json"
    saved = Path(download.value.path())
    assert saved.read_bytes() == analysis.to_json().encode() + b"\n", "what -o report.json writes"
    with page.expect_download() as download:
        page.get_by_role("button", name="Download recording").click()
    assert download.value.suggested_filename == "my run#1.tfpack"
    pack = Path(download.value.path()).rename(tmp_path / "x.tfpack")
    assert tf.analyze(tf.read(pack)).to_json() == analysis.to_json()
    assert complaints == []
    page.context.close()


def test_without_scripts_there_is_no_button(browser: Browser, tmp_path: Path) -> None:
    text = render_html(factory.analysis())
    page, _ = opened(browser, tmp_path / "a.html", text, java_script_enabled=False)
    assert page.get_by_role("button", name="Download").locator("visible=true").count() == 0
    page.context.close()


def test_data_that_would_make_the_page_too_large_is_left_out() -> None:
    analysis = factory.analysis()
    values = closing(analysis, None, PAGE_BYTES - 100).values
    assert values["downloads"] == {}
    assert "kB compressed" in values["left_out"]
    fits = closing(analysis, None, PAGE_BYTES - 100_000)
    assert set(fits.values["downloads"]) == {"report-data"}, "what was made up has no recording"
    assert fits.values["left_out"] == ""


def test_what_is_too_much_is_not_even_written_out() -> None:
    many = factory.analysis(names=[(f"k{n}", "compute", "gemm") for n in range(30_000)])
    values = closing(many, None, 0).values
    assert values["downloads"] == {}
    assert values["left_out"].startswith("about 30,")
    text = render_html(many)
    assert "Data not embedded" in text
    assert len(text.encode()) < PAGE_BYTES


def test_a_redacted_page_says_so() -> None:
    analysis = factory.analysis()
    assert "Names are redacted" not in render_html(analysis)
    redacted = replace(analysis, notes=(Note("dropped", "redacted", "By --redact names …"),))
    assert "Names are redacted" in render_html(redacted)


@pytest.mark.parametrize(("width", "theme"), some(product((360, 1280), ("dark", "light")), 4))
def test_axe_finds_nothing_in_memory_and_notes(
    browser: Browser, tmp_path: Path, width: int, theme: Any
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    rows = totals((80, 100 * MIB, 400 * MIB), (110, 300 * MIB, 400 * MIB), (250, 12, 500 * MIB))
    added = Authored("Slow since Tuesday", tuple(blocks(NOTES)))
    text = render_html(tf.analyze(trace(*rows)), "traceflops report x", added)
    page, _ = opened(
        browser,
        tmp_path / "a.html",
        text,
        bypass_csp=True,
        color_scheme=theme,
        viewport={"width": width, "height": 900},
    )
    found = Axe().run(page, options=RULES).response["violations"]
    wide = page.evaluate("document.documentElement.scrollWidth")
    page.context.close()
    assert [(each["id"], each["nodes"][0]["html"][:300]) for each in found] == []
    assert wide <= width
