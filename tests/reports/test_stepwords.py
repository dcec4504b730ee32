"""What is said of steps that differ, of runs on the CPU alone, and in the title of the window."""

import html
import json
import re

import pytest
from msgspec.structs import replace

import traceflops as tf
from tests.build import launched, trace_of
from tests.conftest import analysis_of_sample, shared_file
from tests.reports.test_terminal import printed
from tests.windows.test_repetition import step_of
from tests.windows.test_step_times import alone, ranks
from traceflops.reports.markdown import render_markdown
from traceflops.reports.page.case import Tile
from traceflops.reports.page.case import tiles as case_tiles
from traceflops.reports.page.html import render_html
from traceflops.reports.terminal.lines import Style
from traceflops.reports.view.chapters import post_mortem
from traceflops.reports.view.step_split import step_parts
from traceflops.table.trace import Note


def tiles(analysis: tf.Analysis) -> list[Tile]:
    return list(case_tiles(analysis, step_parts(analysis)))


def step_tile(analysis: tf.Analysis) -> Tile:
    (tile,) = (one for one in tiles(analysis) if one.label == "Step time")
    return tile


def text_of(page: str, start: str, end: str) -> str:
    """Return the words of a part of a page."""
    part = page.split(start)[1].split(end)[0]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", part)).split())


def section(page: str, name: str) -> str:
    return text_of(page, f'<section id="{name}">', "</section>")


def of_20_steps() -> tf.Analysis:
    """Return 20 steps: 18 of 100 µs, one of 150 and one of 300 µs: 2,250 µs, a mean of 112.5."""
    return alone(*[100_000] * 9, 300_000, 150_000, *[100_000] * 9)


def test_the_step_time_says_mean_reach_and_what_stands_out() -> None:
    tile = step_tile(of_20_steps())
    assert tile.value == "100 µs"
    assert tile.text == (
        "median of 20 of 21 steps; "
        "mean 112 µs, p95 150 µs, longest 300 µs (step 9, 3.00 × the median)"
    )


