"""The forest of ops and exact sums, against the plain way of computing them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.build import table_of
from traceflops.table.columns import IntArray
from traceflops.table.grouping import exact_sum, exact_sums, group_rows
from traceflops.table.nesting import OpTree, taken

OPS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 15), st.integers(0, 1), st.booleans()), max_size=25
)


def ancestors(tree: OpTree, row: int) -> list[int]:
    found = []
    above = int(tree.parent[row])
    while above >= 0:
        found.append(above)
        above = int(tree.parent[above])
    return found


@given(OPS)
def test_what_is_around_and_below(drawn: list[tuple[int, int, int, bool]]) -> None:
    rows = [
        {"name": "op", "start_ns": start, "dur_ns": dur, "thread": thread}
        for start, dur, thread, _ in drawn
    ]
    tree = OpTree.of(table_of("ops", rows))
    marked = np.array([mark for *_, mark in drawn], dtype=np.bool_)
    above = [ancestors(tree, row) for row in range(len(rows))]
    for row in range(len(rows)):
        strict = next((one for one in above[row] if marked[one]), -1)
        assert tree.around(marked)[row] == strict
        assert tree.nearest(marked)[row] == (row if marked[row] else strict)
        assert tree.below(marked)[row] == sum(
            bool(marked[one]) for one in range(len(rows)) if row in above[one]
        )


def test_a_deep_nest_costs_no_more_than_a_shallow_one() -> None:
    count = 200_000
    start = range(count)
    rows = table_of("ops", [{"name": "op", "start_ns": 0, "dur_ns": 1}])
    assert OpTree.of(rows).parent.tolist() == [-1]
    tree = _nest(np.array(start, dtype=np.int64))
    marked = np.zeros(count, dtype=np.bool_)
    marked[0] = True
    assert (tree.nearest(marked) == 0).all()
    assert tree.below(np.ones(count, dtype=np.bool_))[0] == count - 1


def _nest(start: IntArray) -> OpTree:
    from traceflops.table.builder import TableBuilder

    table = TableBuilder("ops")
    name = np.zeros(len(start), dtype=np.int64) + table.names["name"]["op"]
    table.add(
        len(start), process=0, thread=1, name=name, start_ns=start, dur_ns=2 * (10**6 - start)
    )
    return OpTree.of(table.finish())


def test_nothing_is_taken_from_nothing() -> None:
    empty = np.empty(0, dtype=np.int64)
    assert taken(empty, np.array([-1, -1])).tolist() == [-1, -1]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**63 - 1)), max_size=50))
def test_sums_beyond_an_int64_are_exact(drawn: list[tuple[int, int]]) -> None:
    group = np.array([place for place, _ in drawn], dtype=np.int64)
    values = np.array([value for _, value in drawn], dtype=np.int64)
    assert exact_sums(group, values, 4) == [
        sum(value for place, value in drawn if place == wanted) for wanted in range(4)
    ]
    assert exact_sum(values) == sum(value for _, value in drawn)


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-(2**62), 2**62)), max_size=30))
def test_rows_are_grouped_by_all_columns(drawn: list[tuple[int, int]]) -> None:
    columns = [np.array([row[at] for row in drawn], dtype=np.int64) for at in (0, 1)]
    group, first = group_rows(columns)
    assert len(first) == len(set(drawn))
    for row, place in zip(drawn, group.tolist(), strict=True):
        assert drawn[int(first[place])] == row
