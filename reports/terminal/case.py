"""The first lines in a terminal: what is wrong, how large, where, the remedy, the confidence."""

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
from traceflops.reports.view.utilisation import figure_of, why_not
from traceflops.units import several

_NAME: Final = 60
_INDENT: Final = "   "
_BETWEEN: Final = 3  # least columns between the title and the figure
_SMALL: Final = 0.01  # share of a step below which parts are summed up
_QUESTION: Final = 72
_PARAMETERS: Final = re.compile(r"[(<]")


def case_lines(analysis: Analysis, style: Style, most: int = 3) -> Iterator[Text]:
    """Yield the title, where the time of a step goes, and `most` findings with their remedies."""
    opened = findings.opening(analysis)
    title, more = opened.heading()
    # The figure is at the right of the title; if it has no room there, in the next line.
    figure = figure_of(analysis)
    lines = [Text(line, "bold") for line in wrapped(title, style.width)]
    room = style.width - lines[-1].cell_len - cell_len(figure) if lines else 0
    has_room = bool(figure) and room >= _BETWEEN
    if has_room:
        lines[-1].append(" " * room + figure, "bold")
    yield from lines
    best = findings.title_finding(analysis)
    if best is not None:
        yield from _title_facts(best, opened, style.width)
    yield from paragraph(" ".join(filter(None, (more, opened.rest))), style.width)
    yield from provenance(analysis, style, "" if has_room else figure)
    for sentence in step_split.scope(analysis):
        yield from paragraph(sentence, style.width)
    # When counters were read, kernels ran one by one: no step can be described or drawn.
    is_counted = analysis.recorded == "serialized"
    if analysis.devices and not is_counted:
        for sentence in why_not(analysis.measured)[:1]:
            yield from paragraph(sentence, style.width)
    # The same holds for too little work, or times of launches instead of the work.
    is_drawn = not (is_counted or findings.is_little(analysis) or analysis.only_launches)
    if analysis.total.components.window_ns and is_drawn:
        yield Text()
        yield from _step(analysis, style)
    causes = findings.causes(analysis)
    if causes:
        yield from _causes(causes, best, opened, style.width, most)
    else:
        yield from _others(analysis, best, opened, style.width)


def _causes(
    causes: list[findings.FindingWords],
    best: findings.FindingWords | None,
    opened: findings.Opening,
    width: int,
    most: int,
) -> Iterator[Text]:
    """Yield the first `most` findings with a cause; `best` is the one in the title."""
    yield Text()
    for number, cause in enumerate(causes[:most], 1):
        is_title = best is not None and cause.finding is best.finding
        yield from _finding(number, cause, width, opened if is_title else None)
    if sum(cause.finding.gain is not None for cause in causes[:most]) > 1:  # do not add them up
        yield from paragraph(ALONE, width, "dim", _INDENT)
    if len(causes) > most:
        more = several(len(causes) - most, "more finding")
        yield from paragraph(f"… {more} on the page and in --json", width, "dim", _INDENT)


def _others(
    analysis: Analysis, best: findings.FindingWords | None, opened: findings.Opening, width: int
) -> Iterator[Text]:
    """Yield the findings without a cause, without what the first lines already say."""
    lines: list[Text] = []
    for other in findings.other_findings(analysis, losses=False):
        is_title = best is not None and other is best.finding
        sentence = findings.left_to_say(other, opened) if is_title else other.sentence
        if sentence in opened.rest and (other.remedy or "") in opened.rest:
            continue
        lines += paragraph(sentence, width)
        if other.remedy and not is_title:
            lines += hanging("help: ", other.remedy, width)
    if lines:
        yield from (Text(), *lines)


