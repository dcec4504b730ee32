"""The roofline of a trace as a drawing: rate over intensity, both on logarithmic scales.

Positions are in units of the drawing, which the template only prints. Intensities are upper bounds:
the true place of a dot may be farther left, never farther right.
"""

from __future__ import annotations

import math
from fractions import Fraction
from heapq import nlargest
from itertools import cycle
from operator import attrgetter
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from traceflops.analysis.result import Analysis
from traceflops.devices.peaks import PER_TERA
from traceflops.mfu.measurement import Measurement
from traceflops.mfu.traced.work_tables import KernelRow
from traceflops.reports.page.axes import Tick
from traceflops.reports.view.figures import (
    count,
    duration,
    kernel_text,
    percent,
    shorten_middle,
    significant,
)
from traceflops.reports.view.utilisation import recoverable_ns, roof, roofline, share_of_roof
from traceflops.reports.view.wording import listed
from traceflops.units import several

WIDTH, NARROW, HEIGHT = 760, 344, 340
MARGIN: Final = 300  # room for labels beside a wide drawing
NUMBERS: Final = 14  # room for numbers beside a narrow drawing, which has its labels below
LEFT, RIGHT, TOP, BOTTOM = 58, 16, 30, 44
_MOST_DOTS: Final = 60
_MOST_LABELS, _LONGEST_LABEL, _LINE = 5, 24, 15
_MOST_DECADES, _SHORT = 9, 2.5
_SPARE: Final = 0.15
"""Decades that are free above the highest value; twice as many are free below the lowest."""
_SLOPE_SHOWN: Final = 10
"""The axis begins at the lowest balance divided by this, so that the memory's slope is visible."""
_SMALLEST, _LARGEST = 3.0, 17.0  # radii; the area of a dot is its share of the time of all dots

_DASHES: Final = ("", "5 3", "1.5 2.5", "8 3 2 3")
"""Dash patterns of roofs and of the edges of their dots, the highest roof first, then repeated."""


class Roof(Struct, frozen=True):
    """A line that no kernel can exceed: its ends, its text, and its dash pattern."""

    x1: float
    y1: float
    x2: float
    y2: float
    text: str
    dash: str = ""

    @property
    def angle(self) -> float:
        """The angle at which it rises, in degrees."""
        return round(math.degrees(math.atan2(self.y1 - self.y2, self.x2 - self.x1)), 1)


class Dot(Struct, frozen=True):
    """One kernel, with the dash pattern of its roof; a `label` is in the margin at `label_y`."""

    x: float
    y: float
    radius: float
    component: str
    name: str
    text: str
    dash: str = ""
    label: str = ""
    label_y: float = 0


class RooflinePlot(Struct, frozen=True):
    """The drawing.

    `ridges` are where the slope of the memory meets the roofs: left of them, memory is the limit.
    `held` has per roof its data types, its number of dots, and its balance: the FLOP per byte from
    which kernels can reach it.
    """

    width: int
    xs: list[Tick]
    ys: list[Tick]
    slope: Roof
    flats: list[Roof]
    ridges: list[Tick]
    dots: list[Dot]
    source: str
    held: list[tuple[str, int, str]]

    @property
    def components(self) -> list[str]:
        """The components whose colours the dots have."""
        drawn = {dot.component for dot in self.dots}
        return [name for name in ("compute", "memory", "other") if name in drawn]


class _Axis(Struct, frozen=True):
    """A logarithmic scale from 10^low at `start` to 10^high at `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the position of a value; values beyond the scale are at its edge."""
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return round(self.start + min(max(share, 0.0), 1.0) * (self.end - self.start), 1)

    def ticks(self) -> list[Tick]:
        """Return a tick per power of ten; on less than _SHORT decades also at 2 and 5 times it."""
        steps = (1, 2, 5) if self.high - self.low < _SHORT else (1,)
        powers = range(math.floor(self.low), math.ceil(self.high))
        values = [step * 10.0**power for power in powers for step in steps]
        inside = [value for value in values if self.low <= math.log10(value) <= self.high]
        return [Tick(self.at(value), significant(value)) for value in inside]


