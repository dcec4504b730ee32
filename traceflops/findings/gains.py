"""What remedies gain: by replay, or at most their time on the critical path where it cannot tell.

Gains are bounded by time on the critical path: what is not on it is not replayed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from traceflops.attribution.culprits import BESIDE, CALLS_BESIDE
from traceflops.errors import UsageError
from traceflops.facts import Fact, fact
from traceflops.findings.case import limit, without_work_ns
from traceflops.findings.device_work import KERNELS
from traceflops.findings.finding import (
    Cause,
    Confidence,
    Finding,
    Gain,
    Level,
    MfuRange,
    Severity,
    severity_of,
)
from traceflops.findings.idle_causes import rule_of_idle
from traceflops.remedies import remedy
from traceflops.replay.edits import parse_edit
from traceflops.table.columns import is_one_of

if TYPE_CHECKING:
    from traceflops.findings.case import Case
    from traceflops.mfu.budget import ShareRange
    from traceflops.replay.critical_path import PathPart
    from traceflops.replay.what_if import Outcome, Replay

_LEVELS: Final[tuple[Level, ...]] = ("high", "medium", "low")
_MOST_ASKED: Final = 120
"""Characters of edits that are told; those that list many names are not."""
_OF_GPU: Final = KERNELS | {"communication", "other", "graph"}
_INFERRED: Final = "doubt.inferred"
_HARDLY: Final = 0.1
"""A stream without work for a smaller share is hardly ever without."""
_UNEXPLAINED: Final = "doubt.unexplained"
_SHOWS_TIME: Final = frozenset({"idle", "kernels", "communication"})
"""Sections that show the time of a cause, which its share is of."""
_ON_GPU: Final = ("kernel:", "communication", "rank ", "recompute")
"""Components of the critical path that are work of the GPU, and edits that change it."""


class Scales(Struct, frozen=True):
    """What gains are measured with: a replay or None with the reason, and the doubts of all.

    `step_ns` is the mean of the chosen windows, `idle_ns` how much of it the busiest stream is
    without work: the most that faster host code gains. `alone_ns` is the exposed communication of
    the device with least of it: the most that hiding it gains. `mfu` is as recorded.
    """

    replay: Replay | None
    refusal: Fact
    step_ns: float
    windows: int
    least_sure: float
    idle_ns: int
    alone_ns: int
    mfu: ShareRange | None
    doubts: tuple[Fact, ...]
    strengths: tuple[Fact, ...]
    levels: Mapping[Severity, float]


class Worth(Struct, frozen=True):
    """What a remedy gains, and why that is not sure.

    `is_widest` says whether these doubts make the range wider than what the remedy may leave.
    """

    gain: Gain | None
    doubts: tuple[Fact, ...]
    is_widest: bool = True
    edits: tuple[str, ...] = ()


def scales_of(case: Case) -> Scales:
    """Return what the gains of a recording are measured with."""
    replay, refusal = case.replay_or_reason
    weak: list[Fact] = []
    strong: list[Fact] = []
    if case.prepared is not None:
        marks = case.prepared.trace.marks
        if is_one_of(marks["kind"], "python").any():
            strong.append(fact("strength.stacks"))
        elif remedy(case, "stacks") is not None:
            weak.append(fact("doubt.no-stacks"))
    if len(case.steps.used) < 2:
        weak.append(fact("doubt.one-step" if case.steps.used else "doubt.no-steps"))
    else:
        strong.append(fact("strength.steps", count=len(case.steps.used)))
    levels: dict[Severity, float] = {name: limit(case, "priority", name) for name in _LEVELS}
    step_ns = case.total.components.window_ns / case.windows_used
    # The exposed communication of a window, on the device where that is least
    least_exposed_ns = min(
        device.chosen.components.communication_ns // used
        for device in case.devices
        if (used := sum(window.used for window in device.windows))
    )
    return Scales(
        replay,
        fact("doubt.refused", why=refusal),
        step_ns,
        case.windows_used,
        limit(case, "priority", "least_sure"),
        without_work_ns(case) // case.windows_used,
        least_exposed_ns,
        case.measured.mfu_range,
        tuple(weak),
        tuple(strong),
        levels,
    )


def weighed(cause: Cause, scales: Scales) -> Finding | None:
    """Return a finding with its gain, None where the critical path leaves too little of it."""
    replay, least = scales.replay, scales.levels["low"]
    if cause.gain is not None:
        is_enough = cause.gain.high_ns >= least * scales.step_ns
        told = cause.gain.narrowed(scales.least_sure * scales.step_ns)
        return _finding(cause, scales, Worth(told, ())) if is_enough else None
    if not (cause.edits or cause.on_path) and cause.doubts:
        return _finding(cause, scales, Worth(None, ()))  # it says itself why no gain is told
    if replay is None:
        bounded = _unreplayed(cause, scales)
        is_little = bounded.gain is not None and bounded.gain.high_ns < least * scales.step_ns
        return None if is_little else _finding(cause, scales, bounded)
    bound_ns = sum(part.ns for part in replay.critical if _is_of(cause, part))
    least_ns = least * replay.before_ns
    if not cause.frees and cause.on_path and bound_ns < least_ns:
        beside = _beside_host(cause, replay, scales)
        return None if beside is None else _finding(cause, scales, beside)
    if not cause.frees and _is_of_host(cause) and scales.idle_ns < least * scales.step_ns:
        return None
    why = fact("doubt.no-edit")
    worth: Worth | None = None
    if cause.edits:
        try:
            worth = _worth(cause, replay)
        except UsageError as error:
            why = fact("doubt.refused", why=error.reason)
    if worth is None:
        worth = _bounded(_own_ns(cause, replay) or bound_ns, replay, why)
    elif worth.gain and cause.on_path and not (cause.frees or cause.kernels):
        most_ns = -(-bound_ns // max(replay.windows, 1))
        gain = worth.gain.capped(most_ns)
        if any(doubt.code == _UNEXPLAINED for doubt in worth.doubts):
            gain = replace(gain, high_ns=most_ns, point_ns=None)  # what it holds up may move, too
        worth = replace(worth, gain=gain)
    if worth.gain and _is_of_host(cause):
        worth = replace(worth, gain=worth.gain.capped(scales.idle_ns))
    cause, worth = _direct(cause, worth, scales)
    if not cause.frees and worth.gain and worth.gain.high_ns * replay.windows < least_ns:
        beside = _beside_host(cause, replay, scales)
        return None if beside is None else _finding(cause, scales, beside)
    return _finding(cause, scales, worth)


def _direct(cause: Cause, worth: Worth, scales: Scales) -> tuple[Cause, Worth]:
    """Return a gain of at most the time of the cause itself; what is more is said apart.

    No wide range is told of any cause, also where no section shows its time.
    """
    gain, share_ns = worth.gain, cause.share * scales.step_ns
    least_ns = scales.least_sure * scales.step_ns
    if gain is None:
        return cause, worth
    if not _SHOWS_TIME.intersection(cause.evidence[:1]):
        return cause, replace(worth, gain=gain.narrowed(least_ns))
    direct_ns = share_ns if cause.direct_ns is None else cause.direct_ns / scales.windows
    further_ns, is_sure = gain.high_ns - math.ceil(direct_ns), gain.low_ns > 0
    gain = gain.capped(math.ceil(direct_ns)).narrowed(least_ns)
    if is_sure and further_ns >= least_ns:
        cause = replace(
            cause, details=(*cause.details, fact("finding.further", further_ns=further_ns))
        )
    return cause, replace(worth, gain=replace(gain, further_ns=max(further_ns, 0)))


def _unreplayed(cause: Cause, scales: Scales) -> Worth:
    """Return what a remedy gains at most where nothing is replayed.

    That is known of communication: no step gets shorter than the rest of what any device has; and
    of kernels: by what the remedy takes off them.
    """
    if cause.kernels and cause.direct_ns is not None:
        return Worth(Gain(0, cause.direct_ns // scales.windows, None), (scales.refusal,))
    if cause.on_path != {"communication"}:
        return Worth(None, (scales.refusal,))
    return Worth(Gain(0, scales.alone_ns, None), (scales.refusal, fact("doubt.least-exposed")))


def _beside_host(cause: Cause, replay: Replay, scales: Scales) -> Worth | None:
    """Return what kernels off the critical path gain at most, None for nothing.

    Unrecorded host code and calls on the path may wait for them while they run; any host work may
    where the busiest stream is hardly ever without work.
    """
    if not cause.kernels or cause.direct_ns is None:
        return None
    is_busy = scales.idle_ns < _HARDLY * scales.step_ns
    beside = frozenset({BESIDE, CALLS_BESIDE})
    beside_ns = sum(p.ns for p in replay.critical if is_busy or p.component in beside)
    most_ns = min(beside_ns // max(replay.windows, 1), cause.direct_ns // scales.windows)
    if most_ns < scales.levels["low"] * scales.step_ns:
        return None
    return Worth(Gain(0, most_ns, None), (fact("doubt.beside-host"),))


def _is_of_host(cause: Cause) -> bool:
    """Return whether the remedy is known to leave the work of the GPU as it is."""
    is_known = bool(cause.edits or cause.on_path)
    changed = any(text.startswith(_ON_GPU) for text in cause.edits)
    return is_known and not changed and cause.on_path.isdisjoint(_OF_GPU)


def _own_ns(cause: Cause, replay: Replay) -> int:
    """Return what a class of idle time itself has of the critical path, 0 for other rules."""
    rules = {cause.rule, *cause.joins}
    return sum(p.ns for p in replay.critical if rule_of_idle(p.component, p.name) in rules)


def _is_of(cause: Cause, part: PathPart) -> bool:
    of_kernels = cause.kernels and part.component in KERNELS
    named = not of_kernels or part.name in cause.kernels
    return part.component in cause.on_path and named


def _bounded(bound_ns: int, replay: Replay, why: Fact) -> Worth:
    """Return that a remedy gains at most its time on the critical path, where that is known."""
    if not bound_ns:
        return Worth(None, (why,))
    gain = Gain(0, -(-bound_ns // max(replay.windows, 1)), None)
    return Worth(gain, (why, fact("doubt.on-path")))


def _worth(cause: Cause, replay: Replay) -> Worth:
    """Return what the remedy gains. Raises UsageError where the recording cannot tell."""
    whole = _outcome(cause.edits, replay)
    now_ns, after_ns = whole.before_ns, None if cause.partly else whole.after_ns
    is_told = (
        not cause.partly or whole.most_ns >= now_ns
    )  # then what does less may gain nothing, too
    part = whole if is_told else _outcome(cause.partly, replay)
    windows = max(whole.windows, 1)
    gain = Gain(
        max(0, (now_ns - max(whole.most_ns, part.most_ns)) // windows),
        max(0, -((min(whole.least_ns, part.least_ns) - now_ns) // windows)),
        None if after_ns is None else round((now_ns - after_ns) / windows),
    )
    left_ns = max(part.least_ns - whole.least_ns, part.most_ns - whole.most_ns)
    asked = whole.edits if sum(map(len, whole.edits)) <= _MOST_ASKED else ()
    return Worth(gain, whole.doubts, whole.most_ns - whole.least_ns >= left_ns, asked)


def _outcome(edits: Sequence[str], replay: Replay) -> Outcome:
    """Return what edits do, without the first where the recording cannot answer it."""
    try:
        return replay.outcome([parse_edit(text) for text in edits])
    except UsageError:
        if len(edits) < 2:
            raise
        return replay.outcome([parse_edit(text) for text in edits[1:]])


def _mfu(gain: Gain | None, scales: Scales) -> MfuRange | None:
    if gain is None or scales.mfu is None:
        return None
    least, most = (scales.step_ns - ns for ns in (gain.high_ns, gain.low_ns))
    after = scales.mfu.after(scales.step_ns, least, most)
    return MfuRange(float(after.least), float(after.most)) if after is not None else None


def _finding(cause: Cause, scales: Scales, worth: Worth) -> Finding:
    """Return a cause as a finding with its gain, priority, MFU afterwards and confidence."""
    gain = worth.gain
    own = (*worth.doubts, *cause.doubts) if worth.is_widest else (*cause.doubts, *worth.doubts)
    general = scales.doubts
    if cause.kernels and 2 * (cause.direct_ns or 0) > scales.step_ns * scales.windows:
        # Kernels that are recorded have most of the time
        own, general = tuple(doubt for doubt in own if doubt.code != _INFERRED), ()
    doubts = (*own, *general)
    is_wide = gain is None or 2 * (gain.high_ns - gain.low_ns) > gain.high_ns
    unsure = len(general) + max(len(own), is_wide)  # own doubts tell why it is wide
    return Finding(
        rule=cause.rule,
        severity=severity_of(cause.share) or "low",
        share=cause.share,
        name=cause.name,
        claim=cause.claim,
        details=cause.details,
        advice=cause.advice,
        evidence=cause.evidence,
        priority=_priority(gain, scales),
        owner=cause.owner,
        gain=gain,
        mfu_after=_mfu(gain, scales),
        confidence=Confidence(_LEVELS[min(unsure, 2)], doubts or scales.strengths),
        rows=cause.rows,
        where=cause.where,
        edits=worth.edits,
    )


def _priority(gain: Gain | None, scales: Scales) -> Severity:
    """Return the priority by the share of a step that is expected to be gained."""
    share = gain.expected_ns / scales.step_ns if gain is not None and scales.step_ns else 0.0
    return next((name for name in _LEVELS if share >= scales.levels[name]), "low")
