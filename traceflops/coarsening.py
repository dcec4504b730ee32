"""Many events as few boxes: neighbours that are short and close together become one box."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceflops.columns import BoolArray, IntArray
from traceflops.groups import first_rows


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Events in the order of their lanes and starts; those of a lane do not overlap.

    `row` is the row of each in the table of its lane, `part` the number of its component.
    """

    lane: IntArray
    start_ns: IntArray
    end_ns: IntArray
    row: IntArray
    part: IntArray

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.lane)

    def where(self, which: BoolArray | IntArray | slice) -> Events:
        """Return some of the events."""
        return Events(
            self.lane[which],
            self.start_ns[which],
            self.end_ns[which],
            self.row[which],
            self.part[which],
        )

    def touching(self, start_ns: int, end_ns: int) -> Events:
        """Return the events that have an instant with the range in common, ends included."""
        return self.where((self.start_ns <= end_ns) & (self.end_ns >= start_ns))


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """Boxes in the order of their lanes and starts; each stands for `count` events.

    A box reaches from the first start to the last end of its events, which take `busy_ns` of it.
    `part` is the component with the most time, `row` the longest of its events.
    """

    lane: IntArray
    start_ns: IntArray
    end_ns: IntArray
    row: IntArray
    part: IntArray
    count: IntArray
    busy_ns: IntArray

    def __len__(self) -> int:
        """Return the number of boxes."""
        return len(self.lane)

    @property
    def events(self) -> int:
        """Return how many events the boxes stand for."""
        return int(self.count.sum())


def together(some: list[Boxes]) -> Boxes:
    """Return boxes of different lanes as one, in the order of the lanes."""
    columns = [
        np.concatenate([getattr(one, name) for one in some])
        for name in ("lane", "start_ns", "end_ns", "row", "part", "count", "busy_ns")
    ]
    order = np.argsort(columns[0], kind="stable")
    return Boxes(*(column[order] for column in columns))


def at_most(events: Events, most: int) -> Boxes:
    """Return events as no more than so many boxes, the finest that are (one a lane at least).

    The cells in which events are merged are the smallest power of two of nanoseconds that does.
    """
    if len(events) <= most:
        return merged(events, 0)
    low, high = 0, max(int(events.end_ns.max() - events.start_ns.min()), 1).bit_length() + 1
    while low < high:
        middle = (low + high) // 2
        if int(_opens(events, 1 << middle).sum()) <= most:
            high = middle
        else:
            low = middle + 1
    return merged(events, 1 << low)


def merged(events: Events, cell_ns: int) -> Boxes:
    """Return boxes of the events that are shorter than a cell and start in the same one.

    An event as long as a cell stays alone, and so is every gap as long as a cell still a gap.
    """
    opens = _opens(events, cell_ns)
    first = np.flatnonzero(opens)
    if len(first) == len(events):
        once = np.ones(len(events), dtype=np.int64)
        lasting = events.end_ns - events.start_ns
        return Boxes(
            events.lane,
            events.start_ns,
            events.end_ns,
            events.row,
            events.part,
            once,
            lasting,
        )
    last = np.append(first[1:], len(events)) - 1
    longest = _longest(events, np.cumsum(opens) - 1, first)
    return Boxes(
        events.lane[first],
        events.start_ns[first],
        events.end_ns[last],
        events.row[longest],
        events.part[longest],
        last - first + 1,
        np.add.reduceat(events.end_ns - events.start_ns, first),
    )


def _opens(events: Events, cell_ns: int) -> BoolArray:
    """Return which events do not go into the box of the one before them."""
    opens = np.ones(len(events), dtype=np.bool_)
    if not cell_ns or len(events) < 2:
        return opens
    cell = (events.start_ns - events.start_ns.min()) // cell_ns
    long = events.end_ns - events.start_ns >= cell_ns
    opens[1:] = (cell[1:] != cell[:-1]) | long[1:] | long[:-1]
    opens[1:] |= events.lane[1:] != events.lane[:-1]
    return opens


def _longest(events: Events, box: IntArray, first: IntArray) -> IntArray:
    """Return, per box, the longest event of the component that has the most time in it."""
    lasting = events.end_ns - events.start_ns
    parts = int(events.part.max()) + 1
    time = np.zeros(len(first) * parts, dtype=np.int64)
    np.add.at(time, box * parts + events.part, lasting)
    most = time.reshape(-1, parts).argmax(axis=1)
    # Where nothing in a box has a length, the part that is first has none of its events, perhaps.
    counts = events.part == most[box]
    ranked = np.where(counts, lasting, -1)
    longest = np.maximum.reduceat(ranked, first)
    rows = np.flatnonzero(ranked == longest[box])
    return rows[first_rows(box[rows], len(first))]
