"""Many events as few boxes, against counting by hand."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceflops.drawing.coarsening import Boxes, Counter, LaneEvents, Times, at_most, merged
from traceflops.table.columns import IntArray


@dataclass(frozen=True)
class Made:
    """Events column by column, and as lanes of rows."""

    lane: IntArray
    start_ns: IntArray
    end_ns: IntArray
    row: IntArray
    part: IntArray
    lanes: list[LaneEvents]

    def __len__(self) -> int:
        return len(self.lane)


def events(lanes: list[list[tuple[int, int, int]]]) -> Made:
    """Return events from (gap before, length, part), lane by lane."""
    rows: list[tuple[int, int, int, int, int]] = []
    for lane, found in enumerate(lanes):
        at = 0
        for gap, length, part in found:
            rows.append((lane, at + gap, at + gap + length, len(rows), part))
            at += gap + length
    lane_of, start, end, row, part_of = (np.array([r[k] for r in rows], np.int64) for k in range(5))
    times = Times(start + 7, end - start, part_of.astype(np.int8))
    made = [LaneEvents(row[lane_of == n], times, 7, n) for n in range(len(lanes))]
    return Made(lane_of, start, end, row, part_of, made)


lanes = st.lists(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 20), st.integers(0, 3)),
        min_size=1,
        max_size=30,
    ),
    min_size=1,
    max_size=3,
).map(events)


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 9)), min_size=2, max_size=60),
    st.tuples(st.integers(-50, 900), st.integers(0, 900)),
    st.integers(1, 20),
)
def test_a_number_is_between_its_least_and_its_most(
    changes: list[tuple[int, int]], span: tuple[int, int], most: int
) -> None:
    at = np.cumsum([after for after, _ in changes])
    values = [value for _, value in changes]
    found = Counter.of(at, np.array(values)).within(span[0], sum(span), most)
    assert len(found.most) <= most
    pieces = list(zip(at.tolist(), at[1:].tolist(), values, strict=False))
    stretches = zip(found.start_ns, found.end_ns, found.least, found.most, strict=True)
    for start, end, low, high in stretches:
        inside = [value for begin, stop, value in pieces if begin < end and stop > start]
        assert (low, high) == (min(inside), max(inside))
    assert (found.start_ns[1:] == found.end_ns[:-1]).all()
    touching = [one for one in pieces if one[0] <= sum(span) and one[1] >= span[0]]
    assert [*found.start_ns[:1], *found.end_ns[-1:]] == [
        *(begin for begin, _, _ in touching[:1]),
        *(stop for _, stop, _ in touching[-1:]),
    ]


def inside(found: Made, boxes: Boxes, box: int) -> list[int]:
    """Return the events that lie in a box, but for those without length at its edges."""
    return [
        one
        for one in range(len(found))
        if found.lane[one] == boxes.lane[box]
        and boxes.start_ns[box] <= found.start_ns[one]
        and found.end_ns[one] <= boxes.end_ns[box]
        and boxes.start_ns[box] < boxes.end_ns[box]
        and found.start_ns[one] < found.end_ns[one]
    ]


@given(lanes, st.integers(0, 7))
def test_every_event_is_in_one_box_and_boxes_of_a_lane_are_apart(found: Made, bits: int) -> None:
    boxes = merged(found.lanes, bits)
    assert boxes.events == len(found)
    assert boxes.busy_ns.sum() == (found.end_ns - found.start_ns).sum()
    same = boxes.lane[1:] == boxes.lane[:-1]
    assert (boxes.start_ns[1:][same] >= boxes.end_ns[:-1][same]).all()
    assert (boxes.lane == np.sort(boxes.lane)).all()
    for box in range(len(boxes)):
        mine = inside(found, boxes, box)
        assert sum(int(found.end_ns[i] - found.start_ns[i]) for i in mine) == boxes.busy_ns[box]


@given(lanes, st.integers(0, 7))
def test_what_is_long_stays_single_and_exact(found: Made, bits: int) -> None:
    boxes = merged(found.lanes, bits)
    single = {
        (int(b), int(s), int(e))
        for b, s, e, n in zip(boxes.row, boxes.start_ns, boxes.end_ns, boxes.count, strict=True)
        if n == 1
    }
    for row, start, end in zip(found.row, found.start_ns, found.end_ns, strict=True):
        if end - start >= 1 << bits:
            assert (int(row), int(start), int(end)) in single


@given(lanes, st.integers(0, 7))
def test_long_gaps_stay_gaps(found: Made, bits: int) -> None:
    boxes = merged(found.lanes, bits)
    for box in range(len(boxes)):
        mine = inside(found, boxes, box)
        edges = [(int(found.start_ns[i]), int(found.end_ns[i])) for i in mine]
        for before, after in pairwise(edges):
            assert after[0] - before[1] < 1 << bits


@given(lanes, st.integers(0, 7))
def test_a_box_is_what_most_of_its_time_is(found: Made, bits: int) -> None:
    boxes = merged(found.lanes, bits)
    for box in np.flatnonzero(boxes.busy_ns > 0).tolist():
        mine = inside(found, boxes, box)
        time = dict.fromkeys(range(4), 0)
        for i in mine:
            time[int(found.part[i])] += int(found.end_ns[i] - found.start_ns[i])
        part = int(boxes.part[box])
        assert time[part] == max(time.values())
        longest = max(
            int(found.end_ns[i] - found.start_ns[i]) for i in mine if found.part[i] == part
        )
        row = int(boxes.row[box])
        assert found.end_ns[row] - found.start_ns[row] == longest
        assert found.part[row] == part


@given(lanes, st.integers(1, 40))
def test_there_are_no_more_boxes_than_wanted_but_one_a_lane(found: Made, most: int) -> None:
    boxes = at_most(found.lanes, most)
    assert len(boxes) <= max(most, len(set(found.lane.tolist())))
    assert boxes.events == len(found)
    if len(found) <= most:
        assert (boxes.start_ns == found.start_ns).all()
        assert (boxes.end_ns == found.end_ns).all()
        assert (boxes.row == found.row).all()
