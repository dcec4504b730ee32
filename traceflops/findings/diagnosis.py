"""What to fix first: the findings of all rules in their order, each with its gain by replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from traceflops.facts import fact
from traceflops.findings.case import Case, Rule, limit, share_of_window
from traceflops.findings.clocks import low_clocks, slowed_kernels, slower_kernels
from traceflops.findings.communication import communication
from traceflops.findings.copies_back import copies_back
from traceflops.findings.counted_estimates import COUNTED_KERNEL
from traceflops.findings.counted_kernels import counted_kernels, counted_main_kernel
from traceflops.findings.decode import decode
from traceflops.findings.device_memory import fills, host_copies, memory_headroom, small_pieces
from traceflops.findings.device_work import kernel_rules, reached
from traceflops.findings.finding import WORTH_SAYING, Candidate, Finding, Level
from traceflops.findings.gains import gain_basis, weighed
from traceflops.findings.idle_causes import idle_causes
from traceflops.findings.kernel_facts import KernelFacts
from traceflops.findings.late_rank import late_rank, rank_balance
from traceflops.findings.little_work import LITTLE_WORK, little_work
from traceflops.findings.main_kernel import MAIN_KERNEL
from traceflops.findings.managed_memory import unified_memory
from traceflops.findings.many_operators import many_kernels
from traceflops.findings.precision import totals_in_single
from traceflops.findings.rules import advice_of, all_rules, rule_of, statement
from traceflops.findings.slow_links import slow_link
from traceflops.findings.standstill import STANDSTILL, without_stalled
from traceflops.findings.start_up import ONCE, kept, runs_once, start_up
from traceflops.findings.totals_alone import main_total
from traceflops.findings.trace_health import trace_health
from traceflops.findings.training_mode import training_mode
from traceflops.findings.unevenness import UNEVEN_STEPS, is_sweep, uneven_steps
from traceflops.findings.unjudged import UNJUDGED, largest_unjudged
from traceflops.findings.user_rules import more_rules
from traceflops.remedies import remedy
from traceflops.windows.device_records import ENOUGH, PARTIAL

RULES: Final[tuple[Rule, ...]] = (
    idle_causes,
    communication,
    late_rank,
    rank_balance,
    slow_link,
    decode,
    kernel_rules,
    uneven_steps,
    slower_kernels,
    slowed_kernels,
    low_clocks,
    host_copies,
    small_pieces,
    fills,
    copies_back,
    unified_memory,
    memory_headroom,
)
_OF_RECORDED: Final = (late_rank, rank_balance, slow_link, kernel_rules, low_clocks)
"""Rules that hold even if some work is not recorded: they look at recorded work alone."""
_WAITS, _NEARLY = "host-waits", 0.9
_INPUT: Final = "input-wait"
_PINNING: Final = {"blocking-copy", "pageable-copies"}
_AS_GRAPHS: Final = "launching.graph"  # how codes of remedies begin that replay steps as graphs
_SMALL_COPIES: Final = ("host-copies.remedy.tiny", "host-copies.remedy.join")
"""Remedies of copies that do not pin memory."""
_LAUNCHING: Final = ("other-calls", "eager-overhead", "launch-latency", "thread-handover")
_OF_HOST: Final = (*_LAUNCHING, "host-code", "compiled-runtime", "optimizer-loop")
"""Rules of host code whose first calls tell nothing of later ones."""
_IDLE: Final = "idle"  # the section of a report that shows causes of idle time
_UNKNOWN, _IDLE_LOSS = "host-unrecorded", "loss-idle"
_WITH_CAUSES: Final = (_IDLE_LOSS, "loss-communication")  # losses that have causes of their own
_TIMES: Final = 3
"""A cause without a gain, or a kernel, stands before gains of less than 1/_TIMES of its time."""
_NEAR: Final = 0.5  # kernels that reach this part of their roof are near what the GPU can do
_SURE: Final[Mapping[Level, float]] = {"high": 1.0, "medium": 0.9, "low": 0.8}
"""Weight of a gain in the order of findings, by its confidence."""


def diagnosed(case: Case) -> tuple[Finding, ...]:
    """Return the findings of all rules that are not silent, in the order shown."""
    silent = case.finding_rules.silent
    return tuple(finding for finding in _diagnosed(case) if finding.rule not in silent)


def _diagnosed(case: Case) -> Iterator[Finding]:
    """Yield the findings in the order shown, those of silent rules included.

    Files of several jobs have none: each job has its own. Without a timeline of enough device work
    there are only losses, kernels with counters, operators of CPUs, and the health of the trace.
    """
    if case.of_no_job:
        return
    limits = case.finding_rules.limits(LITTLE_WORK)
    is_judged = case.recorded in ENOUGH and case.prepared.knows_replays
    if not case.windows_used or case.on_host or case.recorded not in (*ENOUGH, *PARTIAL):
        if case.on_host and case.windows_used:
            yield from _of_operators(case)
        elif not case.devices:
            yield from counted_kernels(case)
        of_totals = (*totals_in_single(case), *many_kernels(case))
        yield from (*(of_totals or main_total(case)), *case.losses)
    elif is_judged and little_work(case.prepared, limits):
        yield from _causes(case, ())  # the user's own rules are asked in any case
    else:
        yield from _of_timeline(case, is_judged=is_judged)
    yield from trace_health(case)


def _of_timeline(case: Case, *, is_judged: bool) -> Iterator[Finding]:
    """Yield what the timeline says: start-up if that leads, causes by gain, then other losses.

    Without `is_judged` too much work is not recorded to ask why the GPU is idle.
    """
    causes = sold_once([*_causes(case, RULES if is_judged else _OF_RECORDED)])
    due_ns = sum(wait.idle_after_ns for wait in case.synchronisations)
    findings = reasons_first(causes, waits_cost_most=2 * due_ns > case.total.components.idle_ns)
    standstill = next((loss for loss in case.losses if loss.rule == STANDSTILL), None)
    findings = without_stalled(findings, standstill)
    if case.has_events:  # summaries are not replayed: most of their gains are unknown
        step_ns = case.total.components.window_ns / case.windows_used
        findings = longest_first(findings, step_ns)
    # What counters say about the main kernel stands before findings of low priority. If kernels
    # ran one by one, it stands first: such a run is made for the sake of its counters.
    if counted := [*counted_main_kernel(case)]:
        goes_first = case.recorded == "serialized"
        before = [one for one in findings if one.priority != "low" and not goes_first]
        findings = [*before, *counted, *(one for one in findings if one not in before)]
    ordered = _with_main_kernel(case, findings)
    # If kernels ran one by one, the profiler causes the time between them.
    starts, leads = None if case.recorded == "serialized" else start_up(case), False
    if starts is not None and case.steps.measured is None:  # else the user left start-up out
        # Findings have shares of the chosen time, start-up of all time: make them comparable.
        largest = kept(case) * _largest_share(findings, case.losses)
        leads = starts.severity == "high" and starts.share > largest
        leads = leads or starts.share >= limit(case, starts.rule, "most_share")
        # The loop that follows a kernel that makes its data is the program.
        leads &= starts.advice is None or starts.advice.code != ONCE
    if leads and runs_once(case):
        ordered = [finding for finding in ordered if finding.rule not in _OF_HOST]
    others = [starts] if starts is not None and not leads else []
    rules = {finding.rule for finding in ordered}
    sections = {name for finding in ordered for name in finding.evidence[:1]}
    for loss in case.losses:
        is_of_sweep = loss.rule == UNEVEN_STEPS and is_sweep(case)  # steps differ on purpose
        if loss.rule not in rules and not _is_told(loss, ordered) and not is_of_sweep:
            # A cause that the same section shows already gives details and a remedy.
            has_cause = loss.rule in _WITH_CAUSES and loss.evidence[0] in sections
            others.append(replace(loss, details=(), advice=None) if has_cause else loss)
    if starts is not None and leads:
        yield starts
    elif is_judged and not any(map(_stands_out, (*ordered, *others))):
        yield from _nothing(case)
    yield from (*ordered, *others)


def _largest_share(findings: Sequence[Finding], losses: Sequence[Finding]) -> float:
    """Return the largest share of time among findings and losses.

    If what leads is host time that nothing explains, it may be start-up, too: then idle time counts
    only with the share of that finding.
    """
    is_unknown = bool(findings) and findings[0].rule == _UNKNOWN and findings[0].gain is None
    counted = (loss for loss in losses if not (is_unknown and loss.rule == _IDLE_LOSS))
    return max((finding.share for finding in (*findings, *counted)), default=0.0)


def longest_first(findings: Sequence[Finding], step_ns: float) -> list[Finding]:
    """Return findings, the longest one of unknown gain moved to the front if others gain little.

    Only high severity counts. A finding stays in its place if another one may gain a third of its
    time in a step of `step_ns`, all of it if that other gain has no lower bound, or if such a
    finding leads already (see `reasons_first`).
    """
    longest = max(
        (finding for finding in findings if finding.gain is None and finding.severity == "high"),
        key=lambda finding: finding.share,
        default=None,
    )
    if longest is None or (findings[0].gain is None and findings[0].severity == "high"):
        return [*findings]
    gained = (
        min(one.share, one.gain.high_ns / step_ns) * (_TIMES if one.gain.low_ns > 0 else 1)
        for one in findings
        if one.gain
    )
    if max(gained, default=0.0) > longest.share:
        return [*findings]
    return [longest, *(finding for finding in findings if finding is not longest)]


def sold_once(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings without the lesser ones of those that the same change of the program mends.

    These are the two that pin the memory of copies, and all that replay steps as graphs. Findings
    on copies whose remedy is to join small ones pin nothing.
    """
    pins = [
        finding
        for finding in findings
        if finding.rule in _PINNING
        and not (finding.advice and finding.advice.code in _SMALL_COPIES)
    ]
    graphs = [
        finding
        for finding in findings
        if finding.advice and finding.advice.code.startswith(_AS_GRAPHS)
    ]
    are_both = {finding.rule for finding in pins} == _PINNING
    lesser = sorted(pins, key=_order)[:1] if are_both else []
    lesser += sorted(graphs, key=_order)[:-1]
    return [finding for finding in findings if not any(finding is other for other in lesser)]


