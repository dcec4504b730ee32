"""MFU and HFU of a described run: exact shares, and the sentence that names the metric."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from traceflops.devices import DeviceSpec
from traceflops.errors import InputError, UsageError
from traceflops.flops.analytic.above_100_percent import Case, Metric, reasons
from traceflops.flops.analytic.run import Run
from traceflops.flops.analytic.work import DescribedWork, work
from traceflops.flops.ledger import Count
from traceflops.flops.model.card import ModelCard
from traceflops.units import decimal, exact_percent

NS_PER_S = 10**9
LARGEST_PEAK = 10**8
"""FLOP per nanosecond: 100 PFLOP/s, far above any device."""

DOUBTFUL = Fraction(1, 1000)
TIME_HINT = "set --step-time or --tokens-per-s"


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
