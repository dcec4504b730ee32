"""The command line that made a report, as the report shows it: no path, and no name if redacted."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from traceflops.cli.options import Privacy, Question, Rates, Reading

if TYPE_CHECKING:
    from traceflops.analysis.result import Analysis

_MOST_INPUTS = 3


@dataclass(frozen=True, slots=True)
class Given:
    """The options of a report that decide what is in it."""

    question: Question
    rates: Rates
    privacy: Privacy
    reading: Reading
    pair: str | None
    rules: Path | None
    title: str | None
    notes: Path | None


def command_of(traces: list[str], analysis: Analysis, given: Given) -> str:
    """Return the command that made a report; files by the names that the report shows."""
    inputs = list(_inputs(traces, analysis))
    more = ["…"] if len(inputs) > _MOST_INPUTS else []
    words = ["traceflops", "report", *inputs[:_MOST_INPUTS], *more]
    for option, value in _options(given, analysis):
        words += [option, value]
    return shlex.join(
        [*words, *given.rates.words(), *given.privacy.words(), *_flags(given.reading)]
    )


def _inputs(traces: list[str], analysis: Analysis) -> Iterator[str]:
    names = [file.name for file in analysis.source.files]
    shown = names if len(names) == len(traces) else ["FOLDER"] * len(traces)
    yield from ("-" if t == "-" else n for t, n in zip(traces, shown, strict=True))


def _options(given: Given, analysis: Analysis) -> Iterator[tuple[str, str]]:
    """Give the options that have a value, with what of it may be shown."""
    question, hidden = given.question, "…" if given.privacy.redact else None
    values: dict[str, object] = {
        "--steps": question.steps,
        "--ranks": question.ranks,
        "--gpu": question.gpu,
        "--run": question.run,
        "--job": question.job,
        "--from": question.start,
        "--to": question.end,
        "--step-mark": question.step_mark and (hidden or question.step_mark),
        "--pair": given.pair and _pair_shown(analysis),
        "--rules": given.rules and (hidden or given.rules.name),
        "--title": given.title and (hidden or given.title),
        "--notes": given.notes and (hidden or given.notes.name),
    }
    yield from ((option, str(value)) for option, value in values.items() if value is not None)


def _flags(reading: Reading) -> Iterator[str]:
    """Give the options of reading that decide what is read."""
    if reading.python_stacks is not None:
        yield "--python-stacks" if reading.python_stacks else "--no-python-stacks"
    if reading.no_limits:
        yield "--no-limits"
    if reading.strict:
        yield "--strict"


def _pair_shown(analysis: Analysis) -> str:
    """Return the paired file by the name the report shows."""
    work = analysis.measured.executed.work
    files = [join.file for join in work.joins if join.file] if work is not None else []
    return files[0] if files and not files[0].endswith(" files") else "FOLDER"
