"""The map of ranks and steps: how far each own time is off the median of its step.

The own time of a rank is a step without waiting for other ranks. There is a row per rank, farthest
off first, with the columns of the table of ranks. Of many ranks, those farthest off have a row
each, and the others share a picture.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from traceflops.analysis.result import Analysis
from traceflops.reports.page.axes import Tick
from traceflops.reports.view.figures import UNKNOWN, percent, signed_duration
from traceflops.reports.view.tables import ReportTable
from traceflops.table.columns import FloatArray, IntArray
from traceflops.windows.step_times import OwnTimes, own_times

_LEAST_STEPS: Final = 2
_MOST_ROWS, _MOST_FAR, _MOST_COLUMNS = 20, 12, 40
"""Ranks with a row each, how many of these are far off on average (others in one step); columns."""
_MOST_OTHERS, _OTHER_HEIGHT = 40, 5  # rows of the picture, and their height
_MOST_LABELS, _MOST_TEXTS = 12, 8
_SCALES: Final = ((0.01, 0.03, 0.10), (0.02, 0.06, 0.20), (0.05, 0.15, 0.50), (0.10, 0.30, 1.00))
"""Shares of the median from which a colour is used, three per direction."""
_NOISES: Final = 3  # less than so many times the noise has no colour
_LEAST_SHARE: Final = 0.0005
_SHOWN: Final = ("Own vs median", "Busy vs median", "Exposed", "Caused wait")
"""Columns of the ranks that are visible at first."""


class MapLinks(Struct, frozen=True):
    """The collective that each cell leads to [ranks, steps], and those that the page shows."""

    collective: IntArray | None = None
    there: Collection[int] = ()

    def of(self, row: int, column: int) -> str:
        """Return the link of a cell without its #, "" for none."""
        if self.collective is None or int(self.collective[row, column]) not in self.there:
            return ""
        return link_of(int(self.collective[row, column]))


NO_LINKS: Final = MapLinks()


def link_of(collective: int) -> str:
    """Return the link, without its #, to the ranks of a collective."""
    return f"collective={collective}"


class Cell(Struct, frozen=True):
    """One cell of a rank: the CSS class of its colour, its tooltip, link and text, if any."""

    shade: str
    title: str
    link: str
    text: str


class RankRow(Struct, frozen=True):
    """One rank: its cells, and the texts of its columns in the table."""

    label: str
    cells: list[Cell]
    figures: list[str]


class RankMap(Struct, frozen=True):
    """The map: a row per rank, the heads of the columns beside it, what the colours mean.

    A cell stands for `each` steps and shows the one farthest off. `heads` also say whether a column
    is visible at first; `steps` are labels above the cells, of which a row has `columns`.
    """

    rows: list[RankRow] = field(default_factory=list)
    heads: list[tuple[str, bool]] = field(default_factory=list)
    steps: list[Tick] = field(default_factory=list)
    shades: list[tuple[str, str]] = field(default_factory=list)
    others: dict[str, Any] | None = None
    each: int = 1
    columns: int = 0


