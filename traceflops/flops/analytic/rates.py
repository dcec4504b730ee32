"""The FLOPs and the time of a described step, and its MFU and HFU: exact shares of a peak."""

from __future__ import annotations

from fractions import Fraction
from typing import Final, Literal

from msgspec import Struct

from traceflops.devices.peaks import DeviceSpec
from traceflops.devices.user_rate import LARGEST_PEAK
from traceflops.errors import InputError, UsageError
from traceflops.facts import Fact, fact
from traceflops.flops.analytic.conventions import CONVENTIONS, convention
from traceflops.flops.analytic.run import NO_CHECKPOINT, Run
from traceflops.flops.analytic.run_flops import default_convention, model_flops
from traceflops.flops.mfu_waterfall import Count, Ledger, Line
from traceflops.flops.model.card import ModelCard
from traceflops.units import decimal, exact_percent

TERA = 10**12
PUBLISHED = "published-tflops"
NS_PER_S = 10**9
DOUBTFUL = Fraction(1, 1000)
TIME_HINT = "set --step-time or --tokens-per-s"


class DescribedWork(Struct, frozen=True):
    """The ledger of one step, its time in seconds if known, devices, and computed tokens."""

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
    """Return the FLOPs and the time of a step, by the convention `name` or the default one.

    A published rate of unknown convention is the work of one second. Raises UsageError.
    """
    usual = PUBLISHED if is_of_unknown_basis(run) else default_convention(card, run)
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
    else:  # the published rate gives the time: FLOPs by its own convention / rate
        named = run.achieved_basis
        basis = ledger if named is None else model_flops(card, run, named)
        seconds = Fraction(basis.figure) / (run.achieved * run.devices)
    return DescribedWork(ledger, seconds, run.devices, shape.slot_tokens)


def is_of_unknown_basis(run: Run) -> bool:
    """Return whether only a published rate is given, and not how its FLOPs were counted."""
    return run.achieved is not None and run.achieved_basis is None


class Peak(Struct, frozen=True):
    """A device's peak and its label; `unlikely` is how far-fetched its use by mistake is."""

    flops_per_ns: Fraction
    label: str = "given"
    unlikely: int = 0

    @property
    def text(self) -> str:
        """Return label and rate, such as `bf16 dense 989.5 TFLOP/s`."""
        return f"{self.label} {decimal(self.flops_per_ns / 1000, 1)} TFLOP/s".strip()


class Rate(DescribedWork, frozen=True):
    """The work of a step with its time and the peak of a device: MFU and HFU by one convention."""

    seconds: Fraction
    peak: Peak

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
        """Return whether the convention's own figure is the HFU."""
        return self.ledger.executed_only

    @property
    def figure(self) -> Fraction:
        """Return the convention's own figure: MFU, or HFU if it counts recomputation."""
        return self.hfu if self.is_hfu else self.mfu

    @property
    def doubt(self) -> Fact | None:
        """Return what to check if the share is below 0.1 %, else None."""
        if self.figure >= DOUBTFUL:
            return None
        if self.is_counted:
            return fact("described.low", share=self.figure, seconds=decimal(self.seconds, 6))
        return fact("described.low-published", share=self.figure)

    @property
    def sentence(self) -> str:
        """Return the figure in words: metric, value, convention and peak."""
        return self.in_words("HFU" if self.is_hfu else "MFU")

    def in_words(self, metric: Literal["MFU", "HFU"]) -> str:
        """Return MFU or HFU in words: metric, value, convention and peak."""
        value = exact_percent(self.hfu if metric == "HFU" else self.mfu)
        return f"{metric} {value} ({self.ledger.convention}, {self.peak.text})"


def rate(card: ModelCard, run: Run, peak: Peak, name: str | None = None) -> Rate:
    """Return MFU and HFU of a run. Raises UsageError, and InputError for more than 100 %."""
    possible = raw_rate(card, run, peak, name)
    check_possible(possible, card, run)
    return possible


def raw_rate(card: ModelCard, run: Run, peak: Peak, name: str | None = None) -> Rate:
    """Return MFU and HFU unchecked: they may be above 100 %. Raises UsageError without a time."""
    result = rate_of(work(card, run, name), peak)
    if result is None:
        raise UsageError("the step time is unknown", TIME_HINT)
    return result


def rate_of(done: DescribedWork, peak: Peak | None) -> Rate | None:
    """Return MFU and HFU of some work; None where its time or the peak is unknown."""
    if done.seconds is None or peak is None:
        return None
    return Rate(done.ledger, done.seconds, done.devices, done.tokens, peak)


def check_possible(rate: Rate, card: ModelCard, run: Run, spec: DeviceSpec | None = None) -> None:
    """Raise InputError, with the likely reasons, if MFU or HFU is above 1."""
    terms = f"{rate.ledger.convention}, {rate.peak.text}"
    if rate.is_counted:
        terms = f"{terms}, {decimal(rate.seconds, 6)} s per step"
    for metric, value in (("MFU", rate.mfu), ("HFU", rate.hfu)):
        if value > 1:
            beside = f"; MFU would be {exact_percent(rate.mfu)}" if metric == "HFU" else ""
            raise InputError(
                f"{exact_percent(value)} of peak is impossible, so it is not an {metric} "
                f"({terms}){beside}",
                f"likely: {'; '.join(reasons(value, rate, card, run, spec))}",
            )


