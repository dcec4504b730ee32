"""`traceflops summary`: the report in the terminal, no file."""

from __future__ import annotations

from typing import Annotated

from traceflops.cli.common import failures, print_summary
from traceflops.cli.options import Asked, Json, Text, Traces, grouped, option
from traceflops.cli.printing import say_json
from traceflops.cli.reading import read_and_analyze

EXAMPLES = (
    "traceflops summary trace.json.gz",
    "traceflops summary ranks/ --ranks 0-3",
    "traceflops summary trace.json --from 1.2s --to 1.5s --json",
    "traceflops summary trace.json --peak 989.4",
    "traceflops summary trace.json.gz --by layer",
    "traceflops summary kernel_trace.csv --pair trace.json.gz",
)

By = Annotated[
    Text,
    option(
        "WHAT",
        "Show GPU time by module, layer, op, shape, source or range, or CPU time by host-op, not "
        "by kernel.",
    ),
]


@grouped
def summary(
    traces: Traces,
    *,
    json: Json = False,
    by: By = None,
    asked: Asked,
) -> None:
    """Print where the time went, without writing a file."""
    with failures(asked.reading, asked.privacy):
        if by is not None:
            from traceflops.attribution import check_owner

            check_owner(by)
        analysis = read_and_analyze(traces, asked)
        if json:
            say_json(analysis.to_json())
        else:
            print_summary(analysis, by)
