"""`traceflops info`: what is in a trace and what is missing."""

from __future__ import annotations

import typer

from traceflops.cli.common import failures, read_trace
from traceflops.cli.options import (
    AS_USUAL,
    EVERYTHING,
    Environment,
    Json,
    Question,
    Reading,
    Traces,
    grouped,
)

EXAMPLES = "Examples: traceflops info trace.json.gz | traceflops info ranks/ --json"


@grouped
def info(
    traces: Traces,
    json: Json = False,
    question: Question = EVERYTHING,
    include_environment: Environment = False,
    reading: Reading = AS_USUAL,
) -> None:
    """Say what is in a trace, what is missing and what that costs."""
    with failures(reading):
        selection = question.selection()
        from traceflops.inventory import take_inventory
        from traceflops.privacy import redacted
        from traceflops.reports.json.report import encode
        from traceflops.reports.terminal.info import info_object, render_info
        from traceflops.restrict import restrict

        trace = read_trace(traces, reading)
        shown = restrict(trace if include_environment else redacted(trace), selection)
        inventory = take_inventory(shown, question.step_mark)
        if json:
            typer.echo(encode(info_object(inventory)))
        else:
            typer.echo("\n".join(render_info(inventory)))
