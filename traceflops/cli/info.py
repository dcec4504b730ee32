"""`traceflops info`: what is in a trace and what is missing."""

from __future__ import annotations

from traceflops.cli.common import say, say_object
from traceflops.cli.options import Brief, Json, TraceOptions, Traces

EXAMPLES = ("traceflops info trace.json.gz", "traceflops info ranks/ --json")


def info(traces: Traces, *, json: Json = False, brief: Brief = False, asked: TraceOptions) -> None:
    """Show what a trace contains, what is missing and what that costs."""
    selection, privacy = asked.selection(), asked.privacy
    from traceflops.front.files import inventory
    from traceflops.reports.terminal.info import info_object, render_info

    contents = inventory(
        asked.reading.read(traces),
        selection,
        include_environment=privacy.include_environment,
        redact=privacy.redact,
    )
    if json or brief:
        say_object(info_object(contents), brief=brief)
    else:
        say("\n".join(render_info(contents)))
