"""The report as Markdown for a ticket or a pull request on GitHub.

Texts from a trace are in code spans, or have special characters as entities, so that nothing in
them becomes markup, a mention, an issue, an emoji or a link.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from traceflops._version import __version__
from traceflops.analysis.result import Analysis
from traceflops.comparison.result import Comparison
from traceflops.mfu.measurement import Measurement
from traceflops.reports.page.memory import memory_page
from traceflops.reports.view import findings
from traceflops.reports.view.author_notes import NOTHING, Authored, NoteBlock
from traceflops.reports.view.chapters import post_mortem
from traceflops.reports.view.comparison import comparison_tables, more_sentences
from traceflops.reports.view.counted import SAYS, counted_table, rules_said, speeds_table
from traceflops.reports.view.critical import critical_tables
from traceflops.reports.view.figures import UNKNOWN, count, size, visible
from traceflops.reports.view.gpu_samples import gpu_samples_table
from traceflops.reports.view.host import host_tables
from traceflops.reports.view.owners import attribution_sentence, owner_tables
from traceflops.reports.view.pipelines import pipeline_tables
from traceflops.reports.view.serving import serving_table
from traceflops.reports.view.tables import (
    Cell,
    Column,
    Name,
    ReportTable,
    components_table,
    folded_tables,
    jobs_table,
    table_of,
    untimed_tables,
    waits_table,
    waterfall_table,
)
from traceflops.reports.view.texts import words
from traceflops.reports.view.utilisation import why_not
from traceflops.reports.view.who_waits import ranks_table, rates_table
from traceflops.reports.view.wording import doubts, notes_by_weight, provenance
from traceflops.timeline.aggregates import Untimed
from traceflops.units import several

SIGN: Final = "<!-- traceflops.report/1 -->"
"""The first line, by which `files.is_report` recognises such a file."""

_NOTES: Final = 20
_ROWS: Final = 20
_CAUSES: Final = 10
_RANKS: Final = 4
_PATH: Final = "Critical path"
_LONGEST: Final = 2_000
_SPECIAL: Final = re.compile(r"[&<>*_`\[\]|\\~@#$!]|:(?=//|[\w+-]+:)|(?<=[wW])\.(?=\w)")
"""Characters that may be markup, or begin a mention, an issue, an emoji or a link."""
_BEGINS: Final = "@#:."
_FOOT: Final = f"<sub>traceflops {__version__}</sub>"

_MEMORY: Final = (
    Column(
        "Location",
        lambda row: row["label"] + ("" if row["is_total"] else " (change since start)"),
    ),
    Column("Peak", lambda row: size(row["peak"], binary=True), True),
    Column("Peak at", lambda row: row["when"]),
    Column("Reserved", lambda row: size(row["reserved"], binary=True), True),
    Column("Peak use", lambda row: row["share"], True),
    Column("Growth over used steps", lambda row: row["growth"]),
)

_HELD: Final = (
    Column(
        "Allocated by",
        lambda row: Name(row.op or UNKNOWN) if row.recorded else "before the recording",
    ),
    Column("In", lambda row: Name(row.scope) if row.scope else UNKNOWN),
    Column("Held", lambda row: size(row.bytes, binary=True), True),
    Column("Blocks", lambda row: count(row.blocks) if row.recorded else UNKNOWN, True),
)


def render_markdown(
    analysis: Analysis, command: str | None = None, authored: Authored = NOTHING
) -> str:
    """Return the report; `command` is the command line that created it, with base names only."""
    measured, untimed = analysis.measured, analysis.untimed
    counted = (speeds_table(measured, _ROWS), counted_table(measured, _ROWS))
    # If most is lost as idle time, the table of waits comes first.
    tables = [waits_table(analysis), components_table(analysis)]
    if analysis.verdict.loss != "idle":
        tables.reverse()
    waterfall: list[str] = []
    if measured.waterfall is not None:
        figure = f"**{measured.figure}** ({plain(measured.basis)})"
        waterfall = [figure, "", *_table(waterfall_table(measured))]
    shown = notes_by_weight(analysis)[:_NOTES]
    notes = [f"- **{note.kind}**: {plain(note.text)}" for note in shown]
    created_by = f" · {code(command)}" if command else ""
    sections = (
        _head(analysis, authored.title),
        _authored(authored.blocks),
        _totals(untimed, counted) if untimed is not None else (),
        _table(jobs_table(analysis)),
        *map(_table, tables),
        _findings(analysis),
        waterfall,
        _table(ranks_table(analysis, _RANKS)),
        _details("Bandwidth", _table(rates_table(analysis))),
        _table(serving_table(analysis)),
        _attribution(analysis),
        *(_details(title, _table(table)) for title, table in folded_tables(analysis)),
        *(_details(title, _table(table)) for title, table in pipeline_tables(analysis)),
        *(_details(_PATH, _table(table)) for table in critical_tables(analysis)),
        *(_details(title, _table(table)) for title, table in host_tables(analysis, _ROWS)),
        *(_details("Counted kernels", _table(t)) for t in (counted if untimed is None else ())),
        _details(f"What {SAYS}", _rules(measured)),
        _details("Memory", _memory(analysis)),
        _details("Clocks and power", _table(gpu_samples_table(analysis))),
        _details("Notes", [*notes, *_more(len(analysis.notes) - _NOTES)]),
        [f"<sub>traceflops {__version__}{created_by}</sub>"],
    )
    return _joined(sections)


def _totals(untimed: Untimed, counted: Iterable[ReportTable]) -> Iterator[str]:
    """Yield all that a recording without a timeline has: sums, counters, how to record more."""
    for table in (*untimed_tables(untimed), *counted):
        yield from (*_table(table), "")
    if untimed.record is not None:
        yield f"To record a timeline: {code(untimed.record)}"


def _rules(measured: Measurement) -> Iterator[str]:
    """Yield the profiler's messages on kernels as a list."""
    for kernel in rules_said(measured, _ROWS):
        yield f"- {code(kernel.name)}"
        for rule in kernel.rules:
            text = f": {plain(rule.text)}" if rule.text else ""
            yield f"  - **{plain(rule.head)}**{text}"


