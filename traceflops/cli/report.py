"""`traceflops report`: the summary in the terminal and the page in a file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceflops.cli.common import failures, print_summary, read_and_analyze, stem_of
from traceflops.cli.options import (
    AS_USUAL,
    EVERYTHING,
    FROM_THE_DEVICE_TABLE,
    Environment,
    Force,
    Json,
    Question,
    Rates,
    Reading,
    Rules,
    Traces,
    grouped,
)
from traceflops.cli.pairing import Pair
from traceflops.phases import phase

if TYPE_CHECKING:
    from traceflops.results import Analysis

EXAMPLES = (
    "Examples: traceflops report trace.json.gz | traceflops report ranks/ -o job.html --steps 10:20"
    " | zcat trace.json.gz | traceflops report - -o trace.json | "
    "traceflops report results.db --pair counters/"
)


@grouped
def report(
    traces: Traces,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="File to write: .html, .json, .md or .zip. Default: NAME.report.html here.",
        ),
    ] = None,
    force: Force = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print only the path.")] = False,
    json: Json = False,
    question: Question = EVERYTHING,
    rates: Rates = FROM_THE_DEVICE_TABLE,
    pair: Pair = None,
    rules: Rules = None,
    include_environment: Environment = False,
    reading: Reading = AS_USUAL,
) -> None:
    """Write the report as one HTML file and print its summary."""
    with failures(reading):
        from traceflops.reports.write import check_target, save

        target = output or default_target(traces)
        check_target(target, force=force)
        analysis = read_and_analyze(
            traces, question, rates, reading, rules, include_environment, pair
        )
        try:
            if json:
                typer.echo(analysis.to_json())
            elif not quiet:
                print_summary(analysis)
        finally:  # also where the reader of the pipe has gone
            with phase("render and write"):
                command = _command(traces, analysis, question, rates, pair)
                save(analysis, target, force=force, command=command)
        if quiet:
            typer.echo(str(target))
        elif not json:
            typer.echo(f"\nWrote {target} ({target.stat().st_size / 1e6:.1f} MB)")


def default_target(traces: list[str]) -> Path:
    """Return NAME.report.html in the current folder, NAME from the first input."""
    return Path(f"{stem_of(traces)}.report.html")


def _pair_shown(analysis: Analysis) -> str:
    """Return the paired file by the name the report shows."""
    work = analysis.measured.executed.work
    files = [join.file for join in work.joins if join.file] if work is not None else []
    return files[0] if files and not files[0].endswith(" files") else "FOLDER"


def _command(
    traces: list[str], analysis: Analysis, question: Question, rates: Rates, pair: str | None
) -> str:
    """Return the command that made the report; files by the names the report shows, no paths."""
    names = [file.name for file in analysis.source.files]
    inputs = names if len(names) == len(traces) else ["FOLDER"] * len(traces)
    words = [
        "traceflops",
        "report",
        *("-" if t == "-" else n for t, n in zip(traces, inputs, strict=True)),
    ]
    words[5:] = ["…"] if len(words) > 5 else []
    options = {
        "--steps": question.steps,
        "--ranks": question.ranks,
        "--gpu": question.gpu,
        "--from": question.start,
        "--to": question.end,
        "--step-mark": question.step_mark,
        "--pair": _pair_shown(analysis) if pair is not None else None,
    }
    for option, value in options.items():
        if value is not None:
            words += [option, value]
    return shlex.join([*words, *rates.words()])
