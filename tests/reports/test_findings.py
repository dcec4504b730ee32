"""Findings, the critical path and the post-mortem as people see them, and as JSON has them."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

import traceflops as tf
from tests.build import launched, trace_of
from tests.cli.test_commands import SAMPLE, assert_refused, run
from tests.conftest import SAMPLES, analysis_of_sample, shared_file, some
from tests.reports.test_timeline import column, data_of
from traceflops.errors import InputError
from traceflops.facts import fact, quoted
from traceflops.findings.finding import (
    Confidence,
    Finding,
    Gain,
    MfuRange,
    Owner,
    Row,
    Where,
    row_name,
    short_name,
)
from traceflops.reports.json.report import report_object
from traceflops.reports.markdown import render_markdown, render_post_mortem
from traceflops.reports.page.case import Tile
from traceflops.reports.page.case import tiles as tiles_of
from traceflops.reports.page.evidence import findings_shown
from traceflops.reports.page.html import render_html
from traceflops.reports.page.section import link_to
from traceflops.reports.page.thumbnails import thumbnail
from traceflops.reports.terminal.lines import Style
from traceflops.reports.terminal.summary import render_terminal
from traceflops.reports.view.figures import percent
from traceflops.reports.view.findings import (
    Opening,
    causes,
    headline,
    left_to_say,
    opening,
    title_sentence,
)
from traceflops.reports.view.palette import LOOKS
from traceflops.reports.view.step_split import step_parts, told_parts
from traceflops.reports.view.texts import sentences, words
from traceflops.timeline.intervals import Intervals

MS = 1_000_000
CHAPTERS = (
    *("What happened", "Evidence", "Cause", "Remedy", "Expected gain"),
    *("What this recording cannot tell", "Next recording"),
)


def test_what_stands_out_is_short() -> None:
    """Bold are each sentence of the title, and the first one of a claim."""
    folders = (SAMPLES, SAMPLES.parent / "tests" / "fixtures", shared_file("traces"))
    files = [file for folder in folders for file in sorted(folder.rglob("*.*")) if file.is_file()]
    for file in some(files, 8):
        with suppress(InputError):
            analysis = tf.analyze(file)
            claims = [words(one.finding.claim) for one in causes(analysis)]
            bold = [*opening(analysis).statements, *(sentences(claim)[0] for claim in claims)]
            assert [text for text in bold if len(text) > 165] == [], file.name


@cache
def sample(name: str = "gpt_1rank.json.gz") -> tf.Analysis:
    return analysis_of_sample(name)


def cause(number: int = 1, low: int = MS, high: int = 2 * MS, priority: str = "high") -> Finding:
    """Return a made-up cause; the mean step of the sample is 4.71 ms."""
    return Finding(
        rule=f"made-{number}",
        severity="low",
        share=0.1,
        name=quoted(f"Cause {number}"),
        claim=quoted(f"Sentence {number}."),
        evidence=("idle",),
        priority=priority,  # type: ignore[arg-type]
        owner="yours",
        advice=quoted(f"Remedy {number}."),
        gain=Gain(low, high, None),
        mfu_after=MfuRange(0.31, 0.32),
        confidence=Confidence("low", (quoted("one step only"),)),
        rows=(Row("name<of>", 3 * MS, 7),),
    )


def with_causes(*found: Finding) -> tf.Analysis:
    analysis = replace(sample())
    vars(analysis)["findings"] = found
    return analysis


def lines_of(analysis: tf.Analysis, width: int = 100) -> list[str]:
    return [line.plain.strip() for line in render_terminal(analysis, Style(width=width))]


def saves(time: str, share: str) -> str:
    """Return how a gain of each step is told."""
    return words(fact("finding.saves", time=time, per="step", share=share))


def text_of(page: str, section: str) -> str:
    found = page.split(f'<section id="{section}">')[1].split("</section>")[0]
    return " ".join(re.sub(r"<[^>]*>", " ", found).replace("\N{NO-BREAK SPACE}", " ").split())


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (cause(low=0), "What to fix first: cause 1 (saves at most 2.00 ms per step)."),
        (cause(low=0, priority="low"), ""),
        (cause(), ""),  # it is the title
    ],
)
def test_where_no_finding_is_the_title_what_to_fix_first_follows_it(
    first: Finding, said: str
) -> None:
    analysis = with_causes(first)
    assert opening(analysis)[1].endswith(said)
    shown = " ".join(lines_of(analysis)), render_html(analysis).replace("\N{NO-BREAK SPACE}", " ")
    assert [text.count("What to fix first: cause 1") for text in shown] == [len(said) > 0] * 2


@pytest.mark.parametrize("width", [50, 80, 110])
def test_the_first_ten_lines_say_what_how_much_where_how_sure_and_what_to_do(width: int) -> None:
    """The stall of the sample's loader is 702 µs of each step (docs/replay.md)."""
    head = " ".join(lines_of(sample(), width)[:10])
    for said in (
        "The input pipeline is too slow: 702 µs of each 4.71 ms step can be saved in step "
        "(train.py:71).",
        "MFU 30.4 → 35.7 %",
        "sure: high",
        "help: Give the DataLoader's workers",
    ):
        assert said in head
    assert "without it" not in head


