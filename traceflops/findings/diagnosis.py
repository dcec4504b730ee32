"""What to fix first: what rules say of a recording, with the gain of each by replay.

Only what the critical path leaves standing is replayed: nothing gains more than its time there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from traceflops.errors import UsageError
from traceflops.findings.case import limit, share_of_window
from traceflops.findings.device_work import exposed_communication, matrix_rate, memory_bandwidth
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
from traceflops.findings.idle_causes import idle_causes
from traceflops.findings.late_rank import late_rank
from traceflops.findings.slow_link import slow_link
from traceflops.findings.trace_health import trace_health
from traceflops.findings.user_rules import Rule, more_rules
from traceflops.replay import parse_edit
from traceflops.table import is_one_of
from traceflops.units import percent

if TYPE_CHECKING:
    from traceflops.findings.case import Case
    from traceflops.replay import Outcome, Replay

RULES: Final[tuple[Rule, ...]] = (
    idle_causes,
    exposed_communication,
    late_rank,
    slow_link,
    memory_bandwidth,
    matrix_rate,
)
_TITLES: Final = {
    "loss-communication": "Exposed communication",
    "loss-idle": "Idle time",
    "loss-memory": "Memory work",
    "loss-inefficiency": "Compute below peak",
    "loss-recompute": "Recomputation",
    "loss-overcompute": "Work on masks and padding",
    "uneven-steps": "Uneven steps",
    "main-kernel": "One kernel takes most of the time",
}
_LEVELS: Final[tuple[Level, ...]] = ("high", "medium", "low")


@dataclass(frozen=True, slots=True)
class _Scales:
    """What gains are measured with: a replay or None with the reason, and the doubts of all."""

    replay: Replay | None
    refusal: str
    doubts: tuple[str, ...]
    strengths: tuple[str, ...]
    levels: Mapping[Severity, float]


@dataclass(frozen=True, slots=True)
class _Worth:
    """What a remedy gains, and why that is not sure."""

    gain: Gain | None
    mfu_after: MfuRange | None
    doubts: tuple[str, ...]


def diagnosed(case: Case) -> tuple[Finding, ...]:
    """Return what rules find, that with the largest gain first; then other findings by share."""
    silent = case.finding_rules.silent
    return tuple(one for one in _diagnosed(case) if one.rule not in silent)


def _diagnosed(case: Case) -> Iterator[Finding]:
    if not case.windows_used or case.on_host or case.recorded not in ("complete", "few missing"):
        yield from (*case.findings, *trace_health(case))
        return
    found = list(_causes(case))
    found.sort(key=lambda one: (-_expected(one), -one.share))
    causes = {one.rule for one in found}
    if all(one.priority == "low" for one in found):
        yield from _nothing(case)
    yield from found
    yield from (_titled(one) for one in case.findings if one.rule not in causes)
    yield from trace_health(case)


def _causes(case: Case) -> Iterator[Finding]:
    scales, rules = _scales(case), case.finding_rules
    for rule in (*RULES, *more_rules(rules)):
        for one in rule(case):
            found = _weighed(one, scales) if one.rule not in rules.silent else None
            if found is not None:
                yield found


def _expected(finding: Finding) -> int:
    return finding.gain.expected_ns if finding.gain is not None else -1


def _titled(finding: Finding) -> Finding:
    return replace(finding, title=_TITLES.get(finding.rule, finding.rule))


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
    return _Scales(replay, refusal, tuple(weak), tuple(strong), levels)


def _weighed(one: Candidate, scales: _Scales) -> Finding | None:
    """Return a finding with its gain, None where the critical path leaves too little of it."""
    replay = scales.replay
    if replay is None:
        return _finding(one, scales, _Worth(None, None, (scales.refusal,)))
    bound_ns = sum(part.ns for part in replay.critical if part.component in one.on_path)
    if not one.frees and one.on_path and bound_ns < scales.levels["low"] * replay.before_ns:
        return None
    try:
        return _finding(one, scales, _worth(one, replay))
    except UsageError as error:
        return _finding(one, scales, _bounded(bound_ns, replay, str(error)))


def _bounded(bound_ns: int, replay: Replay, why: str) -> _Worth:
    """Return that a remedy gains at most its time on the critical path, where that is known."""
    if not bound_ns:
        return _Worth(None, None, (why,))
    gain = Gain(0, -(-bound_ns // max(replay.windows, 1)), None)
    return _Worth(gain, None, (why, "the gain is at most its time on the critical path"))


def _worth(one: Candidate, replay: Replay) -> _Worth:
    """Return what the remedy gains. Raises UsageError where no edit stands for it."""
    if not one.edits:
        raise UsageError("no change of the recording stands for the remedy", "")
    before = _outcome(one.after, (), replay) if one.after else None
    whole = _outcome(one.after, one.edits, replay)
    part = _outcome(one.after, one.partly, replay) if one.partly else whole
    least, most = (before.least_ns, before.most_ns) if before else (whole.before_ns,) * 2
    point = before.after_ns if before else whole.before_ns
    is_sure = point is not None and whole.after_ns is not None and not one.partly
    windows = max(whole.windows, 1)
    gain = Gain(
        (least - max(whole.most_ns, part.most_ns)) // windows,
        -((min(whole.least_ns, part.least_ns) - most) // windows),
        round((point - whole.after_ns) / windows) if is_sure else None,  # type: ignore
    )
    doubts = tuple(f"on top of {text}" for text in one.after)
    return _Worth(gain, _mfu(gain, whole), (*doubts, *whole.doubts))


def _outcome(after: Sequence[str], edits: Sequence[str], replay: Replay) -> Outcome:
    """Return what edits do, without the first where the recording cannot answer it."""
    try:
        return replay.outcome([parse_edit(text) for text in (*after, *edits)], follow=False)
    except UsageError:
        if len(edits) < 2:
            raise
        return replay.outcome([parse_edit(text) for text in (*after, *edits[1:])], follow=False)


def _mfu(gain: Gain, outcome: Outcome) -> MfuRange | None:
    before = outcome.before_ns / max(outcome.windows, 1)
    if outcome.mfu is None or gain.high_ns >= before:
        return None
    return MfuRange(
        outcome.mfu * before / (before - gain.low_ns),
        outcome.mfu * before / (before - gain.high_ns),
    )


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
        mfu_after=found.mfu_after,
        confidence=Confidence(_LEVELS[min(unsure, 2)], (*scales.strengths, *doubts)),
        rows=one.rows,
        where=one.where,
    )


def _priority(gain: Gain | None, scales: _Scales) -> Severity:
    """Return the priority by the share of a step that is expected to be gained."""
    replay = scales.replay
    if gain is None or replay is None or not replay.before_ns:
        return "low"
    share = gain.expected_ns * replay.windows / replay.before_ns
    return next((name for name in _LEVELS if share >= scales.levels[name]), "low")


def _nothing(case: Case) -> Iterator[Finding]:
    """Return that nothing stands out, where the GPU is hardly idle or only communicating."""
    components = case.total.components
    share = share_of_window(case, components.idle_ns + components.communication_ns)
    if share > limit(case, "nothing-stands-out", "most_share"):
        return
    yield Finding(
        rule="nothing-stands-out",
        severity="low",
        sentence=(
            f"Nothing stands out: the run is within {percent(share)} of what its kernels allow."
        ),
        share=share,
        mfu_without=None,
        evidence=("components",),
        title="Nothing stands out",
    )
