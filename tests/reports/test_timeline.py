"""The timeline of the page: its bytes, its words, and what it does in a browser."""

import base64
import gzip
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import traceflops as tf
from tests.build import launched, step_marks, trace_of
from tests.conftest import analysis_of_sample
from tests.reports.bigtraces import big_trace
from tests.reports.factory import HOSTILE
from tests.reports.test_browser import Opened, opened, until
from traceflops.reports.page import timeline_data
from traceflops.reports.page.html import render_html

if TYPE_CHECKING:
    from playwright.sync_api import Browser

MICRO = 1_000
FIRST_ROW = 36 + 18 + 26 + 8
"""Where the middle of the first row of boxes is: below axis, first heading and occupancy."""


@cache
def four() -> tf.Analysis:
    return analysis_of_sample("gpt_ddp_4rank")


@cache
def small(steps: int = 6) -> tf.Analysis:
    """Return steps of 100 µs with a kernel of 60 and one of 20, the fourth one 30 µs longer."""
    works, marks, ops, at = [], [], [], 0
    for step in range(steps):
        late = 30 * MICRO if step == 3 else 0
        marks.append((f"ProfilerStep#{step}", at, 100 * MICRO + late))
        works.append(("sm90_xmma_gemm_bf16", at, at + 5 * MICRO, 60 * MICRO))
        works.append(("my_copy_kernel", at + 2, at + 70 * MICRO + late, 20 * MICRO))
        ops.append({"name": "aten::mm", "start_ns": at, "dur_ns": 1, "input_dims": "[[4,8],[8,2]]"})
        at += 100 * MICRO + late
    tables = launched(*works) | {"marks": step_marks(*marks), "ops": ops}
    return tf.analyze(trace_of(**tables))


def data_of(text: str) -> tuple[dict[str, Any], bytes]:
    """Return the header and the columns that a page carries."""
    packed = re.findall(r'id="timeline-data">([^<]*)<', text)[0]
    content = gzip.decompress(base64.b64decode(packed))
    size = int.from_bytes(content[:4], "little")
    return json.loads(content[4 : 4 + size]), content[4 + size :]


def test_each_activity_knows_the_box_of_its_launch() -> None:
    """Three graph nodes of one call, one of another, one whose call is not recorded."""
    run = launched(("a", 0, 100, 10), ("b", 20, 200, 10))
    more = [("c", 120, 1), ("d", 140, 1), ("e", 220, 9), ("f", 300, 2)]
    for name, start, correlation in more:
        run["activities"].append(
            {"name": name, "start_ns": start, "dur_ns": 5, "correlation": correlation}
        )
    header, content = data_of(render_html(tf.analyze(trace_of(**run))))
    codes = column(header, content, 0, "launch")
    found, last = [], 0
    for code in codes:
        if code:
            last += -code // 2 if code % 2 == 0 else (code - 1) // 2
        found.append(last if code else None)
    # Boxes: a, c, d, b, e, f on the stream; the two calls after them.
    assert found == [6, 6, 6, 7, None, 7, None, None]


def column(header: dict[str, Any], content: bytes, level: int, name: str) -> list[int]:
    count = sum(header["levels"][level]["lanes"])
    offset, width = header["levels"][level][name]
    planes = [content[offset + p * count : offset + (p + 1) * count] for p in range(width)]
    return [sum(plane[i] << 8 * p for p, plane in enumerate(planes)) for i in range(count)]


def test_the_bytes_hold_every_event_of_a_small_trace_exactly() -> None:
    analysis = small()
    header, content = data_of(render_html(analysis))
    assert len(header["levels"]) == 1
    gaps, lengths = (column(header, content, 0, name) for name in ("gap", "length"))
    whats, causes = (column(header, content, 0, name) for name in ("what", "cause"))
    kernels = header["levels"][0]["lanes"][0]
    assert kernels == 12
    at, found = header["levels"][0]["base"], []
    for gap, length, what, cause in zip(gaps, lengths, whats, causes, strict=True):
        at += gap
        name = header["texts"][header["whats"][what][0]]
        found.append(
            (
                name,
                at,
                length,
                [header["texts"][t] if t >= 0 else "" for t in header["causes"][cause]],
            )
        )
        at += length
    assert found[:2] == [
        ("sm90_xmma_gemm_bf16", 0, 60 * MICRO, ["aten::mm", "4×8, 8×2"]),
        ("my_copy_kernel", 65 * MICRO, 20 * MICRO, ["", ""]),
    ]
    assert found[7][1] == 3 * 100 * MICRO + 95 * MICRO
    assert set(column(header, content, 0, "more")) == {0}