@pytest.mark.parametrize(
    ("owner", "is_place"), [("yours", False), ("configuration", False), ("library", True)]
)
def test_a_kernel_of_a_library_is_a_place_only_for_its_authors(
    owner: Owner, *, is_place: bool
) -> None:
    kernel = max(sample().measured.kernels, key=lambda row: row.category.top == "compute").name
    for name, is_named in ((kernel, is_place), ("kernel_of_mine", True)):
        made = replace(cause(), owner=owner, rows=(Row(row_name(name), MS, 1),))
        (one,) = causes(with_causes(made))
        assert bool(one.where) == is_named, name


def test_what_to_fix_first_keeps_the_capitals_of_gemms() -> None:
    first = replace(cause(low=0), name=quoted("GEMMs are slow"))
    assert "What to fix first: GEMMs are slow (" in opening(with_causes(first)).rest


def test_what_a_title_leaves_out_says_what_it_is_about() -> None:
    first = cause()
    more = replace(first, details=(quoted("Largest part: aten::copy_."),))
    assert left_to_say(first, Opening(("Cause 1. Sentence 1.",), "", first)) == ""
    assert left_to_say(first, Opening(("Idle time.",), "", None)) == "Sentence 1."
    left = left_to_say(more, Opening(("Cause 1. Sentence 1.",), "", more))
    assert left == "Cause 1. Largest part: aten::copy_."


def test_a_finding_that_the_title_tells_is_told_once_on_the_page() -> None:
    grave = replace(cause(), severity="high", gain=None)
    page = render_html(with_causes(grave)).replace("\N{NO-BREAK SPACE}", " ")
    assert "<h1>Cause 1. Sentence 1.</h1>" in page
    assert "<h3>Cause 1</h3>" in page
    assert "Sentence 1." not in text_of(page, "findings")


def test_at_most_two_reasons_say_how_sure_a_finding_is_and_the_json_has_all() -> None:
    reasons = ("one", "another, too", "there is only one step")
    analysis = with_causes(
        replace(cause(), confidence=Confidence("low", tuple(map(quoted, reasons))))
    )
    assert [(c.level, c.reasons) for c in causes(analysis)] == [("low", "one; another, too")]
    assert "why low: one; another, too" in lines_of(analysis)
    (first,) = report_object(analysis)["findings"]
    assert tuple(first["confidence"]["reasons"]) == reasons


def test_gains_are_the_same_wherever_they_are_told() -> None:
    (first, *_) = report_object(sample())["findings"]
    assert (first["gain"]["low_ns"], first["gain"]["high_ns"]) == (702_000, 702_001)
    assert round(first["mfu_after"]["high"], 3) == 0.357
    saved = saves("702 µs", "14.9 %")
    page = render_html(sample())
    brief = page.split('<dl class="brief">')[1].split("</dl>")[0]
    answer = " ".join(re.sub(r"<[^>]*>", " ", brief).split())
    assert answer.startswith("Owner input pipeline Do Give ")
    assert "Sure High" in answer and "Saves" not in answer
    assert "Then MFU 30.4 → 35.7 %" in text_of(page, "findings")
    assert f"**The input pipeline is too slow: {saved}**, MFU 30.4 → 35.7 %" in render_markdown(
        sample()
    )
    assert f"{saved.capitalize()}, MFU 30.4 → 35.7 %." in render_post_mortem(sample())


