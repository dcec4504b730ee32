"""`traceflops perfetto`: the trace, of whatever format, for the Perfetto UI."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traceflops.cli.common import failures, read_trace, stem_of
from traceflops.cli.options import (
    AS_USUAL,
    EVERYTHING,
    Environment,
    Force,
    Question,
    Reading,
    Rules,
    Traces,
    grouped,
)
from traceflops.selection import Selection

EXAMPLES = (
    "Examples: traceflops perfetto trace.json.gz | traceflops perfetto ranks/ --from 1s --to 2s "
    "-o job.perfetto.json.gz"
)
SUFFIX = ".perfetto.json.gz"


@grouped
def perfetto(
    traces: Traces,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help=f"File to write. Default: the trace's name with {SUFFIX}, in this folder.",
        ),
    ] = None,
    force: Force = False,
    question: Question = EVERYTHING,
    rules: Rules = None,
    include_environment: Environment = False,
    reading: Reading = AS_USUAL,
) -> None:
    """Write the trace with steps, components and categories as tracks, for the Perfetto UI.

    Open the file at ui.perfetto.dev or in chrome://tracing; nothing is sent there by traceflops.
    """
    with failures(reading):
        selection = question.selection()
        from traceflops.prepare import prepare
        from traceflops.privacy import redacted
        from traceflops.reports.perfetto import render_perfetto
        from traceflops.reports.write import check_new, write_pieces
        from traceflops.restrict import restrict

        target = output or Path(stem_of(traces) + SUFFIX)
        check_new(target, force=force)
        trace = read_trace(traces, reading)
        shown = restrict(trace if include_environment else redacted(trace), selection)
        marks = Selection(step_mark=selection.step_mark)
        prepared = prepare(shown, marks, rules=rules, include_environment=True)
        write_pieces(target, render_perfetto(prepared))
        typer.echo(f"{target}  open it at ui.perfetto.dev or in chrome://tracing")
