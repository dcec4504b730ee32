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
from traceflops.windows.prepared import Prepared
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
_LABEL_ROOM: Final = 12  # units that are free behind the number of a step


class PeakHeld(NamedTuple):
    """What a device holds at its peak, by allocating code: the largest holders, and all others.

    `is_state`: of what was held before the only time that is recorded, nothing is known.
    """

    label: str
    peak: int
    rows: list[Holder]
    others: int
    others_bytes: int
    is_state: bool


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
    uses, devices = memory_use(analysis.prepared), analysis.devices
    if not uses:
        return None
    # Times of a process count from its first activity, or its first allocation if it has none. With
    # aligned clocks, all count from the first of these.
    clocks, origin_ns = overview.clocks(analysis), dict[int, int]()
    for use in uses:
        start_ns = int(use.allocated.curve.time_ns[0])
        origin_ns[use.process] = min(start_ns, origin_ns.get(use.process, start_ns))
    if clocks.aligned:
        starts_ns = clocks.of_process.values() or origin_ns.values()
        origin_ns = dict.fromkeys(origin_ns, min(starts_ns))
    else:
        origin_ns |= clocks.of_process
    ordered: Sequence[MemoryUse] = uses
    if len(uses) > MOST_DRAWN:  # some are left out: those with the lowest peaks
        ordered = sorted(uses, key=lambda use: (use.on_host, -use.allocated.peak))
    # A single value is no curve, and a very low curve tells nothing.
    drawn = [
        use
        for use in ordered
        if len(use.allocated.curve.value) > 1 and use.allocated.peak >= LEAST_DRAWN
    ]
    return MemoryPage(
        rows=[_row(use, devices, origin_ns[use.process]) for use in ordered[:MOST_ROWS]],
        total=len(ordered),
        plots=[_plot(use, devices, origin_ns[use.process]) for use in drawn[:MOST_DRAWN]],
        drawn_of=len(drawn),
        low=sum(use.allocated.peak < LEAST_DRAWN for use in ordered),
        sentences=list(_sentences(uses)),
        counts_from=overview.counts_from(clocks) if clocks.of_process else "the first allocation",
        held=_held(analysis.prepared, uses, devices),
    )


def _held(
    prepared: Prepared, uses: Sequence[MemoryUse], devices: Sequence[DeviceReport]
) -> PeakHeld | None:
    """Return what the GPU with the highest peak holds at it, None if that is not recorded."""
    gpus = [use for use in uses if not use.on_host]
    most = max(gpus, key=lambda use: use.allocated.peak, default=None)
    all_holders = list(holders(prepared, most)) if most is not None else []
    if most is None or not any(holder.recorded for holder in all_holders):
        return None
    shown, peak = all_holders[:_MOST_HOLDERS], most.allocated.peak
    others_bytes = peak - sum(holder.bytes for holder in shown)
    others = len(all_holders) - len(shown)
    is_state = most.allocated.is_state and not devices
    return PeakHeld(use_label(most, devices), peak, shown, others, others_bytes, is_state)


def use_label(use: MemoryUse, devices: Sequence[DeviceReport]) -> str:
    """Return the label of a device or host; of a device with work, as in the other tables."""
    if not use.on_host:
        for device in devices:
            if device.device == use.device:
                return device.label
    # Without ranks, the file distinguishes processes; a memory snapshot without devices is a single
    # file.
    rank = f"rank {use.rank}" if use.rank is not None else use.file if devices else ""
    owner = process_label(devices, use.process, rank)
    gpu = "GPU without operations" if use.local_id is None else f"GPU {use.local_id}"
    return " · ".join(filter(None, (owner, "CPU" if use.on_host else gpu)))


