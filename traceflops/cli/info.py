"""`traceflops info`: what is in a trace and what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.cli.common import say, say_object
from traceflops.cli.options import Json, TraceOptions, Traces

if TYPE_CHECKING:
    from traceflops.table.trace import Trace
    from traceflops.windows.selection import Selection

EXAMPLES = ("traceflops info trace.json.gz", "traceflops info ranks/ --json")


def info(traces: Traces, *, json: Json = False, asked: TraceOptions) -> None:
    """Show what a trace contains, what is missing and what that costs."""
    selection, privacy = asked.selection(), asked.privacy
    from msgspec.structs import replace

    from traceflops.analysis.recipe import listed_jobs
    from traceflops.privacy.redact import Redaction
    from traceflops.recording.inventory import inventory_of
    from traceflops.reports.terminal.info import info_object, render_info

    names = privacy.placeholders()

    def shown(trace: Trace, selection: Selection) -> tuple[Trace, str | None]:
        """Return the selected part as it may be shown, and the expression for its step marks."""
        part = privacy.shown(trace, selection)
        if names is None:
            return part, selection.step_mark
        # Redaction renames step marks to "step N", so the user's expression fits no longer.
        return Redaction(names, selection.step_mark).trace(part), None

    trace = asked.reading.read_job(traces, selection.job)
    inventory = inventory_of(trace, selection, shown)
    kept = privacy.include_environment
    jobs = listed_jobs(trace, trace.job, include_environment=kept, placeholders=names)
    inventory = replace(inventory, jobs=jobs)
    if json:
        say_object(info_object(inventory))
    else:
        say("\n".join(render_info(inventory)))
