"""Utilisation in words and rows, the same in the terminal and on the page."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Final, TypeVar

from msgspec import Struct

from traceflops.analysis.result import Analysis
from traceflops.characters import kernel_name
from traceflops.devices.missing_input import NOT_ML, UNLESS_ASKED
from traceflops.devices.peaks import PER_TERA
from traceflops.facts import fact
from traceflops.findings.copy_sizes import are_small
from traceflops.flops.mfu_waterfall import UNSPLIT, Waterfall
from traceflops.flops.ops.arguments import TF32_OR_FP32
from traceflops.mfu.counted.joins import MeasuredWork
from traceflops.mfu.inference import Inference
from traceflops.mfu.measurement import Measurement
from traceflops.mfu.roof_times import BOUND_FROM, Measured, NearerRoof, verdict
from traceflops.mfu.traced.work_tables import KernelRow, OpRow
from traceflops.reports.view.figures import (
    UNKNOWN,
    apportioned,
    as_float,
    bandwidth,
    count,
    duration,
    flops,
    percent,
    significant,
    size,
)
from traceflops.reports.view.texts import words
from traceflops.units import PART_NAMES, several
from traceflops.units import exact_percent as use_percent

T = TypeVar("T")

THOUSAND: Final = 1000
AT_MOST: Final = "≤ "  # before a figure that is an upper bound
AT_LEAST: Final = "≥ "  # before a lower bound
ABOVE: Final = (
    "Above 100 %: several kernels shared the work, or the algorithm needs fewer products "
    "(Winograd, FFT)."
)
"""Why a kernel may seem to exceed the peak."""
SLOW: Final = "slow"
_RULES: Final = 3

_TEXTS: Final = {
    UNSPLIT: "executed FLOPs at peak, purpose unknown: HFU",
    "useful": "model FLOPs at peak: MFU",
    "recompute": "forward work repeated in the backward pass",
    "algorithmic": "scores in the backward pass of flash attention",
    "overcompute": "work whose results are discarded",
    "unattributed": "compute kernels whose FLOPs are unknown",
    "inefficiency": "time beyond their FLOPs at peak",
    "memory": "copies, elementwise, norm, softmax, optimizer kernels",
    "other": "kernels that match no rule",
    "graph": "graph launches without kernel records",
    "start_up": "first launches, loading code and the like",
    "communication": "communication while nothing else ran",
    "idle": "nothing ran",
}
LABELS: Final = {name: (PART_NAMES[name], text) for name, text in _TEXTS.items()}
"""Label and meaning of each line of the MFU waterfall, which splits the peak."""

_FIGURES: Final = (UNSPLIT, "useful")
"""Lines whose share is the HFU or MFU itself, which is printed with more digits."""


class UtilisationPart(Struct, frozen=True):
    """One line of the waterfall: its label, what it means (`text`), its share, also as `percent`.

    The `thousandths` of all lines are integers that sum to 1000, for drawing.
    """

    name: str
    thousandths: int
    share: Fraction
    label: str
    text: str
    percent: str


def parts(fall: Waterfall) -> list[UtilisationPart]:
    """Return the lines that are not 0, useful work first."""
    lines = [line for line in fall.lines if line.amount]
    widths = apportioned([line.amount for line in lines], THOUSAND)
    shown = []
    for line, width in zip(lines, widths, strict=True):
        share = Fraction(line.amount, fall.budget)
        text = use_percent(share) if line.name in _FIGURES else percent(float(share))
        shown.append(UtilisationPart(line.name, width, share, *LABELS[line.name], text))
    return shown


def bounds_sentence(measured: Measurement) -> str:
    """Return a sentence that the waterfall shows upper bounds, "" if all FLOPs are exact."""
    bounds = measured.mfu_range or measured.hfu_range
    if bounds is None or measured.is_exact:
        return ""
    what = "Useful work" if measured.mfu_range is not None else "Executed work"
    return (
        f"Some FLOPs are known only as a range; upper bounds are shown. {what} is at least "
        f"{use_percent(bounds.least)}; the rest would be compute below peak."
    )


def why_not(measured: Measurement, *, is_asked: bool = False) -> list[str]:
    """Return what is missing for an MFU; that nothing is of a model only if it `is_asked` for."""
    lines = []
    for lack in measured.lacks:
        if is_asked or lack not in UNLESS_ASKED:
            how = fact("missing.describe-ml") if lack == NOT_ML else lack.how
            lines.append(words(fact("missing.line", what=lack.what, how=how)))
    return lines


class Fact(Struct, frozen=True):
    """One figure with its name and a remark."""

    label: str
    value: str
    remark: str = ""


def facts(analysis: Analysis) -> Iterator[Fact]:
    """Yield the figures behind a utilisation; amounts are means per window."""
    measured, executed = analysis.measured, analysis.measured.executed
    windows = max(analysis.windows_used, 1)
    if measured.hfu_range is not None:
        padding = ", padding included" if executed.unsplit_flops else ""
        yield Fact("HFU", measured.hfu_range.text, f"all executed FLOPs{padding}")
    if measured.busy_range is not None:
        yield Fact("busy MFU", measured.busy_range.text, "without idle time")
    if executed.executed_flops:
        yield _executed(measured, windows)
        yield from _recomputed(measured, windows)
        if executed.coverage is not None:
            yield Fact("counted", percent(as_float(executed.coverage)), "of compute kernel time")
    if executed.work is not None:
        yield from _by_recordings(executed.work)
    # Work in either TF32 or FP32 has no known peak: which of the two it was is unknown.
    counted = executed.dtypes - {TF32_OR_FP32}
    peaks = {
        (device.product, "given" if device.given else f"{dtype} dense", rate)
        for device in measured.devices
        for dtype, rate in device.rates.items()
        if dtype in counted
    }
    for product, kind, rate in sorted(peaks):
        value = f"{significant(Fraction(rate, PER_TERA), 5)} TFLOP/s"
        yield Fact("peak", value, f"{kind}, {product}")
    if measured.inference is not None:
        yield from _inference(measured.inference)
    if executed.outside.vector_flops and executed.executed_flops:
        remark = "not part of MFU or HFU"
        yield Fact("vector work", _mean(executed.outside.vector_flops, windows), remark)
    ghosts = executed.outside.count("ghost", "cached")
    if ghosts:
        remark = "recorded without computing a result"
        yield Fact("not executed", several(ghosts, "operator"), remark)


def _recomputed(measured: Measurement, windows: int) -> Iterator[Fact]:
    """Yield the recomputed FLOPs, if any, and the operators by the rule that recognised them."""
    rules = measured.executed.rules("recompute")  # rule -> number of operators, FLOPs
    if rules:
        flops_in_all = sum(amount for _, amount in rules.values())
        operators = [
            f"{several(-(-number // windows), 'operator')} by {rule}"  # rounded up
            for rule, (number, _) in sorted(rules.items())
        ]
        remark = f"{', '.join(operators)} (page Executed FLOPs of a trace)"
        yield Fact("recomputed", _mean(flops_in_all, windows), remark)


def _by_recordings(work: MeasuredWork) -> Iterator[Fact]:
    """Yield for how many launches other recordings know FLOPs, and whether two sources agree."""
    for join in work.joins:
        if join.launches:  # else there is no compute kernel whose FLOPs could be known
            known = f"{count(join.known)} of {count(join.launches)}"
            file = f"; {join.file}" if join.file else ""
            share = percent(as_float(join.share))
            remark = f"compute kernel launches, {share} of their time{file}"
            yield Fact(_JOINED[join.origin], known, remark)
    check = work.check
    if check is not None:
        difference = "agree"
        if check.difference:
            sign = "-" if check.difference < 0 else "+"
            difference = f"{sign}{percent(abs(float(check.difference)))}"
        remark = f"over {several(check.launches, 'launch')} known to both"
        yield Fact("counters vs shapes", difference, remark)


_JOINED: Final = {"counters": "from counters", "pair": "from the pair"}


def _mean(amount: int, windows: int) -> str:
    return flops(Fraction(amount) / windows)


def _executed(measured: Measurement, windows: int) -> Fact:
    """Return the executed FLOPs per window, those of the model, and bounds if not exact."""
    executed = measured.executed
    mark, remarks = "", []
    if not measured.is_exact:
        mark = AT_MOST
        remarks.append(f"at least {_mean(executed.executed_at_least, windows)}")
    unsplit = executed.unsplit_flops
    if executed.model_flops or not unsplit:
        remarks.append(f"model {mark}{_mean(executed.model_flops, windows)}")
    if unsplit:
        # Without known FLOPs of the model all are unsplit: their number is the value itself.
        amount = f"of {_mean(unsplit, windows)} " if executed.model_flops else ""
        remarks.append(f"{amount}including recomputation and padding, split unknown")
    value = f"{mark}{_mean(executed.executed_flops, windows)}"
    return Fact("executed", value, "; ".join(remarks))


def rate_words(work: Measured, peak: int | None) -> tuple[str, str, str]:
    """Return the rate in TFLOP/s, the share of the peak, and FLOP per byte, a dash if unknown.

    Upper bounds are marked with ≤.
    """
    rate, intensity = work.flops_per_ns, work.intensity
    share = work.share_of_peak(peak) if rate else None
    mark = "" if work.is_exact else AT_MOST.strip()
    return (
        f"{mark}{significant(rate / THOUSAND, zeros=True)}" if rate else UNKNOWN,
        f"{mark}{percent(float(share))}" if share else UNKNOWN,
        f"{mark}{significant(intensity, zeros=True)}" if intensity else UNKNOWN,
    )


def rate(row: KernelRow) -> str:
    """Return how fast a kernel or copy ran, with its unit, "" if unknown or if copies are tiny."""
    work = row.measured
    # The time of a tiny copy is that of its launch.
    if row.category.sub in ("copy", "memset") and are_small(work.min_bytes, row.counted):
        return ""
    if work.flops_per_ns:
        mark = "" if work.is_exact else AT_MOST
        return f"{mark}{significant(work.flops_per_ns / THOUSAND, 3)} TFLOP/s"
    if not work.bytes_per_ns:
        return ""
    # Counters and records of copies have the bytes that moved; shapes have the least possible.
    mark = "" if row.basis in ("counters", "record") else AT_LEAST
    return f"{mark}{bandwidth(work.bytes_per_ns)}"


def figure_of(analysis: Analysis) -> str:
    """Return MFU or HFU as text, "" if unknown or of a run that the profiler serialized."""
    return "" if analysis.recorded == "serialized" else analysis.measured.figure or ""


def rates(measured: Measurement) -> dict[str, str]:
    """Return the known rates of kernels and copies, with units, by name."""
    named_rates = ((kernel_name(row.name), rate(row)) for row in measured.kernels)
    return {name: text for name, text in named_rates if text}


def _inference(inference: Inference) -> Iterator[Fact]:
    """Yield the tokens or passes of each phase, and its MBU (memory bandwidth utilisation)."""
    for phase in inference.phases:
        name = phase.kind or "passes"
        tokens = "" if phase.queries is None else several(phase.queries, "token")
        rules = "; ".join(words(rule) for rule, _ in phase.rules[:_RULES])
        passes = several(phase.passes, "pass")
        yield Fact(name, tokens or passes, f"{passes}: {rules}" if tokens else rules)
        if phase.kind == "prefill":  # bound by compute, not by the bandwidth
            continue
        remark = f"bytes known for {percent(as_float(phase.coverage))} of kernel time"
        if phase.mbu is not None:
            moved = f"at least {size(phase.moved.total)} in {duration(phase.time_ns)}"
            remark = f"{moved}; {remark}"
        elif not phase.possible:
            remark = "bandwidth unknown"
        yield Fact(f"{name} MBU", percent(as_float(phase.mbu)), remark)


def roofline(measured: Measurement, row: KernelRow | OpRow) -> NearerRoof | None:
    """Return which roof (peak, memory or link) is nearer to a kernel or operator.

    None if its rates are unknown, or over what its bytes move (`row.path`).
    """
    if row.path is None:
        return None
    if row.path != "memory":  # a copy over a link
        return NearerRoof("interconnect", "record")
    work, (peak, bandwidth) = row.measured, roof(measured, row.dtypes)
    category, basis = None, None
    if isinstance(row, KernelRow):
        category, basis = row.category, row.basis
    basis = basis or "shapes"  # operators are counted by their shapes
    if work.flops == 0 and work.min_bytes and bandwidth:
        return NearerRoof("memory", basis)  # also if the peak is unknown
    return verdict(work, peak, bandwidth, category, basis)


def share_of_roof(measured: Measurement, row: KernelRow | OpRow) -> Fraction | None:
    """Return the share of its nearer roof that some work reaches, None if unknown."""
    nearer = roofline(measured, row)
    if nearer is None:
        return None
    peak, _ = roof(measured, row.dtypes)
    share = {
        "compute": row.measured.share_of_peak(peak),
        "memory": share_of_bandwidth(measured, row),
        "interconnect": share_of_link(measured, row),
    }[nearer.bound]
    # A category only says which roof is usually nearer: far below it, the other one may be nearer.
    is_unsure = nearer.basis == "category" and (share is None or share < BOUND_FROM)
    return None if is_unsure else share


def bound_word(measured: Measurement, row: KernelRow | OpRow) -> str:
    """Return which roof bounds some work, SLOW if it stays far below its roof, "" if unknown."""
    nearer, share = roofline(measured, row), share_of_roof(measured, row)
    if nearer is None or share is None:
        return ""
    return nearer.bound if share >= BOUND_FROM else SLOW


def recoverable_ns(measured: Measurement, row: KernelRow) -> int | None:
    """Return the ns that a kernel would save at its roof, None if unknown or above the roof."""
    share = share_of_roof(measured, row)
    return None if share is None or share > 1 else int(row.measured.time_ns * (1 - share))


def roof(measured: Measurement, dtypes: tuple[str, ...] = ()) -> tuple[int | None, int | None]:
    """Return the peak of `dtypes` (FLOP per ns; default: all) and the bandwidth (bytes per ns).

    Each is None if it is unknown or not the same for all devices and types.
    """
    counted = dtypes or tuple(measured.executed.dtypes)
    peaks = {device.rates.get(dtype) for device in measured.devices for dtype in counted}
    bandwidths = {device.bandwidth for device in measured.devices}
    return _only(peaks), _only(bandwidths)


def _only(values: set[T | None]) -> T | None:
    """Return the only value of a set, None if it has several or none."""
    return next(iter(values)) if len(values) == 1 else None


def share_of_bandwidth(measured: Measurement, row: KernelRow | OpRow) -> Fraction | None:
    """Return the share of the memory's bandwidth that is used, None if bytes move over a link."""
    _, bandwidth = roof(measured)
    return row.measured.share_of_bandwidth(bandwidth) if row.path == "memory" else None


def share_of_link(measured: Measurement, row: KernelRow | OpRow) -> Fraction | None:
    """Return the share of the host link's bandwidth that is used, None if bytes move elsewhere."""
    link = _only({device.host_bandwidth for device in measured.devices})
    return row.measured.share_of_bandwidth(link) if row.path == "host" else None
