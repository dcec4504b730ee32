"""What remedies gain: by replay, or at most their time on the critical path where it cannot tell.

Only what the critical path leaves standing is replayed: nothing gains more than its time there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from traceflops.errors import UsageError
from traceflops.findings.case import is_torch, limit, without_work_ns
from traceflops.findings.device_work import KERNELS
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
from traceflops.findings.idle_causes import cause_of
from traceflops.remedies import remedy
from traceflops.replay import parse_edit
from traceflops.table import is_one_of
from traceflops.units import several

if TYPE_CHECKING:
    from traceflops.findings.case import Case
    from traceflops.mfu import ShareRange
    from traceflops.replay import Outcome, PathPart, Replay

_LEVELS: Final[tuple[Level, ...]] = ("high", "medium", "low")
_AT_MOST: Final = "the gain is at most what the rank with least of it has exposed"
_MOST_ASKED: Final = 120
"""Characters of edits that are told; those that list many names are not."""
_OF_GPU: Final = KERNELS | {"communication", "other", "graph"}
_ON_GPU: Final = ("kernel:", "communication", "rank ", "recompute")
"""Components of the critical path that are work of the GPU, and edits that change it."""


@dataclass(frozen=True, slots=True)
class Scales:
    """What gains are measured with: a replay or None with the reason, and the doubts of all.

    `step_ns` is the mean of the chosen windows, `idle_ns` how much of it the busiest stream is
    without work: the most that faster host code gains. `alone_ns` is the exposed communication of
    the device with least of it: the most that hiding it gains. `mfu` is as recorded, `is_torch`
    whose code launches.
    """

    replay: Replay | None
    refusal: str
    step_ns: float
    idle_ns: int
    alone_ns: int
    mfu: ShareRange | None
    doubts: tuple[str, ...]
    strengths: tuple[str, ...]
    levels: Mapping[Severity, float]
    is_torch: bool


@dataclass(frozen=True, slots=True)
class Worth:
    """What a remedy gains, and why that is not sure.

    `is_widest` says whether these doubts make the range wider than what the remedy may leave.
    """

    gain: Gain | None
    doubts: tuple[str, ...]
    is_widest: bool = True
    edits: tuple[str, ...] = ()


def scales_of(case: Case) -> Scales:
    """Return what the gains of a recording are measured with."""
    replay, refusal = case.replay_or_reason
    weak: list[str] = []
    strong: list[str] = []
    if case.prepared is not None:
        marks = case.prepared.trace.marks
        if is_one_of(marks["kind"], "python").any():
            strong.append("the recording has Python stacks")
        elif remedy(case, "stacks") is not None:
            weak.append("the recording has no Python stacks")
    if len(case.steps.used) < 2:
        weak.append("there is only one step" if case.steps.used else "there are no steps")
    else:
        strong.append(f"there are {several(len(case.steps.used), 'step')}")
    levels: dict[Severity, float] = {name: limit(case, "priority", name) for name in _LEVELS}
    step_ns = case.total.components.window_ns / case.windows_used
    return Scales(
        replay,
        refusal,
        step_ns,
        without_work_ns(case) // case.windows_used,
        _least_exposed_ns(case),
        case.measured.mfu_range,
        tuple(weak),
        tuple(strong),
        levels,
        is_torch(case),
    )


def _least_exposed_ns(case: Case) -> int:
    """Return the exposed communication of a window, on the device where that is least."""
    return min(
        device.chosen.components.communication_ns // used
        for device in case.devices
        if (used := sum(window.used for window in device.windows))
    )


def weighed(one: Candidate, scales: Scales) -> Finding | None:
    """Return a finding with its gain, None where the critical path leaves too little of it."""
    replay, least = scales.replay, scales.levels["low"]
    if one.gain is not None:
        is_enough = one.gain.high_ns >= least * scales.step_ns
        return _finding(one, scales, Worth(one.gain, ())) if is_enough else None
    if not (one.edits or one.on_path) and one.doubts:
        return _finding(one, scales, Worth(None, ()))  # it says itself why no gain is told
    if replay is None:
        worth = _unreplayed(one, scales)
        is_little = worth.gain is not None and worth.gain.high_ns < least * scales.step_ns
        return None if is_little else _finding(one, scales, worth)
    bound_ns = sum(part.ns for part in replay.critical if _is_of(one, part))
    least_ns = least * replay.before_ns
    if not one.frees and one.on_path and bound_ns < least_ns:
        return None
    if not one.frees and _is_of_host(one) and scales.idle_ns < least * scales.step_ns:
        return None
    try:
        worth = _worth(one, replay)
        if worth.gain and one.on_path and not (one.frees or one.kernels):
            most_ns = -(-bound_ns // max(replay.windows, 1))
            worth = replace(worth, gain=worth.gain.capped(most_ns))
    except UsageError as error:
        why = str(error).rpartition("': ")[2]
        worth = _bounded(_own_ns(one, replay) or bound_ns, replay, why)
    if worth.gain and _is_of_host(one):
        worth = replace(worth, gain=worth.gain.capped(scales.idle_ns))
    too_small = not one.frees and worth.gain and worth.gain.high_ns * replay.windows < least_ns
    return None if too_small else _finding(one, scales, worth)


def _unreplayed(one: Candidate, scales: Scales) -> Worth:
    """Return what a remedy gains at most where nothing is replayed.

    That is known of communication: no step gets shorter than the rest of what any device has.
    """
    if one.on_path != {"communication"}:
        return Worth(None, (scales.refusal,))
    return Worth(Gain(0, scales.alone_ns, None), (scales.refusal, _AT_MOST))


def _is_of_host(one: Candidate) -> bool:
    """Return whether the remedy is known to leave the work of the GPU as it is."""
    is_known = bool(one.edits or one.on_path)
    changed = any(text.startswith(_ON_GPU) for text in one.edits)
    return is_known and not changed and one.on_path.isdisjoint(_OF_GPU)


def _own_ns(one: Candidate, replay: Replay) -> int:
    """Return what a class of idle time itself has of the critical path, 0 for other rules."""
    own = one.rule.replace("-", "_")
    return sum(part.ns for part in replay.critical if cause_of(part.component, part.name) == own)


def _is_of(one: Candidate, part: PathPart) -> bool:
    of_kernels = one.kernels and part.component in KERNELS
    named = not of_kernels or part.name in one.kernels
    return part.component in one.on_path and named


def _bounded(bound_ns: int, replay: Replay, why: str) -> Worth:
    """Return that a remedy gains at most its time on the critical path, where that is known."""
    if not bound_ns:
        return Worth(None, (why,))
    gain = Gain(0, -(-bound_ns // max(replay.windows, 1)), None)
    return Worth(gain, (why, "the gain is at most its time on the critical path"))


def _worth(one: Candidate, replay: Replay) -> Worth:
    """Return what the remedy gains. Raises UsageError where no edit stands for it."""
    if not one.edits:
        raise UsageError("the remedy cannot be replayed", "")
    whole = _outcome(one.edits, replay)
    now_ns, after_ns = whole.before_ns, None if one.partly else whole.after_ns
    is_told = not one.partly or whole.most_ns >= now_ns  # then what does less may gain nothing, too
    part = whole if is_told else _outcome(one.partly, replay)
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
    found = scales.mfu.after(scales.step_ns, least, most)
    return MfuRange(float(found.least), float(found.most)) if found is not None else None


def _finding(one: Candidate, scales: Scales, found: Worth) -> Finding:
    gain = found.gain
    own = (*found.doubts, *one.doubts) if found.is_widest else (*one.doubts, *found.doubts)
    doubts = (*own, *scales.doubts)
    is_wide = gain is None or 2 * (gain.high_ns - gain.low_ns) > gain.high_ns
    unsure = len(scales.doubts) + max(len(own), is_wide)  # own doubts tell why it is wide
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
        confidence=Confidence(_LEVELS[min(unsure, 2)], doubts or scales.strengths),
        rows=one.rows,
        where=one.where,
        edits=found.edits,
    )


def _priority(gain: Gain | None, scales: Scales) -> Severity:
    """Return the priority by the share of a step that is expected to be gained."""
    share = gain.expected_ns / scales.step_ns if gain is not None and scales.step_ns else 0.0
    return next((name for name in _LEVELS if share >= scales.levels[name]), "low")
