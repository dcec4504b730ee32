"""Many events as few boxes: neighbours that are short and close together become one box."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from traceflops.columns import BoolArray, IntArray, WholeArray
from traceflops.groups import slices

_NEVER: Final = np.int64(2**63 - 1)


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Events in the order of their lanes and starts; those of a lane do not overlap.

    `row` is the row of each in the table of its lane, `part` the number of its component. Lanes
    and parts may be of a narrower type of number.
    """

    lane: WholeArray
    start_ns: IntArray
    end_ns: IntArray
    row: IntArray
    part: WholeArray

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.lane)

    def touching(self, start_ns: int, end_ns: int) -> Events:
        """Return the events that have an instant with the range in common, ends included."""
        edges = self.edges(range(int(self.lane[-1]) + 2 if len(self) else 0))
        kept = []
        for first, stop in pairwise(edges):
            # Those of a lane do not overlap, so that their ends are in order, too.
            low = first + int(np.searchsorted(self.end_ns[first:stop], start_ns, side="left"))
            high = first + int(np.searchsorted(self.start_ns[first:stop], end_ns, side="right"))
            kept.append(slice(low, max(low, high)))
        if sum(some.stop - some.start for some in kept) == len(self):
            return self
        columns = (self.lane, self.start_ns, self.end_ns, self.row, self.part)
        return Events(*(np.concatenate([column[some] for some in kept]) for column in columns))

    def edges(self, lanes: Iterable[int]) -> list[int]:
        """Return where the events of some lanes begin, or would."""
        # Of the same type, lest all lanes be copied into a common one.
        wanted = np.fromiter(lanes, dtype=self.lane.dtype)
        found: list[int] = np.searchsorted(self.lane, wanted).tolist()
        return found

    def between(self, first: int, stop: int) -> Events:
        """Return the events from one place to another."""
        columns = (self.lane, self.start_ns, self.end_ns, self.row, self.part)
        return Events(*(column[first:stop] for column in columns))


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
    apart = _apart(events)
    low, high = 0, max(int(events.end_ns.max() - events.start_ns.min()), 1).bit_length() + 1
    while low < high:
        middle = (low + high) // 2
        if int(np.count_nonzero(apart >= 1 << middle)) < most:
            high = middle
        else:
            low = middle + 1
    return _boxes(events, np.append(0, np.flatnonzero(apart >= 1 << low) + 1))


def merged(events: Events, cell_ns: int) -> Boxes:
    """Return boxes of the events that are shorter than a cell and start in the same one.

    An event as long as a cell stays alone, and so is every gap as long as a cell still a gap.
    """
    return _boxes(events, np.flatnonzero(_opens(events, cell_ns)))


def _boxes(events: Events, first: IntArray) -> Boxes:
    """Return boxes of the events from each of these places up to the next one."""
    lasting = events.end_ns - events.start_ns
    if len(first) == len(events):
        once = np.ones(len(events), dtype=np.int64)
        return Boxes(
            events.lane,
            events.start_ns,
            events.end_ns,
            events.row,
            events.part,
            once,
            lasting,
        )
    count = np.diff(first, append=len(events))
    longest = _longest(events.part, lasting, first, count)
    return Boxes(
        events.lane[first],
        events.start_ns[first],
        events.end_ns[first + count - 1],
        events.row[longest],
        events.part[longest],
        count,
        np.add.reduceat(lasting, first),
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


def _apart(events: Events) -> IntArray:
    """Return, per pair of neighbours, a number below each power of two that merges them.

    Two are in one cell of such a length where their starts differ only in lower bits, and both
    are shorter than it: where all these numbers together have no higher bit.
    """
    begin = int(events.start_ns.min())
    found = np.empty(len(events) - 1, dtype=np.int64)
    for some in slices(len(found)):
        both = slice(some.start, some.stop + 1)
        since = events.start_ns[both] - begin
        lasting = events.end_ns[both] - events.start_ns[both]
        bits = (since[1:] ^ since[:-1]) | lasting[1:] | lasting[:-1]
        bits[events.lane[both][1:] != events.lane[both][:-1]] = _NEVER
        found[some] = bits
    return found


def _longest(part: IntArray, lasting: IntArray, first: IntArray, count: IntArray) -> IntArray:
    """Return, per box, the longest event of the component that has the most time in it."""
    parts = int(part.max()) + 1
    ranked = lasting
    if parts > 1:
        box = np.repeat(np.arange(len(first)), count)
        time = np.zeros(len(first) * parts, dtype=np.int64)
        np.add.at(time, box * parts + part, lasting)
        most = time.reshape(-1, parts).argmax(axis=1)
        # Where nothing in a box has a length, the part that is first has none of its events,
        # perhaps.
        ranked = np.where(part == np.repeat(most, count), lasting, -1)
    longest = np.maximum.reduceat(ranked, first)
    places = np.flatnonzero(ranked == np.repeat(longest, count))
    return places[np.searchsorted(places, first)]
