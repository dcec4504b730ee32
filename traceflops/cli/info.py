"""`traceflops info`: what is in a trace and what is missing."""

from __future__ import annotations

import typer

from traceflops.cli.common import (
    Environment,
    From,
    Gpus,
    Json,
    Question,
    Ranks,
    StepMark,
    Steps,
    To,
    Traces,
    failures,
    read_trace,
)

EXAMPLES = "Examples: traceflops info trace.json.gz | traceflops info ranks/ --json"


def info(
    traces: Traces,
    json: Json = False,
    steps: Steps = None,
    ranks: Ranks = None,
    gpu: Gpus = None,
    start: From = None,
    end: To = None,
    step_mark: StepMark = None,
    include_environment: Environment = False,
) -> None:
    """Say what is in a trace, what is missing and what that costs."""
    with failures():
        selection = Question(steps, ranks, gpu, start, end, step_mark).selection()
        from traceflops.inventory import take_inventory
        from traceflops.privacy import redacted
        from traceflops.reports.info import info_object, render_info
        from traceflops.reports.json import encode
        from traceflops.restrict import restrict

        trace = read_trace(traces)
        shown = restrict(trace if include_environment else redacted(trace), selection)
        inventory = take_inventory(shown, step_mark)
        if json:
            typer.echo(encode(info_object(inventory)))
        else:
            typer.echo("\n".join(render_info(inventory)))
