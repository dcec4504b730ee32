"""The peaks of the devices of a trace, the budgets of its waterfall, and bounds of the work."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import cache, partial
from typing import Final

from msgspec import Struct

from traceflops.attribution.datatypes import UNKNOWN_TYPE
from traceflops.devices.device_facts import SeenDevice
from traceflops.devices.matching import REFERENCE, Match, chosen
from traceflops.devices.peaks import DTYPES, PER_TERA, find, rate_text
from traceflops.devices.user_rate import rate_doubt
from traceflops.facts import Fact, in_words
from traceflops.flops.mfu_waterfall import DeviceBudget, Peaks, Portion, Waterfall
from traceflops.flops.ops.arguments import TF32_OR_FP32
from traceflops.mfu.traced.cells import Cell
from traceflops.mfu.traced.executed import Executed
from traceflops.table.trace import Note, Trace, note_of
from traceflops.timeline.records import Components
from traceflops.units import decimal, exact_percent
from traceflops.windows.prepared import Prepared

FP6_OR_FP4: Final = "fp6-or-fp4"  # the type of products that hardware counts together
_RATES: Final[dict[str, tuple[str, ...]]] = {
    "fp64": ("fp64_matrix", "fp64"),
    "fp32": ("fp32_matrix", "fp32"),
    **{dtype: (dtype,) for dtype in ("tf32", "fp16", "bf16", "fp8", "fp6", "fp4", "int8")},
    FP6_OR_FP4: ("fp6",),  # as fast as each other where counters do not tell them apart
    TF32_OR_FP32: ("tf32",),  # the faster one: what is counted is then the least it can be
}
"""The rates of the device table that hold for products of a type; the first one that is known."""
_CLOCKS_AGREE: Final = Fraction(5, 100)
"""FLOPs by units and clock may be this share below the peak of the table without a note."""
_BOOST: Final = Fraction(30, 100)
"""They may be this share above it: boost clocks are up to 23 % above those of stated peaks."""


class PeakOptions(Struct, frozen=True):
    """What the user says about the devices; a field is None if the user did not give it.

    `device` is an id of the table of devices, `tflops` a dense peak for all data types, `link` the
    bandwidth of a device's links in one direction, in GB/s.
    """

    device: str | None = None
    tflops: float | None = None
    link: float | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for an impossible device or peak: now, before a file is read."""
        if self.device is not None or self.tflops is not None:
            chosen(self.device, self.tflops, SeenDevice(None))


FROM_THE_TRACE: Final = PeakOptions()


class DevicePeaks(Struct, frozen=True):
    """The peaks of one device (its row): `rates` in FLOP/ns by data type, `bandwidth` in bytes/ns.

    `rates` is empty if the device is not certain; `match` says why. `given`: the user gave them.
    """

    device: int
    match: Match
    rates: Mapping[str, int]
    bandwidth: int | None
    given: bool

    @property
    def host_bandwidth(self) -> Fraction | None:
        """Return the bytes per ns of the link to the host, in one direction; None if unknown."""
        link = self.match.host_link
        return link.bandwidth if link is not None else None

    @property
    def product(self) -> str:
        """Return what the device is called in the table, or in the trace."""
        spec = self.match.spec
        return spec.product if spec is not None else self.match.seen.name or "unknown GPU"

    def doubt(self, dtypes: Collection[str]) -> Fact | None:
        """Return why a given rate may be wrong for the data types counted, None if it is not."""
        if self.match.spec is None or not self.given:
            return None
        row, rate = find(self.match.spec.id), next(iter(self.rates.values()), None)
        return rate_doubt(row, rate, dtypes) if row is not None and rate is not None else None

    @property
    def clock_note(self) -> Note | None:
        """Return a note if units x clock x FLOP per clock of the device is not its peak, else None.

        That rate may be up to 5 % less than the peak, or 30 % more: peaks are stated for a clock
        that devices hold, while some report the highest clock they can boost to.
        """
        rate, spec, seen = self.match.by_clock, self.match.spec, self.match.seen
        # A given rate replaces the table's, which alone is checked here.
        if rate is None or spec is None or self.given:
            return None
        # FLOP per clock in the table are for the first data type of REFERENCE that has a peak.
        dtype = next(dtype for dtype in REFERENCE if spec.peak(dtype))
        peak = spec.peak(dtype) or 1
        excess = rate / peak - 1
        if -_CLOCKS_AGREE <= excess <= _BOOST:
            return None
        return note_of(
            "assumed",
            f"peak-by-clock-differs{'.less' * (excess < 0)}",
            units=seen.counted_units(),
            ghz=decimal(Fraction(seen.clock_hz or 0, 10**9), 3),
            product=spec.product,
            per_clock=spec.flops_per_clock,
            rate=decimal(rate / PER_TERA, 1),
            dtype=dtype,
            apart=abs(excess),
            peak=rate_text(peak),
        )


def device_peaks(
    trace: Trace, devices: Iterable[int], options: PeakOptions = FROM_THE_TRACE
) -> tuple[DevicePeaks, ...]:
    """Return the peaks of some devices (rows of the trace). Raises UsageError for bad options."""
    rows, given = trace.devices.to_pylist(), options.tflops is not None
    matched = cache(partial(chosen, options.device, options.tflops))  # most devices are alike
    peaks = []
    for device in devices:
        match = matched(SeenDevice.of(rows[device]))
        rates = peaks_of(match)
        if given:  # the match has one rate for all types; kernels of unclear types have it, too
            known_rates = filter(None, map(match.peak, DTYPES))
            types = (*DTYPES, FP6_OR_FP4, TF32_OR_FP32, UNKNOWN_TYPE)
            rates = dict.fromkeys(types, next(known_rates))
        peaks.append(DevicePeaks(device, match, rates, match.bandwidth, given))
    return tuple(peaks)


