"""Lanes without overlaps; many events as few boxes: short neighbours become one box."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from traceflops.table.columns import IntArray, SmallArray, WholeArray
from traceflops.table.grouping import distinct, groups, slices

_AT_ONCE: Final = 1 << 18  # events that are processed at a time, to limit temporary memory
MOST_LANES: Final = 64
"""Intervals that find no room on so many lanes are on the last one."""
_END, _INSTANT, _START = range(3)
"""Kinds of edges, in their order at the same time; an instant is an interval without length."""


def stacked(start_ns: IntArray, end_ns: IntArray) -> WholeArray:
    """Return the row (from 0) of each interval, so that intervals in a row do not overlap.

    Intervals are [start, end), sorted by start; of those that start together, instants (without
    length) come first, then the longest. There are no more rows than intervals are open at once. If
    all intervals nest, the row is the depth.
    """
    row = np.zeros(len(start_ns), dtype=np.int32)
    # Work on chunks, to limit temporary memory. A chunk can begin where no earlier one is open:
    # start [0 2 9], end [5 4 12]: the latest end so far is [5 5 12], so at rows 0 and 2.
    latest_end = np.maximum.accumulate(end_ns)
    can_begin = np.append(True, start_ns[1:] >= latest_end[:-1])
    del latest_end
    begins = np.flatnonzero(can_begin)
    # begins [0 2 7 8] of 9 rows, 3 at once: the first at or after 0, 3, 6 -> chunks [0 7) and [7 9)
    chosen = np.searchsorted(begins, np.arange(0, len(start_ns), _AT_ONCE))
    edges = distinct(np.append(begins[chosen[chosen < len(begins)]], len(start_ns)))
    for low, high in pairwise(edges.tolist()):
        if not can_begin[low:high].all():  # else no intervals overlap: all are in row 0
            row[low:high] = _stacked(start_ns[low:high], end_ns[low:high])
    return row


def _stacked(start_ns: IntArray, end_ns: IntArray) -> IntArray:
    """Return the row of each interval of a chunk: a [0, 4), b [2, 6), c [5, 8) -> rows 0, 1, 0."""
    # List all edges: starts (sign 1) and ends (-1), with the interval of each. Of intervals that
    # end together, the last one to start ends first, as if nested. An instant has both edges.
    is_instant = start_ns == end_ns
    lasting = np.flatnonzero(~is_instant)
    instants = np.flatnonzero(is_instant)
    interval = np.concatenate([lasting[::-1], np.repeat(instants, 2), lasting])
    times = [end_ns[lasting[::-1]], np.repeat(start_ns[instants], 2), start_ns[lasting]]
    kind = np.repeat([_END, _INSTANT, _START], [len(time) for time in times])
    sign = kind - 1  # of instants: 0, but they start and end
    sign[kind == _INSTANT] = np.tile([1, -1], len(instants))
    since = np.concatenate(times) - int(start_ns[0])
    order = np.argsort(since * 3 + kind, kind="stable")  # by time, then by kind (0 to 2)
    interval, sign = interval[order], sign[order]

    # The level of an edge is the number of open intervals after a start, or before an end.
    # edges in order [a starts, b starts, a ends, c starts, b ends, c ends] -> level [1 2 2 2 2 1]
    level = np.cumsum(sign) + (sign < 0)
    is_start = sign > 0
    start_level, end_level = (np.empty(len(start_ns), dtype=np.int64) for _ in range(2))
    start_level[interval[is_start]] = level[is_start]
    end_level[interval[~is_start]] = level[~is_start]
    if (start_level == end_level).all():  # all intervals nest
        return start_level - 1

    # Otherwise, an interval that starts at level k takes over the row of the one that last ended at
    # level k, its predecessor: c that of a, as both edges have level 2. A bundle begins where
    # nothing is open. If there is no predecessor in its bundle, the row is k - 1: b has row 1.
    bundle = np.cumsum(is_start & (level == 1))
    by_level = np.argsort(level, kind="stable")
    edge, edge_before = by_level[1:], by_level[:-1]
    is_same_level = level[edge] == level[edge_before]
    is_same_bundle = bundle[edge] == bundle[edge_before]
    takes_over = is_start[edge] & is_same_level & is_same_bundle
    predecessor = np.arange(len(start_level))
    predecessor[interval[edge[takes_over]]] = interval[edge_before[takes_over]]
    while True:  # follow the chain of predecessors to its first interval
        further = predecessor[predecessor]
        if np.array_equal(further, predecessor):
            return start_level[predecessor] - 1
        predecessor = further


def lanes_of(track: IntArray, start_ns: IntArray, end_ns: IntArray, *, nests: bool) -> IntArray:
    """Return the lane of each row within its track: the first lane with room.

    Rows on the same lane do not overlap, or with `nests`, one contains the other: viewers draw a
    lane as a stack of calls and lose other overlaps. [0, 9), [2, 5), [4, 12) are on lanes 0, 1, 2;
    with `nests`, on 0, 0, 1.
    """
    lanes = np.zeros(len(track), dtype=np.int64)
    for _, rows in groups(track):
        # By start, and of equal starts the longest first.
        order = rows[np.lexsort((-end_ns[rows], start_ns[rows]))]
        starts, ends = start_ns[order], end_ns[order]
        if not nests and (starts[1:] >= np.maximum.accumulate(ends)[:-1]).all():
            continue  # no rows overlap: all are on lane 0
        open_ends: list[list[int]] = []  # per lane: the ends of open rows, the innermost last
        chosen = []
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            # Without room on any lane, open a new one; if there are too many, take the last.
            lane = min(len(open_ends), MOST_LANES - 1)
            for number, stack in enumerate(open_ends):
                while stack and stack[-1] <= start:
                    stack.pop()
                if not stack or (nests and end <= stack[-1]):
                    lane = number
                    break
            if lane == len(open_ends):
                open_ends.append([])
            open_ends[lane].append(end)
            chosen.append(lane)
        lanes[order] = chosen
    return lanes


_LARGEST: Final = 63  # bits of the largest number


class Times(Struct, frozen=True, eq=False):
    """Starts and lengths of all rows of a table, and their components (None: all are 0)."""

    start_ns: IntArray
    lasting_ns: IntArray
    part: SmallArray | None


class LaneEvents(Struct, frozen=True, eq=False):
    """The events of one lane in the order of their starts; they do not overlap.

    They are rows of a table whose columns are shared, so that a lane takes little memory. Times
    count from `origin_ns`.
    """

    row: WholeArray
    times: Times
    origin_ns: int
    lane: int = 0

    def __len__(self) -> int:
        return len(self.row)

    def start_ns(self, which: slice | IntArray) -> IntArray:
        """Return the starts of the events with these indices."""
        starts: IntArray = self.times.start_ns[self.row[which]] - self.origin_ns
        return starts

    def lasting_ns(self, which: slice | IntArray) -> IntArray:
        """Return the lengths of the events with these indices."""
        return self.times.lasting_ns[self.row[which]]

    def part(self, which: slice | IntArray) -> SmallArray:
        """Return the components of the events with these indices."""
        rows = self.row[which]
        return np.zeros(len(rows), np.int8) if self.times.part is None else self.times.part[rows]

    @property
    def span(self) -> tuple[int, int]:
        """The first start and the last end."""
        ends = np.array([0, len(self) - 1])
        start = self.start_ns(ends)
        return int(start[0]), int(start[1] + self.lasting_ns(ends)[1])

    def touching(self, start_ns: int, end_ns: int) -> LaneEvents:
        """Return the events that overlap or touch a range."""
        start, lasting = self.times.start_ns, self.times.lasting_ns
        # Events do not overlap: their ends are in order, too.
        first = bisect_left(
            self.row, start_ns + self.origin_ns, key=lambda row: start[row] + lasting[row]
        )
        stop = bisect_right(self.row, end_ns + self.origin_ns, key=lambda row: start[row])
        return LaneEvents(self.row[first:stop], self.times, self.origin_ns, self.lane)


class Boxes(Struct, frozen=True, eq=False):
    """Boxes in the order of their lanes and starts; each stands for `count` events.

    A box reaches from the first start to the last end of its events, whose lengths sum to
    `busy_ns`. `part` is the component with most time, `row` the longest event of this component.
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
        """The number of events that the boxes stand for."""
        return int(self.count.sum())


