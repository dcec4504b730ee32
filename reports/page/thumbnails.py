"""The evidence of a finding as a small drawing: an idle gap, ranks, kernels or steps.

Positions and lengths are in percent of the drawing, so that it fits a card of any width.
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

_COLUMNS: Final = 120  # resolution of areas
_AROUND: Final = 0.6  # of the length of an idle gap: how much is shown before and after it
_MOST_ROWS: Final = 4
_MOST_DEVICES: Final = 64
_GAP, _LABELS = 1.2, 18.0
"""Percent of the width: between boxes, and for the labels of rows."""
_NAME, _DEVICE = 30, 10  # characters of a name in a caption, and of a device's label
_WHOLE: Final = 100.0


class Shape(Struct, frozen=True):
    """A rectangle in percent; `look` is a component, "ink" for what stands out, or "track".

    A track shows the full length of a bar behind its filled part.
    """

    x: float
    y: float
    width: float
    height: float
    look: str


class Thumbnail(Struct, frozen=True):
    """A drawing with its caption and link.

    Areas are a component and an SVG path each; labels are the y of their middle, and a text.
    """

    caption: str
    link: str
    shapes: tuple[Shape, ...] = ()
    areas: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[float, str], ...] = ()


def thumbnail(analysis: Analysis, finding: Finding, component: str) -> Thumbnail | None:
    """Return the first drawing that has data; `component` is the one that the finding is about."""
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
    chosen = [devices[index] for index in sorted(most_and_least(devices, _MOST_ROWS))]
    longest_ns = max(device.chosen.components.window_ns for device in chosen)
    if not longest_ns:
        return None
    shapes, labels, width_of_ns = [], [], (_WHOLE - _LABELS) / longest_ns
    for (y, height), device in zip(_rows(len(chosen)), chosen, strict=True):
        exposed = device.chosen.components.communication_ns * width_of_ns
        own = device.chosen.components.window_ns * width_of_ns - exposed
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
    """Return the top and the height of each of so many rows, with room between them."""
    apart = _WHOLE / max(number, 1)
    height = round(apart * 0.72, 2)
    return [(round(apart * row + apart * 0.14, 2), height) for row in range(number)]


def _gap(analysis: Analysis, finding: Finding) -> Thumbnail | None:
    """Return the work around the gap that a finding is about, on the first device idle then."""
    where = finding.where
    if not analysis.has_events or where.start_ns is None or where.end_ns is None:
        return None
    ends_ns = np.array([where.start_ns, where.end_ns])
    for device in analysis.devices_used[:_MOST_DEVICES]:
        account = analysis.prepared.accounts[device.device]
        busy_until_start, busy_until_end = account.timeline.busy.covered_before(ends_ns)
        if busy_until_start == busy_until_end:  # idle from start to end
            break
    else:
        return None
    gap_ns = where.end_ns - where.start_ns
    margin_ns = int(gap_ns * _AROUND)
    shown_from_ns, shown_ns = where.start_ns - margin_ns, gap_ns + 2 * margin_ns
    gap = Intervals.one(where.start_ns, where.end_ns)
    starting, waiting = account.start_up.intersect(gap), gap.subtract(account.start_up)
    shapes = []
    for times, look in ((waiting, CULPRIT), (starting, "start_up")):
        for start, end in zip(times.start_ns.tolist(), times.end_ns.tolist(), strict=True):
            x = round(_WHOLE * (start - shown_from_ns) / shown_ns, 2)
            shapes.append(Shape(x, 0, round(_WHOLE * (end - start) / shown_ns, 2), _WHOLE, look))
    start_up = f"start-up for {duration(starting.length_ns)}, " if len(starting) else ""
    idle, shown = duration(waiting.length_ns), duration(shown_ns)
    starts_ns = [gap.start_ns for gap in analysis.gaps(MOST_GAPS)]
    has_row = where.start_ns in starts_ns
    return Thumbnail(
        f"GPU idle for {idle}, {start_up}{shown} shown",
        f"gap={starts_ns.index(where.start_ns) + 1}" if has_row else "idle",
        tuple(shapes),
        _areas(account.timeline.parts, shown_from_ns, shown_ns),
    )


def _areas(
    parts: Mapping[str, Intervals], start_ns: int, length_ns: int
) -> tuple[tuple[str, str], ...]:
    """Return SVG paths of components' stacked shares of the time, without idle, uppermost first."""
    edges_ns = start_ns + np.arange(_COLUMNS + 1) * length_ns // _COLUMNS
    shares = {
        name: np.diff(parts[name].covered_before(edges_ns)) / np.diff(edges_ns)
        for name in COMPONENTS
        if name != "idle" and name in parts
    }
    areas = []
    for name, heights in zip(shares, accumulate(shares.values()), strict=True):
        if heights.any():
            tops = np.round(_WHOLE * (1 - heights), 1)
            path = (f"V{y:g}H{column * _WHOLE / _COLUMNS:.4g}" for column, y in enumerate(tops, 1))
            areas.append((name, f"M0 100{''.join(path)}V100Z"))
    # A path is filled down to the bottom: the lower areas are drawn later, over the upper ones.
    return tuple(reversed(areas))


