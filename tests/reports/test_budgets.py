"""The page stays small whatever the trace: budgets of bytes. What it costs is in benchmarks."""

from __future__ import annotations

import re

import numpy as np
import pytest
from markupsafe import escape

import traceflops as tf
from tests.conftest import ROOT, SAMPLES, by_night, page_of_sample, some
from tests.reports.bigtraces import big_trace
from tests.reports.factory import measured
from tests.reports.hostiletraces import hostile_trace
from traceflops.analysis.preparation import prepare
from traceflops.analysis.recipe import analysis_of
from traceflops.categories import activities
from traceflops.reports.page import timeline
from traceflops.reports.page.html import render_html
from traceflops.reports.page.jinja import cost, cut, tip

MOST_WORDS = 45
"""Above the bar: title, warnings, where, what to do, how sure."""
PAGES = (
    *("gpt_1rank.json.gz", "gpt_ddp_4rank", "rocprofv3_csv", "nsight_h100/run.sqlite"),
    *("tutorials/training/before", "tutorials/serving/before", "tutorials/serving/after"),
    *("tutorials/training", "tutorials/serving"),  # two recordings each, with a warning
)
FIXTURES = sorted(
    path.name
    for path in (ROOT / "tests" / "fixtures" / "pytorch").glob("*.json")
    if not path.name.endswith(".expected.json") and path.name != "q44_events_are_an_object.json"
)
DEAR = {
    "what HTML escapes": "\"'<>&",
    "three bytes each": "".join(map(chr, range(0x4E00, 0x6E00))),
    "four bytes each": "".join(map(chr, range(0x1F300, 0x1F600))),
    "what is shown as escapes": "\u202e\u200b\u2066ab",
}
SAMPLE_BYTES = {"gpt_1rank.json.gz": 700_000, "gpt_ddp_4rank": 800_000}
MOST_BYTES = 3_000_000


def page_of(trace: tf.Trace) -> str:
    return render_html(tf.analyze(trace), "traceflops report trace.json")


def sections(page: str) -> set[str]:
    return set(re.findall(r'<section[^>]* id="([a-z]+)"', page))


def words_above_the_bar(page: str) -> list[str]:
    """Return what is read before the bar; nothing where there is no bar."""
    head, has_bar, _ = page.partition('<div class="step-bar"')
    head = re.sub(r'<span class="unseen">.*?</span>', "", head.partition('<header id="case">')[2])
    words = re.sub(r"<[^>]+>", " ", head).replace("\N{NO-BREAK SPACE}", " ").split()
    return [word for word in words if has_bar and re.search(r"[^\W_]", word)]


@pytest.mark.parametrize("name", PAGES)
def test_few_words_stand_above_the_bar(name: str) -> None:
    words = words_above_the_bar(page_of_sample(name))
    assert 0 < len(words) <= MOST_WORDS, words


@pytest.mark.parametrize("name", some(FIXTURES, 4))
def test_few_words_stand_above_the_bar_of_a_fixture(name: str) -> None:
    analysis = tf.analyze(ROOT / "tests" / "fixtures" / "pytorch" / name)
    assert len(words := words_above_the_bar(render_html(analysis))) <= MOST_WORDS, words


def test_what_is_cut_above_the_bar_stands_below_it() -> None:
    """The warning of two recordings is a clause that leads to the note with all of it."""
    head, _, rest = page_of_sample("tutorials/training").partition('<div class="step-bar"')
    assert '<b>Warning:</b> <a href="#notes">Jobs may be mixed</a>' in head
    assert "give them separately" in rest and "give them separately" not in head


@pytest.mark.parametrize("name", SAMPLE_BYTES)
def test_samples(name: str) -> None:
    page = page_of(tf.read(SAMPLES / name))
    assert len(page.encode()) <= SAMPLE_BYTES[name]


@pytest.mark.parametrize(
    ("ranks", "steps", "kernels", "most_bytes"),
    [
        pytest.param(512, 3, 4, 750_000, id="512 ranks", marks=by_night()),
        pytest.param(64, 20, 4, 1_300_000, id="64 ranks of 20 steps", marks=by_night()),
        pytest.param(1, 400, 4, 1_550_000, id="400 steps"),
        pytest.param(1, 20, 2_000, 1_250_000, id="40,000 kernels", marks=by_night()),
        pytest.param(512, 100, 4, MOST_BYTES, id="512 ranks of 100 steps", marks=by_night()),
        pytest.param(1, 10_000, 10, MOST_BYTES, id="10,000 steps", marks=by_night()),
        pytest.param(1, 100, 2_000, MOST_BYTES, id="a million events", marks=by_night()),
        pytest.param(8, 20, 1_250, MOST_BYTES, id="a million of 8 ranks", marks=by_night()),
    ],
)
def test_large_traces(ranks: int, steps: int, kernels: int, most_bytes: int) -> None:
    """By day each budget is a fifth above what the page has, so that a section that grows shows."""
    trace = big_trace(ranks, steps, kernels)
    assert trace.activities.num_rows == ranks * steps * kernels
    page = page_of(trace)
    assert len(page.encode()) <= most_bytes
    assert {"steps", "kernels", "operators", "timeline"} <= sections(page)
    assert ("ranks" in sections(page)) is (ranks > 1)


@by_night()
def test_very_many_long_names(monkeypatch: pytest.MonkeyPatch) -> None:
    # What rules and utilisation make of names takes long and does not make the page larger.
    monkeypatch.setattr(activities, "_MOST_NAMES", 1_000)
    trace = big_trace(steps=4, kernels=35_000, names=100_000, longest_name=2_000, depth=0)
    none = np.zeros(trace.activities.num_rows, np.int64)
    monkeypatch.setattr(timeline, "activity_flops", lambda _: none)
    analysis = analysis_of(prepare(trace), measured=measured(False))
    names = analysis.kernels["name"].to_pylist()
    assert len(names) > 95_000
    assert {len(name) for name in names} == {2_000, 45}
    assert len(render_html(analysis).encode()) <= MOST_BYTES


@by_night()
@pytest.mark.parametrize("alphabet", DEAR.values(), ids=DEAR)
def test_long_texts_of_characters_that_are_dear(alphabet: str) -> None:
    """Kernels, copies, ops, calls, modules, ranges, shapes, devices, files, facts and notes."""
    page = page_of(hostile_trace(alphabet))
    assert len(page.encode()) <= MOST_BYTES
    assert {"kernels", "operators", "timeline", "ranks", "notes"} <= sections(page)
    # What is cut says how much there is of it.
    assert re.search(r'title="[^"]{20,} \(3,000 characters\)"', page)


def test_a_text_costs_what_it_takes_in_the_page() -> None:
    # & < > " ' become &amp; &lt; &gt; &#34; &#39;; µ has two bytes, 平 three.
    assert cost("a&<>\"'") == 1 + 5 + 4 + 4 + 5 + 5
    assert cost("µ平") == 5


@pytest.mark.parametrize(("text", "width", "most"), [("'" * 500, 100, 300), ("平" * 500, 400, 600)])
def test_a_text_is_cut_by_its_cost(text: str, width: int, most: int) -> None:
    """The room is the width and 200 bytes."""
    shown = cut(text, width)
    assert len(escape(shown).encode()) <= most
    assert len(escape(shown).encode()) > most * 0.9
    assert set(shown) == {text[0], "…"}
    assert cut("'" * 40, 40) == "'" * 40
    told = tip(text, width)
    assert told == cut(text, width - len(" (500 characters)")) + " (500 characters)"
    assert len(told) <= width
    assert tip("short", 100) == "short"
