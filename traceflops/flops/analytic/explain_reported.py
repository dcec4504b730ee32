"""Why a published or logged MFU is what it is: which rule, peak and recomputation reproduce it.

Every convention is tried with the stated peak, its 2:4 sparse double and other peaks, with and
without recomputation in the numerator, and with the usual mistakes. Candidates that fit the printed
digits are ranked by their number of assumptions, the others by error and assumptions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from traceflops.errors import UsageError
from traceflops.facts import Fact, Value, fact, in_words
from traceflops.flops.analytic.conventions import CONVENTIONS, Convention
from traceflops.flops.analytic.rates import PUBLISHED, Peak, Rate, is_of_unknown_basis, raw_rate
from traceflops.flops.analytic.run import FULL_CHECKPOINT, NO_CHECKPOINT, SELECTIVE, Checkpoint, Run
from traceflops.flops.analytic.run_flops import obstacle
from traceflops.flops.model.card import ModelCard
from traceflops.units import Reported, exact_percent

Metric = Literal["mfu", "hfu"]
SLACK = Fraction(1, 2000)
"""Relative error that rounded inputs may cause, besides that of the figure's own digits."""
SPARSE = 2  # 2:4 sparsity doubles the headline rate of a device
PER_COST = Fraction(1, 100)
"""The penalty, as a relative error, per unit of cost of a candidate that does not fit."""
CUT_OFF = 1  # cost of assuming that the figure's last digit was cut off, not rounded
FARFETCHED = 5
"""A candidate of at least this cost is only called possible: it needs two or more assumptions."""
LIKELY = 6  # a candidate of at most this cost is shown first
GPUS_PER_NODE = 8
MOST_NAMES = 3
CERTAIN = MOST_NAMES + 1  # if more conventions share a figure, it is only called possible
TREATMENTS: tuple[tuple[str, Checkpoint], ...] = (
    ("with the blocks recomputed", replace(FULL_CHECKPOINT, scope="blocks")),
    ("with everything recomputed (4/3)", replace(FULL_CHECKPOINT, scope="all")),
    ("with attention recomputed", SELECTIVE),
    (
        "with attention's recomputation charged three times",
        Checkpoint("thrice", attention=Fraction(3)),
    ),
)
"""Recomputation that may be in the numerator of a figure: in words, and what is recomputed."""


