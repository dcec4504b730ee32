"""Many events as few boxes: neighbours that are short and close together become one box."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from traceflops.table.columns import IntArray, SmallArray, WholeArray
from traceflops.table.grouping import distinct, slices

_AT_ONCE: Final = 1 << 18
_LARGEST: Final = 63  # bits of the largest number


class Times(Struct, frozen=True, eq=False):
    """The times of all rows of a table, and the component of each (None: all are 0)."""

    start_ns: IntArray
    lasting_ns: IntArray
    part: SmallArray | None


class LaneEvents(Struct, frozen=True, eq=False):
    """The events of one lane in the order of their starts; they do not overlap.

    They are rows of a table whose columns are read when needed, so a lane takes little memory.
    Times count from `origin_ns`.
    """

    row: WholeArray
    times: Times
    origin_ns: int
    lane: int = 0

    def __len__(self) -> int:
        return len(self.row)

    def start_ns(self, which: slice | IntArray) -> IntArray:
        """Return the starts of some events."""
        starts: IntArray = self.times.start_ns[self.row[which]] - self.origin_ns
        return starts

    def lasting_ns(self, which: slice | IntArray) -> IntArray:
        """Return the lengths of some events."""
        return self.times.lasting_ns[self.row[which]]

    def part(self, which: slice | IntArray) -> SmallArray:
        """Return the components of some events."""
        rows = self.row[which]
        return np.zeros(len(rows), np.int8) if self.times.part is None else self.times.part[rows]

    @property
    def span(self) -> tuple[int, int]:
        """Return the first start and the last end."""
        ends = np.array([0, len(self) - 1])
        start = self.start_ns(ends)
        return int(start[0]), int(start[1] + self.lasting_ns(ends)[1])

    def touching(self, start_ns: int, end_ns: int) -> LaneEvents:
        """Return the events that share an instant with the range, its ends included."""
        start, lasting = self.times.start_ns, self.times.lasting_ns
        # Events do not overlap, so their ends are in order, too: search both.
        first = bisect_left(
            self.row, start_ns + self.origin_ns, key=lambda row: start[row] + lasting[row]
        )
        stop = bisect_right(self.row, end_ns + self.origin_ns, key=lambda row: start[row])
        return LaneEvents(self.row[first:stop], self.times, self.origin_ns, self.lane)


class Boxes(Struct, frozen=True, eq=False):
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
        return len(self.lane)

    @property
    def events(self) -> int:
        """Return how many events the boxes stand for."""
        return int(self.count.sum())


class Counts(Struct, frozen=True, eq=False):
    """The least and the most of a number in stretches of time that follow each other."""

    start_ns: IntArray
    end_ns: IntArray
    least: IntArray
    most: IntArray


class Counter(Struct, frozen=True, eq=False):
    """A number over time: the times at which it changes, and its value from then on."""

    steps: LaneEvents
    count: IntArray

    @classmethod
    def of(cls, at_ns: IntArray, count: IntArray) -> Counter:
        """Return a number that is `count` from each of these times up to the next."""
        rows = np.arange(len(at_ns) - 1)
        return cls(LaneEvents(rows, Times(at_ns[:-1], np.diff(at_ns), None), 0), count[:-1])

    def within(self, start_ns: int, end_ns: int, most: int) -> Counts:
        """Return the least and the most in a range of time, in at most `most` stretches."""
        steps = self.steps.touching(start_ns, end_ns)
        boxes = at_most([steps], most)
        first_of_box = np.cumsum(boxes.count) - boxes.count
        counts = self.count[steps.row]
        least, largest = (
            which.reduceat(counts, first_of_box) if len(first_of_box) else first_of_box
            for which in (np.minimum, np.maximum)
        )
        return Counts(boxes.start_ns, boxes.end_ns, least, largest)


def together(some: Sequence[Boxes]) -> Boxes:
    """Return boxes of different lanes as one, in the order of the lanes."""
    columns = [
        np.concatenate([np.empty(0, np.int64), *(getattr(boxes, name) for boxes in some)])
        for name in ("lane", "start_ns", "end_ns", "row", "part", "count", "busy_ns")
    ]
    order = np.argsort(columns[0], kind="stable")
    return Boxes(*(column[order] for column in columns))


def at_most(lanes: Sequence[LaneEvents], most: int, cell_ns: int = 0) -> Boxes:
    """Return events as at most `most` boxes, as fine as possible, but at least one per lane.

    Short events in one cell are merged. Cells are the smallest power of two of nanoseconds that
    gives few enough boxes, and not below `cell_ns`.
    """
    if not cell_ns and sum(map(len, lanes)) <= most:
        return merged(lanes, None)
    apart = _apart(lanes)
    counts = np.bincount(np.concatenate(apart), minlength=_LARGEST + 1)
    filled = sum(len(lane) > 0 for lane in lanes)
    # By the bits of a cell, how many boxes there are: one per lane, and one for each pair of
    # neighbours that needs larger cells to be merged.
    boxes = filled + np.append(np.cumsum(counts[::-1])[::-1][1:], 0)
    fits = np.flatnonzero(boxes <= most)
    bits = int(fits[0]) if len(fits) else _LARGEST
    return merged(lanes, max(bits, max(cell_ns - 1, 0).bit_length()), apart)


def merged(
    lanes: Sequence[LaneEvents],
    bits: int | None,
    apart: Sequence[npt.NDArray[np.uint8]] | None = None,
) -> Boxes:
    """Return boxes: events shorter than a cell that start in the same cell are merged.

    Cells have 2 to the power of `bits` nanoseconds; None merges nothing. Events as long as a cell
    stay alone, and gaps as long as a cell stay gaps. `apart` is the result of `_apart`, if known.
    """
    if bits is None:
        return together([_boxes(lane, np.arange(len(lane))) for lane in lanes])
    apart = _apart(lanes) if apart is None else apart
    begins = (np.append(0, np.flatnonzero(far > bits) + 1) for far in apart)
    return together(
        [_boxes(lane, first) for lane, first in zip(lanes, begins, strict=True) if len(lane)]
    )


def _apart(lanes: Sequence[LaneEvents]) -> list[npt.NDArray[np.uint8]]:
    """Return, per lane and pair of neighbours, the bits of the smallest cells that merge them.

    Two events are merged if their starts differ only in the bits below, and both are shorter than
    the cell: so the highest bit of these numbers together decides.
    """
    begin_ns = min((lane.span[0] for lane in lanes if len(lane)), default=0)
    bits = [np.empty(max(len(lane) - 1, 0), dtype=np.uint8) for lane in lanes]
    for events, of_lane in zip(lanes, bits, strict=True):
        for some in slices(len(of_lane)):
            both = slice(some.start, some.stop + 1)
            since, lasting = events.start_ns(both) - begin_ns, events.lasting_ns(both)
            differ = (since[1:] ^ since[:-1]) | lasting[1:] | lasting[:-1]
            # frexp gives the number of bits, of floats. Clear each bit below a set one: so a number
            # of many ones is not rounded up to the next power of two.
            of_lane[some] = np.frexp((differ & ~(differ >> 1)).astype(np.float64))[1]
    return bits


def _boxes(events: LaneEvents, first: IntArray) -> Boxes:
    """Return a box for the events from each index in `first` up to the next."""
    stop = np.append(first[1:], len(events)) if len(first) else first
    start, end = events.start_ns(first), events.start_ns(stop - 1) + events.lasting_ns(stop - 1)
    busy, longest = end - start, first
    if len(first) < len(events):  # else each box is one event
        busy, longest = np.empty_like(first), np.empty_like(first)
        # Work on parts of the boxes, of about _AT_ONCE events, to limit temporary memory.
        edges = np.searchsorted(first, np.arange(0, len(events), _AT_ONCE))
        for low, high in pairwise(distinct(np.append(edges, len(first))).tolist()):
            within = slice(int(first[low]), int(stop[high - 1]))
            lasting, begins = events.lasting_ns(within), first[low:high] - within.start
            busy[low:high] = np.add.reduceat(lasting, begins)
            counts = stop[low:high] - first[low:high]
            part, ranked = events.part(within), lasting
            parts = int(part.max()) + 1
            if parts > 1:  # the longest is one of the component that has most time in the box
                box = np.repeat(np.arange(high - low), counts)
                time = np.zeros((high - low) * parts, dtype=np.int64)
                np.add.at(time, box * parts + part, lasting)
                most = time.reshape(-1, parts).argmax(axis=1)
                # Events of other components rank last, but not out: if all events of a box have no
                # length, the chosen component may have none of them.
                ranked = np.where(part == np.repeat(most, counts), lasting, -1)
            most_ns = np.maximum.reduceat(ranked, begins)
            places = np.flatnonzero(ranked == np.repeat(most_ns, counts))
            longest[low:high] = within.start + places[np.searchsorted(places, begins)]
    return Boxes(
        np.full(len(first), events.lane),
        start,
        end,
        events.row[longest].astype(np.int64),
        events.part(longest).astype(np.int64),
        stop - first,
        busy,
    )
