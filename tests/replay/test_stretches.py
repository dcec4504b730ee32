"""Sets of instants of many threads: what each operation gives is what plain sets give."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceflops.replay.stretches import Stretches

RANGES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(0, 5)), max_size=8)
"""Thread, start and length."""
Instants = set[tuple[int, int]]


def stretches(ranges: list[tuple[int, int, int]]) -> Stretches:
    thread, start, length = np.array(ranges, dtype=np.int64).reshape(-1, 3).T
    return Stretches.of(thread, start, start + length)


def written(ranges: list[tuple[int, int, int]]) -> Instants:
    return {(thread, at) for thread, start, dur in ranges for at in range(start, start + dur)}


def held(some: Stretches) -> Instants:
    columns = (some.thread.tolist(), some.start_ns.tolist(), some.end_ns.tolist())
    found = [(thread, at) for thread, *ends in zip(*columns, strict=True) for at in range(*ends)]
    assert len(found) == len({*found}) == some.length_ns  # no instant twice
    return {*found}


@given(RANGES, RANGES)
def test_sets_of_several_threads_are_combined_like_sets(
    one: list[tuple[int, int, int]], other: list[tuple[int, int, int]]
) -> None:
    first, second = stretches(one), stretches(other)
    assert held(first) == written(one)
    assert held(first.union(second)) == written(one) | written(other)
    assert held(first.union(second, first)) == held(second.union(first))
    assert held(first.intersect(second)) == written(one) & written(other)
    assert held(first.subtract(second)) == written(one) - written(other)
    assert first.subtract(second).known.tolist() == sorted({thread for thread, *_ in one})


@given(RANGES, st.integers(0, 3), st.integers(0, 15), st.integers(0, 8))
def test_lengths_inside_a_range_of_a_thread(
    ranges: list[tuple[int, int, int]], thread: int, start: int, length: int
) -> None:
    asked = (np.array([at]) for at in (thread, start, start + length))
    (inside_ns,) = stretches(ranges).length_within(*asked).tolist()
    assert inside_ns == len(written(ranges) & written([(thread, start, length)]))


def test_stretches_are_cut_at_instants_inside() -> None:
    pieces = stretches([(1, 0, 10), (2, 5, 5)]).cut(np.array([0, 4, 5, 8, 20]))
    assert pieces.start_ns.tolist() == [0, 4, 5, 8, 5, 8]
    assert pieces.end_ns.tolist() == [4, 5, 8, 10, 8, 10]
