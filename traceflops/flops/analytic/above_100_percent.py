"""Why a utilisation may have come out above 100 %: the likely mistakes, those of this run first.

A mistake is likely where mending it leads to what training runs reach (formulas of the mfu page,
trust rules).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

from traceflops.devices import DeviceSpec
from traceflops.flops.analytic.conventions import CONVENTIONS, Convention
from traceflops.flops.analytic.run import NO_CHECKPOINT, Run
from traceflops.flops.model.card import ModelCard

PLAUSIBLE: Final = (Fraction(1, 1000), Fraction(9, 10))
"""What a utilisation is between, once the mistake is mended."""

TYPICAL: Final = Fraction(2, 5)
"""What most training runs are near: the nearer to it a mistake leads, the likelier it is."""

MOST_REASONS: Final = 4
SMALLEST_PEAK: Final = 20_000
"""FLOP per nanosecond: below 20 TFLOP/s a given peak is probably in PFLOP/s."""

_A100: Final = Fraction(312_000)
_ALL_EXPERTS: Final = ("all", "all-positions", "all-embeddings", "matmul-or-all")
"""What conventions count the weights of experts that a token does not use."""

Metric = Literal["MFU", "HFU"]


@dataclass(frozen=True, slots=True)
class Case:
    """A share above 1: how it was counted, what it was held against, and what run it is of.

    `flops_per_ns` is the peak, `spec` the device where it is known, `mfu` the MFU beside an HFU.
    """

    value: Fraction
    card: ModelCard
    run: Run
    convention: str
    flops_per_ns: Fraction
    spec: DeviceSpec | None = None
    metric: Metric = "MFU"
    mfu: Fraction | None = None

    @property
    def rule(self) -> Convention:
        """Return the convention it was counted by."""
        return CONVENTIONS[self.convention]

    @property
    def published(self) -> bool:
        """Return whether somebody else counted the FLOPs."""
        return self.run.achieved is not None


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake: by how much it overstates a case, and of which cases it may be the reason.

    `published` says whether somebody else must have counted the FLOPs, None that it does not
    matter. One that `comes_first` is named before others where it leads to something plausible.
    """

    words: str
    factor: int | Fraction | Callable[[Case], Fraction]
    published: bool | None = None
    holds: Callable[[Case], bool] = lambda case: True
    comes_first: bool = False

    def mended(self, case: Case) -> Fraction | None:
        """Return the share that is left without the mistake; None where it was not made."""
        if self.published not in (None, case.published) or not self.holds(case):
            return None
        return case.value / (self.factor(case) if callable(self.factor) else self.factor)


def _of_all_devices(case: Case) -> Fraction:
    return Fraction(case.run.devices)


def _may_be_fp8(case: Case) -> bool:
    """Return whether the device computes in fp8, too, and faster than the peak."""
    fp8 = case.spec.peak("fp8") if case.spec is not None else None
    return case.spec is None or (fp8 is not None and fp8 > Fraction(3, 2) * case.flops_per_ns)


MISTAKES: Final = (
    Mistake(
        "--peak is in TFLOP/s: 1.3 PFLOP/s is 1300",
        1000,
        holds=lambda case: case.flops_per_ns < SMALLEST_PEAK,
        comes_first=True,
    ),
    Mistake(
        "cards counted instead of GCDs: a card has two",
        2,
        holds=lambda case: case.spec is not None and case.spec.one_device_is == "GCD",
        comes_first=True,
    ),
    Mistake(
        "less recomputation than --checkpointing says",
        lambda case: case.value / case.mfu if case.mfu else Fraction(1),
        holds=lambda case: case.run.checkpoint != NO_CHECKPOINT,
        comes_first=True,
    ),
    Mistake("TFLOP/s of a node used for one GPU", 8, published=True),
    Mistake("TFLOP/s of all GPUs used for one", _of_all_devices, published=True),
    Mistake("FLOPs counted twice", 2, published=True),
    Mistake("recomputation counted as model work", Fraction(4, 3), published=True),
    Mistake(
        "time or tokens off by 1,000: milliseconds for seconds, thousands of tokens",
        1000,
        published=False,
    ),
    Mistake("GPUs of one node instead of all", 8, published=False),
    Mistake("tokens of all GPUs with the rate of one", _of_all_devices, published=False),
    Mistake(
        "parameters of unused experts counted",
        lambda case: Fraction(case.card.total, case.card.active),
        holds=lambda case: case.rule.weights in _ALL_EXPERTS,
    ),
    Mistake(
        "A100 peak used for an H100 or H200",
        Fraction(317, 100),
        holds=lambda case: abs(case.flops_per_ns / _A100 - 1) < Fraction(1, 100),
    ),
    Mistake("bf16 peak used for an fp8 run", 2, holds=_may_be_fp8),
    Mistake(
        "frozen weights counted as trained",
        Fraction(3, 2),
        published=False,
        holds=lambda case: not (case.run.is_frozen or case.run.frozen),
    ),
    Mistake(
        "full attention counted instead of causal",
        Fraction(6, 5),
        holds=lambda case: case.rule.context == "full",
    ),
    Mistake("the time does not cover a whole step", Fraction(6, 5), published=False),
)
"""A factor of 1 mends nothing: such a share stays above 1, which is not plausible."""

OTHERS: Final = ("tokens of all micro-batches with the time of one", "clock or unit mix-up")
OTHERS_OF_A_PUBLISHED_RATE: Final = ("peak of another GPU or data type", "unit mix-up")


def reasons(case: Case) -> tuple[str, ...]:
    """Return what may have made a share as large as it is, the most fitting first."""
    others = OTHERS_OF_A_PUBLISHED_RATE if case.published else OTHERS
    likely = sorted(_plausible(case), key=lambda pair: (not pair[0].comes_first, pair[1]))
    return (*(mistake.words for mistake, _ in likely), *others)[:MOST_REASONS]


def _plausible(case: Case) -> Iterator[tuple[Mistake, Fraction]]:
    """Yield the mistakes that lead to something plausible, and how far that is from typical."""
    least, most = PLAUSIBLE
    for mistake in MISTAKES:
        mended = mistake.mended(case)
        if mended is not None and least <= mended <= most:
            yield mistake, max(mended / TYPICAL, TYPICAL / mended)