def render_comparison(comparison: Comparison) -> str:
    """Return a comparison for a pull request: sentences, the two sides, and folded tables."""
    (_, sides), *tables = comparison_tables(comparison)
    sections = (
        ["<!-- traceflops.comparison/1 -->", f"## {plain(comparison.sentence)}"],
        *([plain(sentence)] for sentence in more_sentences(comparison)),
        _table(sides),
        *(_details(title, _table(table)) for title, table in tables),
        _details("Notes", [f"- {plain(note)}" for note in comparison.notes]),
        [_FOOT],
    )
    return _joined(sections)


def render_post_mortem(analysis: Analysis, authored: Authored = NOTHING) -> str:
    """Return the post-mortem: a heading per chapter, its sentences as a list."""
    chapters = [
        [f"## {chapter.title}", "", *(f"- {plain(sentence)}" for sentence in chapter.sentences)]
        for chapter in post_mortem(analysis)
    ]
    title = plain(authored.title or "Post-mortem")
    return _joined(([SIGN, f"# {title}"], _authored(authored.blocks), *chapters, [_FOOT]))


def _joined(sections: Iterable[Iterable[str]]) -> str:
    """Return sections of lines as a document; empty ones are left out."""
    texts = ("\n".join(lines) for lines in map(list, sections) if lines)
    return "\n\n".join(texts) + "\n"


def _head(analysis: Analysis, title: str | None) -> Iterator[str]:
    """Yield the lines above the findings: title, verdict, warnings, origin, why there is no MFU."""
    yield SIGN
    if title is not None:
        yield f"# {plain(title)}"
        yield ""
    opened = findings.opening(analysis)
    yield f"## {plain(opened.title)}"
    if findings.title_finding(analysis) is not None:
        yield ""
        yield plain(" ".join(map(words, findings.background(analysis))))
    elif opened.rest:
        yield ""
        yield plain(opened.rest)
    for text in doubts(analysis):
        yield ""
        yield f"**Warning:** {plain(text)}"
    yield ""
    yield " · ".join(plain(part) for part in provenance(analysis))
    if analysis.devices:
        for sentence in why_not(analysis.measured)[:1]:
            yield ""
            yield plain(sentence)


def _authored(blocks: Iterable[NoteBlock]) -> Iterator[str]:
    """Yield the author's notes as a quote."""
    for number, block in enumerate(blocks):
        if number:
            yield ">"
        if block.kind == "code":
            # Longer than any run of backticks inside the block, so that none ends it.
            fence = "`" * (max(map(longest_run, block.lines), default=0) + 3)
            yield f"> {fence}text"
            yield from (f"> {visible(line)}" for line in block.lines)
            yield f"> {fence}"
        elif block.kind == "list":
            yield from (f"> - {first_of_line(plain(line))}" for line in block.lines)
        elif block.kind == "heading":
            yield f"> **{plain(block.lines[0])}**"
        else:
            yield f"> {first_of_line(plain(block.lines[0]))}"


