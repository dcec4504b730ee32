"""What a trace says of utilisation, in words and rows: the same in the terminal and on the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from traceflops.mfu.inference import Inference, PhaseUse
from traceflops.mfu.measurement import Measurement
from traceflops.mfu.peaks import PER_TERA
from traceflops.mfu.roofline import Measured, Verdict, verdict
from traceflops.mfu.waterfall import Waterfall
from traceflops.mfu.worktables import KernelRow, OpRow
from traceflops.reports.units import (
    UNKNOWN,
    apportioned,
    count,
    duration,
    flops,
    percent,
    significant,
    size,
)

THOUSAND: Final = 1000
_RULES: Final = 3

LABELS: Final = {
    "useful": ("useful work", "model FLOPs at the peak: MFU"),
    "recompute": ("recomputation", "forward work done again in the backward pass"),
    "algorithmic": ("computed again by design", "scores in the backward pass of flash attention"),
    "overcompute": ("masks and padding", "work whose result is thrown away"),
    "unattributed": ("compute, FLOPs unknown", "time of compute kernels without counted FLOPs"),
    "inefficiency": ("slow compute kernels", "what counted kernels took beyond the peak's time"),
    "memory": ("memory-bound kernels", "element-wise work, norms, softmax, optimizer, copies"),
    "other": ("other kernels", "kernels whose name no rule knows"),
    "graph": ("graph launches", "launches that show no kernels"),
    "communication": ("exposed communication", "communication while nothing else ran"),
    "idle": ("idle", "nothing ran"),
}
"""The lines of a waterfall: what they are called, and what they are."""

_LIKE: Final = {
    "useful": "compute",
    "recompute": "compute",
    "algorithmic": "compute",
    "overcompute": "compute",
    "unattributed": "other",
    "inefficiency": "memory",
}
WORK: Final = ("useful", "recompute", "algorithmic", "overcompute")
"""Lines that are FLOPs; the others are losses."""


@dataclass(frozen=True, slots=True)
class Part:
    """One line of the waterfall; the thousandths of all parts sum to 1000.

    `before` are the thousandths of the parts above it, `component` is what it looks like.
    """

    name: str
    thousandths: int
    before: int
    component: str
    share: Fraction

    @property
    def label(self) -> str:
        """Return what it is called."""
        return LABELS[self.name][0]

    @property
    def text(self) -> str:
        """Return what it is."""
        return LABELS[self.name][1]

    @property
    def percent(self) -> str:
        """Return its share, so that those of all lines add up to 100.0 %."""
        if self.thousandths == 0 and self.share:
            return "<0.1 %"
        return f"{self.thousandths / 10:.1f} %"


def parts(fall: Waterfall) -> list[Part]:
    """Return the lines that are not 0, from the useful work down."""
    lines = [line for line in fall.lines if line.amount]
    widths = apportioned([line.amount for line in lines], THOUSAND)
    found, before = [], 0
    for line, width in zip(lines, widths, strict=True):
        like = _LIKE.get(line.name, line.name)
        found.append(Part(line.name, width, before, like, Fraction(line.amount, fall.budget)))
        before += width
    return found


def why_not(measured: Measurement) -> list[str]:
    """Return why there is no MFU, a sentence per reason."""
    return [f"No MFU: {one.problem.rstrip('.')}; {one.remedy}." for one in measured.lacks]


@dataclass(frozen=True, slots=True)
class Fact:
    """One figure with its name and a remark."""

    label: str
    value: str
    remark: str = ""


def facts(measured: Measurement) -> Iterator[Fact]:
    """Yield what the figure is made of."""
    done = measured.executed
    if measured.mfu is not None and measured.hfu is not None:
        yield Fact("HFU", percent(float(measured.hfu)), "of everything that was executed")
        if measured.busy_mfu is not None:
            yield Fact("busy MFU", percent(float(measured.busy_mfu)), "idle time left out")
    if done.executed_flops:
        yield Fact("executed", flops(done.executed_flops), f"model {flops(done.model_flops)}")
        yield Fact("counted", percent(_float(done.coverage)), "of the compute kernels' time")
    yield from _peaks(measured)
    if measured.inference is not None:
        yield from _inference(measured.inference)
    if done.outside.vector_flops and done.executed_flops:
        yield Fact("vector work", flops(done.outside.vector_flops), "counts in no utilisation")
    ghosts = done.outside.count("ghost", "cached")
    if ghosts:
        yield Fact("not executed", f"{count(ghosts)} ops", "recorded, their result not computed")


def _peaks(measured: Measurement) -> Iterator[Fact]:
    """Yield the rates of each kind of device for the data types that were counted."""
    counted = _counted(measured)
    rates = {
        (one.product, "given" if one.given else f"{dtype} dense", rate)
        for one in measured.devices
        for dtype, rate in one.rates.items()
        if dtype in counted
    }
    for product, kind, rate in sorted(rates):
        yield Fact(
            "peak", f"{significant(Fraction(rate, PER_TERA), 5)} TFLOP/s", f"{kind}, {product}"
        )


def _inference(found: Inference) -> Iterator[Fact]:
    """Yield what each phase is, and how much of the bandwidth it used where that limits it."""
    for phase in found.phases:
        name = phase.kind or "passes"
        tokens = "" if phase.queries is None else f"{count(phase.queries)} tokens"
        rules = "; ".join(rule for rule, _ in phase.rules[:_RULES])
        passes = f"{count(phase.passes)} pass{'es' if phase.passes > 1 else ''}"
        yield Fact(name, tokens or passes, f"{passes}: {rules}" if tokens else rules)
        if phase.kind != "prefill":
            yield _bandwidth(name, phase)


def _bandwidth(name: str, phase: PhaseUse) -> Fact:
    known = f"bytes known of {percent(_float(phase.coverage))} of its kernels' time"
    if phase.mbu is None:
        return Fact(f"{name} MBU", UNKNOWN, known if phase.possible else "bandwidth not known")
    moved = f"at least {size(phase.moved.total)} in {duration(phase.time_ns)}"
    return Fact(f"{name} MBU", percent(float(phase.mbu)), f"{moved}; {known}")


def _counted(measured: Measurement) -> set[str]:
    return {cell.dtype for cell in measured.executed.select() if cell.flops}


def roofline(
    measured: Measurement, work: Measured, row: KernelRow | OpRow | None
) -> Verdict | None:
    """Return what bounds some work, where all devices have the same rates for it."""
    peak, bandwidth = roof(measured, row.dtypes if row is not None else ())
    if work.flops == 0 and work.min_bytes and bandwidth:
        return Verdict("memory", "shapes")  # whatever the peak
    return verdict(work, peak, bandwidth, row.category if isinstance(row, KernelRow) else None)


def roof(measured: Measurement, dtypes: tuple[str, ...] = ()) -> tuple[int | None, int | None]:
    """Return peak (FLOP per ns) and bandwidth (bytes per ns); None where they are not one.

    The peak is that of `dtypes`, without any that of all that was counted.
    """
    counted = dtypes or tuple(_counted(measured))
    peaks = {one.rates.get(dtype) for one in measured.devices for dtype in counted}
    widths = {one.bandwidth for one in measured.devices}
    return (
        peaks.pop() if len(peaks) == 1 else None,
        widths.pop() if len(widths) == 1 else None,
    )


def _float(value: Fraction | None) -> float | None:
    return float(value) if value is not None else None
