"""The section on ranks: who is waited for and why, and the own time of all against the median.

A heat map shows the own time of each rank in each step as a multiple of the median of the step; the
ranks in the collective with most waiting stand below each other on aligned clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.ranks import Turn
from traceflops.reports.page.axes import Tick
from traceflops.reports.view import (
    UNKNOWN,
    ReportTable,
    duration,
    late_rank_words,
    percent,
    ranks_table,
    rates_table,
    short_labels,
    waiting_table,
    worst_collective,
)
from traceflops.table import BoolArray, FloatArray
from traceflops.windows import OwnTimes, most_and_least, own_times

if TYPE_CHECKING:
    from traceflops.analysis import Analysis
    from traceflops.windows import DeviceReport

MOST_DEVICES: Final = 32
_LEAST_STEPS: Final = 2
_MOST_RANKS: Final = 16
_MOST_LANES: Final = 12
_WORST_STEPS: Final = 3
_LANE: Final = 24
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
class Lane:
    """How one rank takes part in a collective: where it waits and transfers, in the drawing."""

    label: str
    y: int
    start: float
    wait: float
    transfer: float
    text: str


@dataclass(frozen=True, slots=True)
class Lanes:
    """The ranks shown of `total` in one collective; at `last` the last one starts."""

    said: str
    lanes: list[Lane]
    total: int
    last: float
    axis: list[Tick]
    height: int


@dataclass(frozen=True, slots=True)
class RanksPage:
    """Who is waited for and why, the tables, the map, and the devices shown of `total`.

    `rows` are devices, each with what follows # in the link to it.
    `left_out` is what own time is without, `slowdown` a sentence on S.
    """

    late: tuple[str, str, str]
    table: ReportTable
    whom: ReportTable
    rates: ReportTable
    lanes: Lanes | None
    rows: list[tuple[DeviceReport, str]]
    total: int
    left_out: str
    heat: HeatMap | None
    farthest: list[tuple[str, int, str]]
    slowdown: str

    @property
    def most(self) -> int:
        """Return how many devices are shown because they have most own time, 0 if all are."""
        return (len(self.rows) + 1) // 2 if self.total > len(self.rows) else 0


def ranks_page(analysis: Analysis) -> RanksPage:
    """Return what the section shows."""
    devices = analysis.devices
    times, labels, slowdown = _own_times(analysis)
    labels = short_labels(labels, _LABEL)
    return RanksPage(
        late=late_rank_words(analysis),
        table=ranks_table(analysis, _MOST_RANKS),
        whom=waiting_table(analysis),
        rates=rates_table(analysis),
        lanes=lanes(*worst_collective(analysis)),
        rows=_linked([devices[place] for place in most_and_least(devices, MOST_DEVICES)]),
        total=len(devices),
        left_out="exposed waiting" if slowdown else "exposed communication",
        heat=heat_map(times, labels, slowdown),
        farthest=_farthest_cells(times, labels),
        slowdown=_slowdown(analysis) if slowdown else "",
    )


def _own_times(analysis: Analysis) -> tuple[OwnTimes, list[str], Sequence[float]]:
    """Return own times, a label for each of their rows, and S of each step where it is known."""
    ranks, devices = analysis.ranks, analysis.devices
    steps = [step for step in ranks.cycles.steps if step is not None] if ranks is not None else []
    if ranks is None or len(steps) < _LEAST_STEPS:
        return own_times(devices), [one.rank_text or one.label for one in devices], ()
    times = OwnTimes(tuple(steps), ranks.cycles.own_ns.T.astype(np.float64))
    labels = [f"rank {rank}" for rank in ranks.records.ranks]
    return times, labels, ranks.cycles.slowdown.tolist()


def _slowdown(analysis: Analysis) -> str:
    """Return S over all steps in words, and where it is largest."""
    cycles = analysis.ranks.cycles if analysis.ranks is not None else None
    if cycles is None or cycles.overall is None:
        return ""
    worst = int(cycles.slowdown.argmax())
    most = f"most in step {cycles.steps[worst]} ({cycles.slowdown[worst]:.3f})"
    return f"Slowdown S (step time by mean own time): {cycles.overall:.3f}, {most}."


def _linked(devices: Sequence[DeviceReport]) -> list[tuple[DeviceReport, str]]:
    """Return devices, each with the link to it; the first of a rank has that of the rank."""
    first = {device.rank: device.device for device in reversed(devices)}
    return [
        (one, f"rank={one.rank}" if one.rank is not None and first[one.rank] == one.device else "")
        for one in devices
    ]


def lanes(said: str, turns: Sequence[Turn]) -> Lanes | None:
    """Return the drawing of a collective; of many ranks the first and the last that start."""
    if not turns:
        return None
    half = _MOST_LANES // 2
    shown = [*turns[:half], *turns[-half:]] if len(turns) > _MOST_LANES else turns
    far = max(turn.from_ns + turn.wait_ns + turn.transfer_ns for turn in turns) or 1
    ticks = [far * part / 4 for part in range(5)]
    return Lanes(
        said=said,
        lanes=[_lane(turn, place, _WIDTH / far) for place, turn in enumerate(shown)],
        total=len(turns),
        last=round(_LEFT + turns[-1].from_ns * _WIDTH / far, 2),
        axis=[Tick(round(_LEFT + ns * _WIDTH / far, 1), duration(ns)) for ns in ticks],
        height=_TOP + _LANE * len(shown) + 24,
    )


def _lane(turn: Turn, place: int, scale: float) -> Lane:
    waits = f"waits {duration(turn.wait_ns)}, " if turn.wait_ns else ""
    text = f"+{duration(turn.from_ns)}: {waits}transfers {duration(turn.transfer_ns)}"
    return Lane(
        label=f"rank {turn.rank}",
        y=_TOP + _LANE * place,
        start=round(_LEFT + turn.from_ns * scale, 2),
        wait=round(turn.wait_ns * scale, 2),
        transfer=round(turn.transfer_ns * scale, 2),
        text=text,
    )


def _largest(values: FloatArray) -> list[int]:
    """Return the places of the largest values above 0, at most three."""
    order = np.argsort(-values, kind="stable")[:_WORST_STEPS].tolist()
    return [at for at in order if values[at] > 0]


def _farthest_cells(times: OwnTimes, labels: Sequence[str]) -> list[tuple[str, int, str]]:
    """Return the cells of the map that are farthest from the median, at most three."""
    off = times.relative() - 1
    far = np.where(np.isnan(off), 0, np.abs(off)).ravel()
    places = (divmod(at, len(times.steps)) for at in _largest(far))
    return [
        (labels[row], times.steps[column], _signed(float(off[row, column])))
        for row, column in places
    ]


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
    """The map; each cell stands for `ranks` rows and `steps` columns, the farthest one of them.

    `slowdown` is S below the steps, the largest of each column.
    """

    left: float
    top: float
    width: float
    height: float
    box_width: float
    box_height: float
    shades: list[Shade]
    rows: list[Tick]
    columns: list[Tick]
    slowdown: list[Tick]
    ranks: int
    steps: int


def heat_map(
    times: OwnTimes, labels: Sequence[str], slowdown: Sequence[float] = ()
) -> HeatMap | None:
    """Return the map of several devices over several steps, None where either is alone."""
    if len(labels) < 2 or len(times.steps) < _LEAST_STEPS:
        return None
    off = times.relative() - 1
    if np.isnan(off).all():
        return None
    ranks, steps = -(-len(labels) // _MOST_ROWS), -(-len(times.steps) // _MOST_COLUMNS)
    cells = _farthest(off, ranks, steps)
    height, width = cells.shape
    box_width, box_height = _WIDTH / width, min(_TALLEST, _HEIGHT / height)
    rows, columns = _joined(labels, ranks), _joined([str(step) for step in times.steps], steps)
    most = [f"{max(slowdown[at : at + steps]):.2f}" for at in range(0, len(slowdown), steps)]
    return HeatMap(
        left=_LEFT,
        top=_TOP,
        width=_LEFT + _WIDTH + 8,
        height=_TOP + box_height * height + (40 if slowdown else 24),
        box_width=round(box_width, 4),
        box_height=round(box_height, 4),
        shades=_shades(cells, box_width, box_height, rows, columns),
        rows=_ticks(rows, _TOP, box_height, _LEAST_PER_LABEL_Y),
        columns=_ticks(columns, _LEFT, box_width, _LEAST_PER_LABEL_X),
        slowdown=_ticks(most, _LEFT, box_width, _LEAST_PER_LABEL_X),
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
