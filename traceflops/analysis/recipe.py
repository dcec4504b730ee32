"""analyze(trace): a trace is prepared, measured and judged; the result is an Analysis.

For files of several jobs, the Analysis lists the figures of each job.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from traceflops.analysis.judgement import VerdictFacts, judged
from traceflops.analysis.notes import notes_of
from traceflops.analysis.preparation import prepare, prepare_pair, with_replays
from traceflops.analysis.result import Analysis, with_finding_rules
from traceflops.attribution.culprits import NO_CULPRITS, idle_culprits, with_culprits
from traceflops.attribution.kernels import kernel_totals, memory_times
from traceflops.attribution.launch_lead import launching
from traceflops.devices.jobs import JobReport, check_decided, is_undecided, of_job, of_no_job
from traceflops.errors import UsageError
from traceflops.findings.case import NO_RULES, FindingRules
from traceflops.findings.user_rules import read_finding_rules
from traceflops.findings.verdicts import jobs_verdict
from traceflops.mfu.budget import FROM_THE_TRACE, PeakOptions
from traceflops.mfu.measurement import Measurement, measure
from traceflops.mfu.serving_passes import serving
from traceflops.phases import phase
from traceflops.privacy.environment import check_privacy, redacted
from traceflops.privacy.placeholders import Placeholders
from traceflops.privacy.redact import removed
from traceflops.ranks.collectives import collective_work
from traceflops.ranks.who_waits import NO_RANKS, RankReport, rank_report
from traceflops.table.columns import numbers
from traceflops.table.grouping import distinct
from traceflops.table.trace import Trace
from traceflops.timeline.account import whole_span
from traceflops.timeline.records import EMPTY_ACCOUNT
from traceflops.windows.device_records import NO_LAUNCHES, UNRECORDED
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import (
    DeviceReport,
    StepChoice,
    chosen_time,
    partition_text,
    told_apart,
)
from traceflops.windows.selection import Selection

if TYPE_CHECKING:
    from traceflops.replay.what_if import WhatIf


_OF_ROW: Final = (
    *("process", "type", "local_id", "product", "memory_bytes", "sm_count", "architecture"),
)
"""The fields of a report of a device that are copied from the table of devices."""
GAPS_OF_SUMMARY: Final = 3
"""The number of gaps of a device in a summary."""


def analyze(
    trace: Trace,
    selection: Selection | None = None,
    *,
    rules: Path | None = None,
    include_environment: bool = False,
    peaks: PeakOptions = FROM_THE_TRACE,
    pair: Trace | None = None,
    redact: bool = False,
    finding_rules: Path | None = None,
) -> Analysis:
    """Return where the time of a trace went and how much of its devices was used.

    `peaks` are the user's peaks of the devices. `rules` is a file of category rules that are tried
    before the built-in ones, `finding_rules` a file of rules of findings. Host and user names and
    home directories are shortened unless `include_environment` is set. `pair` is another recording
    of the same program, whose shapes or counters tell the FLOPs of kernels. With `redact`, names
    are replaced by placeholders. Raises UsageError if the trace lacks what the selection names, the
    pair tells nothing, or a file of rules is wrong.
    """
    user_rules = read_finding_rules(finding_rules, redact=redact)
    check_privacy(include_environment, redact)
    selection = selection or Selection()
    names = Placeholders() if redact else None
    shown: Any = {"include_environment": include_environment, "placeholders": names}

    def analysis_of_job(trace: Trace, selection: Selection) -> Analysis:
        prepared = prepare(trace, selection, rules=rules, **shown)
        return analysis_of(prepared, peaks, rules=user_rules)

    if is_undecided(of_job(trace, selection.job)):
        if pair is not None:
            check_decided(trace, "--pair")
        jobs = listed_jobs(trace, **shown)
        analysis = analysis_of_jobs(trace, selection, jobs, analysis_of_job)
    else:
        prepared = prepare(trace, selection, rules=rules, **shown)
        paired = prepare_pair(pair, rules=rules, **shown) if pair is not None else None
        replayed = with_replays(prepared, paired)
        analysis = analysis_of(replayed, peaks, pair=paired, rules=user_rules)
        analysis = replace(analysis, jobs=listed_jobs(trace, selection.job, **shown))
    analysis = with_removed(analysis, names) if names is not None else analysis
    return with_finding_rules(analysis, user_rules)


def with_removed(analysis: Analysis, placeholders: Placeholders) -> Analysis:
    """Return an analysis whose note on replaced names counts all of them, also those of a pair."""
    counted = removed(placeholders)
    notes = tuple(counted if note.code == counted.code else note for note in analysis.notes)
    return replace(analysis, notes=notes)


def analysis_of(
    prepared: Prepared,
    peaks: PeakOptions = FROM_THE_TRACE,
    measured: Measurement | None = None,
    pair: Prepared | None = None,
    *,
    is_summarised: bool = False,
    rules: FindingRules = NO_RULES,
) -> Analysis:
    """Return where the time of a prepared trace went and how much of its devices was used.

    `measured` replaces the FLOPs by the trace and its `pair`. If `is_summarised`, culprits of idle
    time and ranks are left out: a summary has them by step. `rules` has the user's thresholds.
    """
    whole, linked = prepared, prepared.linked
    if prepared.launch_records.state == "capture":
        # Times of a capture mean nothing: no devices and no steps are reported.
        plan = replace(whole.plan, choice=StepChoice("none", "", (), ()), notes=())
        prepared = replace(whole, accounts={}, windows={}, plan=plan, with_work=whole)
    with phase("accounts"):
        reports = _device_reports(prepared, GAPS_OF_SUMMARY if is_summarised else None)
        devices = list(reports)
        if prepared.launch_records.state in UNRECORDED:  # lost work may have run in idle time
            devices = [device.with_idle_unrecorded for device in reports]
        devices = with_culprits(prepared, devices)
        total = sum((device.chosen for device in devices), EMPTY_ACCOUNT)
    # Idle time needs much memory for a while: it comes before FLOPs, which keep theirs.
    with phase("idle time"):
        idle_ns = total.components.idle_ns
        idle = NO_CULPRITS if is_summarised else idle_culprits(prepared, idle_ns)
    if measured is None:
        with phase("FLOPs"):
            measured = measure(whole, peaks, pair)
    phases, attribution = measured.executed.phases, measured.executed.attribution
    with phase("kernel tables"):
        totals = kernel_totals(prepared)
        moved = memory_times(prepared)
    return Analysis(
        source=linked.trace.source,
        selection=prepared.selection,
        notes=notes_of(prepared, reports, measured),
        collectives=collective_work(linked, prepared.accounts, prepared.windows),
        prepared=prepared,
        **judged(
            VerdictFacts.of(prepared, attribution, rules),
            devices,
            measured,
            kernels=[totals],
            moved=moved,
            idle=idle,
            # Without durations of kernels, it is unknown how far the host is ahead.
            launches=None if prepared.launch_records.timed.lack() else launching(prepared, phases),
            ranks=NO_RANKS if is_summarised else _ranks(prepared, measured, peaks.link),
            passes=serving(prepared, attribution),
        ),
    )


def _ranks(prepared: Prepared, measured: Measurement, link: float | None) -> RankReport:
    """Return who waits for whom, NO_RANKS for a single device and process; `link` is in GB/s."""
    if max(len(prepared.accounts), prepared.trace.processes.num_rows) <= 1:
        return NO_RANKS
    from traceflops.ranks.link_rates import links_of

    return rank_report(prepared, links_of(prepared, measured.devices, link))


def _device_reports(prepared: Prepared, most_gaps: int | None) -> Sequence[DeviceReport]:
    """Return the reports of all devices, without the culprits of their idle time."""
    trace, reports = prepared.trace, []
    rows, processes = trace.devices.to_pylist(), trace.processes.to_pylist()
    for device, account in prepared.accounts.items():
        row, windows = rows[device], prepared.windows[device]
        process = processes[row["process"]]
        users = distinct(numbers(trace.activities["process"])[account.rows.row]).tolist()
        ranks = {trace.ranks[user] for user in users} - {None}
        report = DeviceReport(
            device=device,
            rank=process["rank"],
            file=process["file"],
            whole=whole_span(prepared.linked, account),
            windows=windows,
            chosen=sum((window.account for window in windows if window.used), EMPTY_ACCOUNT),
            gaps=account.gaps(device, chosen_time(windows), windows, most_gaps),
            **{name: row[name] for name in _OF_ROW},
            partition=partition_text(row),
            ranks=tuple(sorted(ranks)),
        )
        reports.append(report)
    return told_apart(trace, reports)


def what_if(analysis: Analysis, *edits: str) -> WhatIf:
    """Return how long the steps would take with edits such as `data_input=0`, and what decides it.

    docs/replay.md lists the edits. Raises UsageError for an invalid edit or an unfit recording.
    """
    if analysis.of_no_job:
        raise UsageError("what-if needs one job", "choose one with --job")
    if analysis.replay is None:
        hint = "ask it of the traces that the summaries are of"
        raise UsageError("what-if needs single kernels and calls, and summaries hold sums", hint)
    return analysis.replay.what_if(edits)


def listed_jobs(
    trace: Trace,
    chosen: int | None = None,
    *,
    include_environment: bool = False,
    placeholders: Placeholders | None = None,
) -> tuple[JobReport, ...]:
    """Return the jobs of a trace; names of their files are shortened or replaced as requested."""
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

    `analyzed` analyses one job. If one job is a recording of captured CUDA graphs and one other
    launches graphs, the verdict of the former has the command that pairs the two.
    """
    reports, all_records = [], []
    for job in jobs:
        records = NO_LAUNCHES
        try:
            analysis = analyzed(trace, replace(selection, job=job.number))
        except UsageError as error:  # the selection leaves nothing of this job
            job = replace(job, verdict=f"Nothing to show: {error.message}.")
        else:
            gpus = sum(device.type != "cpu" for device in analysis.devices)
            sentence = analysis.verdict.sentence
            job = replace(job, devices=gpus, total=analysis.total, verdict=sentence)
            records = analysis.prepared.launch_records
        reports.append(job)
        all_records.append(records)
    launching = [
        job.files for job, records in zip(reports, all_records, strict=True) if records.graph.calls
    ]
    for number, (job, records) in enumerate(zip(reports, all_records, strict=True)):
        # --pair takes one file for one trace.
        is_one_file_each = [len(files) for files in (job.files, *launching)] == [1, 1]
        if records.state == "capture" and is_one_file_each:
            files = [shlex.quote(files[0]) for files in (*launching, job.files)]
            command = f"traceflops summary {' --pair '.join(files)}"
            sentence = (job.verdict or "").removesuffix(".")
            reports[number] = replace(job, verdict=f"{sentence}: {command}")
    empty, verdict = analyzed(of_no_job(trace), Selection()), jobs_verdict(len(jobs))
    listed = {"verdict": verdict, "jobs": tuple(reports)}
    return replace(empty, has_events=False, selection=selection, **listed)
