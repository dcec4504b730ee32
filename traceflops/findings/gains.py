"""What remedies gain: by replay or, if that cannot tell, at most their time on the critical path.

A window here is a chosen step, or all the chosen time of a recording without steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from traceflops.attribution.culprits import BESIDE, CALLS_BESIDE
from traceflops.errors import UsageError
from traceflops.facts import Fact, fact
from traceflops.findings.case import Case, limit, without_work_ns
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
from traceflops.findings.many_operators import is_one_pass
from traceflops.mfu.budget import ShareRange
from traceflops.remedies import remedy
from traceflops.replay.edits import parse_edit
from traceflops.replay.what_if import Outcome, Replay
from traceflops.table.columns import is_one_of
from traceflops.timeline.records import Account

_LEVELS: Final[tuple[Level, ...]] = ("high", "medium", "low")
_MOST_ASKED: Final = 120  # longer edits, which list many names, are not shown; in characters
_OF_GPU: Final = KERNELS | {"communication", "other", "graph"}
ONE_PASS: Final = "doubt.one-pass"
_INFERRED: Final = "doubt.inferred"
_HARDLY: Final = 0.1
"""A stream that lacks work for less than this share of the time is taken as always busy."""
_UNEXPLAINED: Final = "doubt.unexplained"
_ON_GPU: Final = ("kernel:", "communication", "rank ", "recompute")
"""Components of the critical path that are work of the GPU, and edits that change it."""


class GainBasis(Struct, frozen=True):
    """What the gains of one recording are measured with.

    `refusal` says why there is no replay. `step_ns` is the mean length of the `windows`, in which
    the busiest stream lacks work for `idle_ns`: the most that faster host code gains. `alone_ns` is
    the exposed communication of the device with least of it: the most that hiding it gains. `mfu`
    is that of the recording. `doubts` and `strengths` hold for all findings. `levels` are the least
    shares of a step for each priority, `least_sure` that of a lower bound worth telling.
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


class GainEstimate(Struct, frozen=True):
    """What a remedy gains, the doubts about that, further details, and the edits to show.

    `is_widest` tells whether doubts widen the range more than the lesser remedy does.
    """

    gain: Gain | None
    doubts: tuple[Fact, ...]
    is_widest: bool = True
    edits: tuple[str, ...] = ()
    details: tuple[Fact, ...] = ()


def gain_basis(case: Case) -> GainBasis:
    """Return what the gains of a recording are measured with."""
    replay, refusal = case.replay_or_reason
    weak: list[Fact] = []
    strong: list[Fact] = []
    if is_one_of(case.prepared.trace.marks["kind"], "python").any():
        strong.append(fact("strength.stacks"))
    elif case.has_events and remedy(case, "stacks") is not None:  # the format can record them
        weak.append(fact("doubt.no-stacks"))
    if not case.steps.used:
        one = is_one_pass(case)
        weak = [fact(ONE_PASS), *weak] if one else [*weak, fact("doubt.no-steps")]
    elif len(case.steps.used) == 1:
        weak.append(fact("doubt.one-step"))
    else:
        strong.append(fact("strength.steps", count=len(case.steps.used)))
    levels: dict[Severity, float] = {name: limit(case, "priority", name) for name in _LEVELS}
    step_ns = case.total.components.window_ns / case.windows_used
    # Hiding communication saves each device its own exposed time, and communication itself stays:
    # all devices together save no more than the one with the least.
    alone_ns = min(
        _hideable_ns(device.chosen) // used
        for device in case.devices
        if (used := sum(window.used for window in device.windows))
    )
    return GainBasis(
        replay,
        fact("doubt.refused", why=refusal),
        step_ns,
        case.windows_used,
        limit(case, "priority", "least_sure"),
        without_work_ns(case) // case.windows_used,
        alone_ns,
        case.measured.mfu_range,
        tuple(weak),
        tuple(strong),
        levels,
    )


def _hideable_ns(chosen: Account) -> int:
    """Return how much shorter a device's time is if all else runs beside its communication."""
    exposed_ns = chosen.components.communication_ns
    rest_ns = chosen.components.window_ns - exposed_ns - chosen.hidden_communication_ns
    return min(exposed_ns, rest_ns)


def weighed(cause: Cause, basis: GainBasis) -> Finding | None:
    """Return a cause as a finding with its gain, None if the gain is too little to be told.

    Every gain is bounded here, by the time of its cause (see `_direct`).
    """
    replay = basis.replay if cause.gain is None else None
    estimate = _direct(cause, _estimate(cause, replay, basis), basis)
    if estimate is None or estimate.gain is None:
        return _finding(cause, basis, estimate) if estimate is not None else None
    is_little = estimate.gain.high_ns < basis.levels["low"] * basis.step_ns
    if is_little and not (replay and cause.frees):
        estimate = _beside_host(cause, replay, basis) if replay else None
    return _finding(cause, basis, estimate) if estimate is not None else None