class Candidate(Struct, frozen=True):
    """One way to arrive at a figure: conventions, peak, and recomputation or mistake.

    `error` is relative to the reported figure; `cost` is the weighted sum of assumptions.
    `reproduces` is whether the value agrees with the printed digits.
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
        more = len(others) - MOST_NAMES
        names = ", ".join(others[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
        same = f" (as {names})" if others else ""
        return f"{first}{same}{', ' * bool(self.treatment)}{self.treatment}, of {self.peak.text}"


class Explanation(Struct, frozen=True):
    """Ranked candidates for a reported figure, and the honest figure by the default convention."""

    reported: Reported
    candidates: tuple[Candidate, ...]
    honest: Rate
    metric: Metric = "mfu"

    @property
    def likely(self) -> tuple[Candidate, ...]:
        """Return the candidates with few assumptions, else the best one."""
        likely = tuple(candidate for candidate in self.candidates if candidate.cost <= LIKELY)
        return likely or self.candidates[:1]

    @property
    def said(self) -> str:
        """Return the reported figure as a percentage; if ambiguous, as text and as it was read."""
        value = exact_percent(self.reported.value, self.reported.digits)
        return f"{self.reported.text} (read as {value})" if self.reported.ambiguous else value

    def shown(self, value: Fraction) -> str:
        """Return a share as text, with at least as many decimals as the figure."""
        usual = 1 if value >= Fraction(1, 10) else 2  # the decimals of `exact_percent`
        return exact_percent(value, self.reported.digits if self.reported.digits > usual else None)

    @property
    def verdict(self) -> Fact:
        """Return a fact on the best candidate and the honest figure."""
        best, rate = self.candidates[0], self.honest
        # A reported HFU is compared with the HFU; a published rate has no FLOPs to compute one.
        as_hfu = self.metric == "hfu" and rate.is_counted and not rate.is_hfu
        figure = rate.in_words("HFU") if as_hfu else rate.sentence
        if (rate.hfu if as_hfu else rate.figure) > 1:
            honest = fact("reported.impossible", figure=figure)
        elif not rate.is_counted:
            honest = fact("reported.published", figure=figure)
        else:
            honest = fact("reported.honest", figure=figure, mfu=rate.mfu if as_hfu else None)
        if not best.reproduces:
            value = self.shown(best.value)
            figures: dict[str, Value] = {"value": value, "error": best.error, "honest": honest}
            return fact("reported.nearest", said=self.said, best=best.text, **figures)
        certain = best.cost < FARFETCHED and len(best.conventions) <= CERTAIN
        others = sum(candidate.reproduces for candidate in self.candidates) - 1
        return fact(
            "reported.is" if certain else "reported.could-be",
            said=self.said,
            best=best.text,
            others=fact("reported.others", count=others) if others else None,
            honest=honest,
        )

    @property
    def sentence(self) -> str:
        """Return the verdict in words."""
        return in_words(self.verdict)


def explain(
    card: ModelCard,
    run: Run,
    reported: Reported,
    peak: Peak,
    others: Sequence[Peak] = (),
    metric: Metric = "mfu",
) -> Explanation:
    """Return the candidates that explain a reported figure, best first.

    `peak` is the stated one, `others` are peaks that may have been used by mistake. A figure that
    may be a share or a percentage is read in the way with the simpler explanation. Raises
    UsageError if no convention can be computed.
    """
    ways = [*_ways(card, run, peak, others, metric)]
    if not ways:
        hint = "give batch, sequence length, time, and a model card or parameter count"
        raise UsageError("this description does not allow any convention", hint)
    explanations = []
    for reading in filter(None, (reported, reported.percent)):
        # Per peak and treatment, all conventions whose figures fit the digits are one candidate, as
        # are those of an equal figure. The last digit may be rounded or cut off.
        groups: dict[tuple[Peak, str, Fraction | None], list[Candidate]] = {}
        slack = SLACK * reading.value
        for rule, used_peak, treatment, value, cost in ways:
            gap = value - reading.value
            fits_rounded = abs(gap) <= reading.half_unit + slack
            fits_cut = -slack <= gap < 2 * reading.half_unit + slack
            error, fits = abs(gap) / reading.value, fits_rounded or fits_cut
            total = cost + (CUT_OFF if fits_cut and not fits_rounded else 0)
            candidate = Candidate((rule,), used_peak, treatment, value, error, fits, total)
            key = (used_peak, treatment, None if fits else value)
            groups.setdefault(key, []).append(candidate)
        merged = []
        for group in groups.values():
            ranked = sorted(group, key=_rank)
            names = tuple(name for candidate in ranked for name in candidate.conventions)
            merged.append(replace(ranked[0], conventions=names))
        honest = raw_rate(card, run, peak)
        explanations.append(Explanation(reading, tuple(sorted(merged, key=_rank)), honest, metric))
    return min(explanations, key=lambda explanation: _rank(explanation.candidates[0]))


def _rank(candidate: Candidate) -> tuple[bool, Fraction, Fraction]:
    """Return the sort key: cost, then error; if the value does not fit, both weighted together."""
    if candidate.reproduces:
        return (False, Fraction(candidate.cost), candidate.error)
    # Differences below 0.1 % do not matter.
    return (True, round(candidate.error + candidate.cost * PER_COST, 3), Fraction(0))


def _ways(
    card: ModelCard, run: Run, stated: Peak, others: Sequence[Peak], metric: Metric
) -> Iterator[tuple[str, Peak, str, Fraction, int]]:
    """Yield (convention, peak, treatment or mistake, figure, cost) of each way to a figure.

    The cost weighs its assumptions by judgement: 2 for the sparse rate of the stated device, 3 for
    another peak, 5 for its sparse rate. Peaks equal to those of the stated device are left out.
    """
    if is_of_unknown_basis(run):  # only the division by the peak can be explained
        rules = [CONVENTIONS[PUBLISHED]]
    else:
        rules = [rule for rule in CONVENTIONS.values() if obstacle(card, run, rule.id) is None]
    peaks = [(stated, 0), (_sparse(stated), 2)]
    stated_rates = [peak.flops_per_ns for peak, _ in peaks]
    for other in others:
        for peak, cost in ((other, 3), (_sparse(other), 5)):
            if peak.flops_per_ns not in stated_rates:
                peaks.append((peak, cost + other.unlikely))
    for rule in rules:
        for treatment, figure, cost in _numerators(card, run, rule, stated, metric):
            for peak, peak_cost in peaks:
                of_peak = figure * stated.flops_per_ns / peak.flops_per_ns
                yield rule.id, peak, treatment, of_peak, cost + peak_cost
            if not treatment and rule.id != PUBLISHED:
                for mistake, factor, mistake_cost in _mistakes(card, run):
                    yield rule.id, stated, mistake, figure * factor, cost + mistake_cost


def _mistakes(card: ModelCard, run: Run) -> Iterator[tuple[str, Fraction, int]]:
    """Yield (mistake in words, factor on the figure, cost): usual errors in counting.

    Costs are weights by judgement: leaving out padding is a choice (1), a wrong count a slip (3),
    the wrong number of GPUs a worse one (4).
    """
    yield "counting a multiply-add as one FLOP", Fraction(1, 2), 3
    yield "counting FLOPs twice", Fraction(2), 3
    shape, devices = run.shape(card), run.devices
    if shape.tokens != shape.slot_tokens:
        yield "of real tokens only", Fraction(shape.tokens, shape.slot_tokens), 1
    if devices > GPUS_PER_NODE:
        yield f"of {GPUS_PER_NODE} GPUs", Fraction(devices, GPUS_PER_NODE), 4
    if devices > 1:
        yield "of one GPU", Fraction(devices), 4
        yield "dividing by the GPU count twice", Fraction(1, devices), 4


def _numerators(
    card: ModelCard, run: Run, rule: Convention, stated: Peak, metric: Metric
) -> Iterator[tuple[str, Fraction, int]]:
    """Yield (treatment of recomputation, figure, cost) for each distinct figure of a convention.

    Costs are weights by judgement. An HFU is expected to count the run's own recomputation (0) and
    an MFU is not (1); recomputation that the run does not have costs 1 more.
    """
    wants_hfu = metric == "hfu"
    without_cost = 1 if wants_hfu and not rule.executed else 0
    treatments: list[tuple[str, Checkpoint | None, int]] = [("", None, without_cost)]
    if not (rule.executed or rule.id == PUBLISHED or run.forward_only):
        own_cost = 0 if wants_hfu else 1
        if run.checkpoint != NO_CHECKPOINT:
            words = f"with its recomputation ({run.checkpoint.name})"
            treatments.append((words, run.checkpoint, own_cost))
        treatments += [(words, checkpoint, own_cost + 1) for words, checkpoint in TREATMENTS]
    # How unlikely the convention is for this run, above all if only one of the two freezes weights.
    rule_cost = 3 * rule.odd + rule.executed
    run_freezes, rule_freezes = bool(run.frozen or run.lora), rule.frozen == "all"
    if run_freezes != rule_freezes:
        rule_cost += 4 if rule_freezes else 1
    figures: set[Fraction] = set()
    for words, checkpoint, cost in treatments:
        treated = replace(run, checkpoint=checkpoint or run.checkpoint)
        rate = raw_rate(card, treated, stated, rule.id)
        figure = rate.hfu if checkpoint is not None else rate.figure
        if figure not in figures:  # else this treatment recomputes nothing
            figures.add(figure)
            yield words, figure, cost + rule_cost


def _sparse(peak: Peak) -> Peak:
    """Return the headline rate of a device with 2:4 sparsity, by its dense one."""
    label = peak.label.replace("dense", "sparse")
    label = label if label != peak.label else f"{label} sparse"
    return replace(peak, flops_per_ns=peak.flops_per_ns * SPARSE, label=label)