def test_the_best_finding_begins_the_verdict_everywhere() -> None:
    best = (
        "The input pipeline is too slow: 702 µs of each 4.71 ms step can be saved in step "
        "(train.py:71)."
    )
    assert title_sentence(sample()) == f"{best} {sample().verdict.sentence}"
    assert report_object(sample())["verdict"]["sentence"] == title_sentence(sample())
    assert f"<h1>{best}</h1>" in render_html(sample()).replace("\N{NO-BREAK SPACE}", " ")
    assert f"## {best}\n\n{sample().verdict.sentence}" in render_markdown(sample())
    assert lines_of(sample())[0] == best


@pytest.mark.parametrize(
    ("found", "begins"),
    [
        (cause(), "Cause 1: 1.00 to 2.00 ms of each 4.71 ms step can be saved."),
        (cause(low=MS, high=MS), "Cause 1: 1.00 ms of each 4.71 ms step can be saved."),
        (cause(low=900_000), "Cause 1: 900 µs to 2.00 ms of each 4.71 ms step"),
        (cause(low=-5), ""),  # it may gain nothing
        (cause(low=50_000), ""),  # 1 % of a step is sure
        (cause(priority="low"), ""),
        (replace(cause(), gain=None), ""),
    ],
)
def test_it_begins_the_verdict_where_it_surely_gains_something(found: Finding, begins: str) -> None:
    first = headline(with_causes(found))
    assert first.sentence.startswith(begins)
    assert (first.code, first.finding) == (
        ("made-1", 0) if begins else ("verdict.largest-two", None)
    )


def test_a_gain_that_may_be_nothing_is_at_most_its_upper_end() -> None:
    lines = lines_of(with_causes(cause(low=-5)))
    assert any(line.endswith(saves("at most 2.00 ms", "42.4 %")) for line in lines)
    assert any("MFU 30.4 → at most 32.0 %" in line for line in lines)
    assert "gain unknown" in " ".join(lines_of(with_causes(replace(cause(), gain=None))))


@pytest.mark.parametrize(("low", "title"), [(0, "Cause 1. Sentence 1."), (MS, "Cause 1: 1.00 to")])
def test_what_the_first_finding_saves_is_told_once(low: int, title: str) -> None:
    first = replace(cause(low=low), severity="high")
    text = " ".join(lines_of(with_causes(first)))
    assert text.startswith(title)
    assert text.count("2.00 ms") == 1
    assert (saves("at most 2.00 ms", "42.4 %") in text) is (low == 0)


@pytest.mark.parametrize(
    ("edits", "shown"),
    [
        (("data_input=0",), "try: traceflops what-if TRACE data_input=0"),
        (("host:^a b$=0", "sync=0"), "try: traceflops what-if TRACE 'host:^a b$=0' sync=0"),
        ((f"host:{'x' * 40}=0",), None),
        ((), None),
    ],
)
def test_the_question_behind_the_first_gain_is_told(edits: Sequence[str], shown: str) -> None:
    found = [replace(cause(number), edits=tuple(edits)) for number in (1, 2)]
    said = [line for line in lines_of(with_causes(*found)) if line.startswith("try: ")]
    assert said == [shown] * (shown is not None)


def test_the_edits_of_a_finding_answer_with_its_gain() -> None:
    (first, *_) = causes(sample())
    asked = tf.what_if(sample(), *first.finding.edits).together
    assert first.finding.edits and first.finding.gain is not None
    assert asked.after_ns is not None
    assert first.finding.gain.point_ns == round((asked.before_ns - asked.after_ns) / asked.windows)


def test_the_reason_for_most_of_a_range_is_named_first() -> None:
    """All of the launching gains 59 to 206 ms of 221 by what waits for others, half of it 134."""
    path = shared_file("traces/pytorch/a100_hta_nccl_rank0.json.gz")
    (first, *_) = causes(tf.analyze(tf.read(path)))
    assert (first.level, first.reasons) == (
        "low",
        "other ranks, for which its collectives wait, are not recorded; "
        "the remedy may save only half of it",
    )