def _estimate(cause: Cause, replay: Replay | None, basis: GainBasis) -> GainEstimate | None:
    """Return what a remedy gains, None if that is too little to be told.

    Without a replay, a remedy of kernels gains at most the time that it takes off them, and one of
    communication at most `basis.alone_ns`. The gain of all others is unknown.
    """
    if cause.gain is not None:
        return GainEstimate(cause.gain, ())
    if not (cause.edits or cause.on_path) and cause.doubts:
        return GainEstimate(None, ())  # the doubts of the cause say why no gain is told
    if replay is not None:
        return _replayed(cause, replay, basis)
    if cause.kernels and cause.direct_ns is not None:
        return GainEstimate(Gain(0, cause.direct_ns // basis.windows, None), (basis.refusal,))
    if cause.on_path == {"communication"}:
        doubts = (basis.refusal, fact("doubt.least-exposed"))
        return GainEstimate(Gain(0, basis.alone_ns, None), doubts)
    return GainEstimate(None, (basis.refusal,))


def _replayed(cause: Cause, replay: Replay, basis: GainBasis) -> GainEstimate | None:
    """Return what a remedy gains by replay, None if the gain is too little to be told.

    The time on the path is no bound if a remedy `frees` work from waiting: what waited moves, too.
    """
    # The cause's part of the critical path: its components; of kernels only those of its names
    bound_ns = sum(
        part.ns
        for part in replay.critical
        if part.component in cause.on_path
        and not (cause.kernels and part.component in KERNELS and part.name not in cause.kernels)
    )
    least_ns = basis.levels["low"] * replay.before_ns
    if not cause.frees and cause.on_path and bound_ns < least_ns:
        return _beside_host(cause, replay, basis)
    # A remedy of the host leaves the work of the GPU as it is.
    changes_gpu = any(text.startswith(_ON_GPU) for text in cause.edits)
    changes_gpu = changes_gpu or not cause.on_path.isdisjoint(_OF_GPU)
    is_of_host = bool(cause.edits or cause.on_path) and not changes_gpu
    # Faster host code gains nothing where the GPU hardly ever waits for it.
    if is_of_host and not cause.frees and basis.idle_ns < basis.levels["low"] * basis.step_ns:
        return None
    estimate = _edited(cause, replay, bound_ns)
    if estimate.gain and is_of_host:
        estimate = replace(estimate, gain=estimate.gain.capped(basis.idle_ns))
    return estimate


def _edited(cause: Cause, replay: Replay, bound_ns: int) -> GainEstimate:
    """Return what the edits of a cause gain, from the lesser remedy to the whole one.

    If replay cannot tell, it is at most the time of the cause on the critical path: that of its
    rules there or, if the path has none, `bound_ns`. Both are for all windows together.
    """
    # The path tells to which rule its idle time belongs; of other time, only the component.
    rules = {cause.rule, *cause.joins}
    own = (part.ns for part in replay.critical if rule_of_idle(part.component, part.name) in rules)
    path_ns = sum(own) or bound_ns
    if not cause.edits:
        return _bounded(path_ns, replay, fact("doubt.no-edit"))
    try:
        whole = part = _outcome(cause.edits, replay)
        # If even the whole remedy may gain nothing, the range begins at 0 without the lesser one.
        if cause.partly and whole.most_ns < whole.before_ns:
            part = _outcome(cause.partly, replay)
    except UsageError as error:
        return _bounded(path_ns, replay, fact("doubt.refused", why=error.reason))
    now_ns, windows = whole.before_ns, max(whole.windows, 1)
    after_ns = None if cause.partly else whole.after_ns  # between two remedies no figure is sure
    gain = Gain(
        max(0, (now_ns - max(whole.most_ns, part.most_ns)) // windows),
        max(0, -((min(whole.least_ns, part.least_ns) - now_ns) // windows)),  # rounded up
        None if after_ns is None else round((now_ns - after_ns) / windows),
    )
    # Edits of kernels by name change nothing else; other edits may change more than the cause.
    if cause.on_path and not cause.frees and not cause.kernels:
        most_ns = _per_window(bound_ns, replay)
        gain = gain.capped(most_ns)
        if any(doubt.code == _UNEXPLAINED for doubt in whole.doubts):
            # Replay leaves unexplained time as recorded, but it may depend on the cause.
            gain = replace(gain, high_ns=most_ns, point_ns=None)
    if cause.frees and cause.kernels and cause.direct_ns is not None:
        # Launches that the remedy removes may hold up the rest in the replay.
        high_ns = max(gain.high_ns, _per_window(cause.direct_ns, replay))
        gain = Gain(gain.low_ns, high_ns, None)
    left_ns = max(part.least_ns - whole.least_ns, part.most_ns - whole.most_ns)
    shown = whole.edits if sum(map(len, whole.edits)) <= _MOST_ASKED else ()
    return GainEstimate(gain, whole.doubts, whole.most_ns - whole.least_ns >= left_ns, shown)


def _direct(cause: Cause, estimate: GainEstimate | None, basis: GainBasis) -> GainEstimate | None:
    """Return an estimate without a wide range, with a gain of at most the time of the cause itself.

    What a replay gains beyond that time becomes a detail if it is sure and large.
    """
    if estimate is None or estimate.gain is None:
        return estimate
    gain, least_ns = estimate.gain, basis.least_sure * basis.step_ns
    direct_ns = cause.share * basis.step_ns
    if cause.direct_ns is not None:
        direct_ns = min(direct_ns, cause.direct_ns / basis.windows)
    most_ns = math.ceil(direct_ns)
    further_ns = gain.high_ns - most_ns
    is_told = cause.gain is None and gain.low_ns > 0 and further_ns >= least_ns
    return replace(
        estimate,
        gain=replace(gain.capped(most_ns).narrowed(least_ns), further_ns=max(further_ns, 0)),
        details=(fact("finding.further", further_ns=further_ns),) if is_told else (),
    )


def _beside_host(cause: Cause, replay: Replay, basis: GainBasis) -> GainEstimate | None:
    """Return what faster kernels off the critical path gain at most, None if that is too little.

    Unrecorded host code and calls on the path may really wait for kernels that run beside them. So
    may anything on the path if the busiest stream hardly ever lacks work.
    """
    if not cause.kernels or cause.direct_ns is None:
        return None
    is_busy = basis.idle_ns < _HARDLY * basis.step_ns
    waiting = (
        part.ns for part in replay.critical if is_busy or part.component in (BESIDE, CALLS_BESIDE)
    )
    most_ns = min(sum(waiting) // max(replay.windows, 1), cause.direct_ns // basis.windows)
    if most_ns < basis.levels["low"] * basis.step_ns:
        return None
    return GainEstimate(Gain(0, most_ns, None), (fact("doubt.beside-host"),))


def _bounded(bound_ns: int, replay: Replay, why: Fact) -> GainEstimate:
    """Return the estimate that a remedy gains at most `bound_ns`, its time on the path.

    The time is of all windows; if it is 0, the gain is unknown. The doubt `why` explains the bound.
    """
    if not bound_ns:
        return GainEstimate(None, (why,))
    return GainEstimate(Gain(0, _per_window(bound_ns, replay), None), (why, fact("doubt.on-path")))


def _per_window(time_ns: int, replay: Replay) -> int:
    """Return a time of all windows as the mean per window, rounded up."""
    return -(-time_ns // max(replay.windows, 1))


def _outcome(edits: Sequence[str], replay: Replay) -> Outcome:
    """Return what edits do together; without the first one if the recording cannot answer all.

    The main edits of a cause are its last ones. Raises UsageError if these have no answer either.
    """
    try:
        return replay.outcome([parse_edit(text) for text in edits])
    except UsageError:
        if len(edits) < 2:
            raise
        return replay.outcome([parse_edit(text) for text in edits[1:]])


def _finding(cause: Cause, basis: GainBasis, estimate: GainEstimate) -> Finding:
    """Return a cause as a finding with its gain, priority, MFU afterwards and confidence."""
    gain = estimate.gain
    # The doubts that explain most of the range come first.
    of_gain, of_cause = estimate.doubts, cause.doubts
    own = (*of_gain, *of_cause) if estimate.is_widest else (*of_cause, *of_gain)
    general = basis.doubts
    if cause.kernels and 2 * (cause.direct_ns or 0) > basis.step_ns * basis.windows:
        # Recorded kernels have most of the time: doubts about steps, stacks and host hardly matter.
        own, general = tuple(doubt for doubt in own if doubt.code != _INFERRED), ()
    doubts = (*own, *general)
    is_wide = gain is None or 2 * (gain.high_ns - gain.low_ns) > gain.high_ns
    # A wide range counts as a doubt unless own doubts already tell why it is wide.
    unsure = len(general) + max(len(own), is_wide)
    severity = severity_of(cause.share)
    if cause.direct_ns is not None and not cause.kernels:
        # While the GPU works, waiting costs nothing: only the idle time after the wait counts.
        direct = cause.direct_ns / (basis.step_ns * basis.windows)
        severity = severity_of(min(direct, cause.share))
    # The part of a step that is expected to be gained
    gained = gain.expected_ns / basis.step_ns if gain is not None and basis.step_ns else 0.0
    after: ShareRange | None = None
    if gain is not None and basis.mfu is not None:
        shortest_ns, longest_ns = basis.step_ns - gain.high_ns, basis.step_ns - gain.low_ns
        after = basis.mfu.after(basis.step_ns, shortest_ns, longest_ns)
    return replace(
        cause.as_finding(),
        severity=severity or "low",
        details=(*cause.details, *estimate.details),
        priority=next((name for name in _LEVELS if gained >= basis.levels[name]), "low"),
        owner=cause.owner,
        gain=gain,
        mfu_after=MfuRange(float(after.least), float(after.most)) if after is not None else None,
        confidence=Confidence(_LEVELS[min(unsure, 2)], doubts or basis.strengths),
        rows=cause.rows,
        where=cause.where,
        edits=estimate.edits,
    )
