"""The jobs of a trace as a report may show them."""

from __future__ import annotations

from dataclasses import replace

from traceflops.devices import JobReport
from traceflops.privacy import Placeholders, redacted
from traceflops.table import Trace


def listed_jobs(
    trace: Trace,
    chosen: int | None = None,
    *,
    include_environment: bool = False,
    placeholders: Placeholders | None = None,
) -> tuple[JobReport, ...]:
    """Return the jobs of a trace with the names of their files as they may be shown."""
    reports = []
    for job in trace.jobs:
        plain = [replace(one, tables={}) for one in job.traces]
        sources = [(one if include_environment else redacted(one)).source for one in plain]
        files = [file.name for source in sources for file in source.files]
        if placeholders is not None:
            files = [placeholders.whole("file", name) for name in files]
        ranks = {rank for one in job.traces for rank in one.ranks if rank is not None}
        format_, is_chosen = sources[0].format, job.number == chosen
        reports.append(
            JobReport(job.number, format_, tuple(files), tuple(sorted(ranks)), is_chosen)
        )
    return tuple(reports)
