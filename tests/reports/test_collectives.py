"""What collectives moved, in the terminal and on the page."""

from __future__ import annotations

import re

from msgspec.structs import replace

from tests.reports import factory
from traceflops.analysis.result import Analysis
from traceflops.ranks.collectives import Collective
from traceflops.reports.markdown import render_markdown
from traceflops.reports.page.html import render_html
from traceflops.reports.terminal.lines import Style
from traceflops.reports.terminal.summary import render_terminal

ROWS = (
    Collective("allreduce", 8, 12, 3_000_000, 1_000_000, 12, 48_000_000, 3_000_000),
    Collective("_allgather_base", None, 1, 20_000, 0, 0, None, 0),
    Collective(None, None, 2, 10, 10, 0, None, 0),
)


def with_rows(*rows: Collective) -> Analysis:
    return replace(factory.analysis(), collectives=rows)


def lines(analysis: Analysis, width: int = 100) -> list[str]:
    return [line.plain for line in render_terminal(analysis, Style(width))]


def test_the_longest_kinds_in_the_terminal() -> None:
    """There are 23 steps on one GPU; all but sizes and rates are means of them."""
    found = lines(with_rows(*ROWS))
    times = "\N{MULTIPLICATION SIGN}"
    largest = f"  all-reduce, 8 ranks: 0.52 {times} 4.00 MB, 16 GB/s with waiting, 130 µs"
    assert f"{largest}, 43.5 µs exposed" in found
    assert f"  all-gather base: 0.043 {times}, 870 ns, 0 ns exposed, 1 kind more in --json" in found
    assert max(map(len, lines(with_rows(*ROWS), 64))) <= 64


def test_without_any_there_is_nothing_of_it() -> None:
    analysis = with_rows()
    assert not any("exposed," in line for line in lines(analysis))
    assert 'id="communication"' not in render_html(analysis)


def test_the_page_has_a_section_and_its_names_are_text() -> None:
    nasty = replace(ROWS[0], collective="<script>alert(1)</script>")
    page = render_html(with_rows(*ROWS, nasty))
    (section,) = re.findall(r'<section id="communication">.*?</section>', page, re.DOTALL)
    assert 'href="#communication"' in page
    assert section.count("<tr>") == 1 + 4
    assert "all-reduce, 8 ranks" in section
    assert 'data-value="48000000"' in section
    assert "16 GB/s" in section
    assert "Rate with waiting" in section and ">Rate<" not in section
    assert "<script>" not in section


def test_the_markdown_has_a_table_whose_names_are_text() -> None:
    nasty = replace(ROWS[0], collective="a|b <script>")
    text = render_markdown(with_rows(*ROWS, nasty))
    (section,) = re.findall(r"<summary>Communication</summary>.*?</details>", text, re.DOTALL)
    found = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines()]
    assert [
        "all-reduce, 8 ranks",
        "12",
        "4.00 MB",
        "48.0 MB",
        "3.00 ms",
        "1.00 ms",
        "16 GB/s",
    ] in found
    assert len([row for row in found if len(row) == 7]) == 2 + 4
    assert "<script>" not in section
    assert "<summary>Communication" not in render_markdown(with_rows())
    many = render_markdown(with_rows(*(replace(ROWS[0], ranks=n) for n in range(1, 12))))
    assert "3 more rows in the HTML or JSON report." in many
