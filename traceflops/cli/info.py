"""`traceflops info`: what is in a trace and what is missing."""

from __future__ import annotations

from dataclasses import replace

from traceflops.cli.common import failures, read_trace
from traceflops.cli.options import (
    AS_USUAL,
    EVERYTHING,
    WITHOUT_IDENTITY,
    Json,
    Privacy,
    Question,
    Reading,
    Traces,
    grouped,
)
from traceflops.cli.printing import say, say_object

EXAMPLES = (
    "traceflops info trace.json.gz",
    "traceflops info ranks/ --json",
)


@grouped
def info(
    traces: Traces,
    json: Json = False,
    question: Question = EVERYTHING,
    privacy: Privacy = WITHOUT_IDENTITY,
    reading: Reading = AS_USUAL,
) -> None:
    """Show what a trace contains, what is missing and what that costs."""
    with failures(reading, privacy):
        privacy.check()
        selection = question.selection()
        from traceflops.inventory import take_inventory
        from traceflops.jobs import listed_jobs, of_job
        from traceflops.reports.terminal.info import info_object, render_info
        from traceflops.sharing.privacy import redacted
        from traceflops.sharing.redact import Redaction
        from traceflops.windows.restrict import restrict

        trace = of_job(read_trace(traces, reading), selection)
        known = trace if privacy.include_environment else redacted(trace)
        shown, step_mark = restrict(known, selection), question.step_mark
        names = privacy.placeholders()
        if names is not None:  # what marks a step is then called step
            shown, step_mark = Redaction(names, step_mark).trace(shown), None
        jobs = listed_jobs(
            trace,
            trace.job,
            include_environment=privacy.include_environment,
            placeholders=names,
        )
        inventory = replace(take_inventory(shown, step_mark), jobs=jobs)
        if json:
            say_object(info_object(inventory))
        else:
            say("\n".join(render_info(inventory)))
