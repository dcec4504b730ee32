"""Reports of traces without a timeline: what is there, what is not, and how to record it."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest
from msgspec.structs import replace

from tests.build import trace_of
from tests.findings.test_counted_kernels import BUSY, TIME
from tests.mfu.test_kernel_speeds import NAMES, launch, rule
from tests.reports.factory import HOSTILE
from tests.schemas import VALIDATORS
from traceflops import Analysis, analyze
from traceflops.reports.markdown import render_markdown
from traceflops.reports.page.html import render_html
from traceflops.reports.terminal.lines import Style
from traceflops.reports.terminal.summary import render_terminal

COMMAND = "rocprofv3 --runtime-trace --rccl-trace --output-format rocpd -d run -- COMMAND"
TOTALS = [
    {"name": "Cijk_Alik_Bljk_MT64x32x64", "count": 3, "total_ns": 900, "max_ns": 600},
    {"name": "CopyHostToDevice", "kind": "memcpy", "count": 2, "total_ns": 100},
    {"name": "hipLaunchKernel", "kind": "call", "count": 4, "total_ns": 50},
]
COUNTED = [
    {"name": f"kernel {number % 7}", "dispatch": number, "counter": "SQ_WAVES", "value": 2.5}
    for number in range(20)
]

SPEEDS = [
    row
    for number, (name, ns) in enumerate((("void a<int>(int)", 900.0), ("void b<4>(int)", 9_000.0)))
    for row in launch(number, BUSY | {TIME: ns}, name=name)
]


def analysis_of(**tables: Any) -> Analysis:
    made = trace_of(devices=[], **tables)
    return analyze(replace(made, source=replace(made.source, format="rocprof")))


CASES = {
    "totals": {"totals": TOTALS},
    "counters": {"kernel_counters": COUNTED},
    "speeds": {"kernel_counters": SPEEDS},
    "calls": {"calls": [{"name": "hsa_queue_create", "start_ns": 5}]},
    "all": {"totals": TOTALS, "kernel_counters": COUNTED},
}


def test_gpus_that_are_known_are_named() -> None:
    gpu = {"product": "NVIDIA RTX A", "type": "gpu"}
    lines = render_terminal(
        analyze(trace_of(devices=[gpu], kernel_counters=COUNTED)),
        Style(width=100, unicode=True, colour=False),
    )
    assert any(line.plain.startswith("1 × NVIDIA RTX A · no timeline") for line in lines)


@pytest.fixture(params=CASES, name="found")
def _found(request: pytest.FixtureRequest) -> Analysis:
    return analysis_of(**CASES[request.param])


def terminal(analysis: Analysis, width: int = 100) -> list[str]:
    style = Style(width=width, colour=False)
    return [line.plain for line in render_terminal(analysis, style)]


def test_the_json_keeps_to_the_schema(found: Analysis) -> None:
    VALIDATORS["traceflops.report/1"].validate(json.loads(found.to_json()))


@pytest.mark.parametrize("width", [64, 100, 200])
def test_the_command_stands_whole_in_the_terminal(found: Analysis, width: int) -> None:
    lines = terminal(found, width)
    begin = lines.index("To record a timeline:") + 1
    command = [*lines[begin:], ""]
    text = "\n".join(command[: command.index("")])
    assert shlex.split(text.replace("\\\n", "")) == COMMAND.split()
    assert all(len(line) <= width for line in lines)


def test_the_page_shows_the_command_and_no_account_of_time(found: Analysis) -> None:
    page = re.sub('<span class="tight">(.*?)</span>', r"\1", render_html(found))
    assert 'id="steps"' not in page
    assert 'id="idle"' not in page
    assert f"To record a timeline: <code>{COMMAND}</code>" in page


def test_the_markdown_has_the_command(found: Analysis) -> None:
    assert f"To record a timeline: `{COMMAND}`" in render_markdown(found)


def test_totals_stand_in_markdown() -> None:
    lines = render_markdown(analysis_of(totals=TOTALS)).splitlines()
    assert "| Kernels and copies | Category | Total time | Share | Count |" in lines
    assert "| `Cijk_Alik_Bljk_MT64x32x64` | gemm | 900 ns | 90.0 % | 3 |" in lines


def test_totals_stand_in_the_terminal() -> None:
    lines = terminal(analysis_of(totals=TOTALS))
    assert "  █ gemm                      900 ns   90.0 %         3 ×" in lines
    assert "Top kernels and copies (2 of 2)" in lines
    assert "Top API calls (1 of 1)" in lines
    assert not [line for line in lines if "idle" in line and "%" in line]


def test_copies_with_bytes_have_a_rate_where_there_is_room() -> None:
    copy = {"name": "CopyHostToDevice", "kind": "memcpy", "count": 2, "total_ns": 10**9}
    found = analysis_of(totals=[*TOTALS[:1], copy | {"bytes": 1_500_000_000}])

    def printed(width: int) -> str:
        style = Style(width=width, unicode=True, colour=False)
        return "\n".join(line.plain for line in render_terminal(found, style))

    assert re.search(r"CopyHostToDevice .* 1.50 GB +1.5 GB/s", printed(100))
    assert "GB/s" not in printed(60)


@pytest.mark.parametrize(
    ("size", "time_ns", "told"),
    [
        (4, 2_200, "4 B   0.00182 GB/s"),
        (4, 4_900, "4 B  0.000816 GB/s"),
        (4 * 10**18, 1, "4.00 EB"),
    ],
)
def test_rates_of_tiny_copies_stand_apart(size: int, time_ns: int, told: str) -> None:
    copy = {"name": "to GPU", "kind": "memcpy", "count": 1, "total_ns": time_ns, "bytes": size}
    (row,) = [line for line in terminal(analysis_of(totals=[copy])) if "to GPU" in line]
    assert row.endswith(told)


def test_an_unknown_count_is_no_dash_before_a_sign() -> None:
    lines = terminal(analysis_of(totals=[{"name": "k", "total_ns": 9, "bytes": 8}]))
    (row,) = [line for line in lines if " k " in line]
    assert row.split()[-4:] == ["100.0", "%", "8", "B"]
    assert not [line for line in lines if "×" in line]


def test_counted_kernels_stand_in_the_terminal_with_counters_of_no_figure() -> None:
    lines = terminal(analysis_of(kernel_counters=COUNTED))
    (head,) = [at for at, line in enumerate(lines) if line.startswith("Kernels by counters")]
    rows = [line.split() for line in lines[head : head + 8]]
    assert rows[0] == ["Kernels", "by", "counters", "Launches", "SQ_WAVES"]
    assert {row[3] for row in rows[1:]} == {"2.5"}
    assert [row[:2] for row in rows[1:]] == [["kernel", str(number)] for number in range(7)]
    assert sum(int(row[2]) for row in rows[1:]) == 20
    assert "Means of a launch." in lines


def test_many_counters_or_such_of_odd_names_are_not_shown() -> None:
    many = [{**row, "counter": f"SQ_{at}"} for row in COUNTED for at in range(5)]
    odd = [{**row, "counter": "my counter\x1b"} for row in COUNTED]
    for rows in (many, odd):
        lines = terminal(analysis_of(kernel_counters=rows))
        (head,) = [line for line in lines if line.startswith("Kernels by counters")]
        assert head.split() == ["Kernels", "by", "counters", "Launches"]


def test_the_tables_of_the_page() -> None:
    page = render_html(analysis_of(totals=TOTALS, kernel_counters=COUNTED))
    for part in ("totals-categories", "totals", "totals-calls", "counters"):
        assert f'<section id="{part}">' in page
    assert "SQ_WAVES</th>" in page


def test_how_near_their_limits_kernels_came_stands_everywhere() -> None:
    found = analysis_of(kernel_counters=SPEEDS)
    words = ["9.00 µs", "9.2 %", "19.7 %", "11.1 %", "8.6 %", "19.7 %", "11.3 of 16.7 %"]
    heads = ["Time", "SM", "Memory", "L1", "L2", "DRAM", "Occupancy", "Limited by", "Registers"]
    lines = terminal(found, 140)
    (at,) = [at for at, line in enumerate(lines) if line.startswith("Speed of light")]
    assert lines[at].split() == f"Speed of light {' '.join(heads)}".split()
    assert lines[at + 1].split() == f"b<4>(int) {' '.join(words)} registers 168".split()
    assert lines[at + 2].split()[:3] == ["a<int>(int)", "900", "ns"]
    row = f"| `b<4>(int)` | {' | '.join(words)} | registers | 168 |"
    assert row in render_markdown(found).splitlines()
    page = render_html(found)
    assert '<section id="speed-of-light">' in page
    cells = [f"{word}</td>" for word in (*words, "registers", "168")]
    assert all(cell in page for cell in cells)
    assert "Use fewer registers per thread" in page
    first, second = json.loads(found.to_json())["utilisation"]["speed_of_light"]
    assert (first["name"], first["nearest_roof"], first["nearest_roof_share"]) == (
        "void b<4>(int)",
        "dram",
        0.1966,
    )
    assert (second["duration_ns"], second["limiters"]) == (900, ["registers"])


@pytest.mark.parametrize("width", [40, 64, 80, 120])
def test_the_table_of_speeds_fits_every_width(width: int) -> None:
    lines = terminal(analysis_of(kernel_counters=SPEEDS), width)
    assert max(map(len, lines)) <= width
    assert any(line.startswith("Speed of light") for line in lines)


def test_kernels_of_which_little_was_counted_show_their_time() -> None:
    values = {"gpu__time_duration.sum": 9_000.0, "sm__maximum_warps_per_active_cycle_pct": 50.0}
    lines = terminal(analysis_of(kernel_counters=launch(1, values, name="some_kernel")), 80)
    (row,) = [line.split() for line in lines if line.startswith("some_kernel  ") and "µs" in line]
    assert row == ["some_kernel", "9.00", "µs", "at", "most", "50.0", "%"]


def test_without_shares_nothing_is_called_speed_of_light() -> None:
    values = {"gpu__time_duration.sum": 9_000.0, "launch__registers_per_thread": 32.0}
    found = analysis_of(kernel_counters=launch(1, values, name="some_kernel"))
    text = " ".join(terminal(found))
    assert "Counted kernels" in text
    assert "Speed of light: ncu --set full." in text
    assert "| Speed of light |" not in render_markdown(found)


def test_without_throughputs_the_longest_kernel_leads() -> None:
    values = {"launch__registers_per_thread": 32.0, "sm__maximum_warps_per_active_cycle_pct": 50.0}
    rows = [
        row
        for at, ns in enumerate((1_000.0, 9_000.0))
        for row in launch(at, values | {"gpu__time_duration.sum": ns}, name=f"kernel_{at}")
    ]
    made = trace_of(kernel_counters=rows)
    found = analyze(replace(made, source=replace(made.source, format="ncu report")))
    assert found.verdict.sentence.startswith(
        "kernel_1 takes 90.0 % of the 10.0 µs of kernel time. No throughput was recorded, so what "
        "limits a kernel is unknown: ncu --set full."
    )


@pytest.mark.parametrize(
    ("l1", "active", "all_time"),
    [(90.0, 12_136.5, "81.0 %"), (99.9, 13_443.0, "99.6 %")],  # 90.0 and 99.69 % of the time
)
def test_the_roof_that_the_title_names_has_its_column(
    l1: float, active: float, all_time: str
) -> None:
    values = NAMES | {"l1tex__throughput.avg.pct_of_peak_sustained_active": l1}
    values["sm__cycles_active.avg"] = active
    lines = terminal(analysis_of(kernel_counters=launch(1, values, name="some_kernel")), 80)
    assert lines[0].startswith(f"some_kernel: {all_time} of L1 peak")
    (at,) = [at for at, line in enumerate(lines) if line.startswith("Speed of light")]
    assert "L1" in lines[at].split()
    assert all_time in lines[at + 1]


def test_beside_a_timeline_the_table_of_speeds_stands_in_every_report() -> None:
    timed = [{"name": "void b<4>(int)", "start_ns": 0, "dur_ns": 5_000}]
    found = analyze(trace_of(activities=timed, kernel_counters=SPEEDS))
    assert any(line.startswith("Speed of light") for line in terminal(found))
    assert '<section id="speed-of-light">' in render_html(found)
    assert "| Speed of light |" in render_markdown(found)


def test_what_rules_say_is_quoted_as_text_of_the_profiler() -> None:
    text = "<b>Bold</b> & *starred* [link](http://x) " + "word " * 100
    rules = [
        {**rule(1, "TheoreticalOccupancy", text, 0.5), "name": "void b<4>(int)"},
        {**rule(1, "SOLBottleneck", "A fact.", None, kind="INF"), "name": "void b<4>(int)"},
        {**rule(1, "SOLBottleneck", "Too small.", None), "name": "void b<4>(int)"},
    ]
    found = analysis_of(kernel_counters=SPEEDS, kernel_rules=rules)
    lines = terminal(found)
    assert "Nsight Compute says of b<4>(int)" in lines
    said = " ".join(line.strip() for line in lines)
    assert "Theoretical occupancy, estimated local speedup 50.0 %: <b>Bold</b> & *starred*" in said
    assert "A fact." not in said
    assert said.index("SOL bottleneck: Too small.") < said.index("Theoretical occupancy")
    page = render_html(found)
    assert "<details><summary>Nsight Compute says of <code" in page
    assert "&lt;b&gt;Bold&lt;/b&gt; &amp; *starred*" in page
    assert "<b>Bold</b>" not in page
    markdown = render_markdown(found)
    assert "<summary>What Nsight Compute says</summary>" in markdown
    assert "<b>Bold" not in markdown
    assert "[link](" not in markdown
    report = json.loads(found.to_json())
    VALIDATORS["traceflops.report/1"].validate(report)
    first, second, _ = report["utilisation"]["speed_of_light"][0]["rules"]
    assert (first["text"], first["speedup_share"], first["speedup_kind"]) == (text, 0.5, "local")
    assert (second["kind"], second["speedup_share"], second["launches"]) == ("INF", None, 1)


def test_names_of_a_stranger_are_text() -> None:
    names = [text.encode("utf-8", "replace").decode() for text in HOSTILE]
    found = analysis_of(
        totals=[{"name": name, "total_ns": 5, "count": 1} for name in names],
        calls=[{"name": name, "start_ns": 5} for name in names],
        kernel_counters=[
            row
            for at, name in enumerate(names)
            for row in launch(at, BUSY | {name: 1.5}, name=name)
        ],
    )
    page = render_html(found)
    assert "<script>alert(1)" not in page
    assert "<img src=x" not in page
    assert terminal(found)
    json.loads(found.to_json())