class Counts(Struct, frozen=True, eq=False):
    """The smallest and the largest value of a number in consecutive intervals of time."""

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
        """Return a number that is `count` from each of these times until the next."""
        rows = np.arange(len(at_ns) - 1)
        return cls(LaneEvents(rows, Times(at_ns[:-1], np.diff(at_ns), None), 0), count[:-1])

    def within(self, start_ns: int, end_ns: int, most: int) -> Counts:
        """Return the extremes of the number in a range of time, in at most `most` intervals."""
        steps = self.steps.touching(start_ns, end_ns)
        boxes = at_most([steps], most)
        first_of_box = np.cumsum(boxes.count) - boxes.count  # count [3 1 2] -> [0 3 4]
        counts = self.count[steps.row]
        if not len(counts):
            return Counts(boxes.start_ns, boxes.end_ns, first_of_box, first_of_box)
        least = np.minimum.reduceat(counts, first_of_box)
        largest = np.maximum.reduceat(counts, first_of_box)
        return Counts(boxes.start_ns, boxes.end_ns, least, largest)


def together(parts: Sequence[Boxes]) -> Boxes:
    """Return the boxes of several sets of lanes, in the order of all lanes."""
    columns = [
        np.concatenate([np.empty(0, np.int64), *(getattr(boxes, name) for boxes in parts)])
        for name in ("lane", "start_ns", "end_ns", "row", "part", "count", "busy_ns")
    ]
    order = np.argsort(columns[0], kind="stable")
    return Boxes(*(column[order] for column in columns))


