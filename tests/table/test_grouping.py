"""Grouping by sorting gives what a plain look at every number gives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceflops.table.columns import ABSENT
from traceflops.table.grouping import (
    by_code,
    distinct,
    first_rows,
    group_rows,
    groups,
    in_order,
    is_among,
    joint_codes,
    places_in_groups,
    ranked,
    runs,
    slices,
)
from traceflops.timeline.account import LaunchCounter

MOST = 2**63 - 1
EDGES = (ABSENT, ABSENT + 1, ABSENT + 2, -(2**62), -1, 0, 1, 2**62, MOST - 1, MOST)
ANY = st.one_of(st.integers(-3, 9), st.sampled_from(EDGES), st.integers(ABSENT, MOST))
NUMBERS = st.lists(st.integers(-3, 9), max_size=30)
ANY_NUMBERS = st.lists(ANY, max_size=30)
RUNS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


def ints(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@given(ANY_NUMBERS)
def test_distinct_numbers_are_in_order(values: list[int]) -> None:
    assert distinct(ints(values)).tolist() == sorted(set(values))


@given(ANY_NUMBERS)
def test_groups_hold_the_rows_of_each_number(values: list[int]) -> None:
    found = [(value, rows.tolist()) for value, rows in groups(ints(values))]
    assert found == [
        (value, [row for row, one in enumerate(values) if one == value])
        for value in sorted(set(values))
    ]


@given(st.lists(st.tuples(st.integers(0, 5), ANY), max_size=30))
def test_joint_codes_order_and_tell_apart_pairs(pairs: list[tuple[int, int]]) -> None:
    codes = joint_codes(ints([a for a, _ in pairs]), ints([b for _, b in pairs])).tolist()
    by_code = dict(zip(codes, pairs, strict=True))
    assert len(by_code) == len(set(pairs))
    assert [by_code[code] for code in sorted(by_code)] == sorted(set(pairs))


def check_ranked(values: list[int], array: np.ndarray) -> None:
    found, places = ranked(array)
    order = sorted(set(values))
    assert found.tolist() == order
    assert places.tolist() == [order.index(one) for one in values]
    assert found.dtype == places.dtype == np.int64


@given(ANY_NUMBERS)
def test_ranks_are_places_among_the_distinct_numbers(values: list[int]) -> None:
    check_ranked(values, ints(values))


@given(st.sampled_from((ABSENT, -(2**62), 0, MOST - 40)), st.data())
def test_ranks_of_close_numbers_do_not_overflow(low: int, data: st.DataObject) -> None:
    close = st.one_of(st.just(ABSENT), st.integers(low, low + 40))
    values = data.draw(st.lists(close, max_size=30))
    check_ranked(values, ints(values))


@given(st.lists(st.integers(-128, 127), max_size=30))
def test_ranks_of_few_bits_do_not_overflow(values: list[int]) -> None:
    check_ranked(values, np.array(values, dtype=np.int8))
    spread = [200 * one for one in values]
    check_ranked(spread, np.array(spread, dtype=np.int16))


def test_ranks_of_more_rows_than_are_looked_at_at_once() -> None:
    values = np.arange(300_000, dtype=np.int64)[::-1] // 3
    values[1::1000] = ABSENT
    found, places = ranked(values)
    expected, at = np.unique(values, return_inverse=True)
    assert np.array_equal(found, expected)
    assert np.array_equal(places, at)


@given(st.lists(st.integers(0, 6), max_size=30), st.integers(0, 3))
def test_first_rows_are_the_first_of_each_group(values: list[int], more: int) -> None:
    count = max(values, default=-1) + 1 + more
    first: dict[int, int] = {}
    for row, group in enumerate(values):
        first.setdefault(group, row)
    assert first_rows(ints(values), count).tolist() == [first.get(g, -1) for g in range(count)]


@given(st.integers(1, 4), st.data())
def test_rows_of_a_group_are_equal_in_all_columns(width: int, data: st.DataObject) -> None:
    few = st.lists(st.sampled_from((*EDGES, 5)), min_size=1, max_size=3).flatmap(st.sampled_from)
    rows = data.draw(st.lists(st.tuples(*[st.one_of(few, ANY)] * width), max_size=30))
    check_groups(rows, [ints([row[at] for row in rows]) for at in range(width)])


@given(st.lists(st.tuples(st.integers(-128, 127), st.integers(0, 1), st.integers(0, 3))))
def test_columns_of_few_bits_are_grouped_as_wide_ones(rows: list[tuple[int, ...]]) -> None:
    columns = [ints([row[at] for row in rows]).astype(np.int8) for at in range(3)]
    check_groups(rows, columns)


@given(st.lists(st.tuples(*[st.integers(0, 1000)] * 9), max_size=30))
def test_many_columns_do_not_overflow(rows: list[tuple[int, ...]]) -> None:
    check_groups(rows, [ints([row[at] for row in rows]) for at in range(9)])


def check_groups(rows: list[tuple[int, ...]], columns: list[np.ndarray]) -> None:
    group, first = group_rows(columns)
    order = sorted(set(rows))
    assert group.tolist() == [order.index(row) for row in rows]
    assert first.tolist() == [rows.index(row) for row in order]


@given(st.lists(st.tuples(ANY, ANY, st.integers(0, 2)), max_size=30))
def test_rows_are_in_order_of_their_keys(rows: list[tuple[int, ...]]) -> None:
    keys = [ints([row[at] for row in rows]) for at in range(3)]
    expected = sorted(range(len(rows)), key=lambda row: rows[row])
    assert in_order(*keys).tolist() == expected
    assert in_order(keys[2]).tolist() == sorted(range(len(rows)), key=lambda row: rows[row][2])
    ordered = ints(expected)
    assert in_order(*(key[ordered] for key in keys)).tolist() == list(range(len(rows)))


@given(st.lists(st.integers(0, 2**40) | st.sampled_from((0, 5, 2**16 - 1, 2**16, 2**17, MOST))))
def test_codes_are_in_order(codes: list[int]) -> None:
    expected = sorted(range(len(codes)), key=codes.__getitem__)
    assert by_code(ints(codes)).tolist() == expected


@given(st.one_of(st.integers(0, 5), st.integers(0, 10**6), st.sampled_from((1 << 17, 1 << 18))))
def test_slices_are_all_rows_in_turn(count: int) -> None:
    parts = list(slices(count))
    assert [0, *(part.stop for part in parts)] == [*(part.start for part in parts), count]
    assert all(part.stop > part.start for part in parts)


@given(RUNS)
def test_runs_are_all_places_in_turn(given_runs: list[tuple[int, int]]) -> None:
    places, which = runs(ints([a for a, _ in given_runs]), ints([b for _, b in given_runs]))
    assert list(zip(which.tolist(), places.tolist(), strict=True)) == [
        (run, place) for run, (first, stop) in enumerate(given_runs) for place in range(first, stop)
    ]


@given(st.lists(st.integers(-1, 4), max_size=30), RUNS)
def test_launches_are_the_distinct_calls_of_each_run(
    calls: list[int], given_runs: list[tuple[int, int]]
) -> None:
    first = [min(a, b, len(calls)) for a, b in given_runs]
    stop = [min(max(a, b), len(calls)) for a, b in given_runs]
    linked, launches = LaunchCounter(ints(calls)).count(ints(first), ints(stop))
    known = [[call for call in calls[a:b] if call >= 0] for a, b in zip(first, stop, strict=True)]
    assert linked.tolist() == list(map(len, known))
    assert launches.tolist() == [len(set(some)) for some in known]


PAIRS = st.lists(st.tuples(st.integers(-2, 4), st.integers(-9, 9)), max_size=12)


@given(PAIRS, PAIRS, st.integers(1, 100))
def test_places_in_groups_count_the_pairs_of_all_groups_up_to_one(
    pairs: list[tuple[int, int]], wanted: list[tuple[int, int]], copies: int
) -> None:
    asked = wanted * copies  # many of a group are searched otherwise than few
    sides = (np.array(each, dtype=np.int64).reshape(-1, 2).T for each in (sorted(pairs), asked))
    found = places_in_groups(*(column for side in sides for column in side))
    assert found.tolist() == [sum(pair <= one for pair in pairs) for one in asked]


def test_unsigned_numbers_that_would_wrap_are_refused() -> None:
    wide, own = np.array([2**63], dtype=np.uint64), np.array([-(2**63)])
    for given_ in ((wide, own), (own, wide)):
        with pytest.raises(TypeError, match="uint64 does not fit"):
            is_among(*given_)
    assert is_among(own.astype(np.int64), own).all()
