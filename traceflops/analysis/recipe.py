"""analyze(trace): links, categories, steps, components, tables, verdict."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from traceflops.analysis.job_list import listed_jobs
from traceflops.analysis.preparation import prepare, prepare_pair
from traceflops.analysis.result import Analysis
from traceflops.attribution import category_table, kernel_table, memory_times
from traceflops.categories import Categorised
from traceflops.devices import JobReport, check_decided, is_undecided, of_job, of_no_job
from traceflops.errors import UsageError
from traceflops.findings import (
    basis_of,
    jobs_verdict,
    loss_findings,
    records_verdict,
    uneven_findings,
    untimed_verdict,
    verdict,
)
from traceflops.mfu import FROM_THE_TRACE, Measurement, PeakOptions, measure, without_told_padding
from traceflops.phases import phase
from traceflops.privacy import Placeholders, check_privacy, removed
from traceflops.ranks import collective_work
from traceflops.recording import profiler_notes
from traceflops.remedies import remedy
from traceflops.table import Note, Trace, distinct, numbers
from traceflops.timeline import (
    COPIES_MISSING,
    EMPTY_ACCOUNT,
    Account,
    DeviceAccount,
    LinkedTrace,
    Window,
    whole_span,
)
from traceflops.units import several, some_of, time_amount
from traceflops.windows import (
    DeviceReport,
    LaunchRecords,
    Prepared,
    Selection,
    chosen_time,
    partition_text,
    records_notes,
    spread_of,
    told_apart,
)

_FEW_OVERLAPS = 0.01
_CALLS_SAID = ("calls-missing", "calls-of-unknown-process", "process-unknown")
"""Notes of readers that say which calls are not known, or whose."""


def analyze(
    trace: Trace,
    selection: Selection | None = None,
    *,
    rules: Path | None = None,
    include_environment: bool = False,
    peaks: PeakOptions = FROM_THE_TRACE,
    pair: Trace | None = None,
    redact: bool = False,
) -> Analysis:
    """Return where the time of a trace went and how much of its devices was used.

    `peaks` says what the devices can do where the trace does not. `rules` is a file of category
    rules that are tried before the built-in ones. Host and user names and home directories are
    shortened unless `include_environment` is set. `pair` is another recording of the same program,
    whose shapes or counters tell the FLOPs of kernels. With `redact` names are replaced by
    placeholders (docs/privacy.md). Raises UsageError where the selection asks
    for something the trace does not have, and where the pair tells nothing.
    """
    check_privacy(include_environment, redact)
    placeholders = Placeholders() if redact else None
    asked: Any = {
        "rules": rules,
        "include_environment": include_environment,
        "placeholders": placeholders,
    }
    chosen = selection or Selection()
    if is_undecided(of_job(trace, chosen.job)):
        if pair is not None:
            check_decided(trace, "--pair")
        analysis = _of_several(trace, chosen, peaks, asked)
    else:
        prepared = prepare(trace, chosen, **asked)
        other = prepare_pair(pair, **asked) if pair is not None else None
        analysis = analysis_of(prepared, peaks, pair=other)
        analysis = replace(analysis, jobs=_listed(trace, asked, chosen.job))
    return analysis if placeholders is None else with_removed(analysis, placeholders)


def _of_several(
    trace: Trace, selection: Selection, peaks: PeakOptions, asked: dict[str, Any]
) -> Analysis:
    """Return what there is to say of several jobs, of which none is chosen: each by itself."""
    found = [
        _with_figures(trace, job, replace(selection, job=job.number), peaks, asked)
        for job in _listed(trace, asked)
    ]
    jobs = tuple(_with_pairs(found))
    without = prepare(of_no_job(trace), **asked)
    empty = replace(analysis_of(without, peaks), prepared=None)
    return replace(empty, selection=selection, verdict=jobs_verdict(len(jobs)), jobs=jobs)


def _with_figures(
    trace: Trace, job: JobReport, selection: Selection, peaks: PeakOptions, asked: dict[str, Any]
) -> tuple[JobReport, LaunchRecords]:
    """Return a job with its figures; where the selection leaves nothing of it, that is said."""
    try:
        prepared = prepare(trace, selection, **asked)
        analysis = analysis_of(prepared, peaks)
    except UsageError as error:
        return replace(job, verdict=f"Nothing to show: {error.message}."), LaunchRecords()
    shown = replace(
        job,
        devices=sum(device.type != "cpu" for device in analysis.devices),
        total=analysis.total,
        verdict=analysis.verdict.sentence,
    )
    return shown, prepared.launch_records


def _with_pairs(found: Sequence[tuple[JobReport, LaunchRecords]]) -> Iterator[JobReport]:
    """Yield the jobs; a capture says how to give it to the one trace here that launches graphs."""
    launching = [job.files for job, records in found if records.replays]
    for job, records in found:
        if records.state == "capture" and [len(one) for one in (job.files, *launching)] == [1, 1]:
            files = [shlex.quote(files[0]) for files in (*launching, job.files)]
            command = f"traceflops summary {' --pair '.join(files)}"
            yield replace(job, verdict=f"{(job.verdict or '').removesuffix('.')}: {command}")
        else:
            yield job


def _listed(
    trace: Trace, asked: dict[str, Any], chosen: int | None = None
) -> tuple[JobReport, ...]:
    return listed_jobs(
        trace,
        chosen,
        include_environment=asked["include_environment"],
        placeholders=asked["placeholders"],
    )


def with_removed(analysis: Analysis, placeholders: Placeholders) -> Analysis:
    """Return an analysis whose note counts all names that were replaced, those of a pair, too."""
    told = removed(placeholders)
    notes = tuple(told if note.code == told.code else note for note in analysis.notes)
    return replace(analysis, notes=notes)


def analysis_of(
    prepared: Prepared,
    peaks: PeakOptions = FROM_THE_TRACE,
    measured: Measurement | None = None,
    pair: Prepared | None = None,
) -> Analysis:
    """Return where the time of a prepared trace went and how much of its devices was used.

    `measured` is what is known of that already: by default it is what the trace tells, or its
    `pair`, without padding where it tells that, too.
    """
    records = prepared.launch_records
    if measured is None:
        with phase("FLOPs"):
            measured = without_told_padding(measure(prepared, peaks, pair), prepared)
    if records.state == "capture":
        prepared = prepared.without_work
    linked, accounts, plan = prepared.linked, prepared.accounts, prepared.plan
    windows = prepared.windows
    with phase("accounts"):
        reports = [_device_report(linked, d, one, windows[d]) for d, one in accounts.items()]
        told = told_apart(linked.trace, reports)
        devices = (
            [one.with_idle_unrecorded for one in told] if records.state == "incomplete" else told
        )
    total = sum((device.chosen for device in devices[1:]), devices[0].chosen) if devices else None
    total = total or EMPTY_ACCOUNT
    with phase("kernel tables"):
        chosen = prepared.chosen
        window_ns = total.components.window_ns
        kernels = kernel_table(linked.trace, linked.categorised, linked.whole, chosen, window_ns)
        categories = category_table(kernels, window_ns)
        moved = memory_times(linked.trace, linked.categorised, chosen)
    how_recorded = remedy(linked.trace.source.format, "device records") or ""
    on_host = all(device.type == "cpu" for device in devices)
    lacks_copies = _is_said(linked.trace, COPIES_MISSING)
    spread = spread_of(devices)
    choice = plan.choice if spread is None else replace(plan.choice, typical_ns=spread.median_ns)
    found = (
        *loss_findings(total, measured, basis_of(plan.choice), moved, lacks_copies=lacks_copies),
        *uneven_findings(spread, devices),
    )
    return Analysis(
        source=linked.trace.source,
        selection=prepared.selection,
        verdict=records_verdict(records, how_recorded)
        or untimed_verdict(prepared.untimed)
        or verdict(
            total,
            plan.choice,
            len(devices),
            measured,
            moved=moved,
            on_host=on_host,
            lacks_copies=lacks_copies,
        ),
        steps=choice,
        devices=tuple(devices),
        total=total,
        kernels=kernels,
        categories=categories,
        notes=(
            *linked.trace.notes,
            *plan.notes,
            *_device_notes(linked.trace, told),
            *_no_calls_notes(linked.trace, devices),
            *_linked_notes(linked),
            *records_notes(records, on_host=bool(devices)),
            *profiler_notes(linked.trace, accounts),
            *measured.notes,
        ),
        measured=measured,
        untimed=prepared.untimed,
        findings=tuple(sorted(found, key=lambda one: -one.share))
        if records.is_judged and not on_host
        else (),
        collectives=collective_work(linked, accounts, windows),
        recorded=records.state,
        prepared=prepared,
    )


def _device_report(
    linked: LinkedTrace,
    device: int,
    account: DeviceAccount,
    windows: tuple[Window, ...],
) -> DeviceReport:
    trace = linked.trace
    about = trace.devices.slice(device, 1).to_pylist()[0]
    process = trace.processes.slice(about["process"], 1).to_pylist()[0]
    span = account.rows.span
    whole = whole_span(
        trace,
        linked.links,
        linked.categorised,
        account.rows,
        account.timeline,
        account.account(*span),
        account.has_calls,
    )
    return DeviceReport(
        device=device,
        rank=process["rank"],
        process=about["process"],
        file=process["file"],
        type=about["type"],
        local_id=about["local_id"],
        product=about["product"],
        memory_bytes=about["memory_bytes"],
        sm_count=about["sm_count"],
        whole=whole,
        windows=windows,
        chosen=_chosen_account(windows),
        gaps=account.gaps(device, chosen_time(windows), windows),
        architecture=about["architecture"],
        partition=partition_text(about),
        ranks=_ranks_on(trace, account),
    )


def _ranks_on(trace: Trace, account: DeviceAccount) -> tuple[int, ...]:
    """Return the known ranks of the processes that worked on a device."""
    users = distinct(numbers(trace.activities["process"])[account.rows.row]).tolist()
    return tuple(sorted({rank for user in users if (rank := trace.ranks[user]) is not None}))


def _chosen_account(windows: tuple[Window, ...]) -> Account:
    return sum((w.account for w in windows if w.used), EMPTY_ACCOUNT)


def _device_notes(trace: Trace, devices: list[DeviceReport]) -> tuple[Note, ...]:
    return (
        *_link_notes(trace, devices),
        *_overlap_notes(devices),
        *_earlier_work_notes(devices),
    )


def _earlier_work_notes(devices: list[DeviceReport]) -> tuple[Note, ...]:
    """Say for how long launched work waited for something that is not in the trace."""
    unknown_ns = [device.whole.account.idle_causes.unrecorded_ns for device in devices]
    count = sum(ns > 0 for ns in unknown_ns)
    if not count:
        return ()
    return (
        Note(
            "missing",
            "earlier-work-missing",
            f"On {several(count, 'GPU')} recorded work starts long after its launch call "
            f"({time_amount(sum(unknown_ns))} of idle time), and no recorded wait explains it. "
            "Earlier work or waits may be missing, so the cause of that idle time is unknown.",
            count,
        ),
    )


def _overlap_notes(devices: list[DeviceReport]) -> tuple[Note, ...]:
    """Say that much device work begins while earlier work of its stream runs."""
    devices = [device for device in devices if device.type != "cpu"]
    count = sum(device.whole.same_stream_overlaps for device in devices)
    total = sum(sums.count for device in devices for sums in device.whole.kinds.values())
    if count <= _FEW_OVERLAPS * total:
        return ()
    longest = max(device.whole.same_stream_overlap_max_ns for device in devices)
    return (
        Note(
            "assumed",
            "overlap-on-stream",
            f"{some_of(count, total, 'GPU operation', 'start')} before the previous one on "
            f"their stream ends (by up to {time_amount(longest)}). Some hardware allows "
            "this; a clock that jumped back looks the same. No time counts twice.",
            count,
        ),
    )


def _link_notes(trace: Trace, devices: list[DeviceReport]) -> tuple[Note, ...]:
    """Say how many activities have no launch record, unless the reader of the trace said so.

    Sums are over the devices shown.
    """
    known = [d.whole.unlinked for d in devices if d.whole.unlinked is not None]
    unlinked = sum(sum(counts.values()) for counts in known)
    total = sum(sums.count for d in devices for sums in d.whole.kinds.values())
    if not unlinked or _is_said(trace, *_CALLS_SAID):
        return ()
    return (
        Note(
            "missing",
            "unlinked",
            f"{some_of(unlinked, total, 'GPU operation', 'have')} no launch record (launched "
            "before the trace began, or lost). Their time counts; their step and operator "
            "are unknown.",
            unlinked,
        ),
    )


def _no_calls_notes(trace: Trace, devices: list[DeviceReport]) -> tuple[Note, ...]:
    """Say that work cannot be linked to launches, unless the reader of the trace said so."""
    without = [d for d in devices if d.type != "cpu" and d.whole.unlinked is None]
    if not without or _is_said(trace, "no-calls", *_CALLS_SAID):
        return ()
    how = remedy(trace.source.format, "calls")
    text = (
        "The trace has no CPU API calls. Work cannot be linked to operators, and the causes of "
        "idle time are unknown."
    )
    return (Note("missing", "no-calls", f"{text} To record them: {how}." if how else text),)


def _is_said(trace: Trace, *codes: str) -> bool:
    return any(note.code in codes for note in trace.notes)


def _linked_notes(linked: LinkedTrace) -> tuple[Note, ...]:
    return (*_name_notes(linked.categorised), *_clock_notes(linked))


def _name_notes(categorised: Categorised) -> tuple[Note, ...]:
    """Say how many names were too many to be looked at."""
    if not categorised.names_left:
        return ()
    return (
        Note(
            "assumed",
            "too-many-names",
            f"Too many names: {categorised.names_left:,} with little time each are uncategorized "
            f"({time_amount(categorised.time_left_ns)}).",
            categorised.names_left,
        ),
    )


def _clock_notes(linked: LinkedTrace) -> tuple[Note, ...]:
    """Say how many activities begin before the call that launched them."""
    call = linked.links.call_of_activity
    launched = np.flatnonzero(call >= 0)
    begun = numbers(linked.trace.activities["start_ns"])[launched]
    early = numbers(linked.trace.calls["start_ns"])[call[launched]] - begun
    count = int(np.count_nonzero(early > 0))
    if not count:
        return ()
    return (
        Note(
            "assumed",
            "device-before-launch",
            f"{some_of(count, len(launched), 'launched GPU operation', 'start')} before "
            f"their launch call, by up to {time_amount(int(early.max()))}: CPU and GPU clocks "
            "disagree. Causes of nearby idle time are approximate.",
            count,
        ),
    )
