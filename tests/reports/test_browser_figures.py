"""Each figure of a whole page is painted, in both themes, and the page prints to A4."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Literal

import pytest

from tests.conftest import page_of_sample, some
from tests.reports.test_browser import Opened, opened, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser

COLOURS: Final = """(plot) => {
    const canvases = [];
    const walk = (node) => node.querySelectorAll('*').forEach((each) => {
        if (each.tagName === 'CANVAS' && each.width) canvases.push(each);
        if (each.shadowRoot) walk(each.shadowRoot);
    });
    walk(plot);
    const seen = new Set();
    for (const canvas of canvases) {
        const copy = new OffscreenCanvas(canvas.width, canvas.height)
            .getContext('2d', { willReadFrequently: true });
        copy.drawImage(canvas, 0, 0);
        const data = copy.getImageData(0, 0, canvas.width, canvas.height).data;
        for (let i = 0; i < data.length; i += 4)
            if (data[i + 3] > 200) seen.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
    }
    return seen.size;
}"""
"""Number of colours on the canvases of a figure; a figure that is not painted has none."""

DRAWINGS: Final = """() => [...document.querySelectorAll('main svg')]
    .map((svg) => {
        const { width, height } = svg.getBoundingClientRect();
        const parts = svg.querySelectorAll('rect, path, circle, line, polygon, use').length;
        return { name: svg.outerHTML.slice(0, 120), sides: [width, height], parts };
    })
    .filter(({ sides }) => sides[0] && sides[1])"""
"""The drawings that are visible: their sides in pixels, and how many parts they have."""

COLUMNS_APART: Final = """() => {
    const spans = (row) => [...row.cells].some((cell) => cell.colSpan > 1);
    const edges = (row) => [...row.cells]
        .filter((cell) => getComputedStyle(cell).display !== 'none')
        .map((cell) => Math.round(cell.getBoundingClientRect().left));
    const apart = (table) => {
        const heads = String(edges(table.tHead.rows[0]));
        const rows = [...table.rows].filter((row) => row.getBoundingClientRect().height);
        return rows.filter((row) => !spans(row) && String(edges(row)) !== heads);
    };
    return [...document.querySelectorAll('table')].filter((table) => table.tHead).flatMap(
        (table) => apart(table).slice(0, 1).map((row) => `${table.id}: ${row.textContent}`));
}"""
"""Tables in which a cell does not begin where the head of its column does."""

A4_POINTS: Final = (595, 842)
A4_WIDTH: Final = 718
"""Pixels between the margins of the page."""


@pytest.fixture(scope="module", params=some(["gpt_ddp_4rank", "gpt_1rank.json.gz"], 2))
def whole(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Opened]:
    text = page_of_sample(request.param)
    found = opened(browser, tmp_path_factory.mktemp("whole") / "w.html", text)
    until(found.page.main_frame, "document.querySelector('#timeline.live') !== null")
    found.page.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    found.page.wait_for_timeout(500)
    yield found
    found.page.context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_each_figure_is_painted(whole: Opened, theme: str) -> None:
    if whole.page.evaluate("document.documentElement.dataset.theme") != theme:
        whole.page.click("#theme")
        whole.page.wait_for_timeout(400)
    canvas = whole.page.locator("#timeline-view")
    canvas.scroll_into_view_if_needed()
    whole.page.wait_for_timeout(200)
    assert canvas.evaluate(COLOURS) >= 5
    assert whole.page.locator("#timeline-strip").evaluate(COLOURS) >= 3


def test_each_drawing_has_a_size_and_parts(whole: Opened) -> None:
    drawings = whole.page.evaluate(DRAWINGS)
    assert len(drawings) >= 5
    assert [one for one in drawings if min(one["sides"]) <= 4 or one["parts"] == 0] == []


def test_labels_of_kernels_cover_nothing_on_a_telephone(whole: Opened) -> None:
    whole.page.set_viewport_size({"width": 390, "height": 900})
    labels, others = whole.page.evaluate(
        """() => ['text.label', 'circle, text:not(.label)'].map((which) => {
            const plot = document.querySelector('#roofline svg.narrow');
            return [...plot.querySelectorAll(which)].map((one) => {
                const { left, right, top, bottom } = one.getBoundingClientRect();
                return [left, right, top, bottom];
            });
        })"""
    )
    whole.page.set_viewport_size({"width": 1280, "height": 900})
    assert len(labels) >= 2
    assert not [
        (label, other)
        for label in labels
        for other in others
        if label[0] < other[1]
        and other[0] < label[1]
        and label[2] < other[3]
        and other[2] < label[3]
    ]


def test_it_prints_to_a4_with_all_its_sections(whole: Opened) -> None:
    before = whole.page.evaluate("document.documentElement.dataset.theme")
    pdf = whole.page.pdf(format="A4", print_background=True)
    assert pdf.startswith(b"%PDF-")
    sizes = {
        tuple(round(float(edge)) for edge in one.split()[2:])
        for one in re.findall(rb"/MediaBox\s*\[([^\]]*)\]", pdf)
    }
    assert all(
        abs(wide - A4_POINTS[0]) <= 1 and abs(high - A4_POINTS[1]) <= 1 for wide, high in sizes
    )
    pages = len(re.findall(rb"/Type\s*/Page\b", pdf))
    assert 3 <= pages <= 60
    assert whole.page.evaluate("document.documentElement.dataset.theme") == before
    assert len(whole.requests) == 1, "the page itself"
    assert whole.complaints == []


def test_on_paper_there_is_nothing_to_press_and_nothing_cut(whole: Opened) -> None:
    page = whole.page
    page.emulate_media(media="print")
    page.set_viewport_size({"width": A4_WIDTH, "height": 1000})
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.wait_for_timeout(400)
    try:
        shown = page.locator("main section > h2").locator("visible=true").all_inner_texts()
        assert {"Timeline", "Idle", "Critical path", "Steps", "Kernels", "Operators"} <= set(shown)
        assert page.locator("nav .links").is_hidden()
        assert page.locator("#theme, .download, main input").locator("visible=true").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= A4_WIDTH
    finally:
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        page.emulate_media(media="screen")
        page.set_viewport_size({"width": 1280, "height": 720})


@pytest.mark.parametrize(
    ("media", "width"), [("print", A4_WIDTH), ("screen", 360), ("screen", 1280)]
)
def test_cells_stand_under_the_heads_of_their_columns(
    whole: Opened, media: Literal["print", "screen"], width: int
) -> None:
    page = whole.page
    page.emulate_media(media=media)
    page.set_viewport_size({"width": width, "height": 1000})
    try:
        assert page.evaluate(COLUMNS_APART) == []
    finally:
        page.emulate_media(media="screen")
        page.set_viewport_size({"width": 1280, "height": 720})


@pytest.mark.parametrize("table", ["#kernel-table", "#operator-table"])
def test_at_1100_pixels_the_last_column_is_not_cut(whole: Opened, table: str) -> None:
    page = whole.page
    page.set_viewport_size({"width": 1100, "height": 1000})
    try:
        frame = page.locator(f".scroll:has(> {table})")
        assert frame.evaluate("one => one.scrollWidth - one.clientWidth") == 0
    finally:
        page.set_viewport_size({"width": 1280, "height": 720})
