"""`traceflops report`: the summary in the terminal and the page in a file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceflops.cli.common import failures, print_summary, read_and_analyze
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
from traceflops.phases import phase

if TYPE_CHECKING:
    from traceflops.results import Analysis

EXAMPLES = (
    "Examples: traceflops report trace.json.gz | traceflops report ranks/ -o job.html --steps 10:20"
    " | zcat trace.json.gz | traceflops report - -o trace.json"
)
_SUFFIXES = (".gz", ".zst", ".zip", ".json", ".trace", ".pt", ".tmp")


@grouped
def report(
    traces: Traces,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="File to write, .html or .json. Default: NAME.report.html in this folder.",
        ),
    ] = None,
    force: Force = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print only the path.")] = False,
    json: Json = False,
    question: Question = EVERYTHING,
    rates: Rates = FROM_THE_DEVICE_TABLE,
    rules: Rules = None,
    include_environment: Environment = False,
    reading: Reading = AS_USUAL,
) -> None:
    """Write the report as one HTML file and print its summary."""
    with failures(reading):
        from traceflops.reports.write import check_target, save

        target = output or default_target(traces)
        check_target(target, force=force)
        analysis = read_and_analyze(traces, question, rates, reading, rules, include_environment)
        try:
            if json:
                typer.echo(analysis.to_json())
            elif not quiet:
                print_summary(analysis)
        finally:  # also where the reader of the pipe has gone
            with phase("render and write"):
                command = _command(traces, analysis, question, rates)
                save(analysis, target, force=force, command=command)
        if quiet:
            typer.echo(str(target))
        elif not json:
            typer.echo(f"\nWrote {target} ({target.stat().st_size / 1e6:.1f} MB)")


def default_target(traces: list[str]) -> Path:
    """Return NAME.report.html in the current folder, NAME from the first input."""
    first = traces[0]
    name = "trace" if first == "-" else Path(first).resolve().name or "trace"
    while (stem := Path(name)).suffix.lower() in _SUFFIXES:
        name = stem.stem
    return Path(f"{name}.report.html")


def _command(traces: list[str], analysis: Analysis, question: Question, rates: Rates) -> str:
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
    }
    for option, value in options.items():
        if value is not None:
            words += [option, value]
    return shlex.join([*words, *rates.words()])
