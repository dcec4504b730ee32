"""A comparison in a terminal: the sentence, two bars on one scale, what adds up to the change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.text import Text

from traceflops.comparison.likeness import UNRECORDED
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
"""Columns that are left out, in this order, if there is no room."""


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
    # What is not alike and the peak of memory are no tables here, but sentences.
    recordings, _, *tables, _ = (table for _, table in comparison_tables(comparison))
    lines += _tables([recordings], width)
    lines += headline("Not alike") if comparison.unlike else ()
    of_before, of_after = list[str](), list[str]()
    # What has no value but that it is there is "recorded" on a side.
    for one in comparison.unlike:
        if one.after == UNRECORDED:
            of_before.append(one.what if one.before == "recorded" else f"{one.what} {one.before}")
        elif one.before == UNRECORDED:
            of_after.append(one.what if one.after == "recorded" else f"{one.what} {one.after}")
        else:
            lines += hanging(f"  {one.what}: ", f"{one.before} → {one.after}", width)
    for side, recorded in ((comparison.before, of_before), (comparison.after, of_after)):
        if recorded:
            lines += hanging("  ", f"recorded of {side.name} only: {', '.join(recorded)}", width)
    return fitted([*lines, *_tables(tables, width)], style)


def render_runs(comparisons: Sequence[Comparison], style: Style) -> list[Text]:
    """Return the comparison of several recordings with one baseline as lines."""
    style = style.wide_enough()
    tables = (sides_table(compared(comparisons)), runs_table(comparisons))
    lines = [Text(f"Against {comparisons[0].before.name}", "bold"), *_tables(tables, style.width)]
    for one in comparisons:
        lines += [Text(), Text(one.after.name, "bold"), *paragraph(one.sentence, style.width, "")]
        lines += _tables([counted_change(one)], style.width)
    return fitted(lines, style)


def _tables(tables: Sequence[ReportTable] | Iterator[ReportTable], width: int) -> Iterator[Text]:
    """Yield the tables that have rows, each with what it leaves out and its remark."""
    most = _NAME + max(width - _WIDE, 0)  # names get what a wide terminal has more
    for table in tables:
        if table.rows:
            left_out = ("Component",) if width < _WIDE else ()
            yield from view_table(table, _CELL, _LESS, most, width, *left_out)
            if table.total > len(table.rows):
                yield Text(f"  {table.total - len(table.rows):,} more", "dim")
            yield from paragraph(table.remark, width)


def _bars(sides: Sequence[Side], style: Style) -> Iterator[Text]:
    """Yield a bar per side, as long as its mean step, and the meaning of the colours."""
    longest = max(side.mean_ns for side in sides) or 1
    name = min(max(len(side.name) for side in sides), 24)
    width = min(_BAR, style.width - name - 14)  # 9 for the time, 3 spaces, a margin of 2
    names = cut_to([side.name for side in sides], name)
    for side, shown in zip(sides, names, strict=True):
        room = int(width * side.mean_ns / longest)
        parts = side.components.parts().items()
        bar = style.bar([(LOOKS[part], ns) for part, ns in parts], room)
        label = f"{shown} {duration(float(side.mean_ns)):>9}  "
        yield Text.assemble(label, bar)
    looks = [LOOKS[part] for part in COMPONENTS if any(s.components.parts()[part] for s in sides)]
    marks = (f"{look.block if style.unicode else look.ascii} {look.label}" for look in looks)
    yield Text("  ".join(marks), "dim")
