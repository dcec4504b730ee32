"""Why a description and a trace differ: the change to the description that makes them agree.

Each of the variants is counted anew and compared with the trace, pass by pass.
What fits is ranked by what must be supposed and by what it leaves; if nothing does, that is said.

Recomputation (activation checkpointing) is no model work, so model FLOPs agree whatever is said of
it: it is a claim of its own. Checkpoints that stop early leave out the last product of each block,
so full checkpointing describes the most there can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from traceflops.flops import FULL_CHECKPOINT, NO_CHECKPOINT, SELECTIVE, Checkpoint, ModelCard, Run
from traceflops.mfu.checked.job_size import JobSize
from traceflops.mfu.checked.passes import AGREE, Counts, Passes, unknown_flops, visible
from traceflops.mfu.checked.size_variants import scaled, sizes
from traceflops.mfu.checked.variants import Seen, Variant, ways
from traceflops.mfu.measurement import Measurement
from traceflops.mfu.traced.executed import Executed
from traceflops.units import decimal, exact_percent

COARSE: Final = 20
"""A size that was solved for must leave so much less than its next value would change."""

FARFETCHED: Final = 3
"""From this cost on, a change must leave little to be believed."""

NEAR: Final = Fraction(5, 100)
"""What does not fit is named up to here."""

STEPS: Final = (Fraction(1, 1000), Fraction(1, 200))
"""Beyond each of these, what a diagnosis leaves counts as one thing more to suppose."""

MISSING, NOT_DESCRIBED = "missing-recompute", "recompute-not-described"
"""Codes of findings: less is recomputed than described, or more."""

TRACES: Final = Fraction(1, 1000)
"""Up to this share of what was executed recomputation may go without saying."""

FAMILY: Final = "recompute"

EARLY: Final = Fraction(1, 2)
"""So much of what full checkpointing describes is recomputed at least, where it stops early."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One change: `expected` is what a device would execute in a step with it.

    `residual` is what is left of the difference, relative to the trace; `distance` the same added
    up pass by pass. `supposes` says how much must be supposed, `grain` how much the next value of
    the size in question would change.
    """

    code: str
    words: str
    remedy: str
    expected: Fraction
    residual: Fraction
    distance: Fraction
    supposes: int
    grain: Fraction
    fits: bool

    @property
    def score(self) -> int:
        """Return what must be supposed for it, what it leaves included."""
        return self.supposes + 2 * sum(self.distance > step for step in STEPS)

    @property
    def is_near(self) -> bool:
        """Return whether it is worth naming though it does not fit: one plain change, close by."""
        return self.grain == 1 and "+" not in self.code and self.distance <= NEAR


def diagnose(
    card: ModelCard, run: Run, seen: Seen, known: tuple[int, ...] = ()
) -> tuple[Diagnosis, ...]:
    """Return what could be different from a description, best first.

    `known` are numbers of devices that the trace gives.
    """
    comparable = _comparable(card, seen.passes)
    compared = _Comparison(comparable(seen.passes), comparable)
    diagnoses: dict[str, Diagnosis] = {}
    for variant in _variants(Variant(card, run), seen, known, compared):
        tested = compared.test(variant)
        if tested is not None:
            diagnoses.setdefault(tested.words, tested)
    return tuple(sorted(diagnoses.values(), key=_rank))


def _variants(
    described: Variant, seen: Seen, known: tuple[int, ...], compared: _Comparison
) -> Iterator[Variant]:
    for variant in (described, *ways(described, seen)):
        if variant.code:
            yield variant
        ratio = compared.ratio(variant)
        if ratio is not None:
            yield from scaled(variant, ratio, known)
    yield from sizes(described, seen)


def _rank(diagnosis: Diagnosis) -> tuple[bool, Fraction, Fraction]:
    """Order what fits by what it supposes, the rest by what it leaves."""
    if not diagnosis.fits:
        return (True, diagnosis.distance, Fraction(diagnosis.supposes))
    return (False, Fraction(diagnosis.score), diagnosis.distance)


def _comparable(card: ModelCard, seen: Passes) -> Callable[[Passes], Passes]:
    """Return what of some passes is compared: attention by itself only where both tell it apart."""
    if not card.cores() or not card.complete:
        return Passes.products
    return (lambda passes: passes) if seen.attention else Passes.merged


@dataclass(frozen=True, slots=True)
class _Comparison:
    """What of the trace's passes is compared, and what of those of a description."""

    seen: Passes
    comparable: Callable[[Passes], Passes]

    def ratio(self, variant: Variant) -> Fraction | None:
        """Return how many times the FLOPs of a variant the trace has."""
        expected = variant.passes()
        total = self.comparable(expected).total if expected is not None else Fraction(0)
        return self.seen.total / total if total and self.seen.total else None

    def test(self, variant: Variant) -> Diagnosis | None:
        """Return what a variant leaves of the difference; None where it cannot be counted."""
        passes = variant.passes()
        if passes is None or not self.seen.total:
            return None
        expected = self.comparable(passes)
        distance = expected.distance(self.seen)
        return Diagnosis(
            code=variant.code,
            words=variant.words,
            remedy=variant.remedy,
            expected=passes.total,
            residual=expected.total / self.seen.total - 1,
            distance=distance,
            supposes=variant.cost,
            grain=variant.grain,
            fits=distance <= _slack(variant),
        )


