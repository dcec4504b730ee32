"""The page stays small whatever the trace: budgets of bytes. What it costs is in benchmarks."""

from __future__ import annotations

import re

import numpy as np
import pytest
from markupsafe import escape

import traceflops as tf
from tests.conftest import SAMPLES, by_night
from tests.reports.bigtraces import big_trace
from tests.reports.factory import measured
from tests.reports.hostiletraces import hostile_trace
from traceflops.analysis.preparation import prepare
from traceflops.analysis.recipe import analysis_of
from traceflops.categories import activities
from traceflops.reports.page import timeline
from traceflops.reports.page.html import render_html
from traceflops.reports.page.jinja import cost, cut, tip

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