def roofline_plot(measured: Measurement, width: int = WIDTH) -> RooflinePlot | None:
    """Return the drawing, or None if no kernel can be placed or devices have different peaks."""
    rows, peaks, _ = placed_kernels(measured)
    _, bandwidth = roof(measured)
    if not rows or not peaks or not bandwidth:
        return None
    balances = [peak / bandwidth for peak in peaks.values()]
    lowest = min(balances) / _SLOPE_SHOWN
    across = _axis([lowest, *balances, *map(_intensity, rows)], LEFT, width - RIGHT)
    rates = [*(peak / PER_TERA for peak in peaks.values()), *map(_rate, rows)]
    rates.append(lowest * bandwidth / PER_TERA)
    up = _axis(rates, HEIGHT - BOTTOM, TOP)
    # Data types with equal peaks share a roof; the highest comes first.
    types_of_peak: dict[int, list[str]] = {}
    for dtype, peak in sorted(peaks.items(), key=lambda item: -item[1]):
        types_of_peak.setdefault(peak, []).append(dtype)
    dashes = dict(zip(types_of_peak, cycle(_DASHES)))
    # The memory roof runs from where it enters the drawing, at the left or below, to the top roof.
    enters = max(10**across.low, 10**up.low * PER_TERA / bandwidth)
    slope = Roof(
        across.at(enters),
        up.at(enters * bandwidth / PER_TERA),
        across.at(max(types_of_peak) / bandwidth),
        up.at(max(types_of_peak) / PER_TERA),
        f"{bandwidth:,} GB/s",
    )
    flats, ridges, held = [], [], []
    for peak, dtypes in types_of_peak.items():
        balance, height = peak / bandwidth, up.at(peak / PER_TERA)
        text = f"{listed(dtypes)} {significant(peak / PER_TERA)} TFLOP/s"
        flats.append(Roof(across.at(balance), height, across.end, height, text, dashes[peak]))
        ridges.append(Tick(across.at(balance), significant(balance, 3)))
        below = sum(set(row.dtypes) <= set(dtypes) for row in rows)
        held.append((listed(dtypes), below, significant(balance, 3)))
    total_ns, dots = sum(row.measured.time_ns for row in rows), []
    for row in rows:
        dash = dashes[peaks[row.dtypes[0]]]  # all types of a placed kernel have the same peak
        dots.append(_dot(measured, row, across, up, total_ns, dash))
    # Devices with different peaks have no roofs, so the first device stands for all.
    device = measured.devices[0]
    spec = device.match.spec
    table = f"{spec.product}: {spec.source}" if spec is not None else device.product
    return RooflinePlot(
        width=width,
        xs=across.ticks(),
        ys=up.ticks(),
        slope=slope,
        flats=flats,
        ridges=ridges,
        dots=dots,
        source=f"peak as given, {table}" if device.given else table,
        held=held,
    )


def reach_plot(
    analysis: Analysis, width: int = WIDTH, margin: int = NUMBERS
) -> dict[str, Any] | None:
    """Return kernels by time and share of their roof (area: time to save), None if unknown."""
    measured = analysis.measured
    # The axis is logarithmic: it has no place for a time of 0.
    known = ((row, share_of_roof(measured, row)) for row in measured.kernels if row.sum_ns)
    rows = [(row, share) for row, share in known if share is not None][:_MOST_DOTS]
    if not rows:
        return None
    right = width - RIGHT - margin
    across = _axis([analysis.mean_ns(row.sum_ns) for row, _ in rows], LEFT, right)
    saved_ns = {row.name: recoverable_ns(measured, row) or 0 for row, _ in rows}
    most_ns = max(saved_ns.values()) or 1
    dots = {}
    for row, share in rows:
        mean_ns, own_ns = analysis.mean_ns(row.sum_ns), saved_ns[row.name]
        saved = duration(analysis.mean_ns(own_ns))
        text = f"{duration(mean_ns)}, {percent(float(share))} of its roof, {saved} recoverable"
        # Half as large as in the roofline, as there are labels beside the dots.
        radius = round(max(_LARGEST * math.sqrt(own_ns / most_ns) / 2, _SMALLEST), 1)
        x, y = across.at(mean_ns), _height(share)
        dots[row.name] = Dot(x, y, radius, row.category.top, row.name, text)
    # Label the largest dots, from above, at least a line apart.
    largest = nlargest(_MOST_LABELS, dots.values(), key=lambda dot: saved_ns[dot.name])
    label_y = -math.inf
    for dot in sorted((dot for dot in largest if saved_ns[dot.name]), key=attrgetter("y")):
        label_y = max(dot.y + 4, label_y + _LINE)
        name = shorten_middle(kernel_text(dot.name).partition("<")[0], _LONGEST_LABEL)
        label = f"{name} {duration(analysis.mean_ns(saved_ns[dot.name]))}"
        dots[dot.name] = replace(dot, label=label, label_y=label_y)
    xs = [  # the texts of the ticks are ns
        replace(tick, text=duration(float(tick.text.replace(",", "")))) for tick in across.ticks()
    ]
    ys = [Tick(_height(Fraction(quarter, 4)), f"{25 * quarter} %") for quarter in range(5)]
    return {"width": width, "right": right, "xs": xs, "ys": ys, "dots": list(dots.values())}


