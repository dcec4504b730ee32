"""The terminal report: it fits, it tells the truth, and names in it do nothing."""

import io
import re
from collections.abc import Callable
from functools import cache

import pytest
from msgspec.structs import replace
from rich.console import Console
from rich.style import Style as RichStyle
from rich.text import Text

import traceflops as tf
from tests.build import launched, trace_of
from tests.conftest import SAMPLES, analysis_of_sample, some
from tests.reports.factory import hostile, ranks, without_devices, without_steps
from traceflops.comparison.side import Side, UsedWindow
from traceflops.flops.mfu_waterfall import Waterfall, WaterfallLine
from traceflops.reports.terminal.comparison import render_comparison
from traceflops.reports.terminal.lines import Style
from traceflops.reports.terminal.measured import render_measured
from traceflops.reports.terminal.summary import render_terminal
from traceflops.reports.view.comparison import sides_table
from traceflops.reports.view.palette import LINE_LOOKS, LOOKS
from traceflops.reports.view.utilisation import LABELS
from traceflops.table.trace import Note
from traceflops.timeline.records import Components


def printed(analysis: tf.Analysis, style: Style) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=1000, highlight=False, color_system=None)
    for line in render_terminal(analysis, style):
        console.print(line)
    return stream.getvalue()


TABLES = ["gpt_ddp_4rank", "gpt_1rank.json.gz", "nsight_h100/kernels.ncu.csv"]
FIGURE = re.compile(r"\d[\d,.]* (?:%|[nµm]?s\b|[kMGT]?i?B\b|[kMGT]?FLOP)")


@pytest.mark.parametrize("render", [render_terminal, render_measured])
@pytest.mark.parametrize("width", some([40, 60, 64, 80, 100, 200], 2))
@pytest.mark.parametrize("sample", TABLES)
def test_every_line_fits(
    sample: str, width: int, render: Callable[[tf.Analysis, Style], list[Text]]
) -> None:
    """No figure is cut or parted from its unit, and no line is cut at its end."""
    analysis = read(sample)
    wide = {found for line in render(analysis, Style(width=400)) for found in figures(line)}
    for unicode in (True, False):
        lines = render(analysis, Style(width=width, unicode=unicode))
        assert max(line.cell_len for line in lines) <= width
    for line in render(analysis, Style(width=width)):
        assert "…" not in line.plain[-1:]
        assert set(figures(line)) <= wide


def test_start_up_has_a_column_beside_the_other_components_where_there_is_any() -> None:
    """A step of 4 ms of which 1 ms is compute, 2 ms start-up and 1 ms idle; one without."""
    parts = Components(1_000_000, 0, 0, 0, 0, 2_000_000, 1_000_000)
    without = replace(parts, start_up_ns=0, idle_ns=3_000_000)
    sides = [Side("a", (UsedWindow(0, 1, 0, each),), None, ()) for each in (parts, without)]
    table = sides_table(sides)
    assert [one.head for one in table.columns[2:]] == ["Steps", "Compute", "Start-up", "Idle"]
    assert [row[3:] for row in table.rows] == [
        ["1.00 ms", "2.00 ms", "1.00 ms"],
        ["1.00 ms", "0 ns", "3.00 ms"],
    ]
    assert "Start-up" not in {one.head for one in sides_table(sides[1:]).columns}
    analysis = ranks(2)
    assert "start-up" not in printed(analysis, Style())
    first, *rest = analysis.devices
    starting = replace(first, chosen=replace(first.chosen, components=parts))
    lines = printed(replace(analysis, devices=(starting, *rest)), Style()).splitlines()
    (row,) = (line for line in lines if line.startswith(f"  {first.label} "))
    (heads,) = (line for line in lines if line.endswith("   idle"))
    assert dict(zip(heads.split()[-2:], row.replace(" %", "").split()[-2:], strict=True)) == {
        "start-up": "50.0",
        "idle": "25.0",
    }