def check_speed(done: DescribedWork) -> None:
    """Raise InputError for more FLOP/s than any device can do, whatever the peak."""
    speed = done.tflops_per_device
    if speed is not None and speed > LARGEST_PEAK:
        raise InputError(
            f"{decimal(speed, 0)} TFLOP/s per GPU is more than any GPU can do "
            f"({done.ledger.convention})",
            "likely: time or tokens are off by 1,000 or more (milliseconds for "
            "seconds), or --gpus is missing",
        )


def share(flops: Count, seconds: Fraction, devices: int, peak: Peak) -> Fraction:
    """Return FLOPs as a share of devices x seconds x peak, exactly."""
    return Fraction(flops) / (devices * seconds * NS_PER_S * peak.flops_per_ns)


# Reasons for a utilisation above 100 %: see docs/mfu.md, trust rules.

PLAUSIBLE: Final = (Fraction(1, 1000), Fraction(9, 10))
"""The range of utilisations that are plausible after a mistake is corrected."""
TYPICAL: Final = Fraction(2, 5)
"""The utilisation of most training runs: the nearer a correction leads to it, the likelier."""
MOST_REASONS: Final = 4
SMALLEST_PEAK: Final = 20_000
"""FLOP per nanosecond: below 20 TFLOP/s a given peak is probably in PFLOP/s."""


def reasons(
    value: Fraction, rate: Rate, card: ModelCard, run: Run, spec: DeviceSpec | None = None
) -> tuple[str, ...]:
    """Return likely mistakes behind an impossible share, the best fit first, in words.

    A mistake is likely if correcting it leads to a plausible share; the closer that is to a typical
    one, the likelier. `spec` is the device, if it is known. Factors: nodes have 8 GPUs,
    recomputation adds a third, an H100's peak is 3.17 times an A100's (312 TFLOP/s), frozen weights
    need 2 of 3 passes; 6/5 is a usual size of the last mistakes.
    """
    peak, counts = rate.peak.flops_per_ns, run.achieved is None
    rule = CONVENTIONS[rate.ledger.convention]
    # Conventions that count the weights of experts that a token does not use.
    with_unused = rule.weights in ("all", "all-positions", "all-embeddings", "matmul-or-all")
    is_of_a100 = abs(peak / Fraction(312_000) - 1) < Fraction(1, 100)
    fp8 = spec.peak("fp8") if spec is not None else None
    # The peak used is not that of fp8 itself.
    is_below_fp8 = spec is None or (fp8 is not None and fp8 > Fraction(3, 2) * peak)
    is_recomputed = run.checkpoint != NO_CHECKPOINT and bool(rate.mfu)
    less = value / (rate.mfu or 1)
    units = "time or tokens off by 1,000: milliseconds for seconds, thousands of tokens"
    is_trained = counts and not (run.is_frozen or run.frozen)
    per_card = spec is not None and spec.one_device_is == "GCD"
    unused = Fraction(card.total, card.active or 1)
    # Per mistake: whether it is possible here; whether any run may have it (mistakes that only this
    # run suggests come first); in words; the factor by which it overstates a share.
    mistakes = (
        (peak < SMALLEST_PEAK, False, "--peak is in TFLOP/s: 1.3 PFLOP/s is 1300", 1000),
        (per_card, False, "cards counted instead of GCDs: a card has two", 2),
        (is_recomputed, False, "less recomputation than --checkpointing says", less),
        # If a published rate is given, somebody else counted the FLOPs.
        (not counts, True, "TFLOP/s of a node used for one GPU", 8),
        (not counts, True, "TFLOP/s of all GPUs used for one", run.devices),
        (not counts, True, "FLOPs counted twice", 2),
        (not counts, True, "recomputation counted as model work", Fraction(4, 3)),
        (counts, True, units, 1000),
        (counts, True, "GPUs of one node instead of all", 8),
        (counts, True, "tokens of all GPUs with the rate of one", run.devices),
        (with_unused, True, "parameters of unused experts counted", unused),
        (is_of_a100, True, "A100 peak used for an H100 or H200", Fraction(317, 100)),
        (is_below_fp8, True, "bf16 peak used for an fp8 run", 2),
        (is_trained, True, "frozen weights counted as trained", Fraction(3, 2)),
        (rule.context == "full", True, "full attention counted instead of causal", Fraction(6, 5)),
        (counts, True, "the time does not cover a whole step", Fraction(6, 5)),
    )
    (least, most), likely = PLAUSIBLE, []
    for is_possible, is_common, words, factor in mistakes:
        corrected = value / factor
        if is_possible and least <= corrected <= most:
            distance = max(corrected / TYPICAL, TYPICAL / corrected)
            likely.append((is_common, distance, words))
    likely.sort(key=lambda mistake: mistake[:2])
    others = ("tokens of all micro-batches with the time of one", "clock or unit mix-up")
    if not counts:
        others = ("peak of another GPU or data type", "unit mix-up")
    return (*(words for *_, words in likely), *others)[:MOST_REASONS]
