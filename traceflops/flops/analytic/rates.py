"""What a described step does, how long it takes, and its MFU and HFU: exact shares of a peak."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from traceflops.devices import DeviceSpec
from traceflops.errors import InputError, UsageError
from traceflops.flops.analytic.above_100_percent import Case, Metric, reasons
from traceflops.flops.analytic.conventions import convention
from traceflops.flops.analytic.run import Run, RunShape
from traceflops.flops.analytic.run_flops import default_convention, model_flops
from traceflops.flops.mfu_waterfall import Count, Ledger, Line
from traceflops.flops.model.blocks import Attention, LatentAttention
from traceflops.flops.model.card import ModelCard
from traceflops.units import decimal, exact_percent

Bytes = int | Fraction
"""Bytes per element; a fraction for packed types, such as 1/2 for 4 bits."""

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

    A published rate of unknown convention is taken as it is, unless one is named. Raises UsageError
    where the convention cannot be computed.
    """
    usual = PUBLISHED if counted_by_nobody_knows_what(run) else default_convention(card, run)
    rule = convention(name or usual)
    if rule.id == PUBLISHED:
        return _published(run)
    ledger = model_flops(card, run, rule.id)
    shape = run.shape(card)
    return DescribedWork(ledger, _seconds(card, run, shape, ledger), run.devices, shape.slot_tokens)


def counted_by_nobody_knows_what(run: Run) -> bool:
    """Return whether all there is is a published rate of unknown convention."""
    return run.achieved is not None and run.achieved_basis is None


def _seconds(card: ModelCard, run: Run, shape: RunShape, ledger: Ledger) -> Fraction | None:
    if run.achieved is None:
        return run.seconds(shape)
    basis = ledger if run.achieved_basis is None else model_flops(card, run, run.achieved_basis)
    return Fraction(basis.figure) / (run.achieved * run.devices)


def _published(run: Run) -> DescribedWork:
    """Return a published rate as the work of one second, nothing counted."""
    if run.achieved is None:
        raise UsageError(f"{PUBLISHED} needs a published rate", "set --achieved (TFLOP/s per GPU)")
    line = Line("model.published", run.achieved * run.devices)
    return DescribedWork(Ledger(PUBLISHED, (line,)), Fraction(1), run.devices, None)


def decode_bytes(
    card: ModelCard,
    *,
    passes: int,
    keys: int,
    weight_bytes: Bytes = 2,
    cache_bytes: Bytes = 2,
) -> Fraction:
    """Return the least bytes of so many passes over `keys` cached tokens in all.

    They are weights, once per pass, and cached keys and values. Of experts the least is what one
    token uses, as all sequences of a pass may choose the same ones; activations add little. `keys`
    are the tokens attended to, summed over sequences and passes. Raises UsageError for a model
    whose layers are not described, or that looks back only part of the way: how much each sequence
    has within reach is not known from the sum.
    """
    if not card.complete:
        lacks = ", ".join(card.lacks)
        raise UsageError(f"the model's {lacks} are unknown", "describe its layers")
    weights = passes * card.weights() * Fraction(weight_bytes)
    return weights + keys * cache_elements(card) * Fraction(cache_bytes)


def cache_elements(card: ModelCard) -> int:
    """Return the elements that one token has in the cache of all layers."""
    return sum(count * _elements(block.attention) for count, block in card.blocks)


def _elements(attention: Attention | LatentAttention | None) -> int:
    """Return the elements of keys and values; of the latent vector and its position for MLA."""
    if attention is None:
        return 0
    if attention.mask.kind in ("window", "chunk"):
        raise UsageError("it has layers with limited attention windows", "count them separately")
    if isinstance(attention, LatentAttention):
        return attention.kv_rank + attention.rope_dim
    return 2 * attention.kv_heads * attention.head_dim


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
    shares: tuple[tuple[Metric, Fraction], ...] = (("MFU", rate.mfu), ("HFU", rate.hfu))
    for metric, value in shares:
        if value > 1:
            beside = f"; MFU would be {exact_percent(rate.mfu)}" if metric == "HFU" else ""
            case = Case(value, card, run, rate.convention, peak, spec, metric, rate.mfu)
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