def test_of_many_findings_the_rest_is_counted() -> None:
    analysis = with_causes(*map(cause, range(13)))
    text = " ".join(lines_of(analysis))
    assert [n for n in range(13) if f"Remedy {n}." in text] == [0, 1, 2]
    assert "… 10 more findings on the page and in --json" in text
    page = text_of(render_html(analysis), "findings")
    assert [n for n in range(13) if re.search(rf"Cause {n}\b", page)] == list(range(10))
    assert "3 more findings in the JSON report" in page
    assert "they do not add up" in text
    unknown = replace(cause(2), gain=None)
    assert "add up" not in " ".join(lines_of(with_causes(cause(1), unknown)))
    low = " ".join(lines_of(with_causes(cause(1), cause(2, priority="low"))))
    assert "Cause 2" in low
    assert "help: Remedy 2." in low
    assert low.count("owner: ") == 1, "a small gain has a title and its remedy"


def test_rows_of_evidence_are_folded_on_the_page() -> None:
    page = render_html(with_causes(cause()))
    found = page.split('<section id="findings">')[1].split("</section>")[0]
    rows = re.sub(r"<[^>]*>", " ", found.split('<details class="rows">')[1].split("</details>")[0])
    assert rows.replace("\N{NO-BREAK SPACE}", " ").split() == [
        *("Largest", "parts,", "in", "total", ":", "Cause", "1"),
        *("name&lt;of&gt;", "3.00", "ms", "7", "×"),
    ]
    assert '<a href="#idle">evidence' in found


def test_what_gains_nothing_is_no_finding() -> None:
    """The host is late on these ranks: hidden communication would not make a step shorter."""
    names = [f"traces/pytorch/hta_sampled_rank{rank}.json.gz" for rank in (0, 1)]
    analysis = tf.analyze(tf.read([str(shared_file(name)) for name in names]))
    gains = [one.gain.high_ns for one in analysis.findings if one.gain is not None]
    assert gains and min(gains) > 0
    assert (analysis.components.share("communication") or 0) > 0.25


def test_no_line_ends_with_a_space() -> None:
    analysis = sample()
    styles = [Style(width=width) for width in (50, 80, 110)]
    narrow = [line.plain for style in styles for line in render_terminal(analysis, style)]
    assert any("loading data" in line for line in narrow)
    assert not [line for line in narrow if line != line.rstrip()]


def test_where_mfu_is_a_range_so_is_it_after_a_remedy() -> None:
    """Attention of unknown FLOPs may do as much as all the rest."""
    analysis = tf.analyze(tf.read(shared_file("traces/pytorch/b200_vllm_gptoss_prefill.json.gz")))
    known = analysis.measured.mfu_range
    assert known is not None and known.most > 2 * known.least
    found = next(one for one in analysis.findings if one.gain is not None)
    assert found.gain is not None and found.mfu_after is not None
    step_ns = analysis.mean_ns(analysis.components.window_ns)
    left = [1 - ns / step_ns for ns in (found.gain.low_ns, found.gain.high_ns)]
    assert found.mfu_after.low == pytest.approx(float(known.least) / left[0])
    assert found.mfu_after.high == pytest.approx(float(known.most) / left[1])
    most = f"{100 * found.mfu_after.high:.1f} %"
    assert f"MFU 0.4 to 1.0 → at most {most}" in " ".join(lines_of(analysis))
    asked = tf.what_if(analysis, "eager_overhead=0").together
    assert asked.mfu == known
    after = asked.mfu_after(asked.least_ns, asked.most_ns)
    assert after is not None
    # What other work hides then is beyond the gain of the finding.
    assert (after.least, float(after.most) > found.mfu_after.high) == (known.least, True)


def test_the_late_rank_is_said_once() -> None:
    """The best finding says it, so the verdict behind it does not."""
    analysis = sample("gpt_ddp_4rank")
    said = "The other ranks wait for rank 2"
    assert said in analysis.verdict.sentence
    assert title_sentence(analysis).startswith("Rank 2 is late: ")
    assert said not in title_sentence(analysis)
    assert " ".join(lines_of(analysis)).count(said) == 1


# The critical path.


def two_streams(host_ns: int) -> tf.Analysis:
    """Return a long kernel beside a short one, and one that is launched so much later.

    Launches take 1 ns; the long one is on the path, the short one ends before it is over.
    """
    run = launched(("long", 0, 10, 1_000), ("short", 2, 12, 300), ("last", 900, 1_010, 200))
    run["activities"][1]["stream"] = 8
    return tf.analyze(trace_of(**run))