def test_idle_time_in_which_work_may_be_missing_is_a_part_and_no_loss() -> None:
    """One kernel starts 60 ms after its launch, for no recorded reason; before, the host is late.

    Of 110 ms 10 are each of 3 kernels, 20 idle before the launch of the second.
    """
    ms = 1_000_000
    works = [("gemm", 0, 100, 10 * ms), ("gemm", 30 * ms, 30 * ms + 100, 10 * ms)]
    works.append(("gemm", 40 * ms, 100 * ms + 100, 10 * ms))
    analysis = tf.analyze(trace_of(**launched(*works)))
    parts = {part.label: (part.ns // ms, part.is_loss) for part in step_parts(analysis)}
    assert parts["no recorded work"] == (60, False)
    assert parts["untraced host time"] == (19, True)
    (loss,) = (one for one in tiles(analysis) if one.label.startswith("Largest loss"))
    assert loss.label == "Largest loss: untraced host time"


def test_even_steps_are_told_by_the_longest_and_many_by_their_reach() -> None:
    few = alone(100_000, 101_000, 100_000)
    assert step_tile(few).text.endswith("; mean 100 µs, longest 101 µs (step 1)")
    many = alone(*[100_000] * 20)
    assert step_tile(many).text.endswith("; mean 100 µs, p95 100 µs")


def test_every_place_names_the_same_longest_step() -> None:
    """By its longest rank step 2 would be the slowest; by the mean of both ranks step 1 is."""
    trace = ranks((100_000, 100_000), (140_000, 140_000), (90_000, 160_000), *[(100_000,) * 2] * 2)
    analysis = tf.analyze(trace)
    page = render_html(analysis)
    steps = section(page, "steps")
    assert "Longest used step: 1 (140 µs" in steps
    assert re.findall(r"(\d+) longest\b", steps) == ["1"]
    assert "Step 1, longest used, 140 µs" in page
    assert "longest 140 µs (step 1" in step_tile(analysis).text


def test_the_terminal_and_the_json_say_it_too() -> None:
    analysis = of_20_steps()
    said = printed(analysis, Style())
    assert "Used steps: median 100 µs, mean 112 µs, p95 150 µs, longest 300 µs" in said
    assert "Averages per step and GPU (20 steps × 1 GPU)" in said
    assert json.loads(analysis.to_json())["steps"]["times"] == {
        "mean_ns": 112_500,
        "p95_ns": 150_000,
        "longest": 9,
        "longest_ns": 300_000,
        "beyond_median_ns": 250_000,
    }
    assert "Used steps:" not in printed(alone(100, 101, 100), Style())
    whole = tf.analyze(trace_of(activities=[{"name": "k", "start_ns": 0}]))
    assert json.loads(whole.to_json())["steps"]["times"] is None


@pytest.fixture(scope="module")
def on_host() -> tf.Analysis:
    return analysis_of_sample("torch_cpu_train.json.gz")


def test_where_there_is_no_device_nothing_is_said_of_one(on_host: tf.Analysis) -> None:
    page = render_html(on_host)
    assert [one.label for one in tiles(on_host)] == [
        "MFU",
        "Step time",
        "Largest loss: time between operators",
    ]
    head = text_of(page, '<header id="case">', "</header>")
    for name in ("head", "idle", "categories"):
        words = head if name == "head" else section(page, name)
        left = words.replace("This trace has no GPU operations", "")
        assert "device" not in left, name
        assert "GPU" not in left, name
        assert "communication" not in left, name
    assert "CPU operators of one process" in head
    assert "compute kernel time" not in section(page, "peak")
    # Step 6 is the longest of all, and not among those used.
    assert "Longest used step: 5" in section(page, "steps")
    said = printed(on_host, Style())
    assert "exposed communication" not in said
    assert "Top of 90 operators" in said
    assert "Top operators" in render_markdown(on_host)


def title(analysis: tf.Analysis) -> str:
    return text_of(render_html(analysis), "<title>", "</title>")


def test_the_title_is_short_and_whole(on_host: tf.Analysis) -> None:
    idle = on_host.components.idle_ns / on_host.components.window_ns
    ran = f"{100 * (1 - idle):.1f} %"
    assert title(on_host) == f"CPU operators {ran} · torch_cpu_train.json.gz · traceflops"
    sums = trace_of(activities=[], totals=[{"name": "k", "count": 2, "total_ns": 65_692_000}])
    totals = tf.analyze(sums)
    assert title(totals) == "No timeline · made.json · traceflops"
    assert "65.7 ms of GPU time" in totals.verdict.sentence
    assert title(tf.analyze(trace_of())) == "No GPU operations · made.json · traceflops"
    busy = tf.analyze(trace_of(activities=[{"name": "sm90_gemm_bf16", "start_ns": 0}]))
    assert title(busy) == "100.0 % busy · made.json · traceflops"


def test_the_method_fits_what_there_is() -> None:
    sums = trace_of(activities=[], totals=[{"name": "k", "count": 2, "total_ns": 10}])
    method = section(render_html(tf.analyze(sums)), "method")
    for absent in ("whole span is one window", "Steps used", "Idle causes", "of GPU time"):
        assert absent not in method
    assert "MFU and HFU" in method
    whole = section(render_html(alone(100, 100, 100)), "method")
    for present in ("Components", "Exposed communication", "Steps used", "Idle causes", "(0.0"):
        assert present in whole


def test_steps_that_are_inferred_are_called_so_and_marked_ones_are_not() -> None:
    """Six steps of 35 kernels, of which the last may be cut; nothing marks them."""
    names = step_of(6, 5) * 6
    rows = [{"name": f"kernel {name}", "start_ns": 1000 + 10 * at} for at, name in enumerate(names)]
    inferred, marked = tf.analyze(trace_of(activities=rows)), of_20_steps()
    seen, used = len(inferred.steps.seen), len(inferred.steps.used)
    for text in (printed(inferred, Style(width=100)), render_markdown(inferred)):
        assert f"{used} of {seen} inferred steps (0" in text
    assert f"median of {used} of {seen} inferred steps" in render_html(inferred)
    assert "inferred steps" not in printed(marked, Style(width=100))


def test_notes_about_the_largest_part_of_the_time_come_first_then_by_kind() -> None:
    notes = (
        Note("assumed", "a", "Note a."),
        Note("missing", "b", "Note b."),
        Note("assumed", "c", "Note c.", share=0.549),
        Note("dropped", "d", "Note d."),
        Note("repaired", "e", "Note e."),
        Note("missing", "f", "Note f.", share=0.2),
    )
    analysis = replace(of_20_steps(), notes=notes)
    for text in (printed(analysis, Style(width=100)), render_markdown(analysis)):
        told = re.findall(r"Note (\w)\.", text)
        assert told == list("cfedba")[: len(told)]
        assert len(told) >= 2
    assert re.findall(r"Note (\w)\.", section(render_html(analysis), "notes")) == list("cfedba")


def test_work_outside_the_steps_is_a_note_with_its_share() -> None:
    path = shared_file("traces/rocprof/v3_json_mi350x_ddp_train.json.gz")
    text = printed(tf.analyze(tf.read(path)), Style(width=200))
    first = next(line for line in text.splitlines() if line.startswith("note "))
    assert first.startswith("note 2.33 s of GPU work (54.9 %) runs outside the steps")


@pytest.mark.parametrize(("name", "what"), [("ProfilerStep#{}", "steps"), ("part {}", "work")])
def test_the_post_mortem_speaks_of_steps_only_where_there_are_some(name: str, what: str) -> None:
    works = [("k(int)", 1_000 * at, 1_000 * at + 10, 900) for at in range(4)]
    marks = [{"name": name.format(at), "start_ns": 1_000 * at, "dur_ns": 999} for at in range(4)]
    analysis = tf.analyze(trace_of(**launched(*works), marks=marks if what == "steps" else []))
    (*_, last) = post_mortem(analysis)
    assert last.sentences[-1].startswith(f"After the change, record the same {what} with")
