"""analyze(trace): a trace is prepared, measured and judged; the result is an Analysis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from traceflops.analysis.job_reports import analysis_of_jobs, listed_jobs
from traceflops.analysis.notes import is_said, notes_of
from traceflops.analysis.preparation import prepare, prepare_pair, with_replays
from traceflops.analysis.result import Analysis, with_finding_rules
from traceflops.attribution import (
    NO_CULPRITS,
    IdleCulprits,
    Launches,
    category_table,
    host_bound,
    idle_culprits,
    kernel_table,
    kernel_totals,
    launching,
    memory_times,
    with_culprits,
)
from traceflops.devices import GPU_SAMPLES, check_decided, is_undecided, of_job
from traceflops.facts import Fact
from traceflops.findings import (
    Finding,
    Loss,
    Verdict,
    all_losses,
    basis_of,
    cut_file,
    late_rank_fact,
    late_rank_findings,
    led_by,
    loss_findings,
    lost_graphs,
    main_kernel_findings,
    memory_verdict,
    program_of_trace,
    read_finding_rules,
    records_verdict,
    samples_verdict,
    slow_link_fact,
    slow_link_findings,
    uneven_findings,
    untimed_verdict,
    verdict,
    waiting_for,
)
from traceflops.gpu_samples import gpu_samples
from traceflops.mfu import (
    FROM_THE_TRACE,
    Measurement,
    PeakOptions,
    Serving,
    measure,
    serving,
    without_stated_padding,
)
from traceflops.phases import phase
from traceflops.privacy import Placeholders, check_privacy, removed
from traceflops.ranks import collective_work
from traceflops.remedies import advice
from traceflops.table import Trace, distinct, numbers
from traceflops.timeline import COPIES_MISSING, EMPTY_ACCOUNT, Account, DeviceAccount, whole_span
from traceflops.windows import (
    PARTIAL,
    DeviceReport,
    LaunchRecords,
    Prepared,
    Selection,
    StepChoice,
    StepSpread,
    chosen_time,
    partition_text,
    spread_of,
    told_apart,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from traceflops.ranks import RankReport
    from traceflops.timeline import Untimed


GAPS_OF_SUMMARY: Final = 3
"""So many gaps of a device are kept in a summary."""


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

    `peaks` says what the devices can do where the trace does not. `rules` is a file of category
    rules that are tried before the built-in ones, `finding_rules` one of rules of findings. Host
    and user names and home directories are shortened unless `include_environment` is set. `pair`
    is another recording of the same program, whose shapes or counters tell the FLOPs of kernels.
    With `redact` names are replaced by placeholders. Raises UsageError where the selection asks
    for something the trace does not have, the pair tells nothing, or a file of rules is wrong.
    """
    of_user = read_finding_rules(finding_rules, redact=redact)
    check_privacy(include_environment, redact)
    selection = selection or Selection()
    names = Placeholders() if redact else None
    shown: Any = {"include_environment": include_environment, "placeholders": names}

    def analysis_of_job(trace: Trace, selection: Selection) -> Analysis:
        return analysis_of(prepare(trace, selection, rules=rules, **shown), peaks)

    if is_undecided(of_job(trace, selection.job)):
        if pair is not None:
            check_decided(trace, "--pair")
        jobs = listed_jobs(trace, **shown)
        analysis = analysis_of_jobs(trace, selection, jobs, analysis_of_job)
    else:
        prepared = prepare(trace, selection, rules=rules, **shown)
        paired = prepare_pair(pair, rules=rules, **shown) if pair is not None else None
        analysis = analysis_of(with_replays(prepared, paired), peaks, pair=paired)
        analysis = replace(analysis, jobs=listed_jobs(trace, selection.job, **shown))
    analysis = with_removed(analysis, names) if names is not None else analysis
    return with_finding_rules(analysis, of_user)


def with_removed(analysis: Analysis, placeholders: Placeholders) -> Analysis:
    """Return an analysis whose note counts all names that were replaced, those of a pair, too."""
    counted = removed(placeholders)
    notes = tuple(counted if note.code == counted.code else note for note in analysis.notes)
    return replace(analysis, notes=notes)