def rank_map(
    times: OwnTimes, labels: Sequence[str], table: ReportTable, links: MapLinks = NO_LINKS
) -> RankMap:
    """Return the map of own times, with the columns of the table of ranks.

    Ranks of the table come first, in its order; then the others by the deviation of their mean own
    time. `labels` are those of the rows of `times`. If there is nothing to draw, rows have no
    cells.
    """
    deviation = times.relative() - 1  # [ranks, steps], relative to the median of the step
    figures = {f"rank {row[0]}": [str(cell) for cell in row[1:]] for row in table.rows}
    heads = [(column.head, column.head in _SHOWN) for column in table.columns[1:]]
    if len(labels) < 2 or len(times.steps) < _LEAST_STEPS or np.isnan(deviation).all():
        rows = [RankRow(label, [], texts) for label, texts in figures.items()]
        return RankMap(rows[:_MOST_ROWS], heads)
    deviation_ns = times.ns - times.medians
    known_steps = np.count_nonzero(~np.isnan(deviation_ns), axis=1)
    mean_ns = np.nansum(deviation_ns, axis=1) / np.maximum(known_steps, 1)
    table_order = {label: index for index, label in enumerate(figures)}
    if not figures:
        heads = [("Own vs median", True)]
        figures = {
            label: [signed_duration(round(ns)) if steps else UNKNOWN]
            for label, ns, steps in zip(labels, mean_ns.tolist(), known_steps.tolist(), strict=True)
        }
    in_table = [table_order.get(label, len(table_order)) for label in labels]
    order = np.lexsort((-mean_ns, -np.abs(mean_ns), in_table)).tolist()  # by the last key first
    own_row, others = _with_rows(deviation, order)

    # Cells: `each` steps per column, their labels and colours.
    each = -(-len(times.steps) // _MOST_COLUMNS)  # rounded up
    blocks = [times.steps[start : start + each] for start in range(0, len(times.steps), each)]
    columns = [f"{b[0]}" if len(b) == 1 else f"{b[0]}{UNKNOWN}{b[-1]}" for b in blocks]
    scale, has_texts = _scale(deviation), len(columns) <= _MOST_TEXTS
    rows = []
    for rank in own_row:
        cells = []
        for step in _farthest(deviation[[rank]], 1, each)[1][0].tolist():
            relative, ns = float(deviation[rank, step]), float(deviation_ns[rank, step])
            cell = _cell(relative, ns, scale, has_texts)
            if cell.title:
                title = f"{labels[rank]}, step {times.steps[step]}: {cell.title}"
                cell = replace(cell, title=title, link=links.of(rank, step))
            cells.append(cell)
        texts = figures.get(labels[rank], [UNKNOWN] * len(heads))
        rows.append(RankRow(labels[rank], cells, texts))
    without_cells = [label for label in figures if label not in labels]
    for label in without_cells[: _MOST_ROWS - len(rows)]:
        rows.append(RankRow(label, [], figures[label]))
    labelled = range(0, len(columns), -(-len(columns) // _MOST_LABELS))
    return RankMap(
        rows,
        heads,
        [Tick(column + 1, columns[column]) for column in labelled],
        _meanings(scale),
        _picture(deviation[others], each, scale) if others else None,
        each,
        len(columns),
    )


def own_time_rows(analysis: Analysis) -> tuple[OwnTimes, list[str], bool]:
    """Return own times, a label per row, and whether rows are ranks, with collectives matched.

    Otherwise rows are devices: fewer than two steps end with matched collectives.
    """
    ranks, devices = analysis.ranks, analysis.devices
    steps = [step for step in ranks.cycles.steps if step is not None]
    if len(steps) < _LEAST_STEPS:
        return own_times(devices), [device.rank_text or device.label for device in devices], False
    times = OwnTimes(tuple(steps), ranks.cycles.own_ns.T.astype(np.float64))
    return times, [f"rank {rank}" for rank in ranks.records.ranks], True


def _scale(deviation: FloatArray) -> Sequence[float]:
    """Return the finest scale of colours that hides the noise, which is the spread of one rank."""
    known = deviation[~np.isnan(deviation).all(axis=1)]
    noise = np.nanmedian(np.abs(known - np.nanmean(known, axis=1, keepdims=True)))
    return next((scale for scale in _SCALES if scale[0] >= _NOISES * noise), _SCALES[-1])


def _with_rows(deviation: FloatArray, order: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the ranks that have a row each, and the others.

    Of many ranks, the first in `order` and those farthest off in a single step have a row.
    """
    if len(order) <= _MOST_ROWS:
        return list(order), []
    alone = list(order[:_MOST_FAR])
    largest = np.where(np.isnan(deviation), 0, np.abs(deviation)).max(axis=1)
    largest[alone] = -1
    alone += np.argsort(-largest, kind="stable")[: _MOST_ROWS - _MOST_FAR].tolist()
    return alone, [rank for rank in range(len(deviation)) if rank not in set(alone)]


def _picture(deviation: FloatArray, each: int, scale: Sequence[float]) -> dict[str, Any]:
    """Return the picture of ranks without an own row, with `each` steps per cell.

    `paths` are SVG paths by CSS class, in which a cell is 1 by 1.
    """
    ranks = -(-len(deviation) // _MOST_OTHERS)  # per row of the picture, rounded up
    cells, _ = _farthest(deviation, ranks, each)
    shades = np.array([[_shade(value, scale) for value in row] for row in cells.tolist()])
    paths = []
    for name, _ in _meanings(scale):
        has_shade = np.pad((shades == name).astype(np.int8), ((0, 0), (1, 1)))
        edges = np.diff(has_shade, axis=1)  # +1 and -1: neighbours of a shade become one box
        begins, ends = np.argwhere(edges == 1).tolist(), np.argwhere(edges == -1).tolist()
        boxes = [
            f"M{begin} {row}h{end - begin}v1h-{end - begin}z"
            for (row, begin), (_, end) in zip(begins, ends, strict=True)
        ]
        if boxes:
            paths.append((name, "".join(boxes)))
    height, width = cells.shape
    return {
        "count": len(deviation),
        "each": ranks,
        "rows": height,
        "columns": width,
        "height": _OTHER_HEIGHT * height,
        "paths": paths,
    }


def _farthest(deviation: FloatArray, ranks: int, steps: int) -> tuple[FloatArray, IntArray]:
    """Return the value farthest from 0 of each block of `ranks` by `steps` cells, and its step.

    Both arrays are [blocks of ranks, blocks of steps].
    """
    rows, columns = -(-deviation.shape[0] // ranks), -(-deviation.shape[1] // steps)
    padded = np.full((rows * ranks, columns * steps), np.nan)
    padded[: deviation.shape[0], : deviation.shape[1]] = deviation
    blocks = padded.reshape(rows, ranks, columns, steps).transpose(0, 2, 1, 3)
    flat = blocks.reshape(rows, columns, ranks * steps)  # the cells of a block along the last axis
    farthest = np.where(np.isnan(flat), -1, np.abs(flat)).argmax(axis=2)
    values: FloatArray = np.take_along_axis(flat, farthest[:, :, None], axis=2)[:, :, 0]
    return values, farthest % steps + np.arange(columns) * steps


def _cell(relative: float, ns: float, scale: Sequence[float], has_text: bool) -> Cell:
    """Return a cell without its link; its title is how far off it is, "" if unknown (NaN)."""
    if np.isnan(relative):
        return Cell("none", "", "", "")
    share = ("\N{MINUS SIGN}" if relative < 0 else "+") + percent(abs(relative))
    text = (share if abs(relative) >= _LEAST_SHARE else "0 %") if has_text else ""
    return Cell(_shade(relative, scale), f"{share} ({signed_duration(round(ns))})", "", text)


def _shade(value: float, scale: Sequence[float]) -> str:
    """Return the CSS class of a deviation, from `low-3` to `high-3`, `none` for an unknown one."""
    if np.isnan(value):
        return "none"
    level = sum(abs(value) >= edge for edge in scale)
    return f"{'low' if value < 0 else 'high'}-{level}" if level else "even"


def _meanings(scale: Sequence[float]) -> list[tuple[str, str]]:
    """Return each CSS class of a cell with its meaning; `scale` are the edges of three levels."""
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