def test_the_section_says_what_is_drawn_and_what_is_not() -> None:
    text = render_html(four())
    section = text.split('<section id="timeline">')[1].split("</section>")[0]
    assert "GPU streams of all 4 GPUs." in section
    assert "192 GPU annotations; 8 instant events" in section
    assert len(re.findall("<rect", section)) < 1_300
    shown = re.search(r"([\d,]+) events drawn as ([\d,]+) boxes; height", section)
    assert shown is not None
    events, boxes = (int(number.replace(",", "")) for number in shown.groups())
    assert boxes <= 560
    assert events > boxes
    packed = len(re.findall(r'id="timeline-data">([^<]*)<', text)[0])
    assert packed < 350_000


def test_traces_without_a_timeline_have_no_section() -> None:
    for trace in (trace_of(), trace_of(calls=[{"start_ns": 1}])):
        assert 'id="timeline"' not in render_html(tf.analyze(trace))


def test_gaps_of_devices_that_are_drawn_are_linked() -> None:
    text = render_html(small())
    links = re.findall(r'class="to-timeline" href="#gap=(\d+)"', text)
    assert links == [str(n) for n in range(1, min(len(small().gaps(10)), 10) + 1)]
    assert 'value="gap=1"' in text


def test_a_moment_is_drawn() -> None:
    text = render_html(tf.analyze(trace_of(activities=[{"name": "k", "start_ns": 4, "dur_ns": 0}])))
    assert "paper: one event drawn as one box" in text


