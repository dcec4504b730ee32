"""The first lines in a terminal: what is wrong, how large, where, what to do, how sure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from traceflops.analysis.result import Analysis
from traceflops.reports.terminal.lines import Style, hanging, joined, paragraph
from traceflops.reports.view import findings, step_split, wording
from traceflops.reports.view.chapters import ALONE
from traceflops.reports.view.critical import critical_sentence
from traceflops.reports.view.figures import duration, kernel_label, percent, shorten_middle, wrapped
from traceflops.reports.view.palette import LINE_LOOKS
from traceflops.reports.view.utilisation import why_not
from traceflops.units import several

_NAME: Final = 60
_INDENT: Final = "   "
_BETWEEN: Final = 3
_SMALL: Final = 0.01
_QUESTION: Final = 72
_PARAMETERS: Final = re.compile(r"[(<]")


def case_lines(analysis: Analysis, style: Style, most: int = 3) -> Iterator[Text]:
    """Yield the title, where the time of a step goes, and `most` findings with their remedies."""
    opened = findings.opening(analysis)
    # The figure stands at the right of the title; if it has no room, in the next line.
    figure = analysis.measured.figure or ""
    lines = [Text(line, "bold") for line in wrapped(opened.title, style.width)]
    room = style.width - lines[-1].cell_len - cell_len(figure) if lines else 0
    if figure and room >= _BETWEEN:
        lines[-1].append(" " * room + figure, "bold")
        figure = ""
    yield from lines
    best = findings.title_finding(analysis)
    if best is not None:
        yield from _title_facts(best, opened, style.width)
    yield from paragraph(opened.rest, style.width)
    yield from provenance(analysis, style, figure)
    for sentence in step_split.scope(analysis):
        yield from paragraph(sentence, style.width)
    # If counters were read, kernels ran one by one: no step can be described or drawn.
    is_counted = analysis.recorded == "serialized"
    for sentence in why_not(analysis.measured)[: 1 if analysis.devices and not is_counted else 0]:
        yield from paragraph(sentence, style.width)
    # Nor where there is too little to split, or times are those of launches, not of the work.
    is_drawn = not (is_counted or findings.is_little(analysis) or analysis.only_launches)
    if analysis.total.components.window_ns and is_drawn:
        yield Text()
        yield from _step(analysis, style)
    # The findings with a cause, the largest gain first; if there are none, the others.
    shown = findings.causes(analysis)
    if shown:
        yield Text()
    for number, one in enumerate(shown[:most], 1):
        is_title = best is not None and one.finding is best.finding
        yield from _finding(number, one, style.width, opened if is_title else None)
    if sum(one.finding.gain is not None for one in shown[:most]) > 1:  # somebody may add them up
        yield from paragraph(ALONE, style.width, "dim", _INDENT)
    if len(shown) > most:
        more = several(len(shown) - most, "more finding")
        yield from paragraph(f"… {more} on the page and in --json", style.width, "dim", _INDENT)
    others = [] if shown else findings.other_findings(analysis, losses=False)
    other_lines: list[Text] = []
    for other in others:
        is_title = best is not None and other is best.finding
        # Of the finding in the title only what that leaves out.
        sentence = findings.left_to_say(other, opened) if is_title else other.sentence
        if sentence in opened.rest and (other.remedy or "") in opened.rest:
            continue
        other_lines += paragraph(sentence, style.width)
        if other.remedy and not is_title:
            other_lines += hanging("help: ", other.remedy, style.width)
    yield from (Text(), *other_lines) if other_lines else ()


def _title_facts(
    best: findings.FindingWords, opened: findings.Opening, width: int
) -> Iterator[Text]:
    """Yield what the title does not say of its finding, `best`, and its remedy."""
    # A title with neither of these is itself about what is saved.
    saves = best.saves if opened.tells or opened.rest else ""
    title, rows = opened.title, best.finding.rows[:1]
    is_named = any(_PARAMETERS.split(row.name)[0] in title for row in rows)
    places = [] if is_named else [name for name in _places(best, width) if name not in title]
    sure = f"sure: {best.level}" if best.level else ""
    yield from joined(filter(None, (*places, saves, best.owner, best.mfu, sure)), width)
    yield from hanging("help: ", best.finding.remedy, width)


def _step(analysis: Analysis, style: Style) -> Iterator[Text]:
    """Yield the parts of a step as a bar, their times below it, and sentences on it."""
    parts = step_split.step_parts(analysis)
    yield style.bar([(LINE_LOOKS[part.name], part.ns) for part in parts])
    small = [part for part in parts if part.share < _SMALL]
    # A single small part takes no more room than a sum of one.
    shown = parts if len(small) == 1 else [part for part in parts if part.share >= _SMALL]
    marked = []
    for part in shown:
        text = f" {part.short} {duration(part.ns)} {percent(part.share)}"
        marked.append((style.drawn(LINE_LOOKS[part.name]), text))
    if len(small) > 1:
        rest = duration(sum(part.ns for part in small))
        marked.append((Text(), f"{len(small)} more parts {rest}"))
    line = Text()  # as many parts as fit
    for mark, text in marked:
        if line and line.cell_len + len(_INDENT) + mark.cell_len + cell_len(text) > style.width:
            yield line
            line = Text()
        line.append(_INDENT if line else "").append_text(mark).append(text)
    yield line
    rest = step_split.outside(analysis)
    is_said = rest in step_split.scope(analysis) or step_split.begins_late(
        analysis
    )  # the latter in the title
    window = f"{wording.basis(analysis)}. {'' if is_said else rest}"
    for text in (window.rstrip(), critical_sentence(analysis), wording.uneven_steps(analysis)):
        yield from paragraph(text, style.width)


def provenance(analysis: Analysis, style: Style, first: str = "") -> Iterator[Text]:
    """Yield warnings, then `first`, devices (unless of no job), steps, selection and files."""
    for text in wording.doubts(analysis):
        yield from hanging("warning: ", text, style.width, "bold")
    typical_ns, files = analysis.steps.typical_ns, analysis.source.files
    parts = (
        first,
        "" if analysis.of_no_job else wording.products(analysis),
        f"median step {duration(typical_ns)}" if typical_ns is not None else "",
        "" if analysis.selection.is_time_range else wording.steps_used(analysis),
        wording.selected(analysis),
        wording.some_ranks(analysis),
        shorten_middle(files[0].name, 40) if len(files) == 1 else f"{len(files)} files",
    )
    yield from joined(filter(None, parts), style.width)


def _finding(
    number: int, one: findings.FindingWords, width: int, opened: findings.Opening | None
) -> Iterator[Text]:
    """Yield what a finding saves, what to do, what shows it; `opened` if the title is of it."""
    if opened is not None:
        yield from hanging(
            f"{number}  ", findings.left_to_say(one.finding, opened) or one.finding.title, width
        )
    else:
        title, saves = one.finding.title, one.saves or "gain unknown"
        room = width - len(_INDENT) - len(title) - len(saves)
        if room > 1:
            yield Text.assemble(f"{number}  ", (title, "bold"), " " * room, saves)
        else:
            yield from hanging(f"{number}  ", title, width, "bold")
            yield from paragraph(saves, width, "", _INDENT)
        # Where and who: not worth a line for what gains little, unless nothing gains more.
        if one.finding.priority != "low" or number == 1:
            for line in joined(
                filter(None, (*_places(one, width), one.owner, one.mfu, f"sure: {one.level}")),
                width - len(_INDENT),
            ):
                yield Text(_INDENT).append_text(line)
        yield from hanging(f"{_INDENT}help: ", one.finding.remedy, width)
        yield from paragraph(one.finding.sentence, width, "dim", _INDENT) if number == 1 else ()
    if number == 1 and one.reasons:
        yield from hanging(f"{_INDENT}why {one.level}: ", one.reasons, width, "dim")
    question = f"{_INDENT}try: traceflops what-if TRACE {shlex.join(one.finding.edits)}"
    if number == 1 and one.finding.edits and cell_len(question) <= min(width, _QUESTION):
        yield Text(question, "dim")


def _places(one: findings.FindingWords, width: int) -> Iterator[str]:
    return (kernel_label(name, min(_NAME, width - len(_INDENT))) for name in one.where)