def _kernels(analysis: Analysis, finding: Finding, look: str) -> Thumbnail | None:
    """Return kernels as boxes: width is time, height the share of the roof that they reach."""
    names = {row.name for row in finding.rows}
    kernels = [
        (row, share)
        for row in analysis.measured.kernels
        if row_name(row.name) in names and (share := share_of_roof(analysis.measured, row))
    ][:_MOST_ROWS]
    total_ns = sum(row.measured.time_ns for row, _ in kernels)
    if not total_ns:
        return None
    shapes, x = [], 0.0
    for row, share in kernels:
        width = row.measured.time_ns * (_WHOLE - _GAP * (len(kernels) - 1)) / total_ns
        height = min(float(share), 1) * _WHOLE
        shapes += [
            Shape(round(x, 2), 0, round(width, 2), _WHOLE, "track"),
            Shape(round(x, 2), round(_WHOLE - height, 2), round(width, 2), round(height, 2), look),
        ]
        x += width + _GAP
    _, first_share = kernels[0]
    caption = f"{percent(float(first_share))} of the roof; width is time, height the share reached"
    return Thumbnail(caption, "roofline", tuple(shapes))


def _largest_rows(analysis: Analysis, finding: Finding, look: str) -> Thumbnail | None:
    """Return the rows of evidence as bars with their mean time per window, the first in ink."""
    rows = finding.rows[:_MOST_ROWS]
    if len(rows) < 2 or not rows[0].time_ns:  # one bar compares nothing
        return None
    width_of_ns = (_WHOLE - _LABELS) / max(row.time_ns for row in rows)
    shapes, labels = list[Shape](), []
    for row, (y, height) in zip(rows, _rows(len(rows)), strict=True):
        width = round(row.time_ns * width_of_ns, 2)
        shapes.append(Shape(_LABELS, y, width, height, look if shapes else "ink"))
        labels.append((y + height / 2, duration(analysis.mean_ns(row.time_ns))))
    caption = f"largest: {shorten_middle(function_name(rows[0].name), _NAME)}"
    return Thumbnail(caption, finding.evidence[0], tuple(shapes), labels=tuple(labels))


def _steps(analysis: Analysis, component: str) -> Thumbnail | None:
    """Return the steps as bars, with the component that a finding is about on top of each."""
    bars = drawn_bars(window_rows(analysis.devices), MOST_SMALL)
    longest_ns = max((bar.components.window_ns for bar in bars), default=0)
    if len(bars) < 2 or not longest_ns:
        return None
    apart = (_WHOLE + _GAP) / len(bars)
    width = round(max(apart - _GAP, 0.2), 2)  # bars of very many steps stay visible
    shapes: list[Shape] = []
    for number, bar in enumerate(bars):
        x, height = round(number * apart, 2), _WHOLE * bar.components.window_ns / longest_ns
        top = _WHOLE * bar.components.parts()[component] / longest_ns
        shapes += [
            Shape(x, round(_WHOLE - height + top, 2), width, round(height - top, 2), "track"),
            Shape(x, round(_WHOLE - height, 2), width, round(top, 2), component),
        ]
    return Thumbnail(f"{PART_NAMES[component]} of each step, on top", "steps", tuple(shapes))
