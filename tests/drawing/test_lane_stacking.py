"""Rows of overlapping intervals, against their definition."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceflops.drawing.coarsening import stacked
from traceflops.table.columns import IntArray

Interval = tuple[int, int]
lists = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=40)


def in_order(found: list[Interval]) -> list[Interval]:
    made = [(start, start + length) for start, length in found]
    return sorted(made, key=lambda one: (one[0], one[1] > one[0], -one[1]))


def rows_of(intervals: list[Interval]) -> list[int]:
    columns: list[IntArray] = [np.array([i[k] for i in intervals], np.int64) for k in range(2)]
    found: list[int] = stacked(*columns).tolist()
    return found


@given(lists)
def test_intervals_of_a_row_follow_one_another(found: list[Interval]) -> None:
    intervals = in_order(found)
    rows = rows_of(intervals)
    for row in set(rows):
        mine = [one for one, place in zip(intervals, rows, strict=True) if place == row]
        assert all(a[1] <= b[0] for a, b in pairwise(mine))


@given(lists)
def test_there_are_no_more_rows_than_are_open_at_once(found: list[Interval]) -> None:
    intervals = [one for one in in_order(found) if one[1] > one[0]]
    deepest = max((sum(a <= t < b for a, b in intervals) for t in range(60)), default=0)
    assert max(rows_of(intervals), default=-1) + 1 == deepest


def nested(depth: int, start: int, end: int, draw: st.DataObject) -> list[Interval]:
    """Return an interval and, in it, others that are apart and hold more."""
    found = [(start, end)]
    at = start
    while depth and end - at > 1:
        low = draw.draw(st.integers(at, end - 1))
        high = draw.draw(st.integers(low + 1, end))
        found += nested(depth - 1, low, high, draw)
        at = high
    return found


@given(st.data())
def test_where_intervals_nest_the_row_is_the_depth(data: st.DataObject) -> None:
    found = nested(3, 0, data.draw(st.integers(1, 24)), data)
    intervals = sorted(found, key=lambda one: (one[0], -one[1]))
    depths = []
    for place, (start, end) in enumerate(intervals):
        depths.append(sum(a <= start and end <= b for a, b in intervals[:place]))
    assert rows_of(intervals) == depths


def test_what_outlives_its_parent_pushes_others_aside() -> None:
    #          parent    outlives it  a second one  what begins in that
    intervals = [(0, 10), (8, 12), (10, 20), (11, 15), (30, 40), (31, 33)]
    assert rows_of(intervals) == [0, 1, 0, 2, 0, 1]


def test_nothing_has_no_rows() -> None:
    assert rows_of([]) == []


def test_a_moment_lies_in_a_row_of_its_own_only_inside_something() -> None:
    assert rows_of([(0, 0), (0, 5), (2, 2), (2, 2), (5, 5), (5, 9)]) == [0, 0, 1, 1, 0, 0]
