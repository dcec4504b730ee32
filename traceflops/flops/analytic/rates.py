"""What a described step does, how long it takes, and its MFU and HFU: exact shares of a peak."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from traceflops.devices import DeviceSpec
from traceflops.errors import InputError, UsageError
from traceflops.flops.analytic.conventions import CONVENTIONS, Convention, convention
from traceflops.flops.analytic.run import NO_CHECKPOINT, Run
from traceflops.flops.analytic.run_flops import default_convention, model_flops
from traceflops.flops.mfu_waterfall import Count, Ledger, Line
from traceflops.flops.model.card import ModelCard
from traceflops.units import decimal, exact_percent

TERA = 10**12
PUBLISHED = "published-tflops"
NS_PER_S = 10**9
LARGEST_PEAK = 10**8
"""FLOP per nanosecond: 100 PFLOP/s, far above any device."""

DOUBTFUL = Fraction(1, 1000)
TIME_HINT = "set --step-time or --tokens-per-s"


@dataclass(frozen=True, slots=True)
class DescribedWork:
    """The ledger of one step, its time where that is known, devices, and the tokens computed."""

    ledger: Ledger
    seconds: Fraction | None
    devices: int
    tokens: int | None

    @property
    def tflops_per_device(self) -> Fraction | None:
        """Return the convention's TFLOP/s per device; None where the time is not known."""
        if self.seconds is None:
            return None
        return self.ledger.figure / (self.seconds * self.devices * TERA)

    @property
    def is_counted(self) -> bool:
        """Return whether FLOPs were counted, not taken from a published rate."""
        return self.ledger.convention != PUBLISHED

    @property
    def flops_per_token(self) -> Fraction | None:
        """Return the convention's FLOPs per computed token; None where there are no tokens."""
        return Fraction(self.ledger.figure) / self.tokens if self.tokens else None

    @property
    def tokens_per_s(self) -> Fraction | None:
        """Return computed tokens per second of all devices; None where it is not known."""
        return self.tokens / self.seconds if self.tokens and self.seconds else None


def work(card: ModelCard, run: Run, name: str | None = None) -> DescribedWork:
    """Return what a step does, by the default convention where none is named.

    A published rate of unknown convention is taken as it is, as the work of one second, unless a
    convention is named. Raises UsageError where the convention cannot be computed.
    """
    usual = PUBLISHED if counted_by_nobody_knows_what(run) else default_convention(card, run)
    rule = convention(name or usual)
    if rule.id == PUBLISHED:
        if run.achieved is None:
            hint = "set --achieved (TFLOP/s per GPU)"
            raise UsageError(f"{PUBLISHED} needs a published rate", hint)
        line = Line("model.published", run.achieved * run.devices)
        return DescribedWork(Ledger(PUBLISHED, (line,)), Fraction(1), run.devices, None)
    ledger, shape = model_flops(card, run, rule.id), run.shape(card)
    if run.achieved is None:
        seconds = run.seconds(shape)
    else:
        named = run.achieved_basis
        basis = ledger if named is None else model_flops(card, run, named)
        seconds = Fraction(basis.figure) / (run.achieved * run.devices)
    return DescribedWork(ledger, seconds, run.devices, shape.slot_tokens)


def counted_by_nobody_knows_what(run: Run) -> bool:
    """Return whether all there is is a published rate of unknown convention."""
    return run.achieved is not None and run.achieved_basis is None


@dataclass(frozen=True, slots=True)
class Peak:
    """What one device could do: FLOP per nanosecond (TFLOP/s x 1000), and what rate that is.

    `unlikely` says of a peak that may have been taken for another how much that supposes.
    """

    flops_per_ns: Fraction
    label: str = "given"
    unlikely: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.flops_per_ns <= LARGEST_PEAK:
            raise UsageError(
                f"a peak of {decimal(self.flops_per_ns / 1000, 3)} TFLOP/s per GPU is impossible",
                "give the dense peak of one GPU in TFLOP/s, e.g. 989.5",
            )

    @property
    def text(self) -> str:
        """Return label and rate, such as `bf16 dense 989.5 TFLOP/s`."""
        return f"{self.label} {decimal(self.flops_per_ns / 1000, 1)} TFLOP/s".strip()