def _title_facts(
    best: findings.FindingWords, opened: findings.Opening, width: int
) -> Iterator[Text]:
    """Yield what the title does not say of its finding, `best`, and its remedy."""
    # A title that states no finding, with nothing after it, already says what is saved.
    saves = best.saves if opened.tells or opened.rest else ""
    title, rows = opened.title, best.finding.rows[:1]
    is_named = any(_PARAMETERS.split(row.name)[0] in title for row in rows)
    places = [] if is_named else [name for name in _places(best, width) if name not in title]
    sure = f"sure: {best.level}" if best.level else ""
    yield from joined(filter(None, (*places, saves, best.owner, best.mfu, sure)), width)
    yield from hanging("help: ", best.finding.remedy, width)


def _step(analysis: Analysis, style: Style) -> Iterator[Text]:
    """Yield the parts of a step as a bar, their times below it, and sentences on the step."""
    parts = step_split.step_parts(analysis)
    yield style.bar([(LINE_LOOKS[part.name], part.ns) for part in parts])
    # Sum up small parts, unless there is only one.
    small = [part for part in parts if part.share < _SMALL]
    shown = parts if len(small) == 1 else [part for part in parts if part.share >= _SMALL]
    marked = []
    for part in shown:
        text = f" {part.short} {duration(part.ns)} {percent(part.share)}"
        marked.append((style.drawn(LINE_LOOKS[part.name]), text))
    if len(small) > 1:
        small_time = duration(sum(part.ns for part in small))
        marked.append((Text(), f"{len(small)} more parts {small_time}"))
    line = Text()
    for mark, text in marked:
        if line and line.cell_len + len(_INDENT) + mark.cell_len + cell_len(text) > style.width:
            yield line
            line = Text()
        line.append(_INDENT if line else "").append_text(mark).append(text)
    yield line
    outside = step_split.outside(analysis)
    # The scope or the title may have said this.
    is_said = outside in step_split.scope(analysis) or step_split.is_mostly_outside(analysis)
    window = f"{wording.basis(analysis)}. {'' if is_said else outside}"
    for text in (window.rstrip(), critical_sentence(analysis), wording.uneven_steps(analysis)):
        yield from paragraph(text, style.width)


def provenance(analysis: Analysis, style: Style, first: str = "") -> Iterator[Text]:
    """Yield warnings, then `first` and what was analyzed: devices, steps, selection, files."""
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
    number: int, cause: findings.FindingWords, width: int, opened: findings.Opening | None
) -> Iterator[Text]:
    """Yield what a finding saves, its remedy and its evidence.

    `opened` is given if the title states the finding: then only what the title does not say.
    """
    title = cause.finding.title
    if opened is not None:
        text = findings.left_to_say(cause.finding, opened) or title
        yield from hanging(f"{number}  ", text, width)
    else:
        saves = cause.saves or "gain unknown"
        room = width - len(_INDENT) - len(title) - len(saves)
        if room > 1:
            yield Text.assemble(f"{number}  ", (title, "bold"), " " * room, saves)
        else:
            yield from hanging(f"{number}  ", title, width, "bold")
            yield from paragraph(saves, width, "", _INDENT)
        # Where it is and who can fix it is not worth a line if little is gained.
        if cause.finding.priority != "low" or number == 1:
            places = _places(cause, width)
            parts = filter(None, (*places, cause.owner, cause.mfu, f"sure: {cause.level}"))
            for line in joined(parts, width - len(_INDENT)):
                yield Text(_INDENT).append_text(line)
        yield from hanging(f"{_INDENT}help: ", cause.finding.remedy, width)
        if number == 1:
            yield from paragraph(cause.finding.sentence, width, "dim", _INDENT)
    if number == 1 and cause.reasons:
        yield from hanging(f"{_INDENT}why {cause.level}: ", cause.reasons, width, "dim")
    question = f"{_INDENT}try: traceflops what-if TRACE {shlex.join(cause.finding.edits)}"
    if number == 1 and cause.finding.edits and cell_len(question) <= min(width, _QUESTION):
        yield Text(question, "dim")


def _places(cause: findings.FindingWords, width: int) -> Iterator[str]:
    return (kernel_label(name, min(_NAME, width - len(_INDENT))) for name in cause.where)
