"""`traceflops summary`: the report in the terminal, no file."""

from __future__ import annotations

from traceflops.cli.common import failures, print_summary, read_and_analyze
from traceflops.cli.options import Asked, Json, Traces, grouped
from traceflops.cli.printing import say_json

EXAMPLES = (
    "traceflops summary trace.json.gz",
    "traceflops summary ranks/ --ranks 0-3",
    "traceflops summary trace.json --from 1.2s --to 1.5s --json",
    "traceflops summary trace.json --peak 989.4",
    "traceflops summary kernel_trace.csv --pair trace.json.gz",
)


@grouped
def summary(
    traces: Traces,
    *,
    json: Json = False,
    asked: Asked,
) -> None:
    """Print where the time went, without writing a file."""
    with failures(asked.reading, asked.privacy):
        analysis = read_and_analyze(traces, asked)
        if json:
            say_json(analysis.to_json())
        else:
            print_summary(analysis)