class Judged(NamedTuple):
    """What a verdict asks of the recording; `how` device records are made, that a file is `cut`."""

    trace: Trace
    how: str
    cut: Fact | None
    records: LaunchRecords
    untimed: Untimed | None
    choice: StepChoice
    lacks_copies: bool
    samples: Verdict | None = None
    memory: Verdict | None = None

    @property
    def program(self) -> frozenset[str]:
        """Return what is known of the program that was recorded."""
        return program_of_trace(self.trace)

    @classmethod
    def of(cls, prepared: Prepared) -> Judged:
        """Return what is asked of a prepared trace."""
        trace, lacks_copies = prepared.trace, is_said(prepared.trace, COPIES_MISSING)
        records, choice = prepared.launch_records, prepared.plan.choice
        how, untimed = advice(trace, "device records"), prepared.untimed
        told = trace, how, cut_file(trace), records, untimed, choice, lacks_copies
        sampled = gpu_samples(prepared) if trace.source.format == GPU_SAMPLES else ()
        return cls(*told, samples_verdict(sampled, trace), memory_verdict(prepared))


def analysis_of(
    prepared: Prepared,
    peaks: PeakOptions = FROM_THE_TRACE,
    measured: Measurement | None = None,
    pair: Prepared | None = None,
    *,
    is_summarised: bool = False,
) -> Analysis:
    """Return where the time of a prepared trace went and how much of its devices was used.

    `measured` is what is known of that already: by default it is what the trace tells, or its
    `pair`, without padding where it tells that, too. For a summary nothing is said about causes of
    idle time and about ranks: it is found again, by step.
    """
    recorded, linked = prepared, prepared.linked
    if prepared.launch_records.state == "capture":
        prepared = prepared.without_work
    named, devices, total = _accounted(prepared, GAPS_OF_SUMMARY if is_summarised else None)
    with phase("idle time"):  # takes much memory for a while, FLOPs keep what they take
        idle_ns = total.components.idle_ns
        idle = NO_CULPRITS if is_summarised else idle_culprits(prepared, idle_ns)
    if measured is None:
        with phase("FLOPs"):
            measured = without_stated_padding(measure(recorded, peaks, pair), recorded)
    with phase("kernel tables"):
        totals = kernel_totals(linked.trace, linked.categorised, linked.split, prepared.chosen)
        moved = memory_times(linked.trace, linked.categorised, prepared.chosen)
    return Analysis(
        source=linked.trace.source,
        selection=prepared.selection,
        notes=notes_of(prepared, named, measured),
        collectives=collective_work(linked, prepared.accounts, prepared.windows),
        prepared=prepared,
        **judged(
            Judged.of(prepared),
            devices,
            measured,
            kernels=[totals],
            moved=moved,
            idle=idle,
            launches=launching(prepared, measured.executed.phases),
            ranks=None if is_summarised else _who_waits(prepared, measured, peaks),
            passes=serving(prepared, measured.executed.attribution),
        ),
    )


def judged(
    asked: Judged,
    devices: Sequence[DeviceReport],
    measured: Measurement,
    *,
    kernels: Sequence[pa.Table],
    moved: Mapping[str, int],
    idle: IdleCulprits,
    launches: Launches | None,
    ranks: RankReport | None,
    passes: Serving,
) -> dict[str, Any]:
    """Return figures as fields of an analysis, with those that follow from them."""
    choice, total = asked.choice, sum((device.chosen for device in devices), EMPTY_ACCOUNT)
    spread = spread_of(devices)
    window_ns = total.components.window_ns
    table = kernel_table(kernels, window_ns)
    is_known = asked.records.is_judged and not asked.lacks_copies
    is_known &= not lost_graphs(asked.records, total)
    known_idle = total.components.share("idle") if is_known else None
    waiting = waiting_for(ranks)
    found = all_losses(
        total, measured, moved, idle, lacks_copies=asked.lacks_copies, waiting=waiting
    )
    main = main_kernel_findings(table, total, found, passes, basis_of(choice), asked.program)
    return {
        "verdict": _verdict(asked, devices, total, measured, found, ranks),
        "steps": replace(choice, typical_ns=spread.median_ns) if spread is not None else choice,
        "devices": tuple(devices),
        "total": total,
        "kernels": table,
        "categories": category_table(table, window_ns),
        "measured": measured,
        "untimed": asked.untimed,
        "losses": _losses(asked, devices, spread, measured, found, ranks, main),
        "recorded": asked.records.state,
        "idle": idle,
        "host_bound": host_bound(launches, known_idle),
        "launches": launches,
        "serving": passes,
        "ranks": ranks,
    }


