"""A range of the timeline as a drawing that needs no script: lanes of rectangles."""

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
"""Heights in the drawing of the script: axis, heading with the space after it, rows."""

_HOST_LOOK: Final = {"range": "annotation", "frame": "python"}
_LEAST_WIDTH: Final = 0.08
_WIDE: Final = 0.7
"""Widths in percent: the least of a box, and that from which on a box shows its texture."""
_LEAST_HEIGHT: Final = 6.0
_CELLS: Final = 1_000
"""Parts of the range: events shorter than one are merged, so that widened boxes do not overlap."""
_MOST_STREAMS: Final = 8
_LETTERS: Final = 1.6  # so many letters have room in one percent of a drawing as wide as the page
_LEAST_LETTERS: Final = 6
NameOf = Callable[[Lane, int], str]


class Rect(Struct, frozen=True):
    """A box in percent: its area is the busy time of its events."""

    x: float
    width: float
    height: float
    look: str
    hatched: bool
    text: str = ""

    @property
    def y(self) -> float:
        """Return its top: boxes stand on the foot of their row."""
        return round(100 - self.height, 1)


IDLE: Final = "idle"  # the label of the row of what a GPU waited for


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
    """The drawing; a script adds rows for `counters`, and one per device for how busy it is."""

    span: Span
    ticks: list[AxisTick]
    lanes: list[StillLane]
    events_drawn: str
    boxes_drawn: str
    counters: int
    devices: int

    @property
    def streams(self) -> str:
        """Return how busy the first streams of a single row are, in words."""
        depths = [*(lane.lane.depth for lane in self.lanes[1:]), 0]  # of the row below each
        streams = [
            f"{one.label} {percent(one.busy_share)}"
            for one, below in zip(self.lanes, depths, strict=True)
            if one.lane.kind == "stream" and not one.lane.depth and not below and one.label != IDLE
        ]
        return ", ".join(streams[:_MOST_STREAMS])

    @property
    def words(self) -> str:
        """Return the range in words."""
        return stretch(self.span.start_ns, self.span.end_ns)

    @property
    def live_height(self) -> int:
        """Return the height in pixels of these lanes in a script, which the page reserves."""
        heads = sum(lane.heading is not None for lane in self.lanes)
        rows = sum(_STREAM if one.lane.kind == "stream" else _ROW for one in self.lanes)
        more = self.counters * _COUNTER + self.devices * _OCCUPANCY
        return _AXIS + heads * _HEAD + rows + more


def still(
    drawn: Drawable,
    span: Span,
    groups: Sequence[tuple[str, Sequence[int]]],
    labels: Sequence[str],
    length_ns: int = 0,
    name_of: NameOf | None = None,
) -> Still:
    """Return the drawing of a range: groups of lanes under headings, with at most _MOST_BOXES.

    `labels` are those of all lanes. The axis is `length_ns` long if that is more than the range.
    `name_of` names an event, by lane and row; the name is shown in boxes with room for it.
    """
    lanes = drawn.outline.lanes
    span_ns = max(span.end_ns - span.start_ns, 1)
    axis_ns = max(length_ns, span_ns)
    wanted = [(min(places), max(places) + 1) for _, places in groups]
    cell_ns = -(-(span.end_ns - span.start_ns) // _CELLS)
    # An event that begins at the end of the range belongs to the next one.
    inside = replace(span, end_ns=max(span.end_ns - 1, span.start_ns))
    boxes = drawn.boxes(inside, _MOST_BOXES, wanted, cell_ns)
    rows = []
    for label, places in groups:
        for turn, place in enumerate(places):
            of_lane = range(*np.searchsorted(boxes.lane, [place, place + 1]).tolist())
            rects = [_rect(boxes, box, span, lanes[place], axis_ns) for box in of_lane]
            for number, box in enumerate(of_lane if name_of is not None else ()):
                room = letters(rects[number].width)
                if name_of is not None and boxes.count[box] == 1 and room:
                    name = name_of(lanes[place], int(boxes.row[box]))
                    rects[number] = replace(rects[number], text=shorten_middle(name, room))
            share = sum(_clipped(boxes, box, span) for box in of_lane) / span_ns
            heading = None if turn else label
            rows.append(StillLane(heading, labels[place], lanes[place], rects, share))
    drawn_as = "one box" if len(boxes) == 1 else f"{count(len(boxes))} boxes"
    events = numbered(boxes.events, "event")
    devices = len(drawn.outline.chosen.devices)
    ticks = axis_ticks(span.start_ns, span.end_ns)
    return Still(span, ticks, rows, events, drawn_as, len(drawn.counters), devices)


def _clipped(boxes: Boxes, box: int, span: Span) -> float:
    """Return the busy time of a box in a range, as if it were spread evenly over the box."""
    start, end = int(boxes.start_ns[box]), int(boxes.end_ns[box])
    inside = min(end, span.end_ns) - max(start, span.start_ns)
    return int(boxes.busy_ns[box]) * inside / max(end - start, 1)


def letters(width: float) -> int:
    """Return how many letters fit into so many percent of the drawing, 0 if too few to read."""
    room = int(width * _LETTERS)
    return room if room >= _LEAST_LETTERS else 0


def _rect(boxes: Boxes, box: int, span: Span, lane: Lane, length: int) -> Rect:
    """Return a box clipped to the range; its area is the busy time. `length` is the axis in ns."""
    low = max(int(boxes.start_ns[box]), span.start_ns) - span.start_ns
    high = min(int(boxes.end_ns[box]), span.end_ns) - span.start_ns
    x = min(100 * low / length, 100 - _LEAST_WIDTH)  # one at the right end stays inside
    width = max(100 * (high - low) / length, _LEAST_WIDTH)
    height = max(100 * _clipped(boxes, box, span) / length / width * 100, _LEAST_HEIGHT)
    look = _HOST_LOOK.get(lane.kind, lane.kind)
    if lane.kind == "stream":
        look = WORK[int(boxes.part[box])]
    return Rect(round(x, 2), round(width, 2), round(min(height, 100), 1), look, width >= _WIDE)
