"""What to fix first: what rules say of a recording, with the gain of each by replay.

Only what the critical path leaves standing is replayed: nothing gains more than its time there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.errors import UsageError
from traceflops.findings.case import Rule, is_torch, limit, share_of_window
from traceflops.findings.clocks import slower_kernels
from traceflops.findings.communication import communication
from traceflops.findings.decode import decode
from traceflops.findings.device_memory import host_copies, memory_headroom
from traceflops.findings.device_work import KERNELS, kernel_rules
from traceflops.findings.finding import (
    Candidate,
    Confidence,
    Finding,
    Gain,
    Level,
    MfuRange,
    Severity,
    severity_of,
)
from traceflops.findings.idle_causes import cause_of, idle_causes
from traceflops.findings.late_rank import late_rank
from traceflops.findings.main_kernel import MAIN_KERNEL
from traceflops.findings.rank_balance import rank_balance
from traceflops.findings.slow_link import slow_link
from traceflops.findings.trace_health import trace_health
from traceflops.findings.unevenness import uneven_steps
from traceflops.findings.user_rules import more_rules
from traceflops.replay import parse_edit
from traceflops.table import ABSENT, groups, is_one_of, numbers
from traceflops.timeline import Intervals
from traceflops.units import percent
from traceflops.windows import chosen_time

if TYPE_CHECKING:
    from traceflops.findings.case import Case
    from traceflops.replay import Outcome, PathPart, Replay
    from traceflops.windows import Prepared

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
    host_copies,
    memory_headroom,
)
_TITLES: Final = {
    "loss-communication": "Exposed communication",
    "loss-idle": "Idle time",
    "loss-memory": "Memory work",
    "loss-inefficiency": "Compute below peak",
    "loss-recompute": "Recomputation",
    "loss-overcompute": "Work on masks and padding",
    "uneven-steps": "Some steps are slow",
    "main-kernel": "One kernel takes most of the time",
}
_REASONS: Final[Mapping[str, frozenset[str]]] = {
    "exposed-communication": frozenset(
        {"late-rank", "slow-link", "expert-imbalance", "pipeline-bubble", "slow-collectives"}
    ),
    "matrix-rate": frozenset(
        {"misaligned-product", "tf32-off", "single-precision", "double-precision", "clocks"}
    ),
}
"""Rules that say only that work is slow, and those that say why."""
_WAITS: Final = "host-waits"
"""Each loop that logs has such waits: what else gains as much is more likely the fault."""
_NOTHING: Final = 0.001
"""So small a share of a step is nothing: edges of steps are no more exact."""
_LEVELS: Final[tuple[Level, ...]] = ("high", "medium", "low")
_OF_GPU: Final = KERNELS | {"communication", "other", "graph"}
_ON_GPU: Final = ("kernel:", "communication", "rank ", "recompute")
"""Components of the critical path that are work of the GPU, and edits that change it."""


@dataclass(frozen=True, slots=True)
class _Scales:
    """What gains are measured with: a replay or None with the reason, and the doubts of all.

    `step_ns` is the mean of the chosen windows, and `idle_ns` how much of it the busiest stream is
    without work: the most that faster host code gains. `mfu` is as recorded, `is_torch` whose code
    launches.
    """

    replay: Replay | None
    refusal: str
    step_ns: float
    idle_ns: int
    mfu: MfuRange | None
    doubts: tuple[str, ...]
    strengths: tuple[str, ...]
    levels: Mapping[Severity, float]
    is_torch: bool


@dataclass(frozen=True, slots=True)
class _Worth:
    """What a remedy gains, and why that is not sure."""

    gain: Gain | None
    doubts: tuple[str, ...]


def diagnosed(case: Case) -> tuple[Finding, ...]:
    """Return what rules find, that with the largest gain first; then other findings by share."""
    silent = case.finding_rules.silent
    return tuple(one for one in _diagnosed(case) if one.rule not in silent)


def _diagnosed(case: Case) -> Iterator[Finding]:
    if case.of_no_job:
        return  # each job has its own
    if not case.windows_used or case.on_host or case.recorded not in ("complete", "few missing"):
        yield from (*case.findings, *trace_health(case))
        return
    found = reasons_first(list(_causes(case)))
    causes = {one.rule for one in found}
    others = [
        _titled(one, found)
        for one in case.findings
        if one.rule not in causes and not _is_told(one, found)
    ]
    if not any(map(_stands_out, (*found, *others))):
        yield from _nothing(case)
    yield from (*found, *others, *trace_health(case))


def _is_told(main: Finding, causes: Sequence[Finding]) -> bool:
    """Return whether the kernel with most of the time is the one that a cause is about."""
    kernels = [one.rows[0].name for one in causes if one.rows]
    is_main = main.rule == MAIN_KERNEL
    return is_main and any(main.rows[0].name in name for name in kernels)


def _causes(case: Case) -> Iterator[Finding]:
    scales, rules = _scales(case), case.finding_rules
    for rule in (*RULES, *more_rules(rules)):
        for one in rule(case):
            if one.owner == "framework" and rule in RULES and not scales.is_torch:
                one = replace(one, owner="yours")
            found = _weighed(one, scales) if one.rule not in rules.silent else None
            if found is not None and (rule not in RULES or _gains(found, scales.step_ns)):
                yield found


def _gains(found: Finding, step_ns: float) -> bool:
    """Return whether a remedy may gain anything; users hear of their own rules anyway."""
    return found.gain is None or found.gain.high_ns > _NOTHING * step_ns


def reasons_first(found: Sequence[Finding]) -> list[Finding]:
    """Return findings by gain; what says only that work is slow follows what says why.

    That is, reasons that gain at least half as much. So does what is said of one rank, too.
    """

    def key(one: Finding) -> tuple[int, float]:
        gain = _order(one)
        reasons = (_order(each) for each in found if each is not one and _tells_why(each, one))
        told = (ns - 1 for ns in reasons if gain < 0 or 2 * ns >= gain)
        return -min([gain, *told]), -one.share

    return sorted(found, key=key)


def _tells_why(why: Finding, one: Finding) -> bool:
    is_of_rank = one.where.rank is None and why.where.rank is not None
    is_same = [row.name for row in why.rows[:1]] == [row.name for row in one.rows[:1]]
    is_known = one.rule == _WAITS or why.rule in _REASONS.get(one.rule, ())
    return is_known or (is_of_rank and is_same)


def _order(finding: Finding) -> int:
    return finding.gain.order_ns if finding.gain is not None else -1


def _titled(finding: Finding, causes: Sequence[Finding]) -> Finding:
    """Return a finding with its title; a loss has no remedy besides those of its causes."""
    title = _TITLES.get(finding.rule, finding.rule)
    told = {name for one in causes for name in one.evidence[:1]}
    first = finding.sentence.partition(". ")[0].removesuffix(".")
    is_told = finding.rule in ("loss-idle", "loss-communication") and finding.evidence[0] in told
    return replace(finding, title=title, sentence=f"{first}." if is_told else finding.sentence)


def _scales(case: Case) -> _Scales:
    replay, refusal = case.replay_or_reason
    weak: list[str] = []
    strong: list[str] = []
    if case.prepared is not None:
        marks = case.prepared.trace.marks
        has_stacks = bool(is_one_of(marks["kind"], "python").any())
        (strong if has_stacks else weak).append(
            "recorded with Python stacks" if has_stacks else "recorded without Python stacks"
        )
    if len(case.steps.used) < 2:
        weak.append("one step only" if case.steps.used else "no steps")
    else:
        strong.append(f"{len(case.steps.used)} steps")
    levels: dict[Severity, float] = {name: limit(case, "priority", name) for name in _LEVELS}
    step_ns = case.total.components.window_ns / case.windows_used
    known = case.measured.mfu_range
    mfu = None if known is None else MfuRange(float(known.least), float(known.most))
    idle_ns = _idle_ns(case, case.prepared) // case.windows_used
    doubts, strengths = tuple(weak), tuple(strong)
    return _Scales(
        replay, refusal, step_ns, idle_ns, mfu, doubts, strengths, levels, is_torch(case)
    )


def _idle_ns(case: Case, prepared: Prepared | None) -> int:
    """Return how long the busiest stream of each device has no work but communication."""
    if prepared is None:
        return 0  # nothing is replayed
    busy_ns = 0
    for device, account in prepared.accounts.items():
        categorised, activities = prepared.linked.categorised, prepared.trace.activities
        top = np.array([*categorised.top(), ""])
        row = account.rows.row[top[categorised.category[account.rows.row]] != "communication"]
        start, dur = (numbers(activities[name])[row] for name in ("start_ns", "dur_ns"))
        streams = groups(numbers(activities["stream"], ABSENT)[row])
        works = (Intervals.of(start[mine], (start + dur)[mine]) for _, mine in streams)
        chosen = chosen_time(prepared.windows[device])
        busy_ns += max((one.intersect(chosen).length_ns for one in works), default=0)
    return case.total.components.window_ns - busy_ns


def _weighed(one: Candidate, scales: _Scales) -> Finding | None:
    """Return a finding with its gain, None where the critical path leaves too little of it."""
    replay, least = scales.replay, scales.levels["low"]
    if one.gain is not None:
        is_enough = one.gain.high_ns >= least * scales.step_ns
        return _finding(one, scales, _Worth(one.gain, ())) if is_enough else None
    if replay is None:
        return _finding(one, scales, _Worth(None, (scales.refusal,)))
    bound_ns = sum(part.ns for part in replay.critical if _is_of(one, part))
    least_ns = least * replay.before_ns
    if not one.frees and one.on_path and bound_ns < least_ns:
        return None
    if not one.frees and _is_of_host(one) and scales.idle_ns < least * scales.step_ns:
        return None
    try:
        worth = _worth(one, replay)
        if worth.gain and one.on_path and not (one.frees or one.kernels or one.after):
            most_ns = -(-bound_ns // max(replay.windows, 1))
            worth = replace(worth, gain=worth.gain.capped(most_ns))
    except UsageError as error:
        why = str(error).rpartition("': ")[2]
        worth = _bounded(_own_ns(one, replay) or bound_ns, replay, why)
    if worth.gain and _is_of_host(one):
        worth = replace(worth, gain=worth.gain.capped(scales.idle_ns))
    too_small = not one.frees and worth.gain and worth.gain.high_ns * replay.windows < least_ns
    return None if too_small else _finding(one, scales, worth)


def _is_of_host(one: Candidate) -> bool:
    """Return whether the remedy is known to leave the work of the GPU as it is."""
    is_known = bool(one.edits or one.on_path)
    changed = any(text.startswith(_ON_GPU) for text in (*one.edits, *one.after))
    return is_known and not changed and one.on_path.isdisjoint(_OF_GPU)


def _own_ns(one: Candidate, replay: Replay) -> int:
    """Return what a class of idle time itself has of the critical path, 0 for other rules."""
    own = one.rule.replace("-", "_")
    return sum(part.ns for part in replay.critical if cause_of(part.component, part.name) == own)


def _is_of(one: Candidate, part: PathPart) -> bool:
    of_kernels = one.kernels and part.component in KERNELS
    named = not of_kernels or part.name in one.kernels
    return part.component in one.on_path and named


def _bounded(bound_ns: int, replay: Replay, why: str) -> _Worth:
    """Return that a remedy gains at most its time on the critical path, where that is known."""
    if not bound_ns:
        return _Worth(None, (why,))
    gain = Gain(0, -(-bound_ns // max(replay.windows, 1)), None)
    return _Worth(gain, (why, "the gain is at most its time on the critical path"))


def _worth(one: Candidate, replay: Replay) -> _Worth:
    """Return what the remedy gains. Raises UsageError where no edit stands for it."""
    if not one.edits:
        raise UsageError("the remedy cannot be replayed", "")
    before = _outcome(one.after, (), replay) if one.after else None
    whole = _outcome(one.after, one.edits, replay)
    part = _outcome(one.after, one.partly, replay) if one.partly else whole
    least, most = (before.least_ns, before.most_ns) if before else (whole.before_ns,) * 2
    point = before.after_ns if before else whole.before_ns
    is_sure = point is not None and whole.after_ns is not None and not one.partly
    windows = max(whole.windows, 1)
    gain = Gain(
        max(0, (least - max(whole.most_ns, part.most_ns)) // windows),
        max(0, -((min(whole.least_ns, part.least_ns) - most) // windows)),
        round((point - whole.after_ns) / windows) if is_sure else None,  # type: ignore
    )
    doubts = tuple(f"on top of {text}" for text in one.after)
    return _Worth(gain, (*doubts, *whole.doubts))


def _outcome(after: Sequence[str], edits: Sequence[str], replay: Replay) -> Outcome:
    """Return what edits do, without the first where the recording cannot answer it."""
    try:
        return replay.outcome([parse_edit(text) for text in (*after, *edits)])
    except UsageError:
        if len(edits) < 2:
            raise
        return replay.outcome([parse_edit(text) for text in (*after, *edits[1:])])


def _mfu(gain: Gain | None, scales: _Scales) -> MfuRange | None:
    if gain is None or scales.mfu is None or gain.high_ns >= scales.step_ns:
        return None
    low, high = (scales.step_ns - ns for ns in (gain.low_ns, gain.high_ns))
    least, most = scales.mfu.low / low, min(scales.mfu.high / high, 1 / scales.step_ns)
    return MfuRange(least * scales.step_ns, most * scales.step_ns) if least <= most else None


def _finding(one: Candidate, scales: _Scales, found: _Worth) -> Finding:
    gain = found.gain
    doubts = (*scales.doubts, *one.doubts, *found.doubts)
    unsure = len(doubts) + (gain is None or gain.point_ns is None)
    return Finding(
        rule=one.rule,
        severity=severity_of(one.share) or "low",
        sentence=one.sentence,
        share=one.share,
        mfu_without=None,
        evidence=one.evidence,
        title=one.title,
        priority=_priority(gain, scales),
        owner=one.owner,
        remedy=one.remedy,
        gain=gain,
        mfu_after=_mfu(gain, scales),
        confidence=Confidence(_LEVELS[min(unsure, 2)], (*scales.strengths, *doubts)),
        rows=one.rows,
        where=one.where,
    )


def _priority(gain: Gain | None, scales: _Scales) -> Severity:
    """Return the priority by the share of a step that is expected to be gained."""
    share = gain.expected_ns / scales.step_ns if gain is not None and scales.step_ns else 0.0
    return next((name for name in _LEVELS if share >= scales.levels[name]), "low")


def _stands_out(finding: Finding) -> bool:
    """Return whether a cause is worth its remedy, or steps differ; losses alone are no faults."""
    is_large = finding.priority != "low" or (finding.gain is None and finding.severity == "high")
    is_cause = finding.confidence is not None or finding.rule == MAIN_KERNEL
    uneven = finding.rule == "uneven-steps" and finding.severity != "low"
    return (is_cause and is_large) or uneven


def _nothing(case: Case) -> Iterator[Finding]:
    """Return that nothing stands out, where the GPU does little but run kernels.

    Copies over links and the inside of graphs without records are none.
    """
    components, rows = case.total.components, case.measured.kernels
    moved_ns = sum(row.sum_ns for row in rows if row.path in ("host", "peer"))
    lost_ns = components.idle_ns + components.communication_ns
    more_ns = min(moved_ns, components.memory_ns) + components.graph_ns
    if share_of_window(case, lost_ns + more_ns) > limit(case, "nothing-stands-out", "most_share"):
        return
    share = share_of_window(case, lost_ns)
    allowed = f"The run is within {percent(share)} of what its kernels allow."
    yield Finding(
        rule="nothing-stands-out",
        severity="low",
        sentence=f"Nothing stands out: {allowed[0].lower()}{allowed[1:]}",
        share=share,
        mfu_without=None,
        evidence=("components",),
        title="Nothing stands out",
    )