def _who_waits(prepared: Prepared, measured: Measurement, peaks: PeakOptions) -> RankReport | None:
    if max(len(prepared.accounts), prepared.trace.processes.num_rows) < 2:
        return None
    from traceflops.ranks import links_of, rank_report

    return rank_report(prepared, links_of(prepared, measured.devices, peaks.link))


def _accounted(
    prepared: Prepared, most_gaps: int | None
) -> tuple[list[DeviceReport], list[DeviceReport], Account]:
    """Return the devices, the same with what their idle time is due to, and their sum."""
    with phase("accounts"):
        reports = [_device_report(prepared, *one, most_gaps) for one in prepared.accounts.items()]
        named = told_apart(prepared.linked.trace, reports)
        devices = _with_idle_time(prepared, named)
        return named, devices, sum((device.chosen for device in devices), EMPTY_ACCOUNT)


def _with_idle_time(prepared: Prepared, devices: list[DeviceReport]) -> list[DeviceReport]:
    """Return devices with what is known of their idle time."""
    if prepared.launch_records.state in PARTIAL:
        devices = [device.with_idle_unrecorded for device in devices]
    return with_culprits(prepared, devices)


def _device_report(
    prepared: Prepared, device: int, account: DeviceAccount, most_gaps: int | None
) -> DeviceReport:
    linked, trace, windows = prepared.linked, prepared.trace, prepared.windows[device]
    about = trace.devices.slice(device, 1).to_pylist()[0]
    process = trace.processes.slice(about["process"], 1).to_pylist()[0]
    whole = whole_span(
        trace,
        linked.links,
        linked.categorised,
        account.rows,
        account.timeline,
        account.account(*account.rows.span),
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
        chosen=sum((window.account for window in windows if window.used), EMPTY_ACCOUNT),
        gaps=account.gaps(device, chosen_time(windows), windows, most_gaps),
        architecture=about["architecture"],
        partition=partition_text(about),
        ranks=_ranks_on(trace, account),
    )


def _ranks_on(trace: Trace, account: DeviceAccount) -> tuple[int, ...]:
    """Return the known ranks of the processes that worked on a device."""
    users = distinct(numbers(trace.activities["process"])[account.rows.row]).tolist()
    return tuple(sorted({rank for user in users if (rank := trace.ranks[user]) is not None}))


def _verdict(
    asked: Judged,
    devices: Sequence[DeviceReport],
    total: Account,
    measured: Measurement,
    found: Sequence[Loss],
    who_waits: RankReport | None,
) -> Verdict:
    """Return what to say first: what is not recorded, what has no timeline, or what costs most."""
    late_rank = late_rank_fact(who_waits, lasting=True) or slow_link_fact(who_waits)
    said = (
        asked.samples
        or records_verdict(asked.records, asked.how, late_rank)
        or untimed_verdict(asked.untimed, late_rank)
        or asked.memory
        or verdict(
            total,
            asked.choice,
            len(devices),
            measured,
            losses=found,
            on_host=_on_host(devices),
            late_rank=late_rank,
        )
    )
    return led_by(said, asked.cut or lost_graphs(asked.records, total))


def _losses(
    asked: Judged,
    devices: Sequence[DeviceReport],
    spread: StepSpread | None,
    measured: Measurement,
    found: Sequence[Loss],
    who_waits: RankReport | None,
    more: Iterable[Finding] = (),
) -> tuple[Finding, ...]:
    """Return what costs time, the most costly first; only what is recorded where much is not."""
    if _on_host(devices):
        return ()
    of_ranks = (
        *late_rank_findings(who_waits, asked.program),
        *slow_link_findings(who_waits, asked.program),
    )
    if not asked.records.is_judged:
        return of_ranks  # what recorded work waited for holds, whatever else ran
    findings = (
        *loss_findings(found, measured, basis_of(asked.choice)),
        *of_ranks,
        *uneven_findings(spread, devices),
        *more,
    )
    return tuple(sorted(findings, key=attrgetter("share"), reverse=True))


def _on_host(devices: Sequence[DeviceReport]) -> bool:
    return all(device.type == "cpu" for device in devices)
