"""The section on ranks: their own time against the median of all, and who is waited for.

A heat map shows the own time of each rank in each step as a multiple of the median of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.ranks import (
    FloatArray,
    OwnTimes,
    Straggler,
    most_and_least,
    own_ns,
    own_times,
    straggler,
)
from traceflops.reports.page.axes import Tick
from traceflops.reports.view import (
    UNKNOWN,
    count,
    duration,
    percent,
    short_labels,
    shorten_middle,
)
from traceflops.table import BoolArray
from traceflops.units import several

if TYPE_CHECKING:
    from traceflops.analysis import Analysis
    from traceflops.windows import DeviceReport

MOST_DEVICES: Final = 32
_MOST_BARS: Final = 80
_WORST_STEPS: Final = 3
_BARS_WIDTH, _BARS_HEIGHT = 320, 44
_LABEL: Final = 14
_MOST_ROWS, _MOST_COLUMNS, _MOST_TITLED = 64, 100, 600
_LEFT, _TOP, _WIDTH, _HEIGHT = 96, 4, 656, 288
_TALLEST: Final = 28
_LEAST_PER_LABEL_X, _LEAST_PER_LABEL_Y = 42, 14
_SCALES: Final = (
    (0.005, 0.01, 0.02),
    (0.01, 0.025, 0.05),
    (0.02, 0.05, 0.10),
    (0.05, 0.10, 0.20),
    (0.10, 0.25, 0.50),
    (0.25, 0.50, 1.00),
)
_OUTLIERS: Final = 99


@dataclass(frozen=True, slots=True)
class RankShown:
    """A row of the table and what unfolds: own time by step, a line for the medians, the worst.

    `link` is what follows # in a link to it; `each` is how many steps share a bar. `worst` are
    steps with their own time and how far that is from the median.
    """

    device: DeviceReport
    label: str
    own_ns: int
    link: str
    bars: str
    line: str
    each: int
    steps: int
    median_ns: int | None
    worst: list[tuple[int, int, str]]


@dataclass(frozen=True, slots=True)
class RanksPage:
    """The devices shown of `total`, the map of all of them, and a sentence on a straggler."""

    rows: list[RankShown]
    total: int
    straggler: str
    heat: HeatMap | None
    farthest: list[tuple[str, int, str]]

    @property
    def most(self) -> int:
        """Return how many devices are shown because they have most own time, 0 if all are."""
        return (len(self.rows) + 1) // 2 if self.total > len(self.rows) else 0


def ranks_page(analysis: Analysis) -> RanksPage:
    """Return what the section shows."""
    devices = analysis.devices
    times = own_times(devices)
    slow = straggler(devices)
    medians, linked = times.medians, set[int]()
    rows = [
        _shown(devices[place], times, medians, place, linked)
        for place in most_and_least(devices, MOST_DEVICES)
    ]
    labels = short_labels([device.rank_text or device.label for device in devices], _LABEL)
    return RanksPage(
        rows=rows,
        total=len(devices),
        straggler=_sentence(slow) if slow is not None else "",
        heat=heat_map(times, labels),
        farthest=_farthest_cells(times, labels),
    )


def _shown(
    device: DeviceReport, times: OwnTimes, medians: FloatArray, place: int, linked: set[int]
) -> RankShown:
    own = times.ns[place]
    known = np.flatnonzero(~np.isnan(own))
    bars, line, each = _bars(own[known], medians[known], float(np.nanmax(times.ns, initial=1)))
    link = "" if device.rank is None or device.rank in linked else f"rank={device.rank}"
    if device.rank is not None:
        linked.add(device.rank)
    return RankShown(
        device=device,
        label=device.label,
        own_ns=own_ns(device.chosen.components),
        link=link,
        bars=bars,
        line=line,
        each=each,
        steps=len(known),
        median_ns=round(float(np.median(own[known]))) if len(known) else None,
        worst=_worst(own, medians, times.steps),
    )


def _worst(
    own: FloatArray, medians: FloatArray, steps: Sequence[int]
) -> list[tuple[int, int, str]]:
    """Return the steps that took the most longer than the median, at most three."""
    more = np.where(np.isnan(own) | (medians <= 0), -1, own - medians)
    return [
        (steps[at], int(own[at]), _signed(float(own[at] / medians[at] - 1)))
        for at in _largest(more)
    ]


def _largest(values: FloatArray) -> list[int]:
    """Return the places of the largest values above 0, at most three."""
    order = np.argsort(-values, kind="stable")[:_WORST_STEPS].tolist()
    return [at for at in order if values[at] > 0]


def _bars(own: FloatArray, medians: FloatArray, most: float) -> tuple[str, str, int]:
    """Return the paths of the bars and of the medians' line, and how many steps share a bar."""
    each = max(1, -(-len(own) // _MOST_BARS))
    shown = [at + int(own[at : at + each].argmax()) for at in range(0, len(own), each)]
    if not shown:
        return "", "", 1
    wide, tall = _BARS_WIDTH / len(shown), _BARS_HEIGHT - 2
    gap = 1 if wide > 3 else 0
    bars, line = "", ""
    for place, at in enumerate(shown):
        left, high = place * wide, float(own[at]) / most * tall
        usual = _BARS_HEIGHT - float(medians[at]) / most * tall
        bars += f"M{left:.1f} {_BARS_HEIGHT}v{-high:.1f}h{wide - gap:.1f}v{high:.1f}z"
        line += f"{'L' if line else 'M'}{left:.1f} {usual:.1f}h{wide:.1f}"
    return bars, line, each


def _farthest_cells(times: OwnTimes, labels: Sequence[str]) -> list[tuple[str, int, str]]:
    """Return the cells of the map that are farthest from the median, at most three."""
    off = times.relative() - 1
    far = np.where(np.isnan(off), 0, np.abs(off)).ravel()
    places = (divmod(at, len(times.steps)) for at in _largest(far))
    return [
        (labels[row], times.steps[column], _signed(float(off[row, column])))
        for row, column in places
    ]


def _sentence(slow: Straggler) -> str:
    label = shorten_middle(slow.device.label, 40)
    more = f"{duration(slow.more_ns)} ({percent(slow.more_ns / slow.step_ns)} of a step)"
    text = (
        f"{label[:1].upper()}{label[1:]} is the slowest: {duration(slow.own_ns)} own time per "
        f"step, {more} above the median of the others; slowest in {count(slow.slowest_in)} of "
        f"{several(slow.steps, 'step')}."
    )
    if not slow.others_wait:
        return text
    return (
        f"{text} The others wait: {duration(slow.waited_ns)} more exposed communication per step."
    )


@dataclass(frozen=True, slots=True)
class Shade:
    """One colour: its class, from far below the median to far above it, its meaning, its cells.

    A cell is a place and a title. `path` draws them all where there are too many for titles, in
    columns and rows of the map.
    """

    name: str
    text: str
    number: int
    cells: list[tuple[float, float, str]]
    path: str


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The map; each cell stands for `ranks` rows and `steps` columns, the farthest one of them."""

    left: float
    top: float
    width: float
    height: float
    box_width: float
    box_height: float
    shades: list[Shade]
    rows: list[Tick]
    columns: list[Tick]
    ranks: int
    steps: int


def heat_map(times: OwnTimes, labels: Sequence[str]) -> HeatMap | None:
    """Return the map of several devices over several steps, None where either is alone."""
    if len(labels) < 2 or len(times.steps) < 2:
        return None
    off = times.relative() - 1
    if np.isnan(off).all():
        return None
    ranks, steps = -(-len(labels) // _MOST_ROWS), -(-len(times.steps) // _MOST_COLUMNS)
    cells = _farthest(off, ranks, steps)
    height, width = cells.shape
    box_width, box_height = _WIDTH / width, min(_TALLEST, _HEIGHT / height)
    rows, columns = _joined(labels, ranks), _joined([str(step) for step in times.steps], steps)
    return HeatMap(
        left=_LEFT,
        top=_TOP,
        width=_LEFT + _WIDTH + 8,
        height=_TOP + box_height * height + 24,
        box_width=round(box_width, 4),
        box_height=round(box_height, 4),
        shades=_shades(cells, box_width, box_height, rows, columns),
        rows=_ticks(rows, _TOP, box_height, _LEAST_PER_LABEL_Y),
        columns=_ticks(columns, _LEFT, box_width, _LEAST_PER_LABEL_X),
        ranks=ranks,
        steps=steps,
    )


def _farthest(off: FloatArray, ranks: int, steps: int) -> FloatArray:
    """Return, per block of cells, the one that is farthest from 0."""
    rows, columns = -(-off.shape[0] // ranks), -(-off.shape[1] // steps)
    padded = np.full((rows * ranks, columns * steps), np.nan)
    padded[: off.shape[0], : off.shape[1]] = off
    blocks = padded.reshape(rows, ranks, columns, steps).transpose(0, 2, 1, 3)
    flat = blocks.reshape(rows, columns, ranks * steps)
    far = np.where(np.isnan(flat), -1, np.abs(flat)).argmax(axis=2)
    farthest: FloatArray = np.take_along_axis(flat, far[:, :, None], axis=2)[:, :, 0]
    return farthest


def _shades(
    cells: FloatArray,
    box_width: float,
    box_height: float,
    rows: Sequence[str],
    columns: Sequence[str],
) -> list[Shade]:
    far = float(np.percentile(np.abs(cells[~np.isnan(cells)]), _OUTLIERS))
    scale = next((edges for edges in _SCALES if edges[-1] >= far), _SCALES[-1])
    edges = np.array([*(-edge for edge in reversed(scale)), *scale])
    shade = np.where(np.isnan(cells), -1, np.digitize(cells, edges))
    titled = cells.size <= _MOST_TITLED

    def cell(row: int, column: int) -> tuple[float, float, str]:
        x, y = round(_LEFT + column * box_width, 2), round(_TOP + row * box_height, 2)
        share = _signed(float(cells[row, column]))
        return x, y, f"{rows[row]}, step {columns[column]}: {share}"

    made = []
    for place, (name, text) in enumerate(_meanings(scale)):
        at = np.argwhere(shade == place).tolist()
        path = "" if titled else _path(shade == place)
        made.append(Shade(name, text, len(at), [cell(*each) for each in at if titled], path))
    return made


def _path(chosen: BoolArray) -> str:
    """Return a path around some cells of a map; neighbours in a row share a box."""
    edges = np.diff(np.pad(chosen.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    begins, ends = np.argwhere(edges == 1).tolist(), np.argwhere(edges == -1).tolist()
    return "".join(
        f"M{first} {row}h{stop - first}v1h-{stop - first}z"
        for (row, first), (_, stop) in zip(begins, ends, strict=True)
    )


def _meanings(scale: tuple[float, float, float]) -> list[tuple[str, str]]:
    near, far, most = (f"{100 * edge:g}" for edge in scale)
    minus = "\N{MINUS SIGN}"
    return [
        ("low-3", f"over {most} % faster"),
        ("low-2", f"{minus}{most} to {minus}{far} %"),
        ("low-1", f"{minus}{far} to {minus}{near} %"),
        ("even", f"within {near} %"),
        ("high-1", f"+{near} to +{far} %"),
        ("high-2", f"+{far} to +{most} %"),
        ("high-3", f"over {most} % slower"),
    ]


def _signed(share: float) -> str:
    sign = "\N{MINUS SIGN}" if share < 0 else "+"
    return f"{sign}{percent(abs(share))}"


def _joined(labels: Sequence[str], number: int) -> list[str]:
    """Return a label for each so many rows or columns: the first and the last of them."""
    some = [labels[at : at + number] for at in range(0, len(labels), number)]
    return [
        few[0] if len(few) == 1 else f"{few[0]}{UNKNOWN}{few[-1].removeprefix('rank ')}"
        for few in some
    ]


def _ticks(texts: Sequence[str], start: float, size: float, least: float) -> list[Tick]:
    stride = max(1, -(-int(least) // max(int(size), 1)))
    return [
        Tick(round(start + (place + 0.5) * size, 1), texts[place])
        for place in range(0, len(texts), stride)
    ]