def memory_peak(trace: Trace, options: PeakOptions = FROM_THE_TRACE) -> int | None:
    """Return the memory bandwidth in bytes/ns of all devices, or of the one that the user names."""
    seen = {*map(SeenDevice.of, trace.devices.to_pylist())} or {SeenDevice()}  # most are alike
    peaks = {chosen(options.device, None, device).bandwidth for device in seen}
    return peaks.pop() if len(peaks) == 1 else None


def peak_notes(done: Executed, devices: tuple[DevicePeaks, ...]) -> Iterator[Note]:
    """Yield notes on doubtful peaks of devices, given ones and those of the table, each once."""
    flops, counted = done.flops_by_type, done.dtypes
    for contradiction in dict.fromkeys(device.match.contradicts for device in devices):
        if contradiction is not None:
            text = f"{in_words(contradiction)}."  # every figure that needs a peak may be wrong
            yield Note("assumed", "device-contradicts-trace", text, share=1.0)
    dtypes = tuple(dtype for dtype in DTYPES if dtype in counted)
    for doubt in dict.fromkeys(device.doubt(dtypes) for device in devices):
        if doubt is not None:
            yield Note("assumed", "peak-in-doubt", f"{in_words(doubt)}.")
    # Where nothing was counted, nothing is held against a peak.
    yield from filter(None, dict.fromkeys(device.clock_note for device in devices if counted))
    share = Fraction(flops[TF32_OR_FP32], flops.total() or 1)
    # A given rate holds for all data types, so it does not matter which of the two it was.
    if share and not any(device.given for device in devices):
        yield note_of("assumed", "tf32-or-fp32", part=share)


def peaks_of(match: Match) -> dict[str, int]:
    """Return the known peaks of a device by data type of products, in FLOP per ns."""
    peaks = {}
    for dtype, rates in _RATES.items():
        if known := [peak for rate in rates if (peak := match.peak(rate)) is not None]:
            peaks[dtype] = known[0]
    return peaks


def device_budgets(
    prepared: Prepared, executed: Executed, peaks: Mapping[int, Peaks]
) -> tuple[DeviceBudget, ...]:
    """Return a budget per device: the parts of its chosen windows, and the FLOPs done in them."""
    work: defaultdict[int, list[Portion]] = defaultdict(list)
    for cell in executed.cells:
        if cell.window is not None and prepared.windows[cell.device][cell.window].used:
            portion = Portion(cell.line.split(".")[0], cell.component, cell.dtype, cell.flops)
            work[cell.device].append(portion)
    uncounted_ns: Counter[int] = Counter()
    for time in executed.times:
        if prepared.windows[time.device][time.window].used:
            uncounted_ns[time.device] += time.uncounted_ns
    budgets = []
    for device, windows in prepared.windows.items():
        parts = sum((w.account.components for w in windows if w.used), Components()).parts()
        done, rates = tuple(work[device]), peaks.get(device, {})
        budgets.append(DeviceBudget(parts, uncounted_ns[device], done, rates))
    return tuple(budgets)


class ShareRange(Struct, frozen=True):
    """The least and the most that a share can be.

    The FLOPs in a waterfall are upper bounds: masks and lengths that no profiler records may make
    them smaller. And compute time of unknown FLOPs may have been spent at the peak.
    """

    least: Fraction
    most: Fraction

    @property
    def text(self) -> str:
        """Return "38.2 %", or "34.7 % to 61.7 %" where the two print differently."""
        least, most = exact_percent(self.least), exact_percent(self.most)
        return least if least == most else f"{least} to {most}"

    def after(self, before: float, least: float, most: float) -> ShareRange | None:
        """Return the range once the time `before` is `least` to `most` instead; None if above 1."""
        if least <= 0:
            return None
        low, high = (Fraction(before) / Fraction(time) for time in (most, least))
        share = ShareRange(self.least * low, min(self.most * high, Fraction(1)))
        return share if share.least <= share.most else None


def count_bounds(
    cells: Iterable[Cell], fall: Waterfall, peaks: Mapping[int, Peaks]
) -> tuple[Fraction, Fraction]:
    """Return the factors (least, most) between which the FLOPs of some cells may really be.

    The least is below 1 where counts are upper bounds. The most is above 1 where products counted
    as TF32 may be FP32: at its lower peak they are a larger share of the budget. `peaks` are by
    device (its row) and data type.
    """
    flops: Counter[tuple[int, str]] = Counter()
    at_least: Counter[tuple[int, str]] = Counter()
    for cell in cells:
        flops[cell.device, cell.dtype] += cell.flops
        at_least[cell.device, cell.dtype] += cell.at_least
    least = counted = most = Fraction(0)
    for device, dtype in flops:
        rates = peaks[device]
        # FLOPs of several data types are weighted by their peaks: they add up as time at the peak.
        weight = Fraction(1) if len(fall.dtypes) == 1 else Fraction(1, rates[dtype])
        fp32 = rates.get("fp32") if dtype == TF32_OR_FP32 else None
        as_fp32 = Fraction(rates[TF32_OR_FP32], fp32) if fp32 else 1
        least += weight * at_least[device, dtype]
        counted += weight * flops[device, dtype]
        most += weight * flops[device, dtype] * as_fp32
    return (least / counted, most / counted) if counted else (Fraction(1), Fraction(1))
