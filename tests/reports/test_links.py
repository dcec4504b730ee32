"""Links into the page: to the evidence of findings, by script and without, and those that miss."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import traceflops as tf
from tests.conftest import analysis_of_sample, page_of_sample
from tests.reports.test_browser import Opened, opened, until
from traceflops.reports.page.evidence import places, step_rows
from traceflops.reports.page.html import render_html

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FOUND = (
    "kernels",
    "kernel=AllReduce",
    "kernel=Memcpy%20HtoD%20(Pinned%20-%3E%20Device)",
    "category=gemm",
    "category=compute.gemm",
    "category=compute/gemm",
    "op=aten::mm",
    "step=22",
    "rank=3",
    "gap=2",
    "whole",
)
MISSED = {
    "kernel=no%3Cb%3Esuch": "No kernel “no<b>such” on this page",
    "category=nope": "No category “nope”",
    "op=nope": "No operator “nope”",
    "step=99": "No step “99”",
    "rank=77": "No rank “77”",
    "gap=99": "No gap “99”",
    "t=5-1,0": "Time range “5-1,0” is not in this recording",
    "nowhere": "No section “nowhere”",
    "x=1": "No section “x=1”",
    "%E0%A4%A": "No section “%E0%A4%A”",
}


@pytest.fixture(scope="module")
def four() -> tf.Analysis:
    return analysis_of_sample("gpt_ddp_4rank")


@pytest.fixture(scope="module")
def page(
    browser: "Browser", four: tf.Analysis, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Opened]:
    path = tmp_path_factory.mktemp("links") / "page.html"
    found = opened(browser, path, render_html(four))
    until(found.page.main_frame, "document.querySelector('#timeline.live') !== null")
    yield found
    assert found.complaints == []
    found.page.context.close()


def go(page: Opened, link: str) -> str:
    """Follow a link from the top of the page; return what is said of it."""
    page.page.evaluate("link => { scrollTo(0, 0); location.hash = link; }", link)
    page.page.wait_for_timeout(120)
    return page.page.locator("#missed").inner_text()


def test_evidence_is_the_place_with_most_of_what_is_lost(four: tf.Analysis) -> None:
    by_rule = {one.rule: list(places(four, one, step_rows(four))) for one in four.losses}
    communication = {one.link.partition("=")[0]: one for one in by_rule["loss-communication"]}
    exposed = {device.rank: device.chosen.components.communication_ns for device in four.devices}
    assert communication["rank"].link == f"rank={max(exposed, key=lambda rank: exposed[rank])}"
    assert communication["kernel"].name.startswith("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(")
    steps = {
        window.step: sum(
            other.account.components.communication_ns
            for device in four.devices
            for other in device.windows
            if other.step == window.step
        )
        for window in four.devices[0].windows
        if window.used
    }
    assert communication["step"].link == f"step={max(steps, key=lambda step: steps[step])}"
    start, end, device = map(int, re.findall(r"\d+", communication["t"].link))
    assert end > start
    assert four.devices[device].whole.start_ns <= start < end <= four.devices[device].whole.end_ns


def test_evidence_is_there_without_scripts(four: tf.Analysis) -> None:
    """What needs none is an element of the page; the rest is shown with scripts only."""
    text = render_html(four)
    ids = set(re.findall(r' id="([^"]*)"', text))
    found = text.split('<section id="findings">')[1].split("</section>")[0]
    links = re.findall(r"<li( class=\"js-only\")?><a href=\"#([^\"]*)\"", found)
    assert len(links) > 8
    for is_live, link in links:
        assert is_live or link in ids, link
    for link in re.findall(r'href="#((?:category|step|kernel|rank|gap)=[^"]*)"', text):
        assert link in ids, link


def test_each_link_of_a_finding_leads_somewhere(page: Opened) -> None:
    links = page.page.locator("#findings a").evaluate_all("all => all.map((a) => a.hash.slice(1))")
    assert {link.partition("=")[0] for link in links} >= {"kernel", "step", "rank", "t"}
    for link in dict.fromkeys(links):
        assert go(page, link) == "", link
        assert page.page.evaluate("scrollY") > 300, link


@pytest.mark.parametrize("link", FOUND)
def test_a_link_leads_to_its_place(page: Opened, link: str) -> None:
    assert go(page, link) == ""
    assert page.page.evaluate("scrollY") > 300


@pytest.mark.parametrize("link", MISSED)
def test_a_link_that_finds_nothing_says_so_where_the_reader_is(page: Opened, link: str) -> None:
    assert MISSED[link] in go(page, link)
    box = page.page.locator("#missed span").bounding_box()
    assert box is not None
    assert 0 <= box["y"] < 120
    page.page.get_by_role("button", name="Dismiss").click()
    assert page.page.locator("#missed").inner_text() == ""


def test_a_page_that_is_opened_by_a_link_says_what_it_misses(
    browser: "Browser", tmp_path: Path
) -> None:
    text = page_of_sample("gpt_1rank.json.gz")
    path = tmp_path / "page.html"
    found = opened(browser, path, text)
    for link, said in (
        ("gap=1", ""),
        ("step=99", "No step “99”"),
        ("t=1-2,5", "not in this recording"),
    ):
        found.page.goto("about:blank")
        found.page.goto(f"{path.as_uri()}#{link}")
        until(found.page.main_frame, "document.querySelector('#timeline.live') !== null")
        told = found.page.locator("#missed").inner_text()
        assert said in told
        assert bool(told) == bool(said)
    found.page.context.close()


def test_a_part_of_a_name_finds_the_first_kernel_and_says_of_how_many(page: Opened) -> None:
    go(page, "kernel=nvjet")
    row = page.page.locator("#kernel-table tr.wanted")
    assert (row.get_attribute("id") or "").startswith("kernel=nvjet")
    assert (
        "rows match “nvjet”; showing the first." in page.page.locator("#kernel-found").inner_text()
    )
