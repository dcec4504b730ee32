"""A range of the timeline as a still drawing, which needs no script: lanes of rectangles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.drawing.coarsening import Boxes
from traceflops.drawing.lanes import Lane
from traceflops.drawing.timeline import Drawable, Span
from traceflops.reports.page.axes import AxisTick, axis_ticks, stretch
from traceflops.reports.view.figures import count, percent, shorten_middle
from traceflops.reports.view.wording import numbered
from traceflops.timeline.records import WORK

_MOST_BOXES: Final = 560
_AXIS, _HEAD, _STREAM, _ROW, _COUNTER, _OCCUPANCY = 36, 22, 17, 12, 24, 26
"""Heights in pixels in the script's drawing: axis, heading with the space after it, rows."""

_HOST_LOOK: Final = {"range": "annotation", "frame": "python"}
_LEAST_WIDTH: Final = 0.08
_WIDE: Final = 0.7
"""Widths in percent: the least of a box, and that from which a box shows its texture."""
_LEAST_HEIGHT: Final = 6.0
_CELLS: Final = 1_000
"""Events shorter than one of so many parts of the range are merged: widened, they would overlap."""
_MOST_STREAMS: Final = 8
_LETTERS: Final = 1.6  # letters per percent of the width of the page
_LEAST_LETTERS: Final = 6  # fewer are no help to the reader
NameOf = Callable[[Lane, int], str]


class Rect(Struct, frozen=True):
    """A box, in percent; its area stands for the busy time of its events."""

    x: float
    width: float
    height: float
    look: str
    hatched: bool
    text: str = ""

    @property
    def y(self) -> float:
        """The top of the box, which stands on the bottom of its row."""
        return round(100 - self.height, 1)


IDLE: Final = "idle"  # the label of the row that shows what a GPU waited for


class StillLane(Struct, frozen=True):
    """One row of boxes; the first one of a group has a heading, the first of a track a label."""

    heading: str | None
    label: str
    lane: Lane
    rects: list[Rect]
    busy_share: float

    def by_look(self) -> list[tuple[str, list[Rect]]]:
        """Return the boxes by look."""
        looks: dict[str, list[Rect]] = {}
        for rect in self.rects:
            looks.setdefault(rect.look, []).append(rect)
        return list(looks.items())


class Still(Struct, frozen=True):
    """The drawing; the script's drawing also has rows for `counters` and occupancy per device."""

    span: Span
    ticks: list[AxisTick]
    lanes: list[StillLane]
    events_drawn: str
    boxes_drawn: str
    counters: int
    devices: int

    @property
    def streams(self) -> str:
        """How busy the first streams are, in words; those of several rows are left out."""
        depths_below = [*(row.lane.depth for row in self.lanes[1:]), 0]
        streams = [
            f"{row.label} {percent(row.busy_share)}"
            for row, depth_below in zip(self.lanes, depths_below, strict=True)
            if row.lane.kind == "stream" and row.label != IDLE
            if not row.lane.depth and not depth_below  # the only row of its stream
        ]
        return ", ".join(streams[:_MOST_STREAMS])

    @property
    def words(self) -> str:
        """The range in words."""
        return stretch(self.span.start_ns, self.span.end_ns)

    @property
    def live_height(self) -> int:
        """The height of the script's drawing in pixels, which the page reserves for it."""
        headings = sum(row.heading is not None for row in self.lanes)
        rows = sum(_STREAM if row.lane.kind == "stream" else _ROW for row in self.lanes)
        extra_rows = self.counters * _COUNTER + self.devices * _OCCUPANCY
        return _AXIS + headings * _HEAD + rows + extra_rows


def still(
    drawn: Drawable,
    span: Span,
    groups: Sequence[tuple[str, Sequence[int]]],
    labels: Sequence[str],
    length_ns: int = 0,
    name_of: NameOf | None = None,
) -> Still:
    """Return the drawing of a range, with at most _MOST_BOXES boxes.

    `groups` are headings and the indices of their lanes; `labels` are those of all lanes. The axis
    is as long as the range, or `length_ns` if that is more. `name_of` returns the name of an event
    by lane and row, which is shown in boxes with room for it.
    """
    lanes = drawn.outline.lanes
    span_ns = max(span.end_ns - span.start_ns, 1)
    axis_ns = max(length_ns, span_ns)
    lane_ranges = [(min(indices), max(indices) + 1) for _, indices in groups]
    cell_ns = -(-(span.end_ns - span.start_ns) // _CELLS)
    # An event that begins at the end of the range belongs to the next one.
    inside = replace(span, end_ns=max(span.end_ns - 1, span.start_ns))
    boxes = drawn.boxes(inside, _MOST_BOXES, lane_ranges, cell_ns)
    rows = []
    for heading, indices in groups:
        for index in indices:
            lane = lanes[index]
            of_lane = range(*np.searchsorted(boxes.lane, [index, index + 1]).tolist())
            rects = []
            for box in of_lane:
                rect = _rect(boxes, box, span, lane, axis_ns)
                room = letters(rect.width)
                if name_of is not None and boxes.count[box] == 1 and room:
                    name = name_of(lane, int(boxes.row[box]))
                    rect = replace(rect, text=shorten_middle(name, room))
                rects.append(rect)
            share = sum(_clipped_ns(boxes, box, span) for box in of_lane) / span_ns
            own_heading = heading if index == indices[0] else None
            rows.append(StillLane(own_heading, labels[index], lane, rects, share))
    drawn_as = "one box" if len(boxes) == 1 else f"{count(len(boxes))} boxes"
    events = numbered(boxes.events, "event")
    devices = len(drawn.outline.chosen.devices)
    ticks = axis_ticks(span.start_ns, span.end_ns)
    return Still(span, ticks, rows, events, drawn_as, len(drawn.counters), devices)


def _clipped_ns(boxes: Boxes, box: int, span: Span) -> float:
    """Return the busy time of a box in a range, as if it were spread evenly over the box."""
    start, end = int(boxes.start_ns[box]), int(boxes.end_ns[box])
    inside = min(end, span.end_ns) - max(start, span.start_ns)
    return int(boxes.busy_ns[box]) * inside / max(end - start, 1)


def letters(width: float) -> int:
    """Return how many letters fit into so many percent of the drawing, 0 if too few to read."""
    room = int(width * _LETTERS)
    return room if room >= _LEAST_LETTERS else 0


def _rect(boxes: Boxes, box: int, span: Span, lane: Lane, axis_ns: int) -> Rect:
    """Return a box clipped to the range."""
    low_ns = max(int(boxes.start_ns[box]), span.start_ns) - span.start_ns
    high_ns = min(int(boxes.end_ns[box]), span.end_ns) - span.start_ns
    x = min(100 * low_ns / axis_ns, 100 - _LEAST_WIDTH)  # one at the right end stays inside
    width = max(100 * (high_ns - low_ns) / axis_ns, _LEAST_WIDTH)
    height = max(100 * _clipped_ns(boxes, box, span) / axis_ns / width * 100, _LEAST_HEIGHT)
    look = _HOST_LOOK.get(lane.kind, lane.kind)
    if lane.kind == "stream":
        look = WORK[int(boxes.part[box])]
    return Rect(round(x, 2), round(width, 2), round(min(height, 100), 1), look, width >= _WIDE)
