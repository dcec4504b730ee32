"""The timeline as a place to work in: selections and their figures, search, links, exports."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import traceflops as tf
from tests.conftest import SAMPLES, analysis_of_sample, some
from tests.reports.bigtraces import big_trace
from tests.reports.test_browser import Opened, opened, until
from tests.reports.test_timeline import MICRO, hover, painted, settle, small, status
from traceflops.attribution.culprits import culprits_of
from traceflops.attribution.idle_classes import CLASSES
from traceflops.attribution.idle_slices import gap_parts
from traceflops.categories.kernel_names import without_return_type
from traceflops.characters import function_name
from traceflops.drawing.timeline import Budget
from traceflops.reports.page import timeline_data
from traceflops.reports.page.html import render_html
from traceflops.reports.view.palette import LOOKS
from traceflops.timeline.intervals import Intervals

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture
def page(browser: "Browser", tmp_path: Path) -> Iterator[Opened]:
    found = opened(browser, tmp_path / "small.html", render_html(small()), downloads=True)
    settle(found)
    yield found
    assert found.complaints == []
    found.page.context.close()


SUMS = """() => Object.fromEntries([...document.querySelectorAll('#timeline-figures > div')].map(
    (part) => [part.querySelector('h3').textContent, Object.fromEntries(
        [...part.querySelectorAll('[data-ns]')].map(
            (one) => [one.previousElementSibling.title || 'length', Number(one.dataset.ns)]))]))"""
"""The figures below the timeline: of each column its names and their nanoseconds."""


def selected(found: Opened, start_ns: int, end_ns: int) -> dict[str, dict[str, int]]:
    """Return the figures of a range that a link selects."""
    found.page.evaluate(f"location.hash = '#view={start_ns}-{end_ns}&sel={start_ns}-{end_ns}'")
    until(found.page.main_frame, "document.querySelector('#timeline-figures h3') !== null")
    painted(found)
    told: dict[str, dict[str, int]] = found.page.evaluate(SUMS)
    return told


def expected(analysis: tf.Analysis, start_ns: int, end_ns: int) -> dict[str, dict[str, int]]:
    """Return components, times of kernels by name and culprits of device 0, told from accounts."""
    prepared = analysis.prepared
    account = prepared.accounts[0]
    origin = account.rows.span[0]
    low, high = start_ns + origin, end_ns + origin
    parts = account.account(low, high).components.parts()
    work = prepared.trace.activities.to_pylist()
    kernels: dict[str, int] = {}
    for row in work:
        inside = min(row["start_ns"] + row["dur_ns"], high) - max(row["start_ns"], low)
        if inside > 0:
            name = without_return_type(row["name"])
            kernels[name] = kernels.get(name, 0) + inside
    found = culprits_of(gap_parts(account, Intervals.one(low, high)), prepared.trace)
    idle: dict[str, int] = {}
    for one in found.culprits:
        label = function_name(one.label) or CLASSES[one.kind]
        idle[label] = idle.get(label, 0) + one.idle_ns
    unknown = parts["idle"] - sum(idle.values())
    return {
        "parts": {LOOKS[name].label: ns for name, ns in parts.items() if ns},
        "kernels": kernels,
        "idle": idle | ({"No culprit": unknown} if idle and unknown else {}),
    }


def assert_told(told: dict[str, dict[str, int]], wanted: dict[str, dict[str, int]]) -> None:
    """Assert that the largest of each are those of Python, to the ns, and so is the sum."""
    assert sum(told["Selection"].values()) == sum(wanted["parts"].values())
    (label,) = (name for name in told if name not in ("Selection", "Top kernels", "Why idle"))
    assert told[label] == wanted["parts"]
    for name, column in (("kernels", "Top kernels"), ("idle", "Why idle")):
        rest = {text: ns for text, ns in told[column].items() if text in wanted[name]}
        assert rest == {text: wanted[name][text] for text in rest}
        assert sum(told[column].values()) == sum(wanted[name].values())
        assert len(rest) >= min(5, len(wanted[name]))


@pytest.mark.parametrize("share", some([(0, 1), (0.31, 0.32), (0.4321, 0.7), (0.1, 0.1001)], 2))
def test_figures_of_a_selection_are_those_of_python_to_the_ns(
    browser: "Browser", tmp_path: Path, share: tuple[float, float]
) -> None:
    analysis = analysis_of_sample("gpt_1rank.json.gz")
    found = opened(browser, tmp_path / "one.html", render_html(analysis))
    settle(found)
    low, high = analysis.prepared.accounts[0].rows.span
    start, end = (round(one * (high - low)) for one in share)
    told = selected(found, start, end)
    assert "Exact: every event is in the page." in figures_text(found)
    assert_told(told, expected(analysis, start, end))
    assert flops_told(found) == flops_begun(analysis, start + low, end + low)
    if share[1] - share[0] == 1:
        assert flops_told(found) == sum(cell.flops for cell in analysis.measured.executed.cells)
    found.page.context.close()


def flops_told(found: Opened) -> int:
    return int(found.page.locator("[data-flops]").get_attribute("data-flops") or "")


def flops_begun(analysis: tf.Analysis, start_ns: int, end_ns: int) -> int:
    """Return the FLOPs of ops whose main kernel begins in a range, one op after the other."""
    attribution = analysis.measured.executed.attribution
    begins = analysis.prepared.trace.activities["start_ns"].to_pylist()
    return sum(
        int(attribution.work.flops[attribution.work.place[op]])
        for op in attribution.executed.tolist()
        if start_ns <= begins[attribution.main[op]] < end_ns
    )


def figures_text(found: Opened) -> str:
    return found.page.locator("#timeline-figures").inner_text()


def test_figures_of_merged_events_are_those_of_whole_bins(
    browser: "Browser", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline_data, "Budget", lambda: Budget(all=300, overview=300, step=40))
    analysis = tf.analyze(tf.read(SAMPLES / "gpt_1rank.json.gz"))
    found = opened(browser, tmp_path / "merged.html", render_html(analysis))
    settle(found)
    told = selected(found, 3_333_333, 7_777_777)
    said = figures_text(found)
    snapped = re.search(r"Edges snapped to (\d+) µs bins; events are merged.", said)
    assert snapped is not None
    length = int(snapped[1]) * MICRO
    start, end = 3_333_333 // length * length, -(-7_777_777 // length) * length
    assert_told(told, expected(analysis, start, end))
    low, _ = analysis.prepared.accounts[0].rows.span
    assert flops_told(found) == flops_begun(analysis, start + low, end + low)
    found.page.context.close()


DONE = "document.getElementById('timeline-done').textContent"


def drag(found: Opened, start: float, end: float, shift: bool = False) -> None:
    """Drag the pointer from one share of the axis to another."""
    for share, then in ((start, "down"), ((start + end) / 2, None), (end, "up")):
        hover(found, share)
        if then == "down":
            if shift:
                found.page.keyboard.down("Shift")
            found.page.mouse.down()
        elif then == "up":
            found.page.mouse.up()
    found.page.keyboard.up("Shift")
    painted(found)


def length(found: Opened) -> str:
    painted(found)
    return found.page.locator("#timeline-figures .big").inner_text()


def heading(found: Opened) -> str:
    return found.page.locator("#timeline-figures h3").first.inner_text()


def test_a_range_is_selected_by_dragging_and_its_edges_move(page: Opened) -> None:
    page.page.evaluate("location.hash = '#view=0-100000'")
    drag(page, 0.1, 0.6)
    assert (heading(page), length(page)) == ("Selection", "50 µs")
    # From 10 to 60 µs one kernel runs all the time.
    assert page.page.evaluate(SUMS)["GPU 0"] == {"compute": 50 * MICRO}
    drag(page, 0.6, 0.8)
    assert length(page) == "70 µs"
    assert page.page.evaluate(SUMS)["GPU 0"] == {
        "compute": 50 * MICRO,
        "memory": 15 * MICRO,
        "idle": 5 * MICRO,
    }
    page.page.keyboard.press("Escape")
    until(page.page.main_frame, "!location.hash.includes('sel=')")
    before = status(page)
    drag(page, 0.5, 0.4, shift=True)
    assert status(page) != before
    assert "10.0" in status(page)


@pytest.mark.parametrize(("held_s", "selects"), [(0.5, True), (0.1, False)])
def test_a_finger_that_was_held_selects_and_one_that_was_not_pans(
    page: Opened, held_s: float, selects: bool
) -> None:
    page.page.evaluate("location.hash = '#view=0-100000'")
    before = status(page)
    box = page.page.locator("#timeline-view").bounding_box()
    assert box is not None
    devtools, began = page.page.context.new_cdp_session(page.page), time.time()

    def touch(kind: str, at_s: float, *places: float) -> None:
        points = [{"x": box["x"] + x, "y": box["y"] + 60} for x in places]
        event = {"type": kind, "touchPoints": points, "timestamp": began + at_s}
        devtools.send("Input.dispatchTouchEvent", event)

    touch("touchStart", 0, 300)
    for move in range(1, 6):
        touch("touchMove", held_s + move / 100, 300 + 40 * move)
    touch("touchEnd", held_s + 0.1)
    painted(page)
    assert (heading(page) == "Selection") is selects
    assert (status(page) == before) is selects


def test_keys_select_fit_and_measure(page: Opened) -> None:
    page.page.evaluate("location.hash = '#view=0-100000'")
    status(page)
    page.page.focus("#timeline-view")
    for _ in range(3):
        page.page.keyboard.press("Shift+ArrowRight")  # a fiftieth of the view each
    assert length(page) == "6 µs"
    page.page.keyboard.press("Shift+ArrowLeft")
    assert length(page) == "4 µs"
    page.page.keyboard.press("f")
    assert "49.960 to 54.040 µs" in status(page)
    page.page.keyboard.press("Escape")
    page.page.evaluate("location.hash = '#view=0-200000'")
    status(page)
    page.page.focus("#timeline-view")
    for key in ("n", "m", "n", "n", "m"):
        page.page.keyboard.press(key)
    # From the start of the first kernel to the end of the second, over the gap between them.
    assert length(page) == "85 µs"
    for key, words in (("w", "37.50 to 162.50"), ("s", "0.00 to 200.00"), ("d", "40.00 to 240.00")):
        page.page.keyboard.press(key)
        assert words in status(page)


def test_the_address_holds_view_and_selection_and_back_leads_back(page: Opened) -> None:
    assert "#" not in page.page.url
    before = page.page.evaluate("history.length")
    page.page.focus("#timeline-view")
    for _ in range(5):
        page.page.keyboard.press("d")
    until(page.page.main_frame, "location.hash.startsWith('#view=')")
    assert page.page.evaluate("history.length") == before  # moving is no entry
    page.page.evaluate("location.hash = '#view=0-100000'")
    status(page)
    drag(page, 0.1, 0.6)
    until(page.page.main_frame, "location.hash.includes('&sel=10000-60000')")
    shared = page.page.url
    assert page.page.evaluate("history.length") == before + 2
    page.page.go_back()
    until(page.page.main_frame, "location.hash === '#view=0-100000'")
    painted(page)
    until(
        page.page.main_frame,
        "document.querySelector('#timeline-figures h3').textContent === 'In view'",
    )
    page.page.goto("about:blank")
    page.page.goto(shared)
    settle(page)
    assert (heading(page), length(page)) == ("Selection", "50 µs")
    assert page.page.url == shared


SELECTED_STEPS = """() =>
    [...document.querySelectorAll('svg.chosen')].map(({ dataset }) => Number(dataset.first))