def _row(use: MemoryUse, devices: Sequence[DeviceReport], origin_ns: int) -> dict[str, Any]:
    """Return a row of the table; bytes count from 0 at the start unless `is_total`."""
    allocated, growth = use.allocated, UNKNOWN
    step = f", step {count(allocated.peak_step)}" if allocated.peak_step is not None else ""
    growth_bytes = allocated.growth  # from the end of the first step to the end of the last one
    if growth_bytes is not None:
        first, last = allocated.steps[0], allocated.steps[-1]
        steps = f"steps {count(first.step)} to {count(last.step)}"
        growth = f"none, {steps}"
        if growth_bytes:
            sign = "+" if growth_bytes > 0 else "−"
            per_step = size(abs(growth_bytes) // (len(allocated.steps) - 1), binary=True)
            total = f"{sign}{size(abs(growth_bytes), binary=True)}"
            growth = f"{total}, {steps} ({sign}{per_step} per step)"
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


def _sentences(uses: Sequence[MemoryUse]) -> Iterator[str]:
    """Yield sentences on what the numbers mean."""
    changes = sum(use.allocated.curve.changes for use in uses)
    yield (
        f"{several(changes, 'allocation or free', 'allocations and frees')}, made by the CPU "
        "before the kernels run."
    )
    if any(use.is_total for use in uses):
        yield (
            "Allocated: held by tensors. Reserved: taken from the GPU by the allocator. Memory of "
            "other libraries and processes is not recorded."
        )
    if any(not use.is_total for use in uses):
        yield (
            "Rows marked * count from 0 at the start of the recording; freeing earlier allocations "
            "makes them negative."
        )
    if any(len(use.allocated.curve.value) < use.allocated.curve.changes for use in uses):
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
    label = use_label(use, devices)
    allocated, reserved, reserved_peak = _path(use.allocated.curve, x, y, high_ns), "", ""
    if use.reserved is not None:
        reserved = _path(use.reserved.curve, x, y, high_ns)
        reserved_peak = f", peak {size(use.reserved.peak, binary=True)} reserved"
    peak = size(use.allocated.peak, binary=True)
    # The area adds a line from zero up to the start of the path, and from its end down to zero:
    # "M74 50H80..." becomes "M74 180V50H80...V180".
    zero = y.at(0)
    start, _, after_start = allocated.partition(" ")
    return {
        "label": label,
        "alternative": f"{label}: peak {peak} allocated{reserved_peak}",
        "allocated": allocated,
        "area": f"{start} {zero:g}V{after_start}V{zero:g}",
        "reserved": reserved,
        "xs": _time_ticks(x, low_ns, high_ns, origin_ns),
        "ys": _size_ticks(y, bottom, top),
        "steps": _step_marks(use, x),
        "peak_x": x.at(use.allocated.peak_ns),
        "peak_y": y.at(use.allocated.peak),
        "remark": "" if use.is_total else "change since recording start",
    }


def _time_ticks(x: _Scale, low_ns: int, high_ns: int, origin_ns: int) -> list[Tick]:
    """Return ticks at multiples of a round time since the origin, which may be outside the plot."""
    apart_ns = round_above((high_ns - low_ns) / _X_TICKS)
    first = -((origin_ns - low_ns) // apart_ns)
    times_ns = (n * apart_ns for n in range(first, first + 3 * _X_TICKS))
    return [
        Tick(x.at(origin_ns + ns), f"−{duration(-ns)}" if ns < 0 else duration(ns))
        for ns in times_ns
        if low_ns <= origin_ns + ns <= high_ns
    ]


def _size_ticks(y: _Scale, bottom: int, top: int) -> list[Tick]:
    """Return ticks at multiples of a round number of KiB, MiB, ..."""
    unit = 1024 ** max(0, (max(top, -bottom, 1).bit_length() - 1) // 10)
    apart = max(1, int(unit * round_above((top - bottom) / unit / _Y_TICKS) or unit))
    sizes = [n * apart for n in range(-(-bottom // apart), top // apart + 1)]
    return [Tick(y.at(number), size(number, binary=True)) for number in sizes]


def _step_marks(use: MemoryUse, x: _Scale) -> list[Tick]:
    """Return the beginnings of steps, numbered where there is room; none if they are too many."""
    marks, free_from = [], float(_LEFT)
    for step in use.allocated.steps if len(use.allocated.steps) <= _MOST_STEPS else ():
        begin = x.at(step.start_ns)
        if _LEFT <= begin <= _WIDTH - _RIGHT:
            text = ""
            if begin >= free_from:
                text = f"step {step.step}"
                free_from = begin + _LABEL_ROOM + 6 * len(text)  # 6: about one letter
            marks.append(Tick(begin, text))
    return marks


class _Scale(Struct, frozen=True):
    """A linear scale that maps two values to two positions in the drawing."""

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
    points = zip(np.round(xs, 1).tolist(), np.round(ys, 1).tolist(), strict=True)
    last_x, last_y = next(points)
    commands = [f"M{last_x:g} {last_y:g}"]
    for next_x, next_y in points:
        if next_x != last_x:
            commands.append(f"H{next_x:g}")
        if next_y != last_y:
            commands.append(f"V{next_y:g}")
        last_x, last_y = next_x, next_y
    return "".join([*commands, f"H{x.at(end_ns):g}"])
