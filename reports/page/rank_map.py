"""The map of ranks and steps: how far the own time of each is off the median of its step.

A row per rank, farthest off first, with what the table of ranks says of it. Of many ranks those
farthest off have a row each, the others one map in their order.
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
"""Ranks with a row each; of many those far off on average, and others for their worst step."""
_MOST_OTHERS, _OTHER_HEIGHT = 40, 5
_MOST_LABELS, _MOST_TEXTS = 12, 8
_SCALES: Final = ((0.01, 0.03, 0.10), (0.02, 0.06, 0.20), (0.05, 0.15, 0.50), (0.10, 0.30, 1.00))
_NOISES: Final = 3  # what is less than so many times the noise has no colour
_LEAST_SHARE: Final = 0.0005
_SHOWN: Final = ("Own vs median", "Busy vs median", "Exposed", "Caused wait")
"""Columns of the ranks that are not behind a choice."""


class MapLinks(Struct, frozen=True):
    """Per rank (row) and step (column) the collective that its cell leads to, if it is `there`."""

    collective: IntArray | None = None
    there: Collection[int] = ()

    def of(self, row: int, column: int) -> str:
        """Return what follows # in the link of a cell, "" for none."""
        found = int(self.collective[row, column]) if self.collective is not None else -1  # none
        return link_of(found) if found in self.there else ""


NO_LINKS: Final = MapLinks()


def link_of(collective: int) -> str:
    """Return what follows # in the link to the ranks of a collective."""
    return f"collective={collective}"