"""


def test_steps_selected_in_their_chart_are_selected_in_the_timeline_and_back(
    browser: "Browser", tmp_path: Path
) -> None:
    analysis = tf.analyze(big_trace(steps=30, kernels=10))
    found = opened(browser, tmp_path / "steps.html", render_html(analysis))
    settle(found)
    chart = found.page.locator(".step-chart svg").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box
    for share, act in ((0.4, found.page.mouse.down), (0.45, None), (0.5, found.page.mouse.up)):
        found.page.mouse.move(box["x"] + box["width"] * share, box["y"] + box["height"] / 2)
        if act:
            act()
    until(found.page.main_frame, "location.hash.includes('&sel=')")
    (chosen,) = re.findall(r"sel=(-?\d+)-(-?\d+)", found.page.url)
    steps = found.page.evaluate(SELECTED_STEPS)
    assert 2 <= len(steps) <= 5
    windows = {window.step: window for window in analysis.devices[0].steps}
    origin = analysis.prepared.accounts[0].rows.span[0] if analysis.prepared else 0
    ends = (windows[min(steps)].start_ns - origin, windows[max(steps)].end_ns - origin)
    assert tuple(map(int, chosen)) == ends
    other = [f"{windows[7].start_ns - origin}-{windows[9].end_ns - origin}"] * 2
    found.page.evaluate(f"location.hash = '#view={other[0]}&sel={other[1]}'")
    until(found.page.main_frame, f"String(({SELECTED_STEPS})()) === '7,8,9'")
    found.page.reload()
    until(found.page.main_frame, f"String(({SELECTED_STEPS})()) === '7,8,9'")
    assert found.complaints == []
    found.page.context.close()


def test_a_search_marks_all_hits_and_leads_from_one_to_the_next(page: Opened) -> None:
    page.page.select_option("#timeline-place", "whole")
    page.page.focus("#timeline-view")
    page.page.keyboard.press("/")
    field = page.page.locator("#timeline-search")
    field.fill("COPY_kernel")
    assert page.page.locator("#timeline-searched").inner_text() == "6 hits"
    chosen = page.page.locator("#timeline-chosen")
    starts = []
    for _ in range(2):
        field.press("Enter")
        until(page.page.main_frame, "!document.getElementById('timeline-chosen').hidden")
        painted(page)
        painted(page)
        starts.append(re.findall(r"at ([\d.]+) µs", chosen.inner_text())[0])
    # The middle is in step 3; the kernels after it begin 65 and 95 µs into theirs.
    assert starts == ["395.000", "495.000"]
    summary = page.page.locator("#timeline-instances summary")
    assert summary.inner_text() == "6 instances, 120 µs in all; this is number 5"
    summary.click()
    page.page.locator("#timeline-instances-list button").first.click()
    painted(page)
    painted(page)
    assert "at 65.000 µs" in chosen.inner_text()
    assert summary.inner_text().endswith("this is number 1")
    field.press("Escape")
    assert page.page.locator("#timeline-searched").inner_text() == ""


def test_a_range_can_be_taken_elsewhere(page: Opened) -> None:
    page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    told = selected(page, 10 * MICRO, 90 * MICRO)
    with page.page.expect_download() as saved:
        page.page.locator("[data-do=trace]").click()
    events = json.loads(Path(saved.value.path()).read_text())["traceEvents"]
    mine = [(one["name"], one["ts"], one["dur"]) for one in events if one["ph"] == "X"]
    assert ("sm90_xmma_gemm_bf16", 0, 60) in mine
    assert ("my_copy_kernel", 65, 20) in mine
    assert all(start <= 90 and start + dur >= 10 for _, start, dur in mine)
    with page.page.expect_download() as picture:
        page.page.locator("[data-do=picture]").click()
    assert Path(picture.value.path()).read_bytes()[:4] == b"\x89PNG"
    page.page.locator("[data-do=markdown]").click()
    until(
        page.page.main_frame,
        "document.getElementById('timeline-done').textContent.includes('Markdown')",
    )
    text = page.page.evaluate("navigator.clipboard.readText()")
    for name, ns in told["Top kernels"].items():
        assert f"| {name.replace('_', chr(92) + '_')} | {ns} |" in text
