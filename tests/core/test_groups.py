"""Grouping by sorting gives what a plain look at every number gives."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceflops.account import Launches
from traceflops.groups import distinct, groups, joint_codes, runs

NUMBERS = st.lists(st.integers(-3, 9), max_size=30)
RUNS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


def ints(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@given(NUMBERS)
def test_distinct_numbers_are_in_order(values: list[int]) -> None:
    assert distinct(ints(values)).tolist() == sorted(set(values))


@given(NUMBERS)
def test_groups_hold_the_rows_of_each_number(values: list[int]) -> None:
    found = [(value, rows.tolist()) for value, rows in groups(ints(values))]
    assert found == [
        (value, [row for row, one in enumerate(values) if one == value])
        for value in sorted(set(values))
    ]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-3, 9)), max_size=30))
def test_joint_codes_order_and_tell_apart_pairs(pairs: list[tuple[int, int]]) -> None:
    codes = joint_codes(ints([a for a, _ in pairs]), ints([b for _, b in pairs])).tolist()
    by_code = dict(zip(codes, pairs, strict=True))
    assert len(by_code) == len(set(pairs))
    assert [by_code[code] for code in sorted(by_code)] == sorted(set(pairs))


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
    linked, launches = Launches(ints(calls)).count(ints(first), ints(stop))
    known = [[call for call in calls[a:b] if call >= 0] for a, b in zip(first, stop, strict=True)]
    assert linked.tolist() == list(map(len, known))
    assert launches.tolist() == [len(set(some)) for some in known]
