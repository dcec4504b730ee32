"""Files of several jobs: what there is to say of each."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from traceflops.devices.jobs import JobReport, of_no_job
from traceflops.errors import UsageError
from traceflops.findings.verdicts import jobs_verdict
from traceflops.privacy.environment import redacted
from traceflops.privacy.placeholders import Placeholders
from traceflops.table.trace import Trace
from traceflops.windows.device_records import NO_LAUNCHES
from traceflops.windows.selection import Selection

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
        plain = [replace(part, tables={}) for part in job.traces]  # only sources are shown
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
    """Return an analysis that lists several jobs, with devices, account and verdict of each.

    `analyzed` analyses one job. A recording of captured CUDA graphs, if one other job launches
    graphs, also gets the command that pairs the two.
    """
    reports, all_records = [], []
    for job in jobs:
        records = NO_LAUNCHES
        try:
            analysis = analyzed(trace, replace(selection, job=job.number))
        except UsageError as error:  # the selection leaves nothing of it
            job = replace(job, verdict=f"Nothing to show: {error.message}.")
        else:
            job = replace(
                job,
                devices=sum(device.type != "cpu" for device in analysis.devices),
                total=analysis.total,
                verdict=analysis.verdict.sentence,
            )
            records = analysis.recording.launch_records
        reports.append(job)
        all_records.append(records)
    launching = [
        job.files for job, records in zip(reports, all_records, strict=True) if records.graph.calls
    ]
    for number, (job, records) in enumerate(zip(reports, all_records, strict=True)):
        # A capture says how to give it to the one trace here that launches graphs (--pair is for
        # one file).
        is_one_file_each = [len(files) for files in (job.files, *launching)] == [1, 1]
        if records.state == "capture" and is_one_file_each:
            files = [shlex.quote(files[0]) for files in (*launching, job.files)]
            command = f"traceflops summary {' --pair '.join(files)}"
            sentence = (job.verdict or "").removesuffix(".")
            reports[number] = replace(job, verdict=f"{sentence}: {command}")
    return replace(
        analyzed(of_no_job(trace), Selection()),
        has_events=False,
        selection=selection,
        verdict=jobs_verdict(len(jobs)),
        jobs=tuple(reports),
    )