def _with_main_kernel(case: Case, findings: list[Finding]) -> list[Finding]:
    """Return findings with the kernel that takes much of the time, if no other is about it.

    Before it stand only findings that may gain a third of its time, and large and sure gains.
    """
    main = next((loss for loss in case.losses if loss.rule == MAIN_KERNEL), None)
    if main is None or _is_told(main, findings):
        return findings
    least_ns = main.share * case.total.components.window_ns / case.windows_used / _TIMES
    gains = [
        finding
        for finding in findings
        if finding.gain is not None
        and (
            finding.gain.high_ns >= least_ns
            or (finding.priority == "high" and _sureness(finding) == 1)
        )
    ]
    return [*gains, main, *(finding for finding in findings if finding not in gains)]


def _is_told(loss: Finding, causes: Sequence[Finding]) -> bool:
    """Return whether a loss is the main kernel, and some cause is mostly about the same kernel.

    Causes of idle time do not count: they only tell which kernel the GPU waits for.
    """
    kernels = [cause.rows[0].name for cause in causes if cause.rows and _IDLE not in cause.evidence]
    return loss.rule == MAIN_KERNEL and any(loss.rows[0].name in name for name in kernels)


def _of_operators(case: Case) -> Iterator[Finding]:
    """Yield what is wrong with operators of CPUs, in a recording of nothing else.

    General doubts on steps and stacks do not apply. Operators of unknown gain only launch work.
    """
    basis = replace(gain_basis(case), doubts=())
    for cause in training_mode(KernelFacts(case)):
        finding = weighed(cause, basis)
        if finding is not None:
            yield finding if finding.gain is not None else replace(finding, severity="low")