def _findings(analysis: Analysis) -> Iterator[str]:
    """Yield the causes in full, then the other findings."""
    causes = findings.causes(analysis)
    for cause in causes[:_CAUSES]:
        title = f"{cause.finding.title}: {cause.saves or 'gain unknown'}"
        yield f"- **{plain(title)}**{f', {cause.mfu}' if cause.mfu else ''}"
        yield f"  <br>{plain(cause.finding.sentence)}"
        where = ", ".join(map(code, cause.where)) or UNKNOWN
        yield f"  <br>Where: {' · '.join(filter(None, (where, plain(cause.owner))))}"
        yield f"  <br>Do: {plain(cause.finding.remedy)}"
        yield f"  <br>Sure: {plain(cause.sure)}"
    yield from _more(len(causes) - _CAUSES)
    for finding in findings.other_findings(analysis):
        text = f"{finding.sentence} {finding.remedy}".rstrip()
        yield f"- **{plain(finding.severity)}**: {plain(text)}"


def _attribution(analysis: Analysis) -> Iterator[str]:
    """Yield the tables of device work by owner; all but the first are folded."""
    for number, (title, table) in enumerate(owner_tables(analysis)):
        if number:
            yield from ("", *_details(title, _table(table)))
        else:
            yield from (plain(f"{attribution_sentence(analysis)}."), "", *_table(table))


def _memory(analysis: Analysis) -> Iterator[str]:
    """Yield the memory of each device and host, and what is held at the highest peak, if known."""
    page = memory_page(analysis)
    if page is None:
        return
    yield from _table(table_of(_MEMORY, page.rows, page.total))
    held = page.held
    if held is not None:
        when = "As the snapshot is taken," if held.is_state else "At the peak of"
        peak = f"{when} {held.label}: {size(held.peak, binary=True)}"
        yield from ("", plain(peak), "")
        yield from _table(table_of(_HELD, held.rows, len(held.rows) + held.others))


def _details(title: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield lines folded under a title; nothing without lines."""
    folded = list(lines)
    if folded:
        yield from (f"<details><summary>{title}</summary>", "", *folded, "", "</details>")


def _table(table: ReportTable) -> Iterator[str]:
    """Yield a table with the number of hidden rows and its remark; nothing without rows."""
    if not table.rows:
        return
    yield _row(column.head for column in table.columns)
    yield _row("--:" if column.is_number else "---" for column in table.columns)
    for depth, row in zip(table.indents, table.rows, strict=True):
        first, *cells = map(_markup, table.columns, row)
        yield _row((f"{'&emsp;' * depth}{first}", *cells))
    yield from _more(table.total - len(table.rows))
    if table.remark:
        yield from ("", plain(table.remark))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markup(column: Column, cell: Cell) -> str:
    """Return a cell as Markdown: names as code, texts escaped; of numbers only "<" is escaped."""
    if isinstance(cell, tuple):
        return " ".join(_markup(column, piece) for piece in cell)
    if isinstance(cell, Name):
        return code(cell)
    return cell.replace("<", "&#60;") if column.is_number else plain(cell)


def _more(number: int) -> Iterator[str]:
    if number > 0:
        yield ""
        yield f"{several(number, 'more row')} in the HTML or JSON report."


def plain(text: str) -> str:
    """Return text, on one line, that Markdown shows unchanged: special characters are entities.

    GitHub looks for mentions, issues and the like again after it has decoded entities, so a
    zero-width space follows the characters that begin them.
    """

    def entity(match: re.Match[str]) -> str:
        return f"&#{ord(match[0])};{'&#8203;' if match[0] in _BEGINS else ''}"

    return _SPECIAL.sub(entity, visible(text[:_LONGEST]).strip())


def code(text: str) -> str:
    """Return text as a code span that is allowed in a table."""
    shown = visible(text).replace("|", "\N{BROKEN BAR}").strip() or " "
    fence = "`" * (longest_run(shown) + 1)
    space = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{space}{shown}{space}{fence}"


def first_of_line(text: str) -> str:
    """Return a line whose first characters do not make it a list item or a heading."""
    return re.sub(
        r"^(?:[-+=](?=\s|[-=]|$)|\d+[.)](?=\s|$))",
        lambda match: "".join(f"&#{ord(character)};" for character in match[0]),
        text,
    )


def longest_run(text: str) -> int:
    """Return the length of the longest run of backticks."""
    return max((len(run) for run in re.findall("`+", text)), default=0)