class Cell(Struct, frozen=True):
    """One cell of a rank: the class of its colour, its tooltip, its link and its text, if any."""

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
    """The map: a row per rank, the heads of the other columns, what the colours mean.

    A cell stands for `each` steps and shows the one farthest off. `heads` say which columns are
    visible at first; `steps` are labels above the cells.
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

    Ranks of the table come first, in its order; others by how far their mean own time is off.
    `labels` are those of the rows of `times`. If there is nothing to draw, rows have no cells.
    """
    off = times.relative() - 1  # rank by step, relative to the median of the step
    figures = {f"rank {row[0]}": [str(cell) for cell in row[1:]] for row in table.rows}
    heads = [(column.head, column.head in _SHOWN) for column in table.columns[1:]]
    if len(labels) < 2 or len(times.steps) < _LEAST_STEPS or np.isnan(off).all():
        rows = [RankRow(label, [], texts) for label, texts in figures.items()]
        return RankMap(rows[:_MOST_ROWS], heads)
    off_ns = times.ns - times.medians
    known = np.count_nonzero(~np.isnan(off_ns), axis=1)
    mean = np.nansum(off_ns, axis=1) / np.maximum(known, 1)
    of_table = {label: place for place, label in enumerate(figures)}
    if not figures:
        heads = [("Own vs median", True)]
        figures = {
            label: [signed_duration(round(ns)) if steps else UNKNOWN]
            for label, ns, steps in zip(labels, mean.tolist(), known.tolist(), strict=True)
        }
    first = [of_table.get(label, len(of_table)) for label in labels]
    order = np.lexsort((-mean, -np.abs(mean), first)).tolist()  # by the last key first
    own, rest = _with_rows(off, order)
    each = -(-len(times.steps) // _MOST_COLUMNS)  # steps per cell, rounded up
    blocks = [times.steps[start : start + each] for start in range(0, len(times.steps), each)]
    columns = [
        str(block[0]) if len(block) == 1 else f"{block[0]}{UNKNOWN}{block[-1]}" for block in blocks
    ]
    # The edges of colours: the finest above the noise, the usual spread of one rank.
    some = off[~np.isnan(off).all(axis=1)]
    noise = np.nanmedian(np.abs(some - np.nanmean(some, axis=1, keepdims=True)))
    scale = next((edges for edges in _SCALES if edges[0] >= _NOISES * noise), _SCALES[-1])
    has_texts, unknown, rows = len(columns) <= _MOST_TEXTS, [UNKNOWN] * len(heads), []
    for rank in own:
        cells = []
        for step in _farthest(off[[rank]], 1, each)[1][0].tolist():
            cell = _cell(float(off[rank, step]), float(off_ns[rank, step]), scale, has_texts)
            title = f"{labels[rank]}, step {times.steps[step]}: {cell.title}" if cell.title else ""
            link = links.of(rank, step) if cell.title else ""
            cells.append(replace(cell, title=title, link=link))
        rows.append(RankRow(labels[rank], cells, figures.get(labels[rank], unknown)))
    missed = [label for label in figures if label not in labels]
    rows += [RankRow(label, [], figures[label]) for label in missed[: _MOST_ROWS - len(rows)]]
    return RankMap(
        rows,
        heads,
        [
            Tick(at + 1, columns[at])
            for at in range(0, len(columns), -(-len(columns) // _MOST_LABELS))
        ],
        _meanings(scale),
        _others(off[rest], each, scale) if rest else None,
        each,
        len(columns),
    )


def own_time_rows(analysis: Analysis) -> tuple[OwnTimes, list[str], bool]:
    """Return own times, a label per row, and whether they are of two steps or more, not devices."""
    ranks, devices = analysis.ranks, analysis.devices
    steps = [step for step in ranks.cycles.steps if step is not None] if ranks is not None else []
    if ranks is None or len(steps) < _LEAST_STEPS:
        return own_times(devices), [device.rank_text or device.label for device in devices], False
    times = OwnTimes(tuple(steps), ranks.cycles.own_ns.T.astype(np.float64))
    return times, [f"rank {rank}" for rank in ranks.records.ranks], True


def _with_rows(off: FloatArray, order: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return which ranks are drawn alone, and the others.

    `order` is by distance of the mean. Of many ranks the first of it and those farthest off in a
    single step are drawn alone.
    """
    if len(order) <= _MOST_ROWS:
        return list(order), []
    alone = list(order[:_MOST_FAR])
    far = np.where(np.isnan(off), 0, np.abs(off)).max(axis=1)
    far[alone] = -1
    alone += np.argsort(-far, kind="stable")[: _MOST_ROWS - _MOST_FAR].tolist()
    return alone, [rank for rank in range(len(off)) if rank not in set(alone)]


def _others(off: FloatArray, each: int, scale: Sequence[float]) -> dict[str, Any]:
    """Return the picture of ranks (rows of `off`); `each` is the number of steps per cell."""
    ranks = -(-len(off) // _MOST_OTHERS)  # per row of the picture, rounded up
    cells, _ = _farthest(off, ranks, each)
    shades = np.array([[_shade(value, scale) for value in row] for row in cells.tolist()])
    names = [name for name, _ in _meanings(scale)]
    paths = []
    for name in names:
        chosen = np.pad((shades == name).astype(np.int8), ((0, 0), (1, 1)))
        edges = np.diff(chosen, axis=1)  # neighbours in a row share a box
        begins, ends = np.argwhere(edges == 1).tolist(), np.argwhere(edges == -1).tolist()
        boxes = [
            f"M{begin} {row}h{end - begin}v1h-{end - begin}z"
            for (row, begin), (_, end) in zip(begins, ends, strict=True)
        ]
        paths += [(name, "".join(boxes))] if boxes else []
    height, width = cells.shape
    return {
        "count": len(off),
        "each": ranks,
        "rows": height,
        "columns": width,
        "height": _OTHER_HEIGHT * height,
        "paths": paths,
    }


def _farthest(off: FloatArray, ranks: int, steps: int) -> tuple[FloatArray, IntArray]:
    """Return the value farthest from 0 of each block of `ranks` by `steps` cells, and its step."""
    rows, columns = -(-off.shape[0] // ranks), -(-off.shape[1] // steps)
    padded = np.full((rows * ranks, columns * steps), np.nan)
    padded[: off.shape[0], : off.shape[1]] = off
    blocks = padded.reshape(rows, ranks, columns, steps).transpose(0, 2, 1, 3)
    flat = blocks.reshape(rows, columns, ranks * steps)  # the cells of a block along the last axis
    far = np.where(np.isnan(flat), -1, np.abs(flat)).argmax(axis=2)
    values: FloatArray = np.take_along_axis(flat, far[:, :, None], axis=2)[:, :, 0]
    return values, far % steps + np.arange(columns) * steps


def _cell(off: float, off_ns: float, scale: Sequence[float], has_text: bool) -> Cell:
    """Return a cell without its link, how far off it is as its title; "" if that is unknown."""
    if np.isnan(off):
        return Cell("none", "", "", "")
    share = ("\N{MINUS SIGN}" if off < 0 else "+") + percent(abs(off))
    text = (share if abs(off) >= _LEAST_SHARE else "0 %") if has_text else ""
    return Cell(_shade(off, scale), f"{share} ({signed_duration(round(off_ns))})", "", text)


def _shade(value: float, scale: Sequence[float]) -> str:
    """Return the class of a colour, from `low-3` to `high-3`; `none` for an unknown value."""
    if np.isnan(value):
        return "none"
    level = sum(abs(value) >= edge for edge in scale)
    return f"{'low' if value < 0 else 'high'}-{level}" if level else "even"


def _meanings(scale: Sequence[float]) -> list[tuple[str, str]]:
    """Return each class of a cell with its meaning; `scale` are the edges of the three levels."""
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