def _causes(case: Case, asked: Sequence[Rule]) -> Iterator[Finding]:
    """Yield what the rules `asked` and those of the user find.

    What gains next to nothing is left out, except findings of the user's own rules.
    """
    rules = case.finding_rules
    # The rules come before the graph that gains need, which takes much memory.
    found = [(rule, [*rule(case)]) for rule in (*asked, *more_rules(rules))]
    basis = gain_basis(case)
    least_ns = limit(case, "priority", "nothing") * basis.step_ns
    for rule, causes in found:
        for rule_cause in causes:
            cause = rule_cause.as_cause() if isinstance(rule_cause, Candidate) else rule_cause
            finding = weighed(cause, basis) if cause.rule not in rules.silent else None
            if finding is not None and (
                rule not in RULES or finding.gain is None or finding.gain.high_ns > least_ns
            ):
                yield finding


def reasons_first(findings: Sequence[Finding], *, waits_cost_most: bool = False) -> list[Finding]:
    """Return findings sorted by sure gain, the largest first, but reasons before what they explain.

    A reason that gains about half as much (`_tells_why`) takes the place of what it explains, so
    both stand together. If waits cost most of the idle time, they explain slow launching, since
    after a wait the host has no lead. Much waiting for input comes first: it hides all else.
    """

    def explains(why: Finding, finding: Finding) -> bool:
        if waits_cost_most and why.rule in _LAUNCHING and finding.rule == _WAITS:
            return False
        if waits_cost_most and why.rule == _WAITS and finding.rule in _LAUNCHING:
            return True
        return _tells_why(why, finding)

    def key(finding: Finding) -> tuple[bool, float, float]:
        # A finding stands right behind its reason, as if it gained 1 ns less.
        behind_reasons = [
            _order(why) - 1 for why in findings if why is not finding and explains(why, finding)
        ]
        # Much waiting for input sorts first, as False.
        is_program = finding.rule != _INPUT or finding.severity != "high"
        return is_program, -min([_order(finding), *behind_reasons]), -finding.share

    return sorted(findings, key=key)