@pytest.mark.parametrize("unicode", [True, False])
def test_no_line_ends_in_blanks(unicode: bool) -> None:
    style, folder = Style(unicode=unicode), "tutorials/training"
    found = tf.compare(read(f"{folder}/before"), read(f"{folder}/after"))
    measured = (line for sample in TABLES for line in render_measured(read(sample), style))
    for line in (*render_comparison(found, style), *measured):
        assert line.plain == line.plain.rstrip(), line.plain


@pytest.mark.parametrize("render", [render_terminal, render_measured])
def test_what_is_about_all_of_the_time_comes_first_and_once(
    render: Callable[[tf.Analysis, Style], list[Text]],
) -> None:
    analysis = read("gpt_1rank.json.gz")
    odd = Note("assumed", "pair-unlike", "The paired trace does not match.", share=1.0)
    lines = [
        line.plain
        for line in render(replace(analysis, notes=(*analysis.notes, odd)), Style(width=100))
    ]
    assert [line for line in lines if odd.text in line] == [f"warning: {odd.text}"]
    assert lines.index(f"warning: {odd.text}") < 6


@cache
def read(sample: str) -> tf.Analysis:
    return analysis_of_sample(sample)


def figures(line: Text) -> list[str]:
    return FIGURE.findall(line.plain)


@pytest.mark.parametrize("by", ["module", "layer", "op", "shape", "source", "range"])
@pytest.mark.parametrize("width", [40, 100])
def test_the_work_of_owners_fits(by: str, width: int) -> None:
    analysis = read("torch_cpu_train.json.gz")
    lines = render_terminal(analysis, Style(width=width), by)
    wide = {found for line in render_terminal(analysis, Style(300), by) for found in figures(line)}
    assert max(line.cell_len for line in lines) <= width
    assert {found for line in lines for found in figures(line)} <= wide


def test_by_kernel_has_more_kernels() -> None:
    kernel = re.compile(r"  \S.* +\d[\d,]* .$")

    def shown(by: str | None) -> list[str]:
        lines = [line.plain for line in render_terminal(read("gpt_ddp_4rank"), Style(), by)]
        title = "Top of 29 kernels and copies (share of the step time)"
        return list(filter(kernel.match, lines[lines.index(title) :]))

    assert shown("kernel")[:2] == shown(None)
    assert len(shown("kernel")) == 20


def test_layers_are_shown_with_how_many_there_are_and_the_slowest() -> None:
    marks = [{"kind": "module", "name": "nn.Module: Model_0", "start_ns": 0, "dur_ns": 9_000}]
    works = [("k", 8_500, 8_600, 1_000), ("k", 9_500, 9_700, 500)]
    for layer in range(2):
        name, start = f"nn.Module: Layer_{layer}", 1_000 * layer
        marks.append({"kind": "module", "name": name, "start_ns": start, "dur_ns": 900})
        works.append(("k", start + 100, start + 200, 100 + 200 * layer))
    analysis = tf.analyze(trace_of(**launched(*works), marks=marks))
    lines = [line.plain for line in render_terminal(analysis, Style(), "layer")]
    start = next(place for place, line in enumerate(lines) if "Kinds of layers" in line)
    assert [" ".join(line.split()) for line in lines[start : start + 5]] == [
        "Kinds of layers Time Of total time GPU operations Each Slowest",
        "Model 1.40 µs 14.0 % 3",
        "2 × Layer 400 ns 4.0 % 2 200 ns 1",
        "(outside modules) 500 ns 5.0 % 1",
        "GPU time attributed to: modules 73.7 % · launch calls 26.3 %",
    ]
    assert lines[start + 2].startswith("  2 ×")


def test_where_nothing_tells_an_owner_that_is_said_with_what_to_record() -> None:
    analysis = tf.analyze(trace_of(**launched(("k", 0, 100, 10))))
    text = "\n".join(line.plain for line in render_terminal(analysis, Style(), "source"))
    assert "The trace has none. To record them: with_stack=True (large traces)" in text


