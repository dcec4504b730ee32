"""The page of a comparison: exact sums, every case of two sides, no network, no script needed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pytest

import traceflops as tf
from tests.build import launched, step_marks, trace_of
from tests.cli.test_commands import assert_refused, run
from tests.comparison import test_difference as small
from tests.conftest import SAMPLES, analysis_of_sample, shared_file
from tests.privacy.secrets_in_traces import document_of
from tests.reports.test_accessible import CONTRASTS, RULES
from tests.reports.test_browser import opened
from tests.reports.test_browser_safe import HOSTILE, STRANGE, Hostile
from traceflops.comparison.report_side import side_of_report
from traceflops.comparison.result import Comparison, compare
from traceflops.comparison.side import IdlePart, Side, UsedWindow
from traceflops.reports.page.comparison import render_comparison_page
from traceflops.reports.page.comparison_drawings import bars
from traceflops.timeline.records import Components

if TYPE_CHECKING:
    from playwright.sync_api import Browser

V100 = "traces/pytorch/v100_kineto_resnet50_nw{}.json.gz"


@cache
def sample(name: str) -> tf.Analysis:
    return analysis_of_sample(name)


def made(gemm_ns: int, steps: int = 4, jitter: int = 40) -> tf.Analysis:
    """Return a recording of steps of two kernels, the first as long as this and some jitter."""
    works, marks, at = [], [], 0
    for step in range(steps):
        first_ns = gemm_ns + jitter * (step % 3)
        works.append(("sgemm_128x64", at, at + 10, first_ns))
        works.append(("vectorized_elementwise_kernel", at + 1, at + 10 + first_ns, 1_000))
        length_ns = first_ns + 1_020
        marks.append((f"ProfilerStep#{step}", at, length_ns))
        at += length_ns
    return tf.analyze(trace_of(**launched(*works), marks=step_marks(*marks)))


@cache
def faster_and_slower() -> Comparison:
    return tf.compare(sample("gpt_1rank.json.gz"), sample("gpt_ddp_4rank"), ("one", "four"))


def same() -> Comparison:
    return tf.compare(sample("gpt_1rank.json.gz"), sample("gpt_1rank.json.gz"))


def from_json() -> Comparison:
    side = side_of_report(sample("gpt_1rank.json.gz").to_json().encode())
    return tf.compare(side, sample("gpt_ddp_4rank"), ("base", "new"))


def both_from_json() -> Comparison:
    before, after = (
        side_of_report(sample(name).to_json().encode())
        for name in ("gpt_1rank.json.gz", "gpt_ddp_4rank")
    )
    return tf.compare(before, after, ("base", "new"))


def without_steps() -> Comparison:
    no_steps = tf.analyze(trace_of(**launched(("sgemm_128x64", 1, 10, 500))))
    return tf.compare(made(1_000), no_steps, ("steps", "none"))


def one_step() -> Comparison:
    return tf.compare(made(30_000, steps=1), made(20_000, steps=1), ("old", "new"))


def other_steps() -> Comparison:
    return tf.compare(made(20_000), made(26_000, steps=3), ("old", "new"))


CASES: dict[str, Callable[[], Comparison]] = {
    "two samples": faster_and_slower,
    "the same": same,
    "a report": from_json,
    "two reports": both_from_json,
    "no figures": without_steps,
    "one step": one_step,
    "other steps": other_steps,
}


@cache
def markup(name: str) -> str:
    if name == "several":
        base = made(20_000)
        side = side_of_report(made(24_000).to_json().encode())
        found = [
            tf.compare(base, made(26_000, steps=3), ("old", "new")),
            tf.compare(base, base, ("old", "again")),
            tf.compare(base, side, ("old", "report")),
            tf.compare(base, without_steps().after, ("old", "none")),
        ]
        return render_comparison_page(found)
    return render_comparison_page([CASES[name]()])


def amounts(page: str, begins: str, ends: str = "</section>") -> list[int]:
    """Return the whole ns that stand in a part of a page."""
    part = page.split(begins, 1)[1].split(ends, 1)[0]
    return [int(ns) for ns in re.findall(r'data-ns="(-?\d+)"', part)]


def mean_step_ns(analysis: tf.Analysis) -> int:
    used = [w for device in analysis.devices for w in device.windows if w.used]
    return int(fmean(window.end_ns - window.start_ns for window in used) + 0.5)


def text_of(page: str, tag: str) -> str:
    found = re.search(rf"<{tag}\b[^>]*>(.*?)</{tag}>", page, re.S)
    assert found
    return " ".join(re.sub("<[^>]+>", " ", found[1]).split()).replace("\N{NO-BREAK SPACE}", " ")


def assert_adds_up(page: str, before: tf.Analysis, after: tf.Analysis) -> None:
    """Waterfall, bars and both tables agree with the windows of the recordings, in whole ns."""
    ends = [mean_step_ns(before), mean_step_ns(after)]
    start, *parts, end = amounts(page, '<section id="waterfall"')
    assert [start, end] == ends
    assert sum(parts) == end - start
    assert len(parts) <= 10
    for name, begins in (("one", "By cause</"), ("all", "By kernel and culprit</")):
        assert sum(amounts(page, begins, "</table>")) == end - start, name
    bars = [one.split("</div>")[0] for one in page.split('class="step-bar"')[1:3]]
    assert [sum(map(int, re.findall(r'data-ns="(\d+)"', one))) for one in bars] == ends


def test_waterfall_tables_and_bars_add_up_to_the_mean_steps() -> None:
    page = markup("two samples")
    assert_adds_up(page, sample("gpt_1rank.json.gz"), sample("gpt_ddp_4rank"))
    places = [
        (float(x), float(width))
        for x, width in re.findall(
            r'<rect x="([-\d.]+)%" width="([\d.]+)%" height="22"',
            page.split('id="waterfall"')[1].split("</section>")[0],
        )
    ]
    assert len(places) >= 9
    assert all(x >= 0 and x + width <= 100.01 for x, width in places)


def test_real_steps_add_up_on_an_axis_that_begins_above_0_and_says_so() -> None:
    before, after = (tf.analyze(tf.read(shared_file(V100.format(n)))) for n in (0, 4))
    page = render_comparison_page([tf.compare(before, after, ("nw0", "nw4"))])
    assert_adds_up(page, before, after)
    assert text_of(page, "h1") == "Steps take 41.2 ms less: 58.2 ms less idle time, loading data."
    assert "Axis from 100 ms: the ends fade." in page
    assert "Parts sum to \N{MINUS SIGN}41,248,767&nbsp;ns exactly." in page
    assert page.count('fill="url(#fade)"') == 2
    assert "Step 9 of nw4 stands out: 162 ms." in page.replace("\N{NO-BREAK SPACE}", " ")
    lanes = page.split('<section id="timelines"')[1].split("</section>")[0]
    assert "<b>nw0</b> step 6, 175 ms" in lanes
    assert "<b>nw4</b> step 7, 128 ms" in lanes
    assert re.search(r"loading data 57\.\d ms</text>", lanes)
    assert "enumerate(DataLoader)" in lanes
    assert len(page) < 600_000


def test_a_slower_kernel_of_known_length_is_the_title() -> None:
    before, after = made(20_000), made(26_000)
    page = render_comparison_page([tf.compare(before, after, ("old", "new"))])
    title = "Steps take 6.00 µs more: 6.00 µs more in slower gemm kernels at equal calls."
    assert text_of(page, "h1") == title
    assert 6_000 in amounts(page, '<section id="waterfall"')
    assert sum(amounts(page, "By cause</", "</table>")) == 6_000
    assert "<dt>Lost</dt><dd><b>6.00 µs</b>" in page
    assert "Given back" not in page and "Won back" not in page
    assert "Nothing else that was recorded differs." in page


def test_noise_has_a_pale_figure_and_says_that_there_may_be_no_difference() -> None:
    found = tf.compare(made(20_000, jitter=4_000), made(20_900, jitter=4_000), ("old", "new"))
    page = render_comparison_page([found])
    assert text_of(page, "h1") == "No difference beyond the spread between steps."
    assert '<p class="change unsure">' in page
    assert "Not sure: the interval holds 0, so there may be no difference." in page


def test_both_steps_begin_at_0_of_one_axis_as_long_as_the_longer() -> None:
    before, after = made(60_000, jitter=0), made(20_000, jitter=0)
    page = render_comparison_page([tf.compare(before, after, ("old", "new"))])
    lanes = page.split('<section id="timelines"')[1].split("</section>")[0]
    drawn = [
        (float(x), float(width))
        for group in re.findall(r'<g fill="#2A6F97">(.*?)</g>', lanes)
        for x, width in re.findall(r'x="([\d.]+)%" width="([\d.]+)%"', group)
    ]
    assert [x for x, _ in drawn] == [0, 0]
    assert [width for _, width in drawn] == pytest.approx(
        [100 * 60_000 / 61_020, 100 * 20_000 / 61_020], abs=0.01
    )


def test_the_row_of_waits_is_no_busy_stream() -> None:
    page = render_comparison_page(
        [tf.compare(sample("gpt_1rank.json.gz"), sample("gpt_ddp_4rank"))]
    )
    assert re.findall(r"Busy: (\w+)", page) == ["stream", "stream"]


def test_of_ranks_one_that_both_sides_have_is_drawn() -> None:
    alone = tf.analyze(tf.read(SAMPLES / "gpt_ddp_4rank" / "rank1.json.gz"))
    page = render_comparison_page([tf.compare(sample("gpt_ddp_4rank"), alone, ("all", "one"))])
    lanes = page.split('<section id="timelines"')[1].split("</section>")[0]
    assert set(re.findall(r"heading\">(rank \d)", lanes)) == {"rank 1"}


def test_the_cases_say_what_they_are() -> None:
    pages = {name: markup(name) for name in CASES}
    assert text_of(pages["the same"], "h1") == ("The two are the same recording: nothing differs.")
    assert text_of(pages["no figures"], "h1") == (
        "Not compared: no steps were found in none, and a whole recording is no step."
    )
    for name in ("the same", "no figures"):
        assert 'id="waterfall"' not in pages[name]
        assert 'class="change' not in pages[name]
    assert "base is a report as JSON, which holds no timeline." in pages["a report"]
    assert "<b>new</b> step " in pages["a report"]
    assert pages["two reports"].count("is a report as JSON") == 2
    assert 'class="timeline-row"' not in pages["two reports"]
    assert "one step each: no interval" in text_of(pages["one step"], "header")
    assert 'class="interval"' not in pages["one step"]
    assert pages["two samples"].count('class="interval"') == 2, "in the drawing and its key"


def test_idle_time_is_one_part_of_the_bars_where_a_side_has_no_culprits() -> None:
    known = small.side("a", small.kernel("k", 900), idle=(IdlePart("data_input", "next", 500),))
    window = UsedWindow(0, 0, 0, Components(compute_ns=900, idle_ns=600))
    unknown = Side("b", (window,), known.work, ())
    for sides, idle in (((known, unknown), ["idle"]), ((known, known), ["loading data"])):
        changes = bars(sides, ("a", "b"))["changes"]
        shown = [change["part"].label for change in changes]
        assert shown == ["compute", *idle]
    text = render_comparison_page([compare(known, unknown)])
    assert "loading data" not in text.lower() and "one side only" not in text


def test_several_recordings_are_one_page_with_a_section_each() -> None:
    page = markup("several")
    assert text_of(page, "h1") == "4 recordings against old."
    assert re.findall(r'<section id="(case-\d)"', page) == [f"case-{at}" for at in range(1, 5)]
    titles = [re.sub("<[^>]+>", "", one) for one in re.findall(r"<h2 class=.*?</h2>", page)]
    assert [one.split(":")[0] for one in titles] == [
        "Steps take 5.98\N{NO-BREAK SPACE}µs more",  # the last step is cut off: 20 ns less jitter
        "The two are the same recording",
        "Steps take 4.00\N{NO-BREAK SPACE}µs more",
        "Not compared",
    ]
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert sorted(set(ids)) == sorted(ids)
    links = set(re.findall(r'href="#([^"]+)"', page))
    assert links <= set(ids)
    start, *parts, end = amounts(page, '<section id="waterfall-1"')
    assert start + sum(parts) == end


def test_it_asks_for_nothing_and_needs_no_script(browser: Browser, tmp_path: Path) -> None:
    page = markup("two samples")
    found = opened(browser, tmp_path / "page.html", page)
    assert found.complaints == []
    assert found.requests == [found.page.url]
    found.page.locator("#theme").click()
    assert found.page.evaluate("document.documentElement.dataset.theme") == "dark"
    found.page.context.close()
    bare = opened(browser, tmp_path / "bare.html", page, scripts=False)
    rows = bare.page.locator(".few:has(#parts-all) tbody tr:visible")
    assert rows.count() == 15
    bare.page.locator("label[for=parts-all]").click()
    assert rows.count() == len(faster_and_slower().part_rows())
    assert bare.page.locator("#waterfall .side:visible").count() == 13
    assert bare.page.locator("#timelines .timeline-row:visible").count() >= 8
    assert bare.complaints == []
    bare.page.context.close()


def test_no_text_of_a_trace_acts_in_the_page(browser: Browser, tmp_path: Path) -> None:
    sides = []
    for number in (0, 1):
        document = document_of(Hostile())
        for event in document["traceEvents"]:
            if event.get("cat") == "kernel":
                event["dur"] += number
        path = tmp_path / f"<b class=owned>{number}.json"
        path.write_text(json.dumps(document))
        sides.append(tf.analyze(tf.read(path)))
    found = tf.compare(sides[0], sides[1], (HOSTILE[0], HOSTILE[8]))
    assert not found.obstacle and not found.is_same
    shown = opened(browser, tmp_path / "page.html", render_comparison_page([found]))
    assert shown.page.evaluate(STRANGE) == 0
    assert shown.page.evaluate("window.owned") is None
    assert shown.complaints == []
    assert shown.page.locator("#changes tbody tr").count() > 5
    shown.page.context.close()


@pytest.mark.parametrize(
    ("name", "theme", "width"),
    [("other steps", "light", 1280), ("several", "dark", 360)],
)
def test_axe_finds_nothing(
    browser: Browser, tmp_path: Path, name: str, theme: Any, width: int
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    path = tmp_path / "page.html"
    path.write_text(markup(name), encoding="utf-8")
    context = browser.new_context(
        offline=True,
        bypass_csp=True,  # axe is put into the page, which its policy forbids
        color_scheme=theme,
        viewport={"width": width, "height": 900},
    )
    page = context.new_page()
    page.goto(path.as_uri())
    found = Axe().run(page, options=RULES).response["violations"]
    context.close()
    assert [(each["id"], each["nodes"][0]["html"][:300]) for each in found] == []


@pytest.mark.parametrize(("theme", "width"), [("light", 360), ("dark", 1280), ("light", 1280)])
def test_text_stands_out_and_nothing_is_wider_than_the_page(
    browser: Browser, tmp_path: Path, theme: Any, width: int
) -> None:
    path = tmp_path / "page.html"
    path.write_text(markup("two samples"), encoding="utf-8")
    size: Any = {"width": width, "height": 900}
    context = browser.new_context(offline=True, color_scheme=theme, viewport=size)
    page = context.new_page()
    page.goto(path.as_uri())
    contrasts = page.evaluate(CONTRASTS)
    too_wide = page.evaluate("document.documentElement.scrollWidth") - width
    context.close()
    assert len(contrasts) > 200
    assert [(round(ratio, 2), text) for ratio, text in contrasts if ratio < 4.5] == []
    assert too_wide <= 0


def test_the_command_writes_the_page_of_two_and_of_several(tmp_path: Path) -> None:
    path, sides = tmp_path / "diff.html", []
    for name in ("gpt_1rank.json.gz", "gpt_ddp_4rank"):
        sides.append(str(tmp_path / f"{name.partition('.')[0]}.json"))
        Path(sides[-1]).write_text(sample(name).to_json())
    for _ in range(2):  # a page of ours is replaced
        assert run("compare", *sides, "--names", "a,b", "-o", str(path)).exit_code == 0
    assert "<title>+114.7 % · a → b</title>" in path.read_text(encoding="utf-8")
    assert run("compare", *sides, sides[0], "-o", str(path)).exit_code == 0
    page = path.read_text(encoding="utf-8")
    assert text_of(page, "h1") == "2 recordings against gpt_1rank (1)."
    bars = page.split("</header>")[0]
    names = ["gpt_1rank (1)", "rank0 and 3 more", "gpt_1rank (2)"]
    assert re.findall(r'aria-label="([^",]+), mean', bars) == names
    several = tmp_path / "several.json"
    for _ in range(2):
        assert run("compare", *sides, sides[0], "-o", str(several)).exit_code == 0
    assert json.loads(several.read_text())["schema"] == "traceflops.comparisons/1"
    markdown = str(tmp_path / "diff.md")
    assert_refused(run("compare", *sides, sides[0], "-o", markdown), 2, ".html or .json")
    mine = tmp_path / "mine.html"
    mine.write_text("mine")
    assert_refused(run("compare", *sides, "-o", str(mine)), 2, "will not overwrite")
    assert mine.read_text() == "mine"