def _tells_why(why: Finding, finding: Finding) -> bool:
    """Return whether the finding `why` explains the cost of another, and gains enough for that.

    Nearly any cause explains waits for the GPU: each loop that logs has such waits.
    """
    # Without a gain of its own (`_order` -1), a finding is explained by a reason of any size.
    is_large = _order(finding) < 0 or 2 * _order(why) >= _order(finding)
    if finding.rule == _WAITS and finding.gain is not None and why.gain is not None:
        half = 2 * why.gain.expected_ns >= finding.gain.expected_ns
        may_be_as_much = half and why.gain.high_ns >= _NEARLY * finding.gain.expected_ns
        return may_be_as_much or (is_large and _sureness(why) >= _sureness(finding))
    if finding.gain is not None and why.gain is not None:
        is_large |= why.gain.high_ns >= _NEARLY * finding.gain.high_ns > 0
    # What takes one rank too long explains the same name on all ranks, if the rank loses much.
    is_of_rank = finding.where.rank is None and why.where.rank is not None
    is_much = 2 * why.share >= finding.share
    is_same = [row.name for row in why.rows[:1]] == [row.name for row in finding.rows[:1]]
    row = all_rules().rules.get(finding.rule)
    is_explained = row is not None and why.rule in row.explained_by
    return is_large and (is_explained or (is_of_rank and is_much and is_same))


def _order(finding: Finding) -> float:
    """Return the expected gain in ns, weighted by its sureness; -1 if it is unknown."""
    return finding.gain.expected_ns * _sureness(finding) if finding.gain is not None else -1.0


def _sureness(finding: Finding) -> float:
    return _SURE[finding.confidence.level if finding.confidence else "high"]


def _stands_out(finding: Finding) -> bool:
    """Return whether a finding is a fault: a cause with enough gain, or much in uneven steps."""
    is_large = finding.priority != "low" or (finding.gain is None and finding.severity == "high")
    # Only causes have a confidence; a loss alone is no fault.
    is_cause = finding.confidence is not None or finding.rule in (MAIN_KERNEL, COUNTED_KERNEL)
    uneven = finding.rule == "uneven-steps" and finding.severity != "low"
    return (is_cause and is_large) or uneven


def _nothing(case: Case) -> Iterator[Finding]:
    """Give the finding that nothing stands out, if the GPU does little but run kernels.

    Copies over links, and graphs whose kernels are not recorded, do not count as kernels. If it is
    not known how near kernels come to their roofs, the finding says so.
    """
    components, rows = case.total.components, case.measured.kernels
    moved_ns = sum(row.sum_ns for row in rows if row.path in ("host", "peer"))
    rule, lost_ns = "nothing-stands-out", components.idle_ns + components.communication_ns
    no_kernels_ns = lost_ns + min(moved_ns, components.memory_ns) + components.graph_ns
    share = share_of_window(case, lost_ns)
    is_much = share_of_window(case, no_kernels_ns) > limit(case, rule, "most_share")
    if is_much or share_of_window(case, components.start_up_ns) >= WORTH_SAYING:
        return
    busy_ns = components.window_ns - components.start_up_ns - components.idle_ns
    parts = [(row.sum_ns, reached(case, row)) for row in rows]
    near_ns = sum(ns for ns, part in parts if part >= _NEAR)
    known_ns = sum(ns for ns, part in parts if part > 0)
    if 2 * near_ns < busy_ns <= 2 * known_ns:
        return  # losses tell how far below its roofs the GPU runs
    if 2 * near_ns < busy_ns:
        how = remedy(case, "shapes")
        # The remedy for PyTorch is to record shapes: it is left out if the tool cannot do that.
        program = case.program if how else case.program - {"torch"}
        kernels = largest_unjudged(case, busy_ns)
        values = {"kernels": kernels or None, "count": len(kernels)}
        yield statement(
            UNJUDGED,
            share_of_window(case, busy_ns),
            values,
            severity="low",
            advice=advice_of(UNJUDGED, program, {"how": how}),
        )
        return
    yield Finding(
        rule,
        "low",
        share,
        fact(f"{rule}.title"),
        fact(f"{rule}.claim" if share else f"{rule}.claim-all", share=share),
        evidence=rule_of(rule).evidence,
    )