def _height(share: Fraction) -> float:
    """Return the y of a share of the roof; shares above 1 are drawn at 1."""
    return round(HEIGHT - BOTTOM - float(min(share, Fraction(1))) * (HEIGHT - BOTTOM - TOP), 1)


def drawn_sentence(analysis: Analysis) -> str:
    """Return a sentence on how many kernels the roofline shows, and their share of GPU time."""
    kernels, _, placed = placed_kernels(analysis.measured)
    names = {row.name for row in kernels}
    rows = [row for row in analysis.kernels.to_pylist() if row["kind"] == "kernel"]
    all_kernels = len({row["name"] for row in rows})
    shares = [row["share"] for row in rows if row["name"] in names]
    time = f" ({percent(sum(shares))} of GPU time)" if None not in shares else ""
    if all_kernels <= len(names):
        return f"All kernels are shown{time}."
    if placed > len(names):
        which = f"the top {count(len(names))} of {count(placed)} with known FLOPs and bytes"
        return f"Showing {which}, of {several(all_kernels, 'kernel')}{time}."
    others = "others lack FLOPs or bytes"
    return f"Showing {count(len(names))} of {several(all_kernels, 'kernel')}{time}; {others}."


def placed_kernels(measured: Measurement) -> tuple[list[KernelRow], dict[str, int], int]:
    """Return the kernels to draw, the peaks of their types in FLOP/s, and how many have a place."""
    dtypes = sorted({dtype for row in measured.kernels if _rate(row) for dtype in row.dtypes})
    peaks = {dtype: roof(measured, (dtype,))[0] for dtype in dtypes}
    placed = []
    for row in measured.kernels:
        own_peaks = {peaks.get(dtype) for dtype in row.dtypes}
        has_peak = len(own_peaks) == 1 and any(own_peaks)
        if has_peak and row.measured.intensity and row.measured.time_ns:
            placed.append(row)
    drawn = placed[:_MOST_DOTS]
    used = {dtype for row in drawn for dtype in row.dtypes}
    return drawn, {name: peak for name, peak in peaks.items() if name in used and peak}, len(placed)


def _intensity(row: KernelRow) -> float:
    """Return the FLOP per byte of a kernel, 0 if unknown."""
    return float(row.measured.intensity or 0)


def _rate(row: KernelRow) -> float:
    """Return the TFLOP/s of a kernel, 0 if unknown."""
    return float(row.measured.flops_per_ns or 0) / PER_TERA


def _axis(values: list[float], start: float, end: float) -> _Axis:
    """Return a scale for these values, at most _MOST_DECADES long; lower values are at its edge."""
    logs = [math.log10(value) for value in values if value > 0]
    high = max(logs) + _SPARE
    return _Axis(max(min(logs) - 2 * _SPARE, high - _MOST_DECADES), high, start, end)


def _dot(
    measured: Measurement, row: KernelRow, across: _Axis, up: _Axis, total_ns: int, dash: str
) -> Dot:
    """Return the dot of a kernel; its area is the kernel's share of `total_ns`."""
    work, bound = row.measured, roofline(measured, row)
    radius = max(_LARGEST * math.sqrt(work.time_ns / total_ns), _SMALLEST)
    text = (
        f"{significant(_rate(row), 3)} TFLOP/s at {significant(_intensity(row), 3)} FLOP/B, "
        f"{listed(row.dtypes)}, {duration(work.time_ns)}"
    )
    return Dot(
        across.at(_intensity(row)),
        up.at(_rate(row)),
        round(radius, 1),
        bound.bound if bound is not None else "other",
        row.name,
        text,
        dash,
    )
