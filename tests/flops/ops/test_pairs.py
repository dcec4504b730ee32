"""Attended pairs in closed form against counting them one by one."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceflops.flops.ops.attention import Band

LENGTHS = st.integers(0, 9)
SIDES = st.none() | st.integers(0, 11)


def counted(band: Band, queries: int, keys: int) -> int:
    shift = keys - queries if band.bottom_right else 0
    left = keys + queries if band.left is None else band.left
    right = keys + queries if band.right is None else band.right
    return sum(
        i + shift - left <= j <= i + shift + right for i in range(queries) for j in range(keys)
    )


@given(LENGTHS, LENGTHS, SIDES, SIDES, st.booleans())
def test_pairs_are_those_counted_one_by_one(
    queries: int, keys: int, left: int | None, right: int | None, bottom_right: bool
) -> None:
    band = Band(left, right, bottom_right)
    assert band.pairs(queries, keys) == counted(band, queries, keys)


@pytest.mark.parametrize(
    ("band", "queries", "keys", "pairs"),
    [
        (Band(), 5, 7, 35),
        (Band(None, 0), 5, 5, 15),  # 1 + 2 + 3 + 4 + 5
        (Band(None, 0), 3, 7, 6),  # top left: 1 + 2 + 3
        (Band(None, 0), 7, 3, 18),  # 1 + 2 + 3, then 4 rows of 3
        (Band(None, 0, True), 3, 7, 18),  # bottom right: 5 + 6 + 7
        (Band(None, 0, True), 7, 3, 6),  # four rows see nothing
        (Band(2, 0), 6, 6, 15),  # 1 + 2 + 3 + 3 + 3 + 3
        (Band(None, 0, True), 1, 900, 900),  # one new token sees all that is cached
        (Band(None, 0), 131_072, 131_072, 131_072 * 131_073 // 2),
    ],
)
def test_known_masks(band: Band, queries: int, keys: int, pairs: int) -> None:
    assert band.pairs(queries, keys) == pairs


def test_huge_lengths_are_exact_and_quick() -> None:
    length = 2**62
    assert Band(None, 0).pairs(length, length) == length * (length + 1) // 2
    assert Band(1023, 0).pairs(length, length) == length * 1024 - 1024 * 1023 // 2


def splits(total: int, count: int) -> list[tuple[int, ...]]:
    if count == 1:
        return [(total,)]
    return [
        (first, *rest) for first in range(total + 1) for rest in splits(total - first, count - 1)
    ]


@given(st.integers(0, 9), st.integers(1, 3), SIDES, st.sampled_from([None, 0]), st.booleans())
def test_packed_sequences_lie_between_the_bounds_and_reach_them(
    total: int, documents: int, left: int | None, right: int | None, bottom_right: bool
) -> None:
    band = Band(left, right, bottom_right)
    by_longest: dict[int, list[int]] = {}
    for lengths in splits(total, documents):
        pairs = sum(band.pairs(length, length) for length in lengths)
        by_longest.setdefault(max(lengths), []).append(pairs)
    everything = [pairs for found in by_longest.values() for pairs in found]
    assert band.least(documents, total) == min(everything)
    for longest in by_longest:
        upto = [pairs for size, found in by_longest.items() if size <= longest for pairs in found]
        assert band.most(documents, total, longest) == max(upto)


def test_bounds_grow_with_the_longest_sequence() -> None:
    bounds = [Band(None, 0).most(4, 100, longest) for longest in range(25, 101)]
    assert all(one <= other for one, other in pairwise(bounds))
    assert (Band(None, 0).least(4, 100), bounds[0], bounds[-1]) == (1300, 1300, 5050)


def test_no_documents_have_no_pairs() -> None:
    assert Band().least(0, 0) == Band().most(0, 10, 5) - Band().pairs(0, 0) == 0
