"""Enclosing intervals against a search through all of them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceflops.table.nesting import LastAbove, OpTree, innermost, parents

rows_strategy = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 25)), max_size=14
)


def columns(rows: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    group, start, length = (np.array([r[i] for r in rows], dtype=np.int64) for i in range(3))
    return group, start, start + length


def best(rows: list[tuple[int, int, int]], group: int, at: int) -> tuple[int, int] | None:
    """Return start and end of the interval that starts last (then ends first) around `at`."""
    around = [(s, -(s + n)) for g, s, n in rows if g == group and s <= at < s + n]
    return (max(around)[0], -max(around)[1]) if around else None


@given(rows_strategy, st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 60)), max_size=30))
def test_innermost_is_the_latest_started_one_around(
    rows: list[tuple[int, int, int]], asks: list[tuple[int, int]]
) -> None:
    group, start, end = columns(rows)
    at_group = np.array([g for g, _ in asks], dtype=np.int64)
    at = np.array([t for _, t in asks], dtype=np.int64)
    found = innermost(group, start, end, at_group, at)
    for (g, t), row in zip(asks, found.tolist(), strict=True):
        expected = best(rows, g, t)
        if expected is None:
            assert row == -1
        else:
            assert group[row] == g
            assert (int(start[row]), int(end[row])) == expected


@given(rows_strategy)
def test_a_parent_contains_the_start_of_its_child(rows: list[tuple[int, int, int]]) -> None:
    group, start, end = columns(rows)
    for child, parent in enumerate(parents(group, start, end).tolist()):
        candidates = [
            p
            for p in range(len(rows))
            if p != child
            and group[p] == group[child]
            and (start[p], -end[p], p) < (start[child], -end[child], child)
            and end[p] > start[child]
        ]
        expected = max(candidates, key=lambda p: (start[p], -end[p], p), default=-1)
        assert parent == expected


def test_a_child_that_ends_after_its_parent_is_still_its_child() -> None:
    group, start, end = columns([(0, 0, 10), (0, 4, 8)])
    assert parents(group, start, end).tolist() == [-1, 0]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(0, 39), st.integers(-1, 9))
def test_last_above(values: list[int], upto: int, threshold: int) -> None:
    upto = min(upto, len(values) - 1)
    found = LastAbove(np.array(values)).find(np.array([upto]), np.array([threshold]))
    above = [p for p in range(upto + 1) if values[p] > threshold]
    assert found.tolist() == [above[-1] if above else -1]


def test_deep_nesting_and_many_questions_after_it() -> None:
    depth = 20_000
    start = np.arange(depth, dtype=np.int64)
    end = np.full(depth, 3 * depth, dtype=np.int64) - start
    at = np.full(1000, 2 * depth + 5, dtype=np.int64)
    zeros = np.zeros(depth, dtype=np.int64)
    found = innermost(zeros, start, end, zeros[:1000], at)
    assert set(found.tolist()) == {depth - 6}


def test_operators_around_others_of_their_group() -> None:
    # 0 holds 1 and 2, and 2 holds 3; 4 is alone.
    start, end = np.array([0, 1, 4, 5, 20]), np.array([10, 3, 8, 6, 30])
    tree = OpTree.nested(np.zeros(5, dtype=np.int64), start, end)
    repeated = {
        (1, 2, 3, 1, 1): [True, False, False, False, False],
        (1, 2, 2, 2, 1): [False, False, True, False, False],
        (-1, -1, -1, -1, -1): [False] * 5,
    }
    for group, expected in repeated.items():
        assert tree.repeated_below(np.array(group)).tolist() == expected
