"""What a trace says of utilisation, in words and rows: the same in the terminal and on the page."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Final, TypeVar

from msgspec import Struct

from traceflops.analysis.result import Analysis
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
AT_MOST: Final = "≤ "  # before a figure that is the upper one of two bounds
AT_LEAST: Final = "≥ "  # before one that is the lower
ABOVE: Final = (
    "Above 100 %: several kernels shared the work, or the algorithm needs fewer products "
    "(Winograd, FFT)."
)
"""What explains a share of the peak that nothing can reach."""
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
"""The lines of a waterfall: what they are called, and what they are."""

_FIGURES: Final = (UNSPLIT, "useful")
"""Lines that are a utilisation themselves: they have its digits."""


class UtilisationPart(Struct, frozen=True):
    """One line of the waterfall: what it is called and means, its share, also in words.

    The `thousandths` of all lines, for drawing, sum to 1000.
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
    """Return a sentence that the lines show upper bounds, "" if all counts are exact."""
    bounds = measured.mfu_range or measured.hfu_range
    if bounds is None or measured.is_exact:
        return ""
    what = "Useful work" if measured.mfu_range is not None else "Executed work"
    return (
        f"Some FLOPs are known only as a range; upper bounds are shown. {what} is at least "
        f"{use_percent(bounds.least)}; the rest would be compute below peak."
    )


def why_not(measured: Measurement, *, is_asked: bool = False) -> list[str]:
    """Return why there is no MFU; that nothing is of a model only if one is asked for."""
    lacks = [lack for lack in measured.lacks if is_asked or lack not in UNLESS_ASKED]
    hows = [fact("missing.describe-ml") if lack == NOT_ML else lack.how for lack in lacks]
    return [
        words(fact("missing.line", what=lack.what, how=how))
        for lack, how in zip(lacks, hows, strict=True)
    ]


class Fact(Struct, frozen=True):
    """One figure with its name and a remark."""

    label: str
    value: str
    remark: str = ""


def facts(analysis: Analysis) -> Iterator[Fact]:
    """Yield the figures behind a utilisation; amounts are means per window."""
    measured, done = analysis.measured, analysis.measured.executed
    windows = max(analysis.windows_used, 1)
    if measured.hfu_range is not None:
        padding = ", padding included" if done.unsplit_flops else ""
        yield Fact("HFU", measured.hfu_range.text, f"all executed FLOPs{padding}")
    if measured.busy_range is not None:
        yield Fact("busy MFU", measured.busy_range.text, "without idle time")
    if done.executed_flops:
        yield _executed(measured, windows)
        rules = done.rules("recompute")  # rule -> number of operators, FLOPs
        by = [
            f"{several(-(-number // windows), 'operator')} by {rule}"  # rounded up
            for rule, (number, _) in sorted(rules.items())
        ]
        if rules:
            total = sum(amount for _, amount in rules.values())
            remark = f"{', '.join(by)} (page Executed FLOPs of a trace)"
            yield Fact("recomputed", _mean(total, windows), remark)
        if done.coverage is not None:
            yield Fact("counted", percent(as_float(done.coverage)), "of compute kernel time")
    if done.work is not None:
        yield from _by_recordings(done.work)
    counted = done.dtypes - {TF32_OR_FP32}  # which of the two rates is not known
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
    if done.outside.vector_flops and done.executed_flops:
        remark = "not part of MFU or HFU"
        yield Fact("vector work", _mean(done.outside.vector_flops, windows), remark)
    ghosts = done.outside.count("ghost", "cached")
    if ghosts:
        remark = "recorded without computing a result"
        yield Fact("not executed", several(ghosts, "operator"), remark)


def _by_recordings(work: MeasuredWork) -> Iterator[Fact]:
    """Yield how many launches other recordings have FLOPs of, and whether two sources agree."""
    for join in work.joins:
        if join.launches:  # else the chosen windows have no compute kernel that could be known
            known = f"{count(join.known)} of {count(join.launches)}"
            file = f"; {join.file}" if join.file else ""
            share = percent(as_float(join.share))
            remark = f"compute kernel launches, {share} of their time{file}"
            yield Fact(_JOINED[join.origin], known, remark)
    check = work.check
    if check is not None:
        sign = "-" if check.difference < 0 else "+"
        apart = f"{sign}{percent(abs(float(check.difference)))}" if check.difference else "agree"
        remark = f"over {several(check.launches, 'launch')} known to both"
        yield Fact("counters vs shapes", apart, remark)


_JOINED: Final = {"counters": "from counters", "pair": "from the pair"}


def _mean(amount: int, windows: int) -> str:
    return flops(Fraction(amount) / windows)


def _executed(measured: Measurement, windows: int) -> Fact:
    """Return the executed FLOPs, and of them those of the model; if not exact, their bounds."""
    done = measured.executed
    total, model = _mean(done.executed_flops, windows), _mean(done.model_flops, windows)
    unsplit = done.unsplit_flops
    mark = "" if measured.is_exact else AT_MOST
    remarks = [] if measured.is_exact else [f"at least {_mean(done.executed_at_least, windows)}"]
    if done.model_flops or not unsplit:  # if all are unsplit, none are known to be of the model
        remarks.append(f"model {mark}{model}")
    if unsplit:
        # If all are unsplit, their number is the total, which is said already.
        amount = f"of {_mean(unsplit, windows)} " if done.model_flops else ""
        remarks.append(f"{amount}including recomputation and padding, split unknown")
    return Fact("executed", f"{mark}{total}", "; ".join(remarks))


