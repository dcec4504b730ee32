"""The first lines in a terminal: what to fix, how much it saves, where, how, and how sure it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rich.text import Text

from traceflops.reports.terminal.lines import Style, hanging, joined, paragraph
from traceflops.reports.view import (
    FindingWords,
    background,
    causes,
    headline,
    other_findings,
    shorten_middle,
)
from traceflops.units import several

if TYPE_CHECKING:
    from traceflops.analysis import Analysis

_MOST: Final = 3
_NAME: Final = 60
_INDENT: Final = "  "


def title_lines(analysis: Analysis, style: Style) -> Iterator[Text]:
    """Yield the verdict, and the findings: the best of them before what takes the time."""
    first = headline(analysis)
    yield from paragraph(first or analysis.verdict.sentence, style.width, "bold")
    found = causes(analysis)
    for place, one in enumerate(found[:_MOST]):
        if place or not first:
            yield from _title(one, style.width)
        if one.finding.priority != "low" or not place:
            yield from _cause(one, style.width, in_full=place == 0)
    if len(found) > _MOST:
        more = several(len(found) - _MOST, "more finding")
        yield Text(f"{_INDENT}… {more} on the page and in --json", "dim")
    for other in () if found else other_findings(analysis, losses=False):
        yield from paragraph(other.sentence, style.width)
    if first:
        yield Text()
        yield from paragraph(background(analysis), style.width)


def _title(one: FindingWords, width: int) -> Iterator[Text]:
    """Yield the title and at the right what it saves, below it where that has no room."""
    title, saves = one.finding.title, one.saves or "gain unknown"
    room = width - len(title) - len(saves)
    if room > 1:
        yield Text.assemble((title, "bold"), " " * room, saves)
        return
    yield from paragraph(title, width, "bold")
    yield from paragraph(saves, width, "", _INDENT)


def _cause(one: FindingWords, width: int, *, in_full: bool) -> Iterator[Text]:
    """Yield where a cause is and what to do; in full also what it is about and how sure it is."""
    said = one.finding.sentence if in_full else ""
    yield from paragraph(said, width, "", _INDENT)
    names = (name for name in one.where if name not in said)
    shown = (shorten_middle(name, min(_NAME, width - len(_INDENT))) for name in names)
    level, _, reasons = one.sure.removesuffix(")").partition(" (")
    facts = (*shown, one.owner, one.mfu, f"sure: {level}")
    for line in joined(filter(None, facts), width - len(_INDENT)):
        yield Text(_INDENT).append_text(line)
    yield from hanging(f"{_INDENT}help: ", one.finding.remedy, width)
    if in_full and reasons:
        yield from hanging(f"{_INDENT}why {level}: ", reasons, width, "dim")