@dataclass(frozen=True, slots=True)
class Rate(DescribedWork):
    """How much of the machine one step used, under one convention."""

    seconds: Fraction
    peak: Peak

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
    def doubt(self) -> str | None:
        """Return what to check where the share is tiny, else None."""
        if self.figure >= DOUBTFUL:
            return None
        what = "is the rate for one GPU, and in TFLOP/s?"
        if self.is_counted:
            time = f"{decimal(self.seconds, 6)} s"
            what = f"are {time}, the tokens and the GPU count those of one step of the whole job?"
        return f"{exact_percent(self.figure)} is very low: {what}"

    @property
    def terms(self) -> tuple[str, ...]:
        """Return what the figure is of: convention, peak, and the time where there is one."""
        time = (f"{decimal(self.seconds, 6)} s per step",) if self.is_counted else ()
        return (self.convention, self.peak.text, *time)

    @property
    def sentence(self) -> str:
        """Return the metric with its name: what it is, how much, by which rule, of which peak."""
        return self.as_hfu if self.is_hfu else f"MFU {exact_percent(self.mfu)} {self._name}"

    @property
    def as_hfu(self) -> str:
        """Return the HFU with its name."""
        return f"HFU {exact_percent(self.hfu)} {self._name}"

    @property
    def _name(self) -> str:
        return f"({self.convention}, {self.peak.text})"


def rate(card: ModelCard, run: Run, peak: Peak, name: str | None = None) -> Rate:
    """Return MFU and HFU of a described run; the default convention where none is named.

    Raises UsageError where a number is missing, and InputError for more than 100 %.
    """
    possible = raw_rate(card, run, peak, name)
    check_possible(possible, card, run)
    return possible


def raw_rate(card: ModelCard, run: Run, peak: Peak, name: str | None = None) -> Rate:
    """Return the rate as it comes out, above 100 % too; see `work` for published rates."""
    share_of_peak = rate_of(work(card, run, name), peak)
    if share_of_peak is None:
        raise UsageError("the step time is unknown", TIME_HINT)
    return share_of_peak


def rate_of(done: DescribedWork, peak: Peak | None) -> Rate | None:
    """Return the share of a peak that some work is; None where its time or peak is not known."""
    if done.seconds is None or peak is None:
        return None
    return Rate(done.ledger, done.seconds, done.devices, done.tokens, peak)


def check_possible(rate: Rate, card: ModelCard, run: Run, spec: DeviceSpec | None = None) -> None:
    """Raise InputError, with the likely reasons, for more than the devices can do.

    `spec` is the device, where it is known.
    """
    peak = rate.peak.flops_per_ns
    for metric, value in (("MFU", rate.mfu), ("HFU", rate.hfu)):
        if value > 1:
            beside = f"; MFU would be {exact_percent(rate.mfu)}" if metric == "HFU" else ""
            case = Case(value, card, run, rate.convention, peak, spec, rate.mfu)
            raise InputError(
                f"{exact_percent(value)} of peak is impossible, so it is not an {metric} "
                f"({', '.join(rate.terms)}){beside}",
                f"likely: {'; '.join(reasons(case))}",
            )


def check_speed(done: DescribedWork) -> None:
    """Raise InputError for more FLOP/s than any device can do, whatever its peak."""
    speed = done.tflops_per_device
    if speed is not None and speed * 1000 > LARGEST_PEAK:
        raise InputError(
            f"{decimal(speed, 0)} TFLOP/s per GPU is more than any GPU can do "
            f"({done.ledger.convention})",
            "likely: time or tokens are off by 1,000 or more (milliseconds for "
            "seconds), or --gpus is missing",
        )


def share(flops: Count, seconds: Fraction, devices: int, peak: Peak) -> Fraction:
    """Return FLOPs as a share of devices x seconds x peak, exactly."""
    return Fraction(flops) / (devices * seconds * NS_PER_S * peak.flops_per_ns)


# Why a utilisation may have come out above 100 %: the likely mistakes, those of this run first. One
# is likely where mending it leads to what training runs reach (docs/mfu.md, trust rules).

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
    """Return what may have made a share as large as it is, the most fitting first.

    Those count that lead to something plausible; the nearer to what is typical, the better.
    """
    least, most = PLAUSIBLE
    likely = sorted(
        (not mistake.comes_first, max(mended / TYPICAL, TYPICAL / mended), number)
        for number, mistake in enumerate(MISTAKES)
        if (mended := mistake.mended(case)) is not None and least <= mended <= most
    )
    others = OTHERS_OF_A_PUBLISHED_RATE if case.published else OTHERS
    return (*(MISTAKES[number].words for _, _, number in likely), *others)[:MOST_REASONS]