@pytest.fixture(scope="module")
def page(browser: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    path = tmp_path_factory.mktemp("timeline") / "small.html"
    found = opened(browser, path, render_html(small()))
    settle(found)
    yield found
    found.page.context.close()


def settle(found: Opened) -> None:
    until(found.page.main_frame, "document.getElementById('timeline-status').textContent !== ''")
    painted(found)


def painted(found: Opened) -> None:
    """Wait until what was asked for is painted: the second frame from now is after that."""
    found.page.evaluate(
        "() => new Promise((done) => setTimeout(() =>"
        " requestAnimationFrame(() => requestAnimationFrame(done))))"
    )


def status(found: Opened) -> str:
    painted(found)
    return found.page.locator("#timeline-status").inner_text()


def events_drawn(found: Opened) -> int:
    return int(status(found).split(" ")[0].replace(",", ""))


def hover(found: Opened, share: float, y: int = FIRST_ROW) -> str:
    """Return what shows when the pointer rests there; `share` is of the width of the axis."""
    view = found.page.locator("#timeline-view")
    view.scroll_into_view_if_needed()
    box = view.bounding_box()
    assert box
    left = 104
    found.page.mouse.move(box["x"] + left + share * (box["width"] - left), box["y"] + y)
    painted(found)
    tip = found.page.locator("#timeline-tip")
    return tip.inner_text() if tip.is_visible() else ""


def colours(found: Opened) -> set[str]:
    return set(
        found.page.evaluate(
            """() => {
                const canvas = document.querySelector('#timeline-view canvas');
                const pen = new OffscreenCanvas(canvas.width, canvas.height)
                    .getContext('2d', { willReadFrequently: true });
                pen.drawImage(canvas, 0, 0);
                const data = pen.getImageData(0, 0, canvas.width, canvas.height).data;
                const seen = new Set();
                for (let i = 0; i < data.length; i += 4)
                    if (data[i + 3] > 200) seen.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
                return [...seen].map((one) => '#' + one.toString(16).padStart(6, '0'));
            }"""
        )
    )


def test_it_is_painted_in_the_colours_of_the_components(page: Opened) -> None:
    assert page.requests == [page.page.url.partition("#")[0]]
    assert page.complaints == []
    assert {"#2a6f97", "#eeba4c"} <= colours(page)
    assert not page.page.locator(".timeline-still").is_visible()


def test_it_begins_with_the_median_step_and_other_places_can_be_chosen(page: Opened) -> None:
    chosen = page.page.locator("#timeline-place")
    assert chosen.evaluate("one => one.selectedOptions[0].text") == "Step 2, median, 100 µs"
    page.page.select_option("#timeline-place", "step=3")
    assert "298.70 to 431.30 µs after the first GPU operation" in status(page)
    page.page.select_option("#timeline-place", "whole")
    assert events_drawn(page) == small().prepared.trace.activities.num_rows + 12 + 6 + 6


def test_keys_move_and_zoom(page: Opened) -> None:
    page.page.select_option("#timeline-place", "step=2")
    before = status(page)
    page.page.focus("#timeline-view")
    page.page.keyboard.press("+")
    assert "218.125 to 281.875 µs" in status(page)
    page.page.keyboard.press("-")
    assert status(page) == before
    page.page.keyboard.press("ArrowRight")
    assert "219.40 to 321.40 µs" in status(page)
    page.page.keyboard.press("0")
    assert events_drawn(page) == 36
    # Steps of 630 µs in all begin 5 µs before the first activity. What is left free beside the
    # recording is not said to be of it.
    assert " to 625.00 µs after" in status(page)


def test_the_pointer_shows_the_whole_truth_of_an_event(page: Opened) -> None:
    page.page.select_option("#timeline-place", "step=2")
    status(page)
    lines = hover(page, 0.3).splitlines()
    assert [line for line in lines if line] == [
        "sm90_xmma_gemm_bf16",
        "60 µs at 200.000 µs · GPU 0 · stream 7",
        "compute, gemm",
        "launched by aten::mm",
        "shapes 4×8, 8×2",
        "launch: launch, 5 µs before",
    ]
    assert hover(page, 0.3, FIRST_ROW - 18) == ""  # occupancy is of no event


def test_the_link_of_a_gap_moves_the_view(page: Opened) -> None:
    longest = small().gaps(1)[0]
    page.page.locator("#idle > details:not(.info)").evaluate("(one) => { one.open = true; }")
    page.page.locator("a.to-timeline").first.click()
    # As much again is seen on both sides of the gap, which is from 360 to 395 µs.
    assert longest.dur_ns == 35 * MICRO
    assert "325.00 to 430.00 µs" in status(page)
    assert page.page.locator("#timeline-place").input_value() == "gap=1"
    top = "document.getElementById('timeline').getBoundingClientRect().top"
    until(page.page.main_frame, f"Math.abs({top}) < 90")
    assert hover(page, 0.5).split("\n\n") == [
        "GPU waits on: my_copy_kernel",
        "35 µs at 360.000 µs · GPU 0",
        "late start of queued work",
    ]
    assert hover(page, 0.75).startswith("my_copy_kernel")


def test_links_lead_to_steps_and_to_stretches_of_the_trace(page: Opened) -> None:
    page.page.evaluate("location.hash = '#step=4'")
    assert "429.00 to 531.00 µs" in status(page)
    origin = min(one.whole.start_ns for one in small().devices)
    page.page.evaluate(f"location.hash = '#t={origin + 5000}-{origin + 15000},0'")
    assert "−5.000 to 25.000 µs" in status(page)
    before = status(page)
    for wrong in ("#t=5-1,0", "#t=1-2,77", "#step=99", "#gap=0", "#gap=x", "#%E0%A4%A"):
        page.page.evaluate(f"location.hash = '{wrong}'")
        assert status(page) == before
    assert page.complaints == []


def test_an_event_can_be_reached_and_read_without_a_pointer(page: Opened) -> None:
    page.page.select_option("#timeline-place", "step=2")
    status(page)
    page.page.focus("#timeline-view")
    panel = page.page.locator("#timeline-chosen")
    said = []
    for key in ("n", "n", "n", "j"):
        page.page.keyboard.press(key)
        said.append(panel.locator("p").first.inner_text())
    assert said == ["sm90_xmma_gemm_bf16", WAIT, "my_copy_kernel", "0 outstanding launches"]
    page.page.keyboard.press("Escape")
    assert not panel.is_visible()
    page.page.locator("#timeline-table summary").click()
    status(page)
    rows = page.page.locator("#timeline-table tbody tr")
    found = rows.all_inner_texts()
    assert found[0].startswith("ProfilerStep#3\tCPU · thread 1 · annotations\t295.000 µs")
    assert any(one.startswith("sm90_xmma_gemm_bf16\tGPU 0 · stream 7") for one in found)
    page.page.locator("#timeline-table summary").click()


WAIT = "GPU waits on: launch"  # 5 µs from the call to the start: launch latency


def test_outstanding_launches_can_be_read(page: Opened) -> None:
    page.page.select_option("#timeline-place", "step=2")
    status(page)
    # The second kernel of a step is called with the first, which starts at 200 µs, and starts at
    # 265; then nothing is called until 295.
    counter = FIRST_ROW + 22
    assert hover(page, 0.3, counter).split("\n\n") == [
        "1 outstanding launch",
        "65 µs at 200.000 µs · GPU 0 · outstanding",
    ]
    assert hover(page, 0.8, counter).startswith("0 outstanding launches")
    # Of all 630 µs, between 195.002 and 200: two, whatever was true for 2 ns before.
    page.page.select_option("#timeline-place", "whole")
    status(page)
    assert hover(page, 0.325, counter).startswith("2 outstanding launches")


UNDER = """() => {
    const canvas = document.querySelector('#timeline-view canvas');
    const ratio = canvas.width / canvas.clientWidth;
    const copy = new OffscreenCanvas(canvas.width, canvas.height)
        .getContext('2d', { willReadFrequently: true });
    copy.drawImage(canvas, 0, 0);
    return [...copy.getImageData(104 * ratio, 144 * ratio, canvas.width, 10 * ratio).data].join();
}"""
"""The first row of the CPU, over which arrows lead."""


def test_an_arrow_leads_from_a_launch_to_what_it_launched_and_back(page: Opened) -> None:
    page.page.select_option("#timeline-place", "step=2")
    status(page)
    page.page.focus("#timeline-view")
    panel, button = page.page.locator("#timeline-chosen"), page.page.locator("#timeline-follow")
    page.page.keyboard.press("n")
    assert "launch: launch, 5 µs before" in panel.inner_text()
    button.click()  # the call begins before what is in view
    assert "launches one GPU operation, 5 µs later" in panel.inner_text()
    assert "188.500 to 266.500 µs" in status(page)  # the stretch and a tenth on both sides
    page.page.focus("#timeline-view")
    painted(page)
    with_arrow = page.page.evaluate(UNDER)
    page.page.keyboard.press("l")
    assert "sm90_xmma_gemm_bf16" in panel.inner_text()
    painted(page)
    assert page.page.evaluate(UNDER) == with_arrow
    page.page.keyboard.press("Escape")
    painted(page)
    assert page.page.evaluate(UNDER) != with_arrow
    for key in "nj":  # to the outstanding launches, from which no arrow leads
        page.page.keyboard.press(key)
    assert button.is_hidden()


def test_the_strip_moves_the_view(page: Opened) -> None:
    page.page.select_option("#timeline-place", "step=2")
    before = status(page)
    strip = page.page.locator("#timeline-strip")
    strip.scroll_into_view_if_needed()
    box = strip.bounding_box()
    assert box
    page.page.mouse.click(box["x"] + 104 + 0.9 * (box["width"] - 104), box["y"] + 20)
    after = status(page)
    assert after != before
    assert "511.00 to 613.00 µs" in after


def test_zooming_in_shows_single_events(browser: "Browser", tmp_path: Path) -> None:
    found = opened(browser, tmp_path / "four.html", render_html(four()))
    settle(found)
    found.page.evaluate("document.getElementById('timeline-view').style.height = '2000px'")
    found.page.select_option("#timeline-place", "whole")
    text = status(found)
    events, boxes = (
        int(n.replace(",", "")) for n in re.findall(r"([\d,]+) (?:events|boxes)", text)
    )
    assert boxes < events
    assert boxes <= 10_000
    found.page.focus("#timeline-view")
    for _ in range(9):
        found.page.keyboard.press("+")
    text = status(found)
    events, boxes = (
        int(n.replace(",", "")) for n in re.findall(r"([\d,]+) (?:events|boxes)", text)
    )
    assert 0 < boxes == events
    found.page.select_option("#timeline-host", "-1")
    assert events_drawn(found) < events
    found.page.select_option("#timeline-place", "gap=1")
    beside = found.page.locator("#timeline-host").input_value()
    assert beside == str(four().devices[four().gaps(1)[0].device].process)
    assert found.complaints == []
    found.page.context.close()


def test_hostile_names_stay_text(browser: "Browser", tmp_path: Path) -> None:
    names = [text.encode("utf-8", "backslashreplace").decode() for text in HOSTILE]
    works = [(name, 10 * i, 10 + 100 * i, 90) for i, name in enumerate(names)]
    ops = [
        {"name": name, "start_ns": 10 * i, "dur_ns": 9, "input_dims": name}
        for i, name in enumerate(names)
    ]
    trace = trace_of(
        processes=[{"file": names[1]}],
        marks=[{"name": name, "start_ns": 0, "dur_ns": 2_000} for name in names[:3]],
        ops=ops,
        **launched(*works),
    )
    found = opened(browser, tmp_path / "hostile.html", render_html(tf.analyze(trace)))
    settle(found)
    found.page.select_option("#timeline-place", "whole")
    status(found)
    shown = {hover(found, (i + 0.6) / len(names)) for i in range(len(names))}
    assert any(
        text.startswith(HOSTILE[1]) and f"launched by {HOSTILE[1]}" in text for text in shown
    )
    found.page.locator("#timeline-table summary").click()
    status(found)
    assert found.page.locator("img").count() == 0
    assert found.requests == [found.page.url.partition("#")[0]]
    assert found.complaints == []
    found.page.context.close()


def test_without_scripts_and_on_paper_a_drawing_stands_for_it(
    browser: "Browser", tmp_path: Path
) -> None:
    text = render_html(small())
    found = opened(browser, tmp_path / "plain.html", text, scripts=False)
    still = found.page.locator(".timeline-still")
    assert still.is_visible()
    assert not found.page.locator(".timeline-live").is_visible()
    assert still.locator("figcaption").inner_text().startswith("Step 2 (median): ")
    found.page.context.close()
    printed = opened(browser, tmp_path / "print.html", text)
    printed.page.emulate_media(media="print")
    assert printed.page.locator(".timeline-still").is_visible()
    assert not printed.page.locator(".timeline-live").is_visible()
    printed.page.context.close()


def apart(ranks: int = 3, steps: int = 5) -> tf.Analysis:
    """Return steps of 100 µs that each rank begins 40 µs after the one before it."""
    rows, marks, calls = [], [], []
    for rank in range(ranks):
        for step in range(steps):
            at = 100 * MICRO * step + 40 * MICRO * rank
            number = rank * steps + step + 1
            calls.append({"process": rank, "start_ns": at, "dur_ns": 1, "correlation": number})
            rows.append(
                {
                    "process": rank,
                    "device": rank,
                    "name": "k",
                    "start_ns": at + 2,
                    "dur_ns": 50 * MICRO,
                    "correlation": number,
                }
            )
            marks.append(
                {
                    "process": rank,
                    "name": f"ProfilerStep#{step}",
                    "start_ns": at,
                    "dur_ns": 100 * MICRO - 5,
                }
            )
    return tf.analyze(
        trace_of(
            processes=[{"process": rank, "rank": rank} for rank in range(ranks)],
            devices=[{"device": rank, "process": rank} for rank in range(ranks)],
            activities=rows,
            calls=calls,
            marks=marks,
        )
    )


def test_the_length_of_a_step_is_not_that_of_what_is_drawn_of_it() -> None:
    analysis = apart()
    assert analysis.steps.typical_ns == 100 * MICRO
    header, _ = data_of(render_html(analysis))
    assert {end - start for _, start, end in header["steps"][:-1]} == {180 * MICRO}
    options = re.findall(r'<option value="step=\d">(Step \d, [^<]*)<', render_html(analysis))
    assert options
    assert all(one.endswith(", 100 µs") for one in options)


def test_what_the_page_holds_only_together_is_counted(
    browser: "Browser", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with half a million events, with less room for fewer."""
    for name in ("_MOST_PACKED", "_MOST_TEXT"):
        monkeypatch.setattr(timeline_data, name, getattr(timeline_data, name) // 40)
    text = render_html(tf.analyze(big_trace(1, 20, 600)))
    header, content = data_of(text)
    more = column(header, content, 0, "more")
    found = opened(browser, tmp_path / "big.html", text)
    settle(found)
    # The step with the room that its view has is there event by event.
    assert "only several to a box" not in status(found)
    found.page.select_option("#timeline-host", "0")
    found.page.select_option("#timeline-place", "whole")
    together = sum(each + 1 for each in more if each)
    assert together > 10_000
    said = status(found)
    assert f"{together:,} of these events are merged; single events are kept" in said
    assert f"{sum(more) + len(more):,} events drawn as" in said
    found.page.context.close()


def test_of_many_steps_one_is_asked_for(browser: "Browser", tmp_path: Path) -> None:
    found = opened(browser, tmp_path / "many.html", render_html(small(80)))
    settle(found)
    assert found.page.locator("#timeline-place optgroup").count() == 0
    field = found.page.get_by_label("Step", exact=True)
    field.fill("70")
    field.press("Enter")
    # Step 3 is 30 µs longer, so step 70 begins at 7.03 ms; the view shows 1 % more of it.
    assert "7.02900 to 7.13100 ms" in status(found)
    assert found.page.locator("#timeline-place").input_value() == ""
    field.fill("81")
    field.press("Enter")
    assert field.evaluate("one => one.validationMessage") == "This step is not in the timeline."
    found.page.context.close()
    assert 'id="timeline-step"' not in render_html(small())


def test_the_drawing_without_scripts_has_an_axis() -> None:
    section = render_html(small()).split('<section id="timeline">')[1].split("</section>")[0]
    axis = section.split('<div class="timeline-row timeline-axis">')[1].split("</svg>")[0]
    # Step 2 lies from 200 to 300 µs: seven ticks at most, every 20 µs.
    ticks = re.findall(r'<text x="([\d.]+)%"[^>]*>([^<]*)<', axis)
    assert ticks == [(f"{20.0 * i}", f"{200 + 20 * i} µs") for i in range(6)]
    assert "200.000 to 300.000 µs after the first GPU operation." in section


def test_a_link_in_the_address_leads_to_its_place_when_the_page_is_opened(
    browser: "Browser", tmp_path: Path
) -> None:
    path = tmp_path / "linked.html"
    found = opened(browser, path, render_html(four()))
    found.page.goto("about:blank")
    found.page.goto(f"{path.as_uri()}#step=23")
    settle(found)
    top = "document.getElementById('timeline').getBoundingClientRect().top"
    until(found.page.main_frame, f"Math.abs({top} - 60) < 2")
    painted(found)
    # Nothing that is drawn later, and no motion, leads away from there.
    assert abs(found.page.evaluate(top) - 60) < 2
    assert found.page.locator("#timeline-place").input_value() == "step=23"
    found.page.context.close()


@pytest.mark.parametrize("link", ["rank=2", "op=aten::addmm"])
def test_what_is_drawn_later_does_not_push_away_what_a_link_leads_to(
    browser: "Browser", tmp_path: Path, link: str
) -> None:
    path = tmp_path / "linked.html"
    found = opened(browser, path, render_html(four()))
    found.page.goto("about:blank")
    found.page.goto(f"{path.as_uri()}#{link}")
    settle(found)
    painted(found)
    place = found.page.locator("tr.wanted").bounding_box()
    assert place is not None
    assert 50 <= place["y"] <= 720 - place["height"]  # below the bar at the top
    found.page.context.close()


def test_those_who_listen_hear_of_a_view_once_it_rests(page: Opened) -> None:
    page.page.select_option("#timeline-place", "step=2")
    until(page.page.main_frame, "document.getElementById('timeline-said').textContent !== ''")
    until(
        page.page.main_frame,
        "document.getElementById('timeline-said').textContent"
        " === document.getElementById('timeline-status').textContent",
    )
    before = page.page.locator("#timeline-said").text_content()
    page.page.focus("#timeline-view")
    for _ in range(3):
        page.page.keyboard.press("ArrowRight")
    assert page.page.locator("#timeline-said").text_content() == before
    until(
        page.page.main_frame,
        f"document.getElementById('timeline-said').textContent !== {json.dumps(before)}",
    )
    assert page.page.locator("#timeline-said").text_content() == status(page)


def test_focus_is_seen(page: Opened) -> None:
    page.page.keyboard.press("Tab")
    page.page.evaluate("document.getElementById('timeline-view').focus()")
    style = "getComputedStyle(document.getElementById('timeline-view'))"
    assert page.page.evaluate(f"{style}.outlineStyle") == "solid"
    assert page.page.evaluate(f"{style}.outlineWidth") == "2px"


INK = """([top, height]) => {
    const canvas = document.querySelector('#timeline-view canvas');
    const ratio = canvas.width / canvas.clientWidth, left = 104 * ratio;
    const copy = new OffscreenCanvas(canvas.width, canvas.height)
        .getContext('2d', { willReadFrequently: true });
    copy.drawImage(canvas, 0, 0);
    const width = canvas.width - left, edge = Math.round(width / 20);
    const data = copy.getImageData(
        left + edge, top * ratio, width - 2 * edge, height * ratio).data;
    let ink = 0;
    for (let i = 0; i < data.length; i += 4)
        ink += data[i + 3] / 255 * (255 - data[i]) / (255 - 0x2a);
    return ink / (data.length / 4);
}"""
"""The share of a row, without its ends, that is painted in the colour of compute."""

PERIOD = 1_000
"""Nanoseconds from the start of a kernel to that of the next."""

BUSY = {7: 100, 8: 286, 9: 800}
"""How much of a period kernels run, by stream."""


@cache
def regular() -> str:
    """Return the page of streams that run kernels for so much of each period."""
    rows = [
        {"name": "sm90_gemm", "stream": stream, "start_ns": PERIOD * i, "dur_ns": busy_ns}
        for i in range(12_000)
        for stream, busy_ns in BUSY.items()
    ]
    return render_html(tf.analyze(trace_of(activities=rows)))


def test_the_ink_of_a_row_is_its_busy_time_at_every_zoom(
    browser: "Browser", tmp_path: Path
) -> None:
    found = opened(browser, tmp_path / "regular.html", regular())
    settle(found)
    found.page.select_option("#timeline-place", "whole")
    found.page.focus("#timeline-view")
    for _ in range(5):  # from 10 kernels a pixel to 4 pixels a kernel
        text = status(found)
        for row, (stream, busy_ns) in enumerate(BUSY.items()):
            ink = found.page.evaluate(INK, [FIRST_ROW - 8 + 17 * row, 16])
            assert ink == pytest.approx(busy_ns / PERIOD, abs=0.03), text
            said = re.search(rf"stream {stream} ([\d.]+) %", text)
            assert said is not None, text
            assert float(said[1]) == pytest.approx(100 * busy_ns / PERIOD, abs=1)
        found.page.keyboard.press("+")
        found.page.keyboard.press("+")
    found.page.context.close()


def test_the_ink_of_the_drawing_without_scripts_is_busy_time() -> None:
    section = regular().split('class="timeline-still"')[1].split("</figure>")[0]
    alternative = section.split('aria-label="')[1].split('"')[0]
    rows = re.findall(r"<span>stream (\d)</span>(.*?)</div>", section, re.DOTALL)
    assert [int(stream) for stream, _ in rows] == list(BUSY)
    for (stream, row), busy_ns in zip(rows, BUSY.values(), strict=True):
        rects = re.findall(r'<rect x="[^"]*" width="(.*?)%" y="(.*?)%" height="(.*?)%"', row)
        ink = sum(float(width) * float(height) for width, _, height in rects) / 10_000
        assert ink == pytest.approx(busy_ns / PERIOD, abs=0.03)
        assert all(float(y) + float(height) == pytest.approx(100) for _, y, height in rects)
        assert f"stream {stream} {busy_ns / PERIOD:.1%}".replace("%", " %") in alternative
