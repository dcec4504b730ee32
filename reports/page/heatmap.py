"""A heat map of ranks and steps: own time as a multiple of the median of the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.ranks import FloatArray, OwnTimes
from traceflops.reports.view import UNKNOWN, percent
from traceflops.table import BoolArray

MOST_ROWS: Final = 64
MOST_COLUMNS: Final = 100
_MOST_TITLED: Final = 600
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
class Cell:
    """A cell with a title of its own, for maps with few cells."""

    x: float
    y: float
    title: str


@dataclass(frozen=True, slots=True)
class Shade:
    """One colour: its class, from far below the median to far above it, its meaning, its cells.

    `path` draws them all where there are too many for titles, in columns and rows of the map.
    """

    name: str
    text: str
    number: int
    cells: list[Cell]
    path: str


@dataclass(frozen=True, slots=True)
class Label:
    """A text beside the map."""

    at: float
    text: str


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
    rows: list[Label]
    columns: list[Label]
    ranks: int
    steps: int


def heat_map(times: OwnTimes, labels: Sequence[str]) -> HeatMap | None:
    """Return the map of several devices over several steps, None where either is alone."""
    if len(labels) < 2 or len(times.steps) < 2:
        return None
    off = times.relative() - 1
    if np.isnan(off).all():
        return None
    ranks, steps = -(-len(labels) // MOST_ROWS), -(-len(times.steps) // MOST_COLUMNS)
    cells = _farthest(off, ranks, steps)
    height, width = cells.shape
    box_width, box_height = _WIDTH / width, min(_TALLEST, _HEIGHT / height)
    row_labels = [_joined(labels, at, ranks) for at in range(0, len(labels), ranks)]
    step_labels = [str(step) for step in times.steps]
    column_labels = [_joined(step_labels, at, steps) for at in range(0, len(step_labels), steps)]
    return HeatMap(
        left=_LEFT,
        top=_TOP,
        width=_LEFT + _WIDTH + 8,
        height=_TOP + box_height * height + 24,
        box_width=round(box_width, 4),
        box_height=round(box_height, 4),
        shades=_shades(cells, box_width, box_height, row_labels, column_labels),
        rows=_labels(row_labels, _TOP, box_height, _LEAST_PER_LABEL_Y),
        columns=_labels(column_labels, _LEFT, box_width, _LEAST_PER_LABEL_X),
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
    found: FloatArray = np.take_along_axis(flat, far[:, :, None], axis=2)[:, :, 0]
    return found


def _shades(
    cells: FloatArray,
    box_width: float,
    box_height: float,
    rows: Sequence[str],
    columns: Sequence[str],
) -> list[Shade]:
    known = cells[~np.isnan(cells)]
    far = float(np.percentile(np.abs(known), _OUTLIERS))
    scale = next((one for one in _SCALES if one[-1] >= far), _SCALES[-1])
    edges = np.array([-scale[2], -scale[1], -scale[0], scale[0], scale[1], scale[2]])
    shade = np.where(np.isnan(cells), -1, np.digitize(cells, edges))
    titled = cells.size <= _MOST_TITLED
    found = []
    for place, (name, text) in enumerate(_meanings(scale)):
        at = np.argwhere(shade == place).tolist()
        boxes = [
            Cell(
                round(_LEFT + column * box_width, 2),
                round(_TOP + row * box_height, 2),
                f"{rows[row]}, step {columns[column]}: {signed(float(cells[row, column]))}",
            )
            for row, column in (at if titled else ())
        ]
        path = "" if titled else _path(shade == place)
        found.append(Shade(name, text, len(at), boxes, path))
    return found


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


def signed(share: float) -> str:
    """Return a share with its sign, "+12.5 %"."""
    sign = "\N{MINUS SIGN}" if share < 0 else "+"
    return f"{sign}{percent(abs(share))}"


def _joined(labels: Sequence[str], at: int, number: int) -> str:
    some = labels[at : at + number]
    return some[0] if len(some) == 1 else f"{some[0]}{UNKNOWN}{some[-1].removeprefix('rank ')}"


def _labels(texts: Sequence[str], start: float, size: float, least: float) -> list[Label]:
    stride = max(1, -(-int(least) // max(int(size), 1)))
    return [
        Label(round(start + (place + 0.5) * size, 1), texts[place])
        for place in range(0, len(texts), stride)
    ]