def test_the_path_is_the_longer_of_two_streams() -> None:
    analysis = two_streams(900)
    path = report_object(analysis)["critical_path"]
    assert [(one["name"], one["ns"]) for one in path["kernels"]] == [("long", 1_000), ("last", 200)]
    assert path["total_ns"] == 1_200
    assert sum(one["ns"] for one in path["components"]) == 1_200
    assert path["kernels"][0]["share"] == 1_000 / 1_200
    assert path["reason"] is None
    header, content = data_of(render_html(analysis))
    names = [
        header["texts"][header["whats"][what][0]] for what in column(header, content, 0, "what")
    ]
    marked = column(header, content, 0, "path")
    stream = [(name, on) for name, on in zip(names, marked, strict=True) if name != "launch"]
    assert stream == [("long", 1), ("last", 1), ("short", 0)]


def test_a_thread_that_holds_the_gpu_up_is_on_the_path() -> None:
    """Two steps of work of 100 ns with 10,000 ns of one operator between them."""
    run = launched(("a", 0, 10, 100), ("b", 11_000, 11_010, 100))
    run["ops"] = [
        {"name": "aten::slow", "start_ns": 900, "dur_ns": 10_000},
        {"name": "aten::later", "start_ns": 11_020, "dur_ns": 50},
    ]
    analysis = tf.analyze(trace_of(**run))
    path = report_object(analysis)["critical_path"]
    host = {one["label"]: one["ns"] for one in path["host"]}
    assert host["aten::slow"] >= 9_900
    header, content = data_of(render_html(analysis))
    names = [
        header["texts"][header["whats"][what][0]] for what in column(header, content, 0, "what")
    ]
    marked = dict(zip(names, column(header, content, 0, "path"), strict=True))
    assert marked["aten::slow"] == 1
    assert marked["aten::later"] == 0


def test_where_no_path_is_known_its_reason_is() -> None:
    run = launched(("a", 0, 10, 100))
    analysis = tf.analyze(trace_of(activities=run["activities"]))
    path = report_object(analysis)["critical_path"]
    assert path["total_ns"] is None
    assert path["components"] is None
    assert "launch" in path["reason"]
    assert 'id="critical"' not in render_html(analysis)
    assert f"No critical path: {path['reason']}" in render_post_mortem(analysis)


def test_the_path_is_a_line_in_the_terminal_and_tables_on_the_page() -> None:
    parts = report_object(sample())["critical_path"]["components"]
    shares = [f"{100 * one['share']:.1f} %" for one in parts[:3]]
    assert shares == ["49.9 %", "26.6 %", "14.9 %"]  # as in docs/terminal.md
    line = f"Critical path: compute {shares[0]}, memory {shares[1]}, loading data {shares[2]}."
    assert line in lines_of(sample())
    page = text_of(render_html(sample()), "critical")
    assert all(share in page for share in shares)
    assert "2" in text_of(render_html(sample("gpt_ddp_4rank")), "critical").split("Rank")[1]


@pytest.mark.parametrize(("busy_ns", "is_told"), [(9_990, False), (4_000, True)])
def test_no_path_through_the_host_is_told_beside_a_gpu_that_is_hardly_idle(
    busy_ns: int, *, is_told: bool
) -> None:
    """The last kernel is launched after 9,000 of 10,005 ns; another one runs beside the host."""
    run = launched(("long", 0, 10, busy_ns), ("last", 9_000, 9_005, 1_000))
    run["activities"][1]["stream"] = 8
    analysis = tf.analyze(trace_of(**run))
    parts = {one["component"] for one in report_object(analysis)["critical_path"]["components"]}
    assert parts > {"other"}
    assert ("Critical path:" in "\n".join(lines_of(analysis))) == is_told
    assert ('id="critical"' in render_html(analysis)) == is_told
    assert "No critical path" not in render_post_mortem(analysis)


# The post-mortem.


def chapters_of(text: str) -> dict[str, str]:
    parts = re.split(r"^## (.*)$", text, flags=re.M)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def in_order(text: str, words: Sequence[str]) -> bool:
    places = [text.find(word) for word in words]
    return -1 not in places and all(one < other for one, other in pairwise(places))


