"""The page in a browser that has no network."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import traceflops as tf
from tests.build import trace_of
from tests.conftest import page_of_sample, some
from tests.reports import factory
from traceflops.reports.page.html import framed, render_html

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Frame, Page


@dataclass
class Opened:
    """A page in a browser and everything that it asked for or complained of."""

    page: "Page"
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    failures: list[str | None] = field(default_factory=list)


def until(frame: "Frame", expression: str) -> None:
    """Wait until an expression is true in a frame of the page.

    Playwright's own waiting evaluates text inside the page, which the page's policy forbids.
    """
    end = time.monotonic() + 30
    while not frame.evaluate(expression):
        assert time.monotonic() < end, f"never true: {expression}"
        frame.page.wait_for_timeout(50)


def opened(
    browser: "Browser", path: Path, text: str, *, scripts: bool = True, downloads: bool = False
) -> Opened:
    path.write_text(text, encoding="utf-8")
    context = browser.new_context(
        offline=True, java_script_enabled=scripts, color_scheme="light", accept_downloads=downloads
    )
    context.set_default_timeout(20_000)
    found = Opened(context.new_page())
    found.page.on("request", lambda request: found.requests.append(request.url))
    found.page.on("requestfailed", lambda request: found.failures.append(request.failure))
    found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
    found.page.on("dialog", lambda dialog: found.complaints.append(f"dialog {dialog.message}"))
    found.page.on("console", lambda each: _keep(found, each.type, each.text))
    found.page.goto(path.as_uri())
    return found


def _keep(found: Opened, kind: str, text: str) -> None:
    if kind not in ("info", "log", "debug"):
        found.complaints.append(f"{kind}: {text}")


@pytest.fixture(scope="module")
def one(browser: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    path = tmp_path_factory.mktemp("page") / "one.html"
    found = opened(browser, path, render_html(factory.analysis()))
    yield found
    found.page.context.close()


def test_it_asks_for_nothing_and_complains_of_nothing(one: Opened) -> None:
    assert one.requests == [one.page.url]
    assert one.complaints == []
    assert one.page.title().startswith("MFU 30.4 % · ")


def test_the_peak_is_split_into_lines_that_add_up(one: Opened) -> None:
    one.page.evaluate("location.hash = 'peak'")  # the drawer opens for what is in it
    section = one.page.locator("#peak")
    section.locator("h2").wait_for()
    assert section.locator("h2").inner_text() == "Where the peak went"
    shares = section.locator("#peak-table tbody tr td:nth-child(2)").all_inner_texts()
    known = [float(text.removesuffix(" %")) for text in shares if not text.startswith("<")]
    assert round(sum(known), 1) == 100.0
    assert section.locator("#peak-table tfoot td").nth(0).inner_text() == "100.0 %"
    assert one.page.locator("#roofline svg.roofline circle").count() >= 4


def test_a_column_says_its_numbers(one: Opened) -> None:
    columns = one.page.locator(".step-chart svg svg")
    assert columns.count() == 24
    title = columns.nth(12).locator("title").text_content()
    assert title
    assert re.fullmatch(r"step 12: 3\d\d ms; compute 5\d.\d %, memory .*", title)
    fills = {each.get_attribute("fill") for each in columns.locator("rect").all()}
    assert {"#2A6F97", "#EEBA4C", "#C1365B", "#A9B0B7"} <= fills


def test_the_theme_can_be_switched_and_the_chart_follows(one: Opened) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    label = "getComputedStyle(document.querySelector('.step-chart text')).fill"
    light, ink = one.page.evaluate(ground), one.page.evaluate(label)
    one.page.click("#theme")
    assert one.page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert one.page.evaluate(ground) != light
    assert one.page.evaluate(label) != ink
    one.page.click("#theme")
    assert one.page.evaluate(ground) == light
    assert one.complaints == []


def test_kernels_can_be_sorted_and_filtered(one: Opened) -> None:
    rows = one.page.locator("#kernel-table tbody tr")
    first = rows.first.locator("code")
    assert first.inner_text().startswith("sm90_xmma")
    one.page.get_by_role("button", name="Name").click()
    # By the function's own name, as it is shown: before my_kernel comes flash::flash_fwd_kernel.
    assert first.inner_text().startswith("flash_fwd_kernel")
    one.page.locator("#kernel-table").get_by_role("button", name="Calls").click()
    assert first.inner_text() == "my_kernel"
    one.page.locator("#kernel-table").get_by_role("button", name="Calls").click()
    assert first.inner_text().startswith("sm90_xmma")
    one.page.fill("#kernel-filter", "tilesize128X256")
    assert one.page.locator("#kernel-table tbody tr:visible").count() == 1
    assert one.page.locator("#kernel-found").inner_text() == "1 of 6"
    one.page.fill("#kernel-filter", "")
    assert one.page.locator("#kernel-table tbody tr:visible").count() == 6


def test_it_fits_a_telephone(one: Opened) -> None:
    one.page.set_viewport_size({"width": 360, "height": 740})
    try:
        until(one.page.main_frame, "document.documentElement.scrollWidth === 360")
    finally:
        one.page.set_viewport_size({"width": 1280, "height": 720})


def test_paper_is_light(one: Opened) -> None:
    one.page.evaluate("document.documentElement.dataset.theme = 'dark'")
    one.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert one.page.evaluate("document.documentElement.dataset.theme") == "light"
    one.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert one.page.evaluate("document.documentElement.dataset.theme") == "dark"
    one.page.click("#theme")


@pytest.mark.parametrize("name", some(["gpt_ddp_4rank", "gpt_1rank.json.gz", "nsight_h100"], 3))
def test_paper_has_at_most_four_pages(browser: "Browser", tmp_path: Path, name: str) -> None:
    text = page_of_sample(name)
    found = opened(browser, tmp_path / "paper.html", text)
    pdf = found.page.pdf(prefer_css_page_size=True)
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 4
    found.page.context.close()


def test_the_navigation_marks_where_one_is(one: Opened) -> None:
    current = one.page.locator("nav [aria-current]")
    links = one.page.locator("nav .links a")
    assert links.all_inner_texts() == ["Case", "Tree", "Steps", "Kernels"]
    for name in ("Kernels", "Tree", "Case"):
        links.get_by_text(name).click()
        is_marked = f"document.querySelector('nav [aria-current]').text === '{name}'"
        until(one.page.main_frame, is_marked)
        assert current.count() == 1


def test_a_hostile_trace_stays_text(browser: "Browser", tmp_path: Path) -> None:
    found = opened(browser, tmp_path / "hostile.html", render_html(factory.hostile()))
    assert found.requests == [found.page.url]
    assert found.complaints == []
    assert found.page.locator("h1").inner_text() == factory.HOSTILE[0]
    assert found.page.locator("img").count() == 0
    found.page.context.close()


def test_a_notebook_shows_the_page_in_a_frame(browser: "Browser", tmp_path: Path) -> None:
    frame = framed(factory.analysis())
    found = opened(browser, tmp_path / "notebook.html", f"<!doctype html><body>{frame}</body>")
    _, inner = found.page.frames
    assert inner.locator("h1").inner_text().startswith("Communication is not hidden. ")
    assert found.complaints == []
    assert {url for url in found.requests if not url.startswith("about:")} == {found.page.url}
    found.page.context.close()


def test_an_injected_script_does_not_run(browser: "Browser", tmp_path: Path) -> None:
    text = render_html(factory.analysis())
    bad = "<script>document.title = 'owned'</script><img src='https://example.org/x.png'>"
    found = opened(browser, tmp_path / "bad.html", text.replace("<footer>", f"{bad}<footer>"))
    assert found.page.title().startswith("MFU 30.4 % · ")
    assert found.failures == ["csp"]
    assert any("Content Security Policy" in each for each in found.complaints)
    found.page.context.close()


def test_without_scripts_everything_is_there(browser: "Browser", tmp_path: Path) -> None:
    text = render_html(factory.ranks(4, 24))
    found = opened(browser, tmp_path / "plain.html", text, scripts=False)
    assert found.page.locator(".step-chart").is_visible()
    assert not found.page.locator("#theme").is_visible()
    assert found.page.locator("#kernel-table tbody tr").count() == 6
    assert found.requests == [found.page.url]
    found.page.context.close()


def test_one_kernel_of_a_long_name_fits_a_telephone(browser: "Browser", tmp_path: Path) -> None:
    kernel = {"name": f"sm90_{'xmma_' * 60}gemm", "start_ns": 5, "dur_ns": 9_000}
    text = render_html(tf.analyze(trace_of(activities=[kernel])))
    found = opened(browser, tmp_path / "kernel.html", text)
    found.page.set_viewport_size({"width": 360, "height": 740})
    until(found.page.main_frame, "document.documentElement.scrollWidth === 360")
    found.page.locator("#timeline-figures").scroll_into_view_if_needed()
    why = "document.querySelector('#timeline-figures').lastElementChild.textContent"
    until(found.page.main_frame, f"{why} === 'Why idleNo idle time.'")
    assert "Most time is in sm90_xmma" in found.page.locator("#attribution").inner_text()
    found.page.context.close()


@pytest.mark.parametrize("name", ["without_steps", "without_devices"])
def test_little_data_makes_no_complaint(browser: "Browser", tmp_path: Path, name: str) -> None:
    found = opened(browser, tmp_path / "little.html", render_html(getattr(factory, name)()))
    assert found.complaints == []
    assert found.requests == [found.page.url]
    found.page.context.close()
