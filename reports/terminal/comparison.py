"""A comparison in a terminal: sentences, two bars on one scale, the causes of the difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.text import Text

from traceflops.comparison.matching import UNRECORDED
from traceflops.comparison.result import Comparison
from traceflops.comparison.side import Side
from traceflops.reports.terminal.lines import (
    Style,
    cut_to,
    fitted,
    hanging,
    headline,
    note_lines,
    paragraph,
    view_table,
)
from traceflops.reports.view.comparison import (
    compared,
    comparison_tables,
    more_sentences,
    runs_table,
    sides_table,
)
from traceflops.reports.view.counted import counted_change
from traceflops.reports.view.figures import duration
from traceflops.reports.view.palette import LOOKS
from traceflops.reports.view.tables import ReportTable
from traceflops.timeline.records import COMPONENTS

_NAME: Final = 52
_BAR: Final = 80
_CELL: Final = 8
_NOTES: Final = 2
_WIDE: Final = 100
_LESS: Final = (
    *("Matched by", "Component", "95 % interval", "", "Memory", "Steps", "Calls", "In"),
    *("Largest cause", "Peak bytes", "Uncategorized", "Graphs", "Exposed comm", "Compute"),
    *("Start-up", "Idle", "MFU", "How sure"),
    *("Occupancy", "Nearest roof", "Before", "After", "Share"),
)
"""Columns that are left out, in this order, until the others have room."""


def render_comparison(comparison: Comparison, style: Style) -> list[Text]:
    """Return the sentences of a comparison, its notes, the bars of both sides, and the tables."""
    style = style.wide_enough()
    width = style.width
    lines = list(paragraph(comparison.sentence, width, "bold"))
    for words in more_sentences(comparison):
        lines += paragraph(words, width, "")
    lines += note_lines(comparison.notes, _NOTES, "in --json", width)
    sides = compared([comparison])
    if sides and all(side.windows for side in sides):
        lines += [Text(), *_bars(sides, style)]
    # The tables of what is not alike and of peak memory are sentences here.
    recordings, _, *tables, _ = (table for _, table in comparison_tables(comparison))
    lines += _tables([recordings], width)
    lines += _unlike(comparison, width)
    return fitted([*lines, *_tables(tables, width)], style)


def _unlike(comparison: Comparison, width: int) -> Iterator[Text]:
    """Yield what else differs between the recordings, then what only one side recorded."""
    if comparison.unlike:
        yield from headline("Not alike")

    def with_value(what: str, value: str) -> str:
        return what if value == "recorded" else f"{what} {value}"  # "recorded" is no value

    only_before, only_after = list[str](), list[str]()
    for unlike in comparison.unlike:
        if unlike.after == UNRECORDED:
            only_before.append(with_value(unlike.what, unlike.before))
        elif unlike.before == UNRECORDED:
            only_after.append(with_value(unlike.what, unlike.after))
        else:
            yield from hanging(f"  {unlike.what}: ", f"{unlike.before} → {unlike.after}", width)
    for side, only in ((comparison.before, only_before), (comparison.after, only_after)):
        if only:
            yield from hanging("  ", f"recorded of {side.name} only: {', '.join(only)}", width)


def render_runs(comparisons: Sequence[Comparison], style: Style) -> list[Text]:
    """Return the lines of a comparison of several recordings with one baseline."""
    style = style.wide_enough()
    tables = (sides_table(compared(comparisons)), runs_table(comparisons))
    lines = [Text(f"Against {comparisons[0].before.name}", "bold"), *_tables(tables, style.width)]
    for run in comparisons:
        lines += [Text(), Text(run.after.name, "bold"), *paragraph(run.sentence, style.width, "")]
        lines += _tables([counted_change(run)], style.width)
    return fitted(lines, style)


def _tables(tables: Sequence[ReportTable] | Iterator[ReportTable], width: int) -> Iterator[Text]:
    """Yield the tables that have rows, each with the number of hidden rows and its remark."""
    most = _NAME + max(width - _WIDE, 0)  # in a wide terminal, names get all additional room
    for table in tables:
        if table.rows:
            left_out = ("Component",) if width < _WIDE else ()
            yield from view_table(table, _CELL, _LESS, most, width, *left_out)
            if table.total > len(table.rows):
                yield Text(f"  {table.total - len(table.rows):,} more in --json", "dim")
            yield from paragraph(table.remark, width)


def _bars(sides: Sequence[Side], style: Style) -> Iterator[Text]:
    """Yield a bar per side, in proportion to its mean step, and the meaning of the colours."""
    longest_ns = max(side.mean_ns for side in sides) or 1
    name_width = min(max(len(side.name) for side in sides), 24)
    width = min(_BAR, style.width - name_width - 14)  # 9 for the time, 3 spaces, a margin of 2
    names = cut_to([side.name for side in sides], name_width)
    for side, name in zip(sides, names, strict=True):
        length = int(width * side.mean_ns / longest_ns)
        parts = side.components.parts().items()
        bar = style.bar([(LOOKS[part], ns) for part, ns in parts], length)
        yield Text.assemble(f"{name} {duration(float(side.mean_ns)):>9}  ", bar)
    looks = [LOOKS[part] for part in COMPONENTS if any(s.components.parts()[part] for s in sides)]
    marks = (f"{look.block if style.unicode else look.ascii} {look.label}" for look in looks)
    yield Text("  ".join(marks), "dim")