def _slack(variant: Variant) -> Fraction:
    """Return what may be left: the more must be supposed the less, as something is always near."""
    if "+" in variant.code:
        return min(STEPS[-1], variant.grain / (5 * COARSE))
    most = AGREE if variant.cost < FARFETCHED else STEPS[-1]
    return min(most, variant.grain / COARSE)


@dataclass(frozen=True, slots=True)
class Recomputation:
    """Recomputation in the chosen windows: as described, and as the trace shows it.

    `counted` lies between `least` and `most` where the trace leaves open what was recomputed.
    `finding` says how the two differ, None where they agree: by at most 2 % of what was `executed`.
    """

    checkpoint: Checkpoint
    described: Fraction
    counted: int
    least: int
    most: int
    executed: int
    finding: Diagnosis | None = None

    @property
    def sentence(self) -> str:
        """Return how the two differ, "" where they agree: the second half of a sentence."""
        if self.finding is None:
            return ""
        shown = exact_percent(Fraction(self.counted, self.executed))
        if self.finding.code == NOT_DESCRIBED:
            said = f"the description has {_named(self.checkpoint)} checkpointing"
            if self.described:
                said += f", which is {exact_percent(self.described / self.executed)}"
            return (
                f"recomputation is not as described: {shown} of the executed FLOPs "
                f"are recomputed, and {said}. {self.finding.remedy}"
            )
        only = f"only {shown} is" if self.counted else "nothing is"
        return (
            f"recomputation is missing: {_named(self.checkpoint)} checkpointing would "
            f"recompute {exact_percent(self.described / self.executed)} of the executed "
            f"FLOPs, but {only} recomputed. {self.finding.remedy}"
        )


def recomputation(
    measured: Measurement, card: ModelCard, run: Run, job: JobSize, counts: Counts | None
) -> Recomputation | None:
    """Return what is described and what is shown; None where the two cannot be compared."""
    if counts is None or run.forward_only or not card.complete:
        return None
    done = measured.executed.as_computed
    ledger = done.ledger()
    least, most = _bounds(done)
    shown = Recomputation(
        checkpoint=run.checkpoint,
        described=_described(card, run, job).total,
        counted=int(ledger.total(FAMILY)),
        least=least,
        most=most + (unknown_flops(measured.executed, measured.rates) or 0),
        executed=done.executed_flops,
    )
    products = ledger.total("recompute.matmul") + ledger.total("recompute.conv")
    seen = (Fraction(products), Fraction(ledger.total("recompute.attention")))
    whole = _described(card, replace(run, checkpoint=FULL_CHECKPOINT), job)
    finding = _finding(shown, _describing(seen, whole))
    if finding is None:
        return shown
    expected, left = counts.expected / job.windows, counts.residual
    diagnosis = Diagnosis(*finding, expected, left, abs(left), 1, Fraction(1), fits=True)
    return replace(shown, finding=diagnosis)


def _bounds(done: Executed) -> tuple[int, int]:
    """Return the least and the most that can be recomputed in the chosen windows."""
    cells = [cell for cell in done.select() if cell.line.startswith(f"{FAMILY}.")]
    least, most = (sum(getattr(cell, name) for cell in cells) for name in ("at_least", "flops"))
    for bounds in done.ranges():
        if bounds.line.startswith(f"{FAMILY}."):
            least -= bounds.flops - bounds.at_least
            most += bounds.at_most - bounds.flops
    return max(least, 0), most


def _described(card: ModelCard, run: Run, job: JobSize) -> Passes:
    """Return what is recomputed in the windows shown, if the description holds: forward passes."""
    with_it, without = visible(card, run, recomputed=True), visible(card, run)
    again = Passes(*(more - less for more, less in zip(with_it, without, strict=True)))
    return again.times(Fraction(job.windows, job.devices))


def _finding(shown: Recomputation, how: str) -> tuple[str, str, str] | None:
    """Return how what is recomputed differs from what is described: code, words and remedy."""
    slack = (AGREE if shown.described else TRACES) * shown.executed
    if shown.least > shown.described + slack:
        return NOT_DESCRIBED, "the backward pass recomputes part of the forward pass", how
    expected = shown.described * (EARLY if shown.counted and shown.checkpoint.linear else 1)
    if shown.most < expected - slack or (shown.described and not shown.most):
        words = f"the recomputation of {_named(shown.checkpoint)} checkpointing is missing"
        off = "Check that it is enabled; --checkpointing none describes what ran"
        return MISSING, words, how if shown.counted else off
    return None


def _describing(seen: tuple[Fraction, Fraction], whole: Passes) -> str:
    """Return which option describes what a trace recomputes; `whole` is all of the blocks.

    `seen` are the FLOPs of products and convolutions, and of attention.
    """
    of_blocks = (whole.forward, whole.attention_forward)
    products, attention = (
        part / of if of else Fraction(0) for part, of in zip(seen, of_blocks, strict=True)
    )
    every = attention if whole.attention else Fraction(1)
    if EARLY <= products <= 1 + AGREE and EARLY <= every <= 1 + AGREE:
        return f"--checkpointing {FULL_CHECKPOINT.name} describes it"
    if products <= AGREE and abs(attention - 1) <= AGREE:
        return f"--checkpointing {SELECTIVE.name} describes it"
    shares = ",".join(decimal(share, 2) for share in (products, attention))
    return f"--checkpointing {shares} describes it"


def _named(checkpoint: Checkpoint) -> str:
    return "no" if checkpoint == NO_CHECKPOINT else checkpoint.name
