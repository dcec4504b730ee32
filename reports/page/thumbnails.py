"""The evidence of a finding as a small drawing: a stretch of time, ranks, kernels or steps.

Places and lengths are in percent of the drawing, so that it fits a card of any width.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.analysis.result import Analysis
from traceflops.characters import function_name
from traceflops.findings.finding import Finding, row_name
from traceflops.reports.page.overview import MOST_GAPS
from traceflops.reports.page.steps import MOST_SMALL, drawn_bars, window_rows
from traceflops.reports.view.figures import duration, percent, shorten_middle
from traceflops.reports.view.step_split import CULPRIT
from traceflops.reports.view.utilisation import share_of_roof
from traceflops.timeline.intervals import Intervals
from traceflops.timeline.records import COMPONENTS
from traceflops.units import PART_NAMES
from traceflops.windows.step_times import most_and_least

_COLUMNS: Final = 120
_AROUND: Final = 0.6  # how much of its own length is shown before and after a stretch of time
_MOST_ROWS: Final = 4
_MOST_DEVICES: Final = 64
_GAP, _LABELS, _NAME = 1.2, 18.0, 30
_DEVICE: Final = 10  # characters of a device's label that fit in the room of _LABELS
_WHOLE: Final = 100.0


class Shape(Struct, frozen=True):
    """A rectangle, in percent; `look` is a component, "ink", or "track" for the unfilled rest."""

    x: float
    y: float
    width: float
    height: float
    look: str


class Thumbnail(Struct, frozen=True):
    """A drawing, caption and link; areas are SVG paths, labels have their middle from above."""

    caption: str
    link: str
    shapes: tuple[Shape, ...] = ()
    areas: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[float, str], ...] = ()


def thumbnail(analysis: Analysis, finding: Finding, component: str) -> Thumbnail | None:
    """Return the first drawing that the recording has data for; `component` colours kernels."""
    return (
        _ranks(analysis, finding)
        or _gap(analysis, finding)
        or _kernels(analysis, finding, component)
        or _largest_rows(analysis, finding, component)
        or _steps(analysis, component)
    )


def _ranks(analysis: Analysis, finding: Finding) -> Thumbnail | None:
    """Return a bar per device with most or least own time, that of the late rank in ink."""
    devices = analysis.devices_used
    if finding.where.rank is None or len(devices) < 2:
        return None
    chosen = [devices[at] for at in sorted(most_and_least(devices, _MOST_ROWS))]
    longest = max(one.chosen.components.window_ns for one in chosen)
    if not longest:
        return None
    shapes, labels, room = [], [], (_WHOLE - _LABELS) / longest
    for (y, height), device in zip(_rows(len(chosen)), chosen, strict=True):
        exposed = device.chosen.components.communication_ns * room
        own = device.chosen.components.window_ns * room - exposed
        look = "ink" if device.rank == finding.where.rank else "idle"
        shapes += [
            Shape(_LABELS, y, round(own, 2), height, look),
            Shape(round(_LABELS + own, 2), y, round(exposed, 2), height, "communication"),
        ]
        label = shorten_middle(device.rank_text or device.label, _DEVICE)
        labels.append((y + height / 2, label))
    caption = "own time, then exposed communication"
    return Thumbnail(caption, "ranks", tuple(shapes), labels=tuple(labels))


def _rows(number: int) -> list[tuple[float, float]]:
    """Return the top and the height of so many rows, with room between them."""
    apart = _WHOLE / max(number, 1)
    return [
        (round(apart * place + apart * 0.14, 2), round(apart * 0.72, 2)) for place in range(number)
    ]


def _gap(analysis: Analysis, finding: Finding) -> Thumbnail | None:
    """Return the work around the gap that a finding is about, on the first device idle then."""
    at, prepared = finding.where, analysis.prepared
    if prepared is None or at.start_ns is None or at.end_ns is None:
        return None
    ends = np.array([at.start_ns, at.end_ns])
    for used in analysis.devices_used[:_MOST_DEVICES]:
        account = prepared.accounts[used.device]
        busy_before, busy_until_end = account.timeline.busy.covered_before(ends)
        if busy_before == busy_until_end:  # idle from start to end
            break
    else:
        return None
    gap_ns = at.end_ns - at.start_ns
    before_ns = int(gap_ns * _AROUND)
    start_ns, length_ns = at.start_ns - before_ns, gap_ns + 2 * before_ns
    gap = Intervals.one(at.start_ns, at.end_ns)
    starting, waiting = account.start_up.intersect(gap), gap.subtract(account.start_up)
    boxes = []
    for times, look in ((waiting, CULPRIT), (starting, "start_up")):
        for start, end in zip(times.start_ns.tolist(), times.end_ns.tolist(), strict=True):
            x, width = (round(_WHOLE * ns / length_ns, 2) for ns in (start - start_ns, end - start))
            boxes.append(Shape(x, 0, width, _WHOLE, look))
    and_start_up = f"start-up for {duration(starting.length_ns)}, " if len(starting) else ""
    idle, shown = duration(waiting.length_ns), duration(length_ns)
    caption = f"GPU idle for {idle}, {and_start_up}{shown} shown"
    starts = [gap.start_ns for gap in analysis.gaps(MOST_GAPS)]
    return Thumbnail(
        caption,
        f"gap={starts.index(at.start_ns) + 1}" if at.start_ns in starts else "idle",
        tuple(boxes),
        _areas(account.timeline.parts, start_ns, length_ns),
    )


def _areas(
    parts: Mapping[str, Intervals], start_ns: int, length_ns: int
) -> tuple[tuple[str, str], ...]:
    """Return components with their area (share of time that is work) as SVG path, top first."""
    edges = start_ns + np.arange(_COLUMNS + 1) * length_ns // _COLUMNS
    shares = [
        (name, np.diff(parts[name].covered_before(edges)) / np.diff(edges))
        for name in COMPONENTS
        if name != "idle" and name in parts
    ]
    areas = []
    for (name, _), heights in zip(shares, accumulate(share for _, share in shares), strict=True):
        if heights.any():
            tops = np.round(_WHOLE * (1 - heights), 1)
            path = (f"V{y:g}H{column * _WHOLE / _COLUMNS:.4g}" for column, y in enumerate(tops, 1))
            areas.append((name, f"M0 100{''.join(path)}V100Z"))
    return tuple(reversed(areas))


def _kernels(analysis: Analysis, finding: Finding, look: str) -> Thumbnail | None:
    """Return kernels as boxes: width is time, height the share of the roof that they reach."""
    named = {row.name for row in finding.rows}
    found = [
        (row, share)
        for row in analysis.measured.kernels
        if row_name(row.name) in named and (share := share_of_roof(analysis.measured, row))
    ][:_MOST_ROWS]
    total = sum(row.measured.time_ns for row, _ in found)
    if not total:
        return None
    shapes, x = [], 0.0
    for row, share in found:
        width = row.measured.time_ns * (_WHOLE - _GAP * (len(found) - 1)) / total
        height = min(float(share), 1) * _WHOLE
        shapes += [
            Shape(round(x, 2), 0, round(width, 2), _WHOLE, "track"),
            Shape(round(x, 2), round(_WHOLE - height, 2), round(width, 2), round(height, 2), look),
        ]
        x += width + _GAP
    words = f"{percent(float(found[0][1]))} of the roof; width is time, height the share reached"
    return Thumbnail(words, "roofline", tuple(shapes))


def _largest_rows(analysis: Analysis, finding: Finding, look: str) -> Thumbnail | None:
    """Return the rows of evidence as bars: mean time per window, the first in ink."""
    rows = finding.rows[:_MOST_ROWS]
    if len(rows) < 2 or not rows[0].time_ns:  # one bar compares nothing
        return None
    room = (_WHOLE - _LABELS) / max(row.time_ns for row in rows)
    places = _rows(len(rows))
    shapes = (
        Shape(_LABELS, y, round(row.time_ns * room, 2), height, "ink" if at == 0 else look)
        for at, (row, (y, height)) in enumerate(zip(rows, places, strict=True))
    )
    labels = (
        (y + height / 2, duration(analysis.mean_ns(row.time_ns)))
        for row, (y, height) in zip(rows, places, strict=True)
    )
    caption = f"largest: {shorten_middle(function_name(rows[0].name), _NAME)}"
    return Thumbnail(caption, finding.evidence[0], tuple(shapes), labels=tuple(labels))


def _steps(analysis: Analysis, part: str) -> Thumbnail | None:
    """Return the steps as bars, with the component that a finding is about on top of each."""
    bars = drawn_bars(window_rows(analysis.devices), MOST_SMALL)
    longest = max((bar.components.window_ns for bar in bars), default=0)
    if len(bars) < 2 or not longest:
        return None
    width = (_WHOLE + _GAP) / len(bars)
    shapes: list[Shape] = []
    wide = round(max(width - _GAP, 0.2), 2)  # of very many, each is still seen
    for number, bar in enumerate(bars):
        x, whole = round(number * width, 2), _WHOLE * bar.components.window_ns / longest
        top = _WHOLE * bar.components.parts()[part] / longest
        shapes += [
            Shape(x, round(_WHOLE - whole + top, 2), wide, round(whole - top, 2), "track"),
            Shape(x, round(_WHOLE - whole, 2), wide, round(top, 2), part),
        ]
    return Thumbnail(f"{PART_NAMES[part]} of each step, on top", "steps", tuple(shapes))
