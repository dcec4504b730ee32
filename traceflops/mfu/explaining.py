"""Why a published or logged MFU is what it is: the rule, peak and recomputation that reproduce it.

All conventions are tried with the stated peak, its 2:4 sparse double and other peaks, with and
without recomputation in the numerator, then the usual mistakes. What lies within the printed digits
cannot be told apart by its error, so there the simplest explanation comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from traceflops.errors import UsageError
from traceflops.mfu.card import ModelCard
from traceflops.mfu.conventions import CONVENTIONS, Convention
from traceflops.mfu.figures import percent
from traceflops.mfu.modelflops import obstacle
from traceflops.mfu.quantities import Reported
from traceflops.mfu.rates import Peak, Rate, raw_rate
from traceflops.mfu.run import FULL_CHECKPOINT, NO_CHECKPOINT, SELECTIVE, Checkpoint, Run
from traceflops.mfu.work import PUBLISHED, counted_by_nobody_knows_what

Metric = Literal["mfu", "hfu"]

SLACK = Fraction(1, 2000)
"""Relative error that the printed digits of inputs may make, besides those of the figure."""

SPARSE = 2
"""2:4 sparsity doubles the headline rate of a device."""

CUT_OFF = 1
"""Cost of supposing that the figure's last digit was cut off, not rounded."""

FARFETCHED = 5
"""Cost from which a candidate is called possible only: at least two things must be supposed."""

GPUS_PER_NODE = 8
MOST_NAMES = 3

TREATMENTS: tuple[tuple[str, Checkpoint], ...] = (
    ("with the blocks recomputed", replace(FULL_CHECKPOINT, scope="blocks")),
    ("with everything recomputed (4/3)", replace(FULL_CHECKPOINT, scope="all")),
    ("with attention recomputed", SELECTIVE),
    (
        "with attention's recomputation charged three times",
        Checkpoint("thrice", attention=Fraction(3)),
    ),
)
"""Recomputation that may be in a numerator."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to a figure: conventions that give it, the peak, and what else is in it.

    `error` is relative to the reported figure. `cost` says how much must be supposed: 0 nothing.
    """

    conventions: tuple[str, ...]
    peak: Peak
    treatment: str
    value: Fraction
    error: Fraction
    reproduces: bool
    cost: int

    @property
    def text(self) -> str:
        """Return the candidate in words."""
        first, *others = self.conventions
        same = f" (as {', '.join(others[:MOST_NAMES])})" if others else ""
        return f"{first}{same}{', ' * bool(self.treatment)}{self.treatment}, of {self.peak.text}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Ranked candidates for a reported figure, and the honest figure beside it."""

    reported: Reported
    candidates: tuple[Candidate, ...]
    honest: Rate

    @property
    def reproduced(self) -> tuple[Candidate, ...]:
        """Return the candidates that agree with the printed digits."""
        return tuple(one for one in self.candidates if one.reproduces)

    @property
    def sentence(self) -> str:
        """Return the verdict in one sentence."""
        best, said = self.candidates[0], percent(self.reported.value)
        if best.reproduces:
            others = len(self.reproduced) - 1
            more = f" ({others} less simple {'way' if others == 1 else 'ways'} to it)"
            verb = "is" if best.cost < FARFETCHED else "could be"
            return f"{said} {verb} {best.text}{more if others else ''}; {self._honest}."
        nearest = f"{best.text} gives {percent(best.value)}, {percent(best.error)} off"
        return f"Nothing known gives {said}; {nearest}; {self._honest}."

    @property
    def _honest(self) -> str:
        if self.honest.mfu > 1:
            return f"{self.honest.sentence} cannot be: time, tokens, devices or peak are wrong"
        return f"the honest figure is {self.honest.sentence}"


def explain(
    card: ModelCard,
    run: Run,
    reported: Reported,
    peak: Peak,
    others: Sequence[Peak] = (),
    metric: Metric = "mfu",
) -> Explanation:
    """Return what reproduces a reported figure, best first.

    `peak` is the stated one, `others` what may have been taken in its place: other data types,
    other devices. Raises UsageError where no convention can be computed.
    """
    search = _Search(card, run, reported, metric)
    found = _merged(search.candidates(peak, others))
    if not found:
        raise UsageError(
            "no convention can be computed from this description",
            "give batch, sequence length, time and a model card or its parameters",
        )
    honest = raw_rate(card, run, peak)
    return Explanation(reported, tuple(sorted(found, key=_rank)), honest)


def _rank(one: Candidate) -> tuple[Fraction, int, Fraction]:
    """Order by error, and where the digits cannot tell by how much must be supposed."""
    return (Fraction(0) if one.reproduces else one.error, one.cost, one.error)


def _merged(found: Iterator[Candidate]) -> list[Candidate]:
    """Return the candidates, those that the digits cannot tell apart as one, the best first in it.

    Only conventions are merged: peak and treatment stay apart.
    """
    groups: dict[tuple[Peak, str, Fraction | None], list[Candidate]] = {}
    for one in found:
        key = (one.peak, one.treatment, None if one.reproduces else one.value)
        groups.setdefault(key, []).append(one)
    return [_as_one(sorted(group, key=_rank)) for group in groups.values()]