def at_most(lanes: Sequence[LaneEvents], most: int, cell_ns: int = 0) -> Boxes:
    """Return events as at most `most` boxes, as fine as possible, but at least one per lane.

    Short events in the same cell are merged. The length of a cell is the smallest power of two in
    ns that gives few enough boxes, and at least `cell_ns`.
    """
    if not cell_ns and sum(map(len, lanes)) <= most:
        return merged(lanes, None)
    bits_of_pairs = _bits_to_merge(lanes)
    pairs_by_bits = np.bincount(np.concatenate(bits_of_pairs), minlength=_LARGEST + 1)
    filled_lanes = sum(len(lane) > 0 for lane in lanes)
    # The number of boxes for cells of 0, 1, 2, ... bits: one per lane, and one for each pair of
    # neighbours that needs larger cells to be merged. Of one lane:
    # bits of its pairs [2 1 2] -> pairs by bits [0 1 2] -> pairs above [3 2 0] -> boxes [4 3 1]
    pairs_above = pairs_by_bits.sum() - np.cumsum(pairs_by_bits)
    fits = np.flatnonzero(filled_lanes + pairs_above <= most)
    bits = int(fits[0]) if len(fits) else _LARGEST
    least_bits = max(cell_ns - 1, 0).bit_length()
    return merged(lanes, max(bits, least_bits), bits_of_pairs)


def merged(
    lanes: Sequence[LaneEvents],
    bits: int | None,
    bits_of_pairs: Sequence[npt.NDArray[np.uint8]] | None = None,
) -> Boxes:
    """Return boxes: events shorter than a cell that start in the same cell are merged.

    Cells have 2 to the power of `bits` nanoseconds; None merges nothing. Events as long as a cell
    stay alone, and gaps as long as a cell stay gaps. `bits_of_pairs` is the result of
    `_bits_to_merge`, if known.
    """
    if bits is None:
        return together([_boxes(lane, np.arange(len(lane))) for lane in lanes])
    bits_of_pairs = _bits_to_merge(lanes) if bits_of_pairs is None else bits_of_pairs
    # A box begins with the first event, and with each that is not merged with the one before:
    # needed bits of the pairs [2 5 2], cells of 2 bits -> boxes begin at events [0 2]
    begins = (np.append(0, np.flatnonzero(needed > bits) + 1) for needed in bits_of_pairs)
    return together(
        [_boxes(lane, first) for lane, first in zip(lanes, begins, strict=True) if len(lane)]
    )