def test_what_is_only_the_largest_of_its_class_has_its_own_time() -> None:
    """f is 6 of the 9 ms, g the others."""
    ms = 1_000_000
    run = launched(("k", 0, 0, ms), ("k", 10 * ms, 10 * ms, ms))
    functions = (("a.py(1): f", 1, 6), ("b.py(1): g", 7, 3))
    run["marks"] = [
        {"name": name, "start_ns": start * ms, "dur_ns": dur * ms, "kind": "python"}
        for name, start, dur in functions
    ]
    analysis = tf.analyze(trace_of(**run))
    text = printed(analysis, Style(width=100))
    assert re.search(r"host code +9\.00 ms +100\.0 %  f \(a\.py:1\) 6\.00 ms\n", text)
    assert "largest part: f (a.py:1), 66.7 %." in analysis.losses[0].sentence


def test_counts_of_operators_are_means_as_their_times() -> None:
    """Each of the 5 steps of the sample reads its loss once."""
    lines = render_terminal(read("gpt_1rank.json.gz"), Style(), "host-op")
    row = next(line.plain for line in lines if line.plain.startswith("aten::_local_scalar_dense"))
    assert row.split()[1] == "1"


def test_the_share_of_idle_time_is_not_said_of_what_is_most_of_it() -> None:
    stalled = tf.analyze(tf.read(SAMPLES / "gpt_1rank.json.gz"), tf.Selection(steps=(12, 14)))
    sentence = stalled.verdict.sentence
    assert "idle time (31.1 % of the step time, mostly loading data)" in sentence


def test_the_late_rank_its_cause_and_its_remedy_come_first() -> None:
    lines = [line.plain for line in render_terminal(read("gpt_ddp_4rank"), Style(width=80))]
    assert lines[0].startswith("Rank 2 is late: ")
    head = " ".join(line.strip() for line in lines[:17])
    assert "The other ranks wait for rank 2: 1.24 ms of each step" in head
    assert "All its kernels take 1.15 times as long as on the others." in head
    assert "help: Check clocks, power and temperature of that GPU" in head
    assert not any("median" in line for line in lines[17:])  # the delay is told once
    at = next(at for at, line in enumerate(lines) if "own per step" in line)
    assert "10.1 ms" in lines[at + 1] and "9.41 ms" in lines[at + 2]
    assert [line.split("gpu")[0].strip(" ·") for line in lines[at + 1 : at + 5]] == [
        f"rank {rank}" for rank in (2, 0, 1, 3)
    ]
    assert "Clocks aligned on all-reduce: residual 0 ns, p95 0 ns" in lines[at + 5]


def test_bus_bandwidth_is_of_the_transfer_alone_and_beside_the_peak_of_the_link() -> None:
    """With waiting in it the rate would be 92.8 GB/s; half of 900 GB/s is the peak one way."""
    text = printed(read("gpt_ddp_4rank"), Style(width=110))
    assert "busbw 296 to 310 GB/s, 65.8 % to 69.0 % of the link's peak" in text
    assert "92.8 GB/s" not in text


def test_the_causes_keep_their_names_in_a_narrow_terminal() -> None:
    lines = printed(read("gpt_1rank.json.gz"), Style(width=50)).splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("  loading data"))
    assert "DataLoader" in lines[at + 1]
    assert all(len(line) <= 50 for line in lines)


def test_a_cause_is_the_title_also_where_there_is_no_mfu() -> None:
    works = launched(*(("sgemm", 900 * n, 1_000 * n + 950, 50) for n in range(9)))
    lines = printed(tf.analyze(trace_of(**works)), Style(width=80)).splitlines()
    assert lines[0].startswith("Idle time (mostly launch latency)")
    assert any(line.startswith("No MFU") for line in lines[1:5])


def test_the_summary_is_a_screenful() -> None:
    assert len(render_terminal(read("gpt_ddp_4rank"))) <= 36
    assert len(render_terminal(read("gpt_ddp_4rank"), Style(width=80))) <= 37


@pytest.mark.parametrize(("number", "title"), [(1, "The only kernel or copy"), (2, "Top of 2")])
def test_one_kernel_is_not_several(number: int, title: str) -> None:
    kernels = [{"name": f"k{n}", "start_ns": 20 * n} for n in range(number)]
    text = printed(tf.analyze(trace_of(activities=kernels, calls=[{"start_ns": 0}])), Style())
    assert title in text
    assert ("1 of 1 GPU operation has no" if number == 1 else "2 of 2 GPU operations have") in text


