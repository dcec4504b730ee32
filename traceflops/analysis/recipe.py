"""analyze(trace): a trace is prepared, measured and judged; the result is an Analysis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from traceflops.analysis.job_reports import analysis_of_jobs, listed_jobs
from traceflops.analysis.notes import is_said, notes_of
from traceflops.analysis.preparation import prepare, prepare_pair, with_replays
from traceflops.analysis.result import Analysis, with_finding_rules
from traceflops.attribution.culprits import NO_CULPRITS, IdleCulprits, idle_culprits, with_culprits
from traceflops.attribution.host_calls import outside_gpu_work
from traceflops.attribution.kernels import category_table, kernel_table, kernel_totals, memory_times
from traceflops.attribution.launch_lead import Launches, host_bound, launching
from traceflops.devices.jobs import check_decided, is_undecided, of_job
from traceflops.devices.side_records import GPU_SAMPLES
from traceflops.errors import UsageError
from traceflops.facts import Fact, fact
from traceflops.findings.calls_alone import calls_alone
from traceflops.findings.case import program_of_trace
from traceflops.findings.clocks import samples_verdict
from traceflops.findings.communication import slow_link_fact, slow_link_findings
from traceflops.findings.device_memory import memory_verdict
from traceflops.findings.event_times import of_events, waits_for_host
from traceflops.findings.finding import Verdict
from traceflops.findings.late_rank import late_rank_fact, late_rank_findings, waiting_for
from traceflops.findings.little_work import little_work
from traceflops.findings.losses import Loss, all_losses, loss_findings
from traceflops.findings.main_kernel import main_kernel_findings
from traceflops.findings.many_operators import little_on_cpu, many_operators
from traceflops.findings.nothing_recorded import nothing_recorded
from traceflops.findings.on_cpu import OfGpu, OnCpu, leading, of_gpu, reading
from traceflops.findings.start_up import main_kind
from traceflops.findings.unevenness import uneven_findings
from traceflops.findings.user_rules import read_finding_rules
from traceflops.findings.verdicts import (
    basis_of,
    cut_file,
    led_by,
    lost_graphs,
    records_verdict,
    serialized_verdict,
    untimed_verdict,
    verdict,
)
from traceflops.gpu_samples import gpu_samples
from traceflops.mfu.budget import FROM_THE_TRACE, PeakOptions
from traceflops.mfu.measurement import Measurement, measure
from traceflops.mfu.serving_passes import Serving, serving
from traceflops.phases import phase
from traceflops.privacy.environment import check_privacy
from traceflops.privacy.placeholders import Placeholders
from traceflops.privacy.redact import removed
from traceflops.ranks.collectives import collective_work
from traceflops.remedies import advice
from traceflops.table.columns import numbers
from traceflops.table.grouping import distinct
from traceflops.table.trace import Trace
from traceflops.timeline.account import DeviceAccount
from traceflops.timeline.device_span import whole_span
from traceflops.timeline.host_work import COPIES_MISSING, draws
from traceflops.timeline.records import EMPTY_ACCOUNT
from traceflops.windows.device_records import UNRECORDED, LaunchRecords
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import (
    DeviceReport,
    StepChoice,
    chosen_time,
    partition_text,
    told_apart,
)
from traceflops.windows.selection import Selection
from traceflops.windows.step_times import spread_of

if TYPE_CHECKING:
    import pyarrow as pa

    from traceflops.attribution.op_kernels import Attribution
    from traceflops.ranks.who_waits import RankReport
    from traceflops.replay.what_if import WhatIf
    from traceflops.timeline.aggregates import Untimed


GAPS_OF_SUMMARY: Final = 3
"""How many gaps of a device a summary keeps."""


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
    user_rules = read_finding_rules(finding_rules, redact=redact)
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
    return with_finding_rules(analysis, user_rules)


def with_removed(analysis: Analysis, placeholders: Placeholders) -> Analysis:
    """Return an analysis whose note counts all names that were replaced, also those of a pair."""
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
) -> Analysis:
    """Return where the time of a prepared trace went and how much of its devices was used.

    `measured` replaces what the trace and its `pair` say of FLOPs. Culprits of idle time and ranks
    are left out if `is_summarised`: a summary has them by step.
    """
    whole, linked = prepared, prepared.linked
    if prepared.launch_records.state == "capture":
        # Times of a capture mean nothing: no devices and no steps are reported.
        plan = replace(whole.plan, choice=StepChoice("none", "", (), ()), notes=())
        prepared = replace(whole, accounts={}, windows={}, plan=plan, with_work=whole)
    with phase("accounts"):
        most_gaps = GAPS_OF_SUMMARY if is_summarised else None
        reports = [
            _device_report(prepared, device, account, most_gaps)
            for device, account in prepared.accounts.items()
        ]
        named = devices = told_apart(linked.trace, reports)
        if prepared.launch_records.state in UNRECORDED:
            devices = [device.with_idle_unrecorded for device in named]
        devices = with_culprits(prepared, devices)
        total = sum((device.chosen for device in devices), EMPTY_ACCOUNT)
    with phase("idle time"):  # takes much memory for a while, FLOPs keep what they take
        idle_ns = total.components.idle_ns
        idle = NO_CULPRITS if is_summarised else idle_culprits(prepared, idle_ns)
    if measured is None:
        with phase("FLOPs"):
            measured = measure(whole, peaks, pair)
    ranks = None if is_summarised else _ranks(prepared, measured, peaks)
    with phase("kernel tables"):
        totals = kernel_totals(linked.trace, linked.categorised, linked.split, prepared.chosen)
        moved = memory_times(linked.trace, linked.categorised, prepared.chosen)
    return Analysis(
        source=linked.trace.source,
        selection=prepared.selection,
        notes=notes_of(prepared, named, measured),
        collectives=collective_work(linked, prepared.accounts, prepared.windows),
        recording=prepared,
        **judged(
            VerdictFacts.of(prepared, measured.executed.attribution),
            devices,
            measured,
            kernels=[totals],
            moved=moved,
            idle=idle,
            launches=launching(prepared, measured.executed.phases),
            ranks=ranks,
            passes=serving(prepared, measured.executed.attribution),
        ),
    )


def _ranks(prepared: Prepared, measured: Measurement, peaks: PeakOptions) -> RankReport | None:
    """Return who waits for whom, None with one device of one process."""
    if max(len(prepared.accounts), prepared.trace.processes.num_rows) <= 1:
        return None
    from traceflops.ranks.link_rates import links_of
    from traceflops.ranks.who_waits import rank_report

    return rank_report(prepared, links_of(prepared, measured.devices, peaks.link))


def _device_report(
    prepared: Prepared, device: int, account: DeviceAccount, most_gaps: int | None
) -> DeviceReport:
    """Return the figures of a device, without what its idle time is due to."""
    linked, trace, windows = prepared.linked, prepared.trace, prepared.windows[device]
    row = trace.devices.slice(device, 1).to_pylist()[0]
    process = trace.processes.slice(row["process"], 1).to_pylist()[0]
    users = distinct(numbers(trace.activities["process"])[account.rows.row]).tolist()
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
        process=row["process"],
        file=process["file"],
        type=row["type"],
        local_id=row["local_id"],
        product=row["product"],
        memory_bytes=row["memory_bytes"],
        sm_count=row["sm_count"],
        whole=whole,
        windows=windows,
        chosen=sum((window.account for window in windows if window.used), EMPTY_ACCOUNT),
        gaps=account.gaps(device, chosen_time(windows), windows, most_gaps),
        architecture=row["architecture"],
        partition=partition_text(row),
        ranks=tuple(sorted({rank for user in users if (rank := trace.ranks[user]) is not None})),
    )


class VerdictFacts(NamedTuple):
    """What a verdict needs of the recording, whole or from summaries.

    `how` says how device records are made, `cut` that a file is cut off. `samples` and `memory` are
    verdicts on these alone. `gpu` is what CPUs tell of a GPU whose work is not recorded, `once`
    what most of their start-up is, `little` that hardly any work is recorded, `calls` what takes
    the host's time where no work is, `is_part` that most time is outside of the work of one GPU.
    """

    trace: Trace
    how: str
    cut: Fact | None
    records: LaunchRecords
    untimed: Untimed | None
    choice: StepChoice
    lacks_copies: bool
    samples: Verdict | None = None
    memory: Verdict | None = None
    gpu: OfGpu = OfGpu()
    once: str | None = None
    little: tuple[Fact, ...] = ()
    calls: tuple[Fact, ...] = ()
    is_part: bool = False

    @classmethod
    def of(cls, prepared: Prepared, attribution: Attribution) -> VerdictFacts:
        """Return the facts of a prepared trace; `attribution` is that of its ops."""
        trace, rest = prepared.trace, outside_gpu_work(prepared)
        is_of_samples = trace.source.format == GPU_SAMPLES
        return cls(
            trace,
            advice(trace, "device records"),
            cut_file(trace) or nothing_recorded(trace),
            prepared.launch_records,
            prepared.untimed,
            prepared.plan.choice,
            is_said(trace, COPIES_MISSING),
            samples_verdict(gpu_samples(prepared) if is_of_samples else (), trace),
            memory_verdict(prepared),
            of_gpu(trace, attribution) if prepared.on_host else OfGpu(),
            main_kind(prepared) if prepared.on_host else None,
            little_work(prepared),
            calls_alone(trace) if prepared.launch_records.state == "missing" else (),
            rest is not None and rest.is_most and len(prepared.accounts) == 1,
        )


def judged(
    facts: VerdictFacts,
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
    records, choice = facts.records, facts.choice
    total = sum((device.chosen for device in devices), EMPTY_ACCOUNT)
    spread, window_ns = spread_of(devices), total.components.window_ns
    lost = lost_graphs(records, total)
    losses = all_losses(
        total,
        measured,
        moved,
        idle,
        lacks_copies=facts.lacks_copies,
        may_draw=draws(facts.trace),
        waiting=waiting_for(ranks),
    )
    on_host = all(device.type == "cpu" for device in devices)
    basis, program = basis_of(choice, facts.is_part * window_ns), program_of_trace(facts.trace)
    shared_ns = None if records.state == "serialized" else window_ns
    table = kernel_table(kernels, shared_ns)
    of_time = fact("basis.step" if choice.used else "basis.time")
    on_cpu = None
    if on_host:
        leads = leading(table, total, idle, measured, of_time, facts.once) if devices else ()
        leads = reading(table, total, of_time) if devices and facts.gpu.is_queue else leads
        if devices and not choice.used and not facts.gpu.is_queue:
            is_gpu = facts.gpu.lacks is not None
            little = () if is_gpu else little_on_cpu(facts.trace, window_ns)
            many = many_operators(facts.trace, table, window_ns, of_time, is_gpu=is_gpu)
            leads = (*little, *leads, *many)
        on_cpu = OnCpu(leads, facts.gpu)
    first = _said_first(facts, devices, measured, losses, ranks, on_cpu, basis)
    first = first if on_host else of_events(first, facts.trace, total.components)
    of_kernels = main_kernel_findings(table, total, losses, passes, basis, program, facts.trace)
    # What recorded work waited for holds, whatever else ran without a record.
    of_ranks = (*late_rank_findings(ranks, program), *slow_link_findings(ranks, program))
    findings = [] if on_host else [*of_ranks]
    is_told = bool(facts.little) or waits_for_host(facts.trace)
    if records.is_judged and not on_host and not is_told:
        findings = [*loss_findings(losses, measured, basis), *findings]
        findings += [*uneven_findings(spread, devices, passes), *of_kernels]
        findings.sort(key=attrgetter("share"), reverse=True)
    is_idle_known = records.is_judged and not (facts.lacks_copies or lost or facts.little)
    idle_share = total.components.share("idle") if is_idle_known else None
    return {
        "verdict": led_by(first, facts.cut or lost),
        "steps": replace(choice, typical_ns=spread.median_ns) if spread is not None else choice,
        "devices": tuple(devices),
        "total": total,
        "kernels": table,
        "categories": category_table(table, shared_ns),
        "measured": measured,
        "untimed": facts.untimed,
        "losses": tuple(findings),
        "recorded": records.state,
        "idle": idle,
        "host_bound": host_bound(launches, idle_share),
        "launches": launches,
        "serving": passes,
        "ranks": ranks,
    }


def _said_first(
    facts: VerdictFacts,
    devices: Sequence[DeviceReport],
    measured: Measurement,
    losses: Sequence[Loss],
    ranks: RankReport | None,
    on_cpu: OnCpu | None,
    basis: Fact,
) -> Verdict:
    """Return the verdict: what is not recorded, what has no timeline, or what costs most."""
    late_rank = late_rank_fact(ranks, lasting=True) or slow_link_fact(ranks)
    return (
        facts.samples
        or records_verdict(facts.records, facts.how, late_rank, on_cpu, facts.calls)
        or serialized_verdict(facts.records, measured, facts.trace)
        or untimed_verdict(facts.untimed, measured, facts.trace, late_rank)
        or facts.memory
        or (Verdict(facts.little, "start-up") if facts.little else None)
        or verdict(
            sum((device.chosen for device in devices), EMPTY_ACCOUNT),
            basis,
            len(devices),
            measured,
            losses=losses,
            on_cpu=on_cpu,
            late_rank=late_rank,
        )
    )


def what_if(analysis: Analysis, *edits: str) -> WhatIf:
    """Return how long the steps would take with edits such as `data_input=0`, and what decides it.

    docs/replay.md lists what can be asked. Raises UsageError where an edit is none, or the
    recording does not hold what it takes to answer.
    """
    if analysis.of_no_job:
        raise UsageError("what-if needs one job", "choose one with --job")
    if analysis.replay is None:
        hint = "ask it of the traces that the summaries are of"
        raise UsageError("what-if needs single kernels and calls, and summaries hold sums", hint)
    return analysis.replay.what_if(edits)