def rate_words(work: Measured, peak: int | None) -> tuple[str, str, str]:
    """Return the rate in TFLOP/s, the share of the peak, and FLOP per byte, a dash if unknown.

    Upper ends of ranges are marked with ≤.
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
    """Return how fast a kernel or copy ran, "" if unknown, or if copies are tiny."""
    work = row.measured
    if row.category.sub in ("copy", "memset") and are_small(work.min_bytes, row.counted):
        return ""
    if work.flops_per_ns:
        mark = "" if work.is_exact else AT_MOST
        return f"{mark}{significant(work.flops_per_ns / THOUSAND, 3)} TFLOP/s"
    # Counters and records of copies count the bytes that moved; shapes only tell the least.
    mark = "" if row.basis in ("counters", "record") else AT_LEAST
    return f"{mark}{bandwidth(work.bytes_per_ns)}" if work.bytes_per_ns else ""


def rates(measured: Measurement) -> dict[str, str]:
    """Return the rate of the kernels and copies of each name; names without one are left out."""
    known = ((row.name, rate(row)) for row in measured.kernels)
    return {name: text for name, text in known if text}


def _inference(inference: Inference) -> Iterator[Fact]:
    """Yield the tokens or passes of each phase, and its use of the bandwidth if that limits it."""
    for phase in inference.phases:
        name = phase.kind or "passes"
        tokens = "" if phase.queries is None else several(phase.queries, "token")
        rules = "; ".join(words(rule) for rule, _ in phase.rules[:_RULES])
        passes = several(phase.passes, "pass")
        yield Fact(name, tokens or passes, f"{passes}: {rules}" if tokens else rules)
        if phase.kind != "prefill":  # which compute limits
            known = f"bytes known for {percent(as_float(phase.coverage))} of kernel time"
            moved = f"at least {size(phase.moved.total)} in {duration(phase.time_ns)}"
            if phase.mbu is None:  # the bytes or the bandwidth are unknown
                remark = known if phase.possible else "bandwidth unknown"
            else:
                remark = f"{moved}; {known}"
            yield Fact(f"{name} MBU", percent(as_float(phase.mbu)), remark)


def roofline(measured: Measurement, row: KernelRow | OpRow) -> NearerRoof | None:
    """Return which roof is nearer to some work, None if its rates or path are unknown.

    `row.path` is what its bytes move over; the basis of the answer is what its figures are from.
    """
    if row.path is None:
        return None
    if row.path != "memory":  # a copy over a link, as its record says
        return NearerRoof("interconnect", "record")
    work, (peak, bandwidth) = row.measured, roof(measured, row.dtypes)
    category, basis = None, None
    if isinstance(row, KernelRow):
        category, basis = row.category, row.basis
    basis = basis or "shapes"  # those of operators
    if work.flops == 0 and work.min_bytes and bandwidth:
        return NearerRoof("memory", basis)  # whatever the peak
    return verdict(work, peak, bandwidth, category, basis)


def share_of_roof(measured: Measurement, row: KernelRow | OpRow) -> Fraction | None:
    """Return the share that some work reaches of its nearer roof, None if that is unknown."""
    nearer = roofline(measured, row)
    if nearer is None:
        return None
    peak, _ = roof(measured, row.dtypes)
    share = {
        "compute": row.measured.share_of_peak(peak),
        "memory": share_of_bandwidth(measured, row),
        "interconnect": share_of_link(measured, row),
    }[nearer.bound]
    # A category only tells which roof is usually nearer; far below it, the other one may be.
    unsure = nearer.basis == "category" and (share is None or share < BOUND_FROM)
    return None if unsure else share


def bound_word(measured: Measurement, row: KernelRow | OpRow) -> str:
    """Return what bounds some work, `SLOW` where it stays far below its roof, "" if unknown."""
    nearer, share = roofline(measured, row), share_of_roof(measured, row)
    if nearer is None or share is None:
        return ""
    return nearer.bound if share >= BOUND_FROM else SLOW


def recoverable_ns(measured: Measurement, row: KernelRow) -> int | None:
    """Return the time that a kernel would save at its roof, None if unknown or above the roof."""
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
    """Return the value of a set of one, None for any other set."""
    return next(iter(values)) if len(values) == 1 else None


def share_of_bandwidth(measured: Measurement, row: KernelRow | OpRow) -> Fraction | None:
    """Return the bandwidth used as a share of the memory's, None if bytes move over a link."""
    _, bandwidth = roof(measured)
    return row.measured.share_of_bandwidth(bandwidth) if row.path == "memory" else None


def share_of_link(measured: Measurement, row: KernelRow | OpRow) -> Fraction | None:
    """Return the bandwidth used as a share of the host link's, None if bytes move elsewhere."""
    link = _only({device.host_bandwidth for device in measured.devices})
    return row.measured.share_of_bandwidth(link) if row.path == "host" else None