@pytest.mark.parametrize("name", ["gpt_1rank.json.gz", "gpt_ddp_4rank", "torch_cpu_train.json.gz"])
def test_the_post_mortem_has_its_chapters_and_is_the_same_each_time(name: str) -> None:
    text = render_post_mortem(sample(name))
    assert tuple(chapters_of(text)) == CHAPTERS
    assert all(re.match(r"\n\n- \S", body) for body in chapters_of(text).values())
    assert render_post_mortem(tf.analyze(tf.read(SAMPLES / name))) == text


def test_it_says_what_the_page_says() -> None:
    page = text_of(render_html(sample("gpt_ddp_4rank")), "post-mortem")
    assert in_order(page, CHAPTERS)
    for said in (
        "Rank 2 is late: Check clocks",
        "Critical path: compute 67.8 %",
        "they do not add up",
    ):
        assert said in page
        assert said in render_post_mortem(sample("gpt_ddp_4rank"))


def test_it_asks_for_what_the_recording_lacks() -> None:
    """This sample has no stacks; the call of its kernels without a launch is not recorded."""
    found = chapters_of(render_post_mortem(sample("gpt_ddp_4rank")))
    assert "No Python stacks" in found["What this recording cannot tell"]
    assert "For Python stacks: with&#95;stack=True" in found["Next recording"]


def test_what_is_missing_is_said_once() -> None:
    """Without steps, shapes and stacks, findings on the recording say it already."""
    analysis = tf.analyze(tf.read(shared_file("traces/pytorch/a100_hta_simple_add.json.gz")))
    found = chapters_of(render_post_mortem(analysis))
    told = found["What this recording cannot tell"]
    assert told.count("executed FLOPs cannot be counted") == 1
    assert told.count("which module or line launched a kernel") == 1
    assert found["Next recording"].count("with&#95;stack=True") == 1
    assert found["Next recording"].count("prof.step()") == 1


def test_one_gain_adds_up_with_no_other_and_an_unknown_one_says_why() -> None:
    unknown = replace(cause(2), gain=None)
    assert unknown.confidence is not None
    one = with_causes(cause(1), unknown)
    found = chapters_of(render_post_mortem(one))["Expected gain"]
    assert "add up" not in found
    assert f"Cause 2: Unknown: {words(unknown.confidence.reasons[-1])}." in found
    assert (
        "add up"
        in chapters_of(render_post_mortem(with_causes(cause(1), cause(2))))["Expected gain"]
    )


def test_a_sentence_tells_the_place_of_a_python_function_with_a_long_name() -> None:
    name, file = "scaled_multihead_dot_product_attention", "multiquery_attention.py"
    assert short_name(f"/x/{file}(153): {name}") == f"{name} ({file}:153)"
    assert len(short_name(f"{name} ({file}, of a kernel)")) <= 64


def test_a_recording_of_one_gpu_misses_no_rank_and_names_what_has_a_name() -> None:
    path = shared_file("traces/pytorch/hta_event_sync_multi_stream.json.gz")
    text = render_post_mortem(tf.analyze(tf.read(path)))
    assert "unnamed" not in text
    assert "step markers" not in text, "there are no steps, which is said"
    found = chapters_of(render_post_mortem(sample()))
    assert "rank" not in found["Next recording"]


def test_work_that_waits_long_outside_the_selected_time_is_a_note_alone() -> None:
    """A pass of 10.4 ms; its recording has 463 ms of idle time before its first work."""
    path = shared_file("traces/pytorch/mi300x_sglang_qwen3_decode_graph.json.gz")
    analysis = tf.analyze(tf.read(path))
    assert analysis.components.window_ns < 11_000_000
    assert "463" not in render_post_mortem(analysis)
    notes = {note.code: note.text for note in analysis.notes}
    assert "earlier-work-missing" not in notes
    assert notes["head-left-out"].startswith("463 ms before the first pass have no recorded")


def test_the_command_writes_it_and_refuses_what_is_no_text(tmp_path: Path) -> None:
    page, text = tmp_path / "a.html", tmp_path / "case.md"
    result = run("report", SAMPLE, "-o", page, "--post-mortem", text)
    assert result.exit_code == 0, result.output
    assert f"and {text}" in result.stdout.replace("\n", "")
    assert "# Post-mortem" in text.read_text()
    again = run("report", SAMPLE, "-o", page, "--post-mortem", text, "-q")
    assert again.exit_code == 0, "our own file is replaced"
    text.write_text("mine")
    wrong = run("report", SAMPLE, "-o", page, "--post-mortem", text)
    assert_refused(wrong, 2, "will not overwrite")
    wrong = run("report", SAMPLE, "-o", page, "--post-mortem", tmp_path / "case.txt")
    assert_refused(wrong, 2, "needs a .md file of its own")
    same = tmp_path / "same.md"
    wrong = run("report", SAMPLE, "-o", same, "--post-mortem", same)
    assert_refused(wrong, 2, "needs a .md file of its own")
    assert json.loads(run("summary", SAMPLE, "--json").stdout)["findings"][0]["rule"]


