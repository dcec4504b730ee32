"""The section on memory: what was allocated and reserved over time, and what the peak was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import Struct

from traceflops.analysis.result import Analysis
from traceflops.memory.usage import Curve, Holder, MemoryUse, holders, memory_use
from traceflops.reports.page import overview
from traceflops.reports.page.axes import Tick, round_above
from traceflops.reports.view.figures import UNKNOWN, count, duration, percent, place, size
from traceflops.reports.view.wording import process_label
from traceflops.units import several
from traceflops.windows.records import DeviceReport

MOST_ROWS: Final = 32
MOST_DRAWN: Final = 8
_MOST_HOLDERS: Final = 8
LEAST_DRAWN: Final = 1 << 20  # bytes; a curve whose peak is lower is not drawn
_WIDTH, _HEIGHT = 860, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 14, 12, 30
EDGES: Final = {
    "width": _WIDTH,
    "height": _HEIGHT,
    "left": _LEFT,
    "right": _RIGHT,
    "top": _TOP,
    "bottom": _BOTTOM,
}
_MOST_STEPS: Final = 60
_X_TICKS, _Y_TICKS = 6, 4
_LABEL_ROOM: Final = 12  # units that stay free behind the number of a step


class PeakHeld(NamedTuple):
    """What one device holds at its peak, by allocating code: its first rows, and all others."""

    label: str
    peak: int
    rows: list[Holder]
    others: int
    others_bytes: int


class MemoryPage(Struct, frozen=True):
    """The section on memory.

    `rows` are the first of `total`, `plots` the first of `drawn_of` curves; `low` counts curves
    with a peak too low to draw. Times count from `counts_from`. In a plot, `allocated`, the `area`
    below it and `reserved` are SVG paths in units of the drawing.
    """

    rows: list[dict[str, Any]]
    total: int
    plots: list[dict[str, Any]]
    drawn_of: int
    low: int
    sentences: list[str]
    counts_from: str
    held: PeakHeld | None


def memory_page(analysis: Analysis) -> MemoryPage | None:
    """Return the section, or None if the trace has no memory events."""
    if analysis.prepared is None:
        return None
    used, devices = memory_use(analysis.prepared), analysis.devices
    if not used:
        return None
    # Times of a process count from its first activity, or its first allocation if it has none; with
    # aligned clocks all count from the first one.
    clocks, first = overview.clocks(analysis), dict[int, int]()
    for use in used:
        start_ns = int(use.allocated.curve.time_ns[0])
        first[use.process] = min(start_ns, first.get(use.process, start_ns))
    if clocks.aligned:
        starts = clocks.of_process.values() or first.values()
        first = dict.fromkeys(first, min(starts))
    else:
        first |= clocks.of_process
    ordered: Sequence[MemoryUse] = used  # if some are left out, the highest peaks come first
    if len(used) > MOST_DRAWN:
        ordered = sorted(used, key=lambda use: (use.on_host, -use.allocated.peak))
    # A single value is no curve, and a very low one tells nothing.
    drawn = [
        use
        for use in ordered
        if len(use.allocated.curve.value) > 1 and use.allocated.peak >= LEAST_DRAWN
    ]
    # What the device with the highest peak holds at it, if that is recorded.
    most = max((u for u in used if not u.on_host), key=lambda u: u.allocated.peak, default=None)
    held = list(holders(analysis.prepared, most)) if most is not None else []
    at_peak = None
    if most is not None and any(holder.recorded for holder in held):
        shown, peak = held[:_MOST_HOLDERS], most.allocated.peak
        rest = peak - sum(holder.bytes for holder in shown)
        label = use_label(most, devices)
        at_peak = PeakHeld(label, peak, shown, len(held) - len(shown), rest)
    return MemoryPage(
        rows=[_row(use, devices, first[use.process]) for use in ordered[:MOST_ROWS]],
        total=len(ordered),
        plots=[_plot(use, devices, first[use.process]) for use in drawn[:MOST_DRAWN]],
        drawn_of=len(drawn),
        low=sum(use.allocated.peak < LEAST_DRAWN for use in ordered),
        sentences=list(_sentences(used)),
        counts_from=overview.counts_from(clocks) if clocks.of_process else "the first allocation",
        held=at_peak,
    )


def use_label(use: MemoryUse, devices: Sequence[DeviceReport]) -> str:
    """Return the label of a device or host, for a device as in the other tables."""
    of_device = (
        device.label for device in devices if not use.on_host and device.device == use.device
    )
    # Without a rank, the file tells processes apart. A memory snapshot has no devices, so no other
    # label names the file.
    rank = f"rank {use.rank}" if use.rank is not None else use.file * bool(devices)
    owner = process_label(devices, use.process, rank)
    without = "GPU without operations" if use.local_id is None else f"GPU {use.local_id}"
    what = "CPU" if use.on_host else without
    return next(of_device, " · ".join(filter(None, (owner, what))))


def _row(use: MemoryUse, devices: Sequence[DeviceReport], origin_ns: int) -> dict[str, Any]:
    """Return a row of the table: bytes, from 0 at the start if not `is_total`, and texts."""
    allocated, growth = use.allocated, UNKNOWN
    step = f", step {count(allocated.peak_step)}" if allocated.peak_step is not None else ""
    # How much more was allocated at the end of the last step than of the first.
    if (more := allocated.growth) is not None:
        first, last = allocated.steps[0], allocated.steps[-1]
        growth = f"none, steps {count(first.step)} to {count(last.step)}"
        if more:
            sign = "+" if more > 0 else "−"
            each = size(abs(more) // (len(allocated.steps) - 1), binary=True)
            total = f"{sign}{size(abs(more), binary=True)}"
            growth = f"{growth.replace('none', total)} ({sign}{each} per step)"
    return {
        "label": use_label(use, devices),
        "is_total": use.is_total,
        "first": allocated.first,
        "peak": allocated.peak,
        "last": allocated.last,
        "when": f"{place(allocated.peak_ns - origin_ns)}{step}",
        "reserved": use.reserved.peak if use.reserved is not None else None,
        "unused": use.unused_at_peak,
        "largest_free": use.largest_free,
        "device_bytes": use.device_bytes,
        "share": percent(use.share_of_device),
        "growth": growth,
    }


def _sentences(used: Sequence[MemoryUse]) -> Iterator[str]:
    """Yield sentences on what the numbers mean."""
    changes = sum(one.allocated.curve.changes for one in used)
    yield (
        f"{several(changes, 'allocation or free', 'allocations and frees')}, made by the CPU "
        "before the kernels run."
    )
    if any(one.is_total for one in used):
        yield (
            "Allocated: held by tensors. Reserved: taken from the GPU by the allocator. Memory of "
            "other libraries and processes is not recorded."
        )
    if any(not one.is_total for one in used):
        yield (
            "Rows marked * count from 0 at the start of the recording; freeing earlier allocations "
            "makes them negative."
        )
    if any(len(one.allocated.curve.value) < one.allocated.curve.changes for one in used):
        yield "Long curves are downsampled; peaks are kept."


def _plot(use: MemoryUse, devices: Sequence[DeviceReport], origin_ns: int) -> dict[str, Any]:
    """Return the plot of a device or host in units of the drawing; times are from `origin_ns`."""
    curves = [use.allocated.curve, *([use.reserved.curve] if use.reserved is not None else [])]
    low_ns = int(min(curve.time_ns[0] for curve in curves))
    high_ns = int(max(curve.time_ns[-1] for curve in curves))
    x = _Scale(low_ns, max(high_ns, low_ns + 1), _LEFT, _WIDTH - _RIGHT)
    top = int(max(curve.value.max() for curve in curves))
    bottom = min(0, int(min(curve.value.min() for curve in curves)))
    y = _Scale(bottom, max(top, bottom + 1), _HEIGHT - _BOTTOM, _TOP)
    # Ticks at multiples of a round time since the origin, which may lie before or inside the plot.
    apart_ns = round_above((high_ns - low_ns) / _X_TICKS)
    first = -((origin_ns - low_ns) // apart_ns)
    times = (n * apart_ns for n in range(first, first + 3 * _X_TICKS))
    label = use_label(use, devices)
    allocated = _path(use.allocated.curve, x, y, high_ns)
    peak = size(use.allocated.peak, binary=True)
    held = f", peak {size(use.reserved.peak, binary=True)} reserved" if use.reserved else ""
    # Ticks at multiples of a round number of KiB, MiB, ...
    unit = 1024 ** max(0, (max(top, -bottom, 1).bit_length() - 1) // 10)
    apart = max(1, int(unit * round_above((top - bottom) / unit / _Y_TICKS) or unit))
    sizes = [n * apart for n in range(-(-bottom // apart), top // apart + 1)]
    # Steps begin at marks, numbered where there is room; there is none if there are too many.
    marks, free = [], float(_LEFT)
    for mark in use.allocated.steps if len(use.allocated.steps) <= _MOST_STEPS else ():
        begin = x.at(mark.start_ns)
        if _LEFT <= begin <= _WIDTH - _RIGHT:
            text = f"step {mark.step}" if begin >= free else ""
            free = begin + _LABEL_ROOM + 6 * len(text) if text else free  # 6: about one letter
            marks.append(Tick(begin, text))
    # The area is the path with a line from zero up to its start and from its end down to zero:
    # "M74 50H80..." becomes "M74 180V50H80...V180".
    zero = y.at(0)
    start, _, rest = allocated.partition(" ")
    return {
        "label": label,
        "alternative": f"{label}: peak {peak} allocated{held}",
        "allocated": allocated,
        "area": f"{start} {zero:g}V{rest}V{zero:g}",
        "reserved": _path(use.reserved.curve, x, y, high_ns) if use.reserved is not None else "",
        "xs": [
            Tick(x.at(origin_ns + ns), f"−{duration(-ns)}" if ns < 0 else duration(ns))
            for ns in times
            if low_ns <= origin_ns + ns <= high_ns
        ],
        "ys": [Tick(y.at(amount), size(amount, binary=True)) for amount in sizes],
        "steps": marks,
        "peak_x": x.at(use.allocated.peak_ns),
        "peak_y": y.at(use.allocated.peak),
        "remark": "" if use.is_total else "change since recording start",
    }


class _Scale(Struct, frozen=True):
    """A linear scale from two values to two places of the drawing."""

    low: int
    high: int
    start: float
    end: float

    def at(self, value: int) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


def _path(curve: Curve, x: _Scale, y: _Scale, end_ns: int) -> str:
    """Return an SVG path of steps: each value holds until the next one, the last until `end_ns`."""
    xs = x.start + (curve.time_ns - x.low) / (x.high - x.low) * (x.end - x.start)
    ys = y.start + (curve.value - y.low) / (y.high - y.low) * (y.end - y.start)
    places = zip(np.round(xs, 1).tolist(), np.round(ys, 1).tolist(), strict=True)
    at_x, at_y = next(places)
    pieces = [f"M{at_x:g} {at_y:g}"]
    for next_x, next_y in places:
        if next_x != at_x:
            pieces.append(f"H{next_x:g}")
        if next_y != at_y:
            pieces.append(f"V{next_y:g}")
        at_x, at_y = next_x, next_y
    return "".join([*pieces, f"H{x.at(end_ns):g}"])
