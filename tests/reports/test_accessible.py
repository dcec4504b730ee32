"""The page for those who do not see it, or see its colours otherwise: what axe-core says."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import traceflops as tf
from tests.conftest import SAMPLES
from tests.core.build import launched, trace_of
from tests.reports import factory
from traceflops.reports.page.html import render_html

if TYPE_CHECKING:
    from playwright.sync_api import Browser

RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}


PAGES: dict[str, Callable[[], tf.Analysis]] = {
    "one rank": factory.analysis,
    "four ranks": lambda: tf.analyze(tf.read(SAMPLES / "gpt_ddp_4rank")),
    "AMD": lambda: tf.analyze(tf.read(SAMPLES / "rocprofv3_csv")),
    "without MFU": lambda: tf.analyze(trace_of(**launched(("my_kernel", 0, 10, 50)))),
    "without devices": factory.without_devices,
    "hostile names": factory.hostile,
}


@cache
def markup(name: str) -> str:
    return render_html(PAGES[name]())


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 1280), ("light", 360)])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing(
    browser: "Browser", tmp_path: Path, name: str, width: int, theme: Any
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    path = tmp_path / "page.html"
    path.write_text(markup(name), encoding="utf-8")
    context = browser.new_context(
        offline=True,
        bypass_csp=True,  # axe is put into the page, which its policy forbids
        color_scheme=theme,
        reduced_motion="reduce",
        viewport={"width": width, "height": 900},
    )
    page = context.new_page()
    page.goto(path.as_uri())
    page.wait_for_timeout(500)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    found = Axe().run(page, options=RULES).response["violations"]
    too_wide = page.evaluate("document.documentElement.scrollWidth") - width
    context.close()
    assert [(each["id"], each["nodes"][0]["html"][:300]) for each in found] == []
    assert too_wide <= 0