def test_the_part_of_the_bar_that_the_title_is_about_stands_out() -> None:
    """Ranks wait in communication; idle time is told apart by what the GPU waits on."""
    page = render_html(sample("gpt_ddp_4rank"))
    (part,) = re.findall(
        r'class="part \w* told"[^>]* data-part="(\w+)".*?aria-label="([^"]+)"', page
    )
    assert part == ("communication", "Rank 2 is late: 1.24 ms, 12.3 %")
    idle = Finding("data-input", "high", 0.174, fact("x"), fact("x"), evidence=("idle",))
    told = told_of(sample(), idle, "idle")
    assert told == [("Loading data", "14.9 %")]
    assert told_of(sample(), replace(idle, rule="eager-overhead"), "idle")[0][0] == (
        "Launching operators"
    )
    assert told_of(sample(), replace(idle, rule="host-waits"), "idle") == []
    classes = ("loading data", "launching operators", "a class that the bar does not show")
    launching = [fact("launching.part", kind=kind, share=0.1) for kind in classes]
    slow = replace(
        idle, rule="eager-overhead", claim=fact("launching.claim", parts=tuple(launching))
    )
    assert [title for title, _ in told_of(sample(), slow, "idle")] == [
        "Loading data",
        "Launching operators",
    ]


def told_of(
    analysis: tf.Analysis, finding: Finding | None, component: str
) -> list[tuple[str, str]]:
    """Return the parts of the bar that the title is about; all parts are the whole step."""
    parts = told_parts(analysis, finding, component)
    assert sum(part.ns for part in parts) == round(analysis.mean_ns(analysis.components.window_ns))
    return [(part.title, percent(part.share)) for part in parts if part.is_told]


def test_what_is_less_than_a_part_is_a_part_of_its_own_in_the_words_of_the_title() -> None:
    """Of 1 ms, GEMMs of two kernels take 700 µs, one of them 500 µs; 100 µs are idle."""
    works = [("sgemm_a", 0, 0, 500_000), ("sgemm_b", 1, 500_000, 200_000)]
    works += [("Memcpy", 2, 700_000, 200_000), ("sgemm_c", 3, 999_999, 1)]
    analysis = tf.analyze(trace_of(**launched(*works)))
    main = Finding("main-kernel", "high", 0.5, fact("x"), fact("x"), evidence=("kernels",))
    one = replace(main, rows=(Row("sgemm_a", 500_000),))
    assert told_of(analysis, one, "compute") == [("sgemm_a", "50.0 %")]
    two = replace(main, name=quoted("Two are slow"), rows=(*one.rows, Row("sgemm_b", 1)))
    assert told_of(analysis, two, "compute") == [("Two are slow", "50.0 %")]
    assert told_of(analysis, replace(two, share=0.9), "compute") == [("Compute", "70.0 %")]
    lost = replace(analysis, verdict=replace(analysis.verdict, loss="idle"))
    assert told_of(lost, None, "") == [("Late start of queued work", "10.0 %")]
    assert told_of(replace(analysis, verdict=replace(lost.verdict, loss=None)), None, "") == []


def test_the_first_card_says_what_it_saves_though_the_title_does() -> None:
    cards = render_html(sample()).split('<li data-rule="data-input"')[1].split("</ol>")[0]
    (first, second) = re.findall(r'<p class="gain">([^<]+)', cards)
    assert (first.split(), second.split()) == (
        ["Saves", "702", "µs", "per", "step"],
        ["Saves", "415", "µs", "per", "step"],
    )


def test_above_the_bar_is_only_the_title_and_below_it_each_number_leads_to_its_rows() -> None:
    above, bar, below = render_html(with_causes(cause(low=0))).partition('<div class="step-bar"')
    assert "What to fix first" not in above and "What to fix first" in below
    (numbers,) = re.findall(r'<ul class="step-list".*?</ul>', bar + below, re.DOTALL)
    assert numbers.count("<li") == numbers.count('<a tabindex="-1" href="#') > 4


