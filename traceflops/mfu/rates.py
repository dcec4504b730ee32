"""MFU and HFU of a described run: exact shares, and the sentence that names the metric."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from traceflops.errors import InputError, UsageError
from traceflops.mfu.card import ModelCard
from traceflops.mfu.figures import decimal, percent
from traceflops.mfu.ledger import Count, Ledger
from traceflops.mfu.run import Run
from traceflops.mfu.work import TERA, Work, work

NS_PER_S = 10**9
LARGEST_PEAK = 10**8
"""FLOP per nanosecond: 100 PFLOP/s, far above any device."""

DOUBTFUL = Fraction(1, 1000)
TIME_HINT = "give the step time (--step-time) or the tokens per second (--tokens-per-s)"


@dataclass(frozen=True, slots=True)
class Peak:
    """What one device could do: FLOP per nanosecond (TFLOP/s x 1000), and what rate that is."""

    flops_per_ns: Fraction
    label: str = "given"

    def __post_init__(self) -> None:
        """Refuse a peak that no device has."""
        if not 0 < self.flops_per_ns <= LARGEST_PEAK:
            raise UsageError(
                f"a peak of {decimal(self.flops_per_ns / 1000, 3)} TFLOP/s per device cannot be",
                "give the dense peak of one device in TFLOP/s, e.g. 989.5",
            )

    @property
    def text(self) -> str:
        """Return label and rate, such as `bf16 dense 989.5 TFLOP/s`."""
        return f"{self.label} {decimal(self.flops_per_ns / 1000, 1)} TFLOP/s".strip()


@dataclass(frozen=True, slots=True)
class Rate:
    """How much of the machine one step used, under one convention."""

    ledger: Ledger
    seconds: Fraction
    devices: int
    peak: Peak
    tokens: int | None

    @property
    def convention(self) -> str:
        """Return the convention's id."""
        return self.ledger.convention

    @property
    def mfu(self) -> Fraction:
        """Return model FLOPs as a share of what the devices could do in the time."""
        return share(self.ledger.model, self.seconds, self.devices, self.peak)

    @property
    def hfu(self) -> Fraction:
        """Return executed FLOPs as a share of what the devices could do in the time."""
        return share(self.ledger.executed, self.seconds, self.devices, self.peak)

    @property
    def is_hfu(self) -> bool:
        """Return whether the convention's figure is what is executed."""
        return self.ledger.executed_only

    @property
    def figure(self) -> Fraction:
        """Return what the convention is known for: MFU, or HFU where recomputation is in it."""
        return self.hfu if self.is_hfu else self.mfu

    @property
    def tflops_per_device(self) -> Fraction:
        """Return model TFLOP/s per device (executed ones where that is the convention's figure)."""
        return self.ledger.figure / (self.seconds * self.devices * TERA)

    @property
    def flops_per_token(self) -> Fraction | None:
        """Return the convention's FLOPs per computed token; None where there are no tokens."""
        return Fraction(self.ledger.figure) / self.tokens if self.tokens else None

    @property
    def doubt(self) -> str | None:
        """Return what to check where the share is tiny, else None."""
        if self.figure >= DOUBTFUL:
            return None
        return (
            f"{percent(self.figure)} is very little: are {decimal(self.seconds, 6)} s, the tokens "
            "and the devices those of one step of the whole job?"
        )

    @property
    def sentence(self) -> str:
        """Return the metric with its name: what it is, how much, by which rule, of which peak."""
        metric = "HFU" if self.is_hfu else "MFU"
        return f"{metric} {percent(self.figure)} ({self.convention}, {self.peak.text})"


def rate(card: ModelCard, run: Run, peak: Peak, name: str | None = None) -> Rate:
    """Return MFU and HFU of a described run; the default convention where none is named.

    Raises UsageError where a number is missing, and InputError for more than 100 %.
    """
    found = raw_rate(card, run, peak, name)
    check_possible(found, card, run)
    return found


def raw_rate(card: ModelCard, run: Run, peak: Peak, name: str | None = None) -> Rate:
    """Return the rate as it comes out, above 100 % too; see `work` for published rates."""
    found = rate_of(work(card, run, name), peak)
    if found is None:
        raise UsageError("how long a step takes is not known", TIME_HINT)
    return found


def rate_of(done: Work, peak: Peak) -> Rate | None:
    """Return the share of a peak that some work is; None where its time is not known."""
    if done.seconds is None:
        return None
    return Rate(done.ledger, done.seconds, done.devices, peak, done.tokens)


def check_possible(found: Rate, card: ModelCard, run: Run) -> None:
    """Raise InputError, with the likely reasons, for more than the devices can do."""
    for metric, value in (("MFU", found.mfu), ("HFU", found.hfu)):
        if value > 1:
            raise InputError(
                f"{percent(value)} of the peak is more than the devices can do, so it is no "
                f"{metric} ({found.convention}, {found.peak.text}, "
                f"{decimal(found.seconds, 6)} s per step)",
                f"likely: {'; '.join(reasons(value, card, run))}",
            )


def share(flops: Count, seconds: Fraction, devices: int, peak: Peak) -> Fraction:
    """Return FLOPs as a share of devices x seconds x peak, exactly."""
    return Fraction(flops) / (devices * seconds * NS_PER_S * peak.flops_per_ns)


OVERSTATEMENTS: tuple[tuple[Fraction, str], ...] = (
    (
        Fraction(1000),
        "time or tokens are off by 1,000: milliseconds for seconds, thousands of tokens",
    ),
    (Fraction(8), "the devices of one node in place of all"),
    (Fraction(317, 100), "the peak of an A100 for an H100 or H200"),
    (
        Fraction(2),
        "the bf16 peak for an fp8 run, one of two dies for the card, or FLOPs counted twice",
    ),
    (Fraction(3, 2), "frozen weights counted as trained"),
    (Fraction(4, 3), "recomputation counted as model work"),
    (Fraction(6, 5), "full attention counted where it is causal, or a time that is no whole step"),
)
"""What makes a utilisation too large, and by how much (formulas of the mfu page, trust rules)."""

PLAUSIBLE = (Fraction(1, 1000), Fraction(9, 10))
"""What a utilisation is between, once the mistake is mended."""

TYPICAL = Fraction(2, 5)
"""What most training runs are near: the nearer to it a mistake leads, the likelier it is."""

MOST_REASONS = 4


def reasons(value: Fraction, card: ModelCard, run: Run) -> tuple[str, ...]:
    """Return what may have made a share as large as this, the most fitting first."""
    known = (*_of_this_run(card, run), *OVERSTATEMENTS)
    least, most = PLAUSIBLE
    mended = {words: value / factor for factor, words in known}
    plausible = [words for words, share in mended.items() if least <= share <= most]
    plausible.sort(key=lambda words: max(mended[words] / TYPICAL, TYPICAL / mended[words]))
    others = ("tokens of all micro-batches with the time of one", "a clock or unit mix-up")
    return (*plausible, *others)[:MOST_REASONS]


def _of_this_run(card: ModelCard, run: Run) -> tuple[tuple[Fraction, str], ...]:
    """Return the overstatements that depend on the model and the run."""
    found = []
    if card.active < card.total:
        found.append((Fraction(card.total, card.active), "parameters of experts that are not used"))
    if run.devices > 1:
        found.append((Fraction(run.devices), "the tokens of all devices with one device's rate"))
    return tuple(found)