def _as_one(group: list[Candidate]) -> Candidate:
    return replace(group[0], conventions=tuple(name for one in group for name in one.conventions))


@dataclass(frozen=True, slots=True)
class _Search:
    """Everything that is tried for one figure."""

    card: ModelCard
    run: Run
    reported: Reported
    metric: Metric

    def candidates(self, stated: Peak, others: Sequence[Peak]) -> Iterator[Candidate]:
        """Yield every combination."""
        for rule in self._rules():
            for treatment, checkpoint, cost in self._treatments(rule):
                run = replace(self.run, checkpoint=checkpoint or self.run.checkpoint)
                rate = raw_rate(self.card, run, stated, rule.id)
                value = rate.hfu if checkpoint is not None else rate.figure
                cost += self._oddity(rule)
                yield from self._peaks(rule, stated, others, treatment, value, cost)

    def _rules(self) -> Iterator[Convention]:
        """Yield what can be computed; of a rate counted who knows how, nothing but the division."""
        if counted_by_nobody_knows_what(self.run):
            yield CONVENTIONS[PUBLISHED]
            return
        for rule in CONVENTIONS.values():
            if obstacle(self.card, self.run, rule.id) is None:
                yield rule

    def _treatments(self, rule: Convention) -> Iterator[tuple[str, Checkpoint | None, int]]:
        """Yield what may be in the numerator: model work alone, or recomputation with it."""
        wants_hfu = self.metric == "hfu"
        yield "", None, int(wants_hfu and not rule.executed)
        if rule.executed or rule.id == PUBLISHED or self.run.forward_only:
            return
        if self.run.checkpoint != NO_CHECKPOINT:
            name = f"with its recomputation ({self.run.checkpoint.name})"
            yield name, self.run.checkpoint, 0 if wants_hfu else 1
        for name, checkpoint in TREATMENTS:
            yield name, checkpoint, 1 if wants_hfu else 2

    def _oddity(self, rule: Convention) -> int:
        """Return how unlikely a convention is for this run."""
        frozen, about_frozen = bool(self.run.frozen or self.run.lora), rule.frozen == "all"
        return 3 * rule.odd + rule.executed + (3 * about_frozen if not frozen else not about_frozen)

    def _peaks(
        self,
        rule: Convention,
        stated: Peak,
        others: Sequence[Peak],
        treatment: str,
        value: Fraction,
        cost: int,
    ) -> Iterator[Candidate]:
        yield self._one(rule, stated, treatment, value, cost)
        for peak, extra in _alternatives(stated, others):
            scaled = value * stated.flops_per_ns / peak.flops_per_ns
            yield self._one(rule, peak, treatment, scaled, cost + extra)
        if not treatment and rule.id != PUBLISHED:
            for mistake, factor, extra in self._mistakes():
                yield self._one(rule, stated, mistake, value * factor, cost + extra)

    def _mistakes(self) -> Iterator[tuple[str, Fraction, int]]:
        """Yield factors that come from miscounting; the least far-fetched cost the least."""
        yield "counting a multiply-add as one FLOP", Fraction(1, 2), 3
        yield "counting FLOPs twice", Fraction(2), 3
        shape, devices = self.run.shape(self.card), self.run.devices
        if shape.tokens != shape.slot_tokens:
            yield "of real tokens only", Fraction(shape.tokens, shape.slot_tokens), 1
        if devices > GPUS_PER_NODE:
            yield f"of {GPUS_PER_NODE} devices", Fraction(devices, GPUS_PER_NODE), 4
        if devices > 1:
            yield "of one device", Fraction(devices), 4
            yield "dividing by the devices twice", Fraction(1, devices), 4

    def _one(
        self, rule: Convention, peak: Peak, treatment: str, value: Fraction, cost: int
    ) -> Candidate:
        gap = value - self.reported.value
        slack = SLACK * self.reported.value
        rounded = abs(gap) <= self.reported.half_unit + slack
        cut = -slack <= gap < 2 * self.reported.half_unit + slack
        error = abs(gap) / self.reported.value
        found = Candidate((rule.id,), peak, treatment, value, error, rounded or cut, cost)
        return found if rounded or not cut else replace(found, cost=cost + CUT_OFF)


def _alternatives(stated: Peak, others: Sequence[Peak]) -> Iterator[tuple[Peak, int]]:
    """Yield peaks that may have been used instead, and what it costs to suppose so."""
    yield _sparse(stated), 2
    for other in others:
        for peak, cost in ((other, 3), (_sparse(other), 5)):
            if peak.flops_per_ns not in (stated.flops_per_ns, SPARSE * stated.flops_per_ns):
                yield peak, cost


def _sparse(peak: Peak) -> Peak:
    label = peak.label.replace("dense", "sparse")
    return Peak(peak.flops_per_ns * SPARSE, label if label != peak.label else f"{label} sparse")