def tiles(trace: tf.Trace) -> list[Tile]:
    """Return the figures of the first screen."""
    analysis = tf.analyze(trace)
    return list(tiles_of(analysis, step_parts(analysis)))


def test_memory_work_is_no_loss_where_no_peak_of_flops_is_known() -> None:
    works = launched(("elementwise_kernel", 0, 0, 900), ("k", 1, 990, 10))
    labels = [tile.label for tile in tiles(trace_of(**works))]
    assert [label for label in labels if "loss" in label] == ["Largest loss: launch latency"]
    works = launched(("elementwise_kernel", 0, 0, 990), ("k", 1, 990, 10))
    assert not any("loss" in one.label for one in tiles(trace_of(**works)))


@pytest.mark.parametrize("top", ["memory", "compute"])
def test_a_finding_about_kernels_has_their_colour_and_leads_to_them(top: str) -> None:
    """Their names are cut in rows; what they are is that of the row with most time."""
    kernel = next(row for row in sample().kernels.to_pylist() if row["top"] == top)
    long = f"void {kernel['name']}<{'int, ' * 60}int>"
    table = pa.Table.from_pylist([kernel | {"name": long}], sample().kernels.schema)
    rows = (Row(row_name(long), 3 * MS, 7), Row("unknown", 5 * MS, 7))
    found = replace(cause(), evidence=("kernels", "categories"), rows=rows)
    analysis = replace(sample(), kernels=table)
    vars(analysis)["findings"] = (found,)
    page = render_html(analysis)
    card = page.split('<li data-rule="made-1"')[1].split("</ol>")[0]
    assert card.startswith(f' style="border-left-color:{LOOKS[top].colour}"')
    assert f'href="#{link_to("kernel", long)}"'.replace("'", "&#39;") in card


def test_of_gaps_that_begin_at_once_one_is_the_longest() -> None:
    kernels = [
        {"name": "k", "start_ns": start, "dur_ns": 1_000, "device": device}
        for device in range(3)
        for start in (0, 200_000)
    ]
    made = tf.analyze(trace_of(activities=kernels, devices=[{"device": n} for n in range(3)]))
    starts = [gap.start_ns for gap in made.gaps(3)]
    assert starts == [1_000] * 3
    vars(made)["findings"] = (replace(cause(), where=Where(start_ns=1_000)),)
    (shown,) = findings_shown(made).causes.rows
    assert [place.text for place in shown.places] == ["longest: 199 µs"]


def test_start_up_within_a_gap_is_no_idle_time_of_its_drawing() -> None:
    """Of a gap of 1,000 ns the program starts up in 400 ns; 600 ns are drawn around it, twice."""
    made = tf.analyze(trace_of(**launched(("k", 0, 10, 90), ("k", 1_050, 1_100, 90))))
    made.prepared.accounts[0].start_up = Intervals.one(300, 700)
    found = replace(cause(), where=Where(start_ns=100, end_ns=1_100))
    drawn = thumbnail(made, found, "idle")
    assert drawn is not None
    assert drawn.caption == "GPU idle for 600 ns, start-up for 400 ns, 2.20 µs shown"
    places = {(one.look, one.x, one.width) for one in drawn.shapes}
    assert places == {
        ("culprit", 27.27, 9.09),
        ("start_up", 36.36, 18.18),
        ("culprit", 54.55, 18.18),
    }


def test_a_drawing_of_evidence_is_per_step_and_of_the_component() -> None:
    """20 windows are used: 5 steps of 4 GPUs."""
    analysis = analysis_of_sample("gpt_ddp_4rank")
    found = replace(analysis.findings[0], where=Where(), rows=())
    drawn = thumbnail(analysis, found, "compute")
    assert drawn is not None
    assert drawn.caption == "compute of each step, on top"
    assert {shape.look for shape in drawn.shapes} == {"track", "compute"}
    two = replace(found, rows=(Row("one", 50_000_000), Row("other", 10_000_000)))
    drawn = thumbnail(analysis, two, "compute")
    assert drawn is not None
    assert [text for _, text in drawn.labels] == ["2.50 ms", "500 µs"]
