"""The judgement of an analysis: its verdict, and findings on what takes the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from traceflops.analysis.notes import is_said
from traceflops.attribution.culprits import IdleCulprits
from traceflops.attribution.kernels import category_table, kernel_table
from traceflops.attribution.launch_lead import Launches, host_bound
from traceflops.attribution.op_kernels import Attribution
from traceflops.attribution.outside_work import outside_gpu_work
from traceflops.devices.side_records import GPU_SAMPLES
from traceflops.facts import Fact, fact
from traceflops.findings import verdicts
from traceflops.findings.calls_alone import calls_alone
from traceflops.findings.case import NO_RULES, FindingRules, program_of_trace
from traceflops.findings.clocks import samples_verdict
from traceflops.findings.cpu_program import compiling, cpu_facts, dispatching
from traceflops.findings.finding import Finding, Verdict
from traceflops.findings.held_memory import memory_verdict
from traceflops.findings.late_rank import late_rank_fact, late_rank_findings, waiting_for
from traceflops.findings.little_work import LITTLE_WORK, failed_launches, little_work
from traceflops.findings.losses import Loss, all_losses, drawn, loss_findings
from traceflops.findings.main_kernel import MAIN_KERNEL, Kernels, main_kernel_findings
from traceflops.findings.many_operators import (
    first_calls,
    held_up_ns,
    little_on_cpu,
    many_operators,
    one_pass,
    slow_first_calls,
    small_on_cpu,
)
from traceflops.findings.nothing_recorded import (
    led_by_build,
    led_by_error,
    lossy_steps,
    nothing_recorded,
    of_events,
    of_what_was_read,
    waits_for_host,
)
from traceflops.findings.on_cpu import (
    OnCpu,
    Ranged,
    has_long_gaps,
    leading,
    ranged,
)
from traceflops.findings.slow_links import slow_link_fact, slow_link_findings
from traceflops.findings.standstill import (
    STANDSTILL,
    Standstill,
    standstill,
    standstill_findings,
    with_standstill,
)
from traceflops.findings.start_up import main_kind
from traceflops.findings.unevenness import uneven_findings
from traceflops.findings.unrecorded_gpu import OfGpu, of_gpu, reading
from traceflops.findings.untimed import untimed_verdict
from traceflops.gpu_samples import gpu_samples
from traceflops.mfu.measurement import Measurement
from traceflops.mfu.serving_passes import Serving
from traceflops.ranks.who_waits import RankReport
from traceflops.remedies import advice
from traceflops.table.nesting import OpTree
from traceflops.table.trace import Trace
from traceflops.timeline.aggregates import Untimed
from traceflops.timeline.host_work import COPIES_MISSING
from traceflops.timeline.records import EMPTY_ACCOUNT, Account
from traceflops.windows.device_records import LaunchRecords
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import DeviceReport, StepChoice, chosen_time
from traceflops.windows.step_times import StepSpread, spread_of


class VerdictFacts(NamedTuple):
    """The facts of a recording, or of summaries, that a verdict depends on.

    `how` is advice on recording device work, `cut` a fact on a file that is cut off or empty.
    `samples` and `memory` are the verdicts for files that have nothing else. Of operators on CPUs:
    `gpu` is the traces of a GPU whose work is not recorded, `cpu` has the facts that choose
    remedies, `ranges` the ranges of loaders and optimizers, `once` the main kind of start-up.
    `little` are facts if hardly any work is recorded, `calls` (on the host's time) if none is.
    `is_part`: most time is outside of the GPU's work. `still` is how long GPUs stood still.
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
    cpu: frozenset[str] = frozenset()
    ranges: Mapping[str, Ranged] = {}
    once: str | None = None
    little: tuple[Fact, ...] = ()
    calls: tuple[Fact, ...] = ()
    is_part: bool = False
    rules: FindingRules = NO_RULES
    still: Standstill | None = None

    @classmethod
    def of(cls, prepared: Prepared, attribution: Attribution, rules: FindingRules) -> VerdictFacts:
        """Return the facts of a prepared trace; `attribution` is that of its ops."""
        trace, outside = prepared.trace, outside_gpu_work(prepared)
        on_host, records = prepared.on_host, prepared.launch_records
        # The chosen time of the only device, None if there are several.
        times = [chosen_time(windows) for windows in prepared.windows.values()]
        time = times[0] if len(times) == 1 else None
        steps = time if prepared.plan.choice.used else None
        lacks_all = records.state == "missing" or records.lacks_all_kernels
        samples = gpu_samples(prepared) if trace.source.format == GPU_SAMPLES else ()
        # How to record all work of GPUs; if all kernels are missing, the verdict says it.
        how = ""
        if not records.has_devices:
            how = advice(trace, "device records")
        elif not records.lacks_all_kernels:
            how = advice(trace, "all device records")
        return cls(
            trace=trace,
            how=how,
            cut=verdicts.cut_file(trace) or nothing_recorded(trace),
            records=records,
            untimed=prepared.untimed,
            choice=prepared.plan.choice,
            lacks_copies=is_said(trace, COPIES_MISSING),
            samples=samples_verdict(samples, trace),
            memory=memory_verdict(prepared),
            gpu=of_gpu(trace, attribution, steps) if on_host else OfGpu(),
            cpu=cpu_facts(prepared) | program_of_trace(trace) if on_host else frozenset(),
            ranges=ranged(trace, time) if on_host and time is not None else {},
            once=main_kind(prepared) if on_host else None,
            little=little_work(prepared, rules.limits(LITTLE_WORK)),
            calls=calls_alone(trace) if lacks_all else (),
            # With several GPUs, time outside the work of one may be work of another.
            is_part=outside is not None and outside.is_most and len(prepared.accounts) == 1,
            rules=rules,
            still=None if on_host else standstill(prepared, rules.limits(STANDSTILL)),
        )


class _Figures(NamedTuple):
    """The figures that a verdict and findings rest on; `total` is the sum over devices."""

    devices: Sequence[DeviceReport]
    spread: StepSpread | None
    total: Account
    measured: Measurement
    losses: Sequence[Loss]
    kernels: pa.Table
    idle: IdleCulprits
    ranks: RankReport
    passes: Serving
    basis: Fact


def judged(
    facts: VerdictFacts,
    devices: Sequence[DeviceReport],
    measured: Measurement,
    *,
    kernels: Sequence[pa.Table],
    moved: Mapping[str, int],
    idle: IdleCulprits,
    launches: Launches | None,
    ranks: RankReport,
    passes: Serving,
) -> dict[str, Any]:
    """Return fields of an analysis by name; `moved` is the ns of memory work by kind."""
    records, choice = facts.records, facts.choice
    total = sum((device.chosen for device in devices), EMPTY_ACCOUNT)
    spread, window_ns = spread_of(devices), total.components.window_ns
    lost_graphs = verdicts.lost_graphs(records, total)
    losses = all_losses(
        total,
        measured,
        moved,
        idle,
        lacks_copies=facts.lacks_copies,
        drawing=drawn(facts.trace),
        beside=_beside(facts.trace),
        waiting=waiting_for(ranks),
    )
    losses = with_standstill(losses, facts.still, window_ns)
    on_host = all(device.type == "cpu" for device in devices)
    basis = verdicts.basis_of(choice, window_ns if facts.is_part else 0)
    # Kernels that a profiler ran one by one have no share of the window.
    shared_ns = None if records.state == "serialized" else window_ns
    table = kernel_table(kernels, shared_ns)
    figures = _Figures(devices, spread, total, measured, losses, table, idle, ranks, passes, basis)
    verdict = _main_verdict(facts, figures, _on_cpu(facts, figures) if on_host else None)
    is_idle_known = records.is_judged and not (facts.lacks_copies or lost_graphs or facts.little)
    idle_share = total.components.share("idle") if is_idle_known else None
    short_ns = sum(culprit.short_ns for culprit in idle.culprits)
    return {
        "verdict": _with_doubts(verdict, facts, measured, lost_graphs),
        "steps": replace(choice, typical_ns=spread.median_ns) if spread is not None else choice,
        "devices": tuple(devices),
        "total": total,
        "kernels": table,
        "categories": category_table(table, shared_ns),
        "measured": measured,
        "untimed": facts.untimed,
        "losses": () if on_host else _findings(facts, figures),
        "recorded": records.state,
        "idle": idle,
        "host_bound": host_bound(launches, idle_share, short_ns / max(window_ns, 1)),
        "launches": launches,
        "serving": passes,
        "ranks": ranks,
    }


def _with_doubts(
    verdict: Verdict, facts: VerdictFacts, measured: Measurement, lost_graphs: Fact | None
) -> Verdict:
    """Return a verdict led by what puts it in doubt: lost records, a debug build, an error."""
    verdict = verdicts.led_by(verdict, facts.cut or lost_graphs)
    verdict = led_by_build(verdict, facts.trace, measured)
    failed = failed_launches(facts.trace)
    others = (part for part in verdict.parts if part not in failed)
    lossy = lossy_steps(facts.choice, facts.trace) if facts.records.is_judged else ()
    headline = "records-missing" if lossy else verdict.headline
    verdict = replace(verdict, parts=(*failed, *lossy, *others), headline=headline)
    return led_by_error(verdict, facts.trace, is_little=bool(facts.little))


def _beside(trace: Trace) -> Fact | None:
    """Return that files of the process lie beside a file without API calls, and may tell more."""
    notes = [note for note in trace.notes if note.code == "siblings-not-read"]
    is_useful = notes and not trace.calls.num_rows
    return fact("loss.beside", count=sum(note.count or 0 for note in notes)) if is_useful else None


def _findings(facts: VerdictFacts, figures: _Figures) -> tuple[Finding, ...]:
    """Return findings on what takes the time of devices, the largest share first."""
    trace, program, ranks = facts.trace, program_of_trace(facts.trace), figures.ranks
    # Findings on waits of recorded work hold even if other work was not recorded.
    of_ranks = (*late_rank_findings(ranks, program), *slow_link_findings(ranks, program))
    # If there is little work, or work is never queued, the verdict already says it all.
    if not facts.records.is_judged or facts.little or waits_for_host(trace):
        return of_ranks
    total, losses, passes, basis = figures.total, figures.losses, figures.passes, figures.basis
    other_losses = [loss for loss in losses if loss.rule != STANDSTILL]
    limits = facts.rules.limits(MAIN_KERNEL)
    peaks = figures.measured.devices
    kernels = Kernels(figures.kernels, total, losses, program, trace, limits, peaks)
    findings = (
        *loss_findings(other_losses, figures.measured, basis),
        *standstill_findings(facts.still, total.components.window_ns),
        *of_ranks,
        *uneven_findings(figures.spread, figures.devices, passes),
        *main_kernel_findings(kernels, passes, basis),
    )
    return tuple(sorted(findings, key=attrgetter("share"), reverse=True))


_OF_FIRST_CALLS = ("verdict.cpu-first-call", "verdict.cpu-called-once")


def _on_cpu(facts: VerdictFacts, figures: _Figures) -> OnCpu:
    """Return the facts to show where the trace has operators of CPUs, and no work of a GPU.

    A GPU may have run without being recorded (`facts.gpu`). If operators then wait for its queue in
    the calls in which they launch (`is_queue`), their times are not those of work on the CPU: the
    only fact is how long they read values from the GPU.
    """
    devices, total, operators, gpu = figures.devices, figures.total, figures.kernels, facts.gpu
    has_steps = bool(facts.choice.used)
    basis = fact("basis.step" if has_steps else "basis.time")  # what shares of time are of
    if not devices:
        return OnCpu((), gpu)
    if gpu.is_queue:
        return OnCpu(reading(operators, total, basis), gpu)
    leads = leading(
        operators,
        total,
        figures.idle,
        figures.measured,
        basis if gpu.recorded_ns is None else fact("basis.recording"),
        kind=facts.once,
        recorded_ns=gpu.recorded_ns,
        knows=facts.cpu,
        ranges=facts.ranges,
        slow_first=slow_first_calls(facts.trace),
        held_up=held_up_ns(facts.trace),
    )
    used_gpu = gpu.lacks is not None
    small = () if used_gpu or has_long_gaps(figures.idle) else small_on_cpu(facts.trace)
    # With several processes, the sum of their times does not measure one of them.
    if len(devices) == 1 and has_steps:
        leads = (*leads, *small)
    elif len(devices) == 1:
        window_ns = total.components.window_ns
        little = () if used_gpu else little_on_cpu(facts.trace, window_ns)
        loading = facts.ranges["data_input"].by_thread if facts.ranges else {}
        many = many_operators(facts.trace, operators, window_ns, basis, loading, is_gpu=used_gpu)
        many = many or (() if little else small)
        is_said = any(fact.code in _OF_FIRST_CALLS for fact in leads)
        is_said |= bool(little or many or used_gpu)
        tree = OpTree.of(facts.trace.ops)
        once = first_calls(facts.trace, window_ns) or one_pass(facts.trace.ops, tree, window_ns)
        once = () if is_said else once
        leads = (*little, *leads, *many, *once)
    leads = (*compiling(facts.trace), *leads, *dispatching(facts.trace, total))
    return OnCpu(leads, gpu)


def _main_verdict(facts: VerdictFacts, figures: _Figures, on_cpu: OnCpu | None) -> Verdict:
    """Return the verdict: on missing records, a missing timeline, or the largest cost."""
    total, measured, losses, ranks = figures.total, figures.measured, figures.losses, figures.ranks
    basis, count = figures.basis, len(figures.devices)
    late_rank = late_rank_fact(ranks, lasting=True) or slow_link_fact(ranks)
    verdict = (
        facts.samples
        or verdicts.records_verdict(facts.records, facts.how, late_rank, on_cpu, facts.calls)
        or verdicts.serialized_verdict(facts.records, measured, facts.trace)
        or untimed_verdict(facts.untimed, measured, facts.trace, late_rank)
        or facts.memory
        or (Verdict(facts.little, "start-up") if facts.little else None)
        or verdicts.verdict(
            total, basis, count, measured, losses=losses, on_cpu=on_cpu, late_rank=late_rank
        )
    )
    verdict = of_what_was_read(verdict, facts.trace, facts.records.lost)
    return of_events(verdict, facts.trace, total.components) if on_cpu is None else verdict
