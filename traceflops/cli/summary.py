"""`traceflops summary`: the report in the terminal, no file."""

from __future__ import annotations

from traceflops.cli.common import print_summary, say, say_object
from traceflops.cli.options import AnalysisOptions, Json, Text, Traces, option
from traceflops.errors import UsageError

EXAMPLES = (
    "traceflops summary trace.json.gz",
    "traceflops summary ranks/ --ranks 0-3",
    "traceflops summary trace.json --from 1.2s --to 1.5s --json",
    "traceflops summary trace.json.gz --json --only findings",
    "traceflops summary trace.json --peak 989.4",
    "traceflops summary trace.json.gz --by layer",
    "traceflops summary kernel_trace.csv --pair trace.json.gz",
)


def summary(
    traces: Traces,
    *,
    json: Json = False,
    only: Text = option(
        "PART", "With --json: print only a part of the report: findings, in 8 KB at most."
    ),
    by: Text = option(
        "WHAT",
        "Show GPU time by module, layer, op, shape, source or range, CPU time by host-op, or "
        "more kernels by kernel.",
    ),
    asked: AnalysisOptions,
) -> None:
    """Print where the time went, without writing a file."""
    if only is not None and (only != "findings" or not json):
        problem = f"--only {only} cannot be printed"
        raise UsageError(problem, "write --json --only findings")
    if by is not None:
        from traceflops.attribution.device_work_tables import check_owner

        check_owner(by)
    analysis = asked.analyze(traces, brief=not json and by is None)
    if only is not None:
        from traceflops.reports.json.report import findings_object

        say_object(findings_object(analysis), brief=True)
    elif json:
        say(analysis.to_json())
    else:
        print_summary(analysis, by)
