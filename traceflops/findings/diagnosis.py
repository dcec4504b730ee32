"""What to fix first: what rules say of a recording, with the gain of each by replay.

Only what the critical path leaves standing is replayed: nothing gains more than its time there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from traceflops.errors import UsageError
from traceflops.findings.case import limit, share_of_window, thresholds
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
from traceflops.replay import parse_edit
from traceflops.table import is_one_of
from traceflops.units import percent

if TYPE_CHECKING:
    from traceflops.findings.case import Case
    from traceflops.replay import Outcome, Replay

Rule = Callable[["Case"], Iterator[Candidate]]
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
_LEVELS: Final[tuple[Level, ...]] = ("high", "medium", "low")


@dataclass(frozen=True, slots=True)
class _Scales:
    """What gains are measured with: a replay or None with the reason, and the doubts of all."""

    replay: Replay | None
    refusal: str
    doubts: tuple[str, ...]
    strengths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Worth:
    """What a remedy gains, and why that is not sure."""

    gain: Gain | None
    mfu_after: MfuRange | None
    doubts: tuple[str, ...]


def diagnosed(case: Case) -> tuple[Finding, ...]:
    """Return what rules find, that with the largest gain first; then other findings by share."""
    if not case.windows_used or case.on_host or case.recorded not in ("complete", "few missing"):
        return (*case.findings, *trace_health(case))
    scales = _scales(case)
    found = [one for rule in RULES for each in rule(case) if (one := _weighed(each, scales))]
    found = reasons_first(found)
    causes = {one.rule for one in found}
    others = [_titled(one) for one in case.findings if one.rule not in causes]
    healthy = _nothing(case) if all(one.priority == "low" for one in found) else ()
    return (*healthy, *found, *others, *trace_health(case))


def reasons_first(found: Sequence[Finding]) -> list[Finding]:
    """Return findings by gain; what says only that work is slow follows what says why.

    That is, reasons that gain at least half as much.
    """

    def key(one: Finding) -> tuple[int, float]:
        gain = _expected(one)
        reasons = (_expected(each) for each in found if each.rule in _REASONS.get(one.rule, ()))
        return -min([gain, *(ns - 1 for ns in reasons if 2 * ns >= gain)]), -one.share

    return sorted(found, key=key)


def _expected(finding: Finding) -> int:
    return finding.gain.expected_ns if finding.gain is not None else -1


def _titled(finding: Finding) -> Finding:
    return replace(finding, title=_TITLES.get(finding.rule, finding.rule))


def _scales(case: Case) -> _Scales:
    replay, refusal = None, "single ranks are not in summaries"
    try:
        replay = case.replay
        if replay is not None:
            replay.check()
    except UsageError as error:
        replay, refusal = None, str(error)
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
    return _Scales(replay, refusal, tuple(weak), tuple(strong))


def _weighed(one: Candidate, scales: _Scales) -> Finding | None:
    """Return a finding with its gain, None where the critical path leaves too little of it."""
    replay = scales.replay
    if replay is None:
        return _finding(one, scales, _Worth(None, None, (scales.refusal,)))
    bound_ns = sum(part.ns for part in replay.critical if part.component in one.on_path)
    if not one.frees and one.on_path and bound_ns < limit("priority", "low") * replay.before_ns:
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
        return replay.outcome([parse_edit(text) for text in (*after, *edits)])
    except UsageError:
        if len(edits) < 2:
            raise
        return replay.outcome([parse_edit(text) for text in (*after, *edits[1:])])


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
        priority=_priority(gain, scales.replay),
        owner=one.owner,
        remedy=one.remedy,
        gain=gain,
        mfu_after=found.mfu_after,
        confidence=Confidence(_LEVELS[min(unsure, 2)], (*scales.strengths, *doubts)),
        rows=one.rows,
        where=one.where,
    )


def _priority(gain: Gain | None, replay: Replay | None) -> Severity:
    """Return the priority by the share of a step that is expected to be gained."""
    if gain is None or replay is None or not replay.before_ns:
        return "low"
    share = gain.expected_ns * replay.windows / replay.before_ns
    levels = thresholds()["priority"]
    return next((name for name in _LEVELS if share >= levels[name]), "low")


def _nothing(case: Case) -> tuple[Finding, ...]:
    """Return that nothing stands out, where the GPU is hardly idle or only communicating."""
    components = case.total.components
    share = share_of_window(case, components.idle_ns + components.communication_ns)
    if share > limit("nothing-stands-out", "most_share"):
        return ()
    allowed = f"The run is within {percent(share)} of what its kernels allow."
    return (
        Finding(
            rule="nothing-stands-out",
            severity="low",
            sentence=f"Nothing stands out: {allowed[0].lower()}{allowed[1:]}",
            share=share,
            mfu_without=None,
            evidence=("components",),
            title="Nothing stands out",
        ),
    )
