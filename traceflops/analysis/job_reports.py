"""Files of several jobs: what there is to say of each."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from traceflops.devices import JobReport, of_no_job
from traceflops.errors import UsageError
from traceflops.findings import jobs_verdict
from traceflops.privacy import Placeholders, redacted
from traceflops.table import Trace
from traceflops.windows import NO_LAUNCHES, LaunchRecords, Selection

if TYPE_CHECKING:
    from traceflops.analysis.result import Analysis


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
        plain = [replace(part, tables={}) for part in job.traces]
        sources = [(part if include_environment else redacted(part)).source for part in plain]
        files = [file.name for source in sources for file in source.files]
        if placeholders is not None:
            files = [placeholders.whole("file", name) for name in files]
        ranks = {rank for part in job.traces for rank in part.ranks if rank is not None}
        format_, is_chosen = sources[0].format, job.number == chosen
        reports.append(
            JobReport(job.number, format_, tuple(files), tuple(sorted(ranks)), is_chosen)
        )
    return tuple(reports)


def analysis_of_jobs(
    trace: Trace,
    selection: Selection,
    jobs: tuple[JobReport, ...],
    analyzed: Callable[[Trace, Selection], Analysis],
) -> Analysis:
    """Return what there is to say of several jobs, of which none is chosen: each by itself."""
    figures = [_with_figures(job, trace, selection, analyzed) for job in jobs]
    jobs = tuple(_with_pairs(figures))
    empty = replace(analyzed(of_no_job(trace), Selection()), prepared=None)
    return replace(empty, selection=selection, verdict=jobs_verdict(len(jobs)), jobs=jobs)


def _with_figures(
    job: JobReport,
    trace: Trace,
    selection: Selection,
    analyzed: Callable[[Trace, Selection], Analysis],
) -> tuple[JobReport, LaunchRecords]:
    """Return a job with its figures; where the selection leaves nothing of it, that is said."""
    try:
        analysis = analyzed(trace, replace(selection, job=job.number))
    except UsageError as error:
        return replace(job, verdict=f"Nothing to show: {error.message}."), NO_LAUNCHES
    with_figures = replace(
        job,
        devices=sum(device.type != "cpu" for device in analysis.devices),
        total=analysis.total,
        verdict=analysis.verdict.sentence,
    )
    prepared = analysis.prepared
    return with_figures, prepared.launch_records if prepared is not None else NO_LAUNCHES


def _with_pairs(jobs: Sequence[tuple[JobReport, LaunchRecords]]) -> Iterator[JobReport]:
    """Yield the jobs; a capture says how to give it to the one trace here that launches graphs."""
    launching = [job.files for job, records in jobs if records.graph.calls]
    for job, records in jobs:
        if (
            records.state == "capture"
            and [len(names) for names in (job.files, *launching)] == [1] * 2
        ):
            files = [shlex.quote(names[0]) for names in (*launching, job.files)]
            command = f"traceflops summary {' --pair '.join(files)}"
            yield replace(job, verdict=f"{(job.verdict or '').removesuffix('.')}: {command}")
        else:
            yield job