def test_the_bar_has_the_shares_of_the_components_in_a_mark_for_each_part() -> None:
    analysis = analysis_of_sample("gpt_1rank.json.gz")
    lines = printed(analysis, Style(colour=False)).splitlines()
    at, bar = next((at, line) for at, line in enumerate(lines) if line.startswith("██"))
    assert len(bar) == 100
    of_idle = bar.count(LINE_LOOKS["culprit"].block) + bar.count(LOOKS["idle"].block)
    for name, cells in (("memory", bar.count(LOOKS["memory"].block)), ("idle", of_idle)):
        share = analysis.components.share(name)
        assert share is not None
        assert abs(cells - 100 * share) < 2
    key = " ".join(lines[at + 1 : at + 4])
    assert "▓ memory 1.31 ms 27.7 %" in key
    assert set(bar) <= {*key}


@pytest.mark.parametrize("colour", [True, False])
@pytest.mark.parametrize("unicode", [True, False])
def test_every_part_of_the_bar_of_mfu_is_drawn_in_its_own_way(unicode: bool, colour: bool) -> None:
    analysis = analysis_of_sample("gpt_1rank.json.gz")
    lines = tuple(WaterfallLine(name, 1) for name in LABELS)
    fall = Waterfall(len(lines), lines, ("bf16",), "FLOP")
    measured = replace(analysis.measured, waterfall=fall)
    style = Style(unicode=unicode, colour=colour)
    shown = render_measured(replace(analysis, measured=measured), style)
    bar = next(line for line in shown if len(line) == 100 and " " not in line.plain)
    assert len(cells_of(bar)) == len(lines)


def cells_of(line: Text) -> set[tuple[str, str]]:
    """Return the different cells of a line: the character and its colour."""
    spans = [(span.start, span.end, str(span.style)) for span in line.spans]
    return {
        (char, next((style for start, end, style in spans if start <= place < end), ""))
        for place, char in enumerate(line.plain)
    }


@pytest.mark.parametrize("render", [render_terminal, render_measured])
@pytest.mark.parametrize(
    "sample", ["gpt_ddp_4rank", "nsight_h100/kernels.ncu.csv", "nsight_h100/run.sqlite"]
)
def test_no_text_is_coloured(
    sample: str, render: Callable[[tf.Analysis, Style], list[Text]]
) -> None:
    """On a dark and on a light ground its own foreground can be read; blocks have the colours."""
    blocks = {look.block for look in LINE_LOOKS.values()}
    lines = render(analysis_of_sample(sample), Style())
    for line in lines:
        for span in line.spans:
            if RichStyle.parse(str(span.style)).color is not None:
                assert set(line.plain[span.start : span.end]) <= blocks


def test_ascii_is_ascii_and_keeps_the_textures_apart() -> None:
    text = printed(analysis_of_sample("gpt_1rank.json.gz"), Style(unicode=False))
    assert text.isascii()
    assert len({look.ascii for look in LOOKS.values()}) == len(LOOKS)


def test_names_are_inert() -> None:
    text = printed(hostile(), Style())
    assert "\x1b" not in text
    assert all(char.isprintable() or char == "\n" for char in text)
    assert "\u202e" not in text


@pytest.mark.parametrize("analysis", [without_steps(), without_devices(), ranks(512)])
def test_odd_analyses_have_a_summary(analysis: tf.Analysis) -> None:
    lines = render_terminal(analysis)
    text = " ".join(" ".join(line.plain for line in lines).split())
    first = analysis.verdict.sentence.split(":")[0]
    assert first.removeprefix("MFU unknown. ") in text
    assert len(lines) <= 40


@pytest.mark.parametrize("sample", TABLES)
def test_a_report_is_a_screen(sample: str) -> None:
    """Rows go before the report is longer than a screen; its title and first remedy stay."""
    lines = render_terminal(read(sample), Style(width=100))
    assert len(lines) <= 40