def _bits_to_merge(lanes: Sequence[LaneEvents]) -> list[npt.NDArray[np.uint8]]:
    """Return, per lane and pair of neighbours, the bits of the smallest cell that merges them.

    A cell of n bits merges two events if their starts are equal but for the lowest n bits, and if
    their lengths have at most n bits. So n is the length of the longest of three numbers: the bits
    in which the starts differ, and the two lengths. It is also that of their bitwise "or": starts
    0b100 and 0b110, lengths 0b1 and 0b101 -> 0b010 | 0b001 | 0b101 = 0b111 -> 3 bits.
    """
    begin_ns = min((lane.span[0] for lane in lanes if len(lane)), default=0)
    bits = [np.empty(max(len(lane) - 1, 0), dtype=np.uint8) for lane in lanes]
    for events, bits_of_lane in zip(lanes, bits, strict=True):
        for pairs in slices(len(bits_of_lane)):
            both = slice(pairs.start, pairs.stop + 1)
            start, lasting = events.start_ns(both) - begin_ns, events.lasting_ns(both)
            differing_bits = start[1:] ^ start[:-1]
            combined = differing_bits | lasting[1:] | lasting[:-1]
            # frexp of a float gives its number of bits. Rounding to a float may carry into one more
            # bit if many are set: keep only set bits without one right above them (0b110 -> 0b100).
            isolated = combined & ~(combined >> 1)
            bits_of_lane[pairs] = np.frexp(isolated.astype(np.float64))[1]
    return bits


def _boxes(events: LaneEvents, first: IntArray) -> Boxes:
    """Return a box for the events from each index in `first` up to the next."""
    # first [0 3] of 5 events -> stop [3 5]
    stop = np.append(first[1:], len(events)) if len(first) else first
    start = events.start_ns(first)
    end = events.start_ns(stop - 1) + events.lasting_ns(stop - 1)
    if len(first) == len(events):  # each box is one event
        busy = end - start
        longest = first
    else:
        busy = np.empty_like(first)
        longest = np.empty_like(first)  # the index of the event that stands for a box
        edges = np.searchsorted(first, np.arange(0, len(events), _AT_ONCE))
        for low, high in pairwise(distinct(np.append(edges, len(first))).tolist()):
            chunk = slice(int(first[low]), int(stop[high - 1]))  # the events of boxes low to high
            lasting = events.lasting_ns(chunk)
            begins = first[low:high] - chunk.start
            counts = stop[low:high] - first[low:high]
            busy[low:high] = np.add.reduceat(lasting, begins)
            rank = _rank(events.part(chunk), lasting, counts)
            # Of events with the highest rank in a box, take the first. begins [0 3]:
            # rank [2 4 4 1 5] -> highest [4 4 4 5 5] -> places [1 2 4] -> of the boxes [1 4]
            highest = np.repeat(np.maximum.reduceat(rank, begins), counts)
            places = np.flatnonzero(rank == highest)
            longest[low:high] = chunk.start + places[np.searchsorted(places, begins)]
    return Boxes(
        np.full(len(first), events.lane),
        start,
        end,
        events.row[longest].astype(np.int64),
        events.part(longest).astype(np.int64),
        stop - first,
        busy,
    )


def _rank(part: SmallArray, lasting: IntArray, counts: IntArray) -> IntArray:
    """Return the rank of each event in its box: its length if it is of the main component, else -1.

    The main component has most time in the box. Boxes have `counts` consecutive events each. If no
    event of a box has a length, its main component (0) may have no event: then all rank equally.
    """
    parts = int(part.max()) + 1
    if parts == 1:
        return lasting
    # counts [3 2] -> box [0 0 0 1 1]; part [1 0 1 0 0], lasting [2 4 3 1 5] -> time by box and part
    # [4 5, 6 0] -> main [1 0] -> rank [2 -1 3 1 5]
    box = np.repeat(np.arange(len(counts)), counts)
    time = np.zeros(len(counts) * parts, dtype=np.int64)
    np.add.at(time, box * parts + part, lasting)
    main = time.reshape(-1, parts).argmax(axis=1)
    return np.where(part == np.repeat(main, counts), lasting, -1)
