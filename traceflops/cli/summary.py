"""`traceflops summary`: the report in the terminal, no file."""

from __future__ import annotations

import typer

from traceflops.cli.common import (
    Environment,
    From,
    Gpus,
    Json,
    Question,
    Ranks,
    Rules,
    StepMark,
    Steps,
    To,
    Traces,
    failures,
    print_lines,
    read_and_analyze,
    terminal_lines,
)

EXAMPLES = (
    "Examples: traceflops summary trace.json.gz | traceflops summary ranks/ --ranks 0-3 | "
    "traceflops summary trace.json --from 1.2s --to 1.5s --json"
)


def summary(
    traces: Traces,
    json: Json = False,
    steps: Steps = None,
    ranks: Ranks = None,
    gpu: Gpus = None,
    start: From = None,
    end: To = None,
    step_mark: StepMark = None,
    rules: Rules = None,
    include_environment: Environment = False,
) -> None:
    """Print where the time went; write nothing."""
    with failures():
        question = Question(steps, ranks, gpu, start, end, step_mark)
        analysis = read_and_analyze(traces, question, rules, include_environment)
        if json:
            typer.echo(analysis.to_json())
        else:
            print_lines(terminal_lines(analysis))
