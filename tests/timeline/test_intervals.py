"""Interval algebra against sets of single nanoseconds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceflops.timeline.intervals import NEVER, Intervals, latest_end_before

ranges = st.lists(st.tuples(st.integers(-40, 40), st.integers(-3, 20)), max_size=12)


def of(pairs: list[tuple[int, int]]) -> Intervals:
    start = np.array([s for s, _ in pairs], dtype=np.int64)
    return Intervals.of(start, start + np.array([n for _, n in pairs], dtype=np.int64))


def points(pairs: list[tuple[int, int]]) -> set[int]:
    return {t for s, n in pairs for t in range(s, s + n)}


def points_of(intervals: Intervals) -> set[int]:
    spans = zip(intervals.start_ns.tolist(), intervals.end_ns.tolist(), strict=True)
    return {t for s, e in spans for t in range(s, e)}


def assert_normal(intervals: Intervals) -> None:
    assert (intervals.end_ns > intervals.start_ns).all()
    assert (intervals.start_ns[1:] > intervals.end_ns[:-1]).all()


@given(ranges)
def test_of_is_the_union_in_normal_form(a: list[tuple[int, int]]) -> None:
    found = of(a)
    assert_normal(found)
    assert points_of(found) == points(a)
    assert found.length_ns == len(points(a))


@given(ranges)
def test_union_is_idempotent(a: list[tuple[int, int]]) -> None:
    assert of(a).union(of(a)) == of(a)


@given(ranges, ranges)
def test_union_intersect_subtract_are_those_of_sets(
    a: list[tuple[int, int]], b: list[tuple[int, int]]
) -> None:
    for found, expected in (
        (of(a).union(of(b)), points(a) | points(b)),
        (of(a).intersect(of(b)), points(a) & points(b)),
        (of(a).subtract(of(b)), points(a) - points(b)),
    ):
        assert_normal(found)
        assert points_of(found) == expected


@given(ranges, ranges)
def test_union_and_intersection_commute(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    assert of(a).union(of(b)) == of(b).union(of(a))
    assert of(a).intersect(of(b)) == of(b).intersect(of(a))


@given(ranges, ranges)
def test_inclusion_and_exclusion(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    x, y = of(a), of(b)
    assert x.union(y).length_ns == x.length_ns + y.length_ns - x.intersect(y).length_ns
    assert x.subtract(y).length_ns == x.length_ns - x.intersect(y).length_ns


@given(ranges, st.integers(-50, 50), st.integers(-5, 60))
def test_windows(a: list[tuple[int, int]], low: int, length: int) -> None:
    window = set(range(low, low + length))
    found = of(a)
    assert points_of(found.within(low, low + max(length, 0))) == points(a) & window
    assert points_of(found.complement(low, low + max(length, 0))) == window - points(a)
    if length >= 0:
        inside = found.length_within(np.array([low]), np.array([low + length]))
        assert inside.tolist() == [len(points(a) & window)]


@given(ranges)
def test_membership_and_covered_time(a: list[tuple[int, int]]) -> None:
    times, inside = range(-60, 80), points(a)
    at = np.array(times, dtype=np.int64)
    assert of(a).contains(at).tolist() == [t in inside for t in times]
    covered = [sum(p < t for p in inside) for t in times]
    assert of(a).covered_before(at).tolist() == covered


def test_touching_ranges_are_one_and_empty_ones_nothing() -> None:
    assert of([(0, 5), (5, 5)]) == Intervals.one(0, 10)
    assert of([(3, 0), (7, -2)]) == Intervals.empty()
    assert len(Intervals.one(4, 4)) == 0
    assert Intervals.empty().subtract(Intervals.one(0, 3)) == Intervals.empty()
    assert Intervals.one(0, 3) != "something else"


def test_times_of_today_stay_exact() -> None:
    epoch = 1_751_410_836_000_000_001
    found = Intervals.one(epoch, epoch + 3).intersect(Intervals.one(epoch + 1, epoch + 9))
    assert found == Intervals.one(epoch + 1, epoch + 3)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(0, 9)), max_size=15))
def test_latest_end_before_looks_at_earlier_ones_of_the_group(
    rows: list[tuple[int, int, int]],
) -> None:
    rows.sort(key=lambda row: row[1])
    group, start, length = (np.array([r[i] for r in rows], dtype=np.int64) for i in range(3))
    found = latest_end_before(group, start, start + length)
    strict = latest_end_before(group, start, start + length, strictly=True)
    for place, (g, at, _) in enumerate(rows):
        earlier = [(s, s + n) for h, s, n in rows[:place] if h == g]
        assert found[place] == max((end for _, end in earlier), default=NEVER)
        assert strict[place] == max((end for s, end in earlier if s < at), default=NEVER)
