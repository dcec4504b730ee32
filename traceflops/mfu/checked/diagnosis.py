"""Why a description and a trace differ: the change to the description that makes them agree.

Each of the variants is counted anew and compared with the trace, pass by pass.
What fits is ranked by what must be supposed and by what it leaves; if nothing does, that is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from traceflops.flops import ModelCard, Run
from traceflops.mfu.checked.passes import AGREE, Passes
from traceflops.mfu.checked.size_variants import scaled, sizes
from traceflops.mfu.checked.variants import Seen, Variant, ways

COARSE: Final = 20
"""A size that was solved for must leave so much less than its next value would change."""

FARFETCHED: Final = 3
"""From this cost on, a change must leave little to be believed."""

NEAR: Final = Fraction(5, 100)
"""What does not fit is named up to here."""

STEPS: Final = (Fraction(1, 1000), Fraction(1, 200))
"""Beyond each of these, what a diagnosis leaves counts as one thing more to suppose."""


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
    compared = _Comparison.of(card, run, seen.passes)
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


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The trace's passes, as far as they can be compared with those of a description."""

    seen: Passes
    merged: bool
    products_only: bool

    @classmethod
    def of(cls, card: ModelCard, run: Run, seen: Passes) -> _Comparison:
        """Return the comparison: attention by itself only where both tell it apart."""
        counted = bool(card.cores()) and card.complete
        whole = cls(seen, not seen.attention, not counted)
        return cls(whole.comparable(seen), whole.merged, whole.products_only)

    def comparable(self, passes: Passes) -> Passes:
        """Return what of some passes is compared."""
        if self.products_only:
            return passes.products()
        return passes.merged() if self.merged else passes

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
